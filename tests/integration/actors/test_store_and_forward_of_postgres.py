"""Store-and-forward between real databases: the destination is reachable in short windows only, while writes continue.

Log writer, redo log, miner, queues and propagation on gRPC, and an apply engine in one process, without Ray and Spark.
`test_store_and_forward.py` covers schedules, compression and several destinations, with databases in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.faults.proxy import Proxy
from tests.support.clusters.system import wait_until
from tests.support.databases.statements import row_of
from tests.support.session.matrices import values
from tests.support.topologies.files import read
from tests.support.ways.queued_network import QueuedNetwork

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: afar
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
queues: {q1: {site: dbs1, memory: 1MB}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: app}]}}}
propagations: {p12: {from: q1, to: q2}}
applies: {a12: {site: dbs2, source: dbs1, queue: q2}}
"""
BURSTS = 3  # of writes before each window in which the destination is reachable
TRANSACTIONS, ROWS = 6, 100  # in a burst; a row has 1 KB
BURST_BYTES = TRANSACTIONS * ROWS * 1000
WAIT_S = 60.0  # a window is open for seconds; the changes that pass it take a second


class Writer:
    """The source's application: bursts on request, and an occasional transaction on its own thread."""

    def __init__(self, dsn: str) -> None:
        self.burst_session, self._other = (psycopg.connect(dsn, autocommit=True) for _ in range(2))
        self.ids, self.turns = 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def burst(self) -> None:
        for _ in range(TRANSACTIONS):
            with self.burst_session.transaction():
                self.burst_session.execute(
                    "INSERT INTO app.news SELECT n, 0, string_agg(md5(n::text || k::text || random()::text), '') FROM"
                    " generate_series(%s::int, %s) n, generate_series(1, 31) k GROUP BY n",
                    (self.ids, self.ids + ROWS - 1),
                )
                self.burst_session.execute(
                    "UPDATE app.news SET version = version + 1 WHERE id %% 7 = 0 AND id > %s", (self.ids - ROWS,)
                )
                self.burst_session.execute("DELETE FROM app.news WHERE id %% 5 = 0 AND id < %s", (self.ids,))
            self.ids += ROWS

    def _go_on(self) -> None:
        while not self._ended.wait(0.1):
            self._other.execute("INSERT INTO app.turns VALUES (%s, now())", (self.turns,))
            self.turns += 1

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)

    def close(self) -> None:
        self.end()
        self.burst_session.close()
        self._other.close()


class Line(Proxy):
    """The line to the destination's site. It exists before the site does."""

    def __init__(self) -> None:
        self.end = "127.0.0.1:1"
        super().__init__(lambda: self.end)


@pytest.fixture
def line() -> Iterator[Line]:
    with Line() as line:
        yield line


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    line: Line,
) -> Iterator[QueuedNetwork]:
    def tables(_: str, connection: psycopg.Connection) -> None:
        connection.execute("""
            CREATE SCHEMA app; CREATE TABLE app.news (id int PRIMARY KEY, version int NOT NULL, line text NOT NULL);
            CREATE TABLE app.turns (id int PRIMARY KEY, at timestamptz); CREATE TABLE app.windows (id int PRIMARY KEY)
        """)

    spec = read(tmp_path, TOPOLOGY)
    spec = replace(spec, applies=tuple(replace(each, combined=False) for each in spec.applies))
    dsns = {"dbs1": prepared_database(pg_source), "dbs2": prepared_database(pg_destination)}
    network = QueuedNetwork(spec, dsns, tmp_path, tables, detours={"q2": line.endpoint})
    line.end = network.queues["q2"].endpoint()
    yield network
    network.close()


@pytest.fixture
def writer(network: QueuedNetwork) -> Iterator[Writer]:
    writer = Writer(network.sites["dbs1"].dsn)
    yield writer
    writer.close()


class Slot:
    """Observes how much log the source server keeps for its slot, and how far it has written."""

    def __init__(self, user: psycopg.Connection) -> None:
        self._user = user

    def _number(self, what: str) -> int:
        found = self._user.execute(
            f"SELECT ({what} - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE database ="
            " current_database()".encode()
        ).fetchone()
        assert found is not None
        return int(found[0])

    @property
    def written(self) -> int:
        return self._number("pg_current_wal_lsn()")

    @property
    def confirmed(self) -> int:
        return self._number("confirmed_flush_lsn")

    @property
    def restart(self) -> int:
        return self._number("restart_lsn")


@pytest.mark.parametrize("windows", values([2, 4], 2))
def test_destination_reachable_in_windows_catches_up_and_retains_no_wal(
    network: QueuedNetwork, line: Line, writer: Writer, windows: int
) -> None:
    source, destination = (network.sites[name].user for name in ("dbs1", "dbs2"))
    slot = Slot(source)

    def keeps_less(bound: int) -> bool:
        # The server moves restart_lsn where it logs its running transactions, by itself every fifteen seconds. It keeps
        # what autovacuum or a checkpoint writes until the next time.
        source.execute("SELECT pg_log_standby_snapshot()")
        network.capture()
        return slot.written - slot.restart < bound

    for window in range(windows):
        line.cut()
        sent, began = network.sent("dbs1"), slot.written  # changes in flight may have arrived
        for _ in range(BURSTS):
            burst_began = slot.written
            writer.burst()
            burst_ended = slot.written
            network.capture()
            wait_until(
                "the source is told that the burst is durable", lambda end=burst_ended: slot.confirmed >= end, WAIT_S
            )
        assert slot.written - began > BURSTS * BURST_BYTES, "too little was written"
        wait_until(
            "the source keeps no WAL for a destination that is away",
            lambda most=2 * (burst_ended - burst_began): keeps_less(most),
            WAIT_S,
        )
        wait_until("the queue spills", lambda: network.status("q1").spill_bytes > 0, WAIT_S)
        assert network.status("q1").state == "ENABLED"
        wait_until("the propagation tries", lambda: line.refused > 0, WAIT_S)
        assert network.status("q2").sources["dbs1"].position_scn <= sent, "a line that was cut carried changes"
        source.execute("INSERT INTO app.windows VALUES (%s)", (window,))
        network.capture()

        line.heal()
        network.apply("a12")
        assert destination.execute("SELECT max(id) FROM app.windows").fetchone() == (window,), "it did not catch up"
        turns = writer.turns
        wait_until("writes go on", lambda turns=turns: writer.turns > turns, WAIT_S)
        network.capture()
        network.apply("a12")
        network.wait_acknowledged("a12")
        # A progress mark or an occasional transaction may have arrived meanwhile, but nothing from before the window.
        wait_until(
            "the queue has forgotten it",
            lambda: network.status("q1").spill_bytes == 0 and network.status("q1").rows < ROWS,
            WAIT_S,
        )

    writer.end()
    network.settle()
    for table in ("news", "turns", "windows"):
        query = f"SELECT * FROM app.{table} ORDER BY id".encode()
        assert destination.execute(query).fetchall() == source.execute(query).fetchall()
    assert destination.execute("SELECT count(*), count(*) FILTER (WHERE version > 0) > 0 FROM app.news").fetchone() == (
        row_of(source.execute("SELECT count(*) FROM app.news"))[0],
        True,
    )
    assert network.sites["dbs2"].destination.errors(network.spec.name, "a12") == ()
    assert line.accepted >= windows
