"""Forms groups from pending transactions, and from large open ones, in source order and within bounds.

When a server can take a group, the group is cut from what has arrived: up to a number of transactions, rows and bytes,
without waiting for more. Whole batches keep their bytes; a divided batch is serialized again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import slice_transactions
from headrace.lcr.scn import FIRST_SCN, Scn
from spark_apply.conversation.groups import PARTS_AHEAD
from spark_apply.dependencies.hashes import KeyHashes
from spark_apply.driver.reading.pieces import LargeDropped, LargePart, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FormedRun", "GroupFormer", "Large", "Part"]

_GROUP_BYTES_MAX = 8 << 20  # a group's serialized batches: a server holds two groups and their writes
_PENDING_BYTES_MAX = 32 << 20  # read ahead of the servers: a few groups
_PENDING_ROWS_MAX = 1 << 18  # the same bound for narrow rows; it also bounds the dependency map


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedRun:
    """Consecutive transactions for one group.

    Args:
        batches: serialized batches.
        hashes: key hashes of each transaction.
        commit_scns: int64, shape (transactions,).
        through_scn: the last SCN that they cover.
        rows: number of row LCRs.
    """

    batches: tuple[bytes, ...]
    hashes: KeyHashes
    commit_scns: NDArray[np.int64]
    through_scn: Scn
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a large transaction, until it is sent."""

    number: int
    data: bytes
    hashes: KeyHashes
    is_last: bool
    through_scn: Scn


@dataclass(slots=True, kw_only=True)
class Large:
    """A transaction that arrives in parts, because of its size or its DDL LCRs.

    Args:
        order_scn: its order SCN.
        unsent: parts not sent yet.
        received: number of parts that have arrived.
        rows: number of LCRs that have arrived.
        has_ddl: a DDL LCR has arrived.
        is_complete: its last part has arrived.
        commit_scn: known from the last part.
        through_scn: known from the last part.
    """

    order_scn: Scn
    unsent: deque[Part] = field(default_factory=deque)
    received: int = 0
    rows: int = 0
    has_ddl: bool = False
    is_complete: bool = False
    commit_scn: Scn = FIRST_SCN
    through_scn: Scn = FIRST_SCN


@dataclass(slots=True)
class _Pending:
    """The transactions of a run from `first` on, which are in no group yet."""

    run: Run
    first: int
    data: bytes
    through_scn: Scn

    @property
    def count(self) -> int:
        return len(self.run.batch.transactions) - self.first


