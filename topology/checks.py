"""What can be told wrong from the topology alone.

Names that lead nowhere, components at the wrong site, LCRs that never arrive, arrive twice, or come home. Live
databases are asked later, by the preflight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import networkx as nx

from databases.ports import Finding
from rules.rule import Rule, RuleSet
from topology.patterns import overlap
from topology.problems import nearest
from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["Declared", "check", "route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Names that the file declares but that could not be read: they have problems of their own already."""

    sites: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    components: frozenset[str] = frozenset()


def check(spec: TopologySpec, broken: Declared | None = None) -> tuple[Finding, ...]:
    """Every problem and warning of a topology.

    Args:
        spec: the topology, routed (see `route`).
        broken: names that are declared but unreadable; references to them are not reported again.
    """
    broken = broken or Declared()
    findings = [*_names(spec), *_references(spec, broken), *_places(spec, broken), *_databases(spec)]
    # Paths are looked for only where every name leads somewhere: else one mistake would be reported many times.
    if not any(finding.is_error for finding in findings) and broken == Declared():
        findings += [*_arrivals(spec), *_publishers(spec), *_appliers(spec), *_idle(spec), *_homecomings(spec)]
    return tuple(findings)


# --------------------------------------------------------------------------- names and references


def _names(spec: TopologySpec) -> Iterator[Finding]:
    places: dict[str, list[str]] = {}
    for kind, names in (
        ("queues", [queue.name for queue in spec.queues]),
        ("captures", [capture.name for capture in spec.captures]),
        ("propagations", [propagation.name for propagation in spec.propagations]),
        ("applies", [apply.name for apply in spec.applies]),
    ):
        for name in names:
            places.setdefault(name, []).append(f"{kind}.{name}")
    for name, paths in places.items():
        if len(paths) > 1:
            yield Finding(
                path=paths[1],
                problem=f"{paths[0]} has the same name",
                fix=f"rename one: `start` and `stop` know components by name alone ({name})",
            )


def _references(spec: TopologySpec, broken: Declared) -> Iterator[Finding]:
    sites = {site.name for site in spec.sites}
    queues = {queue.name for queue in spec.queues}

    def unknown(path: str, what: str, name: str, known: set[str], unreadable: frozenset[str]) -> Iterator[Finding]:
        if name not in known and name not in unreadable:
            yield Finding(path=path, problem=f"there is no {what} {name!r}", fix=nearest(name, known | unreadable))

    for queue in spec.queues:
        yield from unknown(f"queues.{queue.name}.site", "site", queue.site, sites, broken.sites)
    for capture in spec.captures:
        path = f"captures.{capture.name}"
        yield from unknown(f"{path}.site", "site", capture.site, sites, broken.sites)
        yield from unknown(f"{path}.source", "site", capture.source, sites, broken.sites)
        yield from unknown(f"{path}.queue", "queue", capture.queue, queues, broken.queues)
    for propagation in spec.propagations:
        path = f"propagations.{propagation.name}"
        yield from unknown(f"{path}.from", "queue", propagation.from_queue, queues, broken.queues)
        yield from unknown(f"{path}.to", "queue", propagation.to_queue, queues, broken.queues)
    for apply in spec.applies:
        path = f"applies.{apply.name}"
        yield from unknown(f"{path}.site", "site", apply.site, sites, broken.sites)
        yield from unknown(f"{path}.source", "site", apply.source, sites, broken.sites)
        yield from unknown(f"{path}.queue", "queue", apply.queue, queues, broken.queues)


def _places(spec: TopologySpec, broken: Declared) -> Iterator[Finding]:
    """Components that stand at the wrong site."""
    kind_of = {site.name: site.database.kind for site in spec.sites}
    site_of = {queue.name: queue.site for queue in spec.queues if queue.site in kind_of}
    for capture in spec.captures:
        path = f"captures.{capture.name}"
        if capture.site != capture.source:
            yield Finding(
                path=f"{path}.site",
                problem=f"mines the redo of {capture.source} at {capture.site}: downstream capture is known but not yet built",
                fix=f"write site: {capture.source}",
            )
        elif site_of.get(capture.queue, capture.site) != capture.site:
            yield _elsewhere(f"{path}.queue", capture.queue, site_of[capture.queue], capture.site)
        if kind_of.get(capture.source) == "none":
            yield _without_database(f"{path}.source", capture.source, "capture from")
    for propagation in spec.propagations:
        if propagation.from_queue == propagation.to_queue:
            yield Finding(
                path=f"propagations.{propagation.name}.to",
                problem=f"propagates queue {propagation.to_queue} to itself",
                fix="name another queue, or leave the propagation out: an apply process can dequeue directly",
            )
    for apply in spec.applies:
        path = f"applies.{apply.name}"
        if site_of.get(apply.queue, apply.site) != apply.site:
            yield _elsewhere(f"{path}.queue", apply.queue, site_of[apply.queue], apply.site)
        if kind_of.get(apply.site) == "none":
            yield _without_database(f"{path}.site", apply.site, "apply to")
        if apply.source == apply.site and apply.site not in broken.sites:
            yield Finding(
                path=f"{path}.source",
                problem=f"applies the changes of {apply.source} to {apply.source} itself",
                fix="name the site the changes come from",
            )


