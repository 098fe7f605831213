"""A test's own destination server with a slow WAL writer.

Commits stay in memory so long that an immediate stop loses them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from headrace.databases.embedded.servers import EmbeddedServer
from tests.fix_postgres import SETTINGS

__all__ = ["lazy_server", "unflushed_bytes", "wal_in_memory"]

# The operating system keeps what was written: only the server's own buffers are lost with its processes.
_LAZY_WRITER = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


@contextmanager
def lazy_server(folder: Path, **settings: str) -> Iterator[EmbeddedServer]:
    """Start one, and remove it at the end.

    Args:
        folder: of this session's servers.
        settings: of the server, besides those of all tests.
    """
    own = folder / "lazy-commits"
    own.mkdir(mode=0o711)
    server = EmbeddedServer(own / "destination", name="destination", settings=SETTINGS | _LAZY_WRITER | settings)
    server.start()
    try:
        yield server
    finally:
        server.destroy()
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def wal_in_memory(dsn: str) -> Iterator[None]:
    """Make a running server's WAL writer equally slow during the block.

    Args:
        dsn: of a superuser.
    """
    with psycopg.connect(dsn, autocommit=True) as session:
        for name, value in _LAZY_WRITER.items():
            session.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        session.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with psycopg.connect(dsn, autocommit=True) as session:
            for name in _LAZY_WRITER:
                session.execute(f"ALTER SYSTEM RESET {name}".encode())
            session.execute("SELECT pg_reload_conf()")


def unflushed_bytes(connection: psycopg.Connection) -> int:
    """Return the size of the server's log that is only in memory."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    return int(row[0])
