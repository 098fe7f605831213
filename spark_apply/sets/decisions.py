"""Decisions of conflict handlers: pure functions that neither query nor write.

The database describes what a row LCR meets (`question_of`). `decide` answers with the writes of single rows that bring
the destination to the state that the handlers want. So one conflict is resolved by itself, and many conflicts of
different rows by a few statements (`spark_apply.sets.resolution`).

Source: Oracle Streams Replication Administrator's Guide, "Column Lists", "Resolution Columns";
`headrace.rules.conflict_handlers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from headrace.databases.ports import RowInTheWay, RowQuestion, Write
from headrace.lcr.batch import Command
from headrace.rules.conflict_handlers import BY_COLUMN, ConflictHandler

if TYPE_CHECKING:
    from spark_apply.sets.conflict_settings import ConflictSettings
    from spark_apply.sets.row_images import RowImages
    from spark_apply.tables.fits import TableFit

__all__ = ["NO_KEY", "RESOLVED_KINDS", "Decision", "GivenUp", "Met", "as_it_is", "decide", "question_of"]


NO_KEY = "conflict handlers need a key that identifies the row"
"""Reason why no handler is asked where several rows may match."""


class GivenUp(Exception):  # noqa: N818 - an outcome
    """Raised if no handler resolves the conflict; carries the reason."""


class _Verdict(Enum):
    LCR = "the LCR wins"
    ROW = "the row wins"
    SUM = "both count"


@dataclass(frozen=True, slots=True)
class Met:
    """A conflict, and what is known of it.

    Args:
        write: the write of one row that met it, with all values that the log has.
        fit: of its table.
        row: the LCR's values.
        kind: kind of conflict, as far as known.
    """

    write: Write
    fit: TableFit
    row: RowImages
    kind: str

    def name(self, position: int) -> str:
        """Return the name of the column at a position in the version."""
        return self.fit.version.columns[position].name

    def position(self, name: str) -> int:
        """Return a column's position in the version; -1: the LCRs lack it."""
        return next((place for place, column in enumerate(self.fit.version.columns) if column.name == name), -1)

    def listed(self, handler: ConflictHandler) -> tuple[int, ...]:
        """Return a handler's column list as positions, -1 for a column that the LCRs lack."""
        if handler.columns:
            return tuple(self.position(name) for name in handler.columns)
        key = {self.fit.table.columns[place].name for place in self.fit.table.key}
        return tuple(place for place in self.fit.all_columns if self.name(place) not in key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about a conflict.

    Args:
        columns: positions of the LCR's columns that are written.
        outcome: LCR APPLIED, LCR DISCARDED, or MERGED.
        by: the deciding handlers.
        writes: of one row each, which each must change; executed after the removals.
        removed: rows to delete.
    """

    columns: Iterable[int] = ()
    outcome: str
    by: str
    writes: tuple[Write, ...] = ()
    removed: tuple[RowInTheWay, ...] = ()


def question_of(met: Met) -> RowQuestion:
    """Return what the database must tell about the rows in the way.

    Args:
        met: of a kind among `RESOLVED_KINDS`; for an UPDATE or a DELETE, the answer may show another kind.
    """
    handlers = met.fit.conflicts.handlers
    columns = {met.position(each.resolution_column) for each in handlers if each.method in BY_COLUMN}
    sums = {
        place for each in handlers if each.method == "delta" for place in met.listed(each) if place in met.row.changed
    }
    is_unique = met.kind in {"insert_exists", "update_exists"}
    compare = met.write.compare_columns
    if met.kind == "insert_exists":
        compare = tuple(sorted(place for place in met.row.new if place in met.fit.all_columns))
    return RowQuestion(
        by_key=not is_unique,
        compare=() if met.kind == "update_exists" else compare,
        order=tuple(sorted(place for place in columns if place in met.row.new)) if met.row.new else (),
        sums=tuple(sorted(place for place in sums if place in met.row.old and place in met.row.new)),
    )


def _give_up(reason: str) -> NoReturn:
    raise GivenUp(reason)


def as_it_is(met: Met, found: Sequence[RowInTheWay]) -> Met:
    """Return the conflict by the row locked now, which may have come, gone or changed since the write was tried.

    Kind "": the conflict is gone.

    Args:
        met: the conflict as it was met.
        found: the rows in the way.
    """
    command = met.write.command.name.lower()
    if met.kind in {"insert_exists", "update_exists"}:
        return met
    if not found:
        return replace(met, kind=f"{command}_missing")
    if len(found) > 1:
        return replace(met, kind="multiple_rows")
    return replace(met, kind=f"{command}_differs" if found[0].differs else "")


def decide(settings: ConflictSettings, met: Met, found: tuple[RowInTheWay, ...], write: Write) -> Decision:
    """Return the decision of the table's handlers.

    Args:
        settings: of the apply process.
        met: the conflict by the rows as they are (`as_it_is`); of a kind among `RESOLVED_KINDS`.
        found: the rows in the way, locked.
        write: of the row, as it was tried.

    Raises:
        GivenUp: no handler resolves it.
    """
    if met.kind == "multiple_rows":
        _give_up(NO_KEY)
    handlers = met.fit.conflicts.of_kind(met.kind)
    if not handlers:
        _give_up("" if not met.fit.conflicts.handlers else f"no conflict handler is set for {met.kind}")
    return _DECIDE[met.kind](settings, met, found, handlers, write)


# --------------------------------------------------------------------------- who wins


def _verdict(settings: ConflictSettings, met: Met, handler: ConflictHandler, row: RowInTheWay) -> _Verdict:
    """Return who wins: the LCR or the row."""
    if handler.method in BY_COLUMN:
        return _by_column(met, handler, row)
    if handler.method == "site_priority":
        ranks = [
            handler.priority.index(site) if site in handler.priority else -1
            for site in (settings.source, settings.site)
        ]
        if min(ranks) < 0:
            _give_up(
                f"site_priority lists {', '.join(handler.priority)}, and not both {settings.source} and {settings.site}"
            )
        return _Verdict.LCR if ranks[0] < ranks[1] else _Verdict.ROW
    return {"overwrite": _Verdict.LCR, "discard": _Verdict.ROW, "delta": _Verdict.SUM}[handler.method]


def _by_column(met: Met, handler: ConflictHandler, row: RowInTheWay) -> _Verdict:
    place = met.position(handler.resolution_column)
    if place not in met.row.new:
        _give_up(f"{handler}: the LCR lacks the column {handler.resolution_column}")
    order = row.order[place]
    if order is None:
        _give_up(f"{handler}: {handler.resolution_column} is NULL in the LCR or in the row")
    if order == 0:
        _give_up(f"{handler}: {handler.resolution_column} has the same value in the LCR and in the row")
    return _Verdict.LCR if (order > 0) == (handler.method == "maximum") else _Verdict.ROW


def _whole_list(met: Met, handler: ConflictHandler) -> tuple[int, ...]:
    listed = met.listed(handler)
    lacking = [name for name, place in zip(handler.columns, listed, strict=False) if place < 0]
    lacking += [met.name(place) for place in listed if place >= 0 and place not in met.row.new]
    if lacking:
        _give_up(f"{handler}: the LCR lacks {', '.join(lacking)} of the column list")
    return listed


def _update_differs(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    """Decide each column list by itself: a row may end up with columns of both."""
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
        # The manual requires the whole list for maximum and minimum whoever wins: whether an LCR is an error must not
        # depend on a site's row. This holds for every method that compares values.
        whole = _whole_list(met, handler) if verdict is _Verdict.LCR or handler.method in BY_COLUMN else ()
        if verdict is _Verdict.LCR:
            values |= {place: met.row.new[place] for place in whole}
        elif verdict is _Verdict.SUM:
            values |= _sums(met, handler, listed, row)
    outcome = "LCR APPLIED" if set(verdicts) == {_Verdict.LCR} else "MERGED" if values else "LCR DISCARDED"
    by = ", ".join(str(handler) for handler, listed in lists if row.differs & listed)
    return Decision(columns=values, outcome=outcome, by=by, writes=(_update_of(met, values),) if values else ())


def _sums(met: Met, handler: ConflictHandler, listed: Iterable[int], row: RowInTheWay) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for place in sorted(listed):
        if place not in met.row.changed:
            continue
        value = row.sums.get(place)
        if value is None:
            _give_up(
                f"{handler}: {met.name(place)} is NULL, is not a number, is not in the LCR, or a function of the schema"
                " headrace converts it"
            )
        found[place] = value
    return found


def _update_of(met: Met, values: Mapping[int, bytes | None]) -> Write:
    """Return an UPDATE of the found row to these values; the row is locked, so nothing is compared.

    The LCR's other old values are not those of the row.
    """
    assert met.write.old is not None
    found = {
        place: value if isinstance(value := met.write.old.value(place, 0), bytes) else None
        for place in met.write.match_columns
    }
    return replace(
        met.write,
        command=Command.UPDATE,
        old=met.row.values_of(found),
        new=met.row.values_of(values),
        compare_columns=(),
        set_columns=tuple(sorted(values)),
    )


def _update_missing(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    (handler,) = handlers
    if handler.method == "discard":
        return Decision(outcome="LCR DISCARDED", by=str(handler))
    columns = met.fit.all_columns
    lacking = [met.name(place) for place in columns if place not in met.row.new]
    if lacking:
        _give_up(f"{handler}: the LCR lacks {', '.join(lacking)}, so no row can be inserted from it")
    return Decision(columns=columns, outcome="LCR APPLIED", by=str(handler), writes=(_insert_of(met, columns),))


def _insert_of(met: Met, columns: Iterable[int]) -> Write:
    return replace(
        met.write, command=Command.INSERT, old=None, match_columns=(), compare_columns=(), set_columns=tuple(columns)
    )


def _delete_differs(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    (handler,) = handlers
    if _verdict(settings, met, handler, found[0]) is _Verdict.ROW:
        return Decision(outcome="LCR DISCARDED", by=str(handler))
    return Decision(outcome="LCR APPLIED", by=str(handler), writes=(replace(write, compare_columns=()),))


def _delete_missing(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    return Decision(outcome="LCR DISCARDED", by=str(handlers[0]))


def _insert_exists(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    """Decide for an INSERT: the LCR must win against every row in its way."""
    (handler,) = handlers
    if not found:
        _give_up(f"{handler}: the row in the way cannot be found by its values")
    (first, *others) = found
    if not others and first.is_same and not first.differs:
        return Decision(outcome="LCR DISCARDED", by=f"{handler}: the row is the same")
    # Ask about every row: an undecidable one is an error, in whatever order a database finds the rows.
    if _Verdict.ROW in [_verdict(settings, met, handler, row) for row in found]:
        return Decision(outcome="LCR DISCARDED", by=str(handler))
    removed = tuple(row for row in found if not row.is_same)
    if len(removed) == len(found):
        return Decision(
            columns=write.set_columns, outcome="LCR APPLIED", by=str(handler), writes=(write,), removed=removed
        )
    key = {met.position(met.fit.table.columns[place].name) for place in met.fit.table.key}
    # Equal keys can have different spellings, such as 1.0 and 1.00.
    same = next(row for row in found if row.is_same)
    columns = tuple(place for place in write.set_columns if place not in key or place in same.differs)
    found_by = met.row.values_of({place: met.row.new[place] for place in key})
    replaced = replace(
        met.write, command=Command.UPDATE, old=found_by, match_columns=tuple(sorted(key)), set_columns=columns
    )
    return Decision(
        columns=columns, outcome="LCR APPLIED", by=str(handler), writes=(replaced,) if columns else (), removed=removed
    )


def _update_exists(
    settings: ConflictSettings,
    met: Met,
    found: tuple[RowInTheWay, ...],
    handlers: Sequence[ConflictHandler],
    write: Write,
) -> Decision:
    (handler,) = handlers
    if not found:
        _give_up(f"{handler}: the row in the way cannot be found by its values")
    # Ask about every row: an undecidable one is an error, in whatever order a database finds the rows.
    if _Verdict.ROW in [_verdict(settings, met, handler, row) for row in found]:
        return Decision(outcome="LCR DISCARDED", by=str(handler))
    return Decision(columns=write.set_columns, outcome="LCR APPLIED", by=str(handler), writes=(write,), removed=found)


_DECIDE = {
    "update_differs": _update_differs,
    "update_missing": _update_missing,
    "update_exists": _update_exists,
    "insert_exists": _insert_exists,
    "delete_differs": _delete_differs,
    "delete_missing": _delete_missing,
}

RESOLVED_KINDS = frozenset(_DECIDE)
"""Kinds of conflicts that handlers can resolve."""
