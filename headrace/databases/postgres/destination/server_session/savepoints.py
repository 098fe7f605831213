"""Points to which a transaction can roll back: one savepoint between rows, and marks that nest.

Removing a mark removes a savepoint that was set after it, and restores one that was set before it. Methods return the
statements to send.
"""

from __future__ import annotations

from headrace.base.errors import BugError
from headrace.databases.postgres.pipeline import Statement

__all__ = ["Savepoints"]


class Savepoints:
    """Savepoint and marks of one transaction."""

    def __init__(self) -> None:
        self._is_set = False
        self._marks: list[bool] = []  # for each mark, whether a savepoint existed when it was set

    def clear(self) -> None:
        """Forget the savepoint and all marks."""
        self._is_set = False
        self._marks = []

    def set(self) -> list[Statement]:
        """Set the savepoint, or move it."""
        released = [Statement(sql="RELEASE SAVEPOINT headrace")] if self._is_set else []
        self._is_set = True
        return [*released, Statement(sql="SAVEPOINT headrace")]

    def go_back(self) -> list[Statement]:
        """Undo the work after the savepoint, which stays."""
        if not self._is_set:
            raise BugError("there is no savepoint to go back to")
        return [Statement(sql="ROLLBACK TO SAVEPOINT headrace")]

    @property
    def mark_count(self) -> int:
        """Number of marks, which is the number of the last one."""
        return len(self._marks)

    def mark(self) -> list[Statement]:
        """Set a mark."""
        # A savepoint of the outer level is not released after the mark, because that would release the mark, too.
        self._marks.append(self._is_set)
        self._is_set = False
        return [Statement(sql=f"SAVEPOINT headrace_mark_{len(self._marks)}")]

    def undo_to_mark(self, mark: int) -> list[Statement]:
        """Undo the work after a mark, and remove the mark."""
        return [Statement(sql=f"ROLLBACK TO SAVEPOINT headrace_mark_{mark}"), *self.drop_mark(mark)]

    def drop_mark(self, mark: int) -> list[Statement]:
        """Keep the work after a mark, and remove the mark."""
        if not 1 <= mark <= len(self._marks):
            raise BugError(f"there is no mark {mark} to go back to")
        self._is_set = self._marks[mark - 1]
        del self._marks[mark - 1 :]
        return [Statement(sql=f"RELEASE SAVEPOINT headrace_mark_{mark}")]

    def release_all(self) -> list[Statement]:
        """Release the outermost savepoint or mark, and all others with it, before a statement outside of them."""
        is_set = self._marks[0] if self._marks else self._is_set
        names = [*(["headrace_mark_1"] if self._marks else []), *(["headrace"] if is_set else [])]
        return [Statement(sql=f"RELEASE SAVEPOINT {name}") for name in names]
