"""Redo that is mined again for a destination that lost commits: how long a bounded redo log keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.staging.queue_sessions import REFUSED_HOLD_S
from headrace.base.errors import LogGone
from headrace.lcr.scn import FIRST_SCN, Scn
from tests.support.redo.capture_process import CREDIT, Capture, KeptRedo
from tests.support.redo.redo_logs import drain

REDO_BYTES_MAX = 20_000  # ten segments
TRANSACTIONS = 60  # fills half of them


@pytest.fixture
def bounded(tmp_path: Path) -> Capture:
    """A bounded redo log that also retains redo nobody requires; everything is durable at every destination."""
    capture = Capture(tmp_path, redo_bytes_max=REDO_BYTES_MAX)
    capture.writer.required_checkpoints.register("capture_dbs1", retention_s=3600.0)
    capture.redo = KeptRedo(capture.writer)
    capture.close()
    capture.open()
    capture.redo.checkpoints.clear()
    capture.queue.durable = capture.commit(TRANSACTIONS)
    capture.steps()
    assert capture.redo.checkpoints == [capture.queue.durable]
    return capture


def fill_redo(capture: Capture) -> None:
    """Write a transaction so large that the redo log is full before its end: `last` stays the last commit."""
    last = capture.source.log[-1].commit_scn
    with capture.source.transaction() as transaction:
        for number in range(200):
            transaction.insert("hr.t", id=f"{number:040}")
    drain(capture.writer, capture.source)
    assert capture.writer.state == "PAUSED: REDO IS FULL"
    assert capture.writer.position.scn == last


def assert_kept_until_durable(capture: Capture, lost: Scn, last: Scn, why: str) -> None:
    """Check that redo from `lost` on is kept until everything up to `last` is durable, and makes room afterwards."""
    capture.steps()
    drain(capture.writer, capture.source)
    assert capture.writer.state == "PAUSED: REDO IS FULL", why
    assert capture.writer.oldest_scn <= lost
    capture.queue.durable = last
    capture.steps()
    drain(capture.writer, capture.source)
    assert capture.writer.position.scn > last


def test_redo_mined_again_is_released_although_nothing_newer_is_durable(bounded: Capture) -> None:
    """The redo log is full because of it: until then nothing newer enters redo, for any capture process."""
    last, lost = bounded.source.log[-1].commit_scn, bounded.source.log[2].commit_scn
    bounded.queue.rewind, bounded.queue.durable = lost, lost
    bounded.step()
    fill_redo(bounded)
    assert_kept_until_durable(bounded, lost, last, "the destination that lost commits does not have them durably")


def test_redo_that_an_earlier_life_mined_again_is_released_when_durable(bounded: Capture) -> None:
    """Meanwhile the queue has refused or forgotten the destination that lost commits: its stream is split off."""
    last, lost = bounded.source.log[-1].commit_scn, bounded.source.log[2].commit_scn
    bounded.queue.rewind, bounded.queue.durable = lost, lost
    bounded.step()
    fill_redo(bounded)
    bounded.close()
    bounded.queue.durable = FIRST_SCN  # nothing was acknowledged on the new stream
    bounded.queue.needed = last
    bounded.open()
    assert_kept_until_durable(
        bounded, lost, last, "the queue may lose what it holds: it did not tell that everything is durable"
    )


def test_redo_is_held_while_it_is_mined_again_for_an_operator(bounded: Capture) -> None:
    """The operator set the start SCN back: every destination has the mined changes, and drops them."""
    last, again = bounded.source.log[-1].commit_scn, bounded.source.log[2].commit_scn
    bounded.queue.rewind, bounded.queue.has_credit = again, False
    bounded.steps()
    assert bounded.writer.required_checkpoints.needed_scn == again
    bounded.queue.has_credit = True
    bounded.steps()
    assert bounded.queue.sent[-1][1] == last
    assert bounded.writer.required_checkpoints.needed_scn == last


def test_redo_is_released_when_its_combined_apply_process_is_refused(bounded: Capture) -> None:
    last, lost = bounded.source.log[-1].commit_scn, bounded.source.log[2].commit_scn
    assert bounded.writer.purge(bounded.source.log[20].commit_scn) > 0
    core = bounded.open_combined().core
    session = core.open_subscriber("apply_a", "001", {"dbs1": Scn(lost)}, CREDIT)
    bounded.step()
    fill_redo(bounded)
    bounded.steps(3)
    assert isinstance(session.ended, LogGone)
    bounded._clock.advance(REFUSED_HOLD_S)
    bounded.steps(3)
    drain(bounded.writer, bounded.source)
    assert bounded.writer.position.scn > last
