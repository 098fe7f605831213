"""A private authority and a certificate per site.

For `headrace certs`, and for the certificates that a topology makes itself.

An organisation with its own authority uses that instead; `protos.wire.identity` states what a certificate must contain.
`headrace certs` never overwrites a file (`actors.security.upkeep` does). A lost key costs a certificate, so no key is
kept twice. `ca.key` is only needed to sign further certificates, and may be stored elsewhere in between.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.base.errors import ConfigError
from protos.wire.identity import DOMAIN, principal_of

__all__ = [
    "AUTHORITY_DAYS",
    "SITE_DAYS",
    "Certified",
    "MadeCertificates",
    "issue",
    "make_certificates",
    "names_of",
    "new_authority",
    "pem_of",
]

AUTHORITY_DAYS = 5 * 365  # rare, because a replacement requires every site to trust the old and the new one for a while
# A certificate is replaced without a restart, so it can be short-lived; `check` warns a month before its end.
SITE_DAYS = 365
_EARLIER = dt.timedelta(hours=1)  # clocks of machines differ
_AUTHORITY = "ca"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCertificates:
    """The result of `make_certificates`.

    Args:
        authority: the authority's certificate, made now or found.
        made: files that were written.
        kept: sites that had a certificate already.
        expires: end of the new certificates' validity, ISO 8601.
    """

    authority: Path
    made: tuple[Path, ...]
    kept: tuple[str, ...]
    expires: str


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate and its key: an authority's or a site's."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path,
    topology: str,
    sites: Sequence[str],
    *,
    now: dt.datetime | None = None,
    days: int = SITE_DAYS,
) -> MadeCertificates:
    """Make an authority, unless the folder has one, and a certificate for each site that has none there.

    Args:
        folder: gets `ca.pem`, `ca.key`, and `SITE.pem` and `SITE.key` for each site; created if missing.
        topology: name of the topology.
        sites: names of its sites.
        now: the time; None: the clock's.
        days: validity of the sites' certificates, in days.

    Raises:
        ConfigError: only one file of a pair exists, or the folder cannot be written.
    """
    at = now or dt.datetime.now(dt.UTC)
    if _AUTHORITY in sites:
        raise ConfigError(
            f"a site called {_AUTHORITY} would get the authority's files",
            hint="rename it, or use certificates of your own",
        )
    missing = [name for name in (_AUTHORITY, *sites) if not _is_there(folder, name)]
    made: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _AUTHORITY in missing:
            signer = new_authority(topology, at)
            made += _write(folder, _AUTHORITY, signer)
        elif missing:
            signer = _found_authority(folder)
        for site in missing:
            if site != _AUTHORITY:
                made += _write(folder, site, issue(signer, topology, site, at, days))
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: {error.strerror or error}", hint="name a folder that can be written"
        ) from error
    return MadeCertificates(
        authority=folder / f"{_AUTHORITY}.pem",
        made=tuple(made),
        kept=tuple(site for site in sites if site not in missing),
        expires=(at + dt.timedelta(days=days)).isoformat(timespec="seconds"),
    )


def _is_there(folder: Path, name: str) -> bool:
    found = [(folder / f"{name}.{ending}").exists() for ending in ("pem", "key")]
    if any(found) and not all(found):
        there, not_there = ("pem", "key") if found[0] else ("key", "pem")
        raise ConfigError(
            f"{folder / name}.{there} is there without {name}.{not_there}",
            hint=f"bring {name}.{not_there} back, or remove the other",
        )
    return all(found)


def _found_authority(folder: Path) -> Certified:
    try:
        key = serialization.load_pem_private_key((folder / f"{_AUTHORITY}.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / f"{_AUTHORITY}.pem").read_bytes())
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{folder}: the authority's files cannot be read", hint="name another folder") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{folder}: {_AUTHORITY}.key is not the key of {_AUTHORITY}.pem", hint="name another folder")
    return Certified(certificate, key)


def new_authority(topology: str, now: dt.datetime, key: ec.EllipticCurvePrivateKey | None = None) -> Certified:
    """Make an authority.

    Args:
        topology: name of the topology.
        now: the time.
        key: key of an earlier authority, whose certificates stay valid; None: a new key.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"headrace authority of {topology}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        # Trusting the authority means trusting it for names of this kind only.
        .add_extension(x509.NameConstraints([x509.DNSName(DOMAIN)], None), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certified(certificate, key)


def issue(signer: Certified, topology: str, site: str, now: dt.datetime, days: int = SITE_DAYS) -> Certified:
    """Make a key and a certificate of a site.

    Args:
        signer: the authority.
        topology: name of the topology.
        site: name of the site.
        now: the time.
        days: validity in days.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    principal = principal_of(topology, site)
    # The common name is for people, and limited to 64 characters; the subject alternative name is decisive.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    certificate = (
        _builder(name, signer.certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(principal)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    return Certified(certificate, key)


def names_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names that a certificate is for."""
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.DNSName
        )
    except x509.ExtensionNotFound:
        return []


def pem_of(made: Certified) -> tuple[bytes, bytes]:
    """Return a certificate and its key as PEM."""
    key = made.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.certificate.public_bytes(serialization.Encoding.PEM), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, name: str, made: Certified) -> tuple[Path, Path]:
    """Write a pair: never over an existing file, and the key readable only by its owner from the first byte on."""
    certificate, key = pem_of(made)
    contents = {folder / f"{name}.key": (0o600, key), folder / f"{name}.pem": (0o644, certificate)}
    for path, (mode, content) in contents.items():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    key_path, certificate_path = contents
    return certificate_path, key_path
