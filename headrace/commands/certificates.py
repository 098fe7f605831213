"""`headrace certs`: make certificates, and show certificates' fingerprints for a list of revoked ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actors.security.authority import make_certificates
from headrace.base.errors import ConfigError
from protos.wire.revoked import fingerprint_of, printed_fingerprint
from topology.links import makes_certificates

if TYPE_CHECKING:
    from headrace.console.output import Output
    from topology.spec import TopologySpec

__all__ = ["make", "show"]


def make(spec: TopologySpec, folder: Path, output: Output) -> None:
    """Make an authority, and certificates for all sites that have none in the folder.

    Args:
        spec: the topology.
        folder: folder of the files.
        output: reports what was made.
    """
    made = make_certificates(folder, spec.name, [site.name for site in spec.sites])
    fingerprints = {site.name: _fingerprint(folder / f"{site.name}.pem") for site in spec.sites}
    output.json(
        {
            "authority": str(made.authority),
            "made": [str(path) for path in made.made],
            "kept": list(made.kept),
            "expires": made.expires if made.made else None,
            "fingerprints": fingerprints,
        }
    )
    for path in made.made:
        output.result(f"made {path}")
    for site in made.kept:
        output.result(f"kept {folder / site}.pem and {folder / site}.key: nothing is overwritten")
    for site, fingerprint in fingerprints.items():
        output.result(f"{fingerprint}  # {site}")
    if makes_certificates(spec) or not any(site.tls for site in spec.sites):
        place = folder.resolve()
        if place.is_relative_to(spec.file.parent):
            place = place.relative_to(spec.file.parent)  # paths in the file are relative to it
        output.say(
            f'for {spec.file}: tls: {{authority: {place}/ca.pem, certificate: "{place}/{{site}}.pem", key:'
            f' "{place}/{{site}}.key"}}'
        )


def show(spec: TopologySpec, output: Output) -> None:
    """Print the fingerprint of each site's certificate in the form of a list of revoked ones.

    Args:
        spec: the topology.
        output: receives one line per site.

    Raises:
        ConfigError: the topology has no certificates, or one cannot be read.
    """
    used = {site.name: site.tls for site in spec.sites if site.tls is not None}
    if not used:
        raise ConfigError(
            f"{spec.file} has no certificates",
            hint="name the folder that gets some: headrace certs DIR --topology FILE",
        )
    fingerprints = {site: _fingerprint(tls.certificate) for site, tls in used.items()}
    lists = sorted({str(tls.revoked) for tls in used.values() if tls.revoked is not None})
    output.json({"fingerprints": fingerprints, "revoked": lists})
    for site, fingerprint in fingerprints.items():
        output.result(f"{fingerprint}  # {site}")
    output.say(
        f"a line of these in {' or '.join(lists)} revokes the certificate"
        if lists
        else "tls.revoked names a file of those that are revoked; there is none"
    )


def _fingerprint(path: Path) -> str:
    try:
        return printed_fingerprint(fingerprint_of(path.read_text(encoding="ascii")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {getattr(error, 'strerror', None) or error}: no fingerprint can be shown",
            hint="`headrace check FILE` examines the files of `tls`; `headrace up FILE` makes those of a file that"
            " names none",
        ) from error
