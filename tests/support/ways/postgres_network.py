"""A topology on real PostgreSQL databases in one process: log writers, miners, rules and apply engines.

The test steps them. A site's writes go through its slot and redo log, and apply engines' writes carry their tag in
PostgreSQL's own log, as in a running topology. Between the redo and an apply engine there are no queues: a batch passes
the rules of every client on its way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psycopg

from headrace.base.clock import SystemClock
from headrace.databases.connectors import value_types
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.redo.mining.miner import ROWS_MAX_DEFAULT, Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.table_settings import NO_TABLE_SETTINGS
from tests.support.apply.apply_engine import Engine
from topology.file.reading import read_topology
from topology.routing.ways import ways_to
from topology.spec import ApplySpec, CaptureSpec, TopologySpec

PASSES_MAX = 12  # a change that still moves after this many hops is in a cycle
READ_TIMEOUT_S = 0.2  # a caller that waits repeats a read that finds nothing


class NetworkSite:
    """One site: its database, its user, and its redo log if changes are captured there."""

    def __init__(
        self, spec: TopologySpec, name: str, dsn: str, folder: Path, prepare: Callable[[str, psycopg.Connection], None]
    ) -> None:
        self.name, self.dsn, self.spec, self._folder = name, dsn, spec, folder
        self.user = psycopg.connect(dsn, autocommit=True)
        # One thread steps everything: while an engine works, for long on a busy machine, the server gets no answers.
        self.user.execute(f"ALTER DATABASE {self.user.info.dbname} SET wal_sender_timeout = 0".encode())
        prepare(name, self.user)
        # One per site: its apply processes have the same settings.
        (settings,) = {each.tables for each in spec.applies if each.site == name} or {NO_TABLE_SETTINGS}
        self.destination = PostgresDestination(dsn, site=name, settings=settings)
        self.destination.prepare(spec.name)
        self.captures = [capture for capture in spec.captures if capture.source == name]
        self.source = PostgresSource(dsn, site=name)
        self.miners: dict[str, Miner] = {}
        if self.captures:
            self.source.prepare(spec.name, spec.capture_rules(name))
            self.writer = LogWriter(
                folder,
                name,
                decoder_factory=PostgresLogDecoder,
                dictionary_build=lambda **options: self.source.dictionary_build(spec.name, **options),
                segment_bytes=1 << 20,
                redo_bytes_max=1 << 30,
            )
            self.stream = self.source.open_stream(spec.name, self.writer.start_scn)
            self.writer.attach(self.stream)
            self._start_miners()

    def _start_miners(self) -> None:
        self.miners = {
            each.name: Miner(self._folder, self.name, FIRST_SCN, each.rules, PostgresLogDecoder)
            for each in self.captures
        }

    def kill_captures(self) -> None:
        """Kill its capture processes; they restart at the beginning of redo."""
        for miner in self.miners.values():
            miner.close()
        self._start_miners()

    def catch_up(self) -> None:
        """Write redo until it holds everything committed before this call."""
        target = self.source.write_marker(b"caught up?")
        while self.writer.position.scn < target or self.writer.awaits_build:
            self.writer.step(READ_TIMEOUT_S)

    def reconnect(self) -> None:
        """Reconnect after a restart of the site's server. The destination reconnects by itself."""
        self.user.close()
        self.user = psycopg.connect(self.dsn, autocommit=True)
        if self.captures:
            self.writer.detach()
            self.stream.close()
            self.source.close()
            self.source = PostgresSource(self.dsn, site=self.name)
            self.stream = self.source.open_stream(self.spec.name, self.writer.start_scn)
            self.writer.attach(self.stream)

    def close(self) -> None:
        for miner in self.miners.values():
            miner.close()
        if self.captures:
            self.writer.close()
            self.stream.close()
            self.source.remove(self.spec.name)
        self.source.close()
        self.destination.remove(self.spec.name)
        self.destination.close()
        self.user.close()


@contextlib.contextmanager
def two_sites(
    example: Path,
    servers: Sequence[EmbeddedServer],
    fresh_database: Callable[[EmbeddedServer], str],
    folder: Path,
    prepare: Callable[[str, psycopg.Connection], None],
) -> Iterator[PostgresNetwork]:
    """An example's sites dbs1 and dbs2 on two servers.

    Args:
        example: the file.
        servers: one per site.
        fresh_database: creates a database on a server; returns its DSN.
        folder: for the redo logs.
        prepare: creates the tables of a site.
    """
    dsns = {site: fresh_database(server) for site, server in zip(("dbs1", "dbs2"), servers, strict=True)}
    made = PostgresNetwork(read_topology(example, {}), dsns, folder, prepare)
    yield made
    made.close()


