"""The pace of a log writer's gulps: small transactions use one core at most, at any speed (decision 15).

However small, a gulp costs the processes downstream about nine times what it costs here (measured). So each one adds a
debt of ten times its own duration, and time pays the debt off. Within the allowance there are no pauses: a commit some
time after the previous ones is read at once. Above the allowance the writer pauses until the debt is back at it, and
small transactions arrive in larger gulps. A backlog is read without a pause, and adds no debt.
"""

from __future__ import annotations

from headrace.base.clock import Clock

__all__ = ["GulpPace"]

GULP_COST = 10.0
PAUSE_MAX_S = 0.05
DEBT_ALLOWED_S = 0.05  # about ten gulps at once; it makes no difference at a steady rate


class GulpPace:
    """The pace of one log writer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._debt_s = 0.0
        self._paid_at = clock.monotonic()

    def owed_s(self, busy_s: float) -> float:
        """Return the pause after a gulp, in seconds.

        Args:
            busy_s: duration of the gulp, seconds.
        """
        now = self._clock.monotonic()
        paid_s, self._paid_at = now - self._paid_at, now
        self._debt_s = min(max(0.0, self._debt_s - paid_s) + GULP_COST * busy_s, DEBT_ALLOWED_S + PAUSE_MAX_S)
        return max(0.0, self._debt_s - DEBT_ALLOWED_S)
