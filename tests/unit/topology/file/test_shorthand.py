"""The expansion of `replicate`: one path for every pair, stable names, paths shared by several entries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.lcr.table_name import TableName
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from tests.support.session.seeds import scaled
from tests.support.topologies.files import SITES, problems, read
from topology.checks.static import check
from topology.file.shorthand import Flow, Replicate, Spoke, expand, flows_between, flows_of_tree, one_way, tag_of
from topology.routing.ways import route, ways_to
from topology.spec import DatabaseSpec, SiteSpec, TopologySpec

NAMES = ["a", "b", "c", "d", "e"]
RULES = st.lists(st.sampled_from([Rule(owner=owner) for owner in "xyz"]), min_size=1, max_size=3, unique=True).map(
    tuple
)
SOME_SITES = st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True)


@st.composite
def trees(draw: st.DrawFn) -> Spoke:
    """A hub with spokes; some spokes have their own spokes."""
    sites = draw(SOME_SITES)
    parents = [draw(st.integers(0, number - 1)) for number in range(1, len(sites))]

    def below(number: int) -> Spoke:
        return Spoke(
            site=sites[number], spokes=tuple(below(n + 1) for n, parent in enumerate(parents) if parent == number)
        )

    return below(0)


FLOWS = st.one_of(
    SOME_SITES.map(flows_between),
    SOME_SITES.map(lambda sites: one_way(sites[0], sites[1:])),
    trees().map(flows_of_tree),
)
ENTRIES = st.lists(st.builds(lambda rules, flows: Replicate(rules=rules, flows=flows), RULES, FLOWS), max_size=4)
few = settings(max_examples=scaled(24, 500))


def topology(entries: list[Replicate]) -> TopologySpec:
    parts = expand(entries)
    return route(
        TopologySpec(
            name="t",
            file=Path("t.yaml"),
            state_dir=Path("/x"),
            sites=tuple(SiteSpec(name=name, database=DatabaseSpec(kind="embedded")) for name in NAMES),
            queues=parts.queues,
            captures=parts.captures,
            propagations=parts.propagations,
            applies=parts.applies,
        )
    )


def pairs_of(entries: list[Replicate]) -> set[tuple[str, str]]:
    return {(flow.source, flow.destination) for entry in entries for flow in entry.flows}


def paths(spec: TopologySpec, source: str, destination: str) -> list[tuple[str, str, str]]:
    """Return (capture, propagation, apply) of every way from one site to another."""
    return [
        (capture.name, propagation.name, apply.name)
        for capture in spec.captures
        if capture.source == source
        for propagation in spec.propagations
        if propagation.from_queue == capture.queue
        for apply in spec.applies
        if apply.queue == propagation.to_queue and (apply.source, apply.site) == (source, destination)
    ]


@pytest.mark.seeded
@few
@given(ENTRIES)
def test_every_flow_gets_exactly_one_path_and_other_pairs_none(entries):
    spec = topology(entries)
    wanted = pairs_of(entries)
    for source in NAMES:
        for destination in NAMES:
            assert len(paths(spec, source, destination)) == ((source, destination) in wanted)


@pytest.mark.seeded
@few
@given(st.lists(FLOWS, max_size=3))
def test_expansions_of_forms_with_disjoint_tables_have_no_errors(forms):
    entries = [Replicate(rules=(Rule(owner=owner),), flows=flows) for owner, flows in zip("xyz", forms, strict=False)]
    assert [finding for finding in check(topology(entries)) if finding.is_error] == []


@pytest.mark.seeded
@few
@given(ENTRIES)
def test_forms_that_share_tables_are_refused_only_for_their_combination(entries):
    """The parts are valid and the combination is wrong: two ways between the same sites, or a site between two pairs
    that forwards nothing.
    """
    wrong = ("return there", "circulate for ever", "twice", "never arrive")
    assert [
        each for each in check(topology(entries)) if each.is_error and not any(words in each.problem for words in wrong)
    ] == []


@pytest.mark.seeded
@few
@given(ENTRIES)
def test_every_propagation_forwards_exactly_the_source_in_its_name(entries):
    for propagation in topology(entries).propagations:
        assert propagation.sources == (propagation.name.partition("_to_")[0],)


@pytest.mark.seeded
@few
@given(ENTRIES)
def test_destination_gets_exactly_the_tables_of_its_entries(entries):
    spec = topology(entries)
    for source, destination in pairs_of(entries):
        ((capture, propagation, apply),) = paths(spec, source, destination)
        clients = spec.capture(capture).rules, spec.propagation(propagation).rules, spec.apply(apply).rules
        for schema in "xyz":
            wanted = any(
                (source, destination) in pairs_of([entry]) and Rule(owner=schema) in entry.rules for entry in entries
            )
            passes = all(passes_untagged(rules, schema) for rules in clients)
            assert passes is wanted


def passes_untagged(rules: RuleSet, schema: str) -> bool:
    return rules.include is None or any(rule.matches_object(schema, "t") for rule in rules.include)


@pytest.mark.seeded
@few
@given(ENTRIES, ENTRIES)
def test_adding_entries_renames_nothing(first, second):
    before, after = expand(first), expand(first + second)
    for kind in ("queues", "captures", "propagations", "applies"):
        names = [component.name for component in getattr(before, kind)]
        assert set(names) <= {component.name for component in getattr(after, kind)}


def test_one_way_form_expands_into_the_documented_names(tmp_path):
    spec = read(tmp_path, SITES + "replicate: [{tables: [hr.*], from: dbs1, to: [dbs2]}]")
    assert [(q.name, q.site) for q in spec.queues] == [("q_dbs1", "dbs1"), ("q_dbs2_in", "dbs2")]
    assert [(c.name, c.queue, c.rules) for c in spec.captures] == [
        ("capture_dbs1", "q_dbs1", RuleSet(include=(Rule(owner="hr", name="*"),)))
    ]
    assert [(p.name, p.from_queue, p.to_queue) for p in spec.propagations] == [("dbs1_to_dbs2", "q_dbs1", "q_dbs2_in")]
    assert [(a.name, a.site, a.source, a.queue) for a in spec.applies] == [
        ("apply_from_dbs1_at_dbs2", "dbs2", "dbs1", "q_dbs2_in")
    ]


def test_propagations_have_rules_only_where_destinations_differ(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
replicate:
  - {schemas: [hr], from: dbs1, to: [dbs2, dbs3]}
  - {schemas: [crm], from: dbs1, to: [dbs3]}
""",
    )
    assert spec.capture("capture_dbs1").rules.include == (Rule(owner="hr"), Rule(owner="crm"))
    assert spec.propagation("dbs1_to_dbs2").rules == RuleSet(include=(Rule(owner="hr", tags=ANY_TAG),))
    assert spec.propagation("dbs1_to_dbs3").rules == RuleSet()


