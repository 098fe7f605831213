"""Conflict handlers: what happens when a row LCR and the destination's row do not agree.

The row in the way is found and locked first (`DestinationSession.find_rows`); the database compares its values and puts them in
order, and the handler decides. What it decides is written in the same destination transaction as everything else of the
group, and so is the history of it: a conflict is resolved exactly once, whatever dies.

A conflict that no handler resolves leaves nothing behind: its transaction is rolled back and enters the error queue.

Worked flow (`maximum`, resolution column t, list {v, t})
    LCR: v 1 -> 2, t 10 -> 20; row: v=7, t=15       differs {v, t}, 20 > 15: v=2, t=20 are written, LCR APPLIED
    LCR: v 1 -> 2, t 10 -> 12; row: v=7, t=15       12 < 15: nothing is written, LCR DISCARDED
    LCR: v 1 -> 2, t 10 -> 15; row: v=7, t=15       equal: nobody wins, into the error queue

Source: Oracle Streams Replication Administrator's Guide, "Column Lists", "Resolution Columns"; `rules.conflict_handlers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from databases.ports import ConflictRecord, RowInTheWay, RowQuestion, Write
from rules.conflict_handlers import BY_COLUMN, NO_CONFLICT_RULES, ConflictHandler, ConflictRules
from spark_apply.server.latest import METHOD, TimeUnknown, settle_by_time
from spark_apply.server.row_images import RowImages, ShowValue, named, show_raw
from streams.errors import DataError
from streams.failpoints import failpoint
from streams.lcr_batch import Command

if TYPE_CHECKING:
    from databases.ports import DestinationSession
    from spark_apply.groups import Failure
    from spark_apply.tables import TableFit
    from streams.lcr_batch import LcrBatch

__all__ = ["DIFFERS", "ConflictSettings", "Resolution", "Unresolved", "failed_conflict"]

DIFFERS = "DIFFERS: "
"""Prefix of the names of conflicting columns among the texts stored with an error."""

_CURRENT = "current."


class _GivenUp(Exception):  # noqa: N818 - an outcome
    """No handler resolves it, and why."""


class _Verdict(Enum):
    LCR = "the LCR wins"
    ROW = "the row wins"
    SUM = "both count"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictSettings:
    """What conflicts of one apply process are resolved by.

    Args:
        apply: its name.
        source: the site whose transactions it applies.
        site: where.
        rules: its handlers.
        show: formats an LCR's value.
    """

    apply: str
    source: str
    site: str = ""
    rules: ConflictRules = NO_CONFLICT_RULES
    show: ShowValue = show_raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A conflict that stays.

    Args:
        kind: of it, by the row as it was when it was locked.
        reason: why no handler resolves it; empty: none is set for the table.
        texts: the rows in the way, "current.column=value", and the columns that conflict behind `DIFFERS`.
    """

    kind: str
    reason: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Met:
    """A conflict: the write that met it, and what is known of it."""

    write: Write
    fit: TableFit
    row: RowImages
    kind: str

    def name(self, position: int) -> str:
        return self.fit.version.columns[position].name

    def position(self, name: str) -> int:
        return next((place for place, column in enumerate(self.fit.version.columns) if column.name == name), -1)

    def listed(self, handler: ConflictHandler) -> tuple[int, ...]:
        """A column list as positions, -1 for a column that the LCRs do not have."""
        if handler.columns:
            return tuple(self.position(name) for name in handler.columns)
        key = {self.fit.table.columns[place].name for place in self.fit.table.key}
        return tuple(place for place in self.fit.all_columns if self.name(place) not in key)


