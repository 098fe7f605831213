"""A site on the wire: the certificate that its components present, whom they connect to, and whom they admit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.status.component import WireStatus
from protos.wire.admission import PUBLISH, READ_REDO, RECEIVE_REDO, SUBSCRIBE, Admission
from protos.wire.identity import Identity, Peer
from topology.callers import publishers_of, redo_readers_of, redo_receivers_of, site_of, subscribers_of
from topology.links import makes_certificates
from topology.routing.combined import apply_of
from topology.routing.downstream import receiver_of

if TYPE_CHECKING:
    from headrace.links.serving import Links, RedoLinks
    from protos.links.grpc_links import GrpcLinks
    from protos.wire.admission import Callers
    from topology.spec import TopologySpec

__all__ = [
    "MakeLinks",
    "MakeRedoLinks",
    "admission_of",
    "callers_of",
    "identity_of",
    "links_of",
    "peers_of",
    "wire_status",
]

MakeLinks = Callable[["TopologySpec", str, str, Callable[[], None]], "Links"]
"""Signature of `links_of`: a host makes its streams, and serves its queue, with the result."""

MakeRedoLinks = Callable[["TopologySpec", str, str, Callable[[], None]], "RedoLinks"]
"""The same for a host that writes redo."""


def identity_of(spec: TopologySpec, site: str) -> Identity | None:
    """Return the certificate of a site; None: the topology has no `tls`.

    Args:
        spec: the topology.
        site: name of the site.
    """
    tls = spec.site(site).tls
    if tls is None:
        return None
    return Identity(
        topology=spec.name,
        site=site,
        authority=str(tls.authority),
        certificate=str(tls.certificate),
        key=str(tls.key),
        revoked=str(tls.revoked or ""),
        must_list=tls.revoked is not None and not makes_certificates(spec),
    )


def peers_of(spec: TopologySpec, site: str, resolve: Callable[[str], str]) -> Callable[[str], Peer]:
    """Make a resolver that also knows the site whose certificate each component must present.

    Args:
        spec: the topology.
        site: site of the connecting component.
        resolve: returns the endpoint of a component ("queue:q_dbs1").
    """
    identity = identity_of(spec, site)
    return lambda component: Peer(address=resolve(component), site=site_of(spec, component), identity=identity)


def links_of(
    spec: TopologySpec,
    site: str,
    component: str,
    wake: Callable[[], None],
    *,
    resolve: Callable[[str], str] | None = None,
    host: Callable[[], str] | None = None,
) -> GrpcLinks:
    """Make the gRPC streams of a component, to its peers' current endpoints, and its server.

    Args:
        spec: the topology.
        site: site of the component.
        component: full name of the component; its peers know it without its kind.
        wake: called when a stream has news; must not block.
        resolve: returns a component's endpoint; None: the cluster knows it.
        host: returns the address to serve on; None: that of this process's node.
    """
    from actors.hosting.runtime import own_host, resolver
    from protos.links.grpc_links import GrpcLinks

    return GrpcLinks(
        spec.name,
        component.partition(":")[2],
        peers_of(spec, site, resolve or resolver(spec.name, site)),
        wake=wake,
        host=host or own_host,
        admission=partial(admission_of, spec, component),
    )


def callers_of(spec: TopologySpec, component: str) -> Callers:
    """Return the admitted callers of a serving component, by purpose.

    Args:
        spec: the topology, routed.
        component: full name: "site:dbs1", "queue:q_dbs1", "redo:dbs1@dbs2" or "capture:capture_dbs1".
    """
    kind, _, name = component.partition(":")
    if kind == "queue":
        return {PUBLISH: publishers_of(spec, name), SUBSCRIBE: subscribers_of(spec, name)}
    if kind == "site":
        return {READ_REDO: redo_readers_of(spec, name), RECEIVE_REDO: redo_receivers_of(spec, name)}
    if kind == "redo":
        return {READ_REDO: dict.fromkeys(receiver_of(spec, name).captures, receiver_of(spec, name).site)}
    apply = apply_of(spec, spec.capture(name))
    return {} if apply is None else {SUBSCRIBE: {apply.name: apply.site}}


def wire_status(admission: Admission | None) -> WireStatus | None:
    """Return whom a serving component refused, for its status.

    Args:
        admission: None: it does not serve now.
    """
    return None if admission is None else admission.status()


def admission_of(spec: TopologySpec, component: str) -> Admission:
    """Make the admission of a serving component.

    Args:
        spec: the topology, routed.
        component: full name of the component.
    """
    return Admission(component, identity_of(spec, site_of(spec, component)), callers_of(spec, component))
