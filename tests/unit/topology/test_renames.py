"""Tables renamed in transit: log needs of their clients, refusals, and the reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.ports import CapturedTable
from headrace.lcr.table_name import TableName
from headrace.rules.clients_before import ClientsBefore
from headrace.rules.evaluation import RuleEvaluation
from tests.support.topologies.files import SITES, findings, problems, read, read_anyway
from tests.support.topologies.transformed_ways import RENAME, VERSION, one_way, the_way
from topology.checks.logging_needs import log_needs
from topology.edits.receivers import Receivers
from topology.edits.subset_changes import shape_changes, strangers_on_the_way, subset_changes
from topology.plan import make_plan
from topology.proof.reach import Proof
from topology.routing.combined import combination
from topology.routing.ways import arriving, rules_at_the_end, ways_to, writes_alone
from topology.spec import TopologySpec
from topology.split import MERGING, SPLIT, SPLITTING, Split, with_splits


def test_clients_after_a_rename_need_log_values_under_the_old_name(tmp_path):
    text = one_way(
        RENAME,
        '{table: sales.staff, where: "new.full_name = \'x\'"}, {table: sales.staff, where: "old.salary > 5"}',
        "{table: sales.staff}",
    )
    spec = read(
        tmp_path,
        text.replace("queue: q2, rules", "queue: q2, key_columns: [{table: sales.staff, columns: [full_name]}], rules"),
    )
    needs = log_needs(spec, "dbs1")
    assert [each.place.partition(".rules")[0] for each in needs] == [
        "propagations.prop",
        "propagations.prop",
        "applies.app.key_columns",
    ]
    assert all(
        each.concerns("hr", "employees") and not each.concerns("sales", "staff") and not each.concerns("hr", "others")
        for each in needs
    )
    assert {each.called("hr", "employees") for each in needs} == {("sales", "staff")}
    assert needs[0].at_source("hr", "employees", ["id", "name"])["full_name"] == "name"
    (found,) = arriving([the_way(spec)], [VERSION])
    assert (found.destination.qualified_name, found.destination.object_number) == ("sales.staff", VERSION.object_number)
    assert any(
        "hr.employees [as sales.staff" in rules or "hr.employees [name as full_name, as sales.staff]" in rules
        for rules in make_plan(spec).ways[0].rules
    )
    assert combination(spec, spec.capture("cap")).apply is None


def test_schema_rename_at_capture_and_table_rename_at_apply_combine(tmp_path):
    spec = read(
        tmp_path,
        one_way(
            "{schema: hr, transform: [{rename_schema: x}]}",
            "{schema: x}",
            "{table: x.employees, transform: [{rename_table: y.staff}]}, {table: x.jobs}",
        ),
    )
    carried = [
        the_way(spec).carry(TableName(*name))
        for name in (("hr", "employees"), ("hr", "jobs"), ("hr", "others"), ("x", "employees"))
    ]
    assert carried == [("y", "staff"), ("x", "jobs"), None, None]
    before, own = rules_at_the_end([the_way(spec)])
    assert isinstance(before, ClientsBefore)
    assert own.renames
    evaluation = RuleEvaluation(before, own)
    assert [evaluation.keeps(replace(VERSION, owner=owner), [None, b"\x01"]) for owner in ("hr", "x")] == [
        [False, False],
        [True, False],
    ]
    assert not writes_alone(
        replace(spec, applies=(*spec.applies, replace(spec.apply("app"), name="app2"))),
        spec.apply("app"),
        TableName("y", "staff"),
    )


@pytest.mark.parametrize(
    "sent", ["{table: '*.t', transform: [{rename_schema: y}]}", "{global: true, transform: [{rename_schema: y}]}"]
)
def test_schema_from_a_table_rename_can_be_renamed_by_a_wildcard(tmp_path, sent):
    """No rule names crm: it occurs only in a rename_table."""
    spec = read(tmp_path, one_way("{table: hr.a, transform: [{rename_table: crm.t}]}", sent, "{schema: y}"))
    assert the_way(spec).carry(TableName("hr", "a")) == ("y", "t")
    evaluation = RuleEvaluation(*rules_at_the_end([the_way(spec)]))
    assert [evaluation.keeps(replace(VERSION, owner="y", name=name), [None]) for name in ("t", "a")] == [
        [True],
        [False],
    ]


def test_two_sites_can_use_different_names_for_one_table(tmp_path):
    """hr.t of dbs1 is sales.u at dbs2 and vice versa: each capture process uses the other site's name."""
    text = """
topology: t
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}, to1: {site: dbs1}, to2: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.t, transform: [{rename_table: sales.u}]}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{table: sales.u TAGGED, transform: [{rename_table: hr.t}]}]}}
propagations: {p1: {from: q1, to: to2}, p2: {from: q2, to: to1}}
applies:
  a2: {site: dbs2, source: dbs1, queue: to2, rules: {include: [{table: sales.u}]}}
  a1: {site: dbs1, source: dbs2, queue: to1}
"""
    spec = read(tmp_path, text.replace(" TAGGED", ""))
    assert {
        line.origin: [(line.tables, site.site, site.times) for site in line.reached] for line in Proof(spec).reach()
    } == {
        "dbs1": [(("hr.t",), "dbs2", "once")],
        "dbs2": [(("sales.u",), "dbs1", "once")],
    }
    assert {line.origin: [site.names for site in line.reached] for line in Proof(spec).reach()} == {
        "dbs1": [("sales.u",)],
        "dbs2": [("hr.t",)],
    }
    assert any(
        "applies.a1" in each or "captures.c2" in each
        for each in problems(tmp_path, text.replace(" TAGGED", ", tagged: true"))
        if "return there" in each
    )
    _, warned = findings(tmp_path, text.replace(" TAGGED", ""))
    # both sites write it, and no handler resolves conflicts
    assert [each.partition("such as ")[2].partition(",")[0] for each in warned] == ["sales.u", "hr.t"]