class PostgresNetwork:
    """A topology on real databases.

    Args:
        spec: routed.
        dsns: of the databases, by site.
        folder: for the redo logs.
        prepare: creates the tables of a site.
        is_parallel: apply processes have as many apply servers as in the topology; otherwise one each.
    """

    def __init__(
        self,
        spec: TopologySpec,
        dsns: Mapping[str, str],
        folder: Path,
        prepare: Callable[[str, psycopg.Connection], None],
        *,
        is_parallel: bool = False,
    ) -> None:
        self.spec, self._is_parallel = spec, is_parallel
        self.rows_max = ROWS_MAX_DEFAULT  # of a batch
        self.sites = {name: NetworkSite(spec, name, dsn, folder / name, prepare) for name, dsn in dsns.items()}
        self.engines = {apply.name: self._engine(number, apply) for number, apply in enumerate(spec.applies)}
        # For each capture process, the apply processes behind it with the rules on the way, client by client, after the
        # capture process's own.
        self._ways: dict[str, list[tuple[str, list[RuleEvaluation]]]] = {}
        for apply in spec.applies:
            for way in ways_to(spec, apply):
                rules = [
                    RuleEvaluation(client.rules, types=value_types(), clock=SystemClock()) for client in way.clients[1:]
                ]
                self._ways.setdefault(way.capture.name, []).append((apply.name, rules))

    def _engine(self, number: int, apply: ApplySpec) -> Engine:
        returned_from = [
            each.name for each in self.spec.applies if (each.site, each.source) == (apply.source, apply.site)
        ]
        # One to one, so that rows can be counted: a group collapses a row's changes, and a hub would send on only the
        # rest.
        return Engine(
            seed=number,
            batches=[],
            destination=self.sites[apply.site].destination,
            parallelism=apply.parallelism if self._is_parallel else 1,
            group_transactions=1,
            topology=self.spec.name,
            apply=apply.name,
            source=apply.source,
            tag=apply.tag or b"",
            returned_from=returned_from,
            conflicts=apply.conflicts,
            site=apply.site,
            handlers=apply.handlers,
            tables=apply.tables,
            commits_in_order=apply.commits_in_order,
            dependencies=apply.dependencies,
            commits_lazily=apply.commits_lazily,
        )

    def settle(self, *, held: Sequence[str] = ()) -> None:
        """Run until nothing moves any more.

        Args:
            held: apply processes that stand still; their batches wait.
        """
        for _ in range(PASSES_MAX):
            rows = sum(
                self._capture(site, capture) for site in self.sites.values() for capture in self._caught_up(site)
            )
            for name, engine in self.engines.items():
                if name not in held:
                    engine.run()
            if not rows:
                return
        raise AssertionError("changes go in circles")

    def kill_captures(self, site: str) -> None:
        """Kill the capture processes of a site: everything is mined again, and sent from each apply process's position.

        Args:
            site: the source.
        """
        self.sites[site].kill_captures()
        behind = [apply for capture in self.sites[site].captures for apply, _ in self._ways.get(capture.name, ())]
        for name in behind:
            self.engines[name].batches.clear()
        for capture in self._caught_up(self.sites[site]):
            self._capture(self.sites[site], capture)
        for name in behind:
            self.engines[name].start_driver()

    @staticmethod
    def _caught_up(site: NetworkSite) -> list[CaptureSpec]:
        if site.captures:
            site.catch_up()
        return site.captures

    def _capture(self, site: NetworkSite, capture: CaptureSpec) -> int:
        """Mine what is new and send it on its ways; return the number of rows sent."""
        rows = 0
        for apply, batch in self.mined(site, capture):
            self.engines[apply].batches.append(batch)
            rows += batch.row_count
        return rows

    def mined(self, site: NetworkSite, capture: CaptureSpec) -> Iterator[tuple[str, LcrBatch]]:
        """Yield what is new in the redo for each apply process behind a capture process, after the rules on its way.

        Args:
            site: whose redo has caught up.
            capture: one of its capture processes.
        """
        while (batch := site.miners[capture.name].next_batch(site.writer.position, rows_max=self.rows_max)) is not None:
            for apply, clients in self._ways.get(capture.name, ()):
                arriving = batch
                for rules in clients:
                    arriving = rules.filter(arriving)
                yield apply, arriving

    def close(self) -> None:
        for engine in self.engines.values():
            for server in engine.servers.values():
                server.close()
        for site in self.sites.values():
            site.close()
