"""Settings of a running PostgreSQL server, changed for a test."""

from __future__ import annotations

import psycopg

from tests.support.redo.postgres_redo import wait_until

__all__ = ["reload_settings"]

RELOADED_S = 60.0  # as `STALL_S`: what takes milliseconds


def reload_settings(dsn: str, name: str, value: str) -> None:
    """Reload the server's settings after an ALTER SYSTEM, and return when the postmaster and the checkpointer have read
    them.

    A session that shows `synchronous_standby_names` says nothing about commits: they wait from when the checkpointer
    has read it.

    Args:
        dsn: of any database there.
        name: of a setting that was changed.
        value: as the server shows it from now on.
    """

    def is_read() -> bool:
        # By a new session: the postmaster starts none between reading its settings and telling its children.
        with psycopg.connect(dsn, autocommit=True) as session:
            return session.execute(f"SHOW {name}".encode()).fetchone() == (value,)

    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SELECT pg_reload_conf()")
        wait_until(is_read, RELOADED_S)
        # The checkpointer reads settings before it looks for a request. It may have looked already when it was told, so
        # only the second request proves it.
        session.execute("CHECKPOINT")
        session.execute("CHECKPOINT")
