"""Rows of one table from the batches of a group, in source order: both images of each as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.databases.ports import WriteTimes
from headrace.lcr.batch import Command, LcrBatch, RowGroup
from headrace.lcr.cells import Cells, fixed
from headrace.lcr.cutting import select_values
from headrace.lcr.values import NULL, ColumnValues
from spark_apply.sets import collapse_kernels as kernels
from spark_apply.tables.fits import TableFit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_apply.sets.steps import FitOf

__all__ = ["Block", "TableRows", "block_of", "rows_by_table", "same_shape"]


@dataclass(slots=True)
class TableRows:
    """Rows of one table in source order; `old`, `new`, `changed` and `unset` are modified in place.

    Args:
        fit: of the table.
        command: uint8, shape (n,).
        old: old image; ABSENT rows for INSERTs.
        new: new image; ABSENT rows for DELETEs.
        changed: uint64, shape (n, words): one bit per column, set if an UPDATE changed it.
        unset: uint64, shape (n, words): one bit per column, set if an UPDATE has no new value for it.
        direct: the original values, if the rows are one block of inserts.
        times: int64, shape (n,): when each was committed at `source`; None: the table does not use commit times.
        noted: int64, shape (n,): when the last change of each row's key was committed, while `times` has the first;
            None: rows are not collapsed.
    """

    fit: TableFit
    command: NDArray[np.uint8]
    old: Cells
    new: Cells
    changed: NDArray[np.uint64]
    unset: NDArray[np.uint64]
    direct: ColumnValues | None
    key_offsets: NDArray[np.int64]
    key_lengths: NDArray[np.int32]
    times: NDArray[np.int64] | None = None
    source: str = ""
    noted: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, blocks: list[Block]) -> TableRows:
        """Concatenate blocks of one shape."""
        fit = blocks[0].fit
        count = sum(block.group.row_count for block in blocks)
        columns = len(fit.version.columns)
        if len(blocks) == 1:
            places = [np.arange(count, dtype=np.int32)]
        else:
            numbers = np.concatenate([block.base + block.group.row_numbers for block in blocks])
            rank = np.empty(count, np.int32)
            rank[np.argsort(numbers, kind="stable")] = np.arange(count, dtype=np.int32)
            places = np.split(rank, np.cumsum([block.group.row_count for block in blocks])[:-1])
        command = np.empty(count, np.uint8)
        olds, news = [], []
        for block, place in zip(blocks, places, strict=True):
            command[place] = int(block.group.command)
            if block.group.old is not None:
                olds.append((block.group.old, place))
            if block.group.new is not None:
                news.append((block.group.new, place))
        old, new = _shared(columns, count, olds, news)
        words = (columns + 63) // 64
        direct = blocks[0].group.new if len(blocks) == 1 and blocks[0].group.command is Command.INSERT else None
        matched = len(fit.match)
        return cls(
            fit=fit,
            command=command,
            old=old,
            new=new,
            changed=np.zeros((count, words), np.uint64),
            unset=np.zeros((count, words), np.uint64),
            direct=direct,
            key_offsets=np.zeros((matched, count), np.int64),
            key_lengths=np.zeros((matched, count), np.int32),
            times=_times(blocks, places, count),
            source=blocks[0].source,
        )

    def written_at(self, chosen: NDArray[np.int32]) -> WriteTimes | None:
        """Return when rows were changed, for a write of them; None: the table does not use commit times."""
        known = self.fit.conflicts.times
        if known is None or self.times is None:
            return None
        return WriteTimes(
            times_us=self.times[chosen],
            source=self.source,
            rank=known.rank(self.source),
            own_rank=known.rank(known.site),
            has_tombstones=known.has_tombstones,
            has_one_source=known.has_one_source,
            noted_us=None if self.noted is None else self.noted[chosen],
        )

    def find_keys(self) -> int:
        """Find keys and changed columns; return COLLAPSED, or why keys do not identify the rows."""
        data, command = self.new.data, fixed(self.command)
        answer = kernels.find_keys(
            data,
            command,
            self.old.offsets,
            self.old.lengths,
            self.new.offsets,
            self.new.lengths,
            fixed(np.array(self.fit.match, np.int64)),
            self.key_offsets,
            self.key_lengths,
        )
        kernels.mark_columns(
            data,
            command,
            self.old.offsets,
            self.old.lengths,
            self.new.offsets,
            self.new.lengths,
            self.changed,
            self.unset,
        )
        return int(answer)

    def is_collapsible(self, answer: int) -> bool:
        """Return whether the net changes of the keys may be written, given the answer of `find_keys`."""
        return answer == kernels.COLLAPSED and self.fit.is_collapsible and not (self.key_lengths == NULL).any()

    def hash_keys(self) -> NDArray[np.uint64]:
        """Return a hash of each row's key: uint64, shape (n,); call `find_keys` first."""
        hashes = np.empty(self.command.shape[0], np.uint64)
        matched = fixed(np.arange(len(self.fit.match), dtype=np.int64))
        kernels.hash_rows(
            self.new.data, fixed(self.key_offsets), fixed(self.key_lengths), matched, np.uint64(0), hashes
        )
        return hashes


