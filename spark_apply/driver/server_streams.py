"""The apply servers in the driver's loop: which stream belongs to which server, and whether the server has joined.

A server has joined when its destination session is open and the progress was read after that: only then are the commits
of a dead predecessor known. It stays joined while its stream lives. It reopens a broken session itself, and then knows
the outcome of its last commit.

Only the loop's thread uses this module.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.clock import Clock
from headrace.base.errors import ApplyError, DatabaseUnavailable, DestinationRestarted, FencedError
from headrace.databases.progress import check_epoch
from protos import apply_pb2 as pb
from protos.links.apply_link import ServerStream
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.conversation.messages import access_to_wire, coordinator_message_to_wire, server_message_from_wire

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase
    from headrace.lcr.scn import Scn
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.conversation.groups import CoordinatorMessage
    from spark_apply.driver.coordinator import ApplyCoordinator

__all__ = ["ApplyServers", "Refusal", "ServerFacts"]

JOIN_RETRY_S = 1.0  # after the destination did not answer while a server joined
# A task starts within seconds after the application accepts its run, or within 10 s after the death of its executor;
# a loaded machine needs longer. An application that can no longer run tasks ends itself
# (`spark_apply.application.process`).
REGISTER_TIMEOUT_S = 180.0
# Servers report every few seconds that they are alive, even during a long statement.
PROGRESS_TIMEOUT_S = 600.0
# A server that ends with an unexpected error this often within the window will do so again.
FAILURES_MAX = 5
FAILURES_WINDOW_S = 120.0
# A lock not obtained within the lock timeout (5 s), or a deadlock, is retried and usually passes. The operator must see
# failures that last longer.
FAILING_TOLD_S = 15.0
# The process was replaced, and nothing else shows that. An operator looks at least once a day.
FAILURE_TOLD_S = 86_400.0
# `ApplyServer.state` from the failure until the group is written or returned.
_FAILED = "ROLLBACK TRANSACTION"
# `ApplyServer.state` while a table does not fit, or the destination refuses a statement.
_UNFIT = "PAUSED: WAITING FOR ALTER"
# Incarnations of apply servers are above this. Earlier versions of Headrace had none: their rounds of copies had
# sessions with the same numbers and counted incarnations from 1 (`spark_apply.copy.records.sessions`).
_COPY_INCARNATIONS_MAX = 1 << 32

log = logging.getLogger("headrace.apply")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about one apply server, for `status`."""

    server: int
    state: str
    detail: str
    hint: str
    pid: int
    host: str
    attempts: int
    has_joined: bool
    # whether the same group has failed and been retried for longer than `FAILING_TOLD_S`; `detail` says why
    is_failing: bool = False
    failure: str = ""  # why an earlier process of the server ended
    failure_hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a server paused last, and the low watermark of that time."""

    server: int
    state: str
    detail: str
    hint: str
    low: Scn


@dataclass(slots=True)
class _Server:
    """One apply server in the loop. `stream` None: its task does not run (yet, or again)."""

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
    failing_since: float | None = None
    failures: deque[float] = field(default_factory=deque)
    failure: tuple[str, str, float] = ("", "", 0.0)  # the last failure, its hint, and its time


class ApplyServers:
    """The apply servers of one apply process.

    Args:
        epoch: the driver's epoch at the destination.
        destination: source of the progress when a server joins.
        coordinator: informed of joined and lost servers, and of reports.
        clock: clock for time-outs.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        coordinator: ApplyCoordinator,
        clock: Clock,
    ) -> None:
        self._config, self._epoch = config, epoch
        self._destination, self._coordinator, self._clock = destination, coordinator, clock
        self._servers = [_Server(number) for number in range(config.parallelism)]
        self._started_at = self._moved_at = clock.monotonic()
        self._is_accepted = False  # the application runs or starts the tasks
        self._refusal: Refusal | None = None

    # ------------------------------------------------------------------ facts

    def facts(self) -> tuple[ServerFacts, ...]:
        """Facts about every apply server."""
        now = self._clock.monotonic()
        told_since = now - FAILURE_TOLD_S
        return tuple(
            ServerFacts(
                server=server.number,
                state=self._coordinator.server_state(server.number, server.state),
                detail=server.detail,
                hint=server.hint,
                pid=server.stream.hello.pid if server.stream else 0,
                host=server.stream.hello.host if server.stream else "",
                attempts=server.attempts,
                has_joined=server.joined,
                is_failing=server.failing_since is not None and now - server.failing_since >= FAILING_TOLD_S,
                **(
                    {"failure": server.failure[0], "failure_hint": server.failure[1]}
                    if server.failure[2] > told_since
                    else {}
                ),
            )
            for server in self._servers
        )

    @property
    def refusal(self) -> Refusal | None:
        """Why a server paused last, if nothing was applied since; None: something was, or none paused.

        A server that pauses returns its group, and forgets the pause before the group comes again: with a long way back
        to it in redo, much earlier.
        """
        found = self._refusal
        return found if found is not None and found.low >= self._coordinator.watermarks.low else None

    @property
    def may_write(self) -> bool:
        """Whether a server may have unreported commits."""
        return any(self._coordinator.has_doubts(server.number) for server in self._servers)

    @property
    def join_due_at(self) -> float | None:
        """When to retry joining a server; None: no server waits to join."""
        return min(
            (server.join_at for server in self._servers if server.has_session and not server.joined), default=None
        )

    # ------------------------------------------------------------------ events

    def send(self, messages: Iterable[tuple[int, CoordinatorMessage]]) -> None:
        """Send the coordinator's messages; those for a lost server are dropped."""
        for number, message in messages:
            stream = self._servers[number].stream
            if stream is not None:
                stream.send(coordinator_message_to_wire(message))

    def stop(self) -> None:
        """Tell every server to close its session and end."""
        for server in self._servers:
            if server.stream is not None:
                server.stream.send(pb.CoordinatorMessage(stop=pb.StopServer()))

    def accepted(self, *, is_accepted: bool) -> None:
        """Note that the application has accepted the tasks, or that it has ended and another one must run them."""
        self._is_accepted, self._started_at = is_accepted, self._clock.monotonic()

    def open(self, stream: ServerStream) -> None:
        """Count a task that began; it replaces an earlier task with its number.

        The count is part of the session's incarnation in `DestinationDatabase.open_session`.
        """
        server = self._servers[stream.hello.server]
        if server.stream is not None:
            old = server.stream
            self._lose(server, "replaced by a newer attempt")
            old.close()
        server.stream = stream
        server.attempts += 1
        server.heard_at = self._clock.monotonic()
        server.state, server.detail, server.hint = "INITIALIZING", "", ""
        stream.send(
            pb.CoordinatorMessage(
                welcome=pb.Welcome(
                    epoch=self._epoch,
                    tag=self._config.tag,
                    source=self._config.source.site,
                    group_rows=self._config.group_rows,
                    destination=access_to_wire(self._config.destination),
                    incarnation=_COPY_INCARNATIONS_MAX + server.attempts,
                    conflicts=self._config.conflicts.to_bytes(),
                    dependencies=self._config.dependencies.to_bytes(),
                    handlers=self._config.handlers.to_bytes(),
                    commits_lazily=self._config.commits_lazily,
                )
            )
        )

    def heard(self, stream: ServerStream, message: pb.ServerMessage) -> None:
        """Process a server's message; ignore it if its stream was replaced.

        Args:
            stream: the stream it arrived on; its hello has the server's number.
            message: a complete message.
        """
        server = self._servers[stream.hello.server]
        if server.stream is stream:
            self._hear(server, message)

    def lost(self, stream: ServerStream, problem: str) -> None:
        """Note that a stream ended: its server has no session until a new task opens one.

        Args:
            stream: the stream; nothing happens if it was replaced.
            problem: the reason, shown in the status; empty: the task ended in order.
        """
        server = self._servers[stream.hello.server]
        if server.stream is stream:
            self._lose(server, problem)

    def housekeep(self, now: float) -> None:
        """Retry servers that could not join; fail the job when tasks do not return or nothing moves.

        Raises:
            SparkUnavailable: the job is stuck.
            FencedError: a newer driver runs.
            DestinationRestarted: the destination has an older epoch.
        """
        for server in self._servers:
            if server.has_session and not server.joined and now >= server.join_at:
                self._join(server)
            is_late = server.stream is None and now - max(server.heard_at, self._started_at) > REGISTER_TIMEOUT_S
            if self._is_accepted and is_late:
                raise SparkUnavailable(
                    f"apply server {server.number} of {self._config.apply} did not start within {REGISTER_TIMEOUT_S:g} s",
                    hint="retrying; see the Ray session's logs: executors may lack memory or CPUs",
                    server=server.number,
                )
        if not self.may_write:
            self._moved_at = now
        elif now - self._moved_at > PROGRESS_TIMEOUT_S:
            raise SparkUnavailable(
                f"apply {self._config.apply}: no server reported within {PROGRESS_TIMEOUT_S:g} s", hint=SEE_LOG
            )

    # ------------------------------------------------------------------ inside

    def _lose(self, server: _Server, problem: str) -> None:
        server.stream = None
        server.has_session = False
        server.heard_at = self._clock.monotonic()
        server.state, server.detail, server.failing_since = "INITIALIZING", problem, None
        if server.joined:
            server.joined = False
            self._coordinator.server_lost(server.number)

    def _hear(self, server: _Server, message: pb.ServerMessage) -> None:
        server.heard_at = self._moved_at = self._clock.monotonic()
        kind = message.WhichOneof("kind")
        if kind == "state":
            state = message.state
            server.state, server.detail, server.hint = state.state, state.detail, state.hint
            if state.state == _UNFIT:
                low = self._coordinator.watermarks.low
                self._refusal = Refusal(
                    server=server.number, state=state.state, detail=state.detail, hint=state.hint, low=low
                )
            if state.state != _FAILED:
                server.failing_since = None
            elif server.failing_since is None:
                server.failing_since = self._clock.monotonic()
            if state.has_session and not server.has_session:
                server.has_session, server.join_at = True, 0.0
                self._join(server)
            elif not state.has_session and server.has_session:
                # It lost its session and opens another: until then its group is in doubt.
                server.has_session = server.joined = False
                self._coordinator.server_lost(server.number)
        elif kind == "failure":
            self._fail_server(server, message.failure)
        elif server.joined:
            self._coordinator.report(server.number, server_message_from_wire(message))

    def _join(self, server: _Server) -> None:
        """Let a server with a session take part; first read what its predecessor committed."""
        topology, apply = self._config.topology, self._config.apply
        try:
            progress = self._destination.progress(topology, apply)
            errors = (
                list(self._destination.error_key_hashes(topology, apply))
                if self._coordinator.has_doubts(server.number)
                else None
            )
        except DatabaseUnavailable as error:
            server.detail, server.join_at = error.message, self._clock.monotonic() + JOIN_RETRY_S
            return
        check_epoch(0 if progress is None else progress.epoch, apply=apply, epoch=self._epoch)
        assert progress is not None
        server.joined = True
        self._coordinator.server_joined(server.number, progress, errors)

    def _fail_server(self, server: _Server, failure: pb.ServerFailure) -> None:
        log.warning("apply server %d: %s: %s", server.number, failure.error, failure.message)
        message = f"apply server {server.number}: {failure.message}"
        if failure.fenced:
            raise FencedError(message, apply=self._config.apply, epoch=self._epoch)
        if failure.destination_restarted:
            raise DestinationRestarted(message, hint=failure.hint, apply=self._config.apply)
        now = self._clock.monotonic()
        server.failure = failure.message, failure.hint, now
        if failure.replaced:
            # Between two of its destination transactions, both of which were reported: however often, it continues.
            return
        server.failures.append(now)
        while server.failures[0] < now - FAILURES_WINDOW_S:
            server.failures.popleft()
        if failure.final or len(server.failures) >= FAILURES_MAX:
            raise ApplyError(message, hint=failure.hint, error=failure.error, server=server.number)
