"""Hosts reader and coordinator: one thread owns them, and all other threads send it events.

Longer than 500 lines: every event and every due time is handled between two others, and is only right together with
them.

Job
    Connect the queue's batches, the apply servers' reports, and the cores' requests.

Main path
    Dequeuing.hear -> ApplyReader.offer -> take -> ApplyCoordinator.accept -> messages -> ServerStream.send
    -> apply server -> ServerSpoke -> ApplyCoordinator.report -> durable SCN -> Dequeuing.durable.

States
    See `reader` and `coordinator`; here only which stream belongs to which apply server, memory only.

Durable when
    An SCN is reported to the queue only when the destination has it durably: `ApplyCoordinator.durable_scn`, as far as
    `FlushGate` found it on the destination's disk, or a low watermark that moved without data, after it was recorded.

Threads
    The loop's thread runs the cores and every call to the destination that they need. gRPC's threads and
    control's put events on a queue and never touch a core. The loop sleeps on that queue: it handles an event at
    once, and otherwise only does work that is due.

Worked flow
    Python worker of server 1 is killed -> its stream ends -> group 7 in doubt -> Spark runs the task again -> hello,
    new stream -> its session is open: the old backend is gone -> progress is read: group 7 was committed -> done
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ApplyError, DatabaseError, DatabaseUnavailable, FencedError, HeadraceError
from headrace.databases.progress import check_epoch
from headrace.lcr.scn import Scn
from protos import apply_pb2 as pb
from protos import codec
from protos.links.apply_link import ServerStream
from spark_apply.conversation.groups import Failure
from spark_apply.driver.dequeuing import Dequeuing
from spark_apply.driver.described import configuration_of, said_of, state_of
from spark_apply.driver.executions import ErrorOutcome, ExecutionRequest
from spark_apply.driver.flushes import FlushGate
from spark_apply.driver.joining import TableJoins
from spark_apply.driver.server_streams import ApplyServers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports import DestinationDatabase, ErrorEdit
    from headrace.links.serving import Links
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.tables.fits import TableFits

__all__ = ["CoordinatorHost"]

log = logging.getLogger("headrace")

# The low watermark of an idle source moves with every heartbeat: it is written to the destination at most this often.
RECORD_INTERVAL_S = 2.0
ALTER_RETRY_S = 2.0  # how often a table that does not fit is checked again
# A unique index that is created at the destination orders transactions from then on, without notice. Until it is seen,
# a transaction may come before an earlier one that had the value; that one may meet it and go into the error queue,
# from which it can be executed. Checking a table takes milliseconds.
FIT_AGE_MAX_S = 60.0
DEQUEUE_RETRY_S = 1.0  # after the destination did not answer when dequeuing should begin
# What the views show is as old as this at most. A write takes about a millisecond of this thread: one part in five
# thousand.
DESCRIBE_INTERVAL_S = 5.0
DESCRIBE_AT_LEAST_S = 60.0  # also when nothing changed: the views tell by that whether it lives
# for an error transaction whose deletion was not answered: a minute, in which a commit without a client ends
_DELETED_LOOKS = 12
_EVENTS_AT_ONCE = 256  # handled before the cores work again
_CALL_TIMEOUT_S = 30.0
_EXECUTED_OTHERWISE = (
    "it is being executed already, with another role or function than this command names: look"
    " again with `headrace errors list`"
)
_IS_EXECUTED = "it is being executed: look again with `headrace errors list`"
_NEVER: Final = object()  # the answer of a call that the loop did not run before it ended

_Answer = TypeVar("_Answer")


# --------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class _QueueSpoke:
    """Something arrived from the queue, or its stream ended."""


@dataclass(frozen=True, slots=True)
class _StreamOpened:
    stream: ServerStream


@dataclass(frozen=True, slots=True)
class _ServerSpoke:
    stream: ServerStream
    message: pb.ServerMessage


@dataclass(frozen=True, slots=True)
class _StreamLost:
    stream: ServerStream
    problem: str


@dataclass(frozen=True, slots=True)
class _Call:
    action: Callable[[], object]
    answer: queue.SimpleQueue[object]


@dataclass(frozen=True, slots=True)
class _Failed:
    error: HeadraceError


_Event = _QueueSpoke | _StreamOpened | _ServerSpoke | _StreamLost | _Call | _Failed


class CoordinatorHost:
    """See the module. `run` is the loop; `opened`, `receive`, `lost`, `call` come from other threads.

    Args:
        config: of the apply process.
        epoch: at the destination.
        destination: used by the loop's thread only.
        reader: core.
        coordinator: core.
        fits: the reader's, to check again a table that did not fit.
        make_links: makes the links to the queue; they call its argument when a stream has something new.
        clock: of time-outs.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        reader: ApplyReader,
        coordinator: ApplyCoordinator,
        fits: TableFits,
        make_links: Callable[[Callable[[], None]], Links],
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._config, self._epoch = config, epoch
        self._destination, self._reader, self._coordinator = destination, reader, coordinator
        self._fits = fits
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        self._dequeuing = Dequeuing(config, make_links(self._queue_spoke), self._clock)
        self.servers = ApplyServers(
            config, epoch=epoch, destination=destination, coordinator=coordinator, clock=self._clock
        )
        self.joins = TableJoins(
            config.topology,
            config.apply,
            epoch=epoch,
            destination=destination,
            reader=reader,
            coordinator=coordinator,
        )
        self._flushes = FlushGate(
            destination,
            config.topology,
            config.apply,
            epoch=epoch,
            scn=coordinator.durable_scn,
            is_needed=config.commits_lazily,
        )
        self._join_at = 0.0
        # How error transactions are executed, and who waits for the outcome.
        self._executing: dict[int, tuple[ExecutionRequest, list[queue.SimpleQueue[ErrorOutcome]]]] = {}
        # error transactions that are deleted, or not: the answer was lost; and how often to look yet
        self._deleting: dict[int, int] = {}
        self._reported = Scn(0)
        self._applied_scn = Scn(0)
        self._record_at = self._alter_at = self._describe_at = self._described_at = 0.0
        self._configuration = configuration_of(config)
        self._described: dict[str, Any] = {}
        self._said: dict[str, Any] = {}
        self._forget_at = self._clock.monotonic() + FIT_AGE_MAX_S
        self._dequeue_at: float | None = None  # dequeuing is to begin, as soon as the destination answers
        # a stream is open, and the destination is to be asked for the newest epoch
        self._confirm_at: float | None = None
        self._last_applied_us = 0
        self._has_queue_spoken = False  # since the loop last listened to it
        self._problem = ""

    # ------------------------------------------------------------------ from other threads

    def opened(self, stream: ServerStream) -> None:
        """A task's stream was accepted."""
        self._events.put(_StreamOpened(stream))

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """See `StreamListener.receive`."""
        self._events.put(_ServerSpoke(stream, message))

    def lost(self, stream: ServerStream, problem: str) -> None:
        """See `StreamListener.lost`."""
        self._events.put(_StreamLost(stream, problem))

    def _queue_spoke(self) -> None:
        self._events.put(_QueueSpoke())

    def fail(self, error: HeadraceError) -> None:
        """Something outside the loop cannot continue: `run` raises the error."""
        self._events.put(_Failed(error))

    def tasks_accepted(self, *, is_accepted: bool) -> None:
        """The application runs the servers' tasks, or no longer runs them."""
        self._events.put(_Call(lambda: self.servers.accepted(is_accepted=is_accepted), queue.SimpleQueue()))

    def wake(self) -> None:
        """End the loop's pause: `should_end` may have changed."""
        self._events.put(_Call(lambda: None, queue.SimpleQueue()))

    def call(self, action: Callable[[], _Answer]) -> _Answer:
        """Run an action on the loop's thread and return its result.

        Raises:
            ApplyError: the loop did not run it in time, or has ended.
            HeadraceError: raised by the action.
        """
        found = self.call_within(action, _CALL_TIMEOUT_S)
        if found is None and self._has_ended.is_set():
            raise ApplyError(
                f"apply {self._config.apply} has ended",
                hint="headrace status FILE says why, and headrace start FILE NAME starts it again",
            )
        if found is None:
            raise ApplyError(
                f"apply {self._config.apply} is busy with its destination: no answer within {_CALL_TIMEOUT_S:g} s"
            )
        return found[0]

    def call_within(self, action: Callable[[], _Answer], timeout_s: float) -> tuple[_Answer] | None:
        """Run an action on the loop's thread and return its result, as `call` does, if it comes in time.

        Args:
            action: what the loop runs between two events.
            timeout_s: seconds to wait for its result.

        Returns:
            The result in a tuple; None: there was none in time, and the action may still run later; or the loop has
            ended.

        Raises:
            HeadraceError: raised by the action.
        """
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._events.put(_Call(action, answer))
        if self._has_ended.is_set():
            self._end_calls()  # it came behind those that the loop ended
        try:
            found = answer.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is _NEVER:
            return None
        if isinstance(found, HeadraceError):
            raise found
        return (cast("_Answer", found),)

    # ------------------------------------------------------------------ on the loop's thread, through `call`

    @property
    def last_applied_us(self) -> int:
        """When the low watermark last moved with data, microseconds since the epoch."""
        return self._last_applied_us

    @property
    def said(self) -> dict[str, Any]:
        """How it was doing when it last looked what to write for the views, see `described.said_of`.

        Empty: it did not yet. Any thread may read it.
        """
        return self._said

    @property
    def problem(self) -> str:
        """Why nothing moves, if known."""
        return self._problem or self._dequeuing.problem

    def error_numbers(self) -> tuple[int, ...]:
        """The numbers in the error queue."""
        found = self._destination.errors(self._config.topology, self._config.apply)
        return tuple(sorted(error.number for error in found))

    @property
    def queued_errors(self) -> tuple[int, ...]:
        """The numbers in the error queue, as the coordinator knows it; ascending."""
        return self._coordinator.error_numbers

    def withdraw_errors(self, outcomes: queue.SimpleQueue[ErrorOutcome], numbers: Iterable[int], why: str) -> None:
        """Do not execute error transactions for somebody any more.

        Those that nobody else wants, and that no server has begun, are not executed.

        Args:
            outcomes: from `execute_errors`: who wanted them.
            numbers: of the error transactions.
            why: their outcome.
        """
        alone = []
        for number in numbers:
            _, every = self._executing.get(number, (None, []))
            if every == [outcomes]:
                alone.append(number)
            elif outcomes in every:
                every.remove(outcomes)
                outcomes.put(
                    ErrorOutcome(
                        number=number, failure=Failure(position=-1, conflict_type="", sqlstate="", message=why)
                    )
                )
        self._coordinator.withdraw(alone, why)
        self._deliver_outcomes()  # whoever wants one of them next is not told of these

    def execute_errors(
        self, numbers: Iterable[int], request: ExecutionRequest | None = None
    ) -> queue.SimpleQueue[ErrorOutcome]:
        """Execute error transactions; the returned queue receives one outcome for each.

        Args:
            numbers: of the error transactions.
            request: see `ApplyCoordinator.execute_errors`; one that is being executed already keeps the request it has,
                and is refused to who asks for another.
        """
        outcomes: queue.SimpleQueue[ErrorOutcome] = queue.SimpleQueue()
        wanted, mine = request or ExecutionRequest(), []
        for number in dict.fromkeys(numbers):
            before, waiting = self._executing.setdefault(number, (wanted, []))
            if before.is_as(wanted):
                waiting.append(outcomes)
                mine.append(number)
            else:  # its outcome would be told as that of this role or function, which had nothing to do with it
                outcomes.put(
                    ErrorOutcome(
                        number=number,
                        failure=Failure(position=-1, conflict_type="", sqlstate="", message=_EXECUTED_OTHERWISE),
                    )
                )
        self._coordinator.execute_errors(mine, wanted)
        return outcomes

    def edit_error(self, edit: ErrorEdit, *, part: int, batch: bytes, key_hashes: NDArray[np.uint64]) -> bool:
        """Edit an error transaction; see `DestinationDatabase.edit_error`.

        Later transactions wait behind its new keys too.

        Args:
            edit: see there.
            part: see there.
            batch: see there.
            key_hashes: see there.

        Raises:
            ApplyError: it is being executed.
        """
        self._refuse_executing(edit.number)
        try:
            done = self._destination.edit_error(
                self._config.topology, edit, part=part, batch=batch, key_hashes=key_hashes
            )
        except DatabaseUnavailable:
            # It may be committed, and the answer lost: keys too many only hold too much.
            self._coordinator.error_edited(edit.number, key_hashes)
            raise
        if done:
            self._coordinator.error_edited(edit.number, key_hashes)
        return done

    def delete_errors(self, numbers: Sequence[int]) -> dict[int, str]:
        """Delete error transactions in one transaction of the destination.

        Args:
            numbers: of the error transactions.

        Returns:
            Why each was not deleted; empty: it was. One that is being executed stays: its row is locked, and nothing
            would be applied until that has ended.
        """
        chosen = [number for number in numbers if number not in self._executing]
        try:
            there = self._destination.delete_errors(self._config.topology, chosen)
        except DatabaseUnavailable:
            self._deleting |= dict.fromkeys(chosen, _DELETED_LOOKS)
            raise
        for number in chosen:
            self._coordinator.error_deleted(number)
        problems = dict.fromkeys(numbers, _IS_EXECUTED) | {
            number: "" if number in there else "it is not in the error queue" for number in chosen
        }
        return {number: problems[number] for number in numbers}

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies of their tables have made obsolete, as `delete_errors` does.

        Args:
            numbers: of the error transactions.

        Returns:
            Those that are in the queue no more.
        """
        return frozenset(number for number, problem in self.delete_errors(numbers).items() if problem != _IS_EXECUTED)

    def _look_for_deleted(self) -> None:
        """Let go of error transactions whose deletion was not answered, if they are gone.

        Else they would hold what comes as long as this driver lives.
        """
        if not self._deleting:
            return
        try:
            there = self.error_numbers()
        except DatabaseUnavailable as error:
            self._problem = error.message
            return
        for number in [each for each in self._deleting if each not in there]:
            self._coordinator.error_deleted(number)
        self._deleting = {
            number: looks - 1 for number, looks in self._deleting.items() if number in there and looks > 1
        }

    def _refuse_executing(self, number: int) -> None:
        if number in self._executing:
            raise ApplyError(f"error transaction {number}: {_IS_EXECUTED}")

    @property
    def told_scn(self) -> Scn:
        """What this driver told the queue to be durable."""
        return self._reported

    def drain(self) -> None:
        """Assign nothing from now on; see `is_drained`."""
        self._coordinator.is_draining = True

    def is_drained(self) -> bool:
        """Whether no server can be writing."""
        return self._coordinator.is_draining and not self.servers.may_write

    # ------------------------------------------------------------------ the loop

    def run(self, should_end: Callable[[], bool]) -> None:
        """Run until `should_end` returns True; it is checked after each event.

        Raises:
            FencedError: a newer incarnation exists.
            DestinationRestarted: the destination may have lost commits; restart.
            HeadraceError: it cannot continue.
        """
        try:
            self.begin()
            while not should_end():
                self.turn(self._pause())
            self._describe("DISABLED")
        except HeadraceError as error:
            if not isinstance(error, FencedError):  # what a newer driver says of itself is right
                self._describe("ABORTED", error.message)
            raise
        finally:
            self._dequeuing.end()
            self._forget_executions()
            self._has_ended.set()
            self._end_calls()

    def _end_calls(self) -> None:
        """Answer calls that came too late, which nobody will run; on any thread, once the loop has ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, _Call):
                    event.answer.put(_NEVER)

    def begin(self) -> None:
        """Start dequeuing."""
        self._dequeue_again()

    def turn(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for events, handle them, and do the work that is possible then."""
        self._handle_events(timeout_s)
        self._hear_queue()
        self._work()
        self._housekeep(self._clock.monotonic())

    def _pause(self) -> float:
        """Seconds until work is due."""
        if self._has_queue_spoken:  # while the loop worked, after it had listened
            return 0.0
        now = self._clock.monotonic()
        due = [now + RECORD_INTERVAL_S]
        if self._coordinator.unrecorded_scn is not None:
            due.append(self._record_at)
        if self._alter_at:
            due.append(self._alter_at)
        due += [at for at in (self._dequeue_at, self._confirm_at) if at is not None]
        if (join_due_at := self.servers.join_due_at) is not None:
            due.append(join_due_at)
        if self.joins.is_uncertain:
            due.append(self._join_at)
        if (flush_at := self._flushes.due_at(self._coordinator.durable_scn)) is not None:
            due.append(flush_at)
        return max(0.0, min(due) - now)

    def _handle_events(self, timeout_s: float) -> None:
        try:
            event = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
            for _ in range(_EVENTS_AT_ONCE):
                self._handle(event)
                event = self._events.get_nowait()
            self._handle(event)
        except queue.Empty:
            return

    def _handle(self, event: _Event) -> None:
        if isinstance(event, _QueueSpoke):
            self._has_queue_spoken = True
        elif isinstance(event, _ServerSpoke):
            event.stream.taken()
            self.servers.heard(event.stream, event.message)
        elif isinstance(event, _StreamOpened):
            self.servers.open(event.stream)
        elif isinstance(event, _StreamLost):
            self.servers.lost(event.stream, event.problem)
        elif isinstance(event, _Call):
            self._answer(event)
        else:
            raise event.error

    def _answer(self, call: _Call) -> None:
        try:
            call.answer.put(call.action())
        except HeadraceError as error:
            call.answer.put(error)

    def _hear_queue(self) -> None:
        """Take what has arrived from the queue; a stream that broke is followed by another one after a pause."""
        self._has_queue_spoken = False  # before it is polled: what arrives from now on wakes the loop again
        again_at = self._dequeuing.hear()
        if again_at is not None:
            self._dequeue_at, self._confirm_at = again_at, None
        elif self._dequeuing.has_opened():
            self._confirm()

    def _work(self) -> None:
        """Move batches through the cores until they need nothing more."""
        self._restart_where_needed()
        if self.joins.is_due:
            self._change_tables()
            return
        while True:
            while self._coordinator.wants and (piece := self._reader.take()) is not None:
                self._coordinator.accept(piece)
            self._send()
            if not (self._dequeuing.inbox and self._reader.wants and self._coordinator.wants):
                break
            batch = self._dequeuing.take()
            self._reader.offer(codec.decode(batch.data), batch.data)
            # Reports free capacity and release groups: they must not wait behind read-ahead.
            self._handle_events(0.0)
            self._restart_where_needed()
        self._settle()
        self._deliver_outcomes()

    def _change_tables(self) -> None:
        """Bring what is accepted to its end, then let tables join or leave them out, and begin again from there."""
        self._send_unless_uncertain()
        now = self._clock.monotonic()
        if now < self._join_at:
            return
        try:
            if self.joins.advance():
                self._dequeue_again()
        except DatabaseUnavailable as error:
            self._problem, self._join_at = error.message, now + DEQUEUE_RETRY_S
        self._send_unless_uncertain()
        self._deliver_outcomes()

    def _send_unless_uncertain(self) -> None:
        """A group carries the low watermark of before a join.

        Committed after it, it would be taken for that of the joined tables.
        """
        if not self.joins.is_uncertain:
            self._send()

    def _settle(self) -> None:
        """Everything that the reader waits for is applied: it can pass on more."""
        if self._reader.must_settle and self._coordinator.is_idle:
            try:
                self._reader.retry_unfit()
            except DatabaseUnavailable as error:
                self._problem = error.message
                return
            self._work()

    def _restart_where_needed(self) -> None:
        if self._coordinator.must_replay:
            self._reader.restart(self._coordinator.progress)
            self._coordinator.replayed()
            self._dequeue_again()
        elif self._reader.must_resubscribe:
            self._dequeue_again()
            self._reader.resubscribed()

    def _dequeue_again(self) -> None:
        self._dequeuing.end()
        self._confirm_at = None
        self._dequeue()

    def _dequeue(self) -> None:
        """Begin to dequeue, unless a newer driver runs.

        The source may have discarded what the newer driver has applied. If an older driver, which slept for a while
        perhaps, asked the queue for it, the queue would request changes that no longer exist.
        """
        self._dequeue_at = self._retry_unless_newest()
        if self._dequeue_at is None:
            self._dequeue_at = self._dequeuing.begin(self._reader.needed_scn)

    def _confirm(self) -> None:
        """Let the stream acknowledge, unless a newer driver runs.

        This one may have slept between `_dequeue` and the stream's beginning.
        """
        self._confirm_at = self._retry_unless_newest()
        if self._confirm_at is None:
            self._dequeuing.confirm()

    def _retry_unless_newest(self) -> float | None:
        """When to ask again, because the destination does not answer; None: it answered, and no newer driver runs.

        Raises:
            FencedError: one does.
        """
        topology, apply = self._config.topology, self._config.apply
        try:
            progress = self._destination.progress(topology, apply)
        except DatabaseUnavailable as error:
            self._problem = error.message
            return self._clock.monotonic() + DEQUEUE_RETRY_S
        self._problem = ""  # while the queue is away nothing else asks, and the queue's problem would not be told
        check_epoch(0 if progress is None else progress.epoch, apply=apply, epoch=self._epoch)
        return None

    def _send(self) -> None:
        if not self._coordinator.is_draining:
            self.servers.send(self._coordinator.messages())
        if self._coordinator.durable_scn > self._applied_scn:
            self._applied_scn, self._last_applied_us = self._coordinator.durable_scn, self._clock.time_us()
        durable = self.joins.bounded(self.recorded_scn)
        if durable > self._reported:
            self._reported = durable
            self._dequeuing.durable(durable)

    def _deliver_outcomes(self) -> None:
        for outcome in self._coordinator.take_outcomes():
            self._note_failure(outcome)
            _, every = self._executing.pop(outcome.number, (None, ()))
            for waiting in every:
                waiting.put(outcome)

    def _note_failure(self, outcome: ErrorOutcome) -> None:
        """Record why an error transaction failed again: what is listed is what an operator has to correct now."""
        failure, topology = outcome.failure, self._config.topology
        if failure is None or not outcome.is_of_server:
            return
        try:
            for found in self._destination.errors(topology, self._config.apply, number=outcome.number):
                self._destination.note_failure(
                    topology,
                    replace(
                        found,
                        failed_position=failure.position,
                        conflict_type=failure.conflict_type,
                        sqlstate=failure.sqlstate,
                        message=failure.message,
                        readable=failure.readable,
                    ),
                )
        except DatabaseUnavailable as error:
            # the operator who asked is told all the same; the queue says why it failed before
            self._problem = error.message

    def _forget_executions(self) -> None:
        """Answer who waits for the execution of error transactions: this driver will not say how they end."""
        for number, (_, every) in self._executing.items():
            failure = Failure(
                position=-1,
                conflict_type="",
                sqlstate="",
                message=f"the apply process ended while error transaction {number} was to be executed: if `headrace"
                " errors list` still shows it, execute it again",
            )
            for waiting in every:
                waiting.put(ErrorOutcome(number=number, failure=failure))
        self._executing = {}

    # ------------------------------------------------------------------ time

    def _housekeep(self, now: float) -> None:
        self._record(now)
        self._look_for_flushes(now)
        if self._reader.unfit is not None and self._coordinator.is_idle:
            if self._alter_at == 0.0:
                self._alter_at = now + ALTER_RETRY_S
            elif now >= self._alter_at:
                self._alter_at = now + ALTER_RETRY_S
                self._look_again()
        else:
            self._alter_at = 0.0
        if now >= self._forget_at:
            self._forget_at = now + FIT_AGE_MAX_S
            self._fits.forget()
        if self._dequeue_at is not None and now >= self._dequeue_at:
            self._dequeue()
        if self._confirm_at is not None and now >= self._confirm_at:
            self._confirm()
        self.servers.housekeep(now)
        if now >= self._describe_at:
            self._describe_at = now + DESCRIBE_INTERVAL_S
            self._look_for_deleted()
            self._describe("ENABLED")

    def _describe(self, status: str, problem: str = "") -> None:
        """Write for the destination's views how it is doing, if that is news, or nothing was written for a minute.

        No apply depends on it.

        Args:
            status: see `described.state_of`.
            problem: see there.
        """
        now, config = self._clock.monotonic(), self._config
        state = state_of(status, self._coordinator, self._reader, self.servers.facts(), problem)
        self._said = said_of(
            config,
            self._epoch,
            self._configuration,
            state,
            observed_us=self._clock.time_us(),
            applied_us=self._last_applied_us,
        )
        if state == self._described and now < self._described_at + DESCRIBE_AT_LEAST_S:
            return
        try:
            self._destination.describe_apply(config.topology, config.apply, self._epoch, self._configuration, state)
        except DatabaseError as error:
            log.info("%s: its state is not written for the views: %s", config.apply, error.message)
            return
        self._described, self._described_at = state, now

    def _look_again(self) -> None:
        try:
            if self._reader.retry_unfit():
                self._work()
        except DatabaseUnavailable as error:
            self._problem = error.message

    def _look_for_flushes(self, now: float) -> None:
        """Find out what of the servers' commits is on the destination's disk."""
        try:
            is_answered = self._flushes.step(self._coordinator.durable_scn, now)
        except DatabaseUnavailable as error:
            self._problem = error.message
            self._flushes.is_away(self._clock.monotonic())
            return
        if self.joins.is_uncertain:
            return
        if is_answered:
            self._problem = ""  # under load nothing else asks, and the problem would be told for good
        if self.joins.bounded(self.recorded_scn) > self._reported:
            self._send()

    @property
    def recorded_scn(self) -> Scn:
        """The low watermark that the destination has on disk: no crash of it takes that back."""
        return self._flushes.durable_scn(self._coordinator.durable_scn)

    @property
    def kept_scn(self) -> Scn:
        """Everything up to here is applied or in the error queue, but for tables that are copied, and no crash of the destination takes it.

        More than `recorded_scn` where the low watermark moved without data, which is not recorded at once.
        """
        recorded = self.recorded_scn
        return self._coordinator.low_watermark if recorded == self._coordinator.durable_scn else recorded

    def _record(self, now: float) -> None:
        """Record a low watermark that moved without data, so that the source can discard its log."""
        scn = self._coordinator.unrecorded_scn
        if scn is None or now < self._record_at or self.joins.is_uncertain:
            return
        self._record_at = now + RECORD_INTERVAL_S
        config = self._config
        try:
            self._destination.record_low_watermark(config.topology, config.apply, self._epoch, scn)
        except DatabaseUnavailable as error:
            self._problem = error.message
            return
        self._problem = ""
        self._coordinator.recorded(scn)
        self._flushes.flushed(scn)
        self._send()
