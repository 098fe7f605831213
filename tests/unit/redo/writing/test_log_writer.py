"""The log writer: confirmed data is durable, purged redo is not needed.

Longer than 500 lines: all tests share the log writer over a source in memory.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace

import pytest

from headrace.base import failpoints
from headrace.base.clock import VirtualClock
from headrace.base.errors import DatabaseUnavailable, LogGone, RedoError, UnsupportedType
from headrace.databases.memory.source import MemorySource
from headrace.databases.ports import LogChunk, LogStream, StreamOptions
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.redo.checkpoints import CHECKPOINT_SAVE_INTERVAL_S, RequiredCheckpoints
from headrace.redo.records import RecordHeader, RecordType
from headrace.redo.segments import RedoFull, RedoReader, SegmentWriter, list_segments
from headrace.redo.writing import gulp_pace, stream_intake
from headrace.redo.writing import log_writer as log_writer_module
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import RuleSet
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import committed, drain, log_writer, mine, miner, received, write_redo


def busy(seed: int = 1, transactions: int = 40, gulp: int = 200) -> MemorySource:
    source = MemorySource(gulp_bytes=lambda: gulp)
    Workload(source, seed).run(transactions)
    return source


def headers(folder, writer) -> list[RecordHeader]:
    reader, found = RedoReader(folder, 1), []
    while (header := reader.next_header(writer.position)) is not None:
        found.append(header)
        reader.skip(header)
    return found


def record_types(folder, writer) -> list[RecordType]:
    return [header.type for header in headers(folder, writer)]


def attach(writer: LogWriter, source: MemorySource) -> None:
    writer.attach(source.open_stream("t", writer.start_scn, timeline=writer.timeline))


def test_only_fsynced_data_is_confirmed(tmp_path, monkeypatch):
    source = busy()
    writer = log_writer(tmp_path, source)
    attach(writer, source)
    monkeypatch.setattr(failpoints, "_ARMED", failpoints._parse("log_writer.before_fsync=error"))
    with pytest.raises(RedoError):
        writer.step(0.0)
    assert source.confirmed_scn == FIRST_SCN
    monkeypatch.setattr(failpoints, "_ARMED", {})
    assert writer.step(0.0)
    assert source.confirmed_scn == writer.position.scn > FIRST_SCN


def test_writer_failing_after_the_fsync_writes_nothing_twice(tmp_path, monkeypatch):
    source, clock = busy(), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock)
    attach(writer, source)
    monkeypatch.setattr(failpoints, "_ARMED", failpoints._parse("log_writer.after_fsync=error"))
    with pytest.raises(RedoError):
        writer.step(0.0)
    assert source.confirmed_scn == FIRST_SCN
    monkeypatch.setattr(failpoints, "_ARMED", {})
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_restart_after_unconfirmed_fsync_duplicates_nothing(tmp_path):
    source = busy()
    write_redo(tmp_path, source).close()
    source.confirmed_scn = FIRST_SCN
    writer = write_redo(tmp_path, source)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_slot_moves_when_only_other_tables_change(tmp_path):
    source = busy()
    clock = VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    source.other_activity()
    drain(writer, source, clock)
    assert source.confirmed_scn == source.current_scn()
    assert record_types(tmp_path, writer)[-1] is RecordType.PROGRESS


def test_progress_is_written_at_most_ten_times_a_second(tmp_path):
    source, clock = MemorySource(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    attach(writer, source)
    clock.advance(1.0)
    written = 0
    for _ in range(100):
        source.other_activity()
        written += writer.step(0.0)
        clock.advance(0.01)
    assert 8 <= written <= 11


@pytest.mark.parametrize(("between_s", "is_paced"), [(0.010, False), (0.001, True)])
def test_sparse_commits_are_read_at_once_and_many_are_paced_to_one_core(tmp_path, monkeypatch, between_s, is_paced):
    clock, gulp_s, count = VirtualClock(), 0.001, 60
    monkeypatch.setattr(log_writer_module, "_after_fsync", lambda: clock.advance(gulp_s))
    source = MemorySource()
    writer = write_redo(tmp_path, source, clock=clock)
    clock.advance(1.0)
    began, pauses = clock.monotonic(), []
    for _ in range(count):
        Workload(source, 1).run(1)
        assert writer.step(0.0)
        pauses.append(writer.pause_s)
        clock.advance(max(writer.pause_s, between_s - gulp_s))
    if is_paced:
        assert pauses[0] == 0
        assert pauses[-1] == pytest.approx(gulp_s * (gulp_pace.GULP_COST - 1))
        cost_s = count * gulp_s * gulp_pace.GULP_COST - gulp_pace.DEBT_ALLOWED_S
        assert clock.monotonic() - began == pytest.approx(cost_s, rel=0.05)
    else:
        assert set(pauses) == {0.0}
    assert not writer.step(0.0)
    assert writer.pause_s == 0, "nothing was written: the next data is taken at once"


def test_writer_does_not_pause_while_more_is_pending(tmp_path, monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(log_writer_module, "_after_fsync", lambda: clock.advance(10.0))
    source = busy(transactions=40, gulp=200)
    writer = log_writer(tmp_path, source, clock=clock, record_bytes=400)
    attach(writer, source)
    pauses = []
    while writer.step(0.0):
        pauses.append(writer.pause_s)
    assert len(pauses) > 3
    assert set(pauses[:-1]) == {0.0}
    assert pauses[-1] == gulp_pace.PAUSE_MAX_S


class _Trickle:
    """A stream that returns a gulp when the reader waits 10 ms, and nothing otherwise."""

    def __init__(self, stream: LogStream, clock: VirtualClock) -> None:
        self._stream, self._clock = stream, clock
        self.options, self.start_scn, self.confirm, self.close = (
            stream.options,
            stream.start_scn,
            stream.confirm,
            stream.close,
        )
        self.waited_s: list[float] = []

    def read(self, timeout_s: float) -> LogChunk | None:
        self.waited_s.append(timeout_s)
        self._clock.advance(min(timeout_s, 0.01))
        return self._stream.read(0.0) if timeout_s >= 0.01 else None


def _one_step(
    folder, *, behind_scn: Scn, transactions: int = 300, gulp: int = 400, record_bytes: int = 4_000
) -> tuple[int, _Trickle]:
    """Return the bytes that one step writes of a trickling stream, and the stream."""
    source, clock = busy(transactions=transactions, gulp=gulp), VirtualClock()
    writer = log_writer(folder, source, clock=clock, record_bytes=record_bytes)
    stream = _Trickle(source.open_stream("t", writer.start_scn, timeline=writer.timeline), clock)
    writer.attach(stream)
    assert writer.step(0.1, behind_scn=behind_scn)
    return writer.statistics().data_bytes, stream


def test_lagging_stream_fills_a_record_before_it_is_written(tmp_path):
    small, _ = _one_step(tmp_path / "keeps_up", behind_scn=FIRST_SCN)
    filled, _ = _one_step(tmp_path / "behind", behind_scn=Scn(1 << 60))
    assert small < 1_000 < 4_000 <= filled


def test_record_is_filled_for_a_bounded_time(tmp_path):
    written, stream = _one_step(tmp_path, behind_scn=Scn(1 << 60), gulp=1_000, record_bytes=50_000)
    assert written < 50_000
    assert sum(min(each, 0.01) for each in stream.waited_s[1:]) == pytest.approx(stream_intake.FILL_S)


def test_writer_does_not_wait_behind_a_few_small_transactions(tmp_path):
    _, stream = _one_step(tmp_path, behind_scn=Scn(1 << 60), record_bytes=1_000_000)
    assert stream.waited_s == [0.1, 0.0]


def test_writer_does_not_wait_when_everything_was_read(tmp_path):
    _, stream = _one_step(tmp_path, behind_scn=Scn(2), gulp=4_000, record_bytes=100_000)
    assert stream.waited_s == [0.1, 0.0]


def test_resume_record_is_written_only_with_first_data_of_a_new_stream(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    size = writer.statistics().redo_bytes
    for _ in range(20):
        attach(writer, source)
        writer.step(0.0)
    assert writer.statistics().redo_bytes == size
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="x")
    drain(writer, source, clock)
    assert record_types(tmp_path, writer).count(RecordType.RESUME) == 1


@pytest.mark.long
def test_data_before_a_stream_break_is_kept(tmp_path):
    """The writer makes progress even with a break every few messages."""
    source = busy(transactions=20)
    source.break_after(*([9] * 500))
    writer = write_redo(tmp_path, source)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_unwritten_data_is_not_written_along_with_a_new_stream(tmp_path, monkeypatch):
    source, clock = busy(), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock)
    attach(writer, source)
    monkeypatch.setattr(failpoints, "_ARMED", failpoints._parse("log_writer.write=error"))
    with pytest.raises(RedoError):
        writer.step(0.0)
    monkeypatch.setattr(failpoints, "_ARMED", {})
    attach(writer, source)
    drain(writer, source, clock)
    found = sum(header.payload_bytes for header in headers(tmp_path, writer) if header.type is RecordType.DATA)
    assert found == writer.statistics().data_bytes
    data = b"".join(chunk.data for chunk in chunks(source))
    assert found == len(data)


def chunks(source: MemorySource):
    stream = MemorySource.open_stream(source, "t", FIRST_SCN)
    stream._next, stream._start = 0, FIRST_SCN
    while (chunk := stream.read(0.0)) is not None:
        yield chunk


def test_another_cluster_is_refused(tmp_path):
    write_redo(tmp_path, busy()).close()
    other = MemorySource(system_identifier="memory-2")
    writer = log_writer(tmp_path, other)
    with pytest.raises(LogGone, match="is not the cluster"):
        attach(writer, other)


def test_timeline_that_does_not_descend_from_the_redo_log_is_refused(tmp_path):
    source = busy()
    source.promoted()
    write_redo(tmp_path, source).close()
    before = MemorySource(timeline=1)
    with pytest.raises(LogGone, match="timeline 1, which does not come from timeline 2"):
        attach(log_writer(tmp_path, before), before)


def test_promotion_of_a_complete_standby_continues_in_a_new_segment(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    source.promoted()
    writer.close()
    writer = log_writer(tmp_path, source, clock=clock)
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="x")
    attach(writer, source)
    drain(writer, source, clock)
    assert (writer.timeline, writer.position.segment) == (2, 2)
    assert received(mine(miner(tmp_path), writer)) == committed(source)
    source.promoted()
    attach(writer, source)  # nothing was written on timeline 3 yet
    assert writer.timeline == 2
    attach(writer, source)


def test_redo_beyond_the_promoted_standby_is_refused_with_its_range(tmp_path):
    source = busy()
    switch = source.current_scn()
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="the standby never had it")
    writer = write_redo(tmp_path, source)
    other = MemorySource(timeline=2)
    other.left = {1: switch}
    with pytest.raises(LogGone, match="was promoted, or recovered") as caught:
        attach(writer, other)
    assert caught.value.context["after_scn"] == switch
    assert caught.value.context["through_scn"] == writer.start_scn > switch
    other.left = {1: writer.start_scn}
    assert other.open_stream("t", writer.start_scn, timeline=writer.timeline).start_scn == writer.start_scn


def promoted_at(switch: int, *, timeline: int = 2) -> MemorySource:
    """A standby that was promoted at an SCN and has advanced far since."""
    other = MemorySource(timeline=timeline)
    other.left = {1: Scn(switch)}
    other.options = replace(other.options, switches=tuple(other.left.items()))
    other._scn = 1_000_000
    return other


def test_sibling_promotion_with_the_same_timeline_number_is_refused(tmp_path):
    source, clock = busy(), VirtualClock()
    source.promoted()
    switch = source.left[1]
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="on the first one's timeline 2")
    writer = write_redo(tmp_path, source, clock=clock)
    assert writer.options is not None
    assert (writer.timeline, writer.options.switches) == (2, ((1, switch),))
    before = (writer.position, writer.start_scn)
    for other in (promoted_at(switch + 50), promoted_at(switch - 50), promoted_at(switch + 50, timeline=3)):
        other.left[2] = Scn(500_000)
        with pytest.raises(LogGone, match="Two standbys were promoted beside each other") as caught:
            attach(writer, other)
        assert caught.value.context["after_scn"] == min(switch, other.left[1])
        assert caught.value.context["through_scn"] == writer.start_scn
    assert (writer.position, writer.start_scn) == before
    writer.close()
    writer = log_writer(tmp_path, source, clock=clock)  # the history is on disk
    with pytest.raises(
        LogGone, match=f"left timeline 1 at SCN {scn_text(switch)}, the database left it at SCN {scn_text(switch + 50)}"
    ):
        attach(writer, promoted_at(switch + 50))
    attach(writer, source)


def test_redo_log_without_a_timeline_history_continues(tmp_path):
    """A redo log written by an earlier version has none."""
    source = busy()
    source.promoted()
    known, source.options = source.options, replace(source.options, switches=())
    write_redo(tmp_path, source).close()
    source.options = known
    writer = log_writer(tmp_path, source)
    attach(writer, source)


def test_stream_that_begins_after_the_end_of_redo_is_refused(tmp_path):
    source = busy()
    writer = write_redo(tmp_path, source)
    for _ in range(3):
        source.other_activity()
    source.confirmed_scn = source.current_scn()
    with pytest.raises(LogGone, match="are gone"):
        writer.attach(source.open_stream("t", FIRST_SCN))


def test_other_stream_options_begin_a_new_segment(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    options = source.options
    source.options = StreamOptions(
        database_kind="memory",
        system_identifier=options.system_identifier,
        timeline=options.timeline,
        binary=True,
        encoding="UTF8",
        server_version=2,
    )
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="x")
    attach(writer, source)
    drain(writer, source, clock)
    assert writer.position.segment == 2
    assert writer.options == source.options
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_full_redo_pauses_until_purged_and_drops_nothing(tmp_path):
    source, clock = MemorySource(gulp_bytes=lambda: 300), VirtualClock()
    workload = Workload(source, 4)
    writer = log_writer(tmp_path, source, clock=clock, redo_bytes_max=20_000, segment_bytes=3000, record_bytes=300)
    writer.required_checkpoints.register("c")
    workload.run(300)
    drain(writer, source, clock)
    assert writer.state == "PAUSED: REDO IS FULL"
    assert source.confirmed_scn < source.current_scn()
    size = writer.statistics().redo_bytes
    drain(writer, source, clock)
    assert writer.statistics().redo_bytes == size
    assert size < 30_000
    reader, batches, turns = miner(tmp_path, clock=clock), list[LcrBatch](), 0
    while source.confirmed_scn < source.current_scn():
        batches += mine(reader, writer)
        clock.advance(1.0)
        batches += mine(reader, writer)
        writer.required_checkpoints.record("c", reader.sent_scn)
        drain(writer, source, clock)
        turns += 1
        assert turns < 100
    batches += mine(reader, writer)
    assert received(batches) == committed(source)
    assert writer.statistics().purged_bytes > 0


def test_only_a_transaction_larger_than_the_disk_is_reported_as_too_large(tmp_path, monkeypatch):
    source, clock = MemorySource(gulp_bytes=lambda: 300), VirtualClock()
    Workload(source, 4).run(20)
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=3000, record_bytes=300)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    real, room = os.pwritev, 0

    def bounded(descriptor, buffers, offset):
        nonlocal room
        room -= sum(len(each) for each in buffers)
        if room < 0:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", bounded)
    for is_large in (False, True):
        room = 10_000 if is_large else 0
        with source.transaction() as transaction:
            for number in range(1000 if is_large else 1):
                transaction.insert("hr.log", line=f"line {number}")
        with pytest.raises(RedoFull):
            drain(writer, source, clock)
        told = writer.statistics()
        assert told.state == "PAUSED: DISK IS FULL"
        assert ("of one transaction" in told.problem) is is_large, told.problem
        assert ("free space" in told.problem) is not is_large
        room = 1 << 30
        drain(writer, source, clock)
        writer.required_checkpoints.record("c", source.log[-1].commit_scn)
        drain(writer, source, clock)
    assert source.confirmed_scn == source.current_scn()


def test_transaction_larger_than_the_redo_names_the_limit_to_raise(tmp_path):
    source, clock = MemorySource(gulp_bytes=lambda: 300), VirtualClock()
    Workload(source, 4).run(20)
    with source.transaction() as transaction:
        for number in range(1000):
            transaction.insert("hr.log", line=f"line {number}")
    settings = {"clock": clock, "segment_bytes": 3000, "record_bytes": 300}
    writer = log_writer(tmp_path, source, redo_bytes_max=20_000, **settings)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    writer.required_checkpoints.record("c", source.log[-2].commit_scn)  # everything before it is applied
    drain(writer, source, clock)
    told = writer.statistics()
    assert told.state == "PAUSED: REDO IS FULL"
    assert f"after SCN {scn_text(source.log[-2].commit_scn)}" in told.problem
    assert "raise redo_bytes_max" in told.problem
    assert source.confirmed_scn < source.log[-1].commit_scn
    writer.close()

    writer = log_writer(tmp_path, source, redo_bytes_max=500_000, **settings)
    drain(writer, source, clock)
    assert writer.state == "IDLE"
    assert writer.statistics().problem == ""
    assert source.confirmed_scn == source.current_scn()
    after = source.log[-2].commit_scn
    assert received(mine(miner(tmp_path, after), writer), after) == committed(source, after_scn=after)
    assert writer.statistics().purged_bytes > told.redo_bytes * 0.8, "the half that was written first is purged"


def test_full_redo_names_the_slow_destination(tmp_path):
    source, clock = busy(transactions=80), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, redo_bytes_max=4000, segment_bytes=1000, record_bytes=200)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    assert writer.state == "PAUSED: REDO IS FULL"
    assert "goes on by itself" in writer.statistics().problem


def test_described_table_is_checked_before_its_data_is_written(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="before")
    before = source.current_scn()
    attach(writer, source)
    drain(writer, source, clock)

    def unfit(described, *, describers) -> None:
        assert [version.name for version in described] == ["log"]
        assert describers == (source.log[-1].transaction_id,)
        raise UnsupportedType("cannot travel in binary form")

    writer.attach(source.open_stream("t", writer.start_scn), unfit)
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="after")
    with pytest.raises(UnsupportedType):
        writer.step(0.0)
    assert writer.position.scn <= before
    attach(writer, source)
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_online_segment_that_fills_the_redo_is_archived_and_purged(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, redo_bytes_max=5000, segment_bytes=1 << 20)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    assert writer.state == "PAUSED: REDO IS FULL"
    writer.required_checkpoints.record("c", writer.position.scn)
    drain(writer, source, clock)
    assert writer.state == "IDLE"
    assert [file.number for file in list_segments(tmp_path)] == [2]


@pytest.mark.parametrize("dies", ["killed", "disk is full"])
def test_interrupted_log_switch_in_full_redo_is_finished_later(tmp_path, monkeypatch, dies):
    source, clock = busy(), VirtualClock()
    bounds = {"clock": clock, "redo_bytes_max": 5000, "segment_bytes": 1 << 20}
    writer = log_writer(tmp_path, source, **bounds)
    writer.required_checkpoints.register("c")
    error, create = (
        KeyboardInterrupt() if dies == "killed" else RedoFull("no space", hint="free some"),
        SegmentWriter.create,
    )

    def second_fails(*arguments):
        if list_segments(tmp_path):
            raise error
        return create(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "create", second_fails)
        with pytest.raises(type(error)):
            drain(writer, source, clock)
    assert [file.is_archived for file in list_segments(tmp_path)] == [True]
    if dies == "killed":
        writer = log_writer(tmp_path, source, **bounds)
        attach(writer, source)
    writer.required_checkpoints.record("c", writer.position.scn)
    drain(writer, source, clock)
    assert writer.state == "IDLE"
    assert [file.number for file in list_segments(tmp_path)] == [2]
    assert source.confirmed_scn == source.current_scn()


def test_online_segment_and_its_predecessor_are_archived_and_purged(tmp_path):
    """Both together fill the redo and everything in them is applied. The first one is needed while the second is the
    last segment.
    """
    gulp, clock = [300], VirtualClock()
    source = MemorySource(gulp_bytes=lambda: gulp[0])
    Workload(source, 4).run(1)
    with source.transaction() as transaction:
        for number in range(400):
            transaction.insert("hr.log", line=f"line {number}")
    writer = log_writer(tmp_path, source, clock=clock, redo_bytes_max=12_000, segment_bytes=3000, record_bytes=300)
    writer.required_checkpoints.register("c")
    attach(writer, source)
    while writer.statistics().segments < 2:
        writer.step(0.0)
        clock.advance(0.2)
    gulp[0] = 1 << 16
    drain(writer, source, clock)
    assert writer.position.scn == source.log[-1].commit_scn
    with source.transaction() as transaction:
        transaction.insert("hr.log", line="one more")
    drain(writer, source, clock)
    assert writer.state == "PAUSED: REDO IS FULL"
    writer.required_checkpoints.record("c", writer.position.scn)
    drain(writer, source, clock)
    assert writer.state == "IDLE"
    assert writer.position.scn == source.current_scn()


def test_purge_keeps_redo_needed_from_the_required_checkpoint(tmp_path):
    source = busy(transactions=80, gulp=150)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=150)
    scns = random.Random(1).sample([t.commit_scn for t in source.log], 20)
    for scn in sorted(scns):
        writer.purge(Scn(scn))
        assert received(mine(miner(tmp_path, scn), writer), scn) == committed(source, after_scn=scn)
    assert writer.statistics().purged_bytes > 0


def test_nothing_is_purged_before_every_capture_reported(tmp_path):
    source, clock = busy(transactions=80), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=2000, record_bytes=200)
    for capture in ("a", "b"):
        writer.required_checkpoints.register(capture)
    drain(writer, source, clock)
    writer.required_checkpoints.record("a", writer.position.scn)
    drain(writer, source, clock)
    assert writer.statistics().purged_bytes == 0
    writer.required_checkpoints.forget("b")
    drain(writer, source, clock)
    assert writer.statistics().purged_bytes > 0


def test_purge_bound_is_durable_before_the_purge(tmp_path):
    """After a kill the next writer knows that its capture processes no longer need the purged redo."""
    source, clock = busy(transactions=80), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=2000, record_bytes=200)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    clock.advance(CHECKPOINT_SAVE_INTERVAL_S)
    writer.step(0.0)
    writer.required_checkpoints.record("c", writer.position.scn)
    told = writer.position.scn
    writer.step(0.0)
    assert writer.statistics().purged_bytes > 0
    assert RequiredCheckpoints(tmp_path).lowest == told


def test_writer_purges_on_a_full_disk(tmp_path, monkeypatch):
    source, clock = busy(transactions=80), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=2000, record_bytes=200)
    writer.required_checkpoints.register("c")
    drain(writer, source, clock)
    writer.required_checkpoints.record("c", writer.position.scn)

    def full(self):
        raise RedoFull("full")

    monkeypatch.setattr(RequiredCheckpoints, "save", full)
    drain(writer, source, clock)
    assert writer.statistics().purged_bytes > 0


def test_required_checkpoints_survive_as_a_lower_bound(tmp_path):
    checkpoints = RequiredCheckpoints(tmp_path)
    checkpoints.register("c")
    checkpoints.record("c", Scn(10))
    assert RequiredCheckpoints(tmp_path).lowest == FIRST_SCN
    checkpoints.save()
    assert RequiredCheckpoints(tmp_path).lowest == 10
    assert checkpoints.record("c", Scn(5)) == 10
    assert checkpoints.register("c") == 10


def test_captures_removed_from_the_topology_retain_no_redo(tmp_path):
    checkpoints = RequiredCheckpoints(tmp_path)
    checkpoints.register("renamed")
    checkpoints.register("c")
    checkpoints.record("c", Scn(10))
    checkpoints.forget_others(["c"])
    assert checkpoints.lowest == 10
    checkpoints.record("renamed", Scn(5))  # its process has not ended yet
    assert checkpoints.lowest == 10
    assert RequiredCheckpoints(tmp_path).lowest == 10


def test_damaged_required_checkpoints_file_is_reported(tmp_path):
    (tmp_path / "required_checkpoints.json").write_text("[1")
    with pytest.raises(RedoError, match="damaged"):
        RequiredCheckpoints(tmp_path)


def test_new_table_gets_a_dictionary_build_before_its_first_change(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    source.create_table("sales.events_3", ["id"], key=["id"], root="sales.events")
    with source.transaction() as transaction:
        transaction.insert("sales.events_3", id="1")
    drain(writer, source, clock)
    found = received(mine(miner(tmp_path), writer))
    assert found[-1].rows[0][1] == "sales.events"
    assert found == committed(source)


def test_dictionary_is_the_same_after_a_restart_of_the_writer(tmp_path):
    source, clock = busy(transactions=60), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock, segment_bytes=3000, record_bytes=200)
    before = writer._log.dictionary.snapshot()
    writer.close()
    assert log_writer(tmp_path, source)._log.dictionary.snapshot() == before


def test_dictionary_that_cannot_be_read_loses_nothing(tmp_path):
    source, clock = busy(), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    source.create_table("hr.new", ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("hr.new", id="1")
    build, calls = writer._builds.read, []

    def unavailable(**settings):
        calls.append(1)
        if len(calls) == 1:
            raise DatabaseUnavailable("gone")
        return build(**settings)

    writer._builds.read = unavailable
    with pytest.raises(DatabaseUnavailable):
        writer.step(0.0)
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path, rules=RuleSet()), writer)) == committed(source)


def test_segment_of_another_site_is_refused(tmp_path):
    source = busy()
    write_redo(tmp_path, source).close()
    with pytest.raises(RedoError, match="of site dbs1"):
        LogWriter(
            tmp_path,
            "dbs2",
            decoder_factory=lambda options: None,  # type: ignore[return-value]  # nothing is decoded
            dictionary_build=source.dictionary_build,
            segment_bytes=1,
            redo_bytes_max=1,
        )
