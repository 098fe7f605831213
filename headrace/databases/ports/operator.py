"""Additional ports for operators' commands: claims, rows and values for people, sequences, administrators' work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.databases.ports import Finding
    from headrace.lcr.batch import Column
    from headrace.lcr.table_name import TableName

__all__ = [
    "AS_ADMIN",
    "LEFT_TO_ADMIN",
    "ColumnSequence",
    "ColumnSequences",
    "DestinationAdmin",
    "KeyValue",
    "RowReader",
    "SourceAdmin",
    "TopologyClaim",
]

AS_ADMIN = "run `headrace up FILE`: it makes and upgrades this as the role of admin_dsn"
"""How missing objects are created where a site has an administrator."""

LEFT_TO_ADMIN = "a publication, the schema headrace and replication origins stay: the role of admin_dsn removes them"
"""What `remove` reports at a database that has an administrator.

The calling command then continues with `DestinationAdmin.remove` and `SourceAdmin.remove`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSequence:
    """A sequence that provides a column's values.

    Args:
        owner: schema of the table.
        table: its name.
        column: the column.
        name: of the sequence, as SQL statements of the database spell it.
        next_value: the next value it will give out.
        increment: between two values; negative for a descending sequence.
        least: lower bound.
        most: upper bound.
    """

    owner: str
    table: str
    column: str
    name: str
    next_value: int
    increment: int
    least: int
    most: int


class ColumnSequences(Protocol):
    """The sequences that provide columns' values in a database. Not shared between threads."""

    def of(self, tables: Sequence[tuple[str, str]]) -> tuple[ColumnSequence, ...]:
        """Return the sequences of all columns of these tables (owner, name): those in a column's default, else those it owns.

        A column has several if its default names several; several columns may share one.

        Raises:
            DatabaseError: one is not readable.
        """
        ...

    def unnamed(self, schemas: Sequence[str]) -> tuple[TableName, ...]:
        """Return the sequences that no column's default names, ordered by name.

        Triggers, functions and applications may use them for any column.

        Args:
            schemas: where to look.

        Raises:
            DatabaseError: the catalog is not readable.
        """
        ...

    def set_next(self, sequence: ColumnSequence, value: int) -> None:
        """Set the value that a sequence gives out next.

        Args:
            sequence: as `of` described it.
            value: what the next row without an explicit value gets; between `sequence.least` and `sequence.most`.

        Raises:
            DatabaseError: a right is missing.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """One column's value of a row's key, in the database's representations.

    Args:
        column: its name.
        text: the value's text form.
        binary: its binary form.
    """

    column: str
    text: str
    binary: bytes


class RowReader(Protocol):
    """Shows rows and values to a person, in the database's own form. Changes nothing; not shared between threads."""

    def texts(self, columns: Sequence[Column], values: Sequence[bytes | None]) -> tuple[str | None, ...]:
        """Return values as the database's own shell shows them.

        Args:
            columns: the column of each value, as the source describes it.
            values: in the form that `columns` say; None: NULL.

        Returns:
            One text each; None: NULL. A value that the database does not understand is shown in another readable form.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        ...

    def beside(
        self, owner: str, name: str, values: Mapping[str, tuple[Column, bytes | None]]
    ) -> tuple[dict[str, str | None], ...]:
        """Return the rows of a table whose key has these values now, then those with them in another unique key.

        Each row is a map of texts by column.

        Args:
            owner: the table's schema.
            name: the table.
            values: by column; only key columns are used.

        Returns:
            At most two rows for each key. Empty: no such row or table, or the values contain no complete key.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        ...

    def value_of(self, owner: str, name: str, column: Column, text: str | None) -> tuple[bytes | None, str | None]:
        """Convert a value that a person typed into the form in which LCRs of this column carry it.

        Args:
            owner: the table's schema.
            name: the table at this database.
            column: as the source describes it.
            text: in any form that the database accepts; None: NULL.

        Returns:
            The value, and its text as the database shows it; None: NULL.

        Raises:
            ConfigError: it is not a value of the column's type at the source, or does not fit the destination's column.
            DatabaseUnavailable: the database does not respond.
        """
        ...

    def key_of(self, owner: str, name: str, given: Sequence[tuple[str, str]]) -> tuple[KeyValue, ...]:
        """Convert a row's key that a person typed into the database's own forms.

        Args:
            owner: the table's schema.
            name: the table.
            given: column and value; column empty: those of the primary key, or of what identifies a row, in order.

        Raises:
            ConfigError: no such table or column, no key, or a value that is invalid for its column's type.
            DatabaseUnavailable: the database does not respond.
        """
        ...

    def rows_of(self, owner: str, name: str, key: Sequence[KeyValue]) -> tuple[dict[str, str | None], ...] | None:
        """Return the current rows with these values: texts by column, two at most.

        Args:
            owner: the table's schema.
            name: the table.
            key: values of some columns.

        Returns:
            None: no such table.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...


class TopologyClaim(Protocol):
    """A claim: exactly one copy of a topology works with a database. Not shared between threads."""

    def hold(self, *, take_over: bool = False, spares_own: bool = False) -> None:
        """Take the claim, or check that it is still held; idempotent, quick, to be called every few seconds.

        Args:
            take_over: end the session of a copy at another place that holds it.
            spares_own: let an earlier run of this copy keep it.

        Raises:
            RunsElsewhere: a copy at another place holds it; the message names the place.
            DatabaseUnavailable: the holder is unknown; call again.
        """
        ...

    def close(self) -> None:
        """Release the claim."""
        ...


class DestinationAdmin(Protocol):
    """A destination as the role of its `admin_dsn` sees it: it creates, alters and drops objects for the role of `dsn`."""

    def preflight(self, tombstones: Collection[tuple[str, str]]) -> tuple[Finding, ...]:
        """Find what keeps this role from its work, and whether the two roles are not separate.

        Args:
            tombstones: the tables (owner, name) whose deletes a trigger notes.
        """
        ...

    def prepare(self, tombstones: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Create or upgrade what the destination needs, and let the role of `dsn` use it; idempotent.

        Returns the statements that were run.

        Args:
            tombstones: as for `preflight`.

        Raises:
            DatabaseError: a right is missing; the hint has the statement that grants it.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop the topology's objects that the role of `dsn` may not drop; returns a line for each, and what stays and why.

        Args:
            topology: its name; none of its processes runs.
        """
        ...


