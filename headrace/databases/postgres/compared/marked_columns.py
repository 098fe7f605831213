"""Columns of tables for marks (`headrace.databases.ports.row_marks`), read the same way at a source and a destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headrace.databases.ports.row_marks import OF_TRANSACTION, MarkedColumn
from headrace.databases.postgres.catalog.older_values import KEPT_VALUES
from headrace.lcr.table_name import TableName

__all__ = ["marked_columns", "marked_columns_of"]

# Nothing here locks a table, as `pg_get_expr` would: a check must not wait for a user. A default's expression is read
# as its node tree in text form. A default depends on the moment if it uses a function of the clock or of a sequence, or
# calls one that is not immutable. Where a partition's default differs from its table's, rows may have the value of
# either.
_COLUMNS = f"""
SELECT a.attrelid::int8 AS root, a.attname::text AS name, a.attnum::int AS number,
       coalesce('d' || d.oid, '{OF_TRANSACTION}' || a.xmin) AS stamp, a.attgenerated <> '' AS is_generated,
       kept.found IS NOT NULL AND passing.is_so AS has_passing_default, a.attidentity <> '' OR (a.attgenerated = '' AND passing.is_volatile) AS has_own_values,
       coalesce(b.typname, t.typname)::text AS type_name,
       CASE WHEN kept.root IS NOT NULL THEN array_to_string(kept.found, ' or ') WHEN NOT a.atthasdef AND a.attidentity = '' THEN '' END AS older,
       kept.found IS NOT NULL AS keeps_older
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
LEFT JOIN {KEPT_VALUES} AS kept ON kept.root = a.attrelid AND kept.name = a.attname
CROSS JOIN LATERAL (
    SELECT count(*) > 0, coalesce(bool_or(each.is_volatile AND given.tree = d.adbin::text), false)
    FROM (SELECT d.adbin::text UNION SELECT unnest(kept.defaults)) AS given (tree)
    CROSS JOIN LATERAL (
        SELECT given.tree ~ '\\{{NEXTVALUEEXPR ' WHERE given.tree ~ '\\{{(SQLVALUEFUNCTION|NEXTVALUEEXPR) '
        UNION ALL SELECT f.provolatile = 'v' FROM regexp_matches(given.tree, ':(?:op)?funcid ([0-9]+)', 'g') AS called (number)
        JOIN pg_catalog.pg_proc f ON f.oid = called.number[1]::oid AND f.provolatile <> 'i'
    ) AS each (is_volatile)
) AS passing (is_so, is_volatile)
WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""


def marked_columns(connection: psycopg.Connection[Any], tables: Sequence[int]) -> dict[int, dict[str, MarkedColumn]]:
    """Read the columns of tables, by the tables' numbers and the columns' names.

    Args:
        connection: with an empty search_path.
        tables: their numbers.
    """
    found: dict[int, dict[str, MarkedColumn]] = {}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_COLUMNS.encode(), {"tables": list(tables)}):
            root, name = row.pop("root"), row.pop("name")
            found.setdefault(root, {})[name] = MarkedColumn(**row)
    return found


def marked_columns_of(
    connection: psycopg.Connection[Any], tables: Sequence[TableName]
) -> dict[TableName, dict[str, MarkedColumn]]:
    """Read the columns of those tables that exist.

    Args:
        connection: with an empty search_path.
        tables: their names.
    """
    rows = connection.execute(
        "SELECT place::int, c.oid::int8 FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted (owner, name, place)"
        " JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.owner"
        " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name",
        ([table.owner for table in tables], [table.name for table in tables]),
    )
    numbers = {tables[place - 1]: number for place, number in rows.fetchall()}
    found = marked_columns(connection, list(numbers.values())) if numbers else {}
    return {table: found.get(number, {}) for table, number in numbers.items()}