@dataclass(slots=True)
class Resolution:
    """The conflicts of one destination transaction.

    Args:
        settings: what they are resolved by.
        records: what became of those that are resolved, to be written before the commit.
    """

    settings: ConflictSettings
    records: list[ConflictRecord] = field(default_factory=list)

    def resolve(
        self, session: DestinationSession, write: Write, fit: TableFit, row: RowImages, kind: str, *, is_tried: bool = True,
    ) -> Unresolved | None:
        """Resolve a conflict, behind the session's savepoint.

        Args:
            session: in a transaction with a savepoint; what happened since then is taken back.
            write: of one row, as it was tried.
            fit: of its table.
            row: the LCR's values.
            kind: of the conflict, by the write that was tried.
            is_tried: False: it was not tried, and nothing happened behind the savepoint; there may be no conflict at all.

        Returns:
            None: it is resolved. Otherwise the transaction must be rolled back.
        """
        if is_tried:
            session.rollback_to_savepoint()
        if write.times is not None and fit.conflicts.handlers and kind in _RESOLVE and not write.paired and fit.key:
            return self._by_time(session, write, fit, row)
        if kind not in _RESOLVE or write.paired or not fit.key:
            reason = "conflict handlers need a key that identifies the row" if kind in _RESOLVE and fit.conflicts.handlers else ""
            return Unresolved(kind=kind, reason=reason)
        met = _Met(replace(write, old=row.old_values(write), new=row.new_values()), fit, row, kind)
        found: tuple[RowInTheWay, ...] = ()
        try:
            found = session.find_rows(met.write, self._question(met))
            met = _as_it_is(met, found)
            if met.kind == "multiple_rows":
                _give_up("conflict handlers need a key that identifies the row")
            if met.kind == "":  # another session changed the row meanwhile: there is no conflict any more
                _write_one(session, write)
                return None
            failpoint("apply.conflict")
            record = self._decided(session, met, found, write)
        except _GivenUp as reason:
            return Unresolved(kind=met.kind or kind, reason=str(reason), texts=_current_texts(met, found))
        except DataError as error:
            session.rollback_to_savepoint()
            return Unresolved(
                kind=met.kind or kind, reason=f"what is to be done about it is refused: {error.message}", texts=_current_texts(met, found),
            )
        self.records.append(record)
        return None

    def write(self, session: DestinationSession) -> None:
        """Write what happened since the last call into the history, in the transaction of the data."""
        if self.records:
            bounds = self.settings.rules.history
            session.record_conflicts(self.records, count_max=bounds.count, age_max_s=bounds.age_s)
            self.records.clear()

    # ------------------------------------------------------------------ inside

    def _by_time(self, session: DestinationSession, write: Write, fit: TableFit, row: RowImages) -> Unresolved | None:
        met = _Met(write, fit, row, "")
        try:
            found = settle_by_time(session, write, fit, row)
        except TimeUnknown as unknown:
            session.rollback_to_savepoint()
            return Unresolved(kind=unknown.kind, reason=unknown.reason, texts=_current_texts(replace(met, kind=unknown.kind), unknown.found))
        if found.kind:
            met = replace(met, kind=found.kind)
            record = self._recorded(met, found.found, (found.applied, found.outcome, METHOD))
            self.records.append(replace(record, current=(*record.current, found.last) if found.last else record.current))
        return None

    def _question(self, met: _Met) -> RowQuestion:
        handlers = met.fit.conflicts.handlers
        columns = {met.position(each.resolution_column) for each in handlers if each.method in BY_COLUMN}
        sums = {place for each in handlers if each.method == "delta" for place in met.listed(each) if place in met.row.changed}
        is_unique = met.kind in {"insert_exists", "update_exists"}
        compare = met.write.compare_columns
        if met.kind == "insert_exists":
            compare = tuple(sorted(place for place in met.row.new if place in met.fit.all_columns))
        return RowQuestion(
            by_key=not is_unique, compare=() if met.kind == "update_exists" else compare,
            order=tuple(sorted(place for place in columns if place in met.row.new)) if met.row.new else (),
            sums=tuple(sorted(place for place in sums if place in met.row.old and place in met.row.new)),
        )

    def _decided(self, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...], write: Write) -> ConflictRecord:
        handlers = met.fit.conflicts.of_kind(met.kind)
        if not handlers:
            _give_up("" if not met.fit.conflicts.handlers else f"no conflict handler is set for {met.kind}")
        return self._recorded(met, found, _RESOLVE[met.kind](self.settings, session, met, found, handlers, write))

    def _recorded(self, met: _Met, found: tuple[RowInTheWay, ...], decision: _Applied) -> ConflictRecord:
        (applied, outcome, by), row = decision, met.row
        return ConflictRecord(
            apply=self.settings.apply, source=self.settings.source, transaction_id=row.transaction_id, commit_scn=row.commit_scn,
            position=row.position, owner=met.fit.version.owner, name=met.fit.version.name, command=met.write.command.name, kind=met.kind,
            columns=tuple(sorted(met.name(place) for each in found for place in each.differs)) if met.kind.endswith("differs") else (),
            handler=by, outcome=outcome, applied_columns=tuple(met.name(place) for place in sorted(applied)),
            old=row.texts(row.old, self.settings.show), new=row.texts(row.new, self.settings.show),
            current=tuple(text for each in found for text in _row_texts(each)),
        )


def _give_up(reason: str) -> NoReturn:
    raise _GivenUp(reason)


def _as_it_is(met: _Met, found: Sequence[RowInTheWay]) -> _Met:
    """The conflict by the row that is locked now: it may have come, gone or changed since the write was tried."""
    command = met.write.command.name.lower()
    if met.kind in {"insert_exists", "update_exists"}:
        return met
    if not found:
        return replace(met, kind=f"{command}_missing")
    if len(found) > 1:
        return replace(met, kind="multiple_rows")
    return replace(met, kind=f"{command}_differs" if found[0].differs else "")


