"""`audit.log` of a state folder: one JSON document per line, appended and never changed.

Several commands may write at once, and any of them may be killed. Each line is one write at the end of the file
(`O_APPEND`), under a lock on the file itself. A command that gets the lock of a file that was renamed meanwhile opens
the new one. A line that could not be written whole is taken back; a line that a crash of the machine cut is terminated
before the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.state_folder import make_folder, not_owned

__all__ = ["AUDIT_FILES", "FILE", "AuditLog", "Lines"]

FILE = "audit.log"
OLDER_FILE = "audit.log.1"
AUDIT_FILES = frozenset({FILE, OLDER_FILE})
BYTES_MAX = 8 << 20  # as in the other logs; some 10,000 commands
# A write takes milliseconds. A process that holds the lock for longer was stopped, and a command does not wait for it.
LOCK_S = 5.0
_LOCK_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Contents of the log.

    Args:
        entries: the documents, oldest first.
        damaged: number of lines that are no document.
    """

    entries: tuple[dict[str, Any], ...]
    damaged: int


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The log of one state folder.

    Args:
        state_dir: the topology's state folder; `append` creates it.
    """

    state_dir: Path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line; durable when this returns.

        Args:
            entry: the document.

        Raises:
            OSError: it could not be written; the log is unchanged.
        """
        if (problem := not_owned(self.state_dir)) is not None:
            raise PermissionError(problem[0])
        make_folder(self.state_dir)
        line = json.dumps(entry, ensure_ascii=True).encode() + b"\n"
        while True:
            with self._locked() as descriptor:
                size = os.fstat(descriptor).st_size
                if not size or size + len(line) <= BYTES_MAX:
                    return _write_whole(descriptor, line)
                (self.state_dir / FILE).replace(self.state_dir / OLDER_FILE)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the current file of this name, open and locked."""
        descriptor = self._opened()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _opened(self) -> int:
        path, deadline = self.state_dir / FILE, time.monotonic() + LOCK_S
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    os.fchmod(descriptor, 0o600)
                    return descriptor
            except (BlockingIOError, FileNotFoundError):  # another command writes, or has just renamed it
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is locked for {LOCK_S:g} s by a command that was stopped")
            time.sleep(_LOCK_POLL_S)

    def lines(self) -> Lines:
        """Return everything in the log, including the older file.

        Raises:
            OSError: it cannot be read.
        """
        entries: list[dict[str, Any]] = []
        damaged = 0
        for path in (self.state_dir / OLDER_FILE, self.state_dir / FILE):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            for line in content.splitlines():
                entry = _document(line)
                damaged += entry is None
                entries += [] if entry is None else [entry]
        return Lines(entries=tuple(entries), damaged=damaged)


def _write_whole(descriptor: int, line: bytes) -> None:
    """Add a whole line to a locked file with one write, or nothing.

    Raises:
        OSError: it could not be written whole.
    """
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError("the disk is full")
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("verb"), str) else None
