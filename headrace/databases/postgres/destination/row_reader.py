"""Rows and values as text, as psql shows them, read from the destination database.

The server's output functions write the text for every type: enumerations show labels, arrays braces, and times their
zone. `value_text` shows a value that the server does not accept, for example because its type does not exist there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from headrace.base.errors import ConfigError, DatabaseError
from headrace.databases.ports.operator import KeyValue
from headrace.databases.postgres.catalog.destination_tables import FIRST_USER_TYPE, CatalogTable, describe_table
from headrace.databases.postgres.catalog.partitions import without_children
from headrace.databases.postgres.compared.named_types import local_names
from headrace.databases.postgres.connection import connect, quote, translated
from headrace.databases.postgres.values.value_text import value_text
from headrace.lcr.batch import Column
from headrace.lcr.type_name import type_parts
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

__all__ = ["PostgresRowReader"]

_ROWS_MAX = 2  # one is expected; a second one shows that the key is not unique
_TYPES = """SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
# The second column is the type without a modifier that may truncate or round; for a domain, its innermost base type.
_COLUMN = """SELECT pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.format_type((
        WITH RECURSIVE below (oid) AS (
            SELECT a.atttypid UNION ALL SELECT t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid AND t.typtype = 'd')
        SELECT below.oid FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid AND t.typtype <> 'd'), -1), a.attnotnull
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND a.attnum > 0 AND NOT a.attisdropped"""
# For a partial index, both rows must fulfil its condition. In an exclusion constraint or a temporal key, rows conflict by
# the operators that the constraint names.
_EXPRESSIONS = """SELECT ARRAY(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, n, true) FROM pg_catalog.generate_series(1, i.indnkeyatts) n),
        ARRAY(SELECT CASE WHEN o.name IS NULL THEN '=' ELSE format('OPERATOR(%%I.%%s)', o.name, o.operator) END
              FROM pg_catalog.generate_series(1, i.indnkeyatts) n
              LEFT JOIN (SELECT x.place, on_.nspname AS name, o.oprname AS operator FROM pg_catalog.pg_constraint k
                         CROSS JOIN unnest(k.conexclop) WITH ORDINALITY x (oid, place)
                         JOIN pg_catalog.pg_operator o ON o.oid = x.oid JOIN pg_catalog.pg_namespace on_ ON on_.oid = o.oprnamespace
                         WHERE k.conindid = i.indexrelid AND k.conrelid = i.indrelid) o ON o.place = n ORDER BY n),
        pg_catalog.pg_get_expr(i.indpred, i.indrelid)
    FROM pg_catalog.pg_index i WHERE i.indrelid = %s AND i.indisvalid
      AND (i.indisunique AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL) OR i.indisexclusion)
    ORDER BY i.indexrelid"""
_SHORTENED = 60  # characters of a value in a message
_ELEMENT_OFFSET = 8  # of the element type in a binary array: after the count of dimensions and the flag


