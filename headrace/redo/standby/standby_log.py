"""Standby redo log: a copy of a source's redo log at another site, byte for byte, for the capture processes there.

Longer than 500 lines: writing, syncing and acknowledging are only correct together.

Job
    Write the redo that the source shipped, verify every record, and make it durable before it is acknowledged.

Main path
    StandbyLog.place (sent to the source) -> take (frames, written and verified) -> sync -> StandbyLog.position, which
    the capture processes watch, and StandbyLog.place, which is acknowledged -> purge.

States
    RECEIVING               the last step wrote redo. Memory only, like both others.
    WAITING FOR REDO        nothing arrived.
    PAUSED: REDO IS FULL    the standby redo log has reached its bound: nothing is taken until `purge` has made room,
                            and the source keeps what is missing here.

Durable when
    `sync` returned: whole records only, up to the last one whose checksums fit. Bytes behind them in the file are not
    durable and not reported. They are cut off when the log is opened again or the stream breaks; the source sends them
    again. A new segment has a temporary name until its head is durable, so it exists completely or not at all.

Worked flow
    place (2, 500) -> frames (2, 500..900), (2, 900..1000): a record ends at 950 -> sync -> position (2, 950),
      acknowledged
    the stream breaks -> rollback cuts the file to 950 -> place (2, 950) -> frame (2, 950..1200), its last record a
    footer -> sync -> segment 2 is archived; frame (3, 0..) -> segment 3
    this process is killed between write and fsync: the file is read from its beginning; whole records count, the rest
    is cut

Source: Oracle Streams Concepts and Administration 10.2, "Real-Time Downstream Capture" (standby redo log, log
switches).
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.base.clock import Clock, SystemClock
from headrace.base.durable_file import sync_folder
from headrace.base.errors import ProtocolError, RedoError
from headrace.base.failpoints import failpoint
from headrace.databases.timelines import is_of_one_history
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.ports import RedoPosition
from headrace.links.standby import FRAME_BYTES, RedoFrame, StandbyPlace
from headrace.redo.checkpoints import PurgeBounds, RequiredCheckpoints
from headrace.redo.records import (
    HEAD_RECORDS,
    HEADER_BYTES,
    RecordHeader,
    RecordType,
    SegmentHead,
    checksum,
    decode_footer,
    decode_head,
    fingerprint,
)
from headrace.redo.segments import (
    PREAMBLE_BYTES,
    SegmentFile,
    archive_segment,
    check_preamble,
    online_segment,
    write_error,
)
from headrace.redo.standby.kept_segments import KeptSegments

__all__ = ["StandbyLog", "StandbyStatistics"]

_SMALL_BYTES_MAX = 1 << 20  # of a head's or a footer's payload, kept in memory: a few hundred bytes in practice


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStatistics:
    """Content of a standby redo log, and its intake since it was opened.

    Args:
        redo_bytes: bytes on disk.
        redo_bytes_max: their bound.
        segments: segments on disk.
        position: position up to which redo is durable here.
        source_scn: position up to which it was durable at the source when the newest frame was sent.
        received_bytes: bytes taken.
        syncs: fsyncs of them.
        duplicate_bytes: duplicate bytes that were dropped.
        purged_bytes: bytes removed.
        required_checkpoint_scn: lowest of all capture processes'; 0: none reported yet.
        is_one_transaction: the bound is reached and no segment can be purged, whatever the capture processes need: one
            transaction fills them.
    """

    redo_bytes: int
    redo_bytes_max: int
    segments: int
    position: RedoPosition
    source_scn: Scn
    received_bytes: int
    syncs: int
    duplicate_bytes: int
    purged_bytes: int
    required_checkpoint_scn: Scn
    is_one_transaction: bool


class StandbyLog:
    """Owns the folder of one source's redo at a downstream site.

    Not shared between threads, except for `required_checkpoints.record`.

    Args:
        folder: the segments' folder; created when missing.
        source: source site of the log.
        redo_bytes_max: bound of the standby redo log.
        clock: clock for intervals.

    Attributes:
        required_checkpoints: redo that the capture processes at this site need.

    Raises:
        RedoError: a segment is missing or of another site, or its head is damaged.
    """

    def __init__(self, folder: Path, source: str, *, redo_bytes_max: int, clock: Clock | None = None) -> None:
        self._folder, self._source, self._redo_bytes_max = folder, source, redo_bytes_max
        self._kept = KeptSegments(folder, source)
        clock = clock or SystemClock()
        self.required_checkpoints = RequiredCheckpoints(folder, clock)
        self._bounds = PurgeBounds(self.required_checkpoints.save, clock=clock)
        self._segment: _Segment | None = None  # the one that is written
        self._ended: SegmentHead | None = None  # the newest one, if it is complete
        self._place = StandbyPlace()
        self._position = RedoPosition(0, 0, FIRST_SCN)
        self._received_bytes = self._syncs = self._duplicate_bytes = self._purged_bytes = 0
        self._source_scn = FIRST_SCN
        newest = self._kept.read()
        if newest is not None:
            self._open_newest(newest)

    # ------------------------------------------------------------------ state for others

    @property
    def place(self) -> StandbyPlace:
        """Place up to which the redo log is durable here; reported to the source, which continues from it."""
        return self._place

    @property
    def position(self) -> RedoPosition:
        """The same for capture processes. Replaced as a whole, so any thread may read it."""
        return self._position

    @property
    def next_segment(self) -> int:
        """Number of the segment that is written or comes next; 0: any, the log is empty."""
        if self._segment is not None or not self._place.segment:
            return self._place.segment
        return self._place.segment + 1

    @property
    def oldest_scn(self) -> Scn:
        """Redo can be mined from here on. Any thread may read it."""
        return self._kept.oldest_scn

    @property
    def is_full(self) -> bool:
        """Whether the log has reached its bound: take nothing more before `purge` made room."""
        return self._kept.redo_bytes >= self._redo_bytes_max

    def statistics(self) -> StandbyStatistics:
        """Return content and intake of the log. Any thread may call it."""
        return StandbyStatistics(
            redo_bytes=self._kept.redo_bytes,
            redo_bytes_max=self._redo_bytes_max,
            segments=self._kept.count,
            position=self._position,
            source_scn=self._source_scn,
            received_bytes=self._received_bytes,
            syncs=self._syncs,
            duplicate_bytes=self._duplicate_bytes,
            purged_bytes=self._purged_bytes,
            required_checkpoint_scn=self.required_checkpoints.lowest or FIRST_SCN,
            is_one_transaction=self._is_one_transaction(),
        )

    # ------------------------------------------------------------------ taking

    def take(self, frame: RedoFrame) -> None:
        """Write a frame and verify its records; not durable before `sync`.

        Duplicate bytes are dropped. After an error call `rollback`, and ask the source to continue from `place`.

        Args:
            frame: the next one of the stream.

        Raises:
            ProtocolError: it does not continue the log, or its records do not fit their checksums.
            RedoError: the disk refused the write (`RedoFull`: no space), or it is redo of another log.
        """
        self._source_scn = max(self._source_scn, frame.source_scn)
        if self._segment is not None and self._segment.is_complete:
            self.sync()
        data = self._new_bytes(frame)
        if not data:
            return
        if self._segment is None:
            head = self._ended
            self._segment = _Segment.create(self._folder, frame.segment, before=head, end=self._place)
        self._segment.write(data)
        self._received_bytes += len(data)

    def sync(self) -> bool:
        """Make the whole records that were taken durable; a complete segment is archived.

        Returns:
            Whether `place` moved.

        Raises:
            RedoError: the disk refused.
        """
        segment = self._segment
        if segment is None or (segment.verified <= segment.durable and not segment.is_complete):
            return False
        segment.sync()
        self._syncs += 1
        self._publish(segment)
        if segment.is_complete:
            archive_segment(segment.path)
            self._ended = segment.head
            segment.close()
            self._segment = None
        return True

    def rollback(self) -> None:
        """Drop what was taken and is not durable; idempotent.

        Raises:
            RedoError: the disk refused.
        """
        segment = self._segment
        if segment is None:
            return
        if not segment.rollback():
            self._segment = None
        elif segment.durable > 0:
            self._publish(segment)  # it may have failed after its fsync

    def purge(self) -> int:
        """Remove archived segments that no capture process here needs, after saving their needs; call it often.

        Returns:
            Bytes freed.
        """
        # Read once: another thread may record more before the purge.
        kept, needed = self.required_checkpoints.keep_from(self._kept.oldest_scn), self.required_checkpoints.needed_scn
        # The newest one stays: the source continues from there.
        newest = max(self._kept.heads, default=0)
        keep_from = 0
        if needed is not None and kept is not None:
            keep_from = min(self._kept.first_kept(needed, min(kept, needed), self._redo_bytes_max), newest)
        self._bounds.save(purges=self._kept.has_below(keep_from))
        freed = self._kept.purge(keep_from)
        self._purged_bytes += freed
        return freed

    def close(self) -> None:
        """Close the files; durable redo stays. Idempotent."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
        self.required_checkpoints.save()

    # ------------------------------------------------------------------ inside

    def _new_bytes(self, frame: RedoFrame) -> bytes:
        """Return the part of a frame that is new."""
        segment = self._segment
        if segment is not None:
            number, offset = segment.number, segment.written
        elif self._place.segment:
            number, offset = self._place.segment + 1, 0
        else:
            number, offset = frame.segment, 0  # the first one: the source decides where its redo begins
        if frame.segment < number:
            self._duplicate_bytes += len(frame.data)
            return b""
        if frame.segment > number or frame.offset > offset:
            raise ProtocolError(
                f"redo of {self._source} came from segment {frame.segment}, offset {frame.offset}; segment {number},"
                f" offset {offset} is next",
                segment=frame.segment,
                offset=frame.offset,
            )
        known = min(len(frame.data), offset - frame.offset)
        self._duplicate_bytes += known
        return frame.data[known:] if known else frame.data

    def _is_one_transaction(self) -> bool:
        """Return `StandbyStatistics.is_one_transaction`.

        Mining from the end of the log begins where a transaction began that was open at its newest segment.
        """
        heads = dict(self._kept.heads)  # another thread may call this
        return bool(heads) and self._kept.bytes_from(heads[max(heads)].restart_segment) >= self._redo_bytes_max

    def _publish(self, segment: _Segment) -> None:
        assert segment.head is not None
        self._kept.heads[segment.number] = segment.head
        self._kept.sizes[segment.number] = segment.durable
        self._place = segment.place
        self._position = RedoPosition(segment.number, segment.durable, segment.place.scn)

    def _open_newest(self, file: SegmentFile) -> None:
        segment = _Segment.reopen(file, self._source)
        segment.sync()
        if not file.is_archived:
            segment.rollback()
        self._publish(segment)
        if segment.is_complete:
            if not file.is_archived:
                archive_segment(file.path)
            self._ended = segment.head
            segment.close()
        elif file.is_archived:
            segment.close()
            raise RedoError(
                f"standby redo segment {file.path.name} is damaged at offset {segment.durable}",
                hint="remove that file: the source sends it again, or says that it is gone",
                segment=file.path.name,
                offset=segment.durable,
            )
        else:
            self._segment = segment


