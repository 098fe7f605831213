"""A propagation between two real queue servers over networks that break and queues that restart."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from actors.staging.propagation_host import PropagationHost
from actors.staging.queue import QueueCore
from headrace.base.errors import HeadraceError, PropagationError, ProtocolError, QueueError, WouldBlock
from headrace.faults.proxy import Proxy
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.status.propagations import PropagationStatus
from protos import codec, queue_pb2
from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from protos.wire import transport
from protos.wire.compression import Compressor
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import values
from tests.support.session.seeds import scaled, seed_of
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.links import loopback
from tests.support.wire.staging import History, Subscriber, one_way
from topology.edits.changes import changes
from topology.schedule import Schedule, Window
from topology.spec import PropagationSpec

pytestmark = pytest.mark.long

LOST = (PropagationError, ProtocolError, QueueError)


class Served:
    """A queue on a real server behind a proxy. It can be killed: its folder stays, and no stream is closed in order."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.start()
        self.proxy = Proxy(lambda: self.endpoint)

    def start(self) -> None:
        topology = one_way(self.folder, subscribers=("to_dbs2",), memory=1 << 20, spill=1 << 22)
        self.core = QueueCore(topology, self.name, self.folder / self.name)
        self.server = QueueServer(self.core)
        self.endpoint = self.server.endpoint
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def publisher(self, component: str, incarnation: str = "1", **options: Any) -> EnqueueClient:
        """Return a client that enqueues changes of dbs1."""
        return EnqueueClient(
            self.endpoint,
            topology="t",
            component=component,
            queue=self.name,
            incarnation=incarnation,
            source="dbs1",
            **options,
        )

    def _keep(self) -> None:
        while not self._stop.wait(self.server.service.housekeeping()):
            pass

    def kill(self) -> None:
        self._stop.set()
        self._keeper.join()
        self.server._server.stop(0)

    def close(self) -> None:
        self.proxy.close()
        self.kill()
        self.server.stop()


def hosted(folder: Path, spec: PropagationSpec, resolve: Callable[[str], str]) -> PropagationHost:
    """Return a running propagation."""
    topology = replace(one_way(folder, subscribers=("to_dbs2",)), propagations=(spec,))
    host = PropagationHost(topology, spec.name, "", loopback(resolve))
    host.start()
    return host


@dataclass
class Hop:
    """A running propagation between two queues, with a publisher to the first and a subscriber to the second."""

    far: Served
    host: PropagationHost
    publisher: EnqueueClient
    subscriber: DequeueClient

    def send(self, batches: Sequence[LcrBatch]) -> None:
        for batch in batches:
            self.publisher.send(header_of(batch), codec.encode(batch), timeout_s=STALL_S)

    def assert_arriving(self, batches: Sequence[LcrBatch]) -> None:
        """Check that the batches arrive byte for byte, in order."""
        for batch in batches:
            delivery = self.subscriber.poll(60)
            assert delivery is not None
            assert delivery.data == codec.encode(batch)


@contextmanager
def hop(folder: Path, **options: Any) -> Iterator[Hop]:
    """Provide a hop whose propagation has these options; check that it ends without errors."""
    near, far = Served(folder, "q_dbs1"), Served(folder, "q_dbs2")
    spec = PropagationSpec(name="to_dbs2", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",), **options)
    addresses = {"queue:q_dbs1": near.endpoint, "queue:q_dbs2": far.proxy.endpoint}
    host = hosted(folder, spec, addresses.__getitem__)
    publisher = near.publisher("capture_dbs1")
    subscriber = DequeueClient(far.endpoint, topology="t", component="apply_far", queue="q_dbs2", incarnation="1")
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, 1 << 26)
    yield Hop(far, host, publisher, subscriber)
    assert host.end()
    for each in (publisher, subscriber, near, far):
        each.close()


def test_compressed_batches_arrive_unchanged_and_the_line_carries_less(tmp_path: Path) -> None:
    """Covers a batch larger than a fragment and one that does not compress."""
    values = [b"abcdefgh" * 50, b"abcdefgh" * 300_000, random.Random(1).randbytes(300_000)]
    sent = [insert_batch([10 * k + 10], previous=10 * k, value=value) for k, value in enumerate(values)]
    size = sum(len(codec.encode(batch)) for batch in sent)
    with hop(tmp_path, compression="zstd") as made:
        made.send(sent)
        made.assert_arriving(sent)
        wait_until(
            "everything is accepted",
            lambda: status_of(made.host, PropagationStatus).sources["dbs1"].accepted_scn == 30,
            60,
        )
        found = status_of(made.host, PropagationStatus).compression
        assert (found.method, found.bytes_before) == ("zstd", size)
        assert 300_000 < found.bytes_after < size // 5
        assert found.cpu_s > 0
        assert 300_000 < made.far.proxy.forwarded_bytes < size // 5


