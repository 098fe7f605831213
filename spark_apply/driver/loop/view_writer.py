"""Writes the state of an apply process (`spark_apply.driver.described`) for the views. Apply does not depend on it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.base.errors import DatabaseError
from spark_apply.driver.described import configuration_of, said_of, state_of

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.databases.ports import DestinationDatabase
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.loop.recorded_progress import RecordedProgress
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.driver.server_streams import ApplyServers

__all__ = ["DESCRIBE_INTERVAL_S", "ViewWriter"]

log = logging.getLogger("headrace")

# The views are at most this old. A write takes about a millisecond of this thread: one part in five thousand.
DESCRIBE_INTERVAL_S = 5.0
DESCRIBE_AT_LEAST_S = 60.0  # even if nothing changed: the views conclude from it that the process lives


class ViewWriter:
    """Writes the state for the views. Only the loop's thread uses it, except for `said`.

    Args:
        destination: the destination with the views.
        coordinator, reader, servers, progress: the parts described.
        clock: clock of the descriptions.

    Attributes:
        said: the last description (`described.said_of`); empty: none yet. Any thread may read it.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        coordinator: ApplyCoordinator,
        reader: ApplyReader,
        servers: ApplyServers,
        progress: RecordedProgress,
        clock: Clock,
    ) -> None:
        self._config, self._epoch, self._destination, self._clock = config, epoch, destination, clock
        self._coordinator, self._reader, self._servers, self._progress = coordinator, reader, servers, progress
        self._configuration = configuration_of(config)
        self._written: dict[str, Any] = {}
        self._written_at = self._due_at = 0.0
        self.said: dict[str, Any] = {}

    def is_due(self, now: float) -> bool:
        """Return whether it is time for `describe`; not again until `DESCRIBE_INTERVAL_S` have passed.

        Args:
            now: monotonic seconds.
        """
        if now < self._due_at:
            return False
        self._due_at = now + DESCRIBE_INTERVAL_S
        return True

    def describe(self, status: str, problem: str = "") -> None:
        """Write the state if it has changed, or if nothing was written for a minute.

        Args:
            status: ENABLED, DISABLED or ABORTED.
            problem: why it ended; empty: it did not end by itself.
        """
        now, config = self._clock.monotonic(), self._config
        state = state_of(status, self._coordinator, self._reader, self._servers.facts(), problem)
        self.said = said_of(
            config,
            self._epoch,
            self._configuration,
            state,
            observed_us=self._clock.time_us(),
            applied_us=self._progress.last_applied_us,
        )
        if state == self._written and now < self._written_at + DESCRIBE_AT_LEAST_S:
            return
        try:
            self._destination.describe_apply(config.topology, config.apply, self._epoch, self._configuration, state)
        except DatabaseError as error:
            log.info("%s: its state is not written for the views: %s", config.apply, error.message)
            return
        self._written, self._written_at = state, now
