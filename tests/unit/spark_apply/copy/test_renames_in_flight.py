"""Tables whose RENAME is on its way when a driver starts: the destination's record has the name."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.databases.ports import Instantiation
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.records.renames_in_flight import parked_problem, with_recorded_names

HERE = object()


def table(name: str, number: int, *, is_made: bool = False, takes_ddl: bool = True) -> TableToInstantiate:
    known = TableName("public", name)
    return TableToInstantiate(
        identity=str(number),
        source=known,
        destination=known,
        object_numbers=(number,),
        as_of=Scn(100) if is_made else FIRST_SCN,
        takes_ddl=takes_ddl,
    )


def record(name: str, number: int, state: str = "DONE", now: Any = HERE) -> Instantiation:
    return Instantiation(
        source="a",
        identity=str(number),
        owner="public",
        name=name,
        scn=Scn(5),
        state=state,
        name_now=("public", name) if now is HERE else now,
    )


def names(tables: list[TableToInstantiate], *records: Instantiation) -> tuple[list[str], list[str]]:
    """Return the names at the destination, and those of the parked tables."""
    named, parked = with_recorded_names(tables, records)
    assert [each.source for each in named] == [each.source for each in tables if each not in parked]
    return [each.destination.name for each in named], [each.destination.name for each in parked]


@pytest.mark.parametrize("state", ["DONE", "KEPT", "JOINING", "COPIED"])
def test_table_has_the_recorded_name(state: str) -> None:
    assert names([table("t_old", 1)], record("t", 1, state)) == (["t"], [])


@pytest.mark.parametrize("state", ["COPYING", "COMPARING", "FAILED", "LEFT", "PENDING"])
def test_table_that_is_copied_has_the_sources_name(state: str) -> None:
    assert names([table("t_old", 1)], record("t", 1, state)) == (["t_old"], [])


@pytest.mark.parametrize("now", [("public", "t_old"), ("public", "other"), None])
def test_table_that_an_operator_renamed_has_the_sources_name(now: Any) -> None:
    assert names([table("t_old", 1)], record("t", 1, now=now)) == (["t_old"], [])


def test_table_without_ddl_has_the_sources_name() -> None:
    assert names([table("t_old", 1, takes_ddl=False)], record("t", 1)) == (["t_old"], [])


def test_names_that_are_exchanged() -> None:
    assert names([table("u", 1), table("t", 2)], record("t", 1), record("u", 2)) == (["t", "u"], [])


def test_new_table_of_the_name_waits_for_its_creation() -> None:
    assert names([table("t_old", 1), table("t", 2, is_made=True)], record("t", 1)) == (["t"], ["t"])


def test_new_table_that_was_not_made_by_ddl_keeps_the_name() -> None:
    """It is copied when the operator has renamed the other one, as without DDL: nothing else would copy it."""
    assert names([table("t_old", 1), table("t", 2)], record("t", 1)) == (["t_old", "t"], [])


def test_two_tables_recorded_under_one_name_keep_the_sources_names() -> None:
    found = names([table("a", 1), table("b", 2), table("c", 3)], record("t", 1), record("t", 2), record("a", 3))
    assert found == (["a", "b", "c"], [])


def test_parked_table_says_what_to_do() -> None:
    new = table("t", 2, is_made=True)
    assert "which the source calls public.t_old now: rename it there, too" in parked_problem(new, table("t_old", 1))
    assert "stop and start the apply process" in parked_problem(new, None)
