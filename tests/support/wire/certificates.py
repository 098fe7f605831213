"""Certificates of a test's sites, made with the authority of `headrace certs`."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from actors.security.authority import make_certificates
from protos.wire.identity import Identity


class Certificates:
    """One authority in a folder, and identities with their files.

    Args:
        folder: gets the files.
        topology: name of the topology.
        sites: get a certificate each.
    """

    def __init__(self, folder: Path, topology: str, *sites: str) -> None:
        self.folder, self.topology = folder, topology
        make_certificates(folder, topology, sites)

    def of(self, site: str) -> Identity:
        """Return the identity of a site."""
        return self._in(self.folder, site)

    def kept(self, site: str) -> Identity:
        """Return a site's present identity, independent of later changes of its files."""
        folder = self.folder / "kept"
        shutil.copytree(self.folder, folder)
        return self._in(folder, site)

    def _in(self, folder: Path, site: str) -> Identity:
        return Identity(
            topology=self.topology,
            site=site,
            authority=str(folder / "ca.pem"),
            certificate=str(folder / f"{site}.pem"),
            key=str(folder / f"{site}.key"),
        )

    def renew(self, site: str, days: int = 365) -> None:
        """Replace a site's certificate and key, in two steps, as an operator does."""
        for ending in ("pem", "key"):
            (self.folder / f"{site}.{ending}").unlink()
        make_certificates(self.folder, self.topology, [site], days=days)


# The order n of P-224, P-256, P-384 and P-521.
_ORDERS = (
    2**224 - 0xE95D1F470FC1EC22D6BAA3A3D5C3,
    2**256 - 2**224 + 2**192 - 0x4319055258E8617B0C46353D039CDAAF,
    2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D,
    2**521 - 0x5AE79787C40D069948033FEB708F65A2FC44A36477663B851449048E16EC79BF7,
)


def other_forms(pem: str) -> list[str]:
    """Return the forms of a certificate that a thief can make without its authority.

    Each has the signature (r, n - s), for one curve of the authority.

    Args:
        pem: the certificate, signed with ECDSA.
    """
    certificate = x509.load_pem_x509_certificate(pem.encode())
    der = certificate.public_bytes(Encoding.DER)
    r, s = decode_dss_signature(certificate.signature)
    # The signature is the last element, of less than 256 bytes: its tag, its length and a byte come before it.
    before = der[4 : -len(certificate.signature) - (3 if len(certificate.signature) < 0x7F else 4)]
    found = []
    for order in _ORDERS:
        if max(r, s) < order:
            signature = b"\0" + encode_dss_signature(r, order - s)
            content = (
                before + b"\x03" + (b"" if len(signature) < 0x80 else b"\x81") + bytes([len(signature)]) + signature
            )
            found.append(ssl.DER_cert_to_PEM_cert(b"\x30\x82" + len(content).to_bytes(2) + content))
    return found
