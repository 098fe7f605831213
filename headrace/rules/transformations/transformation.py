"""Transformations of positive rules: a table's name and columns behind a client.

A transformation is a list of operations on one row LCR, in the manuals' order: by step number, and within a step

    0 keep_columns   1 delete_columns   2 rename_column   3 add_column   4 rename_table   5 rename_schema

Each sees the result of the one before. None of them reads a row, so the resulting columns of a table
(`Transformation.shape`) are computed once; `headrace.rules.transformations.reshaping` applies them to table versions
and batches.

Absent columns
    A missing column in a keep, delete or rename is ignored, as the manuals say. Renaming or adding a column under an
    existing name is an error that stops the client.

Lost columns
    `up` gives a transformation the columns that its tables had then (`KnownColumns`). A version of a table may lack one
    that is named or dropped here, or have its columns in another order. Then its values may pass as they are, under
    another name. That is an error, too, whatever the cause: the names in a version cannot tell a rename from a drop.

Finding rows
    Under a replica identity that logs key columns only, these must be replicated: without one of them a row could not
    be found, or another row would be. So deleting one is an error (`TransformationError`); under an identity that logs
    the whole row it is allowed.

Added columns
    The new row has the value. The old one has it, too, if the whole old row is logged: every row of this source has it
    at the destination. `current_timestamp` is the time when the client evaluates the LCR; its old value is not known.
    Added columns precede the source's own: `spark_apply.tables.fits` recognises renamed columns by their order, in
    which new ones come last.

Functions
    After its declarative operations a transformation may have a user's function, which changes only values
    (`headrace.rules.transformations.custom`): all statements here about names and columns hold with it, too.

Source: Oracle Streams Concepts and Administration 11.2, "Rule-Based Transformations"; `DBMS_STREAMS_ADM.ADD_COLUMN` and
its neighbours; `semantics.md` 4.5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from headrace.base.errors import HeadraceError, Retry
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.custom import CustomTransformation

__all__ = [
    "CURRENT_TIMESTAMP",
    "CURRENT_TIMESTAMP_NUMBER",
    "AddColumn",
    "DeleteColumns",
    "KeepColumns",
    "KnownColumns",
    "Operation",
    "RenameColumn",
    "RenameSchema",
    "RenameTable",
    "Shape",
    "Transformation",
    "TransformationError",
    "columns_at_the_end",
    "in_order",
]

_NO_NAME = TableName("", "")  # the result for it is what the transformation sets
CURRENT_TIMESTAMP = "pg_catalog.timestamptz"
CURRENT_TIMESTAMP_NUMBER = 1184  # PostgreSQL's number
"""The type of an added column whose value is the time of the evaluation."""


class TransformationError(HeadraceError):
    """A transformation cannot be applied to a table; none of its changes continued."""

    code = "HDR-1220"
    fix = "Correct the transformation, or the function that it calls, then run `headrace up FILE`."
    retry = Retry.MANUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepColumns:
    """Drop every other column."""

    kept: tuple[str, ...]

    def __str__(self) -> str:
        return f"only {', '.join(self.kept)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteColumns:
    """Drop these columns."""

    deleted: tuple[str, ...]

    def __str__(self) -> str:
        return f"without {', '.join(self.deleted)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """Give a column another name."""

    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.before} as {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """Give every new row one more value.

    Args:
        name: name of the column.
        type_name: its type, schema-qualified.
        value: the value in the type's text form; None: NULL, or the time.
        is_now: the value is the time of the evaluation.
    """

    name: str
    type_name: str
    value: str | None = None
    is_now: bool = False

    def __str__(self) -> str:
        value = "current_timestamp" if self.is_now else "NULL" if self.value is None else repr(self.value)
        return f"with {self.name} = {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """Give the table another name and schema."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"as {self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameSchema:
    """Move the table to another schema."""

    owner: str

    def __str__(self) -> str:
        return f"in schema {self.owner}"


Operation = KeepColumns | DeleteColumns | RenameColumn | AddColumn | RenameTable | RenameSchema
_PRECEDENCE: dict[type[Operation], int] = {
    KeepColumns: 0,
    DeleteColumns: 1,
    RenameColumn: 2,
    AddColumn: 3,
    RenameTable: 4,
    RenameSchema: 5,
}


def in_order(operations: Iterable[tuple[int, Operation]]) -> tuple[Operation, ...]:
    """Sort operations with their step numbers into the order of application."""
    return tuple(each for _, each in sorted(operations, key=lambda found: (found[0], _PRECEDENCE[type(found[1])])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table's columns behind a client, in transport order.

    Args:
        columns: name there, and its origin: the column before the client, or the operation that adds it.
    """

    columns: tuple[tuple[str, str | AddColumn], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names behind the client."""
        return tuple(name for name, _ in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """The columns that a table had when `up` checked a transformation.

    Args:
        owner, name: of the table, as the client's rules name it.
        columns: their names before the client, in the order of the log.
        rule: place of the rule in the topology file, for messages.
        number: the source's number of the table, which stays when it is renamed; 0: not known.
    """

    owner: str
    name: str
    columns: tuple[str, ...]
    rule: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformation:
    """A rule's change to the LCRs that it takes.

    Args:
        operations: declarative ones, in the order of application.
        custom: function that is called after them; None: none. There is at least one operation, or a function.
        known: the columns of tables that `up` has seen; what is in the file alone has none. No part of the identity.
    """

    operations: tuple[Operation, ...] = ()
    custom: CustomTransformation | None = None
    known: tuple[KnownColumns, ...] = field(default=(), compare=False, repr=False)

    @property
    def renames(self) -> bool:
        """Whether the table may get another name."""
        return any(isinstance(each, RenameTable | RenameSchema) for each in self.operations)

    @property
    def new_name(self) -> TableName | None:
        """The name that every table gets; None: it keeps its own, or only the schema changes."""
        found = self.named(_NO_NAME)
        return found if found.name else None

    @property
    def new_owner(self) -> str:
        """The schema into which tables are moved under their own names; empty: none."""
        found = self.named(_NO_NAME)
        return "" if found.name else found.owner

    @property
    def reshapes(self) -> bool:
        """Whether columns change, or their names."""
        return any(not isinstance(each, RenameTable | RenameSchema) for each in self.operations)

    @property
    def leaves_out(self) -> bool:
        """Whether columns are dropped."""
        return any(isinstance(each, KeepColumns | DeleteColumns) for each in self.operations)

    @property
    def added(self) -> tuple[AddColumn, ...]:
        """The added columns."""
        return tuple(each for each in self.operations if isinstance(each, AddColumn))

    def named(self, table: TableName) -> TableName:
        """Return the table's name behind the client."""
        for each in self.operations:
            if isinstance(each, RenameTable):
                table = TableName(each.owner, each.name)
            elif isinstance(each, RenameSchema):
                table = TableName(each.owner, table.name)
        return table

    def shape(self, names: Sequence[str], *, table: str) -> Shape:
        """Return the columns behind the client.

        Args:
            names: column names before it.
            table: its name, for messages.

        Raises:
            TransformationError: two columns would have one name, or none is left.
        """
        columns: list[tuple[str, str | AddColumn]] = [(name, name) for name in names]
        for each in self.operations:
            there = [name for name, _ in columns]
            match each:
                case KeepColumns():
                    columns = [column for column in columns if column[0] in each.kept]
                case DeleteColumns():
                    columns = [column for column in columns if column[0] not in each.deleted]
                case RenameColumn():
                    if each.before in there and each.before != each.after:
                        _must_be_free(each.after, there, table)
                        columns = [(each.after if name == each.before else name, origin) for name, origin in columns]
                case AddColumn():
                    _must_be_free(each.name, there, table)
                    columns = [(each.name, each), *columns]
                case _:
                    pass
        if names and not any(isinstance(origin, str) for _, origin in columns):
            raise TransformationError(
                f"no column of {table} is left",
                hint="keep at least the key columns; or leave the table out of the rules",
                table=table,
            )
        return Shape(columns=tuple(columns))

    def origin(self, name: str) -> str | None:
        """Return the name before the client of a column behind it; None: it is added here, or cannot exist.

        The existing columns are not known here: every renamed column is assumed to exist. `columns_at_the_end` knows
        them.

        Args:
            name: behind the client.
        """
        for each in reversed(self.operations):
            match each:
                case RenameColumn():
                    if name == each.after:
                        name = each.before
                    elif name == each.before:
                        return None
                case AddColumn() if each.name == name:
                    return None
                case DeleteColumns() if name in each.deleted:
                    return None
                case KeepColumns() if name not in each.kept:
                    return None
                case _:
                    pass
        return name

    def after(self, name: str) -> str | None:
        """Return a column's name behind the client; None: it is dropped.

        Args:
            name: before the client.
        """
        for each in self.operations:
            match each:
                case KeepColumns() if name not in each.kept:
                    return None
                case DeleteColumns() if name in each.deleted:
                    return None
                case RenameColumn() if name == each.before:
                    name = each.after
                case _:
                    pass
        return name

    def leaves_alone(self, name: str) -> bool:
        """Return whether a column, if it exists, keeps its name and its values behind the client."""
        is_taken = any(
            each.after == name if isinstance(each, RenameColumn) else isinstance(each, AddColumn) and each.name == name
            for each in self.operations
        )
        return self.after(name) == name and not is_taken and not self.may_change(name)

    def may_change(self, name: str) -> bool:
        """Return whether a function may change a column's values.

        Args:
            name: behind the client.
        """
        return self.custom is not None and self.custom.may_change(name)

    def without_code(self) -> Transformation:
        """Return the part on which a table's copy depends: the same for every version of a function."""
        return self if self.custom is None else replace(self, custom=self.custom.without_code())

    def unmet(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return columns that are kept, deleted, renamed or changed by name, but do not exist.

        Args:
            names: column names before the client.
        """
        there, missing = set(names), []
        for each in self.operations:
            match each:
                case KeepColumns():
                    missing += [name for name in each.kept if name not in there]
                    there &= set(each.kept)
                case DeleteColumns():
                    missing += [name for name in each.deleted if name not in there]
                    there -= set(each.deleted)
                case RenameColumn():
                    missing += [] if each.before in there else [each.before]
                    there = there - {each.before} | {each.after}
                case AddColumn():
                    there.add(each.name)
                case _:
                    pass
        if self.custom is not None:
            missing += [name for name in self.custom.columns or () if name not in there]
        return tuple(dict.fromkeys(missing))

    @property
    def named_columns(self) -> frozenset[str]:
        """Columns that are named here, whether or not a table has them."""
        found: set[str] = set() if self.custom is None else set(self.custom.columns or ())
        for each in self.operations:
            match each:
                case KeepColumns():
                    found |= set(each.kept)
                case DeleteColumns():
                    found |= set(each.deleted)
                case RenameColumn():
                    found.add(each.before)
                case _:
                    pass
        return frozenset(found)

    def must_know(
        self, table: TableName, names: Sequence[str], *, numbers: Collection[int] = (), is_partition: bool = False
    ) -> None:
        """Refuse a table version in which a column may have another name than when `up` checked the file.

        Args:
            table: the table, under its name before the client.
            names: its column names there, in order.
            numbers: the table is one of these at the source; empty: not known, only its name is.
            is_partition: the rows are of a partition, whose columns may have an order of their own.

        Raises:
            TransformationError: a column is missing that is named or dropped here, or the columns changed their order.
        """
        if not self.named_columns:
            return
        for known in self._known_of(table, numbers):
            there = set(self.unmet(known.columns))
            lost = [name for name in known.columns if name not in names and self.after(name) is None]
            lost += [name for name in self.unmet(names) if name not in there]
            stayed = [name for name in known.columns if name in names]
            moved = stayed != [name for name in names if name in stayed]
            if lost or (moved and not is_partition):
                new = [name for name in names if name not in known.columns]
                raise _lost(self, table, known.rule, tuple(dict.fromkeys(lost)), new)

    def _known_of(self, table: TableName, numbers: Collection[int]) -> list[KnownColumns]:
        """Return what is known of a table: by its number, which a rename keeps, else by its name.

        Tables of two sources may have one number: then the one with this name is meant.
        """
        named = [each for each in self.known if (each.owner, each.name) == table]
        numbered = [each for each in self.known if each.number in numbers]
        return [each for each in numbered if each in named] or numbered or named

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.operations, *([] if self.custom is None else [self.custom]))))


def columns_at_the_end(
    names: Sequence[str], transformations: Sequence[Transformation], *, table: TableName, numbers: Collection[int] = ()
) -> tuple[tuple[str, str | AddColumn], ...]:
    """Return a table's columns behind several clients: name, and the source's column or the adding operation.

    Args:
        names: its column names at the source.
        transformations: transformations of successive clients.
        table: its name at the source.
        numbers: the source's numbers of the table and its partitions; empty: not known.

    Raises:
        TransformationError: one of them cannot be applied to the table.
    """
    known: dict[str, str | AddColumn] = {name: name for name in names}
    here = table
    for each in transformations:
        each.must_know(here, list(known), numbers=numbers)
        here = each.named(here)
        shape = each.shape(list(known), table=str(table))
        known = {name: origin if isinstance(origin, AddColumn) else known[origin] for name, origin in shape.columns}
    return tuple(known.items())


def _lost(
    transformation: Transformation, table: TableName, rule: str, lost: Sequence[str], new: Sequence[str]
) -> TransformationError:
    other = table.name.replace("'", "''")
    again = (
        f"take {table} out of the rules (give a rule for a schema or pattern the condition"
        f" object_name <> '{other}'), run `headrace up FILE` and `headrace wait FILE --caught-up`, put it back with the"
        " names of now (there: in a rule of its own), and run `headrace up FILE`: it is copied anew"
    )
    named = [name for name in lost if name in transformation.named_columns]
    if lost and len(named) == len(lost):
        again = (
            f"if it was dropped, take it out of {rule}; if it was renamed and a function masks it, name it there as the"
            " source calls it now, beside the former name if other tables of the rule have that; then run"
            f" `headrace up FILE`. In all other cases, and if it then stops at an older change, {again}"
        )
    what = (
        f"{table} has no column {', '.join(lost)} any more, which {rule} names or drops"
        if lost
        else f"the columns of {table} are no longer in the order that they had at `headrace up`, and {rule} names some"
    )
    return TransformationError(
        f"{what} ({transformation}); new columns: {', '.join(new) or 'none'}."
        " If one was renamed, its values would pass as they are",
        hint=again,
        table=str(table),
        **({"column": lost[0]} if lost else {}),
    )


def _must_be_free(name: str, there: Sequence[str], table: str) -> None:
    if name in there:
        raise TransformationError(
            f"{table} has a column {name}, and a transformation would give another one this name",
            hint="delete or rename the column first (a lower step), or take another name",
            table=table,
            column=name,
        )
