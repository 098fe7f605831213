"""Tables that several sites write without conflict handlers, or with handlers that cannot resolve all conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.databases.ports import Finding
from headrace.lcr.table_name import TableName, whole_rows
from headrace.rules.conflict_handlers import KINDS
from topology.proof.reach import Proof
from topology.routing.ways import ArrivingTable, ways_to, writes_alone
from topology.spec import ApplySpec, TopologySpec

if TYPE_CHECKING:
    from headrace.lcr.batch import TableVersion

__all__ = ["meetings", "unseen_conflicts"]

_FIX = "let each site write rows of its own, or set conflict handlers for every kind (docs/how/conflicts.md)"
# A method that decides about the whole row accepts no second handler beside it.
_FIX_OF_UNIQUE_KEYS = (
    "no action is needed where the tables have no other unique key; else let each site use values of its own there, or"
    " set a handler for update_exists where the table's method accepts one (docs/how/conflicts.md)"
)


def meetings(spec: TopologySpec, proof: Proof) -> Iterator[Finding]:
    """Warn of tables where changes of several sites meet without a conflict handler, or where a site gets a subset.

    Args:
        spec: routed, without errors.
        proof: of `spec`; it distinguishes every table with a handler.
    """
    handled = {table for apply in spec.applies for table in apply.conflicts.tables}
    found: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], int] = {}
    together = _written_together(proof)
    for (origins, sites), tables in together.items():
        for number, table in enumerate(proof.classes.tables):
            if tables >> number & 1:
                lacking = _without_handler(spec, table, sites) if table in handled else KINDS
                found[origins, sites, lacking] = found.get((origins, sites, lacking), 0) | 1 << number
    for (origins, sites, lacking), tables in found.items():
        if lacking:
            yield _warning(proof.names(tables & -tables)[0], origins, sites, lacking)
    yield from _subsets(spec, proof, together)


def _subsets(
    spec: TopologySpec, proof: Proof, together: Mapping[tuple[tuple[str, ...], tuple[str, ...]], int]
) -> Iterator[Finding]:
    """Yield subsets of tables with conflict handlers that other sites write, too.

    Only the source knows which rows are in a subset.

    Worked example: dbs2 has the rows of region a; latest_timestamp
        dbs1: region a -> b, t=10; dbs2: another column, t=20; dbs1: another column, t=30
        at dbs2 the DELETE of t=10 loses, and the change of t=30 does not arrive: the row stays; at dbs1 the change of
        t=20 loses
    """
    known = [TableName(*each) for each in proof.classes.tables]
    at: dict[str, int] = {}
    for (_, sites), tables in together.items():
        at |= {site: at.get(site, 0) | tables for site in sites}
    for apply in spec.applies:
        met = {
            table for number, table in enumerate(known) if at.get(apply.site, 0) >> number & 1
        } & apply.conflicts.tables
        for way in ways_to(spec, apply) if met else ():
            having = [
                client.name
                for client in way.clients
                if any(rule.subset is not None for rule in client.rules.include or ())
            ]
            for table in known if having else ():
                here = way.carry(table)
                if here in met and way.subset(table):
                    met.remove(here)
                    yield Finding(
                        path=f"applies.{apply.name}",
                        is_error=False,
                        problem=f"conflict handlers cannot keep {here} equal: {' or '.join(having)} takes a subset of"
                        f" it, and sites other than {apply.source} write it,"
                        f" too. If a row leaves the subset at {apply.source} and is changed elsewhere at the same"
                        f" time, it can stay or reappear at {apply.site}, and its later changes do not arrive",
                        fix="let each row be written at one site only, or replicate the whole table",
                    )


def unseen_conflicts(
    spec: TopologySpec, apply: ApplySpec, tables: Iterable[ArrivingTable[TableVersion]]
) -> Iterator[Finding]:
    """Warn of tables with several writers where a conflict of changes to one row cannot be detected.

    Args:
        spec: routed.
        apply: of `spec`.
        tables: tables that arrive at it.
    """
    from headrace.lcr.batch import OldImage  # numpy: a file alone is checked without it

    for table in tables:
        version, rules = table.destination, apply.conflicts.of(table.destination.owner, table.destination.name)
        is_seen = version.old_image is OldImage.FULL or all(column.is_key for column in version.columns)
        # `headrace.databases.conflict_lists` reports those.
        is_reported = any(handler.needs_old_values for handler in rules.handlers)
        if is_seen or is_reported or rules.compare_key_only or writes_alone(spec, apply, TableName.of(version)):
            continue
        yield Finding(
            path=f"applies.{apply.name} table {version.qualified_name}",
            is_error=False,
            problem=f"sites other than {apply.source} write its rows, too, and the log of {apply.source} has no old"
            " values of it outside its key: when an UPDATE or DELETE meets a row that another site changed at the same"
            " time, the conflict is not detected, and the sites differ from then on",
            fix=f"at {apply.source}: {whole_rows(table.source, 'or let each row be written at one site only')}",
        )


def _warning(table: str, origins: tuple[str, ...], sites: tuple[str, ...], lacking: tuple[str, ...]) -> Finding:
    what = "no conflict handler is set" if lacking == KINDS else f"no conflict handler is set for {', '.join(lacking)}"
    when = "give two rows one value of another unique key" if lacking == ("update_exists",) else "change one row"
    return Finding(
        path="sites",
        is_error=False,
        fix=_FIX_OF_UNIQUE_KEYS if lacking == ("update_exists",) else _FIX,
        problem=f"{' and '.join(origins)} write the same tables, such as {table}, and {what}: where they {when} at the"
        " same time, the"
        f" whole later transaction goes into the error queue of {', '.join(sites)}, where old values are in"
        " the log (REPLICA IDENTITY FULL); where they are not, it goes unnoticed, and the sites differ",
    )


def _written_together(proof: Proof) -> dict[tuple[tuple[str, ...], tuple[str, ...]], int]:
    """Return the tables whose changes by users of several sites meet, by these sites and by the sites where they meet."""
    classes = proof.classes
    # site -> origin -> tables that users of the origin change and whose changes are at the site
    written: dict[str, dict[str, int]] = {}
    for origin in proof.origins:
        for site, arrived in proof.written_at((origin, 0)).items():
            if site != origin:
                written.setdefault(site, {})[origin] = arrived  # by the tables' names there
                own = written.setdefault(origin, {})
                own[origin] = own.get(origin, 0) | proof.arrived((origin, 0))[site].once
    places: dict[tuple[tuple[str, ...], int], dict[str, None]] = {}  # origins and table -> sites
    for site, tables in written.items():
        for number in range(len(classes.tables)):
            origins = tuple(sorted(origin for origin, found in tables.items() if found >> number & 1))
            if len(origins) > 1:
                places.setdefault((origins, number), {})[site] = None
    together: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    for (origins, number), sites in places.items():
        key = origins, tuple(sites)
        together[key] = together.get(key, 0) | 1 << number
    return together


def _without_handler(spec: TopologySpec, table: tuple[str, str], sites: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of conflicts without a handler at an apply process of one of the sites, in the order of `KINDS`."""
    rules = [apply.conflicts.of(*table) for apply in spec.applies if apply.site in sites]
    return tuple(kind for kind in KINDS if not all(each.of_kind(kind) for each in rules))
