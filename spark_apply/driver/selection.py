"""Parts of a batch: some of its transactions, some of its rows, as batches of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spark_apply.server.cells import select_values
from streams.lcr_batch import LcrBatch, RowGroup, Transactions, Truncate
from streams.scn import Scn

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["row_transactions", "select_rows", "slice_transactions"]


def row_transactions(transactions: Transactions) -> NDArray[np.int32]:
    """Index of the transaction each row belongs to: int32, shape (row_count,)."""
    counts = np.diff(transactions.first_row)
    return np.repeat(np.arange(len(transactions), dtype=np.int32), counts)


def slice_transactions(batch: LcrBatch, first: int, last: int) -> LcrBatch:
    """The transactions `first .. last - 1` of a batch; `through_scn` and `previous_scn` follow."""
    if first == 0 and last == len(batch.transactions):
        return batch
    kept = np.zeros(batch.row_count, np.bool_)
    starts = batch.transactions.first_row
    kept[starts[first] : starts[last]] = True
    rows = select_rows(batch, kept)
    found = rows.transactions
    previous = batch.previous_scn if first == 0 else Scn(int(found.commit_scn[first - 1]))
    through = batch.through_scn if last == len(found) else Scn(int(found.commit_scn[last - 1]))
    return replace(
        rows,
        previous_scn=previous, through_scn=through, continues=batch.continues and first == 0,
        first_position=batch.first_position if first == 0 else 0,
        transactions=Transactions(
            transaction_id=found.transaction_id[first:last], order_scn=found.order_scn[first:last],
            commit_scn=found.commit_scn[first:last], commit_time_us=found.commit_time_us[first:last],
            tag=found.tag[first:last], first_row=found.first_row[first : last + 1] - found.first_row[first],
        ),
    )


def select_rows(batch: LcrBatch, kept: NDArray[np.bool_]) -> LcrBatch:
    """A batch with only the rows where `kept`; transactions stay, even without rows.

    Args:
        batch: the batch.
        kept: bool, shape (row_count,). A TRUNCATE is a row too.
    """
    if bool(kept.all()):
        return batch
    # numbers[i]: rows kept before row i, its number if it is kept itself.
    numbers = np.zeros(batch.row_count + 1, np.int32)
    np.cumsum(kept, out=numbers[1:])
    groups = []
    for group in batch.groups:
        mine = np.flatnonzero(kept[group.row_numbers]).astype(np.int32)
        if mine.shape[0]:
            groups.append(RowGroup(
                table=group.table, command=group.command, row_numbers=numbers[group.row_numbers[mine]],
                old=select_values(group.old, mine), new=select_values(group.new, mine),
            ))
    truncates = tuple(
        Truncate(
            row_number=int(numbers[truncate.row_number]), tables=truncate.tables, cascade=truncate.cascade,
            restart_identity=truncate.restart_identity,
        )
        for truncate in batch.truncates if kept[truncate.row_number]
    )
    return replace(
        batch, groups=tuple(groups), truncates=truncates,
        transactions=replace(batch.transactions, first_row=numbers[batch.transactions.first_row]),
    )
