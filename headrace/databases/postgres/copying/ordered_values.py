"""Values whose texts have their parts in an order that depends on the encoding of the database.

jsonb and hstore keep their keys by length and bytes, tsvector its lexemes by bytes, each in the database's encoding:
`{"é": 1, "zz": 2}` is shown so in LATIN1, and with "zz" first in UTF8. Databases of different encodings show equal
values alike only if the parts are put in an order of their own. Here it is that of the parts' bytes in UTF-8, and a
document is shown as its leaves, each behind its path:

    {"é": [1, {}], "zz": null}      ->      ."zz" = null, ."é"[1] = 1, ."é"[2] = {}

The same is done with what is inside of arrays, composite types and domains. It takes some ten times as long as a text,
so it is asked for only where encodings differ, and of a value without a letter beyond ASCII, which has one order
everywhere, the text stays as it is. Ranges over such types are not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from headrace.databases.postgres.connection import qualified, quote

__all__ = ["AS_UTF8", "Shown", "has_other_order", "ordered_columns"]

AS_UTF8: Final = frozenset({"UTF8", "SQL_ASCII"})
"""Encodings of servers whose texts are taken for UTF-8 as they are."""

Shown = Callable[[str], str]
"""Of an expression for a value, the SQL of a text of it."""

# Of columns, and what is inside of their types: elements of arrays, fields of composite types, what domains are over.
_TYPES = """
WITH RECURSIVE walk (number) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = %(table)s::regclass AND a.attname = ANY (%(columns)s::text[]) AND a.attnum > 0 AND NOT a.attisdropped
  UNION
    SELECT part.number FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number
    CROSS JOIN LATERAL (
        SELECT t.typelem WHERE t.typcategory = 'A' UNION ALL SELECT t.typbasetype
        UNION ALL SELECT f.atttypid FROM pg_catalog.pg_attribute f
                  WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
    ) AS part (number)
    WHERE part.number <> 0
)
SELECT t.oid::int8 AS number, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE 0 END::int8 AS base,
       CASE WHEN t.typcategory = 'A' AND t.typtype <> 'd' THEN t.typelem ELSE 0 END::int8 AS element,
       CASE WHEN t.oid = 'jsonb'::regtype THEN 'jsonb' WHEN t.oid = 'tsvector'::regtype THEN 'tsvector'
            WHEN t.typname = 'hstore' AND EXISTS (
                SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'hstore'
                WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
                  AND d.refclassid = 'pg_catalog.pg_extension'::regclass) THEN 'hstore' ELSE '' END AS kind,
       n.nspname::text AS owner,
       ARRAY(SELECT f.attname::text FROM pg_catalog.pg_attribute f WHERE t.typtype = 'c' AND f.attrelid = t.typrelid
             AND f.attnum > 0 AND NOT f.attisdropped ORDER BY f.attnum) AS fields,
       ARRAY(SELECT f.atttypid::int8 FROM pg_catalog.pg_attribute f WHERE t.typtype = 'c' AND f.attrelid = t.typrelid
             AND f.attnum > 0 AND NOT f.attisdropped ORDER BY f.attnum) AS field_types
