"""Time as a port, so that the same code runs in actors and in a simulation."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class Clock(Protocol):
    """Source of time for a process."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back."""
        ...

    def time_us(self) -> int:
        """Microseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return the machine's monotonic time."""
        return time.monotonic()

    def time_us(self) -> int:
        """Return the machine's time of day."""
        return time.time_ns() // 1000


class VirtualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._start_us = start_us
        self._elapsed_s = 0.0

    def monotonic(self) -> float:
        """Return the virtual seconds since the start."""
        return self._elapsed_s

    def time_us(self) -> int:
        """Return the virtual time of day."""
        return self._start_us + int(self._elapsed_s * 1e6)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds` (not negative)."""
        if seconds < 0:
            message = f"a clock cannot go back: advance({seconds})"
            raise ValueError(message)
        self._elapsed_s += seconds
