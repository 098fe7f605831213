"""Records at the sites, made by the controller, of which apply process gets which table.

Sources need the record for capture processes, destinations for tables that come back later.

Both get the same answer of the source, so that they agree about a table that was just renamed. Either its apply process
no longer gets it and has it recorded as LEFT, or the capture process waits for an operator. The answer is the source's
at its preparation, with the table names at the first look of `up`. Preparing waits for every running transaction; the
changes of a table that is renamed meanwhile would otherwise be dropped silently.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.lcr.table_name import TableName
from topology.edits.receivers import Receivers
from topology.routing.downstream import receivers_from
from topology.routing.ways import arriving, ways_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.hosting.runtime import ActorSystem
    from headrace.databases.ports import CapturedTable
    from topology.edits.receivers import NotedTable
    from topology.spec import ApplySpec, TopologySpec

__all__ = [
    "captured_of",
    "identities",
    "kept_at_call",
    "leave_out",
    "leave_out_dropped",
    "note_first_receivers",
    "note_receivers",
    "receivers_of",
]

TIMEOUT_S = 120.0  # catalog queries over every table of a large database
ASKED_AT_ONCE = 500  # tables: each takes four round trips, 50 ms each to a distant database
LEFT_TIMEOUT_S = 10.0  # a leaving site, or one that hangs while nothing is edited, must not delay the others


def captured_of(actors: ActorSystem, source: str) -> tuple[CapturedTable, ...]:
    """Return the captured tables of a source, under their current names.

    Args:
        actors: actors of the topology.
        source: name of the source site, which is queried.

    Raises:
        HeadraceError: the site or its database does not answer.
    """
    captured: tuple[CapturedTable, ...] = actors.call(f"site:{source}", "captured", timeout_s=TIMEOUT_S)
    return captured


def receivers_of(
    actors: ActorSystem, spec: TopologySpec, names: Mapping[str, Mapping[int, TableName]]
) -> dict[str, Receivers]:
    """Return which apply process gets which table in this topology, by source.

    Args:
        actors: the sites.
        spec: the wanted topology.
        names: names of each source's tables at the first look, by object number.
    """
    found = {}
    for source in dict.fromkeys(capture.source for capture in spec.captures):
        before = names.get(source, {})
        tables = [_named_before(each, before) for each in captured_of(actors, source)]
        # the administrator unpublishes tables that left when everything has settled; until they return no apply process gets them
        if spec.site(source).database.has_admin:
            rules = spec.capture_rules(source)
            tables = [each for each in tables if any(rule.keeps(each.owner, each.name) for rule in rules)]
        found[source] = Receivers.of(spec, source, tables)
    return found


def _named_before(table: CapturedTable, names: Mapping[int, TableName]) -> CapturedTable:
    if TableName.of(table) in names.values():
        return table
    name = next((names[number] for number in table.object_numbers if number in names), TableName.of(table))
    return replace(table, owner=name.owner, name=name.name)


def identities(spec: TopologySpec, apply: ApplySpec, captured: Sequence[NotedTable]) -> tuple[str, ...]:
    """Return the identities of the tables whose changes an apply process gets, by the rules along all of its ways.

    Args:
        spec: the topology, routed.
        apply: the apply process.
        captured: the tables of its source, from `captured_of`.
    """
    return tuple(table.source.identity for table in arriving(ways_to(spec, apply), captured))


def leave_out(actors: ActorSystem, spec: TopologySpec, apply: ApplySpec, captured: Sequence[NotedTable]) -> None:
    """Make a destination record the tables whose changes an apply process no longer gets by the wanted topology.

    If such a table is added again, changes are missing at the destination, so it is copied again.

    Args:
        actors: the sites.
        spec: the wanted topology.
        apply: the apply process.
        captured: the tables of its source.
    """
    coming = identities(spec, apply, captured)
    actors.call(f"site:{apply.site}", "leave_out", apply.name, coming, timeout_s=TIMEOUT_S)


def leave_out_dropped(
    actors: ActorSystem, before: TopologySpec | None, spec: TopologySpec, *, is_edit: bool = True
) -> None:
    """Make destinations record that the apply processes which a topology no longer has receive nothing more.

    Their records then no longer block a table.

    At a destination of the topology this covers apply processes dropped at any time. An earlier version left their
    records unchanged, and every other copy waited for a copy that never continued. A leaving site may be away: its
    records then stay until it is a destination again.

    Args:
        actors: the sites, including those that leave; the apply processes have ended.
        before: the topology that was prepared last; None: unchanged, or unknown.
        spec: the wanted topology.
        is_edit: a failing destination of the topology stops the edit. Without an edit the others continue, and the next
            call retries.
    """
    earlier = () if before is None else before.applies
    # the file no longer names its database
    without = {each.name for each in spec.sites if each.database.kind == "none"}
    for site in dict.fromkeys(apply.site for apply in (*spec.applies, *earlier) if apply.site not in without):
        may_fail = not is_edit or site not in {each.name for each in spec.sites}
        wanted = [apply.name for apply in spec.applies if apply.site == site]
        with contextlib.suppress(*((HeadraceError,) if may_fail else ())):
            actors.call(f"site:{site}", "leave_out_others", wanted, timeout_s=LEFT_TIMEOUT_S if may_fail else TIMEOUT_S)


def kept_at_call(
    actors: ActorSystem, spec: TopologySpec, apply: ApplySpec, captured: Sequence[NotedTable]
) -> tuple[str, ...]:
    """Return the tables whose rows a call of `up --keep-existing` keeps at one apply process, as sorted identities.

    Only rows that exist at the call are kept. Rows that another apply process, of this or of another topology, copies
    later may lack changes of this source, and the operator has not seen them.

    Args:
        actors: the sites. No apply process runs.
        spec: the topology, routed.
        apply: the apply process.
        captured: the tables of its source.
    """
    tables = {
        table.source.identity: TableName.of(table.destination) for table in arriving(ways_to(spec, apply), captured)
    }
    names = tuple(sorted(set(tables.values())))
    filled: set[TableName] = set()
    for first in range(0, len(names), ASKED_AT_ONCE):
        filled |= set(
            actors.call(
                f"site:{apply.site}", "filled", apply.name, names[first : first + ASKED_AT_ONCE], timeout_s=TIMEOUT_S
            )
        )
    return tuple(sorted(identity for identity, name in tables.items() if name in filled))


def note_first_receivers(actors: ActorSystem, noted: Mapping[str, Receivers]) -> None:
    """Make each source that has no record yet record which apply process gets which table.

    Called before a capture process begins: without a record it does not recognise renames. An existing record stays
    until everything runs with the new topology.

    Args:
        actors: the sites.
        noted: the records, by source.

    Raises:
        HeadraceError: a site does not answer; retry (idempotent).
    """
    for source, receivers in noted.items():
        if actors.call(f"site:{source}", "receivers", timeout_s=TIMEOUT_S) == Receivers():
            actors.call(f"site:{source}", "note_receivers", receivers, timeout_s=TIMEOUT_S)


def note_receivers(actors: ActorSystem, spec: TopologySpec, noted: Mapping[str, Receivers]) -> None:
    """Make every source record which apply process gets which table, after the destinations have recorded left tables.

    Args:
        actors: the sites.
        spec: the running topology.
        noted: the records, by source.

    Raises:
        HeadraceError: a site does not answer; retry (idempotent).
    """
    for source, receivers in noted.items():
        for apply in spec.applies:
            if apply.source == source:
                leave_out(actors, spec, apply, receivers.tables)
        for name in (f"site:{source}", *(each.component for each in receivers_from(spec, source))):
            actors.call(name, "note_receivers", receivers, timeout_s=TIMEOUT_S)
