"""Upkeep of the certificates that a topology makes for itself.

Job
    Keep a usable certificate with enough remaining life for every site, in the state folder of a topology whose file has
    no `tls` (`topology.links`). Everything runs on one machine, so the authority's key is stored with the others.

Main path
    `headrace up`, and the controller once an hour -> keep_certificates -> missing, unusable or expiring certificates are
    made anew.

Renewal
    Running processes read the files again for each connection (`protos.wire.identity`). A site gets a new key and
    certificate. The authority keeps its key and gets a new certificate, so the certificates that it signed stay valid. An
    authority without a usable key is replaced with everything that it signed: existing connections continue, new ones
    need the files of one authority, which are complete within milliseconds.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from actors.security.authority import Certified, issue, names_of, new_authority, pem_of
from actors.state_folder import make_private
from headrace.base.durable_file import sync_folder
from headrace.base.errors import ConfigError
from protos.wire.identity import principal_of
from protos.wire.revoked import is_listed
from topology.links import CERTIFICATES, MADE_AUTHORITY, REVOKED, makes_certificates

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["keep_certificates"]

LIFE_LEFT = 3  # a third of its life: four months of a site's, in which the cause of a failed renewal can be fixed
_OTHERS = 0o077


def keep_certificates(spec: TopologySpec, *, now: dt.datetime | None = None) -> tuple[str, ...]:
    """Make certificates that are missing, unusable, revoked, or have less than a third of their life left; idempotent.

    Args:
        spec: the topology; nothing happens unless it makes its own certificates.
        now: the time; None: the clock's.

    Returns:
        The names of what was made: sites, and `certificate-authority`.

    Raises:
        ConfigError: the folder is another user's, or cannot be written.
    """
    if not makes_certificates(spec):
        return ()
    folder, at = spec.state_dir / CERTIFICATES, now or dt.datetime.now(dt.UTC)
    try:
        make_private(spec.state_dir)
        with _locked(folder):
            return tuple(_keep(folder, spec, at))
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: {error.strerror or error}: no certificates for the links can be made",
            hint="name a state_dir that can be written; or certificates of your own, under tls",
        ) from error


def _keep(folder: Path, spec: TopologySpec, now: dt.datetime) -> Iterator[str]:
    found = _found(folder, MADE_AUTHORITY)
    authority = (
        found
        if found is not None and not _is_due(found, now)
        else new_authority(spec.name, now, None if found is None else found.key)
    )
    if authority is not found:
        _replace(folder, MADE_AUTHORITY, authority)
        yield MADE_AUTHORITY
    for site in spec.sites:
        certificate = _found(folder, site.name)
        if (
            certificate is None
            or _is_revoked(certificate, spec)
            or _is_due(certificate, now)
            or not _is_of(certificate, authority, principal_of(spec.name, site.name))
        ):
            _replace(folder, site.name, issue(authority, spec.name, site.name, now))
            yield site.name


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other commands, and make sure that only this user can enter it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(folder))
        os.fchmod(descriptor, 0o700)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _found(folder: Path, name: str) -> Certified | None:
    """Return a certificate and its key that can be used together; None: none exist."""
    certificate_path, key_path = _paths(folder, name)
    try:
        if stat.S_IMODE(key_path.stat().st_mode) & _OTHERS:
            return None  # another user who read it can impersonate the site
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = load_pem_private_key(key_path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return Certified(certificate, key)


def _is_revoked(found: Certified, spec: TopologySpec) -> bool:
    """Return whether the operator's list contains the certificate."""
    return is_listed(str(spec.state_dir / REVOKED), found.certificate.public_bytes(Encoding.PEM).decode())


def _is_due(found: Certified, now: dt.datetime) -> bool:
    begins, ends = found.certificate.not_valid_before_utc, found.certificate.not_valid_after_utc
    return not begins <= now <= ends - (ends - begins) / LIFE_LEFT


def _is_of(found: Certified, authority: Certified, principal: str) -> bool:
    try:
        found.certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return principal in names_of(found.certificate)


def _replace(folder: Path, name: str, made: Certified) -> None:
    """Replace a pair: both files are written before either takes its place."""
    paths = _paths(folder, name)
    for path, content in zip(paths, pem_of(made), strict=True):
        aside = _aside(path)
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
    for path in paths:
        _aside(path).replace(path)
    sync_folder(folder)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")
