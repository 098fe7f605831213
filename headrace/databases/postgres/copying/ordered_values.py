"""Values whose text form orders its parts by the encoding of the database.

jsonb and hstore order their keys by length and bytes, tsvector its lexemes by bytes, each in the database's encoding.
`{"é": 1, "zz": 2}` is shown like this in LATIN1, and with "zz" first in UTF8. Databases of different encodings show
equal values alike only if the parts are put into a common order. Here it is the order of the parts' bytes in UTF-8, and
a document is shown as its leaves, each after its path:

    {"é": [1, {}], "zz": null}      ->      ."zz" = null, ."é"[1] = 1, ."é"[2] = {}

Parts inside arrays, composite types and domains are treated the same way. This takes about ten times as long as the
plain text. So it is done only where encodings differ, and not for values of ASCII characters alone, whose order is the
same everywhere. Ranges over such types are not examined.
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
"""Server encodings whose texts are treated as UTF-8 without conversion."""

Shown = Callable[[str], str]
"""Maps an SQL expression for a value to the SQL of its text."""

# Types of columns and of their parts: elements of arrays, fields of composite types, base types of domains.
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
        encoding: the database's name for it.
        other: encoding of the other database; empty: the same.
    """
    return bool(other) and encoding != other and not {encoding, other} <= AS_UTF8


def ordered_columns(
    connection: psycopg.Connection[Any], owner: str, name: str, columns: Sequence[str]
) -> dict[str, Shown]:
    """Return the columns of a table whose texts depend on the encoding, and how they are shown in a common order.

    Args:
        connection: to the database of the table.
        owner: schema.
        name: the table.
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
    """Builds the SQL for the types of some columns, by type number, in a database of this encoding."""

    types: Mapping[int, Mapping[str, Any]]
    encoding: str

    def shown(self, number: int) -> Shown | None:
        """Return how a column of a type is shown; None: its text is the same everywhere."""
        ordered = self._ordered(number)
        if ordered is None:
            return None

        def text(value: str) -> str:
            # IS NULL would test the fields of a composite value.
            plain = f"pg_catalog.concat({value})"
            return (
                f"CASE WHEN {value} IS DISTINCT FROM NULL THEN CASE WHEN {self._is_ascii(plain)} THEN {plain}"
                f" ELSE pg_catalog.concat({ordered(value)}) END END"
            )

        return text

    def _below(self, number: int) -> Mapping[str, Any]:
        """Return the type below all domains."""
        found = self.types[number]
        return self._below(found["base"]) if found["base"] else found

    def _ordered(self, number: int, depth: int = 0) -> Shown | None:
        """Return how the parts of a value that is not NULL are ordered; None: its text has the same order everywhere."""
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
        # In a subquery: in FROM, `unnest` would expand composite elements into columns.
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
        """Return an expression that sorts texts by their bytes in UTF-8."""
        return f'({text}) COLLATE "C"' if self.encoding in AS_UTF8 else f"pg_catalog.convert_to({text}, 'UTF8')"

    def _is_ascii(self, text: str) -> str:
        if self.encoding == "SQL_ASCII":  # counts bytes as characters
            letters = f"pg_catalog.length(pg_catalog.convert_to({text}, 'SQL_ASCII'), 'UTF8')"
            return f"pg_catalog.octet_length({text}) = {letters}"
        return f"pg_catalog.octet_length(pg_catalog.convert_to({text}, 'UTF8')) = pg_catalog.length({text})"


def _or_null(value: str, shown: Shown | None) -> str:
    if shown is None:
        return value
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({shown(value)}) END"
