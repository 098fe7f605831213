"""A copying task that is frozen with a piece in hand and thaws when its table is copied again: real databases, no
Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable, FencedError
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports.copying import TablePlan
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy import instantiation as module
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from tests.support.copies.copying_threads import FreezingTask, ThreadWorkers
from tests.support.copies.table_copies import one_way
from tests.support.databases.captured_source import CapturedSource
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY, APPLY = "topo", "apply_from_src"
BLOCK_BYTES = 8192


class OneBlockPieces(PostgresTableReader):
    def plan(self, owner, name, columns, *, snapshot="", piece_bytes=BLOCK_BYTES, rows="") -> TablePlan:
        return super().plan(owner, name, columns, snapshot=snapshot, piece_bytes=BLOCK_BYTES, rows=rows)


class Copying:
    """Table `t`, without a key, with a piece for each of the two tasks."""

    def __init__(self, here: str, there: str, task: FreezingTask, opened: contextlib.ExitStack) -> None:
        self.here, self.there = (opened.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in (here, there))
        for connection in (self.here, self.there):
            connection.execute("CREATE TABLE t (id int, v text)")
        self.here.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        self.here.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 10) n")
        source = opened.enter_context(contextlib.closing(CapturedSource(here, site="src")))
        source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="t"),))])
        opened.callback(source.remove, TOPOLOGY)
        self.destination = opened.enter_context(contextlib.closing(PostgresDestination(there, site="dst")))
        self.destination.prepare(TOPOLOGY)
        tables = tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
            )
            for table in source.captured(TOPOLOGY)
        )
        self.task = task
        self.workers = task.workers = ThreadWorkers(
            lambda server, incarnation: CopyPlaces(
                source=lambda: OneBlockPieces(here),
                destination=lambda: OneBlockPieces(there),
                session=lambda epoch, tag: task.session(
                    PostgresDestination(there).open_session(
                        TOPOLOGY, APPLY, server=server, epoch=epoch, tag=tag, incarnation=incarnation
                    ),
                    is_last=server == 1,
                ),
            )
        )
        config = ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=DatabaseAccess(site="src", kind="postgres", dsn=here),
            destination=DatabaseAccess(site="dst", kind="postgres", dsn=there),
            queue="",
            parallelism=2,
            tables=tables,
        )
        self.instantiation = TableInstantiation(
            config=config,
            both_ways=one_way(config),
            source=source,
            destination=self.destination,
            source_reader=opened.enter_context(contextlib.closing(OneBlockPieces(here))),
            destination_reader=opened.enter_context(contextlib.closing(OneBlockPieces(there))),
            workers=self.workers,
            epoch=self.destination.raise_epoch(TOPOLOGY, APPLY).epoch,
            moved=lambda progress: None,
            should_end=lambda: False,
        )

    def state(self) -> str:
        (found,) = self.destination.instantiations(TOPOLOGY, APPLY)
        return found.state

    def rows(self, connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        return connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=cases({"before its COPY": False, "in its COPY": True}, core=["in its COPY"]))
def copying(request, source_database: str, destination_database: str, opened: contextlib.ExitStack) -> Copying:
    return Copying(source_database, destination_database, FreezingTask(in_copy=request.param), opened)


def test_frozen_task_is_ended_before_its_table_is_copied_again(copying: Copying):
    def thaw_in_second_round(_: Any) -> None:
        if len(copying.workers.jobs) == 2 and copying.task.error is None:
            copying.task.thaw()

    copying.workers.before_piece = thaw_in_second_round
    copying.instantiation.run_first()
    assert isinstance(copying.task.error, DatabaseUnavailable)
    assert len(copying.workers.jobs) == 2
    assert copying.state() == "DONE"
    assert copying.rows(copying.there) == copying.rows(copying.here)


def test_task_frozen_in_the_first_copies_writes_nothing_after_they_end(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_FIRST_ROUNDS_MAX", 1)
    copying.instantiation.run_first()
    assert copying.state() == "COPYING"
    with pytest.raises(FencedError):
        copying.workers.jobs[0].places[1].session(copying.instantiation.epoch, b"")
    copying.task.thaw()
    assert isinstance(copying.task.error, DatabaseUnavailable)
    assert len(copying.rows(copying.there)) < len(copying.rows(copying.here))
