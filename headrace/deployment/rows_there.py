"""Destination tables with rows before anything was copied: some keep them, others need an operator's decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName
from topology.plan import KeptRows
from topology.routing.ways import is_sent_on, returned_by, shared_by, writes_alone

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, Instantiation
    from headrace.deployment.open_databases import OpenDatabases
    from headrace.lcr.batch import TableVersion
    from spark_apply.copy.ways.both_ways import BothWays
    from topology.routing.ways import ArrivingTable
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["rows_there"]


def rows_there(
    spec: TopologySpec,
    apply: ApplySpec,
    came: Sequence[ArrivingTable[TableVersion]],
    target: DestinationDatabase,
    databases: OpenDatabases,
    *,
    recorded: Sequence[Instantiation],
    begun: Collection[TableName],
    kept: list[KeptRows],
) -> Iterator[Finding]:
    """Find destination tables whose rows `up` would refuse, or has refused (a warning, because the others run).

    Args:
        spec: the topology.
        apply: the apply process that gets the tables.
        came: the tables.
        target: the destination, open.
        databases: the topology's databases.
        recorded: the recorded instantiations of its tables.
        begun: names of the destination tables whose copy has begun.
        kept: receives the tables whose rows stay as they are.
    """
    at_source = {TableName.of(each.destination): TableName.of(each.source) for each in came}
    returned = {TableName.of(each.destination): returned_by(spec, apply, each) for each in came}
    back = target.filled(_coming_back(spec, apply, recorded, at_source))
    only = _only_rows(spec, apply, [_TwoWayTable(at_source[name], name, returned[name]) for name in back], databases)
    if only:
        kept.append(
            KeptRows(site=apply.site, source=apply.source, why=f"{apply.source} has none", tables=tuple(map(str, only)))
        )
    yield from _out_of_date(spec, apply, [name for name in back if name not in only])
    # A partition of a table that also arrives holds that table's rows: the operator must not be told to empty it, nor
    # to keep its rows as the partition's own.
    nested = target.nested_tables(list(at_source))
    filled = target.filled([name for name in at_source if name not in begun and name not in nested])
    new = [
        _TwoWayTable(at_source[name], name, returned[name])
        for each in came
        if (name := TableName.of(each.destination)) in filled
    ]
    stays = _staying(spec, apply, new, databases)
    kept += [
        KeptRows(site=apply.site, source=apply.source, why=why, tables=tuple(map(str, names)))
        for why, names in stays.items()
    ]
    asked = [name for name in filled if not any(name in names for names in stays.values())]
    nothing_of = _empty_at(databases.destination(apply.source), [(name, at_source[name]) for name in asked])
    refused = {TableName.of(record) for record in recorded if record.is_refused}
    arrives = {TableName.of(each.destination): each for each in came}
    for name in asked:
        shared = shared_by(spec, apply, arrives[name])
        table = _TwoWayTable(at_source[name], name, returned[name], shared)
        finding = _compared_first(spec, apply, table, target, databases) or _never_copied(
            spec, apply, name, target, has_none_there=name in nothing_of
        )
        yield replace(finding, is_error=name not in refused)


def _coming_back(
    spec: TopologySpec, apply: ApplySpec, recorded: Sequence[Instantiation], tables: Iterable[TableName]
) -> list[TableName]:
    """Return the tables whose changes stopped arriving for a while and that others also write.

    `up` does not empty them to copy them again.
    """
    states: dict[TableName, set[str]] = {}
    for record in recorded:
        states.setdefault(TableName.of(record), set()).add(record.state)
    return [name for name in tables if states.get(name) == {"LEFT"} and not writes_alone(spec, apply, name)]


def _out_of_date(spec: TopologySpec, apply: ApplySpec, filled: Sequence[TableName]) -> Iterator[Finding]:
    """Report destination tables of `_coming_back` that have rows."""
    from spark_apply.copy.ways.obstacles import REPAIRED_ALONE  # imports numpy: not for checks of the file alone

    for name in filled:
        yield Finding(
            path=f"sites.{apply.site} table {name}",
            problem=f"the rows at the destination are out of date: since they were copied, changes of {apply.source}"
            " did not arrive for a while",
            fix=f"{REPAIRED_ALONE}: before step 3"
            if is_sent_on(spec, apply.site, name)
            else f"if {apply.source} has the wanted rows, empty it: `headrace up FILE` then copies it",
        )


class _TwoWayTable(NamedTuple):
    """A table that is replicated both ways. Implements `spark_apply.copy.ways.both_ways.TwoWayTable`."""

    source: TableName
    destination: TableName
    returned_by: str
    shared_by: tuple[tuple[str, str], ...] = ()


def _staying(
    spec: TopologySpec, apply: ApplySpec, tables: Sequence[_TwoWayTable], databases: OpenDatabases
) -> dict[str, list[TableName]]:
    """Return the destination tables whose rows `up` leaves as they are, by the reason why nothing is copied.

    Args:
        spec: the topology.
        apply: the apply process that gets the tables.
        tables: tables whose copy has not begun.
        databases: the topology's databases.
    """
    from spark_apply.copy.ways.both_ways import Found

    said = {
        Found.NOTHING: f"{apply.source} has none",
        Found.KEEP: f"{apply.source} has a copy of them",
        Found.WAIT: f"{apply.source} gets a copy of them",
    }
    found: dict[str, list[TableName]] = {}
    if not any(table.returned_by for table in tables):
        return found
    both = _both_ways(spec, apply, databases)
    for table in tables:
        if (reason := said.get(both.of_new(table, has_rows=True))) is not None:
            found.setdefault(reason, []).append(table.destination)
    return found


def _only_rows(
    spec: TopologySpec, apply: ApplySpec, tables: Sequence[_TwoWayTable], databases: OpenDatabases
) -> list[TableName]:
    """Return the returning destination tables that have all existing rows."""
    if not any(table.returned_by for table in tables):
        return []
    both = _both_ways(spec, apply, databases)
    return [table.destination for table in tables if both.has_only_rows(table)]


def _both_ways(spec: TopologySpec, apply: ApplySpec, databases: OpenDatabases) -> BothWays:
    from spark_apply.copy.ways.both_ways import BothWays

    here = databases.source(apply.site)
    return BothWays(
        topology=spec.name,
        here=apply.site,
        there=apply.source,
        records=databases.destination(apply.source),
        captured=lambda: {TableName.of(each): each.identity for each in here.captured(spec.name)},
        position=here.current_scn,
    )


def _empty_at(source: DestinationDatabase, tables: Sequence[tuple[TableName, TableName]]) -> frozenset[TableName]:
    """Return the destination tables of which the source has no row.

    Args:
        source: the source's database.
        tables: each as named at the destination and at the source.
    """
    filled = source.filled([there for _, there in tables]) if tables else ()
    return frozenset(name for name, there in tables if there not in filled)


def _compared_first(
    spec: TopologySpec,
    apply: ApplySpec,
    table: _TwoWayTable,
    target: DestinationDatabase,
    databases: OpenDatabases,
) -> Finding | None:
    """Return the finding about rows that a third site sends to both sites of a way; None: no site does.

    Args:
        spec: the topology.
        apply: the apply process that gets the table.
        table: the table, whose copy has not begun.
        target: the destination, open.
        databases: the topology's databases.
    """
    if not table.shared_by:
        return None
    from spark_apply.copy.ways.neighbours import compared_over  # imports numpy

    others = target.other_copies(spec.name, apply.name, *table.destination)
    common = _both_ways(spec, apply, databases).common_source(table, others)
    if not common:
        return None
    return Finding(
        path=f"sites.{apply.site} table {table.destination}",
        problem=f"the destination table is not empty: {common} sends it to {apply.source} and {apply.site}, which now"
        f" send to each other. They may differ: what users of {apply.source} changed before this way is recorded does"
        f" not come to {apply.site}",
        # The first `up` starts everything else, also what `verify` asks.
        fix="run `headrace up FILE`, which asks about this table again; then"
        f" {compared_over(common, apply.source, apply.site, table.source)}",
    )


def _never_copied(
    spec: TopologySpec, apply: ApplySpec, name: TableName, target: DestinationDatabase, *, has_none_there: bool
) -> Finding:
    """Return the finding about a destination table with rows whose copy has not begun.

    It never asks the operator to empty a table from which other sites get their rows, which has the only existing rows,
    or which has another apply process's rows.

    Args:
        spec: the topology.
        apply: the apply process that gets the table.
        name: the table's name.
        target: the destination, open.
        has_none_there: whether the source has no row of it.
    """
    keep = "keep them with `headrace up FILE --keep-existing`"
    copies = [each for each in target.other_copies(spec.name, apply.name, *name) if not each.is_awaiting]
    if others := [other for other in copies if other.topology != spec.name]:
        which = " and ".join(dict.fromkeys(f"{other.apply} of topology {other.topology}" for other in others))
        problem = (
            f": apply process {which} has rows there, from site"
            f" {' and '.join(dict.fromkeys(other.source for other in others))}"
        )
        fix = (
            f"delete none. If they are from the table that {apply.source} has, take it out of the file of one of the two"
            f" topologies: every change would be applied twice; otherwise, if it holds the rows of {apply.source} as"
            f" they are now, {keep}"
        )
    elif is_sent_on(spec, apply.site, name):
        problem = f", and was never copied from {apply.source}; other sites get their rows from here"
        fix = (
            f"if every row that {apply.source} has is also here, {keep}, and let no one change the table at {apply.source}"
            " meanwhile; delete no rows here"
        )
    elif copies:
        which = " and ".join(dict.fromkeys(f"{other.apply}, from site {other.source}" for other in copies))
        problem = f": it has the rows of apply process {which}"
        fix = (
            f"delete none: rows of {apply.source} are not copied beside them. Load those that are missing, let no one"
            f" change the table at {apply.source} meanwhile, and {keep}"
        )
    elif has_none_there:
        problem = f", and {apply.source}, from which it would be copied, has no row of it"
        fix = f"if the rows are to go from {apply.site} to {apply.source}, change the file so; or {keep}; delete none"
    else:
        problem = ", and was never copied"
        fix = (
            f"if it holds the rows of {apply.source} as they are now, {keep}; or empty it, and no other table:"
            f" {target.how_to_empty(name)}"
        )
    return Finding(
        path=f"sites.{apply.site} table {name}", problem=f"the destination table is not empty{problem}", fix=fix
    )
