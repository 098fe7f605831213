"""How fast a log writer takes gulps: small transactions use one core at most, at any speed (decision 15).

A gulp costs the processes behind it about nine times what it costs here (measured), however little it holds. So each one
is a debt of ten times its own duration, which time pays off. Up to the allowance gulps are taken as they come: a commit
in good time after the ones before it is read at once. Above it the writer pauses until the debt is the allowance again,
and small transactions arrive in larger gulps. A backlog is read without a pause, and costs nothing.
"""

from __future__ import annotations

from headrace.base.clock import Clock

__all__ = ["GulpPace"]

GULP_COST = 10.0
PAUSE_MAX_S = 0.05
DEBT_ALLOWED_S = 0.05  # some ten gulps at once; at a steady rate it makes no difference


class GulpPace:
    """See the module. Owned by one log writer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._debt_s = 0.0
        self._paid_at = clock.monotonic()

    def owed_s(self, busy_s: float) -> float:
        """How long to pause behind a gulp.

        Args:
            busy_s: how long it took, seconds.
        """
        now = self._clock.monotonic()
        paid_s, self._paid_at = now - self._paid_at, now
        self._debt_s = min(max(0.0, self._debt_s - paid_s) + GULP_COST * busy_s, DEBT_ALLOWED_S + PAUSE_MAX_S)
        return max(0.0, self._debt_s - DEBT_ALLOWED_S)
