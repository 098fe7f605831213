"""What can be told wrong from the topology alone.

Names that lead nowhere, components at the wrong site, LCRs that never arrive, arrive twice, or come home. Live
databases are asked later, by the preflight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from databases.ports import Finding
from topology.change_classes import ChangeClasses
from topology.problems import nearest
from topology.spec import ApplySpec, TopologySpec
from topology.ways import halves, ways_to

__all__ = ["Declared", "applies_in_a_row", "check", "one_database_twice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Names that the file declares but that could not be read: they have problems of their own already."""

    sites: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    components: frozenset[str] = frozenset()


def check(spec: TopologySpec, broken: Declared | None = None) -> tuple[Finding, ...]:
    """Every problem and warning of a topology.

    Args:
        spec: the topology, routed (see `topology.ways.route`).
        broken: names that are declared but unreadable; references to them are not reported again.
    """
    broken = broken or Declared()
    findings = [*_names(spec), *_references(spec, broken), *_places(spec, broken), *_databases(spec)]
    # Paths are looked for only where every name leads somewhere: else one mistake would be reported many times.
    if not any(finding.is_error for finding in findings) and broken == Declared():
        classes = ChangeClasses.of(spec)
        findings += [
            *_arrivals(spec, classes), *_halves(spec, classes), *_publishers(spec), *_appliers(spec, classes), *_idle(spec),
            *_homecomings(spec, classes), *_meetings(spec, classes),
        ]
    return tuple(findings)


def one_database_twice(identities: Mapping[str, str]) -> Iterator[Finding]:
    """Sites that are one database under two names.

    Args:
        identities: site -> what tells its database from every other (`SourceDatabase.database_identity`); empty: it was not
            asked, or there is none.
    """
    first: dict[str, str] = {}
    for site, identity in identities.items():
        if identity and first.setdefault(identity, site) != site:
            yield Finding(
                path=f"sites.{site}", problem=f"is the same database as sites.{first[identity]}, by another name",
                fix="correct the dsn of one of them; a table is not replicated into itself",
            )


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


