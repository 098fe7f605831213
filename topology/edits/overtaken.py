"""Destinations that an edit moves behind a subscriber that is ahead of them.

A new subscriber of a queue begins at the position of the one that it replaces (`actors.staging.subscribers`). An
existing subscriber keeps its position, and the queues behind it have passed changes that the destination lacks. Then no
queue holds those changes, and their redo can be purged before the destination asks for it.

The same happens when a destination gets its changes from the queue of another capture process of the source: a new
subscriber of that queue begins at the position of the furthest one.
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

BEHIND_S = 10.0  # a shorter backlog is gone before a redo segment is full


def overtaken(
    before: TopologySpec, after: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]
) -> Iterator[Finding]:
    """Yield sites that lag and would get their changes from a subscriber that is ahead of their present one.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed.
        subscribers: what a queue (by name), or the capture process that bypasses it, reports of its subscribers; empty:
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
                        f" {queue} has held some for {giver} alone for"
                        f" {behind.held_alone_s:.0f} s, and would release them. {site} could be"
                        " refused, because its redo is purged",
                        fix=f"wait until {site} has caught up (`headrace wait FILE --caught-up`) and run `headrace up`"
                        " again; or add a new propagation to a new queue on the way: it begins at the site's position",
                    )


def _from_other_queues(
    before: TopologySpec, after: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]
) -> Iterator[Finding]:
    """Yield sites that lag in the queue that brought them a source's changes, and would change to an unrelated queue.

    The new queue is not on the way to the old one.
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
                # A refused subscriber has nothing to lose, and does not catch up.
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
                                f" ahead of it: {queue} has held some for {giver} for"
                                f" {behind.unacknowledged_s:.0f} s, and would release them. {site}"
                                " could be refused, because its redo is purged",
                                fix=f"wait until {site} has caught up (`headrace wait FILE --caught-up`) and run"
                                " `headrace up` again",
                            )


def _applied(spec: TopologySpec, subscribers: Callable[[str], Iterable[QueueSubscriber]]) -> dict[tuple[str, str], int]:
    """Return by source and site the SCN up to which the site's own apply processes have the changes.

    Other subscribers on the way may have acknowledged less.
    """
    sites = {(apply.name, apply.source): apply.site for apply in spec.applies}
    found: dict[tuple[str, str], int] = {}
    for each in (each for queue in spec.queues for each in subscribers(queue.name)):
        if (site := sites.get((each.subscriber, each.source))) is not None and each.gone_scn is None:
            found[each.source, site] = min(found.get((each.source, site), each.acknowledged_scn), each.acknowledged_scn)
    return found


def _brought(spec: TopologySpec, queue: str) -> defaultdict[str, set[tuple[str, str]]]:
    """Return `brought_from` plus apply processes that a combined capture process serves in place of the queue."""
    found = brought_from(spec, queue)
    for pair in combined(spec):
        if pair.capture.queue == queue and pair.apply is not None:
            found[pair.apply.source].add((pair.apply.name, pair.apply.site))
    return found
