"""Labels of enumerated types: those missing at a destination, and those renamed at the source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import EnumLabels, Finding
from headrace.databases.postgres.catalog.nested_types import parts_of
from headrace.databases.postgres.connection import qualified
from headrace.databases.renamed_labels import renamed_labels
from headrace.lcr.table_name import TableName, literal, remark

__all__ = ["enum_labels", "label_findings"]

# Includes types nested in others. The table is looked up in the catalog, because `to_regclass` raises an error for a
# role that may not use the schema, which preflight reports in its own words.
_ENUMS = f"""
WITH RECURSIVE walk (oid) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
    WHERE s.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  UNION
    SELECT part.number FROM walk JOIN pg_catalog.pg_type t ON t.oid = walk.oid
    CROSS JOIN LATERAL {parts_of("t")} AS part
    WHERE part.number <> 0
)
SELECT n.nspname::text AS owner, t.typname::text AS name,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS labels,
       ARRAY(SELECT e.oid::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS numbers
FROM walk JOIN pg_catalog.pg_type t ON t.oid = walk.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype = 'e' ORDER BY 1, 2
"""


def enum_labels(connection: psycopg.Connection[Any], table: TableName) -> tuple[EnumLabels, ...]:
    """Read the enumerated types of a table's columns; empty if the table does not exist.

    Args:
        connection: to its database.
        table: its name.
    """
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_ENUMS.encode(), (table.owner, table.name)).fetchall()
    return tuple(
        EnumLabels(owner=row["owner"], name=row["name"], labels=tuple(row["labels"]), numbers=tuple(row["numbers"]))
        for row in rows
    )


def label_findings(
    path: str, wanted: Sequence[EnumLabels], here: Sequence[EnumLabels], earlier: Mapping[str, str]
) -> Iterator[Finding]:
    """Report labels that are missing, or in another order.

    Args:
        path: of the findings.
        wanted: the enums of a table at the source.
        here: the enums at the destination.
        earlier: the earlier names by number, as in `DestinationDatabase.preflight_shapes`.
    """
    there = {(enum.owner, enum.name): enum.labels for enum in here}
    by_name = {enum.name: enum for enum in here}  # it may have another schema here
    for source in wanted:
        enum = (
            source
            if (source.owner, source.name) in there or source.name not in by_name
            else replace(source, owner=by_name[source.name].owner)
        )
        labels = there.get((enum.owner, enum.name))
        if labels is None:
            continue
        is_marked = not earlier.keys().isdisjoint(enum.numbers)
        renamed = (
            renamed_labels(earlier, dict(zip(enum.numbers, enum.labels, strict=True)), labels) if is_marked else None
        )
        if renamed is not None:
            labels = renamed.labels
        lacking = [label for label in enum.labels if label not in labels]
        if lacking:
            behind = (
                remark("when its labels have the source's names, as is said of the table's rows")
                if renamed is not None and renamed.renames
                else ""
            )
            yield Finding(
                path=path,
                is_error=False,
                problem=f"the enum {enum.owner}.{enum.name} lacks labels that the source has ({', '.join(lacking)}):"
                " rows with one of them are refused",
                fix="\n".join(
                    f"{statement} {behind}".rstrip()
                    for statement in (_additions(enum, labels) if renamed is None else _added(enum, frozenset(labels)))
                ),
            )
        mine, theirs = (
            [each for each in labels if each in enum.labels],
            [each for each in enum.labels if each in labels],
        )
        if mine != theirs:
            yield Finding(
                path=path,
                is_error=False,
                problem=f"the enum {enum.owner}.{enum.name} has its labels in another order than at the source"
                f" ({', '.join(theirs)}): queries, and the conflict handlers maximum and minimum, put its values in"
                " another order here",
                fix="make the type anew with the source's order, and give it to the columns with ALTER COLUMN ... TYPE"
                " ... USING",
            )


def _additions(enum: EnumLabels, labels: Sequence[str]) -> Iterator[str]:
    """Return statements that add missing labels to a type for which no mark is recorded.

    A label that only the source has, in the position of one that only the destination has, was renamed. Adding it would
    leave old rows with the old label, which could then no longer be renamed.
    """
    alter = f"ALTER TYPE {qualified(enum.owner, enum.name)}"
    renamed, doubtful = _renamed_labels(enum.labels, labels)
    for old, new in renamed.items():
        unless = (
            f"unless {literal(new)} is a new label at the source, and {literal(old)} one of this database alone:"
            " then ADD VALUE"
        )
        yield f"{alter} RENAME VALUE {literal(old)} TO {literal(new)}; {remark(unless)}"
    for before, after in doubtful:
        in_place = f"{', '.join(after)} stand in the place of {', '.join(before)}"
        yield remark(
            f"{in_place}: {alter} RENAME VALUE ... TO ...; for what the source renamed, before ADD VALUE for what is"
            " new there"
        )
    known = {renamed.get(label, label) for label in labels} | {label for _, new in doubtful for label in new}
    yield from _added(enum, known)


def _added(enum: EnumLabels, known: Collection[str]) -> Iterator[str]:
    """Add labels in the source's order, which decides how values compare."""
    for place, label in enumerate(enum.labels):
        if label in known:
            continue
        following = next((other for other in enum.labels if other in known), "")
        where = (
            f" AFTER {literal(enum.labels[place - 1])}"
            if place
            else f" BEFORE {literal(following)}"
            if following
            else ""
        )
        yield f"ALTER TYPE {qualified(enum.owner, enum.name)} ADD VALUE {literal(label)}{where};"


def _renamed_labels(
    there: Sequence[str], here: Sequence[str]
) -> tuple[dict[str, str], list[tuple[list[str], list[str]]]]:
    """Return labels that look renamed, as old -> new.

    Also returns groups in which the counts differ, so that the labels cannot be matched.
    """
    renamed: dict[str, str] = {}
    doubtful: list[tuple[list[str], list[str]]] = []
    for kind, first, last, begin, end in SequenceMatcher(a=here, b=there, autojunk=False).get_opcodes():
        old, new = (
            [label for label in here[first:last] if label not in there],
            [label for label in there[begin:end] if label not in here],
        )
        if kind != "replace" or not old or not new:
            continue
        if len(old) == len(new):
            renamed |= dict(zip(old, new, strict=True))
        else:
            doubtful.append((old, new))
    return renamed, doubtful
