"""Archived redo: complete segments that Headrace sends or anyone copies as files.

Partial files are pending; wrong files are refused by name.
"""

from __future__ import annotations

import errno
import os
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import LogGone, ProtocolError, RedoError
from headrace.base.failpoints import failpoint
from headrace.lcr.batch import LcrBatch
from headrace.links.standby import Shipped
from headrace.redo.segments import list_segments
from headrace.redo.standby import archive_folder
from headrace.redo.standby.archive_folder import ArchiveFolder
from tests.support.redo.redo_logs import SOURCE, committed, drain, mine, miner, received
from tests.support.redo.standby_redo import RECEIVER, Stream, log_bytes, standby_log
from tests.support.redo.standby_site import Site
from tests.support.session.seeds import seeds


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    made.commit(60)
    return made


@pytest.fixture
def archive(site):
    folder = site.folder.with_name("archive")
    folder.mkdir()
    return folder


def complete(site) -> list[Any]:
    return [file for file in list_segments(site.redo) if file.is_archived]


def take_all(files: ArchiveFolder, log) -> None:
    while files.take(log):
        pass


def test_segments_copied_in_any_order_are_taken_in_log_order(site, archive):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, *others = complete(site)
    assert len(others) > 2
    shutil.copy(first.path, archive)
    take_all(files, log)
    for file in reversed(others):
        shutil.copy(file.path, archive)
        take_all(files, log)
        if file is not others[0]:
            assert log.place.segment == first.number
            assert f"segment {first.number + 1} of the redo of dbs1 is missing" in files.problem
    assert files.problem == ""
    assert log_bytes(site.folder) == {file.path.name: file.path.read_bytes() for file in complete(site)}
    expected = [each for each in committed(site.source) if each.commit_scn <= log.position.scn]
    assert len(expected) > 10
    assert site.mined_at(log) == expected


def test_partial_copy_is_pending_until_it_is_complete(site, archive):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, second, *_ = complete(site)
    content = second.path.read_bytes()
    shutil.copy(first.path, archive)
    take_all(files, log)
    copy = archive / second.path.name
    for size in sorted(site.random.sample(range(len(content)), 12)):
        copy.write_bytes(content[:size])
        assert not files.take(log)
        assert str(copy) in files.problem
        assert log.place.segment == first.number
    copy.write_bytes(content)
    assert files.take(log)
    assert log.place.segment == second.number
    assert files.problem == ""


