"""Assigns pieces of an instantiation to copying tasks, one at a time.

Tasks pull, so a large table keeps every task busy to the end, and the driver always knows which piece each task has.
If a task dies with a piece, it is unknown whether the piece's rows were committed. The piece is reported as lost and
never assigned again, and its table is copied from the beginning. A task whose number a later attempt has taken, for
example one that was frozen, gets no more pieces and takes none from its successor.

Called on gRPC's threads and on the instantiation's thread; every call holds the lock briefly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.databases.table_digest import TableDigest
from protos import apply_pb2 as pb

__all__ = ["BoardSlot", "CopyBoard", "PieceOutcome"]

_WAIT_S = 1.0  # an idle task's request is answered within this time


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOutcome:
    """The outcome of a piece.

    Args:
        piece: the piece.
        digest: of the rows that were copied or found.
        problem: why it failed; empty: it succeeded.
        is_final: a retry would fail too.
        sqlstate: of the problem, if a database refused it.
    """

    piece: pb.CopyPiece
    digest: TableDigest = field(default_factory=TableDigest)
    problem: str = ""
    is_final: bool = False
    sqlstate: str = ""


@dataclass(frozen=True, slots=True)
class _Held:
    incarnation: str
    piece: pb.CopyPiece


class CopyBoard:
    """The pieces of one round: unassigned ones, those that tasks have, and their outcomes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[pb.CopyPiece] = deque()
        self._held: dict[int, _Held] = {}
        self._present: dict[int, str] = {}  # the latest attempt, by worker
        self._replaced: set[str] = set()  # earlier attempts: as many as tasks were restarted in one round
        self._outcomes: deque[PieceOutcome] = deque()
        self._number = 0
        self._is_closed = False
        self.asked_at = 0.0

    def add(self, pieces: Iterable[pb.CopyPiece]) -> int:
        """Number pieces and offer them; return their count."""
        with self._changed:
            count = 0
            for piece in pieces:
                self._number += 1
                count += 1
                piece.piece = self._number
                self._waiting.append(piece)
            self._changed.notify_all()
        return count

    def withdraw(self, owner: str, name: str) -> int:
        """Withdraw a table's unassigned pieces; return their count.

        Args:
            owner: the table's schema at the destination.
            name: the table's name there.
        """
        with self._changed:
            kept = [piece for piece in self._waiting if (piece.table.owner, piece.table.name) != (owner, name)]
            count = len(self._waiting) - len(kept)
            self._waiting = deque(kept)
        return count

    def close(self) -> None:
        """Stop offering pieces: tasks end at their next request."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def next(self, request: pb.CopyRequest) -> pb.CopyReply:
        """Process a task's report, and assign its next piece."""
        with self._changed:
            self.asked_at = time.monotonic()
            if request.incarnation in self._replaced:
                return pb.CopyReply(done=True)
            before = self._present.setdefault(request.worker, request.incarnation)
            if before != request.incarnation:
                self._replaced.add(before)
                self._present[request.worker] = request.incarnation
            self._settle(request)
            if not self._waiting and not self._is_closed:
                self._changed.wait(_WAIT_S)
            if not self._waiting:
                return pb.CopyReply(done=True) if self._is_closed else pb.CopyReply(wait=True)
            piece = self._waiting.popleft()
            self._held[request.worker] = _Held(request.incarnation, piece)
            return pb.CopyReply(piece=piece)

    def take_outcomes(self, timeout_s: float) -> list[PieceOutcome]:
        """Return the outcomes since the last call; wait up to `timeout_s` seconds for one."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait(timeout_s)
            outcomes = list(self._outcomes)
            self._outcomes.clear()
        return outcomes

    def _settle(self, request: pb.CopyRequest) -> None:
        held = self._held.pop(request.worker, None)
        if held is None:
            return
        outcome = request.outcome
        if (
            held.incarnation == request.incarnation
            and request.HasField("outcome")
            and outcome.piece == held.piece.piece
        ):
            self._outcomes.append(
                PieceOutcome(
                    piece=held.piece,
                    digest=TableDigest.from_bytes(outcome.rows, outcome.digest),
                    problem=outcome.problem,
                    is_final=outcome.is_final,
                    sqlstate=outcome.sqlstate,
                )
            )
        else:
            self._outcomes.append(PieceOutcome(piece=held.piece, problem="the task that copied it was killed"))
        self._changed.notify_all()


@dataclass(slots=True)
class BoardSlot:
    """Holds the board of the current round for the tasks' requests.

    Args:
        board: the board; None: no copy runs now.
    """

    board: CopyBoard | None = None

    def next(self, request: pb.CopyRequest) -> pb.CopyReply:
        """Call `CopyBoard.next`; without a board, end the task."""
        board = self.board
        return pb.CopyReply(done=True) if board is None else board.next(request)
