"""The buffered queue by hand: order, bounds, flow control, spilling, restarts.

Longer than 500 lines: all of it shares the queue that is driven by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.staging import spill as spill_module
from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.queue import BATCH_BYTES_MIN
from actors.staging.queue_space import ENTRY_BYTES, SPILL_RETRY_S, QueueSpace
from headrace.base.errors import ProtocolError, QueueError
from headrace.lcr.batch import LcrBatch
from protos import codec
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import CREDIT, Queue
from tests.support.wire.staging import Subscriber


def test_subscriber_gets_batches_in_order_and_byte_for_byte(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    batches = [insert_batch([10, 20]), insert_batch([30], previous=20)]
    for batch in batches:
        queue.send(publisher, batch)
    assert [each.data for each in queue.taken(subscriber)] == [codec.encode(batch) for batch in batches]
    assert queue.core.dequeue(subscriber) is None


def test_each_subscriber_has_its_own_pace(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, fast, slow = queue.publisher(), queue.subscriber(), queue.subscriber("to_b", credit=1)
    for k in range(5):
        queue.send(publisher, insert_batch([10 * k + 10], previous=10 * k))
    assert len(queue.taken(fast)) == 5
    assert queue.spans(slow) == [(0, 10)]
    queue.core.grant(slow, CREDIT)
    assert queue.spans(slow) == [(10, 20), (20, 30), (30, 40), (40, 50)]


def test_batch_is_released_only_when_every_subscriber_has_it_durably(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, one, other = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10]))
    queue.taken(one), queue.taken(other)
    queue.core.acknowledge(one, "dbs1", 10)
    assert queue.core.status().batches == 1
    queue.core.acknowledge(other, "dbs1", 9)
    assert queue.core.status().batches == 1
    queue.core.acknowledge(other, "dbs1", 10)
    status = queue.core.status()
    assert (status.batches, status.memory_bytes, status.rows, status.rows_total) == (0, 0, 0, 1)


def test_publisher_gets_durable_only_after_the_position_is_on_disk(tmp_path: Path) -> None:
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


def test_restarted_queue_asks_for_everything_above_its_lowest_position(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, one, other = queue.publisher(), queue.subscriber(), queue.subscriber("to_b")
    queue.send(publisher, insert_batch([10, 20, 30]))
    queue.core.acknowledge(one, "dbs1", 30)
    queue.core.acknowledge(other, "dbs1", 20)
    queue.save()
    queue.core.acknowledge(other, "dbs1", 30)  # never saved
    queue.restart()
    publisher = queue.core.open_publisher("capture_dbs1", "9", "dbs1")
    assert queue.core.resume(publisher)[0] == 20


def test_close_saves_the_last_positions(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.core.acknowledge(queue.subscriber(needed=70), "dbs1", 70)
    queue.core.close()
    queue.restart()
    assert queue.core.resume(queue.publisher())[0] == 70


def test_positions_are_saved_at_most_once_per_period(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    subscriber = queue.subscriber(needed=20)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    queue.save()
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.positions_to_save() is None
    queue.clock.advance(SAVE_PERIOD_S)
    assert queue.core.positions_to_save() == {"dbs1": {"apply_a": 20}}


def test_unsaved_positions_are_not_reported_and_the_problem_is_shown(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber(needed=10)
    queue.core.publisher_news(publisher)
    queue.core.acknowledge(subscriber, "dbs1", 10)
    queue.clock.advance(1)
    positions = queue.core.positions_to_save()
    assert positions is not None
    queue.core.positions_saved(positions, OSError(28, "No space left on device"))
    assert queue.core.publisher_news(publisher) is None
    assert "No space" in queue.core.status().problem
    queue.save()
    assert queue.core.status().problem == ""


def test_acknowledgement_of_changes_never_sent_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    queue.taken(subscriber)
    with pytest.raises(ProtocolError, match="up to SCN 0/0000000B, but was only sent those up to 0/0000000A"):
        queue.core.acknowledge(subscriber, "dbs1", 11)
    queue.save()
    assert queue.core.status().sources["dbs1"].durable_scn == 0
    queue.core.acknowledge(subscriber, "dbs1", 10)
    queue.save()
    assert queue.core.status().sources["dbs1"].durable_scn == 10


def test_propagation_may_acknowledge_more_than_a_restarted_queue_has(tmp_path: Path) -> None:
    """The apply process behind it has 11, and acknowledged that to a queue that had restarted as well."""
    queue = Queue(tmp_path, subscribers=("to_b",))
    queue.core.acknowledge(queue.subscriber("to_b", needed=5), "dbs1", 5)
    queue.save()
    queue.restart()
    publisher, propagation = queue.publisher(), queue.subscriber("to_b", needed=5)
    queue.core.acknowledge(propagation, "dbs1", 11)
    queue.save()
    assert queue.core.status().sources["dbs1"].durable_scn == 11
    queue.core.close_publisher(publisher)
    assert queue.core.resume(queue.publisher())[0] == 11


def test_gap_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with pytest.raises(ProtocolError, match="missing in between"):
        queue.send(queue.publisher(), insert_batch([20], previous=10))


def test_duplicate_batch_is_taken_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    sent = queue.send(publisher, insert_batch([10, 20])) + queue.send(publisher, insert_batch([10, 20]))
    assert queue.spans(subscriber) == [(0, 20)]
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.accepted_bytes == sent


def test_overlapping_batch_is_cut_to_its_new_part(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20]))
    queue.send(publisher, insert_batch([10, 20, 30]))
    deliveries = queue.taken(subscriber)
    assert [list(codec.decode(each.data).transactions.commit_scn) for each in deliveries] == [[10, 20], [30]]
    assert deliveries[1].header.previous_scn == 20


def test_retransmitted_transaction_replaces_its_open_beginning(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    model = Subscriber()
    queue.send(publisher, insert_batch([10], is_open=True))
    queue.send(publisher, insert_batch([10], is_open=True, continues=True, first_position=1))
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    publisher = queue.publisher()  # restarted, and cuts the transaction differently
    queue.send(publisher, insert_batch([10], is_open=True, rows_each=2))
    queue.send(publisher, insert_batch([10], continues=True, first_position=2))
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    assert model.rows_of == {10: 3}
    assert queue.core.status().rows == 3


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
    assert queue.core.status().batches == 1
    queue.send(publisher, insert_batch([20], previous=10, continues=True, first_position=1))
    queue.core.acknowledge(subscriber, "dbs1", 19)
    assert queue.core.status().batches == 2
    queue.core.acknowledge(subscriber, "dbs1", 20)
    assert queue.core.status().batches == 0


def test_progress_marks_take_no_room_and_arrive_as_one(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10]))
    for scn in range(10, 1000, 10):
        queue.send(publisher, insert_batch([], previous=scn, through=scn + 10))
    queue.send(publisher, insert_batch([1010], previous=1000))
    assert queue.core.status().batches == 2
    assert queue.spans(subscriber) == [(0, 10), (10, 1000), (1000, 1010)]


def test_progress_mark_arrives_when_nothing_follows(tmp_path: Path) -> None:
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
    # A large transaction below its position, then one above it, cut differently than when the subscriber applied it.
    queue.send(publisher, insert_batch([40], previous=30, is_open=True))
    queue.send(publisher, insert_batch([40], previous=30, continues=True, first_position=1))
    queue.send(publisher, insert_batch([50], previous=40, is_open=True))
    assert queue.spans(subscriber) == [(45, 45)]
    queue.send(publisher, insert_batch([50], previous=40, continues=True, first_position=1))
    assert queue.spans(subscriber) == [(45, 50)]


def test_changes_that_every_subscriber_has_are_neither_kept_nor_asked_for(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    subscriber = queue.subscriber(needed=45)
    queue.core.acknowledge(subscriber, "dbs1", 45)
    queue.save()
    queue.core.close_subscriber(subscriber)
    publisher = queue.publisher()
    assert queue.core.resume(publisher)[0] == 45
    # A publisher that does not know the position, and a subscriber that acknowledges later.
    queue = Queue(tmp_path / "other")
    publisher = queue.publisher()
    queue.core.acknowledge(queue.subscriber(needed=45), "dbs1", 45)
    queue.send(publisher, insert_batch([10, 20, 30]))
    assert queue.core.status().batches == 0
    queue.send(publisher, insert_batch([50], previous=30, is_open=True))
    queue.save()
    assert queue.core.resume(queue.publisher())[0] == 45


def test_subscriber_that_needs_released_changes_rewinds_the_publisher(tmp_path: Path) -> None:
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
    # Batches already in flight at the rewind are ignored.
    queue.send(publisher, insert_batch([30], previous=20))
    queue.send(publisher, insert_batch([20, 30], previous=10))
    assert queue.spans(one) == [(10, 30)]
    assert queue.spans(other) == [(20, 30)]
    # Less is durable now than was reported before, and a restarted queue must know it.
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


def test_spilled_batches_return_byte_for_byte_and_their_files_are_removed(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=20_000, spill=1 << 20)
    publisher, subscriber = queue.publisher(), queue.subscriber(credit=0)
    batches = [insert_batch([10 * k + 10], previous=10 * k, value=bytes([k]) * 3000) for k in range(50)]
    for batch in batches:
        queue.send(publisher, batch)
    status = queue.core.status()
    assert status.memory_bytes <= 50 * ENTRY_BYTES + 20_000
    assert status.spilled_rows > 30
    assert list((tmp_path / "q" / "spill").iterdir())
    queue.core.grant(subscriber, CREDIT)
    assert [each.data for each in queue.taken(subscriber)] == [codec.encode(batch) for batch in batches]
    queue.core.acknowledge(subscriber, "dbs1", 500)
    status = queue.core.status()
    assert (status.spilled_rows, status.spill_bytes, status.memory_bytes) == (0, 0, 0)
    assert status.spilled_rows_total > 30
    assert list((tmp_path / "q" / "spill").iterdir()) == []


def test_batches_that_a_fast_subscriber_needs_next_stay_in_memory(tmp_path: Path) -> None:
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
    assert queue.core.status().spilled_rows > 50
    assert read_back == 0


def test_memory_bounds_the_number_of_tiny_batches_on_disk(tmp_path: Path) -> None:
    queue = Queue(tmp_path, memory=100 * ENTRY_BYTES, spill=1 << 22)
    publisher = queue.publisher()
    sent = 0
    while queue.core.state == "ENABLED":
        queue.send(publisher, insert_batch([10 * sent + 10], previous=10 * sent))
        sent += 1
    assert sent == 100


@pytest.mark.parametrize("spill", [0, 1 << 22])
def test_publisher_of_tiny_batches_within_its_credit_stays_within_memory(tmp_path: Path, spill: int) -> None:
    """Credit counts bytes of batches, and an entry costs more memory than a tiny batch has bytes."""
    memory = 400 * ENTRY_BYTES
    queue = Queue(tmp_path, memory=memory, spill=spill)
    publisher = queue.publisher()
    publisher.granted_bytes = 0
    sent = number = 0
    while (news := queue.core.publisher_news(publisher)) is not None and news.credit_bytes > 0:
        on_its_way: list[LcrBatch] = []
        size = 0
        while size < news.credit_bytes:
            number += 1
            on_its_way.append(insert_batch([10 * number], previous=10 * number - 10, value=b""))
            size += len(codec.encode(on_its_way[-1]))
        for batch in on_its_way:
            sent += queue.send(publisher, batch)
    assert queue.core.status().memory_bytes <= memory + ENTRY_BYTES + 200, "one batch may exceed the rest"
    assert sent > memory // 10


@pytest.mark.parametrize("free", [-1, 0, 1, 4, 5, 6, 1000])
def test_credit_is_given_while_any_space_is_free(tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a large transaction are dropped only when no space is free: with a few free bytes and no credit, nothing
    ever moved again.
    """
    queue = Queue(tmp_path)
    publisher = queue.publisher()
    monkeypatch.setattr(QueueSpace, "free_bytes", free)
    assert (queue.core.resume(publisher)[1] > 0) == (free > 0) == (queue.core.state == "ENABLED")


