"""The rows of decoded log that the rules may keep, each with its table version and its name from here on.

Rows refer to tables by object number. The dictionary gives the version; the rules and the source give the name
(`headrace.redo.mining.names`). Both are decided when an object is described, or when this miner meets its first rows.
They are not decided when mining begins: a table that left the rules may never change again, and would hold up all
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import Command
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.redo.mining.assembly import MinedRows
from headrace.redo.mining.mining_kernels import DISCARDED_ROWS, ERROR, KEPT_BYTES, KEPT_ROWS, UNKNOWN_OBJECT, classify
from headrace.rules.transformations.transformation import TransformationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.base.errors import TableLeftRules
    from headrace.databases.ports import DecodedChunk
    from headrace.lcr.batch import TableVersion
    from headrace.redo.dictionary import KnownTable
    from headrace.redo.mining.ddl_log import DdlLog, DdlRows
    from headrace.redo.mining.mined_tables import MinedTables
    from headrace.redo.mining.names import TableNames
    from headrace.redo.mining.redo_scan import RedoScan

__all__ = ["KeptRows", "Prefilter"]

_NO_ROWS = np.zeros(0, np.uint8)
_Truncates = dict[int, tuple[tuple[int, ...], bool, bool]]


# Not frozen, which would make each one three microseconds slower: there is one per chunk.
@dataclass(slots=True, kw_only=True)
class KeptRows:
    """The result of prefiltering a chunk.

    Args:
        found: int64[6], counts and the error, if any, from `headrace.redo.mining.mining_kernels.classify`.
        row_slot: int32, shape (rows,): the place of each row's table version.
        kept: int64, shape (rows,): the first `found[KEPT_ROWS]` are the kept rows, ascending.
        per_transaction: int64, shape (transactions,): kept rows of each.
        truncates: kept TRUNCATEs by row: places of the tables, whether it cascades and restarts identities.
        ddl: the rows of the log of DDL; None: there are none.
    """

    found: NDArray[np.int64]
    row_slot: NDArray[np.int32]
    kept: NDArray[np.int64]
    per_transaction: NDArray[np.int64]
    truncates: _Truncates
    ddl: DdlRows | None

    @property
    def count(self) -> int:
        """Number of kept rows."""
        return int(self.found[KEPT_ROWS])

    @property
    def discarded(self) -> int:
        """Number of discarded rows."""
        return int(self.found[DISCARDED_ROWS])


class Prefilter:
    """The prefilter of one miner.

    Args:
        scan: scan of the redo, with the dictionary in force.
        tables: tables that the miner has met.
        names: their names from here on.
        ddl_log: the source's log of DDL.
    """

    def __init__(self, scan: RedoScan, tables: MinedTables, names: TableNames, ddl_log: DdlLog) -> None:
        self._scan, self._tables, self._names, self._ddl_log = scan, tables, names, ddl_log
        self._unmet: set[int] = set()  # objects described before the restart point whose rows were not met yet
        self._checked: set[int] = set()  # places of versions whose transformation has not lost a column
        self._refused: TransformationError | None = None

    @property
    def left(self) -> TableLeftRules | TransformationError | None:
        """A table that left the rules, or whose transformation lost a column: nothing may be mined beyond it.

        What is before it is given first. So a corrected transformation does not meet the old columns.
        """
        return self._names.left or self._refused

    def begin(self) -> None:
        """Note that reading begins: everything in the dictionary was described before."""
        described = self._scan.dictionary.current_tables()
        self._unmet = {known.table.object_number for known in described if not self._ddl_log.take(known)}

    def describe(self, descriptions: Iterable[TableVersion], scn: Scn) -> None:
        """Take in the table descriptions of a chunk, before its rows.

        Args:
            descriptions: descriptions in the log's form.
            scn: progress of the redo where they were found.
        """
        self._names.look_again()
        for description in descriptions:
            known = self._scan.dictionary.describe(description, scn)
            if not self._ddl_log.take(known):
                self._use(known)

    def find(
        self, chunk: DecodedChunk, data: NDArray[np.uint8], dropped: NDArray[np.bool_], tag: NDArray[np.int64]
    ) -> KeptRows:
        """Find the rows to keep; if `left` is set afterwards, ignore the result.

        Args:
            chunk: the decoded chunk.
            data: the bytes to which it refers.
            dropped: bool, shape (transactions,): mined before.
            tag: int64, shape (transactions,): place of each one's tag, -1 for NULL.
        """
        row_count = chunk.command.shape[0]
        row_slot, kept = np.empty(row_count, np.int32), np.empty(row_count, np.int64)
        per_transaction = np.zeros(dropped.shape[0], np.int64)
        ddl = self._ddl_log.find(chunk, data, dropped, tag)
        for is_known in (False, True):
            table_keep, truncates = self._truncates(chunk, tag, dropped)
            if ddl is not None:
                table_keep = table_keep if chunk.truncates else np.zeros(row_count, np.uint8)
                table_keep[list(ddl.changes)] = 1
            found = np.zeros(6, np.int64)
            classify(
                chunk.command if ddl is None else ddl.command,
                chunk.object_number,
                chunk.old_first,
                chunk.new_first,
                chunk.value_length,
                chunk.first_row,
                dropped.astype(np.uint8),
                tag,
                *self._tables.objects(),
                table_keep,
                row_slot,
                kept,
                per_transaction,
                found,
            )
            if is_known or found[ERROR] != UNKNOWN_OBJECT or not self._unmet:
                break
            taken = ~np.repeat(dropped, np.diff(chunk.first_row)) & (chunk.command != Command.TRUNCATE)
            for number in self._unmet.intersection(np.unique(chunk.object_number[taken]).tolist()):
                self._meet(number)
        self._check_columns(row_slot[kept[: found[KEPT_ROWS]]])
        return KeptRows(
            found=found, row_slot=row_slot, kept=kept, per_transaction=per_transaction, truncates=truncates, ddl=ddl
        )

    def _check_columns(self, places: NDArray[np.int32]) -> None:
        """Refuse kept rows of a version whose transformation has lost a column; rows that were mined before do not count.

        Args:
            places: of the rows' table versions.
        """
        if not self._tables.are_transformed:
            return
        for place in {*np.unique(places).tolist()} - self._checked - {-1}:
            try:
                self._tables.must_know(self._tables.versions[place])
            except TransformationError as error:
                self._refused = error
            else:
                self._checked.add(place)

    def rows(self, chunk: DecodedChunk, data: NDArray[np.uint8], found: KeptRows) -> MinedRows | None:
        """Return the kept rows, without the log bytes of the others; None: no rows.

        Args:
            chunk: the decoded chunk.
            data: the bytes to which it refers.
            found: result of `find` for the chunk.
        """
        if not found.count:
            return None
        kept, truncates = found.kept[: found.count], found.truncates
        slot = found.row_slot[kept]
        place = {int(row): number for number, row in enumerate(kept)} if truncates else {}
        ddls = {} if found.ddl is None else {int(np.searchsorted(kept, row)): x for row, x in found.ddl.changes.items()}
        rows = MinedRows(
            data=data,
            slot=slot,
            command=(chunk.command if found.ddl is None else found.ddl.command)[kept],
            old_image=chunk.old_image[kept],
            old_first=chunk.old_first[kept],
            new_first=chunk.new_first[kept],
            value_offset=chunk.value_offset,
            value_length=chunk.value_length,
            value_binary=chunk.value_binary,
            value_bytes=int(found.found[KEPT_BYTES]),
            truncates={place[row]: what for row, what in truncates.items() if row in place},
            ddls=ddls,
        )
        if ddls:
            rows.new_first[list(ddls)] = -1  # `ddls` has all that is needed of these rows
        columns = np.array([len(table.columns) for table in self._tables.versions] + [0], np.int64)[slot]
        return rows.without_waste(columns, has_all_rows=not ddls and kept.shape[0] == found.row_slot.shape[0])

    def _truncates(
        self, chunk: DecodedChunk, tag: NDArray[np.int64], dropped: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint8], _Truncates]:
        """Return which TRUNCATE rows are kept, and the tables (places) that each truncates."""
        if not chunk.truncates:
            return _NO_ROWS, {}
        keep = np.zeros(chunk.command.shape[0], np.uint8)
        kept: _Truncates = {}
        for row, (objects, cascade, restart_identity) in chunk.truncates.items():
            transaction = int(np.searchsorted(chunk.first_row, row, side="right")) - 1
            if dropped[transaction]:
                continue
            order_scn = Scn(int(chunk.order_scn[transaction]))
            slots = self._truncated(objects, order_scn, int(tag[transaction]))
            if slots:
                keep[row] = 1
                kept[row] = (slots, cascade, restart_identity)
        return keep, kept

    def _truncated(self, objects: tuple[int, ...], order_scn: Scn, tag: int) -> tuple[int, ...]:
        """Return places of the tables that a TRUNCATE of `objects` means and the rules keep; `tag`: place, -1 for NULL.

        The source truncates a partitioned table by truncating its partitions. If all of them are in `objects`, it is
        the whole table. Otherwise each one is a TRUNCATE of that partition: truncating the whole table would lose rows.
        """
        dictionary = self._scan.dictionary
        slots: list[int] = []
        for number in objects:
            known = self._meet(number)
            if known is None or not self._tables.keeps(known.table)[tag]:
                continue
            table = known.table
            if known.is_partition and not dictionary.covers_all_partitions(number, objects):
                table = dictionary.truncated(known, order_scn)
            if table.partition is not None or not any(
                _same_name(self._tables.versions[other], table) for other in slots
            ):
                slots.append(self._tables.place(table))
        return tuple(slots)

    def _meet(self, number: int) -> KnownTable | None:
        """Return the table version in force of an object whose rows are next, under its name from here on."""
        known = self._scan.dictionary.current(ObjectNumber(number))
        if known is None or number not in self._unmet:
            return known
        self._use(known)
        return self._scan.dictionary.current(ObjectNumber(number))

    def _use(self, known: KnownTable) -> None:
        """Assign this version to an object's rows from now on."""
        resolved = self._names.resolve(known)
        self._unmet.discard(known.table.object_number)
        if resolved is not known:
            self._scan.dictionary.rename(resolved)
        self._tables.use(resolved.table)


def _same_name(one: TableVersion, other: TableVersion) -> bool:
    return (one.owner, one.name) == (other.owner, other.name)
