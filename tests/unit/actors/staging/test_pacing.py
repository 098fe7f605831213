"""The pace of a bandwidth and the gate of a schedule, in virtual time: smooth, in whole batches, without loss."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from actors.staging.pacing import PIECE_BYTES_MIN, Gate, Pacer
from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.propagation import PropagationCore, PropagationRunner, PropagationStatistics
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.base.errors import PropagationError
from headrace.lcr.scn import Scn
from headrace.links.ports import PublisherProgress, header_of
from headrace.rules.rule import RuleSet
from protos import codec
from protos.wire.fragments import FRAGMENT_BYTES
from tests.support.session.seeds import seed_of
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.staging import DirectDequeue, DirectEnqueue, DirectLinks, History, Subscriber, one_way
from topology.schedule import Schedule, Window
from topology.spec import PropagationSpec

RATE = 100_000
END_S = 1500  # of the random windows
HOURLY = Schedule(windows=(Window(hour=None, minute=50, duration_s=600),))
START_US = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000  # a full hour


class Line:
    """q_dbs1 -> to_dbs2 -> q_dbs2 with a runner, in virtual time; the line between them can be cut.

    Args:
        folder: of the queues.
        keys: of the propagation.
    """

    def __init__(self, folder: Path, **keys: object) -> None:
        self.clock, self.is_up = VirtualClock(START_US), True
        topology = one_way(folder, subscribers=("to_dbs2",), memory=200_000, spill=1 << 26)
        self.near = QueueCore(topology, "q_dbs1", folder / "near", self.clock)
        self.far = QueueCore(topology, "q_dbs2", folder / "far", self.clock)
        self.publisher = self.near.open_publisher("capture_dbs1", "1", "dbs1")
        self.near.resume(self.publisher)
        self.subscriber = self.far.open_subscriber("apply_far", "1", {"dbs1": Scn(0)}, 1 << 40)
        self.spec = PropagationSpec(name="to_dbs2", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",), **keys)
        self.links = DirectLinks(
            "to_dbs2", lambda name: self.near if name == "q_dbs1" else self.far if self.is_up else None
        )
        self.runner = PropagationRunner(self.spec, self.links, clock=self.clock)
        self.position = 0

    def publish(self, size: int) -> None:
        batch = insert_batch([self.position + 10], previous=self.position, value=bytes(size))
        self.near.publisher_news(self.publisher)  # its credit
        self.near.enqueue(self.publisher, header_of(batch), codec.encode(batch))
        self.position += 10

    def run(self, seconds: float) -> None:
        """Step as a host does, with the pause that each step asks for."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            pause = self.runner.step()
            self.clock.advance(max(1e-6, min(pause, end - self.clock.monotonic())))

    def arrived(self) -> list[int]:
        found = []
        while (delivery := self.far.dequeue(self.subscriber)) is not None:
            found.append(int(delivery.header.through_scn))
        return found


class SlowEnqueue(DirectEnqueue):
    """Accepts batches only while `is_slow` is False."""

    is_slow = True

    def poll(self) -> PublisherProgress:
        progress = super().poll()
        return dataclasses.replace(progress, accepted_bytes=0) if self.is_slow else progress


