"""Limits on the use of a line: the gate that a schedule opens and closes, and the pace that a bandwidth sets.

A propagation's steps query both with the time of its clock: no threads, no timers.

Worked flow
    Pacer(1 MB/s): a piece of 100 kB is sent at 0.0 -> closed for 0.1 s -> one of 100 kB at 0.1 -> ... -> 10 s: 10 MB
    nothing for an hour, then a backlog: one piece at once, the next 0.1 s later. Unused bandwidth is not saved up.
"""

from __future__ import annotations

from headrace.base.clock import Clock
from protos.wire.fragments import FRAGMENT_BYTES
from topology.schedule import Opening, Schedule

__all__ = ["PIECE_BYTES_MIN", "Gate", "Pacer"]

# A piece takes a tenth of a second of its bandwidth, so other users of the line wait no longer than that.
PIECE_S = 0.1
PIECE_BYTES_MIN = 4096  # smaller pieces cost more in headers, and compress badly


class Pacer:
    """A token bucket, one piece deep, stored as the time at which the next piece may be sent.

    Args:
        bytes_per_s: average bytes per second in the long run.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._open_at_s = 0.0
        self.piece_bytes = max(PIECE_BYTES_MIN, min(FRAGMENT_BYTES, int(bytes_per_s * PIECE_S)))

    def pause_s(self, now_s: float) -> float:
        """Return the seconds until the next piece may be sent; 0: now.

        Args:
            now_s: time of a monotonic clock.
        """
        return max(0.0, self._open_at_s - now_s)

    def sent(self, size: int, now_s: float) -> None:
        """Note that a piece was sent.

        Args:
            size: bytes on the wire. A piece larger than `piece_bytes` causes a longer pause.
            now_s: time of a monotonic clock.
        """
        self._open_at_s = max(self._open_at_s, now_s) + size / self._bytes_per_s


class Gate:
    """Tells whether a schedule is open now; it evaluates the schedule only when the answer may have changed.

    Args:
        schedule: None: the gate is always open.
        clock: its wall clock decides. A clock that is set back is noticed.
    """

    def __init__(self, schedule: Schedule | None, clock: Clock) -> None:
        self._schedule, self._clock = schedule, clock
        self._seen_us = 0
        self._opening = Opening(is_open=True, until_us=0)

    def is_open(self) -> bool:
        """Return whether a propagation may use its line."""
        if self._schedule is None:
            return True
        now_us = self._clock.time_us()
        if not self._seen_us <= now_us < self._opening.until_us:
            self._opening, self._seen_us = self._schedule.at(now_us), now_us
        return self._opening.is_open

    def pause_s(self) -> float:
        """Return the seconds until the gate may open or close; 0 without a schedule."""
        return 0.0 if self._schedule is None else max(0.0, (self._opening.until_us - self._clock.time_us()) / 1e6)

    @property
    def until(self) -> str:
        """When the gate may open or close, on the clock of the schedule; empty without a schedule."""
        return "" if self._schedule is None else self._schedule.shown(self._opening.until_us)
