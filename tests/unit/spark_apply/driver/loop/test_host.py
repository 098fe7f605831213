"""The host connects queue, cores and apply servers, over fake streams with the destination in memory.

Tests of its apply servers are in `test_host_servers`, of joining tables in `test_host_joins`, of errors in
`test_host_errors`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headrace.base.backoff import RETRY_DELAY_MAX_S
from headrace.base.errors import (
    ApplyError,
    DatabaseError,
    DestinationRestarted,
    FencedError,
    LogGone,
    PropagationError,
)
from headrace.databases.destination_views import rows_said
from headrace.databases.memory.destination import MemoryDestination
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from protos import apply_pb2 as pb
from protos import codec
from spark_apply.driver.loop.dequeuing import OPEN_TIMEOUT_S
from spark_apply.driver.loop.fit_checks import FIT_AGE_MAX_S
from spark_apply.driver.loop.flushes import POLL_INTERVAL_S, RETRY_S
from spark_apply.driver.loop.newest_dequeuing import DEQUEUE_RETRY_S
from spark_apply.driver.loop.recorded_progress import RECORD_INTERVAL_S
from spark_apply.driver.loop.view_writer import DESCRIBE_INTERVAL_S
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.hosted_driver import Driver, QueueStream, Stream


def test_batches_are_applied_by_every_server_and_reported_durable(driver: Driver) -> None:
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


def test_queue_gets_the_low_watermark_after_the_destination_has_it(driver: Driver) -> None:
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


def test_acknowledged_scn_is_on_the_destinations_disk(driver: Driver) -> None:
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


def test_unreachable_destination_is_retried_with_pauses_until_it_answers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection attempt may block the loop for seconds.

    Under load nothing but a retry after a pause would query the destination, and `status` would show the problem
    forever.
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


def test_crashed_destination_that_lost_commits_ends_the_driver(driver: Driver) -> None:
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


def test_new_unique_index_at_the_destination_orders_later_transactions(driver: Driver) -> None:
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


def test_restored_destination_ends_the_driver_and_the_next_one_reapplies(driver: Driver) -> None:
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


def test_low_watermark_is_not_recorded_over_lost_commits(driver: Driver) -> None:
    """An idle server has not noticed that its session is gone; the driver's own connection is new."""
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


def test_older_driver_opens_no_stream_after_a_newer_epoch(driver: Driver) -> None:
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    driver.host.dequeuing._stream.has_opened()  # its host already knows that the stream is open
    driver.break_stream()  # it slept, and its stream was given to the newer driver
    with pytest.raises(FencedError):
        driver.host.turn(0.0)
    assert len(driver.queue.streams) == 1


def test_overtaken_driver_with_a_late_stream_acknowledges_nothing(driver: Driver) -> None:
    driver.start_task(0)
    driver.run()
    driver.store.flush()
    driver.queue.opens_at_once = False
    driver.break_stream()
    driver.host.turn(0.0)  # no newer driver runs; then it sleeps, and its stream is opened late
    driver.clock.advance(POLL_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.host.progress.recorded_scn == driver.batches[-1].through_scn
    MemoryDestination(store=driver.store).raise_epoch(TOPOLOGY, APPLY)
    driver.queue.stream.is_open = True
    with pytest.raises(FencedError):
        driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == []


def test_scn_durable_before_a_stream_is_confirmed_is_acknowledged_then(driver: Driver) -> None:
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
    assert driver.queue.stream.acknowledged == [], "the destination has not confirmed that no newer driver runs"
    driver.store.is_reachable = True
    driver.clock.advance(DEQUEUE_RETRY_S)
    driver.host.turn(0.0)
    assert driver.queue.stream.acknowledged == [driver.batches[-1].through_scn]


def test_dequeuing_resumes_when_the_destination_answers_again(driver: Driver) -> None:
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


def test_stream_that_the_queue_does_not_accept_is_given_up_and_reported(driver: Driver) -> None:
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


def test_queue_without_the_needed_batches_ends_the_driver(driver: Driver) -> None:
    driver.queue.stream.arrived.clear()
    driver.queue.stream.problem = LogGone("up to SCN 40 they are gone", first_scn=40)
    with pytest.raises(LogGone):
        driver.host.turn(0.0)


def test_driver_writes_its_state_at_start_at_intervals_and_at_the_end(driver: Driver) -> None:
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


def test_driver_reports_why_it_gives_up_unless_it_was_overtaken(driver: Driver) -> None:
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


def test_apply_continues_when_its_state_cannot_be_written(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DatabaseError("no right")

    monkeypatch.setattr(MemoryDestination, "describe_apply", refuse)
    driver.start_task(0)
    driver.run()
    driver.assert_applied()
    assert not driver.store.described


def test_batch_arriving_while_the_loop_works_is_handled_without_a_pause(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wake-up is one of the events handled between two batches, after the loop has polled the queue."""
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


def test_driver_progresses_over_streams_that_break_after_delivery(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop gets batches and the break at once; arrived batches are applied before the next stream begins."""
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


def test_recovered_destination_does_not_hide_the_missing_queue(driver: Driver) -> None:
    """Without the queue no other write to the destination would clear the problem."""
    driver.break_stream()
    driver.store.is_reachable = False
    driver.host._housekeep(driver.clock.monotonic())
    assert driver.host.problem
    driver.store.is_reachable, driver.queue.opens_at_once = True, False
    driver.clock.advance(DEQUEUE_RETRY_S)
    driver.host._housekeep(driver.clock.monotonic())
    assert driver.host.problem == "the stream broke"
