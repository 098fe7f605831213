"""The buffered queue by hand: subscribers whose destinations lost commits, and purged redo."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from actors.staging.positions import PositionsFile
from actors.staging.queue_sessions import REFUSED_HOLD_S, PublisherSession, SubscriberSession
from actors.staging.refusals import Refusals
from actors.staging.subscribers import forget_former_subscribers
from headrace.base.errors import LogGone, QueueError
from headrace.lcr.scn import Scn
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import Queue


def restored_below_redo(folder: Path) -> tuple[Queue, PublisherSession, SubscriberSession, SubscriberSession]:
    """`apply_b` was restored from a backup and needs everything after 10; the publisher only has what follows 30."""
    queue = Queue(folder, subscribers=("apply_a", "apply_b"))
    publisher, one, two = queue.publisher(), queue.subscriber("apply_a"), queue.subscriber("apply_b")
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    for name, session in (("apply_a", one), ("apply_b", two)):
        assert queue.taken(session), name
        queue.core.acknowledge(session, "dbs1", 40)
    queue.save()
    assert queue.core.publisher_news(publisher).durable_scn == 40
    two = queue.subscriber("apply_b", needed=10)
    assert queue.core.publisher_news(publisher).rewind_scn == 10
    return queue, publisher, one, two


def goes_on_without_the_refused(folder: Path) -> tuple[Queue, PublisherSession, SubscriberSession]:
    """`apply_b` is refused, two minutes have passed, and `apply_a` has everything up to 50."""
    queue, publisher, one, _ = restored_below_redo(folder)
    queue.core.gone(publisher, 30)
    queue.clock.advance(REFUSED_HOLD_S)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([50], previous=40))
    queue.taken(one)
    queue.core.acknowledge(one, "dbs1", 50)
    return queue, publisher, one


def test_only_the_subscriber_that_needs_purged_redo_is_refused(tmp_path: Path) -> None:
    queue, publisher, one, two = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    assert one.ended is None
    assert isinstance(two.ended, LogGone)
    assert "SCN 0/0000000A" in two.ended.message
    assert "SCN 0/0000001E" in two.ended.message
    assert "copied again" in two.ended.hint
    assert queue.core.publisher_news(publisher).rewind_scn == 40, "the position of the remaining subscribers"
    queue.send(publisher, insert_batch([50], previous=40))
    assert queue.spans(one) == [(40, 50)]
    with pytest.raises(LogGone):
        queue.subscriber("apply_b", needed=10)


def test_nothing_is_held_for_a_refused_subscriber(tmp_path: Path) -> None:
    queue, publisher, _ = goes_on_without_the_refused(tmp_path)
    queue.save()
    assert queue.core.publisher_news(publisher).durable_scn == 50
    assert queue.core.status().batches == 0


def test_backlog_of_a_slow_subscriber_is_not_blamed_on_a_refused_one(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "apply_b", "apply_c"))
    publisher = queue.publisher()
    sessions = {name: queue.subscriber(name) for name in ("apply_a", "apply_b", "apply_c")}
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    for session in sessions.values():
        queue.taken(session)
        queue.core.acknowledge(session, "dbs1", 40)
    queue.save()
    queue.subscriber("apply_b", needed=10)
    queue.core.publisher_news(publisher)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([50], previous=40))
    queue.taken(sessions["apply_a"])
    queue.core.acknowledge(sessions["apply_a"], "dbs1", 50)
    queue.clock.advance(REFUSED_HOLD_S + 1800)
    queue.core.housekeeping()
    held = {each.subscriber: each.held_alone_s for each in queue.core.status().subscribers}
    assert held["apply_c"] >= 1800
    assert held["apply_a"] == held["apply_b"] == 0


@pytest.mark.parametrize("others", [True, False])
def test_refused_old_driver_releases_nothing_that_the_newest_one_needs(tmp_path: Path, *, others: bool) -> None:
    """The newest driver's stream is briefly broken; an old one that slept since 10 subscribes meanwhile."""
    names = ("apply_a", "apply_b") if others else ("apply_b",)
    queue = Queue(tmp_path, subscribers=names)
    publisher = queue.publisher()
    sessions = {name: queue.subscriber(name) for name in names}
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    for session in sessions.values():
        queue.taken(session)
        queue.core.acknowledge(session, "dbs1", 40)
    queue.save()
    queue.core.publisher_news(publisher)
    queue.core.close_subscriber(sessions["apply_b"])
    queue.subscriber("apply_b", needed=10)
    queue.core.gone(publisher, 30)
    assert queue.core.publisher_news(publisher).rewind_scn == 40
    queue.send(publisher, insert_batch([50, 60], previous=40))
    if others:
        queue.taken(sessions["apply_a"])
        queue.core.acknowledge(sessions["apply_a"], "dbs1", 60)
    queue.clock.advance(REFUSED_HOLD_S - 5)
    queue.core.housekeeping()
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert news is None or (news.durable_scn or 0) <= 40
    newest = queue.subscriber("apply_b", needed=40)
    assert queue.spans(newest) == [(40, 60)]


