"""A source's site in one process, on a real server, with a session of its database's user."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from actors.source_database import DatabaseSite
from headrace.base.errors import TableLeftRules
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.links.ports import RedoPosition
from headrace.redo.mining.miner import Miner
from headrace.redo.mining.names import NamesAtSource
from headrace.rules.rule import Rule, RuleSet
from headrace.status.sites import SiteStatus
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.wire.links import loopback
from topology.spec import CaptureSpec, DatabaseSpec, QueueSpec, SiteSpec, TopologySpec

__all__ = ["SLOT", "WAIT_S", "Source"]

RULES = RuleSet(include=(Rule(owner="public"),))
SLOT = slot_name("topo", "dbs1")
WAIT_S = 90.0  # the site looks for new tables every 30 s


class Source:
    """A running site, and a session of its database's user."""

    def __init__(self, dsn: str, folder: Path, *, user_dsn: str = "", redo_bytes_max: int = 1 << 20) -> None:
        self.dsn, self.folder = user_dsn or dsn, folder
        self.user = psycopg.connect(self.dsn, autocommit=True)
        self.spec = TopologySpec(
            name="topo",
            file=folder / "topo.yaml",
            state_dir=folder,
            sites=(SiteSpec(name="dbs1", database=DatabaseSpec(kind="postgres", dsn=dsn)),),
            queues=(QueueSpec(name="q", site="dbs1"),),
            captures=(CaptureSpec(name="c", site="dbs1", source="dbs1", queue="q", rules=RULES),),
            propagations=(),
            applies=(),
            redo_bytes_max=redo_bytes_max,
            segment_bytes=1 << 18,
        )
        self.host = DatabaseSite(self.spec, "dbs1", "fingerprint", loopback())
        self.host.start()
        self.wait("ready", lambda status: status.ready)
        self.host.prepare(self.spec)
        self.wait("it writes", lambda status: status.state in {"IDLE", "WRITING"})

    def run(self, statement: str) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.user.execute(statement)

    def wait(self, what: str, holds: Callable[[SiteStatus], object]) -> SiteStatus:
        def seen() -> SiteStatus | None:
            status = status_of(self.host, SiteStatus)
            return status if holds(status) else None

        status: SiteStatus = wait_until(what, seen, timeout_s=WAIT_S)
        return status

    def wait_written(self) -> SiteStatus:
        """Wait until the redo log has everything committed by now, with the dictionary builds needed to mine it."""
        row = self.run("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return self.wait(
            "it is written", lambda status: (status.redo_scn or 0) >= int(row[0]) and not self._awaits_build()
        )

    def _awaits_build(self) -> bool:
        return self.host.redo.writer is None or self.host.redo.writer.awaits_build

    def mined(self) -> list[LcrBatch]:
        reader = self.miner()
        found = self.batches(reader)
        reader.close()
        return found

    def miner(self, names: NamesAtSource | None = None) -> Miner:
        folder = self.folder / "sites" / "dbs1" / "redo"
        return Miner(folder, "dbs1", FIRST_SCN, RULES, PostgresLogDecoder, names=names)

    def batches(self, reader: Miner) -> list[LcrBatch]:
        """Mine everything possible now, up to a table that left the rules."""
        status = status_of(self.host, SiteStatus)
        assert self.host.redo.writer is not None
        position = self.host.redo.writer.position
        assert status.redo_segment is not None
        assert status.redo_segment <= position.segment
        found: list[LcrBatch] = []
        with contextlib.suppress(TableLeftRules):
            while (
                batch := reader.next_batch(RedoPosition(position.segment, position.offset, position.scn))
            ) is not None:
                found.append(batch)
        return found

    def drop_slot(self) -> None:
        def dropped() -> bool:
            self.run(
                f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
            )
            try:
                self.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
            except psycopg.errors.ObjectInUse:  # it was reopened
                return False
            return True

        wait_until("the slot is dropped", dropped, timeout_s=WAIT_S)

    def close(self) -> None:
        self.host.end()
        self.user.close()
        source = PostgresSource(self.dsn, site="dbs1")
        source.remove("topo")
        source.close()
