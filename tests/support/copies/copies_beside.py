"""Copies tables during an engine's run, step by step and at random moments.

`spark_apply.copy.instantiation` does the same during a driver's run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from threading import Event
from typing import Any

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.ports import Instantiation
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, Engine
from tests.support.histories.apply_history import Reference
from tests.support.histories.apply_world import World

_SHARE = 0.05  # share of the engine's steps in which a copy continues


def record_of(name: str, scn: int, state: str) -> Instantiation:
    return Instantiation(source=SOURCE, identity=name, owner="public", name=name, scn=scn, state=state, digest="00")


class CopiesBeside:
    """Called at every step of the engine. Its unfinished work dies with the engine's driver.

    Args:
        world: whose tables are copied.
        names: of the tables that the destination lacks at the start.
        again: how often a table that has joined is left out and copied again.
    """

    def __init__(self, world: World, names: tuple[str, ...], seed: int, *, again: int = 0) -> None:
        self.world, self.names, self.again = world, names, again
        self.rng = random.Random(seed)
        self.copies = self.joins_made = self.died = self.rewound = self.emptied = 0
        self._joins: Any = None
        self._forget()

    def _forget(self) -> None:
        self._waits_for: Event | None = None
        self._held = False
        self._copying: Instantiation | None = None
        self._leaving = ""

    def __call__(self, engine: Engine) -> None:
        if engine.joins is not self._joins:
            self.died += self._held or self._waits_for is not None
            self._forget()
            self._joins = engine.joins
        waits = self._waits_for is not None and not self._waits_for.is_set()
        if waits or self.rng.random() > _SHARE:
            return
        try:
            self._step(engine)
        except DatabaseUnavailable:
            return

    def is_done(self, engine: Engine) -> bool:
        states = {
            name: self._recorded(engine)[name].state if name in self._recorded(engine) else "" for name in self.names
        }
        return set(states.values()) <= {"DONE", "JOINING"} and engine.joins.is_joined and not self.again

    def _recorded(self, engine: Engine) -> dict[str, Instantiation]:
        return {each.name: each for each in engine.destination.instantiations(TOPOLOGY, APPLY)}

    def _step(self, engine: Engine) -> None:
        recorded = self._recorded(engine)
        copied = [each for each in recorded.values() if each.state == "COPIED"]
        if self._waits_for is not None:
            self._settled(engine, copied)
            return
        finished = [name for name, each in recorded.items() if each.state in {"DONE", "JOINING"}]
        pending = [name for name in self.names if name not in finished and name not in {each.name for each in copied}]
        if copied and not self._held and (not pending or self.rng.random() < 0.3):
            self.rewound += min(each.scn for each in copied) < engine.coordinator.watermarks.low
            self._waits_for = engine.joins.join(copied)
        elif pending:
            self._copy(engine, self.rng.choice(pending) if self._copying is None else self._copying.name, copied)
        elif self.again and finished and not copied:
            self._leaving = self.rng.choice(finished)
            # Recorded first, as the product does: a driver that dies after its rows are left out must not take the
            # table for finished.
            self._record(engine, record_of(self._leaving, 0, "PENDING"))
            self._waits_for = engine.joins.leave_out([("public", self._leaving)])

    def _settled(self, engine: Engine, copied: list[Instantiation]) -> None:
        self._waits_for = None
        if self._leaving:
            self._leaving = ""
            self.again -= 1
        else:
            self.joins_made += 1
            engine.joins.hold(min((each.scn for each in copied), default=None))

    def _copy(self, engine: Engine, name: str, copied: list[Instantiation]) -> None:
        """Make one step of three: hold the queue's durable position, take the snapshot, copy."""
        if not self._held:
            self._held = True
            engine.joins.hold(engine.told)
        elif self._copying is None:
            received = max(engine.coordinator.watermarks.received, engine.reader.needed_scn)
            later = [t.commit_scn for t in self.world.history if t.commit_scn >= received]
            scn = self.rng.choice(later[:5]) if later else self.world.history[-1].commit_scn
            self._copying = record_of(name, scn, "COPYING")
            self._record(engine, self._copying)
            engine.joins.hold(min([scn, *(each.scn for each in copied)]))
        elif (emptied := engine.joins.emptied_scn(("public", name))) is not None and emptied >= self._copying.scn:
            # The source has emptied it since: the log after that point has all of its rows.
            self._empty(engine, name)
            self._record(engine, replace(self._copying, scn=emptied, state="COPIED"))
            self._copying, self._held = None, False
            self.emptied += 1
        else:
            then = Reference({table: list(rows) for table, rows in self.world.start.items()})
            for transaction in self.world.history:
                if transaction.commit_scn <= self._copying.scn:
                    then.apply(transaction)
            self._empty(engine, name)
            table = next(table for table in self.world.tables if table.name == name)
            self.world.place.insert(table, then.rows[name])
            self._record(engine, replace(self._copying, state="COPIED"))
            self._copying, self._held = None, False
            self.copies += 1

    @staticmethod
    def _empty(engine: Engine, name: str) -> None:
        session = engine.destination.open_session(
            TOPOLOGY, APPLY, server=engine.parallelism, epoch=engine.epoch, tag=b"\x00"
        )
        session.empty_tables([session.describe("public", name)])
        session.close()

    @staticmethod
    def _record(engine: Engine, instantiation: Instantiation) -> None:
        engine.destination.record_instantiation(TOPOLOGY, APPLY, engine.epoch, instantiation)
