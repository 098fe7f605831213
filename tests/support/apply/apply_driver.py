"""An apply process under test: its driver in its own process, and a real Spark application.

A real queue feeds it with batches mined from a real stream. Everything else runs in the test's process, without actors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from psycopg import conninfo

from actors.cluster.local import LocalCluster
from actors.hosting.child_process import ChildProcess
from actors.staging.queue import QueueCore
from headrace.base.errors import HeadraceError, PropagationError, WouldBlock
from headrace.databases.connectors import DatabaseAccess, decoder_for
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.links.ports import header_of
from headrace.load.clients import paced
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from protos import apply_pb2 as pb
from protos import codec
from protos.links.queue_link import EnqueueClient, QueueServer
from protos.wire.identity import Peer
from protos.wire.transport import new_incarnation
from spark_apply.application.config import ApplicationConfig, ExecutorResources
from spark_apply.application.task_runs import ApplicationAccess
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.driver.apply_driver import ApplyDriver
from spark_apply.driver.control import outcome_message
from tests.support.clusters.spark_health import fetch_health
from tests.support.databases.statements import execute
from tests.support.session.background import in_background
from tests.support.session.reporting import note_started
from topology.file.reading import read_topology

STARTED_S = 300.0  # Spark on a loaded two-core machine
APPLIED_S = 120.0  # takes a second on a quiet machine; Spark may first have to restart a task
ENDED_S = 120.0  # an ending driver waits for its servers, whose statements may wait for a lock time-out
# Pause between a client's transactions. What clients write while an application starts must not slow it down on a small
# machine, nor take longer to apply.
LOAD_PAUSE_S = 0.02
STREAM_UNREAD_S = 1.0  # the log waits this long while redo is mined

_TOPOLOGY = """
topology: {name}
state_dir: state
combined: never  # the destination's queue is what these tests look at
sites:
  dbs1: {{database: {{kind: postgres, dsn: "${{SOURCE}}"}}}}
  dbs2: {{database: {{kind: postgres, dsn: "${{DESTINATION}}"}}}}
replicate:
  - {{schemas: [public], from: dbs1, to: [dbs2]}}
