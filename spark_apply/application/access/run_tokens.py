"""Tokens that distinguish tasks of current runs from tasks of ended runs and from other callers."""

from __future__ import annotations

import secrets
import threading
from collections import deque

from headrace.base.errors import PropagationError, ProtocolError

__all__ = ["RunTokens"]

# Ended runs whose tasks may still arrive: Spark reruns a failed task until the run is cancelled, seconds later. A
# driver has few runs at a time: one of apply servers, one of a round of copies, and those of comparisons.
_ENDED_MAX = 64


class RunTokens:
    """The tokens of an apply process's current runs; any thread may use it.

    Args:
        apply: name of the apply process, for messages.
    """

    def __init__(self, apply: str) -> None:
        self._apply = apply
        self._lock = threading.Lock()
        self._current: set[str] = set()
        self._ended: deque[str] = deque(maxlen=_ENDED_MAX)  # tokens of the last ended runs

    def admit(self) -> str:
        """Return a token for a run that is about to begin."""
        token = secrets.token_hex(16)
        with self._lock:
            self._current.add(token)
        return token

    def dismiss(self, token: str) -> None:
        """Refuse all remaining tasks of an ended run; open streams end by themselves."""
        with self._lock:
            self._current.discard(token)
            self._ended.append(token)

    def check(self, token: str) -> None:
        """Refuse a caller without the token of a current run.

        Raises:
            PropagationError: the caller is a late task of a run that has just ended. No operator needs to hear of that.
            ProtocolError: the caller is not a task of this process.
        """
        with self._lock:
            is_known, is_late = token in self._current, token in self._ended
        if is_late:
            raise PropagationError(f"the run of {self._apply} that the task belongs to has ended")
        if not is_known:
            raise ProtocolError(f"the caller is not a task of a current run of {self._apply}")
