"""Combined capture and apply on real PostgreSQL in one process: the real hosts and one whole driver on threads, without Ray and Spark.

Under load, capture and apply are combined, parted and combined again; the capture process is replaced; the apply process falls behind.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from actors import runtime
from actors.capture import CaptureHost
from actors.host import Host
from actors.staging.propagation_host import PropagationHost
from actors.staging.queue_host import QueueHost
from databases.connectors import DatabaseAccess, decoder_for
from databases.postgres.source.database import PostgresSource
from protos.redo_link import RedoServer
from redo.log_writer import LogWriter
from redo.mining import Miner
from spark_apply.driver import apply_driver, feed, forming
from spark_apply.driver.config import ApplyConfig, TableToInstantiate
from streams.errors import PropagationError
from streams.scn import Scn
from streams.table_name import TableName
from tests.support.apply_driver import answer_no_more, digest, end_of_log, execute, wait_for
from tests.support.driver_on_threads import Runner
from topology.combined import capture_of
from topology.edits.changes import components_of
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: combined_test
state_dir: state
sites:
  dbs1: {database: {kind: postgres, dsn: "${SOURCE}"}}
  dbs2: {database: {kind: postgres, dsn: "${DESTINATION}"}}
replicate:
  - {tables: [public.first, public.log], from: dbs1, to: [dbs2]}
"""
CAPTURE = "capture:capture_dbs1"
WAIT_S = 240.0  # far more than it takes: machines that run other things as well
HOSTS = {"capture": CaptureHost, "queue": QueueHost, "propagation": PropagationHost}


