"""The text of a row, which is hashed for its digest (`headrace.databases.postgres.copying.table_copy`).

PostgreSQL's texts are limited to 1 GB, and in a row's text a `bytea` takes two characters per byte, as a quotation mark
does. So for a row with large values each value is hashed alone, and the row's text consists of the hashes: no value is
converted twice, and a `bytea` not at all. Whether a row counts as large must not depend on storage: the same row may be
compressed on one side only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.postgres.connection import qualified, quote, translated
from headrace.databases.postgres.copying.ordered_values import AS_UTF8, Shown, has_other_order, ordered_columns

__all__ = [
    "LARGE_BYTES",
    "ValueKind",
    "column_kinds",
    "digest_sums",
    "digesting",
    "hashed",
    "is_large",
    "refuse_casts",
    "row_text",
    "shown",
    "valued",
]

# Size of a row's values together. A row's text is at most twice as long (a `bytea`, or a text of quotation marks), and
# must be below 1 GB.
LARGE_BYTES = 200 << 20
# Stored size of a value whose length is unknown without its text; smaller ones are not measured. Compressed to a 255th
# at best, and with eight characters per byte (bits), such a value has less than `LARGE_BYTES`.
_STORED_BYTES = 64 << 10
_FIRST_OF_USERS = 16384  # below are the server's own objects
_LIMIT_EXCEEDED = "54000"
_TEXTS, _BYTES, _OTHER = "text", "bytea", "other"

# By the type below all domains. A numeric has at most some 130,000 digits.
_KINDS = """
SELECT a.attname::text, CASE WHEN b.typlen <> -1 OR b.oid IN ('numeric'::regtype, 'inet'::regtype, 'cidr'::regtype) THEN ''
    WHEN b.oid IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype) THEN 'text' WHEN b.oid = 'bytea'::regtype THEN 'bytea' ELSE 'other' END
FROM pg_catalog.pg_attribute a CROSS JOIN LATERAL (
    WITH RECURSIVE below (oid) AS (
        SELECT a.atttypid UNION ALL SELECT t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid AND t.typtype = 'd')
    SELECT t.oid, t.typlen FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid AND t.typtype <> 'd') b
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (%s::text[])
"""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How values of a column are measured and shown.

    Args:
        size: how large values are detected: "text", "bytea", "other", or "" for a type without large values.
        in_order: builds the text of a value whose parts are ordered differently on the other side; None: the type's own
            text.
    """

    size: str = ""
    in_order: Shown | None = None


def column_kinds(
    connection: psycopg.Connection[Any],
    owner: str,
    name: str,
    columns: Sequence[str],
    *,
    other_encoding: Callable[[], str] = str,
) -> dict[str, ValueKind]:
    """Read the kinds of columns.

    Args:
        connection: to the database of the table.
        owner: schema.
        name: the table.
        columns: their names.
        other_encoding: returns the encoding of the database with which rows are compared; called where it matters.
            Empty: the same.
    """
    sizes = connection.execute(_KINDS, (qualified(owner, name), list(columns))).fetchall()
    encoding = connection.info.parameter_status("server_encoding") or ""
    parts = [column for column, size in sizes if size == _OTHER]  # other values have no parts
    ordered = (
        ordered_columns(connection, owner, name, parts) if parts and has_other_order(encoding, other_encoding()) else {}
    )
    return {column: ValueKind(size, ordered.get(column)) for column, size in sizes}


def refuse_casts(connection: psycopg.Connection[Any], owner: str, name: str, columns: Sequence[str]) -> None:
    """Refuse columns whose type a user's function casts from text: the function would run as the comparing role.

    Args:
        connection: to the database of the table.
        owner: schema.
        name: the table.
        columns: columns whose values are given as texts.

    Raises:
        DatabaseError: a column has such a type.
    """
    found = connection.execute(
        "SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_cast c ON c.casttarget = a.atttypid AND"
        " c.castsource = 'text'::regtype"
        " WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s::text[]) AND c.oid >= %s AND c.castmethod = 'f' ORDER"
        " BY a.attnum",
        (qualified(owner, name), list(columns), _FIRST_OF_USERS),
    ).fetchone()
    if found is not None:
        raise DatabaseError(
            f"table {owner}.{name} cannot be compared: a cast from text to the type of column {found[0]} is a function"
            " of its owner's",
            hint="drop the cast",
        )


