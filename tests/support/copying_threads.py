"""Copying tasks as threads of the test, in place of a Spark job; see `spark_apply.copy.workers`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from protos import apply_pb2 as pb
from spark_apply.copy.board import CopyBoard
from spark_apply.copy.tasks import CopyPlaces, PieceCopier


class ThreadWorkers:
    """See `CopyWorkers`.

    Args:
        places: opens what a task reads and writes, given the number of its session.
        workers: threads.
    """

    def __init__(self, places: Callable[[int], CopyPlaces], workers: int = 2) -> None:
        self._places, self._workers = places, workers
        self.before_piece: Callable[[pb.CopyPiece], Any] = lambda piece: None

    def start(self, board: CopyBoard, *, first_server: int) -> _ThreadJob:
        return _ThreadJob(self, board, [self._places(first_server + number) for number in range(self._workers)])


class _Link:
    def __init__(self, workers: ThreadWorkers, board: CopyBoard, worker: int) -> None:
        self._workers, self._board, self._worker = workers, board, worker

    def next(self, outcome: pb.CopyOutcome | None) -> pb.CopyReply:
        request = pb.CopyRequest(worker=self._worker, incarnation="test", outcome=outcome)
        reply = self._board.next(request)
        if reply.WhichOneof("kind") == "piece":
            self._workers.before_piece(reply.piece)
        return reply


class _ThreadJob:
    error, problem = None, ""

    def __init__(self, workers: ThreadWorkers, board: CopyBoard, places: list[CopyPlaces]) -> None:
        self._threads = []
        for number, place in enumerate(places):
            copier = PieceCopier(_Link(workers, board, number), place, retry_delay_s=0.01)
            self._threads.append(threading.Thread(target=self._run, args=(copier,), daemon=True))
            self._threads[-1].start()

    @staticmethod
    def _run(copier: PieceCopier) -> None:
        try:
            copier.run()
        finally:
            copier.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30.0)
