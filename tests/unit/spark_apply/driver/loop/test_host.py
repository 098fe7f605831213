"""The host brings queue, cores and apply servers together: over fake streams, with the destination in memory.

Longer than 500 lines: all of it shares the fake queue and the fake streams.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from headrace.base.backoff import RETRY_DELAY_MAX_S
from headrace.base.clock import VirtualClock
from headrace.base.errors import (
    ApplyError,
    DatabaseError,
    DatabaseUnavailable,
    DestinationRestarted,
    FencedError,
    HeadraceError,
    LogGone,
    PropagationError,
    ProtocolError,
)
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.destination_views import rows_said
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import ErrorEdit, Instantiation
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion
from headrace.lcr.cutting import resume_after
from headrace.lcr.scn import Scn
from headrace.links.ports import Delivery, header_of
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from protos import apply_pb2 as pb
from protos import codec
from spark_apply.application.spark import SparkUnavailable
from spark_apply.apply_config import ApplyConfig
from spark_apply.conversation.messages import coordinator_message_from_wire, server_message_to_wire
from spark_apply.copy.standing import standings, table_starts
from spark_apply.driver import server_streams as servers_module
from spark_apply.driver.control import ApplyControl, Cores
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.gate import Gate
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.loop import inbox as loop_inbox
from spark_apply.driver.loop.dequeuing import OPEN_TIMEOUT_S
from spark_apply.driver.loop.fit_checks import FIT_AGE_MAX_S
from spark_apply.driver.loop.flushes import POLL_INTERVAL_S, RETRY_S
from spark_apply.driver.loop.host import CoordinatorHost
from spark_apply.driver.loop.newest_dequeuing import DEQUEUE_RETRY_S
from spark_apply.driver.loop.recorded_progress import RECORD_INTERVAL_S
from spark_apply.driver.loop.view_writer import DESCRIBE_INTERVAL_S
from spark_apply.driver.reader import ApplyReader
from spark_apply.server.apply_server import ApplyServer
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, table_of
from tests.support.databases.destination_contract import error_transaction
from tests.support.histories.apply_history import TABLES, Reference, Source, cut_batches
from tests.support.session.seeds import seeds
from tests.support.values.lcr_batches import column_values, transactions


class Stream:
    """What the host sees of an apply server's gRPC stream, and what the task reads from it."""

    def __init__(self, server: int = 0, *, token: str = "", apply: str = APPLY) -> None:
        self.hello = pb.ServerHello(topology=TOPOLOGY, apply=apply, server=server, token=token, pid=1)
        self.sent: deque[pb.CoordinatorMessage] = deque()
        self.is_closed = False

    def send(self, message: pb.CoordinatorMessage) -> None:
        self.sent.append(pb.CoordinatorMessage.FromString(message.SerializeToString()))

    def close(self) -> None:
        self.is_closed = True

    def taken(self) -> None:
        """There is room for everything."""


class QueueStream:
    """A stream out of `Queue`."""

    def __init__(self, queue: Queue, *, is_open: bool) -> None:
        self._queue, self.is_open = queue, is_open
        self.arrived: deque[Delivery] = deque()
        self.problem: HeadraceError | None = None
        self.acknowledged: list[int] = []

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        for batch in self._queue.batches:
            if (resumed := resume_after(batch, needed[SOURCE])) is not None:
                self.deliver(batch if self.arrived else resumed)

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
        """It has nothing to give back."""