class GroupFormer:
    """Holds transactions that are in no group yet, and cuts groups from them.

    Args:
        transactions_max: most transactions in one group.
        rows_max: most rows in one group; a single transaction may have more.
    """

    def __init__(self, *, encode: Callable[[LcrBatch], bytes], transactions_max: int, rows_max: int) -> None:
        self._encode = encode
        self._transactions_max, self._rows_max = transactions_max, rows_max
        self._pending: deque[_Pending | Large] = deque()
        self._rows = self._bytes = 0
        self._ready: FormedRun | None = None  # it was put back, and is next
        self.open: Large | None = None
        """The large transaction in progress; nothing follows it."""

    @property
    def wants(self) -> bool:
        """Whether more may be added."""
        if self.open is not None:
            return len(self.open.unsent) < PARTS_AHEAD
        return self._bytes < _PENDING_BYTES_MAX and self._rows < _PENDING_ROWS_MAX

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending and self._ready is None

    @property
    def transactions(self) -> int:
        """Number of complete pending transactions."""
        ready = 0 if self._ready is None else self._ready.commit_scns.shape[0]
        return ready + sum(pending.count for pending in self._pending if isinstance(pending, _Pending))

    def add_run(self, run: Run) -> None:
        """Add whole transactions."""
        data = self._encode(run.batch) if run.data is None else run.data
        self._pending.append(_Pending(run=run, first=0, data=data, through_scn=run.through_scn))
        self._rows += run.batch.row_count
        self._bytes += len(data)

    def extend(self, through_scn: Scn) -> None:
        """Extend the last pending item to `through_scn`, up to which there is nothing to apply."""
        if self._pending and isinstance(last := self._pending[-1], _Pending):
            last.through_scn = through_scn

    def add_part(self, piece: LargePart) -> Part | None:
        """Add a part of a large transaction; None: the transaction was dropped meanwhile."""
        if piece.is_first:
            self.open = Large(order_scn=piece.order_scn)
            self._pending.append(self.open)
        large = self.open
        if large is None or large.order_scn != piece.order_scn:
            return None
        part = Part(
            number=large.received,
            data=self._encode(piece.batch) if piece.data is None else piece.data,
            hashes=piece.hashes,
            is_last=piece.is_last,
            through_scn=piece.through_scn,
        )
        large.unsent.append(part)
        large.received += 1
        large.rows += piece.batch.row_count
        large.has_ddl |= piece.batch.ddl is not None
        if piece.is_last:
            large.is_complete = True
            large.commit_scn = Scn(int(piece.batch.transactions.commit_scn[0]))
            large.through_scn = piece.through_scn
            self.open = None
        return part

    def drop_large(self, piece: LargeDropped) -> Large | None:
        """Drop the open transaction; return it if its group was formed already."""
        large, self.open = self.open, None
        if large is None or large.order_scn != piece.order_scn:
            return None
        if self._pending and self._pending[-1] is large:
            self._pending.pop()
            return None
        return large

    def take(self) -> FormedRun | Large | None:
        """Cut the next group; None: nothing is pending."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if not self._pending:
            return None
        if isinstance(large := self._pending[0], Large):
            self._pending.popleft()
            return large
        batches: list[bytes] = []
        hashes, commit_scns = [], []
        count = rows = size = 0
        through = Scn(0)
        while self._pending and size < _GROUP_BYTES_MAX:
            pending = self._pending[0]
            if isinstance(pending, Large):
                break
            fitting = self._fitting(pending, self._transactions_max - count, self._rows_max - rows)
            if fitting <= 0 and batches:  # below 0: a single transaction took more rows than a group has
                break
            first, last = pending.first, pending.first + max(fitting, 1)
            data, taken = self._cut(pending, last)
            batches.append(data)
            hashes.append(pending.run.hashes.part(first, last))
            commit_scns.append(pending.run.batch.transactions.commit_scn[first:last])
            through = Scn(int(commit_scns[-1][-1])) if pending.count else pending.through_scn
            count, rows, size = count + last - first, rows + taken, size + len(data)
            if not pending.count:
                self._pending.popleft()
        return FormedRun(
            batches=tuple(batches),
            hashes=KeyHashes.joined(hashes),
            commit_scns=np.concatenate(commit_scns),
            through_scn=through,
            rows=rows,
        )

    def put_back(self, formed: FormedRun | Large) -> None:
        """Put a cut group back as the next one, because it cannot be written yet."""
        if isinstance(formed, Large):
            self._pending.appendleft(formed)
        else:
            self._ready = formed

    @staticmethod
    def _fitting(pending: _Pending, transactions: int, rows: int) -> int:
        """Return the number of transactions of a run that still fit."""
        starts = pending.run.batch.transactions.first_row
        within = int(np.searchsorted(starts, starts[pending.first] + rows, side="right")) - 1 - pending.first
        return min(within, transactions, pending.count)

    def _cut(self, pending: _Pending, last: int) -> tuple[bytes, int]:
        """Take transactions from a run. Return them serialized, and their number of rows."""
        batch = pending.run.batch
        whole = pending.first == 0 and last == len(batch.transactions)
        data = pending.data if whole else self._encode(slice_transactions(batch, pending.first, last))
        starts = batch.transactions.first_row
        rows = int(starts[last] - starts[pending.first])
        self._rows -= rows
        pending.first = last
        if not pending.count:
            self._bytes -= len(pending.data)
        return data, rows
