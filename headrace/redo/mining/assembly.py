"""Assembly: mined rows that were not sent yet, and cutting them into LCR batches.

It holds at most the content of one batch plus the rows of one redo record. Rows are kept as positions in their log
bytes, and become columns only when a batch is cut, group by group.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CaptureError
from headrace.lcr.batch import (
    Column,
    Command,
    LcrBatch,
    RowGroup,
    TableVersion,
    Transactions,
    Truncate,
    content_version,
)
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ColumnValues
from headrace.redo.mining.mining_kernels import BINARY_FORM, TEXT_FORM, byte_range, compact, gather, group_rows

__all__ = ["Assembly", "MinedRows", "MinedTransactions"]

# Log bytes may be this much larger than their values before the values are copied out of them: the framing of narrow
# rows takes twice the bytes of their values.
_WASTE_FACTOR = 4
_WASTE_BYTES = 1024

# Rows of `Assembly._transactions`.
_ID, _ORDER, _COMMIT, _TIME, _TAG, _ROWS = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedRows:
    """Rows that the rules keep, with the log bytes of their values.

    Args:
        data: uint8, log bytes.
        slot: int32[n], place of the row's table in the miner's table list; -1 for TRUNCATE and DDL.
        command: uint8[n], `Command`, or `headrace.redo.mining.mining_kernels.DDL`.
        old_image: uint8[n], `OldImage`.
        old_first: int64[n], index of the first old value; -1: none.
        new_first: int64[n], index of the first new value; -1: none.
        value_offset: int64[v], into `data`.
        value_length: int32[v].
        value_binary: bool[v].
        value_bytes: bytes of all values.
        truncates: row -> (slots, cascade, restart identity) of a TRUNCATE.
        ddls: row -> the change of a DDL row, which has no values.
    """

    data: NDArray[np.uint8]
    slot: NDArray[np.int32]
    command: NDArray[np.uint8]
    old_image: NDArray[np.uint8]
    old_first: NDArray[np.int64]
    new_first: NDArray[np.int64]
    value_offset: NDArray[np.int64]
    value_length: NDArray[np.int32]
    value_binary: NDArray[np.bool_]
    value_bytes: int
    truncates: dict[int, tuple[tuple[int, ...], bool, bool]] = field(default_factory=dict)
    ddls: dict[int, DdlChange] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.slot.shape[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of all values and of the records of DDL, which bound what an assembly holds."""
        return self.value_bytes + sum(len(change.content) for change in self.ddls.values())

    def without_waste(self, columns: NDArray[np.int64], *, has_all_rows: bool) -> MinedRows:
        """Return the same rows without excess log bytes.

        Args:
            columns: int64[n], number of columns of each row's table (0 for TRUNCATE and DDL).
            has_all_rows: the value arrays hold the values of these rows only.
        """
        if has_all_rows:
            low, high = byte_range(self.value_offset, self.value_length)
            if high - low <= _WASTE_FACTOR * self.value_bytes + _WASTE_BYTES:
                data = self.data[low:high]
                if self.data.shape[0] > _WASTE_FACTOR * (high - low) + _WASTE_BYTES:
                    data = data.copy()
                data.flags.writeable = False  # one array type for the kernels
                return replace(self, data=data, value_offset=self.value_offset - low)
        old_first, new_first = self.old_first.copy(), self.new_first.copy()
        data, offset, length, binary = compact(
            self.data,
            old_first,
            new_first,
            columns,
            self.value_offset,
            self.value_length,
            self.value_binary,
            self.value_bytes,
        )
        data.flags.writeable = False
        return replace(
            self,
            data=data,
            old_first=old_first,
            new_first=new_first,
            value_offset=offset,
            value_length=length,
            value_binary=binary,
        )

    def part(self, start: int, end: int) -> MinedRows:
        """Return some of the rows; the log bytes and the values stay shared.

        Args:
            start: the first row.
            end: the row after the last.
        """
        rows = slice(start, end)
        return replace(
            self,
            slot=self.slot[rows],
            command=self.command[rows],
            old_image=self.old_image[rows],
            old_first=self.old_first[rows],
            new_first=self.new_first[rows],
            truncates={row - start: what for row, what in self.truncates.items() if start <= row < end},
            ddls={row - start: change for row, change in self.ddls.items() if start <= row < end},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedTransactions:
    """Transactions of mined rows, in order; arrays of shape (t,), int64.

    Args:
        transaction_id: the source's transaction numbers.
        order_scn: start of the commit record.
        commit_scn: its end; 0: open (only the last).
        commit_time_us: microseconds since the epoch.
        tag: place in the miner's list of tags; -1: NULL.
        rows: kept rows of each.
        continues: the first one continues the transaction that was open before.
    """

    transaction_id: NDArray[np.int64]
    order_scn: NDArray[np.int64]
    commit_scn: NDArray[np.int64]
    commit_time_us: NDArray[np.int64]
    tag: NDArray[np.int64]
    rows: NDArray[np.int64]
    continues: bool


class Assembly:
    """Pending rows and transactions, cut into batches. A batch ends before a DDL and behind it.

    Args:
        source: source site of the log.
        tables: the miner's table list; grows while mining.
        tags: the miner's list of tags; grows while mining, and is renumbered together with `Assembly.tags`.
    """

    def __init__(self, source: str, tables: list[TableVersion], tags: list[Tag]) -> None:
        self._source = source
        self._tables = tables
        self._tags = tags
        self._pieces: list[MinedRows] = []
        self._transactions = np.zeros((6, 64), np.int64)
        self._count = 0
        self._fitted: dict[tuple[int, bytes], TableVersion] = {}
        self.row_count = 0
        self.value_bytes = 0
        self._sent_rows = 0  # of the first transaction, in parts already cut
        self._continues = False

    @property
    def is_open(self) -> bool:
        """Whether the last transaction is open."""
        return self._count > 0 and self._transactions[_COMMIT, self._count - 1] == 0

    @property
    def is_in_parts(self) -> bool:
        """Whether parts of the first transaction, but not its end, were cut already."""
        return self._continues

    @property
    def has_complete(self) -> bool:
        """Whether a complete transaction is pending, so that something can be cut."""
        return self._count > int(self.is_open)

    def add(self, rows: MinedRows | None, transactions: MinedTransactions) -> None:
        """Add rows and their transactions. Complete transactions without rows are not kept.

        Args:
            rows: rows of these transactions, in their order; None: the rules keep none.
            transactions: the next transactions; the first may continue the open one.
        """
        count, skip = transactions.rows.shape[0], 0
        if transactions.continues and count:
            last, skip = self._count - 1, 1
            self._transactions[_COMMIT, last] = transactions.commit_scn[0]
            self._transactions[_TIME, last] = transactions.commit_time_us[0]
            # In the log a transaction's tag follows its begin: a record may end between the two.
            self._transactions[_TAG, last] = transactions.tag[0]
            self._transactions[_ROWS, last] += transactions.rows[0]
            is_whole = last > 0 or not self._continues
            if transactions.commit_scn[0] and is_whole and self._transactions[_ROWS, last] == 0:
                self._count -= 1
        keep = skip + np.flatnonzero((transactions.rows[skip:] > 0) | (transactions.commit_scn[skip:] == 0))
        added = np.stack(
            [
                transactions.transaction_id[keep],
                transactions.order_scn[keep],
                transactions.commit_scn[keep],
                transactions.commit_time_us[keep],
                transactions.tag[keep],
                transactions.rows[keep],
            ]
        )
        total = self._count + added.shape[1]
        if total > self._transactions.shape[1]:
            self._transactions = np.concatenate([self._transactions, np.zeros((6, 2 * total), np.int64)], axis=1)
        self._transactions[:, self._count : total] = added
        self._count = total
        if rows is not None and rows.row_count:
            self._pieces.append(rows)
            self.row_count += rows.row_count
            self.value_bytes += rows.held_bytes

    @property
    def tags(self) -> NDArray[np.int64]:
        """Places of the tags of pending transactions; -1: NULL. Other places may be assigned."""
        return self._transactions[_TAG, : self._count]

    @tags.setter
    def tags(self, places: NDArray[np.int64]) -> None:
        self._transactions[_TAG, : self._count] = places

    def drop_open(self) -> None:
        """Drop the open transaction: the source resends the whole transaction."""
        if not self.is_open:
            return
        self._count -= 1
        if self._count == 0:
            self._continues, self._sent_rows = False, 0
        dropped = int(self._transactions[_ROWS, self._count])
        if dropped:
            rows = self._joined()
            self._keep(rows.part(0, rows.row_count - dropped))

    def cut(self, previous_scn: Scn, mined_scn: Scn, *, is_full: bool) -> LcrBatch | None:
        """Make a batch of what may be sent now.

        Args:
            previous_scn: `through_scn` of the batch before.
            mined_scn: every transaction up to here is mined.
            is_full: the bound of a batch is reached: an open transaction is cut into parts.

        Returns:
            None: nothing can be sent yet.
        """
        if self._count == 0:
            return None
        is_open = self.is_open
        complete = self._count - is_open
        if self._continues:  # noqa: SIM108
            transactions = 1 if complete or (is_full and self.row_count) else 0
        else:
            transactions = complete or (1 if is_full and self.row_count else 0)
        if transactions == 0:
            return None
        transactions, row_count = self._to_ddl(transactions)
        # A complete transaction is cut into parts around its DDL, which is alone in its batch.
        is_part = transactions > complete or row_count < int(self._transactions[_ROWS, :transactions].sum())
        if is_part:
            through_scn = previous_scn
        elif transactions < complete:  # the last part is a separate batch, others wait behind it
            through_scn = Scn(int(self._transactions[_COMMIT, transactions - 1]))
        else:
            through_scn = mined_scn
        return self._cut(transactions, row_count, previous_scn, through_scn, is_part=is_part)

    def _to_ddl(self, transactions: int) -> tuple[int, int]:
        """Return how many of the first `transactions` the next batch has, and how many rows.

        Without DDL among them, all. Otherwise the transactions before that of the first DDL; if that is the first one,
        its rows before the DDL; if there are none, the DDL alone.
        """
        ends = np.cumsum(self._transactions[_ROWS, :transactions])
        ddl = min(self._joined().ddls, default=None)
        if ddl is None or ddl >= int(ends[-1]):
            return transactions, int(ends[-1])
        before = int(np.searchsorted(ends, ddl, side="right"))
        return (before, int(ends[before - 1])) if before else (1, ddl or 1)

    def _cut(
        self, transactions: int, row_count: int, previous_scn: Scn, through_scn: Scn, *, is_part: bool
    ) -> LcrBatch:
        taken = self._transactions[:, :transactions].copy()
        if is_part:
            taken[_COMMIT], taken[_ROWS] = 0, row_count
        rows = self._joined()
        first_row = np.zeros(transactions + 1, np.int32)
        np.cumsum(taken[_ROWS], out=first_row[1:])
        tags_used, tag = np.unique(taken[_TAG], return_inverse=True)
        has_null = bool(tags_used.size) and tags_used[0] < 0
        batch = LcrBatch(
            source=self._source,
            previous_scn=previous_scn,
            through_scn=through_scn,
            continues=self._continues,
            first_position=self._sent_rows if self._continues else 0,
            tags=tuple(self._tags[number] for number in tags_used[int(has_null) :]),
            transactions=Transactions(
                transaction_id=taken[_ID],
                order_scn=taken[_ORDER],
                commit_scn=taken[_COMMIT],
                commit_time_us=taken[_TIME],
                tag=(tag - int(has_null)).astype(np.int16),
                first_row=first_row,
            ),
        )
        batch = self._with_rows(batch, rows.part(0, row_count))
        if is_part:
            self._sent_rows = row_count + (self._sent_rows if self._continues else 0)
            self._continues = True
            self._transactions[_ROWS, 0] -= row_count
        else:
            self._continues, self._sent_rows = False, 0
            left = self._count - transactions
            self._transactions[:, :left] = self._transactions[:, transactions : self._count].copy()
            self._count = left
        self._keep(rows.part(row_count, rows.row_count))
        return batch

    def _keep(self, rows: MinedRows) -> None:
        """Hold only `rows` from now on."""
        self.row_count = rows.row_count
        if not rows.row_count:
            self._pieces, self.value_bytes = [], 0
            return
        # The rest must not hold the bytes of what was cut off.
        columns = np.array([len(table.columns) for table in self._tables] + [0], np.int64)[rows.slot]
        size = _value_bytes(rows, columns)
        rows = replace(rows, value_bytes=size).without_waste(columns, has_all_rows=False)
        self._pieces, self.value_bytes = [rows], rows.held_bytes

    def _joined(self) -> MinedRows:
        """Return all held rows as one piece."""
        if len(self._pieces) == 1:
            return self._pieces[0]
        pieces = self._pieces or [_no_rows()]
        bytes_before = np.cumsum([0] + [piece.data.shape[0] for piece in pieces])
        values_before = np.cumsum([0] + [piece.value_offset.shape[0] for piece in pieces])
        rows_before = np.cumsum([0] + [piece.row_count for piece in pieces])
        data = np.concatenate([piece.data for piece in pieces])
        data.flags.writeable = False
        joined = MinedRows(
            data=data,
            slot=np.concatenate([piece.slot for piece in pieces]),
            command=np.concatenate([piece.command for piece in pieces]),
            old_image=np.concatenate([piece.old_image for piece in pieces]),
            old_first=np.concatenate(
                [_shifted(piece.old_first, before) for piece, before in zip(pieces, values_before, strict=False)]
            ),
            new_first=np.concatenate(
                [_shifted(piece.new_first, before) for piece, before in zip(pieces, values_before, strict=False)]
            ),
            value_offset=np.concatenate(
                [piece.value_offset + before for piece, before in zip(pieces, bytes_before, strict=False)]
            ),
            value_length=np.concatenate([piece.value_length for piece in pieces]),
            value_binary=np.concatenate([piece.value_binary for piece in pieces]),
            value_bytes=sum(piece.value_bytes for piece in pieces),
            truncates={
                row + int(before): what
                for piece, before in zip(pieces, rows_before, strict=False)
                for row, what in piece.truncates.items()
            },
            ddls={
                row + int(before): change
                for piece, before in zip(pieces, rows_before, strict=False)
                for row, change in piece.ddls.items()
            },
        )
        self._pieces = [joined]
        return joined

    def _with_rows(self, batch: LcrBatch, rows: MinedRows) -> LcrBatch:
        """Return the batch with its groups, TRUNCATEs, DDL and tables."""
        tables: dict[TableVersion, int] = {}
        groups: list[RowGroup] = []
        order, keys, starts = group_rows(rows.slot, rows.command, len(self._tables))
        for number, key in enumerate(keys):
            chosen = order[starts[number] : starts[number + 1]]
            groups.append(self._group(rows, chosen, int(key) >> 3, Command(int(key) & 7), tables))
        truncates = []
        for row, (slots, cascade, restart_identity) in sorted(rows.truncates.items()):
            places = tuple(tables.setdefault(self._tables[slot], len(tables)) for slot in slots)
            truncates.append(
                Truncate(row_number=row, tables=places, cascade=cascade, restart_identity=restart_identity)
            )
        ddl = rows.ddls.get(0)  # a batch with a DDL has no other row
        return replace(batch, tables=tuple(tables), groups=tuple(groups), truncates=tuple(truncates), ddl=ddl)

    def _group(
        self, rows: MinedRows, chosen: NDArray[np.int64], slot: int, command: Command, tables: dict[TableVersion, int]
    ) -> RowGroup:
        table = self._tables[slot]
        is_key = np.array([column.is_key for column in table.columns], np.uint8)
        forms = np.zeros(len(table.columns), np.uint8)
        old = new = None
        if command is not Command.INSERT:
            old, found = _columns(rows, rows.old_first[chosen], rows.old_image[chosen], is_key)
            forms |= found
        if command is not Command.DELETE:
            new, found = _columns(rows, rows.new_first[chosen], np.zeros(chosen.shape[0], np.uint8), is_key)
            forms |= found
        place = tables.setdefault(self._fit(slot, table, forms), len(tables))
        return RowGroup(table=place, command=command, row_numbers=chosen.astype(np.int32), old=old, new=new)

    def _fit(self, slot: int, table: TableVersion, forms: NDArray[np.uint8]) -> TableVersion:
        """Return the table version with each column's form set according to its values.

        A column's description does not always say whether its type has a binary form; the values do.
        """
        declared = np.array([BINARY_FORM if c.is_binary else TEXT_FORM for c in table.columns], np.uint8)
        if not (forms & ~declared).any():
            return table
        if ((forms & TEXT_FORM != 0) & (forms & BINARY_FORM != 0)).any():
            raise CaptureError(
                f"values of one column of {table.qualified_name} are in text and in binary form",
                hint="this is a defect of the log decoder",
                table=table.qualified_name,
            )
        key = (slot, forms.tobytes())
        if key not in self._fitted:
            columns: tuple[Column, ...] = tuple(
                replace(column, is_binary=bool(form & BINARY_FORM)) if form else column
                for column, form in zip(table.columns, forms, strict=True)
            )
            fitted = replace(table, columns=columns)
            self._fitted[key] = replace(fitted, version=content_version(fitted))
        return self._fitted[key]


def _columns(
    rows: MinedRows, first: NDArray[np.int64], old_image: NDArray[np.uint8], is_key: NDArray[np.uint8]
) -> tuple[ColumnValues, NDArray[np.uint8]]:
    lengths, data, starts, forms = gather(
        rows.data, rows.value_offset, rows.value_length, rows.value_binary, first, old_image, is_key
    )
    return ColumnValues(lengths=lengths, data=data, starts=starts), forms


def _shifted(first: NDArray[np.int64], by: np.int64) -> NDArray[np.int64]:
    return np.where(first >= 0, first + by, first)


def _value_bytes(rows: MinedRows, columns: NDArray[np.int64]) -> int:
    """Return the bytes of all values of the rows (their value arrays may hold others' too)."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(rows.value_length, 0), dtype=np.int64)])
    total = 0
    for first in (rows.old_first, rows.new_first):
        has = first >= 0
        total += int((before[first[has] + columns[has]] - before[first[has]]).sum())
    return total


def _no_rows() -> MinedRows:
    data = np.empty(0, np.uint8)
    data.flags.writeable = False
    return MinedRows(
        data=data,
        slot=np.empty(0, np.int32),
        command=np.empty(0, np.uint8),
        old_image=np.empty(0, np.uint8),
        old_first=np.empty(0, np.int64),
        new_first=np.empty(0, np.int64),
        value_offset=np.empty(0, np.int64),
        value_length=np.empty(0, np.int32),
        value_binary=np.empty(0, np.bool_),
        value_bytes=0,
    )
