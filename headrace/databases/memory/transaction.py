"""The open transaction of an in-memory session: its undo actions, its actions at COMMIT, and its locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.base.errors import BugError, DatabaseUnavailable
from headrace.databases.memory.store import MemoryStore, Row, StoredChange, StoredTable
from headrace.databases.ports import Instantiation
from headrace.lcr.batch import Command

__all__ = ["OpenTransaction", "RecordKey"]

RecordKey = tuple[str, str, str, str]
"""Topology, apply process, source and identity of an instantiation record."""

_LOCK_NOT_AVAILABLE = "55P03"


class _State(Enum):
    """State of a session."""

    IDLE = "idle"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Point:
    """A point to roll back to: how much had been done by then, and how much was registered for the COMMIT."""

    done: int
    at_commit: int


class OpenTransaction:
    """One session's open transaction.

    Args:
        store: owner of the rows that it changes and of its locks.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.state = _State.IDLE
        self._undo: list[Callable[[], object]] = []
        # With the length of `_undo` at that time; empty without a listener.
        self._changes: list[tuple[int, StoredChange]] = []
        self._at_commit: list[Callable[[], object]] = []
        self._savepoint: _Point | None = None
        self._marks: list[tuple[_Point, _Point | None]] = []  # with the savepoint at that time
        self.records: dict[RecordKey, tuple[Instantiation, int] | None] = {}
        """Instantiation records that the COMMIT will write, with the numbers of their tables, or remove."""
        self.deleted_errors: set[int] = set()
        """Error transactions that the COMMIT will delete."""

    def begin(self) -> None:
        """Begin a transaction."""
        if self.state is not _State.IDLE:
            raise BugError(f"begin in a session that is {self.state.value}")
        self.state = _State.OPEN

    def require_open(self) -> None:
        """Raise an error unless an open transaction can continue."""
        if self.state is not _State.OPEN:
            raise BugError(f"a transaction is needed, the session is {self.state.value}")

    def fail(self) -> None:
        """Mark the transaction as failed after an error: it cannot continue."""
        self.state = _State.FAILED

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        self._go_back(_Point(0, 0))
        self.end()

    def end(self) -> None:
        """Drop its undo actions and release its locks."""
        self.state, self._savepoint = _State.IDLE, None
        self._undo.clear()
        self._changes.clear()
        self._marks.clear()
        self._at_commit.clear()
        self.deleted_errors.clear()
        self.records.clear()
        for lock in [lock for lock, owner in self._store.locks.items() if owner is self]:
            del self._store.locks[lock]

    # ------------------------------------------------------------------ savepoints

    def savepoint(self) -> None:
        """Set or move the one savepoint."""
        self._savepoint = self._here()

    def rollback_to_savepoint(self) -> None:
        """Undo everything after the savepoint."""
        if self._savepoint is None:
            raise BugError("there is no savepoint to go back to")
        self._go_back(self._savepoint)
        self.state = _State.OPEN

    def mark(self) -> int:
        """Set a mark; the savepoint set after it is discarded with it."""
        self._marks.append((self._here(), self._savepoint))
        self._savepoint = None
        return len(self._marks)

    def undo_to_mark(self, mark: int) -> None:
        """Undo everything after a mark, and discard the mark."""
        self._go_back(self._forget_marks(mark))
        self.state = _State.OPEN

    def drop_mark(self, mark: int) -> None:
        """Keep everything after a mark, and discard the mark."""
        self._forget_marks(mark)

    def _here(self) -> _Point:
        return _Point(len(self._undo), len(self._at_commit))

    def _forget_marks(self, mark: int) -> _Point:
        if not 1 <= mark <= len(self._marks):
            raise BugError(f"there is no mark {mark} to go back to")
        point, self._savepoint = self._marks[mark - 1]
        del self._marks[mark - 1 :]
        return point

    def _go_back(self, point: _Point) -> None:
        while len(self._undo) > point.done:
            self._undo.pop()()
        while self._changes and self._changes[-1][0] > point.done:
            self._changes.pop()
        del self._at_commit[point.at_commit :]

    # ------------------------------------------------------------------ actions

    def did(self, undo: Callable[[], object]) -> None:
        """Register an action that was done.

        Args:
            undo: reverts it.
        """
        self._undo.append(undo)

    def note_change(self, found: StoredTable, command: Command, old: Row | None, new: Row | None) -> None:
        """Note a changed row or an emptied table for `MemoryStore.on_commit`; `did` has registered the undo before.

        Args:
            found: the table.
            command: the operation.
            old: the row before, as in `StoredChange`.
            new: the row after, as in `StoredChange`.
        """
        if self._store.on_commit is not None:
            self._changes.append(
                (len(self._undo), StoredChange(found.table.owner, found.table.name, command, old, new))
            )

    def note_emptied(self, found: StoredTable, since: int) -> None:
        """Merge the changes of a table that was emptied row by row into one.

        Args:
            found: the table.
            since: `change_count` before the first row.
        """
        del self._changes[since:]
        self._undo.append(lambda: None)  # an empty table leaves nothing else to undo
        self.note_change(found, Command.TRUNCATE, None, None)

    @property
    def change_count(self) -> int:
        """Number of noted changes."""
        return len(self._changes)

    def do_at_commit(self, action: Callable[[], object]) -> None:
        """Register an action for the COMMIT that a rollback must not perform.

        Args:
            action: called once.
        """
        self._at_commit.append(action)

    def record(self, key: RecordKey, made: tuple[Instantiation, int] | None) -> None:
        """Write an instantiation record at the COMMIT, or remove it with the mark of its rows; others see it then.

        Args:
            key: of the record.
            made: the record, and the number of its table; None: remove it.
        """
        before = (key in self.records, self.records.get(key))

        def undo() -> None:
            if before[0]:
                self.records[key] = before[1]
            else:
                del self.records[key]

        self.records[key] = made
        self.did(undo)
        self.do_at_commit(lambda: self._store.put_record(key, made))

    def lock(self, lock: tuple[Any, ...], *, take: bool = True) -> None:
        """Take a lock until the transaction ends.

        Args:
            lock: what to lock.
            take: False: only check that no other transaction has it.

        Raises:
            DatabaseUnavailable: another transaction has it. The real database waits for a while first.
        """
        owner = self._store.locks.get(lock)
        if owner is not None and owner is not self:
            raise _locked()
        if take:
            self._store.locks[lock] = self

    def require_unlocked(self, table: StoredTable) -> None:
        """Raise an error if another transaction has locked anything of a table.

        Args:
            table: a table whose rows no key identifies.
        """
        if any(lock[0] == id(table) and owner is not self for lock, owner in self._store.locks.items()):
            raise _locked()

    # ------------------------------------------------------------------ commit

    @property
    def is_rows_alone(self) -> bool:
        """Whether the COMMIT only keeps rows."""
        return not self._at_commit

    @property
    def changes(self) -> tuple[StoredChange, ...]:
        """The noted row changes, in order."""
        return tuple(change for _, change in self._changes)

    def run_at_commit(self) -> None:
        """Run the actions registered for the COMMIT."""
        for action in self._at_commit:
            action()

    def taken_back(self) -> Callable[[], None]:
        """Return the function with which a crash reverts the transaction's rows after an unflushed commit."""
        undo = list(self._undo)

        def take_back() -> None:
            while undo:
                undo.pop()()

        return take_back


def _locked() -> DatabaseUnavailable:
    return DatabaseUnavailable("another transaction holds the row", sqlstate=_LOCK_NOT_AVAILABLE)
