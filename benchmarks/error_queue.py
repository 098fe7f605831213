"""Execution rate of an error queue: inserts into a table without a key, all behind one failed transaction.

    python -m benchmarks.error_queue [--errors 10000] [--ways memory server product] [--load 40] [--profile]

    memory   coordinator and one apply server in this process, on the memory database: the cost of the product's code
    server   the same on a private PostgreSQL: adds the cost of the destination
    product  a topology of two sites with Ray and Spark: a failing transaction and those behind it fill the queue, the
             cause is removed, and `headrace errors execute FILE --all` is timed, from its start to its end (two to
             three seconds of it are the start of Python and Ray). With `--load`, this many transactions a second are
             written meanwhile. Each depends on the queue, and the queue must be empty at the end

Each error transaction has one row. The rows are counted at the end.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg

from benchmarks.apply_server import running_server
from benchmarks.product import HeadracePeer
from benchmarks.servers import bench_servers, wait_true
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ErrorTransaction
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, Transactions
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.values import ColumnValues
from protos import codec
from spark_apply.dependencies.hashes import hash_batch
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.server.apply_server import ApplyServer
from spark_apply.tables.fits import TableFits

TOPOLOGY, APPLY, SOURCE = "bench", "apply", "a"
FILLED_TIMEOUT_S = 900.0  # until the queue has everything
SHOWN = 30  # lines of a profile
EACH = 100  # error transactions per destination transaction when the queue is filled
_COLUMNS = (("at", "int8", 20), ("what", "text", 25))


def insert_of(number: int) -> LcrBatch:
    """Make a transaction that inserts one row into table log."""
    scn = number * 10
    table = TableVersion(
        object_number=ObjectNumber(16384),
        version=1,
        owner="public",
        name="log",
        old_image=OldImage.FULL,
        columns=tuple(
            Column(name=n, type_name=f"pg_catalog.{t}", type_number=o, is_binary=True) for n, t, o in _COLUMNS
        ),
    )
    cells = [
        np.array([number], ">i8").view(np.uint8),
        np.frombuffer(f"what happened in transaction {number}".encode(), np.uint8),
    ]
    values = ColumnValues(
        lengths=np.array([[cell.shape[0]] for cell in cells], np.int32),
        data=np.concatenate(cells),
        starts=np.cumsum([0, *[cell.shape[0] for cell in cells]]).astype(np.int64),
    )
    group = RowGroup(table=0, command=Command.INSERT, row_numbers=np.zeros(1, np.int32), old=None, new=values)
    return LcrBatch(
        source=SOURCE,
        previous_scn=Scn(scn - 10),
        through_scn=Scn(scn),
        tables=(table,),
        groups=(group,),
        transactions=Transactions(
            transaction_id=np.array([number], np.int64),
            order_scn=np.array([scn - 5], np.int64),
            commit_scn=np.array([scn], np.int64),
            commit_time_us=np.array([time.time_ns() // 1000], np.int64),
            tag=np.full(1, -1, np.int16),
            first_row=np.array([0, 1], np.int32),
        ),
    )


@contextmanager
def in_memory() -> Iterator[tuple[Any, Callable[[], int]]]:
    """Yield a destination in memory, and a function that counts its table's rows."""
    store = MemoryStore()
    store.create_table("public", "log", [destination_column(name, f"pg_catalog.{kind}") for name, kind, _ in _COLUMNS])
    yield MemoryDestination(store=store), lambda: len(store.rows("public", "log"))


@contextmanager
def at_server() -> Iterator[tuple[Any, Callable[[], int]]]:
    """Yield a destination on a private PostgreSQL, and a function that counts its table's rows."""
    with running_server() as server, psycopg.connect(server.dsn(), autocommit=True) as user:
        user.execute("CREATE TABLE log (at bigint, what text)")
        destination = PostgresDestination(server.dsn())
        destination.prepare(TOPOLOGY)
        yield destination, lambda: _count(user)
        destination.close()


def _count(user: psycopg.Connection[Any]) -> int:
    row = user.execute("SELECT count(*) FROM log").fetchone()
    assert row is not None
    return int(row[0])


def execute_here(destination: Any, count: int) -> float:
    """Fill the queue and execute all of it in this process; return the seconds of the execution."""
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    server = ApplyServer(
        apply=APPLY,
        source=SOURCE,
        decode=codec.decode,
        encode=codec.encode,
        error_batches=destination.error_batches,
        open_session=lambda: destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=b"\0"),
    )
    _fill(destination, epoch, count)
    progress = destination.progress(TOPOLOGY, APPLY)
    assert progress is not None
    coordinator = ApplyCoordinator(
        progress=progress,
        errors=destination.error_key_hashes(TOPOLOGY, APPLY),
        encode=codec.encode,
        group_transactions=2000,
        group_rows=10_000,
    )
    server.connect()
    coordinator.server_joined(0, progress)
    numbers = [number for number, _ in destination.error_key_hashes(TOPOLOGY, APPLY)]
    assert len(numbers) == count
    begun, done = time.monotonic(), 0
    coordinator.errors.executions.add(numbers)
    while done < count:
        for _, message in coordinator.messages():
            server.receive(message)
        for report in server.step(time.monotonic()).reports:
            coordinator.report(0, report)
        outcomes = coordinator.errors.executions.take_outcomes()
        assert not any(outcome.failure for outcome in outcomes), outcomes
        done += len(outcomes)
    took = time.monotonic() - begun
    server.close()
    return took


