"""Queues over real gRPC on loopback, also over a network that breaks.

Longer than 500 lines: all of it shares the queues, the service and the breaking network between them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.queue import QueueCore
from actors.staging.queue_host import QueueHost
from headrace.base.errors import LogGone, PropagationError, ProtocolError, QueueError, WouldBlock
from headrace.faults.proxy import Proxy
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import RedoPosition, header_of
from headrace.status.queues import QueueStatus
from protos import codec, queue_pb2, queue_pb2_grpc
from protos.links.queue_link import DequeueClient, EnqueueClient
from protos.links.redo_link import RedoServer, RedoWatchClient
from protos.wire import transport
from protos.wire.fragments import FRAGMENT_BYTES, REASSEMBLED_BYTES_MAX
from tests.support.actors.statuses import status_of
from tests.support.values.lcr_batches import assert_same_batch, insert_batch
from tests.support.wire.links import begun, loopback
from tests.support.wire.staging import Subscriber, one_way

pytestmark = pytest.mark.long

CREDIT = 4 << 20
# Keepalive notices a silent network after two of its periods; a machine under load needs some more time.
NOTICED_S = 2 * (transport.KEEPALIVE_S + transport.KEEPALIVE_TIMEOUT_S)
ARRIVES_S = 60.0  # for immediate arrivals; a busy machine takes longer
AT_ONCE_S = 0.8 * transport.KEEPALIVE_TIMEOUT_S  # before a ping could have noticed


class Site:
    """One queue with its host, which can be restarted."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.topology = one_way(folder, **options)
        self.start()

    def start(self) -> None:
        self.host = begun(QueueHost(self.topology, "q_dbs1", "", loopback()))
        self.endpoint = self.host.endpoint()

    def stop(self) -> None:
        assert self.host.end()

    def restart(self) -> None:
        self.stop()
        self.start()

    def publisher(self, address: str = "", **changes: str) -> EnqueueClient:
        options = {
            "topology": "t",
            "component": "capture_dbs1",
            "queue": "q_dbs1",
            "source": "dbs1",
            "incarnation": transport.new_incarnation(),
        } | changes
        return EnqueueClient(address or self.endpoint, **options)

    def subscriber(self, address: str = "", **changes: str) -> DequeueClient:
        options = {
            "topology": "t",
            "component": "apply_a",
            "queue": "q_dbs1",
            "incarnation": transport.new_incarnation(),
        } | changes
        return DequeueClient(address or self.endpoint, **options)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.stop()


def send(client: EnqueueClient, batch: LcrBatch, timeout_s: float = ARRIVES_S) -> None:
    client.send(header_of(batch), codec.encode(batch), timeout_s)


def until(condition: Callable[[], bool], timeout_s: float = ARRIVES_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.005)


