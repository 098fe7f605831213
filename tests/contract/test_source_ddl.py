"""The contract of sources with DDL: the log has each change at its place among the rows of its transaction."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.databases.ports import CapturedTable
from headrace.databases.postgres.source.ddl import trimming
from headrace.lcr.batch import LcrBatch
from headrace.lcr.ddl import DdlChange
from headrace.lcr.tags import Tag
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.databases.source_contract import (
    TOPOLOGY,
    SourceHarness,
    harness_of,
)
from tests.support.redo.redo_logs import Row, received
from tests.support.redo.source_redo import SourceRedo

RULES = RuleSet(include=(Rule(owner="public", tags=ANY_TAG, ddl=True),))
TAG = Tag(value=b"\x01", topology="contract_source_ddl", apply="apply_one")
MANY = 5000  # rows: more than a batch has
LONG = "x" * 1000  # of a row: on a busy machine one write into the redo log can have many rows


class Undone(Exception):  # noqa: N818 - no error: it rolls a transaction back
    pass


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def harness(request: pytest.FixtureRequest) -> Iterator[SourceHarness]:
    made = harness_of(request.param, request)
    made.create_table("t", ["id", "a"])
    made.create_table("u", ["id"])
    made.source.prepare(TOPOLOGY, (RULES,))
    yield made
    made.source.remove(TOPOLOGY)
    made.close()


@pytest.fixture
def redo(harness: SourceHarness, tmp_path: Path) -> Iterator[SourceRedo]:
    made = SourceRedo(harness, tmp_path / "redo", RULES)
    yield made
    made.close()


def said(row: Row) -> str:
    """Return a row as the identity that it inserts, and a DDL as its table with the columns after it."""
    command, table, old, new = row
    if command != "DDL":
        assert new is not None
        return str(new[0].decode())
    assert old is not None
    after = json.loads(old[0])["after"]
    return f"no {table}" if after is None else f"{table}({', '.join(column['name'] for column in after['columns'])})"


def batches_of(redo: SourceRedo, **bounds: int) -> list[LcrBatch]:
    redo.catch_up()
    return list(redo.mine(redo.miner(), **bounds))


def transactions_of(batches: list[LcrBatch]) -> list[list[str]]:
    return [[said(row) for row in transaction.rows] for transaction in received(batches)]


def places(batches: list[LcrBatch]) -> list[int]:
    """Return the positions of the DDL LCRs."""
    return [batch.first_position for batch in batches if batch.ddl is not None]


def test_ddl_is_at_its_place_among_the_rows_of_its_transaction(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.insert("t", id="1")
        user.insert("u", id="2")
        user.add_column("t", "b")
        user.insert("t", id="3", b="new")
    with harness.transaction() as user:
        user.insert("t", id="4")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["1", "2", "public.t(id, a, b)", "3"], ["4"]]
    assert places(batches) == [2]
    widths = [len(table.columns) for batch in batches for table in batch.tables if table.name == "t"]
    assert widths == [2, 3, 3]


def test_record_has_the_statement_and_the_table_before_and_after(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.add_column("t", "b")
    with harness.transaction() as user:
        user.rename_column("t", "b", "c")
    with harness.transaction() as user:
        user.drop_column("t", "c")
    changes = [batch.ddl for batch in batches_of(redo) if batch.ddl is not None]
    assert {(each.command_type, each.object_type, str(each.base_table)) for each in changes} == {
        ("ALTER TABLE", "TABLE", "public.t")
    }
    assert [word in each.ddl_text for each, word in zip(changes, ("ADD", "RENAME", "DROP"), strict=True)] == [True] * 3
    records = [json.loads(each.content) for each in changes]
    numbers = [[[c["number"], c["name"]] for c in record["after"]["columns"]] for record in records]
    assert numbers == [[[1, "id"], [2, "a"], [3, "b"]], [[1, "id"], [2, "a"], [3, "c"]], [[1, "id"], [2, "a"]]]
    assert [after["before"] for after in records[1:]] == [before["after"] for before in records[:-1]]
    assert [record["is_known"] for record in records] == [True] * 3
    gone = [(each["kind"], each["name"]) for record in records for each in record["gone"]]
    assert gone == [("table column", "c")]


def test_two_ddl_in_one_transaction_are_two_lcrs_in_order(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.add_column("t", "b")
        user.add_column("u", "b")
        user.insert("t", id="1")
        user.drop_column("t", "b")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["public.t(id, a, b)", "public.u(id, b)", "1", "public.t(id, a)"]]
    assert places(batches) == [0, 1, 3]


def test_ddl_that_is_rolled_back_is_not_in_the_log(harness: SourceHarness, redo: SourceRedo) -> None:
    with contextlib.suppress(Undone), harness.transaction() as user:
        user.insert("t", id="1")
        user.add_column("t", "b")
        raise Undone
    with harness.transaction() as user:
        user.insert("t", id="2")
    assert transactions_of(batches_of(redo)) == [["2"]]


def test_ddl_that_is_rolled_back_to_a_savepoint_is_not_in_the_log(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.add_column("t", "b")
        with user.rolled_back():
            user.insert("t", id="1")
            user.add_column("t", "c")
        user.insert("t", id="2")
        user.add_column("t", "d")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["public.t(id, a, b)", "2", "public.t(id, a, b, d)"]]
    assert places(batches) == [0, 2]


def test_ddl_has_the_tag_of_its_transaction(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction(TAG) as user:
        user.add_column("t", "b")
    (transaction,) = received(batches_of(redo))
    assert transaction.tag == TAG
    assert [row[0] for row in transaction.rows] == ["DDL"]


def test_ddl_behind_more_rows_than_a_batch_has_keeps_its_position(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        for number in range(MANY):
            user.insert("t", id=str(number))
        user.add_column("t", "b")
        user.insert("t", id="last")
    batches = batches_of(redo)
    numbers = [str(number) for number in range(MANY)]
    assert transactions_of(batches) == [[*numbers, "public.t(id, a, b)", "last"]]
    assert places(batches) == [MANY]


def test_ddl_in_a_transaction_that_breaks_off_comes_once(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        for number in range(MANY):
            user.insert("t", id=f"before {number}")
        user.add_column("t", "b")
        for number in range(MANY):
            user.insert("t", id=f"after {number}", a=LONG)
    while not redo.has(b"ADD COLUMN"):
        redo.write()
    assert redo.is_open
    miner = redo.miner()
    batches = list(redo.mine(miner, rows_max=1000))
    sent_before = len(batches)
    redo.interrupt()
    redo.catch_up()
    batches += redo.mine(miner, rows_max=1000)
    # Before the transaction begins again, there may be rows that were written and not durable yet.
    begins = [number for number, batch in enumerate(batches) if batch.row_count and not batch.continues]
    again = begins[-1]
    assert len(begins) <= 2
    assert again >= sent_before
    ((*before, ddl, last),) = [each[: MANY + 2] for each in transactions_of(batches)]
    assert before == [f"before {number}" for number in range(MANY)]
    assert (ddl, last) == ("public.t(id, a, b)", "after 0")
    # The first time, the capture process may still wait for the dictionary behind the break.
    assert places(batches) in ([MANY], [MANY, MANY])
    assert len(places(batches[again:])) == 1


# --------------------------------------------------------------------------- new and dropped tables


def ddl_of(batches: list[LcrBatch]) -> list[DdlChange]:
    return [batch.ddl for batch in batches if batch.ddl is not None]


def captured(harness: SourceHarness) -> dict[str, CapturedTable]:
    return {table.name: table for table in harness.source.captured(TOPOLOGY)}


def test_new_table_and_its_rows_are_in_the_log_from_the_first_one(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.insert("t", id="1")
        user.create_table("v", ["id", "a"])
        user.insert("v", id="2", a="first")
        user.add_column("v", "b")
        user.insert("v", id="3", b="new")
    with harness.transaction() as user:
        user.update("v", "2", a="changed")
        user.insert("v", id="4")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["1", "public.v(id, a)", "2", "public.v(id, a, b)", "3"], ["2", "4"]]
    assert places(batches) == [1, 3]
    created, altered = ddl_of(batches)
    assert (created.command_type, str(created.base_table), created.drops) == ("CREATE TABLE", "public.v", False)
    assert (altered.creation, altered.drops) == (None, False)


def test_creation_has_the_identity_of_the_captured_table(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.create_table("v", ["id"])
    (created,) = ddl_of(batches_of(redo))
    table = captured(harness)["v"]
    assert created.creation is not None
    assert created.creation.identities == {TOPOLOGY: table.identity}
    assert created.creation.why_not == ""
    assert table.object_numbers == (created.object_number,)
    assert {name: each.is_made for name, each in captured(harness).items()} == {"t": False, "u": False, "v": True}
    assert harness.source.uncaptured(TOPOLOGY, (RULES,)) == ()


def test_up_leaves_a_new_table_as_it_is(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.create_table("v", ["id"])
    before = captured(harness)
    harness.source.prepare(TOPOLOGY, (RULES,))
    assert captured(harness) == before


def test_dropped_table_is_in_the_log_behind_its_last_row(harness: SourceHarness, redo: SourceRedo) -> None:
    number = captured(harness)["u"].object_numbers[0]
    with harness.transaction() as user:
        user.insert("u", id="1")
        user.drop_table("u")
        user.insert("t", id="2")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["1", "no public.u", "2"]]
    (dropped,) = ddl_of(batches)
    assert (dropped.command_type, dropped.drops, dropped.creation) == ("DROP TABLE", True, None)
    assert (str(dropped.base_table), dropped.object_number) == ("public.u", number)
    assert list(captured(harness)) == ["t"]


def test_dropped_and_new_table_of_one_name_are_two(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.create_table("v", ["id"])
        user.insert("v", id="1")
        user.drop_table("v")
        user.create_table("v", ["id", "z"])
        user.insert("v", id="2")
    batches = batches_of(redo)
    assert transactions_of(batches) == [["public.v(id)", "1", "no public.v", "public.v(id, z)", "2"]]
    first, dropped, second = ddl_of(batches)
    assert first.object_number == dropped.object_number != second.object_number
    assert first.creation is not None
    assert second.creation is not None
    assert first.creation.identities != second.creation.identities == {TOPOLOGY: captured(harness)["v"].identity}


def test_table_made_behind_a_savepoint_that_is_rolled_back_leaves_nothing(
    harness: SourceHarness, redo: SourceRedo
) -> None:
    with harness.transaction() as user:
        with user.rolled_back():
            user.create_table("v", ["id"])
            user.insert("v", id="1")
            user.drop_table("u")
        user.create_table("v", ["id", "z"])
        user.insert("v", id="2")
        user.insert("u", id="3")
    assert transactions_of(batches_of(redo)) == [["public.v(id, z)", "2", "3"]]
    assert list(captured(harness)) == ["t", "u", "v"]


def test_table_outside_the_rules_is_not_in_the_log(harness: SourceHarness, redo: SourceRedo) -> None:
    harness.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="t", tags=ANY_TAG, ddl=True),)),))
    with harness.transaction() as user:
        user.create_table("v", ["id"])
    assert [change.creation for change in ddl_of(batches_of(redo))] in ([None], [])
    assert not any(table.is_made for table in captured(harness).values())


def test_trim_of_the_log_of_ddl_is_no_change_of_anything(
    harness: SourceHarness, redo: SourceRedo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "KEPT", "0 s")
    for column in ("b", "c"):
        with harness.transaction() as user:
            user.add_column("t", column)
    assert not harness.source.trim_ddl_log()
    with harness.transaction() as user:
        user.add_column("t", "d")
        user.insert("t", id="1")
    assert transactions_of(batches_of(redo)) == [
        ["public.t(id, a, b)"],
        ["public.t(id, a, b, c)"],
        ["public.t(id, a, b, c, d)", "1"],
    ]


def test_log_of_ddl_is_not_listed_among_the_tables(harness: SourceHarness, redo: SourceRedo) -> None:
    with harness.transaction() as user:
        user.add_column("t", "b")
    redo.catch_up()
    anything = (RuleSet(include=(Rule(tags=ANY_TAG),)), RuleSet())
    assert [table.name for table in harness.source.tables(anything)] == ["t", "u"]
    captured = harness.source.captured(TOPOLOGY)
    assert [table.name for table in captured] == ["t", "u"]
    assert harness.source.uncaptured(TOPOLOGY, (RULES,)) == ()
    assert harness.source.row_marks(TOPOLOGY).keys() <= {table.identity for table in captured}
