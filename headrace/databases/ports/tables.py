"""A destination table as apply sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["DestinationColumn", "DestinationTable", "Diversion", "ForeignKey", "FoundRows", "are_comparable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationColumn:
    """A column of a destination table, in the terms of `headrace.lcr.batch.Column`."""

    name: str
    number: int  # the database's own; survives a rename
    type_name: str
    type_number: int
    type_modifier: int
    not_null: bool
    has_default: bool
    is_generated: bool  # computed by the database: never written
    is_identity_always: bool  # written with OVERRIDING SYSTEM VALUE, never SET
    equality: str  # canonical form for hashing: see `spark_apply.dependencies.hashes` ("integer", "bytes", ..., "none")
    converted: tuple[str, ...] = ()  # the source's types whose values an operator's function converts
    is_ordered: bool = False  # its values have an order
    # The order is the same at every site. Not so for text in a language's collation, which also has versions.
    has_one_order: bool = True
    is_number: bool = False  # values can be added without loss (not floating point)
    # The type below a domain, by which a source's log calls such a column; "": the type itself.
    base_type: str = ""


def are_comparable(tables: Sequence[Sequence[DestinationColumn]]) -> bool:
    """Whether equal values have equal canonical forms in all tables; "bytes" is the binary form of one type.

    Args:
        tables: for each table the columns whose values are compared, in one order; a table that lacks one is comparable
            with no other.
    """
    first = tables[0] if tables else ()
    return all(len(columns) == len(first) for columns in tables) and all(
        one.equality == other.equality != "none" and (one.equality != "bytes" or one.type_name == other.type_name)
        for columns in tables
        for one, other in zip(first, columns, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key of a destination table.

    Args:
        columns: names of its columns.
        owner: schema of the referenced table.
        name: of that table; for a partition, of its partitioned table.
        referred_columns: names of the columns there, in the order of `columns`.
    """

    columns: tuple[str, ...]
    owner: str
    name: str
    referred_columns: tuple[str, ...]


class FoundRows(Enum):
    """How many rows the values that identify an UPDATE's or DELETE's row can find."""

    ONE = "one"  # they contain a unique key: at most one row
    ANY = "any"  # several rows, of which one is changed
    # Several rows are an error, which the row count shows: no row counts, or all rows of a write with one row.
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """A rule or trigger of the destination that runs for apply's writes, in place of them.

    Args:
        command: INSERT, UPDATE or DELETE.
        what: its kind and name, for messages.
        is_always: it takes every row.
    """

    command: str
    what: str
    is_always: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationTable:
    """What apply must know of a table before writing to it.

    Args:
        owner, name: as LCRs name it.
        columns: in the table's order.
        key: positions in `columns` that identify a row: the primary key, else the smallest unique key of columns that
            are all NOT NULL, else the smallest with at least one NOT NULL column; empty: all columns together
            (duplicates are possible). Several rows may share a key that contains NULL.
        unique_keys: column positions of every unique constraint and unique index, `key` included.
        serialise: values do not show dependencies (no canonical equality in a key column, partial or expression unique
            index, exclusion constraint, no key): its transactions run one after another.
        ordered: collapsing would be observable (several unique keys, replica triggers): rows in source order.
        fires: some of its triggers or rules also run for apply's writes. They can see other tables: rows of those keep
            their order relative to its own.
        references: its foreign keys.
        referred: column names of each of its keys that a foreign key refers to, each once.
        is_substitute: `key` is the substitute key from the topology file: it need not be unique, and takes precedence.
        allow_duplicate_rows: the setting of `headrace.rules.table_settings`.
        number: of the table in its database; survives a rename and another key; 0: unknown.
        above: owner and name of the topmost partitioned table above it; empty: it is no partition.
        diversions: what may take a command's rows before the table does.
    """

    owner: str
    name: str
    columns: tuple[DestinationColumn, ...]
    key: tuple[int, ...]
    unique_keys: tuple[tuple[int, ...], ...]
    serialise: bool
    ordered: bool
    fires: bool = False
    references: tuple[ForeignKey, ...] = ()
    referred: tuple[tuple[str, ...], ...] = ()
    is_substitute: bool = False
    allow_duplicate_rows: bool | None = None
    number: int = 0
    above: tuple[str, ...] = ()
    diversions: tuple[Diversion, ...] = ()

    @property
    def identifying_keys(self) -> tuple[tuple[int, ...], ...]:
        """The unique keys that can find a row, the best one first: those with a NOT NULL column.

        For a table with a substitute key, all of them: rows with a NULL in it are found by all their values.
        """
        if self.is_substitute:
            return self.unique_keys
        others = (
            key for key in self.unique_keys if key != self.key and any(self.columns[place].not_null for place in key)
        )
        return (self.key, *others) if self.key else ()

    def rows_found_by(self, columns: Collection[int], *, is_whole: bool, has_null: bool) -> FoundRows:
        """Return how many rows values of these columns can find, and what happens to several.

        Args:
            columns: positions in `columns`, without generated ones.
            is_whole: they are all columns that the LCRs carry: rows that are found are equal in them.
            has_null: the key contains a NULL: no unique key distinguishes such rows.
        """
        if not has_null and any(set(key) <= set(columns) for key in self.identifying_keys):
            return FoundRows.ONE
        may_repeat = is_whole if self.allow_duplicate_rows is None else self.allow_duplicate_rows
        return FoundRows.ANY if may_repeat else FoundRows.SINGLE
