"""Apply servers as Spark tasks: one long-running task each, connected to the coordinator.

Job
    Run one `ApplyServer` in a Spark executor's Python worker until told to stop.

Main path
    serve (of a run of tasks, `spark_apply.application.runs`) -> CoordinatorLink -> ApplyServer.receive, step ->
      reports.

States
    The apply server's (`apply_server`); a lasting state is reported to the coordinator.

Durable when
    Nothing here. Spark reruns a task that dies with its worker, executor or node. The new task says hello with the same
    server number, its session ends the old one, and the coordinator asks the destination for the outcome of the old
    task's groups.

Imports at the top of the module need only the standard library: grpc and psycopg must not be loaded before Spark's
worker has forked, and the task's environment arms failpoints.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spark_apply.application.workers import die_with_parent

if TYPE_CHECKING:
    from headrace.base.errors import HeadraceError
    from protos import apply_pb2 as pb
    from protos.links.apply_link import CoordinatorLink
    from spark_apply.application.access.task_access import TaskAccess
    from spark_apply.server.apply_server import ApplyServer

__all__ = ["serve"]

_WELCOME_TIMEOUT_S = 30.0  # a running driver answers at once
# Do not report shorter states: a busy server passes through all of them for each group.
_STATE_DELAY_S = 0.2
_HEARTBEAT_S = 5.0
_LAST_WORDS_S = 2.0  # time for the driver to read why the task ends
# Spark reruns a failed task at once: wait at least this long between attempts.
_FAILURE_DELAY_S = 1.0


# --------------------------------------------------------------------------- task


def serve(access: TaskAccess, topology: str, apply: str, index: int, _items: Iterable[int]) -> Iterator[bytes]:
    """Run apply server `index` until the coordinator says stop; a failure is raised, so that Spark reruns the task.

    Args:
        access: endpoint and token of the driver.
        topology: name of the topology.
        apply: name of the apply process.
        index: number of the apply server, from 0.
        _items: items of Spark's partition; unused.

    Returns:
        Nothing to iterate over.

    Raises:
        HeadraceError: the server failed; it has reported the failure to the driver.
    """
    die_with_parent()
    task = _ServerTask(access, topology, apply, index)
    try:
        task.run()
    finally:
        task.close()
    return iter(())


class _ServerTask:
    def __init__(self, access: TaskAccess, topology: str, apply: str, index: int) -> None:
        self._access, self._topology, self._apply, self._index = access, topology, apply, index
        self._inbox: queue.SimpleQueue[pb.CoordinatorMessage | HeadraceError] = queue.SimpleQueue()
        self._link: CoordinatorLink | None = None
        self._server: ApplyServer | None = None
        self._told: tuple[str, str] = ("", "")
        self._told_at = 0.0
        self._stopped = False
        self._in_step = False

    def run(self) -> None:
        from headrace.base.errors import BugError, HeadraceError, Retry

        try:
            self._serve()
        except HeadraceError as error:
            self._say_failure(error, final=error.retry is not Retry.TIMED)
            raise
        except Exception as error:
            bug = BugError(f"{type(error).__name__}: {error}", hint="see the executor's log; report it")
            self._say_failure(bug, final=False)
            raise

    def close(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.close()
        if self._link is not None:
            self._link.close()

    # ------------------------------------------------------------------ inside

    def _serve(self) -> None:
        from protos.links.apply_link import CoordinatorLink, make_server_hello

        hello = make_server_hello(
            topology=self._topology,
            apply=self._apply,
            server=self._index,
            incarnation=uuid.uuid4().hex,
            token=self._access.token,
            pid=os.getpid(),
            host=socket.gethostname(),
        )
        # Load it before the hello, so that the first group does not wait.
        make_server = _server_factory()
        self._link = CoordinatorLink(self._access.peer, hello, self._inbox.put)
        welcome = self._welcome()
        self._server = server = make_server(welcome, self._topology, self._apply, self._index)
        self._connect(server)
        threading.Thread(target=self._beat, args=(server,), name="heartbeat", daemon=True).start()
        while not self._stopped:
            self._in_step = True
            step = server.step(time.monotonic())
            self._in_step = False
            for report in step.reports:
                self._send_report(report)
            # Do not wait: the messages arrived after the idle step, and the next step handles them.
            if not self._take_waiting(server) and step.is_idle:
                self._wait(server, step.wake_at)
            elif time.monotonic() - self._told_at > _HEARTBEAT_S:
                self._say_state(server)

    def _beat(self, server: ApplyServer) -> None:
        """Report that a statement is still running: the driver treats a long silence of all servers as a stuck job.

        End the process when a user's function that cannot be interrupted blocks everything.
        """
        from spark_apply.handlers.process_bounds import HandlersGrew

        while not self._stopped:
            time.sleep(_HEARTBEAT_S)
            try:
                server.check_calls(time.monotonic())
            except HandlersGrew as error:
                self._say_failure(error, final=False)
                _end_process()
                return
            if self._in_step and time.monotonic() - self._told_at > _HEARTBEAT_S:
                self._say_state(server)

    def _welcome(self) -> pb.Welcome:
        from headrace.base.errors import HeadraceError, PropagationError, ProtocolError

        try:
            message = self._inbox.get(timeout=_WELCOME_TIMEOUT_S)
        except queue.Empty:
            raise PropagationError("the apply driver does not answer") from None
        if isinstance(message, HeadraceError):
            raise message
        if message.WhichOneof("kind") != "welcome":
            raise ProtocolError(f"the apply driver began with {message.WhichOneof('kind')}")
        return message.welcome

    def _connect(self, server: ApplyServer) -> None:
        """Open the session, retrying while the destination is unavailable, and report that it is open."""
        from headrace.base.backoff import Backoff
        from headrace.base.errors import DatabaseUnavailable

        backoff = Backoff()
        while not self._stopped:
            try:
                server.connect()
            except DatabaseUnavailable as error:
                self._say_state(server, detail=error.message)
                self._take_one(server, backoff.next_s())
            else:
                self._say_state(server)
                return

    def _wait(self, server: ApplyServer, wake_at: float | None) -> None:
        """Wait for a message; report a lasting state."""
        now = time.monotonic()
        until = now + _HEARTBEAT_S if wake_at is None else min(wake_at, now + _HEARTBEAT_S)
        if self._take_one(server, min(_STATE_DELAY_S, max(0.0, until - now))):
            return
        self._say_state_if_new(server)
        self._take_one(server, max(0.0, until - time.monotonic()))

    def _take_waiting(self, server: ApplyServer) -> bool:
        """Process the messages that have arrived; return whether there were any."""
        found = False
        while not self._stopped and self._take_one(server, 0.0):
            found = True
        return found

    def _take_one(self, server: ApplyServer, timeout_s: float) -> bool:
        """Process a message if one arrives in time; return whether one did."""
        from headrace.base.errors import HeadraceError
        from spark_apply.conversation.messages import coordinator_message_from_wire

        try:
            message = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return False
        if isinstance(message, HeadraceError):
            raise message
        if message.WhichOneof("kind") == "stop":
            self._stopped = True
        else:
            server.receive(coordinator_message_from_wire(message))
        return True

    def _send_report(self, report: Any) -> None:  # noqa: ANN401 - a groups.ServerMessage
        from spark_apply.conversation.messages import server_message_to_wire

        assert self._link is not None
        self._link.send(server_message_to_wire(report))

    def _say_state_if_new(self, server: ApplyServer) -> None:
        if (server.state, _detail(server)) != self._told or time.monotonic() - self._told_at > _HEARTBEAT_S:
            self._say_state(server)

    def _say_state(self, server: ApplyServer, detail: str = "") -> None:
        from protos import apply_pb2 as pb

        assert self._link is not None
        state, unfit, own_detail = server.state, server.unfit, _detail(server)
        self._told, self._told_at = (state, own_detail), time.monotonic()
        told = pb.ServerState(
            state=state,
            detail=detail or own_detail,
            hint=unfit.hint if unfit is not None else "",
            # The server itself reopens a session that breaks later, and then knows the outcome of its last commit. The
            # coordinator need not treat it as a new server.
            has_session=not detail,
        )
        self._link.send(pb.ServerMessage(state=told))

    def _say_failure(self, error: HeadraceError, *, final: bool) -> None:
        """Report to the driver why the task ends, if it still listens."""
        from headrace.base.errors import DestinationRestarted, FencedError
        from protos import apply_pb2 as pb
        from spark_apply.handlers.process_bounds import HandlersGrew

        if self._link is None:
            return
        failure = pb.ServerFailure(
            error=type(error).__name__,
            message=error.message,
            hint=error.hint,
            fenced=isinstance(error, FencedError),
            final=final,
            destination_restarted=isinstance(error, DestinationRestarted),
            replaced=isinstance(error, HandlersGrew),
        )
        self._link.send(pb.ServerMessage(failure=failure))
        self._link.finish(_LAST_WORDS_S)
        time.sleep(_FAILURE_DELAY_S)


def _end_process() -> None:
    os._exit(1)


def _detail(server: ApplyServer) -> str:
    unfit = server.unfit
    return unfit.message if unfit is not None else server.last_error


def _server_factory() -> Callable[[pb.Welcome, str, str, int], ApplyServer]:
    from headrace.databases.connectors import open_destination, python_values, value_reader
    from headrace.rules.conflict_handlers import ConflictRules
    from headrace.rules.user_code.handlers import HandlerRules
    from headrace.rules.virtual_dependencies import VirtualDependencies
    from protos import codec
    from spark_apply.conversation.messages import access_from_wire
    from spark_apply.handlers.crashes import RecordedCalls
    from spark_apply.handlers.loaded import loaded_handlers
    from spark_apply.server.apply_server import ApplyServer
    from spark_apply.sets.conflict_settings import ConflictSettings
    from spark_apply.tables.copied import copied_scns

    def make(welcome: pb.Welcome, topology: str, apply: str, index: int) -> ApplyServer:
        access = access_from_wire(welcome.destination)
        destination = open_destination(access)
        return ApplyServer(
            apply=apply,
            source=welcome.source,
            open_session=lambda: destination.open_session(
                topology,
                apply,
                server=index,
                epoch=welcome.epoch,
                tag=welcome.tag,
                incarnation=welcome.incarnation,
                source=welcome.source,
                is_lazy=welcome.commits_lazily,
            ),
            decode=codec.decode,
            encode=codec.encode,
            error_batches=destination.error_batches,
            copied_scns=lambda: copied_scns(
                each for each in destination.instantiations(topology, apply) if each.source == welcome.source
            ),
            conflicts=ConflictSettings(
                apply=apply,
                source=welcome.source,
                site=access.site,
                rules=ConflictRules.from_bytes(welcome.conflicts),
                show=value_reader(access.kind),
            ),
            dependencies=VirtualDependencies.from_bytes(welcome.dependencies),
            handlers=loaded_handlers(HandlerRules.from_bytes(welcome.handlers), *python_values()),
            calls=RecordedCalls(destination, topology, apply),
            tables=access.tables,
        )

    return make
