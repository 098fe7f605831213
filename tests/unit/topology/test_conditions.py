"""Conditions and subsets in a topology: reading, storage, proof, effects on arriving tables, and edits."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.lcr.table_name import TableName
from headrace.rules.rule import ANY_TAG, UNTAGGED
from tests.support.topologies.files import problems, read, read_anyway
from topology.checks.logging_needs import log_needs
from topology.checks.static import check
from topology.edits.changes import changes
from topology.edits.stored import spec_from_json, spec_to_json
from topology.edits.subset_changes import subset_changes
from topology.plan import make_plan
from topology.proof.reach import Proof
from topology.routing.change_classes import ChangeClasses
from topology.routing.ways import arriving, rules_at_the_end, ways_to

ONE_WAY = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures:
  cap: {site: dbs1, source: dbs1, queue: q1, rules: {include: [CAPTURED]EXCLUDED}}
propagations:
  prop: {from: q1, to: q2, rules: {include: [SENT]}}
applies:
  app: {site: dbs2, source: dbs1, queue: q2, rules: {include: [APPLIED]}}
"""
EMPLOYEES = TableName("hr", "employees")


def one_way(
    captured: str = "{schema: hr}", sent: str = "{schema: hr}", applied: str = "{schema: hr}", excluded: str = ""
) -> str:
    text = ONE_WAY.replace("CAPTURED", captured).replace("SENT", sent).replace("APPLIED", applied)
    return text.replace("EXCLUDED", f", exclude: [{excluded}]" if excluded else "")


@pytest.mark.parametrize(
    ("rule", "tags"),
    [
        ("{table: hr.employees, where: 'salary > 5'}", UNTAGGED),
        ("{condition: \"object_owner = 'hr'\"}", UNTAGGED),
        ("{condition: \"object_owner = 'hr' and tag is null\"}", ANY_TAG),  # the condition itself names the tags
        ("{table: hr.employees, where: 'lcr.tag is null'}", ANY_TAG),
        ("{table: hr.employees, subset: 'department_id = 50', tagged: true}", ANY_TAG),
    ],
)
def test_conditional_rule_takes_untagged_changes_unless_it_names_tags(tmp_path, rule, tags):
    (found,) = read(tmp_path, one_way(rule)).captures[0].rules.include or ()
    assert found.tags == tags


def test_topology_with_conditions_is_stored_and_read_again(tmp_path: Path) -> None:
    spec = read_anyway(
        tmp_path,
        one_way(
            """{table: hr.employees, where: "a = 'it''s' and new.\\"B\\" < -1.5"}""",
            """{condition: "tag = '1d'"}""",
            "{table: hr.employees, subset: 'department_id in (1, 2)', tagged: true}",
        ),
    )
    again = spec_from_json(spec_to_json(spec))
    assert again.captures == spec.captures
    (ours,), (theirs,) = (each.applies[0].rules.include or () for each in (again, spec))
    assert ours.subset.tree == theirs.subset.tree


def test_edited_condition_changes_its_client_and_the_applies_behind_it(tmp_path: Path) -> None:
    def changed(before: str, after: str) -> dict[str, str]:
        return {
            change.component: change.action
            for change in changes(read(tmp_path, before), read(tmp_path, after))
            if change.action != "same"
        }

    where = [one_way(sent=f"{{table: hr.employees, where: 'a = {n}'}}") for n in (1, 2)]
    assert changed(*where) == {"propagation:prop": "takes over"}
    where = [one_way(applied=f"{{table: hr.employees, where: 'a = {n}'}}") for n in (1, 2)]
    assert changed(*where)["apply:app"] == "restarts"


# --------------------------------------------------------------------------- proof


