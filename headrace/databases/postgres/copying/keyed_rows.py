"""Rows of a table by their keys, for a comparison that looks at some of them again.

All keys of a look are asked for by one statement, as arrays that the server joins with the table: by an index on the
key where it costs less, else in one scan of the table, however many keys there are. Operators of types that are not
built in may be users' functions, or out of sight, NULL is equal to nothing, json and point have no `=`, and documents
have texts of their own where encodings differ: such keys are joined by their texts, in one scan.
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
_TEXT = "text"  # of a column that is not there any more
_BYTES_AT_ONCE = 64 << 20  # of keys in a statement: a server takes 1 GB. Beyond, the table is scanned once more
# Types of the key's columns, as text is cast to them: without a length, which would cut a value. Numbers of users'
# objects begin with 16384. A cast of a user's would run as the role that compares.
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
    """See `headrace.databases.ports.copying.TableReader.keyed_rows`.

    Args:
        connection: in a transaction under the snapshot.
        relation: how statements name the table.
        table: its name.
        kinds: of all these columns.
        key: names of its columns.
        columns: that are compared.
        keys: see the port.
        rows: see the port.
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
        # it stands beside parameters
        by_text = _beside(f'{texts} COLLATE "C" IN') + f" (SELECT ARRAY[{', '.join(fields)}] {asked})"
        by_value = (
            f"({_beside(', '.join(map(quote, key)))}) IN"
            f" (SELECT {', '.join(f'{value}::{_beside(types.get(column) or _TEXT)}' for value, column in zip(fields, key, strict=True))}"
            f" {asked})"
        )
        # one that is not there any more is missing: the server says so of the other query
        has_operators = all(map(types.get, key)) and not any(None in each for each in keys)
        # The text of a value in an order of its own is none that its type reads, or another value's.
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
    """The answer to the first query whose values its columns' types can have, and compare.

    The other side's types may be wider, or name what is not here; json and point have no `=`.
    """
    for query in queries[:-1]:
        with contextlib.suppress(*_OF_VALUES), connection.transaction():
            # Planned for these values: how many there are decides between index and scan.
            return connection.execute(query.encode(), values, prepare=False).fetchall()
    return connection.execute(queries[-1].encode(), values, prepare=False).fetchall()


def _parts(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """The keys, as many at once as a statement takes."""
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
    """SQL as it stands beside parameters."""
    return sql.replace("%", "%%")
