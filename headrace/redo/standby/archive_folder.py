"""Archive folder: complete redo segments that arrive as files, by any means of copying, for a standby redo log.

Job
    Take the segments in order, each when it is complete and continues the standby redo log; report for every other
    file why it is not taken.

Main path
    ArchiveFolder.take -> scan_segment (every checksum, the footer) -> StandbyLog.take -> StandbyLog.sync.

States
    None is kept: the standby redo log determines the next segment. A file that could not be taken is read again when it
    changes, an unreadable one at every call.

Durable when
    `StandbyLog.sync` returned: then the file is not needed any more. It is never changed or removed here.

Worked flow
    the standby redo log ends with segment 4; 5 exists, half copied -> "is not whole yet" -> whole -> taken
    7 exists and 6 does not -> "6 is missing"; 6 is of another source -> refused by name; the right 6 replaces it ->
      taken, then 7

Source: Oracle Streams Concepts and Administration 10.2, "Archived-Log Downstream Capture".
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.base.errors import LogGone, ProtocolError, RedoError
from headrace.links.standby import FRAME_BYTES, RedoFrame, StandbyPlace
from headrace.redo.records import RecordHeader
from headrace.redo.segments import SegmentFile, list_segments, scan_segment
from headrace.redo.standby.shipping import fingerprint_up_to
from headrace.redo.standby.standby_log import StandbyLog

__all__ = ["ArchiveFolder"]


class ArchiveFolder:
    """The archive folder of one redo receiver. Not shared between threads.

    Args:
        folder: folder for the files; it need not exist yet.
        source: site whose redo is wanted.

    Attributes:
        problem: why nothing is taken although files exist, for the operator; empty: no problem.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self._seen: tuple[Path, int, int] | None = None  # the file that was not taken, with its size and time
        self.problem = ""

    def take(self, log: StandbyLog) -> bool:
        """Take the next segment if it exists and is complete; bounded by the size of a segment.

        Args:
            log: standby redo log of the same source.

        Returns:
            Whether a segment was taken: then there may be another.

        Raises:
            RedoFull: no space in the standby redo log; retry later.
            RedoError: the standby redo log cannot be written.
        """
        try:
            return self._take_next(log)
        except (
            OSError,
            LogGone,
            _NotRead,
        ) as error:  # a problem of the file or its disk: the standby redo log has its own errors
            log.rollback()
            self.problem = f"{self._folder}: {_why(error)}: retrying"
            self._seen = None
            return False

    def _take_next(self, log: StandbyLog) -> bool:
        files = {file.number: file for file in list_segments(self._folder)}
        number = log.next_segment or min(files, default=0)
        file = files.get(number)
        if file is None:
            later = sorted(each for each in files if each > number)
            self.problem = (
                ""
                if not later
                else (
                    f"segment {number} of the redo of {self._source} is missing in {self._folder}, and segment"
                    f" {later[0]} is there: copy it"
                )
            )
            return False
        try:
            status = file.path.stat()
        except FileNotFoundError:  # renamed meanwhile: a copy that has just completed
            return False
        seen = (file.path, status.st_size, status.st_mtime_ns)
        if seen == self._seen:
            return False
        self.problem = self._refusal(file, log)
        if not self.problem:
            self.problem = self._take(file, log)
        self._seen = seen if self.problem else None
        return not self.problem

    def _refusal(self, file: SegmentFile, log: StandbyLog) -> str:
        """Return why a file's own content forbids taking it; empty: nothing does."""
        try:
            # Read it as an online segment: missing parts may still arrive.
            scan = scan_segment(
                SegmentFile(file.number, file.path, is_archived=False, size_bytes=file.size_bytes), _no_record
            )
        except RedoError as error:
            return f"{file.path}: {error.message}: copy it again from {self._source}"
        if (scan.head.source, scan.head.number) != (self._source, file.number):
            return (
                f"{file.path} is segment {scan.head.number} of the redo of {scan.head.source}, not segment"
                f" {file.number} of {self._source}: replace it"
            )
        if not scan.is_complete:
            return (
                f"{file.path} is not whole yet, it ends at offset {scan.end_offset}: if it is copied no further,"
                " copy it again"
            )
        place = log.place
        if place.segment == file.number and self._fingerprint(place) != place.fingerprint:
            return (
                f"{file.path} is of another redo log of {self._source} than the one that was taken before: replace it"
            )
        return ""

    def _fingerprint(self, place: StandbyPlace) -> int | None:
        try:
            return fingerprint_up_to(self._folder, place)
        except RedoError as error:  # it was complete a moment ago
            raise _NotRead(error.message) from error

    def _take(self, file: SegmentFile, log: StandbyLog) -> str:
        """Take a complete file; return why it does not continue the standby redo log, or an empty text.

        Raises:
            RedoError: the standby redo log's disk refused.
            OSError: the file cannot be read.
        """
        offset = log.place.offset if log.place.segment == file.number else 0
        descriptor = os.open(file.path, os.O_RDONLY)
        try:
            while data := os.pread(descriptor, FRAME_BYTES, offset):
                log.take(RedoFrame(segment=file.number, offset=offset, data=data))
                offset += len(data)
            log.sync()
        except (RedoError, ProtocolError) as error:
            log.rollback()
            if isinstance(error.__cause__, OSError):  # an error of the standby redo log's disk: the file is unaffected
                raise
            return f"{file.path}: {error.message}: replace it"
        finally:
            os.close(descriptor)
        return ""


class _NotRead(Exception):  # noqa: N818 - it ends one look at the folder, no more
    """A file changed under its reader."""


def _why(error: OSError | LogGone | _NotRead) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be read: {error.strerror or error}"
    return error.message if isinstance(error, LogGone) else str(error)


def _no_record(_header: RecordHeader, _payload: bytes) -> None:
    """Do nothing: the caller verifies every record."""
