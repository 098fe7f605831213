"""Combined capture and apply, and direct dequeuing: queues and propagations that need not run.

Combined capture and apply: which capture process streams its batches straight to which apply process.

Where exactly one way leads from a capture process to an apply process, and nothing on it reads the batches, the queues
and the propagation in between only pass bytes on. Then the capture process serves the apply process itself, and the
bypassed components do not run (`bypassed`). The topology alone decides this, so every component finds the same answer
in the file that it runs by. An edit that breaks a condition changes the answer, and another edit can change it back.

Conditions, in the order in which `Combination.hindrance` names them
    no propagation is split off from the queue (`topology.split`), and the queue is not that of a split stream;
    the capture process is the only publisher of its queue;
    the queue has one subscriber: the apply process itself, or one propagation to the apply process's queue that has no
    rules and does nothing else to what it sends;
    no other subscriber takes the source's changes from that queue, and no other publisher brings them there;
    the file does not say `combined: never`.

The queue at the destination may hold the changes of other sources: it runs for those.

Direct dequeuing: where a queue has several subscribers or publishers, no capture process can replace it. But a
propagation from it only passes bytes on if it has no rules, and if its target queue serves exactly one apply process
for each of its sources and no other client. Then each of these apply processes subscribes to the queue before the
propagation, and the components in between do not run. There the apply process has the durable position of the
propagation: in both cases DURABLE means committed at the destination. Conditions, in the order in which
`Direct.hindrance` names them
    the propagation is not part of combined capture and apply;
    it has no rules, and does nothing else to what it sends;
    its target queue passes none of its sources on, gets none from another publisher, and has one apply process for each
    of them; the file does not say `combined: never`.
A split stream (`topology.split`) keeps its form: its apply processes read the queue that the propagation would read.

Source: Oracle Streams Concepts and Administration 11.2, "Combined Capture and Apply Optimization"; `semantics.md` 4.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.rules.rule import RuleSet
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, QueueSpec, TopologySpec

if TYPE_CHECKING:
    from topology.routing.ways import Way

__all__ = [
    "Combination",
    "Direct",
    "apply_of",
    "bypassed",
    "bypassed_on",
    "bypassing",
    "capture_of",
    "combination",
    "combined",
    "dequeued",
    "direct",
    "directs",
    "left_out",
    "mounted",
    "newly_bypassed",
    "readers_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Whether a capture process is combined with an apply process.

    Args:
        capture: the capture process.
        apply: the apply process it is combined with; None: not combined.
        propagation: the bypassed one; None: there is none in between.
        hindrance: the first condition that does not hold; empty: it is combined.
    """

    capture: CaptureSpec
    apply: ApplySpec | None = None
    propagation: PropagationSpec | None = None
    hindrance: str = ""

    @property
    def members(self) -> tuple[CaptureSpec | PropagationSpec | ApplySpec, ...]:
        """The components that use no queue for this source while combined; empty when not combined."""
        if self.apply is None:
            return ()
        return (self.capture, *(() if self.propagation is None else (self.propagation,)), self.apply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Whether apply processes dequeue directly from the queue before a propagation.

    Args:
        propagation: the propagation.
        applies: the apply processes that bypass it; empty: it runs.
        hindrance: the first condition that does not hold; empty: it is bypassed.
    """

    propagation: PropagationSpec
    applies: tuple[ApplySpec, ...] = ()
    hindrance: str = ""


def combination(spec: TopologySpec, capture: CaptureSpec) -> Combination:
    """Decide for one capture process.

    Args:
        spec: routed (`topology.routing.ways.route`).
        capture: of `spec`.
    """
    queue = capture.queue
    # A split stream will be merged: combining the rest now, and separating it again, would disturb the others twice.
    if split := [
        each.name
        for each in spec.propagations
        if each.split_from and queue in (each.split_from, each.from_queue, each.held_in)
    ]:
        return Combination(capture=capture, hindrance=f"{split[0]} is split off")
    publishers = [each.name for each in spec.captures if each.queue == queue and each is not capture]
    publishers += [each.name for each in spec.propagations if each.to_queue == queue]
    if publishers:
        return Combination(capture=capture, hindrance=f"{queue} has another publisher: {', '.join(publishers)}")
    subscribers = spec.subscribers(queue)
    if len(subscribers) != 1:
        found = f"{len(subscribers)} subscribers: {', '.join(subscribers)}" if subscribers else "no subscriber"
        return Combination(capture=capture, hindrance=f"{queue} has {found}")
    propagation = next((each for each in spec.propagations if each.name == subscribers[0]), None)
    if propagation is not None:
        queue = propagation.to_queue
        if hindrance := _needed(spec, propagation, (capture.source,)):
            return Combination(capture=capture, hindrance=hindrance)
    apply, hindrance = _only_apply(spec, queue, capture.source)
    if apply is None:
        return Combination(capture=capture, hindrance=hindrance)
    return Combination(capture=capture, apply=apply, propagation=propagation)


def _needed(spec: TopologySpec, propagation: PropagationSpec, sources: Iterable[str]) -> str:
    """Say why a propagation and the queue behind it do more than pass on the changes of some sources.

    Empty: they do not.
    """
    if propagation.rules != RuleSet():
        return f"{propagation.name} has rules"
    return _line(propagation) or next(
        (found for source in sources if (found := _passed_on(spec, propagation, source))), ""
    )


def _only_apply(spec: TopologySpec, queue: str, source: str) -> tuple[ApplySpec | None, str]:
    """Return a queue's only apply process for a source, if it can bypass the queue; None with the reason otherwise."""
    applies = [each for each in spec.applies if (each.queue, each.source) == (queue, source)]
    if len(applies) != 1:
        return (
            None,
            f"{queue} needs one apply process for {source}, and has"
            f" {', '.join(each.name for each in applies) or 'none'}",
        )
    return (applies[0], "") if applies[0].combined else (None, f"the file says combined: never ({applies[0].name})")


def _line(propagation: PropagationSpec) -> str:
    """Say what a propagation does to save its line, which no other component would do; empty: nothing."""
    if propagation.compression != "none":
        return f"{propagation.name} compresses what it sends"
    if propagation.bandwidth_max is not None:
        return f"{propagation.name} has a bandwidth_max"
    return f"{propagation.name} sends by a schedule" if propagation.schedule is not None else ""


def _passed_on(spec: TopologySpec, propagation: PropagationSpec, source: str) -> str:
    """Say who else brings a source's changes into a propagation's target queue, or takes them on; empty: no one."""
    queue = propagation.to_queue
    onward = [
        each.name for each in spec.propagations if queue in (each.from_queue, each.held_in) and source in each.sources
    ]
    if onward:
        return f"{queue} is an intermediate queue: {', '.join(onward)}"
    others = [
        each.name
        for each in spec.propagations
        if each is not propagation and each.to_queue == queue and source in each.sources
    ]
    others += [each.name for each in spec.captures if each.queue == queue and each.source == source]
    return f"{queue} gets the changes of {source} from another publisher: {', '.join(others)}" if others else ""


def direct(spec: TopologySpec, propagation: PropagationSpec) -> Direct:
    """Decide for one propagation.

    Args:
        spec: routed (`topology.routing.ways.route`).
        propagation: of `spec`.
    """
    return _direct(spec, propagation, combined(spec))


def _direct(spec: TopologySpec, propagation: PropagationSpec, pairs: Iterable[Combination]) -> Direct:
    pair = next(
        (each for each in pairs if each.propagation is not None and each.propagation.name == propagation.name), None
    )
    if pair is not None:
        return Direct(
            propagation=propagation, hindrance=f"{pair.capture.name} bypasses it (combined capture and apply)"
        )
    if hindrance := _needed(spec, propagation, propagation.sources):
        return Direct(propagation=propagation, hindrance=hindrance)
    found: list[ApplySpec] = []
    for source in propagation.sources:
        apply, hindrance = _only_apply(spec, propagation.to_queue, source)
        if apply is None:
            return Direct(propagation=propagation, hindrance=hindrance)
        found.append(apply)
    return Direct(
        propagation=propagation,
        applies=tuple(found),
        hindrance="" if found else f"{propagation.name} sends the changes of no source",
    )


def directs(spec: TopologySpec) -> tuple[Direct, ...]:
    """Return the propagations of a topology that apply processes bypass."""
    pairs = combined(spec)
    found = (_direct(spec, propagation, pairs) for propagation in spec.propagations)
    return tuple(each for each in found if each.applies)


def readers_of(spec: TopologySpec, propagation: PropagationSpec) -> tuple[str, ...]:
    """Return the names of the subscribers that take a propagation's changes from its queue.

    They are the propagation itself, or the apply processes that bypass it.

    Args:
        spec: routed.
        propagation: of `spec`.
    """
    return tuple(each.name for each in direct(spec, propagation).applies) or (propagation.name,)


def dequeued(spec: TopologySpec, apply: ApplySpec) -> str:
    """Return the queue that an apply process dequeues from, where it is not combined.

    Args:
        spec: routed.
        apply: of `spec`.
    """
    # A propagation is bypassed for all of its sources or none. So if it is bypassed, one of its bypassing apply
    # processes has this source.
    before = (each for each in spec.propagations if each.to_queue == apply.queue and apply.source in each.sources)
    return next((each.from_queue for each in before if direct(spec, each).applies), apply.queue)


def combined(spec: TopologySpec) -> tuple[Combination, ...]:
    """Return the capture processes of a topology that are combined."""
    found = (combination(spec, capture) for capture in spec.captures)
    return tuple(each for each in found if each.apply is not None)


def apply_of(spec: TopologySpec, capture: CaptureSpec) -> ApplySpec | None:
    """Return the apply process that a capture process is combined with; None: it enqueues.

    Args:
        spec: routed.
        capture: of `spec`.
    """
    return combination(spec, capture).apply


def mounted(spec: TopologySpec, capture: CaptureSpec, apply: ApplySpec, memory_bytes_max: int) -> TopologySpec:
    """Return the topology of the queue that a capture process mounts for its apply process.

    It has these two, and a queue under the name that the apply process knows.

    Args:
        spec: the whole topology.
        capture: the capture process.
        apply: the apply process.
        memory_bytes_max: bound of the queue, which spills nothing.
    """
    queue = QueueSpec(name=apply.queue, site=capture.site, memory_bytes_max=memory_bytes_max, spill_bytes_max=0)
    return replace(
        spec,
        queues=(queue,),
        captures=(replace(capture, queue=queue.name),),
        propagations=(),
        applies=(replace(apply, combined=False),),  # not combined here: they have a queue in between
    )


def capture_of(spec: TopologySpec, apply: ApplySpec) -> CaptureSpec | None:
    """Return the capture process that an apply process is combined with; None: it dequeues.

    Args:
        spec: routed.
        apply: of `spec`.
    """
    return next(
        (each.capture for each in combined(spec) if each.apply is not None and each.apply.name == apply.name), None
    )


def left_out(spec: TopologySpec) -> set[str]:
    """Return the names of clients that do not use the queues which the file names for them."""
    return _left_out(combined(spec), directs(spec))


def _left_out(pairs: Iterable[Combination], streams: Iterable[Direct]) -> set[str]:
    return {each.name for pair in pairs for each in pair.members} | {
        name for each in streams for name in (each.propagation.name, *(apply.name for apply in each.applies))
    }


def bypassed(spec: TopologySpec) -> dict[str, str]:
    """Map the full names of queues and propagations that do not run to that of the component that bypasses each.

    A queue with other users runs; `topology.edits.changes.interests_of` omits what bypasses it.
    """
    found: dict[str, str] = {}
    pairs, streams = combined(spec), directs(spec)
    without = _left_out(pairs, streams)

    def leave(queue: str, by: str) -> None:
        users = {each.name for each in spec.propagations if queue in (each.from_queue, each.to_queue, each.held_in)}
        users |= {each.name for each in spec.captures if each.queue == queue}
        users |= {each.name for each in spec.applies if each.queue == queue}
        if users <= without:
            found.setdefault(f"queue:{queue}", by)

    for pair in pairs:
        assert pair.apply is not None
        by = f"capture:{pair.capture.name}"
        if pair.propagation is not None:
            found[f"propagation:{pair.propagation.name}"] = by
        for queue in dict.fromkeys((pair.capture.queue, pair.apply.queue)):
            leave(queue, by)
    for each in streams:
        by = f"apply:{each.applies[0].name}"
        found[f"propagation:{each.propagation.name}"] = by
        leave(each.propagation.to_queue, by)
    return found


def bypassing(spec: TopologySpec, queue: str) -> tuple[str, ...]:
    """Return the names of a queue's apply processes that bypass it.

    Args:
        spec: routed.
        queue: its name.
    """
    without = left_out(spec)
    return tuple(each.name for each in spec.applies if each.queue == queue and each.name in without)


def newly_bypassed(before: TopologySpec, after: TopologySpec) -> dict[str, str]:
    """Return queues that keep running for others although an edit lets a source's changes bypass them, as full names.

    Each has the full name of the first component that bypasses it.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed.
    """
    earlier, now, whole = left_out(before), left_out(after), bypassed(after)
    passed = {(each.name, each.queue) for each in before.applies if each.name not in earlier}
    found: dict[str, str] = {}
    for apply in after.applies:
        queue = f"queue:{apply.queue}"
        if apply.name in now and (apply.name, apply.queue) in passed and queue not in whole:
            capture = capture_of(after, apply)
            found.setdefault(queue, f"apply:{apply.name}" if capture is None else f"capture:{capture.name}")
    return found


def bypassed_on(spec: TopologySpec, way: Way) -> tuple[str, ...]:
    """Return the queues and propagations that a way's changes bypass, as full names of components.

    A queue among them may run for others.

    Args:
        spec: routed.
        way: in `spec`.
    """
    if capture_of(spec, way.apply) == way.capture:
        return way.full_names[1:-1]
    if not way.propagations or way.apply not in direct(spec, way.propagations[-1]).applies:
        return ()
    return way.full_names[-3:-1]  # the last propagation and its queue