def test_proof_names_the_clients_whose_conditions_decide(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        one_way(sent="{table: hr.employees, where: 'a = 1'}", applied="{table: hr.employees, subset: 'b = 1'}"),
    )
    (line,) = Proof(spec).reach()
    (reached,) = line.reached
    assert (reached.site, reached.times, reached.conditions) == ("dbs2", "once", ("prop", "app"))
    text = make_plan(spec).as_text()
    assert "where conditions of prop and app are TRUE" in text
    assert "prop: hr.employees where a = 1 (never TRUNCATE)" in text
    assert "app: hr.employees subset b = 1" in text


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("new.a = 1", "DELETE or TRUNCATE"),
        ("old.a = 1", "INSERT or TRUNCATE"),
        ("a is null", ""),
        ("lcr.command_type = 'INSERT' and a = 1", "UPDATE or DELETE or TRUNCATE"),
    ],
)
def test_plan_shows_commands_that_a_condition_never_takes(tmp_path, text, never):
    shown = make_plan(read(tmp_path, one_way(f'{{table: hr.employees, where: "{text}"}}'))).ways[0].rules[0]
    assert shown == f"cap: hr.employees where {text}" + (f" (never {never})" if never else "")


def test_condition_decided_by_the_tag_is_proven(tmp_path: Path) -> None:
    spec = read(tmp_path, one_way("{condition: 'tag is null'}"))
    reached = {line.tags: line.reached for line in Proof(spec).reach()}
    assert list(reached) == [("none",)]
    assert reached["none",][0].conditions == ()


def test_negative_condition_leaves_a_change_undecided(tmp_path: Path) -> None:
    spec = read(tmp_path, one_way(excluded="{table: hr.employees, where: 'a = 1'}"))
    classes = ChangeClasses.of(spec)
    rules = spec.captures[0].rules
    employees = classes.class_of(*EMPLOYEES)
    assert classes.taken_by(rules) & employees
    assert classes.decided_by_rows(rules) & classes.untagged == employees


TWO_APPLIES = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {cap: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {prop: {from: q1, to: q2}}
applies:
  one: {site: dbs2, source: dbs1, queue: q2FIRST}
  two: {site: dbs2, source: dbs1, queue: q2SECOND}
"""


def test_possible_duplicates_under_conditions_are_a_warning_naming_them(tmp_path: Path) -> None:
    rules = ", rules: {{include: [{{table: hr.employees, where: 'a = {}'}}]}}"
    found = [
        each
        for each in check(
            read(tmp_path, TWO_APPLIES.replace("FIRST", rules.format(1)).replace("SECOND", rules.format(2)))
        )
        if "applies the same changes" in each.problem
    ]
    assert [each.is_error for each in found] == [False]
    assert (
        "as far as the conditions of two and one are TRUE: whether one change passes all of them is not proven"
        in found[0].problem
    )
    (error,) = problems(tmp_path, TWO_APPLIES.replace("FIRST", "").replace("SECOND", ""))
    assert "applies the same changes" in error


TWO_PATHS = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  relay: {database: {kind: none}}
  dbs2: {database: {kind: embedded}}
queues: {q1: {site: dbs1}, qr: {site: relay}, q2: {site: dbs2}}
captures: {cap: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations:
  direct: {from: q1, to: q2, rules: {include: [{table: hr.employees, where: 'a = 1'}]}}
  to_relay: {from: q1, to: qr, rules: {include: [RELAYED]}}
  from_relay: {from: qr, to: q2}
applies: {app: {site: dbs2, source: dbs1, queue: q2}}
"""


def test_two_paths_that_conditions_divide_are_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, TWO_PATHS.replace("RELAYED", "{table: hr.employees, where: 'a = 2'}"))
    assert any(
        "conditions decide which changes of dbs1, such as those of hr.employees, come to queue q2 over" in each
        for each in found
    ), found


def test_path_without_conditions_is_preferred_over_one_with_conditions(tmp_path: Path) -> None:
    spec = read(tmp_path, TWO_PATHS.replace("RELAYED", "{table: hr.employees}"))
    (way,) = ways_to(spec, spec.applies[0])
    assert [each.name for each in way.propagations] == ["to_relay", "from_relay"]


def test_subset_with_another_rule_for_the_table_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, one_way("{schema: hr}, {table: hr.employees, subset: 'a = 1'}"))
    assert found.startswith("captures.cap.rules.include[1].subset (line 7): include[0] takes hr.employees too")
    (found,) = problems(
        tmp_path, one_way("{table: hr.employees, subset: 'a = 1'}, {table: hr.employees, subset: 'a = 2'}")
    )
    assert "include[1].subset" in found


