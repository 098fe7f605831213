"""Copy workers: the tasks that take pieces from a board, as a job of the site's Spark application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from protos import apply_pb2 as pb

if TYPE_CHECKING:
    from headrace.base.errors import HeadraceError
    from spark_apply.application.task_runs import TaskRunner
    from spark_apply.copy.pieces.board import BoardSlot, CopyBoard

__all__ = ["CopyJob", "CopyWorkers", "SparkCopyWorkers"]

_END_S = 300.0  # for tasks to notice the closed board: each finishes its current piece first
_END_POLL_S = 0.2  # how soon the end of the driver is noticed meanwhile


class CopyJob(Protocol):
    """Tasks that take pieces from one board until it is closed."""

    @property
    def error(self) -> HeadraceError | None:
        """Why it ended before the board was closed; None: it did not."""
        ...

    @property
    def problem(self) -> str:
        """Why no task runs now."""
        ...

    def join(self) -> None:
        """Wait until the tasks have noticed that the board is closed."""
        ...


class CopyWorkers(Protocol):
    """Starts copying jobs."""

    def start(self, board: CopyBoard, *, servers: Sequence[int], incarnation: int) -> CopyJob:
        """Begin to take pieces from a board.

        Args:
            board: offers the pieces.
            servers: numbers of the sessions at the destination, one for each task.
            incarnation: of these sessions (`DestinationDatabase.open_session`).
        """
        ...


class SparkCopyWorkers:
    """`CopyWorkers` as runs of the site's Spark application.

    Args:
        runner: starts the runs.
        boards: gives their tasks the board.
        should_end: the driver ends, so its tasks are cancelled.
    """

    def __init__(self, runner: TaskRunner, boards: BoardSlot, *, should_end: Callable[[], bool]) -> None:
        self._runner, self._boards, self._should_end = runner, boards, should_end

    def start(self, board: CopyBoard, *, servers: Sequence[int], incarnation: int) -> CopyJob:
        """Start a run with one task for each session."""
        self._boards.board = board
        sessions = [f"{server} {incarnation}".encode() for server in servers]
        return _SparkCopyJob(self._runner, self._boards, sessions, self._should_end)


class _SparkCopyJob:
    def __init__(
        self, runner: TaskRunner, boards: BoardSlot, sessions: Sequence[bytes], should_end: Callable[[], bool]
    ) -> None:
        self._boards, self._should_end = boards, should_end
        self._run = runner.start(pb.TASK_KIND_COPY, len(sessions), items=sessions)

    @property
    def error(self) -> HeadraceError | None:
        """Why the run ended early; None: it did not."""
        return self._run.error

    @property
    def problem(self) -> str:
        """Why no task runs now."""
        return self._run.problem

    def join(self) -> None:
        """Wait for the tasks to end, then close the run and take the board away."""
        polls = round(_END_S / _END_POLL_S)
        while polls and not self._should_end() and not self._run.join(_END_POLL_S):
            polls -= 1
        self._run.close()
        self._boards.board = None
