"""What DDL costs with `ddl: true`: a load of statements beside rows, and single statements at a source with many tables.

    python -m benchmarks.ddl load [--rate 1000] [--duration-s 120] [--workload-rate 100] [--output FILE]
    python -m benchmarks.ddl tables [--tables 100 --tables 10000] [--statements 200] [--output FILE]

`load` brings Headrace up between two servers. One session runs DDL at a steady rate, in rounds of six statements: CREATE
TABLE, ADD COLUMN, CREATE INDEX and DROP TABLE of a new table, ADD COLUMN and DROP COLUMN of a table with rows. Each
statement's transaction has one row, so that its time from commit to visible is that of the DDL. Another session writes
rows of a table without DDL. It measures the rows alone first. Apply keeps up if the delay of the last tenth of the
statements is no more than `KEEPS_UP_S`; at the end both sides have the same tables, columns and indexes, and nothing is
recorded only.

`tables` needs no Headrace but the source's objects: it times CREATE TABLE, ADD COLUMN, CREATE INDEX and DROP TABLE at a
server with few tables and with many, without the event triggers and with them. A statement that scanned all tables or all
records would take longer with many.

Rows while `ddl: true` is on and no DDL runs: `python -m benchmarks --ddl --workload bulk --workload oltp`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.product import HeadracePeer
from benchmarks.servers import SETTINGS, bench_servers, running_servers
from benchmarks.workloads import Latency, LatencyResult, WorkloadError
from headrace.console.process_end import terminated_as_interrupt
from headrace.databases.postgres.source.database import PostgresSource
from headrace.load.latency import Crossings, quantile
from headrace.rules.rule import Rule, RuleSet

__all__ = ["KEEPS_UP_S", "DdlLoad", "LoadResult", "statements_of_round", "time_statements", "times_of"]

PER_ROUND = 6
KEEPS_UP_S = 5.0  # delay of the last statements of a load that is kept up with
FILLED_ROWS = 10_000
_FILLED = 8  # tables with rows: a table has 1,600 columns at most, dropped ones counted
_POLL_S = 0.005
_DRAIN_TIMEOUT_S = 600.0
_TOPOLOGY = "bench"
_RULES = (RuleSet(include=(Rule(owner="public", ddl=True),)),)
_SCHEMA = """
SELECT c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i') ORDER BY 1, 3"""
_NOT_APPLIED = "SELECT ddl_text, reason FROM headrace.dba_ddl_not_applied ORDER BY ddl_number LIMIT 5"


def statements_of_round(number: int) -> tuple[str, ...]:
    """Return the statements of one round; no two rounds use a name of the other, if both are complete.

    Args:
        number: of the round.
    """
    filled = f"bench_filled{number % _FILLED}"
    return (
        f"CREATE TABLE bench_made{number} (id integer PRIMARY KEY, note text)",
        f"ALTER TABLE {filled} ADD COLUMN c{number} integer DEFAULT 7",
        f"ALTER TABLE bench_made{number} ADD COLUMN price numeric(12,2) NOT NULL DEFAULT 1",
        f"CREATE INDEX ON bench_made{number} (price, note)",
        f"ALTER TABLE {filled} DROP COLUMN c{number}",
        f"DROP TABLE bench_made{number}",
    )


