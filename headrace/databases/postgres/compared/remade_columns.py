"""Statements that make a destination compute a column as its source does.

    SET EXPRESSION           version 17 and later, if the type is the same: objects that depend on the column stay. Not for a
                             virtual column in a table with check constraints or in a publication: the server refuses that.
    DROP COLUMN, ADD COLUMN  otherwise. Indexes and constraints of the column are dropped with it, and recreated in the same
                             transaction. If a view, a foreign key of another table, a partition's own index or the like
                             depends on it, no statement is printed: the object is named, and an operator drops it first.

A single partition needs SET EXPRESSION: its column cannot be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ComputedColumn, ComputedDifference
from headrace.databases.postgres.catalog.partitions import members_below
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName

__all__ = ["recomputed", "remade"]

_EXPRESSIONS_FROM = 170000  # SET EXPRESSION

_COLUMN = f"""
SELECT a.attnotnull AS is_required, c.relkind = 'p' AS is_partitioned,
       EXISTS (SELECT FROM pg_catalog.pg_constraint n WHERE n.contype = 'c' AND n.conrelid IN (SELECT number FROM {members_below("c.oid")} AS member))
       OR EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.puballtables)
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel p WHERE p.prrelid = c.oid)
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace p WHERE p.pnnspid = c.relnamespace) AS keeps_virtual,
       array_remove(ARRAY[CASE WHEN a.attacl IS NOT NULL THEN 'rights of the column' END,
                          CASE WHEN pg_catalog.col_description(c.oid, a.attnum) IS NOT NULL THEN 'a comment of the column' END], NULL) AS also
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s AND NOT a.attisdropped
WHERE n.nspname = %(owner)s AND c.relname = %(name)s
"""

# What a DROP COLUMN removes, or is refused for, in the order of recreation. `made`: the statement; NULL: none exists. A
# NOT NULL is recreated with the column. What depends on the table's column depends on each partition's.
_HANGING = f"""
SELECT DISTINCT d.classid <> 'pg_catalog.pg_constraint'::regclass AS is_later, coalesce(k.contype::text, '') NOT IN ('p', 'u') AS is_no_key,
       pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid) AS what,
       CASE WHEN c.relkind = 'p' OR a.attrelid <> c.oid THEN NULL
            WHEN k.conrelid = c.oid THEN format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s', n.nspname, c.relname, k.conname, pg_catalog.pg_get_constraintdef(k.oid))
            ELSE pg_catalog.pg_get_indexdef(i.oid) END AS made,
       CASE WHEN x.indisreplident THEN format('ALTER TABLE %%I.%%I REPLICA IDENTITY USING INDEX %%I', n.nspname, c.relname, named.relname) END AS identified,
       CASE WHEN x.indisclustered THEN format('ALTER TABLE %%I.%%I CLUSTER ON %%I', n.nspname, c.relname, named.relname) END AS clustered
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL {members_below("c.oid")} AS member
JOIN pg_catalog.pg_attribute a ON a.attrelid = member.number AND a.attname = %(column)s AND NOT a.attisdropped
JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
    AND d.deptype IN ('n', 'a')
LEFT JOIN pg_catalog.pg_constraint k ON d.classid = 'pg_catalog.pg_constraint'::regclass AND k.oid = d.objid
LEFT JOIN pg_catalog.pg_class i ON d.classid = 'pg_catalog.pg_class'::regclass AND i.oid = d.objid AND i.relkind IN ('i', 'I')
LEFT JOIN pg_catalog.pg_attrdef own ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND own.oid = d.objid AND own.adrelid = a.attrelid AND own.adnum = a.attnum
LEFT JOIN pg_catalog.pg_index x ON x.indrelid = c.oid AND x.indexrelid = coalesce(i.oid, CASE WHEN k.conrelid = c.oid THEN k.conindid END)
LEFT JOIN pg_catalog.pg_class named ON named.oid = x.indexrelid
WHERE n.nspname = %(owner)s AND c.relname = %(name)s AND own.oid IS NULL AND coalesce(k.contype::text, '') <> 'n'
  AND (k.oid IS NULL OR k.conparentid = 0 AND k.coninhcount = 0)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.oid)
