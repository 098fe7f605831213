"""Runs of tasks that an apply process requests from its site's Spark application.

Each attempt has its own token, and only tasks of current attempts are admitted. A kept run (that of the apply servers)
is requested again whenever the application has ended or does not answer, under the same coordinator. The groups of lost
servers are in doubt until their successors join, as after the death of an executor.

Worked flow
    the application's process is killed -> the call breaks -> the executors end, and the servers' streams with them ->
    its actor starts another -> `find` answers again -> a call with a new token -> its tasks say hello, and the
    coordinator asks the destination for the outcome of the groups in doubt
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.backoff import Backoff
from headrace.base.errors import HeadraceError, PropagationError
from protos import apply_pb2 as pb
from protos.links.spark_link import RunCall
from protos.wire.identity import Peer

if TYPE_CHECKING:
    from spark_apply.application.access.run_tokens import RunTokens
    from spark_apply.apply_config import ApplyConfig

__all__ = ["ApplicationAccess", "TaskRun", "TaskRunner"]

# A run that lasted this long was successful, so the next attempt follows soon after it.
_HEALTHY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAccess:
    """The current endpoint and token of the site's Spark application; both change with each incarnation.

    Args:
        endpoint: "host:port".
        token: proves that a caller belongs to the topology.
    """

    endpoint: str
    token: str


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Starts runs of tasks for one incarnation of an apply process.

    Args:
        find: returns the application's access; raises a HeadraceError while none runs.
        tokens: tokens of its current runs.
        endpoint: endpoint of the coordinator, for the tasks.
        epoch: epoch of this incarnation; names the jobs.
    """

    config: ApplyConfig
    find: Callable[[], ApplicationAccess]
    tokens: RunTokens
    endpoint: str = ""
    epoch: int = 0

    def start(
        self,
        kind: pb.TaskKind,
        tasks: int,
        *,
        items: Sequence[bytes] = (),
        is_kept: bool = False,
        moved: Callable[[bool], None] = lambda _: None,
    ) -> TaskRun:
        """Start a run; return at once.

        Args:
            kind: the work of the tasks.
            tasks: number of tasks.
            items: divided among the tasks.
            is_kept: request the run again when it breaks; False: a broken run has failed.
            moved: called on the run's thread, with True when an application has accepted the run and False when it has
                ended.
        """
        return TaskRun(self, kind, tasks, items, is_kept=is_kept, moved=moved)


class TaskRun:
    """One run of tasks. `problem` says why no task runs now.

    Args:
        runner: runner of the apply process.
        kind, tasks, items, is_kept, moved: as in `TaskRunner.start`.
    """

    def __init__(
        self,
        runner: TaskRunner,
        kind: pb.TaskKind,
        tasks: int,
        items: Sequence[bytes],
        *,
        is_kept: bool,
        moved: Callable[[bool], None],
    ) -> None:
        self._runner, self._kind, self._tasks, self._items = runner, kind, tasks, items
        self._is_kept, self._moved = is_kept, moved
        self._lock = threading.Lock()
        self._call: RunCall | None = None
        self._closed = threading.Event()
        self.problem = "waits for the site's Spark application"
        self.error: HeadraceError | None = None
        self.results: list[bytes] = []
        name = f"run-{pb.TaskKind.Name(kind).removeprefix('TASK_KIND_').lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until every task has ended or the run failed (`error`); return False on time-out."""
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
            token = self._runner.tokens.admit()
            try:
                for event in self._events(token):
                    if event.WhichOneof("kind") == "accepted":
                        was_accepted, self.problem = True, ""
                        self._moved(True)
                    else:
                        self.results = list(event.results.results)
                        return
            except HeadraceError as error:
                self.problem = error.message
                if was_accepted and not self._is_kept:
                    self.error = error
                    return
            finally:
                self._runner.tokens.dismiss(token)
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
            application_token=access.token,
            kind=self._kind,
            topology=config.topology,
            apply=config.apply,
            epoch=runner.epoch,
            endpoint=runner.endpoint,
            token=token,
            tasks=self._tasks,
            items=self._items,
        )
        with self._lock:
            if self._closed.is_set():
                raise PropagationError(f"the tasks of {config.apply} were cancelled")
            peer = Peer(address=access.endpoint, site=config.destination.site, identity=config.identity)
            self._call = call = RunCall(peer, request)
        try:
            while True:
                yield call.next()
        finally:
            call.close()
