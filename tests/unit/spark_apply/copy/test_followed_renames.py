"""Copies beside DDL that renames tables: the record says what a table is called, before the list of tables does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import destination_column
from headrace.databases.ports import Instantiation, PartOf
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.copy import instantiation as module
from tests.support.copies.table_copies import APPLY, TOPOLOGY, World

A = TableName("public", "a")


class Joins:
    """Stands in for the coordinator, which applies nothing."""

    is_joined, applied_scn = True, Scn(1)
    truncated_parts: Mapping[PartOf, Scn] = {}

    def hold(self, scn: Any) -> None: ...

    def leave_out(self, tables: Any, parts: Any = ()) -> bool:
        raise AssertionError(tables)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_IDLE_S", "_LOOK_AGAIN_S"):
        monkeypatch.setattr(module, name, 0.01)


@pytest.fixture
def world() -> World:
    world = World()
    world.takes_ddl = True
    world.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="*", ddl=True),)),))
    world.create("a")
    world.create("b")
    return world


def put(world: World, record: Instantiation) -> None:
    destination = MemoryDestination(store=world.store)
    progress = destination.progress(TOPOLOGY, APPLY)
    assert progress is not None
    destination.record_instantiation(TOPOLOGY, APPLY, progress.epoch, record)


def rename_here(world: World, name: str, later: str) -> None:
    """What an apply server does with a RENAME."""
    record = world.recorded()[name]
    table = world.store.tables["public", later] = world.store.tables.pop(("public", name))
    table.table = replace(table.table, name=later)
    put(world, replace(record, name=later))


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_look_between_the_rename_and_its_settling_changes_no_record(world: World, is_exchanged: bool) -> None:
    copying = world.copying()
    copying.run_first()
    copying._joins = copying._marks.detached.joins = Joins()  # type: ignore[assignment]
    rename_here(world, "a", "x")
    if is_exchanged:
        rename_here(world, "b", "a")
        rename_here(world, "x", "b")
    else:
        world.store.create_table("public", "a", [destination_column(name) for name in ("id", "v")], key=["id"])
    before = world.recorded()
    for _ in range(3):
        copying._look(copying._joins)
    assert world.recorded() == before
    assert {each.state for each in before.values()} == {"DONE"}
    assert not copying._records.twice


def test_driver_starts_while_a_rename_is_on_its_way(world: World) -> None:
    world.copying().run_first()
    world.source.rename_table("public.a", "old")
    world.source.create_table("public.a", ["id", "v"], key=["id"], ddl=True)
    before = world.recorded()
    copying = world.copying()
    copying.run_first()
    assert {(each.source.name, each.destination.name) for each in copying.config.tables} == {("old", "a"), ("b", "b")}
    assert world.recorded() == before
    starts, _ = copying.starts()
    assert starts[A].scn == before["a"].scn
    (parked,) = copying._records.parked
    assert (parked.destination, parked.as_of > 0) == (A, True)
    assert copying._records.progress[A].state == "DONE"
    copying._records.applied_scn = parked.as_of
    copying._standings()
    shown = copying._records.progress[A]
    assert (shown.state, "which the source calls public.old now" in shown.problem) == ("FAILED", True)


def test_driver_starts_behind_a_rename_by_hand(world: World) -> None:
    world.copying().run_first()
    world.source.rename_table("public.a", "old")
    table = world.store.tables["public", "old"] = world.store.tables.pop(("public", "a"))
    table.table = replace(table.table, name="old")
    world.copying().run_first()
    assert {name: each.state for name, each in world.recorded().items()} == {"old": "DONE", "b": "DONE"}


def test_exchange_by_hand_at_both_is_copied_again(world: World) -> None:
    world.copying().run_first()
    world.may_empty = True
    for was, later in [("a", "x"), ("b", "a"), ("x", "b")]:
        world.source.rename_table(f"public.{was}", later)
        table = world.store.tables["public", later] = world.store.tables.pop(("public", was))
        table.table = replace(table.table, name=later)
    world.copying().run_first()
    assert {each.state for each in world.recorded().values()} <= {"DONE", "LEFT", "COPIED"}
    assert any(each.state != "DONE" or each.scn > 1 for each in world.recorded().values())
