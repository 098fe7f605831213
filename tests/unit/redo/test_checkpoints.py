"""SCNs of capture processes: which ones an operator can set, which redo they retain, and for how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import ConfigError, LogGone
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.redo.checkpoints import RETENTION_SAMPLES, CaptureScns, RequiredCheckpoints
from tests.support.redo.redo_logs import committed, mine, miner, received
from tests.support.redo.retained_redo import Source

OLDEST = Scn(10)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def known(tmp_path: Path, clock: VirtualClock) -> RequiredCheckpoints:
    """One capture process; redo begins at 10 and is required from 100 on."""
    found = RequiredCheckpoints(tmp_path, clock)
    found.register("c", first_scn=Scn(20), start_scn=Scn(30))
    found.record("c", Scn(100))
    return found


def shown(known: RequiredCheckpoints) -> CaptureScns:
    return known.scns(OLDEST)["c"]


def test_a_new_capture_process_begins_at_its_start_scn(tmp_path: Path) -> None:
    known = RequiredCheckpoints(tmp_path)
    assert known.register("c", first_scn=Scn(20), start_scn=Scn(30)) == 30
    assert known.register("d", first_scn=Scn(20)) == 20
    assert known.register("e") == FIRST_SCN
    assert shown(known) == CaptureScns(first_scn=Scn(20), start_scn=Scn(30), required_checkpoint_scn=Scn(30))


def test_scns_of_the_topology_file_apply_only_to_a_new_capture_process(known: RequiredCheckpoints) -> None:
    known.register("c", first_scn=Scn(70), start_scn=Scn(80))
    assert shown(known) == CaptureScns(first_scn=Scn(20), start_scn=Scn(30), required_checkpoint_scn=Scn(100))


def test_start_scn_at_the_oldest_redo_rises_with_the_first_scn_after_purge(tmp_path: Path) -> None:
    known = RequiredCheckpoints(tmp_path)
    known.register("c")
    known.keep_from(OLDEST)
    known.record("c", Scn(100))
    assert shown(known) == CaptureScns(first_scn=OLDEST, start_scn=OLDEST, required_checkpoint_scn=Scn(100))
    known.keep_from(Scn(90))
    assert known.scns(Scn(90))["c"] == CaptureScns(
        first_scn=Scn(90), start_scn=Scn(90), required_checkpoint_scn=Scn(100)
    )


def test_first_scn_is_only_raised(known: RequiredCheckpoints) -> None:
    known.set_first_scn("c", Scn(50), oldest_scn=OLDEST)
    for scn in (Scn(50), Scn(40)):
        with pytest.raises(
            ConfigError,
            match=f"first SCN {scn_text(scn)} of capture process c is not above its present one, {scn_text(50)}: a"
            " first SCN is only raised",
        ):
            known.set_first_scn("c", scn, oldest_scn=OLDEST)
    assert shown(known).first_scn == 50


def test_purged_redo_raises_the_first_scn(known: RequiredCheckpoints) -> None:
    assert known.scns(Scn(60))["c"].first_scn == 60
    with pytest.raises(ConfigError, match=f"not above its present one, {scn_text(60)}"):
        known.set_first_scn("c", Scn(55), oldest_scn=Scn(60))


def test_first_scn_above_the_required_checkpoint_is_refused(known: RequiredCheckpoints) -> None:
    with pytest.raises(
        ConfigError,
        match=f"first SCN {scn_text(101)} of capture process c is above its required checkpoint SCN {scn_text(100)}:"
        " redo from there on is still needed",
    ):
        known.set_first_scn("c", Scn(101), oldest_scn=OLDEST)
    known.set_first_scn("c", Scn(100), oldest_scn=OLDEST)
    assert shown(known).first_scn == 100


def test_first_scn_raised_above_the_start_scn_raises_the_start_scn(known: RequiredCheckpoints) -> None:
    known.set_first_scn("c", Scn(25), oldest_scn=OLDEST)
    assert shown(known).start_scn == 30, "the start SCN is higher and does not change"
    known.set_first_scn("c", Scn(40), oldest_scn=OLDEST)
    assert shown(known).start_scn == 40


def test_start_scn_below_the_first_scn_is_refused(known: RequiredCheckpoints) -> None:
    with pytest.raises(
        ConfigError,
        match=f"start SCN {scn_text(19)} of capture process c is below its first SCN {scn_text(20)}: redo before that"
        " is not kept",
    ):
        known.set_start_scn("c", Scn(19), oldest_scn=OLDEST)
    with pytest.raises(ConfigError, match=f"below its first SCN {scn_text(45)}"):
        known.set_start_scn("c", Scn(44), oldest_scn=Scn(45))
    known.set_start_scn("c", Scn(20), oldest_scn=OLDEST)
    assert shown(known).start_scn == 20


def test_start_scn_above_the_applied_scn_is_refused(known: RequiredCheckpoints) -> None:
    with pytest.raises(
        ConfigError,
        match=f"start SCN {scn_text(101)} of capture process c is above what every destination has applied,"
        f" {scn_text(100)}: the changes in between would never arrive",
    ):
        known.set_start_scn("c", Scn(101), oldest_scn=OLDEST)
    assert shown(known).start_scn == 30


def test_scns_of_an_unknown_capture_process_cannot_be_set(known: RequiredCheckpoints) -> None:
    for change in (known.set_first_scn, known.set_start_scn):
        with pytest.raises(ConfigError, match="no redo is kept here for capture process d"):
            change("d", Scn(50), oldest_scn=OLDEST)


def test_scns_that_were_set_survive_a_restart(known: RequiredCheckpoints, tmp_path: Path) -> None:
    known.set_first_scn("c", Scn(40), oldest_scn=OLDEST)
    known.set_start_scn("c", Scn(60), oldest_scn=OLDEST)
    assert shown(RequiredCheckpoints(tmp_path)) == CaptureScns(
        first_scn=Scn(40), start_scn=Scn(60), required_checkpoint_scn=Scn(100)
    )


def test_checkpoint_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "required_checkpoints.json").write_text(json.dumps({"c": 70}))
    known = RequiredCheckpoints(tmp_path)
    assert known.lowest == known.needed_scn == 70


# --------------------------------------------------------------------------- retention


def test_redo_is_kept_for_the_retention_time_plus_at_most_one_sample(tmp_path: Path, clock: VirtualClock) -> None:
    known = RequiredCheckpoints(tmp_path, clock)
    known.register("c", first_scn=Scn(10), retention_s=100.0)
    seen: list[tuple[float, Scn]] = []
    for second in range(400):
        known.record("c", Scn(10 + second))
        kept = known.keep_from(OLDEST)
        assert kept is not None
        seen.append((clock.monotonic(), Scn(10 + second)))
        was = max(scn for at, scn in seen if at <= max(0.0, clock.monotonic() - 100.0))
        assert kept <= was, "redo passed within the retention time is kept"
        assert kept >= was - 1 - 100 / RETENTION_SAMPLES
        if second == 200:
            known.save()
            known = RequiredCheckpoints(tmp_path, clock)
            known.register("c", retention_s=100.0)
        clock.advance(1.0)
    assert known.needed_scn == 409


def test_raising_the_first_scn_ends_retention_below_it(tmp_path: Path, clock: VirtualClock) -> None:
    known = RequiredCheckpoints(tmp_path, clock)
    known.register("c", first_scn=Scn(10), retention_s=100.0)
    known.keep_from(OLDEST)
    known.record("c", Scn(200))
    assert known.keep_from(OLDEST) == 10
    known.set_first_scn("c", Scn(150), oldest_scn=OLDEST)
    assert known.keep_from(OLDEST) == 150


def test_raising_the_first_scn_purges_redo(tmp_path: Path) -> None:
    site = Source(tmp_path, retention_s=3600.0)
    site.applied()
    site.turn()
    before = site.segments()
    assert before[0] == 1
    assert len(before) > 5
    site.writer.required_checkpoints.set_first_scn("c", site.writer.position.scn, oldest_scn=site.writer.oldest_scn)
    site.turn()
    assert site.segments()[0] >= before[-3], "all segments except those that mining from there reads"


def test_redo_without_a_retention_time_is_purged_when_not_required(tmp_path: Path) -> None:
    site = Source(tmp_path)
    site.applied()
    site.turn()
    assert len(site.segments()) <= 3, "the segments that mining from there reads"


def test_retained_redo_makes_room_before_the_log_writer_pauses(tmp_path: Path) -> None:
    site = Source(tmp_path, redo_bytes_max=20_000, retention_s=3600.0, transactions=1)
    for _ in range(100):
        site.applied()
        site.workload.run(1)
        site.turn()
        assert not site.writer.state.startswith("PAUSED"), "redo that no capture needs blocks nothing"
        assert site.writer.statistics().redo_bytes <= 20_000
    assert len(site.segments()) >= 3, "redo within the limit is kept"


def test_remined_redo_is_kept_until_the_recorded_scn_is_reported(known: RequiredCheckpoints) -> None:
    known.mine_again("c", Scn(40))
    known.record("c", Scn(90))
    assert known.needed_scn == 40
    known.record("c", Scn(100))
    assert known.needed_scn == 100


def test_redo_is_kept_from_the_lowest_remined_scn(known: RequiredCheckpoints) -> None:
    """Capture restarts at its queue's position; if the queue then dies, a destination still needs the lost part."""
    known.mine_again("c", Scn(40))
    for scn in (Scn(70), Scn(100)):
        known.mine_again("c", scn)
        assert known.needed_scn == 40


def test_redo_is_kept_while_it_is_mined_again_for_a_restored_destination(tmp_path: Path) -> None:
    """Durable redo is sent again, and no segment may be purged between two reads."""
    site = Source(tmp_path, retention_s=60.0)
    site.applied()
    oldest, applied = site.source.log[3].commit_scn, site.writer.position.scn
    site.turn()
    again = miner(tmp_path, oldest)
    batches = [again.next_batch(site.writer.position, rows_max=3)]
    site.writer.required_checkpoints.mine_again("c", oldest)
    site.clock.advance(100.0)
    site.workload.run(20)
    site.turn()
    site.clock.advance(100.0)
    site.turn()
    batches += mine(again, site.writer, rows_max=3)
    assert received(batches, oldest) == committed(site.source, after_scn=oldest)
    assert site.writer.required_checkpoints.lowest == applied, "the recorded SCN does not decrease"
    site.applied()
    site.turn()
    site.clock.advance(100.0)
    site.turn()
    with pytest.raises(LogGone):
        list(mine(miner(tmp_path, oldest), site.writer))
