"""The effect of an edit of a topology: each component's part, compared between two versions of the file.

A component depends on its part of the topology and on nothing else. A component whose part is unchanged keeps running
untouched. If its part changed, the changed facets decide: a running component takes over some facets while it runs; for
others it is stopped and created again. `FIXED` lists the latter by kind of component.

    an edit adds a destination  ->  site of the source: its captures and subscribers    taken over
                                    queue of the source: its subscribers                taken over
                                    capture, propagations to others, their applies      the same: untouched
                                    queue, propagation, apply of the new destination    new
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule
from topology.edits.stored import without_secrets
from topology.routing.change_classes import ChangeClasses
from topology.routing.combined import apply_of, bypassed, capture_of, dequeued, directs, left_out, readers_of
from topology.routing.downstream import receiver_of, receivers_from, redo_receivers
from topology.routing.ways import sites_behind, ways_to
from topology.spec import ApplySpec, TopologySpec

__all__ = [
    "Change",
    "Component",
    "adopted_first",
    "brought_from",
    "bypassed_of",
    "changes",
    "components_of",
    "interests_of",
    "places_of",
    "published_by",
    "published_to",
    "queues_before",
]

FIXED: Mapping[str, frozenset[str]] = {
    "site": frozenset({"database", "node", "certificate", "state folder", "bounds of the redo log"}),
    "queue": frozenset({"site", "node", "process", "certificate", "state folder", "bounds"}),
    "redo": frozenset({"site", "node", "process", "certificate", "state folder", "bounds of the redo log"}),
    "capture": frozenset({"site", "source", "node", "process", "certificate", "state folder"}),
    "propagation": frozenset({"site", "node", "process", "certificate", "state folder"}),
    "spark": frozenset({"site", "node", "certificate", "state folder"}),
    # Everything except the origin of its batches: the driver gets its configuration when it starts.
    "apply": frozenset(
        {
            "settings",
            "sites",
            "process",
            "state folder",
            "tables",
            "conditions",
            "DDL",
            "other writers of its tables",
            "apply processes of returning changes",
        }
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component of a topology.

    Args:
        name: of its actor: "<kind>:<name in the topology>".
        kind: "site", "spark", "redo", "queue", "capture", "propagation" or "apply".
        site: where it runs.
    """

    name: str
    kind: str
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The effect of an edit on one component.

    Args:
        component: its name.
        action: "new", "same", "takes over" (it takes the change over while it runs), "restarts" or "ends".
        facets: the changed facets of its part, as nouns for people.
    """

    component: str
    action: str
    facets: tuple[str, ...] = ()


def components_of(spec: TopologySpec) -> tuple[Component, ...]:
    """Return every component of a topology that runs, sites first.

    Components that combined capture and apply bypasses are absent.
    """
    without = bypassed(spec)
    return tuple(component for component in _every(spec) if component.name not in without)


def bypassed_of(spec: TopologySpec) -> dict[Component, str]:
    """Map queues and propagations that do not run to the full name of the component that bypasses each."""
    without = bypassed(spec)
    return {each: without[each.name] for each in _every(spec) if each.name in without}


def _every(spec: TopologySpec) -> tuple[Component, ...]:
    site_of = {queue.name: queue.site for queue in spec.queues}
    kinds: tuple[tuple[str, Any], ...] = (
        ("site", [(site.name, site.name) for site in spec.sites]),
        # Applications come first: Spark starts slowest.
        ("spark", [(name, name) for name in dict.fromkeys(apply.site for apply in spec.applies)]),
        ("apply", [(apply.name, apply.site) for apply in spec.applies]),
        ("redo", [(receiver.name, receiver.site) for receiver in redo_receivers(spec)]),
        ("queue", [(queue.name, queue.site) for queue in spec.queues]),
        ("capture", [(capture.name, capture.site) for capture in spec.captures]),
        ("propagation", [(each.name, site_of[each.from_queue]) for each in spec.propagations]),
    )
    return tuple(
        Component(name=f"{kind}:{name}", kind=kind, site=site) for kind, named in kinds for name, site in named
    )


def changes(before: TopologySpec, after: TopologySpec) -> tuple[Change, ...]:
    """Return the effect of an edit on every component of the topology, before and after.

    Args:
        before: the topology that was prepared last, with connection strings or their digests.
        after: the wanted topology. Both are routed (`topology.routing.ways.route`).

    Returns:
        The components of `after` in the order of `components_of`, then those that end.
    """
    before, after = without_secrets(before), without_secrets(after, like=before)
    known = {component.name: component for component in components_of(before)}
    classes = ChangeClasses(
        client.rules
        for spec in (before, after)
        for clients in (spec.captures, spec.propagations, spec.applies)
        for client in clients
    )
    found = []
    for component in components_of(after):
        if component.name not in known:
            found.append(Change(component=component.name, action="new"))
            continue
        old, new = (_part(spec, classes, component) for spec in (before, after))
        facets = tuple(name for name in new if old[name] != new[name])
        action = "same"
        if facets:
            action = "restarts" if FIXED[component.kind] & set(facets) else "takes over"
        found.append(Change(component=component.name, action=action, facets=facets))
    wanted = {component.name for component in components_of(after)}
    return (*found, *(Change(component=name, action="ends") for name in known if name not in wanted))


def interests_of(spec: TopologySpec, queue: str) -> dict[str, tuple[str, ...]]:
    """Return the subscribers of a queue, and the sources that each of them takes from it.

    A combined apply process takes none (`topology.routing.combined`). A propagation that is being split off or merged
    (`topology.split`) subscribes to two queues and reads one of them.

    Args:
        spec: routed (`topology.routing.ways.route`): only then do propagations have their sources.
        queue: its name.

    Returns:
        Names of propagations and apply processes -> names of source sites.
    """
    without = left_out(spec)
    interests = {each.name: each.sources for each in spec.propagations if queue in (each.from_queue, each.held_in)}
    interests |= {each.name: (each.source,) for each in spec.applies if each.queue == queue}
    direct = {
        apply.name: (apply.source,)
        for each in directs(spec)
        if queue in (each.propagation.from_queue, each.propagation.held_in)
        for apply in each.applies
    }
    return {name: sources for name, sources in interests.items() if name not in without} | direct


def places_of(spec: TopologySpec, queue: str) -> dict[str, dict[str, frozenset[str]]]:
    """Return the sites to which each subscriber of a queue brings a source's changes.

    For a propagation these are the sites of all queues behind it, whatever their names; for an apply process, its own
    site.

    Args:
        spec: routed (`topology.routing.ways.route`).
        queue: its name.

    Returns:
        Sites by source and subscriber.
    """
    found: dict[str, dict[str, frozenset[str]]] = {}
    for propagation in spec.propagations:
        if queue in (propagation.from_queue, propagation.held_in):
            # Apply processes that bypass a propagation have its place: no one else is behind that queue.
            names = (propagation.name, *readers_of(spec, propagation))
            for source in propagation.sources:
                found.setdefault(source, {}).update(dict.fromkeys(names, sites_behind(spec, propagation, source)))
    for apply in spec.applies:
        if apply.queue == queue:
            found.setdefault(apply.source, {})[apply.name] = frozenset({apply.site})
    return found


def adopted_first(
    before: TopologySpec, after: TopologySpec, earlier_edit: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> dict[str, tuple[str, ...]]:
    """Return queues that must adopt an edit after others, namely those from which a site will get its changes instead.

    A queue that no longer brings changes to a site holds nothing for it, and reports as DURABLE what the site may still
    lack. The queues before it must hold those changes by then: they release what this queue reported.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed.
        earlier_edit: the result for the previous edit. Some queues may not have adopted that edit yet, and adopt both
            at once.

    Returns:
        By full name of a queue, the full names of the queues that it waits for. The result has no cycles.
    """
    found: dict[str, tuple[str, ...]] = {}
    both = sorted({each.name for each in before.queues} & {each.name for each in after.queues})
    earlier, now = ({name: brought_from(spec, name) for name in both} for spec in (before, after))
    for name in both:
        first: set[str] = set()
        for source, brought in earlier[name].items():
            left = _sites(brought) - _sites(now[name][source])
            first |= {
                each
                for each in queues_before(before, name, source)
                if each in now and left & _sites(now[each][source] - earlier[each][source])
            }
        _let_wait(found, f"queue:{name}", (f"queue:{each}" for each in sorted(first)))
    for queue, others in earlier_edit.items():
        if queue.partition(":")[2] in now:
            _let_wait(found, queue, (each for each in others if each.partition(":")[2] in now))
    return found


def _let_wait(found: dict[str, tuple[str, ...]], queue: str, first: Iterable[str]) -> None:
    """Let a queue wait for others, except for those that wait for it."""
    waits = dict.fromkeys((*found.get(queue, ()), *(each for each in first if not _waits(found, each, queue))))
    if waits:
        found[queue] = tuple(waits)


def brought_from(spec: TopologySpec, queue: str) -> defaultdict[str, set[tuple[str, str]]]:
    """Return by source the subscribers of a queue, each with a site to which it brings the changes.

    Args:
        spec: routed.
        queue: its name.
    """
    places, found = places_of(spec, queue), defaultdict[str, set[tuple[str, str]]](set)
    for name, sources in interests_of(spec, queue).items():
        for source in sources:
            found[source] |= {(name, site) for site in places[source][name]}
    return found


def _sites(brought: Iterable[tuple[str, str]]) -> set[str]:
    return {site for _, site in brought}


def queues_before(spec: TopologySpec, queue: str, source: str) -> set[str]:
    """Return the queues over which the changes of a source come into another one.

    Args:
        spec: routed.
        queue: its name.
        source: the source.
    """
    found = [queue]
    for each in found:  # the loop appends to `found`
        found += [
            one.from_queue
            for one in spec.propagations
            if one.to_queue == each and source in one.sources and one.from_queue not in found
        ]
    return set(found[1:])


def _waits(first: Mapping[str, tuple[str, ...]], queue: str, other: str) -> bool:
    """Return whether a queue waits for another one, directly or indirectly."""
    return any(each == other or _waits(first, each, other) for each in first.get(queue, ()))


def published_to(spec: TopologySpec, queue: str) -> set[str]:
    """Return the sources whose LCRs come into a queue, from capture processes and propagations.

    Args:
        spec: routed (`topology.routing.ways.route`): only then do propagations have their sources.
        queue: its name.
    """
    return {source for sources in published_by(spec, queue).values() for source in sources}


def published_by(spec: TopologySpec, queue: str) -> dict[str, set[str]]:
    """Return the capture processes and propagations that publish into a queue, each with its sources.

    Args:
        spec: routed (`topology.routing.ways.route`): only then do propagations have their sources.
        queue: its name.
    """
    without = left_out(spec)
    found = {each.name: {each.source} for each in spec.captures if each.queue == queue and each.name not in without}
    return found | {
        each.name: set(each.sources)
        for each in spec.propagations
        if each.to_queue == queue and each.name not in without
    }


# --------------------------------------------------------------------------- the parts


def _part(spec: TopologySpec, classes: ChangeClasses, component: Component) -> dict[str, Any]:
    """Return what a component depends on, by facet."""
    name = component.name.partition(":")[2]
    site = spec.site(component.site)
    place: dict[str, Any] = {
        "site": component.site,
        "node": site.node,
        "certificate": site.tls,
        "state folder": (spec.name, spec.state_dir),
    }
    if component.kind == "site":
        return place | _site_part(spec, name)
    if component.kind == "spark":
        return place | {"executors": site.executors}
    place["process"] = spec.processes_apart  # sites and Spark applications always have a process of their own
    if component.kind == "redo":
        receiver = receiver_of(spec, name)
        return place | {
            "bounds of the redo log": spec.redo_bytes_max,
            "captures": receiver.captures,
            "transport": replace(receiver, captures=()),
            "checkpoint retention time": [spec.capture(each).checkpoint_retention_s for each in receiver.captures],
        }
    if component.kind == "queue":
        queue = spec.queue(name)
        return place | {
            "bounds": queue,
            "subscribers": (interests_of(spec, name), places_of(spec, name)),
            "sources": published_to(spec, name),
        }
    if component.kind == "capture":
        capture = spec.capture(name)
        apply = apply_of(spec, capture)
        return place | {
            "source": capture.source,
            "queue": capture.queue if apply is None else apply.queue,
            "rules": capture.rules,
            "combined capture and apply": "" if apply is None else apply.name,
        }
    if component.kind == "propagation":
        propagation = spec.propagation(name)
        return place | {
            "queues": (propagation.from_queue, propagation.to_queue),
            "rules": propagation.rules,
            "sources": propagation.sources,
            "compression": propagation.compression,
            "bandwidth": propagation.bandwidth_max,
            "schedule": propagation.schedule,
        }
    return _apply_part(spec, classes, spec.apply(name)) | {key: place[key] for key in ("process", "state folder")}


def _site_part(spec: TopologySpec, name: str) -> dict[str, Any]:
    return {
        "database": spec.site(name).database,
        "bounds of the redo log": (spec.redo_bytes_max, spec.segment_bytes),
        "heartbeat": spec.heartbeat_s,
        "captures": [replace(each, queue="") for each in spec.captures if each.source == name],
        "redo receivers": [
            (each.name, each.is_sync, each.archive_lag_s, each.is_archived_log) for each in receivers_from(spec, name)
        ],
        "applies from here": sum(1 for each in spec.applies if each.source == name),
        "applies here": [_settings(each) for each in spec.applies if each.site == name],
        "queues": [queue.name for queue in spec.queues if queue.site == name],
    }


def _apply_part(spec: TopologySpec, classes: ChangeClasses, apply: ApplySpec) -> dict[str, Any]:
    carried, written = _carried(spec, classes, apply)
    others = 0
    for other in spec.applies:
        if other.name != apply.name and apply.site in (other.site, other.source):
            captured, arriving = _carried(spec, classes, other)
            others |= classes.tables_of(arriving if other.site == apply.site else captured)
    return {
        "settings": _settings(apply),
        "combined capture and apply": "" if (capture := capture_of(spec, apply)) is None else capture.name,
        "dequeues from": dequeued(spec, apply),
        "sites": (spec.site(apply.source), spec.site(apply.site)),
        # Not the rules themselves: other destinations of the source can widen what is captured.
        "tables": carried,
        "conditions": _conditions(spec, apply),
        # A driver evaluates the rules that it was started with.
        "DDL": _with_ddl(spec, classes, apply),
        "other writers of its tables": classes.tables_of(written) & others,
        "apply processes of returning changes": [
            each.name for each in spec.applies if (each.site, each.source) == (apply.source, apply.site)
        ],
    }


def _conditions(spec: TopologySpec, apply: ApplySpec) -> list[tuple[str, Rule]]:
    """Return the rules that an apply process evaluates by row, and those that shape a table on the way to it."""
    sets = [(client.name, client.rules) for way in ways_to(spec, apply) for client in way.clients[:-1]]
    rules = [
        (name, rule)
        for name, found in sets
        for rule in found.include or ()
        if rule.subset is not None or rule.transformation is not None
    ]
    own = (*(apply.rules.include or ()), *apply.rules.exclude)
    return [*rules, *((apply.name, rule) for rule in own if rule.looks_at_rows or rule.transformation is not None)]


def _with_ddl(spec: TopologySpec, classes: ChangeClasses, apply: ApplySpec) -> list[TableName]:
    """Return the tables whose DDL reaches an apply process."""
    ways = ways_to(spec, apply)
    return [table for table in classes.spoken_of if any(way.carries_ddl(table) for way in ways)]


def _carried(spec: TopologySpec, classes: ChangeClasses, apply: ApplySpec) -> tuple[int, int]:
    """Return the classes that reach an apply process, by their names at the source and by their names on arrival."""
    carried = written = 0
    for way in ways_to(spec, apply):
        found = classes.carried_by(way.clients)
        carried, written = carried | found, written | classes.by_name(found, classes.named_behind(way.clients))
    return carried, written


def _settings(apply: ApplySpec) -> ApplySpec:
    """Return the settings from which a driver is built. What it is combined with can change while it runs."""
    return replace(apply, rules=_NO_RULES, combined=False)


_NO_RULES = ApplySpec(name="", site="", source="", queue="").rules
