"""The state of a component's host, its last error, and their times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.status.component import ComponentStatus, Failure

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.base.errors import HeadraceError

__all__ = ["Life"]

S = TypeVar("S", bound=ComponentStatus)


class Life:
    """One life of a component, from the start of its process on. The component's thread writes, any thread reads.

    Attributes:
        state: one of the states of `actors.hosting.host`.
        error: the last error; None: no error so far.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.state = "INITIALIZING"
        self.error: HeadraceError | None = None
        self._started_us = self._since_us = self._alive_us = clock.time_us()
        self._error_us = 0
        self._errors_total = 0
        self._opens_total = 0

    def enter(self, state: str) -> None:
        """Enter a state, or stay in it.

        Args:
            state: one of the states of `actors.hosting.host`.
        """
        if state != self.state:
            self.state, self._since_us = state, self._clock.time_us()
        self.note_alive()

    def note_alive(self) -> None:
        """Note that the component did something just now."""
        self._alive_us = self._clock.time_us()

    def note_open(self) -> None:
        """Note that the component is opened, perhaps again."""
        self._opens_total += 1

    def note_error(self, error: HeadraceError) -> None:
        """Remember an error; the state stays unchanged."""
        self.error, self._error_us = error, self._clock.time_us()
        self._errors_total += 1

    def shown(self, status: S) -> S:
        """Return the component's status with the times and the last error.

        Args:
            status: the status without them.
        """
        error = self.error
        return replace(
            status,
            since_us=self._since_us,
            started_us=self._started_us,
            alive_us=self._alive_us,
            errors_total=self._errors_total,
            opens_total=self._opens_total,
            last_error=None if error is None else Failure(**error.described(), at_us=self._error_us),
        )
