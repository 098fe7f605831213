"""A handler ends its process while an apply server runs it: real processes, a real PostgreSQL destination, no Ray and no Spark."""

from __future__ import annotations

import multiprocessing
from typing import Any

import psycopg
import pytest

from databases.postgres.destination.database import PostgresDestination
from rules.conflict_handlers import ConflictRules
from spark_apply.handlers.crashes import CRASHES_MAX
from spark_apply.server.resolution import ConflictSettings
from tests.support.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.conflicts import COLUMNS
from tests.support.handlers import Handled, inserts, rules_of
from tests.support.writes import version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXIT = 7
"""What the handler ends its process with, so that no other end of it is taken for the fault."""

LIFE_S = 60.0
"""Bounds one process: it starts, imports and applies three rows in a few seconds, also on a busy machine."""

ENDS = f"""
import os
def run(lcr, session):
    key = lcr.get_value("new", "id").decoded
    session.execute("INSERT INTO public.log (id, a) VALUES ($1, $2)", key, "x")
    lcr.execute(True)
    if key == 2:
        os._exit({EXIT})
"""


class Placed(Handled):
    """`Handled` at a PostgreSQL destination."""

    def __init__(self, dsn: str, epoch: int, incarnation: int) -> None:
        self.database: Any = PostgresDestination(dsn, site="b")
        self.epoch, self.incarnation, self.rules = epoch, incarnation, rules_of(ENDS, dml=["run"])
        self.settings = ConflictSettings(apply=APPLY, source=SOURCE, site="b", rules=ConflictRules())
        self.server = self.new_server()
        table = self.database.describe("public", "c")
        assert table is not None
        self.versions = {"c": version_of(table), "d": version_of(table)}
        self.scn, self.now = 100, 0.0


def live(dsn: str, epoch: int, incarnation: int, first: int) -> None:
    """The life of one apply server: the transactions from this one on, carefully behind the first death."""
    at = Placed(dsn, epoch, incarnation)
    at.scn = 100 + 10 * (first - 1)
    at.apply(*[inserts(key) for key in range(first, 4)], is_careful=incarnation > 1)


def test_a_handler_that_ends_its_process_each_time_is_told_and_nothing_is_lost_or_twice(destination_database: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    database = PostgresDestination(destination_database, site="b")
    database.prepare(TOPOLOGY)
    epoch = database.raise_epoch(TOPOLOGY, APPLY).epoch
    spawn = multiprocessing.get_context("spawn")
    ends: list[int | None] = []
    with psycopg.connect(destination_database, autocommit=True) as admin:
        for name in ("c", "log"):
            admin.execute(f"CREATE TABLE public.{name} ({columns}, PRIMARY KEY (id))")
        while EXIT in ends[-1:] or not ends:
            assert len(ends) <= CRASHES_MAX + 1, "it is called for ever"
            done = admin.execute("SELECT count(*) FROM public.c").fetchone()
            assert done is not None
            process = spawn.Process(target=live, args=(destination_database, epoch, len(ends) + 1, done[0] + 1))
            process.start()
            process.join(LIFE_S)
            if process.exitcode is None:
                process.kill()
                process.join()
            ends.append(process.exitcode)
        assert ends == [EXIT] * (1 + CRASHES_MAX) + [0]
        for name, value in (("c", "a"), ("log", "x")):
            assert admin.execute(f"SELECT id, a FROM public.{name} ORDER BY id").fetchall() == [(1, value), (3, value)]
    (error,) = database.errors(TOPOLOGY, APPLY)
    assert error.message.startswith("own:run (")
    assert f"is not called again: {CRASHES_MAX} processes ended while it ran for this transaction" in error.message
