"""Effects of damage, torn writes and full disks on redo segments."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.clock import VirtualClock
from headrace.base.errors import LogGone, RedoError
from headrace.databases.memory.source import MemorySource
from headrace.lcr.scn import Scn
from headrace.links.ports import RedoPosition
from headrace.redo.records import HEADER_BYTES, RecordHeader, RecordType
from headrace.redo.segments import (
    PREAMBLE_BYTES,
    RedoFull,
    RedoReader,
    SegmentWriter,
    list_segments,
    read_head,
    scan_segment,
)
from headrace.redo.standby.kept_segments import KeptSegments
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import SOURCE, committed, drain, log_writer, mine, miner, received, write_redo
from tests.support.session.seeds import scaled

few = settings(max_examples=scaled(18, 500), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A redo log of several segments: bytes by file name, committed transactions, position."""
    folder = tmp_path_factory.mktemp("redo")
    cuts = random.Random(5)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, 400))
    Workload(source, 5).run(60)
    writer = write_redo(folder, source, segment_bytes=6000, record_bytes=600)
    writer.close()
    files = {path.name: path.read_bytes() for path in folder.glob("*.redo")}
    assert len(files) > 3
    return files, committed(source), writer.position


def restore(folder, files):
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.seeded
@few
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_flipped_bit_anywhere_is_detected_or_harmless(tmp_path_factory, archive, place, bit):
    """The reader raises an error or returns exactly the committed transactions, never other data."""
    files, expected, position = archive
    folder = tmp_path_factory.mktemp("flip")
    name = sorted(files)[place % len(files)]
    data = bytearray(files[name])
    data[place // len(files) % len(data)] ^= 1 << bit
    restore(folder, {**files, name: bytes(data)})
    (file,) = (file for file in list_segments(folder) if file.path.name == name)
    if file.is_archived:
        with pytest.raises(RedoError):
            scan_segment(file, lambda header, payload: None)
    reader = miner(folder)
    try:
        found = received(_all(reader, position))
    except RedoError:
        return
    assert found == expected


def _all(reader, position):
    while (batch := reader.next_batch(position)) is not None:
        yield batch


@pytest.mark.seeded
@few
@given(cut=st.floats(0, 1), tail=st.binary(max_size=100), seed=st.integers(0, 100))
def test_torn_tail_is_cut_and_the_source_resends(tmp_path_factory, cut, tail, seed):
    folder, cuts, clock = tmp_path_factory.mktemp("torn"), random.Random(seed), VirtualClock()
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, 300))
    workload = Workload(source, seed)
    workload.run(10)
    write_redo(folder, source, record_bytes=300, clock=clock).close()
    (file,) = list_segments(folder)
    before = file.path.read_bytes()
    head_end = _head_end(before)
    keep = head_end + int(cut * (len(before) - head_end))
    # Only undurable bytes are cut: the cut records were never durable.
    file.path.write_bytes(before[:keep] + tail)
    source.confirmed_scn = Scn(0)
    workload.run(5)
    writer = log_writer(folder, source, clock=clock)
    drain(writer, source, clock)
    assert received(mine(miner(folder), writer)) == committed(source)


def _head_end(data: bytes) -> int:
    offset = PREAMBLE_BYTES
    for _ in range(2):
        header = RecordHeader.unpack(data[offset : offset + HEADER_BYTES])
        assert header is not None
        offset += header.record_bytes
    return offset


def test_damage_below_a_durable_record_is_no_torn_tail(tmp_path):
    source = MemorySource(gulp_bytes=lambda: 100)
    Workload(source, 1).run(20)
    writer = write_redo(tmp_path, source, record_bytes=100)
    writer.close()
    (file,) = list_segments(tmp_path)
    data = bytearray(file.path.read_bytes())
    damaged = _head_end(bytes(data)) + 400
    data[damaged] ^= 1
    file.path.write_bytes(bytes(data))
    with pytest.raises(RedoError) as raised:
        log_writer(tmp_path, source)
    context: dict[str, Any] = dict(raised.value.context)
    assert context["segment"] == file.path.name
    assert context["offset"] <= damaged
    assert context["through_scn"] >= context["after_scn"]


