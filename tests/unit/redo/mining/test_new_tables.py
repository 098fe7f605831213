"""New tables in redo: a capture process that knows the tables of the last `up` passes them on, and asks only what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.databases.memory.source import MemorySource
from headrace.lcr.scn import FIRST_SCN
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.redo.redo_logs import Names, drain, mine, miner, received, write_redo
from topology.edits.receivers import NotedTable, NotedWay, Receivers

ALL = RuleSet(include=(Rule(owner="hr", tags=ANY_TAG, ddl=True),))
NARROW = RuleSet(include=(Rule(owner="hr", name="old", tags=ANY_TAG, ddl=True),))


def noted(source: MemorySource) -> Receivers:
    """Return what `up` notes: one apply process gets everything, and another one a single table."""
    return Receivers(
        ways=(NotedWay(apply="wide", rules=(ALL, ALL)), NotedWay(apply="narrow", rules=(ALL, NARROW))),
        tables=tuple(
            NotedTable(identity=t.identity, owner=t.owner, name=t.name, object_numbers=t.object_numbers)
            for t in source.captured("t")
        ),
    )


@pytest.fixture
def source() -> MemorySource:
    made = MemorySource()
    made.create_table("hr.old", ["id"], key=["id"])
    made.prepare("t", (ALL,))
    return made


def sent(tmp_path: Path, names: Names, writer: object, start: int = FIRST_SCN) -> list[list[tuple[str, str]]]:
    reader = miner(tmp_path, start, ALL, names=names)
    found = received(mine(reader, writer))
    return [[(str(row[0]), str(row[1])) for row in transaction.rows] for transaction in found]


def test_new_table_passes_with_its_rows(source: MemorySource, tmp_path: Path) -> None:
    names = Names(source, ALL, noted(source))
    with source.transaction() as user:
        user.create_table("hr.new", ["id"], key=["id"])
        user.insert("hr.new", id="1")
    with source.transaction() as user:
        user.insert("hr.new", id="2")
    writer = write_redo(tmp_path, source)
    commands = [[kind.rpartition(".")[2] for kind, _ in rows] for rows in sent(tmp_path, names, writer)]
    assert [len(rows) for rows in commands] == [2, 1]
    assert {table for rows in sent(tmp_path, names, writer) for _, table in rows} == {"hr.new"}


def test_new_table_that_is_gone_by_now_passes_with_its_rows(source: MemorySource, tmp_path: Path) -> None:
    names = Names(source, ALL, noted(source))
    with source.transaction() as user:
        user.create_table("hr.new", ["id"], key=["id"])
        user.insert("hr.new", id="1")
    source.drop_table("hr.new", ddl=True)
    writer = write_redo(tmp_path, source)
    assert [len(rows) for rows in sent(tmp_path, names, writer)] == [2, 1]


def test_table_with_the_name_of_a_dropped_one_passes(source: MemorySource, tmp_path: Path) -> None:
    names = Names(source, ALL, noted(source))
    with source.transaction() as user:
        user.insert("hr.old", id="1")
        user.drop_table("hr.old")
        user.create_table("hr.old", ["id", "z"], key=["id"])
        user.insert("hr.old", id="2")
    with source.transaction() as user:
        user.insert("hr.old", id="3")
    writer = write_redo(tmp_path, source)
    found = sent(tmp_path, names, writer)
    assert [len(rows) for rows in found] == [4, 1]
    # a capture process that begins in between
    with source.transaction() as user:
        user.insert("hr.old", id="4")
    drain(writer, source)
    assert sent(tmp_path, names, writer) == [*found, [found[1][0]]]
