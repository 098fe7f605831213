"""Checks of the topology alone.

They find names without a target, components at the wrong site, and LCRs that never arrive, arrive twice or return. The
preflight asks the live databases later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, TruthValue
from topology.checks.handled_tables import unreachable_tables
from topology.checks.transformations import overlap_findings, transformation_findings
from topology.problems import nearest
from topology.proof.findings import proof_findings
from topology.proof.meetings import meetings
from topology.proof.neighbours import neighbour_findings
from topology.proof.reach import Proof
from topology.routing.change_classes import ChangeClasses
from topology.routing.downstream import redo_receivers
from topology.routing.ways import Way, halves, undecided, ways_to
from topology.spec import TopologySpec

__all__ = [
    "Checked",
    "Declared",
    "another_database",
    "check",
    "check_and_prove",
    "lasting_identities",
    "one_database_twice",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Names that the file declares but that could not be read. They have problems of their own already."""

    sites: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    components: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Problems of a topology, and the proof of who gets what.

    Args:
        findings: all of them.
        of_proof: those of the proof: such a topology can run, and must not be started.
        proof: None where names or positions lead nowhere.
    """

    findings: tuple[Finding, ...]
    of_proof: tuple[Finding, ...]
    proof: Proof | None


def check(spec: TopologySpec) -> tuple[Finding, ...]:
    """Return every problem and warning of a topology.

    Args:
        spec: the topology, as `topology.routing.ways.route` returns it.
    """
    return check_and_prove(spec).findings


def check_and_prove(spec: TopologySpec, broken: Declared | None = None, *, is_whole: bool = True) -> Checked:
    """Return every problem and warning of a topology, and the proof of who gets what.

    Args:
        spec: the topology, as `topology.routing.ways.route` returns it.
        broken: names that are declared but unreadable; references to them are not reported again.
        is_whole: the topology has every entry of `replicate`. If not, a component that seems idle can belong to an
            entry that is wrong.
    """
    broken = broken or Declared()
    findings = [
        *_names(spec),
        *_references(spec, broken),
        *_places(spec, broken),
        *_databases(spec),
        *_certificates(spec),
        *_subsets(spec),
    ]
    proof: Proof | None = None
    of_proof: tuple[Finding, ...] = ()
    # Paths are searched only where every name has a target; otherwise one mistake would be reported many times.
    if not any(finding.is_error for finding in findings) and broken == Declared():
        classes = ChangeClasses.of(spec)
        chained = [
            *_unreachable(spec),
            *_halves(spec, classes),
            *_undecided(spec, classes),
            *_publishers(spec),
            *overlap_findings(spec, classes),
        ]
        if not chained:
            findings += [*transformation_findings(spec, classes), *_filtered_subsets(spec, classes)]
        findings += chained
        # The proof follows the ways, for the same reason: where two publishers feed a queue, the order is undefined.
        if not chained:
            proof = Proof(spec, classes)
            with_handlers = proof.telling_apart(table for apply in spec.applies for table in apply.conflicts.tables)
            of_proof = (*proof_findings(proof), *neighbour_findings(with_handlers))
            findings += [*_without_changes(proof), *of_proof, *meetings(spec, with_handlers)]
            findings += unreachable_tables(spec) if is_whole else ()
        findings += _idle(spec) if is_whole else ()
    return Checked(findings=tuple(findings), of_proof=of_proof, proof=proof)


def one_database_twice(identities: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each site whose database is another site's under a second name.

    Args:
        identities: site -> what distinguishes its database from every other (`SourceDatabase.database_identity`);
            empty: not asked, or no database.
    """
    first: dict[str, str] = {}
    for site, identity in identities.items():
        if identity and first.setdefault(identity, site) != site:
            yield Finding(
                path=f"sites.{site}",
                problem=f"is the same database as sites.{first[identity]}, under another name",
                fix="correct the dsn of one of them; a table is not replicated into itself",
            )


