"""The capture process between its redo and its queue: its status, and what it reports to the site."""

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
from headrace.rules.rule import Rule, RuleSet
from tests.support.redo.capture_process import CREDIT, Capture
from tests.support.redo.redo_logs import drain


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path)


def test_state_is_the_manuals_word_for_the_last_step(capture: Capture) -> None:
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


def test_batch_without_credit_is_sent_once_when_credit_arrives(capture: Capture) -> None:
    capture.queue.has_credit = False
    for _ in range(3):
        capture.step()
    assert capture.queue.sent == []
    capture.queue.has_credit = True
    for _ in range(3):
        capture.step()
    assert len(capture.queue.sent) == 1


def test_required_checkpoint_follows_durable_and_not_sent_changes(capture: Capture) -> None:
    capture.step()
    ((_, through),) = capture.queue.sent
    capture._clock.advance(CHECKPOINT_INTERVAL_S)
    capture.step()
    assert capture.redo.checkpoints == []
    capture.queue.durable = through
    capture.step()
    capture.step()
    assert capture.redo.checkpoints == [through]


def test_new_subscriber_begins_where_redo_is_kept_and_not_at_the_oldest(capture: Capture) -> None:
    """Older redo can be purged at any moment: a destination that copies its tables meanwhile would then miss it."""
    capture.step()
    ((_, kept),) = capture.queue.sent
    capture.insert()
    drain(capture.writer, capture.source)
    capture.checkpoint.told_scn = kept  # as recorded at the site
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
    assert shown.max_checkpoint_scn == head.last_commit_scn, "the beginning of the newest segment that it read"
    assert capture.source.log[20].commit_scn < shown.max_checkpoint_scn <= last


def test_status_has_ddl_that_the_source_could_not_record(capture: Capture) -> None:
    capture.names.wanted = RuleSet(include=(Rule(owner="hr", name="t", ddl=True),))
    capture.close()
    capture.open()
    capture.source.log_ddl('{"format": 1, "failed": "57014", "tag": "ALTER TABLE", "query": "ALTER TABLE hr.t ADD z"}')
    drain(capture.writer, capture.source)
    capture.steps(3)
    shown = capture.details()
    assert shown.ddl_failed_total == 1
    assert "ALTER TABLE hr.t ADD z" in shown.last_failed_ddl


def test_redo_is_held_from_where_a_destination_that_lost_commits_resumes(capture: Capture) -> None:
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
    assert capture.redo.again == [lost], "redo above the recorded position is kept in any case"


class Actors:
    """Answer the calls of a capture process, and record them."""

    def __init__(self, error: ConfigError | None = None) -> None:
        self.error = error
        self.calls: list[tuple[object, ...]] = []

    def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> None:
        self.calls.append((name, method, *arguments))
        if self.error is not None:
            raise self.error


