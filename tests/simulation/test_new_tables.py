"""New, renamed and dropped tables over kills, in one thread: the memory databases, and between them the real redo,
capture and apply.

Users create, fill, alter, rename and drop tables at random, exchange their names, and rebuild tables under their old
names. Mining, the driver, apply servers and the destination die at any moment, and answers of COMMITs are lost. At the
end the destination has the source's tables with the source's rows, each written once: half of the tables have no key, so
a row that was written twice stays there twice. Nothing is copied here, so a table whose CREATE TABLE did not arrive would
be missing.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import HeadraceError
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.source import MemoryTransaction
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import DdlOutcomeKind, Instantiation
from headrace.databases.table_digest import TableDigest
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.table_name import TableName
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from protos import codec
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.records.renames_in_flight import with_recorded_names
from spark_apply.copy.records.standing import standings, table_starts, unlisted
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.gate import Gate
from spark_apply.driver.loop.host import CoordinatorHost
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.settling import DdlSettling
from spark_apply.tables.arriving import ArrivingTables
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.hosted_driver import Driver, Queue
from tests.support.databases.source_contract import MemorySourceHarness
from tests.support.redo.source_redo import SourceRedo
from tests.support.session.seeds import scaled, seeds

RULES = RuleSet(include=(Rule(owner="public", tags=ANY_TAG, ddl=True),))
FIRST = "public.first"
NAMES = tuple(f"public.t{number}" for number in range(5))
AWAY = "public.away"  # while two tables exchange their names
TURNS_MAX = 4000  # many times what was ever needed


class Way(Driver):
    """A source, its redo, and an apply process that its tests kill."""

    def __init__(self, folder: Path, seed: int, *, renames: bool = False) -> None:
        self.renames = renames
        self.rng = random.Random(seed)
        self.harness = MemorySourceHarness()
        self.source = self.harness._memory
        self.source.create_table(FIRST, ["id", "v"], key=["id"])
        self.source.prepare(TOPOLOGY, (RULES,))
        self.redo = SourceRedo(self.harness, folder, RULES)
        self.store = MemoryStore()
        self.store.create_table("public", "first", [destination_column(name) for name in ("id", "v")], key=["id"])
        self.clock = VirtualClock()
        self.rows = 0
        destination = MemoryDestination(store=self.store)
        self.begin = self.source.current_scn()
        epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
        destination.record_low_watermark(TOPOLOGY, APPLY, epoch, self.begin)
        (table,) = self.source.captured(TOPOLOGY)
        record = Instantiation(
            source=SOURCE,
            identity=table.identity,
            owner="public",
            name="first",
            scn=self.begin,
            state="DONE",
            digest=str(TableDigest()),
        )
        destination.record_instantiation(TOPOLOGY, APPLY, epoch, record)
        self.tasks = {}
        self.mine()
        self.start_driver()

    # ------------------------------------------------------------------ users

    def transaction(self) -> None:
        with self.source.transaction() as user:
            for _ in range(self.rng.randint(1, 6)):
                if self.rng.random() < 0.15:
                    with user.rolled_back():
                        self.change(user)
                else:
                    self.change(user)

    def change(self, user: MemoryTransaction) -> None:
        rng, source = self.rng, self.source
        self.rows += 1
        there = [name for name in NAMES if source.has_table(name)]
        if self.renames and rng.random() < 0.2 and self.rename(user):
            return
        kind = rng.random()
        if not there or kind < 0.2:
            name = rng.choice(NAMES)
            if name not in there:
                user.create_table(name, ["id", "v"], key=rng.choice([["id"], []]))
            return
        name = rng.choice([*there, *([FIRST] if source.has_table(FIRST) else [])])
        if kind < 0.3 and name != FIRST:
            user.drop_table(name)
        elif kind < 0.36:
            user.truncate(name)
        elif kind < 0.46:
            user.add_column(name, f"c{self.rows}")
        elif kind < 0.8 or not source.rows(name):
            keyed = any(column.is_key for column in source.table(name).version.columns)
            user.insert(name, id=str(self.rows) if keyed else "same", v="x")
        else:
            columns = source.table(name).version.columns
            row = rng.choice(source.rows(name))
            key = {
                column.name: value
                for column, value in zip(columns, row, strict=True)
                if column.is_key or not any(each.is_key for each in columns)
            }
            if rng.random() < 0.5:
                user.update(name, key, v=f"u{self.rows}")
            else:
                user.delete(name, key)

    def rename(self, user: MemoryTransaction) -> bool:
        """Rename a table, exchange two names, or rebuild a table; return whether there was one to rename."""
        rng, has_table = self.rng, self.source.has_table
        there, free = [[name for name in (FIRST, *NAMES) if has_table(name) is is_there] for is_there in (True, False)]
        rng.shuffle(there)
        kind = rng.random()
        if kind < 0.35 and len(there) > 1:
            first, second = there[:2]
            moves = [(first, AWAY), (second, first), (AWAY, second)]
        elif free and there:
            moves = [(there[0], rng.choice(free))]
        else:
            return False
        for was, name in moves:
            user.rename_table(was, name)
            if rng.random() < 0.3:
                user.insert(name, id=f"r{self.rows}{name}", v="renamed")
        if len(moves) == 1 and kind < 0.8:
            user.create_table(there[0], ["id", "v"], key=rng.choice([["id"], []]))
            user.insert(there[0], id=f"n{self.rows}", v="rebuilt")
            if kind < 0.5:
                user.drop_table(moves[0][1])
        return True

    # ------------------------------------------------------------------ processes

    def mine(self) -> None:
        """Mine everything anew: transactions are cut elsewhere."""
        self.redo.catch_up()
        self.batches: list[LcrBatch] = list(self.redo.mine(self.redo.miner(), rows_max=self.rng.choice([1, 3, 1000])))
        self.queue = Queue(self.batches)

    def start_driver(self) -> None:
        """Begin with the destination's progress and records, as the apply process's actor and driver do."""
        destination = MemoryDestination(store=self.store)
        captured = self.source.captured(TOPOLOGY)
        as_of = self.source.write_marker(b"made")
        tables = [
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                as_of=as_of if table.is_made else FIRST_SCN,
                takes_ddl=True,
            )
            for table in captured
        ]
        access = partial(DatabaseAccess, kind="memory", dsn="")
        self.config = ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=access(site=SOURCE),
            destination=access(site="dbs2"),
            queue="q",
            parallelism=2,
            group_transactions=3,
            tables=tables,
        )
        progress = destination.raise_epoch(TOPOLOGY, APPLY)
        self.epoch = progress.epoch
        self.fits = TableFits(
            destination.describe, lambda version: "".join(f.fix for f in destination.preflight_tables([version]))
        )
        recorded = destination.instantiations(TOPOLOGY, APPLY)
        named, parked = with_recorded_names(tables, recorded)
        for each in parked:
            self.config.replicated.remove(each.identity)
        self.config.replicated.put(*named)
        starts = table_starts(standings(self.config.tables, recorded))
        reader = ApplyReader(
            source=SOURCE,
            progress=progress,
            rules=RuleEvaluation(RuleSet()),
            fits=self.fits,
            tables=ArrivingTables(
                starts,
                self.config.tables,
                lambda _: "",
                apply=APPLY,
                topology=TOPOLOGY,
                unlisted=unlisted(self.config.tables, recorded),
            ),
            settling=DdlSettling(self.config, destination, lambda _: None),
        )
        self.coordinator = ApplyCoordinator(
            progress=progress, errors=(), encode=codec.encode, group_transactions=3, group_rows=20, source=SOURCE
        )
        self.host = CoordinatorHost(
            self.config,
            epoch=self.epoch,
            destination=destination,
            reader=reader,
            coordinator=self.coordinator,
            fits=self.fits,
            make_links=lambda _: self.queue,  # type: ignore[return-value]  # stands in for the links
            clock=self.clock,
        )
        self.gate = Gate(self.config)
        self.token = self.gate.tokens.admit()
        self.gate.inbox = self.host.inbox
        self.host.begin()
        self.tasks = {}
        for number in range(2):
            self.start_task(number)

    def kill_driver(self) -> None:
        for _, server in self.tasks.values():
            server.close()
        self.mine()
        self.start_driver()

    def kill_task(self, number: int) -> None:
        stream, server = self.tasks.pop(number)
        server.close()
        self.gate.lost(stream, "killed")
        self.start_task(number)

    def turn(self) -> None:
        """Let each process do a little; those that fail begin anew."""
        self.clock.advance(0.2)
        try:
            self.host.turn(0.0)
        except HeadraceError:
            self.kill_driver()
            return
        for number in list(self.tasks):
            try:
                self.step_task(number)
            except HeadraceError:
                self.kill_task(number)

    def breaks(self) -> None:
        """Break something."""
        kind = self.rng.choice(["driver", "task", "answer", "answer and driver", "crash", "stream"])
        if kind == "driver":
            self.kill_driver()
        elif kind == "task":
            self.kill_task(self.rng.randrange(2))
        elif kind.startswith("answer"):
            before = len(self.store.lost_answers)
            self.store.lose_next_commit_answer(committed=self.rng.random() < 0.5)
            while kind != "answer" and len(self.store.lost_answers) > before and self.rng.random() < 0.95:
                self.turn()
            if kind != "answer":
                self.kill_driver()
        elif kind == "crash":
            self.store.crash()
            self.kill_driver()
        else:
            self.break_stream()

    def settle(self) -> None:
        """Run until everything is applied."""
        self.kill_driver()
        for _ in range(TURNS_MAX):
            if self.coordinator.watermarks.low >= self.batches[-1].through_scn:
                return
            self.turn()
        raise AssertionError(f"no end: {self.coordinator.status()}")

    # ------------------------------------------------------------------ what must be

    def assert_same(self) -> None:
        names = sorted(name for name in (FIRST, *NAMES) if self.source.has_table(name))
        assert sorted(f"{owner}.{name}" for owner, name in self.store.tables) == names
        for name in names:
            here = self.store.rows("public", name.partition(".")[2])
            assert Counter(here) == Counter(self.source.rows(name)), name
        destination = MemoryDestination(store=self.store)
        captured = {table.identity: TableName.of(table) for table in self.source.captured(TOPOLOGY)}
        records = destination.instantiations(TOPOLOGY, APPLY)
        assert {each.identity: TableName.of(each) for each in records} == captured
        assert {each.state for each in records} == {"DONE"}
        outcomes = Counter(each.outcome.kind for each in self.store.ddl_history)
        assert set(outcomes) <= {DdlOutcomeKind.APPLIED}, outcomes
        assert len({each.place for each in self.store.ddl_history}) == len(self.store.ddl_history), "made twice"
        assert not self.store.errors


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("new_tables_in_memory", test=20, soak=200))
def test_tables_and_rows_arrive_once_whatever_dies(tmp_path: Path, seed: int) -> None:
    live(Way(tmp_path / "redo", seed))


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("renamed_tables_in_memory", test=20, soak=200))
def test_rows_follow_renamed_tables_whatever_dies(tmp_path: Path, seed: int) -> None:
    live(Way(tmp_path / "redo", seed, renames=True))


def live(way: Way) -> None:
    """Let users and processes do something, and compare."""
    for _ in range(scaled(8, 20)):
        for _ in range(way.rng.randint(1, 5)):
            way.transaction()
        way.mine()
        way.kill_driver()  # its queue has the new batches
        for _ in range(way.rng.randint(1, 60)):
            way.turn()
            if way.rng.random() < 0.15:
                way.breaks()
    way.settle()
    way.assert_same()