def test_plan_shows_table_names_at_the_destination(tmp_path):
    spec = read(
        tmp_path,
        """
topology: t
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}, dbs3: {database: {kind: embedded}}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}, q3: {site: dbs3}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.t}, {table: hr.u}, {table: "sales.*"}]}}}
propagations: {p2: {from: q1, to: q2}, p3: {from: q1, to: q3}}
applies:
  a2: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: hr.t, transform: [{rename_table: x.v}]}, {table: hr.u}]}}
  a3: {site: dbs3, source: dbs1, queue: q3, rules: {include: [{table: hr.t}, {table: "sales.*", transform: [{rename_schema: shop}]}]}}
""",
    )
    assert [line.strip() for line in make_plan(spec).as_text().splitlines() if line.startswith("    dbs1")] == [
        "dbs1 -> dbs2 (1 hop, as x.v), dbs3 (1 hop)",
        "dbs1 -> dbs2 (1 hop)",
        "dbs1 -> dbs3 (1 hop, as shop.*)",
    ]


def test_rows_in_two_tables_of_a_site_do_not_conflict(tmp_path):
    """Both sites write hr.t, and each gets the other site's rows as x.t."""
    _, warned = findings(
        tmp_path,
        """
topology: t
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
queues: {q1: {site: dbs1}, q2: {site: dbs2}, to1: {site: dbs1}, to2: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.t, transform: [{rename_schema: x}]}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{table: hr.t}]}}
propagations: {p1: {from: q1, to: to2}, p2: {from: q2, to: to1, rules: {include: [{table: hr.t, transform: [{rename_schema: x}]}]}}}
applies: {a2: {site: dbs2, source: dbs1, queue: to2}, a1: {site: dbs1, source: dbs2, queue: to1}}
""",
    )
    assert warned == []


def test_two_tables_of_a_site_merged_by_another_site_are_refused(tmp_path):
    """a sends its hr.t to h as hr.u, and its hr.u to b, which forwards it to h."""
    text = """
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}, h: {database: {kind: embedded}}}
queues: {qa: {site: a}, qb: {site: b}, ib: {site: b}, ih: {site: h}, jh: {site: h}}
captures:
  ca: {site: a, source: a, queue: qa, rules: {include: [{table: hr.t}, {table: hr.u}]}}
  cb: {site: b, source: b, queue: qb, rules: {include: [{table: hr.u, tagged: true}]}}
propagations:
  ab: {from: qa, to: ib, rules: {include: [{table: hr.u}]}}
  ah: {from: qa, to: ih, rules: {include: [{table: hr.t, transform: [{rename_table: hr.NEW}]}]}}
  bh: {from: qb, to: jh}
applies:
  a_b: {site: b, source: a, queue: ib, tag: "0a"}
  a_h: {site: h, source: a, queue: ih, tag: "0b"}
  b_h: {site: h, source: b, queue: jh, tag: "0c"}
"""
    (problem,) = problems(tmp_path, text.replace("NEW", "u"))
    assert (
        "hr.u and hr.t of a would both arrive at h as hr.u: the first over a -> b (applied by a_b with tag 0a) -> h"
        " (applied by b_h), the second over a -> h" in problem
    )
    read(tmp_path, text.replace("NEW", "w"))