class PostgresRowReader:
    """Reader of rows and values for an operator; connects on first use.

    Args:
        dsn: connection string of the destination.
        settings: table settings of the apply process, which say by which key rows are found.
    """

    def __init__(self, dsn: str, settings: TableSettings = NO_TABLE_SETTINGS) -> None:
        self._dsn, self._settings = dsn, settings
        self._connection: psycopg.Connection[Any] | None = None
        self._types: dict[str, tuple[int, int]] = {}

    def texts(self, columns: Sequence[Column], values: Sequence[bytes | None]) -> tuple[str | None, ...]:
        """Return values as text."""
        with translated("reading values of an error transaction"):
            result = self._execute(b"SELECT ", columns, values)
            if result is not None:
                return tuple(_text(result.get_value(0, number)) for number in range(len(columns)))
            if len(columns) == 1:
                value = values[0]
                return (None if value is None else value_text(columns[0], value),)
        # The server rejects at least one value; ask for each separately.
        return tuple(text for pair in zip(columns, values, strict=True) for text in self.texts(pair[:1], pair[1:]))

    def beside(
        self, owner: str, name: str, values: Mapping[str, tuple[Column, bytes | None]]
    ) -> tuple[dict[str, str | None], ...]:
        """Return the destination's rows that have these values in a key or conflict with them."""
        with translated("reading the destination's row"):
            found = describe_table(self._session(), owner, name, self._settings)
            if found is None:
                return ()
            rows: list[dict[str, str | None]] = []
            # A conflicting row may have another key and equal values in a second unique key.
            for places in dict.fromkeys((found.table.key, *found.table.unique_keys)):
                rows += [
                    row
                    for row in self._with_values(found, [found.table.columns[place].name for place in places], values)
                    if row not in rows
                ]
            rows += [row for row in self._meeting_expressions(found, values) if row not in rows]
        return tuple(rows)

    def _meeting_expressions(
        self, found: CatalogTable, values: Mapping[str, tuple[Column, bytes | None]]
    ) -> Iterator[dict[str, str | None]]:
        """Yield the rows that conflict with these values in an index over expressions, such as lower(mail), or by operators.

        Yield nothing when the values lack a column of the table.
        """
        shown = [column.name for column in found.table.columns]
        given = [column for column in values if column in shown]
        if len(given) < len(shown):
            return  # it is not known which columns the expressions need
        inner = ", ".join(f"${number} AS {quote(column)}" for number, column in enumerate(given, 1))
        for expressions, operators, predicate in self._session().execute(_EXPRESSIONS, (found.oid,)).fetchall():
            condition = " AND ".join(
                f"({each}) {operator} (SELECT {each} FROM (SELECT {inner}) v)"
                for each, operator in zip(expressions, operators, strict=True)
            )
            condition += f" AND ({predicate}) AND (SELECT {predicate} FROM (SELECT {inner}) v)" if predicate else ""
            query = f"SELECT {', '.join(map(quote, shown))} FROM {found.relation} WHERE {condition} LIMIT {_ROWS_MAX}"
            result = self._execute(
                query.encode(), [values[column][0] for column in given], [values[column][1] for column in given]
            )
            if result is None:
                continue
            for row in range(result.ntuples):
                yield {column: _text(result.get_value(row, number)) for number, column in enumerate(shown)}

    def _with_values(
        self, found: CatalogTable, key: Sequence[str], values: Mapping[str, tuple[Column, bytes | None]]
    ) -> Iterator[dict[str, str | None]]:
        """Yield the rows that have these values in a key; yield nothing when a value of the key is missing or NULL."""
        if not key or any(column not in values or values[column][1] is None for column in key):
            return
        shown = [column.name for column in found.table.columns]
        condition = " AND ".join(f"{quote(column)} = ${number}" for number, column in enumerate(key, 1))
        query = f"SELECT {', '.join(map(quote, shown))} FROM {found.relation} WHERE {condition} LIMIT {_ROWS_MAX}"
        pairs = [values[column] for column in key]
        result = self._execute(query.encode(), [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        if result is None:
            return
        for row in range(result.ntuples):
            yield {column: _text(result.get_value(row, number)) for number, column in enumerate(shown)}

    def value_of(self, owner: str, name: str, column: Column, text: str | None) -> tuple[bytes | None, str | None]:
        """Return a text as a value of the source's column, and the server's text of it.

        The server reads the text as the source's type and as the destination column's type with its modifier.
        """
        with translated("reading the column's type"):
            found = self._session().execute(_COLUMN, (owner, name, column.name)).fetchone()
        if found is None:
            raise ConfigError(
                f"{owner}.{name} has no column {column.name} at the destination", hint="name a column of both tables"
            )
        whole, base, not_null = found
        if text is None:
            if not_null:
                raise ConfigError(f"column {column.name} is NOT NULL at the destination", hint="give it a value")
            return None, None
        number, _ = self._type(column)
        if number == 0 and column.is_binary:
            raise ConfigError(
                f"the type {column.type_name.removeprefix('pg_catalog.')} of column {column.name} does not exist at the"
                " destination",
                hint="its values cannot be edited",
            )
        raw = text.encode() if number == 0 else self._read_as(text, number, int(column.is_binary), column)
        # A cast truncates a value that is too long for the modifier, where an assignment would refuse it.
        fits = self._asked(
            f"SELECT $1::{whole} " + (f"= $2::{base}" if whole != base else "IS NOT NULL"),
            text,
            2 if whole != base else 1,
        )
        if fits is None and whole != base:  # a type without an equality operator, such as json
            fits = self._asked(
                f"SELECT pg_catalog.concat($1::{whole}) OPERATOR(pg_catalog.=) pg_catalog.concat($2::{base})", text, 2
            )
        if fits is None:
            raise ConfigError(
                f"{_shortened(text)} is not a value of type {whole}",
                hint=f"column {column.name} has that type at the destination",
            )
        if fits == b"f" and whole != base:
            raise ConfigError(
                f"{_shortened(text)} does not fit into {whole}",
                hint=f"column {column.name} has that type at the destination",
            )
        # In the source's form, an array of a user-defined type carries the source's type number, which this database
        # does not know. Readers replace that number anyway.
        return raw, self.texts([column], [raw])[0] if number else text

    def _read_as(self, text: str, number: int, form: int, column: Column) -> bytes:
        """Return a text as a value of a type, in text (0) or binary (1) form."""
        result = self._session().pgconn.exec_params(b"SELECT $1", [text.encode()], [number], [0], form)
        if result.status != ExecStatus.TUPLES_OK:
            raise ConfigError(
                f"{_shortened(text)} is not a value of type {column.type_name.removeprefix('pg_catalog.')}",
                hint=f"column {column.name} has that type at the source",
            )
        return result.get_value(0, 0) or b""

    def _asked(self, query: str, text: str, parameters: int) -> bytes | None:
        """Return the answer of a query that has the text as each parameter; None when the server refuses the query.

        The parameters have no type: a cast from text can be a function of the other type's owner, which would run as
        this role.
        """
        result = self._session().pgconn.exec_params(
            query.encode(), [text.encode()] * parameters, [0] * parameters, [0] * parameters, 0
        )
        return result.get_value(0, 0) if result.status == ExecStatus.TUPLES_OK else None

    def key_of(self, owner: str, name: str, given: Sequence[tuple[str, str]]) -> tuple[KeyValue, ...]:
        """Return the key values that an operator gave, as text and in binary form."""
        found = describe_table(self._session(), owner, name, self._settings)
        if found is None:
            raise ConfigError(
                f"there is no table {owner}.{name}",
                hint="name it as the source does, with its schema, and a name with a dot in double quotes",
            )
        key = [found.table.columns[place].name for place in found.table.key]
        columns = [column for column, _ in given]
        if not any(columns):
            columns = key
        if not columns or len(columns) != len(given) or not all(columns):
            raise ConfigError(
                f"{owner}.{name} is identified by {', '.join(key) or 'no key'}, not by {len(given)} values",
                hint="name the columns: column=value,column=value",
            )
        with translated("reading the key's types"):
            types = dict(self._session().execute(_TYPES, (owner, name)).fetchall())
        return tuple(self._key_value(column, text, types) for column, (_, text) in zip(columns, given, strict=True))

    def _key_value(self, column: str, text: str, types: Mapping[str, str]) -> KeyValue:
        if column not in types:
            raise ConfigError(f"there is no column {column}", hint=f"known: {', '.join(types)}")
        query = f"SELECT $1::{types[column]}".encode()
        forms = []
        for form in (0, 1):
            result = self._session().pgconn.exec_params(query, [text.encode()], [0], [0], form)
            if result.status != ExecStatus.TUPLES_OK:
                raise ConfigError(
                    f"{text!r} is not a value of type {types[column]}", hint=f"column {column} has that type"
                )
            forms.append(result.get_value(0, 0) or b"")
        return KeyValue(column=column, text=forms[0].decode("utf-8", "replace"), binary=forms[1])

    def rows_of(self, owner: str, name: str, key: Sequence[KeyValue]) -> tuple[dict[str, str | None], ...] | None:
        """Return the rows with a key; None when the table lacks a column of the key."""
        with translated("reading a row"):
            types = dict(self._session().execute(_TYPES, (owner, name)).fetchall())
            if any(part.column not in types for part in key):
                return None
            condition = " AND ".join(
                f"{quote(part.column)} = ${number}::{types[part.column]}" for number, part in enumerate(key, 1)
            )
            query = (
                f"SELECT {', '.join(map(quote, types))} FROM {without_children(self._session(), owner, name)}"
                f" WHERE {condition} LIMIT {_ROWS_MAX}"
            )
            result = self._session().pgconn.exec_params(query.encode(), [part.text.encode() for part in key])
        if result.status != ExecStatus.TUPLES_OK:
            raise DatabaseError(
                f"the row in {owner}.{name} cannot be read: {result.error_message.decode('utf-8', 'replace').strip()}"
            )
        return tuple(
            {column: _text(result.get_value(row, number)) for number, column in enumerate(types)}
            for row in range(result.ntuples)
        )

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(self, query: bytes, columns: Sequence[Column], values: Sequence[bytes | None]) -> PGresult | None:
        """Run a query with these parameters; return None when the server rejects a value.

        The query "SELECT " selects the parameters themselves.
        """
        connection = self._session()
        if query == b"SELECT ":
            query += ", ".join(f"${number}" for number in range(1, len(columns) + 1)).encode()
        types = [self._type(column) for column in columns]
        given = [
            _with_element(value, element) if column.is_binary and element and value else value
            for column, value, (_, element) in zip(columns, values, types, strict=True)
        ]
        result = connection.pgconn.exec_params(
            query, given, [number for number, _ in types], [int(c.is_binary) for c in columns], 0
        )
        return result if result.status == ExecStatus.TUPLES_OK else None

    def _type(self, column: Column) -> tuple[int, int]:
        """Return the number of a column's type here, and of the element type of a user-defined array type (else 0)."""
        if 0 < column.type_number < FIRST_USER_TYPE:
            return column.type_number, 0
        if column.type_name not in self._types:
            owner, name = type_parts(
                local_names(self._session(), [column.type_name]).get(column.type_name, column.type_name)
            )
            row = (
                self._session()
                .execute(
                    "SELECT t.oid::int8, CASE WHEN t.typcategory = 'A' THEN t.typelem::int8 ELSE 0 END FROM"
                    " pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname ="
                    " %s AND t.typname = %s",
                    (owner, name),
                )
                .fetchone()
            )
            self._types[column.type_name] = (int(row[0]), int(row[1])) if row else (0, 0)
        return self._types[column.type_name]

    def _session(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, application_name="headrace errors")
            self._connection.execute("SET default_transaction_read_only = on")
        return self._connection


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHORTENED else text[:_SHORTENED] + "...")


def _with_element(value: bytes, element: int) -> bytes:
    """Return a binary array with this database's number of the element type."""
    return value[:_ELEMENT_OFFSET] + struct.pack(">I", element) + value[_ELEMENT_OFFSET + 4 :]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
