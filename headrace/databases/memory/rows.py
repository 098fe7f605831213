"""Rows of an in-memory database, as one session's transaction finds and changes them.

It does not check the session: `headrace.databases.memory.session` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import DataError
from headrace.databases.applied_tables import missing_key, unfit_error, with_settings
from headrace.databases.memory.conflicts import conflicting, find_rows, found_rows, targets
from headrace.databases.memory.store import (
    MemoryStore,
    Row,
    StoredTable,
    missing_alter,
    row_condition,
    rows_of,
)
from headrace.databases.memory.transaction import OpenTransaction
from headrace.databases.ports import (
    DestinationTable,
    FoundRows,
    LastChange,
    RowInTheWay,
    RowQuestion,
    TruncatedTable,
    Write,
    WriteTimes,
)
from headrace.lcr.batch import Command, TableVersion
from headrace.lcr.table_name import TableName
from headrace.rules.table_settings import TableSettings

__all__ = ["MemoryRows", "misfit", "seen"]

_UNIQUE_VIOLATION = "23505"
_NOT_NULL_VIOLATION = "23502"


def seen(stored: StoredTable, settings: TableSettings) -> DestinationTable:
    """Return a table as an apply process sees it.

    Args:
        stored: the table.
        settings: of the apply process.
    """
    return with_settings(stored.table, settings, is_hidden=False)


def misfit(
    version: TableVersion, table: DestinationTable | None, settings: TableSettings, at_source: TableName | None = None
) -> str:
    """Return what must be done before rows of `version` can be written; empty: they fit.

    Args:
        version: of the rows.
        table: the table here; None: it does not exist.
        settings: of the apply process.
        at_source: the table's name at the source, if known.
    """
    return missing_alter(version, table) or missing_key(version, settings, at_source)


class MemoryRows:
    """Finds and changes rows for one session.

    Args:
        store: owner of the rows.
        transaction: the transaction that changes them and holds the locks.
        settings: of the apply process: how it sees the tables.
    """

    def __init__(self, store: MemoryStore, transaction: OpenTransaction, settings: TableSettings) -> None:
        self._store, self._transaction, self._settings = store, transaction, settings

    # ------------------------------------------------------------------ changes

    def write(self, write: Write) -> int:
        """Write a set; returns what `DestinationSession.write` returns for it.

        Args:
            write: its rows differ in their keys.
        """
        if write.times is None or not write.row_count:
            return self._write(write)
        return self._write_timed(write, write.times)

    def _write_timed(self, write: Write, times: WriteTimes) -> int:
        found = self._table(write)
        known = self._store.changes.setdefault((write.version.owner, write.version.name), {})
        notes = list(_notes_of(found, write))
        # Like the real one: a row changed later by a session of this site is not found; notes are compared after the
        # write.
        if any(
            (there := known.get(key)) is not None
            and (there.own_us is not None or there.lost_us)
            and _stays(there, times, n)
            for n, key, _ in notes
        ):
            return -1
        count = self._write(write)
        for number, key, is_gone in notes:
            before = known.get(key)
            if before is not None and _stays(before, times, number):
                return -1
            self._note_change(
                found,
                known,
                key,
                LastChange(
                    noted_us=int(times.last_us[number]),
                    noted_rank=times.rank,
                    noted_source=times.source,
                    is_gone=is_gone,
                ),
            )
        return count

    def _note_change(self, found: StoredTable, known: dict[Row, LastChange], key: Row, change: LastChange) -> None:
        self._transaction.lock((id(found), "time", key))
        before = known.get(key)
        known[key] = change
        self._transaction.did(lambda: known.pop(key) if before is None else known.__setitem__(key, before))

    def _write(self, write: Write) -> int:
        found = self._table(write)
        target = targets(found, write)
        writable = [p for p in write.set_columns if not found.table.columns[target[p]].is_generated]
        if write.command is Command.INSERT:
            assert write.new is not None
            for values in rows_of(write.new, writable, write):
                row: list[bytes | None] = [None] * len(found.table.columns)
                for position, value in zip(writable, values, strict=True):
                    row[target[position]] = value
                self.put(found, tuple(row))
            return write.row_count
        matches = self._matches(found, write, target)
        news = rows_of(write.new, writable, write) if write.new is not None else iter([()] * write.row_count)
        count = 0
        for numbers, values in zip(matches, list(news), strict=True):
            for number in numbers:
                changed: Row | None = None
                if write.command is Command.UPDATE:
                    updated = list(found.rows[number])
                    for position, value in zip(writable, values, strict=True):
                        updated[target[position]] = value
                    changed = tuple(updated)
                self._change(found, number, changed)
                count += 1
        return count

    def _matches(self, found: StoredTable, write: Write, target: list[int]) -> list[list[int]]:
        """Return the numbers of the rows that each row of the write changes, as of now."""
        assert write.old is not None
        compared = [
            p
            for p in dict.fromkeys((*write.match_columns, *write.compare_columns))
            if not found.table.columns[target[p]].is_generated
        ]
        index: dict[Row, list[int]] = {}
        for number, row in reversed(found.rows.items()):
            index.setdefault(tuple(row[target[p]] for p in compared), []).append(number)
        rows = found_rows(seen(found, self._settings), write)
        by_key = (
            Counter(tuple(row[target[p]] for p in write.match_columns) for row in found.rows.values())
            if rows is FoundRows.SINGLE
            else Counter()
        )
        matches: list[list[int]] = []
        for number, values in enumerate(rows_of(write.old, compared, write)):
            numbers = index.get(values, [])
            if rows is not FoundRows.SINGLE:
                matches.append([numbers.pop()] if numbers else [])
            elif write.row_count == 1:
                matches.append(numbers)
            else:
                key = next(islice(rows_of(write.old, write.match_columns, write), number, None))
                matches.append(numbers if by_key[key] == 1 else [])
            if not matches[-1]:
                self._wait_for_key(found, write, target, dict(zip(compared, values, strict=True)))
        return matches

    def _wait_for_key(
        self, found: StoredTable, write: Write, target: list[int], values: dict[int, bytes | None]
    ) -> None:
        """Check that a missing row is not one that another open transaction has changed: the real one would wait for it."""
        by_target = {target[p]: value for p, value in values.items() if p in write.match_columns}
        key = seen(found, self._settings).key
        if key and all(column in by_target for column in key):
            self._transaction.lock((id(found), 0, tuple(by_target[column] for column in key)), take=False)
        else:
            self._transaction.require_unlocked(found)

    def _change(self, found: StoredTable, number: int, row: Row | None) -> None:
        table = found.table
        old = found.rows.get(number)
        self._transaction.lock((id(found), "row", number))
        for image in (old, row):
            if image is not None:
                for lock in found.keys_of(image):
                    self._transaction.lock((id(found), *lock))
        if row is not None:
            for value, column in zip(row, table.columns, strict=True):
                if value is None and column.not_null and not column.is_generated:
                    raise DataError(
                        f"null value in column {column.name}",
                        sqlstate=_NOT_NULL_VIOLATION,
                        table=f"{table.owner}.{table.name}",
                    )
            for index, key in found.keys_of(row):
                if found.unique[index].get(key, number) != number:
                    columns = ", ".join(table.columns[place].name for place in table.unique_keys[index])
                    raise DataError(
                        f"duplicate key in {table.owner}.{table.name} ({columns})",
                        sqlstate=_UNIQUE_VIOLATION,
                        violates="unique",
                        table=f"{table.owner}.{table.name}",
                    )
        found.put(number, row)
        self._transaction.did(lambda: found.put(number, old))
        command = Command.INSERT if old is None else Command.DELETE if row is None else Command.UPDATE
        self._transaction.note_change(found, command, old, row)

    def put(self, found: StoredTable, row: Row, *, instead_of: int | None = None) -> None:
        """Insert a row, or replace one.

        Args:
            found: the table.
            row: its values in the table's order.
            instead_of: number of the row to replace.
        """
        number = instead_of
        if number is None:
            self._store.next_row += 1
            number = self._store.next_row
        self._change(found, number, row)

    def remove(self, found: StoredTable, number: int) -> None:
        """Delete a row.

        Args:
            found: the table.
            number: of the row in it.
        """
        self._change(found, number, None)

    def truncate(self, tables: Iterable[TruncatedTable]) -> None:
        """Delete all rows of tables, or those of partitions.

        Args:
            tables: the content of one TRUNCATE.
        """
        for truncated in tables:
            found = self._store.tables[truncated.table.owner, truncated.table.name]
            holds = row_condition(found, truncated.partition)
            noted = self._transaction.change_count
            for number in [number for number, row in found.rows.items() if holds(row)]:
                self._change(found, number, None)
            if truncated.partition is None:
                self._transaction.note_emptied(found, noted)

    # ------------------------------------------------------------------ rows that writes meet

    def _table(self, write: Write) -> StoredTable:
        version = write.version
        found = self._store.tables.get((version.owner, version.name))
        missing = misfit(version, found.table if found else None, self._settings)
        if missing or found is None:
            raise unfit_error(version, missing, self._settings, is_there=found is not None)
        return found

    def find(self, write: Write, question: RowQuestion) -> tuple[RowInTheWay, ...]:
        """See `DestinationSession.find_rows`.

        Args:
            write: any number of rows; not `paired`.
            question: what to find out about them.
        """
        found = self._table(write)
        rows = find_rows(found, write, question, self._store.types)
        for number, _ in rows:
            self._transaction.lock((id(found), "row", number))
        if question.by_key and write.old is not None:
            target, there = targets(found, write), {row.of for _, row in rows}
            for number, values in enumerate(rows_of(write.old, write.match_columns, write)):
                if number not in there:  # deleted or moved by another open transaction: the real one waits
                    self._wait_for_key(found, write, target, dict(zip(write.match_columns, values, strict=True)))
        return tuple(row for _, row in rows)

    def conflicting(self, write: Write) -> NDArray[np.int64] | None:
        """See `DestinationSession.conflicting`.

        Args:
            write: any number of rows.
        """
        found = self._table(write)
        numbers = conflicting(found, write, seen(found, self._settings))
        if numbers is None:
            return None
        known = self._store.changes.get((write.version.owner, write.version.name), {})
        if write.times is not None:
            later = [n for n, key, _ in _notes_of(found, write) if key in known and _stays(known[key], write.times, n)]
            numbers = sorted({*numbers, *later})
        return np.array(numbers, np.int64)

    def last_changes(self, write: Write) -> tuple[LastChange, ...]:
        """See `DestinationSession.last_changes`.

        Args:
            write: with `times`.
        """
        found = self._table(write)
        assert write.old is not None
        known = self._store.changes.get((write.version.owner, write.version.name), {})
        changes = (known.get(key, LastChange()) for key in rows_of(write.old, _key_places(found, write), write))
        return tuple(
            replace(
                change,
                forgotten_us=self._store.forgotten_us,
                lost_us=_lost_us(change, write.times) if write.times is not None else 0,
            )
            for change in changes
        )


def _lost_us(change: LastChange, times: WriteTimes) -> int:
    """Return `LastChange.lost_us`; without tombstones a delete counts as no change."""
    return 0 if change.is_gone and not times.has_tombstones else change.lost_us


def _stays(change: LastChange, times: WriteTimes, row: int) -> bool:
    """Whether a change is later than a row of a write, or may be later."""
    return change.is_later_than(times, row) or replace(change, lost_us=_lost_us(change, times)).may_be_later_than(
        times, row
    )


def _key_places(found: StoredTable, write: Write) -> tuple[int, ...]:
    """Return the table's key as positions in a write's version."""
    places = {column.name: place for place, column in enumerate(write.version.columns)}
    return tuple(places[found.table.columns[place].name] for place in found.table.key)


def _notes_of(found: StoredTable, write: Write) -> Iterator[tuple[int, Row, bool]]:
    """Yield what a write does to keys: number of the row, a key, and whether that key is gone; old keys first."""
    key = _key_places(found, write)
    if write.command is Command.INSERT:
        assert write.new is not None
        yield from ((number, values, False) for number, values in enumerate(rows_of(write.new, key, write)))
        return
    assert write.old is not None
    before = list(rows_of(write.old, key, write))
    if write.command is Command.DELETE:
        yield from ((number, values, True) for number, values in enumerate(before))
        return
    after = before
    moved = [place for place in key if place in write.set_columns]
    if moved:
        assert write.new is not None
        found_new = list(rows_of(write.new, moved, write))
        after = [
            tuple(found_new[n][moved.index(p)] if p in moved else before[n][i] for i, p in enumerate(key))
            for n in range(write.row_count)
        ]
        yield from ((number, values, True) for number, values in enumerate(before) if values != after[number])
    yield from ((number, values, False) for number, values in enumerate(after))
