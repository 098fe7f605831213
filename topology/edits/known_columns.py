"""The columns that tables had when `up` checked the transformations that name some.

A transformation names columns, and a column may be renamed at the source while everything runs. Its values would then
pass unmasked under the new name. So each client gets these columns with its rules, and stops at a version of a table
that lacks a named one and has a new one (`Transformation.must_know`).

    recorded    by the controller, in the record of the prepared topology
    given       to every client with its part of the topology, and to the copies of apply processes with that
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import KnownColumns, TransformationError
from topology.routing.ways import ways_to
from topology.spec import ApplySpec, CaptureSpec, PropagationSpec, TopologySpec

if TYPE_CHECKING:
    from headrace.lcr.batch import TableVersion
    from headrace.rules.rule import RuleSet
    from topology.routing.ways import Way

__all__ = ["TableColumns", "clients_that_know_others", "named_columns", "names_columns", "with_known_columns"]

Client = TypeVar("Client", CaptureSpec, PropagationSpec, ApplySpec)
_Seen = dict[tuple[str, str, int], dict[TableName, dict[str, None]]]
"""Columns of each table, by kind and name of a client and the place of its rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table of a source, in the order of its log."""

    owner: str
    name: str
    columns: tuple[str, ...]


def named_columns(spec: TopologySpec, source: str, versions: Iterable[TableVersion]) -> tuple[TableColumns, ...]:
    """Return the columns of those tables of which a transformation names some.

    Args:
        spec: routed.
        source: name of its site.
        versions: its captured tables as they are now.
    """
    ways = [way for apply in spec.applies if apply.source == source for way in ways_to(spec, apply)]
    found = []
    for version in versions:
        with suppress(TransformationError):  # the check of the file reports it
            made = [each for way in ways for each in way.transformations(version)]
            if any(each.named_columns for each in made):
                columns = tuple(column.name for column in version.columns)
                found.append(TableColumns(owner=version.owner, name=version.name, columns=columns))
    return tuple(found)


def names_columns(spec: TopologySpec) -> bool:
    """Return whether a transformation names columns."""
    rule_sets = [each.rules for clients in (spec.captures, spec.propagations, spec.applies) for each in clients]
    return any(
        rule.transformation is not None and bool(rule.transformation.named_columns)
        for rules in rule_sets
        for rule in rules.include or ()
    )


def clients_that_know_others(
    spec: TopologySpec, before: Mapping[str, Sequence[TableColumns]], after: Mapping[str, Sequence[TableColumns]]
) -> set[str]:
    """Return the clients, by full name, whose transformations get other columns than before.

    Args:
        spec: routed.
        before: the tables' columns that the clients got, by source.
        after: those that they are to get.
    """
    if before == after:
        return set()
    one, other = _seen(spec, before), _seen(spec, after)
    kinds = {"captures": "capture", "propagations": "propagation", "applies": "apply"}
    return {
        f"{kinds[kind]}:{name}"
        for kind, name, number in one.keys() | other.keys()
        if one.get((kind, name, number)) != other.get((kind, name, number))
    }


def with_known_columns(spec: TopologySpec, tables: Mapping[str, Sequence[TableColumns]]) -> TopologySpec:
    """Return a topology whose transformations know the columns of their tables.

    Args:
        spec: routed.
        tables: by source.
    """
    seen = _seen(spec, tables)
    if not seen:
        return spec
    return replace(
        spec,
        captures=tuple(_given("captures", each, seen) for each in spec.captures),
        propagations=tuple(_given("propagations", each, seen) for each in spec.propagations),
        applies=tuple(_given("applies", each, seen) for each in spec.applies),
    )


def _seen(spec: TopologySpec, tables: Mapping[str, Sequence[TableColumns]]) -> _Seen:
    found: _Seen = {}
    for apply in spec.applies:
        for table in tables.get(apply.source, ()):
            for way in ways_to(spec, apply):
                with suppress(TransformationError):
                    _see(way, table, found)
    return found


def _see(way: Way, table: TableColumns, seen: _Seen) -> None:
    """Add a table's columns at each client of a way."""
    names = table.columns
    kinds = ("captures", *("propagations" for _ in way.propagations), "applies")
    passages = way.passages(TableName(table.owner, table.name))
    for kind, client, (here, transformation, _) in zip(kinds, way.clients, passages, strict=True):
        if not client.rules.keeps(*here):
            return
        if transformation is None:
            continue
        for number in _takers(client.rules, here):
            columns = seen.setdefault((kind, client.name, number), {}).setdefault(here, {})
            columns.update(dict.fromkeys(names))  # a propagation may have tables of one name of several sources
        names = transformation.shape(names, table=str(here)).names


def _takers(rules: RuleSet, table: TableName) -> list[int]:
    takers = {id(each) for each in rules.takers(*table)}
    return [number for number, rule in enumerate(rules.include or ()) if id(rule) in takers]


def _given(kind: str, client: Client, seen: _Seen) -> Client:
    include = client.rules.include
    if include is None:
        return client
    rules = []
    for number, rule in enumerate(include):
        tables = seen.get((kind, client.name, number), {})
        if rule.transformation is not None and tables:
            known = tuple(
                KnownColumns(
                    owner=table.owner,
                    name=table.name,
                    columns=tuple(columns),
                    rule=f"{kind}.{client.name}.rules.include[{number}]",
                )
                for table, columns in tables.items()
            )
            rules.append(replace(rule, transformation=replace(rule.transformation, known=known)))
        else:
            rules.append(rule)
    return replace(client, rules=replace(client.rules, include=tuple(rules)))