def test_smallest_batch_with_a_row_is_not_smaller_than_credit_assumes() -> None:
    assert len(codec.encode(insert_batch([1], value=b""))) >= BATCH_BYTES_MIN


def test_full_disk_pauses_the_publisher_until_space_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert "No space" in queue.core.status().problem
        assert queue.core.state == "PAUSED FOR FLOW CONTROL"
    queue.clock.advance(SPILL_RETRY_S)
    queue.core.housekeeping()
    assert queue.core.status().problem == ""
    assert queue.core.status().spilled_rows > 0
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.credit_bytes > 0
    queue.core.grant(subscriber, CREDIT)
    assert len(queue.taken(subscriber)) == 6


def test_damaged_spill_file_makes_the_publisher_retransmit(tmp_path: Path) -> None:
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
    assert "damaged" in queue.core.status().problem
    for batch in batches:
        queue.send(publisher, batch)
    for each in queue.taken(subscriber):
        model.take(each.header, each.data)
    assert model.applied == [10, 20, 30, 40, 50]


def test_stale_spill_files_are_removed_at_start(tmp_path: Path) -> None:
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
        queue.send(
            publisher, insert_batch([10], is_open=part < 99, continues=part > 0, first_position=part, value=bytes(3000))
        )
        for each in queue.taken(subscriber):
            model.take(each.header, each.data)
    assert model.rows_of == {10: 100}
    assert queue.core.status().given_up_rows_total > 50
    # A subscriber that reconnects before the transaction is durable needs it again from the source.
    again = queue.subscriber(needed=0)
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.rewind_scn == 0
    assert queue.taken(again) == []


