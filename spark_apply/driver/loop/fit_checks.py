"""Schedule on which the loop of an apply driver checks again whether tables fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.tables.fits import TableFits

__all__ = ["FIT_AGE_MAX_S", "FitChecks"]

ALTER_RETRY_S = 2.0  # how often a table that does not fit is checked again
# A unique index created at the destination orders transactions from then on, without notice. Until the driver sees it,
# a transaction may run before an earlier one that had the same value. The earlier one can then fail and enter the error
# queue, from which it can be executed. Checking a table takes milliseconds.
FIT_AGE_MAX_S = 60.0


class FitChecks:
    """Schedules checks of tables that do not fit, and of old descriptions.

    Args:
        fits: the reader's fits.
        reader: knows the table that does not fit.
        coordinator: must have applied everything before that table's rows.
        clock: clock of the checks.
    """

    def __init__(self, fits: TableFits, reader: ApplyReader, coordinator: ApplyCoordinator, clock: Clock) -> None:
        self._fits, self._reader, self._coordinator = fits, reader, coordinator
        self._retry_at: float | None = None
        self._forget_at = clock.monotonic() + FIT_AGE_MAX_S

    @property
    def due_at(self) -> float | None:
        """When a table that does not fit is checked again, by the clock; None: all fit."""
        return self._retry_at

    def is_due(self, now: float) -> bool:
        """Return whether to check a table that does not fit now, with `ApplyReader.retry_unfit`.

        Args:
            now: monotonic seconds.
        """
        if self._reader.unfit is None or not self._coordinator.is_idle:
            self._retry_at = None
            return False
        is_due = self._retry_at is not None and now >= self._retry_at
        if self._retry_at is None or is_due:
            self._retry_at = now + ALTER_RETRY_S
        return is_due

    def forget_old(self, now: float) -> None:
        """Have every table described anew when its description may be stale.

        Args:
            now: monotonic seconds.
        """
        if now >= self._forget_at:
            self._forget_at = now + FIT_AGE_MAX_S
            self._fits.forget()
