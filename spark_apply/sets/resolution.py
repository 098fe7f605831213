"""Conflict handlers: what happens when a row LCR and the destination's row do not agree.

The row in the way is found and locked first (`DestinationSession.find_rows`). The database compares and orders its
values, and the handler decides (`spark_apply.sets.decisions`). The decision is written in the same destination
transaction as the rest of the group, and so is its history. So a conflict is resolved exactly once, whatever dies.

Row LCRs of different keys are looked up, decided and written together (`resolve_all`); those of one key are resolved
one after another.

A conflict that no handler resolves leaves no trace in the data: its transaction is rolled back and enters the error
queue.

Worked flow (`maximum`, resolution column t, list {v, t})
    LCR: v 1 -> 2, t 10 -> 20; row: v=7, t=15       differs {v, t}, 20 > 15: v=2, t=20 are written, LCR APPLIED
    LCR: v 1 -> 2, t 10 -> 12; row: v=7, t=15       12 < 15: nothing is written, LCR DISCARDED
    LCR: v 1 -> 2, t 10 -> 15; row: v=7, t=15       equal: no winner, the transaction enters the error queue

Source: Oracle Streams Replication Administrator's Guide, "Column Lists", "Resolution Columns";
`headrace.rules.conflict_handlers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.base.errors import DataError
from headrace.base.failpoints import failpoint
from headrace.databases.ports import ConflictRecord, RowInTheWay, Write
from headrace.lcr.batch import Command
from spark_apply.sets.decisions import NO_KEY, RESOLVED_KINDS, Decision, GivenUp, Met, as_it_is, decide, question_of
from spark_apply.sets.latest import METHOD, Latest, TimedRow, TimeUnknown, settle_all_by_time, settle_by_time
from spark_apply.sets.row_images import RowImages, named
from spark_apply.sets.row_sets import alike, joined, write_each

if TYPE_CHECKING:
    from headrace.databases.ports import ConflictSession, DestinationSession, WriteSession
    from headrace.lcr.batch import LcrBatch
    from spark_apply.conversation.groups import Failure
    from spark_apply.sets.conflict_settings import ConflictSettings
    from spark_apply.tables.fits import TableFit

__all__ = [
    "DIFFERS",
    "Resolution",
    "RowToResolve",
    "Unresolved",
    "failed_conflict",
    "handled_conflict",
]

DIFFERS = "DIFFERS: "
"""Prefix of the text, stored with an error, that names the conflicting columns."""

_CURRENT = "current."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A conflict that no handler resolves.

    Args:
        kind: kind of conflict, by the row as it was when it was locked.
        reason: why no handler resolves it; empty: the table has no handler.
        texts: the rows in the way, "current.column=value", and the conflicting columns behind `DIFFERS`.
    """

    kind: str
    reason: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowToResolve:
    """A row LCR that is expected to conflict and was not tried.

    Args:
        write: of this row alone.
        fit: of its table.
        row: its values.
    """

    write: Write
    fit: TableFit
    row: RowImages


