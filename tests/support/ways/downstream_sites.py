"""A source's site and its redo receivers in one process, hosted as in a running topology, with the source's own server."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from actors.downstream_database import RedoReceiver
from actors.hosting.host import Host
from actors.site.connection import redo_folder
from actors.source_database import DatabaseSite
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.faults.processes import kill, server_processes
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.links.ports import RedoPosition
from headrace.load.clients import NumberedClients
from headrace.redo.mining.miner import Miner
from headrace.rules.rule import Rule, RuleSet
from headrace.status.sites import SiteStatus
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.databases.server_settings import reload_settings
from tests.support.wire.links import loopback
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, QueueSpec, SiteSpec, TopologySpec

__all__ = ["DownstreamSites", "ROWS", "topology"]

RULES = RuleSet(include=(Rule(owner="public"),))
ROWS = "CREATE TABLE rows (id int PRIMARY KEY, writer int)"


def topology(
    folder: Path,
    dsn: str,
    *,
    transport: str = "async",
    sites: tuple[str, ...] = ("dbs3",),
    source_captures: bool = False,
    **capture: Any,
) -> TopologySpec:
    """Return a topology that captures dbs1 at other sites, and at dbs1 if wanted; `dbs2` applies the first capture.

    `capture`: further settings of a downstream capture process.
    """
    captures = [
        CaptureSpec(
            name=f"c_{site}", site=site, source="dbs1", queue=f"q_{site}", rules=RULES, transport=transport, **capture
        )
        for site in sites
    ]
    if source_captures:
        captures.append(CaptureSpec(name="c_dbs1", site="dbs1", source="dbs1", queue="q_dbs1", rules=RULES))
    return TopologySpec(
        name="topo",
        file=folder / "topo.yaml",
        state_dir=folder,
        sites=(
            SiteSpec(name="dbs1", database=DatabaseSpec(kind="postgres", dsn=dsn)),
            SiteSpec(name="dbs2", database=DatabaseSpec(kind="embedded")),
            *(SiteSpec(name=site, database=DatabaseSpec(kind="none")) for site in sites),
        ),
        queues=tuple(QueueSpec(name=capture.queue, site=capture.site) for capture in captures),
        captures=tuple(captures),
        propagations=(),
        applies=(ApplySpec(name="a", site="dbs2", source="dbs1", queue="q_dbs3"),),
        redo_bytes_max=64 << 20,
        segment_bytes=1 << 20,
    )


class DownstreamSites:
    """The source's site and its redo receivers.

    Args:
        server: of the source, used by this test alone.
        folder: for redo.
        settings: of `topology`.
    """

    def __init__(self, server: EmbeddedServer, folder: Path, **settings: Any) -> None:
        self.server, self.folder = server, folder
        self.hosts: dict[str, Host] = {}
        self._links = loopback(lambda name: self.hosts[name].endpoint())
        self.spec = topology(folder, server.dsn(), **settings)
        self.site = DatabaseSite(self.spec, "dbs1", "1", self._links)
        self.hosts["site:dbs1"] = self.site
        self.site.start()
        wait_until("the source answers", lambda: status_of(self.site, SiteStatus).ready)
        self.site.prepare(self.spec)
        wait_until("the log writer runs", lambda: self.site.status().state in {"IDLE", "WRITING"})

    def start_receiver(self, name: str = "dbs1@dbs3") -> RedoReceiver:
        receiver = RedoReceiver(self.spec, name, "1", self._links)
        self.hosts[f"redo:{name}"] = receiver
        receiver.start()
        return receiver

    def wait_received(self, receiver: RedoReceiver) -> None:
        """Wait until everything committed by now is durable at the receiver."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as user:
            user.execute("SET synchronous_commit = local")
            row = user.execute("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn").fetchone()
        assert row is not None
        wait_until("it is received", lambda: (receiver.details().redo_scn or 0) >= int(row[0]))

    def wait_for_commits(self) -> None:
        """Make commits of the source wait for the log writer."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as user:
            user.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{slot_name('topo', 'dbs1')}'")
        # The server's own word does not help: until the log writer has confirmed something it is "async", although
        # commits wait.
        reload_settings(self.server.dsn(), "synchronous_standby_names", slot_name("topo", "dbs1"))

    def destroy_source(self) -> None:
        """Kill -9 every process of the server, and remove the files of the server and of the source's site."""
        data = self.server.data_folder
        kill(server_processes(self.server))
        self.site.end()
        self.server.destroy()
        assert not data.exists()
        shutil.rmtree(self.folder / "sites" / "dbs1")

    def mined(self, receiver: RedoReceiver, *, site: str = "dbs3") -> list[LcrBatch]:
        """Return everything that a capture process at the receiver's site mines."""
        log = receiver._log
        assert log is not None
        miner = Miner(redo_folder(self.spec, source="dbs1", site=site), "dbs1", FIRST_SCN, RULES, PostgresLogDecoder)
        found = []
        position = log.position
        while (batch := miner.next_batch(RedoPosition(position.segment, position.offset, position.scn))) is not None:
            found.append(batch)
        miner.close()
        return found

    def close(self) -> None:
        for host in reversed(self.hosts.values()):
            host.end()


class Writer:
    """A client of the source that commits row after row, as fast as it can, and records the acknowledged ones."""

    def __init__(self, dsn: str, number: int, schema: str = "public") -> None:
        insert = f"INSERT INTO {schema}.rows VALUES (%s, {number})"
        self._clients = NumberedClients(
            lambda: dsn,
            lambda session, row: session.execute(insert, (row,)),
            [itertools.count(number * 1_000_000)],
            pause_s=0.0,
            what="test",
        )

    @property
    def acknowledged(self) -> list[int]:
        return sorted(self._clients.acknowledged)

    def stop(self, *, wait: Callable[[], object] = lambda: None) -> None:
        self._clients.stop()
        wait()
        self._clients.end()
        assert self._clients.failures == []
