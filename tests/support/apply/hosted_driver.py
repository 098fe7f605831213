"""A driver with its apply servers in one process, stepped by the test.

Fake streams and a fake queue surround the real host, with a memory destination.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from functools import partial

from headrace.base.backoff import RETRY_DELAY_MAX_S
from headrace.base.clock import VirtualClock
from headrace.base.errors import (
    HeadraceError,
    PropagationError,
)
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import resume_after
from headrace.lcr.scn import Scn
from headrace.links.ports import Delivery, header_of
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from protos import apply_pb2 as pb
from protos import codec
from spark_apply.apply_config import ApplyConfig
from spark_apply.conversation.messages import coordinator_message_from_wire, server_message_to_wire
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.gate import Gate
from spark_apply.driver.loop.host import CoordinatorHost
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.settling import DdlSettling
from spark_apply.server.apply_server import ApplyServer
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.histories.apply_history import TABLES, Reference, Source, cut_batches

__all__ = ["Driver", "Queue", "QueueStream", "Stream"]


class Stream:
    """An apply server's gRPC stream, as the host and the task see it."""

    def __init__(self, server: int = 0, *, token: str = "", apply: str = APPLY) -> None:
        self.hello = pb.ServerHello(topology=TOPOLOGY, apply=apply, server=server, token=token, pid=1)
        self.sent: deque[pb.CoordinatorMessage] = deque()
        self.is_closed = False

    def send(self, message: pb.CoordinatorMessage) -> None:
        self.sent.append(pb.CoordinatorMessage.FromString(message.SerializeToString()))

    def close(self) -> None:
        self.is_closed = True

    def taken(self) -> None:
        """Report room for everything."""


class QueueStream:
    """A stream from `Queue`."""

    def __init__(self, queue: Queue, *, is_open: bool) -> None:
        self._queue, self.is_open = queue, is_open
        self.arrived: deque[Delivery] = deque()
        self.problem: HeadraceError | None = None
        self.acknowledged: list[int] = []

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        position = needed[SOURCE]
        for batch in self._queue.batches:
            if (resumed := resume_after(batch, position)) is not None:
                self.deliver(batch if batch.previous_scn == position else resumed)
                position = resumed.through_scn

    def deliver(self, batch: LcrBatch) -> None:
        self.arrived.append(Delivery(header=header_of(batch), data=codec.encode(batch)))

    def poll(self) -> Delivery | None:
        if self.arrived:
            return self.arrived.popleft()
        if self.problem is not None:
            raise self.problem
        return None

    def grant(self, credit_bytes: int) -> None:
        self._queue.granted_bytes += credit_bytes

    def acknowledge(self, source: str, scn: Scn) -> None:
        assert source == SOURCE
        self.acknowledged.append(scn)

    def close(self) -> None:
        """Do nothing: nothing needs to be released."""


class Queue:
    """A queue with every batch, and links to it."""

    def __init__(self, batches: list[LcrBatch]) -> None:
        self.batches, self.granted_bytes, self.opens_at_once = batches, 0, True
        self.streams: list[QueueStream] = []

    def subscriber(self, queue: str) -> QueueStream:
        assert queue == "q"
        self.streams.append(QueueStream(self, is_open=self.opens_at_once))
        return self.streams[-1]

    @property
    def stream(self) -> QueueStream:
        """The latest stream."""
        return self.streams[-1]

    @property
    def acknowledged(self) -> list[int]:
        return [scn for stream in self.streams for scn in stream.acknowledged]


