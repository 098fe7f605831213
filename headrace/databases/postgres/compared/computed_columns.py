"""Columns that a source computes, and their fate at a destination.

    at the source                                  at the destination   result
    plain                                          generated            refused: the arriving value would be discarded
    stored, version 18 or later (in the log)       plain                written like any other value
    virtual, or before version 18 (not in the log) plain                refused: the column would lack the values
    generated                                      generated            computed on both sides; a warning if expressions differ

The log says enough for the first row (`headrace.databases.postgres.compared.types.missing_alter`); the others need the
source's catalog.

Each partition may compute a column differently, and the table's own expression is what new partitions get. So the
expressions of partitions with rows are compared: each with the partition of its name, or with all of the destination's
if those are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ComputedColumn, ComputedDifference, ComputedPart, Finding, TableShape
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.catalog.partitions import members_below
from headrace.databases.postgres.catalog.source_tables import logged_generated
from headrace.databases.postgres.compared.remade_columns import recomputed, remade
from headrace.lcr.table_name import TableName, flow_text, remark

__all__ = ["computed_as", "computed_columns", "computed_differences", "computed_findings"]

# Printing an expression locks its table; if a user holds the lock, the next check asks again.
_LOCK_TIMEOUT = "1s"

_COMPUTED = """
SELECT n.nspname::text AS owner, c.relname::text AS name, a.attname::text AS "column", a.attgenerated::text AS kind,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS expression, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
       c.relkind = 'p' AS is_partitioned
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
ORDER BY 1, 2, a.attnum
"""

# For partitions that have rows. Printing an expression takes a lock. So a partition whose stored expression equals its
# table's gets the table's text, if all columns have the same numbers in both.
_OF_PARTS = f"""
SELECT n.nspname::text AS owner, c.relname::text AS name, a.attname::text AS "column", pn.nspname::text AS part_owner, p.relname::text AS part_name,
       CASE WHEN d.adbin::text <> above.adbin::text OR EXISTS (
           SELECT FROM pg_catalog.pg_attribute x JOIN pg_catalog.pg_attribute y ON y.attrelid = c.oid AND y.attname = x.attname AND y.attnum <> x.attnum
           WHERE x.attrelid = p.oid AND x.attnum > 0 AND NOT x.attisdropped
       ) THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END AS expression
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind = 'p'
CROSS JOIN LATERAL {members_below("c.oid")} AS member
JOIN pg_catalog.pg_class p ON p.oid = member.number AND p.relkind = 'r' JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_catalog.pg_attribute whole ON whole.attrelid = c.oid AND whole.attname = a.attname
JOIN pg_catalog.pg_attrdef above ON above.adrelid = whole.attrelid AND above.adnum = whole.attnum
ORDER BY 1, 2, a.attnum, 4, 5
"""


def computed_columns(
    connection: psycopg.Connection[Any], tables: Sequence[TableName]
) -> dict[TableName, tuple[ComputedColumn, ...]]:
    """Read the generated columns of those tables that have some.

    Args:
        connection: with an empty search_path.
        tables: plain tables and roots of partitioned ones.
    """
    logged = logged_generated(connection.info.server_version)
    found: dict[TableName, dict[str, ComputedColumn]] = {}
    partitioned: dict[TableName, None] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_COMPUTED, ([each.owner for each in tables], [each.name for each in tables])):
            table = TableName(row["owner"], row["name"])
            found.setdefault(table, {})[row["column"]] = ComputedColumn(
                name=row["column"],
                expression=row["expression"],
                type_name=row["type"],
                is_logged=row["kind"] in logged,
                is_virtual=row["kind"] == "v",
            )
            if row["is_partitioned"]:
                partitioned[table] = None
        names = [each.owner for each in partitioned], [each.name for each in partitioned]
        for row in cursor.execute(_OF_PARTS, names) if partitioned else ():
            table = TableName(row["owner"], row["name"])
            whole = found[table].get(row["column"])
            if whole is not None:  # else it was altered concurrently
                part = ComputedPart(
                    owner=row["part_owner"], name=row["part_name"], expression=row["expression"] or whole.expression
                )
                found[table][row["column"]] = replace(whole, parts=(*whole.parts, part))
    return {table: tuple(columns.values()) for table, columns in found.items()}


def computed_as(connection: psycopg.Connection[Any], table: TableName) -> dict[str, ComputedColumn]:
    """Return a table's generated columns, by name.

    Args:
        connection: with an empty search_path.
        table: its name.

    Raises:
        psycopg.Error: a user has locked the table.
    """
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
        found = computed_columns(connection, [table]).get(table, ())
    return {column.name: column for column in found}


def computed_differences(
    connection: psycopg.Connection[Any],
    table: TableName,
    wanted: Sequence[ComputedColumn],
    computed_here: Mapping[str, ComputedColumn],
    among: Mapping[str, Collection[TableName]] | None = None,
    accepted: Collection[str] = (),
) -> dict[str, ComputedDifference]:
    """Compare how a table computes columns with the source.

    Args:
        connection: to the destination, with an empty search_path.
        table: its name here.
        wanted: the source's columns, under the names that these and their partitions have here.
        computed_here: the destination's, by name.
        among: for each column the partitions whose rows the caller asks about; None: all.
        accepted: as in `DestinationDatabase.computed_differences`.

    Returns:
        One for each column that both compute.
    """
    found = {}
    for column in wanted:
        if (mine := computed_here.get(column.name)) is None:
            continue
        there, here = _expressions(table, column), _expressions(table, mine)
        everywhere = next(iter(here.values())) if len(set(here.values())) == 1 else None
        asked = there if among is None else {name: there[name] for name in among[column.name] if name in there}
        if column.name in accepted:
            asked = {
                name: each
                for name, each in asked.items()
                if (each, here.get(name, everywhere)) != (column.expression, mine.expression)
            }
        is_same_type = mine.type_name == column.type_name or column.name in accepted
        other = {name: each for name, each in asked.items() if not is_same_type or here.get(name, everywhere) != each}
        difference = ComputedDifference(
            column=column.name,
            is_table_same=(column.type_name, column.expression) == (mine.type_name, mine.expression),
            lacking=tuple(name for name in asked if mine.parts and name not in here),
        )
        if other:
            shown = {here.get(name, everywhere) or mine.expression: None for name in other}
            difference = replace(
                difference,
                there=", ".join(f"{column.type_name} AS {each}" for each in dict.fromkeys(other.values())),
                here=", ".join(f"{mine.type_name} AS {each}" for each in shown),
            )
            is_uniform = len(set(there.values())) == 1
            is_of_table = is_uniform and (set(here) <= set(other) or any(name not in here for name in other))
            difference = recomputed(
                connection,
                table,
                difference,
                column,
                mine,
                # only the partition's, where the table's other partitions stay as they are
                parts={} if is_of_table else {name: each if name in here else None for name, each in other.items()},
                expression=next(iter(there.values())) if is_uniform else None,
            )
        found[column.name] = difference
    return found


def _expressions(table: TableName, column: ComputedColumn) -> dict[TableName, str]:
    """Return each partition's expression for a column, for partitions with rows; the table's own if it has none."""
    return {TableName.of(part): part.expression for part in column.parts} or {table: column.expression}


def computed_findings(
    connection: psycopg.Connection[Any],
    path: str,
    wanted: TableShape,
    here: CatalogTable,
    computed_here: Sequence[ComputedColumn],
) -> Iterator[Finding]:
    """Report computed columns whose values cannot arrive, and those that both sides compute differently.

    Args:
        connection: to the destination, with an empty search_path.
        path: of the findings.
        wanted: the source's shape, with `computed`.
        here: the destination's table.
        computed_here: its generated columns.
    """
    own = {column.name: column for column in computed_here}
    table = TableName(here.table.owner, here.table.name)
    differences = computed_differences(connection, table, wanted.computed, own)
    for column in wanted.computed:
        if (found := differences.get(column.name)) is not None:
            if found.is_of_rows:
                yield Finding(
                    path=path,
                    is_error=False,
                    problem=f"{column.name} is generated here as {found.here}, and at the source as {found.there}: it"
                    f" is computed here, whatever value arrives{_said_hanging(found)}",
                    fix=_fix_of(found, "unless both expressions have the same values"),
                )
        elif column.name in here.positions and not column.is_logged:
            made = remade(connection, table, replace(column, is_virtual=False))
            leave_out = (
                "computed here too. Or, if this site fills it: leave it out of what comes from the source, by"
                f" transform: [{{delete_columns: [{flow_text(column.name)}]}}] in the rule"
            )
            yield Finding(
                path=path,
                problem=f"{column.name} is generated at the source, and its values are not in the log (those of stored"
                " columns are, from version 18 on): here it is a plain column, which would stay without them"
                f"{_said_hanging(made)}",
                fix=_fix_of(made, leave_out),
            )


def _said_hanging(found: ComputedDifference) -> str:
    """Return the objects that depend on a column to be recreated, as an addition to a problem."""
    return f". Objects here that depend on it: {', '.join(found.hanging)}" if found.hanging else ""


def _fix_of(found: ComputedDifference, why: str) -> str:
    """Return the statements, or why none are given, and a remark."""
    if found.obstacle:
        return remark(f"{found.obstacle}; {why}")
    return f"{'; '.join(found.statements)}; {remark(why)}"