def test_shorthand_captures_take_only_untagged_changes(tmp_path):
    spec = read(tmp_path, SITES + "replicate: [{schemas: [hr], between: [dbs1, dbs2, dbs3]}]")
    assert len(spec.captures) == 3
    assert all(rule.tags == UNTAGGED for capture in spec.captures for rule in capture.rules.include or ())
    assert [
        finding
        for finding in check(spec)
        if "relay" not in finding.path and "no conflict handler" not in finding.problem
    ] == []


# --------------------------------------------------------------------------- hub and spokes


def sites_of(tree: Spoke) -> list[str]:
    return [tree.site, *(site for spoke in tree.spokes for site in sites_of(spoke))]


def applied(spec: TopologySpec, site: str, schema: str) -> Counter[str]:
    """Send one user change at `site` through the topology, redo by redo; count its applications at each site."""
    found: Counter[str] = Counter()
    pending: list[tuple[str, bytes | None]] = [(site, None)]
    while pending and sum(found.values()) < 100:  # a change in a cycle has returned home by then
        source, tag = pending.pop()
        for apply in (apply for apply in spec.applies if apply.source == source):
            if any(way.carry(TableName(schema, "t"), tag=tag) is not None for way in ways_to(spec, apply)):
                found[apply.site] += 1
                pending.append((apply.site, apply.tag))
    return found