def _elsewhere(path: str, queue: str, at: str, wanted: str) -> Finding:
    return Finding(
        path=path, problem=f"queue {queue} is at site {at}, not at {wanted}",
        fix=f"name a queue of {wanted}, and propagate between the two",
    )


def _without_database(path: str, site: str, verb: str) -> Finding:
    return Finding(
        path=path, problem=f"site {site} has no database to {verb}",
        fix=f"name another site, or give {site} a database of kind postgres or embedded",
    )


def _databases(spec: TopologySpec) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for site in spec.sites:
        if not site.database.dsn:
            continue
        first = seen.setdefault(site.database.dsn, site.name)
        if first != site.name:
            yield Finding(
                path=f"sites.{site.name}.database.dsn",
                problem=f"is the database of site {first}",
                fix="one database is one site: name another database, or use one site",
            )


# --------------------------------------------------------------------------- the ways of LCRs


def route(spec: TopologySpec) -> TopologySpec:
    """Fill in which sources each propagation forwards.

    An LCR takes the shortest way to every apply process that wants it, and no other. Names that lead nowhere are
    passed over; `check` reports them.
    """
    sources: dict[str, dict[str, None]] = {propagation.name: {} for propagation in spec.propagations}
    for apply in spec.applies:
        for way in _ways(spec, apply):
            for propagation in way:
                sources[propagation][apply.source] = None
    return replace(
        spec,
        propagations=tuple(
            replace(propagation, sources=tuple(sources[propagation.name])) for propagation in spec.propagations
        ),
    )


