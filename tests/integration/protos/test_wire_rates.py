"""Clients that send too much, with TLS on loopback: each service bounds and counts them, and our own clients continue."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from actors.staging.propagation_host import PropagationHost
from actors.staging.queue import QueueCore
from actors.staging.queue_host import QueueHost
from headrace.base.errors import RateExceeded
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.status.queues import QueueStatus
from protos import apply_pb2 as pb
from protos import codec, queue_pb2, queue_pb2_grpc, redo_pb2
from protos.links.apply_link import REPORTS_MAX, ServerStream
from protos.links.queue_link import ACKNOWLEDGE_INTERVAL_S, DequeueClient, EnqueueClient
from protos.links.redo_link import RedoWatchClient
from protos.wire import rates, transport
from protos.wire.admission import Admission
from protos.wire.rates import Limit
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.session.bounds import STALL_S
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.links import begun, loopback
from tests.support.wire.staging import one_way
from tests.support.wire.wire_world import FUZZ, OURS, TOKEN, Host, World
from topology.spec import TopologySpec

pytestmark = [pytest.mark.slow, pytest.mark.long]

LOW = Limit(messages_per_s=100, calls_per_s=10)  # low, so that a slow machine floods too
FLOOD_S, ROUNDS_MIN = 1.5, 3
CALLS_S, CALLS_S_MAX = 2.5, 60.0  # the burst is over at once, on a busy machine later; then the rate is visible
# Padding of flooding messages: HTTP/2 then holds only a few of them in flight.
PADDING_BYTES = 16 << 10
# gRPC enlarges a window up to 16 MiB by its estimate of the line and by the machine's other load. Without that it has
# 64 KiB.
_FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
# Messages between sender and handler: four in the window, as many in the sender's buffer, and one at each end. Five and
# six were seen, with and without other load.
ON_THE_WAY_MAX = 10
HELLO = {"protocol_version": 1, "topology": "t", "incarnation": "9"}


def padded(message: bytes) -> bytes:
    """Return the message with an unknown field."""
    return message + b"\xc2\x3e\x80\x80\x01" + bytes(PADDING_BYTES)  # number 1000, with this many bytes


def _hello(component: str, target: str) -> queue_pb2.Hello:
    return queue_pb2.Hello(component=component, queue=target, **HELLO)


def _duplicate() -> bytes:
    """Return a batch that the queue already has after the first one."""
    batch = insert_batch([10], source=FUZZ)
    header, data = codec.header_to_message(header_of(batch)), codec.encode(batch)
    return queue_pb2.EnqueueRequest(
        fragment=queue_pb2.Fragment(header=header, data=data, last=True, total_bytes=len(data))
    ).SerializeToString()


STREAMS: dict[str, tuple[list[bytes], Callable[[], bytes]]] = {
    "Queue/Enqueue": (
        [
            queue_pb2.EnqueueRequest(hello=_hello("capture_fuzz", "q_dbs1")).SerializeToString(),
            queue_pb2.EnqueueRequest(source=FUZZ).SerializeToString(),
        ],
        _duplicate,
    ),
    "Queue/Dequeue": (
        [
            queue_pb2.DequeueRequest(hello=_hello("apply_fuzz", "q_dbs1")).SerializeToString(),
            queue_pb2.DequeueRequest(
                subscribe=queue_pb2.Subscribe(
                    needed=[queue_pb2.SourcePosition(source=FUZZ)],
                    credit_bytes=1000,
                )
            ).SerializeToString(),
        ],
        queue_pb2.DequeueRequest(durable=queue_pb2.SourcePosition(source=FUZZ, scn=0)).SerializeToString,
    ),
    "RedoTransport/Ship": (
        [
            redo_pb2.ShipRequest(
                begin=redo_pb2.BeginShipping(hello=_hello("capture_fuzz", "dbs1"), credit_bytes=1000)
            ).SerializeToString(),
        ],
        redo_pb2.ShipRequest(credit_bytes=1).SerializeToString,
    ),
    "Coordinator/Serve": (
        [
            pb.ServerMessage(
                hello=pb.ServerHello(protocol_version=1, topology="t", apply="apply_a", token=TOKEN)
            ).SerializeToString(),
        ],
        pb.ServerMessage(state=pb.ServerState(state="IDLE")).SerializeToString,
    ),
}
"""By method: the beginning of a stream, and a small message that may be sent on it any number of times."""

CALLS: dict[str, bytes] = {
    "Redo/Watch": _hello("capture_fuzz", "dbs1").SerializeToString(),
    "Redo/Checkpoint": redo_pb2.RequiredCheckpoint(hello=_hello("capture_fuzz", "dbs1"), scn=1).SerializeToString(),
    "Coordinator/Access": pb.AccessRequest(protocol_version=1, token=TOKEN).SerializeToString(),
    "Coordinator/NextCopy": pb.CopyRequest(protocol_version=1, token=TOKEN, incarnation="1").SerializeToString(),
    "SparkTasks/Run": pb.RunRequest(protocol_version=1, application_token=TOKEN).SerializeToString(),
    "SparkTasks/Health": pb.HealthRequest(application_token=TOKEN).SerializeToString(),
}


def _site(method: str) -> str:
    """Return the site whose client floods: tasks are served to processes of their own site only."""
    return OURS if method.startswith(("Coordinator", "SparkTasks")) else FUZZ


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "LIMITS", dict.fromkeys(rates.LIMITS, LOW))


@pytest.fixture
def fixed_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_SERVER_OPTIONS", [*transport._SERVER_OPTIONS, _FIXED_WINDOW])


@pytest.fixture
def world(low: None, fixed_window: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.WARNING, "headrace")
    world = World(tmp_path, is_secure=True)
    world.serves()
    yield world
    world.serves()
    world.close()


def _admission(world: World, method: str) -> Admission:
    return world.admissions[method.partition("/")[0].replace("RedoTransport", "Redo")]


class Flood:
    """One stream with as many messages as the server takes."""

    def __init__(self, world: World, method: str) -> None:
        beginning, make = STREAMS[method]
        self.sent, self._ended = 0, threading.Event()
        message = padded(make())

        def messages() -> Iterator[bytes]:
            yield from beginning
            while not self._ended.is_set():
                self.sent += 1
                yield message

        self._channel = transport.Channel(world.peer(method.partition("/")[0], _site(method)))
        self.call = self._channel.grpc.stream_stream(f"/headrace.v1.{method}")(messages(), timeout=300)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass

    def close(self) -> None:
        self._ended.set()
        self.call.cancel()
        self._channel.close()


def some(methods: Iterable[str], *kept: str) -> list[object]:
    """Return a method of each kind, and the others in `make soak`: the same code limits their services."""
    return [pytest.param(method, marks=() if method in kept else pytest.mark.soak) for method in methods]


@pytest.mark.parametrize("method", some(STREAMS, "Queue/Enqueue", "Coordinator/Serve"))
def test_flooding_stream_is_held_back_while_our_clients_continue(
    world: World, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    flood = Flood(world, method)
    rounds = 0
    while time.monotonic() - began < FLOOD_S or rounds < ROUNDS_MIN:  # a busy machine takes longer for a round
        world.serves()
        rounds += 1
        time.sleep(0.1)  # our own clients keep within the low limits of this test
    sent, status = flood.sent, _admission(world, method).status()
    seconds = time.monotonic() - began
    assert flood.call.is_active(), (flood.call.code(), flood.call.details())
    flood.close()
    assert sent < LOW.messages_per_s * (rates.BURST_S + seconds) + ON_THE_WAY_MAX + 1
    assert status.held_back > 0, "it did not flood"
    assert (status.refused_calls, method in status.last_held_back) == (0, True)
    assert len([each for each in caplog.records if "holds back" in each.message]) == 1


@pytest.mark.parametrize("method", some(STREAMS, "Queue/Enqueue", "Coordinator/Serve"))
def test_endlessly_flooding_stream_is_refused_with_its_status(
    world: World, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "HELD_BACK_S_MAX", 0.3)
    flood = Flood(world, method)
    try:
        assert flood.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = transport.as_streams_error(flood.call, "it")
        assert type(error) is RateExceeded
        assert method in error.message
    finally:
        flood.close()
    status = _admission(world, method).status()
    assert status.refused_calls == 1
    assert method in status.last_refusal


@pytest.mark.parametrize("method", some(CALLS, "Redo/Watch"))
def test_repeatedly_calling_connection_is_held_back_while_ours_continue(world: World, method: str) -> None:
    channel = transport.Channel(world.peer(method.partition("/")[0], _site(method)))
    call = channel.grpc.unary_stream(f"/headrace.v1.{method}")
    began, answered = time.monotonic(), 0

    def one() -> None:
        nonlocal answered
        calling = call(CALLS[method], timeout=STALL_S)
        next(calling)
        calling.cancel()
        answered += 1

    last, admission = began, _admission(world, method)
    while (seconds := time.monotonic() - began) < CALLS_S or (
        method not in admission.status().last_held_back and seconds < CALLS_S_MAX
    ):
        one()
        if time.monotonic() - last > 0.3:
            last = time.monotonic()
            world.serves()
    seconds = time.monotonic() - began
    channel.close()
    assert answered <= LOW.calls_per_s * (rates.BURST_S + seconds) + 1
    status = admission.status()
    assert status.refused_calls == 0
    assert method in status.last_held_back


def test_repeatedly_connecting_site_is_refused_and_another_site_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has its own connection; our clients belong to another site."""
    # Refuse also a machine on which each connection takes long.
    monkeypatch.setattr(rates, "SITE_CALLS", 1)
    codes: list[grpc.StatusCode] = []
    allowed = rates.SITE_BURST_S * rates.SITE_CALLS * LOW.calls_per_s
    began = time.monotonic()
    while len(codes) < allowed + 200 and codes[-5:] != [grpc.StatusCode.RESOURCE_EXHAUSTED] * 5:
        channel = transport.Channel(world.peer("Queue", FUZZ))
        for _ in range(10):  # within the burst of a connection
            call = queue_pb2_grpc.QueueStub(channel.grpc).Enqueue(
                iter([queue_pb2.EnqueueRequest(hello=_hello("capture_fuzz", "elsewhere"))])
            )
            codes.append(call.code())
        error = transport.as_streams_error(call, "it")
        channel.close()
    refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refused > 0
    assert type(error) is RateExceeded
    assert len(codes) - refused <= allowed + rates.SITE_CALLS * LOW.calls_per_s * (time.monotonic() - began) + 1
    ours = DequeueClient(
        world.peer("Queue"), topology="t", component="apply_a", queue="q_dbs1", incarnation=transport.new_incarnation()
    )
    world.subscriber.close()
    ours.subscribe({"dbs1": Scn(world.scn)}, 4 << 20)
    world.subscriber = ours
    assert world.admissions["Queue"].status().refused_calls >= refused


