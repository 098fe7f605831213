"""Pauses between tries of what may heal by itself."""

from __future__ import annotations

__all__ = ["RETRY_DELAY_MAX_S", "RETRY_DELAY_MIN_S", "Backoff"]

RETRY_DELAY_MIN_S = 0.1  # most breaks are a peer restarting: it is back within a second or two
RETRY_DELAY_MAX_S = 5.0  # an outage of hours ends within seconds of its end


class Backoff:
    """Pauses between tries: doubling from `RETRY_DELAY_MIN_S` to `RETRY_DELAY_MAX_S`."""

    def __init__(self) -> None:
        self._next_s = RETRY_DELAY_MIN_S

    def next_s(self) -> float:
        """The pause before the next try."""
        pause, self._next_s = self._next_s, min(self._next_s * 2, RETRY_DELAY_MAX_S)
        return pause

    def reset(self) -> None:
        """Begin again with the short pause."""
        self._next_s = RETRY_DELAY_MIN_S
