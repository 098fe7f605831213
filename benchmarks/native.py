"""The reference peer: PostgreSQL's native logical replication on the same servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from benchmarks.servers import Pair, wait_slot_free, wait_true


@dataclass(frozen=True, slots=True)
class Flow:
    """One subscription.

    Args:
        name: of the subscription and its slot.
        source: connection string of the publisher.
        destination: connection string of the subscriber.
    """

    name: str
    source: str
    destination: str


class NativeFlows:
    """One publication per source, one subscription and slot per flow.

    Args:
        flows: the subscriptions.
    """

    name = "native"

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._flows = tuple(flows)
        self._sources = tuple(dict.fromkeys(flow.source for flow in flows))

    def subscribe(self, tables: Sequence[str], options: str) -> None:
        """Publish the tables at every source, and subscribe.

        Args:
            tables: names of the tables.
            options: of every subscription, besides the fastest form of the stream.
        """
        names = sql.SQL(", ").join(sql.Identifier(table) for table in tables)
        for source in self._sources:
            _execute(source, sql.SQL("CREATE PUBLICATION bench FOR TABLE {}").format(names))
        for flow in self._flows:
            _execute(
                flow.destination,
                sql.SQL(
                    "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION bench WITH (binary = true, streaming = parallel"
                    + options
                    + ")"
                ).format(sql.Identifier(flow.name), sql.Literal(flow.source)),
            )

    def set_synchronous_commit(self, value: str) -> None:
        """Set every subscription's `synchronous_commit`; takes effect when its worker starts again."""
        self._alter(f"SET (synchronous_commit = {value})")

    def start(self) -> None:
        """Enable the subscriptions."""
        self._alter("ENABLE")

    def stop(self) -> None:
        """Disable the subscriptions; returns when their slots are inactive."""
        self._alter("DISABLE")
        for flow in self._flows:
            with psycopg.connect(flow.source, autocommit=True) as connection:
                wait_slot_free(connection, flow.name)

    def wait_caught_up(self) -> None:
        """Wait until everything committed before this call is flushed at every subscriber."""
        for flow in self._flows:
            with psycopg.connect(flow.source, autocommit=True) as connection:
                row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
                assert row is not None
                wait_true(
                    connection,
                    f"SELECT confirmed_flush_lsn >= '{row[0]}' FROM pg_replication_slots WHERE slot_name ="
                    f" '{flow.name}'",
                )

    def tear_down(self) -> None:
        """Drop subscriptions with their slots, and publications."""
        for flow in self._flows:
            _execute(flow.destination, sql.SQL("DROP SUBSCRIPTION IF EXISTS {}").format(sql.Identifier(flow.name)))
        for source in self._sources:
            _execute(source, sql.SQL("DROP PUBLICATION IF EXISTS bench"))

    def _alter(self, what: str) -> None:
        for flow in self._flows:
            _execute(flow.destination, sql.SQL("ALTER SUBSCRIPTION {} " + what).format(sql.Identifier(flow.name)))


class NativePeer(NativeFlows):
    """One way, two sites.

    Args:
        pair: its databases; the tables exist and are filled at the source.
    """

    def __init__(self, pair: Pair) -> None:
        super().__init__([Flow("bench", pair.source, pair.destination)])
        self.pair = pair

    def set_up(self, tables: tuple[str, ...]) -> None:
        """Publish the tables and subscribe with the initial copy; returns when the copy is complete."""
        self.subscribe(tables, "")
        with psycopg.connect(self.pair.destination, autocommit=True) as connection:
            wait_true(
                connection, "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's'))"
            )
        self.wait_caught_up()


def _execute(dsn: str, statement: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)