def _times(blocks: Sequence[Block], places: Sequence[NDArray[np.int32]], count: int) -> NDArray[np.int64] | None:
    if blocks[0].times is None:
        return None
    times = np.zeros(count, np.int64)
    for block, place in zip(blocks, places, strict=True):
        assert block.times is not None
        times[place] = block.times
    return times


def _shared(
    columns: int,
    count: int,
    olds: list[tuple[ColumnValues, NDArray[np.int32]]],
    news: list[tuple[ColumnValues, NDArray[np.int32]]],
) -> tuple[Cells, Cells]:
    """Join both images over one shared byte array."""
    old = Cells.joined(columns, count, olds)
    new = Cells.joined(columns, count, news)
    if not olds:
        return replace(old, data=new.data), new
    if not news:
        return old, replace(new, data=old.data)
    base = old.data.shape[0]
    data = fixed(np.concatenate([old.data, new.data]))
    new.offsets[...] += base
    return replace(old, data=data), replace(new, data=data)


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of one batch.

    `base` is the number of rows before that batch. `times`: int64[n], as in `WriteTimes`; None: the table does not use
    commit times.
    """

    base: int
    group: RowGroup
    fit: TableFit
    times: NDArray[np.int64] | None = None
    source: str = ""


def block_of(batch: LcrBatch, group: RowGroup, fit: TableFit, base: int = 0) -> Block:
    """Return a row group as a block.

    Args:
        batch: contains the group.
        group: the row group.
        fit: of its table.
        base: number of rows before the batch.
    """
    if fit.conflicts.times is None:
        return Block(base=base, group=group, fit=fit)
    found = batch.transactions
    # The last transaction that begins at or before a row; empty ones before it begin at the same row.
    transaction = np.searchsorted(found.first_row, group.row_numbers, side="right") - 1
    return Block(
        base=base, group=group, fit=fit, times=found.commit_time_us[transaction].astype(np.int64), source=batch.source
    )


def rows_by_table(batches: Sequence[LcrBatch], fit_of: FitOf) -> dict[tuple[str, str], list[Block]]:
    """Return the row groups of each table, batch by batch.

    Args:
        batches: consecutive transactions.
        fit_of: returns the fit of a table version.
    """
    tables: dict[tuple[str, str], list[Block]] = {}
    base = 0
    for batch in batches:
        for group in batch.groups:
            version = batch.tables[group.table]
            tables.setdefault((version.owner, version.name), []).append(block_of(batch, group, fit_of(version), base))
        base += batch.row_count
    return tables


def same_shape(blocks: list[Block]) -> Iterator[tuple[TableRows, bool]]:
    """Concatenate the blocks of a table; where its versions differ, span by span in source order."""
    shapes = {(block.fit.version.columns, block.fit.version.old_image) for block in blocks}
    if len(shapes) == 1:
        yield TableRows.of(blocks), False
        return
    # Rare: the table was altered inside the group, or its partitions have different column orders.
    numbers = np.concatenate([block.base + block.group.row_numbers for block in blocks])
    owner = np.concatenate([np.full(block.group.row_count, i) for i, block in enumerate(blocks)])
    order = np.argsort(numbers, kind="stable")
    kinds = {shape: kind for kind, shape in enumerate(shapes)}
    kind_of = np.array([kinds[block.fit.version.columns, block.fit.version.old_image] for block in blocks])
    owners = owner[order]
    sequence = kind_of[owners]
    ends = np.concatenate([np.flatnonzero(np.diff(sequence)) + 1, [sequence.shape[0]]])
    start = 0
    for end in ends.tolist():
        low, high = int(numbers[order[start]]), int(numbers[order[end - 1]])
        yield (
            TableRows.of([_rows_between(blocks[place], low, high) for place in np.unique(owners[start:end]).tolist()]),
            True,
        )
        start = end


def _rows_between(block: Block, low: int, high: int) -> Block:
    """Return the rows of a block whose number in the segment is in `low .. high`."""
    first, last = np.searchsorted(block.group.row_numbers, [low - block.base, high - block.base + 1]).tolist()
    if first == 0 and last == block.group.row_count:
        return block
    rows = np.arange(first, last, dtype=np.int32)
    group = replace(
        block.group,
        row_numbers=block.group.row_numbers[first:last],
        old=select_values(block.group.old, rows),
        new=select_values(block.group.new, rows),
    )
    return replace(block, group=group, times=None if block.times is None else block.times[first:last])
