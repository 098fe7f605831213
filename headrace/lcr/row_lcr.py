"""Single row LCRs: views with the manuals' methods, made only where user code or an error needs one row.

Longer than 500 lines: the manuals' methods of one kind of object, each with its documented errors.

A view reads its values from the batch at the first access and keeps them as its own copy: what a handler or a
transformation sets never reaches the batch. `headrace.lcr.building.batch_of_lcrs` makes a batch of views, changed or
not. Values stay raw bytes in the source's encoding. `LcrValue.decoded` calls the database's own library through a hook,
and only for the requested value.

Absent and NULL are different: `get_value` returns None for a column that the LCR does not carry, and an `LcrValue`
whose `raw` is None for a NULL. A large value that the UPDATE did not touch (UNCHANGED) is not in the log: as a new
value it counts as absent, so `get_value` falls back to the old one; `is_unchanged` distinguishes it.

Source: Oracle Database PL/SQL Packages and Types Reference, LCR$_ROW_RECORD.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Self

from headrace.lcr.batch import Column, Command, LcrBatch, TableVersion, content_version
from headrace.lcr.lcr_value import NULL_VALUE, DecodeHook, EncodeHook, LcrError, LcrValue
from headrace.lcr.lcr_view import LcrView
from headrace.lcr.text import SqlText, row_text, where_clause
from headrace.lcr.values import ABSENT, NULL, UNCHANGED

if TYPE_CHECKING:
    from headrace.lcr.batch import RowGroup, Truncate
    from headrace.lcr.cells import Cells

__all__ = ["RowLcr", "ValueType"]


class ValueType(Enum):
    """The kind of an LCR's values that a method uses."""

    OLD = "old"
    NEW = "new"
    BOTH = "*"


