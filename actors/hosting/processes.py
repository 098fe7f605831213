"""What a component is built by, and which components of a site share a process.

A Python process that is connected to Ray takes 64 MB before it does anything. Queues and propagations only pass bytes
on, capture processes of a site mine the same redo, redo receivers copy it; each of these kinds shares one process per
site, where one component more costs a few megabytes. Apply processes of a site share one by fours. A site and a Spark
application have one of their own: a site works all the time and would take turns with others to run Python code, and a
Spark application ends with its process and takes half a minute to come back.

With `processes: apart` each component has a process of its own, named as the component: one that ends takes one
component with it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from topology.edits.changes import Component
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["factory_of", "process_of"]

_FACTORIES = {
    "queue": "actors.staging.queue_host:build",
    "propagation": "actors.staging.propagation_host:build",
    "capture": "actors.capture:build",
    "apply": "actors.apply:build",
    "spark": "actors.spark_application:build",
    "redo": "actors.downstream_database:build",
}
_SHARED = {"queue": "staging", "propagation": "staging", "capture": "captures", "redo": "receivers", "apply": "applies"}
# A coordinator that gets bulk as fast as two cores pass it on uses an eighth of a core: four leave half of what one
# interpreter has.
APPLIES_TOGETHER = 4


def process_of(spec: TopologySpec, component: Component, held: Mapping[str, Collection[str]] | None = None) -> str:
    """The name of the process in which a component begins when it is created.

    Until it ends it stays there, whatever is edited.

    Args:
        spec: the topology.
        component: of it.
        held: the components that each process holds now; None: none, as when a topology is set up. An apply process
            that an edit adds goes where there is room, wherever it stands in the file.

    Returns:
        "staging:<site>", "captures:<site>", "receivers:<site>" or "applies:<site>" (then ":2", ":3", ...) for what
        shares one; else, and if the topology's processes are apart, the component's own name. Where Ray resources place
        the site, they are in the name: with others it is another process.
    """
    shared = _SHARED.get(component.kind)
    if shared is None or spec.processes_apart:
        return component.name
    place = ",".join(f"{name}={amount:g}" for name, amount in spec.site(component.site).node)

    def name(room: int) -> str:
        return f"{shared}:{component.site}" + (f":{room + 1}" if room else "") + (f"@{place}" if place else "")

    if component.kind != "apply":
        return name(0)
    wanted = name(_room(spec, component))
    taken = {process: len(set(components) - {component.name}) for process, components in (held or {}).items()}
    if taken.get(wanted, 0) < APPLIES_TOGETHER:
        return wanted
    return next(found for room in count() if taken.get(found := name(room), 0) < APPLIES_TOGETHER)


def _room(spec: TopologySpec, component: Component) -> int:
    """Which process of the apply processes of its site takes this one by the file, from 0."""
    there = [f"apply:{apply.name}" for apply in spec.applies if apply.site == component.site]
    return there.index(component.name) // APPLIES_TOGETHER


def factory_of(site: SiteSpec, kind: str) -> str:
    """The callable that builds a component's host, as "module:callable".

    Args:
        site: where it runs.
        kind: of the component.
    """
    if kind == "site":
        return "actors.intermediate_database:build" if site.database.kind == "none" else "actors.source_database:build"
    return _FACTORIES[kind]
