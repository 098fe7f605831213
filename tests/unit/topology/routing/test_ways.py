"""Ways: the components over which a table travels, with the same result for every caller."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from headrace.lcr.table_name import TableName
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from headrace.rules.transformations.transformation import RenameSchema, RenameTable, Transformation
from tests.support.session.seeds import scaled
from tests.support.topologies.files import SITES, problems, read, read_anyway
from tests.support.values.lcr_batches import table_version
from topology.checks.static import check
from topology.checks.transformations import overlap_findings
from topology.routing.change_classes import ChangeClasses
from topology.routing.combined import directs
from topology.routing.ways import (
    ArrivingTable,
    Way,
    arriving,
    captured_by,
    returned_by,
    route,
    rules_at_the_end,
    ways_to,
)
from topology.spec import (
    ApplySpec,
    CaptureSpec,
    DatabaseSpec,
    PropagationSpec,
    QueueSpec,
    SiteSpec,
    TopologySpec,
)

TWO_PATHS = (
    SITES
    + """
queues: {qa: {site: dbs1}, qr: {site: relay}, qb: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: qa, rules: {include: [{table: hr.a}, {table: hr.b}]}}}
propagations:
  short: {from: qa, to: qb, rules: {SHORT}}
  first: {from: qa, to: qr, rules: {FIRST}}
  second: {from: qr, to: qb}
applies: {apply: {site: dbs2, source: dbs1, queue: qb}}
"""
)


def two_paths(short: str, first: str) -> str:
    return TWO_PATHS.replace("{SHORT}", f"{{{short}}}").replace("{FIRST}", f"{{{first}}}")


def test_two_paths_that_divide_the_tables_are_refused_by_name(tmp_path):
    text = two_paths("include: [{table: hr.a, tagged: true}]", "include: [{table: hr.b, tagged: true}]")
    assert problems(tmp_path, text) == [
        "applies.apply (line 14): no single path takes all changes of dbs1 to queue qb: hr.a comes over "
        "c -> qa -> short -> qb, hr.b over c -> qa -> first -> qr -> second -> qb: let one of the two take both, or"
        " give one a queue and an apply process of its own at dbs2"
    ]


@pytest.mark.parametrize("first", ["", "include: [{schema: hr, tagged: true}]", "exclude: [{schema: crm}]"])
def test_way_that_takes_every_table_is_preferred_over_a_shorter_way(tmp_path, first):
    spec = read(tmp_path, two_paths("include: [{table: hr.a, tagged: true}]", first))
    assert {p.name: p.sources for p in spec.propagations} == {"short": (), "first": ("dbs1",), "second": ("dbs1",)}


def test_shorter_way_is_chosen_when_both_take_every_table(tmp_path):
    spec = read(tmp_path, two_paths("include: [{schema: hr, tagged: true}]", ""))
    assert {p.name: p.sources for p in spec.propagations} == {"short": ("dbs1",), "first": (), "second": ()}


ONE_PATH = (
    SITES
    + """
queues: {qa: {site: dbs1}, qr: {site: relay}, qb: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: qa, rules: {CAPTURE}}}
propagations:
  first: {from: qa, to: qr, rules: {FIRST}}
  second: {from: qr, to: qb}