class SourceAdmin(Protocol):
    """A source as the role of its `admin_dsn` sees it.

    This role creates and alters the object that says which tables' changes are in the log.
    """

    def preflight(self, topology: str, rules: Sequence[object]) -> tuple[Finding, ...]:
        """Find what keeps this role from its work, and whether the two roles are not separate.

        Args:
            topology: its name.
            rules: rule sets of the captures from here.
        """
        ...

    def prepare(self, topology: str, rules: Sequence[object], *, was_source: bool) -> tuple[str, ...]:
        """Put the changes of every selected table into the log, in addition to those already there; idempotent.

        Returns the statements that were run.

        Args:
            topology: its name.
            rules: as for `preflight`.
            was_source: the last prepared topology captures from here, too.

        Raises:
            DatabaseUnavailable: a table stayed locked; nothing is half done; retry.
            DatabaseError: a right is missing; the hint has the statement that grants it.
        """
        ...

    def take_out(
        self,
        topology: str,
        kept: Collection[str],
        *,
        among: Collection[str] | None = None,
        recorded: Callable[[], Collection[str]] = tuple,
        keeps_ddl: bool = True,
    ) -> tuple[str, ...]:
        """Take tables out of the log that no running process needs; idempotent.

        Returns the statements that were run.

        Args:
            topology: its name.
            kept: identities (`CapturedTable.identity`) of those that stay.
            among: identities of those that may leave; None: all others.
            recorded: called when the tables are locked: identities of the tables that running processes know by then.
                If one of the leaving tables is among them, none leaves.
            keeps_ddl: False: no running process needs DDL in the log either.

        Raises:
            DatabaseUnavailable: a table stayed locked; retry.
            DatabaseError: the administrator's connection string leads to another database.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop the topology's objects that the role of `dsn` may not drop. Returns the statements that were run.

        Args:
            topology: its name; none of its processes runs, and the log is no longer kept for it.
        """
        ...
