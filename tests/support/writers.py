"""Writers that survive the death of their server, unlike pgbench, and know what it acknowledged."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg

from headrace.chaos.load import paced
from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.system import wait_until

__all__ = ["TABLES", "Sites", "Writers", "writing"]

TABLES = """
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE twins (a integer, b text);
ALTER TABLE twins REPLICA IDENTITY FULL
"""
CLIENTS = 4
PAUSE_S = 0.04  # between a writer's transactions, on a machine that is not slow
RECONNECT_S = 0.1  # short beside a restart of a server, which takes a second
# One row with a key and one without, which would be there twice if it were applied twice.
_TABLES = ("notes", "twins")
_NUMBERS = 1_000_000  # of one writer: more transactions than a test makes


class Sites(Protocol):
    """Whose databases are written: `System`, for one."""

    servers: dict[str, EmbeddedServer]

    def execute(self, site: str, statement: str, /) -> list[tuple[Any, ...]]:
        """Execute a statement at a site; its rows."""


@dataclass
class _Writer:
    """The knowledge of one writer; its transactions are numbered."""

    next: int
    sessions: int = 0
    acknowledged: list[int] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)  # COMMIT was sent, nothing was answered


class Writers:
    """Transactions of two inserts each into `notes` and `twins`, as long as `writing` lasts.

    Args:
        system: a topology with these tables.
        site: where they write.
        schema: of the tables.
        clients: that write at a time.
    """

    def __init__(self, system: Sites, site: str, schema: str = "public", clients: int = CLIENTS) -> None:
        self._system, self._site, self._schema = system, site, schema
        self._inserts = [f"INSERT INTO {schema}.{table} VALUES (%s, 'written')" for table in _TABLES]
        self._writers = [_Writer(number * _NUMBERS) for number in range(clients)]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(writer,), daemon=True) for writer in self._writers]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def acknowledged(self) -> set[int]:
        return {number for writer in self._writers for number in writer.acknowledged}

    @property
    def sessions(self) -> list[int]:
        """How many sessions each writer opened so far."""
        return [writer.sessions for writer in self._writers]

    def wait_writing(self, transactions: int = 10) -> None:
        """Wait until every writer has that many more acknowledged transactions."""
        wanted = [len(writer.acknowledged) + transactions for writer in self._writers]
        wait_until(
            "every writer writes",
            lambda: all(len(writer.acknowledged) >= most for writer, most in zip(self._writers, wanted, strict=True)),
        )

    def wait_arriving(self, site: str) -> None:
        """Wait until a transaction that is acknowledged from now on is at `site`."""
        before = self.acknowledged
        wait_until(f"changes arrive at {site}", lambda: (self.acknowledged - before) & set(self.found(site)))

    def assert_exactly_once(self, *sites: str) -> None:
        """What was acknowledged is at every site once, whole; of what is in doubt all sites have the same; nothing else
        is there.

        To be called after `end`, when all has converged.
        """
        acknowledged, doubtful = self.acknowledged, set().union(*(writer.doubtful for writer in self._writers))
        here = self.found(self._site)
        assert acknowledged <= set(here), sorted(acknowledged - set(here))
        assert set(here) <= acknowledged | doubtful, sorted(set(here) - acknowledged - doubtful)
        for site in (self._site, *sites):
            found = self.found(site)
            assert found == here, f"{site}: {sorted((found - here) + (here - found))}"
            assert set(found.values()) == {1}, f"{site}: {found.most_common(5)}"
            notes = {number for (number,) in self._system.execute(site, f"SELECT id FROM {self._schema}.notes")}
            assert notes == set(found), f"{site}: {sorted(notes ^ set(found))}"

    def found(self, site: str) -> Counter[int]:
        """How often each transaction is at a site, by the table that has no key."""
        return Counter(number for (number,) in self._system.execute(site, f"SELECT a FROM {self._schema}.twins"))

    def _write(self, writer: _Writer) -> None:
        while not self._ended.is_set():
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self._system.servers[self._site].dsn()) as session,
            ):
                writer.sessions += 1
                self._write_in(session, writer)
            self._ended.wait(RECONNECT_S)

    def _write_in(self, session: psycopg.Connection[tuple[object, ...]], writer: _Writer) -> None:
        for _ in paced(self._ended, PAUSE_S):
            number, writer.next = writer.next, writer.next + 1
            for insert in self._inserts:
                session.execute(insert, (number,))
            writer.doubtful.add(number)
            session.commit()
            writer.doubtful.remove(number)
            writer.acknowledged.append(number)


@contextlib.contextmanager
def writing(system: Sites, site: str, schema: str = "public", clients: int = CLIENTS) -> Iterator[Writers]:
    """Write at `site` while the block runs, into empty tables."""
    system.execute(site, f"TRUNCATE {', '.join(f'{schema}.{table}' for table in _TABLES)}")
    writers = Writers(system, site, schema, clients)
    writers.start()
    try:
        yield writers
    finally:
        writers.end()