def test_site_with_many_open_streams_leaves_room_for_another_site(world: World) -> None:
    watches: list[RedoWatchClient] = []
    channels: list[transport.Channel] = []
    share = int(transport.STREAMS_MAX * transport.PRINCIPAL_SHARE)
    method = "/headrace.v1.Redo/Watch"
    calls = []
    for number in range(share):
        if number % transport.STREAMS_PER_CONNECTION_MAX == 0:
            channels.append(transport.Channel(world.peer("Redo", FUZZ)))
        call = channels[-1].grpc.unary_stream(method)(CALLS["Redo/Watch"])
        next(call)
        calls.append(call)
    channels.append(transport.Channel(world.peer("Redo", FUZZ)))
    refused = channels[-1].grpc.unary_stream(method)(CALLS["Redo/Watch"], timeout=STALL_S)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{share} open calls" in refused.details()
    for _ in range(5):
        watches.append(
            RedoWatchClient(world.peer("Redo"), topology="t", capture="capture_dbs1", source="dbs1", incarnation="2")
        )
        watches[-1].connect()
    calls[0].cancel()

    def is_taken() -> bool:
        try:
            next(channels[-1].grpc.unary_stream(method)(CALLS["Redo/Watch"], timeout=STALL_S))
        except grpc.RpcError:
            return False
        return True

    wait_until("ended streams have made room", is_taken, 60)
    for watch in watches:
        watch.close()
    for channel in channels:
        channel.close()


