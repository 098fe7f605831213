"""Callers: which component, from which site, may call a queue, a redo log or a combined capture process.

A server admits these callers when callers prove their site by a certificate. Bypassed components
(`topology.routing.combined`) are admitted too: an edit can change what is bypassed while both run, and a queue itself
knows its present subscribers.
"""

from __future__ import annotations

from collections.abc import Mapping

from topology.routing.downstream import receiver_of, receivers_from
from topology.spec import TopologySpec

__all__ = ["publishers_of", "redo_readers_of", "redo_receivers_of", "site_of", "subscribers_of"]


def publishers_of(spec: TopologySpec, queue: str) -> Mapping[str, str]:
    """Map each component that may enqueue into a queue to its site."""
    found = {each.name: each.site for each in spec.captures if each.queue == queue}
    return found | {each.name: spec.queue(each.from_queue).site for each in spec.propagations if each.to_queue == queue}


def subscribers_of(spec: TopologySpec, queue: str) -> Mapping[str, str]:
    """Map each component that may dequeue from a queue to its site."""
    propagations = [each for each in spec.propagations if queue in (each.from_queue, each.held_in)]
    # apply processes may bypass a propagation, unless the file says `combined: never`
    behind = {each.to_queue for each in propagations}
    found = {
        each.name: each.site for each in spec.applies if each.queue == queue or (each.combined and each.queue in behind)
    }
    return found | {each.name: spec.queue(queue).site for each in propagations}


def redo_readers_of(spec: TopologySpec, source: str) -> Mapping[str, str]:
    """Map each capture process that may watch a source's redo, and release what it no longer needs, to its site."""
    return {each.name: each.site for each in spec.captures if each.source == source and not each.is_downstream}


def redo_receivers_of(spec: TopologySpec, source: str) -> Mapping[str, str]:
    """Map each redo receiver that may receive a source's redo to its site."""
    return {each.name: each.site for each in receivers_from(spec, source)}


def site_of(spec: TopologySpec, component: str) -> str:
    """Return the site at which a component serves.

    Args:
        spec: the topology.
        component: full name of a component that serves: "site:dbs1", "spark:dbs1", "queue:q_dbs1",
            "capture:capture_dbs1", "redo:dbs1@dbs2".
    """
    kind, _, name = component.partition(":")
    if kind == "queue":
        return spec.queue(name).site
    if kind == "redo":
        return receiver_of(spec, name).site
    return spec.capture(name).site if kind == "capture" else name