def test_table_arriving_under_two_names_over_two_paths_is_refused(tmp_path):
    text = (
        one_way(applied="{schema: hr}, {schema: x}")
        .replace("q2: {site: dbs2}}", "q2: {site: dbs2}, q3: {site: dbs2}}")
        .replace(
            "propagations:\n",
            "propagations:\n  over: {from: q1, to: q3, rules: {include: [{schema: hr, transform: [{rename_schema:"
            " x}]}]}}\n  on: {from: q3, to: q2}\n",
        )
    )
    found = problems(tmp_path, text)
    assert any("as hr." in each and "as x." in each and "one path alone is used" in each for each in found), found


def test_many_paths_between_queues_are_not_enumerated(tmp_path):
    """Ten queues each send to every other queue, and no path takes all: there are 100,000 paths to the last queue."""
    numbers = range(10)
    last = numbers[-1]
    only = dict.fromkeys(numbers, " rules: {include: [{schema: sales}]}") | {
        0: " rules: {include: [{schema: hr, transform: [{rename_schema: x}]}]}"
    }
    found = problems(
        tmp_path,
        "\n".join(
            (
                "topology: t",
                "sites:",
                *(f"  s{each}: {{database: {{kind: embedded}}}}" for each in numbers),
                "queues:",
                *(f"  q{each}: {{site: s{each}}}" for each in numbers),
                "captures:",
                "  c: {site: s0, source: s0, queue: q0, rules: {include: [{schema: hr}, {schema: sales}]}}",
                "propagations:",
                *(
                    f"  p{a}_{b}: {{from: q{a}, to: q{b},{only[a] if b == last else ''}}}"
                    for a in numbers
                    for b in numbers
                    if a != b
                ),
                "applies:",
                f"  a: {{site: s{last}, source: s0, queue: q{last}}}",
            )
        ),
    )
    assert any("no single path takes all changes of s0" in each for each in found), found


def test_unused_longer_path_is_not_a_second_path(tmp_path):
    """The first walk that reaches queue b came over queue c, where the way continues. Another walk must be found, and
    the shortest of these is used.
    """
    hops = {
        "q_c": "",
        "c_b": "",
        "q_e": "",
        "e_f": "",
        "f_b": "",
        "e_g": "",
        "g_h": "",
        "h_b": "",
        "b_c": "{schema: hr, transform: [{rename_schema: x}]}",
        "c_d": "{schema: x}",
    }
    spec = read(
        tmp_path,
        "\n".join(
            (
                "topology: t",
                "sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}, relay: {database:"
                " {kind: none}}}",
                "queues: {q: {site: dbs1}, d: {site: dbs2}, "
                + ", ".join(f"{each}: {{site: relay}}" for each in "bcefgh")
                + "}",
                "captures: {cap: {site: dbs1, source: dbs1, queue: q, rules: {include: [{schema: hr}]}}}",
                "propagations:",
                *(
                    f"  {name}: {{from: {name[0]}, to: {name[2]}{f', rules: {{include: [{rule}]}}' if rule else ''}}}"
                    for name, rule in hops.items()
                ),
                "applies: {app: {site: dbs2, source: dbs1, queue: d}}",
            )
        ),
    )
    assert [each.name for each in the_way(spec).propagations] == ["q_e", "e_f", "f_b", "b_c", "c_d"]


