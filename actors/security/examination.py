"""Problems of the certificate files that a topology names; part of `headrace check` and of `up`.

`up` remakes the certificates that Headrace makes itself if they have a problem, so such a problem is a warning. A site's
processes read the files on their own nodes. Files of a site with a `node` may be on another machine: what cannot be
examined here is then a warning.
"""

from __future__ import annotations

import datetime as dt
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from actors.security.authority import names_of
from actors.state_folder import not_owned
from headrace.databases.ports import Finding
from protos.wire.identity import principal_of
from protos.wire.revoked import LIST_FIX, is_listed, read_list
from topology.edits.stored import prepared_topology
from topology.links import makes_certificates

if TYPE_CHECKING:
    from topology.spec import SiteSpec, TlsSpec, TopologySpec

__all__ = ["WARNING_DAYS", "tls_findings"]

WARNING_DAYS = 30  # time to have another one signed, even during a holiday

_RENEW = "have another one signed and put it in its place: it takes effect without a restart"
_MADE_ANEW = "`headrace up` makes another one: it takes effect without a restart"
_OTHERS = 0o077
# Below these a key is worth less than 112 bits (NIST SP 800-131A), and a wealthy attacker can compute it.
_BITS_MIN = {"RSA": 2048, "DSA": 2048, "EC": 224}


def tls_findings(spec: TopologySpec, *, now: dt.datetime | None = None) -> tuple[Finding, ...]:
    """Return every problem of the files that `tls` names, for every site.

    Args:
        spec: the topology.
        now: the time; None: the clock's.
    """
    at, is_made = now or dt.datetime.now(dt.UTC), makes_certificates(spec)
    was = prepared_topology(spec.state_dir) if is_made else None
    prepared = {} if was is None else {site.name: site.tls for site in was.sites}
    found: list[Finding] = []
    lists: dict[str, Finding] = {}  # by problem: sites share a list, and folders
    for site in spec.sites:
        if site.tls is not None:
            findings = list(_Site(spec.name, site, site.tls, at).findings())
            is_elsewhere = bool(site.node) and not site.tls.key.exists()
            if is_made:
                # `up` makes the files of a new site.
                is_new = prepared.get(site.name) != site.tls and not (
                    site.tls.certificate.exists() or site.tls.key.exists()
                )
                found += [] if is_new else [replace(each, fix=_MADE_ANEW, is_error=False) for each in findings]
            else:
                found += [replace(each, is_error=False) for each in findings] if is_elsewhere else findings
            for each in _list_findings(site, site.tls, must_exist=not is_made):
                lists.setdefault(each.problem, replace(each, is_error=not is_elsewhere))
            # Certificates made by Headrace are in the state folder, which is checked anyway.
            for each in () if is_made else _owner_findings(site, site.tls):
                lists.setdefault(each.problem, each)
    return (*found, *lists.values())


def _list_findings(site: SiteSpec, tls: TlsSpec, *, must_exist: bool) -> Iterator[Finding]:
    """Yield problems of the list of revoked certificates; the earlier list stays in force meanwhile."""
    if tls.revoked is None:
        return
    try:
        _, problem = read_list(str(tls.revoked))
    except FileNotFoundError:
        problem = f"{tls.revoked}: there is no such file" if must_exist else ""
    except OSError as error:
        problem = f"{tls.revoked}: cannot be read: {error.strerror or error}"
    if problem:
        yield Finding(path=f"sites.{site.name}.tls.revoked", problem=problem, fix=LIST_FIX)


def _owner_findings(site: SiteSpec, tls: TlsSpec) -> Iterator[Finding]:
    """Yield files that another user can write or replace; link targets are checked too."""
    for key in ("authority", "certificate", "key", "revoked"):
        named: Path | None = getattr(tls, key)
        for path in () if named is None else dict.fromkeys((named.absolute(), named.resolve())):
            found = not_owned(path, what="file", may_be_roots=True)
            if found is not None:
                yield Finding(
                    path=f"sites.{site.name}.tls.{key}",
                    problem=f"{found[0]}: a user who can change {path} decides who is accepted as a site of this topology",
                    fix=found[1],
                    is_error=False,
                )


