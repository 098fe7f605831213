"""The receivers of each captured table of a source, as of the topology that was prepared last.

Rules name tables. A table that is renamed at the source may leave the rules of a propagation or an apply process, while
the capture process still takes it. Its rows would silently be discarded. Or another rule takes it, which does not mask
what the former one masked. The record here distinguishes such a rename from a table that an operator excluded.

    recorded    the rules along each way to an apply process; of each captured table its name and its receivers
    when        everything runs with the wanted topology, together with what each destination records as LEFT
    asked by    the capture process, for every new name in its log (`headrace.redo.mining.names`);
                the source's site, for its status
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headrace.databases.ports import CapturedTable
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.table_name import TableName
from headrace.rules.rule import RuleSet, passages, tags_told_apart
from headrace.rules.transformations.transformation import RenameSchema, RenameTable, TransformationError
from topology.routing.ways import Way, ways_to
from topology.spec import TopologySpec

__all__ = ["NotedTable", "NotedWay", "Receivers"]

_Got = tuple[str, bytes | None, tuple[str, ...]]
"""An apply process that gets a table, the tag of the changes, and what the way does to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedWay:
    """A recorded way to an apply process, and the rule sets along it."""

    apply: str
    rules: tuple[RuleSet, ...]

    @classmethod
    def of(cls, way: Way) -> NotedWay:
        """Record a way."""
        return cls(apply=way.apply.name, rules=tuple(client.rules for client in way.clients))

    def arrival_of(self, table: TableName) -> TableName | None:
        """Return the name of a table where it arrives, whatever the tag of its changes; None: it does not arrive."""
        if not any(self.carries(*table, tag) for tag in tags_told_apart(self.rules)):
            return None
        return [table, *(each.behind for each in passages(self.rules, table))][-1]

    def changes_of(self, table: TableName) -> tuple[str, ...]:
        """Return what transformations on the way do to a table's columns and values; its names do not count."""
        try:
            made = [each.transformation for each in passages(self.rules, table) if each.transformation is not None]
        except TransformationError:  # two rules disagree: the client stops at the table, and says so
            return ("undefined",)
        return tuple(
            str(step)
            for each in made
            for step in (*each.operations, each.custom)
            if step is not None and not isinstance(step, RenameTable | RenameSchema)
        )

    def carries(self, owner: str, name: str, tag: bytes | None) -> bool:
        """Return whether changes of a table arrive under the recorded rules; as `topology.routing.ways.Way.carry`.

        Args:
            owner: schema of the table, as the source names it.
            name: name of the table in that schema.
            tag: of the changes; None: the NULL tag.
        """
        return all(
            rules.keeps(*each.table, tag=tag)
            for rules, each in zip(self.rules, passages(self.rules, TableName(owner, name)), strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTable:
    """A captured table and its name when it was recorded (`headrace.databases.ports.CapturedTable`)."""

    identity: str
    owner: str
    name: str
    object_numbers: tuple[ObjectNumber, ...]


@dataclass(frozen=True, kw_only=True)
class Receivers:
    """The recorded ways and tables of one source. If nothing is recorded, no apply process can lose a table.

    Args:
        ways: from the source to every apply process that gets its changes.
        tables: captured tables.
    """

    ways: tuple[NotedWay, ...] = ()
    tables: tuple[NotedTable, ...] = ()

    @classmethod
    def of(cls, spec: TopologySpec, source: str, captured: Iterable[CapturedTable]) -> Receivers:
        """Record who gets what.

        Args:
            spec: routed (`topology.routing.ways.route`).
            source: site name.
            captured: its captured tables, under their present names.
        """
        return cls(
            ways=tuple(
                NotedWay.of(way) for apply in spec.applies if apply.source == source for way in ways_to(spec, apply)
            ),
            tables=tuple(
                NotedTable(identity=each.identity, owner=each.owner, name=each.name, object_numbers=each.object_numbers)
                for each in captured
            ),
        )

    def identity_of(self, object_number: int) -> str | None:
        """Return the table that an object number belonged to; None: not recorded, such as a partition that is newer."""
        return self._identities.get(object_number)

    def lost_by(self, identity: str | None, owner: str, name: str) -> tuple[str, ...]:
        """Return the apply processes that got a table and would not get it under another name, or get it otherwise.

        Args:
            identity: of the table; None: unknown, treated as a table that every receiver of any table got.
            owner: schema of the other name.
            name: the other name.
        """
        noted = self._everyone if identity is None else self._noted.get(identity, frozenset())
        return tuple(sorted({apply for apply, _, _ in noted - self._who_get(owner, name)}))

    def is_strayed(self, table: CapturedTable) -> bool:
        """Return whether a table was renamed since, and an apply process that got it no longer does."""
        names = self._names.get(table.identity)
        return names not in {None, (table.owner, table.name)} and bool(
            self.lost_by(table.identity, table.owner, table.name)
        )

    def name_at_destinations(self, table: CapturedTable) -> TableName | None:
        """Return the old name of a renamed table, if a destination got it under the source's name; None: none did."""
        old = self._names.get(table.identity)
        if old in {None, (table.owner, table.name)}:
            return None
        name = TableName(*old)
        return name if any(way.arrival_of(name) == name for way in self.ways) else None

    def _who_get(self, owner: str, name: str) -> frozenset[_Got]:
        table = TableName(owner, name)
        return frozenset(
            (way.apply, tag, way.changes_of(table))
            for way in self.ways
            for tag in self._tags
            if way.carries(owner, name, tag)
        )

    @cached_property
    def _tags(self) -> tuple[bytes | None, ...]:
        return tags_told_apart(rules for way in self.ways for rules in way.rules)

    @cached_property
    def _noted(self) -> dict[str, frozenset[_Got]]:
        return {table.identity: self._who_get(table.owner, table.name) for table in self.tables}

    @cached_property
    def _everyone(self) -> frozenset[_Got]:
        return frozenset().union(*self._noted.values())

    @cached_property
    def _names(self) -> dict[str, tuple[str, str]]:
        return {table.identity: (table.owner, table.name) for table in self.tables}

    @cached_property
    def _identities(self) -> dict[int, str]:
        return {int(number): table.identity for table in self.tables for number in table.object_numbers}