def test_closed_host_reports_its_opening_time_and_an_edit_opens_it(tmp_path: Path) -> None:
    near, far = Served(tmp_path, "q_dbs1"), Served(tmp_path, "q_dbs2")
    addresses = {"queue:q_dbs1": near.endpoint, "queue:q_dbs2": far.proxy.endpoint}
    hour = (time.gmtime().tm_hour + 6) % 24
    closed = Schedule(windows=(Window(hour=hour, minute=0, duration_s=3600),))
    spec = one_way(tmp_path, subscribers=("to_dbs2",))
    (propagation,) = spec.propagations
    edited = replace(spec, propagations=(replace(propagation, schedule=closed, bandwidth_max=1 << 20),))
    assert [
        (each.action, each.facets) for each in changes(edited, spec) if each.component == "propagation:to_dbs2"
    ] == [("takes over", ("bandwidth", "schedule"))]
    host = PropagationHost(edited, "to_dbs2", "closed", loopback(addresses.__getitem__))
    host.start()
    status = wait_until("it is closed", lambda: (seen := host.status()).state == "CLOSED" and seen, 60)
    assert status.closed_until.endswith(f"{hour:02}:00 UTC")
    assert far.proxy.accepted == 0
    publisher = near.publisher("capture_dbs1")
    publisher.connect()
    batch = insert_batch([10])
    publisher.send(header_of(batch), codec.encode(batch), timeout_s=STALL_S)
    host.reconfigure(spec, "open")
    wait_until("it is sent", lambda: far.server.service.status().sources["dbs1"].position_scn == 10, 60)
    assert status_of(host, PropagationStatus).closed_until is None
    host.reconfigure(edited, "closed again")
    wait_until("it is closed again", lambda: host.status().state == "CLOSED" and far.proxy.connections == 0, 60)
    assert host.end()
    for each in (publisher, near, far):
        each.close()


def test_paced_batches_arrive_complete_over_a_line_that_breaks_within_one(tmp_path: Path) -> None:
    """Checks the bandwidth as a lower bound of the time, which a slow machine cannot break. The broken batch is sent
    again from its beginning.
    """
    # The first batch takes six seconds, so a machine that stalls still finds it in progress.
    rate, sizes = 200_000, (1_200_000, 10, 100_000)
    random_bytes = random.Random(2).randbytes
    sent = [insert_batch([10 * k + 10], previous=10 * k, value=random_bytes(size)) for k, size in enumerate(sizes)]
    with hop(tmp_path, compression="zstd", bandwidth_max=rate) as made:
        began = time.monotonic()
        made.send(sent)
        # Only a part of the first batch has been sent, and the rest takes seconds. None of it is in the queue, so all
        # of it is sent again.
        wait_until("pieces are on their way", lambda: made.far.proxy.forwarded_bytes > 150_000, 60)
        assert made.far.server.service.status().sources["dbs1"].position_scn == 0
        made.far.proxy.reset()
        made.assert_arriving(sent)
        assert (made.host.status().errors_total or 0) > 0, "the line never broke"
        # Subtract by how much the last pieces of each stream can be early.
        assert time.monotonic() - began > (150_000 + sum(sizes)) / rate - 0.3


def test_queue_without_compression_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older queue's answer lacks the list of supported compressions. Such a queue would store compressed bytes as a
    batch.
    """
    far = Served(tmp_path, "q_dbs2")
    resume = queue_pb2.Resume
    monkeypatch.setattr(queue_pb2, "Resume", lambda **fields: resume(**{**fields, "compressions": []}))
    publisher = far.publisher("to_dbs2", compressor=Compressor())
    with pytest.raises(ProtocolError, match="takes no compressed batches: it runs an older Headrace") as refused:
        publisher.connect()
    assert "compression: none" in refused.value.hint
    plain = far.publisher("to_dbs2", "2")
    assert plain.connect().needed_scn == 0
    plain.close()
    far.close()


class Endless:
    """Run work in a thread and restart it whenever its streams break, as a component's host does."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self.restarts = 0
        self.problem: BaseException | None = None
        self._work, self._stop = work, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work(self._stop)
            except LOST:
                self.restarts += 1
                self._stop.wait(0.05)
            except BaseException as error:
                self.problem = error
                raise

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.problem is not None:
            raise self.problem