class Driver:
    """A host over the memory destination, with servers that this thread steps."""

    def __init__(self, *, seed: int = 1, count: int = 12, parallelism: int = 2) -> None:
        rng = random.Random(seed)
        source = Source(rng)
        source.fill(4)
        self.store = MemoryStore()
        for table in TABLES:
            table.create(self.store)
            self.store.insert("public", table.name, list(source.rows[table.name]))
        self.start = {name: list(rows) for name, rows in source.rows.items()}
        self.reference = Reference({name: list(rows) for name, rows in source.rows.items()})
        self.history = history = [source.transaction(number, rng.randrange(1, 5)) for number in range(1, count + 1)]
        for transaction in history:
            self.reference.apply(transaction)
        self.batches = cut_batches(rng, history)
        self.config = ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=DatabaseAccess(site=SOURCE, kind="memory", dsn="secret-source"),
            destination=DatabaseAccess(site="dbs2", kind="memory", dsn="secret-destination"),
            queue="q",
            parallelism=parallelism,
            group_transactions=3,
        )
        self.clock = VirtualClock()
        self.start_driver()

    instantiation: Mapping[tuple[str, str], TableStart] = {}

    def start_driver(self) -> None:
        """Begin with the destination's progress."""
        destination = MemoryDestination(store=self.store)
        progress = destination.raise_epoch(TOPOLOGY, APPLY)
        self.epoch = progress.epoch
        fits = self.fits = TableFits(
            destination.describe, lambda version: "".join(f.fix for f in destination.preflight_tables([version]))
        )
        reader = ApplyReader(
            source=SOURCE,
            progress=progress,
            rules=RuleEvaluation(RuleSet()),
            fits=fits,
            tables=ArrivingTables(self.instantiation, topology=TOPOLOGY),
            settling=DdlSettling(self.config, destination, lambda _: None),
        )
        self.coordinator = ApplyCoordinator(
            progress=progress,
            errors=(),
            encode=codec.encode,
            group_transactions=3,
            group_rows=20,
        )
        self.queue = Queue(self.batches)
        self.host = CoordinatorHost(
            self.config,
            epoch=self.epoch,
            destination=destination,
            reader=reader,
            coordinator=self.coordinator,
            fits=fits,
            make_links=lambda _: self.queue,  # type: ignore[return-value]  # stands in for the links
            clock=self.clock,
        )
        self.gate = Gate(self.config)
        self.token = self.gate.tokens.admit()
        self.gate.inbox = self.host.inbox
        self.host.begin()
        self.tasks: dict[int, tuple[Stream, ApplyServer]] = {}

    def break_stream(self) -> None:
        """Break the stream from the queue, and pass the pause before the next one."""
        self.queue.stream.arrived.clear()
        self.queue.stream.problem = PropagationError("the stream broke")
        self.host.dequeuing.hear()
        self.clock.advance(RETRY_DELAY_MAX_S)

    def start_task(self, number: int) -> Stream:
        """Start a task that says hello, opens its session and reports that it is open."""
        stream = Stream(number, token=self.token)
        self.gate.accept(stream)
        self.host.turn(0.0)
        welcome = stream.sent.popleft().welcome
        mine = MemoryDestination(store=self.store)
        open_session = partial(
            mine.open_session,
            TOPOLOGY,
            APPLY,
            server=number,
            epoch=welcome.epoch,
            tag=welcome.tag,
            incarnation=welcome.incarnation,
            is_lazy=welcome.commits_lazily,
        )
        server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            open_session=open_session,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=mine.error_batches,
        )
        server.connect()
        self.gate.receive(stream, pb.ServerMessage(state=pb.ServerState(state="IDLE", has_session=True)))
        self.tasks[number] = stream, server
        return stream

    def step_task(self, number: int) -> None:
        stream, server = self.tasks[number]
        while stream.sent:
            server.receive(coordinator_message_from_wire(stream.sent.popleft()))
        for report in server.step(self.clock.monotonic()).reports:
            self.gate.receive(stream, server_message_to_wire(report))

    def run(self, turns: int = 500) -> None:
        """Run until everything is applied."""
        for _ in range(turns):
            self.host.turn(0.0)
            for number in self.tasks:
                self.step_task(number)
            if self.coordinator.watermarks.low >= self.batches[-1].through_scn:
                return
        raise AssertionError(f"no end: {self.coordinator.status()}")

    def assert_applied(self) -> None:
        assert not self.store.errors
        for table in TABLES:
            expected = sorted(self.reference.rows[table.name], key=lambda row: [(v is not None, v or b"") for v in row])
            assert self.store.rows("public", table.name) == expected, table.name
