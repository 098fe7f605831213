"""The columns that clients with transformations get with their rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.lcr.batch import Column
from headrace.rules.transformations.transformation import TransformationError
from tests.support.topologies.files import read
from tests.support.topologies.transformed_ways import MASK, RENAME, VERSION, one_way, the_way
from topology.checks.transformations import arrival_findings, ways_before
from topology.edits.known_columns import (
    clients_that_know_others,
    named_columns,
    names_columns,
    under_present_names,
    with_known_columns,
)
from topology.edits.stored import spec_from_json, spec_to_json
from topology.routing.ways import ways_to


def renamed(before: str, after: str):
    columns = tuple(replace(each, name=after if each.name == before else each.name) for each in VERSION.columns)
    return replace(VERSION, columns=columns)


def test_each_client_knows_the_columns_that_reach_it(tmp_path):
    spec = read(
        tmp_path,
        one_way(
            captured=RENAME, sent="{schema: sales}", applied="{schema: sales, transform: [{delete_columns: [salary]}]}"
        ),
    )
    tables = {"dbs1": named_columns(spec, "dbs1", [VERSION])}
    known = [
        (each.owner, each.name, each.columns, each.rule)
        for client in the_way(with_known_columns(spec, tables)).clients
        for rule in client.rules.include
        if rule.transformation is not None
        for each in rule.transformation.known
    ]
    assert known == [
        ("hr", "employees", ("id", "name", "salary"), "captures.cap.rules.include[0]"),
        ("sales", "staff", ("id", "full_name", "salary"), "applies.app.rules.include[0]"),
    ]


@pytest.mark.parametrize("place", ["captured", "sent", "applied"])
@pytest.mark.parametrize("rule", [MASK, MASK.replace("table: hr.employees", "schema: hr")])
def test_no_client_and_no_copy_takes_a_renamed_column(tmp_path, place, rule):
    spec = read(tmp_path, one_way(**{place: rule}))
    informed = with_known_columns(spec, {"dbs1": named_columns(spec, "dbs1", [VERSION])})
    assert the_way(informed).carry(VERSION) is not None
    with pytest.raises(
        TransformationError, match=r"has no column salary any more, which \w+\.\w+\.rules\.include\[0\]"
    ):
        the_way(informed).carry(renamed("salary", "pay"))


def test_tables_are_recorded_if_a_transformation_names_columns(tmp_path):
    spec = read(tmp_path, one_way(captured=MASK))
    assert names_columns(spec)
    assert [each.columns for each in named_columns(spec, "dbs1", [VERSION])] == [("id", "name", "salary")]
    assert named_columns(spec, "dbs2", [VERSION]) == ()
    assert named_columns(spec, "dbs1", [replace(VERSION, name="other")]) == ()
    plain = read(
        tmp_path, one_way(captured="{table: hr.employees, transform: [{rename_table: hr.staff}]}", sent="{schema: hr}")
    )
    assert not names_columns(plain)
    assert with_known_columns(plain, {"dbs1": named_columns(plain, "dbs1", [VERSION])}) is plain


def test_clients_restart_when_they_are_to_know_other_columns(tmp_path):
    spec = read(tmp_path, one_way(captured=MASK))
    before = {"dbs1": named_columns(spec, "dbs1", [VERSION])}
    assert clients_that_know_others(spec, before, before) == set()
    more = replace(VERSION, columns=(*VERSION.columns, Column(name="more", type_name="pg_catalog.text")))
    assert clients_that_know_others(spec, before, {"dbs1": named_columns(spec, "dbs1", [more])}) == {"capture:cap"}
    assert clients_that_know_others(spec, {}, before) == {"capture:cap"}


def test_informed_topology_is_the_same_and_survives_storage(tmp_path):
    spec = read(tmp_path, one_way(captured=MASK))
    informed = with_known_columns(spec, {"dbs1": named_columns(spec, "dbs1", [VERSION])})
    assert (informed, repr(informed)) == (spec, repr(spec))
    stored = spec_from_json(spec_to_json(informed))
    with pytest.raises(TransformationError):
        the_way(stored).carry(renamed("salary", "pay"))


OF_SCHEMA = MASK.replace("table: hr.employees", "schema: hr")


def found_by_up(spec, recorded, *now):
    """As `Preflight` looks at the tables of now."""
    informed = with_known_columns(spec, {"dbs1": under_present_names(recorded, now)})
    (apply,) = informed.applies
    return arrival_findings(apply, ways_to(informed, apply), now, ways_before(informed, apply))[0]


def test_up_forgets_no_masked_column_until_the_file_leaves_the_table_out(tmp_path):
    """The printed way out of a rule for a schema: a condition, `up`, a rule of its own, `up`."""
    spec, now = read(tmp_path, one_way(captured=OF_SCHEMA)), renamed("salary", "pay")
    recorded = named_columns(spec, "dbs1", [VERSION])
    (finding,) = found_by_up(spec, recorded, now)
    assert finding.is_error
    assert "hr.employees has no column salary any more, which captures.cap.rules.include[0] names" in finding.problem
    assert "new columns: pay" in finding.problem
    condition = "object_name <> 'employees'"
    assert f"the condition {condition})" in finding.fix
    others = OF_SCHEMA.replace("transform", f'condition: "{condition}", transform')
    without = read(tmp_path, one_way(captured=others))
    assert found_by_up(without, recorded, now) == ()
    recorded = named_columns(without, "dbs1", [])  # `up` looks at captured tables
    back = read(tmp_path, one_way(captured=f"{others}, {MASK.replace('salary', 'pay')}"))
    assert found_by_up(back, recorded, now) == ()
    informed = with_known_columns(back, {"dbs1": named_columns(back, "dbs1", [now])})
    assert [each.name for each in the_way(informed).carry(now).columns] == ["id", "name"]


def test_up_takes_a_file_that_names_the_column_as_it_is_called_now(tmp_path):
    recorded = named_columns(read(tmp_path, one_way(captured=MASK)), "dbs1", [VERSION])
    corrected = read(tmp_path, one_way(captured=MASK.replace("salary", "pay")))
    assert found_by_up(corrected, recorded, renamed("salary", "pay")) == ()


def test_table_of_a_pattern_gets_another_name_first(tmp_path):
    spec, now = read(tmp_path, one_way(captured=OF_SCHEMA)), replace(renamed("salary", "pay"), name="staff")
    recorded = named_columns(spec, "dbs1", [VERSION])
    with pytest.raises(TransformationError, match=r"hr\.staff has no column salary"):
        the_way(with_known_columns(spec, {"dbs1": recorded})).carry(now)
    assert found_by_up(spec, recorded, now)[0].is_error