def _ways(spec: TopologySpec, apply: ApplySpec) -> list[tuple[str, ...]]:
    """The shortest ways (names of propagations) from capture to an apply process, at most two per capture."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(queue.name for queue in spec.queues)
    # A propagation is a node of its own, so that two between the same queues are two ways.
    for propagation in spec.propagations:
        graph.add_edge(propagation.from_queue, f"propagation {propagation.name}")
        graph.add_edge(f"propagation {propagation.name}", propagation.to_queue)
    answer: list[tuple[str, ...]] = []
    for capture in spec.captures:
        ends = (capture.queue, apply.queue)
        if capture.source == apply.source and all(end in graph for end in ends) and nx.has_path(graph, *ends):
            ways = islice(nx.all_shortest_paths(graph, *ends), 2)
            answer.extend(tuple(node.removeprefix("propagation ") for node in nodes[1::2]) for nodes in ways)
    return answer


def _arrivals(spec: TopologySpec) -> Iterator[Finding]:
    for apply in spec.applies:
        if not _ways(spec, apply):
            yield Finding(
                path=f"applies.{apply.name}", problem=f"no LCR of {apply.source} ever reaches queue {apply.queue}",
                fix=f"add a capture of {apply.source}, and propagations from its queue to {apply.queue}",
            )


def _publishers(spec: TopologySpec) -> Iterator[Finding]:
    """A queue takes the LCRs of one source from one publisher: their positions form one chain.

    Two ways from a source to one apply process always meet in such a queue.
    """
    publishers: dict[tuple[str, str], list[str]] = {}
    for capture in spec.captures:
        publishers.setdefault((capture.queue, capture.source), []).append(f"captures.{capture.name}")
    for propagation in spec.propagations:
        for source in propagation.sources:
            publishers.setdefault((propagation.to_queue, source), []).append(f"propagations.{propagation.name}")
    for (queue, source), paths in publishers.items():
        if len(paths) > 1:
            yield Finding(
                path=paths[1], problem=f"feeds queue {queue} with the LCRs of {source}, and so does {paths[0]}",
                fix="keep one of them, or give it a queue of its own",
            )


def _appliers(spec: TopologySpec) -> Iterator[Finding]:
    """Two apply processes at one site must not take the same changes of a source."""
    for number, apply in enumerate(spec.applies):
        for other in spec.applies[:number]:
            same = (apply.site, apply.source) == (other.site, other.source)
            if same and _rule_sets_overlap(apply.rules, other.rules):
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"applies.{other.name} applies the same changes of {apply.source} to {apply.site}",
                    fix="keep one of them, or let their rules include different tables",
                )


def _idle(spec: TopologySpec) -> Iterator[Finding]:
    """Things that do nothing: not wrong, but hardly meant."""
    for queue in spec.queues:
        if not spec.subscribers(queue.name):
            yield _warning(f"queues.{queue.name}", "nobody dequeues from it", "add a propagation or an apply process, or remove it")
    for propagation in spec.propagations:
        if not propagation.sources:
            yield _warning(
                f"propagations.{propagation.name}", "no apply process behind it wants what it could forward",
                f"add an apply process behind queue {propagation.to_queue}, or remove it",
            )
    for kind, clients in (("captures", spec.captures), ("propagations", spec.propagations), ("applies", spec.applies)):
        for client in clients:
            if client.rules.include == ():
                yield _warning(f"{kind}.{client.name}.rules.include", "is empty: nothing passes", "add a rule, or leave include out")
    used = {queue.site for queue in spec.queues}
    for site in spec.sites:
        if site.name not in used:
            yield _warning(f"sites.{site.name}", "takes part in nothing", "name it under replicate, or remove it")


def _warning(path: str, problem: str, fix: str) -> Finding:
    return Finding(path=path, problem=problem, fix=fix, is_error=False)


# --------------------------------------------------------------------------- tags


def _homecomings(spec: TopologySpec) -> Iterator[Finding]:
    """Changes that apply processes made and captures take again: they can come home, or arrive twice.

    An applied change has a tag that is not NULL, so it goes on only where a capture process takes tagged changes.
    """
    flows: nx.DiGraph[str] = nx.DiGraph()
    for apply in spec.applies:
        flows.add_edge(apply.source, apply.site)
    for origin in list(flows):
        ways: dict[str, tuple[str, ...]] = {origin: (origin,)}
        pending = [origin]
        while pending:
            site = pending.pop(0)
            capture = None if site == origin else _takes_on(spec, origin, site)
            if site != origin and capture is None:
                continue
            for destination in flows.successors(site):
                if destination not in ways:
                    ways[destination] = (*ways[site], destination)
                    pending.append(destination)
                elif capture is not None:
                    yield _came_again(capture, origin, (*ways[site], destination), ways[destination])


def _came_again(capture: CaptureSpec, origin: str, way: tuple[str, ...], first_way: tuple[str, ...]) -> Finding:
    if way[-1] == origin:
        problem = f"changes of {origin} can come home: {' -> '.join(way)}"
    else:
        problem = f"changes of {origin} can arrive at {way[-1]} twice: {' -> '.join(first_way)} and {' -> '.join(way)}"
    return _warning(f"captures.{capture.name}.rules", problem, "write tagged: false (the default) in its include rules")


def _takes_on(spec: TopologySpec, origin: str, site: str) -> CaptureSpec | None:
    """The capture process at `site` that takes changes of `origin` which were applied there, if there is one."""
    for capture in spec.captures:
        if capture.source == site and _takes_tagged(capture.rules) and _shares(spec, origin, capture):
            return capture
    return None


def _takes_tagged(rules: RuleSet) -> bool:
    return rules.include is None or any(rule.tagged for rule in rules.include)


def _shares(spec: TopologySpec, source: str, capture: CaptureSpec) -> bool:
    """Whether some table is captured at `source` and, with a tag, by `capture`."""
    tagged = RuleSet(include=None if capture.rules.include is None else tuple(r for r in capture.rules.include if r.tagged))
    return any(_rule_sets_overlap(tagged, rules) for rules in spec.capture_rules(source))


def _rule_sets_overlap(first: RuleSet, second: RuleSet) -> bool:
    """Whether some table can pass both; exclusions are not looked at, so True may be said too often."""
    everything = (Rule(),)
    return any(
        overlap(one.owner, other.owner) and overlap(one.name, other.name)
        for one in (everything if first.include is None else first.include)
        for other in (everything if second.include is None else second.include)
    )
