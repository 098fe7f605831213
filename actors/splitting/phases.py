"""When a propagation is split off and merged again, and whether that is safe now.

Job
    Bring each split stream from one phase to the next (`topology.split`), one edit at a time. The controller makes the
    edits, the simulation too.

Main path
    Splitting.next -> the phases that are wanted now -> the controller records them, and lets the components adopt them.

Phases
    SPLITTING -> SPLIT     once who keeps the redo keeps it for the clones too, on disk, and their queue runs. Until then the original
                           queue waits for the propagation, so nothing that it needs is purged in between.
    SPLIT -> MERGING       once the propagation is connected and its destination is, in time of the source, at most
                           `merge_threshold` behind where it would be merged.
    MERGING -> together    once its destination has durably what the original queue does not hold for it any more: F below.
    MERGING -> SPLIT       when that takes too long: the original queue must not wait for it again; or when a clone is stopped by then.

A stop is not lifted
    A stream that reads something else, or whose clones end, would get what an operator's stop holds back. So no stream
    is split off, and none goes from SPLITTING to SPLIT, while its queue or what captures into it is stopped; and none
    is merged while that is so of its clones, or of its queue. A component that does not answer may be stopped, and a
    status is a second old: its site is asked at that moment, and while the site does not say, nothing changes.

Where a stream is merged
    When the original queue adopts MERGING, the propagation is a new subscriber of it, and begins at F, the position of
    its most advanced one (`actors.staging.queue`, Beginnings): on disk before anything else happens, from then on
    nothing after F is dropped or reported as DURABLE without it. Redo may be gone beyond F, up to what was reported as
    DURABLE before its most advanced subscriber lost commits: then that position counts as F. The propagation reads its
    own queue until its destination has F durably. Then it reads the original queue, and asks for what follows its
    destination's position, which is F or later: nothing is missing, the queue need not ask for anything again, and what
    the destination has is cut off, as after any broken connection.

Durable when
    The controller writes the phase, and the topology that belongs to it, in one file before anyone adopts it. Every
    condition is looked up from what components report, so a controller that dies anywhere goes on where the file says.
    What operators ask is in a file of its own (`actors.records.requests`) from before they get an answer until it is
    done.

Bounds
    At most one edit is on its way: `next` answers only when every component has its part of the last one. A stream that
    is being merged is given up after `merge_threshold`, or `MERGE_MIN_S`: it was not further behind.

Worked flow
    p stands at 40, others at 90, redo is kept from 40 -> SPLITTING: site keeps redo from 0 for c.p, c.p mines from the
      oldest segment, 35
    -> SPLIT: queue q forgets p: redo is needed by c from 90 on, by c.p from 35 on; p subscribes to q.p with needed=40
    -> p stands at 880, the others at 900: MERGING: q holds what follows 900 for p -> q.p: 880..900, 900..920 -> p
      stands at 905
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

# a stream gets at least so long to be merged: a connection that breaks meanwhile is opened again within seconds
MERGE_MIN_S = 60.0


class Facts(Protocol):
    """What is known of the running components."""

    def is_quiet(self) -> bool:
        """Whether no component that answers has another part of the topology than it should, and none runs that should not."""
        ...

    def is_current(self, component: str) -> bool:
        """Whether a component answers and has its part of the topology.

        Args:
            component: its full name.
        """
        ...

    def queue(self, name: str) -> QueueStatus | None:
        """The last status of a queue; None: it does not answer, or is not open."""
        ...

    def required_scn(self, capture: str) -> Scn | None:
        """From where on redo is kept for a capture process, or will be in a moment.

        None: it does not answer, or has not begun.

        Args:
            capture: its name.
        """
        ...

    def is_stopped(self, component: str) -> bool | None:
        """Whether an operator stopped a component, as its site knows now; None: the site does not say.

        Args:
            component: its full name.
        """
        ...

    def behind_s(self, source: str, scn: Scn, other: Scn) -> float | None:
        """How much later the source was at another SCN, in seconds; None: unknown.

        Args:
            source: the site.
            scn: in its log.
            other: a later one.
        """
        ...


class Splitting:
    """The split streams of one topology.

    Args:
        spec: the topology of the file, routed.
        splits: what is recorded; `misfits` has why those do not fit that it leaves out, other than those of
            propagations that are gone.
        clock: measures how long a merge takes.
        requests: what operators asked, also of an earlier controller; None: nothing yet.
        before: the topology that was prepared last, with `splits`; None: it is not known.
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
        self._stopped: dict[str, tuple[str, ...]] = {}  # by propagation, what kept it in its phase at the last look
        self._known_readers: tuple[tuple[Split, ...] | None, dict[str, tuple[str, ...]]] = None, {}
        self._requests = requests or Requests()

    @property
    def spec(self) -> TopologySpec:
        """The topology that runs."""
        return with_splits(self._file, self.splits)

    # ------------------------------------------------------------------ what an operator asks

    def ask(self, name: str, *, split: bool) -> None:
        """Have a propagation split off, or merged; done by one of the next calls of `next`.

        It may be one of a later controller. Callable from any thread.

        Args:
            name: of the propagation.
            split: split it off; False: merge it, or, where that has not begun, do not split it off.

        Raises:
            ConfigError: there is no such propagation, or it cannot be split off, or it is not.
            PropagationError: the request could not be written.
        """
        named = {each.name: each for each in self._file.propagations}
        if name not in named:
            raise ConfigError(f"there is no propagation {name!r}", hint=nearest(name, set(named)))
        is_split = any(each.propagation == name for each in self.splits)
        if not split and not is_split:
            if self._requests.get(name):
                # Not forgotten: it may be about to be recorded as split off. Then it is merged again.
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
        """The file has come into force: forget what was asked of propagations that it does not have.

        Until then the one of before may come back.

        Raises:
            PropagationError: it could not be written.
        """
        for name in set(self._requests.names()) - {each.name for each in self._file.propagations}:
            self._requests.drop(name, split=self._requests.get(name))

    # ------------------------------------------------------------------ the next edit

    def next(self, facts: Facts, now_us: int) -> tuple[Split, ...] | None:
        """The split streams that are wanted now; None: as they are.

        Args:
            facts: what is known of the components.
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
        """What `next` answered is recorded."""
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
        """Whether what was asked of a propagation is recorded."""
        split = next((each for each in self.splits if each.propagation == name), None)
        if asked:
            return split is not None and not split.merges
        return split is None or split.merges

    def _reason(self, propagation: PropagationSpec, facts: Facts) -> str:
        """Who wants a propagation to be split off; empty: nobody, or it cannot be."""
        queue, is_asked = propagation.from_queue, bool(self._requests.get(propagation.name))
        self._stopped.pop(propagation.name, None)
        if is_asked:
            # Where its site does not answer, the clones could not begin there, and the streams of other sites would
            # wait for them.
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
        """A stream in its next phase; None: it is merged."""
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
        # Where nobody else reads the original queue, capture and apply may be combined with the merge, and bypass it.
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
        """What a propagation reads, and what fills that, as full names of components."""
        return [f"queue:{queue}", *(f"capture:{each.name}" for each in self._file.captures if each.queue == queue)]

    def _is_held_back(self, propagation: str, components: Iterable[str], facts: Facts) -> bool:
        """Whether an operator may have stopped one of the components that a stream would not depend on any more."""
        answers = {component: facts.is_stopped(component) for component in components}
        self._stopped[propagation] = tuple(component for component, is_stopped in answers.items() if is_stopped)
        return any(is_stopped is not False for is_stopped in answers.values())

    def _readers(self, propagation: str) -> tuple[str, ...]:
        """Who subscribes to a queue for a propagation: it, or apply processes that bypass it."""
        of_splits, readers = self._known_readers
        if of_splits is not self.splits:  # asked every second, of every propagation
            readers = {
                each.propagation.name: tuple(apply.name for apply in each.applies) for each in directs(self.spec)
            }
            self._known_readers = self.splits, readers
        return readers.get(propagation, (propagation,))

    def _entries(self, facts: Facts, queue: str, propagation: str) -> list[QueueSubscriber]:
        """What a queue knows of those who read a propagation's stream, per source."""
        readers = self._readers(propagation)
        status = facts.queue(queue)
        return [] if status is None else [each for each in status.subscribers if each.subscriber in readers]

    def _needed(self, split: Split) -> Iterator[str]:
        """Who must have its part before the original queue may forget the propagation."""
        yield f"queue:{clone_queue(split)}"
        for capture in clone_captures(self._file, split):
            yield keeper_of(capture.source, capture.site)

    # ------------------------------------------------------------------ positions

    def _is_close(self, split: Split, facts: Facts) -> bool:
        """Whether a stream can come back soon."""
        within_s = self._file.propagation(split.propagation).merge_within_s
        own = self._entries(facts, clone_queue(split), split.propagation)
        behind_s = self.behind_s(split, facts)
        is_there = bool(own) and all(each.connected for each in own) and facts.is_current(f"queue:{split.queue}")
        return is_there and behind_s is not None and behind_s <= within_s

    def behind_s(self, split: Split, facts: Facts) -> float | None:
        """How far a stream is behind the others, in seconds of its source; None: unknown.

        Args:
            split: the stream.
            facts: what is known of the components.
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
        """What is split off, or is to be.

        Args:
            facts: what is known of the components.
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
        """A stream that an operator wants to be split off, and that waits for that."""
        return SplitStream(
            propagation=propagation.name,
            queue=propagation.from_queue,
            phase=TOGETHER,
            merge_threshold_s=propagation.merge_within_s,
            stopped=self._stopped.get(propagation.name, ()),
            hindrance=hindrance(self._file, propagation),
        )

    def _has_all(self, split: Split, facts: Facts) -> bool:
        """Whether the destination has durably what the original queue does not hold for it, and what its redo is not kept for."""
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
                # Where the most advanced subscriber lost commits, it stands below what was told to be durable before.
                required_scn = facts.required_scn(capture.name)
                if required_scn is None or own[capture.source] < max(held[capture.source], required_scn):
                    return False
        return True


def _furthest(queue: QueueStatus, source: str, *, but: Collection[str]) -> int:
    """Where a new subscriber would begin: the position of the most advanced one."""
    known = [
        each.acknowledged_scn for each in queue.subscribers if each.source == source and each.subscriber not in but
    ]
    return max(known, default=queue.sources.get(source, QueueSource()).position_scn)