applies: {apply: {site: dbs2, source: dbs1, queue: qb, rules: {APPLY}}}
"""
)
TABLES = [TableName("hr", name) for name in ("a", "b", "c", "log")]


def one_way(folder, capture: str, first: str = "", apply: str = "") -> Way:
    text = (
        ONE_PATH.replace("{CAPTURE}", f"{{{capture}}}")
        .replace("{FIRST}", f"{{{first}}}")
        .replace("{APPLY}", f"{{{apply}}}")
    )
    spec = read_anyway(folder, text)  # apply processes naming tables that never arrive are refused
    (way,) = ways_to(spec, spec.apply("apply"))
    return way


def test_table_arrives_when_every_client_on_the_way_takes_it(tmp_path):
    way = one_way(
        tmp_path,
        "include: [{schema: hr}], exclude: [{table: hr.log}]",
        "exclude: [{table: hr.a}]",
        "include: [{table: hr.a}, {table: hr.b}]",
    )
    assert arriving([way], TABLES) == (ArrivingTable(source=TABLES[1], destination=TABLES[1]),)
    assert way.components == ("c", "qa", "first", "qr", "second", "qb", "apply")
    assert captured_by([way]) == (way.capture.rules,)


def test_table_with_only_tagged_changes_arrives(tmp_path):
    """An apply process at the source writes the table and its changes are forwarded, so the table is copied first."""
    way = one_way(tmp_path, "include: [{schema: hr, tagged: true}], exclude: [{table: hr.a, tagged: false}]")
    assert way.carry(TABLES[0], tag=None) is None
    assert way.carry(TABLES[0], tag=b"\x07") == TABLES[0]
    assert [table.source for table in arriving([way], TABLES)] == TABLES


@pytest.mark.parametrize(
    ("entry", "back"),
    [
        ("{tables: [hr.a], between: [dbs1, dbs2]}", "apply_from_dbs1_at_dbs2"),
        ("{tables: [hr.a], hub: dbs2, spokes: [dbs1, dbs3]}", "apply_from_dbs1_at_dbs2"),
        ("{tables: [hr.a], from: dbs2, to: [dbs1]}", ""),
        ("{tables: [hr.a], from: dbs2, to: [dbs1]}, {tables: [hr.b], from: dbs1, to: [dbs2]}", ""),
    ],
)
def test_table_that_returns_to_its_source_is_recognised(tmp_path, entry: str, back: str):
    spec = read(tmp_path, SITES + f"replicate: [{entry}]")
    (apply,) = (each for each in spec.applies if (each.source, each.site) == ("dbs2", "dbs1"))
    (table,) = arriving(ways_to(spec, apply), [TableName("hr", "a")])
    assert returned_by(spec, apply, table) == back


@pytest.mark.parametrize(
    ("rules", "is_there"),
    [
        ("include: [{table: hr.a, subset: 'n < 5'}]", False),
        ("include: [{table: hr.a, subset: 'n < 5'}]", True),
        ("include: [{table: hr.a, transform: [{rename_table: b}]}]", False),
        ("include: [{table: hr.b}]", True),
    ],
)
def test_table_returned_in_part_or_renamed_is_not_a_returning_table(tmp_path, rules: str, is_there: bool):
    both = ("include: [{table: hr.a}]", rules)
    there, back = both if is_there else both[::-1]
    spec = read_anyway(
        tmp_path,
        SITES
        + f"""
queues: {{q1: {{site: dbs1}}, q2: {{site: dbs2}}, i1: {{site: dbs1}}, i2: {{site: dbs2}}}}
captures:
  c1: {{site: dbs1, source: dbs1, queue: q1, rules: {{include: [{{schema: hr}}]}}}}
  c2: {{site: dbs2, source: dbs2, queue: q2, rules: {{include: [{{schema: hr}}]}}}}
propagations: {{p1: {{from: q1, to: i2, rules: {{include: [{{schema: hr}}]}}}}, p2: {{from: q2, to: i1, rules: {{include: [{{schema: hr}}]}}}}}}
applies:
  at2: {{site: dbs2, source: dbs1, queue: i2, rules: {{{there}}}}}
  at1: {{site: dbs1, source: dbs2, queue: i1, rules: {{{back}}}}}
""",
    )
    (apply,) = (each for each in spec.applies if each.name == "at1")
    for table in arriving(ways_to(spec, apply), [TableName("hr", "a")]):
        assert returned_by(spec, apply, table) == ""


def test_one_change_has_one_tag_along_the_whole_way(tmp_path):
    """Capture takes only tagged changes of hr.a, the propagation only untagged ones: nothing passes both."""
    way = one_way(
        tmp_path,
        "include: [{schema: hr, tagged: true}], exclude: [{table: hr.a, tagged: false}]",
        "include: [{schema: hr}]",
    )
    assert way.carry(TABLES[0]) is None
    assert [table.source.name for table in arriving([way], TABLES)] == ["b", "c", "log"]


# --------------------------------------------------------------------------- under other names


def test_clients_after_a_rename_use_the_new_name(tmp_path):
    """The table is renamed three times: at capture, at a propagation, at the apply process.

    The rules of each client use the table's name at that client.
    """
    way = one_way(
        tmp_path,
        "include: [{table: hr.a, transform: [{rename_table: sales.u}]}, {table: hr.b}]",
        "include: [{table: sales.u, subset: \"region = 'x'\", transform: [{rename_schema: crm}]}, {schema: hr}],"
        " exclude: [{table: hr.c}]",
        "include: [{table: crm.u, transform: [{delete_columns: [salary]}, {rename_table: app.t}]}, {table: hr.b}]",
    )
    found = {str(each.source): each for each in arriving([way], TABLES)}
    assert {name: str(each.destination) for name, each in found.items()} == {"hr.a": "app.t", "hr.b": "hr.b"}
    assert "region" in found["hr.a"].rows
    assert len(found["hr.a"].transformations) == 3
    assert [str(each.table) for each in way.passages(TABLES[0])] == ["hr.a", "sales.u", "crm.u", "crm.u"]
    assert way.carry(TableName("sales", "u")) is None  # the source's own table of this name is not captured


def test_one_destination_of_a_fan_out_can_use_another_name(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
queues: {qa: {site: dbs1}, qb: {site: dbs2}, qc: {site: dbs3}}
captures: {c: {site: dbs1, source: dbs1, queue: qa, rules: {include: [{schema: hr}]}}}
propagations:
  plain: {from: qa, to: qb}
  renamed: {from: qa, to: qc, rules: {include: [{schema: hr, transform: [{rename_schema: copy}]}]}}
applies:
  at_b: {site: dbs2, source: dbs1, queue: qb, rules: {include: [{schema: hr}]}}
  at_c: {site: dbs3, source: dbs1, queue: qc, rules: {include: [{schema: copy}], exclude: [{table: copy.log}]}}
""",
    )
    at_b, at_c = (ways_to(spec, spec.apply(name)) for name in ("at_b", "at_c"))
    assert [str(each.destination) for each in arriving(at_b, TABLES)] == ["hr.a", "hr.b", "hr.c", "hr.log"]
    assert [str(each.destination) for each in arriving(at_c, TABLES)] == ["copy.a", "copy.b", "copy.c"]
    assert [each.propagation.name for each in directs(spec)] == ["plain"]  # the other one renames, and is not bypassed


