"""Workloads: what they write at the source, when it has arrived, and how to prove that it is complete.

Before a run, a workload's tables are equal on both sides. `write_backlog` commits the run's transactions at the
source. `arrived` is a cheap query whose answer at the destination equals the source's when the last row is visible;
`content` is an expensive query over every value, run after the clock has stopped.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.databases.embedded.place import client_binary

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
    """Commit one more row, which ends a backlog; returns its number.

    Args:
        dsn: where it is written.
        above: sites that write to each other keep their marks apart: this site's begin here.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            f"INSERT INTO {MARK_TABLE} SELECT count(*) + {above} FROM {MARK_TABLE} RETURNING id"
        ).fetchone()
    assert row is not None
    return int(row[0])


def has_mark(connection: psycopg.Connection, mark: int) -> bool:
    """Whether the row that ends a backlog is visible."""
    return connection.execute(f"SELECT 1 FROM {MARK_TABLE} WHERE id = %s", (mark,), prepare=True).fetchone() is not None


class WorkloadError(Exception):
    """A backlog did not arrive, or it arrived with other contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named workload; see the module.

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

    def arrived(self, connection: psycopg.Connection) -> object:
        """A cheap query result that is equal at both sides once the backlog has arrived."""
        raise NotImplementedError

    def content(self, connection: psycopg.Connection) -> dict[str, tuple[int, str]]:
        """Per table the number of rows and a digest over every value, independent of the order of rows."""
        answer = {}
        for table in self.tables:
            row = connection.execute(
                "SELECT count(*), coalesce(sum(('x' || substr(md5(t::text), 1, 16))::bit(64)::bigint::numeric),"
                f" 0)::text FROM {table} t"
            ).fetchone()
            assert row is not None
            answer[table] = (int(row[0]), str(row[1]))
        return answer


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
    above: int = 0  # ids begin after it: sites that write to each other keep their rows apart

    @classmethod
    def of(cls, share: float, above: int = 0) -> Bulk:
        """The workload, or a share of it, on ids after `above`."""
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

    def arrived(self, connection: psycopg.Connection) -> object:
        return connection.execute("SELECT count(*), sum(price), sum(length(note)) FROM bench_rows").fetchone()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTransaction(_Rows):
    """One transaction of 500,000 inserted rows."""

    name: str = "one_transaction"
    row_changes: int = 500_000
    transactions: int = 1

    @classmethod
    def of(cls, share: float) -> OneTransaction:
        """The workload, or a share of it."""
        return cls(row_changes=int(500_000 * share))

    def write_backlog(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(
                f"INSERT INTO bench_rows SELECT {_BULK_VALUES} FROM generate_series(1, {self.row_changes}) i"
            )

    def arrived(self, connection: psycopg.Connection) -> object:
        return connection.execute("SELECT count(*) FROM bench_rows").fetchone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Oltp(Workload):
    """pgbench's TPC-B: 20,000 transactions of four changes, four clients."""

    name: str = "oltp"
    tables: tuple[str, ...] = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
    row_changes: int = 80_000
    transactions: int = 20_000
    scale: int = 10
    clients: int = 4

    @classmethod
    def of(cls, share: float) -> Oltp:
        """The workload, or a share of it."""
        each = int(20_000 * share) // 4
        return cls(transactions=each * 4, row_changes=each * 16)

    def make_tables(self, dsn: str) -> None:
        _pgbench(dsn, "-i", "-I", "dtp", "-s", str(self.scale))
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Headrace requires it; pgbench only inserts into this table, so it adds nothing to the log of either peer.
            connection.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")

    def fill(self, dsn: str) -> None:
        _pgbench(dsn, "-i", "-I", "g", "-q", "-s", str(self.scale))

    def write_backlog(self, dsn: str) -> None:
        _pgbench(dsn, "-n", "-c", str(self.clients), "-j", "2", "-t", str(self.transactions // self.clients))

    def arrived(self, connection: psycopg.Connection) -> object:
        # Each transaction writes history, branch, teller and account, so the small tables suffice.
        return connection.execute(
            "SELECT (SELECT count(*) FROM pgbench_history), (SELECT sum(bbalance) FROM pgbench_branches), "
            "(SELECT sum(tbalance) FROM pgbench_tellers)"
        ).fetchone()

    def content(self, connection: psycopg.Connection) -> dict[str, tuple[int, str]]:
        answer = Workload.content(self, connection)
        row = connection.execute(
            "SELECT (SELECT sum(delta) FROM pgbench_history), (SELECT sum(abalance) FROM pgbench_accounts), "
            "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers)"
        ).fetchone()
        assert row is not None
        # pgbench's own invariant: every delta went to one account, teller and branch.
        answer["balances"] = (len(set(row)), str(row[0]))
        return answer


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
    _committed: dict[int, float] = field(default_factory=dict)

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
        first, count = int(row[0]) + 1, int(self.rate * self.duration_s)
        self._committed.clear()
        writer = threading.Thread(target=self._write, args=(source, first, count))
        seen: dict[int, float] = {}
        with psycopg.connect(destination, autocommit=True) as connection:
            writer.start()
            last, deadline = first - 1, time.perf_counter() + self.duration_s + timeout_s
            while len(seen) < count and time.perf_counter() < deadline:
                rows = connection.execute(
                    "SELECT id FROM bench_latency WHERE id > %s", (last,), prepare=True
                ).fetchall()
                now = time.perf_counter()
                # Parallel servers may make a later row visible first: the bound moves only over complete runs of rows.
                for (number,) in rows:
                    seen.setdefault(number, now)
                while last + 1 in seen:
                    last += 1
                time.sleep(self.poll_s)
        writer.join()
        if len(seen) < count:
            message = f"latency: {count - len(seen)} of {count} rows did not arrive within {timeout_s} s"
            raise WorkloadError(message)
        times = sorted((seen[number] - self._committed[number]) * 1000 for number in seen)
        return LatencyResult(
            p50_ms=_at(times, 0.5),
            p99_ms=_at(times, 0.99),
            max_ms=_at(times, 1.0),
            count=count,
        )

    def _write(self, dsn: str, first: int, count: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            start = time.perf_counter()
            for number in range(first, first + count):
                due = start + (number - first) / self.rate
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.execute("INSERT INTO bench_latency VALUES (%s, 'note')", (number,), prepare=True)
                self._committed[number] = time.perf_counter()


def _at(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


def _pgbench(dsn: str, *arguments: str) -> None:
    parts = conninfo_to_dict(dsn)
    environment = {
        **os.environ,
        "PGHOST": str(parts["host"]),
        "PGPORT": str(parts["port"]),
        "PGUSER": str(parts["user"]),
        "PGPASSWORD": str(parts["password"]),
        "PGDATABASE": str(parts["dbname"]),
        "PGSSLMODE": "disable",
    }
    subprocess.run(
        [str(client_binary("pgbench", version=18)), *arguments], env=environment, check=True, capture_output=True
    )
