"""latest_timestamp: of all changes of a row, the one committed last wins, with its whole row.

Every LCR of such a table describes one key or two. For each it gives the state that the originating site left at its
commit: a row with all its columns, or no row. A site takes a change only if it was committed later than what the site
has. So all sites end with the latest change of every key, in whatever order changes arrive. An UPDATE that changes the
key leaves no row at the old key and a row at the new one.

Sets are only attempts here too. A write with `Write.times` skips rows that were changed later, and notes its own times.
If it does not succeed, each row comes here, rows of different keys together. The row in the way is locked, and its last
change is looked up. The later of the two is written, and its time is noted, all in the group's destination transaction.

Durable when the group is: times and rows are one transaction.

Worked flow (t: commit times; dbs1 left the row at t=30)
    dbs2's UPDATE, t=20        discarded: 20 < 30
    dbs2's DELETE, t=40        the row is deleted, and its key is noted as deleted at t=40
    dbs1's UPDATE, t=35        without tombstones: the row is created again; with them: discarded, 35 < 40
    dbs1's INSERT, t=50        the row exists again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.base.errors import DataError
from headrace.databases.ports import LastChange, RowInTheWay, RowQuestion, Write
from headrace.lcr.batch import Command
from spark_apply.sets.row_sets import alike, joined, write_each
from spark_apply.sets.set_writes import with_keys

if TYPE_CHECKING:
    from headrace.databases.ports import ConflictSession, DestinationSession
    from spark_apply.sets.row_images import RowImages
    from spark_apply.tables.fits import TableFit

__all__ = ["METHOD", "Latest", "TimeUnknown", "TimedRow", "settle_all_by_time", "settle_by_time"]

METHOD = "latest_timestamp"
_TRIES = 5  # each try fails only if a session of the site commits a change of the row between the look and the write
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Values = Mapping[int, bytes | None]


class TimeUnknown(Exception):  # noqa: N818 - an outcome
    """Raised if the later change cannot be determined or cannot be written; carries the reason."""

    def __init__(self, kind: str, reason: str, found: tuple[RowInTheWay, ...]) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.found = kind, reason, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """Outcome for a row LCR.

    Args:
        kind: of the conflict; empty: the second look found no conflict.
        outcome: LCR APPLIED, LCR DISCARDED, or MERGED if only one of the LCR's two keys was written.
        applied: positions of the columns that were written.
        found: the rows in the way.
        last: the change that the LCR met, for the operator: "last change=..."; empty: no change is known.
    """

    kind: str
    outcome: str
    applied: tuple[int, ...] = ()
    found: tuple[RowInTheWay, ...] = ()
    last: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A key that the LCR describes, and what the destination has there."""

    values: _Values  # of the key
    leaves_row: bool
    row: RowInTheWay | None
    last: LastChange
    loses: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """A row LCR.

    Args:
        write: of this row alone, as it was tried; with `times`.
        fit: of its table.
        row: its values.
    """

    write: Write
    fit: TableFit
    row: RowImages


def settle_by_time(session: DestinationSession, row: TimedRow) -> Latest:
    """Apply a row LCR if no later change is there; `session` stands at its savepoint.

    Args:
        session: in a transaction with a savepoint.
        row: the LCR.

    Raises:
        TimeUnknown: the winner cannot be determined; roll back.
    """
    kind, problem, found = "", "", tuple[RowInTheWay, ...]()
    for _ in range(_TRIES):
        places = _as_one(_look(session, [(row, key) for key in _keys(row)]))
        found = tuple(place.row for place in places if place.row is not None)
        kind = _kind(row, places)
        _refuse_unknown(kind, row, places, found)
        try:
            for place in places:
                if not place.loses and not write_each(session, [_settling(row, place)]):
                    raise _Overtaken("other sessions kept changing the row while it was written")
        except _Overtaken as error:
            problem = str(error)
        except DataError as error:
            problem = error.message
        else:
            return _settled(row, places, kind, found)
        session.rollback_to_savepoint()
    raise TimeUnknown(kind or _missing(row.write.command), f"the resolution was refused: {problem}", found)


def settle_all_by_time(session: DestinationSession, rows: Sequence[TimedRow]) -> list[Latest] | None:
    """Apply row LCRs of different keys, each one if no later change is there.

    Returns:
        The outcome of each; None: another session of the site interfered, or an LCR changes a key; roll back.

    Raises:
        TimeUnknown: a winner cannot be determined; roll back.
        DataError: the destination refused a value; roll back.
    """
    keys = [_keys(row) for row in rows]
    if any(len(each) > 1 for each in keys):
        return None
    settled, writes = [], []
    for row, place in zip(
        rows, _look(session, [(row, key) for row, (key,) in zip(rows, keys, strict=True)]), strict=True
    ):
        found = () if place.row is None else (place.row,)
        kind = _kind(row, [place])
        _refuse_unknown(kind, row, [place], found)
        writes += [] if place.loses else [_settling(row, place)]
        settled.append(_settled(row, [place], kind, found))
    return settled if write_each(session, writes) else None


