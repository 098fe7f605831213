"""A server that gets one streamed transaction with DDL LCRs, part by part, at a destination in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.lcr.batch import LcrBatch
from headrace.lcr.ddl import DdlChange
from protos import codec
from spark_apply.conversation.groups import GroupGo, GroupPart, GroupResult, PartDone, ServerMessage
from spark_apply.server.apply_server import ApplyServer
from spark_apply.tables.copied import copied_scns
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.groups import error_group, streamed_group
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.values.ddl_changes import ddl_batch

__all__ = ["COMMIT_SCN", "ORDER_SCN", "Piece", "StreamingServer", "parts_of"]

ORDER_SCN, COMMIT_SCN = 110, 150  # of the transaction

Piece = list[Change] | DdlChange | LcrBatch
"""Rows of one part, its DDL LCR, or a batch whose TRUNCATEs it has."""


def parts_of(*pieces: Piece) -> list[LcrBatch]:
    """Return the parts of one transaction; every LCR has a position."""
    found: list[LcrBatch] = []
    position = 0
    for number, piece in enumerate(pieces):
        is_open = number < len(pieces) - 1
        if isinstance(piece, list):
            before: Any = [None] * position
            made = Transaction(1, [*before, *piece])
            batch = batch_of([made], 50, first=position, last=len(made.changes), is_open=is_open)
        else:
            change = piece if isinstance(piece, DdlChange) else next(e for e in pieces if isinstance(e, DdlChange))
            batch = ddl_batch(
                change,
                commit=COMMIT_SCN,
                source=SOURCE,
                previous=50,
                is_open=is_open,
                continues=number > 0,
                first_position=position,
            )
            batch.transactions.order_scn[:] = ORDER_SCN
            batch.transactions.transaction_id[:] = 1
            if isinstance(piece, LcrBatch):
                batch = replace(batch, ddl=None, tables=piece.tables, truncates=piece.truncates)
        found.append(batch)
        position += batch.row_count
    return found


class StreamingServer:
    """A server at a destination with one table.

    Args:
        table: the table.
    """

    def __init__(self, table: Table) -> None:
        self.store = MemoryStore()
        table.create(self.store)
        self.database = MemoryDestination(store=self.store)
        self.epoch = self.database.raise_epoch(TOPOLOGY, APPLY).epoch
        self.now = 0.0
        self.server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            open_session=lambda: self.database.open_session(
                TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0", source=SOURCE
            ),
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.database.error_batches,
            copied_scns=lambda: copied_scns(self.database.instantiations(TOPOLOGY, APPLY)),
        )
        self.server.connect()

    def work(self, steps: int = 50) -> list[ServerMessage]:
        reports: list[ServerMessage] = []
        for _ in range(steps):
            done = self.server.step(self.now)
            reports += done.reports
            if done.wake_at is not None:
                self.now = done.wake_at
            elif done.is_idle:
                break
        return reports

    def stream(
        self, *pieces: Piece, before_part: Callable[[int], None] = lambda _: None, steps: int = 1, **fields: Any
    ) -> ServerMessage:
        """Send a transaction part by part until the server ends the group; return its last report."""
        attempt = int(fields.get("attempt", 0))
        self.server.receive(streamed_group(after_scn=50, **fields))
        self.server.receive(GroupGo(group=1, attempt=attempt, low_watermark=50, below_applied=True))
        for number, batch in enumerate(parts_of(*pieces)):
            before_part(number)
            is_last = not batch.is_open
            self.server.receive(
                GroupPart(
                    group=1,
                    attempt=attempt,
                    part=number,
                    batch=codec.encode(batch),
                    is_last=is_last,
                    through_scn=batch.through_scn if is_last else 0,
                )
            )
            last = next((each for each in self.work(steps) if not isinstance(each, PartDone)), None)
            if last is not None:
                return last
        before_part(number + 1)
        return next(each for each in self.work() if not isinstance(each, PartDone))

    def execute(self, number: int, **fields: Any) -> GroupResult:
        """Execute an error transaction."""
        self.server.receive(error_group(number, group=2, scn=COMMIT_SCN, **fields))
        self.server.receive(GroupGo(group=2, attempt=0, low_watermark=COMMIT_SCN, below_applied=True))
        (result,) = self.work()
        assert isinstance(result, GroupResult)
        return result
