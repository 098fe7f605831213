"""Verify: every replicated table of every apply process, compared after everything committed by now is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.waiting import wait_caught_up

if TYPE_CHECKING:
    from actors.runtime import RayActors
    from topology.spec import TopologySpec

__all__ = ["comparison_line", "verify_topology"]

# A table that is written to meanwhile differs until the destination has caught up: it is looked at again.
RECHECKS = 5
RECHECK_DELAY_S = 1.0
COMPARE_TIMEOUT_S = 24 * 3600.0  # as long as the tables are large


def verify_topology(
    spec: TopologySpec, actors: RayActors, *, timeout_s: float, progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Compare all tables.

    Args:
        spec: the topology.
        actors: its actors.
        timeout_s: of catching up first.
        progress: told what is going on.

    Returns:
        One entry per apply process and table.
    """
    progress("waiting until caught up")
    wait_caught_up(spec, actors, timeout_s=timeout_s)
    comparisons = []
    for apply in spec.applies:
        progress(f"comparing the tables of {apply.name}")
        answers: list[dict[str, Any]] = actors.call(
            f"apply:{apply.name}", "compare", (), RECHECKS, RECHECK_DELAY_S, timeout_s=COMPARE_TIMEOUT_S
        )
        comparisons += [
            {"apply": apply.name, "source": apply.source, "destination": apply.site, **answer} for answer in answers
        ]
    return comparisons


def comparison_line(comparison: Mapping[str, Any]) -> str:
    """One comparison for people."""
    table = f"{comparison['owner']}.{comparison['name']} {comparison['source']} -> {comparison['destination']}"
    if comparison["equal"]:
        return f"{table}: identical, {comparison['source_rows']} rows"
    if comparison["problem"]:
        return f"{table}: not compared: {comparison['problem']}"
    return (
        f"{table}: DIFFERENT: {comparison['source_rows']} rows ({comparison['source_digest']}) at the source, "
        f"{comparison['destination_rows']} ({comparison['destination_digest']}) at the destination"
    )