"""


def wait_for(what: str, holds: Callable[..., Any], timeout_s: float) -> Any:
    """Wait until `holds` returns a true value; errors of the system count as false.

    It is called without arguments: those that it has are defaults, which keep the variables of a loop.
    """
    deadline, last = time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        try:
            if answer := holds():
                return answer
        except HeadraceError as error:
            last = f"{type(error).__name__}: {error.message}"
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s:g} s for {what}; {last}")


def answer_no_more(dsn: str) -> None:
    """Turn off the server's time-out for unanswered log streams.

    Here one thread reads the log among other tasks, and on a busy machine the server would give up on it.
    """
    name = str(conninfo.conninfo_to_dict(dsn)["dbname"])
    execute(dsn, f'ALTER DATABASE "{name}" SET wal_sender_timeout = 0')


class MinedQueue:
    """The destination's queue, fed from the source's stream: log writer, capture and queue on threads of the test.

    Args:
        folder: for redo and the queue; redo is in its folder `redo`.
        source, destination: DSNs.
        topology: its name.
        mined: the rules of the capture process, if they differ from the topology's.
        miner_for: makes the miner that begins at an SCN, in place of the default one.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        destination: str,
        *,
        topology: str = "apply_test",
        mined: RuleSet | None = None,
        miner_for: Callable[[Scn], Miner] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "topology.yaml"
        file.write_text(textwrap.dedent(_TOPOLOGY.format(name=topology)))
        self.spec = read_topology(file, {"SOURCE": source, "DESTINATION": destination})
        self.apply = self.spec.applies[0]
        self.source_dsn, self.destination_dsn = source, destination
        rules = self.spec.capture_rules("dbs1")
        answer_no_more(source)
        self.source = PostgresSource(source, site="dbs1")
        self.source.prepare(topology, rules)
        self._writer = LogWriter(
            folder / "redo",
            "dbs1",
            decoder_factory=decoder_for,
            dictionary_build=partial(self.source.dictionary_build, topology),
            segment_bytes=8 << 20,
            redo_bytes_max=1 << 30,
        )
        self._writer.attach(self.source.open_stream(topology, self._writer.start_scn))
        self.core = QueueCore(self.spec, self.apply.queue, folder / "queue")
        self.server = QueueServer(self.core)
        self._miner_for = miner_for or (lambda scn: Miner(folder / "redo", "dbs1", scn, mined or rules[0], decoder_for))
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self.breaks: list[str] = []
        self._thread = threading.Thread(target=self._run, name="mined-queue", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ its apply process

    def tables(self, names: Collection[str], *, keep_existing: Collection[str] = ()) -> tuple[TableToInstantiate, ...]:
        """Return the source's present tables of schema public, in the order of their names.

        Args:
            names: of the tables.
            keep_existing: tables whose rows at the destination stay.
        """
        with contextlib.closing(PostgresSource(self.source_dsn, site="dbs1")) as source:
            source.prepare(self.spec.name, self.spec.capture_rules("dbs1"))
            captured = source.captured(self.spec.name)
        return tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                keep_existing=table.name in keep_existing,
                may_empty=True,
                object_numbers=tuple(int(number) for number in table.object_numbers),
            )
            for table in captured
            if table.owner == "public" and table.name in names
        )

    def config(
        self,
        tables: Iterable[TableToInstantiate],
        *,
        settings: TableSettings = NO_TABLE_SETTINGS,
        rules: tuple[RuleSet, ...] = (),
    ) -> ApplyConfig:
        """Return the configuration of the apply process.

        Args:
            tables: tables to copy.
            settings: table settings.
            rules: rules that its changes pass.
        """
        return ApplyConfig(
            topology=self.spec.name,
            apply=self.apply.name,
            source=DatabaseAccess(site="dbs1", kind="postgres", dsn=self.source_dsn),
            destination=DatabaseAccess(site="dbs2", kind="postgres", dsn=self.destination_dsn, tables=settings),
            queue=self.apply.queue,
            parallelism=2,
            tables=tuple(tables),
            rules=rules,
        )

    def start_driver(self, config: ApplyConfig) -> ApplyDriver:
        """Start a driver in the test's process, without an application; `Runner` runs its tasks."""
        driver = ApplyDriver(config, queue=lambda: self.server.endpoint, application=lambda: None)  # type: ignore[return-value]  # there is none
        driver.start()
        return driver

    # ------------------------------------------------------------------ how it is fed

    def close(self) -> None:
        self._stop.set()
        self._thread.join(20.0)
        self.server.stop()
        self._writer.close()
        self.source.remove(self.spec.name)
        self.source.close()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            self._feed()
        except BaseException as error:  # noqa: BLE001 - reported by `close`
            self.error = error

    def _feed(self) -> None:
        client: EnqueueClient | None = None
        miner: Miner | None = None
        batch: LcrBatch | None = None  # the batch to send
        keep_house_at = 0.0
        while not self._stop.is_set():
            self._writer.step(0.01)
            if time.monotonic() >= keep_house_at:
                keep_house_at = time.monotonic() + self.server.service.housekeeping()
            try:
                if client is None or miner is None:
                    client = EnqueueClient(
                        self.server.endpoint,
                        topology=self.spec.name,
                        component=self.spec.propagations[0].name,
                        queue=self.apply.queue,
                        incarnation=new_incarnation(),
                        source="dbs1",
                    )
                    miner, batch = self._miner_for(client.connect().needed_scn), None
                rewind = client.poll().rewind_scn
                if rewind is not None:
                    miner, batch = self._miner_for(rewind), None
                until = time.monotonic() + STREAM_UNREAD_S
                while (
                    time.monotonic() < until and (batch := batch or miner.next_batch(self._writer.position)) is not None
                ):
                    client.send(header_of(batch), codec.encode(batch), STREAM_UNREAD_S)
                    batch = None
            except WouldBlock:
                continue
            except HeadraceError as error:
                self.breaks.append(f"{type(error).__name__}: {error.message}")
                if client is not None:
                    client.close()
                client = miner = None
                self._stop.wait(0.1)


