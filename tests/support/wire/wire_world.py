"""Every service of the wire on its own server, with our regular clients, and a site `fuzz` that a test plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from actors.staging.queue import QueueCore
from headrace.databases.connectors import DatabaseAccess
from headrace.lcr.scn import Scn
from headrace.links.ports import RedoPosition, header_of
from headrace.redo.standby.shipping import RedoShipping
from protos import apply_pb2 as pb
from protos import codec
from protos.links.apply_link import ServerStream, serve_apply
from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from protos.links.redo_link import RedoServer, RedoWatchClient
from protos.links.spark_link import HealthClient, serve_tasks
from protos.wire import transport
from protos.wire.admission import PUBLISH, READ_REDO, RECEIVE_REDO, SUBSCRIBE, Admission, Callers
from protos.wire.identity import Peer
from spark_apply.apply_config import ApplyConfig
from spark_apply.driver.gate import Gate
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.certificates import Certificates
from tests.support.wire.staging import one_way
from topology.spec import CaptureSpec, TopologySpec

TOKEN = "right"
OURS, FUZZ = "dbs1", "fuzz"  # sites: our servers and clients are at the first; the test plays the second
CALLERS: Callers = {
    PUBLISH: {"capture_dbs1": OURS, "capture_fuzz": FUZZ},
    SUBSCRIBE: {"apply_a": OURS, "apply_fuzz": FUZZ},
    READ_REDO: {"capture_dbs1": OURS, "capture_fuzz": FUZZ},
    RECEIVE_REDO: {"capture_fuzz": FUZZ},
}


class Writer:
    """Replaces a log writer."""

    position = RedoPosition(1, 10, Scn(5))

    def __init__(self) -> None:
        self.required_checkpoints = self
        self.recorded: dict[str, int] = {}

    def record(self, capture: str, scn: Scn) -> Scn:
        self.recorded[capture] = max(scn, self.recorded.get(capture, 0))
        return Scn(self.recorded[capture])

    def mine_again(self, capture: str, scn: Scn) -> Scn:
        assert scn >= 0
        return Scn(self.recorded.get(capture, 0))


class Host:
    """A coordinator that only listens."""

    def opened(self, stream: ServerStream) -> None:
        self.last = stream

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        stream.taken()
        assert stream.hello.token == TOKEN
        assert message.WhichOneof("kind") != "piece"

    def lost(self, stream: ServerStream, problem: str) -> None:
        assert "unforeseen" not in problem


class Runs:
    """A Spark application that accepts everything and does nothing."""

    def run(self, request: pb.RunRequest, call_ended: Callable[[Callable[[], None]], bool]) -> Iterator[pb.RunEvent]:
        yield pb.RunEvent(accepted=True)

    def health(self) -> pb.HealthReply:
        return pb.HealthReply(executors=2)


def _topology(folder: Path) -> TopologySpec:
    """Return `one_way` with a second source whose publisher and subscriber the test plays."""
    spec = one_way(folder, subscribers=("apply_a", "apply_fuzz"))
    captures = (*spec.captures, replace(spec.captures[0], name="capture_fuzz", source="fuzz"))
    assert isinstance(captures[0], CaptureSpec)
    applies = tuple(replace(each, source="fuzz") if each.name == "apply_fuzz" else each for each in spec.applies)
    return replace(spec, captures=captures, applies=applies)


class World:
    """All services, with our clients.

    Args:
        folder: for files.
        is_secure: with TLS, so that the clients of site `fuzz` are distinguished from ours.
    """

    def __init__(self, folder: Path, *, is_secure: bool = False) -> None:
        spec = _topology(folder)
        self._certificates = Certificates(folder / "certs", "t", OURS, FUZZ) if is_secure else None
        self.admissions = {name: self._admission(name) for name in ("Queue", "Redo", "Coordinator", "SparkTasks")}
        self.queue = QueueServer(QueueCore(spec, "q_dbs1", folder / "q"), admission=self.admissions["Queue"])
        (folder / "redo").mkdir()
        shipping = RedoShipping(folder / "redo", "dbs1", lambda: RedoPosition(0, 0, Scn(0)))
        shipping.register({"capture_fuzz": True})
        self.redo = RedoServer("t", "dbs1", Writer(), shipper=shipping, admission=self.admissions["Redo"])
        self.gate = gate = Gate(
            ApplyConfig(
                topology="t",
                apply="apply_a",
                queue="q_dbs1",
                source=DatabaseAccess(site="dbs1", kind="memory", dsn=""),
                destination=DatabaseAccess(site="dbs2", kind="memory", dsn=""),
            )
        )
        gate.tokens._current.add(TOKEN)
        gate.inbox = Host()  # type: ignore[assignment]
        self.apply = serve_apply("127.0.0.1", gate, servers=2, admission=self.admissions["Coordinator"])
        self.spark = serve_tasks("127.0.0.1", Runs(), TOKEN, admission=self.admissions["SparkTasks"])
        self.endpoints = {
            "Queue": self.queue.endpoint,
            "Redo": self.redo.endpoint,
            "RedoTransport": self.redo.endpoint,
            "Coordinator": self.apply.endpoint,
            "SparkTasks": self.spark.endpoint,
        }
        names = {"topology": "t", "queue": "q_dbs1", "incarnation": transport.new_incarnation()}
        self.publisher = EnqueueClient(self.peer("Queue"), component="capture_dbs1", source="dbs1", **names)
        self.subscriber = DequeueClient(self.peer("Queue"), component="apply_a", **names)
        self.watch = RedoWatchClient(
            self.peer("Redo"), topology="t", capture="capture_dbs1", source="dbs1", incarnation="1"
        )
        self._health = HealthClient(self.peer("SparkTasks"), TOKEN)
        self.publisher.connect()
        self.subscriber.subscribe({"dbs1": Scn(0)}, 4 << 20)
        self.watch.connect()
        self.scn = 0

    def _admission(self, name: str) -> Admission:
        return Admission(name, None if self._certificates is None else self._certificates.of(OURS), CALLERS)

    def peer(self, service: str, site: str = OURS) -> Peer:
        """Return how a client of a site reaches a service."""
        identity = None if self._certificates is None else self._certificates.of(site)
        return Peer(address=self.endpoints[service], site=OURS, identity=identity)

    def serves(self) -> None:
        """Assert that our own clients get what they ask for, on their first streams."""
        batch = insert_batch([self.scn + 10], previous=self.scn)
        self.scn += 10
        self.publisher.send(header_of(batch), codec.encode(batch), 20)
        delivery = self.subscriber.poll(20)
        while delivery is not None and delivery.header.is_progress_mark:
            delivery = self.subscriber.poll(20)
        assert delivery is not None
        assert delivery.header == header_of(batch)
        self.subscriber.grant(len(delivery.data))
        self.subscriber.acknowledge("dbs1", Scn(self.scn))
        self.watch.poll()
        self.watch.checkpoint(Scn(self.scn))
        assert self._health.ask().executors == 2

    def close(self) -> None:
        """Stop everything; the servers must stop in time."""
        for each in (self.publisher, self.subscriber, self.watch, self._health):
            each.close()
        for server in (self.queue, self.redo, self.apply, self.spark):
            began = time.monotonic()
            server.stop()  # waits the whole time for a server that cannot be stopped
            assert time.monotonic() - began < transport.STOP_GRACE_S + transport.STOP_TIMEOUT_S, (
                "a server could not be stopped"
            )
