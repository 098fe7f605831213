"""Foreign keys of a table that changes are applied to, as PostgreSQL's catalog describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.databases.ports import ForeignKey

__all__ = ["CheckedKey", "checked_keys", "foreign_keys"]

# Foreign keys from the table and to it, including those of its partitions, but not the copies that PostgreSQL creates
# for partitions. The table itself may be a partition: then it has such a copy, and keys that refer to a table above it
# may refer to its rows.
_FAMILY = """
WITH family(relid) AS (SELECT r.relid FROM pg_catalog.pg_partition_tree(%(oid)s) r UNION SELECT %(oid)s::oid),
above(relid) AS (SELECT r.relid FROM pg_catalog.pg_partition_ancestors(%(oid)s) r UNION SELECT relid FROM family)
"""
_REFERS = """(
    k.conrelid IN (SELECT relid FROM family)
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint o WHERE o.oid = k.conparentid AND o.conrelid IN (SELECT relid FROM family))
)"""
_IS_REFERRED = "(k.conparentid = 0 AND k.confrelid IN (SELECT relid FROM above))"
_FOREIGN_KEYS = f"""
{_FAMILY}, keys AS (
    SELECT k.conrelid, k.confrelid, {_REFERS} AS refers, {_IS_REFERRED} AS is_referred,
           (SELECT array_agg(a.attname::text ORDER BY c.place) FROM unnest(k.conkey) WITH ORDINALITY c(number, place)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.number) AS columns,
           (SELECT array_agg(a.attname::text ORDER BY c.place) FROM unnest(k.confkey) WITH ORDINALITY c(number, place)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = c.number) AS referred_columns
    FROM pg_catalog.pg_constraint k
    WHERE k.contype = 'f' AND ({_REFERS} OR {_IS_REFERRED})
)
SELECT DISTINCT k.refers, k.is_referred, n.nspname AS owner, c.relname AS name, k.columns, k.referred_columns
FROM keys k JOIN pg_catalog.pg_class c ON c.oid = coalesce(pg_catalog.pg_partition_root(k.confrelid), k.confrelid)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 3, 4, 5, 6, 1, 2
"""

# As above, plus what checking a key needs. Columns that exist only in some versions are read through JSON.
_CHECKED_KEYS = f"""
{_FAMILY}
SELECT k.conname AS "constraint", cn.nspname AS owner, c.relname AS name, pn.nspname AS referred_owner, p.relname AS referred_name,
       format('%%s%%I.%%I', CASE c.relkind WHEN 'p' THEN '' ELSE 'ONLY ' END, cn.nspname, c.relname) AS relation,
       format('%%s%%I.%%I', CASE p.relkind WHEN 'p' THEN '' ELSE 'ONLY ' END, pn.nspname, p.relname) AS referred_relation,
       ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY x(number, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = x.number ORDER BY x.place) AS columns,
       ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY x(number, place)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = x.number ORDER BY x.place) AS referred_columns,
       ARRAY(SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) FROM unnest(k.conpfeqop) WITH ORDINALITY x(oid, place)
             JOIN pg_catalog.pg_operator o ON o.oid = x.oid JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace ORDER BY x.place) AS operators,
       ARRAY(SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) FROM unnest(k.conppeqop) WITH ORDINALITY x(oid, place)
             JOIN pg_catalog.pg_operator o ON o.oid = x.oid JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace ORDER BY x.place) AS referred_operators,
       ARRAY(SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) FROM unnest(k.conffeqop) WITH ORDINALITY x(oid, place)
             JOIN pg_catalog.pg_operator o ON o.oid = x.oid JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace ORDER BY x.place) AS own_operators,
       {_REFERS} AS refers, {_IS_REFERRED} AS is_referred
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = CASE WHEN {_REFERS} THEN %(oid)s ELSE coalesce(pg_catalog.pg_partition_root(k.conrelid), k.conrelid) END
JOIN pg_catalog.pg_class p ON p.oid = coalesce(pg_catalog.pg_partition_root(k.confrelid), k.confrelid)
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.contype = 'f' AND ({_REFERS} OR {_IS_REFERRED})
  AND pg_catalog.to_jsonb(k) ->> 'conenforced' IS DISTINCT FROM 'false' AND pg_catalog.to_jsonb(k) ->> 'conperiod' IS DISTINCT FROM 'true'
ORDER BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKey:
    """A foreign key from or to a table, with what checking it needs.

    Args:
        constraint: its name.
        owner, name: of the referring table; for a partition, its partitioned table's.
        columns: its columns there.
        referred_owner, referred_name, referred_columns: the referenced side, likewise.
        relation, referred_relation: both tables' names in statements, without inheriting tables, which the constraint
            does not cover.
        operators: per column, referred = referring.
        referred_operators, own_operators: equality on either side.
        refers: the described table is the referring one.
        is_referred: the described table is the referenced one.
    """

    constraint: str
    owner: str
    name: str
    columns: tuple[str, ...]
    referred_owner: str
    referred_name: str
    referred_columns: tuple[str, ...]
    relation: str
    referred_relation: str
    operators: tuple[str, ...]
    referred_operators: tuple[str, ...]
    own_operators: tuple[str, ...]
    refers: bool
    is_referred: bool


def foreign_keys(
    cursor: psycopg.Cursor[dict[str, Any]], oid: int
) -> tuple[tuple[ForeignKey, ...], tuple[tuple[str, ...], ...]]:
    """Read the foreign keys of a table, and the columns of each of its keys that is referenced.

    Args:
        cursor: whose rows are dictionaries.
        oid: the table's.
    """
    keys = cursor.execute(_FOREIGN_KEYS, {"oid": oid}).fetchall()
    return tuple(_references(keys)), tuple(_referred(keys))


def checked_keys(cursor: psycopg.Cursor[dict[str, Any]], oid: int) -> tuple[CheckedKey, ...]:
    """Read the keys from and to a table, with what checking them needs.

    Args:
        cursor: whose rows are dictionaries.
        oid: the table's.
    """
    return tuple(map(_checked_key, cursor.execute(_CHECKED_KEYS, {"oid": oid}).fetchall()))


def _checked_key(row: dict[str, Any]) -> CheckedKey:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return CheckedKey(**values)


def _references(keys: list[dict[str, Any]]) -> Iterator[ForeignKey]:
    for key in keys:
        if key["refers"]:
            yield ForeignKey(
                columns=tuple(key["columns"]),
                owner=key["owner"],
                name=key["name"],
                referred_columns=tuple(key["referred_columns"]),
            )


def _referred(keys: list[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    """Return the columns of each referenced key, once, in a fixed order."""
    return dict.fromkeys(tuple(sorted(key["referred_columns"])) for key in keys if key["is_referred"])