def _settled(row: TimedRow, places: list[_Place], kind: str, found: tuple[RowInTheWay, ...]) -> Latest:
    done = [not place.loses for place in places]
    applied = (
        tuple(row.row.new)
        if any(place.leaves_row and is_done for place, is_done in zip(places, done, strict=True))
        else ()
    )
    if kind == "delete_missing":
        done = [False]  # the delete is noted if it is the last change, but there is no row to delete
    outcome = "LCR APPLIED" if all(done) else "MERGED" if any(done) else "LCR DISCARDED"
    return Latest(kind=kind, outcome=outcome, applied=applied, found=found, last=_last(places))


class _Overtaken(Exception):  # noqa: N818 - an outcome
    """Raised if another session changed the row between the look and the write."""


def _keys(row: TimedRow) -> list[tuple[_Values, bool]]:
    """Return the keys that the LCR describes, and whether it leaves a row there; the one without a row comes first."""
    write, fit = row.write, row.fit
    found = {} if write.old is None else {place: write.old.value(place, 0) for place in write.match_columns}
    old = {place: value if isinstance(value, bytes) else None for place, value in found.items()} | dict(row.row.old)
    before = {place: old.get(place) for place in fit.key}
    if write.command is Command.DELETE:
        return [(before, False)]
    after = {place: row.row.new.get(place, before.get(place)) for place in fit.key}
    if write.command is Command.INSERT or before == after:
        return [(after, True)]
    return [(before, False), (after, True)]


def _look(session: ConflictSession, asked: Sequence[tuple[TimedRow, tuple[_Values, bool]]]) -> list[_Place]:
    """Find what is at the keys that LCRs describe, each of another key or table; lock the rows that exist."""
    writes = [_asking(row, values, leaves_row=leaves_row) for row, (values, leaves_row) in asked]
    found: list[RowInTheWay | None] = [None] * len(asked)
    lasts: list[LastChange] = [LastChange()] * len(asked)
    for places in alike(writes):
        write = joined([writes[place] for place in places])
        # Compare the key columns too: the key also finds a row that has the key in another spelling.
        for row_found in session.find_rows(
            write, RowQuestion(by_key=True, compare=(*write.match_columns, *write.compare_columns))
        ):
            found[places[row_found.of]] = row_found
        for place, last in zip(places, session.last_changes(write), strict=True):
            lasts[place] = last
    made = []
    for (row, (values, leaves_row)), in_the_way, last in zip(asked, found, lasts, strict=True):
        assert row.write.times is not None
        loses = last.is_later_than(row.write.times)
        is_gone = in_the_way is None and last.applied_us is None  # otherwise the row appeared between the two looks
        if row.write.command is Command.DELETE and is_gone and last.may_be_later_than(row.write.times):
            loses = True  # there is no row to delete: whichever delete was later, the noted one stays
        made.append(_Place(values, leaves_row, in_the_way, last, loses))
    return made


def _as_one(places: list[_Place]) -> list[_Place]:
    """Merge two keys that the table considers equal, so that both find the same row.

    Examples are 1.0 and 1.00, or letters that the table's collation considers equal.
    """
    if len(places) < 2 or any(place.row is None for place in places):
        return places
    first, last = places
    is_same = first.row is not None and last.row is not None and first.row.number == last.row.number
    return [replace(first, values=last.values, leaves_row=True)] if is_same else places


def _is_moved(row: TimedRow) -> bool:
    return row.write.command is Command.UPDATE and len(_keys(row)) > 1


def _asking(row: TimedRow, values: _Values, *, leaves_row: bool) -> Write:
    """Return a write that finds the row with a key, and compares it with what the LCR expects there."""
    images, fit = row.row, row.fit
    expected = images.old if images.old and not (leaves_row and _is_moved(row)) else images.new
    compare = tuple(sorted(place for place in expected if place in fit.all_columns and place not in fit.key))
    return with_keys(
        replace(
            row.write,
            command=Command.UPDATE,
            old=images.values_of({**expected, **values}),
            new=None,
            match_columns=fit.key,
            compare_columns=compare,
            set_columns=(),
            paired=False,
        ),
        fit,
        asks=True,
    )


def _kind(row: TimedRow, places: list[_Place]) -> str:
    """Return the kind of conflict with the rows as they are locked now; empty: no conflict.

    A key in another spelling, such as 1.00 for 1.0, is no conflict.
    """
    first, last, command = places[0], places[-1], row.write.command
    if command is Command.INSERT:
        return "insert_exists" if first.row is not None or first.loses else ""
    if first.row is None:
        return _missing(command)
    if first.row.differs.difference(row.fit.key) or first.loses:
        return _differs(command)
    return "update_exists" if last is not first and (last.row is not None or last.loses) else ""


