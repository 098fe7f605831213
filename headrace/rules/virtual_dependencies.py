"""Virtual dependency definitions: dependencies between rows that no constraint of the destination shows.

    value dependency     rows with equal values in named columns depend on each other, in one table or in several
    object dependency    a transaction that changes a table waits for every earlier one that changed its parent

Tables and columns have the names of LCRs at the destination. A NULL depends on nothing, as in a unique or foreign key.

Source: Oracle Streams Replication Administrator's Guide, "Virtual Dependency Definitions"; `semantics.md` 4.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.plain_data import SettingsAsBytes

__all__ = ["NO_VIRTUAL_DEPENDENCIES", "ObjectDependency", "ValueColumns", "ValueDependency", "VirtualDependencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueColumns:
    """The columns of one table in a value dependency.

    Args:
        owner: schema of the table.
        name: name of the table.
        columns: columns whose combined values are compared with those of the other tables, in this order.
    """

    owner: str
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDependency:
    """A value dependency.

    Args:
        name: unique in the apply process.
        tables: every table that takes part, each once, with equally many columns.
    """

    name: str
    tables: tuple[ValueColumns, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDependency:
    """An object dependency.

    Args:
        owner: schema of the waiting table.
        name: name of the waiting table.
        parent_owner: schema of the table for which it waits.
        parent_name: name of the table for which it waits.
    """

    owner: str
    name: str
    parent_owner: str
    parent_name: str

    @property
    def label(self) -> str:
        """Name of the dependency; the same for both tables."""
        return f"{self.owner}\0{self.name}\0{self.parent_owner}\0{self.parent_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualDependencies(SettingsAsBytes):
    """The virtual dependency definitions of an apply process.

    Args:
        values: value dependencies.
        objects: object dependencies.
    """

    values: tuple[ValueDependency, ...] = ()
    objects: tuple[ObjectDependency, ...] = ()

    def tables(self) -> Iterator[tuple[str, str]]:
        """Yield every named table, possibly several times."""
        for value in self.values:
            yield from ((each.owner, each.name) for each in value.tables)
        for each in self.objects:
            yield each.owner, each.name
            yield each.parent_owner, each.parent_name

    def columns(self, owner: str, name: str) -> tuple[str, ...]:
        """Return the columns of a table whose values define dependencies.

        Args:
            owner: schema of the table.
            name: name of the table.
        """
        found = (
            column
            for value in self.values
            for each in value.tables
            if (each.owner, each.name) == (owner, name)
            for column in each.columns
        )
        return tuple(dict.fromkeys(found))


NO_VIRTUAL_DEPENDENCIES = VirtualDependencies()
