"""Log writer: drain the source's log stream into the site's own redo log.

Longer than 500 lines: reading, writing, rolling back and purging share the state of the segment that is written.

Job
    Make every byte of the log stream durable in redo segments, then let the source forget it. One owner per
    site; capture processes read the same files.

Main path
    LogWriter.step -> LogStream.read -> SegmentWriter.append -> SegmentWriter.sync -> LogStream.confirm
    -> LogWriter.position, which the capture processes watch. The catalog is read behind that (decision 41): a user's
    COMMIT may wait for the confirmation, and holds until then what the catalog does not show.

States
    DISABLED                no stream is attached. Memory only, like all of them: redo itself is the durable state.
    WRITING                 the last step wrote redo.
    IDLE                    the last step found nothing to write.
    PAUSED: REDO IS FULL    the redo log has reached its bound: nothing is read and nothing confirmed, so WAL grows
                            at the source; nothing is dropped. Ends when `purge` has made room.
    PAUSED: DISK IS FULL    the disk refused a write; what was read is kept and written again by the next step.

Durable when
    A gulp is durable when `SegmentWriter.sync` returned; only then is it confirmed and the position moved. A
    restart begins the stream at `start_scn`, the progress of the last durable record: the source sends again,
    whole, every transaction that commits after it.

Worked flow
    redo ends: T1 committed at SCN 10, T2 half written; the connection breaks
    attach(stream from SCN 10): the next record is RESUME, mining drops the half of T2
    step: DATA (T2 whole, T3), fsync, confirm(30) -> position.scn 30
    captures: required checkpoint SCN 30 -> purge removes segments that end below it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from databases.ports import DictionaryBuild, LogChunk, LogDecoder, LogStream, StreamOptions
from databases.timelines import check_history
from redo.checkpoints import PurgeBounds, RequiredCheckpoints
from redo.dictionary import Dictionary, read_dictionary_record
from redo.records import (
    AwaitedBuild,
    DictionarySnapshot,
    RecordHeader,
    RecordType,
    SegmentHead,
    UnchangedBuild,
    encode_dictionary,
)
from redo.segments import (
    FIRST_SEGMENT,
    LogState,
    RedoFull,
    SegmentFile,
    SegmentWriter,
    archive_segment,
    scan_segment,
)
from redo.standby.kept_segments import SEGMENTS_MIN, KeptSegments
from redo.standby.shipping import RedoShipping
from streams.clock import Clock, SystemClock
from streams.errors import (
    INSTANTIATE_AGAIN,
    BugError,
    DatabaseError,
    DatabaseUnavailable,
    LogGone,
    RedoError,
    UnsupportedType,
)
from streams.failpoints import failpoint
from streams.lcr_batch import TableVersion
from streams.links import RedoPosition
from streams.scn import FIRST_SCN, Scn, scn_text

__all__ = ["LogWriter", "LogWriterStatistics"]

RECORD_BYTES_DEFAULT = 1 << 20  # of stream data in one record: an fsync per MiB costs little next to the rest
# A stream that is far behind is read until a record is full, for at most so long: its transactions are late anyway, and
# where the processor is what is short, batches of 50 KB cost ten times the processor time of batches of 1 MB (measured
# on two cores with other work).
FILL_S = 0.25
FILL_SHARE = 64  # below this share of a record nothing is waited for: a few small transactions are no backlog
GULPS_MAX = 256  # reads in one step, so that a step ends also when only keepalives come
# A gulp costs the processes behind it about nine times what it costs here (measured), however little it holds. So each
# one is a debt of ten times its own duration, which time pays off. Up to the allowance gulps are taken as they come: a
# commit in good time after the ones before it is read at once. Above it the writer pauses until the debt is the
# allowance again: small transactions use one core at most, at any speed, and arrive in larger gulps. A backlog is read
# without a pause, and costs nothing.
GULP_COST = 10.0
PAUSE_MAX_S = 0.05
DEBT_ALLOWED_S = 0.05  # some ten gulps at once; at a steady rate it makes no difference
PROGRESS_INTERVAL_S = 0.1  # a position without data is worth a record and an fsync ten times a second
KEEP_ALIVE_INTERVAL_S = 5.0  # how often a paused writer shows the source that it lives; time-outs there are 60 s
# An awaited dictionary build is tried this soon again, and then half as often each time: a COMMIT that was confirmed
# becomes visible within a millisecond, one that waits for another standby may take hours.
BUILD_RETRY_MIN_S, BUILD_RETRY_MAX_S = 0.001, 0.1
BUILD_LATE_S = 10.0  # an awaited build that took longer is a problem to tell: commits become visible in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWriterStatistics:
    """What a log writer did since it was started.

    Args:
        state: see the module.
        redo_bytes: bytes of redo on disk now.
        redo_bytes_max: their bound.
        segments: segments on disk now.
        position: how far redo is durable.
        data_bytes: bytes of the log stream written.
        records: redo records written.
        syncs: fsyncs of redo data.
        resumes: streams attached.
        purged_bytes: bytes of redo removed.
        required_checkpoint_scn: lowest of all captures'; 0: none told yet.
        problem: why it is paused, and what ends that; empty when it is not.
    """

    state: str
    redo_bytes: int
    redo_bytes_max: int
    segments: int
    position: RedoPosition
    data_bytes: int
    records: int
    syncs: int
    resumes: int
    purged_bytes: int
    required_checkpoint_scn: Scn
    problem: str


class ReadDictionary(Protocol):
    """`SourceDatabase.dictionary_build` of one topology."""

    def __call__(self, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """See there."""
        ...


class CheckStream(Protocol):
    """`SourceDatabase.check_stream` of one stream's options."""

    def __call__(self, described: Sequence[TableVersion], *, describers: Collection[int]) -> None:
        """See there."""
        ...


