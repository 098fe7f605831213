"""The capture process between its redo and its queue: what it says of itself, and what it tells the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.capture import LEFT_INTERVAL_S
from actors.capture_checkpoint import CHECKPOINT_INTERVAL_S
from actors.combined import mounted_core
from actors.hosting import runtime
from actors.site.redo_keeper import RedoKeeper
from actors.staging.queue_sessions import REFUSED_HOLD_S
from headrace.base.errors import ConfigError, LogGone
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.redo.writing.log_writer import LogWriter
from tests.support.redo.capture_process import CREDIT, Capture
from tests.support.redo.redo_logs import drain


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path)


def test_state_is_the_manuals_word_for_what_the_last_step_did(capture: Capture) -> None:
    assert capture.detail_state() == "INITIALIZING"
    capture.step()
    assert capture.detail_state() == "CAPTURING CHANGES"
    capture.step()
    assert capture.detail_state() == "WAITING FOR REDO"
    capture.insert()
    drain(capture.writer, capture.source)
    capture.queue.has_credit = False
    capture.step()
    assert capture.detail_state() == "PAUSED FOR FLOW CONTROL"
    capture.queue.has_credit = True
    capture.step()
    assert capture.detail_state() == "CAPTURING CHANGES"


def test_batch_without_credit_is_sent_once_when_there_is_some(capture: Capture) -> None:
    capture.queue.has_credit = False
    for _ in range(3):
        capture.step()
    assert capture.queue.sent == []
    capture.queue.has_credit = True
    for _ in range(3):
        capture.step()
    assert len(capture.queue.sent) == 1


def test_required_checkpoint_follows_what_is_durable_not_what_is_sent(capture: Capture) -> None:
    capture.step()
    ((_, through),) = capture.queue.sent
    capture._clock.advance(CHECKPOINT_INTERVAL_S)
    capture.step()
    assert capture.redo.checkpoints == []
    capture.queue.durable = through
    capture.step()
    capture.step()
    assert capture.redo.checkpoints == [through]


def test_new_subscriber_begins_where_redo_is_kept_from_not_with_the_oldest_that_is_left(capture: Capture) -> None:
    """What is older may be purged at any moment: a destination that copies its tables meanwhile would miss it then."""
    capture.step()
    ((_, kept),) = capture.queue.sent
    capture.insert()
    drain(capture.writer, capture.source)
    capture.checkpoint.told_scn = kept  # as the site has it on record
    capture.queue.sent.clear()
    capture.queue.rewind = FIRST_SCN
    for _ in range(3):
        capture.step()
    mark, batch = capture.queue.sent
    assert mark == (FIRST_SCN, kept)
    assert batch[0] == kept
    assert batch[1] > kept


def test_status_shows_captured_sent_applied_and_required_checkpoint_scn(capture: Capture) -> None:
    capture.step()
    capture.insert()
    drain(capture.writer, capture.source)
    ((_, first),) = capture.queue.sent
    capture.queue.durable = first
    capture._clock.advance(CHECKPOINT_INTERVAL_S)
    capture.step()
    last = capture.queue.sent[-1][1]
    shown = capture.details()
    assert last > first
    assert (shown.captured_scn, shown.sent_scn) == (last, last)
    assert (shown.applied_scn, shown.required_checkpoint_scn) == (first, first)


def test_status_shows_applied_and_maximum_checkpoint_scn(capture: Capture) -> None:
    assert capture.details().max_checkpoint_scn == FIRST_SCN
    last = capture.commit(60)
    capture.queue.durable = capture.source.log[20].commit_scn
    capture.steps()
    shown = capture.details()
    assert shown.applied_scn == capture.queue.durable
    head = capture.writer._kept.newest
    assert head is not None
    assert shown.max_checkpoint_scn == head.last_commit_scn, "where the newest segment that it read begins"
    assert capture.source.log[20].commit_scn < shown.max_checkpoint_scn <= last


def test_redo_is_held_where_a_destination_that_lost_commits_begins_again(capture: Capture) -> None:
    last = capture.commit(10)
    capture.queue.durable = last
    capture.steps()
    assert capture.redo.checkpoints[-1] == last
    lost = capture.source.log[3].commit_scn
    capture.queue.rewind, capture.queue.durable = lost, lost
    capture.steps(3)
    assert capture.redo.again == [lost]
    assert capture.redo.checkpoints[-1] == last
    assert capture.queue.sent[-1][1] == last
    capture.queue.rewind = last
    capture.steps(3)
    assert capture.redo.again == [lost], "what is not below the record is kept in any case"


class Actors:
    """Answers the calls of a capture process, and notes them."""

    def __init__(self, error: ConfigError | None = None) -> None:
        self.error = error
        self.calls: list[tuple[object, ...]] = []

    def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> None:
        self.calls.append((name, method, *arguments))
        if self.error is not None:
            raise self.error


def test_start_scn_is_checked_by_the_site_before_the_queue_is_asked(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = Actors()
    monkeypatch.setattr(runtime, "actors_of", lambda topology: actors)
    capture.capture_again(50)
    assert actors.calls == [
        ("site:dbs1", "set_start_scn", "capture_dbs1", 50),
        ("queue:q_dbs1", "capture_again", "capture_dbs1", 50),
    ]
    actors = Actors(ConfigError("start SCN is below"))
    with pytest.raises(ConfigError, match="is below"):
        capture.capture_again(5)
    assert actors.calls == [("site:dbs1", "set_start_scn", "capture_dbs1", 5)]


class Site(RedoKeeper):
    """The site as far as it keeps redo, and whoever else a capture process calls: what was called is noted."""

    name = "site:dbs1"

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.calls: list[tuple[object, ...]] = []
        self.kept_redo().required_checkpoints.register("capture_dbs1")

    def kept_redo(self) -> LogWriter:
        return self.capture.writer

    def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> None:
        if name == self.name:
            self.kept_redo().required_checkpoints.record("capture_dbs1", self.capture.redo.checkpoints[-1])
            getattr(self, method)(*arguments)
        self.calls.append((name, method, *arguments))


def test_start_scn_above_what_the_destinations_have_applied_is_refused_and_nothing_is_captured_again(
    capture: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(capture)
    monkeypatch.setattr(runtime, "actors_of", lambda topology: site)
    last, applied = capture.commit(20), capture.source.log[10].commit_scn
    capture.queue.durable = applied  # of all subscribers of the queue the one with the least
    capture.steps()
    assert capture.queue.sent[-1][1] == last > applied
    for above in (applied + 1, last):
        with pytest.raises(
            ConfigError,
            match=f"start SCN {scn_text(above)} of capture process capture_dbs1 is above what every destination has"
            f" applied, {scn_text(applied)}",
        ):
            capture.capture_again(above)
    assert site.calls == []
    assert site.capture_scns()["capture_dbs1"].start_scn < applied
    capture.capture_again(applied)
    assert [method for _, method, *_ in site.calls] == ["set_start_scn", "capture_again"]
    assert site.capture_scns()["capture_dbs1"].start_scn == applied


def test_start_scn_of_a_capture_process_that_does_not_run_or_is_combined_is_refused(capture: Capture) -> None:
    capture.open_combined()
    with pytest.raises(ConfigError, match="which decides where to begin"):
        capture.capture_again(50)
    capture.close()
    with pytest.raises(ConfigError, match="capture_dbs1 does not run"):
        capture.capture_again(50)


def test_queue_that_lost_what_it_had_gets_it_mined_again(capture: Capture) -> None:
    capture.step()
    capture.queue.rewind = FIRST_SCN
    capture.step()
    capture.step()
    first, again = capture.queue.sent
    assert first == again
    assert capture.details().rewinds_total == 1


def test_capture_pauses_at_a_table_that_left_the_rules_and_goes_on_once_up_took_it_out(capture: Capture) -> None:
    capture.step()
    before = list(capture.queue.sent)
    capture.source.rename_table("hr.t", "t2")
    with capture.source.transaction() as transaction:
        transaction.insert("hr.t2", id="100")
    drain(capture.writer, capture.source)
    for _ in range(5):
        capture.step()
        capture._clock.advance(LEFT_INTERVAL_S / 2)
        assert [through for _, through in capture.queue.sent[len(before) :]] <= [before[-1][1]]
    while not capture.details().detail:
        capture.step()
    assert capture.detail_state() == "PAUSED: A TABLE LEFT THE RULES"
    assert "hr.t2" in capture.details().detail
    assert "headrace up" in capture.details().hint
    for _ in range(5):  # it is looked at again and again, and what to do is said all the time
        capture._clock.advance(LEFT_INTERVAL_S)
        capture.step()
        assert "hr.t2" in capture.details().detail
    capture.names.is_captured = False
    capture._clock.advance(LEFT_INTERVAL_S)
    for _ in range(3):
        capture.step()
        capture._clock.advance(1.0)
    assert capture.detail_state() == "WAITING FOR REDO"
    assert capture.details().detail == ""
    assert capture.queue.sent[-1][1] > before[-1][1]


def test_new_subscriber_is_told_where_it_begins_although_the_capture_process_waits_at_a_table_that_left_the_rules(
    capture: Capture,
) -> None:
    """Without the mark 0..kept, a batch that begins at `kept` says that one before it is missing."""
    capture.step()
    ((_, kept),) = capture.queue.sent
    capture.source.rename_table("hr.t", "t2")
    with capture.source.transaction() as transaction:
        transaction.insert("hr.t2", id="100")
    drain(capture.writer, capture.source)
    while not capture.details().detail:
        capture.step()
    capture.checkpoint.told_scn = kept  # as the site has it on record
    capture.queue.sent.clear()
    capture.queue.rewind = FIRST_SCN
    for _ in range(3):
        capture.step()
        capture._clock.advance(LEFT_INTERVAL_S)
    assert capture.queue.sent[0] == (FIRST_SCN, kept)
    assert "hr.t2" in capture.details().detail


def test_capture_that_is_asked_for_purged_redo_tells_its_queue_and_goes_on_where_that_says(capture: Capture) -> None:
    """One destination restored from a backup of long ago must not abort the capture for all of them."""
    for _ in range(60):
        capture.insert()
        drain(capture.writer, capture.source)
    first = capture.source.log[2].commit_scn
    last = capture.source.log[-1].commit_scn
    assert capture.writer.purge(last) > 0
    capture.queue.rewind = first
    capture.step()
    for _ in range(3):
        capture.step()
    (begins,) = capture.queue.told_gone
    assert begins > first
    sent = len(capture.queue.sent)
    capture.queue.rewind = begins
    for _ in range(40):
        capture.step()
    assert capture.queue.sent[sent][0] == begins
    assert capture.queue.sent[-1][1] >= last


def test_redo_that_is_purged_while_it_is_mined_again_is_told_the_queue_too(capture: Capture) -> None:
    """The site may purge what was durable a moment before a destination lost commits."""
    for _ in range(30):
        capture.insert()
        drain(capture.writer, capture.source)
    before = capture.redo.poll()
    for _ in range(90):
        capture.insert()
        drain(capture.writer, capture.source)
    capture.queue.rewind = capture.source.log[2].commit_scn
    capture.redo.poll = lambda: before  # type: ignore[method-assign]
    for _ in range(3):
        capture.step()
    del capture.redo.poll
    assert capture.writer.purge(capture.source.log[-1].commit_scn) > 0
    for _ in range(3):
        capture.step()
    (begins,) = capture.queue.told_gone
    assert begins > capture.queue.sent[-1][1]


def refused(capture: Capture) -> Scn:
    """Let `apply_a` come back from a backup whose redo is gone, and abort; what it lacks is gone up to the SCN
    returned.
    """
    last = capture.commit(60)
    assert capture.writer.purge(last) > 0
    capture.redo.checkpoints.append(last)
    mounted = capture.open_combined()
    session = mounted.core.open_subscriber("apply_a", "001", {"dbs1": Scn(capture.source.log[2].commit_scn)}, CREDIT)
    capture.steps(3)
    assert isinstance(session.ended, LogGone)
    gone = mounted.status().gone_scn
    assert gone is not None
    return Scn(gone)


def test_redo_is_not_held_for_a_refused_apply_process_by_the_next_life_of_the_capture_process(capture: Capture) -> None:
    """The aborted apply process never subscribes again, so nobody else would tell."""
    gone = refused(capture)
    for _ in range(2):
        mounted = capture.open_combined()
        last = capture.commit(10)
        capture.steps()
        assert capture.redo.checkpoints[-1] < last, "a newer driver may come"
        capture._clock.advance(REFUSED_HOLD_S)
        capture.steps()
        assert capture.redo.checkpoints[-1] == last
        assert mounted.status().gone_scn == gone
        with pytest.raises(LogGone, match="apply_a needs the changes of dbs1"):
            mounted.core.open_subscriber("apply_a", "002", {"dbs1": Scn(capture.source.log[2].commit_scn)}, CREDIT)


def test_refusal_is_forgotten_when_the_capture_process_enqueues_or_is_a_new_one(capture: Capture) -> None:
    """Else it would drop changes that an apply process which was copied again meanwhile still needs."""
    refused(capture)
    capture._forget_refusal()
    assert capture.open_combined().status().gone_scn is None
    gone = refused(capture)
    capture.redo.checkpoints.clear()  # taken out of the topology, and added again: the site keeps redo from now on
    assert capture.open_combined().status().gone_scn is None
    capture.redo.checkpoints.append(gone)
    assert capture.open_combined().status().gone_scn is None


def test_refusal_of_an_apply_process_is_forgotten_when_another_one_takes_its_place(capture: Capture) -> None:
    refused(capture)
    mounted_core(
        capture._spec,
        capture._capture,
        capture._spec.apply("apply_far"),
        acknowledged=capture.checkpoint.told_scn,
        clock=capture._clock,
    )
    assert capture.open_combined().status().gone_scn is None


def test_redo_is_held_again_for_an_apply_process_that_was_refused_and_began_anew(capture: Capture) -> None:
    refused(capture)
    mounted = capture.open_combined()
    capture.steps()
    kept = max(capture.redo.checkpoints)
    session = mounted.core.open_subscriber("apply_a", "002", {"dbs1": FIRST_SCN}, CREDIT)
    capture.steps(3)
    delivery = mounted.core.dequeue(session)
    assert delivery is not None
    assert (delivery.header.previous_scn, delivery.header.through_scn) == (FIRST_SCN, kept)
    # it copies its tables: what is committed meanwhile waits for it, in every life of the capture process
    for _ in range(2):
        mounted = capture.open_combined()
        assert mounted.status().gone_scn is None
        capture.commit(10)
        capture.steps()
        assert capture.redo.checkpoints[-1] == FIRST_SCN
        assert max(capture.redo.checkpoints) == kept
