"""Rows of a table by their keys, for a comparison that looks at some of them again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import psycopg
import psycopg.sql

from databases.copying import KeyedRow
from databases.postgres.connection import qualified, quote, translated
from databases.postgres.row_text import column_kinds, hashed, row_text, shown, valued

__all__ = ["rows_of_keys"]

_OF_LITERALS = (psycopg.DataError, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable)
_KEYS_AT_ONCE = 500  # in a statement: some kilobytes of text
# Numbers of users' objects begin with 16384.
_ONLY_BUILT_IN = """
SELECT bool_and(atttypid < 16384) FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND attname = ANY (%s::text[]) AND NOT attisdropped
"""

Key = tuple[str | None, ...]


def rows_of_keys(
    connection: psycopg.Connection[Any],
    relation: str,
    owner: str,
    name: str,
    *,
    key: Sequence[str],
    columns: Sequence[str],
    keys: Sequence[Key],
    rows: str,
) -> tuple[KeyedRow, ...]:
    """See `databases.copying.TableReader.keyed_rows`.

    Args:
        connection: in a transaction under the snapshot.
        relation: how statements name the table.
        owner: schema.
        name: table.
        key: names of its columns.
        columns: that are compared.
        keys: see the port.
        rows: see the port.
    """
    found: list[Any] = []
    with translated("reading rows by their keys", table=f"{owner}.{name}"):
        kinds = column_kinds(connection, owner, name, [*key, *columns])
        texts = f"ARRAY[{', '.join(shown(column, kind) for column, kind in valued(kinds, key).items())}]::text[]"
        read = (
            f"SELECT {texts} AS k, {row_text(valued(kinds, columns))} AS r, xmin::text AS x FROM {relation} WHERE"
            f" {f'({rows}) IS TRUE AND ' if rows else ''}"
        )
        # Operators of other types may be users' functions, or out of sight, and NULL is equal to nothing: such rows are
        # looked for by the texts of their keys.
        has_operators = connection.execute(_ONLY_BUILT_IN, (qualified(owner, name), list(key))).fetchone() == (True,)
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            asked = keys[first : first + _KEYS_AT_ONCE]
            conditions = [f"{texts} IN ({_arrays(asked)})"]
            if has_operators and not any(None in each for each in asked):
                conditions.insert(0, f"({', '.join(map(quote, key))}) IN ({_literals(asked)})")
            found += _first_that_can_be_asked(
                connection,
                [
                    f"SELECT k, {hashed(connection, 'r', 0)}, {hashed(connection, 'r', 1)}, x FROM ({read}{condition}"
                    " OFFSET 0) t"
                    for condition in conditions
                ],
            )
    return tuple(KeyedRow(key=tuple(row[0]), digest=(row[1], row[2]), version=row[3]) for row in found)


def _first_that_can_be_asked(connection: psycopg.Connection[Any], queries: Sequence[str]) -> list[Any]:
    """The answer to the first query whose literals its columns' types can have, and compare.

    The other side's types may be wider, or name what is not here; json and point have no `=`.
    """
    for query in queries[:-1]:
        with contextlib.suppress(*_OF_LITERALS), connection.transaction():
            return connection.execute(query.encode()).fetchall()
    return connection.execute(queries[-1].encode()).fetchall()


def _literals(keys: Sequence[Key]) -> str:
    """Keys as rows of literals, of which each takes its column's type."""
    return ", ".join(f"({', '.join(_literal(value) for value in key)})" for key in keys)


def _arrays(keys: Sequence[Key]) -> str:
    return ", ".join(f"ARRAY[{', '.join(_literal(value) for value in key)}]::text[]" for key in keys)


def _literal(value: str | None) -> str:
    return psycopg.sql.Literal(value).as_string(None)
