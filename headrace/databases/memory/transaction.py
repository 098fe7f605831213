"""The open transaction of a session at a database in memory: what undoes it, what its COMMIT does, what it has locked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.base.errors import BugError, DatabaseUnavailable
from headrace.databases.memory.store import MemoryStore, Row, StoredChange, StoredTable
from headrace.lcr.batch import Command

__all__ = ["OpenTransaction"]

_LOCK_NOT_AVAILABLE = "55P03"


class _State(Enum):
    """Of a session."""

    IDLE = "idle"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Point:
    """Where a transaction can go back to: how much it had done then, and was to do at its COMMIT."""

    done: int
    at_commit: int


class OpenTransaction:
    """See the module.

    Args:
        store: whose rows it changes, and which holds its locks.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.state = _State.IDLE
        self._undo: list[Callable[[], object]] = []
        # And how long `_undo` was then; empty while nobody listens.
        self._changes: list[tuple[int, StoredChange]] = []
        self._at_commit: list[Callable[[], object]] = []
        self._savepoint: _Point | None = None
        self._marks: list[tuple[_Point, _Point | None]] = []  # and the savepoint then
        self.deleted_errors: set[int] = set()
        """Error transactions that the COMMIT deletes."""

    def begin(self) -> None:
        """Begin a transaction."""
        if self.state is not _State.IDLE:
            raise BugError(f"begin in a session that is {self.state.value}")
        self.state = _State.OPEN

    def require_open(self) -> None:
        """Raise an error unless a transaction is there that can go on."""
        if self.state is not _State.OPEN:
            raise BugError(f"a transaction is needed, the session is {self.state.value}")

    def fail(self) -> None:
        """After an error: it cannot go on."""
        self.state = _State.FAILED

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        self._go_back(_Point(0, 0))
        self.end()

    def end(self) -> None:
        """Forget what would undo it, and let go of its locks."""
        self.state, self._savepoint = _State.IDLE, None
        self._undo.clear()
        self._changes.clear()
        self._marks.clear()
        self._at_commit.clear()
        self.deleted_errors.clear()
        for lock in [lock for lock, owner in self._store.locks.items() if owner is self]:
            del self._store.locks[lock]

    # ------------------------------------------------------------------ savepoints

    def savepoint(self) -> None:
        """Set or move the one savepoint."""
        self._savepoint = self._here()

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the savepoint."""
        if self._savepoint is None:
            raise BugError("there is no savepoint to go back to")
        self._go_back(self._savepoint)
        self.state = _State.OPEN

    def mark(self) -> int:
        """Set a mark; the savepoint that is set behind it is gone with it."""
        self._marks.append((self._here(), self._savepoint))
        self._savepoint = None
        return len(self._marks)

    def undo_to_mark(self, mark: int) -> None:
        """Undo what came after a mark, which is gone."""
        self._go_back(self._forget_marks(mark))
        self.state = _State.OPEN

    def drop_mark(self, mark: int) -> None:
        """Keep what came after a mark, which is gone."""
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

    # ------------------------------------------------------------------ what it does

    def did(self, undo: Callable[[], object]) -> None:
        """Something was done.

        Args:
            undo: takes it back.
        """
        self._undo.append(undo)

    def note_change(self, found: StoredTable, command: Command, old: Row | None, new: Row | None) -> None:
        """A row was changed, or a table emptied: `MemoryStore.on_commit` hears of it; the way back is `did` before.

        Args:
            found: the table.
            command: what was done.
            old: see `StoredChange`.
            new: see `StoredChange`.
        """
        if self._store.on_commit is not None:
            self._changes.append(
                (len(self._undo), StoredChange(found.table.owner, found.table.name, command, old, new))
            )

    def note_emptied(self, found: StoredTable, since: int) -> None:
        """A table was emptied, row by row: that is one change.

        Args:
            found: the table.
            since: `change_count` before the first row.
        """
        del self._changes[since:]
        self._undo.append(lambda: None)  # an empty table leaves nothing else to undo
        self.note_change(found, Command.TRUNCATE, None, None)

    @property
    def change_count(self) -> int:
        """How many changes are noted."""
        return len(self._changes)

    def do_at_commit(self, action: Callable[[], object]) -> None:
        """Let the COMMIT do something that a rollback must not have done.

        Args:
            action: done once.
        """
        self._at_commit.append(action)

    def lock(self, lock: tuple[Any, ...], *, take: bool = True) -> None:
        """Take a lock until the transaction ends.

        Args:
            lock: what is locked.
            take: False: only see that no other transaction has it.

        Raises:
            DatabaseUnavailable: another one has it. The real one waits for a while first.
        """
        owner = self._store.locks.get(lock)
        if owner is not None and owner is not self:
            raise _locked()
        if take:
            self._store.locks[lock] = self

    def require_unlocked(self, table: StoredTable) -> None:
        """Raise an error where another transaction has locked anything of a table.

        Args:
            table: whose rows cannot be told by a key.
        """
        if any(lock[0] == id(table) and owner is not self for lock, owner in self._store.locks.items()):
            raise _locked()

    # ------------------------------------------------------------------ commit

    @property
    def is_rows_alone(self) -> bool:
        """Whether the COMMIT does nothing but to keep rows."""
        return not self._at_commit

    @property
    def changes(self) -> tuple[StoredChange, ...]:
        """What was noted of the rows, in order."""
        return tuple(change for _, change in self._changes)

    def run_at_commit(self) -> None:
        """Do what the COMMIT was to do."""
        for action in self._at_commit:
            action()

    def taken_back(self) -> Callable[[], None]:
        """What a crash does to the rows of the transaction, once it is committed and not flushed."""
        undo = list(self._undo)

        def take_back() -> None:
            while undo:
                undo.pop()()

        return take_back


def _locked() -> DatabaseUnavailable:
    return DatabaseUnavailable("another transaction holds the row", sqlstate=_LOCK_NOT_AVAILABLE)