class RowLcr(LcrView):
    """One row of a batch, with the manuals' methods.

    More than 25 of them: users' handlers are written with the methods of LCR$_ROW_RECORD, on one object.

    Args:
        batch: the batch with the row.
        row: number of the row in the batch.
        decode: hook that decodes values on request.
        encode: hook that converts Python objects into values; None: values are given as bytes.
    """

    NULL: ClassVar = NULL_VALUE
    """NULL, for `set_value` and `add_column`."""

    __slots__ = (
        "_columns",
        "_command",
        "_decode",
        "_encode",
        "_images",
        "_is_changed",
        "_name",
        "_owner",
        "_truncate",
        "_unchanged",
    )

    def __init__(
        self,
        batch: LcrBatch,
        row: int,
        *,
        decode: DecodeHook | None = None,
        encode: EncodeHook | None = None,
    ) -> None:
        super().__init__(batch, row)
        if batch.ddl is not None:
            raise LcrError("the LCR is a DDL LCR and has no row")
        self._decode, self._encode = decode, encode
        groups, places = batch.row_places
        self._truncate: Truncate | None = None
        if int(groups[row]) < 0:
            self._truncate = batch.truncates[int(places[row])]
            self._command = Command.TRUNCATE
        else:
            self._command = batch.groups[int(groups[row])].command
        table = self.table
        self._owner, self._name = table.owner, table.name
        self._images: dict[ValueType, dict[str, LcrValue]] | None = None
        self._unchanged: set[str] = set()
        self._columns: tuple[Column, ...] = table.columns
        self._is_changed = False

    # ----------------------------------------------------------------------- what it is

    @property
    def table(self) -> TableVersion:
        """The source's description of the table; for a TRUNCATE, of its first table."""
        if self._truncate is not None:
            return self._batch.tables[self._truncate.tables[0]]
        return self._batch.tables[self._group.table]

    @property
    def truncated_tables(self) -> tuple[TableVersion, ...]:
        """The tables of a TRUNCATE in the source's order; empty for any other command."""
        if self._truncate is None:
            return ()
        return tuple(self._batch.tables[table] for table in self._truncate.tables)

    @property
    def command_type(self) -> str:
        """INSERT, UPDATE, DELETE or TRUNCATE."""
        return self._command.name

    @command_type.setter
    def command_type(self, value: str) -> None:
        if value not in ("INSERT", "UPDATE", "DELETE") or self._truncate is not None:
            raise LcrError(
                f"an LCR's command type cannot become {value}",
                hint="INSERT, UPDATE and DELETE can be exchanged",
            )
        self._change()  # values are read under the row's original command
        self._command = Command[value]

    @property
    def object_owner(self) -> str:
        """Schema of the table."""
        return self._owner

    @object_owner.setter
    def object_owner(self, value: str) -> None:
        self._owner = _named(value)
        self._is_changed = True

    @property
    def object_name(self) -> str:
        """Name of the table."""
        return self._name

    @object_name.setter
    def object_name(self, value: str) -> None:
        self._name = _named(value)
        self._is_changed = True

    # ----------------------------------------------------------------------- values

    def get_value(self, value_type: ValueType | str, column_name: str, *, use_old: bool = True) -> LcrValue | None:
        """Read one value.

        Args:
            value_type: "old" or "new".
            column_name: name in the LCR's spelling.
            use_old: for an UPDATE without a new value, return the old one.

        Returns:
            The value, NULL included; None: the LCR does not carry the column.
        """
        kind = _single(value_type)
        images = self._values()
        value = images[kind].get(column_name)
        if value is None and use_old and self._falls_back(kind):
            return images[ValueType.OLD].get(column_name)
        return value

    def get_values(self, value_type: ValueType | str, *, use_old: bool = True) -> dict[str, LcrValue]:
        """Read all values of one kind by column name, in the table's order.

        Args:
            value_type: "old" or "new".
            use_old: for an UPDATE, return the old value of each column that has no new one.

        Returns:
            Values, NULL included, without columns that the LCR does not carry.
        """
        kind = _single(value_type)
        images = self._values()
        if not (use_old and self._falls_back(kind)):
            return dict(images[kind])
        new = images[ValueType.NEW]
        merged = {name: new.get(name, value) for name, value in images[ValueType.OLD].items()}
        merged.update(new)
        order = {column.name: place for place, column in enumerate(self._columns)}
        return dict(sorted(merged.items(), key=lambda item: order.get(item[0], len(order))))

    def is_unchanged(self, column_name: str) -> bool:
        """Whether the source's UPDATE did not touch a large value, so that the log does not have it."""
        self._values()
        return column_name in self._unchanged

    def set_value(self, value_type: ValueType | str, column_name: str, value: object) -> None:
        """Replace a value.

        Args:
            value_type: "old" or "new".
            column_name: a column that the LCR carries.
            value: bytes in the column's encoding, `NULL` or another `LcrValue`; users' code: any Python object.

        Raises:
            LcrError: the LCR does not carry the column, or the value is a bare None.
        """
        image = self._change()[_single(value_type)]
        if column_name not in image:
            raise self._absent(value_type, column_name)
        image[column_name] = self._wrapped(column_name, value, image[column_name].column)

    def add_column(self, value_type: ValueType | str, column_name: str, value: object) -> None:
        """Add a value. The name is not validated: the destination may have columns that the source lacks.

        Args:
            value_type: "old" or "new".
            column_name: a column that the LCR does not carry in this image.
            value: bytes in the column's encoding, `NULL`, or another `LcrValue` with its own type; users' code: any
                Python object for a column of the LCR's other image or, in a handler, of the destination's table.

        Raises:
            LcrError: the LCR carries the column already, its command has no values of this kind, or the value is a bare
                None.
        """
        kind = _single(value_type)
        without = {Command.INSERT: ValueType.OLD, Command.DELETE: ValueType.NEW}
        if self._command is Command.TRUNCATE or without.get(self._command) is kind:
            raise LcrError(f"an LCR with command type {self.command_type} has no {kind.value} values")
        image = self._change()[kind]
        if _named(column_name) in image:
            raise LcrError(
                f"the LCR has {_article(kind)} value of column {column_name} already",
                column=column_name,
                hint="use set_value",
            )
        image[column_name] = self._wrapped(column_name, value, self._column(column_name))
        if kind is ValueType.NEW:
            self._unchanged.discard(column_name)
        if all(column.name != column_name for column in self._columns):
            self._columns += (replace(image[column_name].column, name=column_name, is_key=False),)

    def delete_column(self, column_name: str, value_type: ValueType | str = ValueType.BOTH) -> None:
        """Remove a column's value; "*" removes both, and both must exist.

        Args:
            column_name: a column that the LCR carries; UNCHANGED counts as carried.
            value_type: "old", "new" or "*".

        Raises:
            LcrError: the LCR does not carry the column.
        """
        for kind in self._present(column_name, value_type):
            self._change()[kind].pop(column_name, None)
            if kind is ValueType.NEW:
                self._unchanged.discard(column_name)
        if not self._carries(column_name):
            self._columns = tuple(column for column in self._columns if column.name != column_name)

    def rename_column(self, from_name: str, to_name: str, value_type: ValueType | str = ValueType.BOTH) -> None:
        """Rename the column of a value; "*" renames both, and both must exist.

        Args:
            from_name: a column that the LCR carries; UNCHANGED counts as carried.
            to_name: the name of the destination's column.
            value_type: "old", "new" or "*".

        Raises:
            LcrError: the LCR does not carry `from_name`, or carries `to_name`.
        """
        kinds = self._present(from_name, value_type)
        if self._carries(_named(to_name), kinds):
            raise LcrError(f"the LCR has a column {to_name} already", column=to_name)
        has_target = self._carries(to_name)  # in the other image
        images = self._change()
        for kind in kinds:
            images[kind] = {to_name if name == from_name else name: value for name, value in images[kind].items()}
            if kind is ValueType.NEW and from_name in self._unchanged:
                self._unchanged ^= {from_name, to_name}
        columns: list[Column] = []
        for column in self._columns:
            if column.name == from_name:
                columns += [column] if self._carries(from_name) else []
                columns += [] if has_target else [replace(column, name=to_name)]
            elif column.name != to_name or has_target:
                columns.append(column)
        self._columns = tuple(columns)

    def keep_columns(self, column_names: Collection[str], value_type: ValueType | str = ValueType.BOTH) -> None:
        """Remove every other column, including columns of the table without a value in the LCR.

        Unknown names are ignored.

        Args:
            column_names: the columns that stay.
            value_type: "old", "new" or "*".
        """
        kind = ValueType(value_type)
        for each in (ValueType.OLD, ValueType.NEW) if kind is ValueType.BOTH else (kind,):
            carried = [*self._values()[each], *(self._unchanged if each is ValueType.NEW else ())]
            for name in [name for name in carried if name not in column_names]:
                self.delete_column(name, each)
        self._change()
        self._columns = tuple(
            column for column in self._columns if column.name in column_names or self._carries(column.name)
        )

    def set_values(self, value_type: ValueType | str, values: Mapping[str, object]) -> None:
        """Replace all values of one kind; columns that are not given are removed from the LCR.

        Args:
            value_type: "old" or "new".
            values: values by column, in the forms of `set_value` and `add_column`.

        Raises:
            LcrError: as for `set_value` and `add_column`; nothing is changed then.
        """
        kind, changed = _single(value_type), self.copy()
        for name, value in values.items():
            if name in changed._values()[kind]:  # noqa: SLF001 - its own
                changed.set_value(kind, name, value)
            else:
                changed.add_column(kind, name, value)
        changed.keep_columns(values, kind)
        self._images, self._unchanged, self._columns, self._is_changed = (
            changed._images,  # noqa: SLF001
            changed._unchanged,  # noqa: SLF001
            changed._columns,  # noqa: SLF001
            True,
        )

    def get_where_clause(self, *, first: int = 1) -> SqlText:
        """Return the condition that finds the row in SQL, such as `"id" = $1 AND "name" IS NULL`, and its parameters.

        It has all new values of an INSERT, those of the new row of an UPDATE, and all old values of a DELETE. Values of
        types without `=`, such as json, are skipped.

        Args:
            first: number of the first parameter.

        Raises:
            LcrError: it is a TRUNCATE.
        """
        self._check_row()
        return where_clause(self, first)

    def get_row_text(self, *, first: int = 1) -> SqlText:
        """Return the change as an SQL statement, and its parameters.

        Args:
            first: number of the first parameter.

        Raises:
            LcrError: it is a TRUNCATE.
        """
        self._check_row()
        return row_text(self, first)

    def copy(self) -> Self:
        """Return an independent copy of the current LCR."""
        made = type(self).__new__(type(self))
        for name in _fields(type(self)):
            setattr(made, name, getattr(self, name))
        if self._images is not None:
            made._images = {kind: dict(values) for kind, values in self._images.items()}  # noqa: SLF001 - its own
        made._unchanged = set(self._unchanged)  # noqa: SLF001 - its own
        return made

    def __repr__(self) -> str:
        # No values: a view may end up in a message or a log.
        return (
            f"RowLcr({self.command_type} {self.object_owner}.{self.object_name}, source={self._source!r}, "
            f"scn={self.scn}, position={self.position})"
        )

    # ----------------------------------------------------------------------- for making batches

    @property
    def place(self) -> tuple[int, int]:
        """Number of its group and its row there; for a TRUNCATE: -1 and its index in `truncates`."""
        groups, within = self._batch.row_places
        return int(groups[self._row]), int(within[self._row])

    @property
    def is_changed(self) -> bool:
        """Whether its command, its table's name or one of its values was set."""
        return self._is_changed

    def table_version(self) -> TableVersion:
        """Return the table as the LCR has it now: the source's version if neither name nor columns were changed.

        Raises:
            LcrError: the old and the new value of a column have different types.
        """
        table, columns = self.table, tuple(map(self._as_valued, self._columns))
        if (self._owner, self._name, columns) == (table.owner, table.name, table.columns):
            return table
        changed = replace(table, owner=self._owner, name=self._name, columns=columns)
        return replace(changed, version=content_version(changed))

    def stored(self, value_type: ValueType) -> list[bytes | int]:
        """Return its values in the order of `table_version`: bytes, or NULL, UNCHANGED, ABSENT."""
        image, unchanged = self._values()[value_type], self._unchanged if value_type is ValueType.NEW else ()
        found: list[bytes | int] = []
        for column in self._columns:
            value = image.get(column.name)
            if value is None:
                found.append(UNCHANGED if column.name in unchanged else ABSENT)
            else:
                found.append(NULL if value.raw is None else value.raw)
        return found

    # ----------------------------------------------------------------------- inside

    def _as_valued(self, column: Column) -> Column:
        """Return the column with the type of its values: `set_value` may have set another type."""
        if not self._is_changed:
            return column
        values = [image.get(column.name) for image in self._values().values()]
        if all(v is None or v.raw is None or v.column is column for v in values):
            return column
        found = {
            replace(v.column, name=column.name, is_key=column.is_key)
            for v in values
            if v is not None and v.raw is not None
        }
        if len(found) > 1:
            raise LcrError(
                f"the old and the new value of column {column.name} have different types",
                column=column.name,
                hint="set both, or neither",
            )
        return found.pop() if found else column

    def _change(self) -> dict[ValueType, dict[str, LcrValue]]:
        images = self._values()
        self._is_changed = True
        return images

    def _check_row(self) -> None:
        if self._truncate is not None:
            raise LcrError("a TRUNCATE has no row")

    def _carries(self, column_name: str, kinds: tuple[ValueType, ...] = (ValueType.OLD, ValueType.NEW)) -> bool:
        has_unchanged = ValueType.NEW in kinds and column_name in self._unchanged
        return has_unchanged or any(column_name in self._values()[kind] for kind in kinds)

    @property
    def _group(self) -> RowGroup:
        return self._batch.groups[int(self._batch.row_places[0][self._row])]

    def _values(self) -> dict[ValueType, dict[str, LcrValue]]:
        if self._images is None:
            self._images = {ValueType.OLD: {}, ValueType.NEW: {}}
            if self._truncate is None:
                place = int(self._batch.row_places[1][self._row])
                old, new = self._batch.cells[int(self._batch.row_places[0][self._row])]
                for kind, cells in ((ValueType.OLD, old), (ValueType.NEW, new)):
                    if cells is not None:
                        self._images[kind] = self._read(cells, place, kind)
        return self._images

    def _read(self, cells: Cells, place: int, kind: ValueType) -> dict[str, LcrValue]:
        image: dict[str, LcrValue] = {}
        for number, column in enumerate(self.table.columns):
            value = cells.value(number, place)
            if isinstance(value, bytes):
                image[column.name] = LcrValue(column=column, raw=value, decode=self._decode)
            elif value == NULL:
                image[column.name] = LcrValue(column=column, raw=None, decode=self._decode)
            elif value == UNCHANGED and kind is ValueType.NEW:
                self._unchanged.add(column.name)
        return image

    def _falls_back(self, kind: ValueType) -> bool:
        return kind is ValueType.NEW and self._command is Command.UPDATE

    def _present(self, column_name: str, value_type: ValueType | str) -> tuple[ValueType, ...]:
        kind = ValueType(value_type)
        kinds = (ValueType.OLD, ValueType.NEW) if kind is ValueType.BOTH else (kind,)
        for each in kinds:
            if not self._carries(column_name, (each,)):
                raise (
                    self._absent(each, column_name)
                    if kind is not ValueType.BOTH
                    else self._absent_of_both(each, column_name)
                )
        return kinds

    def _column(self, column_name: str) -> Column:
        for column in self._columns:
            if column.name == column_name:
                return column
        return Column(name=column_name, type_name="")

    def _wrapped(self, column_name: str, value: object, column: Column) -> LcrValue:
        if isinstance(value, LcrValue):
            is_bare = value.raw is None and not value.column.type_name
            return LcrValue(column=column, raw=None, decode=self._decode) if is_bare else value
        if value is None:
            raise LcrError(
                f"the value for column {column_name} is no value: NULL is written lcr.NULL", column=column_name
            )
        if self._encode is not None and column.type_name:
            value = self._encode(column, value)
        if not isinstance(value, bytes):
            raise LcrError(
                f"the type of the value for column {column_name} is not known here",
                column=column_name,
                hint="give bytes, or an LcrValue with a column of that type",
            )
        return LcrValue(column=column, raw=value, decode=self._decode)

    def _absent_of_both(self, missing: ValueType, column_name: str) -> LcrError:
        """Return the error for a call with "*" where the LCR lacks the old or the new value, or both."""
        other = ValueType.NEW if missing is ValueType.OLD else ValueType.OLD
        if not self._carries(column_name, (other,)):
            return LcrError(
                f"the {self.command_type} has neither an old nor a new value of column {column_name}",
                column=column_name,
            )
        return LcrError(
            f'the {self.command_type} has no {missing.value} value of column {column_name}, and value_type is "*": the'
            " old and the new one",
            column=column_name,
            hint=f'give value_type "{other.value}", the only value that it has',
        )

    def _absent(self, value_type: ValueType | str, column_name: str) -> LcrError:
        if ValueType(value_type) is not ValueType.OLD and column_name in self._unchanged:
            return LcrError(
                f"the LCR has no new value of column {column_name}: the UPDATE left it alone, and it is stored out of"
                " line at the source",
                column=column_name,
                hint=f'leave it alone where lcr.is_unchanged("{column_name}"): the destination has its value',
            )
        return LcrError(
            f"the LCR has no {ValueType(value_type).value} value of column {column_name}",
            column=column_name,
            hint="absent is not NULL: use add_column",
        )


_FIELDS: dict[type, tuple[str, ...]] = {}  # by class, of which there are few


def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of all fields of a class."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))
    return _FIELDS[kind]


def _single(value_type: ValueType | str) -> ValueType:
    kind = ValueType(value_type)
    if kind is ValueType.BOTH:
        raise LcrError('value_type must be "old" or "new" here, not "*"')
    return kind


def _named(name: object) -> str:
    """Check a name of a database object.

    Raises:
        LcrError: it is no valid name.
    """
    if not isinstance(name, str) or not name or "\0" in name or any("\ud800" <= each <= "\udfff" for each in name):
        raise LcrError(
            f"{name!r:.100} is no name of a table, a schema or a column", hint="write it as a text, without quotes"
        )
    return name


def _article(kind: ValueType) -> str:
    return "an old" if kind is ValueType.OLD else "a new"
