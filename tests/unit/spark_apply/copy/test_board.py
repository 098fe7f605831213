"""Pieces of an instantiation reach one task each, and a piece in a dead task's hand is reported as lost."""

from __future__ import annotations

import threading

from headrace.databases.table_digest import TableDigest
from protos import apply_pb2 as pb
from spark_apply.copy.pieces import board as copy_board
from spark_apply.copy.pieces.board import CopyBoard


def _piece(name: str = "t") -> pb.CopyPiece:
    return pb.CopyPiece(table=pb.TableName(owner="public", name=name))


def _request(worker: int, incarnation: str = "1", outcome: pb.CopyOutcome | None = None) -> pb.CopyRequest:
    return pb.CopyRequest(worker=worker, incarnation=incarnation, outcome=outcome)


def _done(piece: pb.CopyPiece, rows: int = 1, **fields: object) -> pb.CopyOutcome:
    return pb.CopyOutcome(piece=piece.piece, rows=rows, digest=bytes(16), **fields)


def test_each_piece_is_given_to_one_task_and_its_outcome_comes_back() -> None:
    board = CopyBoard()
    assert board.add([_piece("a"), _piece("b")]) == 2
    first, second = board.next(_request(0)).piece, board.next(_request(1)).piece
    assert (first.table.name, second.table.name) == ("a", "b")
    board.close()
    digest = (5).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little")
    outcome = pb.CopyOutcome(piece=first.piece, rows=7, digest=digest)
    assert board.next(_request(0, outcome=outcome)).done
    assert board.next(_request(1, outcome=_done(second))).done
    found = {each.piece.table.name: each for each in board.take_outcomes(0.0)}
    assert (found["a"].digest, found["a"].problem) == (TableDigest(row_count=7, sums=(5, 2**64 - 1)), "")
    assert found["b"].digest.row_count == 1


def test_piece_in_the_hand_of_a_killed_task_is_lost_and_not_given_out_again() -> None:
    board = CopyBoard()
    board.add([_piece()])
    assert board.next(_request(0, "1")).piece.piece == 1
    board.close()
    assert board.next(_request(0, "2")).done  # the task runs again: it reports nothing of what it had
    (lost,) = board.take_outcomes(0.0)
    assert lost.problem
    assert not lost.is_final


def test_replaced_task_that_thaws_gets_nothing_and_takes_nothing_of_its_successor() -> None:
    board = CopyBoard()
    board.add([_piece("a"), _piece("b"), _piece("c")])
    old = board.next(_request(0, "1")).piece
    new = board.next(_request(0, "2")).piece
    for outcome in (_done(old), None):  # its late report, and another question
        assert board.next(_request(0, "1", outcome)).done
    last = board.next(_request(0, "2", _done(new))).piece
    board.close()
    board.next(_request(0, "2", _done(last)))
    outcomes = board.take_outcomes(0.0)
    assert [(each.piece.table.name, bool(each.problem)) for each in outcomes] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]


def test_withdrawn_pieces_are_not_given_out() -> None:
    board = CopyBoard()
    board.add([_piece("a"), _piece("b"), _piece("a")])
    assert board.withdraw("public", "a") == 2
    assert board.next(_request(0)).piece.table.name == "b"


def test_waiting_task_gets_a_piece_that_is_added_meanwhile(monkeypatch) -> None:
    monkeypatch.setattr(copy_board, "_WAIT_S", 600.0)
    board = CopyBoard()
    answers: list[pb.CopyReply] = []
    waiting = threading.Thread(target=lambda: answers.append(board.next(_request(0))), daemon=True)
    waiting.start()
    board.add([_piece()])
    waiting.join(60.0)
    assert answers[0].piece.piece == 1


def test_task_without_work_is_told_to_ask_again(monkeypatch) -> None:
    monkeypatch.setattr(copy_board, "_WAIT_S", 0.0)
    assert CopyBoard().next(_request(0)).wait
