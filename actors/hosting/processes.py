"""The factory of each component, and the components of a site that share a process.

A Python process that is connected to Ray takes 64 MB before it does any work. Queues and propagations only forward
bytes, capture processes of a site mine the same redo, redo receivers copy it. Each of these kinds shares one process per
site, where a further component costs a few megabytes. Four apply processes of a site share a process. A site and a Spark
application each have their own process. A site works all the time and would take turns with others to run Python code.
A Spark application ends with its process and takes half a minute to come back.

With `processes: apart` each component has its own process, named like the component: a process that ends affects only
that component.
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
# A coordinator that receives bulk as fast as two cores can send it uses an eighth of a core: four take half of one
# interpreter's capacity.
APPLIES_TOGETHER = 4


def process_of(spec: TopologySpec, component: Component, held: Mapping[str, Collection[str]] | None = None) -> str:
    """Return the name of the process in which a component starts when it is created.

    The component stays there until it ends, whatever is edited.

    Args:
        spec: the topology.
        component: component of the topology.
        held: the components that each process holds now; None: none, as when a topology is set up. An apply process
            added by an edit goes to a process with room, whatever its position in the file.

    Returns:
        For components that share a process: "staging:<site>", "captures:<site>", "receivers:<site>" or
        "applies:<site>" (then ":2", ":3", ...). Otherwise, and if the topology's processes are apart, the component's
        own name. Ray resources that place the site are part of the name: other resources mean another process.
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
    """Return the index, from 0, of the apply process's shared process by its position in the file."""
    there = [f"apply:{apply.name}" for apply in spec.applies if apply.site == component.site]
    return there.index(component.name) // APPLIES_TOGETHER


def factory_of(site: SiteSpec, kind: str) -> str:
    """Return the callable that builds a component's host, as "module:callable".

    Args:
        site: site at which the component runs.
        kind: kind of the component.
    """
    if kind == "site":
        return "actors.intermediate_database:build" if site.database.kind == "none" else "actors.source_database:build"
    return _FACTORIES[kind]