def fails(call: Callable[[], object], timeout_s: float) -> Exception:
    """Return the error that `call` raises sooner or later, but within the bound."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            call()
        except (PropagationError, ProtocolError, QueueError) as error:
            return error
        time.sleep(0.01)
    pytest.fail("no error came")


def test_batches_pass_a_queue_and_durability_is_reported_back(site: Site) -> None:
    publisher, subscriber = site.publisher(), site.subscriber()
    assert publisher.connect().needed_scn == 0
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    batches = [insert_batch([10, 20]), insert_batch([30], previous=20)]
    for batch in batches:
        send(publisher, batch)
    for batch in batches:
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        assert delivery.header == header_of(batch)
        assert_same_batch(codec.decode(delivery.data), batch)
    until(lambda: publisher.poll().in_flight_bytes == 0)
    assert publisher.poll().accepted_scn == 30
    subscriber.acknowledge("dbs1", 30)
    until(lambda: publisher.poll().durable_scn == 30)
    subscriber.close()
    publisher.close()


def test_waiters_are_woken(site: Site) -> None:
    woken = threading.Event()
    subscriber = DequeueClient(
        site.endpoint, topology="t", component="apply_a", queue="q_dbs1", incarnation="1", wake=woken.set
    )
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    publisher = site.publisher()
    publisher.connect()
    send(publisher, insert_batch([10]))

    def came_with_a_wake() -> bool:
        assert woken.wait(ARRIVES_S)
        woken.clear()
        return subscriber.poll() is not None

    until(came_with_a_wake)  # an earlier wake may belong to the subscription
    woken.clear()
    site.stop()
    assert woken.wait(ARRIVES_S)
    fails(subscriber.poll, ARRIVES_S)
    subscriber.close()
    publisher.close()


def test_caller_of_another_version_is_refused_with_a_clear_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transport,
        "make_hello",
        lambda topology, component, target, incarnation: queue_pb2.Hello(
            protocol_version=99, topology=topology, component=component, queue=target, incarnation=incarnation
        ),
    )
    for client, connect in (
        (publisher := site.publisher(), publisher.connect),
        (subscriber := site.subscriber(), lambda: subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)),
    ):
        with pytest.raises(ProtocolError, match="speaks protocol version 99") as caught:
            connect()
        assert "same Headrace version" in caught.value.hint
        client.close()


def test_wrong_version_is_failed_precondition_on_the_wire(site: Site) -> None:
    channel = transport.Channel(site.endpoint)
    hello = queue_pb2.Hello(protocol_version=99, topology="t", component="c", queue="q_dbs1", incarnation="1")
    call = queue_pb2_grpc.QueueStub(channel.grpc).Enqueue(iter([queue_pb2.EnqueueRequest(hello=hello)]))
    assert call.code().name == "FAILED_PRECONDITION"
    assert "version 99" in call.details()
    channel.close()


def test_strangers_and_wrong_queues_get_the_queues_own_error(site: Site) -> None:
    for options, kind, match in (
        ({"queue": "other"}, ProtocolError, "this is t/q_dbs1"),
        ({"topology": "u"}, ProtocolError, "this is t/q_dbs1"),
        ({"source": "dbs9"}, QueueError, "takes no LCRs of dbs9"),
    ):
        publisher = site.publisher(**options)
        with pytest.raises(kind, match=match):
            publisher.connect()
        publisher.close()
    subscriber = site.subscriber(component="nobody")
    with pytest.raises(QueueError, match="nobody is no subscriber"):
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    subscriber.close()


def test_address_without_a_server_is_a_propagation_error(site: Site) -> None:
    endpoint = site.endpoint
    site.stop()
    publisher = site.publisher(endpoint)
    with pytest.raises(PropagationError, match=endpoint):
        publisher.connect()


def test_gap_ends_the_stream_with_a_protocol_error(site: Site) -> None:
    publisher = site.publisher()
    publisher.connect()
    send(publisher, insert_batch([20], previous=10))
    error = fails(publisher.poll, ARRIVES_S)
    assert isinstance(error, ProtocolError)
    assert "missing in between" in error.message
    publisher.close()


@pytest.mark.slow
def test_value_of_64_megabytes_passes(tmp_path: Path) -> None:
    site = Site(tmp_path, memory=1 << 20, spill=1 << 30)  # larger than all of the queue's memory
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    batch = insert_batch([10], value=bytes(range(256)) * (64 << 12))
    send(publisher, batch)
    send(publisher, insert_batch([20], previous=10), timeout_s=60)  # when the large one has arrived
    delivery = subscriber.poll(60)
    assert delivery is not None
    assert len(delivery.data) > 64 << 20
    assert_same_batch(codec.decode(delivery.data), batch)
    subscriber.grant(len(delivery.data))
    following = subscriber.poll(ARRIVES_S)
    assert following is not None
    assert following.header.through_scn == 20
    subscriber.close()
    publisher.close()
    site.stop()


def test_no_part_of_a_batch_is_kept_for_a_publisher_without_credit(tmp_path: Path) -> None:
    """It declares the largest possible batch and never ends it: the received part would be held as long as the stream."""
    site = Site(tmp_path, memory=60_000, spill=0)
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, 1 << 20)
    scn = 0
    while publisher.poll().credit_bytes > 0:
        batch = insert_batch([scn + 10], previous=scn, value=bytes(5000))
        send(publisher, batch)
        until(lambda: publisher.poll().in_flight_bytes == 0)
        scn += 10
    publisher.close()
    header, ended = codec.header_to_message(header_of(insert_batch([scn + 10], previous=scn))), threading.Event()
    hello = queue_pb2.Hello(
        protocol_version=transport.PROTOCOL_VERSION,
        topology="t",
        component="capture_dbs1",
        queue="q_dbs1",
        incarnation=transport.new_incarnation(),
    )

    def forged() -> Iterator[queue_pb2.EnqueueRequest]:
        yield queue_pb2.EnqueueRequest(hello=hello)
        yield queue_pb2.EnqueueRequest(source="dbs1")
        first = queue_pb2.Fragment(header=header, data=bytes(FRAGMENT_BYTES), total_bytes=REASSEMBLED_BYTES_MAX)
        yield queue_pb2.EnqueueRequest(fragment=first)
        ended.wait()

    channel = transport.Channel(site.endpoint)
    call = queue_pb2_grpc.QueueStub(channel.grpc).Enqueue(forged(), timeout=ARRIVES_S)
    assert next(call).resume.credit_bytes == 0
    with pytest.raises(grpc.RpcError) as refused:
        list(call)
    assert "more LCRs of dbs1 than it has credit for" in str(refused.value)
    assert call.code() is grpc.StatusCode.FAILED_PRECONDITION
    ended.set()
    channel.close()
    subscriber.close()
    site.stop()


def test_publisher_without_credit_waits_and_resumes(tmp_path: Path) -> None:
    site = Site(tmp_path, memory=60_000, spill=0)
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, 1 << 20)
    model, sent = Subscriber(), 0
    for k in range(1000):
        batch = insert_batch([10 * k + 10], previous=10 * k, value=bytes(5000))
        try:
            send(publisher, batch, timeout_s=0.5)
        except WouldBlock:
            until(lambda: publisher.poll().in_flight_bytes == 0)
            if publisher.poll().credit_bytes == 0:
                break
            send(publisher, batch)  # it was only slow
        sent += 1
    assert 5 < sent < 30
    assert site.host.status().state == "PAUSED FOR FLOW CONTROL"
    with pytest.raises(WouldBlock):
        publisher.send_nowait(header_of(batch), codec.encode(batch))
    for _ in range(sent):
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        model.take(delivery.header, delivery.data)
    subscriber.acknowledge("dbs1", model.position)
    send(publisher, batch)
    subscriber.close()
    publisher.close()
    site.stop()


def test_slow_subscriber_does_not_slow_the_other(tmp_path: Path) -> None:
    site = Site(tmp_path, subscribers=("apply_a", "to_b"), memory=1 << 20, spill=1 << 28)
    publisher, fast, slow = site.publisher(), site.subscriber(), site.subscriber(component="to_b")
    publisher.connect()
    fast.subscribe({"dbs1": Scn(0)}, CREDIT)
    slow.subscribe({"dbs1": Scn(0)}, 1)
    for k in range(200):
        send(publisher, insert_batch([10 * k + 10], previous=10 * k, value=bytes(50_000)))
        delivery = fast.poll(ARRIVES_S)
        assert delivery is not None
        fast.grant(len(delivery.data))
    status = status_of(site.host, QueueStatus)
    assert status.spilled_rows > 100
    model = Subscriber()
    while model.position < 2000:
        delivery = slow.poll(ARRIVES_S)
        assert delivery is not None
        slow.grant(len(delivery.data))
        model.take(delivery.header, delivery.data)
    assert len(model.applied) == 200
    for client in (publisher, fast, slow):
        client.close()
    site.stop()


def test_cut_connection_is_noticed_at_once_and_both_sides_resume(site: Site) -> None:
    with Proxy(site.endpoint) as proxy:
        publisher, subscriber, model = site.publisher(proxy.endpoint), site.subscriber(proxy.endpoint), Subscriber()
        publisher.connect()
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        send(publisher, insert_batch([10]))
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        model.take(delivery.header, delivery.data)
        assert proxy.connections == 2
        proxy.cut()
        assert isinstance(fails(publisher.poll, AT_ONCE_S), PropagationError)
        assert isinstance(fails(subscriber.poll, AT_ONCE_S), PropagationError)
        publisher.close()
        subscriber.close()
        refused = site.publisher(proxy.endpoint)
        with pytest.raises(PropagationError):
            refused.connect()
        proxy.heal()
        publisher, subscriber = site.publisher(proxy.endpoint), site.subscriber(proxy.endpoint)
        assert publisher.connect().needed_scn == 10
        subscriber.subscribe({"dbs1": Scn(model.position)}, CREDIT)
        send(publisher, insert_batch([20], previous=10))
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        model.take(delivery.header, delivery.data)
        assert model.applied == [10, 20]
        publisher.close()
        subscriber.close()


def shorten(monkeypatch: pytest.MonkeyPatch, site: Site, shorter: Mapping[str, int]) -> None:
    """Restart the server, and make later clients, with other gRPC options: the shipped ones are in seconds."""
    for name in ("_CHANNEL_OPTIONS", "_SERVER_OPTIONS"):
        monkeypatch.setattr(
            transport, name, [(key, shorter.get(key, value)) for key, value in getattr(transport, name)]
        )
    site.restart()


@pytest.mark.slow
@pytest.mark.parametrize("is_shipped", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_half_open_connection_is_noticed_from_both_ends(
    site: Site, is_shipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_shipped:
        shorten(
            monkeypatch,
            site,
            {
                "grpc.keepalive_time_ms": 1000,
                "grpc.keepalive_timeout_ms": 2000,
                "grpc.http2.ping_timeout_ms": 2000,
                "grpc.http2.min_ping_interval_without_data_ms": 500,
            },
        )
    with Proxy(site.endpoint) as proxy:
        publisher, subscriber = site.publisher(proxy.endpoint), site.subscriber(proxy.endpoint)
        publisher.connect()
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        began = time.monotonic()
        proxy.swallow()
        assert isinstance(fails(publisher.poll, NOTICED_S), PropagationError)
        assert isinstance(fails(subscriber.poll, NOTICED_S), PropagationError)
        # The queue also notices: the names are free again.
        until(lambda: not status_of(site.host, QueueStatus).sources["dbs1"].publisher, NOTICED_S)
        until(lambda: not status_of(site.host, QueueStatus).subscribers[0].connected, NOTICED_S)
        assert time.monotonic() - began < NOTICED_S
        publisher.close()
        subscriber.close()
        proxy.heal()
        publisher = site.publisher(proxy.endpoint)
        publisher.connect()
        publisher.close()


def test_newer_stream_takes_over_while_the_older_one_hangs(site: Site) -> None:
    with Proxy(site.endpoint) as proxy:
        hanging, hanging_subscriber = site.publisher(proxy.endpoint), site.subscriber(proxy.endpoint)
        hanging.connect()
        hanging_subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        proxy.stall()
        publisher, subscriber = site.publisher(), site.subscriber()
        publisher.connect()
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        send(publisher, insert_batch([10]))
        assert subscriber.poll(ARRIVES_S) is not None
        proxy.heal()
        for error in (fails(hanging.poll, ARRIVES_S), fails(hanging_subscriber.poll, ARRIVES_S)):
            assert isinstance(error, QueueError)
            assert "replaced" in error.message
        for client in (hanging, hanging_subscriber, publisher, subscriber):
            client.close()


def test_delayed_network_keeps_the_order(site: Site) -> None:
    with Proxy(site.endpoint) as proxy:
        publisher, subscriber, model = site.publisher(proxy.endpoint), site.subscriber(proxy.endpoint), Subscriber()
        publisher.connect()
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        proxy.delay_s = 0.25
        began = time.monotonic()
        for k in range(50):
            send(publisher, insert_batch([10 * k + 10], previous=10 * k, value=bytes(10_000)))
        while model.position < 500:
            delivery = subscriber.poll(ARRIVES_S)
            assert delivery is not None
            model.take(delivery.header, delivery.data)
        # Pipelined: without a round trip for each batch.
        assert 0.5 < time.monotonic() - began < 50 * 0.5
        publisher.close()
        subscriber.close()


def test_restarted_queue_is_empty_and_requests_the_missing_changes(site: Site) -> None:
    publisher, subscriber, model = site.publisher(), site.subscriber(), Subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    batches = [insert_batch([10 * k + 10], previous=10 * k) for k in range(5)]
    for batch in batches:
        send(publisher, batch)
    for _ in batches[:4]:
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        model.take(delivery.header, delivery.data)
        if model.position == 20:
            model.commit()
            subscriber.acknowledge("dbs1", 20)
    until(lambda: publisher.poll().durable_scn == 20)
    site.restart()
    fails(publisher.poll, AT_ONCE_S)
    fails(subscriber.poll, AT_ONCE_S)
    publisher.close()
    subscriber.close()
    publisher, subscriber = site.publisher(), site.subscriber()
    resume = publisher.connect()
    assert resume.needed_scn == 20
    subscriber.subscribe({"dbs1": Scn(model.crash())}, CREDIT)
    for batch in batches[2:]:
        send(publisher, batch)
    while model.position < 50:
        delivery = subscriber.poll(ARRIVES_S)
        assert delivery is not None
        model.take(delivery.header, delivery.data)
    assert model.applied == [10, 20, 30, 40, 50]
    publisher.close()
    subscriber.close()


def test_subscriber_that_needs_older_changes_makes_the_publisher_rewind(site: Site) -> None:
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    send(publisher, insert_batch([10, 20]))
    assert subscriber.poll(ARRIVES_S) is not None
    subscriber.acknowledge("dbs1", 20)
    until(lambda: status_of(site.host, QueueStatus).batches == 0)
    again = site.subscriber()
    again.subscribe({"dbs1": Scn(10)}, CREDIT)
    rewinds: list[int] = []

    def rewound() -> bool:
        rewind = publisher.poll().rewind_scn
        if rewind is not None:
            rewinds.append(rewind)
        return bool(rewinds)

    until(rewound)
    assert rewinds == [10]
    assert publisher.poll().rewind_scn is None
    send(publisher, insert_batch([20, 30], previous=10))
    delivery = again.poll(ARRIVES_S)
    assert delivery is not None
    assert (delivery.header.previous_scn, delivery.header.through_scn) == (10, 30)
    for client in (publisher, subscriber, again):
        client.close()


def test_publisher_without_the_changes_ends_the_subscribers_stream(site: Site) -> None:
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    send(publisher, insert_batch([10, 20]))
    assert subscriber.poll(ARRIVES_S) is not None
    subscriber.acknowledge("dbs1", 20)
    until(lambda: status_of(site.host, QueueStatus).batches == 0)
    again = site.subscriber()
    again.subscribe({"dbs1": Scn(10)}, CREDIT)
    until(lambda: publisher.poll().rewind_scn == 10)
    publisher.gone(15)
    with pytest.raises(LogGone) as ended:
        again.poll(ARRIVES_S)
    assert (ended.value.context["needed_scn"], ended.value.context["first_scn"]) == (10, 15)
    refused = site.subscriber()
    with pytest.raises(LogGone, match="gone from the redo log"):
        refused.subscribe({"dbs1": Scn(10)}, CREDIT)
    for client in (publisher, subscriber, again, refused):
        client.close()


def test_idle_streams_outlive_many_pings(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes too frequent pings for an attack, and ends the connection after a few of them."""
    interval_s, pings = 0.5, 6  # a server that objects ends the connection at the third
    shorten(
        monkeypatch,
        site,
        {
            "grpc.keepalive_time_ms": round(interval_s * 1000),
            "grpc.http2.min_ping_interval_without_data_ms": round(interval_s * 500),
        },
    )
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    time.sleep(interval_s * pings)
    send(publisher, insert_batch([10, 20]))
    delivery = subscriber.poll(ARRIVES_S)
    assert delivery is not None
    assert delivery.header.through_scn == 20
    publisher.close()
    subscriber.close()