@pytest.mark.seeded
@few
@given(trees())
def test_change_at_any_site_of_a_tree_is_applied_once_at_every_other_site(tree):
    spec = topology([Replicate(rules=(Rule(owner="x"),), flows=flows_of_tree(tree))])
    for site in sites_of(tree):
        assert applied(spec, site, "x") == Counter(other for other in sites_of(tree) if other != site)
    assert not [
        finding
        for finding in check(spec)
        if "takes part in nothing" not in finding.problem and "no conflict" not in finding.problem
    ]


@pytest.mark.seeded
@few
@given(st.lists(st.one_of(SOME_SITES.map(flows_between), trees().map(flows_of_tree)), min_size=1, max_size=3))
def test_forms_sharing_sites_and_tags_work_for_the_tables_of_each(forms):
    """A pair of sites can be hub and spoke for some tables, equals for others; it has one apply process and tag."""
    spec = topology(
        [Replicate(rules=(Rule(owner=owner),), flows=flows) for owner, flows in zip("xyz", forms, strict=False)]
    )
    for owner, flows in zip("xyz", forms, strict=False):
        sites = {flow.source for flow in flows}
        for site in sites:
            assert applied(spec, site, owner) == Counter(other for other in sites if other != site)


@pytest.mark.seeded
@few
@given(trees())
def test_tags_of_spokes_depend_only_on_their_names(tree):
    """A hub's redo keeps changes long. If a tag moved to another spoke, old changes would return to their origin."""
    for apply in expand([Replicate(rules=(Rule(owner="x"),), flows=flows_of_tree(tree))]).applies:
        assert apply.tag in (b"\x00", tag_of(apply.source))


def test_hub_has_a_tag_per_spoke_and_returns_no_spokes_own_changes(tmp_path):
    spec = read(tmp_path, SITES + "replicate: [{schemas: [hr], hub: dbs1, spokes: [dbs2, dbs3]}]")
    assert {apply.name: apply.tag for apply in spec.applies} == {
        "apply_from_dbs1_at_dbs2": b"\x00",
        "apply_from_dbs2_at_dbs1": b"dbs2",
        "apply_from_dbs1_at_dbs3": b"\x00",
        "apply_from_dbs3_at_dbs1": b"dbs3",
    }
    assert spec.capture("capture_dbs1").rules == RuleSet(include=(Rule(owner="hr", tags=ANY_TAG),))
    assert spec.capture("capture_dbs2").rules == RuleSet(include=(Rule(owner="hr"),))
    assert spec.propagation("dbs2_to_dbs1").rules == RuleSet()
    all_but_dbs3 = TagCondition(listed=(b"dbs3",), takes_listed=False)
    assert spec.propagation("dbs1_to_dbs3").rules == RuleSet(include=(Rule(owner="hr", tags=all_but_dbs3),))


def test_secondary_sends_its_primary_all_but_the_primarys_changes(tmp_path):
    text = SITES.replace("relay: {database: {kind: none}}", "dbs4: {database: {kind: embedded}}")
    spec = read(
        tmp_path, text + "replicate: [{schemas: [hr], hub: dbs1, spokes: [{site: dbs2, spokes: [dbs3, {site: dbs4}]}]}]"
    )
    assert {apply.name: apply.tag for apply in spec.applies if apply.site == "dbs2"} == {
        "apply_from_dbs1_at_dbs2": b"\x00",
        "apply_from_dbs3_at_dbs2": b"dbs3",
        "apply_from_dbs4_at_dbs2": b"dbs4",
    }
    assert spec.capture("capture_dbs2").rules == RuleSet(include=(Rule(owner="hr", tags=ANY_TAG),))
    sent = {p.to_queue: p.rules for p in spec.propagations if p.from_queue == "q_dbs2"}
    assert sent == {
        f"q_{to}_in": RuleSet(include=(Rule(owner="hr", tags=TagCondition(listed=(tag,), takes_listed=False)),))
        for to, tag in (("dbs1", b"\x00"), ("dbs3", b"dbs3"), ("dbs4", b"dbs4"))
    }


