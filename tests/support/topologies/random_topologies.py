"""Random topologies: anything that may run between a few sites, the short forms, and small edits of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from headrace.rules.transformations.transformation import RenameSchema, RenameTable, Transformation
from topology.file.shorthand import Replicate, Spoke, expand, flows_between, flows_of_tree, one_way
from topology.routing.ways import route
from topology.spec import (
    ApplySpec,
    CaptureSpec,
    DatabaseSpec,
    PropagationSpec,
    QueueSpec,
    SiteSpec,
    TopologySpec,
)

__all__ = ["NAMES", "TABLES", "TAGS", "edited", "form", "relayed", "wild"]

SITES = ("s1", "s2", "s3", "s4", "s5")
TABLES = [("hr", "a"), ("hr", "ab"), ("hr", "b"), ("crm", "a"), ("z", "z")]  # rules name all but the last
# and their names after renames
NAMES = [*TABLES, ("hr", "z"), ("crm", "ab"), ("crm", "b"), ("crm", "z"), ("z", "a"), ("z", "ab"), ("z", "b")]
RULE_SETS = 500
TAGS = [b"\x00", b"\x11", b"\x12"]


def _spec(queues, captures, propagations, applies) -> TopologySpec:
    return route(
        TopologySpec(
            name="t",
            file=Path("t.yaml"),
            state_dir=Path("/x"),
            sites=tuple(SiteSpec(name=site, database=DatabaseSpec(kind="embedded")) for site in SITES),
            queues=tuple(queues),
            captures=tuple(captures),
            propagations=tuple(propagations),
            applies=tuple(applies),
        )
    )


# --------------------------------------------------------------------------- anything


def _condition(random: Random) -> TagCondition:
    listed = tuple(random.sample([None, *TAGS], random.randint(1, 2)))
    return random.choice(
        [UNTAGGED, ANY_TAG, ANY_TAG, TagCondition(listed=listed), TagCondition(listed=listed, takes_listed=False)]
    )


def _rule(random: Random) -> Rule:
    return Rule(
        owner=random.choice(["hr", "h*", "*", "crm"]),
        name=random.choice(["a", "b", "a*", "?", "*", "*"]),
        tags=_condition(random),
    )


def _rules(random: Random, *, positive: bool) -> RuleSet:
    return (
        RuleSet()
        if not positive and random.random() < 0.6
        else _rule_set(random.randrange(RULE_SETS), positive=positive)
    )


@cache
def _rule_set(number: int, *, positive: bool) -> RuleSet:
    """Return one of `RULE_SETS`: evaluating each of them once makes thousands of topologies affordable."""
    random = Random(number)
    include = tuple(_rule(random) for _ in range(random.randint(1, 2)))
    exclude = (_rule(random),) if random.random() < 0.2 else ()
    found = RuleSet(include=include if positive or random.random() < 0.6 else None, exclude=exclude)
    return _renaming(random, found) if found.include and random.random() < 0.3 else found


def _renaming(random: Random, rules: RuleSet) -> RuleSet:
    """Return the rules with one that renames a table, or with all of them renaming the schema."""
    if random.random() < 0.5:
        schema = Transformation(operations=(RenameSchema(owner=random.choice(["hr", "crm", "z"])),))
        return replace(rules, include=tuple(replace(rule, transformation=schema) for rule in rules.include))
    owner, name = random.choice(NAMES)
    taken = random.choice(TABLES[:4])
    one = Rule(
        owner=taken[0],
        name=taken[1],
        tags=_condition(random),
        transformation=Transformation(operations=(RenameTable(owner=owner, name=name),)),
    )
    return replace(rules, include=(one, *(rule for rule in rules.include if not rule.matches_object(*taken))))


def wild(random: Random, size: int) -> TopologySpec:
    """Return up to `size` flows between up to five sites, direct or over a third site's queue, with any rules and tags."""
    sites = SITES[: min(2 + size // 2, len(SITES))]
    pairs = [(a, b) for a in sites for b in sites if a != b]
    flows = [random.choice(pairs) for _ in range(max(1, size))]
    if random.random() < 0.8:
        flows = list(dict.fromkeys(flows))
    sources = dict.fromkeys(a for a, _ in flows)
    queues = [QueueSpec(name=f"q_{site}", site=site) for site in sites]
    captures = [
        CaptureSpec(name=f"c_{site}", site=site, source=site, queue=f"q_{site}", rules=_rules(random, positive=True))
        for site in sources
    ]
    propagations, applies = [], []
    for number, (source, site) in enumerate(flows):
        shared = random.random() < 0.1
        at = f"q_{site}" if shared else f"i_{number}"
        if not shared:
            queues.append(QueueSpec(name=at, site=site))
        start = f"q_{source}"
        if random.random() < 0.15:  # over a third site's queue
            over = random.choice(sites)
            queues.append(QueueSpec(name=f"o_{number}", site=over))
            propagations.append(
                PropagationSpec(
                    name=f"p_{number}_first",
                    from_queue=start,
                    to_queue=f"o_{number}",
                    rules=_rules(random, positive=False),
                )
            )
            start = f"o_{number}"
        propagations.append(
            PropagationSpec(name=f"p_{number}", from_queue=start, to_queue=at, rules=_rules(random, positive=False))
        )
        applies.append(
            ApplySpec(
                name=f"a_{number}",
                site=site,
                source=source,
                queue=at,
                tag=random.choice([*TAGS, *TAGS, None]),
                rules=_rules(random, positive=False),
            )
        )
    return _spec(queues, captures, propagations, applies)


# --------------------------------------------------------------------------- correct ones


def _tree(random: Random, sites: list[str]) -> Spoke:
    parents = [random.randrange(number) for number in range(1, len(sites))]

    def below(number: int) -> Spoke:
        return Spoke(
            site=sites[number], spokes=tuple(below(n + 1) for n, parent in enumerate(parents) if parent == number)
        )

    return below(0)


def form(random: Random, size: int = 5) -> TopologySpec:
    """Return one to three short forms, each with its own table, whose apply processes name the tables that they expect."""
    entries = []
    for owner, name in random.sample([("hr", "a"), ("hr", "b"), ("crm", "*")], random.randint(1, 3)):
        sites = random.sample(SITES, random.randint(2, max(2, min(size, len(SITES)))))
        flows = random.choice(
            [
                lambda sites=sites: flows_between(sites),
                lambda sites=sites: flows_of_tree(_tree(random, sites)),
                lambda sites=sites: flows_of_tree(
                    Spoke(site=sites[0], spokes=tuple(Spoke(site=site) for site in sites[1:]))
                ),
                lambda sites=sites: one_way(sites[0], sites[1:]),
            ]
        )()
        entries.append(Replicate(rules=(Rule(owner=owner, name=name),), flows=flows))
    parts = expand(entries)

    def expected(apply: ApplySpec) -> RuleSet:
        rules = [
            replace(rule, tags=ANY_TAG)
            for entry in entries
            for rule in entry.rules
            if any((flow.source, flow.destination) == (apply.source, apply.site) for flow in entry.flows)
        ]
        return RuleSet(include=tuple(dict.fromkeys(rules)))

    applies = [replace(apply, rules=expected(apply)) for apply in parts.applies]
    return _spec(parts.queues, parts.captures, parts.propagations, applies)


def relayed(random: Random, spec: TopologySpec) -> TopologySpec:
    """Return the topology with one propagation cut in two by a queue at another site."""
    cut = random.choice(spec.propagations)
    over = QueueSpec(name="over", site=random.choice(SITES))
    first, second = replace(cut, name="to_over", to_queue="over"), replace(cut, from_queue="over", rules=RuleSet())
    propagations = [*(each for each in spec.propagations if each != cut), first, second]
    return _spec([*spec.queues, over], spec.captures, propagations, spec.applies)


# --------------------------------------------------------------------------- edits


def edited(random: Random, spec: TopologySpec) -> tuple[str, TopologySpec]:
    """Return a topology after one small edit, and a description of the edit."""
    name, edit = random.choice(list(_EDITS.items()))
    return name, _spec(
        **edit(random, {kind: list(getattr(spec, kind)) for kind in ("queues", "captures", "propagations", "applies")})
    )


def _replaced(parts, kind: str, old, **values):
    return parts | {kind: [replace(each, **values) if each is old else each for each in parts[kind]]}


def _apply_tag(random: Random, parts):
    apply = random.choice(parts["applies"])
    tags = [None, b"\x00", b"\x77", *(each.tag for each in parts["applies"])]
    return _replaced(parts, "applies", apply, tag=random.choice(tags))


def _client_with_rules(random: Random, parts, kinds=("captures", "propagations", "applies")):
    clients = [(kind, each) for kind in kinds for each in parts[kind] if each.rules.include or each.rules.exclude]
    return random.choice(clients)


def _other_rule(change: Callable[[Random, Rule, list[bytes | None]], Rule], **kinds):
    def edit(random: Random, parts):
        kind, client = _client_with_rules(random, parts, **kinds)
        tags = [None, *{each.tag for each in parts["applies"]}]
        place = random.randrange(len(client.rules.include))
        include = tuple(
            change(random, rule, tags) if number == place else rule for number, rule in enumerate(client.rules.include)
        )
        return _replaced(parts, kind, client, rules=replace(client.rules, include=include))

    return edit


def _condition_changed(random: Random, rule: Rule, tags) -> Rule:
    return replace(rule, tags=TagCondition(listed=(random.choice(tags),), takes_listed=random.random() < 0.5))


def _condition_dropped(_random: Random, rule: Rule, _tags) -> Rule:
    return replace(rule, tags=UNTAGGED if rule.tags == ANY_TAG else ANY_TAG)


def _table_changed(random: Random, rule: Rule, _tags) -> Rule:
    owner, name = random.choice([("hr", "a"), ("hr", "b"), ("crm", "*"), ("hr", "*"), ("*", "*")])
    return replace(rule, owner=owner, name=name)


def _renamed(random: Random, rule: Rule, _tags) -> Rule:
    """Rename before an apply process, whose rules name the wanted tables: another name there is a wish."""
    return replace(
        rule, transformation=Transformation(operations=(RenameSchema(owner=random.choice(["z", "crm", "hr"])),))
    )


def _rule_dropped(random: Random, parts):
    kind, client = _client_with_rules(random, parts)
    include = list(client.rules.include)
    del include[random.randrange(len(include))]
    return _replaced(parts, kind, client, rules=replace(client.rules, include=tuple(include)))


def _rules_dropped(random: Random, parts):
    kind, client = _client_with_rules(random, parts)
    return _replaced(parts, kind, client, rules=RuleSet())


def _excluded(random: Random, parts):
    kind = random.choice(["captures", "propagations", "applies"])
    client = random.choice(parts[kind])
    owner, name = random.choice([("hr", "a"), ("hr", "b"), ("crm", "*"), ("*", "*")])
    tags = random.choice([ANY_TAG, UNTAGGED, TagCondition(listed=(random.choice(parts["applies"]).tag,))])
    return _replaced(
        parts,
        kind,
        client,
        rules=replace(client.rules, exclude=(*client.rules.exclude, Rule(owner=owner, name=name, tags=tags))),
    )


def _added(random: Random, parts):
    """Add a propagation and, where its end already handles the source, an apply process for what it may bring."""
    start, end = random.choice(parts["queues"]), random.choice(parts["queues"])
    capture = random.choice(parts["captures"])
    if start.name == end.name or end.site == capture.source:
        return _added(random, parts)
    more = PropagationSpec(name="more", from_queue=start.name, to_queue=end.name)
    return parts | {
        "propagations": [*parts["propagations"], more],
        "applies": [*parts["applies"], *_applied(random, parts, capture.source, end)],
    }


def _added_aside(random: Random, parts):
    """Add a second flow between two sites, with its own queue."""
    known = random.choice(parts["applies"])
    ends = random.choice([(known.source, known.site), (known.site, known.source)])
    captures = [each for each in parts["captures"] if each.source == ends[0]]
    if not captures:
        return _added_aside(random, parts)
    aside = QueueSpec(name="aside", site=ends[1])
    return parts | {
        "queues": [*parts["queues"], aside],
        "propagations": [
            *parts["propagations"],
            PropagationSpec(name="more", from_queue=captures[0].queue, to_queue="aside"),
        ],
        "applies": [*parts["applies"], *_applied(random, parts, ends[0], aside)],
    }


def _applied(random: Random, parts, source: str, queue: QueueSpec) -> list[ApplySpec]:
    """Return an apply process for further changes of a source, of tables already sent between the two sites.

    Empty if there are no such tables.
    """
    known = [each for each in parts["applies"] if {each.site, each.source} == {source, queue.site}]
    tag = random.choice(parts["applies"]).tag
    return [
        ApplySpec(name="more_applied", site=queue.site, source=source, queue=queue.name, tag=tag, rules=each.rules)
        for each in known[:1]
    ]


def _removed(kind: str):
    def edit(random: Random, parts):
        gone = random.choice(parts[kind])
        return parts | {kind: [each for each in parts[kind] if each is not gone]}

    return edit


def _redirected(random: Random, parts):
    propagation = random.choice(parts["propagations"])
    start = random.choice(parts["captures"]).queue
    return _replaced(parts, "propagations", propagation, from_queue=start)


def _other_source(random: Random, parts):
    apply = random.choice(parts["applies"])
    sources = [each.source for each in parts["captures"] if each.source != apply.site]
    return _replaced(parts, "applies", apply, source=random.choice(sources))


_EDITS: dict[str, Callable[..., Any]] = {
    "the tag of an apply process changed": _apply_tag,
    "a condition on tags changed": _other_rule(_condition_changed),
    "a condition on tags dropped or added": _other_rule(_condition_dropped),
    "the table of a rule changed": _other_rule(_table_changed),
    "a rule renames a schema": _other_rule(_renamed, kinds=("captures", "propagations")),
    "a rule dropped": _rule_dropped,
    "all rules of a client dropped": _rules_dropped,
    "a negative rule added": _excluded,
    "a propagation added": _added,
    "a flow added": _added_aside,
    "a propagation removed": _removed("propagations"),
    "an apply process removed": _removed("applies"),
    "a capture process removed": _removed("captures"),
    "a propagation that begins elsewhere": _redirected,
    "an apply process of another source": _other_source,
}