def test_batches_without_subscribers_are_released_at_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=())
    publisher = queue.publisher()
    queue.send(publisher, insert_batch([10]))
    assert queue.core.status().batches == 0
    news = queue.core.publisher_news(publisher)
    assert news is not None
    assert news.durable_scn == 10


def test_damaged_positions_are_an_error_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "acknowledged.json").write_text("{")
    with pytest.raises(QueueError, match="damaged") as caught:
        Queue(tmp_path)
    assert "remove the file" in caught.value.hint


def test_statistics_count_row_lcrs(tmp_path: Path) -> None:
    queue = Queue(tmp_path, subscribers=("apply_a", "to_b"))
    publisher, subscriber = queue.publisher(), queue.subscriber()
    queue.send(publisher, insert_batch([10, 20], rows_each=3))
    queue.clock.advance(2)
    queue.send(publisher, insert_batch([30], previous=20, rows_each=4))
    queue.core.dequeue(subscriber)
    status = queue.core.status()
    assert (status.rows, status.rows_total, status.batches) == (10, 10, 2)
    assert status.average_age_s == 1.0
    one, other = status.subscribers
    assert (other.subscriber, other.rows, other.connected) == ("apply_a", 4, True)
    assert (one.subscriber, one.rows, one.connected) == ("to_b", 10, False)
    assert other.rows_total == 6
