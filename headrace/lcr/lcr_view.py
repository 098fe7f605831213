"""What row LCRs and DDL LCRs have in common: the attributes of their source and their transaction.

Source: Oracle Database PL/SQL Packages and Types Reference, "Common Subprograms for LCR$_ROW_RECORD and
LCR$_DDL_RECORD".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.lcr.lcr_value import LcrError
from headrace.lcr.scn import Scn, TransactionId
from headrace.lcr.tags import TAG_BYTES_MAX

if TYPE_CHECKING:
    from headrace.lcr.batch import LcrBatch

__all__ = ["LcrView"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LcrView:
    """One LCR of a batch. What is set stays in the view.

    Args:
        batch: the batch with the LCR.
        row: number of the LCR in the batch.
    """

    __slots__ = ("_batch", "_row", "_source", "_tag", "_transaction")

    def __init__(self, batch: LcrBatch, row: int) -> None:
        if not 0 <= row < batch.row_count:
            raise LcrError(f"the batch has no row {row}", rows=batch.row_count)
        self._batch, self._row, self._source = batch, row, batch.source
        transactions = batch.transactions
        # The last transaction that begins at or before the row; empty ones before it begin at the same row.
        self._transaction = int(transactions.first_row.searchsorted(row, side="right")) - 1
        tag = int(transactions.tag[self._transaction])
        self._tag = None if tag < 0 else batch.tags[tag].value

    @property
    def source_database_name(self) -> str:
        """Source site of the change."""
        return self._source

    @source_database_name.setter
    def source_database_name(self, value: str) -> None:
        self._source = value

    @property
    def transaction_id(self) -> TransactionId:
        """The source's number of the transaction."""
        return TransactionId(int(self._batch.transactions.transaction_id[self._transaction]))

    @property
    def scn(self) -> Scn:
        """Start of the transaction's commit record: orders LCRs of one source together with `position`."""
        return Scn(int(self._batch.transactions.order_scn[self._transaction]))

    @property
    def commit_scn(self) -> Scn | None:
        """End of the transaction's commit record; None while the transaction is not complete."""
        scn = int(self._batch.transactions.commit_scn[self._transaction])
        return Scn(scn) if scn else None

    @property
    def source_time_us(self) -> int:
        """Commit time of the transaction at the source, microseconds since the epoch; 0: not known."""
        return int(self._batch.transactions.commit_time_us[self._transaction])

    @property
    def source_time(self) -> datetime | None:
        """Commit time of the transaction at the source, in UTC; None: not known."""
        return _EPOCH + timedelta(microseconds=self.source_time_us) if self.source_time_us else None

    @property
    def position(self) -> int:
        """0-based position within the transaction."""
        first = int(self._batch.transactions.first_row[self._transaction])
        before = self._batch.first_position if self._transaction == 0 else 0
        return before + self._row - first

    @property
    def tag(self) -> bytes | None:
        """The tag; None: NULL."""
        return self._tag

    @tag.setter
    def tag(self, value: bytes | None) -> None:
        if value is not None and len(value) > TAG_BYTES_MAX:
            raise LcrError(f"a tag has at most {TAG_BYTES_MAX} bytes", length=len(value))
        self._tag = value

    def is_null_tag(self) -> bool:
        """Whether the tag is NULL."""
        return self._tag is None

    @property
    def batch(self) -> LcrBatch:
        """The batch of which the LCR is a view."""
        return self._batch

    @property
    def row(self) -> int:
        """Its number in the batch."""
        return self._row

    @property
    def transaction(self) -> int:
        """Index of its transaction in the batch."""
        return self._transaction
