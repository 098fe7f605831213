"""A table as a SELECT shows it (`headrace.databases.ports.copying.TableReader.seen`).

This module shares nothing with capture and copy.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.databases.ports.copying import SeenTable
from headrace.databases.postgres.connection import translated

__all__ = ["seen_table"]

# Read from the catalog, not from a SELECT: the server would plan that, and connect to the server of a foreign
# partition.
_COLUMNS = """
SELECT c.oid::int8, a.attname::text, a.attgenerated <> '', EXISTS (
    WITH RECURSIVE below (number) AS (
        SELECT a.atttypid
        UNION SELECT p.part FROM below JOIN pg_catalog.pg_type t ON t.oid = below.number
        CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) p (part) WHERE p.part <> 0)
    SELECT FROM below WHERE number = 'pg_catalog.bpchar'::regtype)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') ORDER BY a.attnum
"""

# The tables that a SELECT reads. A partition that is being detached has left the table.
_MEMBERS = """
WITH RECURSIVE seen (number) AS (
    SELECT %s::oid
    UNION SELECT i.inhrelid FROM seen JOIN pg_catalog.pg_inherits i ON i.inhparent = seen.number AND NOT i.inhdetachpending
)
SELECT n.nspname::text, c.relname::text, CASE WHEN c.relkind = 'p' THEN '' WHEN c.relkind = 'f' THEN 'a foreign table'
       WHEN c.relispartition OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN seen ON i.inhrelid = c.oid AND i.inhparent = seen.number) THEN 'own'
       ELSE 'a table of its own, which inherits from it' END
FROM seen JOIN pg_catalog.pg_class c ON c.oid = seen.number JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


def seen_table(connection: psycopg.Connection[Any], owner: str, name: str) -> SeenTable | None:
    """Return a table as a SELECT shows it now; None: it does not exist.

    Args:
        connection: to its database.
        owner: schema.
        name: the table.
    """
    with translated("looking at a table", table=f"{owner}.{name}"):
        shown = connection.execute(_COLUMNS, (owner, name)).fetchall()
        if not shown:
            return None
        members = connection.execute(_MEMBERS, (shown[0][0],)).fetchall()
    columns = [found[1:] for found in shown if found[1] is not None]
    return SeenTable(
        columns=tuple(column for column, *_ in columns),
        computed=frozenset(column for column, is_computed, _ in columns if is_computed),
        padded=frozenset(column for column, _, is_padded in columns if is_padded),
        counts_bytes=connection.info.parameter_status("server_encoding") == "SQL_ASCII",
        stored=frozenset((member[0], member[1]) for member in members if member[2] == "own"),
        elsewhere=tuple(
            f"the rows of {member[0]}.{member[1]}, {member[2]}" for member in members if member[2] not in {"own", ""}
        ),
    )