# --------------------------------------------------------------------------- who wins

_Applied = tuple[Iterable[int], str, str]  # columns of the LCR that were written, the outcome, and what decided


def _verdict(settings: ConflictSettings, met: _Met, handler: ConflictHandler, row: RowInTheWay) -> _Verdict:
    """Who wins: the LCR or the row."""
    if handler.method in BY_COLUMN:
        return _by_column(met, handler, row)
    if handler.method == "site_priority":
        ranks = [handler.priority.index(site) if site in handler.priority else -1 for site in (settings.source, settings.site)]
        if min(ranks) < 0:
            _give_up(f"site_priority lists {', '.join(handler.priority)}, and not both {settings.source} and {settings.site}")
        return _Verdict.LCR if ranks[0] < ranks[1] else _Verdict.ROW
    return {"overwrite": _Verdict.LCR, "discard": _Verdict.ROW, "delta": _Verdict.SUM}[handler.method]


def _by_column(met: _Met, handler: ConflictHandler, row: RowInTheWay) -> _Verdict:
    place = met.position(handler.resolution_column)
    if place not in met.row.new:
        _give_up(f"{handler}: the LCR lacks the column {handler.resolution_column}")
    order = row.order[place]
    if order is None:
        _give_up(f"{handler}: {handler.resolution_column} is NULL in the LCR or in the row")
    if order == 0:
        _give_up(f"{handler}: {handler.resolution_column} has the same value in the LCR and in the row")
    return _Verdict.LCR if (order > 0) == (handler.method == "maximum") else _Verdict.ROW


def _whole_list(met: _Met, handler: ConflictHandler) -> tuple[int, ...]:
    listed = met.listed(handler)
    lacking = [name for name, place in zip(handler.columns, listed, strict=False) if place < 0]
    lacking += [met.name(place) for place in listed if place >= 0 and place not in met.row.new]
    if lacking:
        _give_up(f"{handler}: the LCR lacks {', '.join(lacking)} of the column list")
    return listed


def _update_differs(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler], write: Write,
) -> _Applied:
    """Each column list by itself: a row may end up with columns of both."""
    (row,) = found
    lists = [(handler, set(met.listed(handler))) for handler in handlers]
    alone = [met.name(place) for place in sorted(row.differs) if not any(place in listed for _, listed in lists)]
    if alone:
        _give_up(f"{', '.join(alone)} conflicts, and is in no column list")
    values: dict[int, bytes | None] = {place: met.row.new[place] for place in write.set_columns}
    verdicts = []
    for handler, listed in lists:
        if not row.differs & listed:
            continue
        verdict = _verdict(settings, met, handler, row)
        verdicts.append(verdict)
        for place in listed:
            values.pop(place, None)
        if verdict is _Verdict.LCR:
            values |= {place: met.row.new[place] for place in _whole_list(met, handler)}
        elif verdict is _Verdict.SUM:
            values |= _sums(met, handler, listed, row)
    if values:
        _write_one(session, _update_of(met, values))
    by = ", ".join(str(handler) for handler, listed in lists if row.differs & listed)
    if set(verdicts) == {_Verdict.LCR}:
        return values, "LCR APPLIED", by
    return values, "MERGED" if values else "LCR DISCARDED", by


def _sums(met: _Met, handler: ConflictHandler, listed: Iterable[int], row: RowInTheWay) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for place in sorted(listed):
        if place not in met.row.changed:
            continue
        value = row.sums.get(place)
        if value is None:
            _give_up(f"{handler}: {met.name(place)} is NULL, or not in the LCR")
        found[place] = value
    return found


def _update_of(met: _Met, values: Mapping[int, bytes | None]) -> Write:
    """An UPDATE of the row that was found, with these values; it is locked, so nothing is compared."""
    return replace(
        met.write, command=Command.UPDATE, new=met.row.values_of(values), compare_columns=(), set_columns=tuple(sorted(values)),
    )


def _write_one(session: DestinationSession, write: Write) -> None:
    if session.write([write]) != (1,):
        _give_up("the row went while it was written")


def _update_missing(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],  # noqa: ARG001
    handlers: Sequence[ConflictHandler], write: Write,  # noqa: ARG001
) -> _Applied:
    (handler,) = handlers
    if handler.method == "discard":
        return (), "LCR DISCARDED", str(handler)
    columns = met.fit.all_columns
    lacking = [met.name(place) for place in columns if place not in met.row.new]
    if lacking:
        _give_up(f"{handler}: the LCR lacks {', '.join(lacking)}, without which no row can be made of it")
    _write_one(session, _insert_of(met, columns))
    return columns, "LCR APPLIED", str(handler)


