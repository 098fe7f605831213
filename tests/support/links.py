"""The links of a test's hosts over gRPC on loopback; whoever else runs is found by the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from actors.site.wire import MakeLinks, admission_of, peers_of
from protos.links import GrpcLinks
from streams.errors import PropagationError
from topology.spec import TopologySpec

__all__ = ["loopback"]


def _nobody(component: str) -> str:
    raise PropagationError(f"{component} does not run")


def loopback(resolve: Callable[[str], str] = _nobody) -> MakeLinks:
    """As `actors.site.wire.links_of`, without a cluster.

    Args:
        resolve: answers where a component serves ("queue:q_dbs1").
    """

    def make(spec: TopologySpec, site: str, component: str, wake: Callable[[], None]) -> GrpcLinks:
        name, peers = component.partition(":")[2], peers_of(spec, site, resolve)
        return GrpcLinks(spec.name, name, peers, wake=wake, admission=partial(admission_of, spec, component))

    return make
