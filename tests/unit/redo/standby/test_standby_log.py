"""The standby redo log and redo shipping: acknowledged redo is durable, equals the source's bytes and never diverges.

Longer than 500 lines: all tests share the source, its shipping and the receiver.
"""

from __future__ import annotations

import shutil

import pytest

from headrace.base import failpoints
from headrace.base.errors import LogGone, ProtocolError, QueueError, RedoError
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.standby import StandbyPlace
from headrace.redo.checkpoints import RequiredCheckpoints
from headrace.redo.segments import list_segments
from headrace.redo.standby.shipping import RedoShipping
from tests.support.redo.redo_logs import committed, mine, miner, received
from tests.support.redo.standby_redo import RECEIVER, Stream, cut_frames, log_bytes, receive, standby_log
from tests.support.redo.standby_site import Site
from tests.support.session.seeds import seeds


def places(standby, frames):
    """Yield the position that would be acknowledged after each frame."""
    for frame in frames:
        standby.take(frame)
        if standby.sync():
            yield standby.place


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def purging(tmp_path):
    """A source without capture processes: only receivers retain redo there."""
    return Site(tmp_path, keeps=False)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("cut frames", test=3, soak=60))
def test_standby_redo_log_equals_the_source_for_any_frame_boundaries(tmp_path, seed):
    site = Site(tmp_path, seed)
    standby = standby_log(site.folder)
    for _ in range(3):
        site.commit(15)
        site.receive(standby, lambda: site.random.choice([1, 17, 79, 80, 81, 500, 5000]))
    assert len(list_segments(site.redo)) > 1, "no segment ends"
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert standby.position == site.writer.position
    assert site.mined_at(standby) == committed(site.source)


def test_receiver_can_begin_before_the_source_has_redo(site):
    standby = standby_log(site.folder)
    stream = site.stream(standby)
    assert list(stream.frames()) == []
    site.commit(10)
    for frame in stream.frames():
        standby.take(frame)
    standby.sync()
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_only_redo_durable_at_the_source_is_shipped(site, monkeypatch):
    site.commit(5)
    durable = site.writer.position
    site.workload.run(5)
    site.writer.detach()
    site.writer.attach(site.source.open_stream("t", site.writer.start_scn))
    monkeypatch.setattr(failpoints, "_ARMED", failpoints._parse("log_writer.before_fsync=error*100"))
    with pytest.raises(RedoError):
        site.writer.step(0.0)
    standby = standby_log(site.folder)
    monkeypatch.setattr(failpoints, "_ARMED", {})
    site.receive(standby)
    assert standby.position == durable


@pytest.mark.parametrize("place", ["redo_receiver.before_fsync", "redo_receiver.after_fsync", "redo_receiver.write"])
def test_receiver_failing_around_fsync_loses_and_duplicates_nothing(site, monkeypatch, place):
    site.commit(20)
    standby = standby_log(site.folder)
    stream = site.stream(standby)
    told = []
    monkeypatch.setattr(failpoints, "_ARMED", failpoints._parse(f"{place}=error"))
    with pytest.raises(RedoError):
        told += places(standby, cut_frames(stream.frames(), lambda: 700))
    monkeypatch.setattr(failpoints, "_ARMED", {})
    assert told == [] or told[-1] == standby.place
    site.receive(standby)  # the same process continues over a new stream
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert site.mined_at(standby) == committed(site.source)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("killed receivers", test=4, soak=60))
def test_receiver_killed_before_fsync_resumes_with_whole_records(tmp_path, seed):
    """After a crash an unfsynced tail can have any form: cut anywhere, damaged anywhere behind the fsync."""
    site = Site(tmp_path, seed)
    site.commit(20)
    standby = standby_log(site.folder)
    stream = site.stream(standby)
    for number, frame in enumerate(cut_frames(stream.frames(), lambda: site.random.randrange(50, 900))):
        standby.take(frame)
        if number % 7 == 0:
            standby.sync()
    durable = standby.place
    newest = site.folder / f"{durable.segment:016d}.redo"
    if newest.exists():
        content = bytearray(newest.read_bytes())
        if len(content) > durable.offset:
            content[site.random.randrange(durable.offset, len(content))] ^= 0xFF
        newest.write_bytes(content[: site.random.randrange(durable.offset, len(content) + 1)])
    again = standby_log(site.folder)
    assert (again.place.segment, again.place.offset) >= (durable.segment, durable.offset)
    assert list(site.folder.glob("*.tmp")) == []
    site.receive(again)
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert site.mined_at(again) == committed(site.source)


