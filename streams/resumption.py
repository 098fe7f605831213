"""Begin a batch later: what a receiver that already has a part of it still needs.

Batches of one source are cut anew whenever a capture process mines again, so a receiver's position may fall into the
middle of a batch. Every receiver insists on `previous_scn` being its own position; the sender cuts the batch there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streams.lcr_batch import ColumnValues, LcrBatch, RowGroup, Transactions, Truncate

if TYPE_CHECKING:
    from streams.scn import Scn

__all__ = ["resume_after"]


def resume_after(batch: LcrBatch, scn: Scn) -> LcrBatch | None:
    """Leave out what a receiver at `scn` already has.

    Args:
        batch: a batch with `previous_scn <= scn`, possibly a part of a large transaction.
        scn: the receiver's position: it has every transaction with `order_scn < scn`.

    Returns:
        A batch whose `previous_scn` is `scn`, or None when nothing of it is new.
    """
    transactions = batch.transactions
    first = int(np.searchsorted(transactions.order_scn, scn, side="left"))
    if first == len(transactions):
        if batch.through_scn <= scn:
            return None
        return LcrBatch(source=batch.source, previous_scn=scn, through_scn=batch.through_scn)
    # The parts of an open transaction do not move the position, wherever it is.
    through = scn if batch.is_open else batch.through_scn
    if first == 0:
        return replace(batch, previous_scn=scn, through_scn=through)
    row = int(transactions.first_row[first])
    return replace(
        batch, previous_scn=scn, through_scn=through, continues=False, first_position=0,
        transactions=Transactions(
            transaction_id=transactions.transaction_id[first:], order_scn=transactions.order_scn[first:],
            commit_scn=transactions.commit_scn[first:], commit_time_us=transactions.commit_time_us[first:],
            tag=transactions.tag[first:], first_row=transactions.first_row[first:] - np.int32(row),
        ),
        groups=tuple(group for group in (_rows_from(group, row) for group in batch.groups) if group is not None),
        truncates=tuple(
            Truncate(
                row_number=truncate.row_number - row, tables=truncate.tables, cascade=truncate.cascade,
                restart_identity=truncate.restart_identity,
            )
            for truncate in batch.truncates if truncate.row_number >= row
        ),
    )


def _rows_from(group: RowGroup, row: int) -> RowGroup | None:
    first = int(np.searchsorted(group.row_numbers, row, side="left"))
    if first == group.row_count:
        return None
    return RowGroup(
        table=group.table, command=group.command, row_numbers=group.row_numbers[first:] - np.int32(row),
        old=None if group.old is None else _values_from(group.old, first),
        new=None if group.new is None else _values_from(group.new, first),
    )


def _values_from(values: ColumnValues, first: int) -> ColumnValues:
    skipped = values.starts[:-1] + np.maximum(values.lengths[:, :first], 0).sum(axis=1, dtype=np.int64)
    pieces = [
        values.data[int(begin) : int(end)] for begin, end in zip(skipped, values.starts[1:], strict=True)
    ]
    starts = np.zeros(values.column_count + 1, np.int64)
    np.cumsum(values.starts[1:] - skipped, out=starts[1:])
    return ColumnValues(
        lengths=np.ascontiguousarray(values.lengths[:, first:]),
        data=np.concatenate(pieces) if pieces else np.empty(0, np.uint8), starts=starts,
    )
