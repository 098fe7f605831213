"""One way from a real server to another in one process: the real hosts and a driver on threads, without Ray and Spark."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from actors.capture import CaptureHost
from actors.downstream_database import RedoReceiver
from actors.hosting.host import Host
from actors.security.upkeep import keep_certificates
from actors.security.wire import admission_of, identity_of, peers_of
from actors.site.connection import redo_folder
from actors.staging.propagation_host import PropagationHost
from actors.staging.queue_host import QueueHost
from headrace.base.errors import HeadraceError, PropagationError, Retry
from headrace.databases.connectors import DatabaseAccess, decoder_for
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.table_settings import NO_TABLE_SETTINGS
from headrace.rules.user_code.last_call import LastCall
from headrace.status.captures import CaptureStatus
from protos.links.redo_link import RedoServer
from protos.wire.identity import Peer
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.driver import apply_driver
from spark_apply.driver.groups import forming
from spark_apply.driver.loop import dequeuing
from tests.support.actors.statuses import status_of
from tests.support.apply.apply_driver import answer_no_more
from tests.support.apply.driver_on_threads import run_on_threads
from tests.support.databases.statements import execute
from tests.support.session.background import in_background
from tests.support.wire.links import loopback
from topology.edits.changes import components_of
from topology.file.reading import read_topology
from topology.routing.combined import capture_of
from topology.routing.downstream import redo_receivers
from topology.routing.ways import ways_to
from topology.spec import CaptureSpec, TopologySpec

__all__ = ["CAPTURE", "DOWNSTREAM", "ONE_WAY", "WAIT_S", "OneWay", "create_tables", "load"]

ONE_WAY = """
topology: combined_test
state_dir: state
sites:
  dbs1: {database: {kind: postgres, dsn: "${SOURCE}"}}
  dbs2: {database: {kind: postgres, dsn: "${DESTINATION}"}}
replicate:
  - {tables: [public.first, public.log], from: dbs1, to: [dbs2]}
"""
DOWNSTREAM = """
topology: combined_test
state_dir: state
sites:
  dbs1: {database: {kind: postgres, dsn: "${SOURCE}"}}
  dbs2: {database: {kind: postgres, dsn: "${DESTINATION}"}}