def test_changes_held_for_a_refused_subscriber_are_released_after_a_while(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_b",))
    publisher, session = queue.publisher(), queue.subscriber("apply_b")
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    queue.taken(session)
    queue.core.acknowledge(session, "dbs1", 40)
    queue.subscriber("apply_b", needed=10)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([50, 60], previous=40))
    queue.core.housekeeping()
    assert queue.core.status().batches == 1
    queue.clock.advance(REFUSED_HOLD_S)
    queue.core.housekeeping()
    assert queue.core.status().batches == 0
    assert queue.core.publisher_news(publisher).durable_scn == 60


def test_refused_subscriber_that_begins_anew_gets_everything_from_there(tmp_path: Path) -> None:
    queue, publisher, one = goes_on_without_the_refused(tmp_path)
    anew = queue.subscriber("apply_b", needed=0)
    queue.send(publisher, insert_batch([60], previous=50))
    assert queue.spans(anew) == [], (
        "it copies its tables by the mark, and the queue's next life would ask for purged redo"
    )
    queue.save()
    assert queue.spans(anew) == [(0, 50), (50, 60)]
    queue.core.acknowledge(one, "dbs1", 60)
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert news.durable_scn is None or news.durable_scn <= 50, "the changes are held for the subscriber that began anew"


@pytest.mark.parametrize("is_running", [True, False])
def test_new_subscriber_next_to_refused_ones_begins_where_the_others_are(tmp_path: Path, *, is_running: bool) -> None:
    """Changes after the refused subscriber's position are purged: the new one would be refused, too."""
    queue, publisher, _ = goes_on_without_the_refused(tmp_path)
    queue.save()
    names = ("apply_b", "apply_c")  # the remaining subscriber leaves with the same edit
    if is_running:
        queue.adopt(*names)
    else:
        queue.restart(*names)
        publisher = queue.publisher()
        queue.send(publisher, insert_batch([], through=50))  # whatever it has
    new = queue.subscriber("apply_c")
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([60], previous=50))
    assert queue.spans(new) == [(0, 50), (50, 60)]


@pytest.mark.parametrize("was_running", [True, False])
@pytest.mark.parametrize("then", ["runs", "begins again", "is stopped"])
def test_refused_subscriber_is_no_predecessor_after_an_interrupted_edit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    *,
    was_running: bool,
) -> None:
    """A full disk, or a kill, interrupts the edit between the queue's two files.

    What the refused subscriber lacked is purged, so its successor would be refused as well.
    """
    queue, _, _ = goes_on_without_the_refused(tmp_path)
    queue.save()

    def full(*_: object) -> None:
        raise OSError(28, "full")

    with monkeypatch.context() as broken:
        broken.setattr(PositionsFile, "save", full)
        with pytest.raises(OSError, match="full"):
            (queue.adopt if was_running else queue.restart)("apply_a", "apply_c")
    if then == "runs":
        (queue.adopt if was_running else queue.restart)("apply_a", "apply_c")
    elif then == "begins again":
        queue.restart("apply_a", "apply_c")
    else:
        forget_former_subscribers(queue.topology, "q_dbs1", queue.folder / "q")
        queue.restart("apply_a", "apply_c")
    assert PositionsFile(queue.folder / "q").load() == {"dbs1": {"apply_a": 50, "apply_c": 50}}
    assert Refusals(queue.folder / "q").everyone() == {}


