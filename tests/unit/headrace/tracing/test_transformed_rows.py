"""`headrace explain` for a table that arrives in another shape: the arriving values of a row are compared, under the
source's names.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ConfigError, DatabaseUnavailable
from headrace.databases.ports.operator import KeyValue
from headrace.lcr.table_name import TableName
from headrace.status.overview import Overview
from headrace.tracing.causes import explain
from headrace.tracing.explain import Findings, RowQuestion, _Asked
from tests.support.topologies.files import read
from tests.support.topologies.transformed_ways import one_way, the_way

EMPLOYEES = TableName("hr", "employees")
SHAPE = (
    "{table: hr.employees, transform: [{delete_columns: [salary]}, {rename_column: {from: id, to: number}},"
    " {rename_column: {from: name, to: id}}, {add_column: {name: region, value: EMEA}}, {rename_table: sales.staff}]}"
)
HERE = {"number": "7", "id": "Ann", "region": "EMEA", "extra": "x"}


def asked(rows, key: str = "id") -> Any:
    found: Any = _Asked(
        spec=None,
        actors=None,
        question=RowQuestion(table=EMPLOYEES, key=((key, "7"),)),
        overview=Overview(topology="t", state="RUNNING"),
        progress=print,
    )
    found.key = (KeyValue(column=key, text="7", binary=b"\0\0\0\7"),)
    found._row = lambda site, table, parts: rows[site, table, tuple(part.column for part in parts)]
    return found


def test_row_is_found_by_the_destinations_key_and_shown_by_source_names(tmp_path):
    way = the_way(read(tmp_path, one_way(applied=SHAPE)))
    rows: dict[Any, Any] = {
        ("dbs1", EMPLOYEES, ("id",)): {"id": "7", "name": "Ann", "salary": "5"},
        ("dbs2", TableName("sales", "staff"), ("number",)): HERE,
    }
    there, here = asked(rows)._both_rows(way)
    assert there == here == {"id": "7", "name": "Ann"}
    rows["dbs1", EMPLOYEES, ("id",)] = None  # deleted at the source, still at the destination
    there, here = asked(rows)._both_rows(way)
    assert there is None
    assert here == {"id": "7", "name": "Ann", "extra": "x"}
    rows["dbs2", TableName("sales", "staff"), ("number",)] = None
    assert asked(rows)._both_rows(way) == (None, None)


def test_row_is_found_under_the_last_of_several_names(tmp_path):
    first = "{table: hr.employees, transform: [{rename_table: x.people}]}"
    way = the_way(
        read(
            tmp_path,
            one_way(
                first,
                "{schema: x}",
                "{table: x.people, transform: [{rename_column: {from: name, to: alias}}, {rename_table: sales.staff}]}",
            ),
        )
    )
    rows: dict[Any, Any] = {
        ("dbs1", EMPLOYEES, ("id",)): {"id": "7", "name": "Ann"},
        ("dbs2", TableName("sales", "staff"), ("id",)): {"id": "7", "alias": "Ann"},
    }
    assert asked(rows)._both_rows(way) == ({"id": "7", "name": "Ann"}, {"id": "7", "name": "Ann"})


def test_key_that_does_not_arrive_cannot_find_a_row(tmp_path):
    way = the_way(read(tmp_path, one_way(applied=SHAPE)))
    with pytest.raises(ConfigError, match="salary"):
        asked({("dbs1", EMPLOYEES, ("salary",)): {}}, "salary")._both_rows(way)


def test_row_is_unknown_while_its_destination_does_not_answer(tmp_path):
    spec = read(tmp_path, one_way(applied=SHAPE))
    found = asked({})

    def row(site, table, parts):
        if site == "dbs2":
            raise DatabaseUnavailable("dbs2: connecting: connection refused")
        return {"id": "7", "name": "Ann"}

    def recorded(way):
        raise DatabaseUnavailable("connecting: connection refused")

    found._spec, found._row, found._recorded, found._source_scns = spec, row, recorded, {"dbs1": 9}
    found._find_key = lambda way: None
    found._is_captured = lambda source: True
    found._searched = lambda capture: Findings(searched=(1, 9))
    evidence = found._evidence(the_way(spec))
    assert (evidence.is_destination_read, evidence.source_row, evidence.searched) == (
        False,
        {"id": "7", "name": "Ann"},
        (1, 9),
    )
    assert "the row at dbs2: connecting: connection refused" in evidence.unknown
    assert explain(evidence).verdict == "UNKNOWN"


def masked(folder, step: str):
    (folder / "masks").mkdir(exist_ok=True)
    (folder / "masks" / "masks.py").write_text("def mask(lcr):\n    return lcr\n")
    rule = f"{{table: hr.employees, transform: [{{rename_column: {{from: name, to: alias}}}}, {step}]}}"
    return the_way(read(folder, one_way(applied=rule) + "code: ./masks\n"))


def test_columns_that_a_function_may_change_are_not_compared(tmp_path):
    way = masked(tmp_path, '{function: "masks:mask", columns: [alias]}')
    rows: dict[Any, Any] = {
        ("dbs1", EMPLOYEES, ("id",)): {"id": "7", "name": "Ann"},
        ("dbs2", EMPLOYEES, ("id",)): {"id": "7", "alias": "xxx"},
    }
    assert asked(rows)._both_rows(way) == ({"id": "7"}, {"id": "7"})
    rows["dbs2", EMPLOYEES, ("id",)] = None
    assert asked(rows)._both_rows(way) == ({"id": "7"}, None)


@pytest.mark.parametrize("step", ['{function: "masks:mask", columns: [id]}', '{function: "masks:mask"}'])
def test_row_whose_key_a_function_may_change_is_not_called_missing(tmp_path, step):
    with pytest.raises(ConfigError, match=r"a function on the way to dbs2 may change id of hr\.employees"):
        asked({("dbs1", EMPLOYEES, ("id",)): {"id": "7", "name": "Ann"}})._both_rows(masked(tmp_path, step))
