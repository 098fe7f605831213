"""Tables that DDL made at the source and that are not at the destination yet: awaited, or missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import destination_column
from headrace.databases.ports import CapturedTable, Instantiation
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from tests.support.topologies.files import SITES, read
from tests.support.values.writes import version_of
from topology.checks.new_tables import made_by_ddl, without_awaited
from topology.routing.ways import arriving, ways_to

WITH_DDL = f"{SITES}replicate:\n  - {{schemas: [hr], from: dbs1, to: [dbs2], ddl: true}}\n"
MADE = TableName("hr", "t")


def captured(name: str, *, is_made: bool) -> CapturedTable:
    return CapturedTable(
        identity=f"id of {name}", owner="hr", name=name, object_numbers=(ObjectNumber(1),), is_made=is_made
    )


def test_new_tables_are_those_that_ddl_made_and_whose_ddl_travels(tmp_path):
    ddl, rows = read(tmp_path, WITH_DDL), read(tmp_path, WITH_DDL.replace(", ddl: true", ""))
    (apply,) = ddl.applies
    came = arriving(ways_to(ddl, apply), [captured("t", is_made=True), captured("u", is_made=False)])
    assert made_by_ddl(ddl, apply, came) == {MADE: "id of t"}
    assert made_by_ddl(rows, apply, came) == {}, "nobody sends its CREATE TABLE there"
    assert made_by_ddl(None, apply, came) == {}, "nothing was ever prepared"


@pytest.fixture
def database() -> MemoryDestination:
    made = MemoryDestination()
    for name in ("t", "u"):
        made.store.create_table("hr", name, [destination_column("id")], key=["id"])
    return made


def separated(database, versions, made, recorded=(), captured=("id of new t",)):
    return without_awaited(database, versions, made, recorded, "dbs2", apply="app", captured=captured)


def test_only_an_absent_table_without_a_record_is_awaited(database):
    versions = [version_of(database.describe("hr", name)) for name in ("t", "u")]
    made = {MADE: "id of t", TableName("hr", "u"): "id of u"}
    assert separated(database, versions, made) == (tuple(versions), ())
    database.store.drop_table("hr", "t")
    there, (finding,) = separated(database, versions, made)
    assert there == (versions[1],)
    assert (finding.path, finding.is_error) == ("sites.dbs2 table hr.t", False)
    assert "on its way" in finding.problem
    assert "create the table here" in finding.fix
    assert separated(database, versions, {}) == (tuple(versions), ()), "not made by DDL: an error"
    record = Instantiation(source="dbs1", identity="id of t", owner="hr", name="t", scn=Scn(5), state="DONE")
    assert separated(database, versions, made, [record]) == (tuple(versions), ()), "it did arrive"


def test_former_table_of_the_name_needs_no_alter_while_its_drop_travels(database):
    """An ALTER would make it look like the new table, which has none of its rows."""
    versions = [version_of(database.describe("hr", name)) for name in ("t", "u")]
    made = {MADE: "id of new t"}
    former = Instantiation(
        source="dbs1", identity="id of t", owner="hr", name="t", scn=Scn(5), state="DONE", name_now=("hr", "t")
    )
    there, (finding,) = separated(database, versions, made, [former])
    assert there == (versions[1],)
    assert (finding.path, finding.is_error) == ("sites.dbs2 table hr.t", False)
    assert "former one" in finding.problem
    assert "headrace stop FILE apply:app" in finding.fix
    renamed = ("id of t", "id of new t")  # the source has the former table under another name
    assert separated(database, versions, made, [former], captured=renamed) == (tuple(versions), ())
    elsewhere = replace(former, name_now=("hr", "old"))
    assert separated(database, versions, made, [elsewhere]) == (tuple(versions), ())
