"""Writes that an apply server's session executes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports.conflicts import WriteTimes
    from headrace.databases.ports.tables import DestinationTable
    from headrace.lcr.batch import Command, Partition, TableVersion
    from headrace.lcr.values import ColumnValues

__all__ = ["TruncatedTable", "Write"]


@dataclass(frozen=True, kw_only=True)
class Write:
    """Rows of one table, one command and one set of columns, written as one set.

    Args:
        table: the destination table.
        version: the source's description of the values' columns.
        command: INSERT, UPDATE, DELETE. (TRUNCATE goes through `DestinationSession.truncate`.)
        old: values that find and check the row, all columns of `version`; None for INSERT.
        new: values to write, all columns of `version`; None for DELETE.
        match_columns: positions in `version.columns` that find the row, taken from `old`.
        compare_columns: positions whose old value must equal the row's.
        set_columns: positions to write (INSERT: to insert).
        paired: several rows may have these values (a NULL in the key): each row of the write changes at most one row.
        times: change times of its rows, for a table with latest_timestamp. A row of the write then finds no row that
            was changed later. It is noted as the last change of its key, unless a later one is.
    """

    table: DestinationTable
    version: TableVersion
    command: Command
    old: ColumnValues | None
    new: ColumnValues | None
    match_columns: tuple[int, ...]
    compare_columns: tuple[int, ...]
    set_columns: tuple[int, ...]
    paired: bool = False
    times: WriteTimes | None = None

    @property
    def row_count(self) -> int:
        """Rows in the write."""
        values = self.new if self.new is not None else self.old
        return 0 if values is None else values.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedTable:
    """A table to truncate, or only one partition of the source's table (None: the whole table)."""

    table: DestinationTable
    partition: Partition | None = None
