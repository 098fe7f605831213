"""What a SELECT shows of a table; see `databases.copying.TableReader.seen`. Nothing here is shared with what is captured and copied."""

from __future__ import annotations

from typing import Any

import psycopg

from databases.copying import SeenTable
from databases.postgres.connection import qualified, translated
from streams.errors import DatabaseError

__all__ = ["seen_table"]

_NO_SUCH_TABLE = "42P01"

_COMPUTED = "SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''"

# What a SELECT reads. A partition that is being detached has left the table.
_MEMBERS = """
WITH RECURSIVE seen (number) AS (
    SELECT %s::regclass::oid
    UNION SELECT i.inhrelid FROM seen JOIN pg_catalog.pg_inherits i ON i.inhparent = seen.number AND NOT i.inhdetachpending
)
SELECT n.nspname::text, c.relname::text, CASE WHEN c.relkind = 'p' THEN '' WHEN c.relkind = 'f' THEN 'a foreign table'
       WHEN c.relispartition OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN seen ON i.inhrelid = c.oid AND i.inhparent = seen.number) THEN 'own'
       ELSE 'a table of its own, which inherits from it' END
FROM seen JOIN pg_catalog.pg_class c ON c.oid = seen.number JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


def seen_table(connection: psycopg.Connection[Any], owner: str, name: str, *, lock_timeout: str) -> SeenTable | None:
    """Ask what a SELECT shows of a table now; None: there is no such table.

    Args:
        connection: to its database, outside a transaction.
        owner: schema.
        name: of the table.
        lock_timeout: how long a session that locks it is waited for, as PostgreSQL takes it.

    Raises:
        DatabaseUnavailable: another session locks it for longer.
        DatabaseError: it cannot be read.
    """
    table = qualified(owner, name)
    try:
        with translated("looking at a table", table=f"{owner}.{name}"), connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{lock_timeout}'".encode())
            shown = connection.execute(f"SELECT * FROM {table} LIMIT 0".encode()).description or ()
            computed = connection.execute(_COMPUTED, (table,)).fetchall()
            members = connection.execute(_MEMBERS, (table,)).fetchall()
    except DatabaseError as error:
        if error.context.get("sqlstate") == _NO_SUCH_TABLE:
            return None
        raise
    return SeenTable(
        columns=tuple(column.name for column in shown), computed=frozenset(column for (column,) in computed),
        stored=frozenset((member[0], member[1]) for member in members if member[2] == "own"),
        elsewhere=tuple(f"the rows of {member[0]}.{member[1]}, {member[2]}" for member in members if member[2] not in {"own", ""}),
    )
