"""Who copies: the tasks that take pieces from a board, as a Spark job, behind a small interface."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.copy.tasks import copy_pieces

if TYPE_CHECKING:
    from spark_apply.application.job_config import ApplyJobConfig
    from spark_apply.application.spark import SparkApplication
    from spark_apply.copy.board import CopyBoard
    from spark_apply.driver.gate import Gate
    from spark_apply.server.task import TaskAccess
    from streams.errors import StreamsError

__all__ = ["CopyJob", "CopyWorkers", "SparkCopyWorkers"]

_END_S = 300.0  # for tasks to see that there is no more: the piece in hand is finished first
# At least two tasks, so that one reads while the other writes, at most as many as apply servers.
_WORKERS_MIN = 2


class CopyJob(Protocol):
    """Tasks that take pieces from one board until it is closed."""

    error: StreamsError | None
    """Why it ended before that."""

    def join(self) -> None:
        """Wait until the tasks have noticed that the board is closed."""
        ...


class CopyWorkers(Protocol):
    """Starts such jobs."""

    def start(self, board: CopyBoard, *, first_server: int) -> CopyJob:
        """Begin to take pieces from a board.

        Args:
            board: whose pieces.
            first_server: numbers of the tasks' sessions at the destination begin here.
        """
        ...


class SparkCopyWorkers:
    """See `CopyWorkers`: tasks of the apply process's Spark application.

    Args:
        application: the Spark application.
        config: of the apply process.
        access: to the driver, for its tasks.
        gate: hands the tasks' requests to the board.
    """

    def __init__(self, application: SparkApplication, config: ApplyJobConfig, access: TaskAccess, gate: Gate) -> None:
        self._application, self._config, self._access, self._gate = application, config, access, gate

    def start(self, board: CopyBoard, *, first_server: int) -> CopyJob:
        """See `CopyWorkers.start`. Beside apply servers (`first_server` > 0) the slots they leave free are used."""
        slots = self._application.slots
        workers = min(self._config.parallelism, slots)
        workers = max(1, min(workers, slots - self._config.parallelism)) if first_server else max(_WORKERS_MIN, workers)
        self._gate.board = board
        return _SparkCopyJob(self._application.context, self._access, self._config, workers, first_server)


class _SparkCopyJob:
    """Collected on a thread of its own."""

    def __init__(
        self, context: Any, access: TaskAccess, config: ApplyJobConfig, workers: int, first_server: int,  # noqa: ANN401
    ) -> None:
        self._context, self._workers = context, workers
        self._task = partial(copy_pieces, access, config.topology, config.apply, first_server)
        self._thread = threading.Thread(target=self._run, name="instantiation", daemon=True)
        self.error: StreamsError | None = None
        self._thread.start()

    def join(self) -> None:
        """See `CopyJob.join`."""
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            workers = range(self._workers)
            self._context.parallelize(workers, self._workers).mapPartitionsWithIndex(self._task).collect()
        except Exception as error:  # noqa: BLE001 - whatever py4j raises: who follows the job decides
            message = f"the Spark job that copies tables ended: {str(error).strip().partition(chr(10))[0]}"
            self.error = SparkUnavailable(message, hint=SEE_LOG)