def is_large(connection: psycopg.Connection[Any], values: Mapping[str, ValueKind]) -> str:
    """Return the SQL condition that a row's values together are large; empty: they never are.

    Args:
        connection: to the server that measures.
        values: expressions, each with its kind (`column_kinds`).
    """
    lengths = [
        f"coalesce({_length(connection, value) if kind.size == _TEXTS else f'pg_catalog.octet_length({value})'}, 0)"
        for value, kind in values.items()
        if kind.size in {_TEXTS, _BYTES}
    ]
    lengths += [
        f"CASE WHEN pg_catalog.pg_column_size({value}) > {_STORED_BYTES} THEN"
        f" {_length(connection, _as_it_is(value, kind))} ELSE 0 END"
        for value, kind in values.items()
        if kind.size == _OTHER
    ]
    return f"{' + '.join(f'({length})::pg_catalog.int8' for length in lengths)} > {LARGE_BYTES}" if lengths else ""


def row_text(connection: psycopg.Connection[Any], values: Mapping[str, ValueKind]) -> str:
    """Return SQL for the text of a row, or of its values' hashes if they are large; under the collation "C".

    Args:
        connection: to the server that builds it.
        values: as for `is_large`, in the order of the row.
    """
    texts = [value if kind.in_order is None else kind.in_order(value) for value, kind in values.items()]
    text = f'ROW({", ".join(texts)})::text COLLATE "C"'
    condition = is_large(connection, values)
    hashes = ", ".join(_hashes(connection, value, kind) for value, kind in values.items())
    return f'CASE WHEN {condition} THEN ROW({hashes})::text COLLATE "C" ELSE {text} END' if condition else text


def shown(value: str, kind: ValueKind) -> str:
    """Return SQL for the text of one value: its type's own, or one in an order that both sides share.

    A cast to text can be a function of the type's owner, which would run as the comparing role.

    Args:
        value: an expression.
        kind: of its column (`column_kinds`).
    """
    return _as_it_is(value, kind) if kind.in_order is None else kind.in_order(value)


def _as_it_is(value: str, kind: ValueKind) -> str:
    # IS NULL would test the fields of a composite value.
    return (
        f"{value}::text"
        if kind.size == _TEXTS
        else f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({value}) END"
    )


def _hashes(connection: psycopg.Connection[Any], value: str, kind: ValueKind) -> str:
    if kind.size == _BYTES:
        return f"pg_catalog.sha256({value})"
    text = f'{shown(value, kind)} COLLATE "C"'
    return f"{hashed(connection, text, 0)}, {hashed(connection, text, 1)}"


def _length(connection: psycopg.Connection[Any], text: str) -> str:
    """Return SQL for the bytes of a text in UTF-8: the same row is large on both sides, or on neither."""
    if connection.info.parameter_status("server_encoding") not in AS_UTF8:
        text = f"pg_catalog.convert_to({text}, 'UTF8')"
    return f"pg_catalog.octet_length({text})"


def valued(kinds: Mapping[str, ValueKind], columns: Sequence[str]) -> dict[str, ValueKind]:
    """Return the values of columns as `row_text` takes them.

    Args:
        kinds: of columns (`column_kinds`).
        columns: names, in the order of the row.
    """
    return {quote(column): kinds.get(column, ValueKind()) for column in columns}


def hashed(connection: psycopg.Connection[Any], text: str, seed: int) -> str:
    """Return SQL for the hash of a text's bytes in UTF-8.

    Servers with different encodings store the same text as different bytes.

    Args:
        connection: to the server that hashes.
        text: SQL expression, of collation "C".
        seed: different seeds give independent hashes.
    """
    if connection.info.parameter_status("server_encoding") in AS_UTF8:
        return f"pg_catalog.hashtextextended({text}, {seed})"
    # The hash of a record with one field is the field's, and a bytea's hash is that of a text with the same bytes. SQL
    # cannot hash bytes alone before version 18.
    return f"pg_catalog.hash_record_extended(ROW(pg_catalog.convert_to({text}, 'UTF8')), {seed})"


def digest_sums(connection: psycopg.Connection[Any]) -> str:
    """Return SQL for the digest of rows whose text is `r`: their number and two sums of hashes.

    Args:
        connection: to the server that hashes.
    """
    return f"count(*), coalesce(sum({hashed(connection, 'r', 0)}), 0), coalesce(sum({hashed(connection, 'r', 1)}), 0)"


@contextlib.contextmanager
def digesting(owner: str, name: str) -> Iterator[None]:
    """Explain the fix when a value is too large for its text.

    The server names neither its column nor its row.

    Args:
        owner: schema.
        name: the table.

    Raises:
        DatabaseError: the server refused the value.
    """
    try:
        with translated("digesting a table", table=f"{owner}.{name}"):
            yield
    except DatabaseError as error:
        if (
            "invalid memory alloc request size" not in error.message
            and error.context.get("sqlstate") != _LIMIT_EXCEEDED
        ):
            raise
        raise DatabaseError(
            f"table {owner}.{name} cannot be compared: the text of one of its values is longer than 1 GB, which is as"
            f" much as PostgreSQL takes ({error.message}): shorten that value, or leave its column out"
            " (`delete_columns`)",
            hint=error.hint,
            **error.context,
        ) from error
