"""The columns that tables had when `up` checked the transformations that name some.

A transformation names columns, and a column may be renamed at the source while everything runs. Its values would then
pass unmasked under the new name. So each client gets these columns with its rules, and stops at a version of a table
that lacks a named one, or has them in another order (`Transformation.must_know`). `up` compares the tables of now with
what is recorded in the same way before it records them anew: it never forgets a masked column.

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
    from topology.routing.ways import Way

__all__ = [
    "TableColumns",
    "clients_that_know_others",
    "named_columns",
    "names_columns",
    "under_present_names",
    "with_known_columns",
]

Client = TypeVar("Client", CaptureSpec, PropagationSpec, ApplySpec)
_Seen = dict[tuple[str, str], dict["TableColumns", None]]
"""Columns of each table as they reach a client, by its kind and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table of a source, in the order of its log.

    Args:
        number: the source's number of the table; 0: not known, as in records of earlier versions.
    """

    owner: str
    name: str
    columns: tuple[str, ...]
    number: int = 0


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
                number = int(version.table_number)
                found.append(TableColumns(owner=version.owner, name=version.name, columns=columns, number=number))
    return tuple(found)


def under_present_names(recorded: Iterable[TableColumns], versions: Iterable[TableVersion]) -> tuple[TableColumns, ...]:
    """Return recorded columns with the names that their tables have now: rules take a table by its name.

    Args:
        recorded: of one source.
        versions: its captured tables as they are now.
    """
    now = {int(version.table_number): TableName.of(version) for version in versions}
    names = [(each, now.get(each.number, TableName(each.owner, each.name))) for each in recorded]
    return tuple(replace(each, owner=name.owner, name=name.name) for each, name in names)


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
        for kind, name in one.keys() | other.keys()
        if one.get((kind, name)) != other.get((kind, name))
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
        if client.rules.transforms:
            known = TableColumns(owner=here.owner, name=here.name, columns=tuple(names), number=table.number)
            seen.setdefault((kind, client.name), {})[known] = None
        if transformation is not None:
            names = transformation.shape(names, table=str(here)).names


def _given(kind: str, client: Client, seen: _Seen) -> Client:
    """Give every transformation all tables of its client: a renamed table may come to another rule."""
    tables = seen.get((kind, client.name), {})
    if client.rules.include is None or not tables:
        return client
    rules = []
    for number, rule in enumerate(client.rules.include):
        place = f"{kind}.{client.name}.rules.include[{number}]"
        known = tuple(
            KnownColumns(owner=each.owner, name=each.name, columns=each.columns, rule=place, number=each.number)
            for each in tables
        )
        made = rule.transformation
        rules.append(rule if made is None else replace(rule, transformation=replace(made, known=known)))
    return replace(client, rules=replace(client.rules, include=tuple(rules)))