class _Segment:
    """One segment, written and verified as its bytes arrive."""

    def __init__(
        self, path: Path, number: int, descriptor: int, *, before: SegmentHead | None, end: StandbyPlace
    ) -> None:
        self.path, self.number = path, number
        self.head: SegmentHead | None = None
        self.place = StandbyPlace()  # the durable one
        self._descriptor = descriptor
        self._closer = weakref.finalize(self, os.close, descriptor)  # closes it also when the log could not be opened
        self._is_named = False
        self._before, self._end = before, end
        self.written = self.durable = 0
        self._records = _Records(path.name)
        self._durable_records = self._records.at_end()

    @classmethod
    def create(cls, folder: Path, number: int, *, before: SegmentHead | None, end: StandbyPlace) -> _Segment:
        """Begin a segment under a temporary name.

        Args:
            folder: the segments' folder.
            number: number of the new one.
            before: head of the segment before it; None: there is none.
            end: end of that one.
        """
        path = online_segment(folder, number)
        temporary = path.with_suffix(".redo.tmp")
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise write_error(path, error) from error
        return cls(path, number, descriptor, before=before, end=end)

    @classmethod
    def reopen(cls, file: SegmentFile, source: str) -> _Segment:
        """Read a segment from its beginning; whole records count.

        Args:
            file: the newest one.
            source: source site of the log.

        Raises:
            RedoError: its head is damaged.
        """
        segment = cls(file.path, file.number, os.open(file.path, os.O_RDWR), before=None, end=StandbyPlace())
        segment._is_named = True
        check_preamble(file.path, segment._descriptor)
        with contextlib.suppress(ProtocolError):  # what does not fit its checksum is cut: the source still has it
            while data := os.pread(segment._descriptor, FRAME_BYTES, segment.written):
                segment.written += len(data)
                segment._verify(data)
        if segment._records.count < HEAD_RECORDS or segment.head is None:
            segment.close()
            raise RedoError(
                f"standby redo segment {file.path.name} has a damaged head",
                segment=file.path.name,
                offset=PREAMBLE_BYTES,
                hint=f"remove that file: the source ({source}) sends it again, or says that it is gone",
            )
        return segment

    @property
    def verified(self) -> int:
        """Bytes up to the end of the last whole record; 0 while the head is incomplete."""
        return self._records.end if self._records.count >= HEAD_RECORDS else 0

    @property
    def is_complete(self) -> bool:
        """Whether its footer has arrived."""
        return self._records.is_complete

    def write(self, data: bytes) -> None:
        """Write the next bytes and verify the records that end in them.

        Raises:
            ProtocolError: a record does not fit its checksum, or the segment does not continue the one before.
            RedoError: the disk refused.
        """
        try:
            failpoint("redo_receiver.write")
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(self._descriptor, rest, self.written + len(data) - len(rest)) :]
        except OSError as error:
            raise write_error(self.path, error) from error
        self.written += len(data)
        self._verify(data)

    def sync(self) -> None:
        """Make the whole records durable."""
        records = self._records
        try:
            failpoint("redo_receiver.before_fsync")
            if not self._is_named:
                check_preamble(self.path, self._descriptor)
            os.fdatasync(self._descriptor)
            if self._is_named:
                self._check_in_place()
            else:
                self.path.with_suffix(".redo.tmp").rename(self.path)
                sync_folder(self.path.parent)
                self._is_named = True
            self.durable = records.end
            self._durable_records = records.at_end()
            self.place = StandbyPlace(
                segment=self.number,
                offset=records.end,
                fingerprint=records.fingerprint,
                scn=records.end_scn,
            )
            failpoint("redo_receiver.after_fsync")
        except OSError as error:
            raise write_error(self.path, error) from error

    def rollback(self) -> bool:
        """Cut the file to its durable bytes; False: none of it is durable, and the file is removed."""
        if not self._is_named:
            self.close()
            self.path.with_suffix(".redo.tmp").unlink(missing_ok=True)
            return False
        try:
            os.ftruncate(self._descriptor, self.durable)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.written = self.durable
        self._records = self._durable_records.at_end()
        return True

    def _check_in_place(self) -> None:
        """Refuse to call a removed or replaced file durable: the source would purge redo that is lost here."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                return
        raise RedoError(
            f"standby redo segment {self.path.name} was removed or replaced while it was written",
            hint="start its receiver again (`headrace start FILE redo:NAME`): it continues from the remaining redo",
            segment=self.path.name,
            offset=self.durable,
        ) from OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # an error of the disk here, not of the received data

    def close(self) -> None:
        """Close the file; idempotent."""
        self._closer()
        self._descriptor = -1

    def _verify(self, data: bytes) -> None:
        self._records.feed(data, self._take_head)

    def _take_head(self, payload: bytes) -> None:
        before, end = self._before, self._end
        self.head = head = decode_head(payload)
        if head.number != self.number:
            raise RedoError(
                f"{self.path.name} says that it is segment {head.number}",
                hint="this is a defect of the source",
                segment=self.path.name,
            )
        if before is None:
            return
        mine, theirs = before.options, head.options
        is_same = (mine.database_kind, mine.system_identifier) == (
            theirs.database_kind,
            theirs.system_identifier,
        ) and is_of_one_history(mine, theirs)
        if head.source != before.source or not is_same or head.first_scn != end.scn:
            raise RedoError(
                f"redo segment {head.number} of {head.source} does not continue segment {before.number} of"
                f" {before.source}, which ends at SCN {scn_text(end.scn)}: it begins at SCN {scn_text(head.first_scn)}"
                + ("" if is_same else ", in another database or on another timeline of its name"),
                hint="it is another redo log: remove the standby redo log and start the receiver, which begins anew",
                segment=self.path.name,
                after_scn=end.scn,
            )


@dataclass(slots=True)
class _Records:
    """Verifies the records of one segment as its bytes arrive, whatever the frame borders.

    Args:
        name: name of the segment, for messages.
        end: bytes up to the end of the last whole record.
        count: whole records.
        header_crc: over their headers without a footer's, for comparison with the footer.
        fingerprint: over them without a footer.
        end_scn: after the last of them.
        is_complete: the last of them is a footer.
    """

    name: str
    end: int = 0
    count: int = 0
    header_crc: int = 0
    fingerprint: int = 0
    end_scn: Scn = FIRST_SCN
    is_complete: bool = False
    _header: RecordHeader | None = None
    _pending: bytes = b""  # the beginning of a header, or of a small payload
    _payload_bytes: int = 0  # received bytes of the payload of `_header`
    _payload_crc: int = 0

    def at_end(self) -> _Records:
        """Return the state at the end of the last whole record, for a rollback."""
        return replace(self, _header=None, _pending=b"", _payload_bytes=0, _payload_crc=0)

    def feed(self, data: bytes, take_head: Callable[[bytes], None]) -> None:
        """Verify more bytes.

        Args:
            data: the next ones.
            take_head: called with the payload of the SEGMENT record when that is complete.

        Raises:
            ProtocolError: a record is damaged or out of order; it begins at `end`.
        """
        view, at = memoryview(data), 0
        if self.end == 0:
            at = min(len(view), PREAMBLE_BYTES - len(self._pending))
            self._pending += bytes(view[:at])
            if len(self._pending) == PREAMBLE_BYTES:
                self.end, self._pending = PREAMBLE_BYTES, b""
        while at < len(view):
            if self._header is None:
                at = self._take_header(view, at)
            if self._header is not None:
                at = self._take_payload(view, at, take_head)

    def _take_header(self, view: memoryview, at: int) -> int:
        more = min(len(view) - at, HEADER_BYTES - len(self._pending))
        self._pending += bytes(view[at : at + more])
        if len(self._pending) == HEADER_BYTES:
            header = RecordHeader.unpack(self._pending)
            if header is None or header.number != self.count or self.is_complete:
                raise self._damaged()
            if self.count == 0 and header.type is not RecordType.SEGMENT:
                raise self._damaged()
            self._header, self._pending, self._payload_bytes, self._payload_crc = header, b"", 0, 0
        return at + more

    def _take_payload(self, view: memoryview, at: int, take_head: Callable[[bytes], None]) -> int:
        header = self._header
        assert header is not None
        more = min(len(view) - at, header.payload_bytes - self._payload_bytes)
        piece = bytes(view[at : at + more])
        self._payload_crc = checksum(piece, self._payload_crc)
        self._payload_bytes += more
        if header.type in {RecordType.SEGMENT, RecordType.FOOTER}:
            if header.payload_bytes > _SMALL_BYTES_MAX:
                raise self._damaged()
            self._pending += piece
        if self._payload_bytes == header.payload_bytes:
            self._end_record(header, take_head)
        return at + more

    def _end_record(self, header: RecordHeader, take_head: Callable[[bytes], None]) -> None:
        if self._payload_crc != header.payload_crc:
            raise self._damaged()
        if header.type is RecordType.FOOTER:
            footer = decode_footer(self._pending)
            if (footer.record_count, footer.last_scn, footer.header_crc) != (
                self.count,
                header.end_scn,
                self.header_crc,
            ):
                raise self._damaged()
            self.is_complete = True
        else:
            self.header_crc = checksum(header.pack(), self.header_crc)
            self.fingerprint = fingerprint(header, self.fingerprint)
        if header.type is RecordType.SEGMENT:
            take_head(self._pending)
        self.end += header.record_bytes
        self.count += 1
        self.end_scn = header.end_scn
        self._header, self._pending = None, b""

    def _damaged(self) -> ProtocolError:
        return ProtocolError(
            f"redo segment {self.name} is damaged at offset {self.end}, in transit or at the source, after SCN"
            f" {scn_text(self.end_scn)}",
            hint="it is requested again; if this persists, the source's redo is damaged there",
            segment=self.name,
            offset=self.end,
        )
