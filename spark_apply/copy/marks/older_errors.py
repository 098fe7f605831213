"""Error transactions that may predate an ATTACH PARTITION and contain rows of that partition (decisions 75 and 77).

If they were executed after the partition was copied, they would overwrite its values with old ones. The time of the
ATTACH is unknown, but it was before a look saw the partition. So a transaction committed after that look is not older.
Neither is one that changes rows of the partition itself, unless the partition was part of the table before.

The changes of an error transaction are read once, and known as long as it is in the queue.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from headrace.base.errors import ProtocolError
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import ErrorRecords, ErrorTransaction
    from headrace.lcr.scn import Scn
    from spark_apply.copy.marks.row_marks import MarkedTable

__all__ = ["OlderErrors"]

_NAMED_MAX = 5  # error transactions in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """The partitions (numbers) of one table in which an error transaction changes rows."""

    table: TableName
    table_number: int
    parts: frozenset[int]


@dataclass(slots=True, kw_only=True)
class OlderErrors:
    """Finds error transactions that may be older than an ATTACH. One thread at a time.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        destination: has the error queue.
    """

    topology: str
    apply: str
    destination: ErrorRecords
    _queue: tuple[ErrorTransaction, ...] | None = None
    # by number and edits; None: unreadable
    _changed: dict[tuple[int, int], tuple[_Changed, ...] | None] = field(default_factory=dict)

    def look_again(self) -> None:
        """Have the queue listed again at the next use."""
        self._queue = None

    def first_of(
        self, table: MarkedTable, *, attached: Collection[str], never_before: Collection[str], seen: Scn
    ) -> tuple[int, ...]:
        """Return the first error transactions that change a table and may be older than partitions of it.

        Args:
            table: at the destination.
            attached: numbers of the partitions.
            never_before: those that were never part of the table before.
            seen: they were attached before this SCN.

        Returns:
            Their numbers; empty: no such transaction.

        Raises:
            DatabaseUnavailable: the destination does not answer.
        """
        if self._queue is None:
            self._queue = self.destination.errors(self.topology, self.apply)
            known = {(each.number, each.edits) for each in self._queue}
            self._changed = {key: found for key, found in self._changed.items() if key in known}
        new, proof = frozenset(map(int, attached)), frozenset(map(int, never_before))
        found = (
            each.number
            for each in self._queue
            if each.commit_scn <= seen and self._may_be_older(each, table, new, proof)
        )
        return tuple(islice(found, _NAMED_MAX))

    def _may_be_older(
        self, error: ErrorTransaction, table: MarkedTable, new: frozenset[int], proof: frozenset[int]
    ) -> bool:
        key = error.number, error.edits
        if key not in self._changed:
            self._changed[key] = self._read(error.number)
        if (changed := self._changed[key]) is None:
            return True
        parts = {
            number
            for each in changed
            if each.table_number in table.numbers or each.table == table.destination
            for number in each.parts
        }
        return bool(parts - new) and not parts & proof

    def _read(self, number: int) -> tuple[_Changed, ...] | None:
        from protos import codec  # needs numpy, which looking at marks alone does not

        found: dict[tuple[TableName, int], set[int]] = {}
        for data in self.destination.error_batches(number):
            try:
                batch = codec.decode(data)
            except ProtocolError:
                return None
            used = {group.table for group in batch.groups}
            # Not of a whole table: `spark_apply.tables.copied.truncated_before` refuses that at execution.
            used |= {
                table
                for truncate in batch.truncates
                for table in truncate.tables
                if batch.tables[table].partition is not None
            }
            for version in (batch.tables[table] for table in used):
                found.setdefault((TableName.of(version), int(version.table_number)), set()).add(
                    int(version.object_number)
                )
        return tuple(
            _Changed(table=table, table_number=number, parts=frozenset(parts))
            for (table, number), parts in found.items()
        )
