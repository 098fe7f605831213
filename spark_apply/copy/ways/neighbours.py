"""Several apply processes in one destination table: which of them copies, and what the others do.

At a site of an n-way topology each source has an apply process, and all of them write the same destination table. A
table is claimed at the destination (`DestinationDatabase.record_instantiation` with `beside`). If several begin at
once, one copies and the others wait. Then each decides by what it finds:

    no rows                                     copied, and never emptied: changes that others apply meanwhile make the
                                                copy differ, and it is FAILED
    rows, kept by the operator's last call      KEPT
    rows, no copy of others had one, and the    DONE or COPIED at once: a copy of nothing
    source has none in the snapshot
    rows, in any other case                     FAILED: the operator stops changes, and keeps the rows or deletes them

Another topology may apply the same table of the same source there. Every change would be applied twice: rows of a table
without a key would be doubled without notice. So the second topology is refused, whether or not the table has rows,
unless it takes only a part of the rows.

A table is emptied only if no other apply process has rows in it. Changes that another one has applied since its copy
are not sent again, and this source may not have them yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.databases.ports import BEGUN
from headrace.lcr.table_name import argument
from spark_apply.copy.pieces.rounds import has_no_rows
from spark_apply.copy.ways.obstacles import REPAIRED_ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.databases.ports import DestinationSession, OtherCopy
    from headrace.databases.ports.copying import TableReader
    from headrace.lcr.table_name import TableName
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.pieces.rounds import TableCopy
    from spark_apply.copy.records.standing import Standing

__all__ = [
    "applied_twice",
    "awaited",
    "compared_over",
    "may_be_of_nothing",
    "may_have_rows",
    "not_copied_beside",
]


def awaited(each: Standing, others: Sequence[OtherCopy], topology: str) -> str:
    """Return why a table waits for the copy of another apply process; empty: it does not.

    Args:
        each: the table's standing.
        others: records of others in its destination table.
        topology: of this apply process.
    """
    copying = [other for other in others if other.is_copying]
    # Earlier versions allowed two copies into one table, and may have left both unfinished: neither would end.
    if not copying or (each.record is not None and each.record.state in BEGUN):
        return ""
    return (
        f"table {each.table.destination} waits: {_named(copying, topology)} copies into it, or has begun to and"
        " continues when it runs again"
    )


def applied_twice(each: Standing, others: Sequence[OtherCopy], topology: str) -> str:
    """Return why a table would get every change twice; empty: it would not.

    It would if another topology applies the same table of the same source there.

    Args:
        each: the table's standing.
        others: records of others in its destination table.
        topology: of this apply process.
    """
    twice = [other for other in others if other.topology != topology and other.is_of(each.table.identity)]
    if not twice or each.table.rows:
        return ""
    which = " and ".join(dict.fromkeys(other.topology for other in twice))
    return (
        f"{_named(twice, topology)} gets the same table of this source there: every change would be applied twice. Take"
        f" the table out of the file of one of the two, and run `headrace up` with it, or end topology {which} with"
        " `headrace down ITS_FILE --purge --keep-servers`"
    )


def compared_over(common: str, source: str, here: str, table: TableName) -> str:
    """Return how an operator finds out whether two sites that a third one fills have the same rows, and keeps them.

    `verify` does not compare the two with each other before the way between them is recorded.

    Args:
        common: the third site (`BothWays.common_source`).
        source: of the way that is not recorded yet.
        here: its destination.
        table: the name of the table, the same at all sites.
    """
    return (
        f"let changes of the table at {source} and {here} rest (those at {common} may go on), and run `headrace verify"
        f" FILE {argument(table)}`. If {common} -> {source} and {common} -> {here} are identical, with no row in flight,"
        " keep the rows with `headrace up FILE --keep-existing`; changes may resume when it has ended. If not, correct"
        " the rows that it names as it says, and compare again"
    )


def not_copied_beside(
    each: Standing, others: Sequence[OtherCopy], config: ApplyConfig, how_to_empty: str, *, common: str = ""
) -> str:
    """Return why a table is not copied into a destination table where another apply process has rows; empty: keep them.

    The table is never emptied: the other one has applied changes there that this source may not have yet, and they are
    not sent again.

    Args:
        each: the table's standing.
        others: records of others in its destination table, at least one.
        config: of this apply process.
        how_to_empty: from `DestinationDatabase.how_to_empty`.
        common: from `BothWays.common_source`.
    """
    table, topology, source = each.table, config.topology, config.source.site
    states = ", ".join(sorted({other.state for other in others}))
    there = f"{_named(others, topology)} has rows in the destination table ({states})"
    emptied = (
        REPAIRED_ALONE
        if table.is_sent_on
        else (
            "stop changes of the table at every site until everything has arrived everywhere, and delete its rows"
            f" at this site alone: {how_to_empty} "
            '(docs/tasks/add-a-site.md, "Adding a site to an n-way topology"): then it is copied again'
        )
    )
    if each.is_begun or each.is_outdated:
        old = "rows of an interrupted copy" if each.is_begun else "rows of an old copy"
        return (
            f"{old} from {source} are there, and {there}: it is not emptied, because rows of the other one could be"
            f" lost. To repair it, {emptied}"
        )
    if table.keep_existing and all(other.is_finished for other in others):
        return ""
    sites = " and ".join(sorted({other.source for other in others}))
    origin = "kept, and has changes" if all(other.state == "KEPT" for other in others) else "a copy"
    there += f": what is there is {origin} from site {sites}. It is neither emptied nor copied from {source}, because"
    there += " rows would be lost."
    if common:
        here = config.destination.site
        return (
            f"{there} {common} sends the table to {source}, too, but {source} and {here} may differ: what users of"
            f" {source} change before this way is recorded does not come here. So"
            f" {compared_over(common, source, here, table.source)}. If many rows differ, {emptied}"
        )
    # A change that this source had, and the source of that copy did not have yet, has not arrived and never will. So
    # the message says "as they are now".
    return (
        f"{there} If it holds the rows of {source} as they are now, keep them with `headrace up --keep-existing` while"
        f" changes of this table at {source} rest: changes made there before that are not applied. If it may lack some,"
        f" and {source} has every row that {sites} has, {emptied}"
    )


def may_have_rows(session: DestinationSession, copy: TableCopy) -> bool:
    """Return whether the destination table has rows, or an unfinished copy of another apply process may write some.

    Args:
        session: of the destination.
        copy: of the table, which the destination has.
    """
    assert copy.target is not None
    return session.has_rows(copy.target) or any(other.is_copying for other in copy.beside)


def may_be_of_nothing(reader: TableReader, each: Standing, copy: TableCopy) -> bool:
    """Return whether neither this source nor any other had a row of the table, so that every copy of it is empty.

    An empty copy collides with nothing. Changes that others apply there meanwhile stay. This source's changes come
    behind its snapshot, which has no row either.

    Raises:
        DatabaseError: the source cannot be read.
    """
    if each.occupant is not None or each.is_begun or each.is_outdated:
        return False
    return bool(copy.beside) and all(other.copied_nothing for other in copy.beside) and has_no_rows(reader, copy)


def _named(others: Sequence[OtherCopy], topology: str) -> str:
    """Name apply processes in a message."""
    names = (
        other.apply if other.topology == topology else f"{other.apply} of topology {other.topology}" for other in others
    )
    return "apply process " + " and ".join(dict.fromkeys(names))
