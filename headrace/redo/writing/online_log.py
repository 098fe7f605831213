"""The end of a redo log, where it is written: the online segment, the state of the log, the dictionary in force.

Durable when
    `write` returned: a record and its preceding records are durable together, or none of them is. A failed write is cut
    off again, and the caller writes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headrace.base.clock import Clock
from headrace.base.errors import RedoError
from headrace.databases.ports import DictionaryBuild, LogDecoder, StreamOptions
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import FIRST_SCN
from headrace.links.ports import RedoPosition
from headrace.redo.dictionary import Dictionary, read_dictionary_record
from headrace.redo.records import (
    AwaitedBuild,
    DictionarySnapshot,
    RecordHeader,
    RecordType,
    SegmentHead,
    UnchangedBuild,
    encode_dictionary,
)
from headrace.redo.segments import FIRST_SEGMENT, LogState, SegmentFile, SegmentWriter, archive_segment, scan_segment
from headrace.redo.standby.kept_segments import KeptSegments

__all__ = ["OnlineLog", "Record", "WrittenTotals"]


@dataclass(slots=True)
class WrittenTotals:
    """Totals since the log was opened."""

    records: int = 0
    syncs: int = 0
    data_bytes: int = 0


# Not frozen, which would make each one three microseconds slower: there is one per gulp.
@dataclass(slots=True, kw_only=True)
class Record:
    """A record to write.

    Args:
        kind: DATA, PROGRESS, or DICTIONARY for a build alone.
        data: payload of DATA.
        after: state of the log after it; for the kinds other than DATA, only its progress counts.
        commit_end: as in `RecordHeader`.
        described: tables that DATA describes; None: none.
        awaits: what the build that this DATA awaits must reflect.
    """

    kind: RecordType
    after: LogState
    data: bytes = b""
    commit_end: int = 0
    described: tuple[TableVersion, ...] | None = None
    awaits: AwaitedBuild | None = None


class OnlineLog:
    """The end of one log writer's redo log. Any thread may read `position`.

    Args:
        folder: the segments' folder.
        source: the site's name.
        kept: the segments of the folder.
        decoder_factory: makes the decoder for a stream's options; only its `describe` is used.
        segment_bytes: size at which a log switch happens.
        clock: clock for time stamps and ages.

    Attributes:
        state: state of the log at its end.
        dictionary: dictionary in force there.
        position: position up to which redo is durable; replaced as a whole.
        restart_segment: segment from which redo is needed to mine the open transaction.
        resumes: a new stream began since the last record: the next one is RESUME.
        wrote_at: time of the last record, on the clock.
        segment: the online segment; None: the next record begins one.
        totals: totals since the log was opened.

    Raises:
        RedoError: redo is damaged other than by a torn tail, or a segment is missing.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        kept: KeptSegments,
        decoder_factory: Callable[[StreamOptions], LogDecoder],
        *,
        segment_bytes: int,
        clock: Clock,
    ) -> None:
        self._folder, self._source, self._kept = folder, source, kept
        self._decoder_factory, self._segment_bytes, self._clock = decoder_factory, segment_bytes, clock
        self.state = LogState(FIRST_SCN, FIRST_SCN, is_open=False)
        self.dictionary = Dictionary()
        self.position = RedoPosition(0, 0, FIRST_SCN)
        self.restart_segment = 0
        self.resumes = False
        self.wrote_at = self._created_at = clock.monotonic()
        self.segment: SegmentWriter | None = None
        self._empty_bytes = 0  # of the online segment when it was created
        self.totals = WrittenTotals()
        newest = kept.read()
        if newest is not None:
            self._open(newest)

    @property
    def age_s(self) -> float:
        """Seconds since the online segment was created, or was found empty."""
        return self._clock.monotonic() - self._created_at

    def describe(self, data: bytes, options: StreamOptions) -> tuple[TableVersion, ...]:
        """Return the tables that log bytes describe.

        Args:
            data: payload of DATA.
            options: options of the stream that delivered it.
        """
        return self._decoder_factory(options).describe(np.frombuffer(data, np.uint8))

    def begin(self, options: StreamOptions, build: DictionaryBuild, state: LogState) -> None:
        """Create the first segment.

        Args:
            options: the stream's options.
            build: the source's dictionary.
            state: state where the stream begins.

        Raises:
            RedoFull: no space.
        """
        self.state = state
        self.dictionary.add_build(build)
        self.create_segment(options)

    # ------------------------------------------------------------------ records

    def write(self, record: Record, options: StreamOptions, build: DictionaryBuild | None) -> bool:
        """Write a record and the records that must precede it; all of them are durable, or none is.

        Args:
            record: the record.
            options: the stream's options.
            build: a dictionary build to write before it, unless it is unchanged; None: there is none.

        Returns:
            Whether a build is awaited from here on, and was not before.

        Raises:
            RedoFull: no space.
            RedoError: the disk refused the write.
        """
        # A build belongs into the segment that awaits it, full or not: where complete segments are shipped, that
        # segment is mined without the next.
        segment = self._writable(options, may_be_full=record.kind is RecordType.DICTIONARY)
        build, dictionary_records = self._dictionary_records(record, build)
        try:
            header, count, after = self._append(segment, record, dictionary_records)
            segment.sync()
        except RedoError:
            segment.rollback()
            raise
        self.state = after
        self.resumes = False
        if build is not None:
            self.dictionary.add_build(build)
        begins_to_await = record.awaits is not None and self.dictionary.awaited is None
        if record.awaits is not None:
            self.dictionary.await_build(record.awaits.describers)
        if not (header.open_at_start and header.open_at_end and header.commit_end == 0):
            self.restart_segment = segment.number
        self.totals.records += count
        self.totals.syncs += 1
        self.wrote_at = self._clock.monotonic()
        self._publish(segment)
        if record.kind is RecordType.DATA:
            described = record.described or ()
            self.dictionary = read_dictionary_record(self.dictionary, header, record.data, lambda _: described)
            self.totals.data_bytes += len(record.data)
        return begins_to_await

    def _dictionary_records(
        self, record: Record, build: DictionaryBuild | None
    ) -> tuple[DictionaryBuild | None, list[DictionarySnapshot | UnchangedBuild | AwaitedBuild]]:
        """Return the DICTIONARY records before a record, and the build among them; None if the build is unchanged."""
        said: list[DictionarySnapshot | UnchangedBuild | AwaitedBuild] = []
        if build is not None and build.tables != self.dictionary.build.tables:
            said.append(DictionarySnapshot(build=build))
        elif build is not None and self.dictionary.awaited is not None:
            said.append(UnchangedBuild(scn=build.scn))
        else:
            build = None
        if record.awaits is not None:
            said.append(record.awaits)
        return build, said

    def _append(
        self,
        segment: SegmentWriter,
        record: Record,
        said: list[DictionarySnapshot | UnchangedBuild | AwaitedBuild],
    ) -> tuple[RecordHeader, int, LogState]:
        """Append a record behind RESUME, if that is due, and DICTIONARY records.

        Returns:
            The last header, the number of records, and the state after them.
        """
        before, now_us, count = self.state, self._clock.time_us(), len(said)
        if self.resumes:
            resumed = replace(before, is_open=False)
            segment.append(RecordType.RESUME, b"", before=before, after=resumed, written_us=now_us)
            before, count = resumed, count + 1
        for each in said:
            header = segment.append(
                RecordType.DICTIONARY, encode_dictionary(each), before=before, after=before, written_us=now_us
            )
        after = record.after
        if record.kind is not RecordType.DATA:
            after = replace(before, end_scn=after.end_scn)
        if record.kind is not RecordType.DICTIONARY:
            header = segment.append(
                record.kind,
                record.data,
                before=before,
                after=after,
                commit_end=record.commit_end,
                has_descriptions=record.described is not None,
                written_us=now_us,
            )
            count += 1
        return header, count, after

    # ------------------------------------------------------------------ segments

    def create_segment(self, options: StreamOptions) -> None:
        """Create the next online segment.

        Args:
            options: the stream's options.

        Raises:
            RedoFull: no space.
        """
        number = max(self._kept.heads, default=FIRST_SEGMENT - 1) + 1
        head = SegmentHead(
            number=number,
            source=self._source,
            options=options,
            first_scn=self.state.end_scn,
            last_commit_scn=self.state.commit_scn,
            is_open=self.state.is_open,
            restart_segment=self.restart_segment if self.state.is_open else number,
            created_us=self._clock.time_us(),
            last_transaction=self.state.transaction,
        )
        segment = SegmentWriter.create(self._folder, head, self.dictionary.snapshot())
        self.segment, self._created_at = segment, self._clock.monotonic()
        self._kept.heads[number] = head
        self.restart_segment = head.restart_segment
        self._empty_bytes = segment.size_bytes
        self._publish(segment)

    def renew_segment(self, options: StreamOptions) -> None:
        """Archive an online segment with content. A segment counts as complete when there is a later one.

        Args:
            options: the stream's options.
        """
        if self.switch_if_used():
            self.create_segment(options)
        self._created_at = self._clock.monotonic()

    def switch_if_used(self) -> bool:
        """Archive the online segment, unless it is empty or there is none. Return whether it was archived."""
        if self.segment is None or self.segment.size_bytes <= self._empty_bytes:
            return False
        self._switch(self.segment)
        return True

    def close(self) -> None:
        """Close the file; idempotent."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def _writable(self, options: StreamOptions, *, may_be_full: bool) -> SegmentWriter:
        """Return the online segment, after a log switch if it is full or the stream has other options."""
        segment = self.segment
        is_full = segment is not None and segment.size_bytes >= self._segment_bytes and not may_be_full
        if segment is not None and (segment.is_finished or is_full or segment.head.options != options):
            self._switch(segment)
        if self.segment is None:
            self.create_segment(options)
        assert self.segment is not None
        return self.segment

    def _switch(self, segment: SegmentWriter) -> None:
        if not segment.is_finished:
            try:
                segment.finish(self.state, self._clock.time_us())
            except RedoError:
                segment.rollback()
                raise
            self._publish(segment)
        segment.archive()
        self.segment = None

    def _publish(self, segment: SegmentWriter) -> None:
        self._kept.sizes[segment.number] = segment.durable_offset
        self.position = RedoPosition(segment.number, segment.durable_offset, self.state.end_scn)

    def _open(self, file: SegmentFile) -> None:
        """Read the newest segment from end to end, and continue it if it is incomplete."""
        options = self._kept.heads[file.number].options

        def take(header: RecordHeader, payload: bytes) -> None:
            self.dictionary = read_dictionary_record(
                self.dictionary, header, payload, lambda data: self.describe(data, options)
            )

        scan = scan_segment(file, take)
        self.state = LogState(scan.last.end_scn, scan.last.commit_scn, scan.last.open_at_end, scan.last.transaction)
        self.restart_segment = scan.restart_segment
        if scan.is_complete:
            if not file.is_archived:
                archive_segment(file.path)
            self.position = RedoPosition(file.number, scan.end_offset, self.state.end_scn)
            return
        self.segment = SegmentWriter.reopen(file, scan)
        self._publish(self.segment)