def test_preallocated_copy_is_pending_until_it_is_filled(site, archive):
    """Some copy tools reserve the space first."""
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, *_ = complete(site)
    content = first.path.read_bytes()
    copy = archive / first.path.name
    copy.write_bytes(bytes(len(content) // 2) + content[len(content) // 2 :])
    assert not files.take(log)
    assert "copy it again" in files.problem
    copy.write_bytes(content)
    assert files.take(log)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("flipped bits", test=3, soak=60))
def test_copied_file_with_flipped_bit_is_refused_until_it_is_replaced(tmp_path, seed):
    site = Site(tmp_path, seed)
    site.commit(60)
    archive = tmp_path / "archive"
    archive.mkdir()
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, *_ = complete(site)
    content = bytearray(first.path.read_bytes())
    content[site.random.randrange(len(content))] ^= 1 << site.random.randrange(8)
    copy = archive / first.path.name
    copy.write_bytes(content)
    assert not files.take(log)
    assert str(copy) in files.problem
    assert log.place.segment == 0
    shutil.copy(first.path, copy)
    assert files.take(log)


def test_file_of_another_source_or_number_is_refused_after_earlier_files(site, archive, tmp_path):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, second, third, *_ = complete(site)
    shutil.copy(first.path, archive)
    take_all(files, log)
    copy = archive / second.path.name
    shutil.copy(third.path, copy)
    assert not files.take(log)
    assert f"{copy} is segment {third.number} of the redo of dbs1, not segment {second.number} of dbs1" in files.problem
    assert (
        ArchiveFolder(archive, "dbs9")
        ._refusal(list_segments(archive)[0], log)
        .endswith("not segment 1 of dbs9: replace it")
    )
    assert site.mined_at(log) == [each for each in committed(site.source) if each.commit_scn <= log.position.scn]
    shutil.copy(second.path, copy)
    take_all(files, log)
    assert log.place.segment == second.number


def test_file_of_another_redo_log_of_the_same_source_is_refused(tmp_path):
    site, other = Site(tmp_path / "one"), Site(tmp_path / "two", seed=3)
    site.commit(60)
    other.commit(120)
    archive = tmp_path / "archive"
    archive.mkdir()
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, second, *_ = complete(site)
    shutil.copy(first.path, archive)
    take_all(files, log)
    wrong = next(file for file in complete(other) if file.number == second.number)
    shutil.copy(wrong.path, archive)
    assert not files.take(log)
    assert "does not continue segment" in files.problem
    assert list(site.folder.glob("*.tmp")) == []
    shutil.copy(second.path, archive)
    assert files.take(log)


def test_archived_files_and_real_time_transport_continue_each_other(site, archive):
    """Standby redo and archived files form one log without a break."""
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    stream = site.stream(log)
    for frame in stream.frames():
        log.take(frame)
        log.sync()
        if frame.segment == 2:
            break
    place = log.place
    assert place.segment == 2
    for file in complete(site):
        shutil.copy(file.path, archive)
    take_all(files, log)
    assert log.place.segment == complete(site)[-1].number > place.segment
    site.commit(20)
    site.receive(log, lambda: 700)
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert site.mined_at(log) == committed(site.source)


def test_file_that_differs_from_real_time_redo_is_refused(tmp_path):
    site, other = Site(tmp_path / "one"), Site(tmp_path / "two")
    site.commit(60)
    other.clock.advance(7.0)
    other.commit(60)
    archive = tmp_path / "archive"
    archive.mkdir()
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    for frame in site.stream(log).frames():
        log.take(type(frame)(segment=1, offset=0, data=frame.data[: len(frame.data) * 3 // 4]))
        log.sync()
        break
    assert log.place.segment == 1
    shutil.copy(complete(other)[0].path, archive)
    assert not files.take(log)
    assert "of another redo log of dbs1" in files.problem


def test_source_purges_behind_segments_sent_by_archived_transport(tmp_path):
    site = Site(tmp_path, keeps=False)
    site.commit(60)
    log = standby_log(site.folder)
    shipment = site.writer.shipping.begin(RECEIVER, "1", log.place, Shipped.ARCHIVED)
    while (frame := shipment.next_frame()) is not None:
        log.take(frame)
    log.sync()
    newest = site.writer.position.segment
    assert log.place.segment == newest - 1
    assert all(file.is_archived for file in list_segments(site.folder))
    shipment.acknowledge(log.place)
    site.writer.step(0.0)
    assert [file.number for file in list_segments(site.redo)] == [newest - 1, newest]


def test_file_receiver_reports_its_position_and_tolerates_purged_redo(site, archive):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    for file in complete(site):
        shutil.copy(file.path, archive)
    shipment = site.writer.shipping.begin(RECEIVER, "1", log.place, Shipped.NOTHING)
    assert shipment.next_frame() is None
    assert site.writer.shipping.keep_from == 0
    take_all(files, log)
    shipment.acknowledge(log.place)
    assert site.writer.shipping.keep_from == log.place.segment
    with pytest.raises(ProtocolError):
        shipment.acknowledge(type(log.place)(segment=99, offset=1))
    site.writer.required_checkpoints.forget("keeps_all")
    site.writer.step(0.0)
    assert list_segments(site.redo)[0].number > 1
    behind = standby_log(site.folder.with_name("behind"))
    first = ArchiveFolder(archive, SOURCE)
    assert first.take(behind)
    site.writer.shipping.begin(RECEIVER, "2", behind.place, Shipped.NOTHING)
    take_all(first, behind)
    assert behind.place == log.place


def test_used_segment_is_archived_at_its_maximum_age(tmp_path):
    site = Site(tmp_path, segment_bytes=1 << 20)
    site.writer.switch_after_s = 60.0
    site.commit(3)
    assert complete(site) == []
    site.clock.advance(61.0)
    site.commit(1)
    (first,) = complete(site)
    site.clock.advance(61.0)
    drain(site.writer, site.source, site.clock)
    numbers = [file.number for file in complete(site)]
    site.clock.advance(300.0)
    drain(site.writer, site.source)
    assert [file.number for file in complete(site)] == numbers, "an empty segment is not worth a file"
    reader = miner(site.redo)
    assert received(mine(reader, site.writer)) == committed(site.source)
    reader.close()
    assert first.number == 1


def test_lagging_capture_reads_archived_standby_redo_and_catches_up(tmp_path):
    site = Site(tmp_path)
    standby = standby_log(site.folder)
    site.commit(5)
    site.receive(standby)
    reader, batches = miner(site.folder), list[LcrBatch]()
    batches += mine(reader, standby)  # where the standby redo log is being written
    for _ in range(3):
        site.commit(40)
        stream = Stream(site.writer, standby, f"{next(site.incarnations):08d}")
        for number, frame in enumerate(stream.frames()):
            standby.take(frame)
            standby.sync()
            # one batch for many received frames
            if number % 3 == 0 and (batch := reader.next_batch(standby.position)) is not None:
                batches.append(batch)
    assert any(file.is_archived for file in list_segments(site.folder))
    batches += mine(reader, standby)
    reader.close()
    assert received(batches) == committed(site.source)


def test_partial_copy_next_to_the_complete_file_blocks_nothing(site, archive):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    first, *_ = complete(site)
    shutil.copy(first.path, archive)
    (archive / "0000000000000001.redo").write_bytes(first.path.read_bytes()[:900])
    assert files.take(log), files.problem


def failing(call, error, times: int = 1):
    """Return `call`, failing the first `times` times."""
    left = [times]

    def wrapper(*arguments, **settings):
        if left[0]:
            left[0] -= 1
            raise error
        return call(*arguments, **settings)

    return wrapper


@pytest.mark.parametrize("what", ["scan_segment", "fingerprint_up_to", "os.open", "os.pread", "list_segments"])
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ESTALE, "Stale file handle"), FileNotFoundError(2, "gone"), LogGone("redo segment 1 was purged")],
)
def test_unreadable_file_is_reported_and_retried(site, archive, monkeypatch, what, error):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    (frame, *_) = site.stream(log).frames()
    log.take(type(frame)(segment=1, offset=0, data=frame.data[: len(frame.data) // 2]))
    log.sync()
    place = log.place
    assert place.segment == 1
    shutil.copy(complete(site)[0].path, archive)
    module = "headrace.redo.standby.archive_folder"
    with monkeypatch.context() as patch:
        if what.startswith("os."):
            real = os.open if what == "os.open" else os.pread
            ours = failing(real, error)
            patch.setattr(
                f"{module}.os",
                SimpleNamespace(
                    **{
                        "O_RDONLY": os.O_RDONLY,
                        "open": os.open,
                        "pread": os.pread,
                        "close": os.close,
                        what.partition(".")[2]: ours,
                    }
                ),
            )
        else:
            patch.setattr(f"{module}.{what}", failing(getattr(archive_folder, what), error))
        assert not files.take(log)
        assert str(archive) in files.problem
        assert log.place == place
        assert files.take(log), "the file itself is unchanged"
    assert files.problem == ""
    assert log.place.segment == 1 < log.next_segment


def test_failing_standby_disk_is_not_reported_as_a_file_problem(site, archive, monkeypatch):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    shutil.copy(complete(site)[0].path, archive)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.redo.standby.standby_log.failpoint", failing(failpoint, OSError(errno.EIO, "broken")))
        with pytest.raises(RedoError, match="cannot be written"):
            files.take(log)
    assert files.problem == ""
    assert files.take(log), "an unwritten segment must not count as taken"


def test_removed_standby_folder_is_not_reported_as_a_file_problem(site, archive):
    log, files = standby_log(site.folder), ArchiveFolder(archive, SOURCE)
    (frame, *_) = site.stream(log).frames()
    log.take(type(frame)(segment=1, offset=0, data=frame.data[: len(frame.data) // 2]))
    log.sync()
    shutil.copy(complete(site)[0].path, archive)
    shutil.rmtree(site.folder)
    with pytest.raises(RedoError, match="was removed or replaced"):
        files.take(log)
    assert files.problem == ""