@pytest.mark.parametrize("is_running", [True, False])
def test_new_subscriber_is_not_refused_although_all_others_are(tmp_path: Path, *, is_running: bool) -> None:
    queue = Queue(tmp_path, subscribers=("apply_b",))
    publisher, session = queue.publisher(), queue.subscriber("apply_b")
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    queue.taken(session)
    queue.core.acknowledge(session, "dbs1", 40)
    queue.save()
    queue.subscriber("apply_b", needed=10)
    queue.core.publisher_news(publisher)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    queue.clock.advance(REFUSED_HOLD_S)
    queue.send(publisher, insert_batch([50, 60], previous=30))
    queue.core.housekeeping()
    queue.save()
    assert queue.core.publisher_news(publisher).durable_scn == 60
    if is_running:
        queue.adopt("apply_b", "apply_c")
    else:
        queue.restart("apply_b", "apply_c")
        publisher = queue.publisher()
        queue.send(publisher, insert_batch([], through=60))  # whatever it has
    new = queue.subscriber("apply_c")
    news = queue.core.publisher_news(publisher)
    assert news is None or news.rewind_scn is None, "the publisher heard that this is durable"
    queue.send(publisher, insert_batch([70], previous=60))
    assert queue.spans(new) == [(0, 60), (60, 70)]


def test_refused_subscriber_restored_from_a_later_backup_is_admitted(tmp_path: Path) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    later = queue.subscriber("apply_b", needed=35)
    assert queue.core.publisher_news(publisher).rewind_scn == 35
    queue.send(publisher, insert_batch([40, 50], previous=35))
    assert queue.spans(later) == [(35, 50)]


def test_status_shows_a_destination_that_lost_commits(tmp_path: Path) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    shown = {each.subscriber: each for each in queue.core.status().subscribers}
    assert shown["apply_a"].lost is None
    assert (shown["apply_b"].lost.acknowledged_scn, shown["apply_b"].lost.found_scn) == (40, 10)
    queue.core.gone(publisher, 30)
    shown = {each.subscriber: each for each in queue.core.status().subscribers}
    assert (shown["apply_a"].gone_scn, shown["apply_b"].gone_scn) == (None, 30)


def test_replaced_stream_acknowledges_nothing_for_its_successor(tmp_path: Path) -> None:
    """The destination failed over and lost commits; acknowledgements of its previous driver arrive late."""
    queue = Queue(tmp_path, subscribers=("apply_a", "apply_b"))
    publisher, before, other = queue.publisher(), queue.subscriber("apply_a"), queue.subscriber("apply_b")
    for k in range(3):
        queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k))
    queue.taken(before), queue.taken(other)
    queue.core.acknowledge(other, "dbs1", 30)
    after = queue.subscriber("apply_a", needed=10)
    queue.core.acknowledge(before, "dbs1", 30)
    queue.save()
    assert queue.core.publisher_news(publisher).durable_scn == 0
    found = queue.taken(after)
    assert [(each.header.previous_scn, each.header.through_scn, each.header.row_count) for each in found] == [
        (10, 20, 1),
        (20, 30, 1),
    ]


def test_closed_stream_adds_nothing_to_its_successors_transaction(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    before, subscriber = queue.publisher(), queue.subscriber()
    first, second = insert_batch([10], is_open=True), insert_batch([10], is_open=True, continues=True)
    queue.send(before, first)
    queue.core.close_publisher(before)
    after = queue.publisher()
    queue.send(after, first)
    with pytest.raises(QueueError, match="was closed"):
        queue.send(before, second)
    assert sum(each.header.row_count for each in queue.taken(subscriber)) == 1


def test_late_acknowledgement_counts_until_a_new_stream_opens(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20]))
    queue.taken(subscriber)
    queue.core.close_subscriber(subscriber)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    assert queue.core.status().subscribers[0].acknowledged_scn == 10
    queue.subscriber(needed=10)
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.status().subscribers[0].acknowledged_scn == 10


