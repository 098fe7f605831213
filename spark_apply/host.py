"""Hosts reader and coordinator in the Spark driver: one thread owns them, everybody else sends it events.

Job
    Bring together what the queue sends, what the apply servers report, and what the cores want done.

Main path
    feed -> BatchArrived -> ApplyReader.offer -> take -> ApplyCoordinator.accept -> messages -> ServerStream.send
    -> apply server -> ServerSpoke -> ApplyCoordinator.report -> durable SCN -> feed.

States
    See `reader` and `coordinator`; here only which stream belongs to which apply server, memory only.

Durable when
    An SCN is reported to the queue only when the destination is sure to remember it: `ApplyCoordinator.durable_scn`,
    or a low watermark that moved without data after it was recorded.

Threads
    The loop's thread runs the cores and every call to the destination that they need. gRPC's threads, the feed's and
    control's put events on a queue and never touch a core. The loop sleeps on that queue: an event is handled at
    once, and nothing happens when nothing comes, except what time asks for.

Worked flow
    Python worker of server 1 is killed -> its stream ends -> group 7 in doubt -> Spark runs the task again -> hello,
    new stream -> its session is open: the old backend is gone -> progress is read: group 7 was committed -> done
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from protos import apply_pb2 as pb
from protos import codec
from protos.apply_link import ServerStream, check_token
from protos.codec import BatchHeader
from spark_apply.messages import coordinator_message_to_wire, server_message_from_wire
from streams.clock import Clock, SystemClock
from streams.errors import ApplyError, DatabaseUnavailable, FencedError, ProtocolError, StreamsError
from streams.scn import Scn

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase
    from spark_apply.coordinator import ApplyCoordinator, ErrorOutcome
    from spark_apply.copy_board import CopyBoard
    from spark_apply.job_config import ApplyJobConfig
    from spark_apply.reader import ApplyReader
    from spark_apply.tables import TableFits

__all__ = ["CoordinatorHost", "Feed", "Gate", "ServerFacts"]

# The low watermark of an idle source moves with every heartbeat: written to the destination this often at most.
RECORD_INTERVAL_S = 2.0
ALTER_RETRY_S = 2.0  # how often a table that does not fit is looked at again
JOIN_RETRY_S = 1.0  # the destination did not answer while a server joined
# A task starts within seconds of its application; a replaced executor within 10 s; a loaded machine needs longer.
REGISTER_TIMEOUT_S = 180.0
# A server works on a group and nothing comes back: longer than any lock time-out, retry or group takes.
PROGRESS_TIMEOUT_S = 600.0
# A server that ends by an unexpected error this often within the window will do so again.
FAILURES_MAX = 5
FAILURES_WINDOW_S = 120.0
_EVENTS_AT_ONCE = 256  # handled before the cores look at what they can do now
_CALL_TIMEOUT_S = 30.0

log = logging.getLogger("headrace.apply")

_Answer = TypeVar("_Answer")


class Feed(Protocol):
    """Where batches come from: the queue, over and over until it answers. Delivers to `CoordinatorHost.arrived`."""

    def start(self, needed: Scn) -> int:
        """Dequeue from `needed` on; ends what was dequeued before. The answer marks what is delivered from now on."""
        ...

    def taken(self, size: int) -> None:
        """A delivered batch of that many bytes was taken: as much more may come."""
        ...

    def durable(self, scn: Scn) -> None:
        """Everything up to `scn` is durable at the destination."""
        ...

    def problem(self) -> str:
        """Why nothing comes now; empty when connected."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What is known of one apply server, for status."""

    server: int
    state: str
    detail: str
    hint: str
    pid: int
    host: str
    attempts: int
    has_joined: bool


# --------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class _BatchArrived:
    mark: int
    header: BatchHeader
    data: bytes


@dataclass(frozen=True, slots=True)
class _FeedBroke:
    mark: int


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
    error: StreamsError