# --------------------------------------------------------------------------- against brute force


TAGS = [None, b"\x11", b"\x12", b"\x99"]  # rules list all but the last


NEW_NAMES = [("hr", "b"), ("crm", "b"), ("crm", "z"), ("app", "b")]


@st.composite
def renaming(draw: st.DrawFn, rules: st.SearchStrategy[RuleSet]) -> RuleSet:
    """Rule sets, some of which rename: the schema of all their tables, or one table."""
    found = draw(rules)
    if draw(st.integers(0, 2)) or not found.include:
        return found
    if draw(st.booleans()):
        schema = Transformation(operations=(RenameSchema(owner=draw(st.sampled_from(["hr", "crm"]))),))
        return replace(found, include=tuple(replace(rule, transformation=schema) for rule in found.include))
    owner, name = draw(st.sampled_from(NEW_NAMES))
    one = Rule(
        owner="hr",
        name=draw(st.sampled_from(["a", "b"])),
        tags=ANY_TAG,
        transformation=Transformation(operations=(RenameTable(owner=owner, name=name),)),
    )
    return replace(
        found, include=(one, *(rule for rule in found.include if not rule.matches_object(one.owner, one.name)))
    )


def rule_sets(*, positive: bool) -> st.SearchStrategy[RuleSet]:
    listed = st.lists(st.sampled_from(TAGS[:3]), min_size=1, max_size=2, unique=True).map(tuple)
    tags = st.sampled_from([UNTAGGED, ANY_TAG]) | st.builds(TagCondition, listed=listed, takes_listed=st.booleans())
    rule = st.builds(
        Rule, owner=st.sampled_from(["hr", "h*", "*"]), name=st.sampled_from(["a", "b", "a*", "*"]), tags=tags
    )
    include = st.lists(rule, min_size=1, max_size=2).map(tuple)
    exclude = st.lists(rule, max_size=1).map(tuple)
    return renaming(st.builds(RuleSet, include=include if positive else st.none() | include, exclude=exclude))


@st.composite
def topologies(draw: st.DrawFn) -> TopologySpec:
    """A few sites with one or two queues each, and arbitrary components between them."""
    sites = [f"s{number}" for number in range(draw(st.integers(2, 4)))]
    queues = [
        QueueSpec(name=f"q{number}", site=site) for number, site in enumerate(sites + sites[: draw(st.integers(0, 2))])
    ]
    here = {site: [queue.name for queue in queues if queue.site == site] for site in sites}
    captures = tuple(
        CaptureSpec(
            name=f"c_{site}",
            site=site,
            source=site,
            queue=draw(st.sampled_from(here[site])),
            rules=draw(rule_sets(positive=True)),
        )
        for site in draw(st.lists(st.sampled_from(sites), min_size=1, max_size=3, unique=True))
    )
    pairs = [(a.name, b.name) for a in queues for b in queues if a != b]
    propagations = tuple(
        PropagationSpec(name=f"p{number}", from_queue=a, to_queue=b, rules=draw(rule_sets(positive=False)))
        for number, (a, b) in enumerate(draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=6, unique=True)))
    )
    flows = [(capture.source, site) for capture in captures for site in sites if site != capture.source]
    applies = tuple(
        ApplySpec(
            name=f"a{number}",
            site=to,
            source=source,
            queue=draw(st.sampled_from(here[to])),
            rules=draw(rule_sets(positive=False)),
        )
        for number, (source, to) in enumerate(draw(st.lists(st.sampled_from(flows), min_size=1, max_size=3)))
    )
    return route(
        TopologySpec(
            name="t",
            file=Path("t.yaml"),
            state_dir=Path("/x"),
            sites=tuple(SiteSpec(name=site, database=DatabaseSpec(kind="embedded")) for site in sites),
            queues=tuple(queues),
            captures=captures,
            propagations=propagations,
            applies=applies,
        )
    )


