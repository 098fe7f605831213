"""A lock that allows one process at a time to run a component on a disk.

Ray starts a component again when its node is gone, and `headrace up` creates all of them after the death of the head.
The orphaned process may run for another minute until it notices. Two log writers in one folder would destroy the redo.
So the process that runs a component holds a lock on a file of its site's machine. The system releases it when the
process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from actors.records.files import component_file
from headrace.base.errors import PropagationError

__all__ = ["Running"]

log = logging.getLogger("headrace")


class Running:
    """The lock of one component, held until `release`.

    Raises:
        PropagationError: another process (named) holds the lock, or the file cannot be opened; retry.
    """

    def __init__(self, state_dir: Path, name: str) -> None:
        file = component_file(state_dir, name, ".lock")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Programs that this process starts do not inherit it.
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PropagationError(
                f"{name} cannot begin: {file}: {error.strerror or error}",
                hint="free space there, or correct the rights",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise PropagationError(
                f"{name} still runs in process {holder or 'unknown'} of this machine",
                hint="a process of a cluster that lost its head ends within a minute; `ray stop` on that machine ends"
                " it at once",
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s: %s cannot be locked: %s", name, file, error.strerror)
        self._note(file)

    def _note(self, file: Path) -> None:
        """Write the holder's process id into the file, for people."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            log.warning("%s cannot be written: %s", file, error.strerror)

    def release(self) -> None:
        """Let another process run the component. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
