"""Tables that DDL makes are not copied while their CREATE TABLE may still arrive, nor when their DROP TABLE has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import ApplyError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import destination_column
from headrace.databases.ports import DdlPlace, Instantiation
from headrace.databases.table_digest import TableDigest
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import BY_RECORD_SCN, ReplicatedTables, TableToInstantiate
from spark_apply.copy import instantiation as module
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.records.standing import unlisted
from spark_apply.copy.records.tables import TableProgress
from spark_apply.driver.settling import DdlSettling
from spark_apply.tables.unsettled import TableChanges, recorded_table
from tests.support.copies.table_copies import APPLY, TOPOLOGY, World

NEW = TableName("public", "new")


class Joins:
    """Stands in for the coordinator: `applied` says what is applied when it is asked."""

    def __init__(self, applied: Callable[[], int]) -> None:
        self._applied, self.left_out, self.joined = applied, set[Any](), set[str]()
        self.is_joined, self.truncated_parts = True, dict[Any, Scn]()

    @property
    def applied_scn(self) -> Scn:
        return Scn(self._applied())

    def emptied_scn(self, table: Any) -> None:
        return None

    def hold_now(self) -> None: ...

    def hold(self, scn: Any) -> None: ...

    def leave_out(self, tables: Any, parts: Any = ()) -> bool:
        self.left_out |= set(tables)
        return True

    def join(self, tables: Any) -> bool:
        self.joined |= {each.name for each in tables}
        destination = MemoryDestination(store=self.world.store)
        progress = destination.progress(TOPOLOGY, APPLY)
        destination.join_tables(TOPOLOGY, APPLY, progress.epoch, tables, through=progress.low_watermark)
        return True

    world: World


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_IDLE_S", "_LOOK_AGAIN_S"):
        monkeypatch.setattr(module, name, 0.01)


def with_new_table(*others: str) -> World:
    """The source has made `new`, with rows, and the destination has not; all others are at both."""
    world = World()
    world.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="*", ddl=True),)),))
    for name in others:
        world.create(name)
    world.source.create_table("public.new", ["id", "v"], key=["id"], ddl=True)
    with world.source.transaction() as transaction:
        transaction.insert("public.new", id="1", v="x")
    return world


def make_here(world: World) -> None:
    world.store.create_table("public", "new", [destination_column(column) for column in ("id", "v")], key=["id"])


def record_here(world: World, scn: int = 5, state: str = "DONE") -> None:
    """What an apply server does with the CREATE TABLE."""
    make_here(world)
    destination = MemoryDestination(store=world.store)
    progress = destination.progress(TOPOLOGY, APPLY)
    assert progress is not None
    destination.record_instantiation(TOPOLOGY, APPLY, progress.epoch, made(world, scn, state))


def made(world: World, scn: int = 5, state: str = "DONE") -> Instantiation:
    (identity,) = (each.identity for each in world.source.captured(TOPOLOGY) if each.name == "new")
    return Instantiation(
        source="dbs1",
        identity=identity,
        owner="public",
        name="new",
        scn=Scn(scn),
        state=state,
        digest=str(TableDigest()),
    )


def pending(copying: TableInstantiation) -> list[str]:
    return [each.table.destination.name for each in copying._pending(copying._standings())]


def beside(world: World, joins: Joins, until: Callable[[], bool], copying: TableInstantiation) -> None:
    joins.world, looks = world, 0

    def should_end() -> bool:
        nonlocal looks
        looks += 1
        assert looks < 3000, world.states
        return until()

    world.should_end = should_end
    copying.run_beside(joins)


def test_first_copies_do_not_wait_for_a_table_whose_creation_is_on_its_way() -> None:
    world = with_new_table("a")
    make_here(world)
    copying = world.copying()
    copying.run_first()
    assert {name: each.state for name, each in world.recorded().items()} == {"a": "DONE"}
    starts, _ = copying.starts()
    assert (starts["public", "new"].scn, starts["public", "new"].is_awaited) == (None, True)
    assert not starts["public", "a"].is_awaited
    shown = copying._records.progress[NEW]
    assert shown.state == "PENDING"
    assert shown.problem.startswith("waits for its CREATE TABLE to arrive; ")
    assert scn_text(max(each.as_of for each in copying.config.tables)) in shown.problem


def test_table_whose_creation_can_not_arrive_any_more_is_copied() -> None:
    """Everything committed before the driver's start is applied: the LCR was discarded, or not made."""
    world = with_new_table("a")
    make_here(world)
    copying = world.copying()
    copying._records.applied_scn = max(each.as_of for each in copying.config.tables)
    copying.run_first()
    assert {each.state for each in world.recorded().values()} == {"DONE"}
    world.assert_same("a", "new")


