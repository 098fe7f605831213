"""Two apply processes of a real destination that begin at once to copy one table, each from a real source of its own. Without Ray and Spark."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from databases.connectors import DatabaseAccess
from databases.embedded import EmbeddedServer
from databases.ports import Instantiation
from databases.postgres.destination.database import PostgresDestination
from databases.postgres.table_copy import PostgresTableReader
from rules.rule import Rule, RuleSet
from spark_apply.copy import instantiation as module
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.tasks import CopyPlaces
from spark_apply.driver.config import ApplyConfig, TableToInstantiate
from streams.table_name import TableName
from tests.support.captured_source import CapturedSource
from tests.support.copying_threads import ThreadWorkers

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = "shop"
ROOMS = "CREATE TABLE rooms (id int PRIMARY KEY, v text)"


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


class Pair:
    """One apply process, with a source and the destination."""

    def __init__(self, name: str, source: str, destination: str) -> None:
        self.name, self.dsn, self.target = f"apply_from_{name}", source, destination
        self.source, self.destination = CapturedSource(source, site=name), PostgresDestination(destination, site="dst")
        self.opened = contextlib.ExitStack()
        self.opened.callback(self.destination.close)
        self.opened.callback(self.source.close)
        self.source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="rooms"),))])
        self.site, self.problem = name, ""

    def run(self) -> None:
        """What a driver does before it applies anything."""
        epoch = self.destination.raise_epoch(TOPOLOGY, self.name).epoch
        tables = tuple(
            TableToInstantiate(
                identity=table.identity, source=TableName.of(table), destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
            )
            for table in self.source.captured(TOPOLOGY)
        )
        config = ApplyConfig(
            topology=TOPOLOGY, apply=self.name, source=DatabaseAccess(site=self.site, kind="postgres", dsn=self.dsn),
            destination=DatabaseAccess(site="dst", kind="postgres", dsn=self.target), queue="", parallelism=2, tables=tables,
        )
        workers = ThreadWorkers(lambda server, incarnation: CopyPlaces(
            source=lambda: PostgresTableReader(self.dsn), destination=lambda: PostgresTableReader(self.target),
            session=lambda epoch, tag: PostgresDestination(self.target, site="dst").open_session(
                TOPOLOGY, self.name, server=server, epoch=epoch, tag=tag, incarnation=incarnation
            ),
        ))
        end = time.monotonic() + 30.0
        readers = PostgresTableReader(self.dsn), PostgresTableReader(self.target)
        with contextlib.closing(readers[0]), contextlib.closing(readers[1]):
            made = TableInstantiation(
                config=config, source=self.source, destination=self.destination, source_reader=readers[0], destination_reader=readers[1],
                workers=workers, epoch=epoch, moved=lambda table: None, should_end=lambda: time.monotonic() > end,
            )
            made.run_first()
            self.problem = made.problem

    @property
    def record(self) -> Instantiation | None:
        return next(iter(self.destination.instantiations(TOPOLOGY, self.name)), None)


@pytest.fixture
def pairs(
    fresh_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, pg_destination: EmbeddedServer, monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Pair, Pair]]:
    monkeypatch.setattr(module, "_FIRST_ROUNDS_MAX", 30)  # in place of what comes beside
    monkeypatch.setattr(module, "_WAITING_S", 0.1)
    destination = fresh_database(pg_destination)
    with contextlib.closing(PostgresDestination(destination, site="dst")) as prepared:
        prepared.prepare(TOPOLOGY)
    execute(destination, ROOMS)
    sources = [fresh_database(pg_source), fresh_database(pg_source)]
    for dsn in sources:
        execute(dsn, ROOMS)
    one, two = (Pair(f"dbs{number}", dsn, destination) for number, dsn in enumerate(sources, 1))
    with one.opened, two.opened:
        yield one, two


def at_once(*pairs: Pair) -> None:
    threads = [threading.Thread(target=each.run) for each in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)


def test_of_two_that_copy_at_once_one_does_and_what_it_applies_then_stays(pairs: tuple[Pair, Pair]) -> None:
    for each in pairs:
        execute(each.dsn, "INSERT INTO rooms SELECT n, 'copied' FROM generate_series(1, 500) n")
    at_once(*pairs)
    first, second = sorted(pairs, key=lambda each: each.record is None or each.record.state != "DONE")
    assert first.record is not None
    assert second.record is not None
    assert (first.record.state, first.record.row_count) == ("DONE", 500)
    assert (second.record.state, second.record.scn) == ("FAILED", 0)
    assert first.name in second.record.problem
    execute(first.target, "INSERT INTO rooms VALUES (501, 'applied')")
    second.run()
    second.run()
    assert execute(first.target, "SELECT count(*) FROM rooms") == [(501,)]
    execute(first.target, "UPDATE headrace.instantiation SET state = 'COPYING', scn = 5")  # as an earlier version left them
    at_once(*pairs)
    assert execute(first.target, "SELECT count(*) FROM rooms") == [(501,)]
    assert execute(first.target, "SELECT DISTINCT state FROM headrace.instantiation") == [("FAILED",)]


def test_table_that_is_empty_everywhere_is_done_by_both(pairs: tuple[Pair, Pair]) -> None:
    at_once(*pairs)
    assert [(each.record.state, each.record.row_count) if each.record else None for each in pairs] == [("DONE", 0)] * 2
