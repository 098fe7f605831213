"""The subscribers of a queue by its topology: their sources, their initial positions, and former subscribers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from actors.staging.positions import Places, PositionsFile
from actors.staging.refusals import Refusals
from headrace.lcr.scn import FIRST_SCN, Scn
from topology.edits.changes import interests_of, places_of, published_to
from topology.spec import TopologySpec

__all__ = ["forget_former_subscribers", "positions_of", "sources_of"]


def forget_former_subscribers(topology: TopologySpec, name: str, folder: Path) -> None:
    """Drop the saved positions of former subscribers of a closed queue, so that they have no old position if they return.

    An open queue does this in `QueueCore.adopt`. As when a queue opens, a new subscriber begins at the position of a
    leaving one if that is lower: it may be its successor. The result is saved now, because nothing knows the former
    subscribers later.

    Args:
        topology: the whole topology.
        name: name of the queue in it.
        folder: folder of the queue.

    Raises:
        QueueError: the positions are damaged.
        OSError: they could not be written; the old ones still exist.
    """
    file, refusals, interests = PositionsFile(folder), Refusals(folder), interests_of(topology, name)
    saved, earlier, places = file.load(), file.places(), places_of(topology, name)
    begin = positions_of(interests, saved, refused=refusals.everyone(), places=(earlier, places))
    # Without a remaining subscriber, the queue begins with what the publisher has.
    left = {
        source: begin[source]
        for source, positions in saved.items()
        if any(source in interests.get(subscriber, ()) for subscriber in positions)
    }
    if (left, places) != (saved, earlier):
        file.save(left, places)
    refusals.forget_others(interests)


def positions_of(
    interests: Mapping[str, tuple[str, ...]],
    saved: Mapping[str, Mapping[str, Scn]],
    fallback: Mapping[str, Scn] | None = None,
    places: tuple[Places, Places] = ({}, {}),
    refused: Mapping[str, Collection[str]] | None = None,
) -> dict[str, dict[str, Scn]]:
    """Return the position of each subscriber of each source (Beginnings in `actors.staging.queue`).

    Args:
        interests: sources by subscriber.
        saved: known positions by source and subscriber.
        fallback: by source, where a new subscriber begins if no other has a position; FIRST_SCN if not given.
        places: by source, the sites to which each subscriber brings the changes, before and now. Unknown sites before
            may be the same ones.
        refused: refused subscribers by source: nothing is held for them, so no new subscriber begins there.
    """
    positions: dict[str, dict[str, Scn]] = {}
    for source in sorted({source for sources in interests.values() for source in sources}):
        subscribers = [subscriber for subscriber, sources in interests.items() if source in sources]
        earlier, now = (each.get(source, {}) for each in places)
        known = {name: scn for name, scn in saved.get(source, {}).items() if name in subscribers}
        outside = (refused or {}).get(source, ())
        furthest = max(
            (scn for name, scn in known.items() if name not in outside), default=(fallback or {}).get(source, FIRST_SCN)
        )
        given_up = {  # the sites to which a subscriber no longer brings the changes; None: may be any
            name: earlier.get(name)
            if name not in subscribers
            else earlier.get(name, frozenset()) - now.get(name, frozenset())
            for name in saved.get(source, {})
            if name not in outside
        }
        positions[source] = {
            # A subscriber that replaces another at a site (a propagation that was renamed) may need everything that the
            # other had not acknowledged.
            subscriber: known.get(
                subscriber,
                min(
                    [
                        furthest,
                        *(
                            saved[source][name]
                            for name, sites in given_up.items()
                            if sites is None or sites & now.get(subscriber, frozenset())
                        ),
                    ]
                ),
            )
            for subscriber in subscribers
        }
    return positions


def sources_of(topology: TopologySpec, queue: str) -> list[str]:
    """Return the sources whose LCRs a queue accepts or delivers.

    Args:
        topology: the whole topology.
        queue: name of the queue in it.
    """
    taken = {source for sources in interests_of(topology, queue).values() for source in sources}
    return sorted(taken | published_to(topology, queue))
