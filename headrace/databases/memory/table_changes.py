"""DDL changes in an in-memory database: columns, and unique keys by their columns.

Checks and other indexes do not exist here, and primary and unique keys have no names. What the source changed of these
is passed over.

Types are named as in `pg_catalog`; a structure may also have PostgreSQL's printed names of the most common ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from headrace.base.errors import DataError
from headrace.databases.memory.store import MemoryStore, Row, StoredDdl, StoredTable, destination_column
from headrace.databases.memory.transaction import OpenTransaction
from headrace.databases.ports import DDL_REFUSED, DdlOutcome, DdlOutcomeKind, DdlPlace, DestinationColumn
from headrace.lcr.ddl import DdlChange
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import Altered, ColumnPart, ConstraintPart, IndexPart, Part

__all__ = ["change_table"]

_NEW_VALUES = 2 | 4  # the source gave old rows new values (`headrace.databases.postgres.ddl.refusals`)
_PRINTED = {"smallint": "int2", "integer": "int4", "bigint": "int8", "boolean": "bool"}
_UNIQUE_INDEX = re.compile(r"CREATE UNIQUE INDEX [^(]*\(([^()]+)\)$")
_UNIQUE = re.compile(r"(?:PRIMARY KEY|UNIQUE) \(([^()]+)\)$")
_NOT_NULL_VIOLATION, _UNIQUE_VIOLATION = "23502", "23505"


def change_table(
    store: MemoryStore, transaction: OpenTransaction, process: tuple[str, str], change: DdlChange, place: DdlPlace
) -> DdlOutcome:
    """Change a table and record the outcome, as `DestinationSession.change_table` says.

    Args:
        store: owner of the table.
        transaction: what undoes the change.
        process: topology and apply process.
        change: what the source recorded.
        place: of the change in the source's log.

    Raises:
        DataError: the table is neither as before nor as after, or its rows refuse the change.
    """
    skip = (*process, place.order_scn, place.position)
    try:
        outcome = (
            DdlOutcome(kind=DdlOutcomeKind.SKIPPED) if skip in store.ddl_skips else _change(store, transaction, change)
        )
    except DataError as error:
        error.hint = f"repair the cause, or make the same change here; or leave it out: ddl_skips.add({skip})"
        raise
    made = StoredDdl(*process, change.base_table, place, outcome)

    def record() -> None:
        store.ddl_skips.discard(skip)
        store.record_ddl(made)

    transaction.do_at_commit(record)
    return outcome


def _change(store: MemoryStore, transaction: OpenTransaction, change: DdlChange) -> DdlOutcome:
    if change.why_not_made:
        return DdlOutcome(kind=DdlOutcomeKind.NOT_APPLIED, reason=change.why_not_made)
    record = DdlRecord.of(change.content)
    found = store.tables.get((change.base_table_owner, change.base_table_name))
    reason = _refusal(record, found)
    if reason or found is None:
        return DdlOutcome(kind=DdlOutcomeKind.NOT_APPLIED, reason=reason)
    form = _Form.of(found)
    for pair in record.delta.altered:
        form.alter(pair)
    for part in record.delta.dropped:
        form.drop(part)
    for part in record.delta.added:
        form.add(part, record.older.get(part.name))
    if form.conflicts:
        raise _refused("; ".join(form.conflicts))
    if not form.done:
        return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)
    transaction.require_unlocked(found)
    for number in found.rows:
        transaction.lock((id(found), "row", number))
    form.store(found, transaction)
    return DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=tuple(form.done))


def _refusal(record: DdlRecord, found: StoredTable | None) -> str:
    before, after = record.before, record.after
    if before is None or after is None:
        return "created and dropped tables are not replicated"
    if (before.owner, before.name) != (after.owner, after.name):
        return "other names and schemas of tables are not replicated"
    if record.rewritten & _NEW_VALUES:
        return "it gives old rows new values, which are not in the source's log"
    return "the destination has no such table" if found is None else ""


def _refused(message: str, sqlstate: str = "") -> DataError:
    context: dict[str, Any] = {DDL_REFUSED: 1}
    return DataError(message, sqlstate=sqlstate, **context)


def _key_of(part: Part) -> tuple[str, ...]:
    """Return the columns that a part makes unique; empty: it makes none unique."""
    if isinstance(part, ColumnPart):
        return ()
    found = (_UNIQUE_INDEX if isinstance(part, IndexPart) else _UNIQUE).match(part.definition)
    return () if found is None else tuple(name.strip().strip('"') for name in found[1].split(","))


def _type_of(column: ColumnPart) -> str:
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
        return (self.type_name, self.not_null) == (_type_of(part), part.not_null)


@dataclass(slots=True)
class _Form:
    """The form that a table gets, and what was done to it, for the history."""

    columns: list[_Column]
    key: tuple[str, ...]
    unique: list[tuple[str, ...]]
    done: list[str]
    conflicts: list[str]

    @classmethod
    def of(cls, found: StoredTable) -> _Form:
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
            old, new = _key_of(pair.before), _key_of(pair.after)
            if new not in self.unique:
                self._drop_key(old)
                self._add_key(new, is_primary=_is_primary(pair.after))

    def _alter_column(self, before: ColumnPart, after: ColumnPart) -> None:
        column, is_renamed = self._column(after.name), before.name != after.name
        if is_renamed:
            old = self._column(before.name)
            if old is not None and column is None and old.type_name == _type_of(before):
                column = old
                self._rename(column, after.name)
            elif column is None or old is not None or column.type_name != _type_of(after):
                column = None
        old_type, new_type = _type_of(before), _type_of(after)
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
            self._drop_key(_key_of(part))
            return
        found = self._column(part.name)
        if found is None:
            return
        if found.type_name != _type_of(part):
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
            self._add_key(_key_of(part), is_primary=_is_primary(part))
            return
        found = self._column(part.name)
        if found is None:
            value = None if older is None else older.encode()
            self.columns.append(
                _Column(part.name, _type_of(part), part.not_null, part.default is not None, older=value)
            )
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
            raise _refused("a column has NULLs", _NOT_NULL_VIOLATION)
        if any(key in found.unique[place] for place, key in found.keys_of(row)):
            raise _refused("two rows have the same values of a unique key", _UNIQUE_VIOLATION)
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


def _is_primary(part: Part) -> bool:
    return isinstance(part, ConstraintPart) and part.type == "p"


def _renamed(key: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in key)
