"""Parts of a batch as separate batches: some of its transactions, some of its rows, or the part after a position.

The one place that cuts batches. A cut batch keeps the promises of `headrace.lcr.batch`: rows are renumbered, empty
groups are dropped, positions follow. Values are copied once; a cut that takes everything returns the same object.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import LcrBatch, RowGroup, TableVersion, Transactions
from headrace.lcr.cells import Cells
from headrace.lcr.scn import Scn
from headrace.lcr.values import ColumnValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "relabelled",
    "renamed",
    "resume_after",
    "row_transactions",
    "select_rows",
    "select_values",
    "slice_transactions",
    "without_unused",
]


def row_transactions(transactions: Transactions) -> NDArray[np.int32]:
    """Return the index of the transaction of each row: int32, shape (row_count,)."""
    first = transactions.first_row
    return np.repeat(np.arange(len(transactions), dtype=np.int32), first[1:] - first[:-1])


def select_values(values: ColumnValues | None, rows: NDArray[np.integer]) -> ColumnValues | None:
    """Return the values of some rows; None for None.

    Args:
        values: values of n rows.
        rows: the rows, in any order; a run of consecutive rows is the fast case.
    """
    if values is None:
        return None
    count = int(rows.shape[0])
    if count == 0 or (int(rows[-1]) - int(rows[0]) == count - 1 and bool((np.diff(rows) == 1).all())):
        first = int(rows[0]) if count else 0
        return _values_between(values, first, first + count)
    return Cells.of(values).gathered(rows.astype(np.int32, copy=False))


def select_rows(batch: LcrBatch, kept: NDArray[np.bool_]) -> LcrBatch:
    """Return a batch with only the rows where `kept`; transactions, tables and tags stay, even without rows.

    Args:
        batch: the batch.
        kept: bool, shape (row_count,). A TRUNCATE is a row too, and so is a DDL LCR.
    """
    if bool(kept.all()):
        return batch
    # numbers[i] is the number of kept rows before row i, and so the new number of row i if it is kept.
    numbers = np.zeros(batch.row_count + 1, np.int32)
    np.cumsum(kept, out=numbers[1:])
    groups = []
    for group in batch.groups:
        mine = np.flatnonzero(kept[group.row_numbers]).astype(np.int32)
        if mine.shape[0]:
            groups.append(
                replace(
                    group,
                    row_numbers=numbers[group.row_numbers[mine]],
                    old=select_values(group.old, mine),
                    new=select_values(group.new, mine),
                )
            )
    return relabelled(
        replace(
            batch,
            groups=tuple(groups),
            truncates=tuple(
                replace(truncate, row_number=int(numbers[truncate.row_number]))
                for truncate in batch.truncates
                if kept[truncate.row_number]
            ),
            transactions=replace(batch.transactions, first_row=numbers[batch.transactions.first_row]),
            ddl=None,  # it is the only row of its batch, and not all rows are kept
        )
    )


def slice_transactions(batch: LcrBatch, first: int, last: int) -> LcrBatch:
    """Return the transactions `first .. last - 1` of a batch; `through_scn` and `previous_scn` follow.

    Args:
        batch: the batch.
        first: the first wanted transaction.
        last: the one after the last wanted, above `first`.
    """
    found = batch.transactions
    count = len(found)
    if first == 0 and last == count:
        return batch
    first_row, last_row = int(found.first_row[first]), int(found.first_row[last])
    groups = (_group_between(group, first_row, last_row) for group in batch.groups)
    return relabelled(
        replace(
            batch,
            previous_scn=batch.previous_scn if first == 0 else Scn(int(found.commit_scn[first - 1])),
            through_scn=batch.through_scn if last == count else Scn(int(found.commit_scn[last - 1])),
            continues=batch.continues and first == 0,
            first_position=batch.first_position if first == 0 else 0,
            transactions=Transactions(
                transaction_id=found.transaction_id[first:last],
                order_scn=found.order_scn[first:last],
                commit_scn=found.commit_scn[first:last],
                commit_time_us=found.commit_time_us[first:last],
                tag=found.tag[first:last],
                first_row=found.first_row[first : last + 1] - np.int32(first_row),
            ),
            groups=tuple(group for group in groups if group is not None),
            truncates=tuple(
                replace(truncate, row_number=truncate.row_number - first_row)
                for truncate in batch.truncates
                if first_row <= truncate.row_number < last_row
            ),
        )
    )


def resume_after(batch: LcrBatch, scn: Scn) -> LcrBatch | None:
    """Remove what a receiver at `scn` already has.

    A source may cut its log into other batches when it sends it again, so a receiver's position may fall into the
    middle of a batch. Every receiver requires that `previous_scn` is its own position; the sender cuts the batch there.

    Args:
        batch: a batch with `previous_scn <= scn`, possibly a part of a large transaction.
        scn: the receiver's position: it has every transaction with `order_scn < scn`.

    Returns:
        A batch whose `previous_scn` is `scn`, or None if nothing in it is new.
    """
    count = len(batch.transactions)
    first = int(np.searchsorted(batch.transactions.order_scn, scn, side="left"))
    if first == count:
        if batch.through_scn <= scn:
            return None
        return LcrBatch(source=batch.source, previous_scn=scn, through_scn=batch.through_scn)
    # Parts of an open transaction never move the position.
    through = scn if batch.is_open else batch.through_scn
    return replace(slice_transactions(batch, first, count), previous_scn=scn, through_scn=through)


def renamed(batch: LcrBatch, tables: Sequence[TableVersion]) -> LcrBatch:
    """Return the same rows under other table versions; the same object if the versions are its own.

    Args:
        batch: the batch.
        tables: one for each of the batch's, with as many columns in the same order.
    """
    return batch if tuple(tables) == batch.tables else replace(batch, tables=tuple(tables))


def without_unused(batch: LcrBatch) -> LcrBatch:
    """Remove transactions without rows, and tables and tags without references.

    Parts of a large transaction stay even without rows: every receiver must see where it begins, continues and ends. A
    batch with nothing left is a progress mark.
    """
    before = batch.transactions
    left = np.diff(before.first_row) > 0
    if batch.continues:
        left[0] = True
    if batch.is_open:
        left[-1] = True
    tags = sorted({int(tag) for tag in before.tag[left] if tag >= 0})
    tag_place = np.full(len(batch.tags) + 1, -1, np.int16)  # the last one for -1
    tag_place[tags] = np.arange(len(tags), dtype=np.int16)
    used = {group.table for group in batch.groups} | {
        table for truncate in batch.truncates for table in truncate.tables
    }
    tables = sorted(used)
    place = {table: number for number, table in enumerate(tables)}
    return relabelled(
        replace(
            batch,
            tables=tuple(batch.tables[table] for table in tables),
            tags=tuple(batch.tags[tag] for tag in tags),
            transactions=Transactions(
                transaction_id=before.transaction_id[left],
                order_scn=before.order_scn[left],
                commit_scn=before.commit_scn[left],
                commit_time_us=before.commit_time_us[left],
                tag=tag_place[before.tag[left]],
                first_row=np.append(before.first_row[:-1][left], before.first_row[-1]),
            ),
            groups=tuple(replace(group, table=place[group.table]) for group in batch.groups),
            truncates=tuple(
                replace(truncate, tables=tuple(place[table] for table in truncate.tables))
                for truncate in batch.truncates
            ),
            # An empty batch that is no part of anything has nothing to continue.
            continues=batch.continues and bool(left.any()),
        )
    )


def relabelled(batch: LcrBatch) -> LcrBatch:
    """Keep the labels of transactions that still have rows in the batch, with their current row counts."""
    if not batch.labels:
        return batch
    found, labels = batch.transactions, []
    places = {int(scn): place for place, scn in enumerate(found.order_scn.tolist())}
    for label in batch.labels:
        place = places.get(label.order_scn)
        if place is not None:
            rows = int(found.first_row[place + 1] - found.first_row[place])
            labels.append(replace(label, commit_scn=int(found.commit_scn[place]), rows=rows))
    return replace(batch, labels=tuple(labels))


def _group_between(group: RowGroup, first_row: int, last_row: int) -> RowGroup | None:
    """Return the rows of a group with numbers `first_row .. last_row - 1`; None: no such row."""
    first, last = np.searchsorted(group.row_numbers, [first_row, last_row]).tolist()
    if first == last:
        return None
    return replace(
        group,
        row_numbers=group.row_numbers[first:last] - np.int32(first_row),
        old=None if group.old is None else _values_between(group.old, first, last),
        new=None if group.new is None else _values_between(group.new, first, last),
    )


def _values_between(values: ColumnValues, first: int, last: int) -> ColumnValues:
    """Return the values of rows `first .. last - 1`."""
    if first == 0 and last == values.row_count:
        return values
    begins = values.starts[:-1] + np.maximum(values.lengths[:, :first], 0).sum(axis=1, dtype=np.int64)
    ends = values.starts[1:]
    if last < values.row_count:
        ends = begins + np.maximum(values.lengths[:, first:last], 0).sum(axis=1, dtype=np.int64)
    parts = [values.data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    starts = np.zeros(values.column_count + 1, np.int64)
    np.cumsum(ends - begins, out=starts[1:])
    return ColumnValues(
        lengths=np.ascontiguousarray(values.lengths[:, first:last]),
        data=np.concatenate(parts) if parts else np.empty(0, np.uint8),
        starts=starts,
    )
