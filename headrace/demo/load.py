"""The workload of the demo's clients, and the probe that measures latency meanwhile.

The one-way form runs pgbench's own TPC-B (4 row changes per transaction). Every other form runs our scripts, in which
each writing site has its own keys, with one update and one insert, or two inserts, per transaction. Both maintain a sum
that must be correct at every site.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.base.errors import HeadraceError
from headrace.load.contents import contents
from headrace.load.latency import Crossings, quantile
from headrace.load.pgbench import HISTORY_IDENTITY, TABLES, Pgbench, Sums, run_pgbench
from headrace.load.sessions import session

if TYPE_CHECKING:
    from headrace.databases.embedded.servers import EmbeddedServer

__all__ = ["Clients", "Load", "OneWayLoad", "OrdersLoad", "Probe"]

SCALE = 2  # pgbench: 200,000 accounts, enough to copy something and still be quick
THREADS = 2  # of pgbench, whose clients mostly wait
ORDERS = 1000  # each writing site's own rows
ORDER_IDS_BEGIN = 1_000_000  # identifiers of further orders start here
PROBE_INTERVAL_S = 0.05
POLL_INTERVAL_S = 0.01  # the precision of a latency

_ORDERS_TABLES = """
CREATE SCHEMA IF NOT EXISTS {schema};
DROP TABLE IF EXISTS {schema}.orders, {schema}.order_lines, {schema}.probe;
DROP SEQUENCE IF EXISTS {schema}.order_ids;
CREATE TABLE {schema}.orders (
    id bigint PRIMARY KEY, side int NOT NULL, amount bigint NOT NULL, version int NOT NULL, note text
);
CREATE TABLE {schema}.order_lines (side int, client int, order_id bigint, delta int, at timestamptz DEFAULT now());
ALTER TABLE {schema}.order_lines REPLICA IDENTITY FULL;
CREATE TABLE {schema}.probe (id bigint PRIMARY KEY);
CREATE SEQUENCE {schema}.order_ids START {start} INCREMENT {sides};
"""

_CHANGE_SCRIPT = f"""\\set n random(1, {ORDERS})
\\set delta random(-500, 500)
BEGIN;
UPDATE {{schema}}.orders SET amount = amount + :delta, version = version + 1 WHERE id = :n * {{sides}} + :side;
INSERT INTO {{schema}}.order_lines (side, client, order_id, delta) VALUES (:side, :client_id, :n * {{sides}} + :side, :delta);
END;
"""

_ADD_SCRIPT = """\\set delta random(1, 500)
BEGIN;
SELECT nextval('{schema}.order_ids') AS id \\gset
INSERT INTO {schema}.orders VALUES (:id, :side, :delta, 1, 'added by client ' || :client_id);
INSERT INTO {schema}.order_lines (side, client, order_id, delta) VALUES (:side, :client_id, :id, :delta);
END;
"""


class Load(Protocol):
    """Clients of one demo."""

    transactions_wanted: int
    rows_prepared: int
    """Rows that `prepare` writes."""

    def create_tables(self) -> None:
        """Create the tables at every site, before replication starts."""
        ...

    def prepare(self) -> None:
        """Write rows after replication has started and before the clients start."""
        ...

    def running(self) -> contextlib.AbstractContextManager[Clients]:
        """Run the clients; leaving the block ends them."""
        ...

    def transactions_done(self) -> int:
        """Number of transactions that the clients committed at all sites; exact once they are done."""
        ...

    def row_changes(self) -> int:
        """Number of row changes of `prepare` and of the clients."""
        ...

    def differences(self) -> list[str]:
        """Differences between sites, and wrong sums, found by plain SQL."""
        ...


class Clients:
    """pgbench at every site that writes."""

    def __init__(self, runs: Sequence[Pgbench]) -> None:
        self._runs = runs

    def are_done(self) -> bool:
        """Return whether all have ended. Raises ApplyError when one failed."""
        # Check all of them: a failure must be noticed even while another one runs.
        return all(list(map(Pgbench.is_done, self._runs)))

    def transactions_done(self) -> int:
        """Number of transactions committed so far, precise to about a second."""
        return sum(run.transactions() for run in self._runs)


@contextlib.contextmanager
def _running(runs: Sequence[Pgbench]) -> Iterator[Clients]:
    try:
        for run in runs:
            run.start()
        yield Clients(runs)
    finally:
        for run in runs:
            run.close()


class OneWayLoad:
    """pgbench's TPC-B at the source."""

    rows_per_transaction = 4  # three updates, one insert
    rows_prepared = 0

    def __init__(
        self,
        source: EmbeddedServer,
        destination: EmbeddedServer,
        *,
        transactions: int,
        clients: int,
        rate: int,
        logs: Path,
    ) -> None:
        self._source, self._destination = source, destination
        each = math.ceil(transactions / clients)
        self.transactions_wanted = each * clients
        arguments = ["-c", str(clients), "-j", str(min(THREADS, clients)), "-t", str(each), "-R", str(rate)]
        self._run = Pgbench(source.dsn(), *arguments, log=logs / "pgbench.log", wanted=self.transactions_wanted)

    def create_tables(self) -> None:
        """Create pgbench's tables: filled at the source, empty at the destination."""
        run_pgbench(self._source.dsn(), "-i", "-q", "-I", "dtgvp", "-s", str(SCALE))
        run_pgbench(self._destination.dsn(), "-i", "-q", "-I", "dtp")
        for server in (self._source, self._destination):
            _execute(
                server,
                "DROP TABLE IF EXISTS public.pgbench_probe; CREATE TABLE public.pgbench_probe (id bigint PRIMARY KEY);"
                f" {HISTORY_IDENTITY}",
            )

    def prepare(self) -> None:
        """Do nothing: instantiation copied the rows."""

    def running(self) -> contextlib.AbstractContextManager[Clients]:
        """Run the clients; leaving the block ends them."""
        return _running([self._run])

    def transactions_done(self) -> int:
        """Number of transactions that the clients committed; exact once they are done."""
        return self._run.transactions()

    def row_changes(self) -> int:
        """Number of row changes of the clients."""
        return self.transactions_done() * self.rows_per_transaction

    def differences(self) -> list[str]:
        """Compare tables as multisets of rows; check that the balances are the sum of the history's deltas."""
        tables = [f"public.{name}" for name in (*TABLES, "pgbench_probe")]
        problems = _table_differences(self._source, self._destination, tables)
        with session(self._destination.dsn(), "demo") as connection:
            sums = Sums.of(connection)
        if sums.transactions != self.transactions_done():
            problems.append(f"{sums.transactions} rows of history for {self.transactions_done()} transactions")
        return problems + sums.problems()


