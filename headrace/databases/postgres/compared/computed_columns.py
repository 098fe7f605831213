"""Columns that a source computes, and what becomes of them at a destination.

    at the source                                  at the destination   what happens
    plain                                          generated            refused: the value that arrives would be thrown away
    stored, version 18 or later (in the log)       plain                written as any other value
    virtual, or before version 18 (not in the log) plain                refused: the column would stay without the values
    generated                                      generated            computed at both; other expressions are warned of

The first row is `headrace.databases.postgres.compared.types.missing_alter`'s, which the log says enough for; the others need the source's
catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports import ComputedColumn, Finding, TableShape
from headrace.databases.postgres.catalog.destination_tables import CatalogTable
from headrace.databases.postgres.catalog.source_tables import logged_generated
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName, flow_text, remark

__all__ = ["computed_as", "computed_columns", "computed_findings"]

# the text of an expression takes a lock of its table: of one that a user holds it is asked again at the next look
_LOCK_TIMEOUT = "1s"

_COMPUTED = """
SELECT n.nspname::text AS owner, c.relname::text AS name, a.attname::text AS "column", a.attgenerated::text AS kind,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS expression, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
FROM unnest(%s::text[], %s::text[]) AS wanted (owner, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
ORDER BY 1, 2, a.attnum
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
    found: dict[TableName, list[ComputedColumn]] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_COMPUTED, ([each.owner for each in tables], [each.name for each in tables])):
            column = ComputedColumn(
                name=row["column"], expression=row["expression"], type_name=row["type"], is_logged=row["kind"] in logged
            )
            found.setdefault(TableName(row["owner"], row["name"]), []).append(column)
    return {table: tuple(columns) for table, columns in found.items()}


def computed_as(connection: psycopg.Connection[Any], table: TableName) -> dict[str, str]:
    """Type and expression of a table's generated columns as DDL has them, by name.

    Args:
        connection: with an empty search_path.
        table: its name.

    Raises:
        psycopg.Error: a user has locked it.
    """
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
        found = computed_columns(connection, [table]).get(table, ())
    return {column.name: f"{column.type_name} GENERATED ALWAYS AS ({column.expression})" for column in found}


def computed_findings(
    path: str, wanted: TableShape, here: CatalogTable, computed_here: Sequence[ComputedColumn]
) -> Iterator[Finding]:
    """Columns that the source computes whose values cannot come, and those that both compute, each its own way.

    Args:
        path: of the findings.
        wanted: the source's, with `computed`.
        here: the destination's table.
        computed_here: its generated columns.
    """
    own = {column.name: column for column in computed_here}
    table = qualified(here.table.owner, here.table.name)
    for column in wanted.computed:
        name = quote(column.name)
        made = f"ADD COLUMN {name} {column.type_name} GENERATED ALWAYS AS ({column.expression}) STORED"
        if (mine := own.get(column.name)) is not None:
            if mine.expression != column.expression:
                yield Finding(
                    path=path,
                    is_error=False,
                    problem=f"{column.name} is generated here as {mine.expression}, and at the source as"
                    f" {column.expression}: it is computed here, whatever value arrives",
                    fix=f"ALTER TABLE {table} DROP COLUMN {name}, {made}; -- unless both expressions have the same"
                    " values",
                )
        elif column.name in here.positions and not column.is_logged:
            yield Finding(
                path=path,
                problem=f"{column.name} is generated at the source, and its values are not in the log (those of stored"
                " columns are, from version 18 on): here it is a plain column, which would stay without them",
                fix=f"ALTER TABLE {table} DROP COLUMN {name}, {made}; "
                + remark(
                    "computed here too. Or, if this site fills it: leave it out of what comes from the source, by"
                    f" transform: [{{delete_columns: [{flow_text(column.name)}]}}] in the rule"
                ),
            )
