"""Runs of tasks, as an apply process asks its site's Spark application for them.

Each attempt has a token of its own, and the gate lets in tasks of the attempts that go on. A run that is kept (the apply
servers') is asked for again whenever the application has ended or does not answer, under the same coordinator: what the lost
servers had in hand is in doubt until their successors join, as after the death of an executor.

Worked flow
    the application's process is killed -> the call breaks -> the executors end, the servers' streams with them -> its actor
    starts another -> `find` answers again -> a call with a new token -> its tasks say hello, the coordinator asks the
    destination what became of the groups in doubt
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protos import apply_pb2 as pb
from protos.spark_link import RunCall
from streams.backoff import Backoff
from streams.errors import PropagationError, StreamsError

if TYPE_CHECKING:
    from spark_apply.driver.config import ApplyConfig
    from spark_apply.driver.gate import Gate

__all__ = ["ApplicationAccess", "TaskRun", "TaskRunner"]

# A run that went on for this long was a good one: the next try after it comes soon.
_HEALTHY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAccess:
    """Where the site's Spark application serves now; both change with each incarnation.

    Args:
        endpoint: "host:port".
        token: proves a caller to belong to the topology.
    """

    endpoint: str
    token: str


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Starts runs of tasks for one incarnation of an apply process.

    Args:
        config: of the apply process.
        find: asks where the application serves; a StreamsError while it does not.
        gate: lets the tasks in.
        endpoint: of the coordinator, for the tasks.
        epoch: of this incarnation; names the jobs.
    """

    config: ApplyConfig
    find: Callable[[], ApplicationAccess]
    gate: Gate
    endpoint: str = ""
    epoch: int = 0

    def start(
        self, kind: pb.TaskKind, tasks: int, *, items: Sequence[bytes] = (), is_kept: bool = False,
        moved: Callable[[bool], None] = lambda _: None,
    ) -> TaskRun:
        """Start a run; returns at once.

        Args:
            kind: what the tasks do.
            tasks: how many.
            items: divided among them.
            is_kept: ask again when the run breaks; otherwise it has failed then.
            moved: told, on the run's thread, True when an application has accepted the run, False when it has ended again.
        """
        return TaskRun(self, kind, tasks, items, is_kept=is_kept, moved=moved)


class TaskRun:
    """One run of tasks; see the module. `problem` says why no task runs now.

    Args:
        runner: of the apply process.
        kind, tasks, items, is_kept, moved: see `TaskRunner.start`.
    """

    def __init__(
        self, runner: TaskRunner, kind: pb.TaskKind, tasks: int, items: Sequence[bytes], *, is_kept: bool,
        moved: Callable[[bool], None],
    ) -> None:
        self._runner, self._kind, self._tasks, self._items = runner, kind, tasks, items
        self._is_kept, self._moved = is_kept, moved
        self._lock = threading.Lock()
        self._call: RunCall | None = None
        self._closed = threading.Event()
        self.problem = "waits for the site's Spark application"
        self.error: StreamsError | None = None
        self.results: list[bytes] = []
        name = f"run-{pb.TaskKind.Name(kind).removeprefix('TASK_KIND_').lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until every task has ended, or the run failed (`error`); False: not in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Cancel the tasks; idempotent."""
        self._closed.set()
        with self._lock:
            call = self._call
        if call is not None:
            call.close()

    # ------------------------------------------------------------------ the run's thread

    def _run(self) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            was_accepted, began = False, time.monotonic()
            token = self._runner.gate.admit()
            try:
                for event in self._events(token):
                    if event.WhichOneof("kind") == "accepted":
                        was_accepted, self.problem = True, ""
                        self._moved(True)
                    else:
                        self.results = list(event.results.results)
                        return
            except StreamsError as error:
                self.problem = error.message
                if was_accepted and not self._is_kept:
                    self.error = error
                    return
            finally:
                self._runner.gate.dismiss(token)
                if was_accepted:
                    self._moved(False)
            if time.monotonic() - began > _HEALTHY_AFTER_S:
                backoff.reset()
            self._closed.wait(backoff.next_s())
        self.error = PropagationError(f"the tasks of {self._runner.config.apply} were cancelled")

    def _events(self, token: str) -> Iterator[pb.RunEvent]:
        runner, config = self._runner, self._runner.config
        access = runner.find()
        request = pb.RunRequest(
            application_token=access.token, kind=self._kind, topology=config.topology, apply=config.apply,
            epoch=runner.epoch, endpoint=runner.endpoint, token=token, tasks=self._tasks, items=self._items,
        )
        with self._lock:
            if self._closed.is_set():
                raise PropagationError(f"the tasks of {config.apply} were cancelled")
            self._call = call = RunCall(access.endpoint, request)
        try:
            while True:
                yield call.next()
        finally:
            call.close()
