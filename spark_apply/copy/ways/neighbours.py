"""Several apply processes in one destination table: which of them copies, and what the others do.

At a site of an n-way topology each source has an apply process, and all of them write the same destination table. A
table is claimed at the destination (`DestinationDatabase.record_instantiation` with `beside`): of those that begin at
once one copies, and the others wait. Then, by what they find:

    no rows                                     copied, and never emptied: what others apply meanwhile makes the copy
                                                differ, and it is FAILED
    rows, kept by the operator's last call      KEPT
    rows, no copy of others had one, and the    DONE or COPIED at once: a copy of nothing
    source has none in the snapshot
    rows, and else                              FAILED: the operator lets changes rest, and keeps the rows or deletes them

Another topology may have the same table of the same source there. Every change would be applied twice: rows of a table
without a key would be doubled without a sign. So the second one is refused, whether the table has rows or not, unless
it takes a part of the rows alone.

A table is emptied only where no other apply process has rows: what another one has applied since its copy does not come
again, and this source need not have it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.databases.ports import BEGUN
from spark_apply.copy.pieces.rounds import has_no_rows
from spark_apply.copy.ways.obstacles import REPAIRED_ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.databases.ports import DestinationSession, OtherCopy
    from headrace.databases.ports.copying import TableReader
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.copy.pieces.rounds import TableCopy
    from spark_apply.copy.records.standing import Standing

__all__ = ["applied_twice", "awaited", "may_be_of_nothing", "may_have_rows", "not_copied_beside"]


def awaited(each: Standing, others: Sequence[OtherCopy], topology: str) -> str:
    """Why a table waits for the copy of another apply process; empty: it does not.

    Args:
        each: where the table stands.
        others: what others have in its destination table.
        topology: of this apply process.
    """
    copying = [other for other in others if other.is_copying]
    # Earlier versions let two copies into one table, and may have left both: neither would end.
    if not copying or (each.record is not None and each.record.state in BEGUN):
        return ""
    return (
        f"table {each.table.destination} waits: {_named(copying, topology)} copies into it, or began to and goes"
        " on when it runs again"
    )


def applied_twice(each: Standing, others: Sequence[OtherCopy], topology: str) -> str:
    """Why a table would get every change twice: another topology applies the same table of the same source there.

    Empty: none does.

    Args:
        each: where the table stands.
        others: what others have in its destination table.
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


def not_copied_beside(each: Standing, others: Sequence[OtherCopy], config: ApplyConfig, how_to_empty: str) -> str:
    """Why a table is not copied into a destination table in which another apply process has its rows.

    Empty: keep what is there.

    Never emptied: the other one has applied changes there that this source need not have yet, and they do not come
    again.

    Args:
        each: where the table stands.
        others: what others have in its destination table, at least one.
        config: of this apply process.
        how_to_empty: see `DestinationDatabase.how_to_empty`.
    """
    table, topology, source = each.table, config.topology, config.source.site
    states = ", ".join(sorted({other.state for other in others}))
    there = f"{_named(others, topology)} has rows in the destination table ({states})"
    emptied = (
        REPAIRED_ALONE
        if table.is_sent_on
        else (
            "let changes of the table rest at every site until everything has arrived everywhere, and delete its rows"
            f" at this site alone: {how_to_empty} "
            '(docs/operations.md, "Adding a site to an n-way topology"): it is copied again then'
        )
    )
    if each.is_begun or each.is_outdated:
        old = "rows of an interrupted copy" if each.is_begun else "rows of an old copy"
        return (
            f"{old} from {source} are there, and {there}: it is not emptied, because rows of that one could be"
            f" lost. To repair it, {emptied}"
        )
    if table.keep_existing and all(other.is_finished for other in others):
        return ""
    sites = " and ".join(sorted({other.source for other in others}))
    origin = "kept, and has changes" if all(other.state == "KEPT" for other in others) else "a copy"
    # A change that the source of that copy did not have yet, and that this one had, has not arrived and does not come:
    # so "as they are now".
    return (
        f"{there}: what is there is {origin} from site {sites}. It is neither emptied nor copied from {source}, because"
        " rows would be lost. If it "
        f"holds the rows of {source} as they are now, keep them with `headrace up --keep-existing` while changes of"
        f" this table at {source} rest: changes made there before that are not applied. If it may lack some, and"
        f" {source} has every row that {sites} has, {emptied}"
    )


def may_have_rows(session: DestinationSession, copy: TableCopy) -> bool:
    """Whether the destination table has rows, or another copy that was begun may write some.

    Args:
        session: of the destination.
        copy: of the table, which the destination has.
    """
    assert copy.target is not None
    return session.has_rows(copy.target) or any(other.is_copying for other in copy.beside)


def may_be_of_nothing(reader: TableReader, each: Standing, copy: TableCopy) -> bool:
    """Whether neither this source nor any other one had a row of the table.

    Every copy of it is of nothing, and none is in the way.

    Changes that others apply there meanwhile stay. Those of this source come behind its snapshot, in which there is no
    row either.

    Args:
        reader: of the source.
        each: where the table stands.
        copy: of the table.

    Raises:
        DatabaseError: the source cannot be read.
    """
    if each.occupant is not None or each.is_begun or each.is_outdated:
        return False
    return bool(copy.beside) and all(other.copied_nothing for other in copy.beside) and has_no_rows(reader, copy)


def _named(others: Sequence[OtherCopy], topology: str) -> str:
    """Apply processes, for people."""
    names = (
        other.apply if other.topology == topology else f"{other.apply} of topology {other.topology}" for other in others
    )
    return "apply process " + " and ".join(dict.fromkeys(names))
