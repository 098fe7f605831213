"""The buffered queue by hand: who is connected, and where a new subscriber begins."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.staging.positions import PositionsFile
from actors.staging.queue import QueueCore
from actors.staging.queue_host import QueueHost
from headrace.base.clock import VirtualClock
from headrace.base.durable_file import replace_file
from headrace.base.errors import ProtocolError, QueueError
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from protos import codec
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import Queue
from tests.support.wire.staging import one_way


def test_subscriber_ahead_of_the_queue_never_moves_it_past_the_others(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=20_000)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    for part in range(50):  # an open transaction whose beginning was dropped
        queue.send(
            publisher, insert_batch([10], is_open=True, continues=part > 0, first_position=part, value=bytes(3000))
        )
        queue.taken(subscriber)
        queue.core.publisher_news(publisher)
    queue.subscriber(needed=500)
    assert queue.core.status().given_up_rows_total > 0
    assert queue.core.status().sources["dbs1"].position_scn == 0


def test_newer_stream_of_a_component_replaces_the_older_one(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    old_publisher, old_subscriber = queue.publisher(), queue.subscriber()
    publisher, subscriber = queue.publisher(), queue.subscriber()
    assert isinstance(old_publisher.ended, QueueError)
    assert isinstance(old_subscriber.ended, QueueError)
    with pytest.raises(QueueError, match="replaced"):
        queue.send(old_publisher, insert_batch([10]))
    queue.send(publisher, insert_batch([10]))
    assert queue.taken(old_subscriber) == []
    queue.core.close_subscriber(old_subscriber)
    queue.core.close_publisher(old_publisher)
    assert queue.spans(subscriber) == [(0, 10)]
    assert queue.core.status().sources["dbs1"].publisher == "capture_dbs1"


def test_older_incarnation_is_refused_while_the_newer_one_is_connected(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    newer = queue.core.open_publisher("capture_dbs1", "2", "dbs1")
    with pytest.raises(QueueError, match="newer incarnation"):
        queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    queue.core.close_publisher(newer)
    queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    session = queue.core.open_subscriber("apply_a", "2", {"dbs1": Scn(0)}, 1)
    with pytest.raises(QueueError, match="newer incarnation"):
        queue.core.open_subscriber("apply_a", "1", {"dbs1": Scn(0)}, 1)
    assert session.ended is None


def test_unknown_components_and_sources_are_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with pytest.raises(QueueError, match="takes no LCRs of dbs9"):
        queue.core.open_publisher("capture_dbs1", "1", "dbs9")
    with pytest.raises(QueueError, match="nobody is no subscriber"):
        queue.core.open_subscriber("nobody", "1", {"dbs1": Scn(0)}, 1)
    with pytest.raises(QueueError, match="no source at all"):
        queue.core.open_subscriber("apply_a", "1", {}, 1)
    queue.publisher()
    with pytest.raises(QueueError, match="takes no LCRs of dbs1 from someone_else"):
        queue.core.open_publisher("someone_else", "9", "dbs1")
    with pytest.raises(ProtocolError, match="LCRs of dbs7 on a stream of dbs1"):
        queue.send(queue.publisher(), insert_batch([10], source="dbs7"))
    with pytest.raises(ProtocolError, match="does not take"):
        queue.core.acknowledge(queue.subscriber(), "dbs7", 1)


def grown(folder: Path) -> Queue:
    """A queue that gains `to_c`: apply_a has acknowledged 60, to_b 50."""
    queue = Queue(folder, subscribers=("apply_a", "to_b"))
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([10, 20, 30, 40, 50, 60]))
    queue.core.acknowledge(queue.subscriber(), "dbs1", 60)
    queue.core.acknowledge(queue.subscriber("to_b"), "dbs1", 50)
    queue.save()
    queue.restart("apply_a", "to_b", "to_c")
    return queue


def saved(queue: Queue) -> dict[str, Scn]:
    return PositionsFile(queue.folder / "q").load()["dbs1"]


def test_new_subscriber_is_placed_at_the_most_advanced_one_and_saved(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    assert saved(queue) == {"apply_a": 60, "to_b": 50, "to_c": 60}
    publisher = queue.core.open_publisher("capture_dbs1", "9", "dbs1")
    assert queue.core.resume(publisher)[0] == 50  # as without the new subscriber
    new = queue.subscriber("to_c")
    # Cut differently than before, so that a batch spans the new subscriber's position.
    queue.send(publisher, insert_batch([60, 70], previous=50))
    assert queue.spans(new) == [(0, 60), (60, 70)]


def test_nothing_is_durable_without_the_new_subscriber(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([60, 70, 80], previous=50))
    for name in ("apply_a", "to_b"):
        queue.core.acknowledge(queue.subscriber(name, needed=60), "dbs1", 80)
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.durable_scn == 60
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 60
    queue.core.acknowledge(queue.subscriber("to_c", needed=80), "dbs1", 80)
    queue.save()
    assert queue.core.resume(queue.publisher())[0] == 80


def test_new_subscriber_keeps_its_place_however_far_the_others_move(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    queue.core.acknowledge(queue.subscriber("apply_a", needed=600), "dbs1", 600)
    queue.core.acknowledge(queue.subscriber("to_b", needed=600), "dbs1", 600)
    queue.save()
    queue.restart()
    queue.subscriber("to_c")
    assert saved(queue) == {"apply_a": 600, "to_b": 600, "to_c": 60}


def test_returning_subscriber_does_not_get_its_old_position(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    queue.restart("apply_a")
    assert saved(queue) == {"apply_a": 60}
    queue.core.acknowledge(queue.subscriber(needed=900), "dbs1", 900)
    queue.save()
    queue.restart("apply_a", "to_b")
    assert saved(queue) == {"apply_a": 900, "to_b": 900}


def test_queue_of_new_subscribers_begins_at_its_publishers_beginning(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher = queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    assert queue.core.resume(publisher)[0] == 0
    early = queue.subscriber()
    assert queue.taken(early) == []
    queue.send(publisher, insert_batch([], through=400))
    queue.send(publisher, insert_batch([410, 420], previous=400))
    assert queue.spans(early) == [(0, 400), (400, 420)]
    assert queue.spans(queue.subscriber("to_b")) == [(0, 400), (400, 420)]
    # One has begun, the other has not and still needs everything that the publisher has.
    queue.core.acknowledge(early, "dbs1", 420)
    queue.save()
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 0


def test_subscriber_below_its_publishers_beginning_causes_a_rewind(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)
    publisher, connected = queue.publisher(), queue.subscriber(needed=300)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([], through=400))
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 300
    assert queue.taken(connected) == []
    with pytest.raises(ProtocolError, match="begins above what the queue has"):
        queue.send(publisher, insert_batch([], through=400))
    # The same if it connects later.
    queue = Queue(tmp_path / "later")
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([], through=400))
    queue.core.publisher_news(publisher)
    assert queue.taken(queue.subscriber(needed=300)) == []
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 300


def test_subscriber_added_to_a_running_queue_disturbs_nobody(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, first, second = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    queue.send(publisher, insert_batch([20], previous=10))
    assert len(queue.taken(first)) == len(queue.taken(second)) == 2
    queue.core.acknowledge(first, "dbs1", 10)
    queue.adopt("apply_a", "to_b", "to_c")
    assert PositionsFile(tmp_path / "q").load() == {"dbs1": {"apply_a": 10, "to_b": 0, "to_c": 10}}

    # The streams of the others continue.
    assert (publisher.ended, first.ended, second.ended) == (None, None, None)
    queue.send(publisher, insert_batch([30], previous=20))
    assert [each.header.through_scn for each in queue.taken(first)] == [30]
    assert [each.header.through_scn for each in queue.taken(second)] == [30]
    third = queue.subscriber("to_c")
    assert [(each.header.previous_scn, each.header.through_scn) for each in queue.taken(third)] == [
        (0, 10),
        (10, 20),
        (20, 30),
    ]

    # Nothing after 10 is DURABLE without the new subscriber.
    for session in (first, second):
        queue.core.acknowledge(session, "dbs1", 30)
    assert queue.core.status().sources["dbs1"].durable_scn == 0  # not yet saved
    queue.clock.advance(2.0)
    positions = queue.core.positions_to_save()
    assert positions is not None
    queue.core.save_positions(positions)
    queue.core.positions_saved(positions, None)
    assert queue.core.status().sources["dbs1"].durable_scn == 10


def test_subscriber_removed_from_a_running_queue_holds_nothing(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, first, second = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    assert len(queue.taken(first)) == 1
    queue.core.acknowledge(first, "dbs1", 10)
    assert queue.core.status().batches == 1
    queue.adopt("apply_a")
    assert "no subscriber of queue q_dbs1 any more" in str(second.ended)
    assert queue.core.dequeue(second) is None
    queue.core.close_subscriber(second)
    assert (queue.core.status().batches, queue.core.status().memory_bytes) == (0, 0)
    with pytest.raises(QueueError, match="no subscriber"):
        queue.subscriber("to_b")
    # It returns as a new one.
    queue.adopt("apply_a", "to_b")
    assert [each.header.through_scn for each in queue.taken(queue.subscriber("to_b"))] == [10]


def test_all_new_subscribers_begin_where_the_previous_ones_were(tmp_path: Path) -> None:
    """Earlier redo may be purged, because DURABLE was reported."""
    queue = Queue(tmp_path)
    publisher, first = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    queue.send(publisher, insert_batch([20], previous=10))
    queue.taken(first)
    queue.core.acknowledge(first, "dbs1", 10)
    queue.adopt("to_c")
    assert PositionsFile(tmp_path / "q").load() == {"dbs1": {"to_c": 10}}
    found = queue.taken(queue.subscriber("to_c"))
    assert [(each.header.previous_scn, each.header.through_scn) for each in found] == [(0, 10), (10, 20)]


def test_queue_stays_as_it_was_when_new_positions_cannot_be_saved(tmp_path: Path, monkeypatch) -> None:
    queue = Queue(tmp_path)
    publisher, first = queue.publisher(), queue.subscriber()
    with monkeypatch.context() as broken:
        broken.setattr(PositionsFile, "save", full)
        with pytest.raises(OSError, match="full"):
            queue.adopt("apply_a", "to_c")
    queue.send(publisher, insert_batch([10]))
    assert [each.header.through_scn for each in queue.taken(first)] == [10]
    assert [each.subscriber for each in queue.core.status().subscribers] == ["apply_a"]


def full(*_: object) -> None:
    raise OSError(28, "full")


def test_stopped_queue_forgets_subscribers_that_left(tmp_path: Path) -> None:
    """A subscriber that returns with a later edit begins anew: its old position can be below the available redo."""
    topology = one_way(tmp_path, subscribers=("apply_a", "apply_b"))
    host = QueueHost(topology, "q_dbs1", "1")
    positions = PositionsFile(tmp_path / "sites" / "dbs1" / "queues" / "q_dbs1")
    host.adopt(topology, "1")
    assert positions.load() == {}, "the queue never ran"
    positions.save({"dbs1": {"apply_a": Scn(40), "apply_b": Scn(90)}})
    host.adopt(one_way(tmp_path, subscribers=("apply_b",)), "2")
    assert positions.load() == {"dbs1": {"apply_b": 90}}
    host.adopt(topology, "3")
    assert positions.load() == {"dbs1": {"apply_a": 90, "apply_b": 90}}
    core = QueueCore(topology, "q_dbs1", tmp_path / "sites" / "dbs1" / "queues" / "q_dbs1")
    assert {each.subscriber: each.acknowledged_scn for each in core.status().subscribers} == {
        "apply_a": 90,
        "apply_b": 90,
    }


def test_component_publishes_only_the_sources_of_its_topology(tmp_path: Path) -> None:
    core = QueueCore(
        one_way(tmp_path, subscribers=("to_dbs2",), also=("dbs3",)), "q_dbs1", tmp_path / "q", VirtualClock()
    )
    with pytest.raises(QueueError, match="takes no LCRs of dbs3 from capture_dbs1"):
        core.open_publisher("capture_dbs1", "1", "dbs3")
    core.open_publisher("capture_dbs3", "1", "dbs3")


def test_publisher_that_left_the_topology_is_ended_if_its_source_stays(tmp_path: Path) -> None:
    spec = one_way(tmp_path, subscribers=("to_dbs2",))
    core = QueueCore(spec, "q_dbs2", tmp_path / "q", VirtualClock())
    former = core.open_publisher("to_dbs2", "1", "dbs1")
    core.resume(former)
    core.adopt(one_way(tmp_path, subscribers=("to_dbs2_again",)))
    with pytest.raises(QueueError, match="any more"):
        core.enqueue(former, header_of(insert_batch([10])), codec.encode(insert_batch([10])))
    core.open_publisher("to_dbs2_again", "1", "dbs1")


def test_publisher_that_ignores_its_credit_is_ended_after_one_batch(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=0)
    publisher = queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    queue.core.resume(publisher)
    assert queue.send(publisher, insert_batch([10], value=bytes(5_000))) > publisher.granted_bytes
    with pytest.raises(ProtocolError, match="than it has credit for"):
        queue.send(publisher, insert_batch([20], previous=10, value=bytes(5_000)))
    assert queue.core.status().memory_bytes < 6_500


def test_batch_beyond_the_credit_is_refused_unless_it_is_alone_in_flight(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=0)
    publisher = queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    _, credit = queue.core.resume(publisher)
    queue.core.check_credit(publisher, 1_200_000_000)  # alone, as the largest value needs it
    sent = queue.send(publisher, insert_batch([10]))
    queue.core.check_credit(publisher, credit - sent)
    with pytest.raises(ProtocolError, match="than it has credit for"):
        queue.core.check_credit(publisher, credit - sent + 1)  # the publisher knows that one batch is in flight
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes > 0
    queue.core.check_credit(publisher, 1_200_000_000)  # the publisher heard that this one arrived
    queue.send(publisher, insert_batch([20], previous=10, value=bytes(20_000)))
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes == 0
    with pytest.raises(ProtocolError, match="than it has credit for"):
        queue.core.check_credit(publisher, 1)


def test_status_shows_how_long_changes_are_held_for_one_subscriber_alone(tmp_path: Path) -> None:
    clock = VirtualClock()
    core = QueueCore(one_way(tmp_path, subscribers=("apply_a", "apply_b")), "q_dbs1", tmp_path, clock)

    def alone() -> dict[str, float]:
        return {str(each.subscriber): float(each.held_alone_s) for each in core.status().subscribers}

    publisher = core.open_publisher("capture_dbs1", "1", "dbs1")
    core.resume(publisher)
    sessions = {name: core.open_subscriber(name, "1", {"dbs1": Scn(0)}, 1 << 20) for name in ("apply_a", "apply_b")}
    for scn in (10, 20):
        batch = insert_batch([scn], previous=scn - 10)
        core.enqueue(publisher, header_of(batch), codec.encode(batch))
        clock.advance(100)
    for session in sessions.values():
        while core.dequeue(session) is not None:
            pass
    assert alone() == {"apply_a": 0.0, "apply_b": 0.0}  # nobody has acknowledged, so neither is behind the other
    core.acknowledge(sessions["apply_a"], "dbs1", Scn(10))
    assert alone() == {"apply_a": 0.0, "apply_b": 200.0}
    core.acknowledge(sessions["apply_a"], "dbs1", Scn(20))
    core.acknowledge(sessions["apply_b"], "dbs1", Scn(10))
    assert alone() == {"apply_a": 0.0, "apply_b": 100.0}
    core.acknowledge(sessions["apply_b"], "dbs1", Scn(20))
    assert alone() == {"apply_a": 0.0, "apply_b": 0.0}


def test_recaptured_changes_go_only_to_subscribers_that_lack_them(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, has_all, slow = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10, 20, 30, 40]))
    assert queue.spans(has_all) == [(0, 40)]
    queue.core.acknowledge(has_all, "dbs1", 40)
    queue.core.acknowledge(slow, "dbs1", 20)
    queue.save()
    queue.core.capture_again("capture_dbs1", Scn(10))
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert (news.rewind_scn, news.durable_scn) == (10, 20), "durable changes stay durable"
    queue.send(publisher, insert_batch([20, 30, 40, 50], previous=10))
    assert queue.spans(has_all) == [(40, 50)]
    assert queue.spans(slow) == [(0, 20), (20, 50)]
    restored = queue.subscriber("to_b", needed=20)
    assert queue.spans(restored) == [(20, 50)]
    with pytest.raises(QueueError, match="capture_dbs7 does not publish"):
        queue.core.capture_again("capture_dbs7", Scn(10))


def test_recapture_above_the_queues_position_begins_at_that_position(tmp_path: Path) -> None:
    """Taken literally, the request would skip the changes in between."""
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20]))
    queue.core.capture_again("capture_dbs1", Scn(99))
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 20
    queue.send(publisher, insert_batch([30], previous=20))
    assert queue.spans(subscriber)[-1] == (20, 30)


def test_late_save_of_positions_does_not_overwrite_those_of_an_edit(tmp_path: Path) -> None:
    """The service saves outside of its lock, so an edit can come in between."""
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    first = queue.subscriber(needed=10)
    queue.core.acknowledge(first, "dbs1", 10)
    queue.clock.advance(2.0)
    positions = queue.core.positions_to_save()
    assert positions == {"dbs1": {"apply_a": 10, "to_b": 0}}
    queue.adopt("apply_a", "to_c")
    edited = PositionsFile(tmp_path / "q").load()
    queue.core.save_positions(positions)
    queue.core.positions_saved(positions, None)
    assert PositionsFile(tmp_path / "q").load() == edited == {"dbs1": {"apply_a": 10, "to_c": 0}}
    queue.save()
    assert PositionsFile(tmp_path / "q").load() == edited


def test_edit_waits_for_positions_that_are_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write the same temporary file: at the same time, one would move the other's file away, or both write into
    it.
    """
    queue = Queue(tmp_path)
    queue.core.acknowledge(queue.subscriber(needed=10), "dbs1", 10)
    queue.clock.advance(2.0)
    positions = queue.core.positions_to_save()
    assert positions is not None
    begun, go_on = threading.Event(), threading.Event()
    saved: list[str] = []

    def slow(path: Path, text: str) -> None:
        assert not (begun.is_set() and not go_on.is_set()), "two writers at once"
        begun.set()
        assert go_on.wait(60)
        replace_file(path, text)
        saved.append(text)

    monkeypatch.setattr("actors.staging.positions.replace_file", slow)
    with ThreadPoolExecutor(2) as threads:
        saving = threads.submit(queue.core.save_positions, positions)
        assert begun.wait(60)
        editing = threads.submit(queue.adopt, "apply_a", "to_b")
        while not editing.running():
            time.sleep(0.001)
        go_on.set()
        saving.result(60)
        editing.result(60)
    assert len(saved) == 2
    assert PositionsFile(tmp_path / "q").load() == {"dbs1": {"apply_a": 10, "to_b": 10}}
