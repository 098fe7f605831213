"""The source's log of DDL in redo: rows of one of Headrace's own tables, which become DDL LCRs.

A source inserts a record into that table in the transaction of the DDL (`headrace.lcr.ddl`). So redo has it at its place
among the transaction's rows, and needs no record type of its own. No row of the table becomes a row LCR: an INSERT
becomes a DDL LCR or is discarded, as are the DELETEs that trim the table.

The table is known by its name when redo describes it. While no table of that name was described, nothing here looks at
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import Command
from headrace.lcr.ddl import DDL_LOG, DdlChange, ddl_of, failed_ddl_of
from headrace.redo.mining.mining_kernels import DDL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import DecodedChunk
    from headrace.redo.dictionary import KnownTable
    from headrace.redo.mining.mined_tables import MinedTables
    from headrace.rules.evaluation import RuleEvaluation

__all__ = ["DdlLog", "DdlRows"]

_CONTENT = "content"  # column of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlRows:
    """The rows of a chunk that belong to the log of DDL.

    Args:
        command: uint8, shape (rows,): the chunk's commands, with `DDL` for these rows.
        changes: the DDL changes that the rules keep, by row.
    """

    command: NDArray[np.uint8]
    changes: dict[int, DdlChange]


class DdlLog:
    """The log of DDL of one miner's source.

    Args:
        tables: the miner's tables and tags.
        rules: the capture process's rules.
        is_wanted: they take the DDL of some table; otherwise no record is read.

    Attributes:
        failed: statements whose effect is not in the log, so that no LCR has it.
        last_failed: the last one, and why; empty: none.
    """

    def __init__(self, tables: MinedTables, rules: RuleEvaluation, *, is_wanted: bool) -> None:
        self._tables, self._rules, self._is_wanted = tables, rules, is_wanted
        self._places: dict[int, int] = {}  # object number -> place of the content among its columns; -1: there is none
        self.failed = 0
        self.last_failed = ""

    def take(self, known: KnownTable) -> bool:
        """Take in a table description if it describes the log.

        Args:
            known: the described table.

        Returns:
            Whether it is the log. If so, no row of it may become a row LCR.
        """
        table = known.table
        if known.is_partition or (table.owner, table.name) != DDL_LOG:
            if self._places:
                self._places.pop(table.object_number, None)  # a number that is used again
            return False
        names = [column.name for column in table.columns]
        self._places[table.object_number] = names.index(_CONTENT) if _CONTENT in names else -1
        return True

    def find(
        self, chunk: DecodedChunk, data: NDArray[np.uint8], dropped: NDArray[np.bool_], tag: NDArray[np.int64]
    ) -> DdlRows | None:
        """Find the log's rows in a chunk; None: it has none.

        Args:
            chunk: the decoded chunk.
            data: the bytes to which it refers.
            dropped: bool, shape (transactions,): mined before.
            tag: int64, shape (transactions,): place of each one's tag, -1 for NULL.
        """
        rows = [
            row
            for number in self._places
            for row in np.flatnonzero(chunk.object_number == number).tolist()
            if chunk.command[row] != Command.TRUNCATE
        ]
        if not rows:
            return None
        command = chunk.command.copy()
        command[rows] = DDL
        changes: dict[int, DdlChange] = {}
        for row in sorted(rows):
            transaction = int(np.searchsorted(chunk.first_row, row, side="right")) - 1
            if not self._is_wanted or dropped[transaction] or chunk.command[row] != Command.INSERT:
                continue
            change, place = self._read(self._content(chunk, data, row)), int(tag[transaction])
            value = None if place < 0 else self._tables.tags[place].value
            if change is not None and self._rules.keeps_ddl(*change.base_table, tag=value):
                changes[row] = self._rules.within(change, tag=value)
        return DdlRows(command=command, changes=changes)

    def _content(self, chunk: DecodedChunk, data: NDArray[np.uint8], row: int) -> bytes:
        """Return the record in a row; empty: it has none, which `_read` takes for a damaged one."""
        place = self._places[int(chunk.object_number[row])]
        value = int(chunk.new_first[row]) + place
        if place < 0 or value >= chunk.value_length.shape[0]:
            return b""
        start, length = int(chunk.value_offset[value]), int(chunk.value_length[value])
        return data[start : start + max(0, length)].tobytes()

    def _read(self, content: bytes) -> DdlChange | None:
        """Return the change in a record; None: it is no change. A statement whose effect is not known is counted."""
        change = ddl_of(content)
        if change is None and (failed := failed_ddl_of(content)) is not None:
            self.failed += 1
            self.last_failed = str(failed)
        return change
