"""Copying tasks as threads of the test, in place of a Spark job (`spark_apply.copy.pieces.workers`)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.databases.ports import DestinationSession
from protos import apply_pb2 as pb
from spark_apply.copy.pieces.board import CopyBoard
from spark_apply.copy.pieces.tasks import CopyPlaces, PieceCopier

_FROZEN_S = 60.0  # bound: a failing test must not hang


class ThreadWorkers:
    """Implements `CopyWorkers`.

    Args:
        places: opens a task's source and destination, given number and incarnation of its session.
    """

    def __init__(self, places: Callable[[int, int], CopyPlaces]) -> None:
        self._places = places
        self.before_piece: Callable[[pb.CopyPiece], Any] = lambda piece: None
        self.jobs: list[_ThreadJob] = []

    def start(self, board: CopyBoard, *, servers: Sequence[int], incarnation: int) -> _ThreadJob:
        job = _ThreadJob(self, board, [self._places(server, incarnation) for server in servers])
        self.jobs.append(job)
        job.begin()
        return job


class _Link:
    def __init__(self, workers: ThreadWorkers, board: CopyBoard, worker: int) -> None:
        self._workers, self._board, self._worker = workers, board, worker
        self._incarnation = uuid.uuid4().hex

    def next(self, outcome: pb.CopyOutcome | None) -> pb.CopyReply:
        request = pb.CopyRequest(worker=self._worker, incarnation=self._incarnation, outcome=outcome)
        reply = self._board.next(request)
        if reply.WhichOneof("kind") == "piece":
            self._workers.before_piece(reply.piece)
        return reply


class _ThreadJob:
    error, problem = None, ""

    def __init__(self, workers: ThreadWorkers, board: CopyBoard, places: list[CopyPlaces]) -> None:
        self._workers, self._board, self.places = workers, board, places
        self.threads: dict[int, threading.Thread] = {}

    def begin(self) -> None:
        for worker in range(len(self.places)):
            self.run_again(worker)

    def run_again(self, worker: int) -> None:
        """Start another attempt of a task, as Spark does for a task that it takes for dead.

        Nothing waits for the old attempt.
        """
        copier = PieceCopier(_Link(self._workers, self._board, worker), self.places[worker], retry_delay_s=0.01)
        thread = self.threads[worker] = threading.Thread(target=self._run, args=(copier,), daemon=True)
        thread.start()

    @staticmethod
    def _run(copier: PieceCopier) -> None:
        try:
            copier.run()
        finally:
            copier.close()

    def join(self) -> None:
        for thread in self.threads.values():
            thread.join(30.0)


class FreezingTask:
    """Freezes the last task of the first job with its first piece unfinished; another attempt of it runs.

    Args:
        in_copy: it has sent a part of the piece; False: nothing yet.
    """

    def __init__(self, *, in_copy: bool) -> None:
        self.in_copy = in_copy
        self.workers: ThreadWorkers
        self.error: HeadraceError | None = None
        self._frozen, self._thaw, self._ended = threading.Event(), threading.Event(), threading.Event()

    def session(self, session: DestinationSession, *, is_last: bool) -> DestinationSession:
        """Return a task's session, which freezes it.

        Args:
            session: opened by the task.
            is_last: it belongs to the task that freezes; the others of the first job wait for that.
        """
        write: Callable[..., int] = session.copy_rows

        def copy_rows(owner: str, name: str, columns: Sequence[str], rows: Iterable[bytes], *, form: str) -> int:
            if not is_last:
                self._frozen.wait(_FROZEN_S)
            elif not self._frozen.is_set():
                return self._write_late(partial(write, owner, name, columns, form=form), iter(rows))
            return write(owner, name, columns, rows, form=form)

        session.copy_rows = copy_rows  # type: ignore[method-assign]
        return session

    def thaw(self) -> None:
        """Resume the task; returns when the piece is written or refused."""
        assert self._frozen.is_set()
        self._thaw.set()
        assert self._ended.wait(_FROZEN_S)

    def _write_late(self, write: Callable[[Iterator[bytes]], int], rows: Iterator[bytes]) -> int:
        try:
            if self.in_copy:
                return write(self._interrupted(rows))
            self._freeze()
            return write(rows)
        except HeadraceError as error:
            self.error = error
            raise
        finally:
            self._ended.set()

    def _interrupted(self, rows: Iterator[bytes]) -> Iterator[bytes]:
        yield next(rows)
        self._freeze()
        yield from rows

    def _freeze(self) -> None:
        self._frozen.set()
        job = self.workers.jobs[0]
        job.run_again(len(job.places) - 1)
        assert self._thaw.wait(_FROZEN_S)
