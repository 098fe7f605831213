"""Calls of `headrace up`: each waits until the controller has checked the databases after the call.

A call that arrives during a preparation may be about a table that was created since, so that preparation does not
settle it.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["ASKED", "BEGUN", "SETTLED", "Calls"]

ASKED: Final = "asked"
BEGUN: Final = "begun"
SETTLED: Final = "settled"
_KEPT_MAX = 16  # a caller whose call was dropped asks again


class Calls:
    """The latest calls. `ask` and `described` may be called from any thread, the others from the controller's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}  # by call, oldest first

    def ask(self, call: str) -> None:
        """Register a call; idempotent."""
        with self._lock:
            self._states.setdefault(call, ASKED)
            while len(self._states) > _KEPT_MAX:
                self._states.pop(next(iter(self._states)))

    def begin(self) -> tuple[str, ...]:
        """Begin with the calls that were asked and not begun; return them."""
        return self._move(ASKED, BEGUN)

    def settle(self) -> None:
        """Settle the calls that were begun: their work is done, or refused."""
        self._move(BEGUN, SETTLED)

    def described(self) -> dict[str, str]:
        """Return the state of each call: `ASKED`, `BEGUN` or `SETTLED`."""
        with self._lock:
            return dict(self._states)

    def _move(self, before: str, after: str) -> tuple[str, ...]:
        with self._lock:
            found = tuple(call for call, state in self._states.items() if state == before)
            self._states |= dict.fromkeys(found, after)
        return found