def _fill(destination: Any, epoch: int, count: int) -> None:
    """Put transactions with their dependencies into the error queue, as apply servers do."""
    session = destination.open_session(TOPOLOGY, APPLY, server=1, epoch=epoch, tag=b"\0")
    fits = TableFits(destination.describe, lambda _: "")
    for number in range(1, count + 1):
        batch = insert_of(number)
        if number % EACH == 1:
            session.begin()
        session.put_error(
            ErrorTransaction(
                number=0,
                apply=APPLY,
                source=SOURCE,
                transaction_id=number,
                commit_scn=Scn(number * 10),
                commit_time_us=0,
                row_count=1,
                failed_position=-1,
                depends_on=0,
                conflict_type="",
                sqlstate="",
                message="made by the benchmark",
                created_us=0,
            ),
            codec.encode(batch),
            hash_batch(batch, fits.fit).part(0, 1).stored(),
            part=0,
        )
        if number % EACH == 0 or number == count:
            session.commit([], Scn(0))
    session.close()


def execute_by_command(count: int, load: float) -> float:
    """Fill the queue of a topology and execute all of it by the command, under a load in transactions per second.

    Returns:
        The seconds that the command took.
    """
    with bench_servers() as servers:
        pair = servers.make_pair("errors")
        for dsn in (pair.source, pair.destination):
            with psycopg.connect(dsn, autocommit=True) as user:
                user.execute("CREATE TABLE log (at bigint, what text)")
                user.execute("ALTER TABLE log REPLICA IDENTITY FULL")
        peer = HeadracePeer(pair, servers.folder / "errors")
        try:
            peer.set_up(("log",))
            with (
                psycopg.connect(pair.source, autocommit=True) as source,
                psycopg.connect(pair.destination, autocommit=True) as destination,
            ):
                return _fill_and_execute(peer, source, destination, count, load)
        finally:
            peer.tear_down()


def _fill_and_execute(
    peer: HeadracePeer, source: psycopg.Connection[Any], destination: psycopg.Connection[Any], count: int, load: float
) -> float:
    source.execute("INSERT INTO log VALUES (0, 'of before')")
    wait_true(destination, "SELECT count(*) = 1 FROM log")
    destination.execute("DELETE FROM log")
    # It fails and holds everything behind it: an UPDATE may find any row of a table without a key.
    source.execute("UPDATE log SET what = 'of before, changed'")
    for number in range(1, count):
        source.execute("INSERT INTO log VALUES (%s, %s)", (number, f"what happened in transaction {number}"))
    wait_true(destination, f"SELECT count(*) = {count} FROM headrace.apply_error", FILLED_TIMEOUT_S)
    destination.execute("INSERT INTO log VALUES (0, 'of before')")
    with _written(source, count, load) as written:
        begun = time.monotonic()
        peer.command("errors", "execute", str(peer.file), "--all")
        took = time.monotonic() - begun
    peer.wait_caught_up()
    row = destination.execute("SELECT count(*) FROM headrace.apply_error").fetchone()
    assert (row, _count(destination)) == ((0,), count + len(written)), (row, _count(destination), count, len(written))
    print(f"         {len(written):,} transactions were written meanwhile")
    return took


@contextmanager
def _written(source: psycopg.Connection[Any], first: int, load: float) -> Iterator[list[int]]:
    """Write transactions in the background; the list gets a number for each."""
    written: list[int] = []
    is_over = threading.Event()

    def write() -> None:
        while load and not is_over.wait(1 / load):
            number = first + len(written)
            source.execute("INSERT INTO log VALUES (%s, %s)", (number, f"what happened in transaction {number}"))
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--errors", type=int, default=10_000)
    parser.add_argument(
        "--ways", nargs="+", choices=("memory", "server", "product"), default=("memory", "server", "product")
    )
    parser.add_argument("--load", type=float, default=0.0, help="transactions a second beside the command")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, of the first two ways")
    given = parser.parse_args()
    for way in given.ways:
        if way == "product":
            took = execute_by_command(given.errors, given.load)
        else:
            with (in_memory if way == "memory" else at_server)() as (destination, rows):
                profile = cProfile.Profile()
                took = (
                    profile.runcall(execute_here, destination, given.errors)
                    if given.profile
                    else execute_here(destination, given.errors)
                )
                assert rows() == given.errors, rows()
            if given.profile:
                pstats.Stats(profile).sort_stats("cumulative").print_stats(SHOWN)
        print(
            f"{way:8} {given.errors:7,} error transactions in {took:7.1f} s: {1000 * took / given.errors:6.2f} ms each,"
            f" {given.errors / took:,.0f} a second",
            flush=True,
        )


if __name__ == "__main__":
    main()