FROM walk w JOIN pg_catalog.pg_type t ON t.oid = w.number JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
"""

_COLUMNS = """
SELECT a.attname::text, a.atttypid::int8 FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %(table)s::regclass AND a.attname = ANY (%(columns)s::text[]) AND a.attnum > 0 AND NOT a.attisdropped
"""


def has_other_order(encoding: str, other: str) -> bool:
    """Whether databases of these encodings may keep the parts of equal values in different orders.

    Args:
        encoding: as a database calls it.
        other: of the other database; empty: the same.
    """
    return bool(other) and encoding != other and not {encoding, other} <= AS_UTF8


def ordered_columns(
    connection: psycopg.Connection[Any], owner: str, name: str, columns: Sequence[str]
) -> dict[str, Shown]:
    """The columns of a table whose texts depend on the encoding, and how they are shown in one order.

    Args:
        connection: to the database of the table.
        owner: schema.
        name: of the table.
        columns: their names.
    """
    asked = {"table": qualified(owner, name), "columns": list(columns)}
    with connection.cursor(row_factory=dict_row) as cursor:
        types = {row["number"]: row for row in cursor.execute(_TYPES, asked)}
    order = _Order(types=types, encoding=connection.info.parameter_status("server_encoding") or "")
    found = {column: order.shown(number) for column, number in connection.execute(_COLUMNS, asked).fetchall()}
    return {column: shown for column, shown in found.items() if shown is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Makes the SQL for the types of some columns, by their numbers, in a database of this encoding."""

    types: Mapping[int, Mapping[str, Any]]
    encoding: str

    def shown(self, number: int) -> Shown | None:
        """How a column of a type is shown; None: its text is the same everywhere."""
        ordered = self._ordered(number)
        if ordered is None:
            return None

        def text(value: str) -> str:
            # IS NULL asks the fields of a composite value.
            plain = f"pg_catalog.concat({value})"
            return (
                f"CASE WHEN {value} IS DISTINCT FROM NULL THEN CASE WHEN {self._is_ascii(plain)} THEN {plain}"
                f" ELSE pg_catalog.concat({ordered(value)}) END END"
            )

        return text

    def _below(self, number: int) -> Mapping[str, Any]:
        """The type below all domains."""
        found = self.types[number]
        return self._below(found["base"]) if found["base"] else found

    def _ordered(self, number: int, depth: int = 0) -> Shown | None:
        """The parts of a value that is not NULL, in one order; None: its text has one everywhere."""
        found = self._below(number)
        if found["kind"]:
            return {
                "jsonb": self._document,
                "tsvector": lambda value: self._set(f"pg_catalog.unnest({value})"),
                "hstore": lambda value: self._set(f"{quote(found['owner'])}.each({value})"),
            }[found["kind"]]
        if found["element"]:
            element = self._ordered(found["element"], depth + 1)
            return None if element is None else lambda value: self._elements(value, element, depth)
        fields = {
            quote(name): self._ordered(part, depth + 1)
            for name, part in zip(found["fields"], found["field_types"], strict=True)
        }
        if not any(fields.values()):
            return None
        return lambda value: (
            f"ROW({', '.join(_or_null(f'({value}).{name}', shown) for name, shown in fields.items())})::text"
        )

    def _elements(self, value: str, element: Shown, depth: int) -> str:
        # In a query of its own: in FROM, `unnest` would make columns of the fields of composite elements.
        place = f"headrace_{depth}"
        return (
            f"pg_catalog.concat(pg_catalog.array_dims({value}), ' ',"
            f" (SELECT pg_catalog.array_agg({_or_null(f'{place}.element', element)})"
            f" FROM (SELECT pg_catalog.unnest({value}) AS element OFFSET 0) {place}))"
        )

    def _set(self, rows: str) -> str:
        return f"(SELECT pg_catalog.string_agg(part::text, ', ' ORDER BY {self._bytes('part::text')}) FROM {rows} part)"

    def _document(self, value: str) -> str:
        inside = (
            "SELECT ('.' || pg_catalog.to_json(pair.key)::text) COLLATE \"C\", pair.value FROM"
            " pg_catalog.jsonb_each(CASE WHEN pg_catalog.jsonb_typeof(walk.v) = 'object' THEN walk.v END) pair"
            " UNION ALL SELECT ('[' || each.place || ']') COLLATE \"C\", each.v FROM pg_catalog.jsonb_array_elements("
            "CASE WHEN pg_catalog.jsonb_typeof(walk.v) = 'array' THEN walk.v END) WITH ORDINALITY each (v, place)"
        )
        return (
            f"(WITH RECURSIVE walk (path, v) AS (SELECT ''::text COLLATE \"C\", ({value})::pg_catalog.jsonb UNION ALL"
            f" SELECT walk.path || step.path, step.v FROM walk CROSS JOIN LATERAL ({inside}) step (path, v))"
            f" SELECT pg_catalog.string_agg(walk.path || ' = ' || walk.v::text, ', ' ORDER BY"
            f" {self._bytes('walk.path')}) FROM walk"
            " WHERE pg_catalog.jsonb_typeof(walk.v) NOT IN ('object', 'array') OR walk.v IN ('{}', '[]'))"
        )

    def _bytes(self, text: str) -> str:
        """What sorts texts by their bytes in UTF-8."""
        return f'({text}) COLLATE "C"' if self.encoding in AS_UTF8 else f"pg_catalog.convert_to({text}, 'UTF8')"

    def _is_ascii(self, text: str) -> str:
        if self.encoding == "SQL_ASCII":  # counts bytes as letters
            letters = f"pg_catalog.length(pg_catalog.convert_to({text}, 'SQL_ASCII'), 'UTF8')"
            return f"pg_catalog.octet_length({text}) = {letters}"
        return f"pg_catalog.octet_length(pg_catalog.convert_to({text}, 'UTF8')) = pg_catalog.length({text})"


def _or_null(value: str, shown: Shown | None) -> str:
    if shown is None:
        return value
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({shown(value)}) END"
