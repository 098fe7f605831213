"""Apply processes that leave the topology before they have brought their tables, while other sites have these tables.

When several sites all write, each gets a source's changes from the source alone. A site that began with a table when it
was empty everywhere waits for the source's own apply process to bring its rows. If that apply process leaves first,
nothing brings them. The site then lacks rows that its neighbours have, and all running components look healthy.
If it leaves in the middle of its copy, half of its rows stay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence

from headrace.databases.ports import AWAITING, BEGUN, Finding, Instantiation, PartOf
from headrace.lcr.table_name import TableName
from topology.edits.subset_changes import counterpart
from topology.routing.ways import arriving, ways_to
from topology.spec import ApplySpec, TopologySpec

__all__ = ["uncopied"]

_HERE = frozenset({"COPIED", "JOINING", "DONE", "KEPT"})


def uncopied(
    before: TopologySpec, after: TopologySpec, records: Callable[[ApplySpec], Sequence[Instantiation]]
) -> Iterator[Finding]:
    """Warn of tables that a site may never get from a source that leaves or no longer sends to it.

    Only whole apply processes are considered, and tables that have one name at all of these sites.

    Args:
        before: the topology that was prepared last, routed.
        after: the wanted topology, routed.
        records: returns the records of tables at the destination of an apply process of `before`.

    Raises:
        DatabaseError: a destination does not answer.
    """
    recorded = functools.cache(lambda name: records(before.apply(name)))  # every neighbour needs the same records
    stay = {site.name for site in after.sites if site.database.kind != "none"}
    for left in before.applies:
        if left.site not in stay or counterpart(left, after.applies) is not None:
            continue
        named: set[TableName] = set()
        for goes_on, earlier, there in _neighbours(before, after, left):
            # Tables that the neighbour's own apply process has still to copy arrive with the rows that the neighbour
            # has. One that stays in the topology may have an older snapshot.
            begun = _in(recorded(earlier.name), _HERE | BEGUN | {AWAITING}) & _in(
                recorded(there.name), _HERE | {"LEFT"}
            )
            for table in sorted(begun - _in(recorded(left.name), _HERE)) if begun else ():
                if _brings(before, left, table) and _brings(after, goes_on, table):
                    named.add(table)
                    yield _missing(left, goes_on.source, table)
        half = _in([each for each in recorded(left.name) if each.scn], BEGUN | {"FAILED"}) - named
        for goes_on in (each for each in after.applies if half and each.site == left.site):
            # One without a record judges the table by its rows, and asks.
            if (was := counterpart(goes_on, before.applies)) is None:
                continue
            for table in sorted((half & _in(recorded(was.name), _HERE | BEGUN | {AWAITING})) - named):
                if _brings(before, left, table) and _brings(after, goes_on, table):
                    named.add(table)
                    yield _half(left, goes_on.source, table)


def _neighbours(
    before: TopologySpec, after: TopologySpec, left: ApplySpec
) -> Iterator[tuple[ApplySpec, ApplySpec, ApplySpec]]:
    """Yield apply processes that stay at the leaving one's site, from sites that get the same source's changes.

    Each comes with its counterpart before, and with the apply process that gets those changes at its source.
    """
    for each in after.applies:
        if each.site != left.site or (earlier := counterpart(each, before.applies)) is None:
            continue
        for there in before.applies:
            if (there.source, there.site) == (left.source, each.source):
                yield each, earlier, there


def _brings(spec: TopologySpec, apply: ApplySpec, table: TableName) -> bool:
    """Return whether an apply process gets a table."""
    return bool(arriving(ways_to(spec, apply), (table,)))


def _in(records: Sequence[Instantiation], states: Collection[str]) -> frozenset[TableName]:
    """Return the tables, not their partitions, that are recorded in one of these states."""
    return frozenset(
        TableName.of(each) for each in records if each.state in states and PartOf.of(each.identity) is None
    )


def _missing(left: ApplySpec, neighbour: str, table: TableName) -> Finding:
    return _finding(
        left,
        neighbour,
        table,
        f"apply process {left.name} leaves before `headrace status FILE` shows that it has brought the table: what"
        f" {neighbour} has of {left.source} may be missing at {left.site} for good, as {neighbour} does not send it again",
    )


def _half(left: ApplySpec, neighbour: str, table: TableName) -> Finding:
    return _finding(
        left,
        neighbour,
        table,
        f"apply process {left.name} leaves in the middle of its copy: rows that it has copied may stay at {left.site},"
        f" and no apply process completes or removes them, as {neighbour} has the table, too",
    )


def _finding(left: ApplySpec, neighbour: str, table: TableName, problem: str) -> Finding:
    # A warning: records do not say whether the source had rows, and after an interrupted `up` they may be gone already.
    return Finding(
        path=f"sites.{left.site} table {table}",
        is_error=False,
        problem=problem,
        fix=f"keep {left.name} in the file until the table is DONE or KEPT there. If {left.source} is lost, and `headrace"
        f" verify FILE` names the table, wait until what was written at {left.site} has arrived at {neighbour},"
        f" `headrace down FILE --purge --keep-servers`, empty the table at {left.site}, and `headrace up FILE`: it is"
        f" copied from {neighbour}",
    )