class LogWriter:
    """Owns the redo folder of one site. Not shared between threads, `required_checkpoints.record` aside.

    Args:
        folder: of the segments; created when missing.
        source: the site's name.
        decoder_factory: makes the decoder for a stream's options; only its `describe` is used.
        dictionary_build: `SourceDatabase.dictionary_build`.
        segment_bytes: size at which a log switch happens.
        redo_bytes_max: bound of the redo log.
        record_bytes: gulps are joined into one record, and one fsync, until it has that many bytes.
        clock: for time stamps and intervals.

    Attributes:
        required_checkpoints: what the captures at this site need; `step` saves it and purges behind it.
        shipping: the redo receivers at other sites, which bound purging too; `step` saves it, and confirms nothing that
            a receiver with `transport: sync` lacks.
        switch_after_s: a segment that holds something is closed and archived when it is that old, seconds; None: only
            when it is full.

    Raises:
        RedoError: redo is damaged other than by a torn tail, or a segment is missing.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        decoder_factory: Callable[[StreamOptions], LogDecoder],
        dictionary_build: ReadDictionary,
        segment_bytes: int,
        redo_bytes_max: int,
        record_bytes: int = RECORD_BYTES_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._source = source
        self._decoder_factory = decoder_factory
        self._dictionary_build = dictionary_build
        self._check: CheckStream | None = None
        self._segment_bytes = max(1, min(segment_bytes, redo_bytes_max // SEGMENTS_MIN))
        self._redo_bytes_max = redo_bytes_max
        self._record_bytes = record_bytes
        self._clock = clock or SystemClock()

        self._stream: LogStream | None = None
        self._broken: DatabaseError | None = None
        self._needs_resume = False
        self._taken: list[LogChunk] = []
        self._pause_s = self._debt_s = 0.0
        self._paid_at = self._clock.monotonic()
        self._progress_scn = self._confirmed_scn = FIRST_SCN
        self._pending_build: DictionaryBuild | None = None
        self._build_at = 0.0  # when an awaited build is tried again, on the clock
        self._build_retry_s = BUILD_RETRY_MIN_S
        self._awaited_since = 0.0

        self._segment: SegmentWriter | None = None
        self._empty_bytes = 0  # of the online segment when it was created
        self._state = LogState(FIRST_SCN, FIRST_SCN, is_open=False)
        self._dictionary = Dictionary()
        self._restart_segment = 0
        self._position = RedoPosition(0, 0, FIRST_SCN)

        self.switch_after_s: float | None = None
        self._created_at = self._clock.monotonic()
        self._phase = "IDLE"
        self._data_bytes = self._records = self._syncs = self._resumes = self._purged_bytes = 0
        self._wrote_at = self._kept_alive_at = self._clock.monotonic()

        self._kept = KeptSegments(folder, source)
        self.required_checkpoints = RequiredCheckpoints(folder, self._clock)
        self._open()
        self.shipping = RedoShipping(folder, source, lambda: self._position, self._clock)
        self._bounds = PurgeBounds(self.required_checkpoints.save, self.shipping.save, clock=self._clock)

    # ------------------------------------------------------------------ what others ask

    @property
    def start_scn(self) -> Scn:
        """Where the log stream must begin: the progress of the last durable record; FIRST_SCN without redo."""
        return self._state.end_scn

    @property
    def last_transaction(self) -> int:
        """Number of the transaction that committed last in redo, which the source must still have; 0: not known."""
        return self._state.transaction

    @property
    def last_commit_scn(self) -> Scn:
        """Commit SCN of that transaction; of redo that has none yet, where its stream began; FIRST_SCN without redo."""
        return self._state.commit_scn

    @property
    def timeline(self) -> int:
        """Of the newest segment: a stream must continue it, see `SourceDatabase.open_stream`; 0 without redo."""
        return 0 if self.options is None else self.options.timeline

    @property
    def position(self) -> RedoPosition:
        """How far redo is durable. Replaced as a whole, so any thread may read it."""
        return self._position

    @property
    def options(self) -> StreamOptions | None:
        """How to read the newest segment; None without redo."""
        newest = self._kept.newest
        return None if newest is None else newest.options

    @property
    def state(self) -> str:
        """See the module."""
        return self._phase if self._stream is not None else "DISABLED"

    @property
    def pause_s(self) -> float:
        """How long to leave the stream alone before the next step, seconds; see `GULP_COST`."""
        return self._pause_s

    @property
    def waits_for_receivers(self) -> bool:
        """Whether a receiver's acknowledgement can let more be confirmed at all."""
        return self.shipping.has_sync

    @property
    def is_awaiting(self) -> bool:
        """Whether a receiver's acknowledgement will let more be confirmed: step again when it comes."""
        return self._stream is not None and self.shipping.is_awaited(self._state.end_scn)

    @property
    def awaits_build(self) -> bool:
        """Whether what was written last can be mined only when the next step has written a dictionary build."""
        return self._dictionary.awaited is not None

    def statistics(self) -> LogWriterStatistics:
        """Return what the writer did so far. Any thread may ask."""
        return LogWriterStatistics(
            state=self.state,
            redo_bytes=self._kept.redo_bytes,
            redo_bytes_max=self._redo_bytes_max,
            segments=self._kept.count,
            position=self._position,
            data_bytes=self._data_bytes,
            records=self._records,
            syncs=self._syncs,
            resumes=self._resumes,
            purged_bytes=self._purged_bytes,
            required_checkpoint_scn=self.required_checkpoints.lowest or FIRST_SCN,
            problem=self._problem(),
        )

    def _problem(self) -> str:
        """Why it is paused, for the operator."""
        paused = self._paused() or self._late_build()
        is_awaited = paused and self.shipping.has_sync
        return paused + (
            "; transport is sync: commits that wait for the log writer wait until then" if is_awaited else ""
        )

    def _late_build(self) -> str:
        awaited = self._dictionary.awaited
        if awaited is None or self._clock.monotonic() - self._awaited_since < BUILD_LATE_S:
            return ""
        shown = ", ".join(map(str, awaited[:3])) + (", ..." if len(awaited) > 3 else "")
        return (
            f"capture waits until transaction {shown} is visible in the database, which is in its log: see SELECT *"
            " FROM pg_stat_activity WHERE wait_event = 'SyncRep'; is a synchronous standby away?"
        )

    def _paused(self) -> str:
        if (
            self.state == "PAUSED: DISK IS FULL"
            and self._state.is_open
            and 2 * self._kept.bytes_from(self._restart_segment) > self._kept.redo_bytes
        ):
            # Nothing of it is purged before all of it is there.
            return (
                "the redo log's disk is full, most of it of one transaction, which began after SCN"
                f" {scn_text(self._state.commit_scn)} and must fit whole; WAL grows at the"
                " source: enlarge the disk, and writing goes on by itself; or `headrace down FILE`, move the state"
                " folder to a larger disk, name it as state_dir, then `headrace up FILE`"
            )
        if self.state == "PAUSED: DISK IS FULL":
            return "the redo log's disk is full, WAL grows at the source: free space, writing goes on by itself"
        if self.state != "PAUSED: REDO IS FULL":
            return ""
        bound = f"redo_bytes_max ({self._redo_bytes_max} bytes)"
        if self._state.is_open and self._kept.bytes_from(self._restart_segment) >= self._redo_bytes_max:
            return (
                f"one transaction, which began after SCN {scn_text(self._state.commit_scn)}, fills {bound}, WAL grows"
                " at the source: raise redo_bytes_max in the topology file above the size of that transaction, then"
                " `headrace up`"
            )
        behind = self.shipping.holding_back(self._restart_segment)
        if behind:
            return (
                f"the redo log has reached {bound}, WAL grows at the source: it goes on by itself when"
                f" {', '.join(behind)} has received "
                "it; start what is away, raise redo_bytes_max, or take that capture process out of the topology file"
                " and `headrace up`"
            )
        return (
            f"the redo log has reached {bound}, WAL grows at the source: it goes on by itself when the captures need"
            " less of it (see the slowest apply process); raise redo_bytes_max and `headrace up` to keep more"
        )

    # ------------------------------------------------------------------ the stream

    def attach(self, stream: LogStream, check: CheckStream | None = None) -> None:
        """Go on with a new stream, opened at `start_scn`.

        What was read from an older stream and not written is dropped: the new one brings it again.

        Args:
            stream: the new stream, opened for `timeline`; on a later one that continues it, redo goes on in a new
                segment.
            check: `SourceDatabase.check_stream`; called whenever the stream describes a table, before that is written.

        Raises:
            LogGone: the stream is another cluster's, or begins behind the end of redo.
            DatabaseUnavailable: the dictionary could not be read.
        """
        self._check_identity(stream)
        build = self._dictionary_build(seeing=self._dictionary.awaited or ())
        self._stream, self._broken, self._check = stream, None, check
        self._taken.clear()
        self._build_at, self._build_retry_s, self._awaited_since = 0.0, BUILD_RETRY_MIN_S, self._clock.monotonic()
        self._progress_scn = self._confirmed_scn = FIRST_SCN
        self._resumes += 1
        if self._kept.newest is None:
            if build is None:
                raise BugError("a dictionary build that need not reflect anything was not given", source=self._source)
            self._state = LogState(stream.start_scn, stream.start_scn, is_open=False)
            self._dictionary.add_build(build)
            self._create_segment(stream.options)
        else:
            # Written with the first data, not now: reconnecting in a loop must not fill the disk.
            self._needs_resume = True
            self._pending_build = build
        self._phase = "IDLE"

    def detach(self) -> None:
        """Forget the stream (it broke, or the writer is stopped). The caller closes it."""
        self._stream = None
        self._taken.clear()

    def step(self, timeout_s: float, *, behind_scn: Scn = FIRST_SCN) -> bool:
        """Take one gulp from the stream and make it durable; purge what no capture process needs.

        Args:
            timeout_s: how long to wait for data.
            behind_scn: what the stream is far behind; until that is read, records are filled. FIRST_SCN: it keeps up.

        Returns:
            Whether redo was written; False: there was nothing, or the redo log is full.

        Raises:
            DatabaseUnavailable: the stream broke: attach a new one.
            UnsupportedType: the stream has not the form its tables need (any more): attach another one.
            RedoFull: the disk is full. Call again later: what was read is kept.
            RedoError: redo cannot be written.
        """
        stream = self._stream
        if stream is None:
            raise BugError("a log writer without a stream was told to write", source=self._source)
        self._save_and_purge()
        self._confirm(stream)
        self._switch_if_old(stream.options)
        # Also when the redo log is full: the capture processes that would make room wait for the build.
        has_build = self._write_build()
        if self._kept.redo_bytes >= self._redo_bytes_max and not self._make_room(stream.options):
            self._pause(stream)
            return has_build
        if not self._taken and self._broken is None:
            self._take(stream, self._until_build_s(timeout_s), behind_scn)
        is_full = sum(len(chunk.data) for chunk in self._taken) >= self._record_bytes  # more is waiting
        began = self._clock.monotonic()
        wrote = self._write_taken() if self._taken else self._write_progress()
        if wrote:
            _after_fsync()
            self._confirm(stream)
        busy_s = self._clock.monotonic() - began
        has_build |= self._write_build()
        self._pause_s = self._until_build_s(self._owed_s(GULP_COST * busy_s)) if wrote and not is_full else 0.0
        self._phase = "WRITING" if wrote else "IDLE"
        if self._broken is not None:
            raise self._broken
        return wrote or has_build

    def _owed_s(self, cost_s: float) -> float:
        """How long to pause behind a gulp; see `GULP_COST`."""
        now = self._clock.monotonic()
        paid_s, self._paid_at = now - self._paid_at, now
        self._debt_s = min(max(0.0, self._debt_s - paid_s) + cost_s, DEBT_ALLOWED_S + PAUSE_MAX_S)
        return max(0.0, self._debt_s - DEBT_ALLOWED_S)

    def close(self) -> None:
        """Let go of the files; what is durable stays. Idempotent."""
        self._stream = None
        self.required_checkpoints.save()
        self.shipping.save()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _check_identity(self, stream: LogStream) -> None:
        mine, theirs = self.options, stream.options
        if mine is None:
            return
        if (mine.database_kind, mine.system_identifier) != (theirs.database_kind, theirs.system_identifier):
            raise LogGone(
                f"the database of site {self._source} is another cluster than the one its redo log comes from",
                hint=f"point the site back to its old database, or {INSTANTIATE_AGAIN}",
                source=self._source,
                redo_system=mine.system_identifier,
                database_system=theirs.system_identifier,
            )
        check_history(self._source, redo=mine, start=self._state.end_scn, now=theirs)
        if stream.start_scn > self._state.end_scn:
            raise LogGone(
                f"the log of site {self._source} begins at SCN {scn_text(stream.start_scn)}, its redo log ends at SCN "
                f"{scn_text(self._state.end_scn)}: transactions between are gone",
                hint=INSTANTIATE_AGAIN,
                source=self._source,
                after_scn=self._state.end_scn,
                through_scn=stream.start_scn,
            )

    def _take(self, stream: LogStream, timeout_s: float, behind_scn: Scn) -> None:
        """Read until nothing is waiting or a record's worth is there. A break ends it; what came before counts."""
        taken_bytes, fill_until, wait_s = 0, 0.0, timeout_s
        for _ in range(GULPS_MAX):
            try:
                chunk = stream.read(wait_s)
            except (DatabaseUnavailable, UnsupportedType) as error:
                self._broken = error
                return
            if chunk is None:
                return
            self._progress_scn = max(self._progress_scn, chunk.end_scn)
            if chunk.data:
                self._taken.append(chunk)
                taken_bytes += len(chunk.data)
            if taken_bytes >= self._record_bytes:
                return
            wait_s = 0.0
            if self._progress_scn < behind_scn and taken_bytes * FILL_SHARE >= self._record_bytes:
                fill_until = fill_until or self._clock.monotonic() + self._until_build_s(FILL_S)
                wait_s = max(0.0, fill_until - self._clock.monotonic())

    def _pause(self, stream: LogStream) -> None:
        self._phase = "PAUSED: REDO IS FULL"
        now = self._clock.monotonic()
        if now - self._kept_alive_at >= KEEP_ALIVE_INTERVAL_S:
            self._kept_alive_at = now
            self._confirm(stream, is_repeated=True)

    def _confirm(self, stream: LogStream, *, is_repeated: bool = False) -> None:
        """Tell the source what is durable here, and at every receiver that it waits for."""
        scn = self.shipping.confirmable(self._state.end_scn)
        if scn > self._confirmed_scn or is_repeated:
            self._confirmed_scn = max(scn, self._confirmed_scn)
            stream.confirm(self._confirmed_scn)

    # ------------------------------------------------------------------ writing

    def _write_taken(self) -> bool:
        """Write what was taken as one DATA record, with the dictionary it needs before it."""
        chunks, stream = self._taken, self._stream
        assert stream is not None
        describers = tuple(sorted({number for chunk in chunks for number in chunk.describers}))
        has_descriptions = any(chunk.objects for chunk in chunks)
        payload = chunks[0].data if len(chunks) == 1 else b"".join(chunk.data for chunk in chunks)
        described = (
            self._decoder_factory(stream.options).describe(np.frombuffer(payload, np.uint8)) if has_descriptions else ()
        )
        if has_descriptions and self._check is not None:
            # Created or altered since the stream began: redo must not hold values that mean something else elsewhere.
            self._check(described, describers=describers)
        commit_scn = max((chunk.commit_scn for chunk in chunks), default=FIRST_SCN)
        after = LogState(
            end_scn=max(self._state.end_scn, self._progress_scn, commit_scn),
            commit_scn=max(self._state.commit_scn, commit_scn),
            is_open=chunks[-1].is_open,
            transaction=next(
                (chunk.transaction for chunk in reversed(chunks) if chunk.commit_scn), self._state.transaction
            ),
        )
        # A TRUNCATE too: a partition that was attached is not described before it changes, and one of all others must
        # not be taken for one of the table.
        awaits = (
            AwaitedBuild(describers=describers)
            if has_descriptions or any(chunk.has_truncates for chunk in chunks)
            else None
        )
        header = self._write(
            RecordType.DATA,
            payload,
            after,
            commit_end=_commit_end(chunks),
            has_descriptions=has_descriptions,
            awaits=awaits,
        )
        self._dictionary = read_dictionary_record(self._dictionary, header, payload, lambda _: described)
        self._data_bytes += len(payload)
        self._taken = []
        return True

    def _write_progress(self) -> bool:
        """Write the position that keepalives told, if it moved and one is due."""
        if self._progress_scn <= self._state.end_scn:
            return False
        if self._clock.monotonic() - self._wrote_at < PROGRESS_INTERVAL_S:
            return False
        self._write(RecordType.PROGRESS, b"", replace(self._state, end_scn=self._progress_scn))
        return True

    def _write_build(self) -> bool:
        """Write the dictionary build that is awaited, as soon as the catalog shows what it must reflect."""
        awaited, began = self._dictionary.awaited, self._clock.monotonic()
        if awaited is None or began < self._build_at:
            return False
        build = self._pending_build or self._dictionary_build(seeing=awaited)
        now = self._clock.monotonic()
        if build is None:
            self._build_at = now + self._build_retry_s
            self._build_retry_s = min(2 * self._build_retry_s, BUILD_RETRY_MAX_S)
            return False
        # Half of the time is for the log: a catalog of many partitions takes a second to read, and each may be
        # described by itself.
        self._build_at, self._build_retry_s = now + (now - began), BUILD_RETRY_MIN_S
        self._pending_build = build
        self._write(RecordType.DICTIONARY, b"", self._state)
        return True

    def _until_build_s(self, seconds: float) -> float:
        """As long as given, seconds, but not beyond the moment when an awaited build is to be tried."""
        if self._dictionary.awaited is None:
            return seconds
        return min(seconds, max(0.0, self._build_at - self._clock.monotonic()))

    def _write(
        self,
        kind: RecordType,
        data: bytes,
        after: LogState,
        *,
        commit_end: int = 0,
        has_descriptions: bool = False,
        awaits: AwaitedBuild | None = None,
    ) -> RecordHeader:
        """Write a record and what must stand before it; all of it is durable, or nothing is.

        Args:
            kind: DATA, PROGRESS, or DICTIONARY for the pending build alone.
            data: of DATA.
            after: the log's state behind it; of the others, its progress counts.
            commit_end: see `RecordHeader`.
            has_descriptions: see `RecordHeader`.
            awaits: what the build must reflect that this DATA awaits.
        """
        # A build belongs into the segment of what awaits it, full or not: where complete segments travel, that is mined
        # without the next.
        segment = self._writable_segment(may_be_full=kind is RecordType.DICTIONARY)
        before, now_us, records = self._state, self._clock.time_us(), 0
        build = self._pending_build
        told: list[DictionarySnapshot | UnchangedBuild | AwaitedBuild] = []
        if build is not None and build.tables != self._dictionary.build.tables:
            told.append(DictionarySnapshot(build=build))
        elif build is not None and self._dictionary.awaited is not None:
            told.append(UnchangedBuild(scn=build.scn))
        else:
            build = None
        if awaits is not None:
            told.append(awaits)
        try:
            if self._needs_resume:
                resumed = replace(before, is_open=False)
                segment.append(RecordType.RESUME, b"", before=before, after=resumed, written_us=now_us)
                before, records = resumed, records + 1
            for each in told:
                header = segment.append(
                    RecordType.DICTIONARY,
                    encode_dictionary(each),
                    before=before,
                    after=before,
                    written_us=now_us,
                )
            if kind is not RecordType.DATA:
                after = replace(before, end_scn=after.end_scn)
            if kind is not RecordType.DICTIONARY:
                header = segment.append(
                    kind,
                    data,
                    before=before,
                    after=after,
                    commit_end=commit_end,
                    has_descriptions=has_descriptions,
                    written_us=now_us,
                )
                records += 1
            segment.sync()
        except RedoError as error:
            self._roll_back(segment, error)
            raise
        self._state = after
        self._needs_resume = False
        self._pending_build = None
        if build is not None:
            self._dictionary.add_build(build)
        if awaits is not None:
            if self._dictionary.awaited is None:
                self._awaited_since = self._clock.monotonic()
            self._dictionary.await_build(awaits.describers)
        if not (header.open_at_start and header.open_at_end and header.commit_end == 0):
            self._restart_segment = segment.number
        self._records += records + len(told)
        self._syncs += 1
        self._wrote_at = self._clock.monotonic()
        self._publish(segment)
        return header

    def _publish(self, segment: SegmentWriter) -> None:
        self._kept.sizes[segment.number] = segment.durable_offset
        self._position = RedoPosition(segment.number, segment.durable_offset, self._state.end_scn)

    # ------------------------------------------------------------------ segments

    def _writable_segment(self, *, may_be_full: bool = False) -> SegmentWriter:
        """The online segment, after a log switch if it is full or the stream is to be read differently."""
        assert self._stream is not None
        options = self._stream.options
        segment = self._segment
        is_full = segment is not None and segment.size_bytes >= self._segment_bytes and not may_be_full
        if segment is not None and (segment.is_finished or is_full or segment.head.options != options):
            self._switch()
        if self._segment is None:
            self._create_segment(options)
        assert self._segment is not None
        return self._segment

    def _switch_if_old(self, options: StreamOptions) -> None:
        """Archive a segment in time for those who get complete segments only."""
        if self.switch_after_s is None or self._clock.monotonic() - self._created_at < self.switch_after_s:
            return
        if self._dictionary.awaited is not None and self._clock.monotonic() - self._awaited_since < BUILD_LATE_S:
            return  # the segment is about to get the build without which it cannot be mined
        if self._switch_if_used():
            self._create_segment(options)  # a segment counts as complete when there is another one
        self._created_at = self._clock.monotonic()

    def _switch_if_used(self) -> bool:
        if self._segment is None or self._segment.size_bytes <= self._empty_bytes:
            return False
        self._switch()
        return True

    def _switch(self) -> None:
        segment = self._segment
        assert segment is not None
        if not segment.is_finished:
            try:
                segment.finish(self._state, self._clock.time_us())
            except RedoError as error:
                self._roll_back(segment, error)
                raise
            self._publish(segment)
        segment.archive()
        self._segment = None

    def _roll_back(self, segment: SegmentWriter, error: RedoError) -> None:
        segment.rollback()
        if isinstance(error, RedoFull):
            self._phase = "PAUSED: DISK IS FULL"

    def _create_segment(self, options: StreamOptions) -> None:
        number = max(self._kept.heads, default=FIRST_SEGMENT - 1) + 1
        head = SegmentHead(
            number=number,
            source=self._source,
            options=options,
            first_scn=self._state.end_scn,
            last_commit_scn=self._state.commit_scn,
            is_open=self._state.is_open,
            restart_segment=self._restart_segment if self._state.is_open else number,
            created_us=self._clock.time_us(),
            last_transaction=self._state.transaction,
        )
        try:
            segment = SegmentWriter.create(self._folder, head, self._dictionary.snapshot())
        except RedoFull:
            self._phase = "PAUSED: DISK IS FULL"
            raise
        self._segment, self._created_at = segment, self._clock.monotonic()
        self._kept.heads[number] = head
        self._restart_segment = head.restart_segment
        self._empty_bytes = segment.size_bytes
        self._publish(segment)

    def _open(self) -> None:
        """Read what is on disk: heads of all segments, the last one from end to end."""
        newest = self._kept.read()
        if newest is not None:
            self._open_last(newest)

    def _open_last(self, file: SegmentFile) -> None:
        def take(header: RecordHeader, payload: bytes) -> None:
            self._dictionary = read_dictionary_record(self._dictionary, header, payload, self._describe)

        scan = scan_segment(file, take)
        self._state = LogState(scan.last.end_scn, scan.last.commit_scn, scan.last.open_at_end, scan.last.transaction)
        self._restart_segment = scan.restart_segment
        if scan.is_complete:
            if not file.is_archived:
                archive_segment(file.path)
            self._position = RedoPosition(file.number, scan.end_offset, self._state.end_scn)
            return
        self._segment = SegmentWriter.reopen(file, scan)
        self._publish(self._segment)

    def _describe(self, payload: bytes) -> tuple[TableVersion, ...]:
        assert self.options is not None
        return self._decoder_factory(self.options).describe(np.frombuffer(payload, np.uint8))

    # ------------------------------------------------------------------ purging

    @property
    def oldest_scn(self) -> Scn:
        """Redo can be mined from here on. Any thread may ask."""
        return self._kept.oldest_scn

    def purge(self, needed_scn: Scn | None, kept_scn: Scn | None = None) -> int:
        """Remove archived segments that mining from `needed_scn` will not read (None: nothing is mined), and no redo receiver needs.

        Args:
            needed_scn: of the capture processes: redo from here on stays.
            kept_scn: redo from here on stays as long as there is room; None: no more than is needed.

        Returns:
            Bytes freed.
        """
        with self.shipping.unmoved() as keep_from:
            freed = self._kept.purge(self._first_kept(needed_scn, kept_scn, keep_from))
        self._purged_bytes += freed
        return freed

    def _first_kept(self, needed_scn: Scn | None, kept_scn: Scn | None, keep_from: int | None) -> int:
        """The first segment that stays for a capture process or a redo receiver; 0: nothing may go.

        Args:
            needed_scn: see `purge`.
            kept_scn: see `purge`.
            keep_from: of the redo receivers; None: there is none.
        """
        bounds = [keep_from]
        if needed_scn is not None:
            kept = needed_scn if kept_scn is None else min(kept_scn, needed_scn)
            bounds.append(self._kept.first_kept(needed_scn, kept, self._redo_bytes_max))
        return min((bound for bound in bounds if bound is not None), default=0)

    def _save_and_purge(self) -> None:
        # Read once: another thread may record more between the save and the purge.
        kept, needed = self.required_checkpoints.keep_from(self._kept.oldest_scn), self.required_checkpoints.needed_scn
        may_purge = self._kept.count > 1 and self._kept.has_below(
            self._first_kept(needed, kept, self.shipping.keep_from)
        )
        self._bounds.save(purges=may_purge)
        if may_purge:
            self.purge(needed, kept)

    def _make_room(self, options: StreamOptions) -> bool:
        """Make the online segment purgeable when it alone fills the redo log, or nothing in it is needed.

        Tell whether there is room now.
        """
        needed = self.required_checkpoints.needed_scn
        # It keeps the segment before it, too, where a transaction began there: nothing that is applied would ever make
        # room.
        is_done = needed is not None and not self._state.is_open and needed >= self._state.commit_scn
        # Without an online segment this writer, or the one before it, ended between the two halves of a log switch.
        if (self._kept.count == 1 or is_done) and (self._segment is None or self._switch_if_used()):
            self._create_segment(options)
            self._save_and_purge()
        return self._kept.redo_bytes < self._redo_bytes_max


def _commit_end(chunks: list[LogChunk]) -> int:
    """Where the last transaction ends in the joined data; 0: none does, or a chunk did not tell."""
    end = place = 0
    for chunk in chunks:
        if chunk.commit_scn:
            end = place + chunk.commit_end if chunk.commit_end else 0
        place += len(chunk.data)
    return end


def _after_fsync() -> None:
    try:
        failpoint("log_writer.after_fsync")
    except OSError as error:
        raise RedoError("failpoint log_writer.after_fsync", hint="a test armed it") from error
