"""Pieces of the stream for the coordinator: runs of whole transactions, and parts of large ones.

A transaction with DDL LCRs is passed on in parts like a large one, even if it is a single LCR: the coordinator writes it
alone, when everything before it is applied. Behind a DDL LCR the tables' fits are not known, so what is hashed is their
names (`table_hashes`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from spark_apply.dependencies.hashes import KeyHashes, hash_batch, table_hashes

if TYPE_CHECKING:
    from spark_apply.tables.fits import TableFits

__all__ = ["LargeDropped", "LargePart", "Mark", "Piece", "Pieces", "Run", "order_scn_of"]


def order_scn_of(batch: LcrBatch, transaction: int) -> Scn:
    """Return the order SCN that identifies a transaction of a batch.

    Args:
        batch: the batch.
        transaction: index of the transaction in it.
    """
    return Scn(int(batch.transactions.order_scn[transaction]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Whole transactions to apply.

    Args:
        batch: the transactions.
        data: the serialized batch; None: the batch was changed after it arrived.
        hashes: key hashes of the transactions, for dependencies.
        through_scn: the last SCN that the run covers.
    """

    batch: LcrBatch
    data: bytes | None
    hashes: KeyHashes
    through_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LargePart:
    """A part of a transaction that is larger than a batch or has DDL LCRs.

    Args:
        data: as in `Run`.
        hashes: key hashes of this one transaction.
        order_scn: order SCN of the transaction.
        is_first: the transaction begins with this part.
        is_last: the transaction ends with this part.
        through_scn: the last SCN that the transaction covers; only with the last part.
    """

    batch: LcrBatch
    data: bytes | None
    hashes: KeyHashes
    order_scn: Scn
    is_first: bool
    is_last: bool
    through_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeDropped:
    """The open transaction will not be completed; its source sends it again."""

    order_scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Nothing to apply up to here."""

    through_scn: Scn


Piece = Run | LargePart | LargeDropped | Mark


@dataclass(slots=True)
class _Open:
    """A large transaction with parts still to come."""

    order_scn: Scn
    is_sent: bool = False  # a part of it was passed to the coordinator
    has_ddl: bool = False  # a DDL LCR was


class Pieces:
    """Pieces pending for the coordinator, and the large transaction that is open at their end.

    Args:
        fits: fits of the destination's tables; they decide which keys are hashed.
    """

    def __init__(self, fits: TableFits) -> None:
        self._fits = fits
        self._waiting: deque[Piece] = deque()
        self._open: _Open | None = None

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._open = None

    @property
    def is_empty(self) -> bool:
        """Whether no piece is pending."""
        return not self._waiting

    @property
    def open_scn(self) -> Scn | None:
        """The order SCN of the open transaction; None: no transaction is open."""
        return None if self._open is None else self._open.order_scn

    @property
    def is_open_sent(self) -> bool:
        """Whether a part of the open transaction was passed to the coordinator."""
        return self._open is not None and self._open.is_sent

    @property
    def has_ddl(self) -> bool:
        """Whether a DDL LCR of the open transaction was passed to the coordinator."""
        return self._open is not None and self._open.has_ddl

    def take(self) -> Piece | None:
        """Return the next piece; None: none is pending."""
        return self._waiting.popleft() if self._waiting else None

    def mark(self, through_scn: Scn) -> None:
        """Queue a mark: nothing is to be applied up to `through_scn`."""
        self._waiting.append(Mark(through_scn=through_scn))

    def drop_open(self) -> None:
        """Drop the open transaction, which will not be completed; retract the parts already passed on."""
        if self._open is not None:
            if self._open.is_sent:
                self._waiting.append(LargeDropped(order_scn=self._open.order_scn))
            self._open = None

    def add(self, batch: LcrBatch, data: bytes | None) -> None:
        """Queue a batch: whole transactions, or a part of one.

        Args:
            batch: a batch whose tables fit, a DDL LCR, or a part behind one.
            data: as in `Run`.
        """
        if batch.is_open or batch.continues or batch.ddl is not None:
            if self._open is None:
                self._open = _Open(order_scn=order_scn_of(batch, 0))
            self._add_part(batch, data, self._open)
        elif batch.row_count == 0:
            self.mark(batch.through_scn)
        else:
            run = Run(batch=batch, data=data, hashes=self._hashes(batch), through_scn=batch.through_scn)
            self._waiting.append(run)

    def _add_part(self, batch: LcrBatch, data: bytes | None, large: _Open) -> None:
        is_last = not batch.is_open
        if is_last:
            self._open = None
        if batch.row_count == 0 and not large.is_sent:
            # None of it needs to be applied so far.
            if is_last:
                self.mark(batch.through_scn)
            return
        if batch.row_count == 0 and not is_last:
            return
        large.has_ddl |= batch.ddl is not None
        self._waiting.append(
            LargePart(
                batch=batch,
                data=data,
                hashes=table_hashes(batch) if large.has_ddl else self._hashes(batch),
                order_scn=large.order_scn,
                is_first=not large.is_sent,
                is_last=is_last,
                through_scn=batch.through_scn,
            )
        )
        large.is_sent = True

    def _hashes(self, batch: LcrBatch) -> KeyHashes:
        return hash_batch(batch, self._fits.fit_or_error, in_order=True)
