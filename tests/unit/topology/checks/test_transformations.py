"""Transformations in a topology: reading, refusals, storage, effects on arriving tables, and edits.

Longer than 500 lines: all tests share one topology and its tables.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UnfitTableError
from headrace.databases.ports import CapturedTable, Exclusion, ExclusionTerm, ShapedPartition, TableShape
from headrace.databases.postgres.compared.shapes import shape_findings
from headrace.deployment.inspection import handler_findings
from headrace.lcr.batch import Column, TableVersion
from headrace.lcr.table_name import TableName
from headrace.rules.rule import RuleSet
from headrace.rules.transformations.transformation import AddColumn, RenameTable, Transformation
from tests.support.topologies.files import SITES, problems, read, read_anyway
from tests.support.topologies.transformed_ways import MASK, ONE_WAY, RENAME, VERSION, one_way, the_way
from topology.checks.functions import functions_of
from topology.checks.logging_needs import listed_needs, log_needs
from topology.checks.transformations import arrival_findings, lost_columns, refuse_one_name, ways_before
from topology.edits.changes import changes
from topology.edits.stored import spec_from_json, spec_to_json
from topology.edits.subset_changes import shape_changes
from topology.plan import make_plan
from topology.proof.reach import Proof
from topology.routing.combined import combination
from topology.routing.ways import arriving, rules_at_the_end, transformed, ways_to, writes_alone
from topology.spec import TopologySpec

EMPLOYEES = TableName("hr", "employees")


def first_rule(rules: RuleSet) -> Any:
    assert rules.include
    return rules.include[0]


def rules_of(spec: TopologySpec) -> list[RuleSet]:
    return [*(each.rules for each in spec.captures), *(each.rules for each in spec.applies)]


# --------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("transform", "word"),
    [
        ("5", "not a list"),
        ("[]", "not a list"),
        ("masks.py", "does not name a function"),
        ("[{function: a:b}, {function: a:c}]", "2 functions"),
        ("[{function: a:b, step: 1}]", "a function has no step"),
        ("[{function: a:b, columns: []}]", "0 columns"),
        ("[{drop: [a]}]", "not one transformation"),
        ("[{delete_columns: []}]", "0 columns"),
        ("[{delete_columns: [a], keep_columns: [b]}]", "not one transformation"),
        ("[{delete_columns: [a], step: -1}]", "step"),
        ("[{rename_column: {from: a}}]", "from and to"),
        ("[{rename_column: {from: a, to: a}}]", "own name"),
        ("[{add_column: {name: a}}]", "one value"),
        ("[{add_column: {name: a, value: 1, current_timestamp: true}}]", "one value"),
        ("[{add_column: {name: a, value: x, type: int4}}]", "int4"),
        ("[{add_column: {name: a, value: yes, type: text}}]", "reads its value as true"),
        ("[{add_column: {name: a, value: 007, type: varchar}}]", "reads its value as 7"),
        ("[{add_column: {name: a, value: 70000, type: int2}}]", "outside the range"),
        ("[{add_column: {name: a, value: 12345678901234567890}}]", "outside the range"),
        ("[{add_column: {name: a, value: '5 ', type: int4}}]", "blanks"),
        ("[{add_column: {name: a, value: 1.5}}]", "in quotes"),
        ("[{add_column: {name: a, value: 1, type: money}}]", "money"),
        ("[{rename_table: staff}]", "schema.table"),
        ("[{rename_schema: 'a*'}]", "pattern"),
        ("[{rename_table: a.b}, {rename_table: c.d}]", "twice"),
        ("[{rename_schema: headrace}]", "nothing in it is captured"),
        ("[{rename_table: pg_catalog.t}]", "nothing in it is captured"),
        ("[{rename_column: {from: a, to: c}}, {add_column: {name: c, value: x}}]", "two columns"),
        ("[{add_column: {name: a, current_timestamp: true, type: date}}]", "timestamptz"),
    ],
)
def test_invalid_transformation_is_refused(tmp_path, transform, word):
    assert any(
        word in each for each in problems(tmp_path, one_way(applied=f"{{table: hr.employees, transform: {transform}}}"))
    )


def test_rename_of_a_pattern_or_in_a_negative_rule_is_refused(tmp_path):
    assert any(
        "same name" in each
        for each in problems(tmp_path, one_way(applied="{schema: hr, transform: [{rename_table: a.b}]}"))
    )
    excluded = (
        ONE_WAY.replace("[APPLIED]", f"[{{schema: hr}}], exclude: [{MASK}]")
        .replace("CAPTURED", "{schema: hr}")
        .replace("SENT", "{schema: hr}")
    )
    assert any("under include" in each for each in problems(tmp_path, excluded))


@pytest.mark.parametrize(
    ("value", "type_name", "text"),
    [
        ("EMEA", "text", "EMEA"),
        ("7", "int4", "7"),
        ("70000000000", "int8", "70000000000"),
        ("true", "bool", "t"),
        ("null", "text", None),
        ('"1.50", type: numeric', "numeric", "1.50"),
        ('"2026-01-31", type: date', "date", "2026-01-31"),
    ],
)
def test_added_values_have_their_yaml_types_unless_the_file_sets_one(tmp_path, value, type_name, text):
    spec = read(
        tmp_path, one_way(applied=f"{{table: hr.employees, transform: [{{add_column: {{name: c, value: {value}}}}}]}}")
    )
    (added,) = first_rule(spec.apply("app").rules).transformation.operations
    assert added == AddColumn(name="c", type_name=f"pg_catalog.{type_name}", value=text)


def test_topology_with_transformations_is_stored_and_read_again(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        one_way(
            "{schema: hr, transform: [{delete_columns: [salary]}, {keep_columns: [id, name], step: 2}]}",
            applied="{table: hr.employees, transform: [{rename_schema: x}, {rename_table: a.b}, {rename_column: {from:"
            " name, to: n}}, {add_column: {name: at, current_timestamp: true}}, {add_column: {name: r, value: null}}]}",
        ),
    )
    again = spec_from_json(spec_to_json(spec))
    assert rules_of(again) == rules_of(spec)


# --------------------------------------------------------------------------- the arriving table


def test_table_arrives_with_the_name_and_columns_of_its_way(tmp_path):
    spec = read(tmp_path, one_way(MASK, applied=RENAME))
    way = the_way(spec)
    assert way.carry(EMPLOYEES) == ("sales", "staff")
    (found,) = arriving([way], [VERSION])
    assert found.source is VERSION
    assert (found.destination.qualified_name, [column.name for column in found.destination.columns]) == (
        "sales.staff",
        ["id", "full_name"],
    )
    assert len(found.transformations) == 2
    shape = TableShape(owner="hr", name="employees", keys=(("id",), ("name", "salary"), ("name",)), identity=("id",))
    assert way.carry(shape) == TableShape(owner="sales", name="staff", keys=(("id",), ("full_name",)), identity=("id",))

    def excluding(*names: str) -> TableShape:
        terms = tuple(
            ExclusionTerm(
                column=name, expression="" if name else "lower(name)", operator="pg_catalog.=", is_equality=True
            )
            for name in names
        )
        return replace(
            shape, keys=(), identity=(), exclusions=(Exclusion(name="x", kind="x", definition="", terms=terms),)
        )

    assert way.carry(excluding("id", "name", "")) == replace(
        excluding("id", "full_name", ""), owner="sales", name="staff"
    )
    assert way.carry(excluding("id", "salary")) == replace(excluding(), owner="sales", name="staff", exclusions=())
    assert any("sales.staff" in rules and "without salary" not in rules for rules in make_plan(spec).ways[0].rules)


def test_only_the_applys_own_rules_transform_at_the_end_of_a_way(tmp_path):
    spec = read(tmp_path, one_way(MASK, applied=RENAME))
    *before, own = rules_at_the_end([the_way(spec)])
    assert not any(each.transforms for each in before)
    assert own.transforms


def test_propagation_that_transforms_is_not_bypassed(tmp_path):
    spec = read(tmp_path, one_way(sent=MASK))
    assert combination(spec, spec.capture("cap")).apply is None


# --------------------------------------------------------------------------- refusals of check


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({"applied": f"{{schema: hr}}, {MASK}"}, ("include[0]", "include[1]", "differently")),
        ({"applied": f"{MASK}, {RENAME}"}, ("without salary", "sales.staff")),
        (
            {"captured": RENAME},
            (
                "include[0]",
                "no change of hr.* ever arrives",
                "captures.cap renames hr.employees to sales.staff",
                "name sales.staff here",
            ),
        ),
        (
            {"sent": "{schema: hr, transform: [{rename_schema: x}]}"},
            ("no change of hr.* ever arrives", "propagations.prop renames hr.", " to x."),
        ),
        (
            {
                "captured": "{condition: \"object_owner = 'hr'\", transform: [{rename_schema: x}]}",
                "sent": "{schema: x}",
                "applied": "{schema: x}",
            },
            ("renames the tables that a condition names", "name the schema or table in the rule itself"),
        ),
        (
            {
                "captured": "{table: hr.a, transform: [{rename_table: x.t}]}, {table: hr.b, transform: [{rename_schema:"
                " x}]}",
                "sent": "{schema: x}",
                "applied": "{table: x.t}, {table: x.b, transform: [{rename_table: x.t}]}",
            },
            ("applies.app", "hr.a and hr.b of dbs1 would both arrive at dbs2 as x.t"),
        ),
        (
            {
                "captured": "{table: hr.a, transform: [{rename_table: x.t}]}, {table: hr.b, transform: [{rename_table:"
                " x.t}]}",
                "sent": "{schema: x}",
                "applied": "{schema: x}",
            },
            ("hr.a and hr.b of dbs1 would both arrive at dbs2 as x.t",),
        ),
        (
            {
                "captured": f"{RENAME}",
                "sent": "{table: sales.staff, where: \"new.name = 'x'\"}",
                "applied": "{schema: sales}",
            },
            ("propagations.prop", "name", "adds or removes"),
        ),
        (
            {
                "captured": "{table: hr.employees, subset: \"name = 'x'\", transform: [{rename_table: sales.staff}]}",
                "sent": "{table: sales.staff, transform: [{delete_columns: [name]}]}",
                "applied": "{schema: sales}",
            },
            ("name", "TRUNCATE"),
        ),
        ({"captured": MASK, "applied": "{table: hr.employees, where: 'salary > 5'}"}, ("salary", "adds or removes")),
        (
            {
                "sent": "{table: hr.employees, transform: [{add_column: {name: r, value: x}}]}",
                "applied": "{table: hr.employees, where: \"r = 'x'\"}",
            },
            ("r,",),
        ),
        ({"captured": "{table: hr.employees, subset: \"name = 'x'\"}", "applied": RENAME}, ("name", "TRUNCATE")),
        (
            {
                "sent": "{table: hr.employees, transform: [{rename_column: {from: a, to: name}}]}",
                "applied": "{table: hr.employees, subset: \"name = 'x'\"}",
            },
            ("name", "TRUNCATE"),
        ),
        (
            {"applied": "{table: hr.a, transform: [{rename_table: hr.b}]}, {table: hr.b}"},
            ("hr.a", "hr.b", "would both arrive"),
        ),
    ],
)
def test_check_refuses_contradictory_transformations(tmp_path, clients, words):
    found = problems(tmp_path, one_way(**clients))
    assert any(all(word in each for word in words) for each in found), found


def test_conditions_after_a_transformation_use_its_columns(tmp_path):
    spec = read_anyway(
        tmp_path,
        one_way(
            "{table: hr.employees, transform: [{rename_column: {from: salary, to: pay}}]}",
            applied="{table: hr.employees, where: 'old.pay > 5'}",
        ),
    )
    (need,) = log_needs(spec, "dbs1")
    assert need.at_source("hr", "employees", ["id", "salary"]) == {"id": "id", "pay": "salary"}


def test_two_table_names_can_be_swapped(tmp_path):
    spec = read(
        tmp_path,
        one_way(
            applied="{table: hr.a, transform: [{rename_table: hr.b}]}, {table: hr.b, transform: [{rename_table: hr.a}]}"
        ),
    )
    assert [the_way(spec).carry(TableName("hr", name)) for name in ("a", "b")] == [("hr", "b"), ("hr", "a")]


def two_applies(second: str, *, first: str = "{table: hr.a, transform: [{rename_table: sales.t}]}") -> str:
    return one_way(applied=first) + f"  app3: {{site: dbs2, source: dbs1, queue: q2, rules: {{include: [{second}]}}}}\n"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            "{table: hr.a, transform: [{rename_table: sales.t}]}",
            ("applies.app3", "applies.app applies the same changes of dbs1 to dbs2", "hr.a"),
        ),
        (
            "{table: hr.b, transform: [{rename_table: sales.t}]}",
            ("applies.app3", "hr.a and hr.b", "both arrive at dbs2 as sales.t", "through app3"),
        ),
        ("{table: hr.a, transform: [{rename_schema: sales}, {rename_table: sales.t}]}", ("the same changes", "hr.a")),
    ],
)
def test_two_applies_writing_one_renamed_table_are_refused(tmp_path, second, words):
    found = problems(tmp_path, two_applies(second))
    assert len(found) == 1
    assert all(word in found[0] for word in words), found


@pytest.mark.parametrize(
    "second",
    [
        "{table: hr.a}",
        "{table: hr.a, transform: [{rename_table: sales.u}]}",
        "{table: hr.b, transform: [{rename_table: sales.u}]}",
        "{table: hr.b}",
    ],
)
def test_two_applies_may_write_one_table_under_two_names(tmp_path, second):
    read(tmp_path, two_applies(second))


def test_duplicate_arrival_is_reported_only_for_tables_of_one_name(tmp_path):
    text = two_applies(
        "{table: hr.a, transform: [{rename_table: sales.t}]}, {table: hr.b, transform: [{rename_table: sales.u}]}",
        first="{table: hr.a, transform: [{rename_table: sales.t}]}, {table: hr.b}",
    )
    text += "  app4: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: hr.a}]}}\n"
    (found,) = problems(tmp_path, text)
    assert "hr.a" in found
    assert "app4" not in found
    proof = Proof(read_anyway(tmp_path, text))
    assert {line.tables: [each.times for each in line.reached] for line in proof.reach()} == {
        ("hr.a",): ["twice"],
        ("hr.b",): ["once"],
    }


FORWARDING = (
    one_way(applied=RENAME)
    + """
  back: {site: dbs1, source: dbs2, queue: q4}
