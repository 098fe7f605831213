"""Redo segments: files of records, written by one log writer and followed by any number of readers.

Longer than 500 lines: its writer and its reader must agree on every byte and on every crash between two of them.

A segment is `<number>.redo` while it is online (written), `<number>.archived.redo` when it is complete. It begins with
a preamble (a name and the format version), a SEGMENT and a DICTIONARY record; a complete one ends with a FOOTER record.
The beginning is written under a temporary name and renamed, so it exists completely or not at all.

Durable when
    `SegmentWriter.sync` returned. Readers never go beyond the durable offset that they were given, so they see neither
    torn nor unfinished records. When the writer reopens the last segment it cuts a torn tail: records that no later
    record knows to be durable. Damage anywhere else is an error that names segment, offset and SCNs.
"""

from __future__ import annotations

import errno
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.base.durable_file import sync_folder
from headrace.base.errors import INSTANTIATE_AGAIN, LogGone, RedoError, Retry
from headrace.base.failpoints import failpoint
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.ports import RedoPosition
from headrace.redo.records import (
    FORMAT_VERSION,
    HEAD_RECORDS,
    HEADER_BYTES,
    MAGIC,
    DictionarySnapshot,
    RecordHeader,
    RecordType,
    SegmentFooter,
    SegmentHead,
    checksum,
    decode_footer,
    decode_head,
    encode_dictionary,
    encode_footer,
    encode_head,
)

__all__ = [
    "FIRST_SEGMENT",
    "PREAMBLE_BYTES",
    "RESTORE_SEGMENT",
    "LogState",
    "RedoFull",
    "RedoReader",
    "SegmentFile",
    "SegmentScan",
    "SegmentWriter",
    "archive_segment",
    "check_number",
    "check_preamble",
    "list_segments",
    "online_segment",
    "open_segment",
    "read_head",
    "scan_segment",
    "write_error",
]

FIRST_SEGMENT = 1  # number of a redo log's first segment
_PREAMBLE = struct.Struct("<12sI")
_PREAMBLE_NAME = b"HeadraceRedo"
PREAMBLE_BYTES = _PREAMBLE.size

# A restart does not bring back what is missing.
RESTORE_SEGMENT = (
    "restore the segment from a copy, then start what stopped for it (`headrace start FILE NAME`); if there is no copy,"
    f" {INSTANTIATE_AGAIN}"
)
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SEARCH_BYTES = 1 << 20  # window of the search for a record beyond damage


class RedoFull(RedoError):  # noqa: N818 - named like its siblings in headrace.base.errors
    """The disk of the redo log is full: no partial write remains, nothing was confirmed. Retry later."""

    code = "HDR-3001"
    fix = "Free space on the disk of the redo log; the log writer continues by itself."
    retry = Retry.TIMED


@dataclass(frozen=True, slots=True)
class LogState:
    """State of the log between two records: progress, last commit, whether a transaction is open.

    `transaction`: number of the transaction of the last commit; 0: not known, as in redo of earlier versions.
    """

    end_scn: Scn
    commit_scn: Scn
    is_open: bool
    transaction: int = 0


@dataclass(frozen=True, slots=True, order=True)
class SegmentFile:
    """One segment on disk."""

    number: int
    path: Path
    is_archived: bool
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """Result of reading a segment from its first to its last record.

    Args:
        head: payload of its SEGMENT record.
        last: header of its last undamaged record.
        end_offset: end of that record.
        header_crc: CRC-32C over the headers of all records up to there except a footer.
        restart_segment: as in `SegmentHead`, at the end.
        is_complete: it ends with a footer.
    """

    head: SegmentHead
    last: RecordHeader
    end_offset: int
    header_crc: int
    restart_segment: int
    is_complete: bool


