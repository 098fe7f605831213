"""Row by row: the only place that decides what a conflict is.

Sets are only attempts: any failure of a set leads here, where every earlier change is already applied. Rows are written
in source order, one chunk per round trip. If a chunk fails, its rows are written one at a time behind a savepoint until
the failing row is found. Then the cause is determined.

Where conflict handlers resolve what a set would meet, only its conflicting rows come here (`resolve_rows`). They need
no savepoint, because that is an attempt too.

    insert_exists, update_exists    a unique key already has the value
    update_missing, delete_missing  no row has the key
    update_differs, delete_differs  the row exists, but an old value differs
    multiple_rows                   several rows match
    foreign_key                     another table's row is missing, or refers to this one

Source: Oracle Streams Replication Administrator's Guide, "Conflict Resolution"; names as in PostgreSQL's conflict.c.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import DataError
from headrace.databases.ports import ConflictRecord, DestinationSession, Write, WriteSession
from headrace.lcr.batch import Command, LcrBatch
from headrace.lcr.values import ABSENT, UNCHANGED, ColumnValues
from spark_apply.conversation.groups import Failure
from spark_apply.sets.collapse import plan_rows, plan_sets
from spark_apply.sets.resolution import Resolution, RowToResolve
from spark_apply.sets.row_images import CHARACTERS_MAX, RowImages, ShowValue, named, shown
from spark_apply.sets.steps import ExpectedWrite, FitOf, Step, TruncateTables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.batch import TableVersion
    from spark_apply.tables.fits import TableFit

__all__ = ["Recover", "RowWriter", "apply_rows", "execute_ahead", "execute_steps", "resolve_rows", "runs_of"]

_DIFFERS = "the row has other values than the LCR's old values"
_MISSING = "no row has the LCR's key values"
_CHUNK_ROWS = 256  # per round trip: hides the latency; a failing chunk costs at most twice as many writes

Recover = Callable[[LcrBatch, int, Failure], "Failure | None"]
"""Handles a row that cannot be applied, at the savepoint before it: (batch, row number, failure).

Returns None: the row is handled.
"""


def execute_steps(session: WriteSession, steps: Sequence[Step]) -> int | None:
    """Execute planned steps inside the session's transaction.

    Args:
        session: in a transaction.
        steps: the planned steps, in order.

    Returns:
        Number of rows written; None: a write affected a different number of rows than expected; roll back.

    Raises:
        DataError: the destination refused a value; roll back.
    """
    return execute_ahead(session, steps)()


def execute_ahead(session: WriteSession, steps: Sequence[Step]) -> Callable[[], int | None]:
    """Execute steps as `execute_steps` does, but let the caller continue while the last writes are still running.

    The destination executes the writes behind the last TRUNCATE meanwhile.

    Args:
        session: in a transaction.
        steps: the planned steps, in order.

    Returns:
        A function that waits, and returns or raises what `execute_steps` would (`DestinationSession.write_ahead`).

    Raises:
        DataError: the destination refused a value; roll back.
    """
    waits: list[tuple[Callable[[], tuple[int, ...]], list[ExpectedWrite]]] = []
    for is_truncate, run in itertools.groupby(steps, key=lambda step: isinstance(step, TruncateTables)):
        if is_truncate:
            for step in run:
                _truncate(session, step)
            continue
        expected = [step for step in run if isinstance(step, ExpectedWrite)]
        waits.append((session.write_ahead([step.write for step in expected]), expected))

    def done() -> int | None:
        total = 0
        for wait, expected in waits:
            counts = wait()
            if any(count != step.expected for count, step in zip(counts, expected, strict=True)):
                return None
            total += sum(counts)
        return total

    return done


def apply_rows(
    session: DestinationSession,
    batch: LcrBatch,
    fit_of: FitOf,
    resolution: Resolution,
    *,
    numbers: Sequence[int] | None = None,
    recover: Recover | None = None,
) -> Failure | None:
    """Apply rows in source order inside the session's transaction: in chunks, and one by one where a chunk fails.

    Args:
        session: in a transaction; its savepoint is used.
        batch: the rows of one transaction, or of a part of it.
        fit_of: returns the fit of a table version.
        resolution: resolves conflicts, and records their outcomes.
        numbers: numbers of the rows to apply; None: all.
        recover: called with each row that cannot be applied; None: the first failure ends the call.

    Returns:
        None: all rows are applied; otherwise the failure: roll back.
    """
    rows = plan_rows(batch, fit_of, numbers)
    while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
        session.savepoint()
        try:
            if execute_steps(session, [step for _, step in chunk]) is not None:
                continue
        except DataError:
            pass
        session.rollback_to_savepoint()
        for number, step in chunk:
            failure = _apply_row(session, step, _Row(batch, number, fit_of), resolution)
            if failure is not None and recover is not None:
                session.rollback_to_savepoint()
                failure = recover(batch, number, failure)
            if failure is not None:
                return failure
    return None


def resolve_rows(
    session: DestinationSession,
    batches: Sequence[LcrBatch],
    turns: NDArray[np.int32],
    fit_of: FitOf,
    resolution: Resolution,
) -> bool:
    """Resolve rows that are expected to conflict: rows of different keys together, those of one key one after another.

    Args:
        session: in a transaction.
        batches: consecutive transactions.
        turns: from `ResolvablePlan.around`: one for each row of all batches.
        fit_of: returns the fit of a table version.
        resolution: resolves conflicts, and records their outcomes in source order.

    Returns:
        False: one cannot be resolved; roll back.

    Raises:
        DataError: the destination refused a value; roll back.
    """
    rows: list[RowToResolve] = []
    for batch, part in zip(
        batches, np.split(turns, np.cumsum([batch.row_count for batch in batches])[:-1]), strict=True
    ):
        for number, step in plan_rows(batch, fit_of, np.flatnonzero(part >= 0).tolist()):
            assert isinstance(step, ExpectedWrite)
            images = RowImages.of(batch, number)
            rows.append(RowToResolve(write=step.write, fit=fit_of(images.version), row=images))
    mine = turns[turns >= 0]
    records: dict[int, ConflictRecord] = {}
    for turn in range(int(mine.max(initial=-1)) + 1):
        places = np.flatnonzero(mine == turn).tolist()
        found = resolution.resolve_all(session, [rows[place] for place in places])
        if found is None:
            return False
        records |= {place: record for place, record in zip(places, found, strict=True) if record is not None}
    resolution.records += [records[place] for place in sorted(records)]
    return True


def runs_of(handled: NDArray[np.bool_]) -> Iterator[tuple[bool, list[int]]]:
    """Cut rows into runs of handled and unhandled ones: yield whether a run is handled, and its rows' numbers."""
    ends = [*(np.flatnonzero(np.diff(handled)) + 1).tolist(), handled.shape[0]]
    start = 0
    for end in ends:
        if end > start:
            yield bool(handled[start]), list(range(start, end))
        start = end