def lasting_identities(spec: TopologySpec, identities: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of databases' identities that survive a restart and the promotion of a standby with their data.

    Only users' servers are included.

    Args:
        spec: the topology.
        identities: as for `one_database_twice`.
    """
    users = {site.name for site in spec.sites if site.database.kind == "postgres"}
    return {site: identity.rpartition(" ")[0] for site, identity in identities.items() if site in users and identity}


def another_database(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Finding]:
    """Yield sites whose connection string leads to another database than the prepared one.

    The records of a site are about the prepared database: a destination's database stores its progress, its copies and
    its error queue; a source's redo is the log of its server.

    Args:
        before: site -> what `lasting_identities` returned when the topology was prepared last.
        now: the same now.
    """
    for site, identity in now.items():
        was = before.get(site, identity)
        if was != identity:
            yield Finding(
                path=f"sites.{site}.dsn",
                problem=f"leads to another database ({_database_text(identity)}) than the one that was prepared"
                f" ({_database_text(was)}), which records the copies and the progress of this site",
                fix="correct the dsn; a promoted standby of the old server has its system identifier. To replicate with"
                " the other database instead, remove the"
                " site from the file and run `headrace up`, then put it back with the new dsn and run `headrace up`"
                " again: its tables are copied anew",
            )


def _database_text(identity: str) -> str:
    kind, system, number = (*identity.split(" "), "", "")[:3]
    return f"system identifier {system}, database {number}" if kind == "postgres" else identity


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
    """Yield components at the wrong site."""
    kind_of = {site.name: site.database.kind for site in spec.sites}
    site_of = {queue.name: queue.site for queue in spec.queues if queue.site in kind_of}
    for capture in spec.captures:
        path = f"captures.{capture.name}"
        if site_of.get(capture.queue, capture.site) != capture.site:
            yield _elsewhere(f"{path}.queue", capture.queue, site_of[capture.queue], capture.site)
        if kind_of.get(capture.source) == "none":
            yield _without_database(f"{path}.source", capture.source, "capture from")
    yield from _downstream(spec)
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


def _downstream(spec: TopologySpec) -> Iterator[Finding]:
    """Yield copies of redo that cannot exist, or that their capture processes define differently."""
    first: dict[str, str] = {}
    folders: dict[tuple[str, str], str] = {}
    for receiver in redo_receivers(spec):
        captures = [spec.capture(name) for name in receiver.captures]
        if not receiver.is_archived_log and first.setdefault(receiver.site, receiver.source) != receiver.source:
            yield Finding(
                path=f"captures.{captures[0].name}.source",
                problem=f"site {receiver.site} receives the redo of {first[receiver.site]} in real time already, and"
                " takes one source's only",
                fix=f"write mode: archived_log here, or capture the changes of {receiver.source} at {receiver.source}"
                " itself or at another site",
            )
        for other in captures[1:]:
            for key in ("mode", "transport", "archive"):
                wanted, found = getattr(captures[0], key), getattr(other, key)
                if found != wanted:
                    yield Finding(
                        path=f"captures.{other.name}.{key}",
                        problem=f"is {found or 'not given'}, and captures.{captures[0].name}, which mines the same copy"
                        f" of the redo, says {wanted or 'nothing'}",
                        fix="write the same for all capture processes of one source at one site",
                    )
        if (
            receiver.archive
            and folders.setdefault((receiver.site, receiver.archive), receiver.source) != receiver.source
        ):
            yield Finding(
                path=f"captures.{captures[0].name}.archive",
                problem=f"is also where the redo of {folders[receiver.site, receiver.archive]} is copied to",
                fix="give every source a folder of its own: their segments have the same names",
            )


def _elsewhere(path: str, queue: str, at: str, wanted: str) -> Finding:
    return Finding(
        path=path,
        problem=f"queue {queue} is at site {at}, not at {wanted}",
        fix=f"name a queue of {wanted}, and propagate between the two",
    )


def _without_database(path: str, site: str, verb: str) -> Finding:
    return Finding(
        path=path,
        problem=f"site {site} has no database to {verb}",
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


def _certificates(spec: TopologySpec) -> Iterator[Finding]:
    """Yield sites without a certificate when others have one: neither could reach the other."""
    with_one = [site.name for site in spec.sites if site.tls is not None]
    for site in spec.sites:
        if with_one and site.tls is None:
            yield Finding(
                path=f"sites.{site.name}",
                problem=f"has no tls, and {', '.join(with_one)} {'has' if len(with_one) == 1 else 'have'}",
                fix="give every site a certificate: write tls at the top of the file, with {site} in the paths",
            )


# --------------------------------------------------------------------------- the ways of LCRs


def _unreachable(spec: TopologySpec) -> Iterator[Finding]:
    for apply in spec.applies:
        if not ways_to(spec, apply):
            yield Finding(
                path=f"applies.{apply.name}",
                problem=f"no LCR of {apply.source} ever reaches queue {apply.queue}",
                fix=f"add a capture of {apply.source}, and propagations from its queue to {apply.queue}",
            )


def _without_changes(proof: Proof) -> Iterator[Finding]:
    for hops in proof.hops.values():
        for hop in hops:
            if not any(hop.carried) and not hop.apply.rules.include:  # what its rules name is reported rule by rule
                yield _warning(
                    f"applies.{hop.apply.name}",
                    f"no change passes all the rules on the way {' -> '.join(hop.way.components)}",
                    "compare the rules of these components",
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


def _undecided(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    for found in undecided(spec, classes):
        first, second = found.paths
        if found.names:
            yield Finding(
                path=f"applies.{found.apply.name}",
                problem=f"{found.table} of {found.apply.source} would come to queue {found.apply.queue} as"
                f" {found.names[0]} over {first}, as {found.names[1]} over {second}, and one path alone is used"
                f" ({found.used})",
                fix=f"give one of the paths a queue and an apply process of its own at {found.apply.site}, or let the"
                " rules here take one of the names",
            )
            continue
        yield Finding(
            path=f"applies.{found.apply.name}",
            problem=f"conditions decide which changes of {found.apply.source}, such as those of {found.table}, come to"
            f" queue {found.apply.queue} over {first}, and which over {second}, and one path alone is used"
            f" ({found.used})",
            fix=f"give one of the paths a queue and an apply process of its own at {found.apply.site}, or let one path"
            " take everything",
        )


def _subsets(spec: TopologySpec) -> Iterator[Finding]:
    """Yield tables that several positive rules of one client take, one of them with row migration.

    Only one of the rules could be followed.
    """
    for kind, clients in (("captures", spec.captures), ("propagations", spec.propagations), ("applies", spec.applies)):
        for client in clients:
            rules = client.rules.include or ()
            for number, rule in enumerate(rules):
                if rule.subset is None:
                    continue
                other = next(
                    (
                        place
                        for place, each in enumerate(rules)
                        if place != number and each.dml and each.matches_object(rule.owner, rule.name)
                    ),
                    None,
                )
                if other is not None and (rules[other].subset is None or other < number):
                    yield Finding(
                        path=f"{kind}.{client.name}.rules.include[{number}].subset",
                        problem=f"include[{other}] takes {rule} too: the result for a row that both take is undefined",
                        fix="keep one rule for the table; join two subsets with OR",
                    )


def _filtered_subsets(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Finding]:
    """Yield conditions of other rules on the way of a subset: rows they discard are missing from it, or stay in it."""
    told: set[str] = set()
    for apply in spec.applies:
        for way in ways_to(spec, apply):
            kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
            for subset in _subsets_on(way, classes):
                for kind, client, name in zip(kinds, way.clients, subset.names, strict=True):
                    for section, rules in (("include", client.rules.include or ()), ("exclude", client.rules.exclude)):
                        for number, rule in enumerate(rules):
                            path = f"{kind}.{client.name}.rules.{section}[{number}]"
                            if _looks_at(rule, name) and path not in told:
                                told.add(path)
                                yield _warning(
                                    path,
                                    f"its condition discards changes of {subset.rule}, of which {subset.client} takes a"
                                    " subset: at the destination the subset would have missing, extra or outdated rows",
                                    "remove the condition, or replace the subset by a condition",
                                )


@dataclass(frozen=True, slots=True)
class _SubsetOnWay:
    """A subset, the name of its client, and its table's name at each client of the way."""

    rule: Rule
    client: str
    names: tuple[TableName, ...]


def _subsets_on(way: Way, classes: ChangeClasses) -> Iterator[_SubsetOnWay]:
    having = [
        (place, client.name, rule)
        for place, client in enumerate(way.clients)
        for rule in client.rules.include or ()
        if rule.subset is not None
    ]
    for table in (TableName(*each) for each in classes.tables if having):
        if way.carry(table) is None:
            continue  # the table does not arrive; another one may have its name on the way
        names = tuple(each.table for each in way.passages(table))
        yield from (
            _SubsetOnWay(rule, client, names)
            for place, client, rule in having
            if names[place] == (rule.owner, rule.name)
        )


def _looks_at(rule: Rule, table: TableName) -> bool:
    """Return whether a rule's condition decides by rows or commands of a table, not by tags alone."""
    return (
        rule.condition is not None
        and rule.subset is None
        and any(rule.answer(*table, tag) is TruthValue.MAYBE for tag in (None, *rule.condition.tags))
    )


def _publishers(spec: TopologySpec) -> Iterator[Finding]:
    """Yield queues that take the LCRs of one source from several publishers: a source's positions must form one chain.

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
                path=paths[1],
                problem=f"feeds queue {queue} with the LCRs of {source}, and so does {paths[0]}",
                fix="keep one of them, or give it a queue of its own",
            )


def _idle(spec: TopologySpec) -> Iterator[Finding]:
    """Yield components that do nothing: not wrong, but hardly intended."""
    for queue in spec.queues:
        if not spec.subscribers(queue.name):
            yield _warning(
                f"queues.{queue.name}",
                "no client dequeues from it",
                "add a propagation or an apply process, or remove it",
            )
    for propagation in spec.propagations:
        if not propagation.sources:
            yield _warning(
                f"propagations.{propagation.name}",
                "no apply process behind it takes anything that it could forward",
                f"add an apply process behind queue {propagation.to_queue}, or remove it",
            )
    for kind, clients in (("captures", spec.captures), ("propagations", spec.propagations), ("applies", spec.applies)):
        for client in clients:
            if client.rules.include == ():
                yield _warning(
                    f"{kind}.{client.name}.rules.include",
                    "is empty: nothing passes",
                    "add a rule, or remove include",
                )
    used = {queue.site for queue in spec.queues} | {capture.source for capture in spec.captures}
    for site in spec.sites:
        if site.name not in used:
            yield _warning(f"sites.{site.name}", "takes part in nothing", "name it under replicate, or remove it")


def _warning(path: str, problem: str, fix: str) -> Finding:
    return Finding(path=path, problem=problem, fix=fix, is_error=False)