"""
)


def forwarding(captured: str) -> str:
    text = (
        FORWARDING.replace("q2: {site: dbs2}}", "q2: {site: dbs2}, q3: {site: dbs2}, q4: {site: dbs3}}")
        .replace("  dbs2: {database", "  dbs3: {database: {kind: embedded}}\n  dbs2: {database", 1)
        .replace("back: {site: dbs1", "back: {site: dbs3")
    )
    return text.replace(
        "propagations:\n",
        f"  onward: {{site: dbs2, source: dbs2, queue: q3, rules: {{include: [{captured}]}}}}\npropagations:\n  next:"
        " {from: q3, to: q4}\n",
    )


def test_renamed_table_is_forwarded_under_its_new_name(tmp_path):
    def reached(captured: str) -> dict[str, set[str]]:
        proof = Proof(read_anyway(tmp_path, forwarding(captured)))
        return {
            line.origin: {site.site for site in line.reached}
            for line in proof.reach()
            if "sales.staff" in line.tables or line.origin == "dbs1"
        }

    assert reached("{table: sales.staff, tagged: true}") == {"dbs1": {"dbs2", "dbs3"}, "dbs2": {"dbs3"}}
    # only what users of dbs2 write there is forwarded
    assert reached("{table: sales.staff}") == {"dbs1": {"dbs2"}, "dbs2": {"dbs3"}}


def test_apply_next_to_a_renaming_apply_does_not_write_alone(tmp_path):
    text = (
        one_way(applied=RENAME)
        .replace("q2: {site: dbs2}}", "q2: {site: dbs2}, q3: {site: dbs2}, q4: {site: dbs3}}")
        .replace("  dbs2: {database", "  dbs3: {database: {kind: embedded}}\n  dbs2: {database", 1)
        + "  other: {site: dbs2, source: dbs3, queue: q3, rules: {include: [{schema: sales}]}}\n"
    )
    text = text.replace(
        "propagations:\n",
        "  cap3: {site: dbs3, source: dbs3, queue: q4, rules: {include: [{schema: sales}]}}\npropagations:\n  p3:"
        " {from: q4, to: q3}\n",
    )
    spec = read_anyway(tmp_path, text)
    assert not writes_alone(spec, spec.apply("other"), TableName("sales", "staff"))
    assert writes_alone(spec, spec.apply("other"), TableName("elsewhere", "staff"))


# --------------------------------------------------------------------------- existing tables


def test_table_findings_name_impossible_transformations(tmp_path):
    def found(transform: str, *versions: TableVersion) -> str:
        spec = read(tmp_path, one_way(applied=f"{{schema: hr, transform: [{transform}]}}"))
        findings, fitting = arrival_findings(spec.apply("app"), [the_way(spec)], versions or (VERSION,))
        assert len(fitting) == len(versions or (VERSION,)) - (
            1 if "app" in "".join(each.problem for each in findings) else 0
        )
        return " ".join(each.problem for each in findings)

    assert "deletes id" in found("{delete_columns: [id]}")
    assert "has a column name" in found("{add_column: {name: name, value: x}}")
    assert found("{delete_columns: [missing]}") == ""  # one rule for many tables: not every table has the column
    named = read(tmp_path, one_way(applied="{table: hr.employees, transform: [{delete_columns: [missing]}]}"))
    assert "no column missing" in arrival_findings(named.apply("app"), [the_way(named)], [VERSION])[0][0].problem


def test_two_tables_of_a_source_cannot_arrive_under_one_name(tmp_path):
    spec = read_anyway(
        tmp_path,
        one_way(
            "{schema: hr}, {schema: x}",
            "{schema: hr}, {schema: x}",
            "{schema: hr, transform: [{rename_schema: x}]}, {schema: x}",
        ),
    )
    versions = [VERSION, replace(VERSION, owner="x", object_number=8)]
    findings, _ = arrival_findings(spec.apply("app"), [the_way(spec)], versions)
    assert "as hr.employees does" in findings[0].problem


def test_tables_arriving_under_one_name_through_two_applies_are_found(tmp_path):
    both = "{schema: hr}, {schema: x}"
    text = one_way(both, both, "{schema: hr, transform: [{rename_schema: x}]}")
    spec = read_anyway(
        tmp_path, text + "  app3: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: x.employees}]}}\n"
    )
    versions = [VERSION, replace(VERSION, owner="x", object_number=8)]
    first, last = (
        arrival_findings(each, ways_to(spec, each), versions, ways_before(spec, each))[0]
        for each in (spec.apply("app"), spec.apply("app3"))
    )
    assert first == ()
    assert [each.problem for each in last] == ["would arrive at dbs2 as x.employees, as hr.employees does"]


def test_handler_bind_without_an_arriving_column_is_found(tmp_path):
    handlers = """dml_handlers:
  - table: sales.staff
    statements: ["UPDATE sales.log SET at = :commit_scn, who = :new.full_name, was = :old.name WHERE id = :old.id"]
