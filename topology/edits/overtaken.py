"""Destinations that an edit puts behind a subscriber that is ahead of them.

A new subscriber of a queue begins where the one was whose place it takes (`actors.staging.subscribers`). One that is
there already stays where it is, and the queues behind it have passed what the destination lacks: nobody holds it any
longer, and its redo may be purged before the destination asks for it.

So it is where a destination gets its changes from the queue of another capture process of the source: a new subscriber
of that queue begins where the furthest one is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from headrace.databases.ports import Finding
from headrace.status.queues import QueueSubscriber
from topology.edits.changes import brought_from, queues_before
from topology.routing.combined import combined
from topology.spec import TopologySpec

__all__ = ["overtaken"]

BEHIND_S = 10.0  # less is made up before a segment of redo is full


def overtaken(
    before: TopologySpec, after: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]
) -> Iterator[Finding]:
    """Sites that are behind, and would get their changes over a subscriber of the same queue that is ahead of the one that brought them.

    Args:
        before: the topology that was prepared last, routed.
        after: the one that is wanted, routed.
        subscribers: what a queue (its name) says of its subscribers, or the capture process that bypasses it; nothing:
            it does not answer.
    """
    yield from _from_other_queues(before, after, subscribers)
    for queue in sorted({each.name for each in before.queues} & {each.name for each in after.queues}):
        earlier, now = brought_from(before, queue), brought_from(after, queue)
        known = {(each.subscriber, each.source): each for each in subscribers(queue)}
        for source, brought in earlier.items():
            for taker, site in sorted(now[source] - brought):
                for giver in sorted({name for name, there in brought - now[source] if there == site}):
                    ahead, behind = known.get((taker, source)), known.get((giver, source))
                    if (
                        ahead is None
                        or behind is None
                        or behind.acknowledged_scn >= ahead.acknowledged_scn
                        or behind.held_alone_s < BEHIND_S
                    ):
                        continue
                    yield Finding(
                        path=f"propagations.{taker}",
                        problem=f"is ahead of {giver}, and would bring the changes of {source} to {site} in its place:"
                        f" {queue} holds some for {giver} alone, since"
                        f" {behind.held_alone_s:.0f} s, and nobody would hold them any longer. {site} might be"
                        " refused, as its redo is purged",
                        fix=f"wait until {site} has caught up (`headrace wait FILE --caught-up`) and run `headrace up`"
                        " again; or let a new propagation bring the changes to a new queue on the way: it begins where"
                        " this one is",
                    )


def _from_other_queues(
    before: TopologySpec, after: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]
) -> Iterator[Finding]:
    """Sites that are behind in the queue that brought them a source's changes.

    They would get them from another queue, which is not on the way to that one.
    """
    stay = sorted({each.name for each in before.queues} & {each.name for each in after.queues})
    gained = {name: (_brought(before, name), _brought(after, name)) for name in stay}
    applied = _applied(before, subscribers)
    for queue in sorted(each.name for each in before.queues):
        now = _brought(after, queue) if queue in gained else {}
        known = {(each.subscriber, each.source): each for each in subscribers(queue)}
        for source, brought in _brought(before, queue).items():
            kept = {site for _, site in now.get(source, ())}
            for giver, site in sorted(each for each in brought if each[1] not in kept):
                behind = known.get((giver, source))
                # Who is refused has nothing to lose, and does not catch up.
                if behind is None or behind.gone_scn is not None or behind.unacknowledged_s < BEHIND_S:
                    continue
                for other in sorted(gained.keys() - {queue, *queues_before(before, queue, source)}):
                    earlier, later = (each[source] for each in gained[other])
                    furthest = max(
                        (
                            each.acknowledged_scn
                            for each in subscribers(other)
                            if each.source == source and each.gone_scn is None
                        ),
                        default=0,
                    )
                    for taker in sorted(name for name, there in later - earlier if there == site):
                        if max(behind.acknowledged_scn, applied.get((source, site), 0)) < furthest:
                            yield Finding(
                                path=f"{'applies' if taker in {each.name for each in after.applies} else 'propagations'}.{taker}",
                                problem=f"would bring the changes of {source} to {site} from {other}, where others are"
                                f" ahead of it: {queue} holds some for {giver}, since"
                                f" {behind.unacknowledged_s:.0f} s, and nobody would hold them any longer. {site}"
                                " might be refused, as its redo is purged",
                                fix=f"wait until {site} has caught up (`headrace wait FILE --caught-up`) and run"
                                " `headrace up` again",
                            )


def _applied(spec: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]) -> dict[tuple[str, str], int]:
    """By source and site, up to where the site's own apply processes have the changes.

    On the way to it there may be others that have less.
    """
    sites = {(apply.name, apply.source): apply.site for apply in spec.applies}
    found: dict[tuple[str, str], int] = {}
    for each in (each for queue in spec.queues for each in subscribers(queue.name)):
        if (site := sites.get((each.subscriber, each.source))) is not None and each.gone_scn is None:
            found[each.source, site] = min(found.get((each.source, site), each.acknowledged_scn), each.acknowledged_scn)
    return found


def _brought(spec: TopologySpec, queue: str) -> defaultdict[str, set[tuple[str, str]]]:
    """As `brought_from`, also of a capture process that brings an apply process what the queue would."""
    found = brought_from(spec, queue)
    for pair in combined(spec):
        if pair.capture.queue == queue and pair.apply is not None:
            found[pair.apply.source].add((pair.apply.name, pair.apply.site))
    return found