class RowWriter:
    """Writes what handlers execute; a `spark_apply.handlers.running.Writer`.

    Args:
        session: in a transaction.
        fit_of: returns the fit of a table version.
    """

    def __init__(self, session: DestinationSession, fit_of: FitOf) -> None:
        self._session, self._fit_of = session, fit_of

    def sets(self, batches: Sequence[LcrBatch]) -> bool:
        """Write batches as sets; return whether all rows were written."""
        return execute_steps(self._session, plan_sets(batches, self._fit_of)) is not None

    def row(self, batch: LcrBatch, resolution: Resolution, *, resolves: bool) -> Failure | None:
        """Write one row; return the failure, behind the savepoint, or None."""
        fit_of = self._fit_of if resolves else self._without_handlers
        ((number, step),) = plan_rows(batch, fit_of)
        failure = _apply_row(self._session, step, _Row(batch, number, fit_of), resolution)
        if failure is not None:
            self._session.rollback_to_savepoint()
        return failure

    def _without_handlers(self, version: TableVersion) -> TableFit:
        fit = self._fit_of(version)
        return replace(fit, conflicts=replace(fit.conflicts, handlers=()))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row by its batch and its number there."""

    batch: LcrBatch
    number: int
    fit_of: FitOf

    @property
    def position(self) -> int:
        return self.batch.first_position + self.number - int(self.batch.transactions.first_row[0])


def _apply_row(session: DestinationSession, step: Step, row: _Row, resolution: Resolution) -> Failure | None:
    session.savepoint()
    try:
        if isinstance(step, TruncateTables):
            _truncate(session, step)
            return None
        (count,) = session.write([step.write])
    except DataError as error:
        sqlstate = str(error.context.get("sqlstate", ""))
        if isinstance(step, TruncateTables):
            # Include the fix: the error queue does not show hints.
            message = f"{error.message}. {error.hint}" if error.hint else error.message
            return Failure(position=row.position, conflict_type="", sqlstate=sqlstate, message=message)
        return _resolved(
            session,
            step.write,
            row,
            resolution,
            Failure(
                position=row.position,
                conflict_type=_refused(step.write.command, error),
                sqlstate=sqlstate,
                message=error.message,
                readable=_detail(error),
            ),
        )
    if count == step.expected:
        return None
    session.rollback_to_savepoint()
    if step.write.times is not None and step.write.command is Command.INSERT:
        conflict_type, why = "insert_exists", "a later change of the row is noted"
    elif diverted := _diverted(step.write, count, is_certain=True):
        conflict_type, why = "", diverted
    elif _is_asked(step.write, row) and count <= 0:
        # The handlers look the row up in any case: that shows whether it is missing or differs.
        conflict_type, why = f"{step.write.command.name.lower()}_differs", _DIFFERS
    else:
        conflict_type, why = _mismatched(session, step.write, count)
    return _resolved(
        session,
        step.write,
        row,
        resolution,
        Failure(
            position=row.position,
            conflict_type=conflict_type,
            sqlstate="",
            message=f"{step.write.command.name} of {step.write.version.qualified_name}: {why}",
        ),
    )


def _is_asked(write: Write, row: _Row) -> bool:
    """Return whether conflict handlers, which find the row by its key, get a conflict of the write."""
    fit = row.fit_of(write.version)
    return bool(fit.conflicts.handlers) and bool(fit.key) and not write.paired and write.command is not Command.INSERT


def _resolved(
    session: DestinationSession, write: Write, row: _Row, resolution: Resolution, failure: Failure
) -> Failure | None:
    """Complete a failure with the LCR's values and what is known of the rows in the way.

    None: a conflict handler has resolved it.
    """
    show = resolution.settings.show
    if not failure.conflict_type:
        return replace(failure, readable=(*_readable(write, show), *failure.readable))
    images = RowImages.of(row.batch, row.number)
    answer = resolution.resolve(session, write, row.fit_of(images.version), images, failure.conflict_type)
    if answer is None:
        return None
    message = failure.message
    if answer.kind != failure.conflict_type:
        message = (
            message.replace(_DIFFERS, _MISSING)
            if answer.kind.endswith("missing")
            else message.replace(_MISSING, _DIFFERS)
        )
    message = f"{message}; {answer.reason}" if answer.reason else message
    return replace(
        failure,
        conflict_type=answer.kind,
        message=message,
        readable=(*_readable(write, show), *failure.readable, *answer.texts),
    )


def _truncate(session: WriteSession, step: Step) -> None:
    assert isinstance(step, TruncateTables)
    if step.unfit:
        raise DataError(step.unfit)
    session.truncate(step.tables, restart_identity=step.restart_identity)


def _refused(command: Command, error: DataError) -> str:
    violates = error.context.get("violates")
    if violates == "unique":
        return "insert_exists" if command is Command.INSERT else "update_exists"
    return "foreign_key" if violates == "foreign_key" else ""


def _mismatched(session: WriteSession, write: Write, count: int) -> tuple[str, str]:
    """Return the conflict type and its description for a write that did not change exactly one row."""
    diverted = _diverted(write, count, is_certain=False)
    if write.command is Command.INSERT:
        return "", diverted or "the destination took no row"
    if count > 1:
        return "multiple_rows", f"{count} rows match"
    kind = write.command.name.lower()
    if write.compare_columns:
        # The transaction is rolled back anyway, so look for the row by writing without comparison.
        try:
            (found,) = session.write([replace(write, compare_columns=())])
        except DataError:
            found = 1  # a row exists, but the destination refuses to change or delete it
        if found:
            return f"{kind}_differs", _DIFFERS
    if write.paired:
        return f"{kind}_missing", "no row has the LCR's old values, and its key has a NULL, which identifies no row"
    return f"{kind}_missing", f"{_MISSING}; or {diverted}" if diverted else _MISSING


def _diverted(write: Write, count: int, *, is_certain: bool) -> str:
    """Return which rules and triggers of the destination took the row; empty: none.

    Args:
        write: of one row.
        count: number of rows that it changed.
        is_certain: report only those that take every row.
    """
    found = [
        each.what
        for each in write.table.diversions
        if each.command == write.command.name and (each.is_always or not is_certain)
    ]
    return (
        f"the destination took no row: {', '.join(found)} {'runs' if len(found) == 1 else 'run'} instead of the applied"
        " change"
        if found and count == 0
        else ""
    )


def _detail(error: DataError) -> tuple[str, ...]:
    return (f"DETAIL: {error.detail[:CHARACTERS_MAX]}",) if error.detail else ()


def _readable(write: Write, show: ShowValue) -> tuple[str, ...]:
    images = (("old.", write.old), ("new.", write.new))
    return tuple(
        f"{label}{text}"
        for label, values in images
        if values is not None
        for text in _texts(values, write.version, show)
    )


def _texts(values: ColumnValues, version: TableVersion, show: ShowValue) -> Iterator[str]:
    for place, column in enumerate(version.columns):
        value = values.value(place, 0)
        if value == UNCHANGED:
            yield named(column.name, "(unchanged)")
        elif value != ABSENT:
            yield shown(column, value if isinstance(value, bytes) else None, show)