def test_streams_leave_no_threads_behind(site: Site) -> None:
    before = threading.active_count()
    for _ in range(10):
        publisher, subscriber = site.publisher(), site.subscriber()
        publisher.connect()
        subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
        subscriber.close()
        publisher.close()
    # The server's pool keeps the threads that it once needed: two streams at a time, and one that is just ending for
    # each.
    until(lambda: threading.active_count() <= before + 8)


def test_full_disk_when_positions_are_saved_is_shown_and_recovers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, subscriber = site.publisher(), site.subscriber()
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(70)}, CREDIT)

    def full(queue: QueueCore, positions: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QueueCore, "save_positions", full)
        subscriber.acknowledge("dbs1", 70)
        until(lambda: "No space" in site.host.status().problem)
        assert publisher.poll().durable_scn == 0
    until(lambda: publisher.poll().durable_scn == 70, ARRIVES_S + 10 * SAVE_PERIOD_S)
    publisher.close()
    subscriber.close()


class Writer:
    """The part of a log writer that its server uses."""

    def __init__(self) -> None:
        self.position = RedoPosition(1, 100, 10)
        self.required: dict[str, int] = {}
        self.required_checkpoints = self

    def record(self, capture: str, scn: int) -> int:
        self.required[capture] = max(scn, self.required.get(capture, 0))
        return self.required[capture]

    def mine_again(self, capture: str, scn: int) -> int:
        self.again = (capture, scn)
        return self.required[capture]