def test_leftover_file_of_a_log_switch_is_removed(tmp_path):
    (tmp_path / "0000000000000001.redo.tmp").write_bytes(b"half a head")
    source = MemorySource()
    Workload(source, 1).run(5)
    writer = write_redo(tmp_path, source)
    assert not list(tmp_path.glob("*.tmp"))
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_full_segment_is_archived_after_the_writer_ended_before_renaming(tmp_path, monkeypatch):
    def end_before(_segment):
        raise KeyboardInterrupt

    def archived():
        return [file.is_archived for file in list_segments(tmp_path)]

    source = MemorySource()
    workload = Workload(source, 1)
    workload.run(5)
    writer = write_redo(tmp_path, source, segment_bytes=1)
    switched = archived()
    assert switched == [True] * (len(switched) - 1) + [False]  # the last one is full, but no data followed
    workload.run(5)
    with monkeypatch.context() as ending:
        ending.setattr(SegmentWriter, "archive", end_before)
        with pytest.raises(KeyboardInterrupt):
            writer.step(0.0)
    writer.close()
    assert archived() == switched
    assert scan_segment(list_segments(tmp_path)[-1], lambda header, payload: None).is_complete
    writer = write_redo(tmp_path, source, segment_bytes=1)
    assert len(archived()) > len(switched)
    assert all(archived()[:-1])
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_other_format_version_is_refused(tmp_path):
    source = MemorySource()
    write_redo(tmp_path, source).close()
    (file,) = list_segments(tmp_path)
    data = bytearray(file.path.read_bytes())
    data[12] = 99
    file.path.write_bytes(bytes(data))
    with pytest.raises(RedoError, match="format 99"):
        log_writer(tmp_path, source)


def test_reader_never_goes_beyond_the_durable_offset(tmp_path):
    source = MemorySource(gulp_bytes=lambda: 100)
    Workload(source, 1).run(20)
    writer = write_redo(tmp_path, source, record_bytes=100)
    reader = RedoReader(tmp_path, 1)
    limit = RedoPosition(1, writer.position.offset // 2, Scn(0))
    ends = []
    while (header := reader.next_header(limit)) is not None:
        reader.skip(header)
        ends.append(reader.offset)
    assert ends[-2] < limit.offset
    assert reader.next_header(writer.position) is not None


def test_reader_of_a_purged_segment_fails_with_log_gone(tmp_path):
    source = MemorySource(gulp_bytes=lambda: 100)
    Workload(source, 1).run(40)
    writer = write_redo(tmp_path, source, record_bytes=100, segment_bytes=2000)
    writer.purge(source.current_scn())
    with pytest.raises(LogGone):
        RedoReader(tmp_path, 1)


@pytest.mark.parametrize("place", ["write", "half a write", "fsync"])
def test_full_disk_leaves_nothing_half_written_and_recovers(tmp_path, monkeypatch, place):
    source, clock = MemorySource(), VirtualClock()
    workload = Workload(source, 3)
    workload.run(10)
    writer = write_redo(tmp_path, source, clock=clock)
    confirmed, position = source.confirmed_scn, writer.position
    workload.run(10)
    real_write, real_sync = os.pwritev, os.fdatasync

    def full_write(descriptor, buffers, offset):
        if place == "half a write":
            os.pwrite(descriptor, bytes(buffers[0])[:40], offset)
        raise OSError(errno.ENOSPC, "full")

    def full_sync(descriptor):
        raise OSError(errno.ENOSPC, "full")

    if place == "fsync":
        calls = iter([full_sync])  # only the first sync fails: cutting the file back must work

        def sync_once_full(descriptor):
            return next(calls, real_sync)(descriptor)

        monkeypatch.setattr(os, "fdatasync", sync_once_full)
    else:
        monkeypatch.setattr(os, "pwritev", full_write)
    with pytest.raises(RedoError) as raised:
        writer.step(0.0)
    assert raised.value.retry.value == "timed"
    assert writer.state == "PAUSED: DISK IS FULL"
    assert (source.confirmed_scn, writer.position) == (confirmed, position)
    (file,) = list_segments(tmp_path)
    assert file.size_bytes == position.offset
    monkeypatch.setattr(os, "pwritev", real_write)
    monkeypatch.setattr(os, "fdatasync", real_sync)
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_full_disk_at_a_log_switch_recovers(tmp_path, monkeypatch):
    source, clock = MemorySource(gulp_bytes=lambda: 200), VirtualClock()
    Workload(source, 3).run(60)
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=3000, record_bytes=200)
    real, turn = os.pwritev, random.Random(1)

    def sometimes_full(descriptor, buffers, offset):
        if turn.random() < 0.4:
            os.pwrite(descriptor, bytes(buffers[0])[: turn.randint(0, 70)], offset)
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", sometimes_full)
    for _ in range(400):
        with contextlib.suppress(RedoFull):
            if writer.state == "DISABLED":
                writer.attach(source.open_stream("t", writer.start_scn))
            writer.step(0.0)
        clock.advance(1.0)
    assert len(list_segments(tmp_path)) > 3
    assert not list(tmp_path.glob("*.tmp"))
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_partial_record_that_cannot_be_cut_is_not_a_full_disk(tmp_path, monkeypatch):
    """A writer that continued would leave the rest of a record behind a shorter one."""
    source = MemorySource()
    workload = Workload(source, 3)
    workload.run(10)
    writer = write_redo(tmp_path, source)
    workload.run(10)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(RedoError) as told:
        writer.step(0.0)
    assert not isinstance(told.value, RedoFull)
    assert not writer.state.startswith("PAUSED"), "the site drops the writer and reopens the segment"


