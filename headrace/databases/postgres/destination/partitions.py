"""Partitions of a destination's table that were detached or dropped at the source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import psycopg

from headrace.databases.ports import Finding
from headrace.databases.postgres.catalog.partitions import rows_of_partition
from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName, remark

__all__ = ["missing_grant", "nested_findings", "nested_tables", "ownership_findings", "remove_partition"]

_COPY_RIGHTS = ("SELECT", "INSERT", "DELETE", "TRUNCATE")  # a copy empties, fills and reads the table

# Short, because apply's own statements queue up behind a pending lock.
_LOCK_TIMEOUT = "1s"

_PARENT = """
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE i.inhrelid = to_regclass(%s)
"""

_NESTED = """
WITH wanted AS (
  SELECT c.oid, w.owner, w.name, c.relispartition FROM unnest(%s::text[], %s::text[]) AS w (owner, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = w.owner JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
)
SELECT DISTINCT ON (part.owner, part.name) part.owner, part.name, above.owner, above.name
FROM wanted part CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(part.oid) a JOIN wanted above ON above.oid = a.relid AND above.oid <> part.oid
WHERE part.relispartition ORDER BY 1, 2
"""

_NOT_OWNED = """
SELECT current_user, n.nspname::text, c.relname::text
FROM pg_catalog.pg_partition_tree(%(oid)s::oid) t JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') ORDER BY t.level, 2, 3
"""


def remove_partition(
    connection: psycopg.Connection[Any], table: TableName, part: TableName, *, how: str, may: Callable[[str], bool]
) -> bool:
    """Detach, drop or empty a partition, as `DestinationDatabase.remove_partition`; return whether it was done.

    Args:
        connection: connection in autocommit mode, with an empty search_path.
        table: the partition's table.
        part: name of the partition.
        how: detach, drop or empty.
        may: called under the lock with the condition of the partition's rows (`partition_rows`); False rolls the change back.
    """
    rows = rows_of_partition(connection, table, part)
    if not rows:
        return True
    name = qualified(*part)
    with connection.transaction() as transaction:
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
        if how == "empty":
            connection.execute(f"TRUNCATE {name}".encode())
        else:
            parent = connection.execute(_PARENT, (name,)).fetchone()
            assert parent is not None
            connection.execute(f"ALTER TABLE {qualified(*parent)} DETACH PARTITION {name}".encode())
            if how == "drop":
                connection.execute(f"DROP TABLE {name}".encode())
        is_done = may(rows)
        if not is_done:
            raise psycopg.Rollback(transaction)
    return is_done


def nested_tables(connection: psycopg.Connection[Any], tables: Collection[TableName]) -> dict[TableName, TableName]:
    """Return those of the tables that are partitions here, at any depth, of another of them, with that other table."""
    rows = connection.execute(_NESTED, ([each.owner for each in tables], [each.name for each in tables])).fetchall()
    return {TableName(*row[:2]): TableName(*row[2:]) for row in rows}


def nested_findings(connection: psycopg.Connection[Any], path: str, tables: Collection[TableName]) -> Iterator[Finding]:
    """Refuse tables that are separate at the source, but here one is a partition of another.

    Each of the two would be emptied and copied with the other's rows.

    Args:
        connection: any connection to the destination.
        path: path of the site.
        tables: tables whose changes arrive from one source, by their names here.
    """
    for part, table in nested_tables(connection, tables).items():
        parent = connection.execute(_PARENT, (qualified(*part),)).fetchone()
        if parent is not None:
            yield Finding(
                path=f"{path} table {part}",
                problem=f"is a partition of {table} here, but a separate table at the source: a copy or a TRUNCATE of"
                f" {table} removes its rows, and its own rows would be among those of {table}",
                fix=f"ALTER TABLE {qualified(*parent)} DETACH PARTITION {qualified(*part)}; "
                + remark(
                    "when earlier changes are applied (headrace wait FILE --caught-up); or attach it at the source, or"
                    " exclude it (exclude)"
                ),
            )


def missing_grant(connection: psycopg.Connection[Any], part: TableName) -> str:
    """Return the statement that grants the session's role the rights to copy into the partition; empty if none is missing.

    Apply writes changes through the partitioned table and needs rights on that table only.
    """
    found = connection.execute(
        "SELECT current_user, ARRAY(SELECT r FROM unnest(%s::text[]) r WHERE NOT has_table_privilege(c.oid, r)) FROM"
        " pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND"
        " c.relname = %s",
        (list(_COPY_RIGHTS), *part),
    ).fetchone()
    return (
        f"GRANT {', '.join(found[1])} ON {qualified(*part)} TO {quote(found[0])};"
        if found is not None and found[1]
        else ""
    )


def ownership_findings(connection: psycopg.Connection[Any], path: str, number: int) -> Iterator[Finding]:
    """Report the ownership that the role lacks to detach and drop partitions (`detached_partitions: follow`).

    Args:
        connection: session of the applying role.
        path: path of the findings.
        number: OID of the table. A table that is not partitioned has no findings.
    """
    found = connection.execute(_NOT_OWNED, {"oid": number}).fetchall()
    if found:
        fixes = [f"ALTER TABLE {qualified(owner, name)} OWNER TO {quote(role)};" for role, owner, name in found]
        yield Finding(
            path=path,
            problem="the role does not own the table and its partitions, which detached_partitions: follow needs",
            fix="\n".join(fixes),
        )
