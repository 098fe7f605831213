"""Tables whose copy was restarted, and that the source has emptied since (`spark_apply.copy.records.restarts`).

A TRUNCATE of the whole table, behind the snapshot of such a copy, replaces the copy: the table was empty then, and the
log has all its later rows (decision 71).
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
    """Return tables whose copy was restarted, and that the source has emptied since.

    With each, the SCN from which on the log has all its rows.

    Args:
        records: of the tables.
        joins: knows the TRUNCATEs in the log.
        pending: the tables that are to be copied.
    """
    found = []
    for each in pending:
        name = each.table.destination
        since = records.restarts.since(name)
        # A table that holds another table's rows is never emptied. Rows that users wrote here may have reached the
        # source since the TRUNCATE: only a copy contains them.
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
    """Take a table as copied that the source has emptied.

    A piece that a task of an earlier round still has must never be written.

    Args:
        records: of the tables.
        session: of the destination, of a round that begins now.
        each: one of `emptied_tables`.
        scn: the SCN that came with it.

    Raises:
        DatabaseError: the destination table cannot be emptied.
    """
    records.restarts.end(each.table.destination)
    target = session.describe(*each.table.destination, fresh=True)
    if target is None:
        return  # the next round reports the missing table
    records.record(each.table, scn, "COPYING", replaces=each.replaced_identities)
    session.empty_tables([target])
    records.record(each.table, scn, "COPIED", digest=str(TableDigest()))
