"""Copies that begin again for no fault of the table: something rewrote it at the source, or a task died with a piece.

A TRUNCATE of the whole table that the log has behind the snapshot of such a copy is as good as a copy: the table was
empty then, and the log has every row that it got since (decision 71). So the queue keeps what is behind the first
snapshot in a row. What goes on without one makes the table FAILED.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.databases.table_digest import TableDigest

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession
    from headrace.lcr.scn import Scn
    from headrace.lcr.table_name import TableName
    from spark_apply.copy.records import TableRecords
    from spark_apply.copy.standing import Standing
    from spark_apply.driver.joining import JoinCalls

__all__ = ["LET_IT_REST", "RESTARTS_MAX", "TableRestarts", "copy_of_emptied", "emptied_tables"]

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


def emptied_tables(records: TableRecords, joins: JoinCalls, pending: Iterable[Standing]) -> list[tuple[Standing, Scn]]:
    """Tables whose copy was begun in vain, and that the source has emptied since.

    And the SCN from which on the log has all of their rows.

    Args:
        records: of the tables.
        joins: knows what the log says.
        pending: the tables that are to be copied.
    """
    found = []
    for each in pending:
        name = each.table.destination
        since = records.restarts.since(name)
        # A table with another one's rows is never emptied. What users wrote here may be at the source since the
        # TRUNCATE: only a copy has it.
        if (
            since is None
            or not each.is_begun
            or each.occupant is not None
            or each.table.returned_by
            or records.others(each.table)
        ):
            continue
        scn = joins.emptied_scn(name)
        if scn is not None and scn >= since:
            found.append((each, scn))
    return found


def copy_of_emptied(records: TableRecords, session: DestinationSession, each: Standing, scn: Scn) -> None:
    """Take a table for copied that the source has emptied.

    What a task of an earlier round still has in hand must never be written.

    Args:
        records: of the tables.
        session: of the destination, of a round that begins now.
        each: one of `emptied_tables`.
        scn: with it.

    Raises:
        DatabaseError: the destination table cannot be emptied.
    """
    records.restarts.end(each.table.destination)
    target = session.describe(*each.table.destination, fresh=True)
    if target is None:
        return  # the next round says so
    records.record(each.table, scn, "COPYING", replaces=each.replaced_identities)
    session.empty_tables([target])
    records.record(each.table, scn, "COPIED", digest=str(TableDigest()))