class Change(NamedTuple):
    """One row change in transit; `table` is its name at the current client."""

    source: str
    table: TableName
    tag: bytes | None


NAMES = ("a", "ab", "b", "z")
CHANGES = [(TableName(owner, name), tag) for owner in ("hr", "ho", "crm", "app") for name in NAMES for tag in TAGS]
SOURCE_CHANGES = [
    (TableName(owner, name), tag) for owner in ("hr", "ho", "crm", "app", "x") for name in NAMES for tag in TAGS
]


def passes(rules: RuleSet, change: Change) -> bool:
    """Evaluate one rule set for one change by the manuals' definition."""

    def any_true(rules_: tuple[Rule, ...]) -> bool:
        return any(
            fnmatchcase(change.table.owner, rule.owner)
            and fnmatchcase(change.table.name, rule.name)
            and (change.tag in rule.tags.listed) is rule.tags.takes_listed
            for rule in rules_
        )

    return not any_true(rules.exclude) and (rules.include is None or any_true(rules.include))


def behind(rules: RuleSet, change: Change) -> Change:
    """Return a passing change under its table's name behind the client."""
    for rule in rules.include or ():
        if (
            rule.transformation is not None
            and fnmatchcase(change.table.owner, rule.owner)
            and fnmatchcase(change.table.name, rule.name)
        ):
            (step,) = rule.transformation.operations
            return change._replace(
                table=TableName(step.owner, step.name if isinstance(step, RenameTable) else change.table.name)
            )
    return change


def propagate(spec: TopologySpec, change: Change, *, everywhere: bool) -> Counter[tuple[str, TableName]]:
    """Send one change through a topology, hop by hop; count its applications per apply process and table name.

    `everywhere`: follow every path that enters no queue twice, as if each propagation forwarded every source and each
    apply process applied a change once under each name.
    """
    applied: Counter[tuple[str, TableName]] = Counter()
    pending: list[tuple[str, Change, tuple[str, ...]]] = [
        (capture.queue, behind(capture.rules, change), (capture.queue,))
        for capture in spec.captures
        if capture.source == change.source and passes(capture.rules, change)
    ]
    hops = 0
    while pending and (everywhere or hops < 200):  # a change in an endless cycle has arrived more than once by then
        (queue, here, passed), hops = pending.pop(), hops + 1
        for apply in spec.applies:
            if (apply.queue, apply.source) == (queue, change.source) and passes(apply.rules, here):
                applied[apply.name, behind(apply.rules, here).table] += 1
        pending += [
            (p.to_queue, behind(p.rules, here), (*passed, p.to_queue))
            for p in spec.propagations
            if p.from_queue == queue
            and (p.to_queue not in passed if everywhere else change.source in p.sources)
            and passes(p.rules, here)
        ]
    return Counter(dict.fromkeys(applied, 1)) if everywhere else applied


@pytest.mark.long
@pytest.mark.seeded
@given(topologies())
@settings(max_examples=scaled(36, 1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ways_agree_with_sending_every_change_through_the_topology(spec):
    """Exactly the tables that `carry` names are applied, once each; no other path would carry another one."""
    assume(not list(overlap_findings(spec, ChangeClasses.of(spec))))  # the followed rule is undefined
    refused = any(finding.is_error for finding in check(spec))
    for apply in spec.applies:
        ways = ways_to(spec, apply)
        for table, tag in CHANGES:
            change = Change(apply.source, table, tag)
            arrives = {name for way in ways if (name := way.carry(table, tag=tag)) is not None}
            found = {
                name: count
                for (by, name), count in propagate(spec, change, everywhere=False).items()
                if by == apply.name
            }
            assert arrives == found.keys()
            for name in arrives:
                event("under another name" if name != table else "under its name")
            if not refused:
                assert set(found.values()) <= {1}
                assert found.keys() == {
                    name for by, name in propagate(spec, change, everywhere=True) if by == apply.name
                }
        if not refused:
            assert len(ways) == 1
            assert_nothing_else_passes(ways[0], apply)
    event("refused" if refused else "in order")


def assert_nothing_else_passes(way: Way, apply: ApplySpec) -> None:
    """Assert that the apply process's evaluated rules pass only names under which something arrives."""
    evaluation = RuleEvaluation(*rules_at_the_end([way]))
    before = replace(way, apply=replace(apply, rules=RuleSet()))
    coming = {(before.carry(table, tag=tag), tag) for table, tag in SOURCE_CHANGES}
    for table, tag in CHANGES:
        kept = evaluation.keeps(table_version(table.name, owner=table.owner), [tag]) == [True]
        assert kept is ((table, tag) in coming and apply.rules.keeps(*table, tag=tag)), (table, tag)
