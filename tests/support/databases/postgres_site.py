"""A database of the real server as a source under test."""

from __future__ import annotations

import time

import psycopg

from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.log_reading import Reading
from tests.support.databases.statements import row_of

ALL = (RuleSet(include=(Rule(owner="public"),)),)
INACTIVE_S = 60.0  # time for a server on a busy machine to notice a closed connection


class Site:
    """One database as a source, with a session of its user."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.user = psycopg.connect(dsn, autocommit=True)
        self.source = PostgresSource(dsn)
        self.streams: list[Reading] = []

    def run(self, query: str, *parameters: object) -> psycopg.Cursor[tuple[object, ...]]:
        return self.user.execute(query, parameters or None)

    def prepare(self, rules: tuple[RuleSet, ...] = ALL) -> tuple[str, ...]:
        return self.source.prepare("topo", rules)

    def open(self, start: int = FIRST_SCN, *, force_libpq: bool = False) -> Reading:
        reading = Reading(self.source.open_stream("topo", Scn(start), force_libpq=force_libpq))
        self.streams.append(reading)
        return reading

    def mark(self) -> Scn:
        """Write a marker; its transaction's commit is the next one in the log."""
        return Scn(self.source.write_marker(b"mark") + 1)

    def reconnect(self) -> None:
        self.user.close()
        self.user = psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        for reading in self.streams:
            reading.stream.close()
        self.source.close()
        self.user.close()


def wait_inactive(site: Site) -> None:
    deadline = time.monotonic() + INACTIVE_S
    while site.run(
        "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
    ).fetchone() != (0,):
        assert time.monotonic() < deadline, "the slot stays in use"
        time.sleep(0.02)


def slot_of(site: Site) -> str:
    return slot_name("topo", str(row_of(site.run("SELECT current_database()"))[0]))