ORDER BY 1, 2, 3
"""


def recomputed(
    connection: psycopg.Connection[Any],
    table: TableName,
    difference: ComputedDifference,
    wanted: ComputedColumn,
    mine: ComputedColumn,
    *,
    parts: Mapping[TableName, str | None],
    expression: str | None,
) -> ComputedDifference:
    """Return a difference with the statements that end it.

    Args:
        connection: to the destination, with an empty search_path.
        table: its name here.
        difference: of the column.
        wanted: the column of the source.
        mine: the destination's column.
        parts: expressions of partitions to alter separately; None: the destination has no such partition. Empty: the
            table is altered, with all its partitions.
        expression: of all partitions of the source; None: they differ.
    """
    column = quote(mine.name)
    lacking = sorted(str(name) for name, each in parts.items() if each is None)
    can_set = mine.type_name == wanted.type_name and _can_set(connection, table, mine)
    if can_set and not lacking:
        places = {name: each for name, each in parts.items() if each is not None}
        if expression is not None:
            places = places or {table: expression}
        return replace(
            difference,
            statements=tuple(
                f"ALTER TABLE {qualified(*name)} ALTER COLUMN {column} SET EXPRESSION AS ({each})"
                for name, each in places.items()
            ),
        )
    if expression is not None:
        made = remade(connection, table, replace(wanted, expression=expression, is_virtual=mine.is_virtual, parts=()))
        return replace(difference, hanging=made.hanging, statements=made.statements, obstacle=made.obstacle)
    where = f", and the destination has no partition {', '.join(lacking)}" if lacking else ""
    return replace(
        difference,
        obstacle=f"an operator makes the partitions compute {mine.name} as they do at the source ({difference.there}):"
        f" no statement does it here{where}{_made_plain(table, wanted)}",
    )


def _made_plain(table: TableName, wanted: ComputedColumn) -> str:
    """Return the alternative where the source's values are in the log."""
    if not wanted.is_logged:
        return ""
    alter = f"ALTER TABLE {qualified(*table)} ALTER COLUMN {quote(wanted.name)} DROP EXPRESSION;"
    return f". Or its values come from the log: {alter} then copy the table again"


def remade(connection: psycopg.Connection[Any], table: TableName, wanted: ComputedColumn) -> ComputedDifference:
    """Return how to drop a column and recreate it as a computed one, with the objects that depend on it.

    Args:
        connection: to the destination, with an empty search_path.
        table: its name here.
        wanted: the column of the source.
    """
    expressions = {part.expression for part in wanted.parts} or {wanted.expression}
    facts = {"owner": table.owner, "name": table.name, "column": wanted.name}
    with connection.cursor(row_factory=dict_row) as cursor:
        column = cursor.execute(_COLUMN, facts).fetchone()
        hanging = cursor.execute(_HANGING, facts).fetchall()
    also = [] if column is None else column["also"]
    found = ComputedDifference(column=wanted.name, hanging=(*(each["what"] for each in hanging), *also))
    kind, required = ("VIRTUAL" if wanted.is_virtual else "STORED"), column is not None and column["is_required"]
    name = quote(wanted.name)
    alter = (
        f"ALTER TABLE {qualified(*table)} DROP COLUMN {name}, ADD COLUMN {name} {wanted.type_name} GENERATED ALWAYS AS"
        f" ({min(expressions)}) {kind}{' NOT NULL' if required else ''}"
    )
    if len(expressions) > 1:
        return replace(
            found,
            obstacle=f"partitions of the source compute {wanted.name} in different ways ({', '.join(sorted(expressions))}):"
            " an operator makes those here do the same",
        )
    if also or any(each["made"] is None for each in hanging):
        return replace(
            found,
            obstacle=f"an operator drops what depends on {wanted.name}, then runs {alter}; and then recreates what was"
            " dropped",
        )
    if not hanging:
        return replace(found, statements=(alter,))
    again = [each["made"] for each in hanging]
    again += [each[what] for what in ("identified", "clustered") for each in hanging if each[what] is not None]
    return replace(found, statements=("BEGIN", alter, *again, "COMMIT"))


def _can_set(connection: psycopg.Connection[Any], table: TableName, mine: ComputedColumn) -> bool:
    """Whether the server accepts SET EXPRESSION for the column."""
    if connection.info.server_version < _EXPRESSIONS_FROM:
        return False
    if not mine.is_virtual:
        return True
    facts = {"owner": table.owner, "name": table.name, "column": mine.name}
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_COLUMN, facts).fetchone()
    return found is not None and not found["keeps_virtual"]
