"""Writers that survive the death of their server, unlike pgbench, and know which commits it acknowledged."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import psycopg

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.load.clients import NumberedClients
from tests.support.clusters.system import wait_until

__all__ = ["TABLES", "Sites", "Writers", "writing"]

TABLES = """
CREATE TABLE notes (id bigint PRIMARY KEY, body text);
CREATE TABLE twins (a integer, b text);
ALTER TABLE twins REPLICA IDENTITY FULL
"""
CLIENTS = 4
PAUSE_S = 0.04  # a writer's pause between transactions, on a machine that is not slow
# One row with a key and one without, which would show a duplicate.
_TABLES = ("notes", "twins")
_NUMBERS = 1_000_000  # range of one writer's numbers: more transactions than a test makes


class Sites(Protocol):
    """Sites whose databases are written, such as `System`."""

    servers: dict[str, EmbeddedServer]

    def execute(self, site: str, statement: str, /) -> list[tuple[Any, ...]]:
        """Execute a statement at a site; return its rows."""


class Writers:
    """Transactions of two inserts each, into `notes` and `twins`, until `end`.

    Args:
        system: a topology with these tables.
        site: where they write.
        schema: of the tables.
        clients: number of concurrent writers.
    """

    def __init__(self, system: Sites, site: str, schema: str = "public", clients: int = CLIENTS) -> None:
        self._system, self._site, self._schema = system, site, schema
        self._inserts = [f"INSERT INTO {schema}.{table} VALUES (%s, 'written')" for table in _TABLES]
        self._clients = NumberedClients(
            system.servers[site].dsn,
            self._write,
            [itertools.count(number * _NUMBERS) for number in range(clients)],
            pause_s=PAUSE_S,
            what="test",
        )

    def end(self) -> None:
        self._clients.end()

    @property
    def acknowledged(self) -> set[int]:
        return self._clients.acknowledged

    @property
    def sessions(self) -> list[int]:
        """Return how many sessions each writer opened so far."""
        return self._clients.sessions

    def wait_writing(self, transactions: int = 10) -> None:
        """Wait until every writer has that many more acknowledged transactions."""
        wanted = [count + transactions for count in self._clients.counts]
        wait_until(
            "every writer writes",
            lambda: all(count >= most for count, most in zip(self._clients.counts, wanted, strict=True)),
        )

    def wait_arriving(self, site: str) -> None:
        """Wait until a transaction that is acknowledged after this call is at `site`."""
        before = self.acknowledged
        wait_until(f"changes arrive at {site}", lambda: (self.acknowledged - before) & set(self.found(site)))

    def assert_exactly_once(self, *sites: str) -> None:
        """Assert that every site has each acknowledged transaction exactly once, complete, and nothing unknown.

        Of transactions in doubt all sites must have the same. Call it after `end`, when all sites have converged.
        """
        assert self._clients.failures == []
        acknowledged, doubtful = self._clients.acknowledged, self._clients.doubtful
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
        """Return how often each transaction is at a site, by the table without a key."""
        return Counter(number for (number,) in self._system.execute(site, f"SELECT a FROM {self._schema}.twins"))

    def _write(self, session: psycopg.Connection[Any], number: int) -> None:
        for insert in self._inserts:
            session.execute(insert, (number,))


@contextlib.contextmanager
def writing(system: Sites, site: str, schema: str = "public", clients: int = CLIENTS) -> Iterator[Writers]:
    """Write at `site` while the block runs, into empty tables."""
    system.execute(site, f"TRUNCATE {', '.join(f'{schema}.{table}' for table in _TABLES)}")
    writers = Writers(system, site, schema, clients)
    try:
        yield writers
    finally:
        writers.end()
