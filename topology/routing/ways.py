"""Ways: the components over which changes travel to an apply process, and the form in which each table arrives.

This module is the only authority on both. Routing, `check`, `plan`, preflight, instantiation, comparison and the demo
all ask here, so exactly those tables are copied whose changes arrive.

How changes travel
    A capture process puts them into its queue. A propagation moves those of its `sources` from one queue to another,
    except those that its rules discard. An apply process takes those of its source from its queue, except those that
    its rules discard. In one queue the positions of a source form one chain, so its changes come into the queue over
    one path only.

How a path is chosen (`route`)
    For each queue from which apply processes take a source's changes: the shortest path that takes every change which
    could come there over any path. `check` refuses a topology without such a path, because some tables would never
    arrive.

The form in which a table arrives
    `Way.carry` returns the table as it arrives, or None. A rule that renames or reshapes tables
    (`headrace.rules.transformations.transformation`) changes the result there, and nowhere else. So a table that is
    copied, compared or checked has two names, and may have different columns: at the source, and at the destination
    (`ArrivingTable`). After a client that renames a table, the other clients see its new name: `Way.passages` returns
    its name at each of them. A table's identity, its number, stays.

Tags
    A rule set sees one tag along the whole way: the change's own. So a table arrives when its untagged changes do, or
    its tagged ones. A table of which only changes by apply processes arrive counts, too: it is written at the
    destination, and must be copied before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from headrace.databases.ports import TableShape
from headrace.lcr.table_name import Named, TableName
from headrace.rules.clients_before import ClientsBefore
from headrace.rules.conditions.spelling import where_true
from headrace.rules.rule import UNKNOWN_TAG, KnownTag, Passage, Rule, RuleSet, passages, tags_told_apart
from headrace.rules.transformations.transformation import Transformation
from headrace.rules.user_code.handlers import NO_HANDLERS
from topology.patterns import examples
from topology.routing.change_classes import ChangeClasses
from topology.routing.paths import Router
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = [
    "ArrivingTable",
    "Halves",
    "Undecided",
    "Way",
    "arriving",
    "captured_by",
    "ddl_tables",
    "halves",
    "is_sent_on",
    "may_be_copied",
    "others_with",
    "returned_by",
    "route",
    "rules_at_the_end",
    "shared_by",
    "sites_behind",
    "transformed",
    "undecided",
    "ways_to",
    "writes_alone",
]


T = TypeVar("T", bound=Named)


def transformed(table: T, transformation: Transformation) -> T:
    """Return a table behind a client, as far as it is known: its name, and a table version's or shape's columns.

    Args:
        table: before the client.
        transformation: of the client's rule.

    Raises:
        TransformationError: it cannot be applied to the table.
    """
    # These import numpy; most topologies transform nothing.
    from headrace.lcr.batch import TableVersion
    from headrace.rules.transformations.reshaping import transformed_version

    known: Any = table
    if isinstance(known, TableVersion):
        known = transformed_version(known, transformation)[0]
    elif isinstance(known, TableName):
        known = transformation.named(known)
    else:  # every other description of a table is a dataclass
        before = TableName.of(table)
        name = transformation.named(before)
        known = replace(known, owner=name.owner, name=name.name)
        if isinstance(known, TableShape):
            known = _shaped(known, transformation, before)
    answer: T = known
    return answer


def _shaped(table: TableShape, transformation: Transformation, before: TableName) -> TableShape:
    """Return the shape with its columns' names behind the client, without keys that lack a column there.

    Its partitions move with it.
    """

    def renamed(key: tuple[str, ...]) -> tuple[str, ...]:
        names = [transformation.after(column) for column in key]
        return tuple(name for name in names if name is not None) if None not in names else ()

    def moved(name: TableName) -> TableName:
        return (
            TableName.of(table)
            if name == before
            else TableName(table.owner, name.name)
            if name.owner == before.owner
            else name
        )

    partitions = tuple(
        replace(
            each, owner=moved(TableName.of(each)).owner, name=moved(TableName.of(each)).name, parent=moved(each.parent)
        )
        for each in table.partitions
    )
    domains = tuple(
        replace(each, name=name) for each in table.domains if (name := transformation.after(each.name)) is not None
    )
    computed = tuple(
        replace(
            each,
            name=name,
            parts=tuple(
                replace(part, owner=(here := moved(TableName.of(part))).owner, name=here.name) for part in each.parts
            ),
        )
        for each in table.computed
        if (name := transformation.after(each.name)) is not None
    )
    types = tuple(
        replace(each, column=name) for each in table.types if (name := transformation.after(each.column)) is not None
    )
    exclusions = tuple(
        replace(
            each,
            terms=tuple(
                replace(term, column=(transformation.after(term.column) or "") if term.column else "")
                for term in each.terms
            ),
        )
        for each in table.exclusions
        if not each.columns or renamed(each.columns)
    )
    return replace(
        table,
        partitions=partitions,
        domains=domains,
        computed=computed,
        types=types,
        keys=tuple(found for key in table.keys if (found := renamed(key))),
        identity=renamed(table.identity),
        exclusions=exclusions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way of one source's changes to one apply process.

    Args:
        capture: takes the changes from the source's redo.
        propagations: in the order in which they move the changes; empty when the apply process shares capture's queue.
        apply: at the end.
    """

    capture: CaptureSpec
    propagations: tuple[PropagationSpec, ...]
    apply: ApplySpec

    @property
    def components(self) -> tuple[str, ...]:
        """Names of everything on the way, queues too, in order."""
        return tuple(name.partition(":")[2] for name in self.full_names)

    @property
    def full_names(self) -> tuple[str, ...]:
        """Full names of everything on the way, queues too, in order."""
        hops = (name for each in self.propagations for name in (f"propagation:{each.name}", f"queue:{each.to_queue}"))
        return (f"capture:{self.capture.name}", f"queue:{self.capture.queue}", *hops, f"apply:{self.apply.name}")

    @property
    def clients(self) -> tuple[CaptureSpec | PropagationSpec | ApplySpec, ...]:
        """Everything on the way that has rules, in order."""
        return (self.capture, *self.propagations, self.apply)

    def carry(self, table: T, *, tag: KnownTag = UNKNOWN_TAG) -> T | None:
        """Return a table of the source as it arrives.

        Args:
            table: as the source knows it.
            tag: of its changes; unknown: changes with any tag, or none.

        Returns:
            The table as the apply process gets it; None: it does not arrive.
        """
        tags = tags_told_apart(client.rules for client in self.clients) if tag is UNKNOWN_TAG else (tag,)
        made: list[Transformation] = []
        for client, passage in zip(self.clients, self.passages(table), strict=True):
            tags = tuple(each for each in tags if client.rules.keeps(*passage.table, tag=each))
            if not tags:
                return None
            made += [] if passage.transformation is None else [passage.transformation]
        for transformation in made:
            table = transformed(table, transformation)
        return table

    def carries_ddl(self, table: Named) -> bool:
        """Return whether DDL LCRs of a source's table arrive, as users' changes: without a tag.

        Args:
            table: as the source knows it.

        Raises:
            TransformationError: two rules of a client transform it differently.
        """
        # Without such a rule, the source writes no DDL into its log, and a rule set without `include` takes none.
        return self.capture.rules.names_ddl and all(
            client.rules.keeps_ddl(*passage.table, tag=None)
            for client, passage in zip(self.clients, self.passages(table), strict=True)
        )

    def passages(self, table: Named) -> Iterator[Passage]:
        """Yield the name of a source's table at each client in turn, and its transformation there.

        Args:
            table: as the source knows it.

        Raises:
            TransformationError: two rules of a client transform it differently.
        """
        return passages((client.rules for client in self.clients), table)

    def transformations(self, table: Named) -> tuple[Transformation, ...]:
        """Return the transformations of a source's table on the way, client by client.

        Args:
            table: as the source knows it.

        Raises:
            TransformationError: two rules of a client transform it differently.
        """
        return tuple(each.transformation for each in self.passages(table) if each.transformation is not None)

    def subset(self, table: Named) -> str:
        """Return which rows of a source's table arrive, as a condition in SQL; empty: all of them.

        Args:
            table: as the source knows it.
        """
        subsets = (
            client.rules.subset_of(*each.table) for client, each in zip(self.clients, self.passages(table), strict=True)
        )
        return " AND ".join(dict.fromkeys(where_true(each) for each in subsets if each is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivingTable(Generic[T]):
    """A table that an apply process gets.

    Args:
        source: as it is at the source.
        destination: as it is at the destination.
        rows: the rows that arrive, as a condition in SQL (`headrace.rules.conditions.spelling`); empty: all.
        transformations: they turn `source` into `destination`.
    """

    source: T
    destination: T
    rows: str = ""
    transformations: tuple[Transformation, ...] = ()


def ways_to(spec: TopologySpec, apply: ApplySpec) -> tuple[Way, ...]:
    """Return the ways of changes to an apply process: one per path in use, so at most one in a correct topology.

    Args:
        spec: as `route` returns it.
        apply: of `spec`.
    """

    def from_queue(queue: str, passed: frozenset[str]) -> Iterator[tuple[PropagationSpec, ...]]:
        if queue == apply.queue:
            yield ()
        for propagation in spec.propagations:
            target = propagation.to_queue
            if propagation.from_queue == queue and apply.source in propagation.sources and target not in passed:
                yield from ((propagation, *rest) for rest in from_queue(target, passed | {target}))

    return tuple(
        Way(capture=capture, propagations=propagations, apply=apply)
        for capture in spec.captures
        if capture.source == apply.source
        for propagations in from_queue(capture.queue, frozenset({capture.queue}))
    )


def sites_behind(spec: TopologySpec, propagation: PropagationSpec, source: str) -> frozenset[str]:
    """Return the sites that a source's changes reach over a propagation and over others behind it.

    Args:
        spec: as `route` returns it.
        propagation: of `spec`.
        source: one of its sources; for others the result is empty.
    """
    queues = [propagation.to_queue] if source in propagation.sources else []
    for queue in queues:  # the loop appends to `queues`
        queues += [
            each.to_queue
            for each in spec.propagations
            if queue in (each.from_queue, each.held_in) and each.to_queue not in queues and source in each.sources
        ]
    return frozenset(spec.queue(each).site for each in queues)


def captured_by(ways: Iterable[Way]) -> tuple[RuleSet, ...]:
    """Return the rule sets at the start of the ways: they select tables in the source's catalog."""
    return tuple(dict.fromkeys(way.capture.rules for way in ways))


def rules_at_the_end(ways: Iterable[Way]) -> tuple[RuleSet | ClientsBefore, ...]:
    """Return what an apply process evaluates: its own rules, and those of the clients before it without conditions.

    So it applies what it was started for, even while the others adopt a change of their rules.

    Args:
        ways: to the apply process.
    """
    found: list[RuleSet | ClientsBefore] = []
    for way in ways:
        before = tuple(client.rules for client in way.clients[:-1])
        if any(rules.renames for rules in before):
            # Their rules do not know the names on arrival.
            patterns = [rule.owner for rules in before for rule in (*(rules.include or ()), *rules.exclude)]
            made = [
                rule.transformation
                for rules in before
                for rule in rules.include or ()
                if rule.transformation is not None
            ]
            patterns += [each.new_owner if each.new_name is None else each.new_name.owner for each in made]
            found.append(ClientsBefore(clients=before, owners=examples(filter(None, patterns))))
        else:
            found += [rules.without_conditions() for rules in before]
        found.append(way.apply.rules)
    return tuple(found)


def arriving(ways: Iterable[Way], tables: Iterable[T]) -> tuple[ArrivingTable[T], ...]:
    """Return those of a source's tables that arrive over one of the ways, and their form on arrival.

    Args:
        ways: to one apply process.
        tables: of its source, captured or not.
    """
    known = tuple(ways)
    found = []
    for table in tables:
        carried = next(((way, each) for way in known if (each := way.carry(table)) is not None), None)
        if carried is not None:
            way, destination = carried
            found.append(
                ArrivingTable(
                    source=table,
                    destination=destination,
                    rows=way.subset(table),
                    transformations=way.transformations(table),
                )
            )
    return tuple(found)


def ddl_tables(ways: Iterable[Way], tables: Iterable[ArrivingTable[Any]]) -> tuple[TableName, ...]:
    """Return those of an apply process's tables whose DDL it gets, by their names at the destination.

    Args:
        ways: to the apply process.
        tables: from `arriving`.
    """
    known = tuple(ways)
    return tuple(
        TableName.of(each.destination)
        for each in tables
        if any(way.carries_ddl(TableName.of(each.source)) for way in known)
    )


def is_sent_on(spec: TopologySpec, site: str, table: TableName) -> bool:
    """Return whether a site sends changes of a table to others.

    Args:
        spec: as `route` returns it.
        site: where the table is.
        table: its name there.
    """
    return any(apply.source == site and arriving(ways_to(spec, apply), (table,)) for apply in spec.applies)


def returned_by(spec: TopologySpec, apply: ApplySpec, table: ArrivingTable[Any]) -> str:
    """Return the apply process at the source that gets a destination table back whole, unchanged and as the same table.

    Args:
        spec: as `route` returns it.
        apply: of `spec`.
        table: a table that it gets.

    Returns:
        Its name; empty: none does, or one of the directions does not carry the whole table.
    """
    if table.rows or table.transformations:
        return ""
    for other in spec.applies:
        if (other.site, other.source) != (apply.source, apply.site):
            continue
        for back in arriving(ways_to(spec, other), (TableName.of(table.destination),)):
            if back.destination == TableName.of(table.source) and not back.rows and not back.transformations:
                return other.name
    return ""


# A bound, because every driver asks this for each of its tables and each pair of sites.
_SHARED_SITES_MAX = 8


def shared_by(spec: TopologySpec, apply: ApplySpec, table: ArrivingTable[Any]) -> tuple[tuple[str, str], ...]:
    """Return a site's other apply processes that write a destination table which all its sites send to each other.

    The table travels whole, unchanged and under one name. Every site gets the same changes, and none from elsewhere. So
    a copy from any of the sites contains what all of them have sent to it. No handler decides about a change: its
    decision could depend on what the others have sent by then.

    Args:
        spec: as `route` returns it.
        apply: of `spec`.
        table: a table that it gets.

    Returns:
        For each further source, the apply process at the destination and the one at the source of `apply`. Empty: the
        table is not shared in this way, or there is no further source.
    """
    name = TableName.of(table.source)
    into: dict[str, dict[str, ApplySpec]] = {}
    ways: dict[str, tuple[Way, ...]] = {}  # by apply process
    sites = [apply.site]
    for site in sites:  # the loop appends the sites from which the table comes
        into[site] = {}
        for other in spec.applies:
            if other.site != site:
                continue
            found = tuple(ways_to(spec, other))
            if not arriving(found, (name,)) and not any(_may_become(way, name) for way in found):
                continue
            if other.source in into[site] or len(sites) > _SHARED_SITES_MAX or not _comes_whole(other, found, name):
                return ()
            ways[other.name] = found
            into[site][other.source] = other
            sites += [other.source] if other.source not in sites else []
    made = {each.tag for sources in into.values() for each in sources.values()}
    if any(len(sources) != len(sites) - 1 for sources in into.values()) or not _send_alike(ways.values(), made, name):
        return ()
    return tuple(
        (here.name, into[apply.source][site].name)
        for site, here in sorted(into[apply.site].items())
        if site != apply.source
    )


def _comes_whole(apply: ApplySpec, ways: Sequence[Way], name: TableName) -> bool:
    """Return whether an apply process gets a whole table, unchanged and under its name, and writes it as it comes."""
    return not (
        apply.handlers != NO_HANDLERS
        or tuple(name) in apply.conflicts.tables
        # conditions select changes or rows
        or any(rule.looks_at_rows and rule.matches_object(*name) for rule in _rules(ways))
        or any(_may_become(way, name) for way in ways)
        or any(
            each.rows or each.transformations or TableName.of(each.destination) != name
            for each in arriving(ways, (name,))
        )
    )


def _rules(ways: Iterable[Way]) -> Iterator[Rule]:
    for way in ways:
        for client in way.clients:
            yield from (*(client.rules.include or ()), *client.rules.exclude)


def _send_alike(ways: Collection[Sequence[Way]], made: Collection[bytes | None], name: TableName) -> bool:
    """Return whether ways carry a table's changes by the same tags, and none carries those of apply processes."""
    tags = {*tags_told_apart(client.rules for each in ways for way in each for client in way.clients), *made}
    carried = {
        frozenset(tag for tag in tags if any(way.carry(name, tag=tag) is not None for way in each)) for each in ways
    }
    return len(carried) == 1 and not {*made} & next(iter(carried))


def writes_alone(spec: TopologySpec, apply: ApplySpec, table: TableName) -> bool:
    """Return whether an apply process is a table's only writer, and no capture process at its site captures the table.

    Args:
        spec: as `route` returns it.
        apply: of `spec`.
        table: its name at the apply process's site.
    """
    return next(others_with(spec, apply, table), None) is None


def others_with(spec: TopologySpec, apply: ApplySpec, table: TableName) -> Iterator[ApplySpec]:
    """Yield the other apply processes that write a table of an apply process's site, or get its changes from there.

    Args:
        spec: as `route` returns it.
        apply: of `spec`.
        table: its name at the apply process's site.
    """
    for other in spec.applies:
        is_concerned = other.name != apply.name and apply.site in (other.site, other.source)
        ways = ways_to(spec, other)
        if is_concerned and (
            arriving(ways, (table,)) or (other.site == apply.site and any(_may_become(way, table) for way in ways))
        ):
            yield other


def may_be_copied(spec: TopologySpec, source: str, table: TableName) -> bool:
    """Return whether `headrace copy` empties and copies a table at each of its destinations.

    It refuses a table with other writers.

    Args:
        spec: as `route` returns it.
        source: site name.
        table: its name there.
    """
    return all(
        writes_alone(spec, apply, TableName.of(each.destination))
        for apply in spec.applies
        if apply.source == source
        for each in arriving(ways_to(spec, apply), (table,))
    )


def _may_become(way: Way, table: TableName) -> bool:
    """Return whether another table may arrive under a name."""
    rules = (rule for client in way.clients for rule in client.rules.include or ())
    found = [rule.transformation for rule in rules if rule.transformation is not None and rule.transformation.renames]
    # A renamed schema may hold any table: only its database knows their names.
    return any(each.named(table).owner == table.owner for each in found)


# --------------------------------------------------------------------------- choosing the ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Changes of one source that only different paths together bring to a queue.

    Args:
        apply: an apply process that takes the second table from the queue.
        first: an example of a table, and a path that takes it.
        second: an example of a table which that path does not take, and a path that does.
    """

    apply: ApplySpec
    first: tuple[str, str]
    second: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Changes of one source that may come to one queue over several paths.

    Args:
        apply: an apply process that takes them from the queue.
        table: an example of a table.
        paths: two of the paths.
        used: the path in use.
        names: the table's name at the end of each path; empty: conditions decide which path takes a change.
    """

    apply: ApplySpec
    table: str
    paths: tuple[str, ...]
    used: str
    names: tuple[str, ...] = ()


def route(spec: TopologySpec) -> TopologySpec:
    """Fill in which sources each propagation forwards.

    Names without a target are ignored; `check` reports them.
    """
    router = Router(spec, ChangeClasses.of(spec))
    sources: dict[str, dict[str, None]] = {propagation.name: {} for propagation in spec.propagations}
    for source, queue in router.ends:
        for capture in router.captures(source, queue):
            for path in router.paths(capture, queue):
                for propagation in path.propagations:
                    sources[propagation.name][source] = None
    return replace(
        spec,
        propagations=tuple(
            replace(propagation, sources=tuple(sources[propagation.name])) for propagation in spec.propagations
        ),
    )


def halves(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Halves]:
    """Yield queues to which no single path takes everything that their apply processes would get over some path.

    Args:
        spec: every name in it has a target.
        classes: of `spec`.
    """
    router = Router(spec, classes)
    for source, queue in router.ends:
        for capture in router.captures(source, queue):
            coming = router.coming(capture, queue)
            if not coming or router.shortest(capture, queue, coming):
                continue
            first = router.shortest(capture, queue, coming & -coming)[0]
            left = coming & ~router.brought(first, queue)
            second = router.shortest(capture, queue, left & -left)[0]
            yield Halves(
                apply=next(
                    apply
                    for apply in router.ends[source, queue]
                    if classes.carried_by((*second.clients, apply)) & left & -left
                ),
                first=(classes.example(coming & router.brought(first, queue)), str(first)),
                second=(classes.example(left), str(second)),
            )


def undecided(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Undecided]:
    """Yield queues with several paths where conditions decide which changes each takes, or where names differ.

    Args:
        spec: every name in it has a target.
        classes: of `spec`.
    """
    router = Router(spec, classes)
    for source, queue in router.ends:
        for capture in router.captures(source, queue):
            names: tuple[str, ...] = ()
            paths, table = router.undecided(capture, queue), router.coming(capture, queue)
            if not paths:
                paths, table, names = router.called_differently(capture, queue)
            if paths:
                yield Undecided(
                    apply=router.ends[source, queue][0],
                    table=classes.example(table),
                    paths=tuple(str(path) for path in paths),
                    used=str(router.paths(capture, queue)[0]),
                    names=names,
                )
