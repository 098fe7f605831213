"""The phases in which a propagation is split off and merged again, and the conditions that make each step safe.

Job
    Bring each split stream from one phase to the next (`topology.split`), one edit at a time. The controller performs the
    edits; so does the simulation.

Main path
    Splitting.next -> the wanted phases -> the controller records them, and lets the components adopt them.

Phases
    SPLITTING -> SPLIT     when the keeper of the redo keeps it for the clones too, on disk, and their queue runs. Until then the
                           original queue waits for the propagation, so nothing that it needs is purged in between.
    SPLIT -> MERGING       when the propagation is connected and its destination is at most `merge_threshold` behind the merge
                           position, in time of the source.
    MERGING -> together    when its destination has durably what the original queue no longer holds for it (F below).
    MERGING -> SPLIT       when that takes too long, because the original queue must not wait for it again; or when a clone is stopped.

A stop is not lifted
    A stream that reads another queue, or whose clones end, would get what an operator's stop holds back. So no stream is
    split off, or goes from SPLITTING to SPLIT, while its queue or a capture process of it is stopped. No stream is merged
    while one of its clones, or its queue, is stopped. A component that does not answer may be stopped, and a status is a
    second old. So its site is asked at that moment, and nothing changes while the site does not answer.

Where a stream is merged
    When the original queue adopts MERGING, the propagation is a new subscriber of it. It begins at F, the position of the
    most advanced subscriber (`actors.staging.queue`, Beginnings). F is on disk before anything else happens: from then on
    nothing after F is dropped or reported as DURABLE without the propagation. Redo may be gone beyond F, up to what was
    reported as DURABLE before the most advanced subscriber lost commits: then that position counts as F. The propagation
    reads its own queue until its destination has F durably. Then it reads the original queue, and requests what follows
    its destination's position, which is F or later. So nothing is missing, the queue need not request anything again, and
    duplicates are cut off as after any broken connection.

Durable when
    The controller writes the phase, and the topology that belongs to it, in one file before any component adopts it.
    Every condition is derived from what components report, so a restarted controller continues where the file says.
    Operators' requests are in a separate file (`actors.records.requests`), from before they get an answer until the
    request is fulfilled.

Bounds
    At most one edit is in progress: `next` answers only when every component has its part of the last one. A merge is
    given up after `merge_threshold`, or `MERGE_MIN_S`: the stream was not further behind than that.

Worked flow
    p is at 40, others at 90, redo is kept from 40 -> SPLITTING: site keeps redo from 0 for c.p, c.p mines from the
      oldest segment, 35
    -> SPLIT: queue q forgets p: c needs redo from 90 on, c.p from 35 on; p subscribes to q.p with needed=40
    -> p is at 880, the others at 900: MERGING: q holds what follows 900 for p -> q.p: 880..900, 900..920 -> p is at 905
    -> together: p subscribes to q with needed=905; c.p and q.p end, the site keeps redo for c alone
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from actors.records.requests import Requests
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ConfigError
from headrace.lcr.scn import Scn
from headrace.status.overview import SplitStream
from headrace.status.queues import QueueSource, QueueStatus, QueueSubscriber
from topology.problems import nearest
from topology.routing.combined import directs
from topology.routing.downstream import keeper_of
from topology.split import (
    MERGING,
    SPLIT,
    SPLITTING,
    TOGETHER,
    Split,
    clone_captures,
    clone_queue,
    fitting,
    hindrance,
    misfits,
    with_splits,
)

if TYPE_CHECKING:
    from topology.spec import PropagationSpec, TopologySpec

__all__ = ["MERGE_MIN_S", "Facts", "Splitting"]

# A merge gets at least this time: a connection that breaks meanwhile is reopened within seconds.
MERGE_MIN_S = 60.0


class Facts(Protocol):
    """Facts about the running components."""

    def is_quiet(self) -> bool:
        """Return whether no answering component is outdated, and no unwanted component runs."""
        ...

    def is_current(self, component: str) -> bool:
        """Return whether a component answers and has its part of the topology.

        Args:
            component: full name of the component.
        """
        ...

    def queue(self, name: str) -> QueueStatus | None:
        """Return the last status of a queue; None: it does not answer, or is not open."""
        ...

    def required_scn(self, capture: str) -> Scn | None:
        """Return the SCN from which redo is kept, or soon will be, for a capture process.

        None: the capture process does not answer, or has not begun.
        """
        ...

    def is_stopped(self, component: str) -> bool | None:
        """Return whether an operator stopped a component, as its site knows now; None: the site does not answer.

        Args:
            component: full name of the component.
        """
        ...

    def behind_s(self, source: str, scn: Scn, other: Scn) -> float | None:
        """Return how much later the source was at another SCN, in seconds; None: unknown.

        Args:
            source: the site.
            scn: an SCN in its log.
            other: a later SCN.
        """
        ...


class Splitting:
    """The split streams of one topology.

    Args:
        spec: the topology of the file, routed.
        splits: the recorded split streams. Those that do not fit are ignored; `misfits` has the reasons, except for
            propagations that are gone.
        clock: measures how long a merge takes.
        requests: operators' requests, including those to an earlier controller; None: none yet.
        before: the topology that was prepared last, with `splits`; None: unknown.
    """

    def __init__(
        self,
        spec: TopologySpec,
        splits: tuple[Split, ...] = (),
        clock: Clock | None = None,
        requests: Requests | None = None,
        *,
        before: TopologySpec | None = None,
    ) -> None:
        self._file, self._clock = spec, clock or SystemClock()
        self.splits, self.misfits = fitting(spec, splits), misfits(spec, splits, before)
        self._merging_since: dict[str, float] = {}
        self._stopped: dict[str, tuple[str, ...]] = {}  # by propagation, stopped components that block its next phase
        self._known_readers: tuple[tuple[Split, ...] | None, dict[str, tuple[str, ...]]] = None, {}
        self._requests = requests or Requests()

    @property
    def spec(self) -> TopologySpec:
        """The running topology."""
        return with_splits(self._file, self.splits)

    # ------------------------------------------------------------------ operators' requests

    def ask(self, name: str, *, split: bool) -> None:
        """Request that a propagation is split off, or merged; one of the next calls of `next` does it.

        A later controller may do it. Callable from any thread.

        Args:
            name: name of the propagation.
            split: whether to split it off; False: merge it, or cancel a split that has not begun.

        Raises:
            ConfigError: the propagation does not exist, cannot be split off, or is not split off.
            PropagationError: the request could not be written.
        """
        named = {each.name: each for each in self._file.propagations}
        if name not in named:
            raise ConfigError(f"there is no propagation {name!r}", hint=nearest(name, set(named)))
        is_split = any(each.propagation == name for each in self.splits)
        if not split and not is_split:
            if self._requests.get(name):
                # The request is kept: the split may be about to be recorded, and is then merged again.
                self._requests.put(name, split=False)
                return
            raise ConfigError(f"propagation {name} is not split off", hint="headrace status shows which ones are")
        if split and not is_split and (reason := hindrance(self._file, named[name])):
            raise ConfigError(
                f"propagation {name} cannot be split off: {reason}",
                hint="splitting it off would relieve no other destination, or another propagation brings the changes"
                " there: split off that one",
            )
        self._requests.put(name, split=split)

    def in_force(self) -> None:
        """Drop requests for propagations that the file, now in force, does not have.

        Not before: until then the earlier file may return.

        Raises:
            PropagationError: the file of requests could not be written.
        """
        for name in set(self._requests.names()) - {each.name for each in self._file.propagations}:
            self._requests.drop(name, split=self._requests.get(name))

    # ------------------------------------------------------------------ the next edit

    def next(self, facts: Facts, now_us: int) -> tuple[Split, ...] | None:
        """Return the split streams that are wanted now; None: unchanged.

        Args:
            facts: facts about the components.
            now_us: microseconds since the epoch.
        """
        if not facts.is_quiet():
            return None
        for split in self.splits:
            changed = self._advanced(split, facts)
            if changed != split:
                found = ((changed if each is split else each) for each in self.splits)
                return tuple(each for each in found if each is not None)
        known = {each.propagation for each in self.splits}
        for propagation in self._file.propagations:
            by = "" if propagation.name in known else self._reason(propagation, facts)
            if by:
                split = Split(
                    propagation=propagation.name,
                    queue=propagation.from_queue,
                    to_queue=propagation.to_queue,
                    phase=SPLITTING,
                    merges=by == "threshold",
                    by=by,
                    since_us=now_us,
                )
                return (*self.splits, split)
        return None

    def take(self, splits: tuple[Split, ...]) -> None:
        """Adopt the recorded answer of `next`."""
        for each in splits:
            if each.phase == MERGING:
                self._merging_since.setdefault(each.propagation, self._clock.monotonic())
            else:
                self._merging_since.pop(each.propagation, None)
        self.splits = splits
        for name in self._requests.names():
            asked = self._requests.get(name)
            if asked is not None and self._is_done(name, asked=asked):
                self._requests.drop(name, split=asked)

    def _is_done(self, name: str, *, asked: bool) -> bool:
        """Return whether a request for a propagation is fulfilled in the record."""
        split = next((each for each in self.splits if each.propagation == name), None)
        if asked:
            return split is not None and not split.merges
        return split is None or split.merges

    def _reason(self, propagation: PropagationSpec, facts: Facts) -> str:
        """Return why a propagation is to be split off ("operator" or "threshold"); empty: it is not, or cannot be."""
        queue, is_asked = propagation.from_queue, bool(self._requests.get(propagation.name))
        self._stopped.pop(propagation.name, None)
        if is_asked:
            # If its site does not answer, the clones could not begin there, and the streams of other sites would wait
            # for them.
            is_wanted = bool(facts.queue(queue))
        elif propagation.split_after_s is None:
            is_wanted = False
        else:
            waits = max((each.held_alone_s for each in self._entries(facts, queue, propagation.name)), default=0.0)
            is_wanted = waits >= propagation.split_after_s
        if (
            not is_wanted
            or hindrance(self._file, propagation)
            or self._is_held_back(propagation.name, self._read(queue), facts)
        ):
            return ""
        return "operator" if is_asked else "threshold"

    def _advanced(self, split: Split, facts: Facts) -> Split | None:
        """Return a stream in its next phase; None: it is merged."""
        name = split.propagation
        self._stopped.pop(name, None)
        asked = self._requests.get(name)
        if asked is not None and asked == split.merges:
            return replace(split, merges=not asked)
        if split.phase == SPLITTING:
            may_go = all(map(facts.is_current, self._needed(split))) and not self._is_held_back(
                name, self._read(split.queue), facts
            )
            return replace(split, phase=SPLIT) if may_go else split
        # Without other readers of the original queue, the merge may combine capture and apply, and bypass the queue.
        ends = [
            f"queue:{split.queue}",
            f"queue:{clone_queue(split)}",
            *(f"capture:{each.name}" for each in clone_captures(self._file, split)),
        ]
        if split.phase == SPLIT:
            may_go = split.merges and self._is_close(split, facts) and not self._is_held_back(name, ends, facts)
            return replace(split, phase=MERGING) if may_go else split
        if split.merges and self._has_all(split, facts) and not self._is_held_back(name, ends, facts):
            return None
        since = self._merging_since.setdefault(name, self._clock.monotonic())
        patience_s = max(MERGE_MIN_S, self._file.propagation(name).merge_within_s)
        is_over = not split.merges or self._clock.monotonic() - since > patience_s
        return replace(split, phase=SPLIT) if is_over or self._stopped.get(name) else split

    def _read(self, queue: str) -> list[str]:
        """Return the queue that a propagation reads, and the capture processes that fill it, as full names."""
        return [f"queue:{queue}", *(f"capture:{each.name}" for each in self._file.captures if each.queue == queue)]

    def _is_held_back(self, propagation: str, components: Iterable[str], facts: Facts) -> bool:
        """Return whether an operator may have stopped a component that the stream would no longer depend on."""
        answers = {component: facts.is_stopped(component) for component in components}
        self._stopped[propagation] = tuple(component for component, is_stopped in answers.items() if is_stopped)
        return any(is_stopped is not False for is_stopped in answers.values())

    def _readers(self, propagation: str) -> tuple[str, ...]:
        """Return a queue's subscribers for a propagation: the propagation, or apply processes that bypass it."""
        of_splits, readers = self._known_readers
        if of_splits is not self.splits:  # called every second for every propagation
            readers = {
                each.propagation.name: tuple(apply.name for apply in each.applies) for each in directs(self.spec)
            }
            self._known_readers = self.splits, readers
        return readers.get(propagation, (propagation,))

    def _entries(self, facts: Facts, queue: str, propagation: str) -> list[QueueSubscriber]:
        """Return the queue's status of the readers of a propagation's stream, per source."""
        readers = self._readers(propagation)
        status = facts.queue(queue)
        return [] if status is None else [each for each in status.subscribers if each.subscriber in readers]

    def _needed(self, split: Split) -> Iterator[str]:
        """Yield the components that must have their part before the original queue may forget the propagation."""
        yield f"queue:{clone_queue(split)}"
        for capture in clone_captures(self._file, split):
            yield keeper_of(capture.source, capture.site)

    # ------------------------------------------------------------------ positions

    def _is_close(self, split: Split, facts: Facts) -> bool:
        """Return whether a stream can be merged soon."""
        within_s = self._file.propagation(split.propagation).merge_within_s
        own = self._entries(facts, clone_queue(split), split.propagation)
        behind_s = self.behind_s(split, facts)
        is_there = bool(own) and all(each.connected for each in own) and facts.is_current(f"queue:{split.queue}")
        return is_there and behind_s is not None and behind_s <= within_s

    def behind_s(self, split: Split, facts: Facts) -> float | None:
        """Return how far a stream is behind the others, in seconds of its source; None: unknown.

        Args:
            split: the stream.
            facts: facts about the components.
        """
        queue, found, readers = facts.queue(split.queue), 0.0, self._readers(split.propagation)
        own = self._entries(facts, clone_queue(split), split.propagation)
        if not own or queue is None:
            return None
        for each in own:
            ahead = _furthest(queue, each.source, but=readers)
            if each.acknowledged_scn < ahead:
                behind_s = facts.behind_s(each.source, Scn(each.acknowledged_scn), Scn(ahead))
                if behind_s is None:
                    return None
                found = max(found, behind_s)
        return found

    def described(self, facts: Facts) -> tuple[SplitStream, ...]:
        """Return the streams that are split off, or will be.

        Args:
            facts: facts about the components.
        """
        known = {split.propagation for split in self.splits}
        asked = (
            self._asked(each)
            for each in self._file.propagations
            if each.name not in known and self._requests.get(each.name)
        )
        return (*(self._described(each, facts) for each in self.splits), *asked)

    def _described(self, split: Split, facts: Facts) -> SplitStream:
        own = self._entries(facts, clone_queue(split), split.propagation)
        return SplitStream(
            propagation=split.propagation,
            queue=split.queue,
            phase=split.phase,
            merges=split.merges,
            by=split.by,
            since_us=split.since_us,
            split_queue=clone_queue(split),
            captures=tuple(each.name for each in clone_captures(self._file, split)),
            connected=bool(own) and all(each.connected for each in own),
            behind_s=self.behind_s(split, facts),
            merge_threshold_s=self._file.propagation(split.propagation).merge_within_s,
            stopped=self._stopped.get(split.propagation, ()),
        )

    def _asked(self, propagation: PropagationSpec) -> SplitStream:
        """Describe a stream that an operator wants split off and that is still pending."""
        return SplitStream(
            propagation=propagation.name,
            queue=propagation.from_queue,
            phase=TOGETHER,
            merge_threshold_s=propagation.merge_within_s,
            stopped=self._stopped.get(propagation.name, ()),
            hindrance=hindrance(self._file, propagation),
        )

    def _has_all(self, split: Split, facts: Facts) -> bool:
        """Return whether the destination has durably what neither the original queue nor the redo holds for it."""
        if not facts.is_current(f"queue:{split.queue}"):
            return False
        held = {each.source: each.acknowledged_scn for each in self._entries(facts, split.queue, split.propagation)}
        own = {
            each.source: each.acknowledged_scn for each in self._entries(facts, clone_queue(split), split.propagation)
        }
        if not held or own.keys() != held.keys():
            return False
        for capture in self._file.captures:
            if capture.queue == split.queue and capture.source in held:
                # If the most advanced subscriber lost commits, it is below what was reported as durable before.
                required_scn = facts.required_scn(capture.name)
                if required_scn is None or own[capture.source] < max(held[capture.source], required_scn):
                    return False
        return True


def _furthest(queue: QueueStatus, source: str, *, but: Collection[str]) -> int:
    """Return where a new subscriber would begin: the position of the most advanced one."""
    known = [
        each.acknowledged_scn for each in queue.subscribers if each.source == source and each.subscriber not in but
    ]
    return max(known, default=queue.sources.get(source, QueueSource()).position_scn)
