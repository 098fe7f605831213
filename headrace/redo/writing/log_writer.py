"""Log writer: drain the source's log stream into the site's own redo log.

Job
    Make every byte of the log stream durable in redo segments, then let the source discard it. One owner per
    site; capture processes read the same files.

Main path
    LogWriter.step -> StreamIntake.take (LogStream.read) -> OnlineLog.write (SegmentWriter.append, SegmentWriter.sync)
    -> StreamIntake.confirm (LogStream.confirm) -> LogWriter.position, which the capture processes watch. The catalog is
    read after that (decision 41): a user's COMMIT may wait for the confirmation, and until then the catalog does not
    show the transaction.

Parts
    StreamIntake     data that was read from the stream and not written.
    OnlineLog        the end of redo: the online segment, the state of the log and the dictionary there.
    AwaitedBuilds    when to read the catalog for the builds that the log awaits.
    RedoSpace        the bound, purging, and why the log is full.
    GulpPace         how long to pause before the next read of the stream.

States
    DISABLED                no stream is attached. Memory only, like all of them: redo itself is the durable state.
    WRITING                 the last step wrote redo.
    IDLE                    the last step found nothing to write.
    PAUSED: REDO IS FULL    the redo log has reached its bound: nothing is read and nothing confirmed, so WAL grows
                            at the source; nothing is dropped. Ends when `purge` has made room.
    PAUSED: DISK IS FULL    the disk refused a write; the read data is kept, and the next step writes it again.

Durable when
    A gulp is durable when `SegmentWriter.sync` returned; only then is it confirmed and the position moved. After a
    restart the stream begins at `start_scn`, the progress of the last durable record: the source resends, as a whole,
    every transaction that commits after it.

Worked flow
    redo ends: T1 committed at SCN 10, T2 half written; the connection breaks
    attach(stream from SCN 10): the next record is RESUME, mining drops the half of T2
    step: DATA (T2 whole, T3), fsync, confirm(30) -> position.scn 30
    captures: required checkpoint SCN 30 -> purge removes segments that end below it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import INSTANTIATE_AGAIN, BugError, LogGone, RedoError
from headrace.base.failpoints import failpoint
from headrace.databases.ports import LogChunk, LogDecoder, LogStream, StreamOptions
from headrace.databases.timelines import check_history
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.ports import RedoPosition
from headrace.redo.checkpoints import RequiredCheckpoints
from headrace.redo.records import AwaitedBuild, RecordType
from headrace.redo.segments import LogState, RedoFull, SegmentWriter
from headrace.redo.standby.kept_segments import SEGMENTS_MIN, KeptSegments
from headrace.redo.standby.shipping import RedoShipping
from headrace.redo.writing.awaited_builds import AwaitedBuilds, ReadDictionary
from headrace.redo.writing.gulp_pace import GulpPace
from headrace.redo.writing.online_log import OnlineLog, Record
from headrace.redo.writing.redo_space import RedoSpace
from headrace.redo.writing.stream_intake import CheckStream, StreamIntake

__all__ = ["LogWriter", "LogWriterStatistics"]

RECORD_BYTES_DEFAULT = 1 << 20  # stream data in one record: one fsync per MiB is comparatively cheap
PROGRESS_INTERVAL_S = 0.1  # a position without data is worth a record and an fsync ten times a second
KEEP_ALIVE_INTERVAL_S = 5.0  # how often a paused writer sends the source a sign of life; time-outs there are 60 s
_DISK_IS_FULL, _REDO_IS_FULL = "PAUSED: DISK IS FULL", "PAUSED: REDO IS FULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWriterStatistics:
    """What a log writer did since it was started.

    Args:
        state: one of the states in the module docstring.
        redo_bytes: current bytes of redo on disk.
        redo_bytes_max: their bound.
        segments: current segments on disk.
        position: position up to which redo is durable.
        data_bytes: bytes of the log stream written.
        records: redo records written.
        syncs: fsyncs of redo data.
        resumes: streams attached.
        purged_bytes: bytes of redo removed.
        required_checkpoint_scn: lowest of all capture processes'; 0: none reported yet.
        problem: why it is paused, and how the pause ends; empty: it is not paused.
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


