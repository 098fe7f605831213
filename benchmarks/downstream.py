"""What capture costs the source's site: local against downstream, in seconds of processor time, without Ray and Spark.

    python -m benchmarks.downstream

One load of small transactions and one of bulk is written at an embedded server of its own, once with a local capture process and once with a redo
receiver and a capture process at another site. Every component has a process of its own, hosted as in a running topology; a capture process mines, applies
its rules and encodes its batches, and throws them away. The source's server is not counted: it does the same both times. Runs alternate; the
median of each figure counts.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

from actors import runtime
from actors.downstream_database import RedoReceiver
from actors.site.connection import redo_folder
from actors.source_database import DatabaseSite
from databases.connectors import decoder_for
from databases.embedded import EmbeddedServer
from databases.postgres.source.database import PostgresSource
from protos.codec import encode
from protos.redo_link import RedoWatchClient
from protos.transport import new_incarnation
from redo.mining import Miner
from redo.records import RedoPosition
from rules.rule import Rule, RuleSet
from streams.scn import FIRST_SCN
from topology.spec import CaptureSpec, DatabaseSpec, QueueSpec, SiteSpec, TopologySpec

RUNS = 3
SMALL_TRANSACTIONS = 4000  # of 4 rows, from two sessions
BULK_ROWS = 300_000  # in transactions of 1,000
RULES = RuleSet(include=(Rule(owner="public"),))
POLL_S = 0.05


def topology(folder: Path, dsn: str, capture_site: str) -> TopologySpec:
    return TopologySpec(
        name="bench", file=folder / "bench.yaml", state_dir=folder,
        sites=(
            SiteSpec(name="dbs1", database=DatabaseSpec(kind="postgres", dsn=dsn)),
            SiteSpec(name="dbs3", database=DatabaseSpec(kind="none")),
        ),
        queues=(QueueSpec(name="q", site=capture_site),),
        captures=(CaptureSpec(name="c", site=capture_site, source="dbs1", queue="q", rules=RULES),), propagations=(), applies=(),
    )


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Process:
    """One component in a process of its own, which answers what it has used."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=work, args=(there, *arguments), daemon=True)
        self._process.start()

    def ask(self, what: str) -> Any:
        self._here.send(what)
        return self._here.recv()

    def end(self) -> None:
        self._here.send("end")
        self._process.join(60.0)


def _serve(pipe: Connection, answers: dict[str, Callable[[], Any]]) -> None:
    while (asked := pipe.recv()) != "end":
        pipe.send(cpu_s() if asked == "cpu" else answers[asked]())


def site(pipe: Connection, spec: TopologySpec) -> None:
    runtime.own_host = lambda: "127.0.0.1"
    host = DatabaseSite(spec, "dbs1", "")
    host.start()
    while not host.status()["ready"]:
        time.sleep(POLL_S)
    host.prepare(spec)
    while host.status()["state"] not in {"IDLE", "WRITING"}:
        time.sleep(POLL_S)
    _serve(pipe, {"endpoint": host.endpoint, "scn": lambda: host.details()["redo_scn"]})
    host.end()


def receiver(pipe: Connection, spec: TopologySpec, source: str) -> None:
    runtime.own_host = lambda: "127.0.0.1"
    runtime.resolver = lambda _topology: lambda _name: source
    host = RedoReceiver(spec, "dbs1@dbs3", "")
    host.start()
    while "redo_scn" not in host.details():
        time.sleep(POLL_S)
    _serve(pipe, {"endpoint": host.endpoint, "scn": lambda: host.details()["redo_scn"]})
    host.end()


def capture(pipe: Connection, spec: TopologySpec, address: str) -> None:
    (wanted,) = spec.captures
    watch = RedoWatchClient(address, topology=spec.name, capture="c", source="dbs1", incarnation=new_incarnation())
    watch.connect()
    miner = Miner(redo_folder(spec, source="dbs1", site=wanted.site), "dbs1", FIRST_SCN, RULES, decoder_for)
    while True:
        while (batch := miner.next_batch(_position(watch))) is not None:
            encode(batch)
        if pipe.poll(0.01):
            asked = pipe.recv()
            if asked == "end":
                return
            pipe.send(cpu_s() if asked == "cpu" else miner.captured_scn)


def _position(watch: RedoWatchClient) -> RedoPosition:
    found = watch.poll()
    return RedoPosition(found.segment, found.offset, found.scn)


def write(dsn: str, load: str) -> int:
    """Write the load; the SCN behind it."""
    with psycopg.connect(dsn, autocommit=True) as first, psycopg.connect(dsn, autocommit=True) as second:
        if load == "bulk":
            for start in range(0, BULK_ROWS, 1000):
                first.execute(
                    "INSERT INTO t SELECT n, n, repeat('x', 60), now() FROM generate_series(%s::int, %s::int) n", (start, start + 999)
                )
        for number in range(SMALL_TRANSACTIONS if load == "small" else 0):
            session = (first, second)[number % 2]
            with session.transaction():
                for row in range(4):
                    session.execute("INSERT INTO t VALUES (%s, 1, 'a few bytes', now())", (10_000_000 + 4 * number + row,))
        row = first.execute("SELECT pg_logical_emit_message(true, 'bench', '') - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])


def measure(server: EmbeddedServer, folder: Path, load: str, capture_site: str) -> dict[str, float]:
    dsn = server.dsn()
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute("DROP TABLE IF EXISTS t")
        user.execute("CREATE TABLE t (id int PRIMARY KEY, n int, body text, at timestamptz)")
    spec = topology(folder, dsn, capture_site)
    processes = {"site": Process(site, spec)}
    endpoint = processes["site"].ask("endpoint")
    if capture_site == "dbs3":
        processes["receiver"] = Process(receiver, spec, endpoint)
        endpoint = processes["receiver"].ask("endpoint")
    processes["capture"] = Process(capture, spec, endpoint)
    before = {name: process.ask("cpu") for name, process in processes.items()}
    target, began = write(dsn, load), time.monotonic()
    while processes["capture"].ask("scn") < target:
        time.sleep(POLL_S)
    waited = time.monotonic() - began
    used = {name: process.ask("cpu") - before[name] for name, process in processes.items()}
    for process in reversed(processes.values()):
        process.end()
    source = PostgresSource(dsn, site="dbs1")
    source.remove("bench")
    source.close()
    return used | {"behind_s": waited}


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-downstream-"))
    folder.chmod(0o711)
    server = EmbeddedServer(folder / "server", version=18, name="downstream")
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    try:
        server.start()
        for run in range(RUNS):
            for load in ("small", "bulk"):
                for place, at in (("local", "dbs1"), ("downstream", "dbs3")):
                    found = measure(server, folder / f"{run}-{load}-{place}", load, at)
                    results.setdefault(load, {}).setdefault(place, []).append(found)
        for load, places in results.items():
            for place, found in places.items():
                medians = {name: round(statistics.median(each[name] for each in found), 2) for name in found[0]}
                at_source = medians["site"] + (medians["capture"] if place == "local" else 0.0)
                sys.stdout.write(f"{load} {place}: {at_source:.2f} s at the source's site; {json.dumps(medians)}\n")
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