@pytest.mark.parametrize(
    ("place", "rules"),
    [
        ("captures.cap.rules.exclude[0]", {"excluded": "{condition: \"command_type = 'DELETE'\"}"}),
        ("captures.cap.rules.exclude[0]", {"excluded": "{table: hr.employees, where: 'b = 1'}"}),
        ("applies.app.rules.include[0]", {"applied": "{table: hr.employees, where: 'b = 1'}"}),
        ("", {"excluded": "{condition: \"tag = '11'\"}"}),
        ("", {"excluded": "{table: hr.jobs, where: 'b = 1'}"}),
        ("", {"excluded": "{condition: \"object_name = 'jobs' and new.a = 1\"}"}),
    ],
)
def test_conditions_that_discard_changes_of_a_subset_are_a_warning(
    place: str, rules: dict[str, str], tmp_path: Path
) -> None:
    found = [
        each
        for each in check(read(tmp_path, one_way("{table: hr.employees, subset: 'a = 1'}", **rules)))
        if "takes a subset" in each.problem
    ]
    assert [(each.path, each.is_error) for each in found] == ([(place, False)] if place else [])


def test_subset_among_negative_rules_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, one_way(excluded="{table: hr.employees, subset: 'a = 1'}"))
    assert "captures.cap.rules.exclude (line 7): has a subset" in found


# --------------------------------------------------------------------------- arriving rows


def test_rows_that_arrive_pass_every_subset_on_the_way(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        one_way(
            "{table: hr.employees, subset: 'a = 1'}, {table: hr.jobs}",
            "{schema: hr}",
            "{table: hr.employees, subset: 'b is null'}, {table: hr.jobs}",
        ),
    )
    found = {
        each.source: each.rows
        for each in arriving(ways_to(spec, spec.applies[0]), (EMPLOYEES, TableName("hr", "jobs")))
    }
    assert found == {EMPLOYEES: '(("a" = 1)) IS TRUE AND (("b" IS NULL)) IS TRUE', TableName("hr", "jobs"): ""}


def test_apply_process_evaluates_its_conditions_and_every_subset_before_it(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        one_way(
            "{table: hr.employees, where: 'a = 1'}",
            "{table: hr.employees, subset: 'b = 1'}",
            "{table: hr.employees, where: 'c = 1'}",
        ),
    )
    rules = [(each.include or ())[0] for each in rules_at_the_end(ways_to(spec, spec.applies[0]))]
    assert [(str(each.condition or ""), str(each.subset or "")) for each in rules] == [
        ("", ""),
        ("", "b = 1"),
        ("c = 1", ""),
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ("{table: hr.employees}", "{table: hr.employees, subset: 'a = 1'}", True),
        ("{table: hr.employees, subset: 'a = 1'}", "{table: hr.employees, subset: 'a = 2'}", True),
        ("{table: hr.employees, subset: 'a = 1'}", "{schema: hr}", True),
        ("{table: hr.employees, subset: 'a = 1'}", "{table: hr.jobs}", False),
        ("{table: hr.jobs}", "{table: hr.employees, subset: 'a = 1'}", False),
        ("{table: hr.employees, subset: 'a = 1'}", "{table: hr.employees, subset: ' A  =  1'}", False),
        ("{table: hr.employees, where: 'a = 1'}", "{table: hr.employees, where: 'a = 2'}", False),
    ],
)
@pytest.mark.parametrize("where", ["captured", "sent", "applied"])
def test_changed_subset_is_refused_because_rows_would_remain(tmp_path, before, after, is_refused, where):
    found = list(subset_changes(read(tmp_path, one_way(**{where: before})), read(tmp_path, one_way(**{where: after}))))
    assert bool(found) is is_refused
    if found:
        assert found[0].path == "applies.app"
        assert "take hr.employees out of the rules" in found[0].fix


def test_every_rule_that_reads_rows_is_a_need_of_the_log(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        one_way(
            "{table: hr.employees, where: 'a = 1'}",
            "{schema: hr}, {condition: 'tag is null'}",
            "{table: hr.employees, subset: 'b = 1'}",
        ),
    )
    assert [need.place for need in log_needs(spec, "dbs1")] == [
        "captures.cap.rules.include[0].where",
        "propagations.prop.rules.include[1].condition",
        "applies.app.rules.include[0].subset",
    ]
    assert log_needs(spec, "dbs2") == ()
