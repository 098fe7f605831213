"""Where a table's rows are stored, and which rows a partition holds, in terms that mean the same in another database.

PostgreSQL itself writes the condition (`pg_get_partition_constraintdef`): bounds of the partition and of those above
it, with names qualified as the session's empty search_path requires. For a hash partition it names the parent by OID,
which differs elsewhere: here that becomes the parent's name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.databases.ports import Finding
from headrace.databases.postgres.connection import qualified

__all__ = [
    "StoredTable",
    "files_of",
    "members_below",
    "partition_rows",
    "rows_of_others",
    "rows_of_partition",
    "stored_tables",
    "unlogged_findings",
    "without_children",
]

_HASH_PARENT = re.compile(r"satisfies_hash_partition\('(\d+)'::oid")


def members_below(root: str) -> str:
    """Return SQL for a table and its partitions (`number`), without a lock.

    `pg_partition_tree` would wait for any session that has locked a partition.

    Args:
        root: SQL for the table's oid, from an earlier FROM item.
    """
    return f"""(
        WITH RECURSIVE below (number) AS (
            SELECT {root}
            UNION ALL SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.number AND NOT i.inhdetachpending
            JOIN pg_catalog.pg_class part ON part.oid = i.inhrelid AND part.relispartition
        )
        SELECT number FROM below
    )"""


_STORED = f"""
SELECT n.nspname::text, c.relname::text, coalesce((SELECT format('%%I.%%I', pn.nspname, p.relname) FROM pg_catalog.pg_inherits i
           JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
           WHERE i.inhrelid = c.oid AND c.relispartition), ''), c.relkind = 'f', c.relpersistence = 'u'
FROM (SELECT %s::oid) AS root (number) CROSS JOIN LATERAL {members_below("root.number")} AS member
JOIN pg_catalog.pg_class c ON c.oid = member.number AND c.relkind IN ('r', 'f') JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """A relation that stores rows of a table: a plain table itself, or a partition without partitions.

    Args:
        owner, name: its own.
        parent: its direct parent, qualified; empty: it is not a partition.
        is_foreign: its rows are at another server.
        is_unlogged: a crash of the server removes its rows.
    """

    owner: str
    name: str
    parent: str
    is_foreign: bool
    is_unlogged: bool


def stored_tables(connection: psycopg.Connection[Any], number: int) -> tuple[StoredTable, ...]:
    """Return the relations that store a table's rows, by name.

    Args:
        connection: any.
        number: OID of the table.
    """
    rows = connection.execute(_STORED, (number,)).fetchall()
    return tuple(
        StoredTable(owner=row[0], name=row[1], parent=row[2], is_foreign=row[3], is_unlogged=row[4]) for row in rows
    )


def rows_of_others(path: str, stored: Iterable[StoredTable]) -> Iterator[Finding]:
    """Report partitions that are foreign tables: the log lacks their changes; copies and comparisons skip them.

    Args:
        path: of the findings.
        stored: the relations that store a table's rows.
    """
    for each in stored:
        if each.is_foreign:
            yield Finding(
                path=f"{path} partition {each.owner}.{each.name}",
                problem="is a foreign table: its rows are at another server, so that they are neither copied nor"
                " compared, and their changes are in no log",
                fix=f"ALTER TABLE {each.parent} DETACH PARTITION {qualified(each.owner, each.name)}; -- or leave the"
                " table out (exclude)",
            )


def unlogged_findings(path: str, stored: Iterable[StoredTable]) -> Iterator[Finding]:
    """Report tables of a destination that do not survive a crash of their server.

    Args:
        path: of the findings.
        stored: the relations that store a table's rows.
    """
    for each in stored:
        if each.is_unlogged:
            yield Finding(
                path=f"{path} partition {each.owner}.{each.name}" if each.parent else path,
                is_error=False,
                problem="is UNLOGGED: a crash of the server, or a failover, removes its rows. The whole table is copied"
                " again then, and its changes wait for that",
                fix=f"ALTER TABLE {qualified(each.owner, each.name)} SET LOGGED;",
            )


