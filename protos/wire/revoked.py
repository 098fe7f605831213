"""Revoked certificates: a list of fingerprints, read again while a server runs.

Job
    Tell whether a site's certificate is on the operator's list, and what is wrong with the list.

Main path
    a call, or a check of the open ones -> Revoked.look: has the file changed? -> read -> Revoked.listed(fingerprints)

Two forms of a certificate
    From an ECDSA signature (r, s) anyone can make the other valid one, (r, n - s), without the authority's key. A stolen
    certificate with its signature in the other form has the same names and key, is equally valid, and has another
    fingerprint. So a certificate is listed if either form is (`fingerprints_of`). Signatures by RSA and Ed25519 have
    one form.

The file
    One SHA-256 fingerprint a line: 64 hexadecimal digits, with or without colons, as `headrace certs` and
    `openssl x509 -noout -fingerprint -sha256` print it. Text after a `#` is a comment.

Errors
    Listed certificates stay revoked while the file is missing, cannot be read or has a line that is no fingerprint; its
    other lines are added. So a mistake never admits a refused caller. `problem` says what is wrong until it is corrected.
    A removed line counts until the file has been unchanged for two seconds: an editor that empties a file and writes it
    again leaves it incomplete for a moment.

Bounds
    A check is one `stat`. The file is read, up to `LIST_BYTES_MAX`, when it has changed within the last two seconds or
    since the last check.
"""

from __future__ import annotations

import errno
import hashlib
import re
import ssl
import stat
import threading
import time
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

__all__ = [
    "LIST_BYTES_MAX",
    "LIST_FIX",
    "Revoked",
    "fingerprint_of",
    "fingerprints_of",
    "is_listed",
    "printed_fingerprint",
    "read_list",
]

LIST_BYTES_MAX = 1 << 20  # ten thousand fingerprints with their comments: more certificates than a topology ever has
LIST_FIX = (
    "write one SHA-256 fingerprint a line, as `headrace certs` prints them, and comments behind #; an empty"
    " file revokes nothing"
)
_LINES_NAMED_MAX = 3  # invalid lines that are named: a file of another kind has many
_SETTLED_NS = 2_000_000_000  # file systems count time in steps of up to two seconds
# `openssl` puts its own words in front.
_FINGERPRINT = re.compile(
    r"(?:sha256 fingerprint=)?((?:[0-9a-f]{2}:){31}[0-9a-f]{2}|[0-9a-f]{64})", re.IGNORECASE | re.ASCII
)
# The orders of the curves on which TLS accepts certificates: P-224, P-256, P-384, P-521 (FIPS 186-4, D.1.2).
_ORDERS = (
    0xFFFFFFFFFFFFFFFFFFFFFFFFFFFF16A2E0B8F03E13DD29455C5C2A3D,
    0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    0x1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA51868783BF2F966B7FCC0148F709A5D03BB5C9B8899C47AEBB6FB71E91386409,
)
_SEQUENCE, _INTEGER, _BIT_STRING = 0x30, 0x02, 0x03
# prefixes of the object identifiers of ECDSA with SHA-1, and, one byte longer, with SHA-2
_ECDSA = bytes.fromhex("06072a8648ce3d04")
_ECDSA_SHA2 = bytes.fromhex("06082a8648ce3d04")
_CERTIFICATES_KEPT = 64  # cached fingerprints: one or two certificates for each site, and each call needs them


def fingerprint_of(pem: str) -> str:
    """Return the SHA-256 fingerprint of the first certificate of a text in PEM form: 64 hexadecimal digits.

    Raises:
        ValueError: the text contains no certificate.
    """
    return hashlib.sha256(_der_of(pem)).hexdigest()


@lru_cache(_CERTIFICATES_KEPT)
def fingerprints_of(pem: str) -> tuple[str, ...]:
    """Return the fingerprint of a certificate, then those of its other equally valid forms.

    Args:
        pem: text as for `fingerprint_of`.

    Raises:
        ValueError: the text contains no certificate.
    """
    der = _der_of(pem)
    return tuple(hashlib.sha256(each).hexdigest() for each in (der, *_other_forms(der)))


def _der_of(pem: str) -> bytes:
    begins, ends = pem.find(ssl.PEM_HEADER), pem.find(ssl.PEM_FOOTER)
    if not 0 <= begins < ends:
        raise ValueError("no certificate in PEM form")
    return ssl.PEM_cert_to_DER_cert(pem[begins : ends + len(ssl.PEM_FOOTER)])


