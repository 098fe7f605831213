"""Time as a port, so that the same code runs in actors and in a simulation."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class Clock(Protocol):
    """Where a process gets its time from."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back."""
        ...

    def time_us(self) -> int:
        """Microseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def time_us(self) -> int:
        """See `Clock.time_us`."""
        return time.time_ns() // 1000


class VirtualClock:
    """A clock that only moves when told."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._start_us = start_us
        self._elapsed_s = 0.0

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._elapsed_s

    def time_us(self) -> int:
        """See `Clock.time_us`."""
        return self._start_us + int(self._elapsed_s * 1e6)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds` (not negative)."""
        if seconds < 0:
            message = f"a clock cannot go back: advance({seconds})"
            raise ValueError(message)
        self._elapsed_s += seconds