@dataclass(slots=True)
class Resolution:
    """The conflicts of one destination transaction.

    Args:
        settings: handlers and names of the apply process.
        records: outcomes of the resolved conflicts, to be written before the commit.
    """

    settings: ConflictSettings
    records: list[ConflictRecord] = field(default_factory=list)

    def resolve(
        self,
        session: DestinationSession,
        write: Write,
        fit: TableFit,
        row: RowImages,
        kind: str,
    ) -> Unresolved | None:
        """Resolve a conflict, at the session's savepoint.

        Args:
            session: in a transaction with a savepoint; changes since then are rolled back.
            write: of one row, as it was tried.
            fit: of its table.
            row: the LCR's values.
            kind: kind of conflict, by the write that was tried.

        Returns:
            None: the conflict is resolved. Otherwise the transaction must be rolled back.
        """
        session.rollback_to_savepoint()
        if (
            write.times is not None
            and fit.conflicts.handlers
            and kind in RESOLVED_KINDS
            and not write.paired
            and fit.key
        ):
            return self._by_time(session, write, fit, row)
        if kind not in RESOLVED_KINDS or write.paired or not fit.key:
            reason = NO_KEY if kind in RESOLVED_KINDS and fit.conflicts.handlers else ""
            return Unresolved(kind=kind, reason=reason)
        met = _met(write, fit, row, kind)
        found: tuple[RowInTheWay, ...] = ()
        try:
            found = session.find_rows(met.write, question_of(met))
            met = as_it_is(met, found)
            if met.kind == "":  # another session changed the row meanwhile: the conflict is gone
                _write_one(session, write)
                return None
            failpoint("apply.conflict")
            decision = decide(self.settings, met, found, write)
            for each in decision.removed:
                session.remove_row(fit.table, each.number)
            for made in decision.writes:
                _write_one(session, made)
        except GivenUp as reason:
            return Unresolved(kind=met.kind or kind, reason=str(reason), texts=_current_texts(met, found))
        except DataError as error:
            session.rollback_to_savepoint()
            return Unresolved(
                kind=met.kind or kind,
                reason=f"the resolution was refused: {error.message}",
                texts=_current_texts(met, found),
            )
        self.records.append(self._recorded(met, found, decision))
        return None

    def resolve_all(
        self, session: DestinationSession, rows: Sequence[RowToResolve]
    ) -> list[ConflictRecord | None] | None:
        """Resolve row LCRs that are expected to conflict, together; those that meet no conflict are written.

        Args:
            session: in a transaction.
            rows: each of another key, of tables with that key as their only unique key (`TableFit.is_collapsible`).

        Returns:
            The outcome of each, for `records` in source order; None where no row was in the way. None instead of the
            list: one of them cannot be resolved; roll back.

        Raises:
            DataError: the destination refused a value; roll back.
        """
        timed = [place for place, each in enumerate(rows) if each.write.times is not None]
        others = [place for place, each in enumerate(rows) if each.write.times is None]
        found: dict[int, ConflictRecord | None] = {}
        for places, resolve in ((timed, self._all_by_time), (others, self._all_by_value)):
            records = resolve(session, [rows[place] for place in places])
            if records is None:
                return None
            found |= zip(places, records, strict=True)
        return [found[place] for place in range(len(rows))]

    def write(self, session: ConflictSession) -> None:
        """Write the outcomes since the last call into the history, in the transaction of the data."""
        if self.records:
            bounds = self.settings.rules.history
            session.record_conflicts(self.records, count_max=bounds.count, age_max_s=bounds.age_s)
            self.records.clear()

    # ------------------------------------------------------------------ inside

    def _by_time(self, session: DestinationSession, write: Write, fit: TableFit, row: RowImages) -> Unresolved | None:
        met = Met(write, fit, row, "")
        try:
            found = settle_by_time(session, TimedRow(write=write, fit=fit, row=row))
        except TimeUnknown as unknown:
            session.rollback_to_savepoint()
            return Unresolved(
                kind=unknown.kind,
                reason=unknown.reason,
                texts=_current_texts(replace(met, kind=unknown.kind), unknown.found),
            )
        record = self._recorded_latest(met, found)
        self.records += [] if record is None else [record]
        return None

    def _all_by_time(
        self, session: DestinationSession, rows: Sequence[RowToResolve]
    ) -> list[ConflictRecord | None] | None:
        try:
            found = settle_all_by_time(
                session, [TimedRow(write=each.write, fit=each.fit, row=each.row) for each in rows]
            )
        except TimeUnknown:
            return None
        if found is None:
            return None
        return [
            self._recorded_latest(Met(each.write, each.fit, each.row, ""), latest)
            for each, latest in zip(rows, found, strict=True)
        ]

    def _all_by_value(
        self, session: DestinationSession, rows: Sequence[RowToResolve]
    ) -> list[ConflictRecord | None] | None:
        met = [_met(each.write, each.fit, each.row, _expected_kind(each.write.command)) for each in rows]
        questions = [question_of(each) for each in met]
        found: list[list[RowInTheWay]] = [[] for _ in rows]
        for places in alike([each.write for each in met], questions):
            for row in session.find_rows(joined([met[place].write for place in places]), questions[places[0]]):
                found[places[row.of]].append(row)
        records: list[ConflictRecord | None] = []
        writes: list[Write] = []
        for each, tried, ways in zip(rows, met, map(tuple, found), strict=True):
            is_free = tried.kind == "insert_exists" and not ways
            seen = replace(tried, kind="") if is_free else as_it_is(tried, ways)
            if seen.kind == "":
                records.append(None)
                writes.append(each.write)
                continue
            failpoint("apply.conflict")
            try:
                decision = decide(self.settings, seen, ways, each.write)
            except GivenUp:
                return None
            for removed in decision.removed:
                session.remove_row(each.fit.table, removed.number)
            writes += decision.writes
            records.append(self._recorded(seen, ways, decision))
        return records if write_each(session, [(write, 1) for write in writes]) else None

    def _recorded_latest(self, met: Met, found: Latest) -> ConflictRecord | None:
        if not found.kind:
            return None
        record = self._recorded(
            replace(met, kind=found.kind),
            found.found,
            Decision(columns=found.applied, outcome=found.outcome, by=METHOD),
        )
        return replace(record, current=(*record.current, found.last)) if found.last else record

    def _recorded(self, met: Met, found: tuple[RowInTheWay, ...], decision: Decision) -> ConflictRecord:
        row = met.row
        return ConflictRecord(
            apply=self.settings.apply,
            source=self.settings.source,
            transaction_id=row.transaction_id,
            commit_scn=row.commit_scn,
            position=row.position,
            owner=met.fit.version.owner,
            name=met.fit.version.name,
            command=met.write.command.name,
            kind=met.kind,
            columns=tuple(sorted(met.name(place) for each in found for place in each.differs))
            if met.kind.endswith("differs")
            else (),
            handler=decision.by,
            outcome=decision.outcome,
            applied_columns=tuple(met.name(place) for place in sorted(decision.columns)),
            old=row.texts(row.old, self.settings.show),
            new=row.texts(row.new, self.settings.show),
            current=tuple(text for each in found for text in _row_texts(each)),
        )


