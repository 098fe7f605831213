"""Two sites that have their copies from a third one: their rows are compared in the place of an operator's word.

Job
    Where every site writes to every other one, and two of them got a table's rows from a third, nothing is to be copied
    between these two. If both have the same rows in the snapshot of one of them, that one's later changes are all that
    the other one lacks.

Worked flow
    a has 100 rows, b and c have none. The apply processes at b and c copy them from a. Then that of c's changes finds
    rows at b that are no copy of c's -> both have theirs from a -> a snapshot of c at SCN 70 of c: the same 100 rows as
    at b -> KEPT at 70. A row that a user wrote at c before is in one of the two alone: they differ, and an operator is
    asked.

What is on its way between the three makes rows differ for a moment: so they are compared again, a few times at once,
then now and then, while the operator's ways out are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from headrace.databases.table_digest import TableDigest
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, OtherCopy
    from headrace.databases.ports.copying import TableReader
    from spark_apply.copy.rounds import CopyRound, TableCopy
    from spark_apply.copy.standing import Standing

__all__ = ["EqualCopies", "Origin"]

_BYTES_MAX = 128 << 20  # of a table: it is read by one thread at each side, in some seconds
_TRIES_AT_ONCE = 5  # a second each: what is on its way has arrived then, if changes pause
_PAUSE_FACTOR = 30  # then both servers compare for a thirtieth of the time at most


class Origin(Enum):
    """Where the rows of a table's source and destination come from."""

    OTHERS = "not from one site"
    COMING = "from one site; the source does not have all of them yet"
    ONE = "from one site"


@dataclass(slots=True, kw_only=True)
class EqualCopies:
    """See the module. One thread at a time; nothing is durable: another driver compares again.

    Args:
        topology: its name.
        at_source: the records of the source's database.
        source_reader, destination_reader: of the tables.
        clock: seconds; for pauses alone.
    """

    topology: str
    at_source: DestinationDatabase
    source_reader: TableReader
    destination_reader: TableReader
    clock: Callable[[], float] = time.monotonic
    _tries: dict[TableName, int] = field(default_factory=dict)
    _due_at: dict[TableName, float] = field(default_factory=dict)

    def origin(self, each: Standing, others: Sequence[OtherCopy], size: int) -> Origin:
        """Whether rows that are at a destination, and those of its source, are copies of one third site's.

        Args:
            each: where the table stands.
            others: what others have in its destination table.
            size: of the source's table, bytes.

        Raises:
            DatabaseError: the source does not say what is there.
        """
        table = each.table
        if (
            not table.returned_by
            or table.part_of is not None
            or table.rows
            or table.transformations
            or each.occupant is not None
            or each.is_begun
            or each.is_outdated
            or each.replaced
            or size > _BYTES_MAX
            or not others
            or not all(other.is_finished and other.topology == self.topology for other in others)
        ):
            return Origin.OTHERS
        there = self.at_source.other_copies(self.topology, "", *table.source)
        if not {other.source for other in others} & {
            other.source for other in there if other.topology == self.topology
        }:
            return Origin.OTHERS
        return Origin.ONE if all(other.is_finished for other in there) else Origin.COMING

    def is_due(self, name: TableName) -> bool:
        """Whether a table is to be compared now.

        Args:
            name: at the destination.
        """
        return self.clock() >= self._due_at.get(name, 0.0)

    def are_equal(self, this: CopyRound, copy: TableCopy) -> bool:
        """Compare the rows of the source's snapshot with those that are at the destination now.

        Args:
            this: the round, under its snapshot.
            copy: of the table.

        Raises:
            DatabaseError: one of the two cannot be read.
        """
        began = self.clock()
        equal = self._there(this, copy) == self._here(copy)
        tries = self._tries[copy.key] = self._tries.get(copy.key, 0) + 1
        pause_s = _PAUSE_FACTOR * (self.clock() - began) if tries >= _TRIES_AT_ONCE else 0.0
        self._due_at[copy.key] = self.clock() + pause_s
        return equal

    def may_become_equal(self, name: TableName) -> bool:
        """Whether a table that differs is looked at again before an operator is asked.

        Args:
            name: at the destination.
        """
        return self._tries.get(name, 0) < _TRIES_AT_ONCE

    def _there(self, this: CopyRound, copy: TableCopy) -> TableDigest:
        types = dict(zip(copy.sources, copy.columns.values(), strict=True))
        plan = self.source_reader.plan(*copy.table.source, types, snapshot=this.snapshot, rows="")
        found = TableDigest()
        for piece in plan.pieces:
            with self.source_reader.open_piece(piece, snapshot=this.snapshot) as opened:
                found += opened.digest(copy.sources)
        return found

    def _here(self, copy: TableCopy) -> TableDigest:
        found = TableDigest()
        for piece in self.destination_reader.plan(*copy.key, {}, rows="").pieces:
            with self.destination_reader.open_piece(piece) as opened:
                found += opened.digest(tuple(copy.columns))
        return found