def files_of(connection: psycopg.Connection[Any], owner: str, name: str) -> str:
    """Return the files of a table and its partitions, with their sizes.

    Writing a row into an empty table changes the result, even if the row is removed again.

    Args:
        connection: any.
        owner: schema.
        name: of the table, partitioned or not.
    """
    row = connection.execute(
        "SELECT string_agg(r::oid || ' ' || pg_catalog.pg_relation_filenode(r) || ' ' ||"
        " pg_catalog.pg_total_relation_size(r), ', ' ORDER BY r)"
        " FROM (SELECT relid FROM pg_catalog.pg_partition_tree(%(name)s::regclass) UNION SELECT %(name)s::regclass) t"
        " (r)",
        {"name": qualified(owner, name)},
    ).fetchone()
    return str(row[0]) if row is not None else ""


def without_children(connection: psycopg.Connection[Any], owner: str, name: str) -> str:
    """Return a table's name for statements that must see its rows, but not those of tables that inherit from it.

    Args:
        connection: any.
        owner: schema.
        name: of the table, partitioned or not.
    """
    found = connection.execute(
        "SELECT c.relkind = 'p' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (owner, name),
    ).fetchone()
    return qualified(owner, name) if found is not None and found[0] else f"ONLY {qualified(owner, name)}"


def rows_of_partition(connection: psycopg.Connection[Any], table: tuple[str, str], part: tuple[str, str]) -> str:
    """Return which rows a partition of a table holds, at any depth; empty: the table has no such partition.

    Args:
        connection: with an empty search_path.
        table: owner and name of the partitioned table.
        part: owner and name of the partition.
    """
    found = connection.execute(
        "SELECT p.oid::int8 FROM pg_catalog.pg_class p JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace"
        " WHERE pn.nspname = %s AND p.relname = %s AND p.relispartition"
        " AND pg_catalog.pg_partition_root(p.oid) = (SELECT c.oid FROM pg_catalog.pg_class c JOIN"
        " pg_catalog.pg_namespace n  ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s)",
        (*part, *table),
    ).fetchone()
    return "" if found is None else partition_rows(connection, [found[0]]).get(found[0], "")


def partition_rows(connection: psycopg.Connection[Any], numbers: Collection[int]) -> dict[int, str]:
    """Return which rows some partitions hold.

    Args:
        connection: with an empty search_path.
        numbers: OIDs of tables.

    Returns:
        A condition over the table's columns for each of them that is a partition; "true" for a default partition
        without siblings.
    """
    # The snapshot may show a partition that has been detached or dropped since. The server computes root and condition
    # from the current state: both are then NULL, and a missing condition would mean every row.
    rows = connection.execute(
        "SELECT c.oid::int8, coalesce(CASE WHEN pg_catalog.pg_partition_root(c.oid) IS NOT NULL THEN"
        " pg_catalog.pg_get_partition_constraintdef(c.oid) END, 'true')"
        " FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s) AND c.relispartition AND"
        " pg_catalog.pg_partition_root(c.oid) IS NOT NULL",
        (list(numbers),),
    ).fetchall()
    found = {int(number): str(condition) for number, condition in rows}
    parents = {int(parent) for condition in found.values() for parent in _HASH_PARENT.findall(condition)}
    if not parents:
        return found
    names = connection.execute(
        "SELECT c.oid::int8, n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s)",
        (list(parents),),
    ).fetchall()
    words = {str(number): sql.Literal(qualified(owner, name)).as_string(None) for number, owner, name in names}

    def named(match: re.Match[str]) -> str:
        word = words.get(match[1], f"'{match[1]}'")
        return f"satisfies_hash_partition({word}::pg_catalog.regclass"

    return {number: _HASH_PARENT.sub(named, condition) for number, condition in found.items()}
