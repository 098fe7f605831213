"""A table of a destination, as applying needs to know it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["DestinationColumn", "DestinationTable", "Diversion", "ForeignKey", "FoundRows", "are_comparable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationColumn:
    """A destination table's column, in the same words as `headrace.lcr.batch.Column`."""

    name: str
    number: int  # the database's own; the column keeps it when it is renamed
    type_name: str
    type_number: int
    type_modifier: int
    not_null: bool
    has_default: bool
    is_generated: bool  # computed by the database: never written
    is_identity_always: bool  # written with OVERRIDING SYSTEM VALUE, never SET
    equality: str  # canonical form for hashing: see `spark_apply.dependencies.hashes` ("integer", "bytes", ..., "none")
    converted: tuple[str, ...] = ()  # the source's types whose values an operator's function converts
    is_ordered: bool = False  # of two values one is higher, or they are equal
    # it is the same at every site: not that of texts under the rules of a language, which have versions, too
    has_one_order: bool = True
    is_number: bool = False  # values can be added without losing any of them (not floating point)
    # of a domain the type below it, by which a source's log calls such a column; "": the type itself
    base_type: str = ""


def are_comparable(tables: Sequence[Sequence[DestinationColumn]]) -> bool:
    """Whether equal values have equal canonical forms in all tables; "bytes" are those of one type's binary form.

    Args:
        tables: of each table the columns whose values are compared, in one order; a table that lacks one compares with
            none.
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
        owner: schema of the table that it refers to.
        name: of that table; of a partition, its partitioned table's.
        referred_columns: names of the columns there, in the order of `columns`.
    """

    columns: tuple[str, ...]
    owner: str
    name: str
    referred_columns: tuple[str, ...]


class FoundRows(Enum):
    """What the values by which an UPDATE or a DELETE finds its row can find."""

    ONE = "one"  # a unique key is among them: one row at most
    ANY = "any"  # several rows: one of them is changed
    # several rows: that is an error, which the count shows: none of them counts, or all of a write with one row
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """A rule or trigger of the destination that runs for what apply writes, and in place of it.

    Args:
        command: INSERT, UPDATE or DELETE.
        what: the kind and the name, for messages.
        is_always: it takes every row.
    """

    command: str
    what: str
    is_always: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationTable:
    """What apply must know of a table before it writes to it.

    Args:
        owner, name: as LCRs name it.
        columns: in the table's order.
        key: positions in `columns` that identify a row: the primary key, else the smallest unique key of columns that
            are all NOT NULL, else the smallest with one that is; empty: all columns together (duplicates are possible).
            With a NULL in it several rows may have it.
        unique_keys: column positions of every unique constraint and unique index, `key` included.
        serialise: dependencies cannot be told from values (no canonical equality in a key column, partial or
            expression unique index, exclusion constraint, no key): transactions on it run one after the other.
        ordered: collapsing could be noticed (several unique keys, replica triggers): rows in source order.
        fires: triggers or rules of it also run for what apply writes. They can see other tables: rows of those keep
            their order with its own.
        references: its foreign keys.
        referred: column names of each of its keys that a foreign key refers to, each once.
        is_substitute: `key` is the substitute key that the topology file sets: it need not be unique, and takes
            precedence.
        allow_duplicate_rows: see `headrace.rules.table_settings`.
        number: of the table in its database, which keeps it when it is renamed or gets another key; 0: not known.
        above: owner and name of the partitioned table that it is a partition of, the topmost; empty: it is none.
        diversions: what may take rows of a command before the table does.
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

        Of a table with a substitute key all of them: rows with a NULL in it are found by all their values.
        """
        if self.is_substitute:
            return self.unique_keys
        others = (
            key for key in self.unique_keys if key != self.key and any(self.columns[place].not_null for place in key)
        )
        return (self.key, *others) if self.key else ()

    def rows_found_by(self, columns: Collection[int], *, is_whole: bool, has_null: bool) -> FoundRows:
        """How many rows values of these columns can find, and what becomes of several.

        Args:
            columns: positions in `columns`, without generated ones.
            is_whole: they are all that the LCRs carry: rows that are found are equal in it.
            has_null: the key has a NULL: no unique key tells such rows apart.
        """
        if not has_null and any(set(key) <= set(columns) for key in self.identifying_keys):
            return FoundRows.ONE
        may_repeat = is_whole if self.allow_duplicate_rows is None else self.allow_duplicate_rows
        return FoundRows.ANY if may_repeat else FoundRows.SINGLE
