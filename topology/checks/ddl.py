"""Checks of `ddl: true` from the file alone: what cannot carry DDL is refused by name, with the fix.

DDL travels with the rows of whole tables, from one site to others that nobody else writes. So its way must take every
row of the table as it is, the destination must be the table's only writer, and no capture process takes the table there.
Live databases are asked for the rest: the source for its rights, event triggers and kinds of tables
(`headrace.databases.ports.SourceDatabase.preflight`), and the destination for the owners of the tables
(`headrace.databases.ports.DestinationDatabase.preflight_ddl`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.databases.ports import UNFIT_TABLE, Finding
from headrace.lcr.table_name import TableName, remark
from headrace.rules.rule import Rule, TruthValue
from topology.routing.change_classes import ChangeClasses
from topology.routing.ways import ArrivingTable, Way, ddl_tables, others_with, ways_to
from topology.spec import ApplySpec, TopologySpec

__all__ = ["WantedDdl", "ddl_findings", "or_wait"]

_AT_EVERY_SITE = "leave out ddl: true, and run DDL at every site"
_OR_WAIT = "or wait: DDL of this table travels (headrace wait FILE --caught-up)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDdl:
    """An entry of `replicate` with `ddl: true`.

    Args:
        path: its key in the file, such as `replicate[0].ddl`.
        source: site whose DDL is replicated.
        destinations: sites where it is applied.
        rules: the objects of the entry.
    """

    path: str
    source: str
    destinations: tuple[str, ...]
    rules: tuple[Rule, ...]


def ddl_findings(spec: TopologySpec, classes: ChangeClasses, entries: Sequence[WantedDdl]) -> Iterator[Finding]:
    """Yield what prevents the entries' DDL from arriving, or from being equal there.

    Args:
        spec: routed, and proven.
        classes: of `spec`.
        entries: with `ddl: true`, in the order of the file.
    """
    yield from _captures(spec, entries)
    for entry in entries:
        tables = [table for table in classes.spoken_of if any(rule.matches_object(*table) for rule in entry.rules)]
        for destination in entry.destinations:
            yield from _versions(spec, entry, destination)
            applies = [each for each in spec.applies if (each.source, each.site) == (entry.source, destination)]
            ways = [way for apply in applies for way in ways_to(spec, apply)]
            yield from dict.fromkeys(finding for way in ways for finding in _excluded(way, entry, tables))
            yield from _stopped(ways, entry, destination, tables)
            yield from _shared(spec, applies, entry, tables)


def or_wait(
    findings: Iterable[Finding], before: TopologySpec | None, apply: ApplySpec, tables: Iterable[ArrivingTable[Any]]
) -> Iterator[Finding]:
    """Yield findings; the fix of one that DDL may end which is on its way says so.

    Args:
        findings: about tables at an apply process's destination.
        before: the topology prepared last; None: none was, so that nothing is on its way.
        apply: the apply process.
        tables: those that arrive at it.
    """
    applies = [] if before is None else [e for e in before.applies if (e.source, e.site) == (apply.source, apply.site)]
    ways = [way for each in applies if before is not None for way in ways_to(before, each)]
    paths = {f"sites.{apply.site} table {table}" for table in ddl_tables(ways, tables)}
    for found in findings:
        travels = found.problem == UNFIT_TABLE and found.path in paths
        yield replace(found, fix=f"{found.fix} {remark(_OR_WAIT)}") if travels else found


def _captures(spec: TopologySpec, entries: Iterable[WantedDdl]) -> Iterator[Finding]:
    """Yield capture processes that would take more DDL than the entries say, or that mine a copy of the redo."""
    first = {entry.source: entry.path for entry in reversed([*entries])}
    for capture in spec.captures:
        path = first.get(capture.source)
        if path is None:
            continue
        if capture.rules.include is None:
            yield Finding(
                path=f"captures.{capture.name}.rules",
                problem=f"has no include: it would take the DDL of every table of {capture.source}, and only"
                f" {path} may say whose DDL is taken",
                fix="list under include what it takes",
            )
        if capture.is_downstream:
            yield Finding(
                path=f"captures.{capture.name}.site",
                problem=f"captures the changes of {capture.source} at {capture.site}, from a copy of its redo: DDL of"
                f" {capture.source} ({path}) is replicated only where the source itself captures it, so far",
                fix=f"write site: {capture.source}, or {_AT_EVERY_SITE}",
            )


def _versions(spec: TopologySpec, entry: WantedDdl, destination: str) -> Iterator[Finding]:
    """Yield embedded servers of different versions; those of users are asked."""
    at = {site.name: site.database for site in spec.sites}
    source, target = at[entry.source], at[destination]
    if source.kind == target.kind == "embedded" and source.version != target.version:
        yield Finding(
            path=entry.path,
            problem=f"{entry.source} is PostgreSQL {source.version} and {destination} is PostgreSQL {target.version}: they"
            " write one definition differently, so that no change of one can be proved at the other",
            fix=f"use one major version at both, or {_AT_EVERY_SITE}",
        )


def _excluded(way: Way, entry: WantedDdl, tables: Iterable[TableName]) -> Iterator[Finding]:
    """Yield negative rules that discard rows of a table whose DDL passes them."""
    kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
    for table in tables:
        if not way.carries_ddl(table):
            continue
        for kind, client, passage in zip(kinds, way.clients, way.passages(table), strict=True):
            for number, rule in enumerate(client.rules.exclude):
                if rule.answer(*passage.table, None) is not TruthValue.FALSE:
                    yield Finding(
                        path=f"{kind}.{client.name}.rules.exclude[{number}]",
                        problem=f"discards changes of tables whose DDL goes from {entry.source} to {way.apply.site}"
                        f" ({entry.path}): DDL is replicated of whole tables only",
                        fix="remove the rule, or name in replicate only tables that it does not discard",
                    )


def _stopped(ways: Sequence[Way], entry: WantedDdl, destination: str, tables: Iterable[TableName]) -> Iterator[Finding]:
    """Yield clients on the way that take no DDL: those whose positive rules the file writes out."""
    told: set[str] = set()
    for table in tables:
        if any(way.carries_ddl(table) for way in ways):
            continue
        way = next((way for way in ways if way.carry(table, tag=None) is not None), None)
        client = "" if way is None else _first_without_ddl(way, table)
        if client and client not in told:
            told.add(client)
            yield Finding(
                path=entry.path,
                problem=f"the DDL of {table} does not reach {destination}: {client} has rules of its own in the file,"
                " and they take no DDL",
                fix=f"take {client} out of the file, so that replicate makes it, or {_AT_EVERY_SITE}",
            )


def _first_without_ddl(way: Way, table: TableName) -> str:
    """Return the first client on a way that takes a table's rows and not its DDL; empty: `_captures` reports it."""
    if way.capture.rules.include is None:
        return ""
    kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
    return next(
        f"{kind}.{client.name}"
        for kind, client, passage in zip(kinds, way.clients, way.passages(table), strict=True)
        if not client.rules.keeps_ddl(*passage.table, tag=None)
    )