class SparkProcess:
    """A site's Spark application, started as its actor starts it.

    Args:
        cluster: a private cluster that runs.
        folder: for its files and its log.
    """

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._environment = cluster.client_environment()
        self.config = ApplicationConfig(
            topology="apply_test",
            site="dbs2",
            ray_address=str(cluster.address()),
            state_dir=str(folder),
            resources=ExecutorResources(executors=2),
        )
        self.log = folder / "application.log"
        self.child = ChildProcess(
            "spark:dbs2",
            "the Spark application",
            module="spark_apply.application.process",
            file=folder / "application.json",
            log=self.log,
        )
        self.access: ApplicationAccess

    def start(self) -> None:
        """Start it and return when it serves; ends the previous one first."""
        note_started("Spark application")
        with mock.patch.dict(os.environ, self._environment):  # an actor's process gets it from its raylet
            self.child.start(self.config.to_json())
        answer = self.child.first_answer(STARTED_S, lambda: True)
        self.access = ApplicationAccess(endpoint=answer["endpoint"], token=answer["token"])

    def health(self) -> pb.HealthReply:
        return fetch_health(self.access.endpoint, self.access.token)


def serve_driver(
    config: ApplyConfig,
    queue_endpoint: Peer | str,
    application: ApplicationAccess,
    requests: Connection,
    log: Path,
) -> None:
    """Run a driver's process: it answers (method, arguments) of its control until the pipe closes."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    found = [application]
    driver = ApplyDriver(config, queue=lambda: queue_endpoint, application=lambda: found[-1])
    driver.start()
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = requests.recv()
            if method == "moved_to":
                found += arguments
                requests.send(None)
                continue
            try:
                driver.outcome()
                answer = getattr(driver.control, method)(*arguments)
                requests.send(list(answer) if isinstance(answer, Iterator) else answer)
                if method == "stop":
                    os._exit(0 if driver.join(ENDED_S) else 1)
            except HeadraceError as error:
                requests.send(error)
    os._exit(0)


def executed(ask: Callable[..., Any], request: pb.ErrorsRequest) -> list[pb.ErrorOutcome]:
    """Execute error transactions as the command does; return the outcome of each.

    Args:
        ask: calls a method of a driver's control.
        request: which ones, and how.
    """
    name, outcomes = secrets.token_hex(8), list[Any]()
    ask("begin_execution", name, request)
    while True:
        page = ask("execution_outcomes", name, APPLIED_S)
        outcomes += map(outcome_message, page.outcomes)
        if page.is_over:
            return outcomes
        assert page.outcomes, "an error transaction was not executed in time"


class DriverClient:
    """A client of a driver's control, in whatever process the driver runs."""

    def __init__(self, requests: Connection) -> None:
        self._requests = requests
        self._lock = threading.Lock()

    def ask(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            try:
                self._requests.send((method, arguments))
                answer = self._requests.recv()
            except (EOFError, OSError) as error:
                raise PropagationError("the driver's process is gone") from error
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    def compare(self, request: pb.CompareRequest) -> list[pb.TableComparison]:
        return list(self.ask("compare", request))

    def execute_errors(self, request: pb.ErrorsRequest) -> list[pb.ErrorOutcome]:
        return executed(self.ask, request)

    def delete_errors(self, request: pb.ErrorsRequest) -> list[pb.ErrorOutcome]:
        return list(self.ask("delete_errors", request))


@dataclass
class Driver:
    """One running driver, in its own process."""

    process: Any
    log: Path
    client: DriverClient
    requests: Connection

    @property
    def is_alive(self) -> bool:
        return bool(self.process.is_alive())

    def status(self) -> pb.ApplyStatus:
        status: pb.ApplyStatus = self.client.ask("status")
        return status

    def wait_ready(self) -> pb.ApplyStatus:
        ready: pb.ApplyStatus = wait_for(
            "every server to have its session", lambda: (s := self.status()).ready and s, STARTED_S
        )
        return ready

    def wait_state(self, *states: str) -> pb.ApplyStatus:
        seen: pb.ApplyStatus = wait_for(
            f"state {states}", lambda: (s := self.status()).state in states and s, STARTED_S
        )
        return seen

    def wait_applied(self, scn: int) -> None:
        wait_for(f"low watermark {scn}", lambda: self.status().low_watermark_scn >= scn, APPLIED_S)

    def wait_failure(self) -> HeadraceError:
        """Return the error that ended the driver."""

        def failure() -> HeadraceError | None:
            try:
                self.status()
            except PropagationError:
                raise
            except HeadraceError as error:
                return error
            return None

        error: HeadraceError = wait_for("the driver to end", failure, ENDED_S)
        return error

    def server_pids(self) -> list[int]:
        return [server.pid for server in self.status().servers if server.pid]

    def stop(self) -> int:
        """End it orderly; return its process's exit code."""
        self.client.ask("stop", 10.0)
        self.process.join(ENDED_S)
        return int(self.process.exitcode)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(ENDED_S)

    def end(self) -> None:
        self.requests.close()
        self.kill()


class ApplyDrivers:
    """Starts drivers of one apply process, and ends all of them.

    Args:
        spark: runs their tasks.
        queue: the queue they dequeue from.
        folder: for logs.
        tables: tables of schema public that they replicate.
    """

    def __init__(self, spark: SparkProcess, queue: MinedQueue, folder: Path, tables: Sequence[str]) -> None:
        self._folder, self.queue, self.spark = folder, queue, spark
        self.started: list[Driver] = []
        self.config = queue.config(queue.tables(tables))

    def start(self, *, queue_endpoint: str = "", **changes: Any) -> Driver:
        """Start a driver."""
        log = self._folder / f"driver_{len(self.started)}.log"
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        config = replace(self.config, **changes)
        process = spawn.Process(
            target=serve_driver,
            daemon=True,
            args=(config, queue_endpoint or self.queue.server.endpoint, self.spark.access, theirs, log),
        )
        process.start()
        theirs.close()
        driver = Driver(process, log, DriverClient(ours), ours)
        self.started.append(driver)
        return driver

    def end(self) -> None:
        for driver in self.started:
            driver.end()


def end_of_log(dsn: str) -> int:
    """Return an SCN that is not below the commit SCN of anything committed before the call."""
    source = PostgresSource(dsn, site="dbs1")
    try:
        return int(source.write_marker(b"test"))
    finally:
        source.close()


@contextlib.contextmanager
def load(dsn: str, clients: int, duration_s: float) -> Iterator[dict[str, int]]:
    """Run pgbench-like transactions during the block: each adds one history row and moves three balances."""
    counts = {"transactions": 0}
    lock = threading.Lock()

    def write(client: int, stop: threading.Event) -> None:
        with psycopg.connect(dsn) as connection:
            number = client
            deadline = time.monotonic() + duration_s
            for _ in paced(stop, LOAD_PAUSE_S):
                if time.monotonic() >= deadline:
                    return
                number += clients
                delta = number % 19 - 9
                connection.execute(
                    "UPDATE accounts SET balance = balance + %s WHERE id = %s", (delta, number % 500 + 1)
                )
                connection.execute("UPDATE branches SET balance = balance + %s WHERE id = %s", (delta, number % 3 + 1))
                connection.execute(
                    "INSERT INTO history (client, number, delta) VALUES (%s, %s, %s)", (client, number, delta)
                )
                connection.commit()
                with lock:
                    counts["transactions"] += 1

    with in_background(*(partial(write, client) for client in range(clients))):
        yield counts


__all__ = [
    "ApplyDrivers",
    "Driver",
    "MinedQueue",
    "answer_no_more",
    "end_of_log",
    "load",
    "wait_for",
]