class OrdersLoad:
    """Orders with their lines, written at some sites, each with its own identifiers.

    Args:
        servers: one per site.
        writers: number of sites that write, counted from the first.
        schema: schema of the tables.
        transactions: number at each site that writes.
        clients: concurrent clients at each site that writes.
        rate: transactions per second at each site that writes.
        logs: folder of the clients' scripts and logs.
    """

    rows_per_transaction = 2

    def __init__(
        self,
        servers: Sequence[EmbeddedServer],
        *,
        writers: int,
        schema: str,
        transactions: int,
        clients: int,
        rate: int,
        logs: Path,
    ) -> None:
        self._servers, self._schema = tuple(servers), schema
        self._writers = self._servers[:writers]
        self.rows_prepared = writers * ORDERS
        each = math.ceil(transactions / clients)
        self.transactions_wanted = writers * each * clients
        names = {"schema": schema, "sides": writers}
        self._scripts = [
            (logs / "change.sql", _CHANGE_SCRIPT.format(**names), 4),
            (logs / "add.sql", _ADD_SCRIPT.format(**names), 1),
        ]
        self._runs = []
        for side, server in enumerate(self._writers):
            arguments = [
                "-c",
                str(clients),
                "-j",
                str(min(THREADS, clients)),
                "-t",
                str(each),
                "-R",
                str(rate),
                "-D",
                f"side={side}",
            ]
            for path, _, weight in self._scripts:
                arguments += ["-f", f"{path}@{weight}"]
            self._runs.append(
                Pgbench(server.dsn(), *arguments, log=logs / f"pgbench_{side}.log", wanted=each * clients)
            )

    def create_tables(self) -> None:
        """Create equal, empty tables at every site."""
        for side, server in enumerate(self._servers):
            _execute(
                server,
                _ORDERS_TABLES.format(schema=self._schema, start=ORDER_IDS_BEGIN + side, sides=len(self._writers)),
            )
        for path, text, _ in self._scripts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def prepare(self) -> None:
        """Insert each writing site's own orders, while replication runs."""
        for side, server in enumerate(self._writers):
            _execute(
                server,
                f"INSERT INTO {self._schema}.orders SELECT n * {len(self._writers)} + {side}, {side}, 0, 0, repeat('x',"
                f" (n % 40)::int) FROM generate_series(1, {ORDERS}) n",
            )

    def running(self) -> contextlib.AbstractContextManager[Clients]:
        """Run the clients; leaving the block ends them."""
        return _running(self._runs)

    def transactions_done(self) -> int:
        """Number of transactions that the clients committed at all sites; exact once they are done."""
        return sum(run.transactions() for run in self._runs)

    def row_changes(self) -> int:
        """Number of row changes of `prepare` and of the clients."""
        return self.transactions_done() * self.rows_per_transaction + self.rows_prepared

    def differences(self) -> list[str]:
        """Compare tables as multisets of rows; check that every order is the sum of its lines, at every site."""
        schema = self._schema
        tables = [f"{schema}.{name}" for name in ("orders", "order_lines", "probe")]
        first, *others = self._servers
        problems = [problem for other in others for problem in _table_differences(first, other, tables)]
        for server in self._servers:
            wrong, lines = _row(
                server,
                f"SELECT (SELECT count(*) FROM {schema}.orders o LEFT JOIN (SELECT order_id, sum(delta) AS deltas"
                f" FROM {schema}.order_lines GROUP BY order_id) l ON l.order_id = o.id"
                f" WHERE o.amount <> coalesce(l.deltas, 0)), (SELECT count(*) FROM {schema}.order_lines)",
            )
            if wrong:
                problems.append(f"{wrong} orders at {server.name} are not the sum of their lines")
            if lines != self.transactions_done():
                problems.append(f"{lines} lines at {server.name} for {self.transactions_done()} transactions")
        return problems