class LogWriter:
    """Owns the redo folder of one site. Not shared between threads, except for `required_checkpoints.record`.

    More than 25 methods: a dozen are properties that show its site and others the state of the log.

    Args:
        folder: the segments' folder; created when missing.
        source: the site's name.
        decoder_factory: makes the decoder for a stream's options; only its `describe` is used.
        dictionary_build: `SourceDatabase.dictionary_build`.
        segment_bytes: size at which a log switch happens.
        redo_bytes_max: bound of the redo log.
        record_bytes: gulps are joined into one record, and one fsync, until it has that many bytes.
        clock: clock for time stamps and intervals.

    Attributes:
        required_checkpoints: redo that the capture processes at this site need; `step` saves it and purges accordingly.
        shipping: the redo receivers at other sites, which bound purging too; `step` saves it, and confirms nothing that
            a receiver with `transport: sync` lacks.
        switch_after_s: age in seconds at which a segment with content is closed and archived; None: only when it is
            full.

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
        self._source, self._record_bytes = source, record_bytes
        self._clock = clock or SystemClock()
        self._kept = KeptSegments(folder, source)
        self.required_checkpoints = RequiredCheckpoints(folder, self._clock)
        self._log = OnlineLog(
            folder,
            source,
            self._kept,
            decoder_factory,
            segment_bytes=max(1, min(segment_bytes, redo_bytes_max // SEGMENTS_MIN)),
            clock=self._clock,
        )
        self.shipping = RedoShipping(folder, source, lambda: self._log.position, self._clock)
        self._space = RedoSpace(self._kept, self.required_checkpoints, self.shipping, redo_bytes_max, self._clock)
        self._builds = AwaitedBuilds(dictionary_build, self._clock)
        self._pace = GulpPace(self._clock)
        self._intake: StreamIntake | None = None  # of the stream that is attached
        self.switch_after_s: float | None = None
        self._phase = "IDLE"
        self._pause_s = 0.0
        self._resumes = 0
        self._kept_alive_at = self._clock.monotonic()

    # ------------------------------------------------------------------ state for others

    @property
    def start_scn(self) -> Scn:
        """Where the log stream must begin: the progress of the last durable record; FIRST_SCN without redo."""
        return self._log.state.end_scn

    @property
    def last_transaction(self) -> int:
        """Number of the last committed transaction in redo, which the source must still have; 0: not known."""
        return self._log.state.transaction

    @property
    def last_commit_scn(self) -> Scn:
        """Commit SCN of that transaction; in redo without one, the start of its stream; FIRST_SCN without redo."""
        return self._log.state.commit_scn

    @property
    def timeline(self) -> int:
        """Timeline of the newest segment, for `SourceDatabase.open_stream` to continue; 0 without redo."""
        return 0 if self.options is None else self.options.timeline

    @property
    def position(self) -> RedoPosition:
        """Position up to which redo is durable. Replaced as a whole, so any thread may read it."""
        return self._log.position

    @property
    def options(self) -> StreamOptions | None:
        """How to read the newest segment; None without redo."""
        newest = self._kept.newest
        return None if newest is None else newest.options

    @property
    def state(self) -> str:
        """One of the states in the module docstring."""
        return self._phase if self._intake is not None else "DISABLED"

    @property
    def pause_s(self) -> float:
        """Pause before the next step, in seconds (`headrace.redo.writing.gulp_pace`)."""
        return self._pause_s

    @property
    def waits_for_receivers(self) -> bool:
        """Whether a receiver's acknowledgement can allow a further confirmation at all."""
        return self.shipping.has_sync

    @property
    def is_awaiting(self) -> bool:
        """Whether a receiver's acknowledgement will allow a further confirmation: step again when it arrives."""
        return self._intake is not None and self.shipping.is_awaited(self._log.state.end_scn)

    @property
    def awaits_build(self) -> bool:
        """Whether the last written redo can be mined only when the next step has written a dictionary build."""
        return self._log.dictionary.awaited is not None

    @property
    def oldest_scn(self) -> Scn:
        """Redo can be mined from here on. Any thread may read it."""
        return self._kept.oldest_scn

    @property
    def _segment(self) -> SegmentWriter | None:
        """The online segment; None: there is none. A simulated power loss takes its unsynced part."""
        return self._log.segment

    def statistics(self) -> LogWriterStatistics:
        """Return the totals so far. Any thread may call it."""
        totals = self._log.totals
        return LogWriterStatistics(
            state=self.state,
            redo_bytes=self._kept.redo_bytes,
            redo_bytes_max=self._space.redo_bytes_max,
            segments=self._kept.count,
            position=self._log.position,
            data_bytes=totals.data_bytes,
            records=totals.records,
            syncs=totals.syncs,
            resumes=self._resumes,
            purged_bytes=self._space.purged_bytes,
            required_checkpoint_scn=self.required_checkpoints.lowest or FIRST_SCN,
            problem=self._problem(),
        )

    def _problem(self) -> str:
        """Return why it is paused, for the operator."""
        end, restart_segment = self._log.state, self._log.restart_segment
        if self.state == _DISK_IS_FULL:
            problem = self._space.disk_problem(end, restart_segment)
        elif self.state == _REDO_IS_FULL:
            problem = self._space.bound_problem(end, restart_segment)
        else:
            problem = self._builds.problem(self._log.dictionary.awaited)
        is_awaited = problem and self.shipping.has_sync
        return problem + (
            "; transport is sync: commits that wait for the log writer wait until then" if is_awaited else ""
        )

    # ------------------------------------------------------------------ the stream

    def attach(self, stream: LogStream, check: CheckStream | None = None) -> None:
        """Continue with a new stream, opened at `start_scn`.

        Data that was read from an older stream and not written is dropped: the new one sends it again.

        Args:
            stream: the new stream, opened for `timeline`; on a later one that continues it, redo continues in a new
                segment.
            check: `SourceDatabase.check_stream`; called whenever the stream describes a table, before that is written.

        Raises:
            LogGone: the stream is another cluster's, or begins after the end of redo.
            DatabaseUnavailable: the dictionary could not be read.
        """
        _check_continues(self._source, self.options, self._log.state.end_scn, stream)
        build = self._builds.read(seeing=self._log.dictionary.awaited or ())
        self._intake = StreamIntake(stream, check, self._record_bytes, self._clock)
        self._builds.try_at_once()
        self._resumes += 1
        if self._kept.newest is None:
            if build is None:
                raise BugError("a dictionary build that need not reflect anything was not given", source=self._source)
            try:
                self._log.begin(stream.options, build, LogState(stream.start_scn, stream.start_scn, is_open=False))
            except RedoFull:
                self._phase = _DISK_IS_FULL
                raise
        else:
            # Written with the first data, not now: reconnecting in a loop must not fill the disk.
            self._log.resumes = True
            self._builds.pending = build
        self._phase = "IDLE"

    def detach(self) -> None:
        """Drop the stream (it broke, or the writer is stopped). The caller closes it."""
        self._intake = None

    def step(self, timeout_s: float, *, behind_scn: Scn = FIRST_SCN) -> bool:
        """Take one gulp from the stream and make it durable; purge what no capture process needs.

        Args:
            timeout_s: how long to wait for data.
            behind_scn: position that the stream is far from reaching; records are filled until it is read. FIRST_SCN:
                the stream keeps up.

        Returns:
            Whether redo was written; False: there was nothing to write, or the redo log is full.

        Raises:
            DatabaseUnavailable: the stream broke: attach a new one.
            UnsupportedType: the stream no longer has the form that its tables need: attach another one.
            RedoFull: the disk is full. Call again later: the read data is kept.
            RedoError: redo cannot be written.
        """
        intake = self._intake
        if intake is None:
            raise BugError("a log writer without a stream was told to write", source=self._source)
        try:
            return self._step(intake, timeout_s, behind_scn)
        except RedoFull:
            self._phase = _DISK_IS_FULL
            raise

    def _step(self, intake: StreamIntake, timeout_s: float, behind_scn: Scn) -> bool:
        """Take one gulp, as `step` does, without handling a full disk."""
        options = intake.stream.options
        self._space.save_and_purge()
        self._confirm(intake)
        self._switch_if_old(options)
        # Also when the redo log is full: the capture processes that would make room wait for the build.
        has_build = self._write_build(intake)
        if self._space.is_full and not self._make_room(options):
            self._pause(intake)
            return has_build
        if not intake.chunks and intake.problem is None:
            intake.take(self._until_build_s(timeout_s), behind_scn, self._until_build_s)
        is_full = intake.is_full  # more data is waiting
        began = self._clock.monotonic()
        wrote = self._write_taken(intake) if intake.chunks else self._write_progress(intake)
        if wrote:
            _after_fsync()
            self._confirm(intake)
        busy_s = self._clock.monotonic() - began
        has_build |= self._write_build(intake)
        self._pause_s = self._until_build_s(self._pace.owed_s(busy_s)) if wrote and not is_full else 0.0
        self._phase = "WRITING" if wrote else "IDLE"
        if intake.problem is not None:
            raise intake.problem
        return wrote or has_build

    def close(self) -> None:
        """Close the files; durable redo stays. Idempotent."""
        self._intake = None
        self.required_checkpoints.save()
        self.shipping.save()
        self._log.close()

    def _pause(self, intake: StreamIntake) -> None:
        self._phase = _REDO_IS_FULL
        now = self._clock.monotonic()
        if now - self._kept_alive_at >= KEEP_ALIVE_INTERVAL_S:
            self._kept_alive_at = now
            self._confirm(intake, is_repeated=True)

    def _confirm(self, intake: StreamIntake, *, is_repeated: bool = False) -> None:
        """Confirm to the source what is durable here, and at every receiver for which it waits."""
        intake.confirm(self.shipping.confirmable(self._log.state.end_scn), is_repeated=is_repeated)

    # ------------------------------------------------------------------ writing

    def _write_taken(self, intake: StreamIntake) -> bool:
        """Write the taken data as one DATA record, behind the dictionary that it needs."""
        chunks, before = intake.chunks, self._log.state
        describers = tuple(sorted({number for chunk in chunks for number in chunk.describers}))
        payload = chunks[0].data if len(chunks) == 1 else b"".join(chunk.data for chunk in chunks)
        described = (
            self._log.describe(payload, intake.stream.options) if any(chunk.objects for chunk in chunks) else None
        )
        if described is not None and intake.check is not None:
            # A table was created or altered since the stream began: redo must not hold values with another meaning
            # elsewhere.
            intake.check(described, describers=describers)
        commit_scn = max((chunk.commit_scn for chunk in chunks), default=FIRST_SCN)
        after = LogState(
            end_scn=max(before.end_scn, intake.progress_scn, commit_scn),
            commit_scn=max(before.commit_scn, commit_scn),
            is_open=chunks[-1].is_open,
            transaction=next((chunk.transaction for chunk in reversed(chunks) if chunk.commit_scn), before.transaction),
        )
        # Also for a TRUNCATE: an attached partition is not described before it changes, and a TRUNCATE of all others
        # must not count as one of the whole table.
        awaits = (
            AwaitedBuild(describers=describers)
            if described is not None or any(chunk.has_truncates for chunk in chunks)
            else None
        )
        self._write(
            intake,
            Record(
                kind=RecordType.DATA,
                data=payload,
                after=after,
                commit_end=_commit_end(chunks),
                described=described,
                awaits=awaits,
            ),
        )
        intake.written()
        return True

    def _write_progress(self, intake: StreamIntake) -> bool:
        """Write the position from keepalives if it moved and a record is due."""
        if intake.progress_scn <= self._log.state.end_scn:
            return False
        if self._clock.monotonic() - self._log.wrote_at < PROGRESS_INTERVAL_S:
            return False
        after = replace(self._log.state, end_scn=intake.progress_scn)
        self._write(intake, Record(kind=RecordType.PROGRESS, after=after))
        return True

    def _write_build(self, intake: StreamIntake) -> bool:
        """Write the awaited dictionary build when the catalog shows what it must reflect."""
        awaited = self._log.dictionary.awaited
        if awaited is None or self._builds.find(awaited) is None:
            return False
        self._write(intake, Record(kind=RecordType.DICTIONARY, after=self._log.state))
        return True

    def _write(self, intake: StreamIntake, record: Record) -> None:
        """Write a record, behind a pending build."""
        if self._log.write(record, intake.stream.options, self._builds.pending):
            self._builds.begin()
        self._builds.pending = None

    def _until_build_s(self, seconds: float) -> float:
        """Cap a wait in seconds at the next try of an awaited build."""
        return seconds if self._log.dictionary.awaited is None else self._builds.until_next_s(seconds)

    # ------------------------------------------------------------------ segments

    def _switch_if_old(self, options: StreamOptions) -> None:
        """Archive a segment by age, for receivers of complete segments."""
        if self.switch_after_s is None or self._log.age_s < self.switch_after_s:
            return
        if self._log.dictionary.awaited is not None and not self._builds.is_late:
            return  # the segment is about to get the build that it needs for mining
        self._log.renew_segment(options)

    def purge(self, needed_scn: Scn | None, kept_scn: Scn | None = None) -> int:
        """Remove archived segments that mining from `needed_scn` will not read and no redo receiver needs.

        Args:
            needed_scn: position that the capture processes need: redo from here on stays; None: nothing is mined.
            kept_scn: redo from here on stays while there is room; None: only what is needed.

        Returns:
            Bytes freed.
        """
        return self._space.purge(needed_scn, kept_scn)

    def _make_room(self, options: StreamOptions) -> bool:
        """Make the online segment purgeable when it alone fills the redo log, or nothing in it is needed.

        Return whether there is room now.
        """
        needed, end = self.required_checkpoints.needed_scn, self._log.state
        # The online segment also keeps the one before it if a transaction began there: applying more would never make
        # room.
        is_done = needed is not None and not end.is_open and needed >= end.commit_scn
        # Without an online segment this writer, or the one before it, ended between the two halves of a log switch.
        if (self._kept.count == 1 or is_done) and (self._log.segment is None or self._log.switch_if_used()):
            self._log.create_segment(options)
            self._space.save_and_purge()
        return not self._space.is_full


def _check_continues(source: str, mine: StreamOptions | None, end_scn: Scn, stream: LogStream) -> None:
    """Check that a stream is of the redo log's database and leaves no gap after its end."""
    theirs = stream.options
    if mine is None:
        return
    if (mine.database_kind, mine.system_identifier) != (theirs.database_kind, theirs.system_identifier):
        raise LogGone(
            f"the database of site {source} is not the cluster from which its redo log comes",
            hint=f"point the site back to its old database, or {INSTANTIATE_AGAIN}",
            source=source,
            redo_system=mine.system_identifier,
            database_system=theirs.system_identifier,
        )
    check_history(source, redo=mine, start=end_scn, now=theirs)
    if stream.start_scn > end_scn:
        raise LogGone(
            f"the log of site {source} begins at SCN {scn_text(stream.start_scn)}, its redo log ends at SCN "
            f"{scn_text(end_scn)}: transactions between are gone",
            hint=INSTANTIATE_AGAIN,
            source=source,
            after_scn=end_scn,
            through_scn=stream.start_scn,
        )


def _commit_end(chunks: list[LogChunk]) -> int:
    """Return the end of the last transaction in the joined data; 0: none ends, or a chunk did not say."""
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