def list_segments(folder: Path) -> list[SegmentFile]:
    """List the segments in `folder` by number, complete or not.

    An archived segment takes precedence over an online one with the same number. Both exist when a backup was restored
    next to newer files.
    """
    found: dict[int, SegmentFile] = {}
    for path in folder.glob("*.redo"):
        number, _, rest = path.name.partition(".")
        if not number.isdigit():
            continue
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # archived or purged meanwhile
            continue
        file = SegmentFile(int(number), path, rest == "archived.redo", size)
        if file.is_archived or file.number not in found:
            found[file.number] = file
    return [found[number] for number in sorted(found)]


def online_segment(folder: Path, number: int) -> Path:
    """Return the path of an online segment.

    Args:
        folder: the redo log's folder.
        number: the segment's number.
    """
    return folder / f"{number:016d}.redo"


def _archived(folder: Path, number: int) -> Path:
    return folder / f"{number:016d}.archived.redo"


def open_segment(folder: Path, number: int, *, after_scn: Scn = FIRST_SCN) -> int:
    """Open a segment for reading, online or archived.

    Args:
        folder: the segments' folder.
        number: the segment's number.
        after_scn: the caller's position, for messages.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        LogGone: the segment was purged.
        RedoError: the segment is missing.
    """
    # An online file next to an archived one is an older copy. A rename turns online into archived: this order of
    # lookups cannot miss the file.
    for path in (_archived(folder, number), online_segment(folder, number), _archived(folder, number)):
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
    numbers = [file.number for file in list_segments(folder)]
    if not numbers or number < numbers[0]:
        raise LogGone(f"redo segment {number} was purged", hint=INSTANTIATE_AGAIN, segment=number)
    raise RedoError(
        f"redo segment {number} is missing; transactions after SCN {scn_text(after_scn)} are missing",
        hint=RESTORE_SEGMENT,
        segment=number,
        offset=0,
        after_scn=after_scn,
    )


# --------------------------------------------------------------------------- reading


def check_preamble(path: Path, descriptor: int) -> None:
    """Refuse a file that is no redo segment of this format.

    Args:
        path: path of the file, for messages.
        descriptor: open for reading.
    """
    preamble = os.pread(descriptor, PREAMBLE_BYTES, 0)
    if len(preamble) < PREAMBLE_BYTES or not preamble.startswith(_PREAMBLE_NAME):
        raise RedoError(
            f"{path.name} is not a redo segment, or its first bytes are damaged",
            hint=RESTORE_SEGMENT,
            segment=path.name,
            offset=0,
        )
    version = _PREAMBLE.unpack(preamble)[1]
    if version != FORMAT_VERSION:
        raise RedoError(
            f"{path.name} has redo format {version}, this release reads format {FORMAT_VERSION}",
            hint="mine it with the release that wrote it",
            segment=path.name,
            format=version,
        )


def _read_record(descriptor: int, offset: int, end: int) -> tuple[RecordHeader, bytes] | None:
    """Return the checked record at `offset`; None: no undamaged record there ends at or before `end`."""
    header = RecordHeader.unpack(os.pread(descriptor, HEADER_BYTES, offset))
    if header is None or offset + header.record_bytes > end:
        return None
    payload = _read_payload(descriptor, offset, header)
    return None if payload is None else (header, payload)


def _read_payload(descriptor: int, offset: int, header: RecordHeader) -> bytes | None:
    payload = os.pread(descriptor, header.payload_bytes, offset + HEADER_BYTES)
    while len(payload) < header.payload_bytes:  # one call moves at most about 2 GB, or was interrupted
        more = os.pread(descriptor, header.payload_bytes - len(payload), offset + HEADER_BYTES + len(payload))
        if not more:
            return None
        payload += more
    return payload if checksum(payload) == header.payload_crc else None


