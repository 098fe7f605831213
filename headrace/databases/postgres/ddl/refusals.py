"""Changes that are recorded and not replicated: an operator makes them at the destination by hand, as without DDL rules.

`refusal` is about changes whose result cannot be compared with the destination. The other reasons do not count where the
destination has the result already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from headrace.databases.postgres.ddl.conversions import begins_with, rewriting_refusal
from headrace.lcr.ddl_record import CastRules, DdlRecord
from headrace.lcr.structure import ColumnPart, ConstraintPart, Delta, IndexPart, Part, Structure

__all__ = [
    "ATTRIBUTES",
    "column_refusal",
    "concurrent_index",
    "creation_refusal",
    "drop_refusal",
    "may_be_beside",
    "other_columns",
    "part_refusal",
    "refusal",
    "rename_refusal",
]

ATTRIBUTES: Mapping[str, Callable[[ColumnPart], object]] = {
    "type": lambda column: (column.type_name, column.collation),
    "NOT NULL": lambda column: (column.not_null, column.not_valid),
    "default": lambda column: column.default,
    "identity": lambda column: column.identity,
    "generated": lambda column: column.generated,
}
"""What columns are compared and changed by; the keys name it in messages."""

_CALLS = "calls a function that may do anything at the destination"


def refusal(record: DdlRecord, here: Structure | None, version: int, rules: CastRules | None) -> str:
    """Return why a change is not replicated, whatever it does to single parts; empty: it may be.

    Args:
        record: the change.
        here: the table at the destination; None: there is none.
        version: major version of the destination.
        rules: by which it converts values; None: not asked for.
    """
    return next(_reasons(record, here, version, rules), "")


def rename_refusal(record: DdlRecord, here: Structure | None, version: int) -> str:
    """Return why a table is not renamed at a destination, whatever else the change does; empty: it may be.

    Args:
        record: the change; it gives the table another name or schema.
        here: the table at the destination, under its name of now; None: there is none.
        version: major version of the destination.
    """
    return next(_reasons(record, here, version, None, may_rename=True), "")


def _reasons(
    record: DdlRecord, here: Structure | None, version: int, rules: CastRules | None, *, may_rename: bool = False
) -> Iterator[str]:
    before, after = record.before, record.after
    yield from _other_version(record, version)
    if after is None:
        yield "the table was dropped"
        return
    if not record.is_known:
        yield "the table before the change is not known"
        return
    if before is None:
        yield "the source did not publish the table when it was created: the next headrace up copies it"
        return
    if not may_rename and (before.owner, before.name) != (after.owner, after.name):
        yield "other names and schemas of tables are not replicated"
    for each in (before, after):
        yield from _unusual(each, "")
    if before.persistence != "p" or after.persistence != "p":
        yield "unlogged tables are not replicated"
    if record.rewritten and (reason := rewriting_refusal(record, rules)):
        yield reason
    if here is None:
        yield "the destination has no such table"
        return
    yield from _unusual(here, " at the destination")


def creation_refusal(record: DdlRecord, version: int) -> str:
    """Return why a new table is not created at a destination; empty: it is.

    The source publishes none of these tables. A record of another version of Headrace may.

    Args:
        record: of a table that was not there before.
        version: major version of the destination.
    """
    return next(_creation_reasons(record, version), "")


def _creation_reasons(record: DdlRecord, version: int) -> Iterator[str]:
    yield from _other_version(record, version)
    after = record.after
    if after is None:
        yield "the table was dropped"
        return
    yield from _unusual(after, "")
    if after.persistence != "p":
        yield "it is unlogged"
    for part in after.parts:
        if isinstance(part, ConstraintPart) and part.is_foreign_key:
            continue  # it is left out
        if part.calls:
            yield f"{part.key} {_CALLS}"
    for column in after.columns:
        if column.identity and column.name not in record.sequences:
            yield f"{column.key} is an identity column, whose sequence is not known"
        if column.not_valid:
            yield f"{column.key} has a NOT NULL that is not valid yet"


def drop_refusal(before: Structure | None, here: Structure | None) -> str:
    """Return why a table is not dropped at a destination, whatever it is called; empty: it may be.

    Args:
        before: the table as the source last knew it.
        here: the table at the destination; None: there is none.
    """
    reasons = [
        *([] if before is None else _unusual(before, "")),
        *([] if here is None else _unusual(here, " at the destination")),
    ]
    return next(iter(reasons), "")


def other_columns(record: DdlRecord, here: Structure | None) -> tuple[str, ...]:
    """Return the columns because of which rows behind a change do not fit a destination's table.

    Args:
        record: the change.
        here: the table at the destination behind it; None: there is none.
    """
    before, after = (() if side is None else side.columns for side in (record.before, record.after))
    wanted = {column.name: (column.type_name, column.generated) for column in after}
    found = {column.name: (column.type_name, column.generated) for column in (() if here is None else here.columns)}
    gone = [column.key for column in before if column.name not in wanted and column.name in found]
    return tuple(map(str, [*gone, *(each.key for each in after if found.get(each.name) != wanted[each.name])]))


def _other_version(record: DdlRecord, version: int) -> Iterator[str]:
    if record.version != version:
        yield (
            f"definitions of PostgreSQL {record.version} and {version} cannot be compared: the source and the"
            " destination need the same major version"
        )


def _unusual(table: Structure, where: str) -> Iterator[str]:
    if table.kind != "r" or table.is_partition:
        yield f"it is a partitioned table or a partition{where}"
    if table.parents or table.children:
        yield f"the table inherits, or others inherit from it{where}"


def concurrent_index(record: DdlRecord) -> IndexPart | None:
    """Return the index that a client made while others wrote, if it is all that the change did; None: no such one.

    The server takes CONCURRENTLY only in a statement that a client sends alone. Nothing but the way in which the index is
    made depends on this. A unique index decides which transactions depend on each other: it is made at its place in the
    log, whatever the text says.
    """
    delta = record.delta
    if record.tag != "CREATE INDEX" or len(delta.added) != 1 or replace(delta, added=()) != Delta():
        return None
    (part,) = delta.added
    if not isinstance(part, IndexPart) or not may_be_beside(part):
        return None
    return part if begins_with(record.query, "create", "index", "concurrently") else None


def may_be_beside(index: IndexPart) -> bool:
    """Return whether an index may be made at any time, beside the rows: not a unique one."""
    return index.definition.startswith("CREATE INDEX ")


def part_refusal(part: Part) -> str:
    """Return why a part is not created at a destination; empty: it is."""
    if isinstance(part, ColumnPart):
        return column_refusal(None, part, ATTRIBUTES.keys())
    return f"{part.key} {_CALLS}" if part.calls else ""


def column_refusal(before: ColumnPart | None, after: ColumnPart, wanted: Collection[str]) -> str:
    """Return why a column does not get its attributes at a destination; empty: it does.

    Args:
        before: the column before the change; None: there was none.
        after: the column after it.
        wanted: the attributes that it is to get, as `ATTRIBUTES` names them.
    """
    both = (after, after if before is None else before)
    if "identity" in wanted and any(each.identity for each in both):
        return f"{after.key} is an identity column, whose sequence is not replicated"
    is_new = before is None  # the server computes it here by the same expression
    if not is_new and not {"generated", "default"}.isdisjoint(wanted) and any(each.generated for each in both):
        return f"{after.key} is a generated column, whose values are not in the source's log"
    if "NOT NULL" in wanted and after.not_valid:
        return f"{after.key} has a NOT NULL that is not valid yet"
    if "default" in wanted and after.default is not None and after.calls:
        return f"the default of {after.key} {_CALLS}"
    return ""