@dataclass(frozen=True, slots=True)
class _Site:
    """The files of one site."""

    topology: str
    site: SiteSpec
    tls: TlsSpec
    now: dt.datetime

    def findings(self) -> Iterator[Finding]:
        authorities, chain = self._certificates("authority"), self._certificates("certificate")
        for key, found in (("authority", authorities), ("certificate", chain)):
            if isinstance(found, Finding):
                yield found
            else:
                yield from self._ages(key, found)
                yield from self._strength(key, found)
        yield from self._key(None if isinstance(chain, Finding) else chain[0])
        if isinstance(authorities, Finding) or isinstance(chain, Finding):
            return
        if not _is_signed(chain, authorities):
            yield self._finding(
                "certificate", f"is not signed by {self.tls.authority}", "have that authority sign it, or name its own"
            )
        yield from self._names(chain[0])
        yield from self._revocation(chain[0])

    def _revocation(self, certificate: x509.Certificate) -> Iterator[Finding]:
        if self.tls.revoked is not None and is_listed(
            str(self.tls.revoked), certificate.public_bytes(Encoding.PEM).decode()
        ):
            yield self._finding("certificate", f"is revoked by {self.tls.revoked}", _RENEW)

    def _finding(self, key: str, problem: str, fix: str, *, is_error: bool = True) -> Finding:
        path = getattr(self.tls, key)
        return Finding(
            path=f"sites.{self.site.name}.tls.{key}", problem=f"{path}: {problem}", fix=fix, is_error=is_error
        )

    def _content(self, key: str) -> bytes | Finding:
        path: Path = getattr(self.tls, key)
        try:
            return path.read_bytes()
        except OSError as error:
            return self._finding(
                key,
                f"cannot be read: {error.strerror or error}",
                "correct the path, which is relative to the topology file, or the rights",
            )

    def _certificates(self, key: str) -> list[x509.Certificate] | Finding:
        content = self._content(key)
        if isinstance(content, Finding):
            return content
        try:
            return x509.load_pem_x509_certificates(content)
        except ValueError:
            return self._finding(
                key, "is no certificate in PEM form", "name a file that begins with -----BEGIN CERTIFICATE-----"
            )

    def _ages(self, key: str, certificates: list[x509.Certificate]) -> Iterator[Finding]:
        # Of an authority's file one valid certificate is enough: its successor is added before the old one ends.
        if key == "authority":
            certificates = [max(certificates, key=lambda each: each.not_valid_after_utc)]
        for each in certificates:
            ends = each.not_valid_after_utc
            if each.not_valid_before_utc > self.now:
                yield self._finding(
                    key,
                    f"is not valid before {each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
                    "correct this machine's clock, or wait",
                )
            if ends <= self.now:
                yield self._finding(key, f"expired on {ends:%Y-%m-%d %H:%M} UTC", _RENEW)
            elif ends - self.now < dt.timedelta(days=WARNING_DAYS):
                yield self._finding(key, f"expires on {ends:%Y-%m-%d %H:%M} UTC", _RENEW, is_error=False)

    def _strength(self, key: str, certificates: list[x509.Certificate]) -> Iterator[Finding]:
        """Warn of keys that an attacker can compute to impersonate a site.

        A signature with MD5 or SHA-1 needs no warning: OpenSSL ignores it.
        """
        for each in certificates:
            kind, bits = _key_of(each)
            if bits < _BITS_MIN.get(kind, 0):
                yield self._finding(
                    key,
                    f"has a key of {bits} bits ({kind}), which can be computed from the certificate",
                    f"have one made with {_BITS_MIN[kind]} bits or more ({kind}); `headrace certs` makes P-256",
                    is_error=False,
                )

    def _key(self, certificate: x509.Certificate | None) -> Iterator[Finding]:
        content = self._content("key")
        if isinstance(content, Finding):
            yield content
            return
        mode = stat.S_IMODE(self.tls.key.stat().st_mode)
        if mode & _OTHERS:
            yield self._finding(
                "key", f"other users may read it (mode {mode:04o})", f"chmod 600 {shlex.quote(str(self.tls.key))}"
            )
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError):
            yield self._finding(
                "key", "is no private key in PEM form without a password", "name the certificate's key, decrypted"
            )
            return
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if certificate is not None and key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(
            *form
        ):
            yield self._finding(
                "key", f"is not the key of {self.tls.certificate}", "name the two files that belong together"
            )

    def _names(self, certificate: x509.Certificate) -> Iterator[Finding]:
        wanted = principal_of(self.topology, self.site.name)
        names = names_of(certificate)
        if wanted not in names:
            yield self._finding(
                "certificate",
                f"is not for {wanted}, but for {', '.join(names) or 'no DNS name'}",
                f"have one signed whose subject alternative names include DNS:{wanted}",
            )
        try:
            uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            return  # without it, every use is allowed
        if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(uses):
            yield self._finding(
                "certificate",
                "may not be used by a server and a client both",
                "have one signed for serverAuth and clientAuth",
            )


def _key_of(certificate: x509.Certificate) -> tuple[str, int]:
    """Return the kind of a certificate's key ("RSA", "DSA", "EC", else its class) and its bits; ("", 0): unknown."""
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return "", 0
    if isinstance(key, rsa.RSAPublicKey):
        return "RSA", key.key_size
    if isinstance(key, dsa.DSAPublicKey):
        return "DSA", key.key_size
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "EC", key.key_size
    return type(key).__name__, 0  # Ed25519 and Ed448 have one size, which is enough


def _is_signed(chain: list[x509.Certificate], authorities: list[x509.Certificate]) -> bool:
    """Return whether one of the authorities signed the first certificate, directly or through the others."""
    current, *others = chain
    for _ in chain:
        if any(_signed(current, authority) for authority in authorities):
            return True
        current = next((each for each in others if _signed(current, each)), current)
    return False


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
