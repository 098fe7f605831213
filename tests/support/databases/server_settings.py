"""Settings of a running PostgreSQL server, changed for a test."""

from __future__ import annotations

import psycopg

from tests.support.redo.postgres_redo import wait_until

__all__ = ["reload_settings"]

RELOADED_S = 60.0  # bound of `STALL_S`: it takes milliseconds


def reload_settings(dsn: str, name: str, value: str) -> None:
    """Reload the server's settings after an ALTER SYSTEM; returns when the postmaster and the checkpointer have them.

    A session that shows `synchronous_standby_names` says nothing about commits: they wait only after the checkpointer
    has read it.

    Args:
        dsn: of any database there.
        name: of a changed setting.
        value: its new value, as the server shows it.
    """

    def is_read() -> bool:
        # A new session shows it: the postmaster starts none between reading its settings and signalling its children.
        with psycopg.connect(dsn, autocommit=True) as session:
            return session.execute(f"SHOW {name}".encode()).fetchone() == (value,)

    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SELECT pg_reload_conf()")
        wait_until(is_read, RELOADED_S)
        # The checkpointer reads settings before it looks for a request. It may have looked already when it was
        # signalled, so only the second request proves it.
        session.execute("CHECKPOINT")
        session.execute("CHECKPOINT")
