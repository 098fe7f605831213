"""A table that left the rules and comes back under another name at the destination: it is copied there, and nothing
there is removed.
"""

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
def test_rows_under_the_new_name_are_not_ours(is_old_there):
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
    # So it is copied if it is empty, and refused if it is not.
    assert [standing.is_finished, standing.is_begun, standing.is_outdated, standing.is_renamed] == [False] * 4


def test_a_table_that_is_replicated_and_renamed_keeps_its_rows():
    put: list[Instantiation] = []
    records = SimpleNamespace(
        twice={}, put=put.append, destination=SimpleNamespace(describe=lambda *name: name if name == STAFF else None)
    )
    assert RenamedTables(records).follow(standings([TABLE], [replace(RECORD, state="DONE")])) == (True, False)
    assert put == [replace(RECORD, owner="sales", name="staff", state="DONE")]


@pytest.mark.parametrize("is_old_there", [True, False])
def test_a_table_that_comes_back_without_its_transformation_is_copied_and_holds_up_nothing(is_old_there):
    """Nobody is told to drop a table, and an operator's own table of the name is not emptied, also if the renamed one
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


def test_a_table_that_was_renamed_at_both_sides_while_it_was_left_out_is_emptied_and_copied():
    """What was copied is there under the new name: the destination's table says so itself."""
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
def test_a_table_of_which_nothing_is_left_is_copied_under_a_name_that_the_destination_does_not_have(
    state, is_gone, copied
):
    """Else what is made there by hand would be a table that was never copied, and wait for ever."""
    put: list[Instantiation] = []
    records = SimpleNamespace(twice={}, put=put.append, destination=SimpleNamespace(describe=lambda *_: None))
    record = replace(RECORD, state=state, is_gone=is_gone)
    assert RenamedTables(records).follow(standings([TABLE], [record])) == (copied, False)
    assert put == ([replace(record, owner="sales", name="staff", state="FAILED", scn=Scn(0))] if copied else [])


def test_what_to_do_about_a_table_made_again_names_it_as_the_commands_do():
    found = remade_problem(STAFF, source=TableName("hr", "employees"))
    assert "headrace copy FILE hr.employees`" in found
    assert "headrace verify FILE hr.employees`" in found
    assert "WHERE owner = 'sales' AND name = 'staff'" in found


def test_what_to_do_about_a_table_made_again_that_others_write_is_no_copy_which_would_be_refused():
    found = remade_problem(STAFF, source=TableName("hr", "employees"), may_be_copied=False)
    assert "headrace copy" not in found
    assert (
        "`headrace verify FILE hr.employees` names the rows that differ: correct them at the destination alone (BEGIN;"
        " SELECT headrace.set_tag('0e'); " in found
    )
    assert "WHERE owner = 'sales' AND name = 'staff'" in found