class Queue:
    """A queue that has every batch, with the links to it."""

    def __init__(self, batches: list[LcrBatch]) -> None:
        self.batches, self.granted_bytes, self.opens_at_once = batches, 0, True
        self.streams: list[QueueStream] = []

    def subscriber(self, queue: str) -> QueueStream:
        assert queue == "q"
        self.streams.append(QueueStream(self, is_open=self.opens_at_once))
        return self.streams[-1]

    @property
    def stream(self) -> QueueStream:
        """The last one."""
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

    instantiation: ClassVar[dict[tuple[str, str], TableStart]] = {}

    def start_driver(self) -> None:
        """Begin with what the destination has."""
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
            tables=ArrivingTables(self.instantiation),
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
            make_links=lambda _: self.queue,
            clock=self.clock,  # type: ignore[arg-type,return-value]
        )
        self.gate = Gate(self.config)
        self.token = self.gate.tokens.admit()
        self.gate.inbox = self.host.inbox
        self.host.begin()
        self.tasks: dict[int, tuple[Stream, ApplyServer]] = {}

    def break_stream(self) -> None:
        """The stream out of the queue breaks, and the pause before the next one passes."""
        self.queue.stream.arrived.clear()
        self.queue.stream.problem = PropagationError("the stream broke")
        self.host.dequeuing.hear()
        self.clock.advance(RETRY_DELAY_MAX_S)

    def start_task(self, number: int) -> Stream:
        """A task says hello, opens its session and says that it is open."""
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
        """Until everything is applied."""
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


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_batches_of_the_queue_are_applied_by_every_server_and_reported_durable(driver: Driver) -> None:
    for number in range(2):
        driver.start_task(number)
    driver.run()
    driver.assert_applied()
    driver.store.flush()
    driver.clock.advance(RECORD_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.queue.acknowledged == sorted(driver.queue.acknowledged)
    assert driver.queue.acknowledged[-1] == driver.batches[-1].through_scn
    assert driver.queue.granted_bytes == sum(len(codec.encode(batch)) for batch in driver.batches)


def test_low_watermark_is_durable_for_the_queue_only_when_the_destination_has_it(driver: Driver) -> None:
    through = driver.batches[-1].through_scn
    mark = LcrBatch(source=SOURCE, previous_scn=through, through_scn=Scn(through + 500))
    driver.start_task(0)
    driver.run()
    driver.queue.stream.deliver(mark)
    driver.clock.advance(RECORD_INTERVAL_S)
    driver.host.turn(0.0)
    driver.host.turn(0.0)
    recorded = MemoryDestination(store=driver.store).progress(TOPOLOGY, APPLY)
    assert recorded is not None
    assert driver.queue.acknowledged[-1] <= recorded.low_watermark
    assert driver.coordinator.watermarks.low == through + 500


def test_what_is_told_and_waited_for_is_on_the_destinations_disk(driver: Driver) -> None:
    begun, through = driver.host.progress.kept_scn, driver.batches[-1].through_scn
    driver.start_task(0)
    driver.run()
    assert driver.store.unflushed, "commits do not wait for the disk"
    assert driver.coordinator.watermarks.low == through
    assert not driver.queue.acknowledged
    assert (driver.host.progress.recorded_scn, driver.host.progress.kept_scn) == (begun, begun)
    driver.clock.advance(POLL_INTERVAL_S)
    driver.store.flush()
    driver.host.turn(0.0)
    assert driver.queue.acknowledged == [driver.host.progress.recorded_scn]
    assert driver.host.progress.kept_scn == through


def test_destination_that_is_away_is_not_asked_all_the_time_and_its_answer_ends_the_problem(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt to connect may block the loop for seconds.

    Without a pause in the load nothing else would ask, and `status` would tell the problem for good.
    """
    driver.start_task(0)
    driver.run()
    assert driver.coordinator.watermarks.durable > driver.host.progress.recorded_scn
    destination, asked = driver.host.progress._flushes._destination, []
    positions = destination.log_positions

    def ask(*arguments: Any) -> Any:
        asked.append(driver.clock.monotonic())
        if not driver.store.is_reachable:
            driver.clock.advance(10.0)  # until the attempt is given up
        return positions(*arguments)

    monkeypatch.setattr(destination, "log_positions", ask)
    driver.store.is_reachable = False
    for _ in range(5):
        driver.clock.advance(POLL_INTERVAL_S)
        driver.host._look_for_flushes(driver.clock.monotonic())
    assert len(asked) == 1
    assert driver.host.problem
    driver.store.is_reachable = True
    driver.clock.advance(RETRY_S)
    driver.host._look_for_flushes(driver.clock.monotonic())
    assert len(asked) == 2
    assert not driver.host.problem


def test_driver_ends_when_the_destination_lost_commits_and_the_next_one_applies_them_again(driver: Driver) -> None:
    driver.start_task(0)
    driver.run()
    assert driver.store.crash() > 0
    driver.clock.advance(POLL_INTERVAL_S)
    with pytest.raises(DestinationRestarted):
        driver.host.turn(0.0)
    assert not driver.queue.acknowledged
    driver.start_driver()
    driver.start_task(0)
    driver.run()
    driver.assert_applied()


def test_unique_index_made_at_the_destination_orders_transactions_after_a_while(driver: Driver) -> None:
    driver.start_task(0)
    driver.run()
    version = next(table for batch in driver.batches for table in batch.tables)
    before = driver.fits.fit(version).hashed_keys
    table = driver.store.tables["public", version.name].table
    names = [column.name for column in table.columns]
    driver.store.create_table(
        "public", table.name, table.columns, key=[names[p] for p in table.key], unique=[[names[-1]]]
    )
    driver.host.turn(0.0)
    assert driver.fits.fit(version).hashed_keys == before
    driver.clock.advance(FIT_AGE_MAX_S)
    driver.host.turn(0.0)
    assert len(driver.fits.fit(version).hashed_keys) == len(before) + 1


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("histories of a driver", test=4, soak=40))
def test_task_that_is_killed_with_groups_in_hand_is_replaced_and_nothing_is_lost_or_doubled(seed: int) -> None:
    driver = Driver(seed=seed, count=20)
    for number in range(2):
        driver.start_task(number)
    rng = random.Random(seed)
    for _ in range(6):
        for _ in range(rng.randrange(1, 4)):
            driver.host.turn(0.0)
            driver.step_task(rng.randrange(2))
        victim = rng.randrange(2)
        old = driver.tasks[victim][0]
        if rng.random() < 0.5:
            driver.gate.lost(old, "killed")
        driver.start_task(victim)
        assert old.is_closed or driver.host.servers.facts()[victim].attempts >= 2
    driver.run()
    driver.assert_applied()


def test_apply_server_begins_with_a_number_whose_session_copied_tables_before(driver: Driver) -> None:
    copies = MemoryDestination(store=driver.store)
    copies.open_session(TOPOLOGY, APPLY, server=0, epoch=driver.epoch, tag=b"", incarnation=99).close()
    driver.start_task(0)
    driver.run()
    driver.assert_applied()


def test_words_of_a_replaced_stream_are_ignored(driver: Driver) -> None:
    old = driver.start_task(0)
    driver.start_task(0)
    driver.gate.receive(old, pb.ServerMessage(failure=pb.ServerFailure(message="of the old one", final=True)))
    driver.gate.lost(old, "late")
    driver.host.turn(0.0)
    assert driver.host.servers.facts()[0].has_joined


def test_server_that_was_fenced_out_ends_the_driver(driver: Driver) -> None:
    stream = driver.start_task(0)
    driver.gate.receive(stream, pb.ServerMessage(failure=pb.ServerFailure(message="newer epoch", fenced=True)))
    with pytest.raises(FencedError):
        driver.host.turn(0.0)


def test_task_that_thaws_after_its_successor_took_over_leaves_the_successors_session_alone(driver: Driver) -> None:
    driver.start_task(0)
    frozen = driver.tasks[0][1]
    driver.start_task(0)
    frozen.close()
    with pytest.raises(FencedError):
        frozen.connect()
    driver.start_task(1)
    driver.run()
    driver.assert_applied()


def test_destination_that_lost_commits_ends_the_driver_and_the_next_one_applies_them_again(driver: Driver) -> None:
    for number in range(2):
        driver.start_task(number)
    restore = driver.store.backup()
    driver.run()
    restore()
    stream, server = driver.tasks[0]
    server.close()
    with pytest.raises(DestinationRestarted):
        server.connect()
    failure = pb.ServerFailure(message="the epoch has ended", destination_restarted=True)
    driver.gate.receive(stream, pb.ServerMessage(failure=failure))
    with pytest.raises(DestinationRestarted):
        driver.host.turn(0.0)
    driver.start_driver()
    for number in range(2):
        driver.start_task(number)
    driver.run()
    driver.assert_applied()


def test_low_watermark_is_not_recorded_over_what_the_destination_has_lost(driver: Driver) -> None:
    """An idle server has not noticed that its session is gone; the driver's own connection is a new one."""
    for number in range(2):
        driver.start_task(number)
    restore = driver.store.backup()
    driver.run()
    restore()
    through = driver.batches[-1].through_scn
    mark = LcrBatch(source=SOURCE, previous_scn=through, through_scn=Scn(through + 500))
    driver.queue.stream.deliver(mark)
    driver.clock.advance(RECORD_INTERVAL_S)
    with pytest.raises(DestinationRestarted):
        driver.host.turn(0.0)
    progress = MemoryDestination(store=driver.store).progress(TOPOLOGY, APPLY)
    assert progress is not None
    assert progress.low_watermark < through


def test_driver_ends_when_a_newer_epoch_is_found_while_a_server_joins(driver: Driver) -> None:
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    stream = Stream(0, token=driver.token)
    driver.gate.accept(stream)
    driver.gate.receive(stream, pb.ServerMessage(state=pb.ServerState(state="IDLE", has_session=True)))
    with pytest.raises(FencedError):
        driver.host.turn(0.0)


def test_older_driver_never_asks_the_queue_for_what_a_newer_one_may_have_applied(driver: Driver) -> None:
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    driver.host.dequeuing._stream.has_opened()  # of its stream the host has heard before
    driver.break_stream()  # it slept, and its stream was given to the newer one
    with pytest.raises(FencedError):
        driver.host.turn(0.0)
    assert len(driver.queue.streams) == 1


def test_driver_that_slept_between_its_look_and_the_opening_of_its_stream_acknowledges_nothing(driver: Driver) -> None:
    driver.start_task(0)
    driver.run()
    driver.store.flush()
    driver.queue.opens_at_once = False
    driver.break_stream()
    driver.host.turn(0.0)  # no newer one runs; then it sleeps, and its stream is opened late
    driver.clock.advance(POLL_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.host.progress.recorded_scn == driver.batches[-1].through_scn
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    driver.queue.stream.is_open = True
    with pytest.raises(FencedError):
        driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == []


def test_what_becomes_durable_before_a_stream_is_confirmed_is_told_then(driver: Driver) -> None:
    driver.queue.opens_at_once = False
    driver.break_stream()
    driver.start_task(0)
    driver.run()
    driver.store.flush()
    driver.clock.advance(POLL_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == []
    driver.queue.stream.is_open = True
    driver.store.is_reachable = False
    driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == [], "the destination has not said that no newer driver runs"
    driver.store.is_reachable = True
    driver.clock.advance(DEQUEUE_RETRY_S)
    driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == [driver.batches[-1].through_scn]


def test_dequeuing_begins_again_when_the_destination_answers_again(driver: Driver) -> None:
    driver.start_task(0)
    driver.host.turn(0.0)
    driver.store.is_reachable = False
    driver.break_stream()
    driver.host.turn(0.0)
    assert len(driver.queue.streams) == 1
    driver.store.is_reachable = True
    driver.clock.advance(DEQUEUE_RETRY_S)
    driver.run()
    assert len(driver.queue.streams) == 2
    driver.assert_applied()


def test_stream_that_the_queue_does_not_take_is_given_up_and_says_so(driver: Driver) -> None:
    driver.queue.opens_at_once = False
    driver.break_stream()
    driver.host.turn(0.0)
    assert len(driver.queue.streams) == 2
    driver.clock.advance(OPEN_TIMEOUT_S + 1)
    driver.host.turn(0.0)
    assert driver.host.problem == "queue q did not answer within 10 s"
    driver.queue.opens_at_once = True
    driver.clock.advance(RETRY_DELAY_MAX_S)
    driver.host.turn(0.0)
    driver.host.turn(0.0)
    assert len(driver.queue.streams) == 3
    assert not driver.host.problem


def test_queue_that_lacks_what_is_needed_ends_the_driver(driver: Driver) -> None:
    driver.queue.stream.arrived.clear()
    driver.queue.stream.problem = LogGone("up to SCN 40 they are gone", first_scn=40)
    with pytest.raises(LogGone):
        driver.host.turn(0.0)


def test_server_that_fails_again_and_again_ends_the_driver(driver: Driver) -> None:
    failure = pb.ServerMessage(failure=pb.ServerFailure(error="BugError", message="a defect"))
    for _ in range(servers_module.FAILURES_MAX - 1):
        driver.gate.receive(driver.start_task(0), failure)
        driver.host.turn(0.0)
    driver.gate.receive(driver.start_task(0), failure)
    with pytest.raises(ApplyError, match="a defect"):
        driver.host.turn(0.0)


def test_a_server_whose_process_handlers_fill_is_replaced_as_often_as_that_happens(driver: Driver) -> None:
    failure = pb.ServerMessage(
        failure=pb.ServerFailure(error="HandlersGrew", message="own:run has left 65 threads running", replaced=True)
    )
    for _ in range(2 * servers_module.FAILURES_MAX):
        driver.gate.receive(driver.start_task(0), failure)
        driver.host.turn(0.0)


def test_why_a_server_was_replaced_is_told_for_a_day(driver: Driver) -> None:
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    failure = pb.ServerMessage(
        failure=pb.ServerFailure(error="HandlersGrew", message="own:run has left 65 threads running", hint="end them")
    )
    stream = driver.start_task(0)
    driver.run()
    driver.gate.receive(stream, failure)
    driver.gate.lost(stream, "its task ended")
    driver.host.turn(0.0)
    driver.start_task(0)
    driver.run()
    status = control._read(cores)
    assert (status.detail, status.hint) == (
        "apply server 0 was replaced: own:run has left 65 threads running",
        "end them",
    )
    driver.clock.advance(servers_module.FAILURE_TOLD_S)
    assert control._read(cores).detail == ""


def test_a_server_that_fails_and_tries_again_for_long_is_told_while_it_lasts(driver: Driver) -> None:
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    stream = driver.start_task(0)
    driver.run()

    def told_after(seconds: float, state: str) -> tuple[str, str]:
        driver.clock.advance(seconds)
        told = pb.ServerState(state=state, detail="writing: lock timeout", has_session=True)
        driver.gate.receive(stream, pb.ServerMessage(state=told))
        driver.host.turn(0.0)
        status = control._read(cores)
        return status.detail, status.hint

    assert told_after(0.0, "ROLLBACK TRANSACTION") == ("", "")
    assert told_after(servers_module.FAILING_TOLD_S - 1.0, "ROLLBACK TRANSACTION") == ("", "")
    detail, hint = told_after(1.0, "ROLLBACK TRANSACTION")
    assert detail == "apply server 0 fails and tries again: writing: lock timeout"
    assert "continues by itself" in hint
    assert told_after(1.0, "IDLE") == ("", "")
    assert told_after(servers_module.FAILING_TOLD_S, "ROLLBACK TRANSACTION") == ("", "")


def test_task_that_does_not_come_back_ends_the_driver(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.run()
    driver.host.servers.accepted(is_accepted=True)
    driver.gate.lost(driver.tasks[1][0], "executor killed")
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S + 1)
    with pytest.raises(SparkUnavailable, match="did not start"):
        driver.host.turn(0.0)


def test_tasks_that_no_application_runs_are_waited_for(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.run()
    driver.host.servers.accepted(is_accepted=False)
    for number in range(2):
        driver.gate.lost(driver.tasks[number][0], "the application was killed")
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S + 1)
    driver.host.turn(0.0)
    driver.host.servers.accepted(is_accepted=True)
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S - 1)
    driver.host.turn(0.0)
    driver.clock.advance(2)
    with pytest.raises(SparkUnavailable, match="did not start"):
        driver.host.turn(0.0)


def test_task_of_a_run_that_has_ended_is_turned_away_and_one_of_the_next_run_is_let_in(driver: Driver) -> None:
    driver.start_task(0)
    older, driver.token = driver.token, driver.gate.tokens.admit()
    driver.gate.tokens.dismiss(older)
    with pytest.raises(PropagationError):
        driver.gate.accept(Stream(0, token=older))
    with pytest.raises(PropagationError):
        driver.gate.access(pb.AccessRequest(token=older))
    driver.start_task(0)


def test_server_that_reports_nothing_while_it_may_write_ends_the_driver(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.host.turn(0.0)
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.PROGRESS_TIMEOUT_S + 1)
    with pytest.raises(SparkUnavailable, match="no server reported"):
        driver.host.turn(0.0)


@pytest.mark.parametrize("stream", [Stream(token="a guess"), Stream(apply="another"), Stream(7)])
def test_stranger_is_refused(driver: Driver, stream: Stream) -> None:
    with pytest.raises(ProtocolError):
        driver.gate.accept(stream)


def test_databases_are_told_only_to_who_knows_the_token(driver: Driver) -> None:
    with pytest.raises(ProtocolError):
        driver.gate.access(pb.AccessRequest(token="a guess"))
    assert driver.gate.access(pb.AccessRequest(token=driver.token)).source.dsn == "secret-source"


def test_drained_host_hands_out_nothing_and_says_when_no_server_writes(driver: Driver) -> None:
    driver.start_task(0)
    driver.host.turn(0.0)
    driver.host.drain()
    assert driver.coordinator.state == "SHUTTING DOWN CLEANLY"
    for _ in range(10):
        driver.step_task(0)
        driver.host.turn(0.0)
    assert driver.host.is_drained()
    applied = driver.coordinator.watermarks.low
    for _ in range(5):
        driver.host.turn(0.0)
        driver.step_task(0)
    assert driver.coordinator.watermarks.low == applied < driver.batches[-1].through_scn


def test_status_says_why_a_server_gives_its_groups_back_while_the_reader_sees_nothing_wrong(driver: Driver) -> None:
    """A function that an ALTER needs fails, for example: the table fits, and cannot be written."""
    stream = driver.start_task(0)
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    for state, detail, expected in (
        ("PAUSED: WAITING FOR ALTER", "type mood does not exist", "apply server 0: type mood does not exist"),
        ("IDLE", "a lock time-out, over since", ""),
    ):
        told = pb.ServerState(state=state, detail=detail, has_session=True)
        driver.gate.receive(stream, pb.ServerMessage(state=told))
        driver.host.turn(0.0)
        assert control._read(cores).detail == expected


# --------------------------------------------------------------------------- tables that join


def test_a_call_that_comes_when_the_driver_ends_is_answered_at_once(driver: Driver) -> None:
    """The thread that copies tables asks at any moment, and an orderly end waits for it."""
    answers: list[HeadraceError] = []

    def call() -> None:
        try:
            driver.host.inbox.call(lambda: None)
        except HeadraceError as error:
            answers.append(error)

    waiting = threading.Thread(target=call)

    def begin_to_wait() -> bool:
        waiting.start()
        while driver.host.inbox._events.empty():
            time.sleep(0.001)
        return True

    driver.host.run(begin_to_wait)
    waiting.join(60.0)
    call()
    assert [error.message for error in answers] == [f"apply {APPLY} has ended"] * 2
    assert driver.host.inbox.call_within(lambda: None, 10.0) is None


def test_a_call_is_answered_at_once_also_where_the_driver_ends_before_it_dequeues(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer one came while this one's tables were looked at."""
    monkeypatch.setattr(loop_inbox, "_CALL_TIMEOUT_S", 0.1)
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    with pytest.raises(FencedError):
        driver.host.run(lambda: False)
    with pytest.raises(ApplyError, match="has ended"):
        driver.host.inbox.call(lambda: None)


class JoiningDriver(Driver):
    """One table is not at the destination at first: it is left out, copied, and joins."""

    def __init__(self, *, seed: int) -> None:
        self.late = TABLES[seed % len(TABLES)].name
        super().__init__(seed=seed, count=30)

    def start_driver(self) -> None:
        recorded = MemoryDestination(store=self.store).instantiations(TOPOLOGY, APPLY)
        starts = table_starts(standings([table_of(each) for each in recorded], recorded))
        self.instantiation = {("public", self.late): TableStart(scn=None)} | starts
        super().start_driver()
        self.destination = MemoryDestination(store=self.store)

    def copy(self, scn: int) -> None:
        """The rows of the late table as they were at `scn`."""
        then = Reference({name: list(rows) for name, rows in self.start.items()})
        for transaction in self.history:
            if transaction.commit_scn <= scn:
                then.apply(transaction)
        record = Instantiation(
            source=SOURCE,
            identity=self.late,
            owner="public",
            name=self.late,
            scn=Scn(scn),
            state="COPIED",
            digest="00",
        )
        self.destination.record_instantiation(TOPOLOGY, APPLY, self.epoch, record)
        session = self.destination.open_session(TOPOLOGY, APPLY, server=2, epoch=self.epoch, tag=b"")
        session.empty_tables([session.describe("public", self.late)])
        session.close()
        self.store.insert("public", self.late, list(then.rows[self.late]))
        self.record = record

    def state(self) -> str:
        return next(each.state for each in self.destination.instantiations(TOPOLOGY, APPLY) if each.name == self.late)

    def step(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.host.turn(0.0)
            for number in self.tasks:
                self.step_task(number)


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("histories of a driver", test=4, soak=40))
@pytest.mark.parametrize("restart_after", [None, 0, 1, 4, 12])
def test_table_that_joins_gets_what_was_left_out_also_when_its_driver_is_replaced(seed: int, restart_after: int | None):
    driver = JoiningDriver(seed=seed)
    for number in range(2):
        driver.start_task(number)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(driver.host.dequeuing.told_scn)
    while driver.coordinator.watermarks.low < later:
        driver.step()
    assert not any(driver.queue.acknowledged)
    driver.copy(early)
    driver.host.joins.hold(Scn(early))
    ahead = driver.coordinator.watermarks.low
    joined = driver.host.joins.join([driver.record])
    while not joined.is_set():
        driver.step()
    assert driver.state() == "JOINING"
    # The servers' sessions are older than the join: they are opened again before a group is written.
    assert driver.coordinator.watermarks.low <= early
    assert driver.coordinator.watermarks.progress.ahead_scn >= ahead
    driver.host.joins.hold(None)
    if restart_after is not None:
        driver.step(restart_after)
        driver.start_driver()
        for number in range(2):
            driver.start_task(number)
    driver.run()
    assert driver.host.joins.is_joined
    driver.assert_applied()


def joining_driver(seed: int) -> JoiningDriver:
    """A driver whose late table is copied and may join."""
    driver = JoiningDriver(seed=seed)
    for number in range(2):
        driver.start_task(number)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(Scn(0))
    while driver.coordinator.watermarks.low < later:
        driver.step()
    driver.copy(early)
    return driver


def test_copy_that_is_asked_to_join_twice_joins_once():
    driver = joining_driver(4)
    first = driver.host.joins.join([driver.record])
    assert driver.host.joins.join([driver.record]) is first, "the answer to the first call was lost"
    while not first.is_set():
        driver.step()
    assert driver.host.joins.join([driver.record]) is first
    driver.host.joins.hold(None)
    driver.run()
    driver.assert_applied()


def test_table_that_is_to_be_copied_again_does_not_join_by_a_call_that_waited():
    driver = joining_driver(4)
    driver.host.joins.join([driver.record])
    driver.destination.record_instantiation(
        TOPOLOGY, APPLY, driver.epoch, dataclasses.replace(driver.record, state="COPYING")
    )
    left = driver.host.joins.leave_out([("public", driver.late)])
    while not left.is_set():
        driver.step()
    assert driver.state() == "COPYING"


def test_nothing_is_sent_to_servers_while_the_outcome_of_a_join_is_unknown(monkeypatch: pytest.MonkeyPatch):
    """A group has the low watermark of before the join; committed behind it, the joined table would count as caught up."""
    driver = joining_driver(4)
    join, send, sent, lost = driver.destination.join_tables, driver.host._send, [], []

    def lose(*arguments: Any, **options: Any) -> Any:
        join(*arguments, **options)
        lost.append(1)
        raise DatabaseUnavailable("the answer is lost")

    monkeypatch.setattr(driver.host.joins._destination, "join_tables", lose)
    monkeypatch.setattr(driver.host, "_send", lambda: (sent.append(driver.host.joins.is_uncertain), send()))
    driver.host.joins.hold(driver.record.scn)
    joined = driver.host.joins.join([driver.record])
    while not lost:
        driver.step()
    assert driver.host.joins.is_uncertain
    assert driver.host.dequeuing.told_scn < driver.record.scn, "something is told as soon as it is found on disk"
    driver.host.errors.execute([7])
    driver.step(5)
    driver.store.flush()
    driver.clock.advance(POLL_INTERVAL_S)
    driver.step(5)
    assert True not in sent
    # What is to be recorded has been due for long, and waits for the join: the loop must not turn without a pause for it.
    monkeypatch.setattr(type(driver.host.progress), "due_at", 0.0)
    driver.step(5)
    assert driver.host.joins.is_uncertain
    assert driver.host._pause() > 0
    monkeypatch.undo()
    driver.clock.advance(60)
    while not joined.is_set():
        driver.step()
    driver.host.joins.hold(None)
    driver.run()
    driver.assert_applied()


def test_two_who_execute_one_error_hear_of_it_both_and_nobody_deletes_it_meanwhile(driver: Driver) -> None:
    first, second = driver.host.errors.execute([7]), driver.host.errors.execute([7])
    assert driver.host.errors.delete([6, 7]) == {
        6: "it is not in the error queue",
        7: "it is being executed: look again with `headrace errors list`",
    }
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert [each.get_nowait().number for each in (first, second)] == [7, 7]
    third = driver.host.errors.execute([7])
    driver.host.run(lambda: True)
    outcome = third.get_nowait()
    assert outcome.failure is not None
    assert "ended while" in outcome.failure.message


@pytest.mark.parametrize(
    "other", [ExecutionRequest(role="clerk"), ExecutionRequest(handler=b"mend:skip_it")], ids=["role", "function"]
)
def test_who_executes_an_error_otherwise_than_it_is_being_executed_is_not_told_its_outcome_as_theirs(
    driver: Driver, other: ExecutionRequest
) -> None:
    first, second = driver.host.errors.execute([7]), driver.host.errors.execute([8, 7], other)
    refused = second.get_nowait()
    assert (
        refused.number,
        refused.failure is not None and "with another role or function" in refused.failure.message,
    ) == (7, True)
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert (first.get_nowait().number, second.get_nowait().number, first.empty(), second.empty()) == (7, 8, True, True)
    third = driver.host.errors.execute([7], other)
    driver.run()
    assert third.get_nowait().number == 7


def test_driver_says_what_it_is_and_how_it_does_when_it_begins_every_few_seconds_and_when_it_ends(
    driver: Driver,
) -> None:
    def described() -> tuple[int, dict[str, Any], dict[str, Any]]:
        return driver.store.described[TOPOLOGY, APPLY]

    driver.start_task(0)
    driver.run()
    epoch, configuration, state = described()
    assert (epoch, configuration["source_database"], state["status"]) == (driver.epoch, SOURCE, "ENABLED")
    assert "secret" not in str(driver.store.described)
    driver.clock.advance(DESCRIBE_INTERVAL_S)
    driver.host.turn(0.0)
    state = described()[2]
    assert state["coordinator"]["total_applied"] == len(driver.history)
    assert [server["server_id"] for server in state["servers"]] == [0, 1]
    views = rows_said(driver.host.views.said)
    (progress,), (coordinator,) = views["dba_apply_progress"], views["v_streams_apply_coordinator"]
    assert (progress["applied_message_number"], progress["servers"], progress["source_database"]) == (
        driver.batches[-1].through_scn,
        1,
        SOURCE,
    )
    assert progress["apply_time"] is not None
    assert coordinator["total_applied"] == len(driver.history)
    assert [row["server_id"] for row in views["v_streams_apply_server"]] == [0, 1]
    driver.host.run(lambda: True)
    assert described()[2]["status"] == "DISABLED"


def test_driver_that_gives_up_says_why_and_one_that_was_overtaken_says_nothing(driver: Driver) -> None:
    driver.host.inbox.fail(ApplyError("it is enough"))
    with pytest.raises(ApplyError):
        driver.host.run(lambda: False)
    assert driver.store.described[TOPOLOGY, APPLY][2]["error_message"] == "it is enough"
    driver.start_driver()
    driver.host.turn(0.0)
    driver.host.inbox.fail(FencedError("a newer one"))
    with pytest.raises(FencedError):
        driver.host.run(lambda: False)
    assert driver.store.described[TOPOLOGY, APPLY][2]["status"] == "ENABLED"


def test_apply_goes_on_where_its_state_cannot_be_written(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DatabaseError("no right")

    monkeypatch.setattr(MemoryDestination, "describe_apply", refuse)
    driver.start_task(0)
    driver.run()
    driver.assert_applied()
    assert not driver.store.described


def test_server_says_for_which_other_one_it_waits(driver: Driver) -> None:
    seen = set()
    for number in range(2):
        driver.start_task(number)
    for _ in range(300):
        driver.host.turn(0.0)
        for number in range(2):
            found = driver.coordinator.dependency_of(number)
            if found["dep_group_number"]:
                assert found["dep_group_number"] < found["group_number"]
                assert 0 < found["dep_commitscn"] < found["commitscn"]
                seen.add(found["dep_server_id"])
        for number in driver.tasks:
            driver.step_task(number)
        if driver.coordinator.watermarks.low >= driver.batches[-1].through_scn:
            break
    assert seen


def test_an_edit_of_an_error_that_is_being_executed_is_refused(driver: Driver) -> None:
    driver.host.errors.execute([7])
    edit = ErrorEdit(
        number=7,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="t",
        command="INSERT",
        changes=(),
        edited_by="ada",
    )
    with pytest.raises(ApplyError, match="is being executed"):
        driver.host.errors.edit(edit, part=0, batch=b"", key_hashes=np.empty(0, np.uint64))


def test_keys_of_an_edit_whose_answer_was_lost_hold_what_comes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be committed: keys too many only hold too much."""
    edit = ErrorEdit(
        number=7,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="t",
        command="INSERT",
        changes=(),
        edited_by="ada",
    )
    driver.coordinator.errors._holds.add(7, np.array([2], np.uint64))

    def lost(*_: object, **__: object) -> bool:
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    monkeypatch.setattr(driver.host.errors._destination, "edit_error", lost)
    with pytest.raises(DatabaseUnavailable):
        driver.host.errors.edit(edit, part=0, batch=b"", key_hashes=np.array([4], np.uint64))
    assert set(driver.coordinator.errors._holds._hashes[7].tolist()) == {2, 4}


@pytest.mark.parametrize("is_made", [True, False])
def test_error_whose_deletion_was_not_answered_holds_nothing_once_it_is_gone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, *, is_made: bool
) -> None:
    session = MemoryDestination(store=driver.store).open_session(TOPOLOGY, APPLY, server=9, epoch=driver.epoch, tag=b"")
    session.begin()
    number = session.put_error(error_transaction(apply=APPLY, source=SOURCE), b"", np.array([2], np.uint64), part=0)
    session.commit([], Scn(0))
    driver.coordinator.errors._holds.add(number, np.array([2], np.uint64))
    delete = driver.host.errors._destination.delete_errors

    def lost(topology: str, numbers: Sequence[int]) -> Any:
        if is_made:
            delete(topology, numbers)
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    monkeypatch.setattr(driver.host.errors._destination, "delete_errors", lost)
    with pytest.raises(DatabaseUnavailable):
        driver.host.errors.delete([number])
    assert driver.coordinator.first_error == number
    driver.clock.advance(DESCRIBE_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.coordinator.first_error == (0 if is_made else number)


def test_error_that_fails_again_is_listed_with_its_new_failure(driver: Driver) -> None:
    version = TableVersion(
        object_number=1,
        version=1,
        owner="public",
        name="nowhere",
        old_image=OldImage.KEY,
        columns=(Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True),),
    )
    group = RowGroup(
        table=0, command=Command.INSERT, row_numbers=np.zeros(1, np.int32), old=None, new=column_values([[b"\0\0\0\1"]])
    )
    batch = LcrBatch(
        source=SOURCE,
        previous_scn=0,
        through_scn=5,
        tables=(version,),
        transactions=transactions([5], [1]),
        groups=(group,),
    )
    session = MemoryDestination(store=driver.store).open_session(TOPOLOGY, APPLY, server=9, epoch=driver.epoch, tag=b"")
    session.begin()
    hashes = np.array([2], np.uint64)
    number = session.put_error(error_transaction(apply=APPLY, source=SOURCE), codec.encode(batch), hashes, part=0)
    session.commit([], Scn(0))
    driver.coordinator.errors._holds.add(number, hashes)
    driver.start_task(0)
    outcomes = driver.host.errors.execute([number])
    driver.run()
    driver.host.turn(0.0)
    outcome = outcomes.get_nowait()
    assert outcome.failure is not None
    (found,) = MemoryDestination(store=driver.store).errors(TOPOLOGY)
    assert found.message == outcome.failure.message != "the row is not there"
    assert (found.failed_position, found.conflict_type) == (-1, "")


def test_server_that_opened_its_session_before_a_join_and_takes_part_after_it_opens_it_again():
    driver = JoiningDriver(seed=3)
    driver.start_task(0)
    early, later = driver.history[4].commit_scn, driver.history[17].commit_scn
    driver.host.joins.hold(Scn(0))
    while driver.coordinator.watermarks.low < later:
        driver.step()
    stream = driver.start_task(1)  # what it says is not heard before the join
    driver.copy(early)
    said, driver.host.inbox._events = driver.host.inbox._events, type(driver.host.inbox._events)()
    joined = driver.host.joins.join([driver.record])
    while not joined.is_set():
        driver.host.turn(0.0)
        driver.step_task(0)
    while not said.empty():
        driver.host.inbox._events.put(said.get())
    driver.run()
    assert stream is driver.tasks[1][0]
    assert driver.host.servers.facts()[1].has_joined
    driver.assert_applied()


def test_batch_that_arrives_while_the_loop_works_is_heard_without_a_pause(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wake is among the events that are handled between two batches, after the loop has listened to the queue."""
    driver.start_task(0)
    through, offer = driver.batches[-1].through_scn, driver.host._reader.offer
    driver.queue.stream.deliver(LcrBatch(source=SOURCE, previous_scn=through, through_scn=Scn(through + 500)))
    driver.run()
    late = LcrBatch(source=SOURCE, previous_scn=Scn(through + 500), through_scn=Scn(through + 600))

    def arrive(batch: LcrBatch, data: bytes) -> None:
        offer(batch, data)
        if batch.through_scn == through + 550:
            driver.queue.stream.deliver(dataclasses.replace(late, previous_scn=Scn(through + 550)))
            driver.host.inbox.queue_spoke()

    monkeypatch.setattr(driver.host._reader, "offer", arrive)
    driver.queue.stream.deliver(dataclasses.replace(late, through_scn=Scn(through + 550)))
    driver.host.turn(0.0)
    assert driver.queue.stream.arrived
    assert driver.host._pause() == 0.0
    driver.host.turn(0.0)
    assert not driver.queue.stream.arrived
    assert driver.host._pause() > 0.0


def test_streams_that_break_behind_what_they_deliver_still_bring_the_driver_forward(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop hears of the batches and of the break at once; what arrived is applied before the next stream begins."""
    subscriber = driver.queue.subscriber

    def breaking(queue: str) -> QueueStream:
        stream = subscriber(queue)
        stream.problem = PropagationError("the stream broke")
        return stream

    driver.queue.stream.problem = PropagationError("the stream broke")
    monkeypatch.setattr(driver.queue, "subscriber", breaking)
    driver.start_task(0)
    for _ in range(100):
        driver.host.turn(0.0)
        driver.step_task(0)
        driver.clock.advance(RETRY_DELAY_MAX_S / 10)
    driver.run(1)
    driver.assert_applied()


def test_destination_that_answers_again_does_not_hide_that_the_queue_is_away(driver: Driver) -> None:
    """Without the queue nothing else is written to the destination that would end the problem."""
    driver.break_stream()
    driver.store.is_reachable = False
    driver.host._housekeep(driver.clock.monotonic())
    assert driver.host.problem
    driver.store.is_reachable, driver.queue.opens_at_once = True, False
    driver.clock.advance(DEQUEUE_RETRY_S)
    driver.host._housekeep(driver.clock.monotonic())
    assert driver.host.problem == "the stream broke"
