"""A site's identity on the wire: its certificate, and the site that it expects at the other end.

Job
    Name the certificate files of a site, and the name that its certificate must contain. Only paths are sent between
    processes: a key's content never leaves the process that reads it.

The name
    A site's certificate has the DNS name `<site>.<topology>.headrace.internal`, with `-` for each `_` of the two names,
    among its subject alternative names. It is a name and no address: nothing resolves it, so hosts and ports may
    change. `.internal` is reserved for private use. gRPC compares the name in both directions: a client with the site
    that it intends to reach, a server with the site of the component in the hello (`protos.wire.admission`).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import PropagationError

__all__ = ["DOMAIN", "CertificateError", "Identity", "Peer", "Pem", "principal_of"]

DOMAIN = "headrace.internal"


class CertificateError(PropagationError):
    """A site's own certificate files cannot be used. Retried, because they may be about to be replaced."""

    code = "HDR-4101"
    fix = "Replace the certificate files that the message names; the component reads them again by itself."


def principal_of(topology: str, site: str) -> str:
    """Return the DNS name in the certificate of a site.

    Args:
        topology: name of the topology; letters, digits and `_`, so two topologies never get the same name.
        site: name of the site.
    """
    return f"{site}.{topology}.{DOMAIN}".replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """The contents of a site's files, PEM: the authority's certificates, the site's certificate and its key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Pem(...)"  # a key must not appear in a log


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One site's certificate.

    Args:
        topology: name of the topology.
        site: name of the site.
        authority: absolute path of the authority's certificate; certificates signed by it are trusted.
        certificate: absolute path of the site's certificate.
        key: absolute path of its private key.
        revoked: absolute path of the list of certificates that are refused although the authority signed them
            (`protos.wire.revoked`); empty: no list.
        must_list: whether that list is the operator's own file, so that it must exist.
    """

    topology: str
    site: str
    authority: str
    certificate: str
    key: str
    revoked: str = ""
    must_list: bool = False

    @property
    def principal(self) -> str:
        """The DNS name in the site's certificate."""
        return principal_of(self.topology, self.site)

    def read(self) -> Pem:
        """Read the files, and make sure that they can be used together.

        Raises:
            CertificateError: a file cannot be read or used; it is named, its content is not.
        """
        found = self._contents()
        self._check()
        if self._contents() != found:
            raise CertificateError(f"{self.certificate}: the files are being replaced", hint="", file=self.certificate)
        return found

    def _contents(self) -> Pem:
        return Pem(
            authority=_read(self.authority, "the authority's certificate"),
            certificate=_read(self.certificate, "the certificate"),
            key=_read(self.key, "the private key"),
        )

    def _check(self) -> None:
        """Load the files with the standard library: gRPC would only report that no port can be opened, or nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        path = self.authority
        try:
            context.load_verify_locations(cafile=self.authority)
            path = f"{self.certificate} and {self.key}"
            # Never prompt for a password: the terminal may belong to another command.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise CertificateError(
                f"{path}: cannot be used: {str(reason).lower().replace('_', ' ')}",
                hint="PEM files, the key without a password and the certificate's own; `headrace check` says more",
                file=path,
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the paths and names, for `json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Identity | None:
        """Read the result of `to_json`; None stays None."""
        return None if document is None else cls(**document)


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: {what} cannot be read: {error.strerror or error}",
            hint="`headrace check` examines every file that `tls` names; on a cluster each node needs the files of its"
            " own sites",
            file=path,
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server to connect to.

    Args:
        address: "host:port".
        site: site whose certificate the server must present.
        identity: identity of the connecting site; None: without TLS.
        serves: the name under which it serves there; empty: the name that the client knows.
    """

    address: str
    site: str = ""
    identity: Identity | None = None
    serves: str = ""

    @property
    def principal(self) -> str:
        """The name that the server's certificate must contain; empty: without TLS."""
        return "" if self.identity is None else principal_of(self.identity.topology, self.site)

    @classmethod
    def of(cls, peer: Peer | str) -> Peer:
        """Return a peer; a plain address becomes one without a site."""
        return cls(address=peer) if isinstance(peer, str) else peer

    def __str__(self) -> str:
        return self.address
