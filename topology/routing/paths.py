"""Paths: the propagations over which a capture process's changes can reach a queue, and the choice of the best path.

Sets of changes are classes by the names at the source (`topology.routing.change_classes`). Where a client renames
tables, what a propagation takes depends on the path to it: a walk knows the tables' names at its present queue.

Source: `topology.routing.ways`, which defines how a path is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from topology.routing.change_classes import ChangeClasses, Naming
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

__all__ = ["Path", "Router"]

_WALKS_MAX = 1_000
"""Bound of the walks that are examined one by one.
More exist only where queues are linked in many ways and names change between them. Then a path may be missed, and
`check` reports that none exists.
"""


@dataclass(frozen=True, slots=True)
class Path:
    """A capture process, and propagations from its queue to another one, in order."""

    capture: CaptureSpec
    propagations: tuple[PropagationSpec, ...]

    @property
    def clients(self) -> tuple[CaptureSpec | PropagationSpec, ...]:
        """Everything on it that has rules, in order."""
        return (self.capture, *self.propagations)

    def __str__(self) -> str:
        hops = (name for each in self.propagations for name in (each.name, each.to_queue))
        return " -> ".join((self.capture.name, self.capture.queue, *hops))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A path under search, so far.

    Args:
        queue: the present queue.
        propagations: taken so far.
        names: of the tables at that queue.
        taken: classes that all clients so far take, among those searched for.
    """

    queue: str
    propagations: tuple[PropagationSpec, ...]
    names: Naming
    taken: int

    def may_enter(self, queue: str) -> bool:
        """Return whether the walk has not visited the queue."""
        return queue != self.queue and all(each.from_queue != queue for each in self.propagations)


