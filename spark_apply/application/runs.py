"""Runs of tasks that the apply processes of a site request from its Spark application, each as a separate Spark job.

Job
    Run a job for each call, and cancel it when the call ends.

Main path
    SparkRuns.run -> SparkApplication.run_job on a thread -> the tasks (`_CODE`) -> their results.

States
    None that outlives a call: to restart, an apply process simply calls again.

Durable when
    Never. A cancelled task may have committed; its apply process finds the outcome at the destination.

Worked flow
    the actor of apply a is killed -> its call breaks -> job a/7/serve is cancelled, its workers end; the job of apply b
    is not affected -> the next incarnation of a requests job a/8/serve
"""

from __future__ import annotations

import importlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError, ProtocolError
from protos import apply_pb2 as pb
from spark_apply.application.access.task_access import TaskAccess

if TYPE_CHECKING:
    from protos.wire.identity import Identity
    from spark_apply.application.spark import SparkApplication

__all__ = ["SparkRuns", "run_task"]

# The function that a task runs in its worker: (access, topology, apply, number, items) -> results.
_CODE = {
    pb.TASK_KIND_APPLY_SERVER: "spark_apply.server.task:serve",
    pb.TASK_KIND_COPY: "spark_apply.copy.pieces.tasks:copy_pieces",
    pb.TASK_KIND_DIGEST: "spark_apply.copy.pieces.tasks:digest_pieces",
}
# A job can be submitted just after it was cancelled: cancel it again at this interval until it has ended.
_CANCEL_AGAIN_S = 0.5

log = logging.getLogger("headrace.spark")


@dataclass(slots=True)
class SparkRuns:
    """Runs a job for each call; implements `protos.links.spark_link.RunHandler`.

    Args:
        application: runs the jobs.
        identity: certificate of the site, for its tasks; None: without TLS.
        executors: number of living executors at the last count.
    """

    application: SparkApplication
    identity: Identity | None = None
    executors: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _running: dict[str, threading.Thread] = field(default_factory=dict)

    def run(self, request: pb.RunRequest, call_ended: Callable[[Callable[[], None]], bool]) -> Iterator[pb.RunEvent]:
        """Run the requested tasks as a job, and cancel it when the call ends. See `RunHandler.run`."""
        if request.kind not in _CODE:
            raise ProtocolError(f"the Spark application knows no tasks of kind {request.kind}")
        kind = pb.TaskKind.Name(request.kind).removeprefix("TASK_KIND_").lower()
        group = f"{request.apply}/{request.epoch}/{kind}/{next(self._numbers)}"
        outcome: queue.SimpleQueue[list[bytes] | HeadraceError | None] = queue.SimpleQueue()
        if not call_ended(lambda: outcome.put(None)):
            return
        log.info("%s: %d tasks", group, request.tasks)
        thread = self._running[group] = self.application.start_thread(
            partial(self._work, group, request, outcome), group
        )
        try:
            yield pb.RunEvent(accepted=True)
            found = outcome.get()
            if isinstance(found, HeadraceError):
                log.warning("%s: %s", group, found.message)
                raise found
            if found is not None:
                yield pb.RunEvent(results=pb.RunResults(results=found))
        finally:
            threading.Thread(target=self._end, args=(group, thread), name=f"end-{group}", daemon=True).start()

    def health(self) -> pb.HealthReply:
        """Return the number of living executors and of current runs."""
        return pb.HealthReply(executors=self.executors, runs=len(self._running))

    # ------------------------------------------------------------------ inside

    def _work(
        self,
        group: str,
        request: pb.RunRequest,
        outcome: queue.SimpleQueue[list[bytes] | HeadraceError | None],
    ) -> None:
        access = TaskAccess(endpoint=request.endpoint, token=request.token, identity=self.identity)
        task = partial(run_task, _CODE[request.kind], access, request.topology, request.apply)
        try:
            items = list(request.items) or range(request.tasks)
            outcome.put(self.application.run_job(group, task, items, request.tasks))
        except HeadraceError as error:
            outcome.put(error)

    def _end(self, group: str, thread: threading.Thread) -> None:
        """Cancel the job until it has ended."""
        while thread.is_alive():
            self.application.cancel(group)
            thread.join(_CANCEL_AGAIN_S)
        self._running.pop(group, None)
        log.info("%s: ended", group)


# --------------------------------------------------------------------------- task


def run_task(
    code: str, access: TaskAccess, topology: str, apply: str, number: int, items: Iterable[Any]
) -> Iterator[bytes]:
    """Run one task in a Spark worker.

    Args:
        code: "module:function"; imported here, in the worker, where its failpoints are armed.
        access: access to the apply process.
        topology: name of the topology.
        apply: name of the apply process.
        number: number of the task, from 0; a rerun task keeps its number.
        items: this task's share.
    """
    module, _, function = code.partition(":")
    results: Iterator[bytes] = getattr(importlib.import_module(module), function)(
        access, topology, apply, number, items
    )
    return results