"""
    spec = read_anyway(tmp_path, one_way(applied=RENAME) + handlers)
    findings, _ = arrival_findings(spec.apply("app"), [the_way(spec)], [VERSION])
    assert [(each.path, each.is_error) for each in findings] == [("applies.app.dml_handlers[0]", True)]
    assert "sales.staff arrives without a column name" in findings[0].problem
    assert "full_name, id, salary" in findings[0].fix


def test_columns_for_handler_binds_are_logged_under_source_names(tmp_path):
    handlers = """dml_handlers:
  - {table: sales.staff, operations: [delete], statements: ["DELETE FROM sales.log WHERE who = :old.full_name AND x = :new.salary"]}
  - {table: sales.staff, operations: [insert], statements: ["INSERT INTO sales.log VALUES (:new.id, :old.id)"]}
"""
    spec = read_anyway(tmp_path, one_way(applied=RENAME) + handlers)
    (need,) = log_needs(spec, "dbs1")
    assert (need.place, need.old, need.new) == ("applies.app.dml_handlers[0]", ("full_name",), ())
    assert [need.concerns(*table) for table in (EMPLOYEES, ("hr", "other"), ("sales", "staff"))] == [True, False, False]
    assert need.at_source("hr", "employees", ["id", "name", "salary"])["full_name"] == "name"


def test_columns_for_conflict_handlers_are_listed_under_source_names(tmp_path):
    settings = """conflict_handlers:
  - {table: sales.staff, on: update_differs, method: maximum, resolution_column: salary, columns: [full_name, salary]}
  - {table: sales.staff, on: delete_differs, method: overwrite}
  - {table: sales.staff, on: insert_exists, method: overwrite}
