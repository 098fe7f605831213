"""One row LCR's values, as far as the log carries them: the input of a conflict handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.databases.ports import Write
from headrace.lcr.batch import Column, Command, LcrBatch, TableVersion
from headrace.lcr.cells import Cells
from headrace.lcr.values import ABSENT, NULL, UNCHANGED, ColumnValues

__all__ = ["CHARACTERS_MAX", "RowImages", "ShowValue", "named", "show_raw", "shown"]

ShowValue = Callable[[Column, bytes], str]
"""Formats one value as text."""

CHARACTERS_MAX = 200  # of one value in a listing


def show_raw(column: Column, value: bytes) -> str:
    """Show a value as the source sent it: text unchanged, a binary form as hexadecimal. A `ShowValue`.

    Args:
        column: tells the form of the bytes.
        value: its bytes; not NULL.
    """
    return f"\\x{value.hex()}" if column.is_binary else value.decode("utf-8", "replace")


def shown(column: Column, value: bytes | None, show: ShowValue) -> str:
    """Format a value for a listing, "column=value".

    Args:
        column: its column.
        value: its bytes; None: NULL.
        show: formats it.
    """
    return named(column.name, "NULL" if value is None else show(column, value))


def named(name: str, text: str) -> str:
    """Format a value that is text already for a listing, "column=value".

    Args:
        name: of its column.
        text: of any length; cut at `CHARACTERS_MAX`.
    """
    return f"{name}={text[:CHARACTERS_MAX]}"


@dataclass(frozen=True, kw_only=True)
class RowImages:
    """The old and the new values that the log has of a row, by position in its version; None: NULL.

    A large value that an UPDATE did not touch counts as a new value too if the log has the old one.

    Args:
        version: of the table.
        command: INSERT, UPDATE or DELETE.
        old: old values; empty for an INSERT.
        new: new values; empty for a DELETE.
        transaction_id, commit_scn: of the source transaction.
        position: 0-based, in the transaction.
    """

    version: TableVersion
    command: Command
    old: Mapping[int, bytes | None]
    new: Mapping[int, bytes | None]
    transaction_id: int
    commit_scn: int
    position: int

    @classmethod
    def of(cls, batch: LcrBatch, number: int) -> RowImages:
        """Return the values of a row of a batch.

        Args:
            batch: the batch.
            number: of the row; not a TRUNCATE's.
        """
        groups, within = batch.row_places
        place, row = int(groups[number]), int(within[number])
        group, cells = batch.groups[place], batch.cells[place]
        version, found = batch.tables[group.table], batch.transactions
        old, new = _carried(cells[0], row), _carried(cells[1], row)
        if group.new is not None:
            new |= {place: old[place] for place in old if int(group.new.lengths[place, row]) == UNCHANGED}
        transaction = int(np.searchsorted(found.first_row, number, side="right")) - 1
        first = int(found.first_row[transaction])
        return cls(
            version=version,
            command=group.command,
            old=old,
            new=new,
            transaction_id=int(found.transaction_id[transaction]),
            # The commit SCN of an open part is unknown; the order SCN is just below it.
            commit_scn=int(found.commit_scn[transaction] or found.order_scn[transaction]),
            position=number - first + (batch.first_position if transaction == 0 else 0),
        )

    @cached_property
    def changed(self) -> frozenset[int]:
        """Positions of the new values that differ from the old ones or have no old one."""
        return frozenset(
            place for place, value in self.new.items() if place not in self.old or self.old[place] != value
        )

    def values_of(self, values: Mapping[int, bytes | None]) -> ColumnValues:
        """Return one row of these values; all other columns are ABSENT."""
        columns = range(len(self.version.columns))
        lengths = np.array(
            [[ABSENT if p not in values else NULL if (v := values[p]) is None else len(v)] for p in columns], np.int32
        )
        data = b"".join(values.get(p) or b"" for p in columns)
        starts = np.zeros(len(columns) + 1, np.int64)
        np.cumsum(np.maximum(lengths[:, 0], 0), out=starts[1:])
        return ColumnValues(lengths=lengths.reshape(-1, 1), data=np.frombuffer(data, np.uint8), starts=starts)

    def old_values(self, write: Write) -> ColumnValues | None:
        """Return all old values, and those that find the row, which the log may have as new ones only.

        Args:
            write: of the row, as it was planned.
        """
        if write.old is None:
            return None
        found = {
            place: value if isinstance(value := write.old.value(place, 0), bytes) else None
            for place in write.match_columns
        }
        return self.values_of({**found, **self.old})

    def new_values(self) -> ColumnValues | None:
        """Return all new values; None for a DELETE."""
        return None if self.command is Command.DELETE else self.values_of(self.new)

    def texts(self, values: Mapping[int, bytes | None], show: ShowValue) -> tuple[str, ...]:
        """Format values as text, "column=value"."""
        return tuple(
            shown(column, values[place], show) for place, column in enumerate(self.version.columns) if place in values
        )


def _carried(cells: Cells | None, row: int) -> dict[int, bytes | None]:
    if cells is None:
        return {}
    found: dict[int, bytes | None] = {}
    for place, (offset, length) in enumerate(
        zip(cells.offsets[:, row].tolist(), cells.lengths[:, row].tolist(), strict=True)
    ):
        if length >= NULL:
            found[place] = None if length == NULL else cells.data[offset : offset + length].tobytes()
    return found
