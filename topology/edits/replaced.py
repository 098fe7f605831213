"""Components whose work an edit gives to another component or site: most of them are renamed or moved."""

from __future__ import annotations

from topology.edits.changes import Component, components_of, published_to
from topology.routing.ways import sites_behind, ways_to
from topology.spec import TopologySpec

__all__ = ["moved", "replaced"]


def replaced(before: TopologySpec, after: TopologySpec) -> dict[Component, str]:
    """Map components that an edit removes to the full name of one that takes over their work.

    That component brings the same changes to the same site.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed. The replacement may be bypassed there.
    """
    earlier, now = _work(before), _work(after)
    found: dict[Component, str] = {}
    for component in components_of(before):
        if component.name in now:
            continue
        work = earlier.get(component.name, set())
        taker = next((name for name, taken in now.items() if work & (taken - earlier.get(name, set()))), "")
        if taker:
            found[component] = taker
    return found


def moved(before: TopologySpec, after: TopologySpec) -> dict[Component, str]:
    """Map components that an edit moves to another site, under the same name, to that site.

    Their wanted state is recorded at the old site.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed.
    """
    earlier, now = _work(before), _work(after)
    sites = {component.name: component.site for component in components_of(after)}
    return {
        each: sites[each.name]
        for each in components_of(before)
        if sites.get(each.name, each.site) != each.site and earlier.get(each.name, set()) & now.get(each.name, set())
    }


def _work(spec: TopologySpec) -> dict[str, set[tuple[str, str, str]]]:
    """Return each component's work by full name: its kind, a source, and a site that gets the source's changes."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for queue in spec.queues:
        found[f"queue:{queue.name}"] = {("queue", source, queue.site) for source in published_to(spec, queue.name)}
    for each in spec.propagations:
        found[f"propagation:{each.name}"] = {
            ("propagation", source, site) for source in each.sources for site in sites_behind(spec, each, source)
        }
    for capture in spec.captures:
        found[f"capture:{capture.name}"] = set()
    for apply in spec.applies:
        found[f"apply:{apply.name}"] = {("apply", apply.source, apply.site)}
        for way in ways_to(spec, apply):
            found[f"capture:{way.capture.name}"].add(("capture", apply.source, apply.site))
    return found
