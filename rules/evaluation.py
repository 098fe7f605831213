"""Rule evaluation on whole batches.

Used by capture (for what prefiltering could not decide), propagations and apply. What a rule set discards leaves
the batch; the chain of positions stays whole, so that a receiver cannot tell a discarded change from none.

Source: Oracle Streams Concepts and Administration 11.2, "Rule Set and Rule Evaluation".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rules.evaluation_kernels import copy_rows, measure_rows
from rules.rule import RuleSet, TruthValue
from streams.lcr_batch import ColumnValues, LcrBatch, RowGroup, TableVersion, Transactions, Truncate

__all__ = ["filter_batch", "select_rows"]


def select_rows(values: ColumnValues, rows: NDArray[np.int64]) -> ColumnValues:
    """Return the values of some rows, in the same order.

    Args:
        values: of n rows.
        rows: int64, ascending, which rows.
    """
    columns = values.column_count
    lengths = np.empty((columns, rows.shape[0]), np.int32)
    starts = np.empty(columns + 1, np.int64)
    measure_rows(values.lengths, rows, lengths, starts)
    data = np.empty(int(starts[-1]), np.uint8)
    copy_rows(values.lengths, values.data, values.starts, rows, data)
    return ColumnValues(lengths=lengths, data=data, starts=starts)


def filter_batch(batch: LcrBatch, rules: RuleSet) -> LcrBatch:
    """Evaluate the rule set against every row LCR of a batch.

    Args:
        batch: any batch.
        rules: of the client.

    Returns:
        A batch with what the rules keep and the same positions; the same object when they keep everything. When
        they keep nothing: a progress mark, or, of a transaction in parts, a part without rows.
    """
    if batch.is_progress_mark or (rules.include is None and not rules.exclude):
        return batch
    verdicts = _verdicts(batch.tables, rules)
    if verdicts[:, _tags_present(batch)].all():
        return batch
    keep = np.zeros(batch.row_count, np.bool_)
    tagged = _tagged_rows(batch)
    for group in batch.groups:
        keep[group.row_numbers] = verdicts[group.table, tagged[group.row_numbers]]
    truncates = []
    for truncate in batch.truncates:
        kept = tuple(table for table in truncate.tables if verdicts[table, tagged[truncate.row_number]])
        keep[truncate.row_number] = bool(kept)
        truncates.append(replace(truncate, tables=kept))
    if keep.all() and tuple(truncates) == batch.truncates:
        return batch
    return _without_discarded(batch, keep, truncates)


def _verdicts(tables: tuple[TableVersion, ...], rules: RuleSet) -> NDArray[np.bool_]:
    """bool[table, tagged]: whether the rules keep row LCRs of the table."""
    verdicts = np.zeros((len(tables), 2), np.bool_)
    for number, table in enumerate(tables):
        for tagged in (False, True):
            verdicts[number, int(tagged)] = (
                rules.prefilter(table.owner, table.name, tagged=tagged) is not TruthValue.FALSE
            )
    return verdicts


def _tags_present(batch: LcrBatch) -> list[int]:
    tagged = batch.transactions.tag >= 0
    return [int(value) for value in np.unique(tagged)]


def _tagged_rows(batch: LcrBatch) -> NDArray[np.int8]:
    rows = np.diff(batch.transactions.first_row)
    return np.repeat((batch.transactions.tag >= 0).astype(np.int8), rows)


def _without_discarded(batch: LcrBatch, keep: NDArray[np.bool_], truncates: list[Truncate]) -> LcrBatch:
    renumbered = (np.cumsum(keep) - 1).astype(np.int32)
    groups, used = [], set()
    for group in batch.groups:
        rows = np.flatnonzero(keep[group.row_numbers]).astype(np.int64)
        if rows.size:
            groups.append(_select_from_group(group, rows, renumbered))
            used.add(group.table)
    remaining = [truncate for truncate in truncates if truncate.tables]
    used.update(table for truncate in remaining for table in truncate.tables)
    transactions, tags_used = _transactions_left(batch, keep)
    tables = sorted(used)
    place = {table: number for number, table in enumerate(tables)}
    return replace(
        batch,
        tables=tuple(batch.tables[table] for table in tables),
        tags=tuple(batch.tags[tag] for tag in tags_used),
        transactions=transactions,
        groups=tuple(replace(group, table=place[group.table]) for group in groups),
        truncates=tuple(
            replace(
                truncate, row_number=int(renumbered[truncate.row_number]),
                tables=tuple(place[table] for table in truncate.tables),
            )
            for truncate in remaining
        ),
        # An empty batch that is no part of anything has nothing to continue.
        continues=batch.continues and len(transactions) > 0,
    )


def _select_from_group(group: RowGroup, rows: NDArray[np.int64], renumbered: NDArray[np.int32]) -> RowGroup:
    numbers = renumbered[group.row_numbers[rows]]
    if rows.size == group.row_count:
        return replace(group, row_numbers=numbers)
    return replace(
        group, row_numbers=numbers,
        old=None if group.old is None else select_rows(group.old, rows),
        new=None if group.new is None else select_rows(group.new, rows),
    )


def _transactions_left(batch: LcrBatch, keep: NDArray[np.bool_]) -> tuple[Transactions, list[int]]:
    """The transactions that still have rows, or that are parts: those must begin, go on and end everywhere."""
    before = batch.transactions
    bounds = np.concatenate(([0], np.cumsum(keep)))[before.first_row]
    left = np.diff(bounds) > 0
    if batch.continues:
        left[0] = True
    if batch.is_open:
        left[-1] = True
    tags_used = sorted({int(tag) for tag in before.tag[left] if tag >= 0})
    tag_place = np.full(len(batch.tags) + 1, -1, np.int16)  # the last one for -1
    tag_place[tags_used] = np.arange(len(tags_used), dtype=np.int16)
    first_row = np.append(bounds[:-1][left], bounds[-1]).astype(np.int32)
    return (
        Transactions(
            transaction_id=before.transaction_id[left], order_scn=before.order_scn[left],
            commit_scn=before.commit_scn[left], commit_time_us=before.commit_time_us[left],
            tag=tag_place[before.tag[left]], first_row=first_row,
        ),
        tags_used,
    )
