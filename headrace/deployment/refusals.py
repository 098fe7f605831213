"""Refusals of `up` before it asks any database: sites that cannot connect to each other, and unloadable code."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.errors import ConfigError
from topology.links import both_ways, makes_certificates
from topology.problems import TopologyError
from topology.spec import TopologySpec

__all__ = ["check_certificates", "check_handlers"]


def check_certificates(spec: TopologySpec, address: str, count_nodes: Callable[[], int]) -> None:
    """Make the certificates of a file that names none, and refuse a topology whose sites could not connect.

    Args:
        spec: the topology of the file.
        address: address of a user's Ray cluster; empty: the private one of this machine.
        count_nodes: counts the nodes of the cluster at the address.

    Raises:
        TopologyError: with every problem of the certificate files.
        ConfigError: they cannot be made, or the cluster has several nodes.
    """
    if not any(site.tls for site in spec.sites):
        return
    if makes_certificates(spec):
        _make_certificates(spec, address, count_nodes)
    from actors.security.examination import tls_findings

    errors = [finding for finding in tls_findings(spec) if finding.is_error]
    if errors:
        raise TopologyError.of(str(spec.file), errors)


def _make_certificates(spec: TopologySpec, address: str, count_nodes: Callable[[], int]) -> None:
    """Make a certificate for every site in the state folder, which only processes of this machine can read."""
    from actors.security.upkeep import keep_certificates

    if address and (nodes := count_nodes()) > 1:
        raise ConfigError(
            f"the Ray cluster at {address} has {nodes} nodes, and {spec.file} has no tls: `up` makes"
            " certificates for a single machine only",
            hint=both_ways(spec),
        )
    keep_certificates(spec)


def check_handlers(spec: TopologySpec) -> None:
    """Refuse to start with users' code that cannot be loaded.

    Raises:
        TopologyError: with every problem of it.
    """
    from headrace.deployment.inspection import handler_findings

    errors = handler_findings(spec)
    if errors:
        raise TopologyError.of(str(spec.file), errors)
