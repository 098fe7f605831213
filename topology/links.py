"""How the links between the components of a topology are protected.

A file that says nothing of `tls` gets certificates that Headrace makes in the state folder: they are named in the sites
like those of a file, and what runs does not know the difference. That is possible on one machine alone, so sites with a
`node` need the operator's word.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from topology.spec import TlsSpec, TopologySpec

__all__ = [
    "CERTIFICATES",
    "MADE_AUTHORITY",
    "REVOKED",
    "both_ways",
    "made_certificate",
    "makes_certificates",
    "protection",
    "with_made_certificates",
]

CERTIFICATES = "certificates"  # in the state folder
MADE_AUTHORITY = "certificate-authority"  # no site can be called so
REVOKED = "revoked_certificates"  # in the state folder: the operator's list of those that Headrace made


def made_certificate(state_dir: Path, site: str) -> TlsSpec:
    """The files that Headrace makes for a site.

    Args:
        state_dir: of the topology.
        site: name of the site.
    """
    folder = state_dir / CERTIFICATES
    return TlsSpec(
        authority=folder / f"{MADE_AUTHORITY}.pem",
        certificate=folder / f"{site}.pem",
        key=folder / f"{site}.key",
        revoked=state_dir / REVOKED,
    )


def with_made_certificates(spec: TopologySpec) -> TopologySpec:
    """The topology with the certificates that Headrace makes.

    Args:
        spec: of a file that says nothing of `tls`.
    """
    return replace(
        spec, sites=tuple(replace(site, tls=made_certificate(spec.state_dir, site.name)) for site in spec.sites)
    )


def makes_certificates(spec: TopologySpec) -> bool:
    """Whether Headrace makes the certificates of the topology itself."""
    return any(site.tls is not None and site.tls == made_certificate(spec.state_dir, site.name) for site in spec.sites)


def both_ways(spec: TopologySpec) -> str:
    """What the operator of several machines writes into the file: certificates, or that there are none."""
    folder, file = shlex.quote(str(spec.file.parent / "certs")), shlex.quote(str(spec.file))
    return (
        f"make certificates: `headrace certs {folder} --topology {file}`, bring each site's files to its node, and"
        " write"
        ' `tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}`;'
        " or, where nobody else reaches the ports, `tls: none`"
    )


def protection(spec: TopologySpec) -> str:
    """How the links are protected, in words."""
    if makes_certificates(spec):
        return f"mutual TLS, with certificates that `up` makes in {spec.state_dir / CERTIFICATES} and renews"
    if any(site.tls is not None for site in spec.sites):
        return "mutual TLS, with the certificates that the file names"
    return "neither encrypted nor authenticated"
