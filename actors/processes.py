"""What a component is built by, and which components of a site share a process.

A Python process that is connected to Ray takes 64 MB before it does anything. Queues and propagations only pass bytes on, capture processes
of a site mine the same redo, redo receivers copy it; each of these kinds shares one process per site, where one component more costs a few megabytes. A site, an apply
process and a Spark application have one of their own: the first two work all the time and would wait for each other's turn to run Python code,
and a Spark application ends with its process and takes half a minute to come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topology.changes import Component
    from topology.spec import SiteSpec

__all__ = ["factory_of", "process_of"]

_FACTORIES = {
    "queue": "actors.staging.queue_host:build", "propagation": "actors.staging.propagation_host:build",
    "capture": "actors.capture:build", "apply": "actors.apply:build", "spark": "actors.spark_application:build",
    "redo": "actors.downstream_database:build",
}
_SHARED = {"queue": "staging", "propagation": "staging", "capture": "captures", "redo": "receivers"}


def process_of(component: Component, node: Iterable[tuple[str, float]]) -> str:
    """The name of a component's process.

    Args:
        component: of the topology.
        node: Ray resources that place its site, as (name, amount): with others it is another process.

    Returns:
        "staging:<site>", "captures:<site>" or "receivers:<site>" for what shares one, else the component's own name.
    """
    shared = _SHARED.get(component.kind)
    if shared is None:
        return component.name
    place = ",".join(f"{name}={amount:g}" for name, amount in node)
    return f"{shared}:{component.site}" + (f"@{place}" if place else "")


def factory_of(site: SiteSpec, kind: str) -> str:
    """The callable that builds a component's host, as "module:callable".

    Args:
        site: where it runs.
        kind: of the component.
    """
    if kind == "site":
        return "actors.intermediate_database:build" if site.database.kind == "none" else "actors.source_database:build"
    return _FACTORIES[kind]
