"""A hub whose server stops at once: the hub forwards only what is on its disk. No spoke has changes that the hub lost,
and nothing arrives twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.apply.apply_engine import Engine
from tests.support.databases.lazy_server import lazy_server, unflushed_bytes
from tests.support.ways.postgres_network import NetworkSite, PostgresNetwork
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: crashing_hub
sites: {a: {database: {kind: embedded}}, hub: {database: {kind: embedded}}, c: {database: {kind: embedded}}}
replicate: [{tables: [public.first, public.log], hub: hub, spokes: [a, c]}]
"""
CRASHES = 4
TRANSACTIONS = 12  # between two crashes
STEPS_MAX = 5_000  # of the engine, until a change is committed and not on disk; a few hundred are usual
GULPS = 5  # reads of the hub's log; by then all that it has is taken


def _tables(_site: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE first (id integer PRIMARY KEY, v text)")
    connection.execute("CREATE TABLE log (number integer)")  # no key: a duplicate row stays
    connection.execute("ALTER TABLE log REPLICA IDENTITY FULL")


class Hub:
    """The network, whose hub is stopped.

    Args:
        network: of a, hub and c.
        server: of the hub.
    """

    def __init__(self, network: PostgresNetwork, server: EmbeddedServer) -> None:
        self.network, self._server = network, server
        self.site = network.sites["hub"]
        self._engine = self._between("a", "hub")
        self._to_c = self._between("hub", "c")
        self.lost = self.sent = 0

    def _between(self, source: str, site: str) -> Engine:
        (apply,) = (each for each in self.network.spec.applies if (each.source, each.site) == (source, site))
        return self.network.engines[apply.name]

    def write(self, first: int) -> None:
        user = self.network.sites["a"].user
        for number in range(first, first + TRANSACTIONS):
            with user.transaction():
                user.execute("INSERT INTO first VALUES (%s, 'new')", (number,))
                user.execute("UPDATE first SET v = v || 'x' WHERE id = %s", (number - 5,))
                user.execute("INSERT INTO log VALUES (%s)", (number,))

    def crash(self) -> None:
        """Apply a part at the hub, send its log's changes on to c, and stop the hub."""
        (capture,) = self.network.sites["a"].captures
        self.network.sites["a"].catch_up()
        self.network._capture(self.network.sites["a"], capture)
        arrived = len(self._numbers(self.site))
        for _ in range(STEPS_MAX):
            self._engine.step()
            before = self._numbers(self.site)
            if len(before) >= arrived + TRANSACTIONS // 2 and unflushed_bytes(self.site.user):
                break
        else:
            pytest.fail("no commit waits for the disk")
        # Use no marker: its commit would flush all earlier ones to disk.
        for _ in range(GULPS):
            self.site.writer.step(0.05)
        (capture,) = self.site.captures
        self.sent += self.network._capture(self.site, capture)
        self._to_c.run()
        self._server.restart(immediate=True)
        self.site.reconnect()
        after = self._numbers(self.site)
        assert set(self._numbers(self.network.sites["c"])) <= set(after), "a spoke has what its hub has lost"
        self.lost += len(before) - len(after)

    def settle(self) -> None:
        self._engine.run()
        self.network.settle()

    @staticmethod
    def _numbers(site: NetworkSite) -> list[int]:
        return [int(number) for (number,) in site.user.execute("SELECT number FROM log ORDER BY 1")]


@pytest.fixture
def hub(
    pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], postgres_folder: Path, tmp_path: Path
) -> Iterator[Hub]:
    file = tmp_path / "hub.yaml"
    file.write_text(TOPOLOGY)
    with lazy_server(postgres_folder, wal_level="logical") as server:
        dsns = {"a": fresh_database(pg_source), "hub": server.dsn(), "c": fresh_database(pg_source)}
        network = PostgresNetwork(read_topology(file, {}), dsns, tmp_path, _tables)
        yield Hub(network, server)
        network.close()


def test_spokes_never_have_what_a_crashed_hub_lost_and_get_all_rows_once(hub: Hub) -> None:
    for number in range(CRASHES):
        hub.write(1 + number * TRANSACTIONS)
        hub.crash()
    hub.settle()
    rows = {
        name: (
            site.user.execute("SELECT * FROM first ORDER BY 1").fetchall(),
            site.user.execute("SELECT * FROM log ORDER BY 1").fetchall(),
        )
        for name, site in hub.network.sites.items()
    }
    assert rows["a"] == rows["hub"] == rows["c"]
    assert len(rows["a"][1]) == CRASHES * TRANSACTIONS
    assert hub.lost, "no crash took a commit: this proves nothing"
    assert hub.sent, "nothing was forwarded before a crash"
