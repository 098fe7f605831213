"""Row migration by subset rules: an UPDATE that moves a row in becomes an INSERT, one that moves it out a DELETE.

The INSERT has the whole new row, with old values for the columns that the UPDATE did not touch. The DELETE has the old
row.

A TRUNCATE empties the subset: it becomes the TRUNCATE of a part of the table, like that of a partition
(`headrace.lcr.batch.Partition`). So the destination deletes only the rows of the subset, and keeps rows that it has for
another reason.

Source: Oracle Streams Concepts and Administration 11.2, "Row Migration and Subset Rules"; a TRUNCATE is DDL there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import Command, LcrBatch, Partition, RowGroup, TableVersion, content_version
from headrace.lcr.cells import Cells
from headrace.lcr.cutting import select_values
from headrace.lcr.values import ABSENT, UNCHANGED, ColumnValues
from headrace.rules.conditions.condition import LOG_WHOLE_ROWS, Condition
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.conditions.spelling import where_true

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["migrated", "subset_of_truncate", "together"]


def migrated(batch: LcrBatch, commands: Mapping[int, NDArray[np.uint8]], keep: NDArray[np.bool_]) -> LcrBatch:
    """Give rows other commands.

    Args:
        batch: any batch.
        commands: new command per row, INSERT or DELETE, 0: unchanged; by the number of a group of UPDATEs.
        keep: bool, shape (row_count,): the other rows are discarded later, and stay unchanged.

    Returns:
        A batch with the same rows under the same numbers.

    Raises:
        ConditionError: a row that becomes an INSERT has a value that is not in the log.
    """
    if not commands:
        return batch
    parts: dict[tuple[int, Command], list[RowGroup]] = {}
    for number, group in enumerate(batch.groups):
        becomes = commands.get(number)
        if becomes is None:
            parts.setdefault((group.table, group.command), []).append(group)
            continue
        becomes = np.where(keep[group.row_numbers], becomes, 0)
        for command in (Command.UPDATE, Command.INSERT, Command.DELETE):
            mine = np.flatnonzero(becomes == (0 if command is Command.UPDATE else command)).astype(np.int32)
            if mine.shape[0]:
                part = replace(
                    group,
                    row_numbers=group.row_numbers[mine],
                    old=select_values(group.old, mine),
                    new=select_values(group.new, mine),
                )
                parts.setdefault((group.table, command), []).append(
                    _as(command, part, batch.tables[group.table], batch.source)
                )
    return replace(batch, groups=tuple(together(groups) for groups in parts.values()))


def subset_of_truncate(table: TableVersion, subset: Condition) -> TableVersion:
    """Return the table version for a TRUNCATE of a table of which only a subset is replicated.

    Args:
        table: the table that the source truncated, or a partition of it.
        subset: condition of the replicated rows.
    """
    rows = where_true(subset)
    if table.partition is None:
        part = Partition(owner=table.owner, name=table.name, rows=rows)
    elif not table.partition.rows or table.partition.rows.endswith(rows):
        part = table.partition  # not known: the destination reports it; or already cut to the subset
    else:
        part = replace(table.partition, rows=f"({table.partition.rows}) IS NOT FALSE AND {rows}")
    changed = replace(table, partition=part)
    return replace(changed, version=content_version(changed))


def _as(command: Command, group: RowGroup, table: TableVersion, source: str) -> RowGroup:
    if command is Command.UPDATE:
        return group
    if command is Command.DELETE:
        return replace(group, command=command, new=None)
    assert group.new is not None
    assert group.old is not None
    new = _completed(group.new, group.old)
    lacking = (new.lengths == ABSENT) | (new.lengths == UNCHANGED)
    if lacking.any():
        column = table.columns[int(np.flatnonzero(lacking.any(axis=1))[0])].name
        raise ConditionError(
            f"a row of {table.qualified_name} moved into the subset, and the log of {source} does not have its value of"
            f" {column}",
            hint=LOG_WHOLE_ROWS,
            table=table.qualified_name,
            column=column,
        )
    return replace(group, command=command, old=None, new=new)


def _completed(new: ColumnValues, old: ColumnValues) -> ColumnValues:
    """Return the new values, with the old ones where the UPDATE did not touch a value."""
    untouched = new.lengths == UNCHANGED
    if not untouched.any():
        return new
    first, second = Cells.of(new), Cells.of(old)
    data = np.concatenate([first.data, second.data])
    cells = Cells(
        data=data,
        offsets=np.where(untouched, second.offsets + first.data.shape[0], first.offsets),
        lengths=np.where(untouched, second.lengths, first.lengths),
    )
    return cells.gathered(np.arange(new.row_count, dtype=np.int32))


def together(groups: list[RowGroup]) -> RowGroup:
    """Join groups of one table version and command, in the order of their rows."""
    if len(groups) == 1:
        return groups[0]
    numbers = np.concatenate([group.row_numbers for group in groups])
    order = np.argsort(numbers, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.shape[0])
    places, begin = [], 0
    for group in groups:
        places.append(place[begin : begin + group.row_count].astype(np.int32))
        begin += group.row_count

    def joined(blocks: list[ColumnValues | None]) -> ColumnValues | None:
        present = [(block, mine) for block, mine in zip(blocks, places, strict=True) if block is not None]
        if not present:
            return None
        cells = Cells.joined(present[0][0].column_count, order.shape[0], present)
        return cells.gathered(np.arange(order.shape[0], dtype=np.int32))

    return replace(
        groups[0],
        row_numbers=numbers[order],
        old=joined([group.old for group in groups]),
        new=joined([group.new for group in groups]),
    )