# --------------------------------------------------------------------------- the probe


@dataclass(slots=True)
class Probe:
    """Writes a row twenty times a second at one site and polls for it at the other.

    Args:
        source: connection string of the site where it writes.
        destination: connection string of the site where it polls.
        table: a replicated table with one column `id`.
    """

    source: str
    destination: str
    table: str
    crossings: Crossings = field(default_factory=Crossings)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _killed_at: float = 0.0

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._retrying, args=(work,), name=f"probe-{work.__name__}", daemon=True)
            for work in (self._write, self._watch)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def outage_began(self, killed_at: float) -> None:
        """Note that a component was killed: samples in flight until the recovery do not count as ordinary latency."""
        self._killed_at = killed_at

    def healed_s(self, killed_at: float) -> float | None:
        """Return the seconds from the kill until the first later commit was visible; None: none is visible yet."""
        visible = [visible_at for committed_at, visible_at in self.crossings.times() if committed_at > killed_at]
        return min(visible) - killed_at if visible else None

    def latencies_ms(self) -> tuple[float, float] | None:
        """Return p50 and p99 from commit to visible, without samples that the outage delayed; None: no others."""
        times = self.crossings.times()
        if self._killed_at:
            healed_at = self._killed_at + (self.healed_s(self._killed_at) or math.inf)
            # A sample belongs to the outage if it was in flight at any time during it.
            times = [
                (committed_at, visible_at)
                for committed_at, visible_at in times
                if visible_at < self._killed_at or committed_at > healed_at
            ]
        latencies = sorted((visible_at - committed_at) * 1000 for committed_at, visible_at in times)
        if not latencies:
            return None
        return round(quantile(latencies, 0.5), 1), round(quantile(latencies, 0.99), 1)

    def _retrying(self, work: Callable[[], None]) -> None:
        while not self._ended.is_set():
            try:
                work()
            except HeadraceError:
                self._ended.wait(PROBE_INTERVAL_S)

    def _write(self) -> None:
        with session(self.source, "demo probe") as connection:
            while not self._ended.wait(PROBE_INTERVAL_S):
                number = self.crossings.next_number
                connection.execute(f"INSERT INTO {self.table} VALUES (%s)", (number,))
                self.crossings.commit(number, time.time())

    def _watch(self) -> None:
        with session(self.destination, "demo probe") as connection:
            query = f"SELECT id FROM {self.table} WHERE id > %s"
            while not self._ended.wait(POLL_INTERVAL_S):
                rows = connection.execute(query, (self.crossings.below,), prepare=True).fetchall()
                self.crossings.see((number for (number,) in rows), time.time())


# --------------------------------------------------------------------------- plain SQL


def _execute(server: EmbeddedServer, statements: str) -> None:
    with session(server.dsn(), "demo") as connection:
        connection.execute(statements)


def _row(server: EmbeddedServer, query: str) -> tuple[Any, ...]:
    with session(server.dsn(), "demo") as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)


def _table_differences(first: EmbeddedServer, second: EmbeddedServer, tables: Sequence[str]) -> list[str]:
    """Return the tables whose rows are not the same multiset."""
    problems = []
    with session(first.dsn(), "demo") as here, session(second.dsn(), "demo") as there:
        for table in tables:
            one, other = contents(here, table), contents(there, table)
            if one != other:
                problems.append(
                    f"{table}: {one[0]} rows at {first.name}, {other[0]} at {second.name}, or other contents"
                )
    return problems