def _records_beyond(descriptor: int, offset: int, end: int) -> Iterator[RecordHeader]:
    """Yield headers of undamaged records after `offset`, found by their magic."""
    window_start = offset
    while window_start < end:
        window = os.pread(descriptor, _SEARCH_BYTES + HEADER_BYTES, window_start)
        place = window.find(MAGIC)
        while 0 <= place < _SEARCH_BYTES:
            found = _read_record(descriptor, window_start + place, end)
            if found is not None:
                yield found[0]
            place = window.find(MAGIC, place + 1)
        window_start += _SEARCH_BYTES


def _damaged(path: Path, descriptor: int, offset: int, after_scn: Scn, *, what: str = "is damaged") -> RedoError:
    """Return the error for an unreadable record, with the missing transactions."""
    beyond = next(_records_beyond(descriptor, offset + 1, os.fstat(descriptor).st_size), None)
    through = beyond.last_commit_scn if beyond is not None else 0
    missing = (
        f"after SCN {scn_text(after_scn)} up to SCN {scn_text(through)}"
        if through > after_scn
        else f"after SCN {scn_text(after_scn)}"
    )
    return RedoError(
        f"redo segment {path.name} {what} at offset {offset}; transactions {missing} are missing",
        hint=RESTORE_SEGMENT,
        segment=path.name,
        offset=offset,
        after_scn=after_scn,
        through_scn=through,
    )