def test_damaged_durable_redo_is_repaired_from_the_source(tmp_path):
    site = Site(tmp_path, segment_bytes=40_000)
    while site.writer.position.offset < 20_000:  # more than its head
        site.commit(1)
    site.receive(standby_log(site.folder))
    newest = list_segments(site.folder)[-1]
    content = bytearray(newest.path.read_bytes())
    content[-5] ^= 0xFF
    newest.path.write_bytes(content)
    again = standby_log(site.folder)
    assert again.place.offset < len(content)
    site.receive(again)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_restarted_source_continues_at_its_receivers_position(site):
    """The segment is reopened, a RESUME record marks the place, a transaction is resent whole: all ordinary bytes."""
    standby = standby_log(site.folder)
    for _ in range(4):
        site.commit(6)
        site.receive(standby, lambda: 333)
        site.restart()
    site.commit(6)
    site.receive(standby)
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert site.mined_at(standby) == committed(site.source)


def test_source_killed_with_a_torn_tail_has_shipped_none_of_it(site):
    site.commit(10)
    standby = standby_log(site.folder)
    site.receive(standby)
    newest = list_segments(site.redo)[-1]
    with newest.path.open("ab") as file:
        file.write(b"HRec" + bytes(300))  # an unfsynced record can leave this
    stream = site.stream(standby)
    assert list(stream.frames()) == []
    site.restart()
    site.commit(10)
    site.receive(standby)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_source_keeps_redo_that_receivers_lack_or_its_captures_need(site):
    site.writer.shipping.register({RECEIVER: False, "dbs1@dbs4": False})
    site.commit(40)
    here, there = standby_log(site.folder), standby_log(site.folder.with_name("standby_4"))
    numbers = [file.number for file in list_segments(site.redo)]
    site.receive(here)
    site.writer.required_checkpoints.record("keeps_all", site.writer.position.scn)
    site.writer.step(0.0)
    assert [file.number for file in list_segments(site.redo)] == numbers  # dbs1@dbs4 has received nothing
    receive(site.writer, there, "00000001", receiver="dbs1@dbs4").shipment.close()
    site.writer.step(0.0)
    left = list_segments(site.redo)[0].number
    assert left > numbers[0]
    site.writer.required_checkpoints.register("another_capture_here")
    site.commit(40)
    site.receive(here)
    site.writer.step(0.0)
    assert list_segments(site.redo)[0].number == left


def test_source_without_captures_purges_behind_its_receivers(purging):
    purging.commit(40)
    before = len(list_segments(purging.redo))
    standby = standby_log(purging.folder)
    purging.receive(standby)
    purging.writer.step(0.0)
    assert len(list_segments(purging.redo)) == 1 < before
    purging.commit(10)
    purging.receive(standby)  # its position is in the remaining segment
    assert purging.mined_at(standby) == committed(purging.source)