def _shared(
    spec: TopologySpec, applies: Iterable[ApplySpec], entry: WantedDdl, tables: Iterable[TableName]
) -> Iterator[Finding]:
    """Yield tables that others write or capture at the destination, and those whose deletes leave tombstones there."""
    told: set[str] = set()
    for apply in applies:
        ways = ways_to(spec, apply)
        for table in tables:
            if not any(way.carries_ddl(table) for way in ways):
                continue
            for other in others_with(spec, apply, table):
                if other.name in told:
                    continue
                told.add(other.name)
                does = (
                    f"{other.name} writes {table} at {apply.site}, too"
                    if other.site == apply.site
                    else f"the changes of {table} at {apply.site} are captured there, for {other.name}"
                )
                yield Finding(
                    path=entry.path,
                    problem=f"{does}: rows of the old form would meet the new one, and DDL goes one way so far",
                    fix=f"{_AT_EVERY_SITE} while nothing writes the table; or let {apply.name} alone write it, and"
                    f" capture it at {apply.source} alone",
                )
        for owner, name in sorted(apply.conflicts.with_tombstones):
            if any(way.carries_ddl(TableName(owner, name)) for way in ways):
                yield Finding(
                    path=entry.path,
                    problem=f"{owner}.{name} has tombstones at {apply.site}: the trigger that records its deletes names"
                    " the columns of its primary key, which DDL can change",
                    fix=f"remove tombstones of {owner}.{name}, or {_AT_EVERY_SITE}",
                )
