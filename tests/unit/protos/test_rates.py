"""Rates with the test's own clock: what passes, waits, is refused, and is remembered."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.base.errors import RateExceeded, Retry
from protos import apply_pb2, queue_pb2, redo_pb2
from protos.wire import rates
from protos.wire.admission import Admission
from protos.wire.rates import (
    BURST_S,
    HELD_BACK_S_MAX,
    LIMITS,
    PAUSE_S,
    SITE_BURST_S,
    SITE_CALLS,
    SITE_MESSAGES,
    TABLE_MAX,
    WAIT_S_MIN,
    Bucket,
    Limit,
    Rates,
)

METHOD, SITE = "headrace.v1.Queue/Dequeue", "ipv4:10.0.0.1"
LIMIT = Limit(messages_per_s=100, calls_per_s=10)
CALLS_MAX = 50


class Time:
    """A clock that advances when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < math.inf
        self.now += seconds
        self.slept += seconds


class Listener:
    def __init__(self) -> None:
        self.held: list[str] = []
        self.refusals: list[str] = []

    def held_back(self, peer: str, problem: str) -> None:
        self.held.append(f"{peer} {problem}")

    def refused(self, peer: str, problem: str) -> None:
        self.refusals.append(f"{peer} {problem}")


class World:
    def __init__(self, limit: Limit = LIMIT) -> None:
        self.time, self.listener = Time(), Listener()
        self.rates = Rates(self.listener, {METHOD: limit}, clock=self.time.clock, sleep=self.time.sleep)

    def begin(self, connection: int = 1, site: str = SITE) -> rates.Meter:
        return self.rates.begin(f"{site}:{connection}", site, METHOD, CALLS_MAX)


@pytest.fixture
def world() -> World:
    return World()


# --------------------------------------------------------------------------- bucket


def test_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = Bucket(100, 2.0)
    waits = [bucket.take(50.0) for _ in range(203)]
    assert max(waits[:200]) <= 1e-9
    assert waits[200:] == pytest.approx([0.01, 0.02, 0.03])
    assert bucket.take(50.04) == pytest.approx(0.0)


def test_bucket_saves_no_more_than_its_burst() -> None:
    bucket = Bucket(100, 2.0)
    bucket.take(0.0)
    assert sum(bucket.take(1e6) <= 1e-6 for _ in range(1000)) == 200


def test_bucket_of_less_than_one_token_has_one() -> None:
    bucket = Bucket(0.1, 2.0)
    assert bucket.take(5.0) == pytest.approx(0.0)
    assert bucket.take(5.0) == pytest.approx(10.0)


def test_refused_token_costs_nothing() -> None:
    bucket = Bucket(10, 1.0)
    taken = [bucket.take_within(7.0, 0.0) for _ in range(50)]
    assert sum(each is not None for each in taken) in (9, 10)
    assert bucket.take_within(7.2, 0.0) is not None
    assert bucket.take_within(7.2, 5.0) is not None


# --------------------------------------------------------------------------- messages


def test_sender_within_its_rate_never_waits(world: World) -> None:
    meter = world.begin()
    for _ in range(2000):
        world.time.now += 1 / LIMIT.messages_per_s
        meter.pass_one()
    assert (world.time.slept, world.listener.held, world.listener.refusals) == (0.0, [], [])


def test_flood_is_slowed_to_the_rate_and_each_wait_is_counted(world: World) -> None:
    meter, began = world.begin(), world.time.now
    for _ in range(1200):
        meter.pass_one()
    seconds = (1200 - BURST_S * 100) / 100
    assert world.time.now - began == pytest.approx(seconds, abs=2 * WAIT_S_MIN)
    assert len(world.listener.held) == pytest.approx(seconds / WAIT_S_MIN, rel=0.1)
    assert world.listener.refusals == []


def test_stream_that_floods_without_a_pause_is_ended(world: World) -> None:
    meter, began = world.begin(), world.time.now

    def flood() -> None:
        for _ in range(1_000_000):
            meter.pass_one()

    with pytest.raises(RateExceeded) as caught:
        flood()
    assert world.time.now - began == pytest.approx(HELD_BACK_S_MAX, abs=0.1)
    assert caught.value.retry is Retry.TIMED
    assert len(world.listener.refusals) == 1
    assert METHOD in caught.value.message


def test_stream_that_floods_with_pauses_is_slowed_and_continues(world: World) -> None:
    meter = world.begin()
    for _ in range(20):
        for _ in range(1000):
            meter.pass_one()
        world.time.now += PAUSE_S + BURST_S
    assert world.listener.refusals == []


def test_streams_of_one_connection_share_its_rate(world: World) -> None:
    streams = [world.begin() for _ in range(4)]
    other = world.begin(2, "ipv4:10.0.0.2")
    began = world.time.now
    for _ in range(100):
        for each in streams:
            each.pass_one()
    assert world.time.now - began == pytest.approx((400 - BURST_S * 100) / 100, abs=2 * WAIT_S_MIN)
    held = len(world.listener.held)
    for _ in range(100):
        other.pass_one()
    assert len(world.listener.held) == held


