"""An apply process's coordinator; the test talks to it in place of its servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import ApplyProgress
from headrace.lcr.batch import Command, OldImage
from protos import codec
from spark_apply.conversation.groups import (
    AppliedRange,
    CoordinatorMessage,
    GroupAssignment,
    GroupResult,
    GroupStatistics,
    OnError,
)
from spark_apply.dependencies.hashes import hash_batch
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.reading.pieces import LargePart, Run
from spark_apply.tables.fits import TableFits
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of

__all__ = ["FITS", "STORE", "T", "Talk", "assignments", "brief", "made", "part", "run"]

T = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
STORE = MemoryStore()
T.create(STORE)
FITS = TableFits(lambda owner, name: STORE.tables[owner, name].table, lambda version: "")


def made(number: int, *keys: int) -> Transaction:
    rows = [(key.to_bytes(4, "big"), b"v", b"b") for key in keys]
    return Transaction(number, [Change(T, Command.INSERT, new=row) for row in rows])


def run(*transactions: Transaction) -> Run:
    batch = batch_of(transactions, transactions[0].number * 100 - 50)
    return Run(batch=batch, data=codec.encode(batch), hashes=hash_batch(batch, FITS.fit), through_scn=batch.through_scn)


def part(transaction: Transaction, first: int, last: int) -> LargePart:
    is_last = last >= len(transaction.changes)
    batch = batch_of([transaction], transaction.number * 100 - 50, first=first, last=last, is_open=not is_last)
    return LargePart(
        batch=batch,
        data=codec.encode(batch),
        hashes=hash_batch(batch, FITS.fit),
        order_scn=transaction.order_scn,
        is_first=first == 0,
        is_last=is_last,
        through_scn=batch.through_scn,
    )


class Talk:
    """A coordinator and its messages."""

    def __init__(
        self,
        *,
        servers: int = 2,
        transactions: int = 1000,
        rows: int = 10_000,
        errors: Sequence[Any] = (),
        on_error: OnError = OnError.HOLD_DEPENDENTS,
        in_order: bool = False,
    ) -> None:
        self.progress = ApplyProgress(epoch=1, low_watermark=50, above=())
        self.coordinator = ApplyCoordinator(
            progress=self.progress,
            errors=errors,
            encode=codec.encode,
            group_transactions=transactions,
            group_rows=rows,
            on_error=on_error,
            commits_in_order=in_order,
        )
        for server in range(servers):
            self.coordinator.server_joined(server, self.progress)

    def must_replay(self) -> bool:
        """As the coordinator says it now: what a test asserted before about its property is not taken for still true."""
        return self.coordinator.must_replay

    def accept(self, *pieces: object) -> list[tuple[int, CoordinatorMessage]]:
        for piece in pieces:
            self.coordinator.accept(piece)
        return self.coordinator.messages()

    def done(
        self, server: int, group: int, *, attempt: int = 0, **fields: object
    ) -> list[tuple[int, CoordinatorMessage]]:
        found = self.coordinator._groups[group]
        if "failure" not in fields:
            fields = {"executed": len(found.error_numbers), **fields}
        applied = (AppliedRange(after_scn=found.after_scn, through_scn=found.through_scn),)
        fields = {"applied": applied, "statistics": GroupStatistics(commits=1), **fields}
        self.coordinator.report(server, GroupResult(group=group, attempt=attempt, **fields))
        return self.coordinator.messages()


def brief(messages: list[tuple[int, CoordinatorMessage]]) -> list[tuple[int, str, int]]:
    return [(server, type(message).__name__.removeprefix("Group"), message.group) for server, message in messages]


def assignments(messages: list[tuple[int, CoordinatorMessage]]) -> list[GroupAssignment]:
    return [message for _, message in messages if isinstance(message, GroupAssignment)]
