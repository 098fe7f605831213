"""Transactions larger than memory and spill together: the queue drops parts, and a subscriber that lacks them gets the
transaction from its beginning.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from actors.staging.queue_log import SourceLog
from actors.staging.queue_sessions import REFUSED_HOLD_S
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import Delivery, header_of
from protos import codec
from tests.support.session.seeds import seeds
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.queues import Queue
from tests.support.wire.staging import History, Subscriber

PARTS = 60
VALUE = bytes(3000)


class Publisher:
    """Sends a history within its credit, and rewinds when asked to."""

    def __init__(self, queue: Queue, history: History) -> None:
        self.queue, self.history, self.cuts = queue, history, random.Random(1)
        self.session = queue.core.open_publisher("capture_dbs1", "001", "dbs1")
        begin, self.credit = queue.core.resume(self.session)
        self.rewinds = 0
        self._plan(begin)

    def _plan(self, scn: int) -> None:
        self.waiting = self.history.batches_after(scn, self.cuts)

    def step(self) -> bool:
        """Send a batch. Return False if none is left or the credit is used up."""
        news = self.queue.core.publisher_news(self.session)
        if news is not None:
            self.credit = news.credit_bytes
            if news.rewind_scn is not None:
                self.rewinds += 1
                self._plan(news.rewind_scn)
        if not self.waiting or self.credit <= 0:
            return False
        batch = self.waiting.pop(0)
        self.queue.core.enqueue(self.session, header_of(batch), codec.encode(batch))
        return True


class Reader:
    """A destination that checks what it gets, and commits all of it."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.queue, self.name, self.model = queue, name, Subscriber()
        self.connect()

    def connect(self) -> None:
        self.session = self.queue.subscriber(self.name, needed=self.model.crash())

    def leave(self) -> None:
        self.queue.core.close_subscriber(self.session)

    def take(self, most: int = 1000) -> int:
        taken = 0
        while taken < most and (delivery := self.queue.core.dequeue(self.session)) is not None:
            self.model.take(delivery.header, delivery.data)
            taken += 1
        self.model.commit()
        self.queue.core.acknowledge(self.session, "dbs1", Scn(self.model.durable))
        return taken


class World:
    """A queue of 40 kB with two subscribers, and a transaction of 180 kB."""

    def __init__(self, folder: Path) -> None:
        self.queue = Queue(folder, subscribers=("apply_a", "apply_b"), memory=20_000, spill=20_000)
        self.history = History(value=VALUE)
        self.publisher = Publisher(self.queue, self.history)
        self.a, self.b = Reader(self.queue, "apply_a"), Reader(self.queue, "apply_b")

    def run(self, *readers: Reader, until: int, steps: int = 2000) -> None:
        """Send and take until the given readers have everything up to an SCN."""
        for _ in range(steps):
            if self.publisher.step() + sum(reader.take(1) for reader in readers) == 0 and all(
                each.model.durable >= until for each in readers
            ):
                return
            if all(each.model.durable >= until for each in readers):
                return
        state = self.queue.core.status()
        raise AssertionError(
            f"{[each.model.durable for each in readers]} of {until}: {state.state}, {state.subscribers}"
        )


