"""Rows of a table by their keys, for a comparison that rechecks some of them.

One statement asks for all keys of a check, as arrays that the server joins with the table. It uses an index on the key
where that costs less, else one scan of the table for any number of keys. Some keys are joined by their texts instead,
in one scan. Operators of types that are not built in may be users' functions or invisible; NULL equals nothing; json
and point have no `=`. Documents have other texts where encodings differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from headrace.databases.ports.copying import KeyedRow
from headrace.databases.postgres.connection import qualified, quote, translated
from headrace.databases.postgres.copying.row_text import ValueKind, hashed, row_text, shown, valued
from headrace.lcr.table_name import TableName

__all__ = ["rows_of_keys"]

_OF_VALUES = (psycopg.DataError, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable)
_TEXT = "text"  # type of a column that no longer exists
_BYTES_AT_ONCE = 64 << 20  # keys per statement: a server accepts 1 GB. More keys need another scan
# Types of the key's columns, to which text is cast: without a length, which would truncate values. OIDs of users'
# objects begin at 16384. A user's cast would run as the comparing role.
_TYPES = """
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, -1),
       a.atttypid < 16384 AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast c WHERE c.oid >= 16384 AND c.casttarget = a.atttypid
                                          AND c.castsource = 'text'::regtype)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s::text[]) AND NOT a.attisdropped
"""

Key = tuple[str | None, ...]


def rows_of_keys(
    connection: psycopg.Connection[Any],
    relation: str,
    table: TableName,
    *,
    kinds: Mapping[str, ValueKind],
    key: Sequence[str],
    columns: Sequence[str],
    keys: Sequence[Key],
    rows: str,
) -> tuple[KeyedRow, ...]:
    """Read the rows that have one of some keys (`headrace.databases.ports.copying.TableReader.keyed_rows`).

    Args:
        connection: in a transaction under the snapshot.
        relation: the table's name in statements.
        table: its name.
        kinds: of all these columns.
        key: names of the key's columns.
        columns: names of the columns to compare.
        keys: key values to look for.
        rows: condition that selects rows; empty: all.
    """
    found: list[Any] = []
    with translated("reading rows by their keys", table=str(table)):
        types = {
            column: type_name if is_built_in else ""
            for column, type_name, is_built_in in connection.execute(_TYPES, (qualified(*table), list(key))).fetchall()
        }
        texts = f"ARRAY[{', '.join(shown(column, kind) for column, kind in valued(kinds, key).items())}]::text[]"
        fields = [f"v{place}" for place in range(len(key))]
        asked = f"FROM unnest({', '.join(['%s::text[]'] * len(key))}) AS asked ({', '.join(fields)})"
        # the query also has parameters
        by_text = _beside(f'{texts} COLLATE "C" IN') + f" (SELECT ARRAY[{', '.join(fields)}] {asked})"
        by_value = (
            f"({_beside(', '.join(map(quote, key)))}) IN"
            f" (SELECT {', '.join(f'{value}::{_beside(types.get(column) or _TEXT)}' for value, column in zip(fields, key, strict=True))}"
            f" {asked})"
        )
        # A column that no longer exists is missing here: the server reports it for the other query.
        has_operators = all(map(types.get, key)) and not any(None in each for each in keys)
        # A text in a normalized order is not the type's input text, or is another value's.
        has_operators = has_operators and all(kinds[column].in_order is None for column in key if column in kinds)
        read = (
            f"SELECT {texts} AS k, {row_text(connection, valued(kinds, columns))} AS r, xmin::text AS x FROM {relation} WHERE"
            f" {f'({rows}) IS TRUE AND ' if rows else ''}"
        )
        head = _beside(f"SELECT k, {hashed(connection, 'r', 0)}, {hashed(connection, 'r', 1)}, x FROM ({read}")
        queries = [f"{head}{condition} OFFSET 0) t" for condition in ([by_value] if has_operators else []) + [by_text]]
        for some in _parts(keys):
            found += _first_that_can_be_asked(connection, queries, [list(values) for values in zip(*some, strict=True)])
    return tuple(KeyedRow(key=tuple(row[0]), digest=(row[1], row[2]), version=row[3]) for row in found)


def _first_that_can_be_asked(
    connection: psycopg.Connection[Any], queries: Sequence[str], values: Sequence[list[str | None]]
) -> list[Any]:
    """Return the answer to the first query whose column types accept and compare the values.

    The other side's types may be wider, or name an object missing here; json and point have no `=`.
    """
    for query in queries[:-1]:
        with contextlib.suppress(*_OF_VALUES), connection.transaction():
            # Planned for these values: their number decides between index and scan.
            return connection.execute(query.encode(), values, prepare=False).fetchall()
    return connection.execute(queries[-1].encode(), values, prepare=False).fetchall()


def _parts(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """Yield the keys in parts as large as a statement accepts."""
    some: list[Key] = []
    size = 0
    for each in keys:
        length = sum(len(value) for value in each if value is not None)
        if some and size + length > _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(each)
        size += length
    if some:
        yield some


def _beside(sql: str) -> str:
    """Escape SQL for a query with parameters."""
    return sql.replace("%", "%%")