# --------------------------------------------------------------------------- a load of statements


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load of DDL did.

    Args:
        wanted_per_minute: the rate that was asked for.
        per_minute: the rate that the source's session reached.
        ddl: times of the statements' transactions, from commit to visible.
        last_p50_ms: the same of the last tenth: what grows if apply does not keep up.
        drained_s: from the last statement's commit until everything was visible.
        rows_alone: times of rows before the load.
        rows_beside: times of rows during the load.
    """

    wanted_per_minute: float
    per_minute: float
    ddl: LatencyResult
    last_p50_ms: float
    drained_s: float
    rows_alone: LatencyResult
    rows_beside: LatencyResult

    @property
    def keeps_up(self) -> bool:
        """Whether the source reached the rate, and the last statements arrived as soon as any."""
        return self.per_minute >= 0.95 * self.wanted_per_minute and self.last_p50_ms <= KEEPS_UP_S * 1000


@dataclass(slots=True)
class DdlLoad:
    """DDL at a steady rate: the time of each statement from its commit at the source to the first poll that sees it.

    Args:
        per_minute: statements a minute.
        duration_s: duration in seconds.
    """

    per_minute: float = 1000.0
    duration_s: float = 120.0
    table: str = "bench_ddl"

    @property
    def count(self) -> int:
        """Number of statements: whole rounds, at least one."""
        return max(1, int(self.per_minute * self.duration_s / 60) // PER_ROUND) * PER_ROUND

    def make_tables(self, dsn: str) -> None:
        """Create the tables."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {self.table} (id integer PRIMARY KEY)".encode())
            for number in range(_FILLED):
                connection.execute(f"CREATE TABLE bench_filled{number} (id integer PRIMARY KEY, note text)".encode())

    def fill(self, dsn: str) -> None:
        """Insert the initial rows at the source."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(_FILLED):
                connection.execute(
                    f"INSERT INTO bench_filled{number} SELECT i, 'note ' || i FROM"
                    f" generate_series(1, {FILLED_ROWS}) i".encode()
                )

    def write(self, dsn: str, crossings: Crossings) -> float:
        """Run the statements, each in a transaction with one row; return the seconds that they took.

        Args:
            dsn: of the source.
            crossings: gets the time of each commit.
        """
        statements = (each for number in range(self.count // PER_ROUND) for each in statements_of_round(number))
        with psycopg.connect(dsn, autocommit=True) as connection:
            start = time.perf_counter()
            for number, statement in enumerate(statements, crossings.next_number):
                due = start + (number - 1) * 60 / self.per_minute
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.execute(f"{statement}; INSERT INTO {self.table} VALUES ({number})".encode())
                crossings.commit(number, time.perf_counter())
            return time.perf_counter() - start

    def run(self, source: str, destination: str, *, timeout_s: float = _DRAIN_TIMEOUT_S) -> tuple[Crossings, float]:
        """Write and poll; return the times, and the seconds of writing, when everything has arrived.

        Args:
            source, destination: connection strings.
            timeout_s: longest wait for the last statement, in seconds.

        Raises:
            WorkloadError: statements are missing after the time-out, or the source refused one.
        """
        crossings, took, refused = Crossings(), [0.0], list[psycopg.Error]()

        def write() -> None:
            try:
                took[0] = self.write(source, crossings)
            except psycopg.Error as error:
                refused.append(error)

        writer = threading.Thread(target=write)
        with psycopg.connect(destination, autocommit=True) as connection:
            writer.start()
            deadline = time.perf_counter() + self.duration_s + timeout_s
            while crossings.seen_count < self.count and not refused and time.perf_counter() < deadline:
                rows = connection.execute(
                    f"SELECT id FROM {self.table} WHERE id > %s".encode(), (crossings.below,), prepare=True
                ).fetchall()
                crossings.see((number for (number,) in rows), time.perf_counter())
                time.sleep(_POLL_S)
        writer.join()
        if refused:
            message = f"ddl: the source refused a statement: {refused[0]}"
            raise WorkloadError(message) from refused[0]
        if crossings.seen_count < self.count:
            message = f"ddl: {self.count - crossings.seen_count} of {self.count} statements did not arrive"
            raise WorkloadError(message)
        return crossings, took[0]


def times_of(crossings: Crossings) -> list[float]:
    """Return the milliseconds from commit to visible, in the order of the commits."""
    return [(visible - committed) * 1000 for committed, visible in sorted(crossings.times())]


def _summary(times: Sequence[float]) -> LatencyResult:
    ordered = sorted(times)
    p50, p99, most = (round(quantile(ordered, share), 2) for share in (0.5, 0.99, 1.0))
    return LatencyResult(p50_ms=p50, p99_ms=p99, max_ms=most, count=len(ordered))


def load_result(load: DdlLoad, crossings: Crossings, took_s: float, rows: Sequence[LatencyResult]) -> LoadResult:
    """Return the figures of a load.

    Args:
        load: what ran.
        crossings: its times.
        took_s: seconds of writing.
        rows: times of rows, alone and beside it.
    """
    times = times_of(crossings)
    last = times[-max(1, len(times) // 10) :]
    return LoadResult(
        wanted_per_minute=load.per_minute,
        per_minute=round(load.count * 60 / took_s, 1),
        ddl=_summary(times),
        last_p50_ms=round(statistics.median(last), 2),
        drained_s=round(times[-1] / 1000, 3),
        rows_alone=rows[0],
        rows_beside=rows[1],
    )


def differences(source: str, destination: str) -> list[str]:
    """Return what differs between both sides behind a load.

    Args:
        source, destination: connection strings.
    """
    with psycopg.connect(source) as there, psycopg.connect(destination) as here:
        tables = {name: set(each.execute(_SCHEMA).fetchall()) for name, each in (("source", there), ("here", here))}
        found = [str(row) for row in tables["source"] ^ tables["here"]]
        return found + [f"{text}: {reason}" for text, reason in here.execute(_NOT_APPLIED).fetchall()]


def measure_load(load: DdlLoad, rows: Latency) -> tuple[LoadResult, list[str]]:
    """Bring Headrace up, run the rows alone, then beside the load; return the figures, and what differs at the end.

    Args:
        load: the DDL.
        rows: their rate; both of its runs take as long as the load.
    """
    with bench_servers() as servers:
        pair = servers.make_pair("bench_ddl")
        for each in (load, rows):
            for dsn in (pair.source, pair.destination):
                each.make_tables(dsn)
            each.fill(pair.source)
        headrace = HeadracePeer(pair, servers.folder / "headrace")
        try:
            headrace.change(has_ddl=True)
            headrace.wait_caught_up()
            Latency(rate=rows.rate, duration_s=3.0).run(pair.source, pair.destination)  # warm-up
            found = [rows.run(pair.source, pair.destination)]
            beside = threading.Thread(
                target=lambda: found.append(
                    rows.run(pair.source, pair.destination, timeout_s=load.duration_s + _DRAIN_TIMEOUT_S)
                )
            )
            beside.start()
            crossings, took_s = load.run(pair.source, pair.destination)
            beside.join()
            headrace.wait_caught_up()
            if len(found) < 2:
                message = "ddl: the rows beside it did not arrive"
                raise WorkloadError(message)
            return load_result(load, crossings, took_s, found), differences(pair.source, pair.destination)
        finally:
            headrace.tear_down()


# --------------------------------------------------------------------------- many tables

TIMED = {
    "CREATE TABLE": "CREATE TABLE bench_timed{0} (id integer PRIMARY KEY, note text)",
    "ADD COLUMN": "ALTER TABLE bench_timed{0} ADD COLUMN price numeric(12,2) DEFAULT 1",
    "CREATE INDEX": "CREATE INDEX ON bench_timed{0} (note)",
    "DROP TABLE": "DROP TABLE bench_timed{0}",
}


def make_many(dsn: str, first: int, count: int) -> None:
    """Create tables with a key, 100 in a transaction.

    Args:
        dsn: of a database.
        first: number of the first one.
        count: how many.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"""DO $$ BEGIN FOR i IN {first}..{first + count - 1} LOOP
            EXECUTE format('CREATE TABLE bench_many%s (id integer PRIMARY KEY, note text)', i);
            IF i % 100 = 0 THEN COMMIT; END IF;
            END LOOP; END $$""".encode()
        )


