"""Tables that are emptied to be copied again, and whose changes return to their source.

Users wrote rows here, too, which are removed with those of the copy and are not sent again. So the source must have
applied them: the table is emptied, then the source is waited for, and only then the snapshot is taken, which has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from spark_apply.copy.pieces.rounds import is_still_empty

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession
    from spark_apply.copy.pieces.rounds import CopyRound
    from spark_apply.copy.ways.both_ways import BothWays

__all__ = ["ReturnedTables"]

# A source that was not behind has applied later changes in this time; one that is away is asked again every few
# seconds.
_RETURN_S = 10.0
_RETURN_POLL_S = 0.1


@dataclass(slots=True, kw_only=True)
class ReturnedTables:
    """Empties returning tables. One thread at a time; nothing is durable: the next driver empties them again.

    Args:
        both_ways: knows what the source has applied.
        should_end: asked while it waits.
    """

    both_ways: BothWays
    should_end: Callable[[], bool]
    # SCN of this site that the source must have applied before it is copied from
    _awaited: dict[TableName, Scn] = field(default_factory=dict)
    # `TableCopy.mark` of the tables that are emptied
    _marks: dict[TableName, str] = field(default_factory=dict)

    def empty(self, this: CopyRound, session: DestinationSession) -> None:
        """Empty the returning tables of a round, and wait until the source has applied earlier changes from here.

        A table whose source is too late waits for another round.

        Args:
            this: the round, before its snapshot.
            session: of the destination.

        Raises:
            DatabaseUnavailable: a database does not answer.
        """
        tables = {key: this.copies[key] for key in this.to_empty if this.copies[key].table.returned_by}
        self._awaited = {key: scn for key, scn in self._awaited.items() if key in tables}
        self._marks = {key: mark for key, mark in self._marks.items() if key in tables}
        if lacking := tables.keys() - self._awaited.keys():
            # If the source is behind, wait before rows are removed: users read them meanwhile.
            self._awaited |= dict.fromkeys(lacking, self.both_ways.position())
        waits, emptied = (
            self.both_ways.awaited_returns({key: (copy.table, self._awaited[key]) for key, copy in tables.items()}),
            [],
        )
        for key, why in waits.items():
            _take_out(this, key, why)
        for key, copy in tables.items():
            if key in waits:
                continue
            del self._awaited[key]
            this.to_empty.discard(key)
            this.to_find_empty.add(key)
            # If it is empty since an earlier round, the source has the rows removed then. Waiting again would never end
            # with a source that is always behind.
            was_emptied, copy.mark = key in self._marks, self._marks.pop(key, "")
            if not (was_emptied and is_still_empty(session, copy)):
                with this.failing_alone(copy):
                    this.empty(session, copy)
                emptied.append(key)
        emptied = [key for key in emptied if key in this.copies]
        if not emptied:
            return
        scn, deadline = self.both_ways.position(), time.monotonic() + _RETURN_S
        wanted = {key: (tables[key].table, scn) for key in emptied}
        while (
            (waits := self.both_ways.awaited_returns(wanted)) and time.monotonic() < deadline and not self.should_end()
        ):
            time.sleep(_RETURN_POLL_S)
        for key, why in waits.items():
            _take_out(this, key, why)
            self._awaited[key], self._marks[key] = scn, tables[key].mark


def _take_out(this: CopyRound, key: TableName, why: str) -> None:
    """Take a table out of a round that must wait until its source has applied what was written here."""
    this.waits[key] = why
    del this.copies[key]
    this.to_empty.discard(key)
