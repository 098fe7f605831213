"""Copies that restart for no fault of the table: the source rewrote it, or a task died with a piece.

The queue keeps the changes behind the first snapshot in a row, because a TRUNCATE behind it ends the copies
(`spark_apply.copy.records.emptied`). If restarts continue without a TRUNCATE, the table becomes FAILED.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn
    from headrace.lcr.table_name import TableName

__all__ = ["LET_IT_REST", "RESTARTS_MAX", "TableRestarts"]

# A killed task or a VACUUM FULL costs a copy or two. More restarts load the source for nothing, so the operator must
# know.
RESTARTS_MAX = 5
LET_IT_REST = (
    "If the source rewrites it each time, do not run such statements there until it is copied: TRUNCATE of some of its"
    " partitions, VACUUM FULL, CLUSTER, an ALTER TABLE that rewrites. The copy is retried every few seconds, and the"
    " other tables continue"
)


@dataclass(frozen=True, slots=True)
class _Restarts:
    count: int
    since_scn: Scn


@dataclass(slots=True)
class TableRestarts:
    """Tables whose last copy must be repeated, by name at the destination.

    Nothing is durable: the next driver counts from zero.
    """

    _tables: dict[TableName, _Restarts] = field(default_factory=dict)

    def note(self, table: TableName, scn: Scn) -> int:
        """Note that a copy must be repeated; return how many times in a row.

        Args:
            table: its name at the destination.
            scn: of the copy's snapshot.
        """
        before = self._tables.get(table)
        count = 1 if before is None else before.count + 1
        # For a table shown as FAILED, the queue keeps only the changes behind the last snapshot.
        since = scn if before is None or count > RESTARTS_MAX else before.since_scn
        self._tables[table] = _Restarts(count, since)
        return count

    def end(self, table: TableName) -> None:
        """Forget a table that is copied, or cannot be copied for another reason."""
        self._tables.pop(table, None)

    def keep(self, tables: Collection[TableName]) -> None:
        """Forget all tables but these."""
        self._tables = {name: each for name, each in self._tables.items() if name in tables}

    def since(self, table: TableName) -> Scn | None:
        """Return from where on a TRUNCATE ends the copy of a table; None: its copy was not restarted."""
        found = self._tables.get(table)
        return None if found is None else found.since_scn

    @property
    def needed_scns(self) -> tuple[Scn, ...]:
        """The SCNs behind which the queue must keep changes, one for each table."""
        return tuple(each.since_scn for each in self._tables.values())
