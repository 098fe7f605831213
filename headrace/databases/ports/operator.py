"""What an operator's commands need of a database besides `headrace.databases.ports`: who works with it, its rows, its sequences."""

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
"""How what is missing is made where a site has an administrator."""

LEFT_TO_ADMIN = "a publication, the schema headrace and replication origins stay: the role of admin_dsn removes them"
"""What a database that has an administrator says of `remove`; the command that asked for it goes on with
`DestinationAdmin.remove` and `SourceAdmin.remove`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSequence:
    """A sequence that gives a column its values.

    Args:
        owner: schema of the table.
        table: its name.
        column: the column.
        name: of the sequence, as the database writes it in statements.
        next_value: the value it gives out next.
        increment: between two values; negative for a descending one.
        least: bound.
        most: bound.
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
    """The sequences of a database that give columns their values. Not shared between threads."""

    def of(self, tables: Sequence[tuple[str, str]]) -> tuple[ColumnSequence, ...]:
        """The sequences of all columns of these tables (owner, name): those that a column's default names, else those it owns.

        Several of one column, if its default names several; and one of several columns.

        Raises:
            DatabaseError: one may not be read.
        """
        ...

    def unnamed(self, schemas: Sequence[str]) -> tuple[TableName, ...]:
        """The sequences that no column's default names, in the order of their names.

        Triggers, functions and applications may use them, for whatever column.

        Args:
            schemas: where they are.

        Raises:
            DatabaseError: the catalog may not be read.
        """
        ...

    def set_next(self, sequence: ColumnSequence, value: int) -> None:
        """Let a sequence give out `value` next; it is within the sequence's bounds.

        Args:
            sequence: as `of` described it.
            value: what the next row without a value of its own gets; between `sequence.least` and `sequence.most`.

        Raises:
            DatabaseError: a right is missing.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """One column's value of a row's key, as the database writes it.

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
        """Values as the database's own shell shows them.

        Args:
            columns: what each is a value of, as the source describes it.
            values: in the form `columns` say; None: NULL.

        Returns:
            One text each; None: NULL. A value the database does not understand is shown in another readable form.

        Raises:
            DatabaseUnavailable: the database does not answer.
        """
        ...

    def beside(
        self, owner: str, name: str, values: Mapping[str, tuple[Column, bytes | None]]
    ) -> tuple[dict[str, str | None], ...]:
        """The rows of a table whose key has these values now, then those that have them in another unique key.

        Texts by column.

        Args:
            owner: the table's schema.
            name: the table.
            values: by column; those of keys are used.

        Returns:
            Two rows at most for each key. Empty: there is no such row or table, or the values do not tell a key.

        Raises:
            DatabaseUnavailable: the database does not answer.
        """
        ...

    def value_of(self, owner: str, name: str, column: Column, text: str | None) -> tuple[bytes | None, str | None]:
        """A value that a person typed, in the form in which LCRs of this column carry it.

        Args:
            owner: the table's schema.
            name: the table at this database.
            column: as the source describes it.
            text: in any form that the database reads; None: NULL.

        Returns:
            The value, and how the database shows it; None: NULL.

        Raises:
            ConfigError: it is no value of the column's type at the source, or does not fit the destination's column.
            DatabaseUnavailable: the database does not answer.
        """
        ...

    def key_of(self, owner: str, name: str, given: Sequence[tuple[str, str]]) -> tuple[KeyValue, ...]:
        """A row's key in the database's own forms, from what a person typed.

        Args:
            owner: the table's schema.
            name: the table.
            given: column and value; column empty: those of the primary key, or of what identifies a row, in order.

        Raises:
            ConfigError: there is no such table or column, it has no key, or a value is none of its column's type.
            DatabaseUnavailable: the database does not answer.
        """
        ...

    def rows_of(self, owner: str, name: str, key: Sequence[KeyValue]) -> tuple[dict[str, str | None], ...] | None:
        """The rows with these values as they are now: texts by column, two at most.

        Args:
            owner: the table's schema.
            name: the table.
            key: values of some columns.

        Returns:
            None: there is no such table.

        Raises:
            DatabaseUnavailable: the database does not answer.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...


class TopologyClaim(Protocol):
    """That one copy of a topology works with a database, and no other. Not shared between threads."""

    def hold(self, *, take_over: bool = False, spares_own: bool = False) -> None:
        """Take the claim, or make sure that it is still held; idempotent, quick, to be called every few seconds.

        Args:
            take_over: end the session of another place's copy that has it.
            spares_own: let an earlier life of this copy keep it.

        Raises:
            RunsElsewhere: another place's copy has it; the message names the place.
            DatabaseUnavailable: it is unknown who has it; call again.
        """
        ...

    def close(self) -> None:
        """Give it up."""
        ...


class DestinationAdmin(Protocol):
    """A destination as the role of its `admin_dsn` sees it: it creates, alters and drops what the role of `dsn` uses."""

    def preflight(self, tombstones: Collection[tuple[str, str]]) -> tuple[Finding, ...]:
        """What keeps this role from its work, and the other one apart from it.

        Args:
            tombstones: the tables (owner, name) whose deletes are noted by a trigger.
        """
        ...

    def prepare(self, tombstones: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Create or upgrade what the destination needs, and let the role of `dsn` use it; idempotent.

        Returns the statements that were run.

        Args:
            tombstones: see `preflight`.

        Raises:
            DatabaseError: a right is missing; the hint gives it.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop what the topology made and the role of `dsn` may not drop; a line for each, and for what stays and why.

        Args:
            topology: its name; nothing of it runs.
        """
        ...


class SourceAdmin(Protocol):
    """A source as the role of its `admin_dsn` sees it.

    It makes and changes what says which tables' changes are in the log.
    """

    def preflight(self, topology: str, rules: Sequence[object]) -> tuple[Finding, ...]:
        """What keeps this role from its work, and the other one apart from it.

        Args:
            topology: its name.
            rules: rule sets of the captures from here.
        """
        ...

    def prepare(self, topology: str, rules: Sequence[object], *, was_source: bool) -> tuple[str, ...]:
        """Let the changes of every selected table be in the log, besides those that are already; idempotent.

        Returns the statements that were run.

        Args:
            topology: its name.
            rules: see `preflight`.
            was_source: the topology that was prepared last captures from here, too.

        Raises:
            DatabaseUnavailable: a table stayed locked; nothing is half done, call again.
            DatabaseError: a right is missing; the hint gives it.
        """
        ...

    def take_out(
        self,
        topology: str,
        kept: Collection[str],
        *,
        among: Collection[str] | None = None,
        recorded: Callable[[], Collection[str]] = tuple,
    ) -> tuple[str, ...]:
        """Take tables out of the log that nothing that runs waits for; idempotent.

        Returns the statements that were run.

        Args:
            topology: its name.
            kept: identities (`CapturedTable.identity`) of those that stay.
            among: identities of those that may leave; None: all others.
            recorded: asked once the tables are locked: identities of those that what runs knows by then. If one of
                those that would leave is among them, nothing leaves.

        Raises:
            DatabaseUnavailable: a table stayed locked; call again.
            DatabaseError: the administrator's connection string leads to another database.
        """
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop what the topology made and the role of `dsn` may not drop. Returns the statements that were run.

        Args:
            topology: its name; nothing of it runs, and the log is not kept for it any more.
        """
        ...