def _met(write: Write, fit: TableFit, row: RowImages, kind: str) -> Met:
    return Met(replace(write, old=row.old_values(write), new=row.new_values()), fit, row, kind)


def _expected_kind(command: Command) -> str:
    """Return the kind of a row that was not tried; the handlers' lookup shows the actual one."""
    return "insert_exists" if command is Command.INSERT else f"{command.name.lower()}_differs"


def _write_one(session: WriteSession, write: Write) -> None:
    if session.write([write]) != (1,):
        raise GivenUp("the row disappeared while it was being written")


# --------------------------------------------------------------------------- what is shown


def _row_texts(row: RowInTheWay) -> Iterable[str]:
    return (named(name, "NULL" if text is None else text) for name, text in row.values.items())


def _current_texts(met: Met, found: Sequence[RowInTheWay]) -> tuple[str, ...]:
    differing = sorted({met.name(place) for each in found for place in each.differs})
    texts = tuple(f"{_CURRENT}{text}" for each in found for text in _row_texts(each))
    return (*texts, f"{DIFFERS}{', '.join(differing)}") if differing and met.kind.endswith("differs") else texts


def failed_conflict(
    settings: ConflictSettings, failure: Failure, batch: LcrBatch, number: int
) -> ConflictRecord | None:
    """Return the conflict that put a transaction into the error queue, for the history.

    Args:
        settings: of the apply process.
        failure: of the transaction.
        batch: the transaction, or the part of it that enters the error queue.
        number: of the error transaction.

    Returns:
        None: it failed for another reason, or in another part.
    """
    row = failure.position - batch.first_position
    record = _of_failure(settings, failure, batch, row) if 0 <= row < batch.row_count else None
    return None if record is None else replace(record, outcome="ERROR QUEUE", error_number=number)


def handled_conflict(
    settings: ConflictSettings, failure: Failure, batch: LcrBatch, row: int, by: str
) -> ConflictRecord | None:
    """Return the conflict that a user's function handled, for the history.

    Args:
        settings: of the apply process.
        failure: why the row LCR could not be applied.
        batch: contains the row.
        row: its number in the batch.
        by: the function.

    Returns:
        None: it failed for another reason.
    """
    record = _of_failure(settings, failure, batch, row)
    return None if record is None else replace(record, handler=by, outcome="HANDLED")


def _of_failure(settings: ConflictSettings, failure: Failure, batch: LcrBatch, row: int) -> ConflictRecord | None:
    group = int(batch.row_places[0][row])
    if not failure.conflict_type or group < 0:
        return None
    images = RowImages.of(batch, row)
    texts = {
        prefix: tuple(text.removeprefix(prefix) for text in failure.readable if text.startswith(prefix))
        for prefix in (_CURRENT, DIFFERS)
    }
    version = batch.tables[batch.groups[group].table]
    return ConflictRecord(
        apply=settings.apply,
        source=settings.source,
        transaction_id=images.transaction_id,
        commit_scn=images.commit_scn,
        position=failure.position,
        owner=version.owner,
        name=version.name,
        command=batch.groups[group].command.name,
        kind=failure.conflict_type,
        columns=tuple(name for text in texts[DIFFERS] for name in text.split(", ")),
        outcome="",
        old=images.texts(images.old, settings.show),
        new=images.texts(images.new, settings.show),
        current=texts[_CURRENT],
    )