def test_capture_learns_of_redo_at_once_and_reports_required_checkpoint(request: pytest.FixtureRequest) -> None:
    writer = Writer()
    server = RedoServer("t", "dbs1", writer)
    request.addfinalizer(server.stop)
    woken = threading.Event()
    client = RedoWatchClient(
        server.endpoint, topology="t", capture="capture_dbs1", source="dbs1", incarnation="1", wake=woken.set
    )
    request.addfinalizer(client.close)
    assert client.connect() == RedoPosition(1, 100, 10)
    for segment in range(2, 50):
        writer.position = RedoPosition(segment, 0, segment * 10)
        server.announce()
    position = client.poll()
    while position.segment < 49:
        assert woken.wait(ARRIVES_S)
        woken.clear()
        moved = client.poll()
        assert moved >= position
        position = moved
    assert client.checkpoint(30) == 30
    assert client.checkpoint(20) == 30
    assert client.mine_again(10) == 30
    assert writer.required == {"capture_dbs1": 30}
    assert writer.again == ("capture_dbs1", 10)
    # No one can declare unwritten redo unnecessary: the redo that arrives is kept.
    assert client.checkpoint(2**62) == 490
    assert client.mine_again(2**62) == 490
    assert writer.again == ("capture_dbs1", 490)
    other = Writer()
    other.position = RedoPosition(60, 0, 600)
    server.attach(other)
    until(lambda: client.poll().segment == 60)
    server.stop()
    assert isinstance(fails(client.poll, ARRIVES_S), PropagationError)
    with pytest.raises(PropagationError):
        client.checkpoint(40)