def test_site_checks_a_start_scn_before_the_queue_is_asked(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """The redo of a site, and everybody else whom a capture process calls; `calls` records them."""

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


def test_start_scn_above_the_applied_scn_is_refused(
    capture: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(capture)
    monkeypatch.setattr(runtime, "actors_of", lambda topology: site)
    last, applied = capture.commit(20), capture.source.log[10].commit_scn
    capture.queue.durable = applied  # that of the slowest subscriber of the queue
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


def test_start_scn_of_a_stopped_or_combined_capture_process_is_refused(capture: Capture) -> None:
    capture.open_combined()
    with pytest.raises(ConfigError, match="which decides where to begin"):
        capture.capture_again(50)
    capture.close()
    with pytest.raises(ConfigError, match="capture_dbs1 does not run"):
        capture.capture_again(50)


def test_queue_that_lost_its_contents_gets_them_mined_again(capture: Capture) -> None:
    capture.step()
    capture.queue.rewind = FIRST_SCN
    capture.step()
    capture.step()
    first, again = capture.queue.sent
    assert first == again
    assert capture.details().rewinds_total == 1


def test_capture_pauses_at_a_table_that_left_the_rules_until_up_leaves_it(capture: Capture) -> None:
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
    for _ in range(5):  # it checks repeatedly, and shows the fix all the time
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


def test_new_subscriber_gets_its_beginning_while_capture_is_paused(
    capture: Capture,
) -> None:
    """Without the mark 0..kept, a batch that begins at `kept` shows a gap before it."""
    capture.step()
    ((_, kept),) = capture.queue.sent
    capture.source.rename_table("hr.t", "t2")
    with capture.source.transaction() as transaction:
        transaction.insert("hr.t2", id="100")
    drain(capture.writer, capture.source)
    while not capture.details().detail:
        capture.step()
    capture.checkpoint.told_scn = kept  # as recorded at the site
    capture.queue.sent.clear()
    capture.queue.rewind = FIRST_SCN
    for _ in range(3):
        capture.step()
        capture._clock.advance(LEFT_INTERVAL_S)
    assert capture.queue.sent[0] == (FIRST_SCN, kept)
    assert "hr.t2" in capture.details().detail


def test_capture_asked_for_purged_redo_reports_it_and_resumes_above_it(capture: Capture) -> None:
    """A destination restored from an old backup must not abort the capture process for all others."""
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


def test_redo_purged_while_it_is_mined_again_is_reported_to_the_queue(capture: Capture) -> None:
    """The site can purge changes that were durable a moment before a destination lost commits."""
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
    """Restore `apply_a` to a position below purged redo: it aborts; return the SCN up to which redo is gone."""
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


def test_restarted_capture_holds_no_redo_for_a_refused_apply_process(capture: Capture) -> None:
    """The aborted apply process never subscribes again, so nothing else would release the redo."""
    gone = refused(capture)
    for _ in range(2):
        mounted = capture.open_combined()
        last = capture.commit(10)
        capture.steps()
        assert capture.redo.checkpoints[-1] < last, "a newer driver may connect"
        capture._clock.advance(REFUSED_HOLD_S)
        capture.steps()
        assert capture.redo.checkpoints[-1] == last
        assert mounted.status().gone_scn == gone
        with pytest.raises(LogGone, match="apply_a needs the changes of dbs1"):
            mounted.core.open_subscriber("apply_a", "002", {"dbs1": Scn(capture.source.log[2].commit_scn)}, CREDIT)


def test_refusal_is_forgotten_when_capture_enqueues_or_is_new(capture: Capture) -> None:
    """Otherwise it would drop changes that a newly copied apply process still needs."""
    refused(capture)
    capture._forget_refusal()
    assert capture.open_combined().status().gone_scn is None
    gone = refused(capture)
    capture.redo.checkpoints.clear()  # removed and added again: the site keeps redo from this moment on
    assert capture.open_combined().status().gone_scn is None
    capture.redo.checkpoints.append(gone)
    assert capture.open_combined().status().gone_scn is None


def test_refusal_is_forgotten_when_another_apply_process_takes_the_place(capture: Capture) -> None:
    refused(capture)
    mounted_core(
        capture._spec,
        capture._capture,
        capture._spec.apply("apply_far"),
        acknowledged=capture.checkpoint.told_scn,
        clock=capture._clock,
    )
    assert capture.open_combined().status().gone_scn is None


def test_redo_is_held_again_for_a_refused_apply_process_that_began_anew(capture: Capture) -> None:
    refused(capture)
    mounted = capture.open_combined()
    capture.steps()
    kept = max(capture.redo.checkpoints)
    session = mounted.core.open_subscriber("apply_a", "002", {"dbs1": FIRST_SCN}, CREDIT)
    capture.steps(3)
    delivery = mounted.core.dequeue(session)
    assert delivery is not None
    assert (delivery.header.previous_scn, delivery.header.through_scn) == (FIRST_SCN, kept)
    # it copies its tables: new commits are held for it, in every life of the capture process
    for _ in range(2):
        mounted = capture.open_combined()
        assert mounted.status().gone_scn is None
        capture.commit(10)
        capture.steps()
        assert capture.redo.checkpoints[-1] == FIRST_SCN
        assert max(capture.redo.checkpoints) == kept
