"""Writes that a session has sent and whose answers it has not read yet (`DestinationSession.write_ahead`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headrace.base.errors import DatabaseError, UnfitTableError

__all__ = ["WrittenAhead"]


class _Answer:
    """One answer, read once; later calls return or raise the same."""

    def __init__(self, read: Callable[[], tuple[int, ...]]) -> None:
        self._read = read
        self._counts: tuple[int, ...] | None = None
        self._error: BaseException | None = None

    def get(self) -> tuple[int, ...]:
        if self._error is not None:
            raise self._error
        if self._counts is None:
            try:
                self._counts = self._read()
            except BaseException as error:
                self._error = error
                raise
        return self._counts


class WrittenAhead:
    """The pending answer of one session, if any."""

    def __init__(self) -> None:
        self._coming: _Answer | None = None

    def expect(self, read: Callable[[], tuple[int, ...]]) -> Callable[[], tuple[int, ...]]:
        """Register a pending answer; no other one may be pending.

        Args:
            read: waits for the answer and raises its error.

        Returns:
            The function that `write_ahead` returns.
        """
        answer = _Answer(read)
        self._coming = answer

        def wait() -> tuple[int, ...]:
            if self._coming is answer:
                self._coming = None
            return answer.get()

        return wait

    def settle(self) -> None:
        """Wait for the pending answer before anything else is sent; raises its error, once."""
        if self._coming is not None:
            answer, self._coming = self._coming, None
            answer.get()

    def forget(self) -> None:
        """Wait for the pending answer before the writes are undone.

        Its error then matters only to a caller that asks for the answer.
        """
        with contextlib.suppress(DatabaseError, UnfitTableError):
            self.settle()