def _other_forms(der: bytes) -> list[bytes]:
    """Return the certificate with the other form of its signature, for each curve that may be the authority's.

    The certificate does not name the curve.
    """
    try:
        body, signature, rest = _parts(_content(der, _SEQUENCE))
        if not signature[2:].startswith((_ECDSA, _ECDSA_SHA2)):
            return []
        r, s = (
            int.from_bytes(_content(each, _INTEGER))
            for each in _parts(_content(_content(rest, _BIT_STRING)[1:], _SEQUENCE))
        )
    except (IndexError, ValueError):
        return []  # a connection's certificate can be parsed; an unparsable one has no other valid form
    found = []
    for order in _ORDERS:
        if 0 < max(r, s) < order:
            numbers = b"".join(_element(_INTEGER, each.to_bytes(each.bit_length() // 8 + 1)) for each in (r, order - s))
            found.append(
                _element(_SEQUENCE, body + signature + _element(_BIT_STRING, b"\0" + _element(_SEQUENCE, numbers)))
            )
    return found


def _parts(content: bytes) -> list[bytes]:
    """Return the DER elements of which a content consists."""
    found = []
    while content:
        _, end = _bounds(content)
        found.append(content[:end])
        content = content[end:]
    return found


def _content(element: bytes, tag: int) -> bytes:
    begin, end = _bounds(element)
    if element[0] != tag or end != len(element):
        raise ValueError("another element")
    return element[begin:end]


def _bounds(text: bytes) -> tuple[int, int]:
    """Return where the content of a text's first element begins and ends."""
    length = text[1]
    if length < 0x80:
        return 2, 2 + length
    begin = 2 + (length & 0x7F)
    return begin, begin + int.from_bytes(text[2:begin])


def _element(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    digits = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content


def printed_fingerprint(fingerprint: str) -> str:
    """Return a fingerprint in the usual printed form, which the list also accepts: AA:BB:..."""
    return ":".join(fingerprint[at : at + 2] for at in range(0, len(fingerprint), 2)).upper()


def read_list(path: str) -> tuple[frozenset[str], str]:
    """Read a list.

    Returns:
        Its fingerprints, and what is wrong with it; empty: nothing.

    Raises:
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would block every call that arrives meanwhile
        raise OSError(errno.EINVAL, "it is no file")
    with Path(path).open("rb") as file:
        content = file.read(LIST_BYTES_MAX + 1)
    if len(content) > LIST_BYTES_MAX:
        return frozenset(), f"{path}: is longer than {LIST_BYTES_MAX >> 20} MiB, and no list of fingerprints"
    found: set[str] = set()
    wrong: list[int] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if match := _FINGERPRINT.fullmatch(text):
            found.add(match[1].replace(":", "").lower())
        elif text:
            wrong.append(number)
    if not wrong:
        return frozenset(found), ""
    # The line itself is not shown: it may be anything, even a key.
    named = ", ".join(map(str, wrong[:_LINES_NAMED_MAX])) + (", ..." if len(wrong) > _LINES_NAMED_MAX else "")
    return frozenset(found), f"{path}: no SHA-256 fingerprint stands in line{'s' if len(wrong) > 1 else ''} {named}"


def is_listed(path: str, pem: str) -> bool:
    """Return whether a list contains a certificate.

    Also False if the list cannot be read, which `check` and `status` report.

    Args:
        path: path of the file.
        pem: text as for `fingerprint_of`.
    """
    try:
        listed, _ = read_list(path)
    except OSError:
        return False
    return not listed.isdisjoint(fingerprints_of(pem))


class Revoked:
    """The current list of revoked certificates. Callable from any thread.

    Args:
        must_exist: whether a missing file is a problem from the start; False: a file that never existed lists nothing.
    """

    def __init__(self, path: str, *, must_exist: bool) -> None:
        self.path, self._must_exist = path, must_exist
        self._lock = threading.Lock()
        self._listed: frozenset[str] = frozenset()
        self._seen: tuple[int, ...] | None = None
        self.problem = ""

    def listed(self, fingerprints: Collection[str]) -> str:
        """Return the fingerprint of a certificate that the file contained at the last check; empty: it is not revoked.

        Args:
            fingerprints: fingerprints of the certificate, from `fingerprints_of`.
        """
        return next((each for each in fingerprints if each in self._listed), "")

    def look(self) -> None:
        """Read the file if it has changed since the last check."""
        with self._lock:
            try:
                found = Path(self.path).stat()
                seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if seen == self._seen:
                    return
                listed, self.problem = read_list(self.path)
                # If a file was written just now, a second write may leave the same time and length.
                is_settled = abs(time.time_ns() - found.st_mtime_ns) > _SETTLED_NS
                self._seen = seen if is_settled else None
            except FileNotFoundError:
                self._seen = None
                self.problem = f"{self.path}: there is no such file" if self._must_exist or self._listed else ""
            except OSError as error:
                self._seen = None
                self.problem = f"{self.path}: cannot be read: {error.strerror or error}"
            else:
                self._listed = listed if is_settled and not self.problem else self._listed | listed