_Event = _BatchArrived | _FeedBroke | _StreamOpened | _ServerSpoke | _StreamLost | _Call | _Failed


@dataclass(slots=True)
class _Server:
    """One apply server as the loop sees it. `stream` None: its task does not run (yet, or again)."""

    number: int
    stream: ServerStream | None = None
    attempts: int = 0
    state: str = "INITIALIZING"
    detail: str = ""
    hint: str = ""
    has_session: bool = False
    joined: bool = False
    join_at: float = 0.0
    heard_at: float = 0.0
    failures: deque[float] = field(default_factory=deque)


class Gate:
    """Who the driver's endpoint talks to: tasks that only need the databases, and, once it exists, the host.

    Args:
        config: of the apply process.
        token: of this driver's incarnation.
    """

    def __init__(self, config: ApplyJobConfig, token: str) -> None:
        self._config, self._token = config, token
        self.host: CoordinatorHost | None = None
        self.board: CopyBoard | None = None

    def accept(self, stream: ServerStream) -> None:
        """See `StreamListener.accept`."""
        hello = stream.hello
        check_token(hello.token, self._token)
        if (hello.topology, hello.apply) != (self._config.topology, self._config.apply) or self.host is None:
            raise ProtocolError(f"this is the driver of {self._config.apply}, not of {hello.apply}")
        if not 0 <= hello.server < self._config.parallelism:
            raise ProtocolError(f"apply {self._config.apply} has no server {hello.server}")
        self.host.opened(stream)

    def receive(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """See `StreamListener.receive`."""
        if self.host is not None:
            self.host.receive(stream, message)

    def lost(self, stream: ServerStream, problem: str) -> None:
        """See `StreamListener.lost`."""
        if self.host is not None:
            self.host.lost(stream, problem)

    def next_copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        """See `StreamListener.next_copy`."""
        check_token(request.token, self._token)
        board = self.board
        return pb.CopyReply(done=True) if board is None else board.next(request)

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        """See `StreamListener.access`."""
        check_token(request.token, self._token)
        source, destination = self._config.source, self._config.destination
        return pb.AccessReply(
            source=pb.DatabaseAccess(site=source.site, kind=source.kind, dsn=source.dsn),
            destination=pb.DatabaseAccess(site=destination.site, kind=destination.kind, dsn=destination.dsn),
        )


class CoordinatorHost:
    """See the module. `run` is the loop; `opened`, `receive`, `lost`, `arrived`, `call` come from other threads.

    Args:
        config: of the apply process.
        epoch: at the destination.
        destination: used by the loop's thread only.
        reader: core.
        coordinator: core.
        fits: the reader's, to look again at a table that did not fit.
        feed: see `Feed`.
        clock: of time-outs.
    """

    def __init__(
        self, config: ApplyJobConfig, *, epoch: int, destination: DestinationDatabase, reader: ApplyReader,
        coordinator: ApplyCoordinator, fits: TableFits, feed: Feed, clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._config, self._epoch = config, epoch
        self._destination, self._reader, self._coordinator = destination, reader, coordinator
        self._fits, self._feed = fits, feed
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._inbox: deque[_BatchArrived] = deque()
        self._mark = -1
        self._servers = [_Server(number) for number in range(config.parallelism)]
        self._waiting_outcomes: dict[int, queue.SimpleQueue[ErrorOutcome]] = {}
        self._reported = Scn(0)
        self._record_at = self._alter_at = 0.0
        self._started_at = self._moved_at = self._clock.monotonic()
        self._last_applied_us = 0
        self._draining = False
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

    def arrived(self, mark: int, header: BatchHeader, data: bytes) -> None:
        """A batch came from the queue; `mark` is what `Feed.start` answered."""
        self._events.put(_BatchArrived(mark, header, data))

    def feed_broke(self, mark: int) -> None:
        """The stream from the queue broke; `mark` is what `Feed.start` answered."""
        self._events.put(_FeedBroke(mark))

    def fail(self, error: StreamsError) -> None:
        """Something outside the loop cannot go on: `run` raises it."""
        self._events.put(_Failed(error))

    def call(self, action: Callable[[], _Answer]) -> _Answer:
        """Run something on the loop's thread and return its answer.

        Raises:
            ApplyError: the loop did not come to it in time.
            StreamsError: what the action raised.
        """
        found = self.call_within(action, _CALL_TIMEOUT_S)
        if found is None:
            raise ApplyError(
                f"apply {self._config.apply} is busy with its destination: no answer within {_CALL_TIMEOUT_S:g} s"
            )
        return found[0]

    def call_within(self, action: Callable[[], _Answer], timeout_s: float) -> tuple[_Answer] | None:
        """As `call`; None when the loop did not come to it in time (the action may still run)."""
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._events.put(_Call(action, answer))
        try:
            found = answer.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, StreamsError):
            raise found
        return (cast("_Answer", found),)

    # ------------------------------------------------------------------ on the loop's thread, through `call`

    def facts(self) -> tuple[ServerFacts, ...]:
        """What is known of every apply server."""
        return tuple(
            ServerFacts(
                server=server.number, state=server.state, detail=server.detail, hint=server.hint,
                pid=server.stream.hello.pid if server.stream else 0,
                host=server.stream.hello.host if server.stream else "", attempts=server.attempts,
                has_joined=server.joined,
            )
            for server in self._servers
        )

    @property
    def last_applied_us(self) -> int:
        """When the low watermark last moved with data, microseconds since the epoch."""
        return self._last_applied_us

    @property
    def problem(self) -> str:
        """Why nothing moves, if something is known."""
        return self._problem or self._feed.problem()

    def error_numbers(self) -> tuple[int, ...]:
        """The error queue, as the destination has it."""
        found = self._destination.errors(self._config.topology, self._config.apply)
        return tuple(sorted(error.number for error in found))

    def execute_errors(self, numbers: Iterable[int]) -> queue.SimpleQueue[ErrorOutcome]:
        """Execute error transactions; their outcomes come on the queue, one each."""
        outcomes: queue.SimpleQueue[ErrorOutcome] = queue.SimpleQueue()
        for number in numbers:
            self._waiting_outcomes[number] = outcomes
        self._coordinator.execute_errors(numbers)
        return outcomes

    def delete_error(self, number: int) -> bool:
        """Delete an error transaction; False when it is not there."""
        found = self._destination.delete_error(self._config.topology, number)
        self._coordinator.error_deleted(number)
        return found

    def drain(self) -> None:
        """Hand out nothing any more; see `is_drained`."""
        self._draining = True

    def is_drained(self) -> bool:
        """No server may be writing."""
        return self._draining and not any(self._coordinator.has_doubts(server.number) for server in self._servers)

    def stop_servers(self) -> None:
        """Tell the apply servers to close their sessions and end."""
        for server in self._servers:
            if server.stream is not None:
                server.stream.send(pb.CoordinatorMessage(stop=pb.StopServer()))

    # ------------------------------------------------------------------ the loop

    def run(self, should_end: Callable[[], bool]) -> None:
        """Run until `should_end`, asked after each event.

        Raises:
            FencedError: a newer incarnation exists.
            StreamsError: the job cannot go on.
        """
        self.begin()
        while not should_end():
            self.turn(self._pause())

    def begin(self) -> None:
        """Start dequeuing."""
        self._mark = self._feed.start(self._reader.needed_scn)

    def turn(self, timeout_s: float) -> None:
        """Handle what came, waiting for it for so long, and do what can be done then."""
        self._handle_events(timeout_s)
        self._work()
        self._housekeep(self._clock.monotonic())

    def _pause(self) -> float:
        """Seconds until time asks for something."""
        now = self._clock.monotonic()
        due = [now + RECORD_INTERVAL_S]
        if self._coordinator.unrecorded_scn is not None:
            due.append(self._record_at)
        if self._reader.unfit is not None:
            due.append(self._alter_at)
        due.extend(server.join_at for server in self._servers if server.has_session and not server.joined)
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
        if isinstance(event, _BatchArrived):
            if event.mark == self._mark:
                self._inbox.append(event)
        elif isinstance(event, _ServerSpoke):
            server = self._servers[event.stream.hello.server]
            if server.stream is event.stream:
                self._hear(server, event.message)
        elif isinstance(event, _FeedBroke):
            if event.mark == self._mark:
                self._dequeue_again()
        elif isinstance(event, _StreamOpened):
            self._open(event.stream)
        elif isinstance(event, _StreamLost):
            server = self._servers[event.stream.hello.server]
            if server.stream is event.stream:
                self._lose(server, event.problem)
        elif isinstance(event, _Call):
            self._answer(event)
        else:
            raise event.error

    def _answer(self, call: _Call) -> None:
        try:
            call.answer.put(call.action())
        except StreamsError as error:
            call.answer.put(error)

    def _work(self) -> None:
        """Move batches through the cores until they want nothing more."""
        self._restart_where_needed()
        while True:
            while self._coordinator.wants and (piece := self._reader.take()) is not None:
                self._coordinator.accept(piece)
            self._send()
            if not (self._inbox and self._reader.wants and self._coordinator.wants):
                break
            batch = self._inbox.popleft()
            self._reader.offer(codec.decode(batch.data), batch.data)
            self._feed.taken(len(batch.data))
            # Reports make room and let groups go: they must not wait for what is read ahead.
            self._handle_events(0.0)
            self._restart_where_needed()
        self._deliver_outcomes()

    def _restart_where_needed(self) -> None:
        if self._coordinator.must_replay:
            self._reader.restart(self._coordinator.progress)
            self._coordinator.replayed()
            self._dequeue_again()
        elif self._reader.must_resubscribe:
            self._dequeue_again()
            self._reader.resubscribed()

    def _dequeue_again(self) -> None:
        self._inbox.clear()
        self._mark = self._feed.start(self._reader.needed_scn)

    def _send(self) -> None:
        if not self._draining:
            for number, message in self._coordinator.messages():
                stream = self._servers[number].stream
                if stream is not None:
                    stream.send(coordinator_message_to_wire(message))
        durable = self._coordinator.durable_scn
        if durable > self._reported:
            self._reported = durable
            self._last_applied_us = self._clock.time_us()
            self._moved_at = self._clock.monotonic()
            self._feed.durable(durable)

    def _deliver_outcomes(self) -> None:
        for outcome in self._coordinator.take_outcomes():
            waiting = self._waiting_outcomes.pop(outcome.number, None)
            if waiting is not None:
                waiting.put(outcome)

    # ------------------------------------------------------------------ servers

    def _open(self, stream: ServerStream) -> None:
        """A task began: it replaces whatever ran under its number before."""
        server = self._servers[stream.hello.server]
        if server.stream is not None:
            old = server.stream
            self._lose(server, "replaced by a newer attempt")
            old.close()
        server.stream = stream
        server.attempts += 1
        server.heard_at = self._clock.monotonic()
        server.state, server.detail, server.hint = "INITIALIZING", "", ""
        destination = self._config.destination
        stream.send(pb.CoordinatorMessage(welcome=pb.Welcome(
            epoch=self._epoch, tag=self._config.tag, source=self._config.source.site, group_rows=self._config.group_rows,
            destination=pb.DatabaseAccess(site=destination.site, kind=destination.kind, dsn=destination.dsn),
        )))

    def _lose(self, server: _Server, problem: str) -> None:
        server.stream = None
        server.has_session = False
        server.heard_at = self._clock.monotonic()
        server.state, server.detail = "INITIALIZING", problem
        if server.joined:
            server.joined = False
            self._coordinator.server_lost(server.number)

    def _hear(self, server: _Server, message: pb.ServerMessage) -> None:
        server.heard_at = self._moved_at = self._clock.monotonic()
        kind = message.WhichOneof("kind")
        if kind == "state":
            state = message.state
            server.state, server.detail, server.hint = state.state, state.detail, state.hint
            if state.has_session and not server.has_session:
                server.has_session, server.join_at = True, 0.0
                self._join(server)
            elif not state.has_session and server.has_session:
                # It lost its session and opens another: what it had is in doubt until then.
                server.has_session = server.joined = False
                self._coordinator.server_lost(server.number)
        elif kind == "failure":
            self._fail_server(server, message.failure)
        elif server.joined:
            self._coordinator.report(server.number, server_message_from_wire(message))

    def _join(self, server: _Server) -> None:
        """Let a server with a session take part; what its predecessor committed is read first."""
        topology, apply = self._config.topology, self._config.apply
        try:
            progress = self._destination.progress(topology, apply)
            errors = (
                list(self._destination.error_key_hashes(topology, apply))
                if self._coordinator.has_doubts(server.number) else None
            )
        except DatabaseUnavailable as error:
            server.detail, server.join_at = error.message, self._clock.monotonic() + JOIN_RETRY_S
            return
        if progress is None or progress.epoch != self._epoch:
            raise FencedError(
                f"apply {apply}: a newer driver runs", apply=apply, epoch=self._epoch,
            )
        server.joined = True
        self._coordinator.server_joined(server.number, progress, errors)

    def _fail_server(self, server: _Server, failure: pb.ServerFailure) -> None:
        log.warning("apply server %d: %s: %s", server.number, failure.error, failure.message)
        message = f"apply server {server.number}: {failure.message}"
        if failure.fenced:
            raise FencedError(message, apply=self._config.apply, epoch=self._epoch)
        now = self._clock.monotonic()
        server.failures.append(now)
        while server.failures[0] < now - FAILURES_WINDOW_S:
            server.failures.popleft()
        if failure.final or len(server.failures) >= FAILURES_MAX:
            raise ApplyError(message, hint=failure.hint, error=failure.error, server=server.number)

    # ------------------------------------------------------------------ time

    def _housekeep(self, now: float) -> None:
        self._record(now)
        if self._reader.unfit is not None:
            if self._alter_at == 0.0:
                self._alter_at = now + ALTER_RETRY_S
            elif now >= self._alter_at:
                self._alter_at = now + ALTER_RETRY_S
                self._look_again()
        else:
            self._alter_at = 0.0
        for server in self._servers:
            if server.has_session and not server.joined and now >= server.join_at:
                self._join(server)
        self._watch(now)

    def _look_again(self) -> None:
        self._fits.forget()
        try:
            if self._reader.retry_unfit():
                self._work()
        except DatabaseUnavailable as error:
            self._problem = error.message

    def _record(self, now: float) -> None:
        """Make a low watermark durable that moved without data, so that the source may let go of its log."""
        scn = self._coordinator.unrecorded_scn
        if scn is None or now < self._record_at:
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
        self._send()

    def _watch(self, now: float) -> None:
        """Fail the job when tasks do not come back, or nothing moves though a server works on something."""
        for server in self._servers:
            begun = max(server.heard_at, self._started_at)
            if server.stream is None and now - begun > REGISTER_TIMEOUT_S:
                raise ApplyError(
                    f"apply server {server.number} of {self._config.apply} did not start within {REGISTER_TIMEOUT_S:g} s",
                    hint="see the Ray session's logs: executors may lack memory or CPUs", server=server.number,
                )
        busy = any(self._coordinator.has_doubts(server.number) for server in self._servers)
        if not busy:
            self._moved_at = now
        elif now - self._moved_at > PROGRESS_TIMEOUT_S:
            raise ApplyError(f"apply {self._config.apply}: no server reported within {PROGRESS_TIMEOUT_S:g} s")