def test_new_table_is_copied_beside_as_soon_as_its_creation_is_behind() -> None:
    world = with_new_table("a")
    make_here(world)
    copying = world.copying()
    as_of = max(each.as_of for each in copying.config.tables)
    copying.run_first()
    low = 0

    def applied() -> int:
        nonlocal low
        assert "new" not in world.recorded(), "it is not asked any more"
        low += max(1, as_of // 20)
        return min(low, as_of)

    beside(world, Joins(applied), lambda: world.recorded().get("new", made(world, 0, "")).state == "DONE", copying)
    assert low >= as_of
    world.assert_same("a", "new")


def test_table_whose_creation_never_came_is_copied_when_an_operator_has_made_it() -> None:
    """As the status says of it while it waits."""
    world = with_new_table("a")
    copying = world.copying()
    as_of = max(each.as_of for each in copying.config.tables)
    copying.run_first()
    assert "create it here" in copying._records.progress[NEW].problem
    looks = 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            assert world.recorded().get("new", made(world, 0, "")).state != "DONE"
            make_here(world)
        return looks > 20 and world.recorded().get("new", made(world, 0, "")).state == "DONE"

    beside(world, Joins(lambda: int(as_of)), until, copying)
    world.assert_same("a", "new")


def test_what_is_applied_is_asked_before_the_records_are_read() -> None:
    """The LCR is applied between the two: the table must not count as one whose LCR has not made it."""
    world = with_new_table("a")
    copying = world.copying()
    copying.run_first()
    opened = world.source.opened

    def applied() -> int:
        if "new" not in world.recorded():
            record_here(world)
        return BY_RECORD_SCN - 1

    joins = Joins(applied)
    copying._joins = joins  # type: ignore[assignment]
    assert pending(copying) == []
    assert world.source.opened == opened
    assert copying._records.progress[NEW].state == "DONE"


def test_loop_that_does_not_answer_leaves_the_table_waiting() -> None:
    world = with_new_table("a")
    make_here(world)
    copying = world.copying()
    copying.run_first()

    def applied() -> int:
        raise ApplyError("it is busy")

    copying._joins = Joins(applied)  # type: ignore[assignment]
    assert pending(copying) == []


def test_low_watermark_that_goes_back_for_a_join_makes_no_table_wait_again() -> None:
    world = with_new_table("a")
    copying = world.copying()
    answers = iter([int(copying.config.tables[-1].as_of), 1])
    copying._joins = Joins(lambda: next(answers))  # type: ignore[assignment]
    copying._standings()
    copying._note_applied()
    assert "new" in pending(copying)


def test_table_that_was_made_is_not_left_out_any_more() -> None:
    """If it must be copied later, its changes are skipped first, as those of any table that is applied."""
    world = with_new_table("a")
    copying = world.copying()
    copying.run_first()
    joins = Joins(lambda: 0)
    looks = 0

    def until() -> bool:
        nonlocal looks
        looks += 1
        if looks == 5:
            assert ("public", "new") in copying._left_out
            record_here(world)
        return looks > 5 and ("public", "new") not in copying._left_out

    beside(world, joins, until, copying)
    assert joins.joined == set()


@pytest.mark.parametrize("state", ["DONE", "COPYING"])
def test_table_that_ddl_dropped_is_not_copied_and_leaves_the_status(state: str) -> None:
    """Between the DROP and the reader's look at its outcome, the list still has the table, and no record."""
    world = with_new_table("a")
    copying = world.copying()
    copying.run_first()
    record_here(world, state=state)
    assert pending(copying) == ([] if state == "DONE" else ["new"])
    identity = made(world).identity
    world.store.drop_table("public", "new")
    (key,) = [key for key in world.store.instantiations if identity in key]
    del world.store.instantiations[key]
    copying._records.applied_scn = Scn(BY_RECORD_SCN - 1)
    assert pending(copying) == []
    copying.config.replicated.remove(identity)
    copying._standings()
    assert world.states[-1] == ("new", "GONE")
    assert NEW not in copying._records.progress


# --------------------------------------------------------------------------- settling


def test_table_is_replicated_when_its_record_is_there() -> None:
    world = with_new_table("a")
    copying = world.copying()
    copying.run_first()
    config, shown = copying.config, list[TableProgress]()
    identity = made(world).identity
    config.replicated.remove(identity)  # the driver started before it was made
    settling = DdlSettling(config, MemoryDestination(store=world.store), shown.append)
    place = DdlPlace(source="dbs1", transaction_id=1, order_scn=5, position=0)
    assert not settling.fates([place]).outcomes
    record_here(world)
    fates = settling.fates([place])
    table = recorded_table(identity, NEW, 7)
    settling.take_up(TableChanges(added=((table, fates.records[identity]),)), fates.records)
    assert config.tables[-1] == table
    assert [(each.name, each.state) for each in shown] == [("new", "DONE")]
    assert pending(copying) == []
    settling.take_up(TableChanges(removed=(table,)), {})
    assert table not in config.tables
    assert [(each.name, each.state) for each in shown][1:] == [("new", "GONE")]
    settling.take_up(TableChanges(removed=(table,)), {})
    assert len(shown) == 2


def test_table_that_was_taken_up_is_never_copied_without_a_record() -> None:
    world = with_new_table("a")
    copying = world.copying()
    copying.run_first()
    record = made(world)
    copying.config.replicated.add(recorded_table(record.identity, NEW, 7))
    copying._joins = Joins(lambda: BY_RECORD_SCN - 1)  # type: ignore[assignment]
    copying._records.applied_scn = Scn(BY_RECORD_SCN - 1)
    assert pending(copying) == []


def test_recorded_table_that_the_source_does_not_name_is_applied_by_its_record() -> None:
    tables = (TableToInstantiate(identity="1.1.5.9", source=NEW, destination=NEW, object_numbers=(5,)),)
    records = [
        Instantiation(source="dbs1", identity=identity, owner="public", name="gone", scn=Scn(30), state=state)
        for identity, state in (
            ("1.1.5.9", "DONE"),
            ("1.1.6.9", "DONE"),
            ("1.1.7.9", "LEFT"),
            ("1.1.8.9", "COPYING"),
            ("no number", "DONE"),
        )
    ]
    ((table, start),) = unlisted(tables, records)
    assert (table.identity, table.object_numbers, table.destination.name) == ("1.1.6.9", (6,), "gone")
    assert (start.scn, start.is_joining, table.as_of) == (30, False, BY_RECORD_SCN)


# --------------------------------------------------------------------------- the list


def test_readers_of_the_list_see_all_of_it_before_a_change_or_behind_it() -> None:
    def table(name: str, identity: str) -> TableToInstantiate:
        known = TableName("public", name)
        return TableToInstantiate(identity=identity, source=known, destination=known, object_numbers=(1,))

    tables = ReplicatedTables([table("a", "1"), table("b", "2")])
    reading = iter(tables)
    assert next(reading).identity == "1"
    tables.add(table("b", "3"))
    tables.remove("1")
    assert [each.identity for each in reading] == ["2"]
    assert [each.identity for each in tables] == ["3"]
    tables.put(table("c", "3"))
    tables.put(table("d", "4"))
    assert [each.destination.name for each in tables] == ["c"]
    assert (len(tables), tables[0].as_of, tables[:1]) == (1, FIRST_SCN, (table("c", "3"),))
