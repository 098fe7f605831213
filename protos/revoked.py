"""Revoked certificates: a list of fingerprints, read again while a server runs.

Job
    Tell whether a site's certificate is on the operator's list, and what is wrong with the list.

Main path
    a call, or a look at the open ones -> Revoked.look: has the file changed? -> read -> Revoked.lists(fingerprint)

The file
    One SHA-256 fingerprint a line: 64 hexadecimal digits, with colons or without, as `headrace certs` and `openssl x509 -noout -fingerprint -sha256`
    print it. What follows a `#` is a comment.

Errors
    What was listed stays revoked while the file is missing, cannot be read or has a line that is no fingerprint; its other lines are added. So a mistake
    never admits anybody. `problem` says what is wrong until it is corrected.

Bounds
    A look is one `stat`; a file is read when it has changed within the last two seconds, or since the last look, and up to `LIST_BYTES_MAX`.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
import time
from pathlib import Path

__all__ = ["LIST_BYTES_MAX", "LIST_FIX", "Revoked", "fingerprint_of", "printed_fingerprint", "read_list"]

LIST_BYTES_MAX = 1 << 20  # ten thousand fingerprints with their comments: more certificates than a topology ever has
LIST_FIX = "write one SHA-256 fingerprint a line, as `headrace certs` prints them, and comments behind #; an empty file revokes nothing"
_LINES_NAMED_MAX = 3  # of those that are no fingerprint: a file of something else has many
_SETTLED_NS = 2_000_000_000  # file systems count time in steps of up to two seconds
# `openssl` puts its own words in front.
_FINGERPRINT = re.compile(r"(?:sha256 fingerprint=)?((?:[0-9a-f]{2}:){31}[0-9a-f]{2}|[0-9a-f]{64})", re.IGNORECASE | re.ASCII)


def fingerprint_of(pem: str) -> str:
    """The SHA-256 fingerprint of the first certificate of a text in PEM form: 64 hexadecimal digits.

    Args:
        pem: the text.

    Raises:
        ValueError: it has no certificate.
    """
    begins, ends = pem.find(ssl.PEM_HEADER), pem.find(ssl.PEM_FOOTER)
    if not 0 <= begins < ends:
        raise ValueError("no certificate in PEM form")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[begins:ends + len(ssl.PEM_FOOTER)])).hexdigest()


def printed_fingerprint(fingerprint: str) -> str:
    """A fingerprint as people know it, and as the list takes it: AA:BB:..."""
    return ":".join(fingerprint[at:at + 2] for at in range(0, len(fingerprint), 2)).upper()


def read_list(path: str) -> tuple[frozenset[str], str]:
    """Read a list.

    Args:
        path: of the file.

    Returns:
        Its fingerprints, and what is wrong with it; empty: nothing.

    Raises:
        OSError: it cannot be read.
    """
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
    # The line itself is not shown: it may be anything, a key among it.
    named = ", ".join(map(str, wrong[:_LINES_NAMED_MAX])) + (", ..." if len(wrong) > _LINES_NAMED_MAX else "")
    return frozenset(found), f"{path}: no SHA-256 fingerprint stands in line{'s' if len(wrong) > 1 else ''} {named}"


class Revoked:
    """A list as it is now; see the module. Callable from any thread.

    Args:
        path: of the file.
        must_exist: a missing file is a problem from the beginning on; False: one that there never was lists nothing.
    """

    def __init__(self, path: str, *, must_exist: bool) -> None:
        self.path, self._must_exist = path, must_exist
        self._lock = threading.Lock()
        self._listed: frozenset[str] = frozenset()
        self._seen: tuple[int, ...] | None = None
        self.problem = ""

    def lists(self, fingerprint: str) -> bool:
        """Whether a certificate was revoked when the file was looked at last.

        Args:
            fingerprint: see `fingerprint_of`.
        """
        return fingerprint in self._listed

    def look(self) -> None:
        """Read the file if it has changed since the last look."""
        with self._lock:
            try:
                found = Path(self.path).stat()
                seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if seen == self._seen:
                    return
                listed, self.problem = read_list(self.path)
                # Of a file that was written just now a second writing may have the same time and length.
                self._seen = seen if abs(time.time_ns() - found.st_mtime_ns) > _SETTLED_NS else None
            except FileNotFoundError:
                self._seen = None
                self.problem = f"{self.path}: there is no such file" if self._must_exist or self._listed else ""
            except OSError as error:
                self._seen = None
                self.problem = f"{self.path}: cannot be read: {error.strerror or error}"
            else:
                self._listed = self._listed | listed if self.problem else listed