def test_absent_subscriber_does_not_block_a_transaction_larger_than_queue(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.history.commit()
    small = world.history.end
    world.publisher._plan(0)
    world.run(world.a, world.b, until=small)
    world.b.leave()
    world.history.commit()  # held for the absent subscriber, ahead of the large transaction
    large = world.history.commit(PARTS)
    world.publisher._plan(small)
    world.run(world.a, until=large)
    assert world.queue.core.status().given_up_rows_total > 0
    after = world.history.commit()
    world.publisher._plan(large)
    world.run(world.a, until=after)
    world.b.connect()
    world.run(world.a, world.b, until=after)
    assert world.a.model.applied == world.b.model.applied == [10, 20, 30, 40]
    assert world.publisher.rewinds == 1


def test_reconnecting_subscriber_does_not_rewind_the_others(tmp_path: Path) -> None:
    """Each reconnection made the publisher send the transaction from its beginning, to all subscribers."""
    world = World(tmp_path)
    large = world.history.commit(PARTS)
    world.publisher._plan(0)
    world.b.leave()
    returns = 0
    while world.a.model.durable < large:
        for _ in range(4):
            world.publisher.step()
            world.a.take(1)
        world.b.connect()
        world.b.take(1)
        world.b.leave()
        returns += 1
        assert returns < PARTS
    assert returns > 4
    assert world.publisher.rewinds == 0
    world.b.connect()
    world.run(world.a, world.b, until=large)
    assert world.a.model.applied == world.b.model.applied == [large]


def test_no_part_is_dropped_while_no_subscriber_is_connected(tmp_path: Path) -> None:
    """Every subscriber would need it again."""
    world = World(tmp_path)
    large = world.history.commit(PARTS)
    world.publisher._plan(0)
    world.a.leave()
    world.b.leave()
    while world.publisher.step():
        pass
    assert world.queue.core.status().given_up_rows_total == 0
    assert world.queue.core.state == "PAUSED FOR FLOW CONTROL"
    world.a.connect()
    world.run(world.a, until=large)


def test_slow_subscriber_sets_the_pace_and_loses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    large = world.history.commit(PARTS)
    world.publisher._plan(0)
    world.run(world.a, world.b, until=large)
    assert world.publisher.rewinds == 0
    assert world.a.model.applied == world.b.model.applied == [large]


def _begun(world: World) -> Scn:
    """Let both read three parts of a transaction that is larger than the queue; return where it ends."""
    large = world.history.commit(PARTS)
    world.publisher._plan(0)
    for _ in range(3):
        world.publisher.step()
        world.a.take(1)
        world.b.take(1)
    return Scn(large)


def _held_alone(world: World) -> list[float]:
    return [each.held_alone_s for each in world.queue.core.status().subscribers]


def test_status_shows_how_long_one_subscriber_blocks_a_large_transaction(
    tmp_path: Path,
) -> None:
    """The subscriber waits inside the transaction, for an ALTER for example: nobody can acknowledge the transaction,
    and without this time it would never be split off.
    """
    world = World(tmp_path)

    large = _begun(world)
    world.publisher.step()
    world.b.take(1)
    world.queue.clock.advance(100)
    assert _held_alone(world) == [0.0, 0.0], "the queue has room for more"
    while world.publisher.step():
        world.b.take()
    world.queue.clock.advance(1000)
    assert _held_alone(world) == [1100.0, 0.0]
    world.queue.adopt("apply_b")
    world.run(world.b, until=large)
    assert _held_alone(world) == [0.0]


def test_status_shows_the_subscriber_that_blocks_a_reconnected_one(tmp_path: Path) -> None:
    """The reconnected subscriber gets the transaction from its beginning after the first one has all of it. It waits,
    and has read no more than the first one.
    """
    world = World(tmp_path)

    large = _begun(world)
    while world.publisher.step():
        world.b.take()
    world.b.connect()
    assert world.b.take() == 0
    world.queue.clock.advance(1000)
    assert _held_alone(world) == [1000.0, 0.0]
    world.a.take()
    assert _held_alone(world) == [0.0, 0.0], "it has read everything available"
    while world.publisher.step():
        pass
    world.queue.clock.advance(10)
    assert _held_alone(world) == [10.0, 0.0]
    world.queue.adopt("apply_b")
    world.run(world.b, until=large)
    assert _held_alone(world) == [0.0]


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("comings and goings", test=2, soak=60))
def test_every_transaction_arrives_once_through_random_reconnections(tmp_path: Path, seed: int) -> None:
    """Random disconnections, transactions of all sizes, and a publisher that rewinds in between."""
    rng, world = random.Random(seed), World(tmp_path)
    here = {world.a: True, world.b: True}
    for _ in range(1500):
        deed = rng.random()
        if deed < 0.02 and len(world.history.rows) < 25:
            world.history.commit(rng.choice([1, 1, 2, 8, PARTS]))
            world.publisher._plan(world.queue.core.status().sources["dbs1"].position_scn)
        elif deed < 0.5:
            world.publisher.step()
        elif deed < 0.52:
            reader = rng.choice(list(here))
            (reader.leave if here[reader] else reader.connect)()
            here[reader] = not here[reader]
        else:
            reader = rng.choice(list(here))
            if here[reader]:
                reader.take(rng.randrange(3))
        status = world.queue.core.status()
        assert status.memory_bytes <= 20_000 + 20_000 + 4_000
        assert status.spill_bytes <= 20_000
    for reader, is_here in here.items():
        if not is_here:
            reader.connect()
    world.run(world.a, world.b, until=world.history.end, steps=20_000)
    expected = [10 * (number + 1) for number in range(len(world.history.rows))]
    assert world.a.model.applied == world.b.model.applied == expected


