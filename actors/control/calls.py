"""Calls of `headrace up`: each waits until the controller has looked at the databases after it was asked.

A call that comes while databases are prepared may be about a table that was created since: it is not settled by what is
prepared then.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["ASKED", "BEGUN", "SETTLED", "Calls"]

ASKED: Final = "asked"
BEGUN: Final = "begun"
SETTLED: Final = "settled"
_KEPT_MAX = 16  # a caller that was forgotten asks again


class Calls:
    """The latest calls. `ask` and `described` may be called from any thread, the others from the controller's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}  # by call, oldest first

    def ask(self, call: str) -> None:
        """Take a call; idempotent."""
        with self._lock:
            self._states.setdefault(call, ASKED)
            while len(self._states) > _KEPT_MAX:
                self._states.pop(next(iter(self._states)))

    def begin(self) -> tuple[str, ...]:
        """Begin with what was asked and not begun; returns it."""
        return self._move(ASKED, BEGUN)

    def settle(self) -> None:
        """What was begun is done, or refused."""
        self._move(BEGUN, SETTLED)

    def described(self) -> dict[str, str]:
        """By call: `ASKED`, `BEGUN` or `SETTLED`."""
        with self._lock:
            return dict(self._states)

    def _move(self, before: str, after: str) -> tuple[str, ...]:
        with self._lock:
            found = tuple(call for call, state in self._states.items() if state == before)
            self._states |= dict.fromkeys(found, after)
        return found
