"""Tables that DDL made at the source and that are not at the destination yet: awaited, or missing."""

from __future__ import annotations

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


def test_only_an_absent_table_without_a_record_is_awaited(database):
    versions = [version_of(database.describe("hr", name)) for name in ("t", "u")]
    made = {MADE: "id of t", TableName("hr", "u"): "id of u"}
    assert without_awaited(database, versions, made, (), "dbs2") == (tuple(versions), ())
    database.store.drop_table("hr", "t")
    there, (finding,) = without_awaited(database, versions, made, (), "dbs2")
    assert there == (versions[1],)
    assert (finding.path, finding.is_error) == ("sites.dbs2 table hr.t", False)
    assert "on its way" in finding.problem
    assert "create the table here" in finding.fix
    assert without_awaited(database, versions, {}, (), "dbs2") == (tuple(versions), ()), "not made by DDL: an error"
    record = Instantiation(source="dbs1", identity="id of t", owner="hr", name="t", scn=Scn(5), state="DONE")
    assert without_awaited(database, versions, made, [record], "dbs2") == (tuple(versions), ()), "it did arrive"