def test_nothing_is_held_for_a_refused_subscriber_after_a_restart(tmp_path: Path) -> None:
    """The subscriber has aborted, and does not subscribe again to be refused.

    Found by simulation: the redo log filled, and the other subscribers stood still.
    """
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.save()
    queue.restart()
    publisher, one = queue.publisher(), queue.subscriber("apply_a", needed=40)
    queue.clock.advance(REFUSED_HOLD_S)
    queue.send(publisher, insert_batch([40, 50], previous=30))
    assert queue.spans(one) == [(40, 50)]
    queue.core.acknowledge(one, "dbs1", 50)
    queue.save()
    queue.core.housekeeping()
    assert queue.core.publisher_news(publisher).durable_scn == 50
    assert queue.core.status().batches == 0


def test_restarted_queue_refuses_an_old_driver_and_holds_for_the_newest(
    tmp_path: Path,
) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.save()
    queue.restart()
    with pytest.raises(LogGone, match="after SCN 0/0000000A, but up to SCN 0/0000001E they are gone"):
        queue.subscriber("apply_b", needed=10)
    publisher, one = queue.publisher(), queue.subscriber("apply_a", needed=40)
    queue.send(publisher, insert_batch([40, 50], previous=30))
    queue.taken(one)
    queue.core.acknowledge(one, "dbs1", 50)
    queue.core.housekeeping()
    assert queue.spans(queue.subscriber("apply_b", needed=40)) == [(40, 50)]


@pytest.mark.parametrize(("needed", "held"), [(0, 40), (40, 30)])
def test_restarted_queue_admits_a_subscriber_that_began_anew(tmp_path: Path, needed: int, held: int) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.subscriber("apply_b", needed=needed)
    queue.save()
    queue.restart()
    queue.clock.advance(REFUSED_HOLD_S)
    publisher, one = queue.publisher(), queue.subscriber("apply_a", needed=40)
    queue.send(publisher, insert_batch([50], previous=held))
    queue.taken(one)
    queue.core.acknowledge(one, "dbs1", 50)
    queue.save()
    queue.core.housekeeping()
    assert queue.core.publisher_news(publisher).durable_scn == held


def test_subscriber_gets_its_refusal_only_when_that_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, publisher, _, two = restored_below_redo(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("actors.staging.refusals.replace_file", no_space)
        with pytest.raises(QueueError, match=r"refused\.json of queue .* cannot be written: No space left"):
            queue.core.gone(publisher, 30)
        assert two.ended is None
    queue.core.gone(publisher, 30)
    assert isinstance(two.ended, LogGone)


def test_subscriber_is_readmitted_only_when_its_refusals_end_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    with monkeypatch.context() as patch:
        patch.setattr("actors.staging.refusals.replace_file", no_space)
        with pytest.raises(QueueError, match="No space left"):
            queue.subscriber("apply_b", needed=0)
    assert queue.core.status().subscribers[1].gone_scn == 30
    queue.subscriber("apply_b", needed=0)
    assert queue.core.status().subscribers[1].gone_scn is None


def test_damaged_refusals_are_ignored(tmp_path: Path) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.save()
    (file,) = tmp_path.rglob("refused.json")
    file.write_text("{")
    queue.restart()
    assert queue.core.resume(queue.core.open_publisher("capture_dbs1", "999", "dbs1"))[0] == 10


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_publisher_is_not_asked_for_changes_acknowledged_meanwhile(tmp_path: Path) -> None:
    """The queue behind a propagation restarted empty; before the publisher heard of it, that queue's own subscriber
    connected with a higher position.
    """
    queue = Queue(tmp_path, subscribers=("to_b",))
    publisher, relay = queue.publisher(), queue.subscriber("to_b")
    for scn in (10, 20, 30):
        queue.send(publisher, insert_batch([scn], previous=scn - 10))
    queue.taken(relay)
    queue.core.acknowledge(relay, "dbs1", 10)
    relay = queue.subscriber("to_b", needed=5)
    queue.core.acknowledge(relay, "dbs1", 20)
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert (news.rewind_scn, news.durable_scn) == (20, 20), (
        "the publisher can purge durable changes, so it must not need them"
    )
    queue.send(publisher, insert_batch([30], previous=20))
    assert queue.spans(relay)[-1] == (20, 30)
    queue.core.acknowledge(relay, "dbs1", 30)
    queue.core.capture_again("capture_dbs1", Scn(10))  # the operator's request is unchanged
    assert queue.core.publisher_news(publisher).rewind_scn == 10
