"""A table that left the rules returns under another destination name: it is copied there and nothing is removed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import RenameTable, Transformation
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.records.renames import RenamedTables
from spark_apply.copy.records.standing import remade_problem, standings

STAFF = TableName("sales", "staff")
TABLE = TableToInstantiate(
    identity="i",
    source=TableName("hr", "employees"),
    destination=STAFF,
    object_numbers=(),
    may_empty=True,
    transformations=(Transformation(operations=(RenameTable(owner="sales", name="staff"),)),),
)
RECORD = Instantiation(source="dbs1", identity="i", owner="hr", name="employees", scn=Scn(100), state="LEFT")


@pytest.mark.parametrize("is_old_there", [True, False])
def test_rows_under_the_new_name_belong_to_no_copy(is_old_there):
    there = {STAFF, *([TableName("hr", "employees")] if is_old_there else [])}
    put: list[Instantiation] = []
    records = SimpleNamespace(
        twice={},
        put=put.append,
        destination=SimpleNamespace(describe=lambda owner, name: (owner, name) if (owner, name) in there else None),
        show_recorded=lambda *_: None,
    )
    assert RenamedTables(records).follow(standings([TABLE], [RECORD])) == (True, False)
    assert put == [replace(RECORD, owner="sales", name="staff", state="FAILED", scn=Scn(0))]
    (standing,) = standings([TABLE], put)
    # So the table is copied if it is empty, and refused otherwise.
    assert [standing.is_finished, standing.is_begun, standing.is_outdated, standing.is_renamed] == [False] * 4


def test_replicated_renamed_table_keeps_its_rows():
    put: list[Instantiation] = []
    records = SimpleNamespace(
        twice={}, put=put.append, destination=SimpleNamespace(describe=lambda *name: name if name == STAFF else None)
    )
    assert RenamedTables(records).follow(standings([TABLE], [replace(RECORD, state="DONE")])) == (True, False)
    assert put == [replace(RECORD, owner="sales", name="staff", state="DONE")]


@pytest.mark.parametrize("is_old_there", [True, False])
def test_returning_table_without_its_transformation_is_copied(is_old_there):
    """No advice says to drop a table, and an operator's own table of that name is not emptied, even if the renamed one
    was dropped by hand.
    """
    back = replace(TABLE, destination=TABLE.source, transformations=())
    left = replace(RECORD, owner="sales", name="staff")
    put: list[Instantiation] = []
    records = SimpleNamespace(
        twice={},
        put=put.append,
        show_recorded=lambda *_: None,
        destination=SimpleNamespace(describe=lambda *name: name if is_old_there or name != STAFF else None),
    )
    assert RenamedTables(records).follow(standings([back], [left])) == (True, False)
    assert put == [replace(left, owner="hr", name="employees", state="FAILED", scn=Scn(0))]
    assert records.twice == {}
    assert not standings([back], put)[0].is_outdated


def test_excluded_table_renamed_at_both_sides_is_emptied_and_copied():
    """The destination's record shows that the copied rows are under the new name."""
    now = replace(TABLE, destination=TableName("hr", "people"), transformations=())
    left = replace(RECORD, name_now=("hr", "people"))
    put: list[Instantiation] = []
    records = SimpleNamespace(
        twice={},
        put=put.append,
        destination=SimpleNamespace(describe=lambda *name: name if name == now.destination else None),
        show_recorded=lambda *_: None,
    )
    assert RenamedTables(records).follow(standings([now], [left])) == (True, False)
    assert [(each.name, each.state) for each in put] == [("people", "LEFT")]
    assert standings([now], put)[0].is_outdated


@pytest.mark.parametrize(
    ("state", "is_gone", "copied"),
    [("DONE", True, True), ("KEPT", True, True), ("COPIED", True, True), ("DONE", False, False)],
)
def test_table_without_remaining_rows_is_copied_under_its_new_name(state, is_gone, copied):
    """Otherwise a table created there by hand would count as never copied and wait forever."""
    put: list[Instantiation] = []
    records = SimpleNamespace(twice={}, put=put.append, destination=SimpleNamespace(describe=lambda *_: None))
    record = replace(RECORD, state=state, is_gone=is_gone)
    assert RenamedTables(records).follow(standings([TABLE], [record])) == (copied, False)
    assert put == ([replace(record, owner="sales", name="staff", state="FAILED", scn=Scn(0))] if copied else [])


def test_advice_for_a_recreated_table_uses_the_source_name():
    found = remade_problem(STAFF, source=TableName("hr", "employees"))
    assert "headrace copy FILE hr.employees`" in found
    assert "headrace verify FILE hr.employees`" in found
    assert "WHERE owner = 'sales' AND name = 'staff'" in found


def test_advice_for_a_recreated_table_with_other_writers_is_no_copy():
    found = remade_problem(STAFF, source=TableName("hr", "employees"), may_be_copied=False)
    assert "headrace copy" not in found
    assert (
        "`headrace verify FILE hr.employees` names the rows that differ: correct them at the destination alone (BEGIN;"
        " SELECT headrace.set_tag('0e'); " in found
    )
    assert "WHERE owner = 'sales' AND name = 'staff'" in found
