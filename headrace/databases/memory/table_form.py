"""The form of an in-memory table, part by part: columns, and unique keys by their columns.

Types are named as in `pg_catalog`; a structure may also have PostgreSQL's printed names of the most common ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from headrace.base.errors import DataError
from headrace.databases.memory.store import Row, StoredTable, destination_column
from headrace.databases.memory.transaction import OpenTransaction
from headrace.databases.ports import DDL_REFUSED, DestinationColumn
from headrace.lcr.structure import Altered, ColumnPart, ConstraintPart, IndexPart, Part

__all__ = ["TableForm", "refused"]

_PRINTED = {"smallint": "int2", "integer": "int4", "bigint": "int8", "boolean": "bool"}
_UNIQUE_INDEX = re.compile(r"CREATE UNIQUE INDEX [^(]*\(([^()]+)\)$")
_UNIQUE = re.compile(r"(?:PRIMARY KEY|UNIQUE) \(([^()]+)\)$")
_NOT_NULL_VIOLATION, _UNIQUE_VIOLATION = "23502", "23505"


def refused(message: str, sqlstate: str = "") -> DataError:
    """Return the error that says that a DDL change itself is refused."""
    context: dict[str, Any] = {DDL_REFUSED: 1}
    return DataError(message, sqlstate=sqlstate, **context)


def key_of(part: Part) -> tuple[str, ...]:
    """Return the columns that a part makes unique; empty: it makes none unique."""
    if isinstance(part, ColumnPart):
        return ()
    found = (_UNIQUE_INDEX if isinstance(part, IndexPart) else _UNIQUE).match(part.definition)
    return () if found is None else tuple(name.strip().strip('"') for name in found[1].split(","))


def type_of(column: ColumnPart) -> str:
    name = _PRINTED.get(column.type_name, column.type_name)
    return name if "." in name else f"pg_catalog.{name}"


@dataclass(slots=True)
class _Column:
    """A column of the form that a table gets.

    Args:
        name: its name.
        type_name: its type, qualified.
        not_null: it takes no NULL.
        has_default: as `destination_column`.
        place: its place in the table now; None: it is new.
        older: value of present rows, if it is new.
    """

    name: str
    type_name: str
    not_null: bool
    has_default: bool
    place: int | None = None
    older: bytes | None = None

    def is_as(self, part: ColumnPart) -> bool:
        """Whether a part describes the column, whatever its name."""
        return (self.type_name, self.not_null) == (type_of(part), part.not_null)


@dataclass(slots=True)
class TableForm:
    """The form that a table gets, and what was done to it, for the history.

    Args:
        columns: its columns.
        key: columns of its primary key.
        unique: columns of each unique key, the primary one first.
        done: what was done.
        conflicts: what is neither as it should be before the change nor as after it.
    """

    columns: list[_Column]
    key: tuple[str, ...]
    unique: list[tuple[str, ...]]
    done: list[str]
    conflicts: list[str]

    @classmethod
    def of(cls, found: StoredTable) -> TableForm:
        """Return the form that a table has."""
        table = found.table
        names = [column.name for column in table.columns]
        return cls(
            columns=[
                _Column(column.name, column.type_name, column.not_null, column.has_default, place)
                for place, column in enumerate(table.columns)
            ],
            key=tuple(names[place] for place in table.key),
            unique=[tuple(names[place] for place in places) for places in table.unique_keys],
            done=[],
            conflicts=[],
        )

    # ------------------------------------------------------------------ parts of the change

    def alter(self, pair: Altered) -> None:
        """Change a part that has another name or form."""
        if isinstance(pair.before, ColumnPart) and isinstance(pair.after, ColumnPart):
            self._alter_column(pair.before, pair.after)
        elif pair.is_changed:
            old, new = key_of(pair.before), key_of(pair.after)
            if new not in self.unique:
                self._drop_key(old)
                self._add_key(new, is_primary=is_primary(pair.after))

    def _alter_column(self, before: ColumnPart, after: ColumnPart) -> None:
        column, is_renamed = self._column(after.name), before.name != after.name
        if is_renamed:
            old = self._column(before.name)
            if old is not None and column is None and old.type_name == type_of(before):
                column = old
                self._rename(column, after.name)
            elif column is None or old is not None or column.type_name != type_of(after):
                column = None
        old_type, new_type = type_of(before), type_of(after)
        if column is None or (old_type != new_type and column.type_name not in {old_type, new_type}):
            self.conflicts.append(f"column {before.name} is neither as before the change nor as after it")
            return
        if new_type not in {old_type, column.type_name}:
            column.type_name = new_type
            self.done.append(f"ALTER COLUMN {after.name} TYPE {new_type}")
        if after.not_null not in {before.not_null, column.not_null}:
            column.not_null = after.not_null
            self.done.append(f"ALTER COLUMN {after.name} {'SET' if after.not_null else 'DROP'} NOT NULL")
        if before.default != after.default:
            column.has_default = after.default is not None

    def _rename(self, column: _Column, name: str) -> None:
        self.key = _renamed(self.key, column.name, name)
        self.unique = [_renamed(key, column.name, name) for key in self.unique]
        self.done.append(f"RENAME COLUMN {column.name} TO {name}")
        column.name = name

    def drop(self, part: Part) -> None:
        """Drop a part."""
        if not isinstance(part, ColumnPart):
            self._drop_key(key_of(part))
            return
        found = self._column(part.name)
        if found is None:
            return
        if found.type_name != type_of(part):
            self.conflicts.append(f"column {part.name} is neither as before the change nor as after it")
            return
        self.columns.remove(found)
        for key in [key for key in self.unique if part.name in key]:
            self._drop_key(key)
        self.done.append(f"DROP COLUMN {part.name}")

    def add(self, part: Part, older: str | None) -> None:
        """Add a part.

        Args:
            part: the part.
            older: value of rows that are older than a column; None: NULL.
        """
        if not isinstance(part, ColumnPart):
            self._add_key(key_of(part), is_primary=is_primary(part))
            return
        found = self._column(part.name)
        if found is None:
            value = None if older is None else older.encode()
            self.columns.append(_Column(part.name, type_of(part), part.not_null, part.default is not None, older=value))
            self.done.append(f"ADD COLUMN {part.name} {part.definition}")
        elif not found.is_as(part):
            self.conflicts.append(f"column {part.name} is neither as before the change nor as after it")

    def _column(self, name: str) -> _Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def _add_key(self, key: tuple[str, ...], *, is_primary: bool) -> None:
        if key and key not in self.unique:
            self.unique.insert(0 if is_primary else len(self.unique), key)
            self.key = key if is_primary else self.key
            self.done.append(f"ADD UNIQUE ({', '.join(key)})")

    def _drop_key(self, key: tuple[str, ...]) -> None:
        if key in self.unique:
            self.unique.remove(key)
            self.key = () if key == self.key else self.key
            self.done.append(f"DROP UNIQUE ({', '.join(key)})")

    # ------------------------------------------------------------------ the table

    def store(self, found: StoredTable, transaction: OpenTransaction) -> None:
        """Give the table this form.

        Raises:
            DataError: its rows refuse it.
        """
        before = (found.table, found.rows, found.unique)

        def undo() -> None:
            found.table, found.rows, found.unique = before

        # The same object, because locks are on it; other containers, because what was done to rows before is undone in
        # these ones.
        transaction.did(undo)
        names = [column.name for column in self.columns]
        keys = tuple(tuple(names.index(name) for name in key) for key in self.unique)
        found.table = replace(
            found.table,
            columns=tuple(self._described(found, place, column) for place, column in enumerate(self.columns)),
            key=tuple(names.index(name) for name in self.key),
            unique_keys=keys,
            serialise=not self.key,
            ordered=len(keys) > 1,
        )
        rows, found.rows, found.unique = found.rows, {}, tuple({} for _ in keys)
        for number, row in rows.items():
            self._put(found, number, tuple(c.older if c.place is None else row[c.place] for c in self.columns))

    def _put(self, found: StoredTable, number: int, row: Row) -> None:
        if any(
            value is None and column.not_null and not column.is_generated
            for value, column in zip(row, found.table.columns, strict=True)
        ):
            raise refused("a column has NULLs", _NOT_NULL_VIOLATION)
        if any(key in found.unique[place] for place, key in found.keys_of(row)):
            raise refused("two rows have the same values of a unique key", _UNIQUE_VIOLATION)
        found.put(number, row)

    @staticmethod
    def _described(found: StoredTable, place: int, column: _Column) -> DestinationColumn:
        if column.place is None:
            made = destination_column(
                column.name, column.type_name, not_null=column.not_null, has_default=column.has_default
            )
            return replace(made, number=place)
        return replace(
            found.table.columns[column.place],
            name=column.name,
            number=place,
            type_name=column.type_name,
            not_null=column.not_null,
            has_default=column.has_default,
        )


def is_primary(part: Part) -> bool:
    return isinstance(part, ConstraintPart) and part.type == "p"


def _renamed(key: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in key)