@pytest.mark.parametrize("condition", ["where: \"new.a = 'x'\"", "subset: \"a = 'x'\""])
def test_excluded_table_does_not_affect_a_table_with_its_target_name(tmp_path, condition):
    """hr.t would become s.t without its column a, but is excluded; the source's own s.t arrives instead."""
    captured = (
        "{schema: hr, transform: [{rename_schema: s}, {delete_columns: [a]}]}, {table: s.t}], exclude: [{table: hr.t}"
    )
    read(tmp_path, one_way(captured, "{schema: s}", f"{{table: s.t, {condition}}}, {{table: s.v}}"))


def test_capture_reports_applies_that_lose_a_table_by_names_on_the_way(tmp_path):
    spec = read(
        tmp_path,
        one_way(
            "{table: 'hr.e*', transform: [{rename_schema: sales}]}",
            "{table: sales.employees}, {table: sales.early}",
            "{schema: sales}",
        ),
    )
    noted = Receivers.of(spec, "dbs1", [CapturedTable(identity="a", owner="hr", name="employees", object_numbers=(7,))])
    assert noted.lost_by("a", "hr", "early") == ()
    assert noted.lost_by("a", "hr", "earlier") == ("app",)
    assert noted.lost_by("a", "sales", "early") == ("app",)


@pytest.mark.parametrize("client", ["captured", "sent", "applied"])
def test_changed_name_is_a_changed_shape(tmp_path, client):
    rules = {
        "captured": "{schema: hr}, {schema: x}",
        "sent": "{schema: hr}, {schema: x}",
        "applied": "{schema: hr}, {schema: x}",
    }
    before = read_anyway(tmp_path, one_way(**rules))
    after = read_anyway(tmp_path, one_way(**rules | {client: "{schema: hr, transform: [{rename_schema: x}]}"}))
    (found, *_) = shape_changes(before, after)
    assert "in schema x" in found.problem
    assert "copied as it is" in found.problem


def test_name_in_transit_is_not_reused_while_changes_are_in_flight(tmp_path):
    """The rules in between would confuse rows of the two tables; when the old rows have passed, the name is free."""

    def renaming(table: str) -> str:
        return one_way(
            f"{{table: {table}, transform: [{{rename_table: sales.u}}]}}",
            "{table: sales.u, where: \"new.a = 'x'\"}",
            "{table: sales.u}",
        )

    before, after = read(tmp_path, renaming("hr.a")), read(tmp_path, renaming("hr.b"))
    (found,) = shape_changes(before, after)
    assert "hr.b would come as sales.u on the way to dbs2, and that was the name of hr.a" in found.problem
    assert "renamed at dbs1, restore its name there instead" in found.fix
    (stranger,) = strangers_on_the_way(before, after)
    assert (stranger.table, stranger.was) == (("hr", "b"), "the name of hr.a")
    between = read(tmp_path, one_way("{table: hr.c}", "{table: hr.c}", "{table: hr.c}"))
    assert [*shape_changes(before, between), *shape_changes(between, after)] == []
    assert list(shape_changes(before, before)) == []


def test_name_in_a_shared_queue_is_not_reused_while_in_flight(tmp_path):
    """The rows that dbs2 got as sales.u are also pending for the propagation to dbs3, which discards them."""

    def fan_out(table: str, to_dbs2: str, to_dbs3: str) -> TopologySpec:
        return read(
            tmp_path,
            SITES
            + f"""
queues: {{q1: {{site: dbs1}}, q2: {{site: dbs2}}, q3: {{site: dbs3}}}}
captures: {{cap: {{site: dbs1, source: dbs1, queue: q1, rules: {{include: [{{table: {table}, transform: [{{rename_table: sales.u}}]}}, {{table: hr.c}}]}}}}}}
propagations:
  p2: {{from: q1, to: q2, rules: {{include: [{to_dbs2}]}}}}
  p3: {{from: q1, to: q3, rules: {{include: [{to_dbs3}]}}}}
applies: {{a2: {{site: dbs2, source: dbs1, queue: q2}}, a3: {{site: dbs3, source: dbs1, queue: q3}}}}
""",
        )

    before, after = (
        fan_out("hr.a", "{table: sales.u}", "{table: hr.c}"),
        fan_out("hr.b", "{table: hr.c}", "{table: sales.u, where: \"new.a = 'x'\"}"),
    )
    (found,) = shape_changes(before, after)
    assert (
        found.path,
        "hr.b would come as sales.u on the way to dbs3, and that was the name of hr.a" in found.problem,
    ) == ("applies.a3", True)
    assert [each.apply for each in strangers_on_the_way(before, after)] == ["a3"]
    # hr.a keeps its name; dbs2 gets another table
    assert (
        list(shape_changes(before, fan_out("hr.a", "{table: hr.c}", "{table: sales.u, where: \"new.a = 'x'\"}"))) == []
    )


