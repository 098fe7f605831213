"""Certificates of a test's sites, made with `headrace certs`' own authority."""

from __future__ import annotations

import shutil
from pathlib import Path

from actors.security.authority import make_certificates
from protos.identity import Identity


class Certificates:
    """One authority in a folder, and identities whose files lie there.

    Args:
        folder: gets the files.
        topology: name of the topology.
        sites: get a certificate each.
    """

    def __init__(self, folder: Path, topology: str, *sites: str) -> None:
        self.folder, self.topology = folder, topology
        make_certificates(folder, topology, sites)

    def of(self, site: str) -> Identity:
        """The identity of a site."""
        return self._in(self.folder, site)

    def kept(self, site: str) -> Identity:
        """The identity of a site as it is now, whatever becomes of the files."""
        folder = self.folder / "kept"
        shutil.copytree(self.folder, folder)
        return self._in(folder, site)

    def _in(self, folder: Path, site: str) -> Identity:
        return Identity(
            topology=self.topology, site=site, authority=str(folder / "ca.pem"), certificate=str(folder / f"{site}.pem"),
            key=str(folder / f"{site}.key"),
        )

    def renew(self, site: str, days: int = 365) -> None:
        """Another certificate and key in the place of a site's, in two steps, as an operator does it."""
        for ending in ("pem", "key"):
            (self.folder / f"{site}.{ending}").unlink()
        make_certificates(self.folder, self.topology, [site], days=days)