def test_segment_with_a_wrong_file_name_is_refused_before_log_gone(tmp_path):
    """A copy was restored under a wrong name; after it is renamed, mining works."""
    source = MemorySource(gulp_bytes=lambda: 200)
    Workload(source, 3).run(60)
    writer = write_redo(tmp_path, source, segment_bytes=3000, record_bytes=200)
    first, second, third, *_ = list_segments(tmp_path)
    start_scn = read_head(second.path).last_commit_scn - 1
    kept = first.path.read_bytes()
    for wrong in (second, third):
        first.path.write_bytes(wrong.path.read_bytes())
        with pytest.raises(RedoError, match=f"redo segment {first.number} is missing") as told:
            list(mine(miner(tmp_path, start_scn), writer))
        assert not isinstance(told.value, LogGone)
        with pytest.raises(RedoError, match=f"redo segment {first.number} is missing"):
            log_writer(tmp_path, source)
    first.path.write_bytes(kept)
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def test_every_field_of_a_header_survives():
    header = RecordHeader(
        type=RecordType.DATA,
        payload_bytes=7,
        payload_crc=1 << 31,
        number=3,
        end_scn=Scn(1 << 62),
        last_commit_scn=Scn(5),
        commit_scn=Scn(6),
        commit_end=4,
        open_at_start=True,
        has_descriptions=True,
        written_us=8,
        durable_offset=9,
    )
    assert RecordHeader.unpack(header.pack()) == header
    assert len(header.pack()) == HEADER_BYTES


def test_dropped_readers_and_writers_close_their_files(tmp_path):
    """A restarting capture process drops its miner; the miner's open files must not accumulate."""
    source = MemorySource()
    Workload(source, 1).run(3)
    end = write_redo(tmp_path, source).position
    folder = Path("/proc/self/fd")
    gc.collect()
    before = len(list(folder.iterdir()))
    for _ in range(20):
        miner(tmp_path).next_batch(end)
        log_writer(tmp_path, source)
    gc.collect()
    assert len(list(folder.iterdir())) <= before


def pair(folder, archive, *, cut: int = 700):
    """A redo log with an older, partial copy next to its second segment."""
    files, expected, position = archive
    restore(folder, files)
    second = folder / "0000000000000002.archived.redo"
    stale = folder / "0000000000000002.redo"
    stale.write_bytes(second.read_bytes()[:cut])
    return second, stale, expected, position


def test_complete_file_of_a_segment_wins_over_its_partial_copy(tmp_path, archive, monkeypatch):
    """This happens when a backup is restored next to newer files."""
    second, stale, expected, position = pair(tmp_path, archive)
    content = second.read_bytes()
    for order in (sorted, lambda paths: sorted(paths, reverse=True)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "glob", lambda self, pattern, order=order: order(self.rglob(pattern)))
            assert list_segments(tmp_path)[1].path == second
    reader = miner(tmp_path)
    assert received(_all(reader, position)) == expected
    reader.close()
    kept = KeptSegments(tmp_path, SOURCE)
    kept.read()
    assert second.read_bytes() == content
    kept.purge(4)
    assert not stale.exists(), "without the complete file it would precede a gap"
    assert list_segments(tmp_path)[0].number == 4
