"""The expansion of `replicate`: one path for every pair, stable names, several entries sharing a path."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet
from tests.support.topologies import SITES, read
from topology.checks import check
from topology.shorthand import Replicate, expand, pairs_between
from topology.spec import DatabaseSpec, SiteSpec, TopologySpec
from topology.ways import route

NAMES = ["a", "b", "c", "d", "e"]
RULES = st.lists(st.sampled_from([Rule(owner=owner) for owner in "xyz"]), min_size=1, max_size=3, unique=True).map(tuple)
FLOWS = st.one_of(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True).map(lambda sites: pairs_between(tuple(sites))),
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True).map(
        lambda sites: tuple((sites[0], site) for site in sites[1:])
    ),
)
ENTRIES = st.lists(st.builds(lambda rules, flows: Replicate(rules=rules, flows=flows), RULES, FLOWS), max_size=4)


def topology(entries: list[Replicate]) -> TopologySpec:
    parts = expand(entries)
    return route(
        TopologySpec(
            name="t", file=Path("t.yaml"), state_dir=Path("/x"),
            sites=tuple(SiteSpec(name=name, database=DatabaseSpec(kind="embedded")) for name in NAMES),
            queues=parts.queues, captures=parts.captures, propagations=parts.propagations, applies=parts.applies,
        )
    )


def paths(spec: TopologySpec, source: str, destination: str) -> list[tuple[str, str, str]]:
    """(capture, propagation, apply) of every way from one site to another."""
    return [
        (capture.name, propagation.name, apply.name)
        for capture in spec.captures if capture.source == source
        for propagation in spec.propagations if propagation.from_queue == capture.queue
        for apply in spec.applies
        if apply.queue == propagation.to_queue and (apply.source, apply.site) == (source, destination)
    ]


@given(ENTRIES)
def test_every_flow_gets_exactly_one_path_and_no_other_pair_gets_any(entries):
    spec = topology(entries)
    wanted = {flow for entry in entries for flow in entry.flows}
    for source in NAMES:
        for destination in NAMES:
            assert len(paths(spec, source, destination)) == ((source, destination) in wanted)


@given(ENTRIES)
def test_every_expansion_passes_the_checks_without_an_error(entries):
    assert [finding for finding in check(topology(entries)) if finding.is_error] == []


@given(ENTRIES)
def test_every_propagation_forwards_exactly_the_source_it_is_named_for(entries):
    for propagation in topology(entries).propagations:
        assert propagation.sources == (propagation.name.partition("_to_")[0],)


@given(ENTRIES)
def test_a_destination_gets_exactly_the_tables_its_entries_name(entries):
    spec = topology(entries)
    for source, destination in {flow for entry in entries for flow in entry.flows}:
        ((capture, propagation, apply),) = paths(spec, source, destination)
        clients = spec.capture(capture).rules, spec.propagation(propagation).rules, spec.apply(apply).rules
        for schema in "xyz":
            wanted = any(
                (source, destination) in entry.flows and Rule(owner=schema) in entry.rules for entry in entries
            )
            passes = all(passes_untagged(rules, schema) for rules in clients)
            assert passes is wanted


def passes_untagged(rules: RuleSet, schema: str) -> bool:
    return rules.include is None or any(rule.matches_object(schema, "t") for rule in rules.include)


@given(ENTRIES, ENTRIES)
def test_adding_entries_renames_nothing(first, second):
    before, after = expand(first), expand(first + second)
    for kind in ("queues", "captures", "propagations", "applies"):
        names = [component.name for component in getattr(before, kind)]
        assert set(names) <= {component.name for component in getattr(after, kind)}


def test_one_way_expands_into_the_documented_names(tmp_path):
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
        SITES + """
replicate:
  - {schemas: [hr], from: dbs1, to: [dbs2, dbs3]}
  - {schemas: [crm], from: dbs1, to: [dbs3]}
""",
    )
    assert spec.capture("capture_dbs1").rules.include == (Rule(owner="hr"), Rule(owner="crm"))
    assert spec.propagation("dbs1_to_dbs2").rules == RuleSet(include=(Rule(owner="hr", tags=ANY_TAG),))
    assert spec.propagation("dbs1_to_dbs3").rules == RuleSet()


def test_captures_of_the_shorthand_take_untagged_changes_only(tmp_path):
    spec = read(tmp_path, SITES + "replicate: [{schemas: [hr], between: [dbs1, dbs2, dbs3]}]")
    assert len(spec.captures) == 3
    assert all(rule.tags == UNTAGGED for capture in spec.captures for rule in capture.rules.include or ())
    assert [finding for finding in check(spec) if "relay" not in finding.path] == []