def _differs(command: Command) -> str:
    return "insert_exists" if command is Command.INSERT else f"{command.name.lower()}_differs"


def _missing(command: Command) -> str:
    return "insert_exists" if command is Command.INSERT else f"{command.name.lower()}_missing"


def _refuse_unknown(kind: str, row: TimedRow, places: list[_Place], found: tuple[RowInTheWay, ...]) -> None:
    """Raise if the row may have had a later change or deletion whose record is forgotten."""
    times = row.write.times
    assert times is not None
    for place in places:
        if not place.loses and place.last.may_be_later_than(times):
            if place.last.lost_us < int(times.times_us[0]):
                assert place.last.applied_us is not None
                raise TimeUnknown(
                    kind or _differs(row.write.command),
                    (
                        f"{METHOD}: it was committed before {_shown(place.last.applied_us)}, when a change of"
                        f" {place.last.applied_source} was applied to the row"
                        " here whose own time is not noted (any more): there was no other source then, SQL of a handler"
                        " wrote the row, or it is forgotten (tombstones: retention_days, count)"
                    ),
                    found,
                )
            reason = (
                f"{METHOD}: it was committed before {_shown(place.last.lost_us)}, and the server does not know any more"
                " when the row was changed or deleted here up to then: it may be forgotten (autovacuum_freeze_max_age,"
                " track_commit_timestamp)"
            )
            raise TimeUnknown(kind or _differs(row.write.command), reason, found)
        unknown = (
            place.last.own_us is None
            and place.last.noted_us is None
            and place.last.applied_us is None
            and kind not in {"", "delete_missing"}
        )
        if unknown and int(times.times_us[0]) <= place.last.forgotten_us:
            reason = (
                f"{METHOD}: it was committed before {_shown(place.last.forgotten_us)}, and what was changed or deleted"
                " up to then may be forgotten (tombstones: retention_days, count)"
            )
            raise TimeUnknown(kind, reason, found)


def _settling(row: TimedRow, place: _Place) -> tuple[Write, int]:
    """Return the write that gives a key the state the LCR left there, and how many rows it must change."""
    write, expected = _deciding(row, place)
    return with_keys(write, row.fit), expected


def _deciding(row: TimedRow, place: _Place) -> tuple[Write, int]:
    """Return the same as `_settling`, with the times as the LCR carried them."""
    write, fit, images = row.write, row.fit, row.row
    assert write.times is not None
    asked = replace(
        write,
        old=images.values_of(place.values),
        match_columns=fit.key,
        compare_columns=(),
        paired=False,
        times=replace(write.times, is_decided=True),
    )
    if not place.leaves_row and place.row is None:
        # No row is locked: the write looks at rows that other sessions create meanwhile.
        return replace(
            asked, command=Command.DELETE, new=None, set_columns=(), times=replace(write.times, awaited=_awaited(row))
        ), 0
    if not place.leaves_row:
        return replace(asked, command=Command.DELETE, new=None, set_columns=()), 1
    lacking = [fit.version.columns[each].name for each in fit.all_columns if each not in images.new]
    if lacking:
        found = () if place.row is None else (place.row,)
        raise TimeUnknown(
            _kind(row, [place]), f"{METHOD}: the LCR lacks {', '.join(lacking)}, and the whole row is needed", found
        )
    new = images.values_of({**images.new, **place.values})
    if place.row is None:
        return replace(
            asked, command=Command.INSERT, old=None, new=new, match_columns=(), set_columns=fit.all_columns
        ), 1
    if _is_moved(row):
        return replace(asked, command=Command.UPDATE, new=new, set_columns=fit.all_columns), 1
    # The LCR determines the whole row, including the spelling of its key.
    others = tuple(each for each in fit.all_columns if each not in fit.key or each in place.row.differs)
    assert asked.times is not None
    return replace(
        asked, command=Command.UPDATE, new=new, set_columns=others, times=replace(asked.times, keeps_key=True)
    ), 1


def _awaited(row: TimedRow) -> tuple[str, ...]:
    """Return the sites whose changes may be creating a row right now, except this site and the LCR's source.

    Changes of the same source arrive in its order.
    """
    known = row.fit.conflicts.times
    assert known is not None
    assert row.write.times is not None
    return tuple(site for site in known.sites if site not in {known.site, row.write.times.source})


def _last(places: list[_Place]) -> str:
    """Describe the last change there, for the operator."""
    for place in places:
        if place.last.noted_us is not None and (place.last.own_us is None or place.last.noted_us > place.last.own_us):
            what = "deleted" if place.last.is_gone else "changed"
            return f"last {what}={_shown(place.last.noted_us)} by {place.last.noted_source or 'this site'}"
        if place.last.applied_us is not None:
            return f"last applied={_shown(place.last.applied_us)} from {place.last.applied_source}"
        if place.last.own_us is not None:
            return f"last changed={_shown(place.last.own_us)} by this site"
    return ""


def _shown(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ")