def read_head(path: Path) -> SegmentHead:
    """Read and check the SEGMENT record of a segment.

    Raises:
        RedoError: the record is damaged, or has another format version.
        FileNotFoundError: the segment was archived or purged meanwhile.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_preamble(path, descriptor)
        first = _read_record(descriptor, PREAMBLE_BYTES, os.fstat(descriptor).st_size)
        if first is None or first[0].type is not RecordType.SEGMENT:
            raise _damaged(path, descriptor, PREAMBLE_BYTES, Scn(0), what="has a damaged head")
        return decode_head(first[1])
    finally:
        os.close(descriptor)


def scan_segment(file: SegmentFile, take: Callable[[RecordHeader, bytes], None]) -> SegmentScan:
    """Read a whole segment and check every byte of it.

    Args:
        file: the segment; an online one may have a torn tail.
        take: called with every undamaged record in order.

    Raises:
        RedoError: damage that is not a torn tail.
    """
    head = read_head(file.path)
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        offset, crc, number, restart_segment = PREAMBLE_BYTES, 0, 0, head.restart_segment
        last: RecordHeader | None = None
        while (found := _read_record(descriptor, offset, end)) is not None:
            header, payload = found
            if header.number != number or (last is not None and last.type is RecordType.FOOTER):
                raise _damaged(file.path, descriptor, offset, header.last_commit_scn, what="has records out of order")
            if header.type is RecordType.FOOTER:
                _check_footer(file.path, descriptor, offset, decode_footer(payload), (number, header.end_scn, crc))
            else:
                crc = checksum(header.pack(), crc)
            take(header, payload)
            if not (header.open_at_start and header.open_at_end and header.commit_end == 0):
                restart_segment = file.number
            last, offset, number = header, offset + header.record_bytes, number + 1
        if last is None or number < HEAD_RECORDS:
            raise _damaged(file.path, descriptor, offset, head.first_scn, what="has a damaged head")
        is_complete = last.type is RecordType.FOOTER
        if offset < end or (file.is_archived and not is_complete):
            _check_tail(file, descriptor, offset, end, last, is_complete=is_complete)
        return SegmentScan(
            head=head,
            last=last,
            end_offset=offset,
            header_crc=crc,
            restart_segment=restart_segment,
            is_complete=is_complete,
        )
    finally:
        os.close(descriptor)


def _check_footer(path: Path, descriptor: int, offset: int, footer: SegmentFooter, found: tuple[int, int, int]) -> None:
    if (footer.record_count, footer.last_scn, footer.header_crc) != found:
        raise _damaged(path, descriptor, offset, footer.last_scn, what="does not fit its footer")


def _check_tail(
    file: SegmentFile, descriptor: int, offset: int, end: int, last: RecordHeader, *, is_complete: bool
) -> None:
    """Raise unless only a torn tail follows `offset`."""
    if file.is_archived or is_complete:
        raise _damaged(file.path, descriptor, offset, last.commit_scn)
    for beyond in _records_beyond(descriptor, offset + 1, end):
        if beyond.durable_offset > offset:
            raise _damaged(file.path, descriptor, offset, last.commit_scn)


def check_number(head: SegmentHead, number: int) -> None:
    """Refuse a segment whose file has the name of another one.

    Args:
        head: the segment's head.
        number: number in the file name.

    Raises:
        RedoError: they differ.
    """
    if head.number != number:
        raise RedoError(
            f"redo segment {number} is missing: its file holds segment {head.number}",
            hint=RESTORE_SEGMENT,
            segment=number,
        )


class RedoReader:
    """Follows the redo of one folder, record by record, across segments, up to the durable position.

    Args:
        folder: the segments' folder.
        segment: number of the first segment.
        offset: start in that segment, at the beginning of a record.
    """

    def __init__(self, folder: Path, segment: int, offset: int = PREAMBLE_BYTES) -> None:
        self._folder = folder
        self._segment = segment
        self._offset = offset
        self._path = Path()
        self._descriptor = -1
        self._closer: weakref.finalize[[int], RedoReader] | None = None
        self._scn = Scn(0)
        self._open()

    @property
    def segment(self) -> int:
        """The segment of the next record."""
        return self._segment

    @property
    def offset(self) -> int:
        """Offset of the next record."""
        return self._offset

    def next_header(self, durable: RedoPosition) -> RecordHeader | None:
        """Read the next record's header without moving; None at the durable end.

        Raises:
            RedoError: the record is damaged, or a segment is missing.
            LogGone: the segment was purged.
        """
        while True:
            if self._segment > durable.segment or (self._segment == durable.segment and self._offset >= durable.offset):
                return None
            header = self.read_header()
            if header is None and self._is_another_file():
                header = self.read_header()
            if header is None:
                raise _damaged(self._path, self._descriptor, self._offset, self._scn)
            if header.type is not RecordType.FOOTER:
                return header
            if self._segment == durable.segment:
                return None
            self.payload(header)
            self._segment, self._offset = self._segment + 1, PREAMBLE_BYTES
            self._open()

    def payload(self, header: RecordHeader) -> bytes:
        """Read and check the payload of the record whose header `next_header` returned.

        Raises:
            RedoError: the payload is damaged.
        """
        payload = _read_payload(self._descriptor, self._offset, header)
        if payload is None and self._is_another_file():
            payload = _read_payload(self._descriptor, self._offset, header)
        if payload is None:
            raise _damaged(self._path, self._descriptor, self._offset, self._scn)
        return payload

    def _is_another_file(self) -> bool:
        """Reopen the segment, and return whether it is another file now.

        That happens when its folder was restored, or removed and written again.
        """
        before = os.fstat(self._descriptor)
        self._open()
        return not os.path.samestat(before, os.fstat(self._descriptor))

    @property
    def size_bytes(self) -> int:
        """Bytes of the open segment, durable or not."""
        return os.fstat(self._descriptor).st_size

    def read_header(self) -> RecordHeader | None:
        """Return the header of the next record in the open segment, a footer's too.

        None: there is no undamaged record.
        """
        return RecordHeader.unpack(os.pread(self._descriptor, HEADER_BYTES, self._offset))

    def skip(self, header: RecordHeader) -> None:
        """Move behind the record whose header `next_header` returned."""
        self._offset += header.record_bytes
        self._scn = header.commit_scn

    def close(self) -> None:
        """Close the segment; idempotent. Dropping the reader closes it too."""
        if self._closer is not None:
            self._closer()
        self._descriptor = -1

    def _open(self) -> None:
        self.close()
        self._descriptor = open_segment(self._folder, self._segment, after_scn=self._scn)
        self._closer = weakref.finalize(self, os.close, self._descriptor)
        self._path = online_segment(self._folder, self._segment)  # for messages: it may be archived by now
        check_preamble(self._path, self._descriptor)


# --------------------------------------------------------------------------- writing


class SegmentWriter:
    """Writes one online segment, made by `create` or `reopen`.

    After any error from `append` or `sync` call `rollback`: it truncates the file to its durable offset.
    """

    def __init__(self, path: Path, head: SegmentHead, descriptor: int, *, offset: int, number: int, crc: int) -> None:
        self.head = head
        self.is_finished = False
        self._path = path
        self._descriptor = descriptor
        self._closer = weakref.finalize(self, os.close, descriptor)
        self._offset, self._number, self._crc = offset, number, crc
        self._durable = (offset, number, crc)

    @property
    def number(self) -> int:
        """The segment's number."""
        return self.head.number

    @property
    def size_bytes(self) -> int:
        """Bytes in the segment, durable or not."""
        return self._offset

    @property
    def durable_offset(self) -> int:
        """Bytes in the segment that are durable."""
        return self._durable[0]

    @classmethod
    def create(cls, folder: Path, head: SegmentHead, snapshot: DictionarySnapshot) -> SegmentWriter:
        """Create segment `head.number` with its head and its dictionary, durable when this returns.

        Args:
            folder: the redo folder; must exist.
            head: head of the new segment; its number is still unused.
            snapshot: the dictionary in force at the segment's start.

        Raises:
            RedoFull: no space; no file is left.
        """
        path = online_segment(folder, head.number)
        state = LogState(head.first_scn, head.last_commit_scn, head.is_open, head.last_transaction)
        temporary = path.with_suffix(".redo.tmp")
        descriptor, writer = -1, None
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(descriptor, _PREAMBLE.pack(_PREAMBLE_NAME, FORMAT_VERSION))
            writer = cls(path, head, descriptor, offset=PREAMBLE_BYTES, number=0, crc=0)
            for kind, payload in (
                (RecordType.SEGMENT, encode_head(head)),
                (RecordType.DICTIONARY, encode_dictionary(snapshot)),
            ):
                writer.append(kind, payload, before=state, after=state, written_us=head.created_us)
            writer.sync()
            temporary.rename(path)
            sync_folder(folder)
        except (OSError, RedoError) as error:
            if writer is not None:
                writer.close()
            elif descriptor >= 0:
                os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise error if isinstance(error, RedoError) else write_error(path, error) from error
        return writer

    @classmethod
    def reopen(cls, file: SegmentFile, scan: SegmentScan) -> SegmentWriter:
        """Continue a segment without a footer: cut its torn tail, make the rest durable.

        Args:
            file: the online segment.
            scan: result of `scan_segment` for the same file, with `is_complete` False.

        Raises:
            RedoFull: no space.
            RedoError: the disk refused the write.
        """
        descriptor = os.open(file.path, os.O_RDWR)
        writer = cls(
            file.path,
            scan.head,
            descriptor,
            offset=scan.end_offset,
            number=scan.last.number + 1,
            crc=scan.header_crc,
        )
        writer.rollback()
        return writer

    def append(
        self,
        kind: RecordType,
        payload: bytes,
        *,
        before: LogState,
        after: LogState,
        commit_end: int = 0,
        has_descriptions: bool = False,
        written_us: int = 0,
    ) -> RecordHeader:
        """Write one record; not durable before `sync`.

        Args:
            kind: kind of the payload.
            payload: at most `PAYLOAD_BYTES_MAX` bytes.
            before: state of the log before the record.
            after: state of the log after it.
            commit_end: as in `RecordHeader`.
            has_descriptions: as in `RecordHeader`.
            written_us: as in `RecordHeader`.

        Raises:
            RedoFull: no space.
            RedoError: the disk refused the write.
        """
        header = RecordHeader(
            type=kind,
            payload_bytes=len(payload),
            payload_crc=checksum(payload),
            number=self._number,
            end_scn=after.end_scn,
            last_commit_scn=before.commit_scn,
            commit_scn=after.commit_scn,
            commit_end=commit_end,
            open_at_start=before.is_open,
            open_at_end=after.is_open,
            has_descriptions=has_descriptions,
            written_us=written_us,
            durable_offset=self._durable[0],
            transaction=after.transaction,
        )
        packed = header.pack()
        try:
            failpoint("log_writer.write")
            self._write(packed, payload)
        except OSError as error:
            raise write_error(self._path, error) from error
        self._offset += header.record_bytes
        self._number += 1
        if kind is not RecordType.FOOTER:
            self._crc = checksum(packed, self._crc)
        return header

    def sync(self) -> int:
        """Make everything appended durable; return the durable offset."""
        try:
            failpoint("log_writer.before_fsync")
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise write_error(self._path, error) from error
        self._durable = (self._offset, self._number, self._crc)
        return self._offset

    def rollback(self) -> None:
        """Truncate the segment to its durable offset.

        Later records are written anew, so a failed fsync that dropped pages does no harm.
        """
        self._offset, self._number, self._crc = self._durable
        try:
            os.ftruncate(self._descriptor, self._offset)
            os.fdatasync(self._descriptor)
        except OSError as error:
            # Never `RedoFull`, which is retried: the next opener of the segment must cut what could not be cut here.
            said = write_error(self._path, error)
            raise RedoError(said.message, hint=said.hint, segment=self._path.name) from error

    def finish(self, state: LogState, written_us: int) -> None:
        """Write the footer, durably; nothing can be appended after it.

        Args:
            state: state of the log at the segment's end.
            written_us: now, microseconds since the epoch.
        """
        footer = SegmentFooter(record_count=self._number, last_scn=state.end_scn, header_crc=self._crc)
        self.append(RecordType.FOOTER, encode_footer(footer), before=state, after=state, written_us=written_us)
        self.sync()
        self.is_finished = True

    def archive(self) -> None:
        """Rename the finished segment to its archived name. Can be repeated after a failure."""
        archive_segment(self._path)
        self.close()

    def close(self) -> None:
        """Close the file; idempotent. Dropping the writer closes it too."""
        self._closer()
        self._descriptor = -1

    def _write(self, header: bytes, payload: bytes) -> None:
        total = len(header) + len(payload)
        written = os.pwritev(self._descriptor, [header, payload], self._offset)
        if written < total:  # interrupted, or almost no space: the next write shows which
            rest = memoryview(header + payload)[written:]
            while rest:
                written = os.pwrite(self._descriptor, rest, self._offset + total - len(rest))
                rest = rest[written:]


def archive_segment(path: Path) -> None:
    """Rename a complete online segment, durably. Can be repeated after a failure."""
    archived = _archived(path.parent, int(path.name.partition(".")[0]))
    try:
        if path.exists() or not archived.exists():  # otherwise it was renamed, but not durably
            path.rename(archived)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> RedoError:
    """Translate an OSError from writing a file of the redo log: the disk is full, or broken.

    Args:
        path: path of the file; its folder is the redo folder.
        error: the system's error.

    Returns:
        `RedoFull` when space or quota is used up, else a `RedoError` for an operator.
    """
    if error.errno in _DISK_FULL:
        return RedoFull(
            f"no space for redo in {path.parent.name}: {os.strerror(error.errno or 0)}",
            hint="free space on the disk; writing goes on by itself, nothing is lost and WAL grows at the source",
            segment=path.name,
        )
    return RedoError(
        f"redo file {path.name} cannot be written: {error.strerror or error}",
        hint="check the disk",
        segment=path.name,
    )