def _insert_of(met: _Met, columns: Iterable[int]) -> Write:
    return replace(met.write, command=Command.INSERT, old=None, match_columns=(), compare_columns=(), set_columns=tuple(columns))


def _delete_differs(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler], write: Write,
) -> _Applied:
    (handler,) = handlers
    if _verdict(settings, met, handler, found[0]) is _Verdict.ROW:
        return (), "LCR DISCARDED", str(handler)
    _write_one(session, replace(write, compare_columns=()))
    return (), "LCR APPLIED", str(handler)


def _delete_missing(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],  # noqa: ARG001
    handlers: Sequence[ConflictHandler], write: Write,  # noqa: ARG001
) -> _Applied:
    return (), "LCR DISCARDED", str(handlers[0])


def _insert_exists(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler], write: Write,
) -> _Applied:
    """The LCR must win against every row that is in its way."""
    (handler,) = handlers
    if not found:
        _give_up(f"{handler}: the row in the way cannot be found by its values")
    (first, *others) = found
    if not others and first.is_same and not first.differs:
        return (), "LCR DISCARDED", f"{handler}: the row is the same"
    if any(_verdict(settings, met, handler, row) is _Verdict.ROW for row in found):
        return (), "LCR DISCARDED", str(handler)
    for row in found:
        if not row.is_same:
            session.remove_row(met.fit.table, row.number)
    if not any(row.is_same for row in found):
        _write_one(session, write)
        return write.set_columns, "LCR APPLIED", str(handler)
    key = {met.position(met.fit.table.columns[place].name) for place in met.fit.table.key}
    columns = tuple(place for place in write.set_columns if place not in key)
    if columns:
        _write_one(session, replace(
            met.write, command=Command.UPDATE, old=met.write.new, match_columns=tuple(sorted(key)), set_columns=columns,
        ))
    return columns, "LCR APPLIED", str(handler)


def _update_exists(
    settings: ConflictSettings, session: DestinationSession, met: _Met, found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler], write: Write,
) -> _Applied:
    (handler,) = handlers
    if not found:
        _give_up(f"{handler}: the row in the way cannot be found by its values")
    if any(_verdict(settings, met, handler, row) is _Verdict.ROW for row in found):
        return (), "LCR DISCARDED", str(handler)
    for row in found:
        session.remove_row(met.fit.table, row.number)
    _write_one(session, write)
    return write.set_columns, "LCR APPLIED", str(handler)


_RESOLVE = {
    "update_differs": _update_differs, "update_missing": _update_missing, "update_exists": _update_exists,
    "insert_exists": _insert_exists, "delete_differs": _delete_differs, "delete_missing": _delete_missing,
}


# --------------------------------------------------------------------------- what is shown


def _row_texts(row: RowInTheWay) -> Iterable[str]:
    return (named(name, "NULL" if text is None else text) for name, text in row.values.items())


def _current_texts(met: _Met, found: Sequence[RowInTheWay]) -> tuple[str, ...]:
    differing = sorted({met.name(place) for each in found for place in each.differs})
    texts = tuple(f"{_CURRENT}{text}" for each in found for text in _row_texts(each))
    return (*texts, f"{DIFFERS}{', '.join(differing)}") if differing and met.kind.endswith("differs") else texts


def failed_conflict(settings: ConflictSettings, failure: Failure, batch: LcrBatch, number: int) -> ConflictRecord | None:
    """The conflict that put a transaction into the error queue, for the history.

    Args:
        settings: of the apply process.
        failure: of the transaction.
        batch: the transaction, or the part of it that is put there.
        number: of the error transaction.

    Returns:
        None: it failed because of something else, or in another part.
    """
    row = failure.position - batch.first_position
    if not failure.conflict_type or not 0 <= row < batch.row_count:
        return None
    group = int(batch.row_places[0][row])
    if group < 0:
        return None
    images = RowImages.of(batch, row)
    texts = {prefix: tuple(text.removeprefix(prefix) for text in failure.readable if text.startswith(prefix)) for prefix in (_CURRENT, DIFFERS)}
    version = batch.tables[batch.groups[group].table]
    return ConflictRecord(
        apply=settings.apply, source=settings.source, transaction_id=images.transaction_id, commit_scn=images.commit_scn,
        position=failure.position, owner=version.owner, name=version.name, command=batch.groups[group].command.name,
        kind=failure.conflict_type, columns=tuple(name for text in texts[DIFFERS] for name in text.split(", ")),
        outcome="ERROR QUEUE", old=images.texts(images.old, settings.show), new=images.texts(images.new, settings.show),
        current=texts[_CURRENT], error_number=number,
    )
