"""Where a transaction can go back to: one savepoint between rows, and marks that nest.

A savepoint that is set behind a mark is gone with it, and one that was set before is there again. Methods return the
statements that do what they say.
"""

from __future__ import annotations

from headrace.base.errors import BugError
from headrace.databases.postgres.pipeline import Statement

__all__ = ["Savepoints"]


class Savepoints:
    """See the module."""

    def __init__(self) -> None:
        self._is_set = False
        self._marks: list[bool] = []  # whether there was a savepoint when each was set

    def clear(self) -> None:
        """Another transaction, or none."""
        self._is_set = False
        self._marks = []

    def set(self) -> list[Statement]:
        """Set the savepoint, or move it."""
        released = [Statement(sql="RELEASE SAVEPOINT headrace")] if self._is_set else []
        self._is_set = True
        return [*released, Statement(sql="SAVEPOINT headrace")]

    def go_back(self) -> list[Statement]:
        """Undo what came after the savepoint, which stays."""
        if not self._is_set:
            raise BugError("there is no savepoint to go back to")
        return [Statement(sql="ROLLBACK TO SAVEPOINT headrace")]

    @property
    def mark_count(self) -> int:
        """How many marks there are: the number of the last one."""
        return len(self._marks)

    def mark(self) -> list[Statement]:
        """Set a mark."""
        # A savepoint of the outer level is not released behind the mark: that would release the mark with it.
        self._marks.append(self._is_set)
        self._is_set = False
        return [Statement(sql=f"SAVEPOINT headrace_mark_{len(self._marks)}")]

    def undo_to_mark(self, mark: int) -> list[Statement]:
        """Undo what came after a mark, which is gone.

        Args:
            mark: its number.
        """
        return [Statement(sql=f"ROLLBACK TO SAVEPOINT headrace_mark_{mark}"), *self.drop_mark(mark)]

    def drop_mark(self, mark: int) -> list[Statement]:
        """Keep what came after a mark, which is gone.

        Args:
            mark: its number.
        """
        if not 1 <= mark <= len(self._marks):
            raise BugError(f"there is no mark {mark} to go back to")
        self._is_set = self._marks[mark - 1]
        del self._marks[mark - 1 :]
        return [Statement(sql=f"RELEASE SAVEPOINT headrace_mark_{mark}")]

    def release_all(self) -> list[Statement]:
        """Release the outermost one, and all others with it, before a statement outside of all of them."""
        is_set = self._marks[0] if self._marks else self._is_set
        names = [*(["headrace_mark_1"] if self._marks else []), *(["headrace"] if is_set else [])]
        return [Statement(sql=f"RELEASE SAVEPOINT {name}") for name in names]