def test_capture_of_another_site_or_version_is_refused() -> None:
    server = RedoServer("t", "dbs1", Writer())
    client = RedoWatchClient(server.endpoint, topology="t", capture="c", source="dbs2", incarnation="1")
    with pytest.raises(ProtocolError, match="this is t/dbs1"):
        client.connect()
    client.close()
    server.stop()


def test_checkpoint_for_another_topology_or_version_removes_no_redo(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart a port may belong to another site; redo purged by mistake would be lost for good."""
    writer = Writer()
    server = RedoServer("t", "dbs1", writer)
    stranger = RedoWatchClient(server.endpoint, topology="u", capture="c", source="dbs1", incarnation="1")
    with pytest.raises(ProtocolError, match="this is t/dbs1"):
        stranger.checkpoint(40)
    monkeypatch.setattr(transport, "PROTOCOL_VERSION", 99)
    newer = RedoWatchClient(server.endpoint, topology="t", capture="c", source="dbs1", incarnation="1")
    monkeypatch.undo()
    with pytest.raises(ProtocolError, match="protocol version 99"):
        newer.checkpoint(40)
    with pytest.raises(ProtocolError, match="protocol version 99"):
        newer.connect()
    assert writer.required == {}
    stranger.close()
    newer.close()
    server.stop()