queues: {q_dbs1: {site: dbs2}}
captures: {capture_dbs1: {site: dbs2, source: dbs1, mode: real_time, queue: q_dbs1, rules: {include: [{table: public.first}, {table: public.log}]}}}
applies: {apply_from_dbs1: {site: dbs2, source: dbs1, queue: q_dbs1}}
"""
CAPTURE = "capture:capture_dbs1"
WAIT_S = 240.0  # generous: machines may run other work as well
HOSTS = {"capture": CaptureHost, "queue": QueueHost, "propagation": PropagationHost, "redo": RedoReceiver}


class OneWay:
    """A topology without its controller and the apply process's actor: `take` adopts an edit, `tend` restarts the
    driver.

    Args:
        folder: for redo, and the files of queues.
        source, destination: DSNs, of databases with `create_tables`.
        monkeypatch: makes credits small, and runs the tasks on threads.
        more: further parts of the topology's file.
        text: the main part of the file: `ONE_WAY` or `DOWNSTREAM`.
    """

    parallelism = 2  # apply servers
    table_settings = NO_TABLE_SETTINGS

    def __init__(
        self,
        folder: Path,
        source: str,
        destination: str,
        monkeypatch: pytest.MonkeyPatch,
        more: str = "",
        text: str = ONE_WAY,
    ) -> None:
        self._text = text
        self._folder, self.source_dsn, self.destination_dsn = folder, source, destination
        self.restarts = 0  # of the driver, by `tend`
        self.spec = self.read(more)
        self.hosts: dict[str, Host] = {}
        run_on_threads(monkeypatch)
        # So that a few megabytes exceed what the apply process takes.
        monkeypatch.setattr(dequeuing, "CREDIT_BYTES", 1 << 20)
        monkeypatch.setattr(forming, "_PENDING_BYTES_MAX", 1 << 20)
        redo = self.spec.state_dir / "sites" / "dbs1" / "redo"
        answer_no_more(source)
        self._source = PostgresSource(source, site="dbs1")
        self._source.prepare(self.spec.name, self.spec.capture_rules("dbs1"))
        redo.mkdir(parents=True)
        self.writer = LogWriter(
            redo,
            "dbs1",
            decoder_factory=decoder_for,
            dictionary_build=partial(self._source.dictionary_build, self.spec.name),
            segment_bytes=1 << 18,
            redo_bytes_max=1 << 30,
        )
        (capture,) = self.spec.captures
        if capture.is_downstream:
            self.writer.shipping.register({each.name: each.is_sync for each in redo_receivers(self.spec)})
        else:
            self.writer.required_checkpoints.register(capture.name)
        self.writer.attach(self._source.open_stream(self.spec.name, self.writer.start_scn))
        self.redo = RedoServer(
            self.spec.name,
            "dbs1",
            self.writer,
            shipper=self.writer.shipping,
            admission=admission_of(self.spec, "site:dbs1"),
        )
        self._stop = threading.Event()
        self._writing = threading.Thread(target=self._write_redo, daemon=True)
        self._writing.start()
        for component in components_of(self.spec):
            self._begin(component.name)
        self.driver = self._driver()
        self.driver.start()

    def read(self, more: str = "") -> TopologySpec:
        file = self._folder / "topology.yaml"
        file.write_text(self._text + more)
        spec = read_topology(file, {"SOURCE": self.source_dsn, "DESTINATION": self.destination_dsn})
        keep_certificates(spec)
        return spec

    def resolve(self, name: str) -> str:
        if name == "site:dbs1":
            return self.redo.endpoint
        host = self.hosts.get(name)  # the components' threads ask this while the test ends and starts others
        if host is None:
            raise PropagationError(f"{name} does not run")
        return host.endpoint()

    def take(self, more: str = "") -> None:
        """Run with another text of the file."""
        before = {component.name for component in components_of(self.spec)}
        spec = self.read(more)
        after = {component.name for component in components_of(spec)}
        for name in before - after:
            self._end(name)
        self.spec = spec
        for name in sorted(after - before, reverse=True):
            kind, _, short = name.partition(":")
            if kind == "queue":
                shutil.rmtree(spec.state_dir / "sites" / spec.queue(short).site / "queues" / short, ignore_errors=True)
            self._begin(name)
        self.hosts[CAPTURE].reconfigure(spec, "")

    def replace_capture(self) -> None:
        self._end(CAPTURE)
        self._begin(CAPTURE)

    def is_combined(self) -> bool:
        return any(each.connected for each in status_of(self.hosts[CAPTURE], CaptureStatus).subscribers)

    @property
    def required_scn(self) -> int:
        """Return the SCN below which redo may be purged for the apply process's capture process."""
        receivers = [host for host in self.hosts.values() if isinstance(host, RedoReceiver)]
        assert len(receivers) <= 1
        kept = receivers[0]._log if receivers else self.writer
        assert kept is not None
        return int(kept.required_checkpoints.lowest or 0)

    def tend(self) -> None:
        """Restart the driver where time heals its failure, such as its destination's crash; raise any other failure."""
        try:
            self.driver.outcome()
        except HeadraceError as error:
            if error.retry is not Retry.TIMED:
                raise
            assert self.driver.join(WAIT_S)
            self.restarts += 1
            self.driver = self._driver()
            self.driver.start()

    def close(self) -> None:
        self.driver.stop(5.0)
        has_ended = self.driver.join(60.0)
        for name in list(self.hosts):
            self._end(name)
        self.redo.stop()
        self._stop.set()
        self._writing.join(20.0)
        self.writer.close()
        self._source.remove(self.spec.name)
        self._source.close()
        assert has_ended
        self.driver.outcome()

    def _driver(self) -> apply_driver.ApplyDriver:
        access = partial(DatabaseAccess, kind="postgres")
        (apply,) = self.spec.applies
        ways = ways_to(self.spec, apply)
        captured = self._source.captured(self.spec.name)
        # Behind the question, as the apply process's actor: what is named is in the log below.
        as_of = self._source.write_marker(b"made") if any(table.is_made for table in captured) else FIRST_SCN
        config = ApplyConfig(
            topology=self.spec.name,
            apply=apply.name,
            source=access(site="dbs1", dsn=self.source_dsn),
            destination=access(site="dbs2", dsn=self.destination_dsn, tables=self.table_settings),
            queue=apply.queue,
            parallelism=self.parallelism,
            identity=identity_of(self.spec, "dbs2"),
            tables=tuple(
                TableToInstantiate(
                    identity=table.identity,
                    source=TableName.of(table),
                    destination=TableName.of(table),
                    may_empty=True,
                    object_numbers=tuple(int(number) for number in table.object_numbers),
                    as_of=as_of if table.is_made else FIRST_SCN,
                    takes_ddl=any(way.carries_ddl(TableName.of(table)) for way in ways),
                )
                for table in captured
            ),
        )
        return apply_driver.ApplyDriver(config, queue=self._dequeues_from, application=lambda: None)  # type: ignore[return-value]  # there is none

    def _dequeues_from(self) -> Peer:
        (apply,) = self.spec.applies
        capture = capture_of(self.spec, apply)
        return peers_of(self.spec, "dbs2", self.resolve)(
            f"queue:{apply.queue}" if capture is None else f"capture:{capture.name}"
        )

    def _begin(self, name: str) -> None:
        kind, _, short = name.partition(":")
        if kind in HOSTS:
            keys = {"make_miner": _miner} if kind == "capture" else {}
            self.hosts[name] = HOSTS[kind](self.spec, short, "", loopback(self.resolve), **keys)
            self.hosts[name].start()

    def _end(self, name: str) -> None:
        assert self.hosts.pop(name).end()

    def _write_redo(self) -> None:
        while not self._stop.is_set():
            self.writer.step(0.01)
            self.redo.announce()


def _miner(spec: TopologySpec, capture: CaptureSpec, start_scn: Scn, last_call: LastCall) -> Miner:
    """Make a miner that does not ask for the names of tables, because nothing here answers."""
    folder = redo_folder(spec, source=capture.source, site=capture.site)
    return Miner(folder, capture.source, start_scn, capture.rules, decoder_for)


@contextmanager
def load(dsn: str) -> Iterator[list[int]]:
    """Write transaction after transaction; the list has the number of the last one."""
    last = [0]

    def write(stop: threading.Event) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(0.005):
                number = last[0] + 1
                with connection.transaction():
                    connection.execute("INSERT INTO first VALUES (%s, 'new')", (10_000 + number,))
                    connection.execute("UPDATE first SET v = v || 'x' WHERE id = %s", (number % 500 + 1,))
                    connection.execute("INSERT INTO log VALUES (%s)", (number,))
                last[0] = number

    with in_background(write):
        yield last


def create_tables(source: str, destination: str) -> None:
    """Create the topology's tables at both ends, with 500 rows before anything is replicated."""
    for dsn in (source, destination):
        execute(dsn, "CREATE TABLE first (id integer PRIMARY KEY, v text)")
        execute(dsn, "CREATE TABLE log (number integer)")  # no key: a duplicate row stays
        execute(dsn, "ALTER TABLE log REPLICA IDENTITY FULL")
    execute(source, "INSERT INTO first SELECT i, 'v' FROM generate_series(1, 500) i")
