"""Copies that begin again for no fault of the table: something rewrote it at the source, or a task died with a piece.

The queue keeps what is behind the first snapshot in a row: a TRUNCATE behind it ends the copies (`spark_apply.copy.records.emptied`).
What goes on without one makes the table FAILED.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn
    from headrace.lcr.table_name import TableName

__all__ = ["LET_IT_REST", "RESTARTS_MAX", "TableRestarts"]

# A killed task or a VACUUM FULL costs a copy or two. What goes on takes the source's time, and an operator must know of
# it.
RESTARTS_MAX = 5
LET_IT_REST = (
    "If it is rewritten each time, let nothing of that kind run at the source until it is copied: TRUNCATE of some of"
    " its partitions, VACUUM FULL, CLUSTER, an ALTER TABLE that rewrites. It is tried again every few seconds, and the"
    " others go on"
)


@dataclass(frozen=True, slots=True)
class _Restarts:
    count: int
    since_scn: Scn


@dataclass(slots=True)
class TableRestarts:
    """Tables whose last copy is to be made again, by name at the destination.

    Nothing is durable: another driver counts anew.
    """

    _tables: dict[TableName, _Restarts] = field(default_factory=dict)

    def note(self, table: TableName, scn: Scn) -> int:
        """Note that a copy is to be made again; returns how many in a row.

        Args:
            table: its name at the destination.
            scn: of the copy's snapshot.
        """
        before = self._tables.get(table)
        count = 1 if before is None else before.count + 1
        # Of a table that is shown as FAILED the queue keeps what is behind the last snapshot alone.
        since = scn if before is None or count > RESTARTS_MAX else before.since_scn
        self._tables[table] = _Restarts(count, since)
        return count

    def end(self, table: TableName) -> None:
        """The table is copied, or cannot be for another reason."""
        self._tables.pop(table, None)

    def keep(self, tables: Collection[TableName]) -> None:
        """Forget all tables but these."""
        self._tables = {name: each for name, each in self._tables.items() if name in tables}

    def since(self, table: TableName) -> Scn | None:
        """From where on a TRUNCATE ends the copy of a table; None: no copy of it was begun in vain."""
        found = self._tables.get(table)
        return None if found is None else found.since_scn

    @property
    def needed_scns(self) -> tuple[Scn, ...]:
        """What the queue must keep, one for each table."""
        return tuple(each.since_scn for each in self._tables.values())
