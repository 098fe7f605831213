"""The buffered queue by hand: order, bounds, flow control, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.staging import queue as queue_module
from actors.staging import spill as spill_module
from actors.staging.positions import PositionsFile
from actors.staging.queue import ENTRY_BYTES, QueueCore
from actors.staging.queue_sessions import PublisherSession, SubscriberSession
from protos import codec
from protos.staging import Delivery
from streams.clock import VirtualClock
from streams.errors import LogGone, ProtocolError, QueueError
from streams.lcr_batch import LcrBatch
from tests.support.lcr_batches import insert_batch
from tests.support.staging import Subscriber, one_way

CREDIT = 1 << 30


class Queue:
    """A queue with its clock, and what tests do to it all the time."""

    def __init__(self, folder: Path, *, subscribers: tuple[str, ...] = ("apply_a",), **bounds: int) -> None:
        self.folder, self.clock = folder, VirtualClock()
        self.topology = one_way(folder, subscribers=subscribers, **bounds)
        self.incarnations = 0
        self.restart()

    def restart(self, *subscribers: str) -> None:
        """Start the queue again, with these subscribers when any is named."""
        if subscribers:
            self.topology = one_way(self.folder, subscribers=subscribers)
        self.core = QueueCore(self.topology, "q_dbs1", self.folder / "q", self.clock)

    def adopt(self, *subscribers: str) -> None:
        """Go on with these subscribers."""
        self.topology = one_way(self.folder, subscribers=subscribers)
        self.core.adopt(self.topology)

    def publisher(self) -> PublisherSession:
        self.incarnations += 1
        session = self.core.open_publisher("capture_dbs1", f"{self.incarnations:03d}", "dbs1")
        self.core.resume(session)
        return session

    def subscriber(self, name: str = "apply_a", *, needed: int = 0, credit: int = CREDIT) -> SubscriberSession:
        self.incarnations += 1
        return self.core.open_subscriber(name, f"{self.incarnations:03d}", {"dbs1": needed}, credit)

    def send(self, session: PublisherSession, batch: LcrBatch) -> int:
        data = codec.encode(batch)
        self.core.enqueue(session, codec.header_of(batch), data)
        return len(data)

    def taken(self, session: SubscriberSession) -> list[Delivery]:
        found = []
        while (delivery := self.core.dequeue(session)) is not None:
            found.append(delivery)
        return found

    def save(self) -> None:
        self.clock.advance(queue_module.SAVE_PERIOD_S)
        positions = self.core.positions_to_save()
        if positions is not None:
            self.core.save_positions(positions)
            self.core.positions_saved(positions, None)

    def spans(self, session: SubscriberSession) -> list[tuple[int, int]]:
        return [(each.header.previous_scn, each.header.through_scn) for each in self.taken(session)]


def test_subscriber_gets_batches_in_order_and_byte_for_byte(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    batches = [insert_batch([10, 20]), insert_batch([30], previous=20)]
    for batch in batches:
        queue.send(publisher, batch)
    assert [each.data for each in queue.taken(subscriber)] == [codec.encode(batch) for batch in batches]
    assert queue.core.dequeue(subscriber) is None


def test_each_subscriber_has_a_pace_of_its_own(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, fast, slow = queue.publisher(), queue.subscriber(), queue.subscriber("to_b", credit=1)
    for k in range(5):
        queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k))
    assert len(queue.taken(fast)) == 5
    assert queue.spans(slow) == [(0, 10)]
    queue.core.grant(slow, CREDIT)
    assert queue.spans(slow) == [(10, 20), (20, 30), (30, 40), (40, 50)]


def test_batch_leaves_only_when_every_subscriber_has_it_durably(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, one, other = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    queue.taken(one), queue.taken(other)
    queue.core.acknowledge(one, "dbs1", 10)
    assert queue.core.status()["batches"] == 1
    queue.core.acknowledge(other, "dbs1", 9)
    assert queue.core.status()["batches"] == 1
    queue.core.acknowledge(other, "dbs1", 10)
    status = queue.core.status()
    assert (status["batches"], status["memory_bytes"], status["num_msgs"], status["cnum_msgs"]) == (0, 0, 0, 1)


def test_publisher_is_told_durable_only_after_the_position_is_on_disk(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    queue.taken(subscriber)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.durable_scn == 0
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.durable_scn == 10
    assert queue.core.publisher_news(publisher) is None


def test_restarted_queue_asks_for_everything_after_the_lowest_acknowledged_position(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, one, other = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10, 20, 30]))
    queue.core.acknowledge(one, "dbs1", 30)
    queue.core.acknowledge(other, "dbs1", 20)
    queue.save()
    queue.core.acknowledge(other, "dbs1", 30)  # not saved any more
    queue.restart()
    publisher = queue.core.open_publisher("capture_dbs1", "9", "dbs1")
    assert queue.core.resume(publisher)[0] == 20


def test_close_saves_the_last_positions(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.core.acknowledge(queue.subscriber(), "dbs1", 70)
    queue.core.close()
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 70


def test_positions_are_saved_at_most_once_a_period(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    subscriber = queue.subscriber()
    queue.core.acknowledge(subscriber, "dbs1", 10)
    queue.save()
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.positions_to_save() is None
    queue.clock.advance(queue_module.SAVE_PERIOD_S)
    assert queue.core.positions_to_save() == {"dbs1": {"apply_a": 20}}


def test_positions_that_cannot_be_saved_are_not_told_and_the_problem_is_shown(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.core.publisher_news(publisher)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    queue.clock.advance(1)
    positions = queue.core.positions_to_save()
    assert positions is not None
    queue.core.positions_saved(positions, OSError(28, "No space left on device"))
    assert queue.core.publisher_news(publisher) is None
    assert "No space" in queue.core.status()["problem"]
    queue.save()
    assert queue.core.status()["problem"] == ""


def test_gap_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with pytest.raises(ProtocolError, match="missing in between"):
        queue.send(queue.publisher(), insert_batch([20], previous=10))


def test_batch_sent_again_is_taken_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    sent = queue.send(publisher, insert_batch([10, 20])) + queue.send(publisher, insert_batch([10, 20]))
    assert queue.spans(subscriber) == [(0, 20)]
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.accepted_bytes == sent


def test_batch_that_overlaps_is_cut_to_what_is_new(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20]))
    queue.send(publisher, insert_batch([10, 20, 30]))
    deliveries = queue.taken(subscriber)
    assert [list(codec.decode(each.data).transactions.commit_scn) for each in deliveries] == [[10, 20], [30]]
    assert deliveries[1].header.previous_scn == 20


def test_transaction_sent_again_replaces_its_open_beginning(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    model = Subscriber()
    queue.send(publisher, insert_batch([10], is_open=True))
    queue.send(publisher, insert_batch([10], is_open=True, continues=True, first_position=1))
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    publisher = queue.publisher()  # began again, and cuts it differently
    queue.send(publisher, insert_batch([10], is_open=True, rows_each=2))
    queue.send(publisher, insert_batch([10], continues=True, first_position=2))
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    assert model.rows_of == {10: 3}
    assert queue.core.status()["num_msgs"] == 3


def test_continuation_without_its_beginning_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.send(queue.publisher(), insert_batch([10], is_open=True))
    with pytest.raises(ProtocolError, match="has not begun on this stream"):
        queue.send(queue.publisher(), insert_batch([10], continues=True, first_position=1))


def test_open_transaction_stays_until_its_end_is_durable(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    queue.send(publisher, insert_batch([20], previous=10, is_open=True))
    queue.core.acknowledge(subscriber, "dbs1", 10)
    assert queue.core.status()["batches"] == 1
    queue.send(publisher, insert_batch([20], previous=10, continues=True, first_position=1))
    queue.core.acknowledge(subscriber, "dbs1", 19)
    assert queue.core.status()["batches"] == 2
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.status()["batches"] == 0


def test_progress_marks_take_no_room_and_arrive_as_one(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    for scn in range(10, 1000, 10):
        queue.send(publisher, insert_batch([], previous=scn, through=scn + 10))
    queue.send(publisher, insert_batch([1010], previous=1000))
    assert queue.core.status()["batches"] == 2
    assert queue.spans(subscriber) == [(0, 10), (10, 1000), (1000, 1010)]


def test_mark_arrives_also_when_nothing_follows(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([], through=50))
    assert queue.spans(subscriber) == [(0, 50)]
    assert queue.spans(subscriber) == []


def test_subscriber_in_the_middle_of_a_batch_gets_the_rest_of_it(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.send(queue.publisher(), insert_batch([10, 20, 30]))
    delivery = queue.core.dequeue(queue.subscriber(needed=20))
    assert delivery is not None
    assert (delivery.header.previous_scn, delivery.header.through_scn) == (20, 30)
    assert list(codec.decode(delivery.data).transactions.commit_scn) == [30]


def test_subscriber_ahead_of_the_queue_gets_only_what_it_lacks(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber(needed=45)
    queue.send(publisher, insert_batch([10, 20, 30]))
    assert queue.spans(subscriber) == []
    # A large transaction below its position, then one above it, cut differently than when it was applied.
    queue.send(publisher, insert_batch([40], previous=30, is_open=True))
    queue.send(publisher, insert_batch([40], previous=30, continues=True, first_position=1))
    queue.send(publisher, insert_batch([50], previous=40, is_open=True))
    assert queue.spans(subscriber) == [(45, 45)]
    queue.send(publisher, insert_batch([50], previous=40, continues=True, first_position=1))
    assert queue.spans(subscriber) == [(45, 50)]


def test_what_every_subscriber_has_already_is_not_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    subscriber = queue.subscriber(needed=45)
    queue.core.acknowledge(subscriber, "dbs1", 45)
    queue.save()
    queue.core.close_subscriber(subscriber)
    publisher = queue.publisher()
    assert queue.core.resume(publisher)[0] == 45
    # A publisher that knew nothing of it, and a subscriber that acknowledges later.
    queue = Queue(tmp_path / "other")
    publisher = queue.publisher()
    queue.core.acknowledge(queue.subscriber(needed=45), "dbs1", 45)
    queue.send(publisher, insert_batch([10, 20, 30]))
    assert queue.core.status()["batches"] == 0
    queue.send(publisher, insert_batch([50], previous=30, is_open=True))
    queue.save()
    assert queue.core.resume(queue.publisher())[0] == 45


def test_subscriber_that_needs_what_is_gone_makes_the_publisher_begin_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, one, other = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10, 20]))
    for session in (one, other):
        queue.taken(session)
        queue.core.acknowledge(session, "dbs1", 20)
    queue.save()
    queue.core.publisher_news(publisher)
    one = queue.subscriber(needed=10)  # restored from a backup
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert (news.rewind_scn, news.through_scn) == (10, 10)
    # What was on its way when the publisher was told is passed over.
    queue.send(publisher, insert_batch([30], previous=20))
    queue.send(publisher, insert_batch([20, 30], previous=10))
    assert queue.spans(one) == [(10, 30)]
    assert queue.spans(other) == [(20, 30)]
    # Less is durable now than was told before; a restarted queue must know.
    queue.save()
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 10


def test_publisher_has_no_credit_when_memory_and_disk_are_full(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=20_000)
    publisher, subscriber = queue.publisher(), queue.subscriber(credit=0)
    queue.core.publisher_news(publisher)
    sent = 0
    for k in range(100):
        if queue.core.state != "ENABLED":
            break
        sent += queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k, value=bytes(3000)))
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes == 0
    assert queue.core.state == "PAUSED FOR FLOW CONTROL"
    assert 30_000 < sent < 45_000
    queue.core.grant(subscriber, CREDIT)
    queue.taken(subscriber)
    queue.core.acknowledge(subscriber, "dbs1", 80)
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes > 0
    assert queue.core.state == "ENABLED"


def test_spilled_batches_come_back_byte_for_byte_and_their_files_go(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=1 << 20)
    publisher, subscriber = queue.publisher(), queue.subscriber(credit=0)
    batches = [insert_batch([10 * k + 10], previous=10 * k, value=bytes([k]) * 3000) for k in range(50)]
    for batch in batches:
        queue.send(publisher, batch)
    status = queue.core.status()
    assert status["memory_bytes"] <= 50 * ENTRY_BYTES + 20_000
    assert status["spill_msgs"] > 30
    assert list((tmp_path / "q" / "spill").iterdir())
    queue.core.grant(subscriber, CREDIT)
    assert [each.data for each in queue.taken(subscriber)] == [codec.encode(batch) for batch in batches]
    queue.core.acknowledge(subscriber, "dbs1", 500)
    status = queue.core.status()
    assert (status["spill_msgs"], status["spill_bytes"], status["memory_bytes"]) == (0, 0, 0)
    assert status["cspill_msgs"] > 30
    assert list((tmp_path / "q" / "spill").iterdir()) == []


def test_what_a_fast_subscriber_needs_next_stays_in_memory(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"), memory=400_000, spill=1 << 22)
    publisher, fast = queue.publisher(), queue.subscriber()
    queue.subscriber("to_b", credit=0)
    read_back = 0
    read = queue.core._spill.read

    def counted(place: spill_module.SpillPlace) -> bytes:
        nonlocal read_back
        read_back += 1
        return read(place)

    queue.core._spill.read = counted  # type: ignore[method-assign]
    for k in range(200):
        queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k, value=bytes(8000)))
        assert queue.spans(fast) == [(10 * k, 10 * k + 10)]
    assert queue.core.status()["spill_msgs"] > 50
    assert read_back == 0


def test_tiny_batches_on_disk_are_bounded_by_the_memory_they_need(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=100 * ENTRY_BYTES, spill=1 << 22)
    publisher = queue.publisher()
    sent = 0
    while queue.core.state == "ENABLED":
        queue.send(publisher, insert_batch([10 * sent + 10], previous=10 * sent))
        sent += 1
    assert sent == 100


def test_full_disk_pauses_the_publisher_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=1 << 20)
    publisher, subscriber = queue.publisher(), queue.subscriber(credit=0)

    def full(name: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spill_module, "failpoint", full)
        for k in range(6):
            queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k, value=bytes(5000)))
        news = queue.core.publisher_news(publisher)
        assert news is not None
        assert news.credit_bytes == 0
        assert "No space" in queue.core.status()["problem"]
        assert queue.core.state == "PAUSED FOR FLOW CONTROL"
    queue.clock.advance(queue_module.SPILL_RETRY_S)
    queue.core.housekeeping()
    assert queue.core.status()["problem"] == ""
    assert queue.core.status()["spill_msgs"] > 0
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes > 0
    queue.core.grant(subscriber, CREDIT)
    assert len(queue.taken(subscriber)) == 6


def test_damaged_spill_file_makes_the_publisher_send_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=5_000, spill=1 << 20)
    publisher, subscriber = queue.publisher(), queue.subscriber(credit=0)
    batches = [insert_batch([10 * k + 10], previous=10 * k, value=bytes(3000)) for k in range(5)]
    for batch in batches:
        queue.send(publisher, batch)
    for file in (tmp_path / "q" / "spill").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    queue.core.grant(subscriber, CREDIT)
    model = Subscriber()
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 0
    assert "damaged" in queue.core.status()["problem"]
    for batch in batches:
        queue.send(publisher, batch)
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    assert model.applied == [10, 20, 30, 40, 50]


def test_left_over_spill_files_are_removed_at_start(tmp_path: Path) -> None:
    folder = tmp_path / "q" / "spill"
    folder.mkdir(parents=True)
    (folder / "00000007.spill").write_bytes(b"old")
    Queue(tmp_path)
    assert list(folder.iterdir()) == []


def test_transaction_larger_than_the_queue_passes_through(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=20_000)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    model = Subscriber()
    for part in range(100):
        queue.core.publisher_news(publisher)
        assert queue.core.state == "ENABLED"
        queue.send(publisher, insert_batch(
            [10], is_open=part < 99, continues=part > 0, first_position=part, value=bytes(3000)
        ))
        for each in queue.taken(subscriber):
            model.take(each.header, each.data)
    assert model.rows_of == {10: 100}
    assert queue.core.status()["given_up_msgs"] > 50
    # Whoever comes back before it is durable needs it again from the source.
    again = queue.subscriber(needed=0)
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 0
    assert queue.taken(again) == []


def test_subscriber_ahead_of_the_queue_never_makes_it_jump_over_what_others_need(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=20_000)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    for part in range(50):  # an open transaction, its beginning given up
        queue.send(publisher, insert_batch(
            [10], is_open=True, continues=part > 0, first_position=part, value=bytes(3000)
        ))
        queue.taken(subscriber)
        queue.core.publisher_news(publisher)
    queue.subscriber(needed=500)
    assert queue.core.status()["given_up_msgs"] > 0
    assert queue.core.status()["sources"]["dbs1"]["position_scn"] == 0


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
    assert queue.core.status()["sources"]["dbs1"]["publisher"] == "capture_dbs1"


def test_older_incarnation_is_refused_while_the_newer_one_is_connected(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    newer = queue.core.open_publisher("capture_dbs1", "2", "dbs1")
    with pytest.raises(QueueError, match="newer incarnation"):
        queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    queue.core.close_publisher(newer)
    queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    session = queue.core.open_subscriber("apply_a", "2", {"dbs1": 0}, 1)
    with pytest.raises(QueueError, match="newer incarnation"):
        queue.core.open_subscriber("apply_a", "1", {"dbs1": 0}, 1)
    assert session.ended is None


def test_strangers_are_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with pytest.raises(QueueError, match="takes no LCRs of dbs9"):
        queue.core.open_publisher("capture_dbs1", "1", "dbs9")
    with pytest.raises(QueueError, match="nobody is no subscriber"):
        queue.core.open_subscriber("nobody", "1", {"dbs1": 0}, 1)
    with pytest.raises(QueueError, match="no source at all"):
        queue.core.open_subscriber("apply_a", "1", {}, 1)
    queue.publisher()
    with pytest.raises(QueueError, match="has a publisher of dbs1 already"):
        queue.core.open_publisher("someone_else", "9", "dbs1")
    with pytest.raises(ProtocolError, match="LCRs of dbs7 on a stream of dbs1"):
        queue.send(queue.publisher(), insert_batch([10], source="dbs7"))
    with pytest.raises(ProtocolError, match="does not take"):
        queue.core.acknowledge(queue.subscriber(), "dbs7", 1)


def grown(folder: Path) -> Queue:
    """A queue that did without `to_c` until now: apply_a has acknowledged 60, to_b 50."""
    queue = Queue(folder, subscribers=("apply_a", "to_b"))
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([10, 20, 30, 40, 50, 60]))
    queue.core.acknowledge(queue.subscriber(), "dbs1", 60)
    queue.core.acknowledge(queue.subscriber("to_b"), "dbs1", 50)
    queue.save()
    queue.restart("apply_a", "to_b", "to_c")
    return queue


def saved(queue: Queue) -> dict[str, int]:
    return PositionsFile(queue.folder / "q").load()["dbs1"]


def test_new_subscriber_is_put_down_where_the_furthest_one_is_and_that_is_on_disk_at_once(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    assert saved(queue) == {"apply_a": 60, "to_b": 50, "to_c": 60}
    publisher = queue.core.open_publisher("capture_dbs1", "9", "dbs1")
    assert queue.core.resume(publisher)[0] == 50  # as without it
    new = queue.subscriber("to_c")
    # Cut otherwise than before, so that a batch reaches over where it begins.
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
    new = queue.subscriber("to_c")
    queue.core.acknowledge(new, "dbs1", 80)
    queue.save()
    assert queue.core.resume(queue.publisher())[0] == 80


def test_new_subscriber_stays_where_it_was_put_down_however_far_the_others_come(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    queue.core.acknowledge(queue.subscriber("apply_a", needed=60), "dbs1", 600)
    queue.core.acknowledge(queue.subscriber("to_b", needed=60), "dbs1", 600)
    queue.save()
    queue.restart()
    queue.subscriber("to_c")
    assert saved(queue) == {"apply_a": 600, "to_b": 600, "to_c": 60}


def test_subscriber_that_is_gone_does_not_come_back_to_a_position_of_long_ago(tmp_path: Path) -> None:
    queue = grown(tmp_path)
    queue.restart("apply_a")
    assert saved(queue) == {"apply_a": 60}
    queue.core.acknowledge(queue.subscriber(needed=60), "dbs1", 900)
    queue.save()
    queue.restart("apply_a", "to_b")
    assert saved(queue) == {"apply_a": 900, "to_b": 900}


def test_queue_whose_subscribers_are_all_new_begins_where_its_publisher_does(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher = queue.core.open_publisher("capture_dbs1", "1", "dbs1")
    assert queue.core.resume(publisher)[0] == 0
    early = queue.subscriber()
    assert queue.taken(early) == []
    queue.send(publisher, insert_batch([], through=400))
    queue.send(publisher, insert_batch([410, 420], previous=400))
    assert queue.spans(early) == [(0, 400), (400, 420)]
    assert queue.spans(queue.subscriber("to_b")) == [(0, 400), (400, 420)]
    # One has begun, the other has not: it still needs everything the publisher has.
    queue.core.acknowledge(early, "dbs1", 420)
    queue.save()
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 0


def test_subscriber_that_needs_what_is_below_its_publishers_beginning_never_misses_it_in_silence(tmp_path: Path) -> None:
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
    # The same when it connects later.
    queue = Queue(tmp_path / "later")
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([], through=400))
    queue.core.publisher_news(publisher)
    assert queue.taken(queue.subscriber(needed=300)) == []
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 300


def test_batches_nobody_wants_leave_at_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=())
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([10]))
    assert queue.core.status()["batches"] == 0
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.durable_scn == 10


def test_damaged_positions_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "acknowledged.json").write_text("{")
    with pytest.raises(QueueError, match="damaged") as caught:
        Queue(tmp_path)
    assert "remove the file" in caught.value.hint


def test_statistics_speak_of_row_lcrs(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20], rows_each=3))
    queue.clock.advance(2)
    queue.send(publisher, insert_batch([30], previous=20, rows_each=4))
    queue.core.dequeue(subscriber)
    status = queue.core.status()
    assert (status["num_msgs"], status["cnum_msgs"], status["batches"]) == (10, 10, 2)
    assert status["avg_msg_age_s"] == 1.0
    one, other = status["subscribers"]
    assert (other["subscriber"], other["num_msgs"], other["connected"]) == ("apply_a", 4, True)
    assert (one["subscriber"], one["num_msgs"], one["connected"]) == ("to_b", 10, False)
    assert other["total_dequeued_msg"] == 6


def test_subscriber_added_while_the_queue_runs_begins_where_the_furthest_is_and_disturbs_nobody(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, first, second = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    queue.send(publisher, insert_batch([20], previous=10))
    assert len(queue.taken(first)) == len(queue.taken(second)) == 2
    queue.core.acknowledge(first, "dbs1", 10)
    queue.adopt("apply_a", "to_b", "to_c")
    assert PositionsFile(tmp_path / "q").load() == {"dbs1": {"apply_a": 10, "to_b": 0, "to_c": 10}}

    # The streams of the others go on.
    assert (publisher.ended, first.ended, second.ended) == (None, None, None)
    queue.send(publisher, insert_batch([30], previous=20))
    assert [each.header.through_scn for each in queue.taken(first)] == [30]
    assert [each.header.through_scn for each in queue.taken(second)] == [30]
    third = queue.subscriber("to_c")
    assert [(each.header.previous_scn, each.header.through_scn) for each in queue.taken(third)] == [(0, 10), (10, 20), (20, 30)]

    # Nothing after 10 is DURABLE without the new one.
    for session in (first, second):
        queue.core.acknowledge(session, "dbs1", 30)
    assert queue.core.status()["sources"]["dbs1"]["durable_scn"] == 0  # not yet saved
    queue.clock.advance(2.0)
    positions = queue.core.positions_to_save()
    assert positions is not None
    queue.core.save_positions(positions)
    queue.core.positions_saved(positions, None)
    assert queue.core.status()["sources"]["dbs1"]["durable_scn"] == 10


def test_subscriber_removed_while_the_queue_runs_is_told_and_holds_nothing(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, first, second = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    assert len(queue.taken(first)) == 1
    queue.core.acknowledge(first, "dbs1", 10)
    assert queue.core.status()["batches"] == 1
    queue.adopt("apply_a")
    assert "no subscriber of queue q_dbs1 any more" in str(second.ended)
    assert queue.core.dequeue(second) is None
    queue.core.close_subscriber(second)
    assert (queue.core.status()["batches"], queue.core.status()["memory_bytes"]) == (0, 0)
    with pytest.raises(QueueError, match="no subscriber"):
        queue.subscriber("to_b")
    # It comes back as a new one.
    queue.adopt("apply_a", "to_b")
    assert [each.header.through_scn for each in queue.taken(queue.subscriber("to_b"))] == [10]


def test_subscribers_that_are_all_new_begin_where_those_before_them_were(tmp_path: Path) -> None:
    """The redo before that may be gone: DURABLE was told."""
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


def test_queue_goes_on_as_before_when_the_positions_of_new_subscribers_cannot_be_saved(tmp_path: Path, monkeypatch) -> None:
    queue = Queue(tmp_path)
    publisher, first = queue.publisher(), queue.subscriber()
    with monkeypatch.context() as broken:
        broken.setattr(PositionsFile, "save", full)
        with pytest.raises(OSError, match="full"):
            queue.adopt("apply_a", "to_c")
    queue.send(publisher, insert_batch([10]))
    assert [each.header.through_scn for each in queue.taken(first)] == [10]
    assert [each["subscriber"] for each in queue.core.status()["subscribers"]] == ["apply_a"]


def full(*_: object) -> None:
    raise OSError(28, "full")


# --------------------------------------------------------------------------- redo that is gone


def restored_below_redo(folder: Path) -> tuple[Queue, PublisherSession, SubscriberSession, SubscriberSession]:
    """`apply_b` came back from a backup and needs everything after 10; the publisher has it after 30 only."""
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


def test_subscriber_that_needs_purged_redo_is_refused_alone_and_told_which(tmp_path: Path) -> None:
    queue, publisher, one, two = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    assert one.ended is None
    assert isinstance(two.ended, LogGone)
    assert "SCN 0/0000000A" in two.ended.message
    assert "SCN 0/0000001E" in two.ended.message
    assert "copied again" in two.ended.hint
    assert queue.core.publisher_news(publisher).rewind_scn == 40, "where those stand that go on"
    queue.send(publisher, insert_batch([50], previous=40))
    assert queue.spans(one) == [(40, 50)]
    with pytest.raises(LogGone):
        queue.subscriber("apply_b", needed=10)


def test_nothing_is_held_for_a_refused_subscriber_and_the_others_move_on(tmp_path: Path) -> None:
    queue, publisher, one, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([50], previous=40))
    queue.taken(one)
    queue.core.acknowledge(one, "dbs1", 50)
    queue.save()
    assert queue.core.publisher_news(publisher).durable_scn == 50
    assert queue.core.status()["batches"] == 0


def test_refused_subscriber_that_begins_anew_gets_everything_after_its_beginning(tmp_path: Path) -> None:
    queue, publisher, one, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    queue.send(publisher, insert_batch([50], previous=40))
    queue.taken(one)
    queue.core.acknowledge(one, "dbs1", 50)
    anew = queue.subscriber("apply_b", needed=0)
    queue.send(publisher, insert_batch([60], previous=50))
    assert queue.spans(anew) == [(0, 50), (50, 60)]
    queue.core.acknowledge(one, "dbs1", 60)
    queue.save()
    news = queue.core.publisher_news(publisher)
    assert news.durable_scn is None or news.durable_scn <= 50, "it is held for the one that began anew"


def test_refused_subscriber_that_was_restored_from_a_later_backup_goes_on(tmp_path: Path) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    queue.core.gone(publisher, 30)
    queue.core.publisher_news(publisher)
    later = queue.subscriber("apply_b", needed=35)
    assert queue.core.publisher_news(publisher).rewind_scn == 35
    queue.send(publisher, insert_batch([40, 50], previous=35))
    assert queue.spans(later) == [(35, 50)]


def test_destination_that_lost_commits_is_shown_by_its_queue(tmp_path: Path) -> None:
    queue, publisher, _, _ = restored_below_redo(tmp_path)
    shown = {each["subscriber"]: each for each in queue.core.status()["subscribers"]}
    assert shown["apply_a"]["lost"] == []
    assert shown["apply_b"]["lost"][:2] == [40, 10]
    queue.core.gone(publisher, 30)
    shown = {each["subscriber"]: each for each in queue.core.status()["subscribers"]}
    assert (shown["apply_a"]["gone_scn"], shown["apply_b"]["gone_scn"]) == (None, 30)


def test_stream_that_was_replaced_acknowledges_nothing_for_its_successor(tmp_path: Path) -> None:
    """The destination failed over and lost commits; what its driver of before had said of them arrives late."""
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
        (10, 20, 1), (20, 30, 1),
    ]


def test_stream_that_was_closed_adds_nothing_to_its_successors_transaction(tmp_path: Path) -> None:
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


def test_last_word_of_a_stream_that_was_closed_counts_until_there_is_another(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20]))
    queue.taken(subscriber)
    queue.core.close_subscriber(subscriber)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    assert queue.core.status()["subscribers"][0]["acknowledged_scn"] == 10
    queue.subscriber(needed=10)
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.status()["subscribers"][0]["acknowledged_scn"] == 10
