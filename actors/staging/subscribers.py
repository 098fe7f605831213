"""Who subscribes to a queue by its topology: for which sources, from which position on, and who does no more."""

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
    """Drop the saved positions of those that are no subscribers of a closed queue.

    One that comes back has no old position.

    An open queue does it in `QueueCore.adopt`. As where a queue opens, one that is new begins where those that leave
    were, if that is lower: it may be the successor of one of them. That is saved now: nobody knows them later.

    Args:
        topology: the whole topology.
        name: of the queue there.
        folder: of the queue.

    Raises:
        QueueError: the positions are damaged.
        OSError: they could not be written; the old ones are still there.
    """
    file, refusals, interests = PositionsFile(folder), Refusals(folder), interests_of(topology, name)
    saved, earlier, places = file.load(), file.places(), places_of(topology, name)
    begin = positions_of(interests, saved, refused=refusals.everyone(), places=(earlier, places))
    # Where nobody stays, the queue begins at what the publisher has.
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
    """The position of each subscriber of each source; see Beginnings in `actors.staging.queue`.

    Args:
        interests: sources by subscriber.
        saved: positions by source and subscriber, as far as they are known.
        fallback: by source, the beginning of a new subscriber if no other one has a position; FIRST_SCN if not given.
        places: by source, the sites that each subscriber brings the changes to, before and now; not known before: it
            may be the same ones.
        refused: by source, who is refused: nothing is held for it, so nobody new begins there.
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
        given_up = {  # the sites that one brings the changes to no more; None: it may be any
            name: earlier.get(name)
            if name not in subscribers
            else earlier.get(name, frozenset()) - now.get(name, frozenset())
            for name in saved.get(source, {})
            if name not in outside
        }
        positions[source] = {
            # One that brings the changes to a site in the place of another (a propagation that was renamed) may need
            # all that this one had not acknowledged.
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
    """The sources whose LCRs a queue accepts or delivers.

    Args:
        topology: the whole topology.
        queue: its name there.
    """
    taken = {source for sources in interests_of(topology, queue).values() for source in sources}
    return sorted(taken | published_to(topology, queue))
