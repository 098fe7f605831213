"""Why a table cannot be copied: it does not fit the destination's, or rows are there that are not ours to remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from databases.copying import copied_columns
from rules.transformation import AddColumn, TransformationError
from spark_apply.copy.rounds import TableCopy
from spark_apply.copy.standing import rename_statement
from streams.scn import Scn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from databases.copying import TableReader
    from databases.ports import DestinationSession, DestinationTable, OtherCopy, SourceTable
    from spark_apply.copy.standing import Standing
    from streams.table_name import TableName

__all__ = ["awaited", "has_no_rows", "not_copied_beside", "refused", "table_copy"]


def table_copy(
    session: DestinationSession, each: Standing, facts: Mapping[TableName, SourceTable],
) -> tuple[TableCopy, str]:
    """What is to be copied and where to.

    Args:
        session: of the destination.
        each: where the table stands.
        facts: the source's tables, by their names there.

    Returns:
        The copy, and why it cannot be made; empty: it can.

    Raises:
        DatabaseError: the destination cannot describe the table.
    """
    table = each.table
    there, target = facts.get(table.source), session.describe(*table.destination, fresh=True)
    copy = TableCopy(table, {}, Scn(0), 0 if there is None else there.row_estimate, target, each.replaced_identities)
    if there is None:
        return copy, "the source has no such table any more"
    if target is None:
        return copy, "the destination has no such table: create it there, with the same columns"
    try:
        arriving = table.columns(there.columns)
    except TransformationError as error:
        return copy, f"{error.message}: {error.hint}"
    writable = set(copied_columns(target))
    missing = [name for name, _ in arriving if name not in {column.name for column in target.columns}]
    if missing:
        return copy, f"the destination table lacks columns of the source's: {', '.join(missing)}"
    types = {column.name: column.type_name for column in target.columns}
    copy.columns = {name: types[name] for name, origin in arriving if name in writable and isinstance(origin, str)}
    copy.sources = tuple(origin for name, origin in arriving if name in copy.columns and isinstance(origin, str))
    copy.added = tuple(origin for name, origin in arriving if name in writable and isinstance(origin, AddColumn))
    if not copy.columns:
        return copy, "it has no column that can be copied: add one at both sides, or drop the table at the source"
    return copy, _obstacle_of_added(copy, target)


def _obstacle_of_added(copy: TableCopy, target: DestinationTable) -> str:
    """Why columns that a transformation adds cannot be what the destination has them as; empty: they can."""
    added = {each.name for each in copy.added}
    keys = (tuple(target.columns[place].name for place in key) for key in target.unique_keys)
    if shared := next((key for key in keys if added & set(key)), ()):
        return (
            f"the unique key ({', '.join(shared)}) has a column that a transformation adds. Rows of several sources in one table are not built"
            " yet: give each source a table of its own, and a key of columns that come from the source"
        )
    if not target.identifying_keys and any(each.is_now for each in copy.added):
        return "rows of a table without a key are found by all their values, and a transformation adds the time: give the destination table a key"
    return ""


def refused(each: Standing) -> str:
    """Why a table cannot be copied into a destination table with rows that are not ours to remove; empty: keep them.

    No advice may skip changes: only rows that Headrace never copied may be kept as an operator's own.
    """
    table = each.table
    if each.occupant is not None:
        renamed = each.occupant
        return (
            f"the destination table belongs to the source's {renamed.source}, which had this name before. Rename it here "
            f"too: {rename_statement(table.destination, renamed.destination)}; then this table is copied"
        )
    if each.is_outdated:
        return (
            "the rows at the destination are out of date: since they were copied, the source has replaced the table, or its changes did not "
            "arrive for a while. Other apply processes or users may have written there too, so the rows are not removed "
            "automatically: empty the destination table, and it is copied again"
        )
    if table.keep_existing:
        return ""
    return (
        "the destination table is not empty: empty it; or, if it holds the rows of the source as they are now, keep them "
        "with `headrace up --keep-existing`: changes made at the source before that are not applied"
    )


# --------------------------------------------------------------------------- copies of other apply processes


def awaited(each: Standing, others: Sequence[OtherCopy], topology: str) -> str:
    """Why a table waits for the copy of another apply process; empty: it does not.

    Args:
        each: where the table stands.
        others: what others have in its destination table.
        topology: of this apply process.
    """
    copying = [other for other in others if other.is_copying]
    # Earlier versions let two copies into one table, and may have left both: neither would end.
    if not copying or (each.record is not None and each.record.state in {"COPYING", "COMPARING"}):
        return ""
    return f"table {each.table.destination} waits: {_named(copying, topology)} copies into it now"


def not_copied_beside(each: Standing, others: Sequence[OtherCopy], topology: str, source: str) -> str:
    """Why a table is not copied into a destination table in which another apply process has its rows; empty: keep what is there.

    Never emptied: the other one has applied changes there that this source need not have yet, and they do not come again.

    Args:
        each: where the table stands.
        others: what others have in its destination table, at least one.
        topology: of this apply process.
        source: the site that it would be copied from.
    """
    table = each.table
    if each.occupant is not None:
        return refused(each)
    states = ", ".join(sorted({other.state for other in others}))
    there = f"{_named(others, topology)} applies changes to the destination table ({states})"
    if each.is_begun or each.is_outdated:
        old = "rows of an interrupted copy" if each.is_begun else "rows of an old copy"
        return (
            f"{old} from {source} are in the destination table, and {there}: it is not emptied, because rows of that one could be lost. Let "
            "changes of the table rest at every site until everything has arrived everywhere; then delete its rows here, in a transaction with "
            "a tag, so that no other site gets the deletions (SELECT headrace.set_tag('0e') behind BEGIN): it is copied again then"
        )
    if table.keep_existing:
        return ""
    sites = " and ".join(sorted({other.source for other in others}))
    origin = "kept, and has changes" if all(other.state == "KEPT" for other in others) else "a copy"
    return (
        f"{there}: what is there is {origin} from site {sites}. It is neither emptied nor copied from {source}, because rows would be lost. Let "
        f"changes of this table at {source} rest until everything has arrived everywhere; then keep the rows with `headrace up --keep-existing`: "
        f"changes made at {source} before that are not applied"
    )


def has_no_rows(reader: TableReader, copy: TableCopy, *, snapshot: str = "") -> bool:
    """Whether the source has nothing to copy of a table.

    Args:
        reader: of the source.
        copy: of the table.
        snapshot: under which it would be copied; empty: as the table is now.

    Raises:
        DatabaseError: it cannot be read.
    """
    types = dict(zip(copy.sources, copy.columns.values(), strict=True))
    for piece in reader.plan(*copy.table.source, types, snapshot=snapshot, rows=copy.table.rows).pieces:
        with reader.open_piece(piece, snapshot=snapshot) as opened:
            if opened.digest(copy.sources).row_count:
                return False
    return True


def _named(others: Sequence[OtherCopy], topology: str) -> str:
    """Apply processes, for people."""
    names = (other.apply if other.topology == topology else f"{other.apply} of topology {other.topology}" for other in others)
    return "apply process " + " and ".join(dict.fromkeys(names))
