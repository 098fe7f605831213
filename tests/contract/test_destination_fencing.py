"""What every destination database must refuse: older epochs, older incarnations, and epochs ended by a crash.

One suite over the memory database and PostgreSQL 18, like `test_destination`.
"""

from __future__ import annotations

import pytest

from headrace.base.errors import DatabaseUnavailable, DestinationRestarted, FencedError
from headrace.databases.ports import Instantiation
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, commit, keyed, ranges
from tests.support.values.writes import insert, int4


def test_older_incarnation_cannot_open_and_the_newer_ones_session_goes_on(harness, open_session):
    """A frozen apply server thaws after its successor took over: same epoch, same number."""
    newer = open_session(0, incarnation=2)
    table = keyed(harness, newer)
    newer.begin()
    newer.write([insert(table, [(int4(1), b"newer", None)])])
    with pytest.raises(FencedError, match="newer session"):
        open_session(0, incarnation=1)
    newer.commit(ranges((0, 10)), 0)
    assert harness.rows("t") == [(int4(1), b"newer", None)]


def test_newer_incarnation_ends_the_older_ones_session(harness, open_session):
    older = open_session(0, incarnation=1)
    table = keyed(harness, older)
    older.begin()
    older.write([insert(table, [(int4(1), b"older", None)])])
    newer = open_session(0, incarnation=2)
    with pytest.raises(DatabaseUnavailable):
        older.commit(ranges((0, 10)), 0)
    older.close()
    with pytest.raises(FencedError):
        open_session(0, incarnation=1)
    assert commit(newer, insert(table, [(int4(1), b"newer", None)]), applied=ranges((0, 10))) == (1,)


def test_server_opens_its_session_again_under_its_own_incarnation(harness, open_session):
    table = keyed(harness, open_session(0, incarnation=3))
    assert commit(open_session(0, incarnation=3), insert(table, [(int4(1), b"x", None)])) == (1,)


def test_incarnations_count_anew_in_the_next_epoch(destination, open_session):
    open_session(0, incarnation=7).close()
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    open_session(0, epoch=epoch, incarnation=1)


def test_session_of_an_older_epoch_leaves_the_newer_ones_session_alone(harness, destination, open_session):
    open_session(0).close()
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    newer = open_session(0, epoch=epoch)
    table = keyed(harness, newer)
    newer.begin()
    newer.write([insert(table, [(int4(1), b"newer", None)])])
    with pytest.raises(FencedError):
        open_session(0, epoch=epoch - 1, incarnation=9)
    newer.commit(ranges((0, 10)), 0)


def test_answered_commit_survives_a_crash_whatever_the_settings(harness, destination, open_session):
    harness.commit_lazily()
    session = open_session(0)
    table = keyed(harness, session)
    for number in range(20):
        commit(session, insert(table, [(int4(number), b"x", None)]), applied=ranges((number * 10, number * 10 + 10)))
    harness.crash()
    assert len(harness.rows("t")) == 20
    assert harness.destination().raise_epoch(TOPOLOGY, APPLY).low_watermark == 200


def test_recorded_low_watermark_survives_a_crash_whatever_the_settings(harness):
    harness.commit_lazily()
    destination = harness.destination()
    destination.prepare(TOPOLOGY)
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    destination.record_low_watermark(TOPOLOGY, APPLY, epoch, 500)
    harness.crash()
    assert harness.destination().raise_epoch(TOPOLOGY, APPLY).low_watermark == 500


def test_lazy_commit_is_durable_when_its_log_is_flushed(harness, destination, open_session):
    session = open_session(0, is_lazy=True)
    table = keyed(harness, session)
    epoch = destination.progress(TOPOLOGY, APPLY).epoch
    commit(session, insert(table, [(int4(1), b"x", None)]), applied=ranges((0, 10)))
    written = destination.log_positions(TOPOLOGY, APPLY, epoch).written
    # waits for the disk, and flushes earlier commits with it
    destination.record_low_watermark(TOPOLOGY, APPLY, epoch, 0)
    assert destination.log_positions(TOPOLOGY, APPLY, epoch).flushed >= written
    commit(session, insert(table, [(int4(2), b"x", None)]), applied=ranges((10, 20)))
    harness.crash()
    found = harness.destination()
    with pytest.raises(DestinationRestarted):
        found.log_positions(TOPOLOGY, APPLY, epoch)
    # The server may have flushed the second commit by itself; if not, rows and progress are lost together.
    progress = found.raise_epoch(TOPOLOGY, APPLY)
    assert progress.low_watermark == 10 * len(harness.rows("t"))
    assert progress.low_watermark >= 10
    with pytest.raises(FencedError):
        found.log_positions(TOPOLOGY, APPLY, progress.epoch - 1)


def test_epoch_ends_with_a_crash_and_nothing_is_recorded_for_it_afterwards(harness, destination, open_session):
    """Another server's lost commit must not disappear below a low watermark recorded after the crash."""
    commit(open_session(0), applied=ranges((0, 10)))
    epoch = destination.progress(TOPOLOGY, APPLY).epoch
    harness.crash()
    found = harness.destination()
    with pytest.raises(DestinationRestarted):
        found.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG)
    with pytest.raises(DestinationRestarted):
        found.record_low_watermark(TOPOLOGY, APPLY, epoch, 500)
    with pytest.raises(DestinationRestarted):
        found.record_instantiation(
            TOPOLOGY,
            APPLY,
            epoch,
            Instantiation(source="a", identity="1.t", owner="public", name="t", scn=120, state="DONE"),
        )
    progress = found.raise_epoch(TOPOLOGY, APPLY)
    assert progress.epoch > epoch
    assert progress.low_watermark == 10
    session = found.open_session(TOPOLOGY, APPLY, server=0, epoch=progress.epoch, tag=TAG)
    commit(session, applied=ranges((10, 20)))
    found.record_low_watermark(TOPOLOGY, APPLY, progress.epoch, 500)
    session.close()


def test_epoch_unknown_to_the_destination_was_lost_with_a_restore(destination, open_session):
    epoch = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    with pytest.raises(DestinationRestarted, match=r"restored|lost"):
        open_session(0, epoch=epoch + 3)
    with pytest.raises(DestinationRestarted):
        destination.record_low_watermark(TOPOLOGY, APPLY, epoch + 3, 500)
    assert destination.progress(TOPOLOGY, APPLY).low_watermark == 0


def test_first_epoch_is_not_given_out_again_after_a_restore_to_before_it(harness, destination):
    """An apply process that ran from the beginning thaws: its epoch must not be that of the restarted driver."""
    lost = destination.raise_epoch(TOPOLOGY, APPLY).epoch
    harness.forget_applies()
    found = harness.destination()
    epoch = found.raise_epoch(TOPOLOGY, APPLY).epoch
    assert epoch > lost
    with pytest.raises(FencedError):
        destination.open_session(TOPOLOGY, APPLY, server=0, epoch=lost, tag=TAG)
    with pytest.raises(FencedError):
        destination.record_low_watermark(TOPOLOGY, APPLY, lost, 500)
    assert found.progress(TOPOLOGY, APPLY).low_watermark == 0
