"""Workloads: their writes at the source, the check that they have arrived, and the proof that they are complete.

Before a run, a workload's tables are equal on both sides. `write_backlog` commits the run's transactions at the source.
`arrived` is a cheap query whose answer at the destination equals the source's when the last row is visible; `content`
is an expensive query over every value, run after the clock has stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.load.contents import contents
from headrace.load.latency import Crossings, quantile
from headrace.load.pgbench import HISTORY_IDENTITY, TABLES, Sums, run_pgbench

BULK_TABLE = """
CREATE TABLE IF NOT EXISTS bench_rows (
    id integer PRIMARY KEY, kind integer NOT NULL, title text, price numeric(12,2), changed timestamptz,
    weight double precision, note text, day date
)"""
_BULK_VALUES = (
    "i, i % 10, 'some text value ' || i % 100, (i % 5000) / 4.0, timestamptz '2026-01-01 00:00:00Z' + i * interval '1"
    " second', i / 7.0::float8, 'v' || i % 100, date '2026-01-01' + i % 365"
)


MARK_TABLE = "bench_mark"


def make_mark_table(dsn: str) -> None:
    """Create the table whose rows end each backlog."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {MARK_TABLE} (id integer PRIMARY KEY)")


def write_mark(dsn: str, above: int = 0) -> int:
    """Commit one more row, which ends a backlog; return its number.

    Args:
        dsn: where it is written.
        above: first number of this site's marks, which keeps the marks of sites that write to each other apart.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            f"INSERT INTO {MARK_TABLE} SELECT count(*) + {above} FROM {MARK_TABLE} RETURNING id"
        ).fetchone()
    assert row is not None
    return int(row[0])


def has_mark(connection: psycopg.Connection, mark: int) -> bool:
    """Return whether the row that ends a backlog is visible."""
    return connection.execute(f"SELECT 1 FROM {MARK_TABLE} WHERE id = %s", (mark,), prepare=True).fetchone() is not None


class WorkloadError(Exception):
    """A backlog did not arrive, or arrived with different contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named workload, with the methods that the module describes.

    Args:
        name: in the report.
        tables: (schema, table) it writes to.
        row_changes: rows inserted, updated and deleted by one backlog.
        transactions: committed by one backlog.
    """

    name: str
    tables: tuple[str, ...]
    row_changes: int
    transactions: int

    def make_tables(self, dsn: str) -> None:
        """Create the tables, empty."""
        raise NotImplementedError

    def fill(self, dsn: str) -> None:
        """Insert the initial rows at the source, before the first run."""

    def reset(self, dsn: str) -> None:
        """Reset the tables at the source to the state before a run; the reset is replicated too."""

    def write_backlog(self, dsn: str) -> None:
        """Commit the run's transactions."""
        raise NotImplementedError

    def arrived(self, connection: psycopg.Connection) -> tuple[Any, ...] | None:
        """Return a cheap query result that is equal at both sides when the backlog has arrived."""
        raise NotImplementedError

    def content(self, connection: psycopg.Connection) -> dict[str, object]:
        """Return per table the number of rows and a digest over every value, independent of the order of rows."""
        return {table: contents(connection, table) for table in self.tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(Workload):
    """A workload on the eight-column table, which is empty before each run."""

    tables: tuple[str, ...] = ("bench_rows",)

    def make_tables(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(BULK_TABLE)

    def reset(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE bench_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk(_Rows):
    """2,000 transactions of 100 inserts, 1,000 of 100 updates, 500 of 100 deletes, on eight columns."""

    name: str = "bulk"
    row_changes: int = 350_000
    transactions: int = 3_500
    scale: float = 1.0
    above: int = 0  # ids begin after it: keeps the rows of sites that write to each other apart

    @classmethod
    def of(cls, share: float, above: int = 0) -> Bulk:
        """Return the workload, or a share of it, on ids after `above`."""
        return cls(scale=share, row_changes=int(350_000 * share), transactions=int(3_500 * share), above=above)

    def write_backlog(self, dsn: str) -> None:
        inserts, updates, deletes = (int(n * self.scale) for n in (2000, 1000, 500))
        first, kept = self.above + 1, self.above + inserts * 25 + 1
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")  # writing the backlog is not measured
            connection.execute(
                f"""
                DO $$ BEGIN
                FOR t IN 0..{inserts - 1} LOOP
                    INSERT INTO bench_rows SELECT {_BULK_VALUES} FROM generate_series(t * 100 + {first}, t * 100 + {first} + 99) i;
                    COMMIT;
                END LOOP;
                FOR t IN 0..{updates - 1} LOOP
                    UPDATE bench_rows SET price = price + 1, note = 'changed ' || t, weight = weight * 2
                    WHERE id BETWEEN t * 100 + {first} AND t * 100 + {first} + 99;
                    COMMIT;
                END LOOP;
                FOR t IN 0..{deletes - 1} LOOP
                    DELETE FROM bench_rows WHERE id BETWEEN t * 100 + {kept} AND t * 100 + {kept} + 99;
                    COMMIT;
                END LOOP;
                END $$"""
            )

    def arrived(self, connection: psycopg.Connection) -> tuple[Any, ...] | None:
        return connection.execute("SELECT count(*), sum(price), sum(length(note)) FROM bench_rows").fetchone()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTransaction(_Rows):
    """One transaction of 500,000 inserted rows."""

    name: str = "one_transaction"
    row_changes: int = 500_000
    transactions: int = 1

    @classmethod
    def of(cls, share: float) -> OneTransaction:
        """Return the workload, or a share of it."""
        return cls(row_changes=int(500_000 * share))

    def write_backlog(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(
                f"INSERT INTO bench_rows SELECT {_BULK_VALUES} FROM generate_series(1, {self.row_changes}) i"
            )

    def arrived(self, connection: psycopg.Connection) -> tuple[Any, ...] | None:
        return connection.execute("SELECT count(*) FROM bench_rows").fetchone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Oltp(Workload):
    """pgbench's TPC-B: 20,000 transactions of four changes, four clients."""

    name: str = "oltp"
    tables: tuple[str, ...] = TABLES
    row_changes: int = 80_000
    transactions: int = 20_000
    scale: int = 10
    clients: int = 4

    @classmethod
    def of(cls, share: float) -> Oltp:
        """Return the workload, or a share of it."""
        each = int(20_000 * share) // 4
        return cls(transactions=each * 4, row_changes=each * 16)

    def make_tables(self, dsn: str) -> None:
        run_pgbench(dsn, "-i", "-I", "dtp", "-s", str(self.scale))
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Headrace requires it; pgbench only inserts into this table, so it adds nothing to the log of either peer.
            connection.execute(HISTORY_IDENTITY)

    def fill(self, dsn: str) -> None:
        run_pgbench(dsn, "-i", "-I", "g", "-q", "-s", str(self.scale))

    def write_backlog(self, dsn: str) -> None:
        run_pgbench(dsn, "-n", "-c", str(self.clients), "-j", "2", "-t", str(self.transactions // self.clients))

    def arrived(self, connection: psycopg.Connection) -> tuple[Any, ...] | None:
        # Each transaction writes history, branch, teller and account, so the small tables suffice.
        return connection.execute(
            "SELECT (SELECT count(*) FROM pgbench_history), (SELECT sum(bbalance) FROM pgbench_branches), "
            "(SELECT sum(tbalance) FROM pgbench_tellers)"
        ).fetchone()

    def content(self, connection: psycopg.Connection) -> dict[str, object]:
        # pgbench's invariant: every delta went to one account, teller and branch.
        return {**Workload.content(self, connection), "balances": Sums.of(connection).problems()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyResult:
    """Time from commit to visible, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int


@dataclass(slots=True)
class Latency:
    """Transactions at a steady rate: the time of each from its commit at the source to the first poll that sees it.

    Args:
        rate: transactions per second.
        duration_s: duration in seconds.
        poll_s: pause between two polls at the destination in seconds: the resolution, small compared with the latency.
    """

    rate: int = 100
    duration_s: float = 30.0
    poll_s: float = 0.001
    table: str = "bench_latency"

    def make_tables(self, dsn: str) -> None:
        """Create the table."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bench_latency (id integer PRIMARY KEY, note text)")

    def fill(self, dsn: str) -> None:
        """The table is empty before the first run."""

    def run(self, source: str, destination: str, *, timeout_s: float = 60.0) -> LatencyResult:
        """Write and poll; returns when every row has arrived.

        Args:
            source: connection string.
            destination: connection string.
            timeout_s: longest wait for the last row, in seconds.

        Raises:
            WorkloadError: rows are missing after the time-out.
        """
        import threading

        with psycopg.connect(source, autocommit=True) as connection:
            row = connection.execute("SELECT coalesce(max(id), 0) FROM bench_latency").fetchone()
        assert row is not None
        crossings, count = Crossings(below=int(row[0])), int(self.rate * self.duration_s)
        writer = threading.Thread(target=self._write, args=(source, crossings, count))
        with psycopg.connect(destination, autocommit=True) as connection:
            writer.start()
            deadline = time.perf_counter() + self.duration_s + timeout_s
            while crossings.seen_count < count and time.perf_counter() < deadline:
                rows = connection.execute(
                    "SELECT id FROM bench_latency WHERE id > %s", (crossings.below,), prepare=True
                ).fetchall()
                crossings.see((number for (number,) in rows), time.perf_counter())
                time.sleep(self.poll_s)
        writer.join()
        if crossings.seen_count < count:
            message = f"latency: {count - crossings.seen_count} of {count} rows did not arrive within {timeout_s} s"
            raise WorkloadError(message)
        times = sorted((visible_at - committed_at) * 1000 for committed_at, visible_at in crossings.times())
        return LatencyResult(
            p50_ms=round(quantile(times, 0.5), 2),
            p99_ms=round(quantile(times, 0.99), 2),
            max_ms=round(quantile(times, 1.0), 2),
            count=count,
        )

    def _write(self, dsn: str, crossings: Crossings, count: int) -> None:
        first = crossings.next_number
        with psycopg.connect(dsn, autocommit=True) as connection:
            start = time.perf_counter()
            for number in range(first, first + count):
                due = start + (number - first) / self.rate
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.execute("INSERT INTO bench_latency VALUES (%s, 'note')", (number,), prepare=True)
                crossings.commit(number, time.perf_counter())