class Router:
    """Finds paths from capture processes to the queues of apply processes.

    Args:
        spec: names without a target are ignored.
        classes: of `spec`.
    """

    def __init__(self, spec: TopologySpec, classes: ChangeClasses) -> None:
        self._spec, self._classes = spec, classes
        self._reaching: dict[str, dict[str, list[_Walk]]] = {}
        self._renames = any(each.rules.renames for each in spec.propagations)
        self._reading: dict[str, list[PropagationSpec]] = {}
        for propagation in spec.propagations:
            self._reading.setdefault(propagation.from_queue, []).append(propagation)
        # The ends of paths: a source and a queue, with the apply processes that share the path to it.
        self.ends: dict[tuple[str, str], list[ApplySpec]] = {}
        for apply in spec.applies:
            self.ends.setdefault((apply.source, apply.queue), []).append(apply)

    def captures(self, source: str, queue: str) -> list[CaptureSpec]:
        """Return the capture processes of a source that have changes for a queue; if none has, all of them.

        Args:
            source: site name.
            queue: one of its apply processes' queues, a key of `ends`.
        """
        captures = [capture for capture in self._spec.captures if capture.source == source]
        return [capture for capture in captures if self.coming(capture, queue)] or captures

    def coming(self, capture: CaptureSpec, queue: str) -> int:
        """Return the classes that reach a queue over any path and are wanted there.

        Args:
            capture: start of the path.
            queue: its end.
        """
        if capture.name not in self._reaching:
            self._reaching[capture.name] = self._spread(capture)
        coming = 0
        for walk in self._reaching[capture.name].get(queue, ()):
            coming |= walk.taken & self._wanted(capture.source, queue, walk.names)
        return coming

    def brought(self, path: Path, queue: str) -> int:
        """Return the classes that come over a path and are wanted at its end.

        Args:
            path: any.
            queue: at its end.
        """
        names = self._classes.named_behind(path.clients)
        return self._classes.carried_by(path.clients) & self._wanted(path.capture.source, queue, names)

    def paths(self, capture: CaptureSpec, queue: str) -> list[Path]:
        """Return the best path; two when they are equally good, which `check` refuses.

        Args:
            capture: start of the path.
            queue: its end.
        """
        # If no path takes all, the shortest: positions travel even where no rule lets a change through.
        coming = self.coming(capture, queue)
        return (
            self.shortest(capture, queue, coming, surely=True)
            or self.shortest(capture, queue, coming)
            or self.shortest(capture, queue, 0)
        )

    def undecided(self, capture: CaptureSpec, queue: str) -> list[Path]:
        """Return two paths that each take what their conditions pass, when neither surely takes everything.

        Empty: the path is certain.

        Args:
            capture: start of the paths.
            queue: their end.
        """
        coming = self.coming(capture, queue)
        if (
            not coming
            or self.shortest(capture, queue, coming, surely=True)
            or not self.shortest(capture, queue, coming)
        ):
            return []
        found = [Path(capture, walk.propagations) for walk in islice(self._every(capture, queue, coming), 2)]
        return found if len(found) > 1 else []

    def called_differently(self, capture: CaptureSpec, queue: str) -> tuple[list[Path], int, tuple[str, ...]]:
        """Return two paths over which a wanted table arrives under two names.

        Args:
            capture: start of the paths.
            queue: their end.

        Returns:
            The paths, the table as a class, and its names; no paths: no such table exists.
        """
        self.coming(capture, queue)
        walks = self._reaching[capture.name].get(queue, []) if self._renames else []
        for number, walk in enumerate(walks):
            for other in walks[:number]:
                both = (
                    walk.taken
                    & self._wanted(capture.source, queue, walk.names)
                    & other.taken
                    & self._wanted(capture.source, queue, other.names)
                )
                tables = self._classes.tables_of(both)
                for table in {**walk.names, **other.names}:
                    places = other.names.get(table, table), walk.names.get(table, table)
                    if tables >> table & 1 and places[0] != places[1]:
                        names = tuple(".".join(self._classes.tables[place]) for place in places)
                        return [Path(capture, other.propagations), Path(capture, walk.propagations)], 1 << table, names
        return [], 0, ()

    def shortest(self, capture: CaptureSpec, queue: str, wanted: int, *, surely: bool = False) -> list[Path]:
        """Return the shortest paths that take all of `wanted`, at most two.

        Args:
            capture: their start.
            queue: their end.
            wanted: classes, by the names at the source.
            surely: they take it whatever the values of a row are.
        """
        walks, passed = [self._begun(capture, wanted)], set[object]()
        while walks:
            if found := [
                walk
                for walk in walks
                if walk.queue == queue and not wanted & ~self._wanted(capture.source, queue, walk.names)
            ]:
                return [Path(capture, walk.propagations) for walk in found[:2]]
            passed |= {self._state(walk) for walk in walks}
            onward: dict[object, list[_Walk]] = {}
            for walk in walks:
                for each in self._onward(walk, surely=surely):
                    if each.taken == wanted and self._state(each) not in passed:
                        onward.setdefault(self._state(each), []).append(each)
            # two are enough to know that the path is not unique
            walks = [walk for alike in onward.values() for walk in alike[:2]]
        # Where names change on the way, the first walk to a queue may have visited a queue that the rest of the way
        # needs.
        return self._shortest_of_every(capture, queue, wanted, surely=surely) if self._renames and wanted else []

    def _shortest_of_every(self, capture: CaptureSpec, queue: str, wanted: int, *, surely: bool) -> list[Path]:
        """Return as `shortest`, among the paths that `coming` found and those of an exhaustive search."""
        walks = list(self._every(capture, queue, wanted, is_whole=True, surely=surely, walks_max=_WALKS_MAX))
        walks += [] if surely else self._reaching.get(capture.name, {}).get(queue, [])
        # By names: hashing a propagation with hundreds of rules is slow.
        paths = {
            tuple(each.name for each in walk.propagations): Path(capture, walk.propagations)
            for walk in walks
            if not wanted & ~(walk.taken & self._wanted(capture.source, queue, walk.names))
        }
        fewest = min(map(len, paths), default=0)
        return [path for names, path in paths.items() if len(names) == fewest][:2]

    def _every(
        self,
        capture: CaptureSpec,
        queue: str,
        wanted: int,
        *,
        is_whole: bool = False,
        surely: bool = False,
        walks_max: int | None = None,
    ) -> Iterator[_Walk]:
        """Yield the walks over simple paths that may take some of `wanted`.

        Args:
            capture: their start.
            queue: their end.
            wanted: classes, by the names at the source.
            is_whole: only those on which every propagation takes all of `wanted`.
            surely: they take it whatever the values of a row are.
            walks_max: bound of the walks examined, whether they reach the end or not; None: all.
        """
        pending = [self._begun(capture, wanted)]
        for _ in count() if walks_max is None else range(walks_max):
            if not pending:
                return
            walk = pending.pop()
            if walk.queue == queue:
                if walk.taken & self._wanted(capture.source, queue, walk.names):
                    yield walk
                continue
            pending += reversed(
                [
                    each
                    for each in self._onward(walk, surely=surely)
                    if (each.taken == wanted if is_whole else each.taken)
                ]
            )

    def _spread(self, capture: CaptureSpec) -> dict[str, list[_Walk]]:
        """Return the classes that come from `capture` to each queue over any path, under each of their names there."""
        reaching: dict[str, list[_Walk]] = {}
        known: dict[object, int] = {}
        pending = [self._begun(capture, self._classes.taken_by(capture.rules))]
        for number, walk in enumerate(pending):  # the loop appends to `pending`
            state = self._state(walk)
            is_new = bool(walk.taken & ~known.get(state, 0))
            if is_new:
                known[state] = known.get(state, 0) | walk.taken
                reaching.setdefault(walk.queue, []).append(walk)
            # If names change, a walk at a known queue may still reach queues that the earlier walk had already visited.
            if is_new or (self._renames and number < _WALKS_MAX):
                pending += [each for each in self._onward(walk) if each.taken]
        return reaching

    def _begun(self, capture: CaptureSpec, wanted: int) -> _Walk:
        return _Walk(capture.queue, (), self._classes.behind(capture.rules, {}), wanted)

    def _onward(self, walk: _Walk, *, surely: bool = False) -> Iterator[_Walk]:
        """Yield the walk extended by one propagation, with what it takes, or surely takes whatever a row's values are."""
        for propagation in self._reading.get(walk.queue, ()):
            if walk.may_enter(propagation.to_queue):
                taken = self._classes.taken_by(propagation.rules) & ~(
                    self._classes.decided_by_rows(propagation.rules) if surely else 0
                )
                yield _Walk(
                    propagation.to_queue,
                    (*walk.propagations, propagation),
                    self._classes.behind(propagation.rules, walk.names),
                    walk.taken & self._classes.at_source(taken, walk.names),
                )

    def _state(self, walk: _Walk) -> object:
        """Return what decides how a walk can continue: its queue, and the names of the tables that it takes."""
        tables = self._classes.tables_of(walk.taken) if walk.names else 0
        return walk.queue, frozenset(each for each in walk.names.items() if tables >> each[0] & 1)

    def _wanted(self, source: str, queue: str, names: Naming) -> int:
        """Return what the apply processes of a queue take of a source."""
        wanted = 0
        for apply in self.ends[source, queue]:
            wanted |= self._classes.taken_by(apply.rules)
        return self._classes.at_source(wanted, names)
