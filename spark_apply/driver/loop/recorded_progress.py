"""Recorded progress at the destination, and the part of it that no crash there can take back.

The apply servers record progress with the data that they commit. A low watermark that moves without data is recorded
here, so that the source can discard its log. This module also asks whether commits are on the destination's disk
(`spark_apply.driver.loop.flushes`).

Only the loop's thread uses this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable
from headrace.lcr.scn import Scn
from spark_apply.driver.loop.flushes import FlushGate

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.databases.ports import DestinationDatabase
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator

__all__ = ["RECORD_INTERVAL_S", "RecordedProgress"]

# The low watermark of an idle source moves with every heartbeat: it is written to the destination at most this often.
RECORD_INTERVAL_S = 2.0


class RecordedProgress:
    """The recorded progress of one apply process.

    Args:
        destination: where progress is recorded.
        coordinator: knows what is applied.
        clock: clock for `last_applied_us`.

    Attributes:
        last_applied_us: when the low watermark last moved with data, microseconds since the epoch; 0: never.
    """

    def __init__(
        self,
        config: ApplyConfig,
        *,
        epoch: int,
        destination: DestinationDatabase,
        coordinator: ApplyCoordinator,
        clock: Clock,
    ) -> None:
        self._topology, self._apply, self._epoch = config.topology, config.apply, epoch
        self._destination, self._coordinator, self._clock = destination, coordinator, clock
        self._flushes = FlushGate(
            destination,
            config.topology,
            config.apply,
            epoch=epoch,
            scn=coordinator.watermarks.durable,
            is_needed=config.commits_lazily,
        )
        self._record_at = 0.0
        self._applied_scn = Scn(0)
        self.last_applied_us = 0

    @property
    def recorded_scn(self) -> Scn:
        """The low watermark that the destination has on disk: no crash there takes it back."""
        return self._flushes.durable_scn(self._coordinator.watermarks.durable)

    @property
    def kept_scn(self) -> Scn:
        """The SCN up to which everything is applied or in the error queue and survives a crash of the destination.

        Tables that are being copied are excepted. It exceeds `recorded_scn` where the low watermark moved without data,
        which is not recorded at once.
        """
        recorded = self.recorded_scn
        return self._coordinator.watermarks.low if recorded == self._coordinator.watermarks.durable else recorded

    @property
    def due_at(self) -> float | None:
        """When there is something to record or to ask, by the clock; None: nothing."""
        record_at = None if self._coordinator.unrecorded_scn is None else self._record_at
        flush_at = self._flushes.due_at(self._coordinator.watermarks.durable)
        return min((at for at in (record_at, flush_at) if at is not None), default=None)

    def note_applied(self) -> None:
        """Note when the low watermark moves with data."""
        if self._coordinator.watermarks.durable > self._applied_scn:
            self._applied_scn, self.last_applied_us = self._coordinator.watermarks.durable, self._clock.time_us()

    def record(self, now: float) -> bool:
        """Record a low watermark that moved without data, if it is due.

        Args:
            now: monotonic seconds.

        Returns:
            Whether one was recorded.

        Raises:
            DatabaseUnavailable: the destination does not answer; call again.
            FencedError: a newer driver runs.
        """
        scn = self._coordinator.unrecorded_scn
        if scn is None or now < self._record_at:
            return False
        self._record_at = now + RECORD_INTERVAL_S
        self._destination.record_low_watermark(self._topology, self._apply, self._epoch, scn)
        self._coordinator.watermarks.recorded(scn)
        self._flushes.flushed(scn)
        return True

    def look_for_flushes(self, now: float) -> bool:
        """Find out which of the servers' commits are on the destination's disk, if it is due.

        Args:
            now: monotonic seconds.

        Returns:
            Whether the destination was asked, and answered.

        Raises:
            DatabaseUnavailable: the destination does not answer; call again.
            FencedError: a newer driver runs.
            DestinationRestarted: the server has lost what was not flushed, or may have.
        """
        try:
            return self._flushes.step(self._coordinator.watermarks.durable, now)
        except DatabaseUnavailable:
            self._flushes.is_away(self._clock.monotonic())
            raise