def test_flows_of_a_pair_of_sites_are_those_of_a_hub_with_one_spoke():
    assert flows_of_tree(Spoke(site="a", spokes=(Spoke(site="b"),))) == (
        Flow(source="a", destination="b", forwards=True),
        Flow(source="b", destination="a", has_own_tag=True),
    )


# --------------------------------------------------------------------------- exclusions

EXCLUDING = f"{SITES}replicate:\n"


def taken(spec: TopologySpec, name: str, *, ddl: bool = False) -> set[str]:
    """The sites that get a table of the schema hr."""
    table = TableName("hr", name)
    return {
        apply.site
        for apply in spec.applies
        for way in ways_to(spec, apply)
        if (way.carries_ddl(table) if ddl else way.carry(table) is not None)
    }


def test_excluded_tables_are_not_captured_and_the_propagation_needs_no_rules(tmp_path):
    spec = read(tmp_path, EXCLUDING + "  - {schemas: [hr], exclude: [hr.audit, 'hr.tmp_*'], from: dbs1, to: [dbs2]}\n")
    assert [taken(spec, name) for name in ("people", "audit", "tmp_1")] == [{"dbs2"}, set(), set()]
    assert not spec.captures[0].rules.keeps("hr", "audit", tag=b"\x01"), "whatever the tag"
    assert spec.propagations[0].rules == RuleSet()


def test_table_that_one_destination_excludes_still_goes_to_the_other(tmp_path):
    spec = read(
        tmp_path,
        EXCLUDING
        + "  - {schemas: [hr], exclude: [hr.audit], from: dbs1, to: [dbs2]}\n"
        + "  - {schemas: [hr], from: dbs1, to: [relay]}\n".replace("relay", "dbs3"),
    )
    assert (taken(spec, "audit"), taken(spec, "people")) == ({"dbs3"}, {"dbs2", "dbs3"})


def test_ddl_of_excluded_tables_does_not_travel(tmp_path):
    text = EXCLUDING + "  - {schemas: [hr], exclude: ['hr.audit*'], from: dbs1, to: [dbs2], ddl: true}\n"
    spec = read(tmp_path, text)
    assert (taken(spec, "people", ddl=True), taken(spec, "audit_2", ddl=True)) == ({"dbs2"}, set())
    assert not spec.captures[0].rules.keeps_ddl("hr", "audit", tag=None)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (
            [
                "{schemas: [hr], exclude: [hr.audit], from: dbs1, to: [dbs2]}",
                "{tables: [hr.a*], between: [dbs1, dbs2]}",
            ],
            "hr.audit is excluded in one entry of replicate, and another one takes it",
        ),
        (
            [
                "{tables: [hr.a*], from: dbs1, to: [dbs2]}",
                "{schemas: [hr], exclude: [hr.audit], from: dbs1, to: [dbs2]}",
            ],
            "hr.audit is excluded in one entry of replicate, and another one takes it",
        ),
        (["{schemas: [hr], exclude: [hrx.audit], from: dbs1, to: [dbs2]}"], "is nothing that the entry takes"),
    ],
)
def test_exclusions_that_contradict_or_exclude_nothing_are_refused(tmp_path, entries, problem):
    text = EXCLUDING + "".join(f"  - {entry}\n" for entry in entries)
    assert any(problem in each for each in problems(tmp_path, text))


def test_entries_for_the_same_sites_may_exclude_what_the_others_do_not_take(tmp_path):
    spec = read(
        tmp_path,
        EXCLUDING
        + "  - {schemas: [hr], exclude: [hr.audit], from: dbs1, to: [dbs2]}\n"
        + "  - {schemas: [shop], from: dbs1, to: [dbs2]}\n",
    )
    assert taken(spec, "audit") == set()
    assert spec.propagations[0].rules == RuleSet()
