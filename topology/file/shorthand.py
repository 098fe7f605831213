"""`replicate:` expanded into queues, captures, propagations and applies.

Every site from which changes are taken gets one capture process and one queue; every site that receives changes gets
one more queue; every pair gets one propagation and one apply process:

    capture_dbs1 -> q_dbs1 -> dbs1_to_dbs2 -> q_dbs2_in -> apply_from_dbs1_at_dbs2

Captured and received LCRs have separate queues, so a slow destination fills only its own queue, and the names show the
way of an LCR. The names depend on the two sites alone: adding a site or a table renames nothing, which matters because
positions are recorded under these names.

Tags
    n-way, one way, fan-out    every capture process takes untagged changes: only the origin sends a change
    hub, and every site with   its capture process takes all changes, also those of apply processes: it forwards them. A
    spokes of its own          spoke's changes are tagged there with the spoke's name. A neighbour gets all changes except
                               those with the tag that its own changes have here, so no change returns

    spoke a, hub h, spoke b    at h: a's changes are tagged a; b gets NULL and a, a gets NULL and b
    secondary s below h, with  at s: h's changes are tagged 00, those of x are tagged x; h gets all but 00, x all but x
    a secondary x of its own

Exclusions
    What an entry excludes is a negative rule: of the capture process, if no other entry takes it from that site; else of
    the propagations to the entry's sites. Two entries for the same two sites may not contradict each other.

Hubs and spokes make a tree, and between two sites of a tree there is one path: every change reaches every site once.

Source: Oracle Streams Replication Administrator's Guide, "Best Practices", separate queues for capture and apply;
"Oracle Streams Tags", n-way, hub-and-spoke, and extended secondary databases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.lcr.tags import DEFAULT_APPLY_TAG
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from topology.patterns import examples
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, QueueSpec

__all__ = [
    "Components",
    "Flow",
    "Replicate",
    "Spoke",
    "apply_name",
    "capture_name",
    "contradictions",
    "expand",
    "flows_between",
    "flows_of_tree",
    "one_way",
    "overlap",
    "propagation_name",
    "queue_names",
    "tag_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Changes from one site to another.

    Args:
        source: the site whose capture process takes them.
        destination: the site whose apply process applies them.
        forwards: the source also sends changes that apply processes wrote there, except those from the destination.
        has_own_tag: the destination forwards, so a tag of their own identifies the source's changes there.
    """

    source: str
    destination: str
    forwards: bool = False
    has_own_tag: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoke:
    """A site below a hub, and the sites below it."""

    site: str
    spokes: tuple[Spoke, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """One entry of `replicate:`.

    Args:
        rules: the objects, and whether their DDL is taken; the flows decide which tags are taken.
        flows: the pairs of sites.
        exclude: objects that `rules` name and that are not taken, with their DDL and with any tag.
    """

    rules: tuple[Rule, ...]
    flows: tuple[Flow, ...]
    exclude: tuple[Rule, ...] = ()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The pairs of sites."""
        return frozenset((flow.source, flow.destination) for flow in self.flows)

    def may_take(self, excluded: Rule) -> bool:
        """Return whether a table could be one that a rule excludes and that this entry takes."""
        return excluded not in self.exclude and any(overlap(excluded, rule) for rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """All components that move changes."""

    queues: tuple[QueueSpec, ...] = ()
    captures: tuple[CaptureSpec, ...] = ()
    propagations: tuple[PropagationSpec, ...] = ()
    applies: tuple[ApplySpec, ...] = ()


def overlap(one: Rule, other: Rule) -> bool:
    """Return whether a table could have a name that both rules match."""
    owners, names = examples((one.owner, other.owner)), examples((one.name, other.name))
    return any(
        one.matches_object(owner, name) and other.matches_object(owner, name) for owner in owners for name in names
    )


def contradictions(entries: Sequence[Replicate]) -> Iterator[tuple[int, int, Rule]]:
    """Yield what one entry excludes and another one takes between the same sites.

    Args:
        entries: in the order of the file.

    Yields:
        The places of both entries, and the exclusion.
    """
    for number, entry in enumerate(entries):
        for place, other in enumerate(entries):
            if place != number and entry.pairs & other.pairs:
                yield from ((number, place, rule) for rule in entry.exclude if other.may_take(rule))


class _Rules:
    """The rules of a client in the order of the file, each once. It takes a rule's DDL if one of the entries does."""

    def __init__(self) -> None:
        self._ddl: dict[Rule, bool] = {}

    def add(self, rules: Sequence[Rule], tags: TagCondition) -> None:
        """Add the rules of an entry, for changes with some tags."""
        for rule in rules:
            plain = replace(rule, tags=tags, ddl=False)
            self._ddl[plain] = self._ddl.get(plain, False) or rule.ddl

    @property
    def all(self) -> tuple[Rule, ...]:
        """The rules."""
        return tuple(replace(rule, ddl=ddl) for rule, ddl in self._ddl.items())


def capture_name(source: str) -> str:
    """Return the name of a site's capture process."""
    return f"capture_{source}"


def queue_names(site: str) -> tuple[str, str]:
    """Return the names of a site's queues: for changes captured there, for changes that arrive there."""
    return f"q_{site}", f"q_{site}_in"


def propagation_name(source: str, destination: str) -> str:
    """Return the name of the propagation that `replicate:` makes between two sites.

    Args:
        source: site of the queue that it reads.
        destination: site of the queue that it sends to.
    """
    return f"{source}_to_{destination}"


def apply_name(source: str, destination: str) -> str:
    """Return the name of the apply process that `replicate:` makes; unique in the topology.

    Args:
        source: site whose changes it applies.
        destination: site where it applies them.
    """
    return f"apply_from_{source}_at_{destination}"


def tag_of(site: str) -> bytes:
    """Return the tag that a spoke's changes have at its hub: the site's name.

    It depends on nothing else, so it stays when spokes are added or removed: the hub's redo can hold changes with it
    for long.
    """
    return site.encode()


def one_way(source: str, destinations: Sequence[str]) -> tuple[Flow, ...]:
    """Return the flows from one site to others.

    Args:
        source: site whose changes flow.
        destinations: other sites, without duplicates.
    """
    return tuple(Flow(source=source, destination=destination) for destination in destinations)


def flows_between(sites: Sequence[str]) -> tuple[Flow, ...]:
    """Return the flows between every ordered pair of different sites."""
    return tuple(Flow(source=a, destination=b) for a in sites for b in sites if a != b)


def flows_of_tree(hub: Spoke) -> tuple[Flow, ...]:
    """Return the flows between a hub and its spokes, and between every spoke and its own spokes, both ways."""
    flows = []
    for spoke in hub.spokes:
        flows.append(Flow(source=hub.site, destination=spoke.site, forwards=True))
        flows.append(Flow(source=spoke.site, destination=hub.site, forwards=bool(spoke.spokes), has_own_tag=True))
        flows.extend(flows_of_tree(spoke))
    return tuple(flows)


def expand(entries: Sequence[Replicate], *, own_captures: frozenset[str] = frozenset()) -> Components:
    """Expand the shorthand, all entries together: changes between two sites share one path.

    Args:
        entries: in the order of the file.
        own_captures: names of capture processes that the file defines itself. What they take is unknown here, so the
            propagations behind them always get the rules of the shorthand.
    """
    own_tags = {(flow.source, flow.destination) for entry in entries for flow in entry.flows if flow.has_own_tag}

    def tag(source: str, destination: str) -> bytes:
        return tag_of(source) if (source, destination) in own_tags else DEFAULT_APPLY_TAG

    captured: dict[str, _Rules] = {}
    sent: dict[tuple[str, str], _Rules] = {}
    for entry in entries:
        for flow in entry.flows:
            came_from_there = TagCondition(listed=(tag(flow.destination, flow.source),), takes_listed=False)
            # Without forwarding, the capture process has already checked the tag.
            taken, passed = (ANY_TAG, came_from_there) if flow.forwards else (UNTAGGED, ANY_TAG)
            captured.setdefault(flow.source, _Rules()).add(entry.rules, taken)
            sent.setdefault((flow.source, flow.destination), _Rules()).add(entry.rules, passed)
    destinations = tuple(dict.fromkeys(destination for _, destination in sent))
    excluded = {pair: _excluded([entry for entry in entries if pair in entry.pairs]) for pair in sent}
    nowhere = {
        source: _excluded([entry for entry in entries if any(flow.source == source for flow in entry.flows)])
        for source in captured
    }

    queues = [QueueSpec(name=queue_names(source)[0], site=source) for source in captured]
    queues += [QueueSpec(name=queue_names(destination)[1], site=destination) for destination in destinations]
    captures = [
        CaptureSpec(
            name=capture_name(source),
            site=source,
            source=source,
            queue=queue_names(source)[0],
            rules=RuleSet(include=rules.all, exclude=nowhere[source]),
        )
        for source, rules in captured.items()
    ]
    propagations = []
    applies = []
    for (source, destination), rules in sent.items():
        going = set(rules.all)
        exclude = excluded[source, destination]
        takes_all = (
            capture_name(source) not in own_captures
            and all(replace(rule, tags=ANY_TAG) in going for rule in captured[source].all)
            and set(exclude) <= set(nowhere[source])
        )
        propagations.append(
            PropagationSpec(
                name=propagation_name(source, destination),
                from_queue=queue_names(source)[0],
                to_queue=queue_names(destination)[1],
                rules=RuleSet() if takes_all else RuleSet(include=rules.all, exclude=exclude),
            )
        )
        applies.append(
            ApplySpec(
                name=apply_name(source, destination),
                site=destination,
                source=source,
                queue=queue_names(destination)[1],
                tag=tag(source, destination),
                combined=True,
            )
        )
    return Components(
        queues=tuple(queues), captures=tuple(captures), propagations=tuple(propagations), applies=tuple(applies)
    )


def _excluded(entries: Sequence[Replicate]) -> tuple[Rule, ...]:
    """Return what some of the entries exclude, and none takes."""
    rules = dict.fromkeys(rule for entry in entries for rule in entry.exclude)
    return tuple(rule for rule in rules if not any(entry.may_take(rule) for entry in entries))