"""
    text = one_way(applied=RENAME).replace(
        "  app: {",
        "  app: {value_dependencies: {who: [{table: sales.staff, columns: [full_name]}, {table: sales.x, columns:"
        " [who]}]}, ",
    )
    spec = read_anyway(tmp_path, text + settings)
    assert log_needs(spec, "dbs1") == ()  # a missing column is one of the other findings of the table
    found = [
        (need.place.removeprefix("applies.app."), need.old, need.new, need.every_old)
        for need in listed_needs(spec, "dbs1")
    ]
    assert found == [
        (
            "conflict_handlers (maximum(salary) on update_differs)",
            ("full_name", "salary"),
            ("full_name", "salary"),
            False,
        ),
        ("conflict_handlers (overwrite on delete_differs)", (), (), True),
        ("value_dependencies.who", ("full_name",), (), False),
        ("value_dependencies.who", ("who",), (), False),
    ]
    assert [need.concerns(*EMPLOYEES) for need in listed_needs(spec, "dbs1")] == [True, True, True, False]


def test_columns_that_an_error_handler_needs_are_logged_and_must_arrive(tmp_path):
    (tmp_path / "own.py").write_text("def fix(lcr, error, session):\n    pass\n")
    handlers = (
        'code: .\nerror_handlers: [{table: sales.staff, operations: [update], function: "own:fix", columns: [%s]}]\n'
    )
    spec = read_anyway(tmp_path, one_way(applied=RENAME) + handlers % "full_name")
    (need,) = log_needs(spec, "dbs1")
    assert (need.place, need.old, need.new) == ("applies.app.error_handlers[0]", ("full_name",), ("full_name",))
    assert arrival_findings(spec.apply("app"), [the_way(spec)], [VERSION])[0] == ()
    spec = read_anyway(tmp_path, one_way(applied=RENAME) + handlers % "name")
    ((finding,), _) = arrival_findings(spec.apply("app"), [the_way(spec)], [VERSION])
    assert (finding.path, finding.is_error) == ("applies.app.error_handlers[0]", True)


SECOND = "  app3: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: x.*}]}}\n"


@pytest.mark.parametrize(
    ("applied", "second"),
    [
        ("{schema: hr, transform: [{rename_schema: x}]}, {schema: x}", ""),
        ("{schema: hr, transform: [{rename_schema: x}]}", SECOND),
    ],
)
def test_rename_collision_at_the_source_names_both_tables(tmp_path, applied, second):
    both = "{schema: hr}, {schema: x}"
    spec = read_anyway(tmp_path, one_way(both, both, applied) + second)
    captured = [
        CapturedTable(owner=owner, name=name, identity=name, object_numbers=())
        for owner, name in (("hr", "employees"), ("x", "staff"))
    ]
    for apply in spec.applies:
        refuse_one_name(spec, apply, captured)
        with pytest.raises(
            UnfitTableError, match=r"hr.employees and x.employees of dbs1 both arrive at dbs2 as x.employees"
        ) as found:
            refuse_one_name(spec, apply, [captured[0], replace(captured[1], name="employees")])
        assert "leave x.employees at dbs2 as it is" in found.value.hint
        assert "drop" not in found.value.hint


# --------------------------------------------------------------------------- edits


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ({"applied": MASK}, {"applied": MASK}, False),
        ({"applied": MASK}, {"applied": "{schema: hr}"}, True),
        ({}, {"sent": MASK}, True),
        ({"sent": MASK}, {"applied": MASK}, True),
        ({"applied": MASK}, {"applied": "{table: hr.other}"}, False),
    ],
)
def test_changed_transformation_of_a_replicated_table_is_refused(tmp_path, before, after, refused):
    found = list(shape_changes(read_anyway(tmp_path, one_way(**before)), read_anyway(tmp_path, one_way(**after))))
    assert bool(found) is refused


def test_patterns_overlapping_only_across_two_topologies_are_compared(tmp_path):
    """Both patterns match `hr.ab`, which is an example of neither topology alone."""
    before = one_way(applied="{table: hr.a*, transform: [{delete_columns: [salary]}]}")
    after = one_way(applied="{table: 'hr.*b', transform: [{delete_columns: [phone]}]}")
    (found,) = shape_changes(read_anyway(tmp_path, before), read_anyway(tmp_path, after))
    assert "hr.ab would arrive" in found.problem
    assert found.is_error


TWO_HOPS = (
    SITES
    + """
