"""The reference peer: PostgreSQL's native logical replication on the same servers."""

from __future__ import annotations

import psycopg
from psycopg import sql

from benchmarks.servers import Pair, wait_slot_free, wait_true


class NativePeer:
    """One publication, one subscription, one slot.

    Args:
        pair: its databases; the tables exist and are filled at the source.
    """

    name = "native"

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def set_up(self, tables: tuple[str, ...]) -> None:
        """Publish the tables and subscribe with the initial copy; returns when the copy is complete."""
        with psycopg.connect(self.pair.source, autocommit=True) as connection:
            names = sql.SQL(", ").join(sql.Identifier(table) for table in tables)
            connection.execute(sql.SQL("CREATE PUBLICATION bench FOR TABLE {}").format(names))
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            connection.execute(
                sql.SQL(
                    "CREATE SUBSCRIPTION bench CONNECTION {} PUBLICATION bench WITH (binary = true, streaming = parallel)"
                ).format(sql.Literal(self.pair.source))
            )
            wait_true(connection, "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's'))")
        self.wait_caught_up()

    def set_synchronous_commit(self, value: str) -> None:
        """Set the subscription's `synchronous_commit`; takes effect when the worker starts again."""
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SUBSCRIPTION bench SET (synchronous_commit = {})").format(sql.Literal(value)))

    def start(self) -> None:
        """Enable the subscription."""
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            connection.execute("ALTER SUBSCRIPTION bench ENABLE")

    def stop(self) -> None:
        """Disable the subscription; returns when nothing reads the slot any more."""
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            connection.execute("ALTER SUBSCRIPTION bench DISABLE")
        with psycopg.connect(self.pair.source, autocommit=True) as connection:
            wait_slot_free(connection, "bench")

    def wait_caught_up(self) -> None:
        """Wait until everything committed before this call is flushed at the subscriber."""
        with psycopg.connect(self.pair.source, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            wait_true(
                connection,
                f"SELECT confirmed_flush_lsn >= '{row[0]}' FROM pg_replication_slots WHERE slot_name = 'bench'",
            )

    def tear_down(self) -> None:
        """Drop subscription, slot and publication."""
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            connection.execute("DROP SUBSCRIPTION IF EXISTS bench")
        with psycopg.connect(self.pair.source, autocommit=True) as connection:
            connection.execute("DROP PUBLICATION IF EXISTS bench")