class TwoSources:
    """dbs1 and dbs3 -> q_dbs1 -> to_dbs2 -> q_dbs2: large batches from one source, large transactions in small parts
    from the other.

    Args:
        folder: of the queues.
        seed: of the transactions and of how they are cut.
        keys: of the propagation.
    """

    def __init__(self, folder: Path, seed: int, **keys: object) -> None:
        self.rng, self.clock = random.Random(seed), VirtualClock(START_US)
        topology = one_way(folder, subscribers=("to_dbs2",), memory=1 << 24, spill=1 << 26, also=("dbs3",))
        self.near = QueueCore(topology, "q_dbs1", folder / "near", self.clock)
        self.far = QueueCore(topology, "q_dbs2", folder / "far", self.clock)
        self.publishers = {
            source: self.near.open_publisher(f"capture_{source}", "1", source) for source in ("dbs1", "dbs3")
        }
        for session in self.publishers.values():
            self.near.resume(session)
        self.sessions = {
            source: self.far.open_subscriber(name, "1", {source: Scn(0)}, 1 << 40)
            for source, name in (("dbs1", "apply_far"), ("dbs3", "apply_far_dbs3"))
        }
        self.models = {source: Subscriber() for source in self.publishers}
        self.histories = {"dbs1": History(value=bytes(60_000)), "dbs3": History(value=bytes(1_500))}
        self.planned = dict.fromkeys(self.publishers, 0)
        spec = PropagationSpec(name="to_dbs2", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1", "dbs3"), **keys)
        self.links = DirectLinks("to_dbs2", {"q_dbs1": self.near, "q_dbs2": self.far}.get)
        self.runner = PropagationRunner(spec, self.links, clock=self.clock)

    def publish(self, source: str, rows: int) -> None:
        """Commit a transaction and enqueue it, cut at random."""
        history = self.histories[source]
        history.commit(rows)
        for batch in history.batches_after(self.planned[source], self.rng):
            named = dataclasses.replace(batch, source=source)
            self.near.publisher_news(self.publishers[source])  # its credit
            self.near.enqueue(self.publishers[source], header_of(named), codec.encode(named))
            self.planned[source] = named.through_scn

    def step(self) -> None:
        """One turn of the host with the pause that the step asks for; arriving parts are checked."""
        pause = self.runner.step()
        for source, session in self.sessions.items():
            while (delivery := self.far.dequeue(session)) is not None:
                self.models[source].take(delivery.header, delivery.data)
            self.far.acknowledge(session, source, self.models[source].position)
        for queue in (self.near, self.far):
            queue.housekeeping()
            if (positions := queue.positions_to_save()) is not None:
                queue.positions_saved(positions, None)
        self.clock.advance(max(1e-6, pause))


def test_pace_is_the_bandwidth_in_every_second_and_saves_up_nothing() -> None:
    pacer, now, sent = Pacer(RATE), 0.0, []
    assert pacer.piece_bytes == RATE // 10
    for idle_s in (0.0, 3600.0):
        now += idle_s
        for _ in range(100):
            now += pacer.pause_s(now)
            assert pacer.pause_s(now) == 0.0
            pacer.sent(pacer.piece_bytes, now)
            sent.append(now)
    for first in range(len(sent)):
        within = [at for at in sent if sent[first] <= at < sent[first] + 1.0 - 1e-9]
        assert len(within) <= 10, "more than a second's bandwidth in a second"
    assert sent[-1] - sent[100] == pytest.approx(9.9)


@pytest.mark.parametrize(
    ("rate", "piece"), [(8192, PIECE_BYTES_MIN), (1 << 20, (1 << 20) // 10), (1 << 30, FRAGMENT_BYTES)]
)
def test_piece_is_a_tenth_of_a_second_within_the_bounds_of_a_fragment(rate: int, piece: int) -> None:
    assert Pacer(rate).piece_bytes == piece


def test_backlog_of_mixed_batches_drains_at_the_bandwidth(tmp_path: Path) -> None:
    line = Line(tmp_path, bandwidth_max=RATE)
    for size in (1_000_000, 10, 10, 500_000, 10):
        line.publish(size)
    line.runner.open()
    line.run(5.0)
    assert line.arrived() == []  # half of the first batch is sent
    assert line.runner.state == "PAUSED FOR BANDWIDTH"
    line.run(5.5)
    assert line.arrived() == [10, 20, 30]
    line.run(4.4)
    assert line.arrived() == []
    line.run(0.8)
    assert line.arrived() == [40, 50]
    line.run(1.0)
    assert line.runner.state == "WAITING FOR LCRS"
    status = line.runner.status()
    assert status.bandwidth_max == RATE
    assert status.sources["dbs1"].accepted_scn == 50


def test_rewind_during_a_batch_ends_the_stream_and_loses_nothing(tmp_path: Path) -> None:
    line = Line(tmp_path, bandwidth_max=RATE)
    line.publish(10)
    line.runner.open()
    line.run(1.0)
    assert line.arrived() == [10]
    line.far.acknowledge(line.subscriber, "dbs1", 10)  # dropped there; the near queue does not know yet
    line.publish(1_000_000)
    line.run(2.0)
    line.subscriber = line.far.open_subscriber(
        "apply_far", "2", {"dbs1": Scn(5)}, 1 << 40
    )  # the far queue must ask for more
    with pytest.raises(PropagationError, match="in the middle of a batch"):
        line.run(1.0)
    line.runner.close()
    line.runner.open()
    line.run(15.0)
    assert line.arrived() == [10, 20]


def test_closed_window_opens_no_connection_and_its_queue_spills(tmp_path: Path) -> None:
    line = Line(tmp_path, schedule=HOURLY)
    line.is_up = False
    line.runner.open()
    for _ in range(40):
        line.publish(10_000)
        line.near.publisher_news(line.publisher)
        line.run(60.0)
    assert line.links.opens == 0
    assert line.runner.state == "CLOSED"
    assert line.runner.status().closed_until.endswith(":50 UTC")
    near = line.near.status()
    assert (near.state, near.rows) == ("ENABLED", 40)
    assert near.spilled_rows > 20
    line.is_up = True
    line.run(9 * 60)  # at 49 minutes past the hour
    assert line.arrived() == []
    line.run(300)
    assert line.arrived() == [10 * k + 10 for k in range(40)]
    assert line.links.opens == 1
    assert line.runner.status().closed_until is None
    line.run(11 * 60)
    assert line.runner.state == "CLOSED"


def test_window_that_closes_during_a_batch_completes_that_batch_only(tmp_path: Path) -> None:
    line = Line(tmp_path, schedule=HOURLY, bandwidth_max=RATE)
    line.runner.open()
    line.run(59 * 60 + 55)
    line.publish(1_000_000)
    line.publish(10)
    line.run(5.0)
    assert line.runner.state == "PAUSED FOR BANDWIDTH"
    line.run(10.0)
    assert line.arrived() == [10]
    assert line.runner.state == "CLOSED"
    line.run(3600)
    assert line.arrived() == [20]


@pytest.mark.long
@pytest.mark.seeded
def test_windows_at_random_times_lose_no_part_of_a_large_transaction(tmp_path: Path) -> None:
    seed = seed_of("windows that close and open at any moment")
    rng = random.Random(seed)
    minutes = range(END_S // 60 + 2)  # as many as pass: looking for the next window takes time for each one
    windows = tuple(Window(hour=None, minute=minute, duration_s=rng.randint(20, 59)) for minute in minutes)
    world = TwoSources(tmp_path, seed, schedule=Schedule(windows=windows), bandwidth_max=16_384)
    world.runner.open()
    while world.clock.monotonic() < END_S:
        for source, rows_max in (("dbs1", 3), ("dbs3", 40)):
            if world.planned[source] == world.models[source].position:
                world.publish(source, rng.randint(2, rows_max))
        world.step()
    for source, model in world.models.items():
        assert model.applied == list(range(10, model.position + 1, 10)), "lost, twice or out of order"
        assert [model.rows_of[scn] for scn in model.applied] == world.histories[source].rows[: len(model.applied)]
        assert len(model.applied) > 10, f"{source} starves"
    assert world.links.opens > 4, "no window closed: this proves less than it says"


def test_sources_share_the_pace_when_wake_ups_fall_between_their_turns(tmp_path: Path) -> None:
    world = TwoSources(tmp_path, 1, bandwidth_max=16_384)
    for source, value in (("dbs1", bytes(3000)), ("dbs3", bytes(3000))):
        world.histories[source].value = value
        for _ in range(60):
            world.publish(source, 1)
    world.runner.open()
    while world.clock.monotonic() < 10:
        world.step()  # the pause is over: a piece can be sent
        world.runner.step()  # an answer arrived before the next piece
    counts = {source: each.batches_total for source, each in world.runner.status().sources.items()}
    assert min(counts.values()) > 0.4 * sum(counts.values()), counts


def test_closing_gate_waits_for_an_answer_without_a_busy_loop(tmp_path: Path) -> None:
    line = Line(tmp_path, schedule=HOURLY, bandwidth_max=RATE)
    slow = SlowEnqueue(lambda: line.far, "to_dbs2", "1", "dbs1")
    line.links.publisher = lambda *_: slow  # type: ignore[method-assign]  # of this line alone
    line.runner.open()
    line.run(59 * 60 + 55)
    line.publish(10)
    line.run(10.0)
    assert line.runner.state == "WAITING FOR LCRS"
    assert line.runner.step() > 0.1
    assert line.runner.status().closed_until.endswith(":50 UTC")
    slow.is_slow = False
    line.run(1.0)
    assert line.runner.state == "CLOSED"


def test_stopped_propagation_shows_no_window(tmp_path: Path) -> None:
    line = Line(tmp_path, schedule=HOURLY)
    line.runner.open()
    line.run(1.0)
    assert line.runner.status().closed_until is not None
    line.runner.close()
    assert line.runner.state == "INITIALIZING"
    assert line.runner.status().closed_until is None


def test_gate_notices_a_clock_that_was_set_back() -> None:
    class Wall:
        now_us = START_US + 55 * 60_000_000

        def time_us(self) -> int:
            return self.now_us

        def monotonic(self) -> float:
            return 0.0

    wall = Wall()
    gate = Gate(HOURLY, wall)
    assert gate.is_open()
    wall.now_us -= 30 * 60_000_000
    assert not gate.is_open()
    assert gate.pause_s() == 25 * 60


def test_drained_means_accepted_and_not_only_sent(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.publish(10)
    destination = SlowEnqueue(lambda: line.far, "to_dbs2", "1", "dbs1")
    core = PropagationCore(
        "dbs1",
        RuleSet(),
        destination,
        lambda: DirectDequeue(lambda: line.near, "to_dbs2", "1"),
        statistics=PropagationStatistics(),
        clock=line.clock,
    )
    core.open()
    core.step()
    assert not core.drain()
    destination.is_slow = False
    assert core.drain()
    line.publish(10)
    line.clock.advance(SAVE_PERIOD_S)
    assert core.drain(), "nothing new is taken"
    assert line.arrived() == [10]
