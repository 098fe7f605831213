"""Stopped components that an edit would bypass, rename or move: their held-back changes would be applied."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.databases.ports import Finding
from topology.edits.changes import bypassed_of, components_of
from topology.edits.replaced import moved, replaced
from topology.routing.combined import newly_bypassed

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["stopped_against_edit"]


def stopped_against_edit(actors: ActorSystem, before: TopologySpec | None, wanted: TopologySpec) -> tuple[Finding, ...]:
    """Return findings for stopped components that the edit would bypass (for one source at least), rename or move.

    Args:
        actors: runs the sites, which know what an operator stopped.
        before: the topology that was prepared last; None: unknown.
        wanted: the wanted topology.

    Raises:
        HeadraceError: a site of the topology does not answer.
    """
    partly: Mapping[str, str] = {}
    taken: Mapping[Component, str] = {}
    elsewhere: Mapping[Component, str] = {}
    if before is not None:
        partly, taken, elsewhere = newly_bypassed(before, wanted), replaced(before, wanted), moved(before, wanted)
    bypassed = bypassed_of(wanted) | {each: partly[each.name] for each in components_of(wanted) if each.name in partly}
    stopped: set[str] = set()
    asked = (*bypassed, *taken, *elsewhere)
    sites = {site.name for site in wanted.sites}
    for site in {component.site for component in asked}:
        names = [component.name for component in asked if component.site == site]
        # A leaving site may be away, possibly as the reason for the edit: then its stops are unknown.
        with contextlib.suppress(*(() if site in sites else (HeadraceError,))):
            stopped |= set(actors.call(f"site:{site}", "stopped", names))
    # Sites of one machine share one record, so such a component stays stopped there.
    lifted = [
        component
        for component, site in elsewhere.items()
        if component.name in stopped and not actors.call(f"site:{site}", "stopped", (component.name,))
    ]
    again = " and run `headrace up` again: {} can be stopped then"
    return (
        *(
            _finding(
                component,
                f"{by} would bypass it"
                f" ({'combined capture and apply' if by.startswith('capture:') else 'direct dequeuing'})",
                then=", or write combined: never into the file",
            )
            for component, by in bypassed.items()
            if component.name in stopped
        ),
        *(
            _finding(
                component,
                f"{by} would take its place, which is not",
                instead="keep its name in the file; or ",
                then=again.format(by),
            )
            for component, by in taken.items()
            if component.name in stopped
        ),
        *(
            _finding(
                component,
                f"would not be at {elsewhere[component]}",
                at=f" at {component.site}",
                instead=f"leave it at {component.site}; or ",
                then=again.format("it"),
            )
            for component in lifted
        ),
    )


def _finding(component: Component, problem: str, *, at: str = "", instead: str = "", then: str = "") -> Finding:
    name = component.name.partition(":")[2]
    return Finding(
        path=f"{component.kind}s.{name}",
        problem=f"is stopped{at}, and {problem}: the changes that it holds back would be applied",
        fix=f"{instead}start it with `headrace start FILE {name}`{then}",
    )
