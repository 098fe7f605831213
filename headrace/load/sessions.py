"""Client sessions: short, autocommitting, and named at the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headrace.databases.postgres.connection import connect, translated

__all__ = ["session"]


@contextlib.contextmanager
def session(dsn: str, what: str) -> Iterator[Any]:
    """Open a client session for the block; each statement is a transaction.

    Args:
        dsn: connection string of the server.
        what: name of the client, for the server's list of sessions, and for errors.

    Yields:
        psycopg's connection.

    Raises:
        DatabaseError: an error of the server, or of the connection to it, within the block.
    """
    with translated(what), contextlib.closing(connect(dsn, application_name=f"headrace {what}")) as connection:
        yield connection