class World:
    """capture -> q_dbs1 -> to_dbs2 -> q_dbs2 -> apply, all over loopback and two proxies."""

    def __init__(self, folder: Path) -> None:
        self.queues = {name: Served(folder, name) for name in ("q_dbs1", "q_dbs2")}
        self.history, self.model = History(value=bytes(3000)), Subscriber()
        self.cuts = random.Random(1)
        (propagation,) = one_way(folder, subscribers=("to_dbs2",)).propagations
        self.propagation = hosted(folder, propagation, self.resolve)
        self.workers = [Endless(self.capture), Endless(self.apply)]

    def resolve(self, name: str) -> str:
        return self.queues[name.removeprefix("queue:")].proxy.endpoint

    def capture(self, stop: threading.Event) -> None:
        client = EnqueueClient(
            self.resolve("queue:q_dbs1"),
            topology="t",
            component="capture_dbs1",
            queue="q_dbs1",
            source="dbs1",
            incarnation=transport.new_incarnation(),
        )
        try:
            position, to_send = client.connect().needed_scn, list[LcrBatch]()
            while not stop.is_set():
                rewind = client.poll().rewind_scn
                if rewind is not None:
                    position, to_send = rewind, []
                if not to_send:
                    to_send = self.history.batches_after(position, self.cuts)
                    if not to_send:
                        time.sleep(0.005)
                        continue
                    position = to_send[-1].through_scn
                with suppress(WouldBlock):
                    client.send(header_of(to_send[0]), codec.encode(to_send[0]), 0.1)
                    to_send.pop(0)
        finally:
            client.close()

    def apply(self, stop: threading.Event) -> None:
        client = DequeueClient(
            self.resolve("queue:q_dbs2"),
            topology="t",
            component="apply_far",
            queue="q_dbs2",
            incarnation=transport.new_incarnation(),
        )
        try:
            client.subscribe({"dbs1": Scn(self.model.crash())}, 1 << 20)
            while not stop.is_set():
                delivery = client.poll(0.1)
                if delivery is not None:
                    self.model.take(delivery.header, delivery.data)
                    client.grant(len(delivery.data))
                    if self.cuts.random() < 0.2 or not self.is_behind():
                        self.model.commit()
                        client.acknowledge("dbs1", self.model.durable)
        finally:
            client.close()

    def is_behind(self) -> bool:
        return len(self.model.applied) < len(self.history.rows)

    def commit(self, count: int) -> None:
        for _ in range(count):
            self.history.commit(self.cuts.choice([1, 1, 1, 1, 12]))

    def wait(self, timeout_s: float = 180.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.is_behind():
            assert time.monotonic() < deadline, (
                self.propagation.status(),
                [q.server.service.status() for q in self.queues.values()],
            )
            for worker in self.workers:
                assert worker.problem is None, worker.problem
            time.sleep(0.01)

    def breaks(self) -> int:
        """Return how often a stream of the propagation broke."""
        return int(self.propagation.status().errors_total)

    def wait_broken(self, before: int) -> None:
        """Wait until the propagation has noticed that a queue is down."""
        wait_until("the propagation misses its queue", lambda: self.breaks() > before)

    def check(self) -> None:
        assert self.model.applied == list(range(10, 10 * len(self.history.rows) + 1, 10))
        assert [self.model.rows_of[scn] for scn in self.model.applied] == self.history.rows

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        assert self.propagation.end()
        for queue in self.queues.values():
            with suppress(HeadraceError):
                queue.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_everything_arrives_and_leaves_both_queues_when_durable(world: World) -> None:
    world.commit(200)
    world.wait()
    world.check()
    deadline = time.monotonic() + 60
    while any(queue.server.service.status().batches for queue in world.queues.values()):
        assert time.monotonic() < deadline, "a queue keeps durable batches"
        time.sleep(0.05)
    status = status_of(world.propagation, PropagationStatus).sources["dbs1"]
    assert status.rows_total == sum(world.history.rows)
    assert status.accepted_scn >= world.history.end
    assert [world.breaks(), *(worker.restarts for worker in world.workers)] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("name", values(["q_dbs1", "q_dbs2"], "q_dbs1"))
def test_cut_network_neither_loses_nor_duplicates_batches(world: World, name: str) -> None:
    for _ in range(5):
        world.commit(40)
        time.sleep(0.05)
        before = world.breaks()
        world.queues[name].proxy.cut()
        world.commit(20)
        world.wait_broken(before)
        world.queues[name].proxy.heal()
    world.wait()
    world.check()


@pytest.mark.slow
@pytest.mark.soak  # the random faults of `make test` kill queues, too
@pytest.mark.fault
@pytest.mark.parametrize("name", ["q_dbs1", "q_dbs2"])
def test_killed_queue_neither_loses_nor_duplicates_batches(world: World, name: str) -> None:
    for _ in range(4):
        world.commit(60)
        time.sleep(0.1)
        before = world.breaks()
        world.queues[name].kill()
        world.commit(20)
        world.wait_broken(before)
        world.queues[name].start()
    world.wait()
    world.check()


@pytest.mark.slow
@pytest.mark.seeded
@pytest.mark.fault
def test_random_faults_neither_lose_nor_duplicate_batches(world: World) -> None:
    faults = random.Random(seed_of("random faults"))
    fired = 0
    for _ in range(scaled(15, 200)):
        world.commit(faults.randint(1, 60))
        queue = world.queues[faults.choice(["q_dbs1", "q_dbs2"])]
        match faults.choice(["nothing", "reset", "stall", "delay", "kill"]):
            case "reset":
                queue.proxy.reset()
                fired += 1
            case "stall":
                queue.proxy.stall()
                time.sleep(0.1)
                queue.proxy.heal()
                fired += 1
            case "delay":
                queue.proxy.delay_s = faults.choice([0.0, 0.01])
            case "kill":
                queue.kill()
                queue.start()
                fired += 1
        time.sleep(faults.uniform(0, 0.1))
    for queue in world.queues.values():
        queue.proxy.delay_s = 0.0
    world.wait()
    world.check()
    assert fired > 3
