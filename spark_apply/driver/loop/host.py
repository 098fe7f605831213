"""Hosts reader and coordinator: one thread owns them, and all other threads send it events.

Job
    Connect the queue's batches, the apply servers' reports, and the cores' requests.

Main path
    NewestDequeuing.hear -> ApplyReader.offer -> take -> ApplyCoordinator.accept -> messages -> ServerStream.send
    -> apply server -> ServerSpoke -> ApplyCoordinator.report -> durable SCN -> NewestDequeuing.tell.

Parts
    LoopInbox           events of other threads, and actions that they run on the loop.
    NewestDequeuing     the stream from the queue, as long as no newer driver runs.
    ApplyServers        which stream belongs to which server.
    TableJoins          tables that are skipped, and tables that join.
    RecordedProgress    recorded progress at the destination, and its part on disk.
    ErrorRequests       error transactions that are executed, edited and deleted.
    FitChecks           when tables are described again.
    ViewWriter          the state, for the destination's views.

States
    See `reader` and `coordinator`; here only which stream belongs to which apply server, memory only.

Durable when
    An SCN is acknowledged to the queue only when the destination has it durably: `RecordedProgress.recorded_scn`.

Threads
    The loop's thread runs the cores and every call to the destination that they need. gRPC's threads and control's
    threads put events on a queue and never touch a core. The loop sleeps on that queue: it handles an event at once,
    and otherwise only does work that is due.

Worked flow
    Python worker of server 1 is killed -> its stream ends -> group 7 in doubt -> Spark runs the task again -> hello,
    new stream -> its session is open: the old backend is gone -> progress is read: group 7 was committed -> done
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import DatabaseUnavailable, FencedError, HeadraceError
from protos import codec
from spark_apply.driver.loop.destination_problem import DestinationProblem
from spark_apply.driver.loop.error_requests import ErrorRequests
from spark_apply.driver.loop.fit_checks import FitChecks
from spark_apply.driver.loop.inbox import Call, Event, LoopInbox, QueueSpoke, ServerSpoke, StreamLost, StreamOpened
from spark_apply.driver.loop.joining import TableJoins
from spark_apply.driver.loop.newest_dequeuing import DEQUEUE_RETRY_S, NewestDequeuing
from spark_apply.driver.loop.recorded_progress import RECORD_INTERVAL_S, RecordedProgress
from spark_apply.driver.loop.view_writer import ViewWriter
from spark_apply.driver.server_streams import ApplyServers

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase
    from headrace.links.serving import Links
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.tables.fits import TableFits

__all__ = ["CoordinatorHost"]

_EVENTS_AT_ONCE = 256  # events handled before the cores work again


class CoordinatorHost:
    """Hosts reader and coordinator. `run` is the loop; other threads talk to `inbox`.

    Args:
        epoch: epoch of the driver at the destination.
        destination: used by the loop's thread only.
        reader: core.
        coordinator: core.
        fits: the reader's fits, to check again a table that did not fit.
        make_links: makes the links to the queue; they call its argument when a stream has news.
        clock: clock for time-outs.

    Attributes:
        inbox, dequeuing, servers, joins, progress, errors, views: the parts listed in the module. All but `inbox`
            belong to the loop's thread: other threads use them through `LoopInbox.call`.
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
        self._clock = clock = clock or SystemClock()
        self._reader, self._coordinator = reader, coordinator
        self._problem = DestinationProblem()
        self.inbox = LoopInbox(config.apply)
        self.dequeuing = NewestDequeuing(
            config,
            epoch=epoch,
            destination=destination,
            reader=reader,
            links=make_links(self.inbox.queue_spoke),
            clock=clock,
            problem=self._problem,
        )
        self.servers = ApplyServers(config, epoch=epoch, destination=destination, coordinator=coordinator, clock=clock)
        self.joins = TableJoins(
            config.topology,
            config.apply,
            epoch=epoch,
            destination=destination,
            reader=reader,
            coordinator=coordinator,
        )
        self.progress = RecordedProgress(
            config, epoch=epoch, destination=destination, coordinator=coordinator, clock=clock
        )
        self.errors = ErrorRequests(
            config.topology,
            config.apply,
            destination=destination,
            coordinator=coordinator,
            problem=self._problem,
            has_ddl=config.takes_ddl,
        )
        self.views = ViewWriter(
            config,
            epoch=epoch,
            destination=destination,
            coordinator=coordinator,
            reader=reader,
            servers=self.servers,
            progress=self.progress,
            clock=clock,
        )
        self._fit_checks = FitChecks(fits, reader, coordinator, clock)
        self._join_at = 0.0
        self._has_queue_spoken = False  # since the loop last listened to it

    # ------------------------------------------------------------------ on the loop's thread, through `LoopInbox.call`

    @property
    def problem(self) -> str:
        """Why nothing moves, if known."""
        return self._problem.message or self.dequeuing.problem

    def drain(self) -> None:
        """Assign nothing from now on, until `is_drained`."""
        self._coordinator.is_draining = True

    def is_drained(self) -> bool:
        """Return whether no server can be writing."""
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
            self.views.describe("DISABLED")
        except HeadraceError as error:
            if not isinstance(error, FencedError):  # the newer driver has described itself
                self.views.describe("ABORTED", error.message)
            raise
        finally:
            self.dequeuing.end()
            self.errors.end()
            self.inbox.end()

    def begin(self) -> None:
        """Start dequeuing."""
        self.dequeuing.begin_again()

    def turn(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for events, handle them, and do the work that is then possible."""
        self._handle_events(timeout_s)
        self._has_queue_spoken = False  # before polling: anything that arrives from now on wakes the loop again
        self.dequeuing.hear()
        self._work()
        self._housekeep(self._clock.monotonic())

    def _pause(self) -> float:
        """Return the seconds until work is due."""
        if self._has_queue_spoken:  # while the loop worked, after it had polled
            return 0.0
        now = self._clock.monotonic()
        # Nothing is recorded while the outcome of a join is unknown, however long that has been due.
        own = self._join_at if self.joins.is_uncertain else self.progress.due_at
        parts = (own, self._fit_checks.due_at, self.dequeuing.due_at, self.servers.join_due_at)
        due = [now + RECORD_INTERVAL_S, *(at for at in parts if at is not None)]
        return max(0.0, min(due) - now)

    def _handle_events(self, timeout_s: float) -> None:
        for _ in range(_EVENTS_AT_ONCE):
            event = self.inbox.next(timeout_s)
            if event is None:
                return
            self._handle(event)
            timeout_s = 0.0

    def _handle(self, event: Event) -> None:
        if isinstance(event, QueueSpoke):
            self._has_queue_spoken = True
        elif isinstance(event, ServerSpoke):
            event.stream.taken()
            self.servers.heard(event.stream, event.message)
        elif isinstance(event, StreamOpened):
            self.servers.open(event.stream)
        elif isinstance(event, StreamLost):
            self.servers.lost(event.stream, event.problem)
        elif isinstance(event, Call):
            event.run()
        else:
            raise event.error

    def _work(self) -> None:
        """Move batches through the cores until they need nothing more."""
        self._restart_where_needed()
        if self.joins.is_due:
            self._change_tables()
            return
        if self.dequeuing.is_away:
            self._reader.queue_lost()
        while True:
            while self._coordinator.wants and (piece := self._reader.take()) is not None:
                self._coordinator.accept(piece)
            self._send()
            if not (self.dequeuing.has_batch and self._reader.wants and self._coordinator.wants):
                break
            batch = self.dequeuing.take()
            self._reader.offer(codec.decode(batch.data), batch.data)
            # Reports free capacity and release groups, so they must not wait behind read-ahead.
            self._handle_events(0.0)
            self._restart_where_needed()
        self._settle()
        self.errors.deliver_outcomes()

    def _change_tables(self) -> None:
        """Finish what is accepted, then let tables join or skip them, and begin again from there."""
        self._send_unless_uncertain()
        now = self._clock.monotonic()
        if now < self._join_at:
            return
        try:
            if self.joins.advance():
                self.dequeuing.begin_again()
        except DatabaseUnavailable as error:
            self._problem.note(error)
            self._join_at = now + DEQUEUE_RETRY_S
        self._send_unless_uncertain()
        self.errors.deliver_outcomes()

    def _send_unless_uncertain(self) -> None:
        """Send, unless a join's outcome is unknown.

        A group carries the low watermark from before the join. Committed after the join, that would be taken for the
        joined tables' low watermark.
        """
        if not self.joins.is_uncertain:
            self._send()

    def _settle(self) -> None:
        """Let the reader pass on more when everything that it waits for is applied."""
        if self._reader.must_settle and self._coordinator.is_idle:
            try:
                self._reader.retry_unfit()
            except DatabaseUnavailable as error:
                self._problem.note(error)
                return
            self._work()

    def _restart_where_needed(self) -> None:
        if self._coordinator.must_replay:
            self._reader.restart(self._coordinator.watermarks.progress)
            self._coordinator.replayed()
            self.dequeuing.begin_again()
        elif self._reader.must_resubscribe:
            self.dequeuing.begin_again()
            self._reader.resubscribed()

    def _send(self) -> None:
        if not self._coordinator.is_draining:
            self.servers.send(self._coordinator.messages())
        self.progress.note_applied()
        self.dequeuing.tell(self.joins.bounded(self.progress.recorded_scn))

    # ------------------------------------------------------------------ time

    def _housekeep(self, now: float) -> None:
        self._record(now)
        self._look_for_flushes(now)
        if self._fit_checks.is_due(now):
            self._look_again()
        self._fit_checks.forget_old(now)
        self.dequeuing.housekeep(now)
        self.servers.housekeep(now)
        if self.views.is_due(now):
            self.errors.look_for_deleted()
            self.views.describe("ENABLED")

    def _look_again(self) -> None:
        try:
            if self._reader.retry_unfit():
                self._work()
        except DatabaseUnavailable as error:
            self._problem.note(error)

    def _look_for_flushes(self, now: float) -> None:
        """Find out which of the servers' commits are on the destination's disk."""
        try:
            is_answered = self.progress.look_for_flushes(now)
        except DatabaseUnavailable as error:
            self._problem.note(error)
            return
        if self.joins.is_uncertain:
            return
        if is_answered:
            # Under load nothing else asks, and the problem would be shown for ever.
            self._problem.clear()
        if self.joins.bounded(self.progress.recorded_scn) > self.dequeuing.told_scn:
            self._send()

    def _record(self, now: float) -> None:
        """Record a low watermark that moved without data, so that the source can discard its log."""
        if self.joins.is_uncertain:
            return
        try:
            is_recorded = self.progress.record(now)
        except DatabaseUnavailable as error:
            self._problem.note(error)
            return
        if is_recorded:
            self._problem.clear()
            self._send()
