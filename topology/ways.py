"""Ways: over which components the changes of a source travel to an apply process, and as what each table arrives.

The one place that knows it. Routing, `check`, `plan`, preflight, instantiation, comparison and the demo all ask here, so a
table that is copied is a table whose changes come, and none else.

How changes travel
    A capture process puts them into its queue. A propagation moves those of its `sources` from one queue to another, less
    what its rules discard. An apply process takes those of its source from its queue, less what its rules discard. In one
    queue the positions of a source form one chain, so its changes come into the queue over one path only.

How a path is chosen (`route`)
    For each queue that apply processes take a source's changes from: the shortest path that takes every change which could
    come there over any path. `check` refuses a topology where no single path does: some tables would never come.

What a table arrives as
    `Way.carry` answers with the table as it arrives, or None. A rule that renames or cuts tables (`rules.transformation`)
    changes the answer there, and nowhere else. Hence a table that is copied, compared or checked has two names, and may have
    other columns: at the source, and at the destination (`ArrivingTable`). Names change in the apply process only (`check`
    insists on it), so that every client sees a table under its source's name.

Tags
    A rule set sees one tag along the whole way: the change's own. So a table arrives when its untagged changes do, or its
    tagged ones. A table whose untagged changes are left out, but not those that an apply process made, arrives too: it is
    written at the destination, and must be copied before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar

import networkx as nx

from databases.ports import TableShape
from rules.conditions.spelling import where_true
from rules.rule import UNKNOWN_TAG, KnownTag, RuleSet, tags_told_apart
from rules.transformation import Transformation
from streams.table_name import Named, TableName
from topology.change_classes import ChangeClasses
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = [
    "ArrivingTable", "Halves", "Undecided", "Way", "arriving", "captured_by", "halves", "route", "rules_at_the_end", "transformed", "undecided",
    "ways_to", "writes_alone",
]


T = TypeVar("T", bound=Named)


def transformed(table: T, transformation: Transformation) -> T:
    """A table behind a client, as far as it is known: its name, and of a table version or shape its columns.

    Args:
        table: before the client.
        transformation: of the client's rule.

    Raises:
        TransformationError: it cannot be applied to the table.
    """
    # numpy: most topologies transform nothing.
    from rules.reshaping import transformed_version
    from streams.lcr_batch import TableVersion

    known: Any = table
    if isinstance(known, TableVersion):
        known = transformed_version(known, transformation)[0]
    elif isinstance(known, TableName):
        known = transformation.named(known)
    else:  # every other description of a table is a dataclass
        name = transformation.named(TableName.of(table))
        known = replace(known, owner=name.owner, name=name.name)
        if isinstance(known, TableShape):
            known = _shaped(known, transformation)
    answer: T = known
    return answer


def _shaped(table: TableShape, transformation: Transformation) -> TableShape:
    """The shape with the names that its keys' columns have behind the client; without keys of which a column is not there."""

    def renamed(key: tuple[str, ...]) -> tuple[str, ...]:
        names = [transformation.after(column) for column in key]
        return tuple(name for name in names if name is not None) if None not in names else ()

    return replace(table, keys=tuple(found for key in table.keys if (found := renamed(key))), identity=renamed(table.identity))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way of one source's changes to one apply process.

    Args:
        capture: takes the changes from the source's redo.
        propagations: in the order in which they move the changes; none when the apply process shares capture's queue.
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
        """What a table of the source arrives as.

        Args:
            table: as the source knows it.
            tag: of its changes; not known: of those with any tag, or none.

        Returns:
            The table as the apply process gets it; None: it does not arrive.
        """
        tags = tags_told_apart(client.rules for client in self.clients) if tag is UNKNOWN_TAG else (tag,)
        arrives = any(all(client.rules.keeps(table.owner, table.name, tag=each) for client in self.clients) for each in tags)
        if not arrives:
            return None
        for transformation in self.transformations(table):
            table = transformed(table, transformation)
        return table

    def transformations(self, table: Named) -> tuple[Transformation, ...]:
        """What becomes of a table of the source on the way, one client after the other.

        Args:
            table: as the source knows it.

        Raises:
            TransformationError: two rules of a client make different tables of it.
        """
        found = (client.rules.transformation_of(table.owner, table.name) for client in self.clients)
        return tuple(each for each in found if each is not None)

    def subset(self, table: Named) -> str:
        """Which rows of a table of the source arrive, as a condition in SQL; empty: all of them.

        Args:
            table: as the source knows it.
        """
        subsets = (client.rules.subset_of(table.owner, table.name) for client in self.clients)
        return " AND ".join(dict.fromkeys(where_true(each) for each in subsets if each is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivingTable(Generic[T]):
    """A table that an apply process gets.

    Args:
        source: as it is at the source.
        destination: as it is at the destination.
        rows: which of its rows arrive, as a condition in SQL (`rules.conditions.spelling`); empty: all.
        transformations: what makes the one of the other.
    """

    source: T
    destination: T
    rows: str = ""
    transformations: tuple[Transformation, ...] = ()


def ways_to(spec: TopologySpec, apply: ApplySpec) -> tuple[Way, ...]:
    """The ways that changes take to an apply process: one per path in use, so one or none in a topology without errors.

    Args:
        spec: routed (see `route`).
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
        for capture in spec.captures if capture.source == apply.source
        for propagations in from_queue(capture.queue, frozenset({capture.queue}))
    )


def captured_by(ways: Iterable[Way]) -> tuple[RuleSet, ...]:
    """The rule sets at the beginning of the ways: what to ask the source's catalog for."""
    return tuple(dict.fromkeys(way.capture.rules for way in ways))


def rules_at_the_end(ways: Iterable[Way]) -> tuple[RuleSet, ...]:
    """What an apply process evaluates: its own rules, and of the clients before it all but conditions.

    So what it applies is what it was started for, also while the others adopt a change of their rules.

    Args:
        ways: to the apply process.
    """
    return tuple(
        rules for way in ways
        for rules in (*(client.rules.without_conditions() for client in way.clients[:-1]), way.apply.rules)
    )


def arriving(ways: Iterable[Way], tables: Iterable[T]) -> tuple[ArrivingTable[T], ...]:
    """Those of a source's tables that arrive over one of the ways, and as what.

    Args:
        ways: to one apply process.
        tables: of its source, whether they are captured or not.
    """
    known = tuple(ways)
    found = []
    for table in tables:
        carried = next(((way, each) for way in known if (each := way.carry(table)) is not None), None)
        if carried is not None:
            way, destination = carried
            found.append(ArrivingTable(
                source=table, destination=destination, rows=way.subset(table), transformations=way.transformations(table)
            ))
    return tuple(found)


def writes_alone(spec: TopologySpec, apply: ApplySpec, table: TableName) -> bool:
    """Whether an apply process is the only one of the topology that writes a table, and no capture process at its site captures it.

    Args:
        spec: routed (see `route`).
        apply: of `spec`.
        table: its name at the apply process's site.
    """
    for other in spec.applies:
        is_concerned = other.name != apply.name and apply.site in (other.site, other.source)
        ways = ways_to(spec, other)
        if is_concerned and (arriving(ways, (table,)) or (other.site == apply.site and any(_may_become(way, table) for way in ways))):
            return False
    return True


def _may_become(way: Way, table: TableName) -> bool:
    """Whether another table may arrive under a name."""
    found = [rule.transformation for rule in way.apply.rules.include or () if rule.transformation is not None and rule.transformation.renames]
    # A schema may be renamed of any table: which names are in it only its database knows.
    return any(each.named(table).owner == table.owner for each in found)


# --------------------------------------------------------------------------- choosing the ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Changes of one source that come to one queue over different paths only.

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
        used: the one that is used.
    """

    apply: ApplySpec
    table: str
    paths: tuple[str, ...]
    used: str


def route(spec: TopologySpec) -> TopologySpec:
    """Fill in which sources each propagation forwards.

    Names that lead nowhere are passed over; `check` reports them.
    """
    router = _Router(spec, ChangeClasses.of(spec))
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
    """Queues to which no single path takes everything that their apply processes would get over some path.

    Args:
        spec: its names all lead somewhere.
        classes: of `spec`.
    """
    router = _Router(spec, classes)
    for source, queue in router.ends:
        for capture in router.captures(source, queue):
            coming = router.coming(capture, queue)
            if not coming or router.shortest(capture, queue, coming):
                continue
            (first, *_) = router.shortest(capture, queue, coming & -coming)
            left = coming & ~classes.carried_by(first.clients)
            (second, *_) = router.shortest(capture, queue, left & -left)
            yield Halves(
                apply=next(apply for apply in router.ends[source, queue] if classes.taken_by(apply.rules) & left & -left),
                first=(classes.example(coming & classes.carried_by(first.clients)), str(first)),
                second=(classes.example(left), str(second)),
            )


def undecided(spec: TopologySpec, classes: ChangeClasses) -> Iterator[Undecided]:
    """Queues to which several paths lead, and conditions decide which of a source's changes each of them takes.

    Args:
        spec: its names all lead somewhere.
        classes: of `spec`.
    """
    router = _Router(spec, classes)
    for source, queue in router.ends:
        for capture in router.captures(source, queue):
            paths = router.undecided(capture, queue)
            if paths:
                coming = router.coming(capture, queue)
                yield Undecided(
                    apply=router.ends[source, queue][0], table=classes.example(coming), paths=tuple(str(path) for path in paths),
                    used=str(router.paths(capture, queue)[0]),
                )


@dataclass(frozen=True, slots=True)
class _Path:
    """A capture process, and propagations from its queue to another one."""

    capture: CaptureSpec
    propagations: tuple[PropagationSpec, ...]

    @property
    def clients(self) -> tuple[CaptureSpec | PropagationSpec, ...]:
        return (self.capture, *self.propagations)

    def __str__(self) -> str:
        hops = (name for each in self.propagations for name in (each.name, each.to_queue))
        return " -> ".join((self.capture.name, self.capture.queue, *hops))


class _Router:
    """Finds paths from capture processes to the queues that apply processes take changes from."""

    def __init__(self, spec: TopologySpec, classes: ChangeClasses) -> None:
        self._spec, self._classes = spec, classes
        self._reaching: dict[str, dict[str, int]] = {}
        # Where a source's changes are to go, and who takes them there: apply processes of one queue share the path to it.
        self.ends: dict[tuple[str, str], list[ApplySpec]] = {}
        for apply in spec.applies:
            self.ends.setdefault((apply.source, apply.queue), []).append(apply)

    def captures(self, source: str, queue: str) -> list[CaptureSpec]:
        """The capture processes of `source` that have something for `queue`; when none has, all of them."""
        captures = [capture for capture in self._spec.captures if capture.source == source]
        return [capture for capture in captures if self.coming(capture, queue)] or captures

    def coming(self, capture: CaptureSpec, queue: str) -> int:
        """The classes that come from `capture` to `queue` over any path, and are wanted there."""
        wanted = 0
        for apply in self.ends[capture.source, queue]:
            wanted |= self._classes.taken_by(apply.rules)
        if capture.name not in self._reaching:
            self._reaching[capture.name] = self._spread(capture)
        return self._reaching[capture.name].get(queue, 0) & wanted

    def paths(self, capture: CaptureSpec, queue: str) -> list[_Path]:
        """The path from `capture` to `queue`; two when they are equally good, which `check` refuses."""
        # Without a path that takes all, the shortest: positions travel even where no rule lets a change through.
        coming = self.coming(capture, queue)
        return (
            self.shortest(capture, queue, coming, surely=True) or self.shortest(capture, queue, coming) or self.shortest(capture, queue, 0)
        )

    def undecided(self, capture: CaptureSpec, queue: str) -> list[_Path]:
        """Two or more paths of which each takes what its conditions let pass: none is known to take everything."""
        coming = self.coming(capture, queue)
        if not coming or self.shortest(capture, queue, coming, surely=True) or not self.shortest(capture, queue, coming):
            return []
        found: dict[str, _Path] = {}
        for path in self.every(capture, queue, coming):
            found[str(path)] = path
        return list(found.values()) if len(found) > 1 else []

    def every(self, capture: CaptureSpec, queue: str, wanted: int) -> Iterator[_Path]:
        """The first two simple paths that may take some of `wanted`."""
        graph, by_name = self._graph(lambda taken, _: bool(wanted & taken))
        if capture.queue in graph and queue in graph:
            for nodes in islice(nx.all_simple_paths(graph, capture.queue, queue), 2):
                yield _Path(capture, tuple(by_name[node] for node in nodes[1::2]))

    def shortest(self, capture: CaptureSpec, queue: str, wanted: int, *, surely: bool = False) -> list[_Path]:
        """The shortest paths that take all of `wanted`, at most two.

        Args:
            capture: at their beginning.
            queue: at their end.
            wanted: classes.
            surely: whatever the values of a row are.
        """
        graph, by_name = self._graph(lambda taken, by_rows: wanted & ~taken == 0 and not (surely and wanted & by_rows))
        if not (capture.queue in graph and queue in graph and nx.has_path(graph, capture.queue, queue)):
            return []
        found = islice(nx.all_shortest_paths(graph, capture.queue, queue), 2)
        return [_Path(capture, tuple(by_name[node] for node in nodes[1::2])) for nodes in found]

    def _graph(self, takes: Callable[[int, int], bool]) -> tuple[nx.DiGraph[str], dict[str, PropagationSpec]]:
        """Queues, and the propagations that a question takes, by what they take and what of it their conditions decide."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(each.name for each in self._spec.queues)
        # A propagation is a node of its own, so that two between the same queues are two paths.
        for propagation in self._spec.propagations:
            if takes(self._classes.taken_by(propagation.rules), self._classes.decided_by_rows(propagation.rules)):
                graph.add_edge(propagation.from_queue, f"propagation {propagation.name}")
                graph.add_edge(f"propagation {propagation.name}", propagation.to_queue)
        return graph, {f"propagation {each.name}": each for each in self._spec.propagations}

    def _spread(self, capture: CaptureSpec) -> dict[str, int]:
        """The classes that come from `capture` to each queue over any path."""
        reaching = {capture.queue: self._classes.taken_by(capture.rules)}
        pending = [capture.queue]
        while pending:
            queue = pending.pop()
            for propagation in self._spec.propagations:
                if propagation.from_queue != queue:
                    continue
                there = reaching.get(propagation.to_queue, 0)
                both = there | reaching[queue] & self._classes.taken_by(propagation.rules)
                if both != there:
                    reaching[propagation.to_queue] = both
                    pending.append(propagation.to_queue)
        return reaching