class _BusyHost(Host):
    """A coordinator that waits for its destination and takes no message."""

    received = 0

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        self.received += 1


def test_messages_for_a_busy_coordinator_wait_in_bounded_memory(tmp_path: Path, fixed_window: None) -> None:
    world = World(tmp_path, is_secure=True)  # with the shipped limits
    world.gate.inbox = busy = _BusyHost()  # type: ignore[assignment]
    flood = Flood(world, "Coordinator/Serve")
    wait_until("there is no room any more", lambda: busy.received == REPORTS_MAX, STALL_S)

    def is_held_back() -> bool:
        before = flood.sent
        time.sleep(0.5)  # a machine that stalls for this long has sent less, which fails no check
        return flood.sent == before

    wait_until("the sender waits", is_held_back, STALL_S)
    assert busy.received == REPORTS_MAX
    assert flood.sent <= REPORTS_MAX + ON_THE_WAY_MAX
    for _ in range(10):
        busy.last.taken()
    wait_until("the next ones came", lambda: busy.received == REPORTS_MAX + 10, STALL_S)
    world.serves()
    flood.close()
    world.close()


# --------------------------------------------------------------------------- our own components at full speed

FULL_SPEED_S = 2.5  # longer than the burst of any limit
SENT_MIN = 100  # even if a busy machine takes longer for them


