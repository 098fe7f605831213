"""Tables whose copy began again and again, and that the source has emptied since (`spark_apply.copy.records.restarts`).

A TRUNCATE of the whole table that the log has behind the snapshot of such a copy is as good as a copy: the table was
empty then, and the log has every row that it got since (decision 71).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.databases.table_digest import TableDigest

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession
    from headrace.lcr.scn import Scn
    from spark_apply.copy.records.join_calls import JoinCalls
    from spark_apply.copy.records.standing import Standing
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["copy_of_emptied", "emptied_tables"]


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
