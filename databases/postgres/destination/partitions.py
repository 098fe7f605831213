"""Partitions of a destination's table that its source has no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from databases.ports import Finding
from databases.postgres.connection import qualified, quote
from databases.postgres.partitions import rows_of_partition

if TYPE_CHECKING:
    from streams.table_name import TableName

__all__ = ["missing_grant", "ownership_findings", "remove_partition"]

_COPY_RIGHTS = ("SELECT", "INSERT", "DELETE", "TRUNCATE")  # it is emptied, filled and read

# Apply's own statements wait behind a lock that is waited for.
_LOCK_TIMEOUT = "1s"

_PARENT = """
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE i.inhrelid = to_regclass(%s)
"""

_NOT_OWNED = """
SELECT current_user, n.nspname::text, c.relname::text
FROM pg_catalog.pg_partition_tree(%(oid)s::oid) t JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') ORDER BY t.level, 2, 3
"""


def remove_partition(connection: psycopg.Connection[Any], table: TableName, part: TableName, *, how: str, may: Callable[[str], bool]) -> bool:
    """See `DestinationDatabase.remove_partition`.

    Args:
        connection: with an empty search_path, in autocommit mode.
        table: of the partition.
        part: its name.
        how: see there.
        may: see there.
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


def missing_grant(connection: psycopg.Connection[Any], part: TableName) -> str:
    """See `DestinationDatabase.missing_grant`. Changes are written through the partitioned table, whose rights count for them.

    Args:
        connection: as the role that will apply.
        part: see there.
    """
    found = connection.execute(
        "SELECT current_user, ARRAY(SELECT r FROM unnest(%s::text[]) r WHERE NOT has_table_privilege(c.oid, r)) FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s", (list(_COPY_RIGHTS), *part),
    ).fetchone()
    return f"GRANT {', '.join(found[1])} ON {qualified(*part)} TO {quote(found[0])};" if found is not None and found[1] else ""


def ownership_findings(connection: psycopg.Connection[Any], path: str, number: int) -> Iterator[Finding]:
    """What the role lacks to detach and drop partitions of a table (`detached_partitions: follow`).

    Args:
        connection: as the role that will apply.
        path: of the findings.
        number: OID of the table; one that is not partitioned has none.
    """
    found = connection.execute(_NOT_OWNED, {"oid": number}).fetchall()
    if found:
        fixes = [f"ALTER TABLE {qualified(owner, name)} OWNER TO {quote(role)};" for role, owner, name in found]
        yield Finding(path=path, problem="the role does not own the table and its partitions, which detached_partitions: follow needs", fix="\n".join(fixes))
