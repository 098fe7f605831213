"""From a real server's log to another real server, with parallel apply servers in one process, without Ray and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from headrace.databases.ports import ErrorTransaction
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.rules.rule import RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import APPLY, TOPOLOGY, Engine
from tests.support.redo.postgres_redo import RULES, RedoSite


class Pair:
    """A source with its redo log, and a destination whose table `p` may differ.

    Args:
        here: dsn of the source.
        there: dsn of the destination.
        folder: for the redo log.
    """

    def __init__(self, here: str, there: str, folder: Path) -> None:
        self.redo = RedoSite(here, folder)
        self.there = psycopg.connect(there, autocommit=True)
        self._dsn, self._settings = there, NO_TABLE_SETTINGS
        self.destination = PostgresDestination(there, site="dbs2")
        self.destination.prepare(TOPOLOGY)

    def create(self, here: str, there: str) -> None:
        self.redo.user.execute(here)
        self.there.execute(there)
        self.redo.source.prepare("topo", (RULES,))
        self.redo.attach()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.redo.user.execute(statement)

    def set(self, settings: TableSettings) -> None:
        """Set the destination's table settings; call it before `apply`."""
        self.destination.close()
        self.destination = PostgresDestination(self._dsn, site="dbs2", settings=settings)
        self._settings = settings

    def more(self, engine: Engine) -> None:
        """Apply what was committed since `apply` made the engine."""
        self.redo.catch_up()
        engine.batches = list(self.redo.mine(self.redo.miner()))
        engine.subscribe()
        engine.run()

    def apply(
        self,
        *,
        seed: int = 0,
        rules: RuleSet = RULES,
        instantiation: dict[tuple[str, str], int] | None = None,
        parallelism: int = 3,
    ) -> Engine:
        """Mine everything committed from the beginning and apply it with some servers."""
        self.redo.catch_up()
        batches = list(self.redo.mine(self.redo.miner(FIRST_SCN, rules)))
        engine = Engine(
            seed=seed,
            batches=batches,
            destination=self.destination,
            parallelism=parallelism,
            group_transactions=2,
            instantiation={name: TableStart(scn=Scn(scn)) for name, scn in (instantiation or {}).items()},
            tables=self._settings,
        )
        engine.run()
        return engine

    def here_and_there(
        self, query: str = "SELECT id, v FROM p ORDER BY 1"
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        return self.redo.user.execute(query).fetchall(), self.there.execute(query).fetchall()

    def assert_same(self, query: str = "SELECT id, v FROM p ORDER BY 1") -> None:
        here, there = self.here_and_there(query)
        assert here == there

    def errors(self) -> tuple[ErrorTransaction, ...]:
        return self.destination.errors(TOPOLOGY, APPLY)

    def close(self) -> None:
        self.redo.close()
        self.destination.close()
        self.there.close()
        source = PostgresSource(self.redo.dsn)
        source.remove("topo")
        source.close()
