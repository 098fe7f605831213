"""The controller informs the sites which apply process gets which table: sources for capture processes, destinations for later.

Both get the same answer of the source, so that they agree about a table that was just renamed: either an apply process
that no longer gets it has it recorded as LEFT, or the capture process waits for an operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.receivers import Receivers
from topology.ways import arriving, ways_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.runtime import ActorSystem
    from databases.ports import CapturedTable
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["captured_of", "identities", "leave_out", "note_receivers"]

TIMEOUT_S = 120.0  # catalog queries over every table of a large database


def captured_of(actors: ActorSystem, source: str) -> tuple[CapturedTable, ...]:
    """The captured tables of a source, under their current names.

    Args:
        actors: of the topology.
        source: name of the source site, which is asked.

    Raises:
        StreamsError: the site or its database does not answer.
    """
    captured: tuple[CapturedTable, ...] = actors.call(f"site:{source}", "captured", timeout_s=TIMEOUT_S)
    return captured


def identities(spec: TopologySpec, apply: ApplySpec, captured: Sequence[CapturedTable]) -> tuple[str, ...]:
    """Identities of the tables whose changes an apply process gets, by the rules along all of its ways.

    Args:
        spec: the topology, routed.
        apply: of `spec`.
        captured: the tables of its source, from `captured_of`.
    """
    return tuple(table.source.identity for table in arriving(ways_to(spec, apply), captured))


def leave_out(actors: ActorSystem, spec: TopologySpec, apply: ApplySpec, captured: Sequence[CapturedTable]) -> None:
    """Make a destination record the tables whose changes an apply process no longer gets.

    If such a table comes back, changes are missing at the destination, so it is copied again.

    Args:
        actors: the sites.
        spec: the topology that is wanted.
        apply: of `spec`.
        captured: the tables of its source.
    """
    coming = identities(spec, apply, captured)
    actors.call(f"site:{apply.site}", "leave_out", apply.name, coming, timeout_s=TIMEOUT_S)


def note_receivers(actors: ActorSystem, spec: TopologySpec) -> None:
    """Make every source record which apply process gets which table, after the destinations have recorded tables that left.

    Args:
        actors: the sites.
        spec: the topology that runs.

    Raises:
        StreamsError: a site does not answer; call again (idempotent).
    """
    for source in dict.fromkeys(capture.source for capture in spec.captures):
        captured = captured_of(actors, source)
        for apply in spec.applies:
            if apply.source == source:
                leave_out(actors, spec, apply, captured)
        noted = Receivers.of(spec, source, captured)
        actors.call(f"site:{source}", "note_receivers", noted, timeout_s=TIMEOUT_S)