def test_receiver_purges_behind_its_captures_except_the_newest_segment(site):
    standby = standby_log(site.folder)
    standby.required_checkpoints.register("c1")
    standby.required_checkpoints.register("c2")
    site.commit(120)
    site.receive(standby)
    numbers = [file.number for file in list_segments(site.folder)]
    standby.required_checkpoints.record("c1", standby.position.scn)
    assert standby.purge() == 0  # c2 needs all of it
    middle = committed(site.source)[len(committed(site.source)) // 2].commit_scn
    standby.required_checkpoints.record("c2", Scn(middle))
    assert standby.purge() > 0
    assert numbers[0] < list_segments(site.folder)[0].number < numbers[-1]
    reader = miner(site.folder, middle)
    found = received(mine(reader, standby), Scn(middle))
    reader.close()
    assert found == [each for each in committed(site.source) if each.commit_scn > middle]
    standby.required_checkpoints.record("c2", standby.position.scn)
    standby.purge()
    # an open transaction can have begun before the newest segment
    assert numbers[-2] <= list_segments(site.folder)[0].number


def test_purge_bound_is_durable_before_the_purge(site):
    """After a kill the next receiver knows that its capture processes no longer need the purged redo."""
    standby = standby_log(site.folder)
    standby.required_checkpoints.register("c")
    site.commit(120)
    site.receive(standby)
    standby.required_checkpoints.record("c", standby.position.scn)
    assert standby.purge() > 0
    assert RequiredCheckpoints(site.folder).lowest == standby.position.scn


def test_full_standby_redo_log_is_reported_until_it_is_purged(site):
    standby = standby_log(site.folder, redo_bytes_max=20_000)
    standby.required_checkpoints.register("c")
    site.commit(40)
    stream = site.stream(standby)
    for frame in cut_frames(stream.frames(), lambda: 1000):
        if standby.is_full:
            break
        standby.take(frame)
        standby.sync()
    assert standby.is_full
    standby.required_checkpoints.record("c", standby.position.scn)
    assert standby.purge() > 0
    assert not standby.is_full


@pytest.mark.parametrize("way", ["a later copy", "begin anew"])
def test_restored_receiver_that_needs_purged_redo_is_refused_alone(purging, way):
    purging.writer.shipping.register({RECEIVER: False, "dbs1@dbs4": False})
    other = standby_log(purging.folder.with_name("standby_4"))
    standby = standby_log(purging.folder)
    purging.commit(3)
    purging.receive(standby).shipment.close()
    backup = purging.folder.with_name("backup")
    shutil.copytree(purging.folder, backup)
    purging.commit(40)
    purging.receive(standby).shipment.close()
    later = purging.folder.with_name("later")
    shutil.copytree(purging.folder, later)
    receive(purging.writer, other, "00000001", receiver="dbs1@dbs4").shipment.close()
    purging.writer.step(0.0)
    shutil.rmtree(purging.folder)
    shutil.copytree(backup, purging.folder)
    with pytest.raises(LogGone, match=rf"are gone: {RECEIVER} has the redo up to") as refused:
        purging.stream(standby_log(purging.folder))
    assert refused.value.hint.startswith(
        f"restore a later copy of the standby redo log of {RECEIVER}, or remove its standby redo log and start it: it"
        " begins anew"
    )
    purging.commit(5)
    receive(purging.writer, other, "00000002", receiver="dbs1@dbs4")
    assert other.position == purging.writer.position
    # the steps in the error's hint:
    shutil.rmtree(purging.folder)
    if way == "a later copy":
        shutil.copytree(later, purging.folder)
    again = standby_log(purging.folder)
    purging.receive(again)
    assert again.position == purging.writer.position
    if way == "a later copy":
        assert purging.mined_at(again) == committed(purging.source)
    else:
        assert log_bytes(purging.folder) == log_bytes(purging.redo)


def test_refused_receiver_with_another_redo_log_can_begin_anew(site):
    standby = standby_log(site.folder)
    site.commit(20)
    site.receive(standby).shipment.close()
    shutil.rmtree(site.redo)
    site.restart()
    site.commit(3)
    with pytest.raises(RedoError, match="has received another redo log of dbs1") as refused:
        site.stream(standby)
    assert "or remove its standby redo log and start it: it begins anew with the redo that is left" in (
        refused.value.hint
    )
    shutil.rmtree(site.folder)
    again = standby_log(site.folder)
    site.receive(again)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_receiver_with_deleted_folder_loses_only_older_positions(purging):
    purging.commit(40)
    standby = standby_log(purging.folder)
    purging.receive(standby)
    purging.writer.step(0.0)
    shutil.rmtree(purging.folder)
    again = standby_log(purging.folder)
    assert again.place == StandbyPlace()
    purging.receive(again)
    assert log_bytes(purging.folder) == log_bytes(purging.redo)
    applied = committed(purging.source)[3].commit_scn
    reader = miner(purging.folder, applied)
    with pytest.raises(LogGone, match="can be mined from"):
        reader.next_batch(again.position)
    reader.close()


def test_receiver_ahead_of_its_source_is_refused_and_its_copy_restores_it(site):
    site.writer.shipping.register({RECEIVER: True})  # sync: nothing is confirmed that the receiver lacks
    standby = standby_log(site.folder)
    site.commit(20)
    stream = site.receive(standby)
    site.writer.step(0.0)
    stream.shipment.close()
    before = standby.position
    shutil.rmtree(site.redo)
    site.restart()
    site.writer.shipping.register({RECEIVER: True})
    site.commit(3)
    with pytest.raises(RedoError, match="has received another redo log of dbs1") as refused:
        site.stream(standby)
    assert "put a copy of the standby redo log" in refused.value.hint
    assert standby.position == before
    assert site.source.confirmed_scn <= before.scn
    # the steps in the error's hint:
    shutil.rmtree(site.redo)
    shutil.copytree(site.folder, site.redo)
    site.restart()
    site.commit(3)
    site.receive(standby)
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert site.mined_at(standby) == committed(site.source)


def test_another_redo_log_with_identical_record_lengths_is_refused(tmp_path):
    site, other = Site(tmp_path / "one"), Site(tmp_path / "two")
    site.commit(12)
    other.clock.advance(5.0)  # the same workload at another time: only times differ
    other.commit(12)
    assert [file.size_bytes for file in list_segments(site.redo)] == [
        file.size_bytes for file in list_segments(other.redo)
    ]
    standby = standby_log(site.folder)
    site.receive(standby)
    with pytest.raises(RedoError, match="they differ in segment"):
        other.stream(standby)
    kept = other.writer.shipping.keep_from
    assert kept == 0  # a refused position changes nothing


def test_segment_of_another_log_does_not_continue_this_log(tmp_path):
    site, other = Site(tmp_path / "one"), Site(tmp_path / "two", seed=2)
    site.commit(30)
    other.commit(60)
    standby = standby_log(site.folder)
    stream = site.stream(standby)
    for frame in cut_frames(stream.frames(), lambda: 100):
        standby.take(frame)
        if standby.sync() and list(site.folder.glob("*.archived.redo")):
            break
    number = standby.place.segment + 1
    foreign = [frame for frame in other.stream(standby_log(tmp_path / "x")).frames() if frame.segment == number]
    assert foreign
    with pytest.raises(RedoError, match="does not continue segment"):
        standby.take(foreign[0])
    standby.rollback()
    site.receive(standby)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_duplicate_and_late_frames_change_nothing_and_a_gap_is_refused(site):
    site.commit(25)
    standby = standby_log(site.folder)
    sent = list(cut_frames(site.stream(standby).frames(), lambda: site.random.randrange(100, 1500)))
    for number, frame in enumerate(sent):
        standby.take(frame)
        for late in site.random.sample(sent[: number + 1], min(3, number + 1)):
            standby.take(late)
        standby.sync()
    assert log_bytes(site.folder) == log_bytes(site.redo)
    assert standby.statistics().duplicate_bytes > 0
    site.commit(25)
    stream = site.stream(standby)
    _, second, *_ = cut_frames(stream.frames(), lambda: 200)
    with pytest.raises(ProtocolError, match="is next"):
        standby.take(second)


def test_bits_flipped_in_transit_are_detected_before_acknowledgement(site):
    site.commit(12)
    standby = standby_log(site.folder)
    for frame in site.stream(standby).frames():
        content = bytearray(frame.data)
        content[len(content) // 2] ^= 1
        damaged = type(frame)(segment=frame.segment, offset=frame.offset, data=bytes(content))
        with pytest.raises(ProtocolError, match="is damaged at offset"):
            standby.take(damaged)
        standby.rollback()
        break
    site.receive(standby)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_older_receiver_incarnation_cannot_make_the_source_purge(purging):
    """The first receiver's node is cut off; a receiver with an empty folder starts on another node."""
    purging.commit(40)
    first, second = standby_log(purging.folder), standby_log(purging.folder.with_name("elsewhere"))
    old = Stream(purging.writer, first, "00000001")
    for frame in old.frames():
        first.take(frame)
    first.sync()
    numbers = [file.number for file in list_segments(purging.redo)]
    new = Stream(purging.writer, second, "00000002")
    with pytest.raises(QueueError, match="a newer stream"):
        old.acknowledge()
    with pytest.raises(QueueError, match="a newer stream"):
        old.shipment.next_frame()
    with pytest.raises(QueueError, match="a newer stream"):
        Stream(purging.writer, first, "00000001")
    purging.writer.step(0.0)
    purging.restart()  # the newest incarnation is durable
    with pytest.raises(QueueError, match="a newer stream"):
        Stream(purging.writer, first, "00000001")
    purging.commit(1)
    assert [file.number for file in list_segments(purging.redo)][: len(numbers)] == numbers
    del new
    receive(purging.writer, second, "00000003")
    assert log_bytes(second._folder) == log_bytes(purging.redo)


def test_unknown_receiver_is_refused_and_removed_one_retains_no_redo(site):
    site.commit(30)
    standby = standby_log(site.folder)
    stream = site.stream(standby)
    site.writer.shipping.register({"dbs1@dbs4": False})
    with pytest.raises(QueueError):
        stream.shipment.next_frame()
    with pytest.raises(QueueError, match="has no receiver"):
        site.stream(standby)
    site.writer.shipping.register({})
    assert site.writer.shipping.keep_from is None


def test_receiver_cannot_acknowledge_redo_it_was_not_sent(site):
    site.commit(30)
    stream = site.stream(standby_log(site.folder))
    stream.shipment.next_frame()
    with pytest.raises(ProtocolError, match="was not sent"):
        stream.acknowledge(StandbyPlace(segment=9, offset=9, scn=Scn(10**9)))
    assert site.writer.shipping.keep_from == 0


def test_sync_transport_confirms_only_redo_that_the_receiver_has(site):
    site.writer.shipping.register({RECEIVER: True, "dbs1@dbs4": False})
    site.commit(10)
    assert site.source.confirmed_scn == FIRST_SCN
    standby = standby_log(site.folder)
    assert not site.writer.is_awaiting  # no receiver is left to acknowledge
    stream = site.stream(standby)
    assert site.writer.is_awaiting
    for frame in cut_frames(stream.frames(), lambda: 500):
        standby.take(frame)
        standby.sync()
        stream.acknowledge()
        site.writer.step(0.0)
        assert site.source.confirmed_scn <= standby.position.scn
    assert site.source.confirmed_scn == standby.position.scn == site.writer.position.scn
    assert not site.writer.is_awaiting
    site.writer.shipping.register({RECEIVER: False})
    site.commit(5)
    assert site.source.confirmed_scn > standby.position.scn


def test_restarted_source_remembers_its_sync_receivers_position(site):
    site.writer.shipping.register({RECEIVER: True})
    standby = standby_log(site.folder)
    site.commit(10)
    site.receive(standby)
    site.writer.close()
    confirmed = site.source.confirmed_scn
    site.restart()
    site.writer.shipping.register({RECEIVER: True})
    site.commit(5)
    assert site.source.confirmed_scn <= standby.position.scn
    assert site.source.confirmed_scn >= confirmed
    site.receive(standby)
    site.writer.step(0.0)
    assert site.source.confirmed_scn == standby.position.scn


def test_receiver_added_later_begins_with_the_oldest_remaining_redo(site):
    site.writer.shipping.register({})
    site.commit(120)
    site.writer.required_checkpoints.record("keeps_all", site.writer.position.scn)
    site.writer.step(0.0)
    oldest = list_segments(site.redo)[0].number
    assert oldest > 1
    site.writer.shipping.register({RECEIVER: False})
    standby = standby_log(site.folder)
    site.receive(standby)
    assert list_segments(site.folder)[0].number == oldest
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_segment_end_advances_the_position_without_a_whole_next_record(site):
    site.commit(30)
    standby = standby_log(site.folder)
    frames = cut_frames(site.stream(standby).frames(), lambda: 10)
    for frame in frames:
        standby.take(frame)
        if frame.segment == 2:
            break
    assert not standby.sync()
    assert standby.place.segment == 1
    assert standby.position.segment == 1


def test_capture_continues_in_a_folder_restored_under_it(tmp_path):
    """The capture process has the old file open, which no longer grows."""
    site = Site(tmp_path, segment_bytes=1 << 20)
    site.commit(5)
    standby = standby_log(site.folder)
    site.receive(standby)
    reader = miner(site.folder)
    batches = list(mine(reader, standby))
    backup = site.folder.with_name("backup")
    shutil.copytree(site.folder, backup)
    shutil.rmtree(site.folder)
    shutil.copytree(backup, site.folder)
    again = standby_log(site.folder)
    site.commit(5)
    site.receive(again)
    batches += mine(reader, again)
    reader.close()
    assert received(batches) == committed(site.source)


def test_purge_spares_redo_for_an_empty_receiver_whose_stream_begins(purging, monkeypatch):
    """The source knew the receiver as far ahead: a purge at this moment would remove redo that it is about to send."""
    purging.commit(40)
    standby = standby_log(purging.folder)
    purging.receive(standby)
    oldest = list_segments(purging.redo)[0].number
    again = standby_log(purging.folder.with_name("anew"))
    shipping, start = purging.writer.shipping, RedoShipping._start

    def purges(self, *arguments):
        found = start(self, *arguments)
        purging.writer.step(0.0)
        return found

    monkeypatch.setattr(RedoShipping, "_start", purges)
    purging.receive(again)
    assert list_segments(purging.folder.with_name("anew"))[0].number == oldest
    assert shipping.keep_from == again.place.segment
    assert log_bytes(again._folder) == log_bytes(purging.redo)


MINUTE_US = 60_000_000


def test_stream_with_a_future_incarnation_is_refused_and_not_remembered(site):
    site.commit(10)
    standby, now_us = standby_log(site.folder), site.clock.time_us()

    def incarnation(ahead_us: int) -> str:
        return f"{(now_us + ahead_us) * 1000:020d}-7-abcd"

    with pytest.raises(QueueError, match=r"its clock is ahead by 1:00:00 of the clock of the source") as refused:
        receive(site.writer, standby, incarnation(60 * MINUTE_US))
    assert "set the clock" in refused.value.hint
    receive(site.writer, standby, incarnation(2 * MINUTE_US))  # clocks are never exactly equal
    with pytest.raises(QueueError, match="a newer stream") as refused:
        receive(site.writer, standby, incarnation(MINUTE_US))
    assert "clock" in refused.value.hint
    assert "redo_receivers.json" in refused.value.hint
    assert str(site.redo.name) in refused.value.hint
    receive(site.writer, standby, incarnation(3 * MINUTE_US))


@pytest.mark.parametrize("is_restored", [True, False], ids=["replaced", "removed"])
def test_redo_written_to_a_removed_file_is_not_acknowledged(tmp_path, is_restored):
    site = Site(tmp_path, segment_bytes=1 << 20)
    site.commit(5)
    standby = standby_log(site.folder)
    stream = site.receive(standby)
    place = standby.place
    backup = site.folder.with_name("backup")
    shutil.copytree(site.folder, backup)
    shutil.rmtree(site.folder)
    if is_restored:
        shutil.copytree(backup, site.folder)
    site.commit(5)
    with pytest.raises(RedoError, match="was removed or replaced"):
        list(places(standby, stream.frames()))
    assert standby.place == place
    standby.close()
    again = standby_log(site.folder)
    site.receive(again)
    assert log_bytes(site.folder) == log_bytes(site.redo)
