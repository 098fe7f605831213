"""A copying task processes one piece after another, with databases in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted
from headrace.databases.ports import DestinationSession
from headrace.databases.ports.copying import NATIVE, TableReader
from headrace.databases.table_digest import TableDigest
from protos import apply_pb2 as pb
from spark_apply.copy.pieces.tasks import CopyPlaces, PieceCopier
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, MemoryHarness

TYPES = {"id": "pg_catalog.text"}
ROWS = [(f"{number:02}".encode(),) for number in range(20)]


class Board:
    """Returns pieces in order; before some of them it runs a callback of the test."""

    def __init__(self, pieces: list[pb.CopyPiece], before: dict[int, Callable[[], None]]) -> None:
        self._pieces, self._before, self.outcomes = pieces, before, list[pb.CopyOutcome]()

    def next(self, outcome: pb.CopyOutcome | None) -> pb.CopyReply:
        self.outcomes += [] if outcome is None else [outcome]
        number = len(self.outcomes)
        if number == len(self._pieces):
            return pb.CopyReply(done=True)
        self._before.get(number, lambda: None)()
        return pb.CopyReply(piece=self._pieces[number])


class Place:
    """Table `t` at the source, and empty at the destination."""

    def __init__(self) -> None:
        self.source, self.target = MemoryHarness(), MemoryHarness()
        for harness in (self.source, self.target):
            harness.create_table("t", [("id", "text")], key=["id"])
        self.source.insert("t", ROWS)
        self.destination = self.target.destination()
        self.epoch = self.destination.raise_epoch(TOPOLOGY, APPLY).epoch

    def session(self, epoch: int, tag: bytes) -> DestinationSession:
        return self.destination.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=tag)

    def pieces(self, snapshot: str) -> list[pb.CopyPiece]:
        table = pb.TableName(owner="public", name="t")
        plan = self.source.reader().plan("public", "t", TYPES, snapshot=snapshot, piece_bytes=16 * 10)
        return [
            pb.CopyPiece(
                piece=number,
                table=table,
                stored=table,
                place=piece.place,
                columns=list(TYPES),
                form=plan.form,
                snapshot=snapshot,
                epoch=self.epoch,
                tag=TAG,
            )
            for number, piece in enumerate(plan.pieces)
        ]

    def copy(
        self, before: dict[int, Callable[[], None]] | None = None, *, session: Callable[..., Any] | None = None
    ) -> list[pb.CopyOutcome]:
        def reader() -> TableReader:
            return self.source.reader()

        with self.source.reader().export_snapshot() as snapshot:
            board = Board(self.pieces(snapshot), before or {})
            places = CopyPlaces(source=reader, destination=self.target.reader, session=session or self.session)
            copier = PieceCopier(board, places, retry_delay_s=0)
            copier.run()
            copier.close()
        return board.outcomes


@pytest.fixture
def place() -> Place:
    return Place()


def test_every_piece_is_copied_and_its_digest_is_reported(place: Place) -> None:
    outcomes = place.copy()
    assert [outcome.rows for outcome in outcomes] == [10, 10]
    assert sum((TableDigest.from_bytes(each.rows, each.digest) for each in outcomes), TableDigest()).row_count == len(
        ROWS
    )
    assert place.target.rows("t") == ROWS


def test_table_rewritten_between_pieces_is_reported_for_another_copy(place: Place) -> None:
    first, second = place.copy({1: lambda: place.source.rewrite("t")})
    assert not first.problem
    assert "was rewritten" in second.problem
    assert not second.is_final
    assert place.target.rows("t") == ROWS[:10]


@pytest.mark.parametrize(
    ("error", "forms"),
    [
        (DatabaseError("cannot be read in this form"), [NATIVE, "portable"]),
        (DestinationRestarted("begin again"), [NATIVE]),
        (DatabaseUnavailable("nobody knows"), [NATIVE]),
    ],
)
def test_only_format_errors_are_retried_in_the_portable_format(
    place: Place,
    error: DatabaseError,
    forms: list[str],
) -> None:
    tried: list[str] = []

    def session(epoch: int, tag: bytes) -> DestinationSession:
        made = place.session(epoch, tag)
        write = made.copy_rows

        def copy_rows(owner, name, columns, rows, *, form):
            tried.append(form)
            if form == NATIVE:
                raise error
            return write(owner, name, columns, rows, form=form)

        made.copy_rows = copy_rows  # type: ignore[method-assign]  # of this session alone
        return made

    outcomes = place.copy(session=session)
    assert tried[: len(forms)] == forms
    assert bool(outcomes[0].problem) == (len(forms) == 1)
