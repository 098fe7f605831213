"""Sessions of clients: short, autocommitting, and named at the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headrace.databases.postgres.connection import connect, translated

__all__ = ["session"]


@contextlib.contextmanager
def session(dsn: str, what: str) -> Iterator[Any]:
    """A session of a client for the block; each statement is a transaction.

    Args:
        dsn: of the server.
        what: the client is, for the server's list of sessions, and for errors.

    Yields:
        psycopg's connection.

    Raises:
        DatabaseError: what the server, or the connection to it, refuses within the block.
    """
    with translated(what), contextlib.closing(connect(dsn, application_name=f"headrace {what}")) as connection:
        yield connection
