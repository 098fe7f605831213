"""Apply processes that leave the topology before they have brought their tables, where other sites have these.

Of several sites that all write, each gets a source's changes from the source alone. A site that has begun with a table
when it was empty everywhere waits for the source's own apply process to bring its rows. If that one leaves first, nobody
brings them: the site lacks rows that its neighbours have, and everything that runs is in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.databases.ports import Finding, Instantiation, PartOf
from headrace.lcr.table_name import TableName
from topology.edits.subset_changes import counterpart
from topology.routing.ways import arriving, ways_to
from topology.spec import ApplySpec, TopologySpec

__all__ = ["uncopied"]

_BROUGHT = frozenset({"COPIED", "JOINING", "DONE", "KEPT", "LEFT"})


def uncopied(
    before: TopologySpec, after: TopologySpec, records: Callable[[ApplySpec], Sequence[Instantiation]]
) -> Iterator[Finding]:
    """Tables that a site would never get of a source that leaves, or does not send to it any more.

    Args:
        before: the topology that was prepared last, routed.
        after: the one that is wanted, routed.
        records: what is recorded at the destination of an apply process of `before` about its tables.

    Raises:
        DatabaseError: a destination does not answer.
    """
    stay = {site.name for site in after.sites if site.database.kind != "none"}
    for left in before.applies:
        if left.site not in stay or counterpart(left, after.applies) is not None:
            continue
        beside = [each for each in after.applies if each.site == left.site]
        neighbours = {
            each.source: there
            for each in beside
            for there in before.applies
            if (there.source, there.site) == (left.source, each.source)
        }
        if not neighbours:
            continue
        own = _brought(records(left))
        for neighbour, there in neighbours.items():
            for table in sorted(_brought(records(there)) - own):
                if arriving(ways_to(before, left), (table,)) and any(
                    arriving(ways_to(after, each), (table,)) for each in beside if each.source == neighbour
                ):
                    yield _finding(left, neighbour, table)


def _brought(records: Sequence[Instantiation]) -> frozenset[TableName]:
    """The tables whose rows have come."""
    return frozenset(
        TableName.of(each) for each in records if each.state in _BROUGHT and PartOf.of(each.identity) is None
    )


def _finding(left: ApplySpec, neighbour: str, table: TableName) -> Finding:
    return Finding(
        path=f"sites.{left.site} table {table}",
        problem=f"apply process {left.name} leaves the file before it has brought the rows of {left.source}: {neighbour}"
        f" has them, and sends only its own changes, so {left.site} would lack them for good",
        fix=f"keep {left.name} in the file until `headrace status FILE` shows the table DONE there. If {left.source} is"
        f" lost, wait until what was written at {left.site} has arrived at {neighbour}, `headrace down FILE --purge --keep-servers`,"
        f" empty the table at {left.site}, and start with the new file: the table is copied from {neighbour} then",
    )