def test_connections_of_a_site_share_its_rate_and_none_is_refused(world: World) -> None:
    streams = [world.begin(number) for number in range(10)]
    began = world.time.now
    for _ in range(1000):
        for each in streams:
            each.pass_one()
    rate = SITE_MESSAGES * LIMIT.messages_per_s
    assert world.time.now - began == pytest.approx((10_000 - BURST_S * rate) / rate, abs=2 * WAIT_S_MIN)
    assert world.listener.refusals == []


# --------------------------------------------------------------------------- calls


def test_calls_of_a_connection_wait_for_their_rate(world: World) -> None:
    began = world.time.now
    for _ in range(100):
        world.begin()
        world.rates.ended(SITE)
    assert world.time.now - began == pytest.approx((100 - BURST_S * 10) / 10)
    assert len(world.listener.held) == pytest.approx(80, abs=1)
    assert world.listener.refusals == []


def test_site_that_keeps_reconnecting_is_refused_and_others_are_not(world: World) -> None:
    taken = 0
    for number in range(2000):
        try:
            world.begin(number)
        except RateExceeded:
            continue
        taken += 1
        world.rates.ended(SITE)
    assert taken == pytest.approx(SITE_BURST_S * SITE_CALLS * LIMIT.calls_per_s, abs=1)
    assert world.time.slept == 0
    assert len(world.listener.refusals) == 2000 - taken
    world.begin(1, "ipv4:10.0.0.2")
    world.time.now += 1
    world.begin(9999)


def test_calls_with_too_long_a_wait_are_refused_and_do_not_add_up() -> None:
    """The bound on a client's streams does not stop a client that begins calls and cancels them."""
    world = World()
    world.rates.sleep = lambda _: None  # all at the same moment
    refused = 0
    for _ in range(40):
        try:
            world.begin()
        except RateExceeded:
            refused += 1
    assert refused == pytest.approx(40 - (BURST_S + rates.CALL_WAIT_S_MAX) * LIMIT.calls_per_s, abs=1)
    world.time.now += rates.CALL_WAIT_S_MAX + BURST_S
    world.begin()
    assert "exceeds the call rate" in world.listener.refusals[-1]


def test_open_calls_of_a_site_are_bounded_and_ended_ones_make_room(world: World) -> None:
    for number in range(CALLS_MAX):
        world.begin(number)
    with pytest.raises(RateExceeded, match="50 open calls"):
        world.begin(99)
    world.begin(1, "ipv4:10.0.0.2")
    world.rates.ended(SITE)
    world.begin(99)
    for _ in range(CALLS_MAX):
        world.rates.ended(SITE)
    world.rates.ended("ipv4:10.0.0.2")
    assert world.rates._open == {}


def test_memory_of_connections_and_sites_is_bounded(world: World) -> None:
    for number in range(3 * TABLE_MAX):
        site = f"ipv6:{number}"
        world.begin(1, site)
        world.rates.ended(site)
    assert len(world.rates._connections) == len(world.rates._sites) == TABLE_MAX
    assert world.rates._open == {}


# --------------------------------------------------------------------------- limits


def test_every_method_has_a_limit() -> None:
    services = [
        service for file in (apply_pb2, queue_pb2, redo_pb2) for service in file.DESCRIPTOR.services_by_name.values()
    ]
    assert {f"{service.full_name}/{method.name}" for service in services for method in service.methods} == set(LIMITS)


def test_limits_are_far_above_normal_batch_and_checkpoint_rates() -> None:
    assert LIMITS["headrace.v1.Queue/Enqueue"].messages_per_s >= 10 * 1000
    assert all(each.messages_per_s >= 2 * 1000 for each in LIMITS.values())
    assert all(each.calls_per_s >= 20 for each in LIMITS.values())


class Context:
    """A call without TLS."""

    def __init__(self, peer: str) -> None:
        self._peer, self.callbacks = peer, list[Any]()

    def peer(self) -> str:
        return self._peer

    def add_callback(self, callback: object) -> bool:
        self.callbacks.append(callback)
        return True


def test_admission_counts_throttled_calls_and_logs_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    admission, time = Admission("queue q"), Time()
    admission.rates = Rates(admission, {METHOD: LIMIT}, clock=time.clock, sleep=time.sleep)
    context = Context("ipv4:10.0.0.1:5000")
    meter = admission.begin(context, METHOD, CALLS_MAX)
    for _ in range(202):
        meter.pass_one()
    status = admission.status()
    assert status.held_back in (1, 2)
    assert status.refused_calls == 0
    assert "ipv4:10.0.0.1:5000" in status.last_held_back
    (record,) = caplog.records
    assert "queue q: holds back ipv4:10.0.0.1:5000" in record.getMessage()
    for callback in context.callbacks:
        callback()
    assert admission.rates._open == {}


def test_refused_call_is_counted_with_the_others() -> None:
    admission, time = Admission("queue q"), Time()
    admission.rates = Rates(admission, {METHOD: LIMIT}, clock=time.clock, sleep=time.sleep)
    for number in range(3):
        admission.begin(Context(f"ipv4:10.0.0.1:{number}"), METHOD, 3)
    with pytest.raises(RateExceeded):
        admission.begin(Context("ipv4:10.0.0.1:9"), METHOD, 3)
    status = admission.status()
    assert status.refused_calls == 1
    assert "ipv4:10.0.0.1 has 3 open calls" in status.last_refusal
