"""Spill files of a buffered queue: batches that are kept on disk instead of in memory.

Nothing here outlives the process: a restarted queue is empty and requests what it lacks from its publishers. So the
files are never fsynced, and are removed at start. Each record has a CRC: if one is damaged, the queue requests the
batches again instead of delivering wrong data.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from headrace.base.errors import QueueError
from headrace.base.failpoints import failpoint

__all__ = ["SPILL_FOLDER", "SpillFiles", "SpillPlace", "remove_left_over"]

SPILL_FOLDER = "spill"  # in the folder of a queue

# A file is removed with its last batch: small files free space early, large ones keep their number low.
FILE_BYTES_MAX = 64 << 20
FILES_MIN = 8  # enough that one long-lived batch does not occupy most of the space


@dataclass(frozen=True, slots=True)
class SpillPlace:
    """The location of a spilled batch."""

    file: int
    offset: int
    length: int
    crc: int


class _File:
    __slots__ = ("descriptor", "live", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.size = 0
        self.live = 0  # batches that are still needed


class SpillFiles:
    """Spill files in one folder, owned by one queue.

    Args:
        folder: created when something is spilled; existing spill files in it are removed.
        bytes_max: bound on the total size of the files.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._file_bytes = min(FILE_BYTES_MAX, bytes_max // FILES_MIN)  # size at which a new file is begun
        remove_left_over(folder)
        self._files: dict[int, _File] = {}
        self._next = 0
        self._current: _File | None = None
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Number of bytes that can still be written."""
        return max(0, self._bytes_max - self.used_bytes)

    def append(self, data: bytes) -> SpillPlace:
        """Write a batch.

        Raises:
            OSError: the batch cannot be written (no space); nothing has changed.
        """
        failpoint("queue.spill")
        if self._current is None or self._current.size >= self._file_bytes:
            self._begin_file()
        file = self._current
        assert file is not None
        try:
            _write_all(file.descriptor, data, file.size)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file.descriptor, file.size)
            raise
        place = SpillPlace(self._next - 1, file.size, len(data), google_crc32c.value(data))
        file.size += len(data)
        file.live += 1
        self.used_bytes += len(data)
        return place

    def read(self, place: SpillPlace) -> bytes:
        """Read a batch back.

        Raises:
            QueueError: the file is damaged.
        """
        file = self._files[place.file]
        try:
            data = _read_all(file.descriptor, place.length, place.offset)
        except OSError as error:
            raise QueueError(f"a spilled batch cannot be read: {error.strerror}", file=file.path.name) from error
        if len(data) != place.length or google_crc32c.value(data) != place.crc:
            raise QueueError("a spilled batch is damaged", file=file.path.name, offset=place.offset)
        return data

    def release(self, place: SpillPlace) -> None:
        """Free the space of a batch."""
        file = self._files[place.file]
        file.live -= 1
        if file.live == 0:
            self._remove(place.file)

    def close(self) -> None:
        """Remove every file; idempotent."""
        for number in list(self._files):
            self._remove(number)

    def _begin_file(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._current = self._files[self._next] = _File(self._folder / f"{self._next:08d}.spill")
        self._next += 1

    def _remove(self, number: int) -> None:
        file = self._files.pop(number)
        if file is self._current:
            self._current = None
        self.used_bytes -= file.size
        os.close(file.descriptor)
        # The space counts as free anyway: if the file is missing, something else removed it.
        file.path.unlink(missing_ok=True)


def remove_left_over(folder: Path) -> None:
    """Remove the spill files of a queue that does not run; idempotent."""
    for left_over in folder.glob("*.spill"):
        left_over.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _read_all(descriptor: int, length: int, offset: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while 0 < len(data) < length:  # the kernel returns at most 2 GB at once, and can be interrupted
        piece = os.pread(descriptor, length - len(data), offset + len(data))
        if not piece:
            break
        data += piece
    return data
