"""Types that can travel in binary form: those whose bytes mean the same in another database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

__all__ = ["FIRST_NUMBER_NOT_FIXED", "BinaryObstacle", "binary_obstacles", "type_obstacles"]

FIRST_NUMBER_NOT_FIXED = 10_000  # type numbers from here on differ from cluster to cluster

# Types whose binary form is a number from the source's own catalog.
_CATALOG_NUMBER_TYPES = (
    "regproc",
    "regprocedure",
    "regoper",
    "regoperator",
    "regclass",
    "regtype",
    "regrole",
    "regnamespace",
    "regconfig",
    "regdictionary",
    "regcollation",
)
# PostgreSQL's receive functions for these reject what its send functions produce for an empty value.
_NOT_RECEIVED_TYPES = ("int2vector", "oidvector")
# Among the types in `walk`, which begins with the seeds, those that keep a stream from being binary.
_BAD_TYPES = """
        WITH RECURSIVE walk (top, type, part_of) AS (
            {seeds}
          UNION
            SELECT walk.top, part.type, part.part_of
            FROM walk JOIN pg_type t ON t.oid = walk.type
            CROSS JOIN LATERAL (
                SELECT t.typelem, 'array' WHERE t.typelem <> 0 AND t.typsubscript = 'array_subscript_handler'::regproc
                UNION ALL SELECT r.rngsubtype, 'range' FROM pg_range r WHERE r.rngtypid = t.oid
                UNION ALL SELECT r.rngtypid, 'range' FROM pg_range r WHERE r.rngmultitypid = t.oid
                UNION ALL SELECT t.typbasetype, walk.part_of WHERE t.typtype = 'd'
                UNION ALL SELECT a.atttypid, 'composite' FROM pg_attribute a
                          WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            ) AS part (type, part_of)
        ), bad (top, reason) AS (
            SELECT walk.top, CASE
                WHEN t.oid < %(fixed)s AND t.typname = ANY (%(numbers)s)
                    THEN format('%%s is a number of this database''s catalog', t.typname)
                WHEN t.oid < %(fixed)s AND t.typname = ANY (%(not_received)s)
                    THEN format('an empty %%s is not taken back in the binary form it is sent in', t.typname)
                WHEN t.typsend = 0 AND (walk.part_of <> 'column' OR t.oid >= %(fixed)s)
                    THEN format('%%s has no binary form', format_type(t.oid, NULL))
                WHEN walk.part_of IN ('array', 'composite') AND t.oid >= %(fixed)s
                    THEN format('the number of %%s inside it is another one elsewhere', format_type(t.oid, NULL))
            END
            FROM walk JOIN pg_type t ON t.oid = walk.type
        )
"""
_BAD_TYPES_NAMED = {
    "numbers": list(_CATALOG_NUMBER_TYPES),
    "not_received": list(_NOT_RECEIVED_TYPES),
    "fixed": FIRST_NUMBER_NOT_FIXED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryObstacle:
    """A column that cannot travel in binary form, and why."""

    owner: str
    table: str
    column: str
    type_name: str
    reason: str


def binary_obstacles(connection: psycopg.Connection[Any], relations: Sequence[int]) -> tuple[BinaryObstacle, ...]:
    """Return the columns of tables that keep a stream from being binary, one line per column.

    The server raises an error, and the slot is stuck, when it meets a type without a send function inside an array,
    range or composite. Numbers from the source's catalog mean nothing elsewhere: reg* values, and the numbers of
    user-defined element types in the binary form of arrays and composites.

    Args:
        connection: to the source.
        relations: oids of tables and partitions (`published_relations`).
    """
    rows = connection.execute(
        _BAD_TYPES.format(
            seeds="""
            SELECT DISTINCT a.atttypid, a.atttypid, 'column'
            FROM pg_attribute a
            WHERE a.attrelid = ANY (%(relations)s) AND a.attnum > 0 AND NOT a.attisdropped
        """
        )
        + """
        SELECT n.nspname::text, c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), min(bad.reason)
        FROM pg_attribute a JOIN bad ON bad.top = a.atttypid AND bad.reason IS NOT NULL
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE a.attrelid = ANY (%(relations)s) AND a.attnum > 0 AND NOT a.attisdropped
        GROUP BY n.nspname, c.relname, a.attname, a.attnum, a.atttypid, a.atttypmod
        ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C", a.attnum
        """,
        {"relations": list(relations), **_BAD_TYPES_NAMED},
    ).fetchall()
    return tuple(
        BinaryObstacle(owner=row[0], table=row[1], column=row[2], type_name=row[3], reason=row[4]) for row in rows
    )


def type_obstacles(connection: psycopg.Connection[Any], types: Collection[int], *, are_seen: bool) -> dict[int, str]:
    """Return the types that keep a stream from being binary, like `binary_obstacles`. Waits for no lock.

    Args:
        connection: to the source.
        types: oids of columns' types, as the log has them.
        are_seen: whatever altered one of them is visible. If False, a type missing in the catalog is an obstacle, and
            so is a composite, which may have got another attribute.

    Returns:
        The reason, by the oid of each such type.
        The reason by the oid of each that does.
    """
    rows = connection.execute(
        _BAD_TYPES.format(seeds="SELECT given, given, 'column' FROM unnest(%(types)s::oid[]) AS given")
        + """
        SELECT given::int8, coalesce((SELECT min(bad.reason) FROM bad WHERE bad.top = given), CASE
            WHEN %(are_seen)s THEN NULL
            WHEN NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = given) THEN 'the catalog does not show it yet'
            WHEN EXISTS (SELECT FROM walk JOIN pg_type t ON t.oid = walk.type AND t.typtype = 'c' WHERE walk.top = given)
                THEN 'the catalog does not show yet whether it was altered'
        END)
        FROM unnest(%(types)s::oid[]) AS given
        """,
        {"types": list(types), "are_seen": are_seen, **_BAD_TYPES_NAMED},
    ).fetchall()
    return {int(number): str(reason) for number, reason in rows if reason is not None}