def time_statements(dsn: str, count: int) -> dict[str, float]:
    """Return the median milliseconds of each statement.

    Args:
        dsn: of a database; it is as before afterwards.
        count: how often each one runs; a fifth more runs before, uncounted.
    """
    taken: dict[str, list[float]] = {name: [] for name in TIMED}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")  # the disk is not measured
        for number in range(-(count // 5), count):
            for name, text in TIMED.items():
                began = time.perf_counter()
                connection.execute(text.format(abs(number)).encode())
                if number >= 0:
                    taken[name].append((time.perf_counter() - began) * 1000)
    return {name: round(statistics.median(times), 3) for name, times in taken.items()}


def with_and_without(dsn: str, count: int) -> dict[str, dict[str, float]]:
    """Return the times of statements without our event triggers, and with them, which are removed afterwards.

    Args:
        dsn: of a database.
        count: as for `time_statements`.
    """
    without = time_statements(dsn, count)
    with closing(PostgresSource(dsn)) as source:
        source.prepare(_TOPOLOGY, _RULES)
        try:
            with_them = time_statements(dsn, count)
        finally:
            source.remove(_TOPOLOGY)
    return {"without": without, "with": with_them}


def measure_tables(counts: Sequence[int], statements: int) -> Iterator[tuple[int, dict[str, dict[str, float]]]]:
    """Yield the times of statements at a server with so many tables.

    Args:
        counts: numbers of tables, ascending.
        statements: as for `time_statements`.
    """
    # `up` names all tables in one ALTER PUBLICATION, and each takes a lock.
    settings = {**SETTINGS, "max_locks_per_transaction": "1024"}
    with running_servers(("source",), settings) as (_, servers):
        dsn, made = servers["source"].dsn(), 0
        for count in sorted(counts):
            make_many(dsn, made + 1, count - made)
            made = count
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE)")
                connection.execute("CHECKPOINT")
            yield count, with_and_without(dsn, statements)


# --------------------------------------------------------------------------- the command


def main() -> int:
    """Measure, print and write; return 1 if apply does not keep up, or the sides differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ddl", description=__doc__)
    parser.add_argument("what", choices=["load", "tables"])
    parser.add_argument("--rate", type=float, default=1000.0, help="statements a minute")
    parser.add_argument("--duration-s", type=float, default=120.0, help="duration of the load")
    parser.add_argument("--workload-rate", type=int, default=100, help="rows a second beside the load")
    parser.add_argument("--tables", type=int, action="append", help="numbers of tables")
    parser.add_argument("--statements", type=int, default=200, help="how often each statement is timed")
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    figures, missed = _load(given) if given.what == "load" else _tables(given)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for each in missed:
        _say(f"missed: {each}")
    return 1 if missed else 0


def _load(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    load = DdlLoad(per_minute=given.rate, duration_s=given.duration_s)
    found, missed = measure_load(load, Latency(rate=given.workload_rate, duration_s=given.duration_s))
    _say(f"{load.count} statements at {found.per_minute:.0f} a minute (wanted: {found.wanted_per_minute:.0f})")
    for name, times in (("DDL", found.ddl), ("rows alone", found.rows_alone), ("rows beside", found.rows_beside)):
        _say(f"  {name:12} p50 {times.p50_ms} ms, p99 {times.p99_ms} ms, max {times.max_ms} ms")
    _say(f"  last tenth   p50 {found.last_p50_ms} ms; all there {found.drained_s} s after the last commit")
    if not found.keeps_up:
        missed.append(f"the last statements arrived after {found.last_p50_ms} ms, wanted {KEEPS_UP_S * 1000:.0f}")
    return asdict(found), missed


def _tables(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    figures: dict[str, Any] = {}
    for count, found in measure_tables(given.tables or [100, 10_000], given.statements):
        figures[str(count)] = found
        _say(f"{count:,} tables: median milliseconds without event triggers, and with them")
        for name in TIMED:
            _say(f"  {name:14} {found['without'][name]:8.3f} {found['with'][name]:8.3f}")
    return figures, []


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    with terminated_as_interrupt():  # an interrupt also stops servers and topologies
        sys.exit(main())
