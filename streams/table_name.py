"""A table's name in one database.

One table has two of them, at its source and at a destination; they are equal unless a rule renames it. Code that copies,
compares or checks a table keeps both, and says which of the two it uses.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Named", "TableName", "quoted", "quoted_name"]


class Named(Protocol):
    """A table, whatever else is known of it."""

    @property
    def owner(self) -> str:
        """Its schema."""
        ...

    @property
    def name(self) -> str:
        """Its name in the schema."""
        ...


class TableName(NamedTuple):
    """Schema and name, as the database keeps them."""

    owner: str
    name: str

    @classmethod
    def of(cls, table: Named) -> TableName:
        """The name of a table of which more is known."""
        return cls(table.owner, table.name)

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def quoted_name(table: Named) -> str:
    """A table's name for a statement that an operator runs: `"schema"."name"`, whatever characters it has."""
    return f"{quoted(table.owner)}.{quoted(table.name)}"


def quoted(name: str) -> str:
    """A column's name, or one part of another, for such a statement."""
    return '"' + name.replace('"', '""') + '"'