class OneWay:
    """Everything of the topology but its controller; `take` is what that would do with an edit."""

    def __init__(self, folder: Path, source: str, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self.source_dsn, self.destination_dsn = folder, source, destination
        self.spec = self.read()
        self.hosts: dict[str, Host] = {}
        monkeypatch.setattr(runtime, "resolver", lambda *_: self.resolve)
        monkeypatch.setattr(runtime, "own_host", lambda: "127.0.0.1")
        monkeypatch.setattr(apply_driver, "TaskRunner", Runner)
        # So that a few megabytes are more than the apply process takes.
        monkeypatch.setattr(feed, "CREDIT_BYTES", 1 << 20)
        monkeypatch.setattr(forming, "_PENDING_BYTES_MAX", 1 << 20)
        redo = self.spec.state_dir / "sites" / "dbs1" / "redo"
        monkeypatch.setattr(
            CaptureHost, "_new_miner",
            lambda host, scn: Miner(redo, "dbs1", scn, host._capture.rules, decoder_for),
        )
        answer_no_more(source)
        self._source = PostgresSource(source, site="dbs1")
        self._source.prepare(self.spec.name, self.spec.capture_rules("dbs1"))
        redo.mkdir(parents=True)
        self.writer = LogWriter(
            redo, "dbs1", decoder_factory=decoder_for, dictionary_build=partial(self._source.dictionary_build, self.spec.name),
            segment_bytes=1 << 18, redo_bytes_max=1 << 30,
        )
        self.writer.required_checkpoints.register("capture_dbs1")
        self.writer.attach(self._source.open_stream(self.spec.name, self.writer.start_scn))
        self.redo = RedoServer(self.spec.name, "dbs1", self.writer)
        self._stop = threading.Event()
        self._writing = threading.Thread(target=self._write_redo, daemon=True)
        self._writing.start()
        for component in components_of(self.spec):
            self._begin(component.name)
        self.driver = self._driver()
        self.driver.start()

    def read(self, more: str = "") -> TopologySpec:
        file = self._folder / "topology.yaml"
        file.write_text(TOPOLOGY + more)
        return read_topology(file, {"SOURCE": self.source_dsn, "DESTINATION": self.destination_dsn})

    def resolve(self, name: str) -> str:
        if name == "site:dbs1":
            return self.redo.endpoint
        host = self.hosts.get(name)  # asked by the components' threads, while the test ends and begins others
        if host is None:
            raise PropagationError(f"{name} does not run")
        return host.endpoint()

    def take(self, more: str = "") -> None:
        """Run by another text of the file."""
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
        return self.hosts[CAPTURE].status().get("subscribers", [{}])[0].get("connected", False)

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
        config = ApplyConfig(
            topology=self.spec.name, apply=apply.name, source=access(site="dbs1", dsn=self.source_dsn),
            destination=access(site="dbs2", dsn=self.destination_dsn), queue=apply.queue, parallelism=2,
            tables=tuple(
                TableToInstantiate(
                    identity=table.identity, source=TableName.of(table), destination=TableName.of(table), may_empty=True,
                    object_numbers=tuple(int(number) for number in table.object_numbers),
                )
                for table in self._source.captured(self.spec.name)
            ),
        )
        return apply_driver.ApplyDriver(config, queue=self._dequeues_from, application=lambda: None)  # type: ignore[arg-type,return-value]

    def _dequeues_from(self) -> str:
        (apply,) = self.spec.applies
        capture = capture_of(self.spec, apply)
        return self.resolve(f"queue:{apply.queue}" if capture is None else f"capture:{capture.name}")

    def _begin(self, name: str) -> None:
        kind, _, short = name.partition(":")
        if kind in HOSTS:
            self.hosts[name] = HOSTS[kind](self.spec, short, "")
            self.hosts[name].start()

    def _end(self, name: str) -> None:
        assert self.hosts.pop(name).end()

    def _write_redo(self) -> None:
        while not self._stop.is_set():
            self.writer.step(0.01)
            self.redo.announce()


@contextmanager
def _load(dsn: str) -> Iterator[list[int]]:
    """Write a transaction after the other; the number of the last one."""
    stop, last = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(0.005):
                number = last[0] + 1
                with connection.transaction():
                    connection.execute("INSERT INTO first VALUES (%s, 'new')", (10_000 + number,))
                    connection.execute("UPDATE first SET v = v || 'x' WHERE id = %s", (number % 500 + 1,))
                    connection.execute("INSERT INTO log VALUES (%s)", (number,))
                last[0] = number

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield last
    finally:
        stop.set()
        writer.join()


@pytest.fixture
def combined(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OneWay]:
    for dsn in (source_database, destination_database):
        execute(dsn, "CREATE TABLE first (id integer PRIMARY KEY, v text)")
        execute(dsn, "CREATE TABLE log (number integer)")  # no key: a row that comes twice stays
        execute(dsn, "ALTER TABLE log REPLICA IDENTITY FULL")
    execute(source_database, "INSERT INTO first SELECT i, 'v' FROM generate_series(1, 500) i")
    made = OneWay(tmp_path, source_database, destination_database, monkeypatch)
    yield made
    made.close()


def test_capture_and_apply_are_combined_and_parted_under_load_and_nothing_is_lost_doubled_or_reordered(combined: OneWay) -> None:
    def wait_arrived(number: int) -> None:
        there = "SELECT 1 FROM log WHERE number = %s"

        def arrived() -> bool:
            combined.driver.outcome()
            return execute(combined.destination_dsn, there, number) != []

        wait_for(f"row {number} to arrive", arrived, WAIT_S)

    with _load(combined.source_dsn) as last:
        wait_for("them to be combined", combined.is_combined, WAIT_S)
        assert set(combined.hosts) == {CAPTURE}
        wait_arrived(last[0] + 1)
        for _ in range(3):
            combined.take("combined: never\n")
            wait_for("them to be parted", lambda: "subscribers" not in combined.hosts[CAPTURE].status(), WAIT_S)
            wait_arrived(last[0] + 50)
            combined.take()
            wait_for("them to be combined", combined.is_combined, WAIT_S)
            wait_arrived(last[0] + 50)
        combined.replace_capture()
        wait_for("them to be combined", combined.is_combined, WAIT_S)
        wait_arrived(last[0] + 50)

        # The destination is held up: nothing piles up anywhere but in redo.
        with psycopg.connect(combined.destination_dsn) as other:
            other.execute("LOCK TABLE first IN ACCESS EXCLUSIVE MODE")
            with psycopg.connect(combined.source_dsn, autocommit=True) as big:
                for number in range(12):
                    rows = f"generate_series({number * 1000}, {number * 1000 + 999}) i"
                    big.execute(f"INSERT INTO first SELECT 1000000 + i, repeat(md5(i::text), 30) FROM {rows}")
            capture = combined.hosts[CAPTURE]
            wait_for("no credit to be left", lambda: capture.status()["state"] == "PAUSED FOR FLOW CONTROL", WAIT_S)
            assert capture.status()["subscribers"][0]["waiting_bytes"] < 4 << 20
        wait_arrived(last[0] + 1)
    end = Scn(end_of_log(combined.source_dsn))
    wait_for("everything", lambda: combined.driver.control.status().low_watermark_scn >= end, WAIT_S)
    for table in ("first", "log"):
        assert digest(combined.source_dsn, table) == digest(combined.destination_dsn, table), table
    assert execute(combined.destination_dsn, "SELECT * FROM headrace.apply_error") == []
    # The site purges behind what is committed, straight from the apply process.
    wait_for("the record", lambda: (combined.writer.required_checkpoints.lowest or 0) >= end, WAIT_S)