queues: {q1: {site: dbs1}, qh: {site: dbs1}, q2: {site: dbs2}}
captures: {cap: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations:
  p1: {from: q1, to: qh, rules: {include: [{schema: hr%s}]}}
  p2: {from: qh, to: q2, rules: {include: [{schema: hr%s}]}}
applies: {app: {site: dbs2, source: dbs1, queue: q2}}
"""
)


def test_transformation_moved_to_another_propagation_is_refused(tmp_path):
    """Changes in the queue between them would be transformed twice or not at all."""
    mask = ", transform: [{delete_columns: [salary]}]"
    first, second = (read_anyway(tmp_path, TWO_HOPS % each) for each in ((mask, ""), ("", mask)))
    assert list(shape_changes(first, first)) == []
    for before, after in ((first, second), (second, first)):
        (found,) = shape_changes(before, after)
        assert "from q1 to qh" in found.problem
        assert "from qh to q2" in found.problem


def test_transformation_is_printed_in_words(tmp_path):
    spec = read(tmp_path, one_way(applied=RENAME))
    transformation = first_rule(spec.apply("app").rules).transformation
    assert str(transformation) == "name as full_name, as sales.staff"


# --------------------------------------------------------------------------- functions


FUNCTION = "{table: hr.employees, transform: [{delete_columns: [salary]}, {function: 'masks:mask', columns: [name]}]}"


def with_function(folder: Path, code: str = "def mask(lcr):\n    return lcr\n", **clients: str) -> str:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "masks.py").write_text(code)
    return one_way(**clients) + "code: code\nhandler_timeout_s: 5\n"


def test_function_is_stored_with_its_code_version_and_time_limit(tmp_path: Path) -> None:
    spec = read(
        tmp_path, with_function(tmp_path, captured=FUNCTION, applied="{table: hr.employees, transform: 'masks:mask'}")
    )
    captured, applied = (
        first_rule(client.rules).transformation.custom for client in (spec.capture("cap"), spec.apply("app"))
    )
    assert (captured.columns, captured.is_at_capture, applied.columns, applied.is_at_capture) == (
        ("name",),
        True,
        None,
        False,
    )
    assert captured.timeout_s == applied.timeout_s == 5
    assert [file.path for file in captured.code.files] == ["masks.py"]
    assert captured.function == applied.function
    assert len(captured.function.version) == 12
    again = spec_from_json(spec_to_json(spec))
    assert rules_of(again) == rules_of(spec)
    shown = f"through masks:mask ({captured.function.version}) for name"
    assert any(shown in rules for rules in make_plan(spec).ways[0].rules)
    assert functions_of(spec) == {"capture:cap": (captured.function,), "apply:app": (captured.function,)}


def test_function_columns_are_needs_of_the_log(tmp_path: Path) -> None:
    every = "{schema: hr, transform: 'masks:mask'}"
    spec = read(tmp_path, with_function(tmp_path, captured=FUNCTION, applied=every))
    found = {need.place: need for need in log_needs(spec, "dbs1")}
    assert list(found) == ["captures.cap.rules.include[0].transform", "applies.app.rules.include[0].transform"]
    named, whole = found.values()
    assert (named.new, named.function, len(named.before)) == (("name",), "masks:mask", 1)
    assert (whole.new, whole.function, len(whole.before)) == ((), "masks:mask", 2)
    assert named.concerns("hr", "employees")
    assert not named.concerns("hr", "other")
    assert whole.concerns("hr", "other")
    assert not whole.is_of_rule


def test_new_version_of_a_function_restarts_the_components_that_use_it(tmp_path: Path) -> None:
    before = read(tmp_path, with_function(tmp_path, sent=FUNCTION))
    after = read(tmp_path, with_function(tmp_path, "def mask(lcr):\n    return lcr  # 2\n", sent=FUNCTION))
    assert list(shape_changes(before, after)) == []
    found = {each.component: each.action for each in changes(before, after) if each.action != "same"}
    assert set(found) <= {"propagation:prop", "apply:app", "site:dbs1", "site:dbs2"}
    assert found["propagation:prop"] == "takes over"
    assert found["apply:app"] == "restarts"
    assert {found.get("site:dbs1", "takes over"), found.get("site:dbs2", "takes over")} == {"takes over"}
    other = read(tmp_path, with_function(tmp_path))
    assert list(shape_changes(before, other)) != []


def test_uncallable_functions_are_found_with_their_file(tmp_path: Path) -> None:
    text = with_function(tmp_path, "def mask(lcr, session):\n    return lcr\n", captured=FUNCTION)
    (found,) = handler_findings(read(tmp_path, text))
    assert (found.path, "code/masks.py, line 1: mask cannot be called with (lcr)" in found.problem) == (
        "captures.cap",
        True,
    )
    (problem,) = problems(tmp_path, with_function(tmp_path, "def mask(lcr:\n", captured=FUNCTION))
    assert "code/masks.py, line 1" in problem
    assert "captures.cap.rules.include[0].transform[1].function" in problem


def test_function_that_may_change_subset_columns_is_refused(tmp_path: Path) -> None:
    subset = "{table: hr.employees, subset: \"name = 'x'\"}"
    found = problems(tmp_path, with_function(tmp_path, captured=subset, applied=FUNCTION))
    assert any("names name, which" in each and "may change" in each for each in found)
    assert any(
        "names name, which" in each
        for each in problems(
            tmp_path, with_function(tmp_path, captured=subset, applied="{table: hr.employees, transform: 'masks:mask'}")
        )
    )
    read(tmp_path, with_function(tmp_path, captured=subset.replace("name", "id"), applied=FUNCTION))


def test_missing_columns_of_a_function_are_found(tmp_path: Path) -> None:
    spec = read(
        tmp_path, with_function(tmp_path, captured=FUNCTION.replace("columns: [name]", "columns: [nam, salary]"))
    )
    found, _ = arrival_findings(spec.apply("app"), [the_way(spec)], [VERSION])
    assert [each.problem for each in found] == [
        f"has no column {name}, which the transformation of cap names" for name in ("nam", "salary")
    ]


def test_overlapping_rules_with_different_functions_are_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, with_function(tmp_path, captured=f"{FUNCTION}, {{schema: hr, transform: 'masks:mask'}}"))
    assert any("differently" in each for each in found)


def test_dropped_columns_that_a_transformation_names_are_reported(tmp_path: Path) -> None:
    """A renamed column would drop out of `keep_columns`, or pass `delete_columns` untransformed."""

    def lost(rule: str, *names: str) -> tuple[str, ...]:
        spec, asked = (
            read(tmp_path, one_way(captured=rule)),
            replace(VERSION, columns=tuple(Column(name=name, type_name="pg_catalog.text") for name in names)),
        )
        assert lost_columns(spec, "dbs2", lambda: [asked]) == ()
        return lost_columns(spec, "dbs1", lambda: [asked])

    kept = "{table: hr.employees, transform: [{keep_columns: [id, name]}, {rename_column: {from: name, to: called}}]}"
    assert lost(kept, "id", "name", "more") == ()
    assert lost(kept, "id", "full_name") == ("name of hr.employees (cap)",)
    assert lost("{table: hr.employees, transform: [{delete_columns: [salary]}]}", "id", "pay") == (
        "salary of hr.employees (cap)",
    )
    assert (
        lost("{schema: hr, transform: [{delete_columns: [salary]}]}", "id", "pay") == ()
    )  # only some tables of the schema have the column
    unread = read(tmp_path, one_way(captured="{table: hr.employees}"))
    assert lost_columns(unread, "dbs1", lambda: pytest.fail("nothing is asked")) == ()


def test_partitions_of_a_renamed_table_are_compared_with_the_new_table() -> None:
    """With a default partition nothing is missing; the statement to create one names the destination's table."""
    here = TableShape(owner="sales", name="staff", partitioned_by="LIST (id)")
    source = TableShape(
        owner="hr",
        name="employees",
        partitioned_by="LIST (id)",
        partitions=(
            ShapedPartition(
                owner="hr",
                name="low",
                parent=EMPLOYEES,
                bound="FOR VALUES IN (1)",
                rows="(id = 1)",
                partitioned_by="LIST (id)",
            ),
            ShapedPartition(
                owner="hr",
                name="low_1",
                parent=TableName("hr", "low"),
                bound="FOR VALUES IN (1)",
                rows="((id = 1) AND (id = 1))",
                partitioned_by="",
            ),
        ),
    )
    wanted = transformed(source, Transformation(operations=(RenameTable(owner="sales", name="staff"),)))
    low, below = shape_findings("sites.dbs2", wanted, here, frozenset({"id"}))
    assert 'CREATE TABLE "sales"."low" PARTITION OF "sales"."staff" FOR VALUES IN (1)' in low.fix
    assert 'PARTITION OF "sales"."low" FOR VALUES' in below.fix
    others = tuple(
        ShapedPartition(
            owner="sales", name=f"{parent.name}_rest", parent=parent, bound="DEFAULT", rows="", partitioned_by=""
        )
        for parent in (TableName("sales", "staff"), TableName("sales", "low"))
    )
    assert list(shape_findings("sites.dbs2", wanted, replace(here, partitions=others), frozenset({"id"}))) == []