def test_tables_of_one_name_distinguished_by_tags_are_no_reuse(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}, q3: {site: dbs3}}
captures:
  cap:
    site: dbs1
    source: dbs1
    queue: q1
    rules: {include: [{table: hr.a, tags: ["01"], transform: [{rename_table: sales.u}]}, {table: hr.b, tags: ["02"], transform: [{rename_table: sales.u}]}]}
propagations:
  p2: {from: q1, to: q2, rules: {include: [{table: sales.u, tags: ["01"]}]}}
  p3: {from: q1, to: q3, rules: {include: [{table: sales.u, tags: ["02"]}]}}
applies:
  a2: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: sales.u, tags: ["01"]}]}}
  a3: {site: dbs3, source: dbs1, queue: q3, rules: {include: [{table: sales.u, tags: ["02"]}]}}
""",
    )
    assert [*shape_changes(spec, spec), *strangers_on_the_way(spec, spec)] == []


def test_subsets_and_conditions_are_compared_under_names_in_transit(tmp_path):
    subset = "{table: sales.staff, subset: \"name = 'x'\"}"
    before, after = (
        read(
            tmp_path,
            one_way("{table: hr.employees, transform: [{rename_table: sales.staff}]}", each, "{table: sales.staff}"),
        )
        for each in (subset, subset.replace("'x'", "'y'"))
    )
    (found,) = subset_changes(before, after)
    assert "the rows of hr.employees at dbs2" in found.problem
    _, warned = findings(
        tmp_path,
        one_way(
            "{table: hr.employees, where: \"new.salary = '1'\", transform: [{rename_table: sales.staff}]}",
            subset,
            "{schema: sales}",
        ),
    )
    assert any("captures.cap" in each and "takes a subset" in each for each in warned), warned


def test_subset_moved_before_a_rename_is_refused(tmp_path):
    """After a rename the apply process does not evaluate subsets of earlier clients: it would insert rows outside the
    subset, and `verify` would not see them.
    """

    def edit(*, first: bool, second: bool, renames: bool = True):
        subset, name = ", subset: \"name = 'x'\"", "sales.staff" if renames else "hr.employees"
        transform = ", transform: [{rename_table: sales.staff}]" if renames else ""
        return read(
            tmp_path,
            one_way(
                f"{{table: hr.employees{subset * first}{transform}}}",
                f"{{table: {name}{subset * second}}}",
                f"{{table: {name}}}",
            ).replace("include: [{schema: hr}]", f"include: [{{table: {name}}}]"),
        )

    at_capture, sent, both = (
        edit(first=True, second=False),
        edit(first=False, second=True),
        edit(first=True, second=True),
    )
    (found,) = subset_changes(sent, at_capture)
    assert "before queue q1" in found.problem
    assert [*subset_changes(at_capture, sent), *subset_changes(sent, both), *subset_changes(both, at_capture)] == []
    assert [
        *subset_changes(edit(first=False, second=True, renames=False), edit(first=True, second=False, renames=False))
    ] == []


@pytest.mark.parametrize("phase", [SPLITTING, SPLIT, MERGING])
def test_split_stream_keeps_its_table_names(tmp_path, phase):
    text = one_way(
        "{table: hr.t, transform: [{rename_table: x.u}]}", "{table: x.u, transform: [{rename_schema: y}]}"
    ).replace("[{schema: hr}]}}\n", "[{schema: y}]}}\n")
    spec = read(tmp_path, text)
    running = with_splits(
        spec,
        [Split(propagation="prop", queue="q1", to_queue="q2", phase=phase, merges=True, by="operator", since_us=1)],
    )
    (way,) = ways_to(running, running.apply("app"))
    assert way.capture.name == ("cap" if phase == SPLITTING else "cap.prop")
    assert way.carry(TableName("hr", "t")) == ("y", "u")