def _two_queues(folder: Path) -> TopologySpec:
    return one_way(folder, subscribers=("to_dbs2",), memory=2 << 20)


def test_acknowledgements_that_outpace_a_queue_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    # Only record them: the queue would refuse acknowledgements of unsent changes.
    monkeypatch.setattr(QueueCore, "acknowledge", lambda _core, _session, _source, scn: heard.append(scn))
    world = World(tmp_path)
    began, scn = time.monotonic(), 0
    while time.monotonic() - began < 0.5:
        scn += 1
        world.subscriber.acknowledge("dbs1", scn)
    wait_until("the last one came", lambda: heard and heard[-1] == scn, 60)
    assert 1 < len(heard) <= (time.monotonic() - began) / ACKNOWLEDGE_INTERVAL_S + 1
    assert heard == sorted(set(heard))
    assert scn > 2 * len(heard)
    world.close()


def test_smallest_batches_at_full_speed_are_not_held_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A publisher, a propagation, and a subscriber that acknowledges every batch, with the shipped limits."""
    spec = _two_queues(tmp_path)
    queues = {name: begun(QueueHost(spec, name, "", loopback())) for name in ("q_dbs1", "q_dbs2")}
    resolve = loopback(lambda queue: queues[queue.removeprefix("queue:")].endpoint())
    propagation = PropagationHost(spec, "to_dbs2", "", resolve)
    propagation.start()
    names = {"topology": "t", "incarnation": transport.new_incarnation()}
    publisher = EnqueueClient(
        queues["q_dbs1"].endpoint(), component="capture_dbs1", queue="q_dbs1", source="dbs1", **names
    )
    subscriber = DequeueClient(queues["q_dbs2"].endpoint(), component="apply_far", queue="q_dbs2", **names)
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, 16 << 20)
    sent = size = 0
    began = time.monotonic()

    def publish() -> None:
        nonlocal sent, size
        ends_at = time.monotonic() + FULL_SPEED_S
        for number in itertools.count():
            if time.monotonic() > ends_at and number > SENT_MIN:
                return
            batch = insert_batch([10 * number + 10], previous=10 * number)
            data = codec.encode(batch)
            publisher.send(header_of(batch), data, 60)
            sent, size = number + 1, len(data)

    sender = threading.Thread(target=publish)
    sender.start()
    taken = 0
    while taken < sent or sender.is_alive():
        delivery = subscriber.poll(0.2)
        if delivery is None or delivery.header.is_progress_mark:
            continue
        taken += 1
        subscriber.grant(len(delivery.data))
        subscriber.acknowledge("dbs1", delivery.header.through_scn)
    sender.join()
    drained_s = time.monotonic() - began
    wait_until("everything is acknowledged", lambda: status_of(queues["q_dbs1"], QueueStatus).rows == 0, 60)
    seen = [queue.status().wire for queue in queues.values()]
    assert propagation.end()
    for each in (publisher, subscriber):
        each.close()
    for queue in queues.values():
        assert queue.end()
    with capsys.disabled():
        print(
            f"\n{sent / FULL_SPEED_S:.0f} batches of {size} bytes a second sent, {sent / drained_s:.0f} a second"
            " through both queues",
            end=" ",
        )
    assert taken == sent > SENT_MIN
    for status in seen:
        assert (status.held_back, status.refused_calls) == (0, 0), status