def _appended(log: SourceLog, batch: LcrBatch) -> None:
    log.append(Delivery(header=header_of(batch), data=codec.encode(batch)), now_s=0.0, now_us=0)


def test_no_subscriber_begins_at_a_transaction_with_dropped_parts() -> None:
    log = SourceLog("dbs1", Scn(0))
    _appended(log, insert_batch([10]))
    for part in range(4):
        _appended(log, insert_batch([20], previous=10, is_open=True, continues=part > 0, first_position=part))
    assert [number for number, _ in log.behead(3)] == [1, 2]
    assert (len(log), log.rows_from(0), log.rows_from(1)) == (3, 3, 2)
    assert (log.start_for(Scn(0)), log.start_for(Scn(10))) == (0, None)
    assert [number for number, _ in log.behead(4)] == [3]
    _appended(log, insert_batch([20], previous=10, continues=True, first_position=4))
    _appended(log, insert_batch([30], previous=20))
    assert (log.start_for(Scn(0)), log.start_for(Scn(10)), log.start_for(Scn(20))) == (0, None, 6)
    assert log.is_inside(4)
    assert not log.is_inside(0)
    assert not log.is_inside(6)
    assert [number for number, _ in log.release(Scn(20))] == [0, 4, 5]
    assert (log.start_for(Scn(20)), len(log)) == (6, 1)


def test_retransmitted_open_transaction_has_all_its_parts() -> None:
    log = SourceLog("dbs1", Scn(0))
    _appended(log, insert_batch([10]))
    for part in range(4):
        _appended(log, insert_batch([20], previous=10, is_open=True, continues=part > 0, first_position=part))
    log.behead(3)
    assert [number for number, _ in log.drop_open()] == [3, 4]
    _appended(log, insert_batch([20], previous=10))
    assert log.start_for(Scn(10)) == 1
    assert (len(log), log.rows_from(0)) == (2, 2)


def test_refused_only_subscriber_does_not_block_a_large_transaction(tmp_path: Path) -> None:
    """Nothing is held for it.

    The queue used to wait until it had read the parts, took nothing more, and the redo of the source filled.
    """
    queue = Queue(tmp_path, memory=20_000, spill=20_000)
    history = History(value=VALUE)
    large, after = history.commit(PARTS), history.commit()
    queue.subscriber(needed=5)
    publisher = Publisher(queue, history)
    queue.core.gone(publisher.session, Scn(6))
    for _ in range(PARTS):
        publisher.step()
    assert queue.core.status().sources["dbs1"].position_scn < large, "a newer process of the subscriber may connect"
    queue.clock.advance(REFUSED_HOLD_S)
    queue.core.housekeeping()
    for _ in range(10 * PARTS):
        publisher.step()
    assert queue.core.status().sources["dbs1"].durable_scn >= after
