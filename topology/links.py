"""Protection of the links between the components of a topology.

A file without `tls` gets certificates that Headrace makes in the state folder. The sites name them as they name
certificates of a file, so running components see no difference. This works on one machine only: if sites have a `node`,
the operator must choose.
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
MADE_AUTHORITY = "certificate-authority"  # not a valid name of a site
REVOKED = "revoked_certificates"  # in the state folder: the operator's list of revoked certificates that Headrace made


def made_certificate(state_dir: Path, site: str) -> TlsSpec:
    """Return the certificate files that Headrace makes for a site.

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
    """Return the topology with the certificates that Headrace makes.

    Args:
        spec: of a file without `tls`.
    """
    return replace(
        spec, sites=tuple(replace(site, tls=made_certificate(spec.state_dir, site.name)) for site in spec.sites)
    )


def makes_certificates(spec: TopologySpec) -> bool:
    """Return whether Headrace makes the certificates of the topology."""
    return any(site.tls is not None and site.tls == made_certificate(spec.state_dir, site.name) for site in spec.sites)


def both_ways(spec: TopologySpec) -> str:
    """Return the operator's two choices for several machines: make certificates, or write `tls: none`."""
    folder, file = shlex.quote(str(spec.file.parent / "certs")), shlex.quote(str(spec.file))
    return (
        f"make certificates: `headrace certs {folder} --topology {file}`, bring each site's files to its node, and"
        " write"
        ' `tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}`;'
        " or, where nobody else reaches the ports, `tls: none`"
    )


def protection(spec: TopologySpec) -> str:
    """Describe the protection of the links."""
    if makes_certificates(spec):
        return f"mutual TLS, with certificates that `up` makes in {spec.state_dir / CERTIFICATES} and renews"
    if any(site.tls is not None for site in spec.sites):
        return "mutual TLS, with the certificates that the file names"
    return "neither encrypted nor authenticated"
