"""Split streams of a simulated topology, with the real decisions of `actors.splitting.phases`.

The decisions are made as in the controller. Propagations are split off by their thresholds, which the seed chooses, or
by the operator. They are merged when they have caught up enough, or when the operator asks. Each phase is an edit that
every component adopts at a different time, while faults continue.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.control.lag import PositionSamples
from actors.records.requests import Requests
from actors.splitting.facts import required_of
from actors.splitting.phases import Splitting
from actors.staging.queue import QueueCore
from headrace.base.errors import ConfigError
from headrace.lcr.scn import Scn
from headrace.simulation.observing.violations import Invariant, require
from headrace.status.queues import QueueStatus
from topology import split
from topology.routing.combined import readers_of
from topology.split import MERGING, SPLIT, clone_queue

if TYPE_CHECKING:
    from headrace.simulation.components import Component
    from headrace.simulation.running import Running
    from topology.spec import TopologySpec

__all__ = ["SplitStreams"]

_LOOKS = 0.04  # of the steps: the controller looks once a second, and a component takes turns more often
_ASKED_SHARE = 0.02  # of the looks: the operator asks for a split or merge
_AWAY_SHARE = 0.01  # of the looks: a destination becomes unavailable
_AWAY_MAX_S = 20.0  # so long that the redo it needs is purged unless it is kept for it
_SPLITS_MAX = 6  # by the operator in one run: under constant splits a run might never advance far enough


class SplitStreams:
    """The split streams of a simulation. Implements `actors.splitting.phases.Facts`.

    Args:
        sim: the simulation.
        file: the topology as the operator wrote it.
    """

    def __init__(self, sim: Running, file: TopologySpec) -> None:
        # A separate random generator: runs without splits are the same as without this class.
        self._sim, self._rng = sim, random.Random(f"splits {sim.seed}")
        self._after_s = self._rng.choice([None, 2.0, 5.0])
        self._within_s = self._rng.choice([0.5, 3.0, 60.0])
        self.pending: Counter[str] = Counter()  # components with changes to adopt, and how many
        self._samples: dict[str, PositionSamples] = {}
        self._asked = 0
        self._requests = Requests()  # outlives every controller
        self._splitting = Splitting(self._with_thresholds(file), (), sim.clock, self._requests)
        self.file = file

    def _with_thresholds(self, file: TopologySpec) -> TopologySpec:
        return replace(
            file,
            propagations=tuple(
                replace(each, split_after_s=self._after_s, merge_within_s=self._within_s) for each in file.propagations
            ),
        )

    def edit(self, file: TopologySpec) -> TopologySpec:
        """Accept another file of the operator; return the topology to run."""
        self.file = file
        self._splitting = Splitting(
            self._with_thresholds(file), self._splitting.splits, self._sim.clock, self._requests
        )
        require(
            not self._splitting.misfits,
            Invariant.NO_ABORT,
            "operator",
            "an edit of the file does not fit a split stream",
        )
        return split.with_splits(file, self._splitting.splits)

    def look(self, *, may_split: bool) -> TopologySpec | None:
        """Perhaps advance a stream to its next phase; return the topology to run then, or None if it does not change.

        Args:
            may_split: whether streams may be split off now.
        """
        sim, rng = self._sim, self._rng
        if rng.random() > _LOOKS:
            return None
        for site, database in sim.databases.items():
            self._samples.setdefault(site, PositionSamples()).add(
                int(sim.clock.monotonic() * 1e6), database.source.current_scn()
            )
        if may_split and rng.random() < _ASKED_SHARE:
            self._ask()
        if may_split and rng.random() < _AWAY_SHARE:
            self._send_away()
        if rng.random() < _ASKED_SHARE:  # the controller died: the next one knows only what is recorded
            self._splitting = Splitting(
                self._with_thresholds(self.file), self._splitting.splits, sim.clock, self._requests
            )
        before = self._splitting.splits
        wanted = self._splitting.next(self, sim.clock.time_us())
        if wanted is None or (len(wanted) > len(before) and not may_split):
            return None
        self._note(wanted)
        self._splitting.take(wanted)
        return split.with_splits(self.file, wanted)

    def _ask(self) -> None:
        """Let the operator split a stream off, or merge one."""
        if self._asked >= _SPLITS_MAX or not self.file.propagations:
            return
        name = self._rng.choice(self.file.propagations).name
        is_split = any(each.propagation == name for each in self._splitting.splits)
        try:
            self._splitting.ask(name, split=not is_split or self._rng.random() < 0.2)
        except ConfigError:
            return
        self._asked += 1

    def _send_away(self) -> None:
        """Stop a destination for longer than faults last.

        It stops receiving in its queue, or in the apply process that runs without one.
        """
        sim = self._sim
        takers: list[Component] = []
        for each in sim.topology.propagations:
            readers = readers_of(sim.topology, each)
            takers += [sim.running.applies[name] for name in readers if name in sim.running.applies]
            if each.name in readers and each.to_queue in sim.running.queues:
                takers.append(sim.running.queues[each.to_queue])
        taker = self._rng.choice(takers) if takers else None
        if taker is None or not taker.is_open:
            return
        sim.fired["destination away"] += 1
        taker.stop()

        def comes_back() -> None:
            if taker.may_start and taker in sim.running.components:
                taker.start()

        sim.later(_AWAY_MAX_S, comes_back)

    def _note(self, wanted: tuple[Any, ...]) -> None:
        before = {each.propagation: each.phase for each in self._splitting.splits}
        after = {each.propagation: each for each in wanted}
        for name, stream in after.items():
            if before.get(name) != stream.phase:
                self._sim.trace.note("operator", f"{name} is {stream.phase}, wanted by {stream.by}")
                self._sim.fired["merge given up" if before.get(name) == MERGING else stream.phase] += 1
                self._sim.fired["split by threshold"] += stream.by == "threshold" and name not in before
        for name in before.keys() - after.keys():
            self._sim.trace.note("operator", f"{name} is merged")
            self._sim.fired["merged"] += 1

    def check(self) -> None:
        """Check from time to time that a queue holds nothing for a stream that is split off from it."""
        if self._rng.random() > _LOOKS:
            return
        for stream in self._splitting.splits:
            queue = self._sim.running.queues.get(stream.queue)
            if stream.phase != SPLIT or queue is None or queue.core is None or queue.name in self.pending:
                continue
            known = {each.subscriber for each in queue.core.status().subscribers}
            readers = readers_of(self._sim.topology, self._sim.topology.propagation(stream.propagation))
            require(
                known.isdisjoint(readers),
                Invariant.BOUNDS,
                queue.name,
                f"it holds changes for {stream.propagation}, which is split off",
            )
            clone = self._sim.running.queues.get(clone_queue(stream))
            self._sim.seen["others ahead of a split stream"] += clone is not None and self._is_behind(
                queue.core.status(), clone.core
            )

    @staticmethod
    def _is_behind(queue: QueueStatus, clone: QueueCore | None) -> bool:
        own = () if clone is None else clone.status().subscribers
        durable = {source: each.durable_scn for source, each in queue.sources.items()}
        return any(0 < each.acknowledged_scn < durable.get(each.source, 0) for each in own)

    # ------------------------------------------------------------------ facts

    def is_quiet(self) -> bool:
        """Return whether no pending component answers; a component that is down is not waited for."""
        return not any(self._answers(component) for component in self.pending)

    def is_current(self, component: str) -> bool:
        """Return whether a component answers and has adopted its last change."""
        return component not in self.pending and self._answers(component)

    def _answers(self, component: str) -> bool:
        return any(each.is_open for each in self._sim.running.components if each.name == component)

    def queue(self, name: str) -> QueueStatus | None:
        """Return the status of a queue; None: it does not run."""
        queue = self._sim.running.queues.get(name)
        return None if queue is None or queue.core is None else queue.core.status()

    def required_scn(self, capture: str) -> Scn | None:
        """Return the required checkpoint SCN of a capture process; None: it does not run."""
        process = self._sim.running.captures[capture]
        return required_of(process.host.details()) if process.is_open else None

    def is_stopped(self, component: str) -> bool:
        """Return whether a component is stopped; False for a clone that has not begun."""
        return any(each.is_stopped for each in self._sim.running.components if each.name == component)

    def behind_s(self, source: str, scn: Scn, other: Scn) -> float | None:
        """Return by how many seconds `scn` is behind `other` at the source; None: unknown."""
        first, second = (self._samples[source].time_us(each) for each in (scn, other))
        return None if first is None or second is None else max(0, second - first) / 1e6