def _arrivals(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    for apply in spec.applies:
        ways = ways_to(spec, apply)
        if ways and not _carried(spec, classes, apply):
            yield _warning(
                f"applies.{apply.name}", f"no change passes all the rules on the way {' -> '.join(ways[0].components)}",
                "compare the rules of these components",
            )
        if not ways:
            yield Finding(
                path=f"applies.{apply.name}", problem=f"no LCR of {apply.source} ever reaches queue {apply.queue}",
                fix=f"add a capture of {apply.source}, and propagations from its queue to {apply.queue}",
            )


def _halves(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    for found in halves(spec, classes):
        apply, (first, path), (second, other_path) = found.apply, found.first, found.second
        yield Finding(
            path=f"applies.{apply.name}",
            problem=f"no single path takes all changes of {apply.source} to queue {apply.queue}: "
            f"{first} comes over {path}, {second} over {other_path}",
            fix=f"let one of the two take both, or give one a queue and an apply process of its own at {apply.site}",
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


def _appliers(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Two apply processes at one site must not take the same changes of a source."""
    for number, apply in enumerate(spec.applies):
        for other in spec.applies[:number]:
            if (apply.site, apply.source) != (other.site, other.source):
                continue
            both = _carried(spec, classes, apply) & _carried(spec, classes, other)
            if both:
                yield Finding(
                    path=f"applies.{apply.name}",
                    problem=f"applies.{other.name} applies the same changes of {apply.source} to {apply.site}, "
                    f"such as those of {classes.example(both)}",
                    fix="keep one of them, or let their rules include different tables",
                )


def _carried(spec: TopologySpec, classes: ChangeClasses, apply: ApplySpec) -> int:
    """The changes of its source that reach an apply process."""
    carried = 0
    for way in ways_to(spec, apply):
        carried |= classes.carried_by(way.clients)
    return carried


def _idle(spec: TopologySpec) -> Iterator[Finding]:
    """Things that do nothing: not wrong, but hardly meant."""
    for queue in spec.queues:
        if not spec.subscribers(queue.name):
            yield _warning(f"queues.{queue.name}", "no client dequeues from it", "add a propagation or an apply process, or remove it")
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


def _homecomings(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Changes that apply processes made and captures take again: they can come home, or arrive twice."""
    for origin in dict.fromkeys(capture.source for capture in spec.captures):
        told: set[tuple[str, tuple[str, ...]]] = set()
        for again in _followed(spec, classes, origin)[1]:
            if (again.capture, again.path) not in told:
                told.add((again.capture, again.path))
                yield _came_again(origin, again)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Changes of one origin at a site: which, the sites they came over, and the capture process that sent them on last."""

    classes: int
    path: tuple[str, ...]
    capture: str = ""
    tag: bytes | None = None  # of the apply process that made them, at the site they were captured at last
    first_path: tuple[str, ...] = ()  # of the same changes, when they were there before


def _followed(spec: TopologySpec, classes: ChangeClasses, origin: str) -> tuple[dict[str, list[_Arrival]], list[_Arrival]]:
    """Follow the changes of `origin`, first untagged, then with the tags of apply processes, until no site is new to them.

    Returns:
        Where they arrive for the first time, by site, the origin too; and where they arrive again.
    """
    at_origin = _Arrival(classes.untagged, (origin,))
    seen: dict[str, list[_Arrival]] = {origin: [at_origin]}
    again: list[_Arrival] = []
    pending = [at_origin]
    for arrival in pending:  # shortest paths first: it grows at its end
        site = arrival.path[-1]
        for way in (way for apply in spec.applies if apply.source == site for way in ways_to(spec, apply)):
            sent = classes.tagged(arrival.classes, arrival.tag)
            # What arrives is told by its table alone from here on: the tag is the apply process's.
            new = classes.tables_of(sent & classes.carried_by(way.clients))
            path = (*arrival.path, way.apply.site)
            for earlier in seen.setdefault(way.apply.site, []):
                if new & earlier.classes and site != origin:
                    again.append(_Arrival(new & earlier.classes, path, way.capture.name, arrival.tag, earlier.path))
                new &= ~earlier.classes
            if new:
                pending.append(_Arrival(new, path, tag=way.apply.tag))
                seen[way.apply.site].append(pending[-1])
    return seen, again


def _came_again(origin: str, again: _Arrival) -> Finding:
    if again.path[-1] == origin:
        problem = f"changes of {origin} can come home: {' -> '.join(again.path)}"
    else:
        problem = (
            f"changes of {origin} can arrive at {again.path[-1]} twice: {' -> '.join(again.first_path)} and {' -> '.join(again.path)}"
        )
    if again.tag is None:
        return _warning(f"captures.{again.capture}.rules", problem, f"give the apply processes at {again.path[-2]} a tag")
    return _warning(f"captures.{again.capture}.rules", problem, "write tagged: false (the default) in its include rules")


def applies_in_a_row(spec: TopologySpec) -> int:
    """How many apply processes a change passes at most, one behind the other: more than one where sites forward what others wrote."""
    classes = ChangeClasses.of(spec)
    arrivals = (
        arrival for origin in {capture.source for capture in spec.captures}
        for found in _followed(spec, classes, origin)[0].values() for arrival in found
    )
    return max((len(arrival.path) - 1 for arrival in arrivals), default=0)


def _meetings(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Tables that several sites write, while nothing says what to do when they change the same row."""
    written: dict[str, dict[str, int]] = {}  # site -> origin -> tables whose changes by users of the origin are there
    for origin in dict.fromkeys(capture.source for capture in spec.captures):
        arrived = _followed(spec, classes, origin)[0]
        arrived[origin] = [each for site, arrivals in arrived.items() if site != origin for each in arrivals]
        for site, arrivals in arrived.items():
            for arrival in arrivals:
                tables = written.setdefault(site, {})
                tables[origin] = tables.get(origin, 0) | arrival.classes
    meeting: dict[tuple[str, ...], tuple[int, dict[str, None]]] = {}  # origins -> tables, sites
    for site, tables in written.items():
        for number in range(len(classes.tables)):
            origins = tuple(sorted(origin for origin, found in tables.items() if found >> number & 1))
            if len(origins) > 1:
                met, sites = meeting.get(origins, (0, {}))
                meeting[origins] = met | 1 << number, sites | {site: None}
    for origins, (met, sites) in meeting.items():
        yield _warning(
            "sites", f"{' and '.join(origins)} write the same tables, such as {classes.example(met)}, and no conflict handler is set: "
            f"where they change one row at the same time, the transaction that comes later goes whole into the error queue of "
            f"{', '.join(sites)}",
            "let each site write rows of its own (conflict handlers are known but not yet built)",
        )
