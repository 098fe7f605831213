"""Pauses between retries of failures that may be temporary."""

from __future__ import annotations

__all__ = ["RETRY_DELAY_MAX_S", "RETRY_DELAY_MIN_S", "Backoff"]

RETRY_DELAY_MIN_S = 0.1  # most breaks are a restarting peer, which is back within a second or two
RETRY_DELAY_MAX_S = 5.0  # after an outage of hours, work resumes within seconds of its end


class Backoff:
    """Pauses between retries: doubling from `RETRY_DELAY_MIN_S` to `RETRY_DELAY_MAX_S`."""

    def __init__(self) -> None:
        self._next_s = RETRY_DELAY_MIN_S

    def next_s(self) -> float:
        """Return the pause before the next retry."""
        pause, self._next_s = self._next_s, min(self._next_s * 2, RETRY_DELAY_MAX_S)
        return pause

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next_s = RETRY_DELAY_MIN_S
