"""Commits of the apply servers that are on the destination's disk, for servers that do not wait for it.

Job
    Hold back an SCN from upstream until a crash of the destination cannot take it back.

Main path
    RecordedProgress -> FlushGate.step -> DestinationDatabase.log_positions -> `durable_scn` -> feed.

Durable when
    The driver notes the recorded low watermark, then asks for the written position: every commit reported before is at
    or below it. When the flushed position has reached it, the noted low watermark is durable. Both questions are asked
    within one epoch of the server's life. A crash ends the epoch, and the question raises DestinationRestarted.

Worked flow
    servers report commits up to SCN 40 -> written 900, flushed 850: 40 waits for 900
    0.05 s later, commits up to 55      -> written 990, flushed 900: 40 is durable and acknowledged, 55 waits for 990
    nothing more; 1 s later             -> flushed 950: the driver commits durably, which flushes all before it -> 55
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.databases.ports import ApplyRecords

__all__ = ["FORCE_AFTER_S", "POLL_INTERVAL_S", "RETRY_S", "FlushGate"]

# One query of a fraction of a millisecond, and only while commits wait for the disk. A later acknowledgement only
# releases redo later.
POLL_INTERVAL_S = 0.05
# The WAL writer flushes commits within three times wal_writer_delay: 0.6 s by default, so a forced flush is rare there.
# That delay can be 10 s, and the WAL writer does not flush what other transactions wrote behind the last commit. Then
# the driver's own commit does it, at most once a second, and only while something waits.
FORCE_AFTER_S = 1.0
# After the destination did not answer. Each attempt to connect may take ten seconds of the loop's thread, and a
# recovering server logs each.
RETRY_S = 1.0


class FlushGate:
    """Tracks which recorded progress is on the destination's disk.

    Args:
        destination: used by the caller's thread.
        epoch: epoch of the driver.
        scn: the SCN already durable: the answer of `raise_epoch`, which commits durably after the last earlier session.
        is_needed: the servers' sessions commit lazily; False: what is recorded is durable.
    """

    def __init__(
        self,
        destination: ApplyRecords,
        topology: str,
        apply: str,
        *,
        epoch: int,
        scn: Scn,
        is_needed: bool,
    ) -> None:
        self._destination, self._topology, self._apply, self._epoch = destination, topology, apply, epoch
        self.is_needed = is_needed
        self._durable = scn
        self._waiting: tuple[Scn, int] | None = None  # a recorded low watermark, and the position that makes it durable
        self._due_at = self._since = 0.0

    def durable_scn(self, recorded: Scn) -> Scn:
        """Return the durable part of the recorded low watermark.

        When tables join, which sets the low watermark back, it is called before any commit above the new one.
        """
        if not self.is_needed:
            return recorded
        if recorded < self._durable:
            self._durable, self._waiting = recorded, None
        return self._durable

    def flushed(self, scn: Scn) -> None:
        """Note a commit that waited for the disk after everything up to `scn` was recorded."""
        self._durable = max(self._durable, scn)

    def due_at(self, recorded: Scn) -> float | None:
        """Return when `step` is next due, by the clock of its callers; None: nothing waits."""
        return self._due_at if self.is_needed and recorded > self._durable else None

    def is_away(self, now: float) -> None:
        """Note that the destination did not answer, and ask again later.

        Args:
            now: monotonic seconds at which that was known.
        """
        self._due_at = now + RETRY_S

    def step(self, recorded: Scn, now: float) -> bool:
        """Ask the destination if it is due.

        Args:
            recorded: current `Watermarks.durable`.
            now: monotonic seconds.

        Returns:
            Whether it was asked, and answered.

        Raises:
            FencedError: a newer driver runs.
            DestinationRestarted: the server has lost what was not flushed, or may have.
            DatabaseUnavailable: no answer; call `is_away`, and then again.
        """
        due_at = self.due_at(recorded)
        if due_at is None or now < due_at:
            return False
        self._due_at = now + POLL_INTERVAL_S
        found = self._destination.log_positions(self._topology, self._apply, self._epoch)
        if self._waiting is not None and found.flushed >= self._waiting[1]:
            self.flushed(self._waiting[0])
            self._waiting = None
        if found.flushed >= found.written:
            self.flushed(recorded)
            self._waiting = None
        elif self._waiting is None:
            self._waiting, self._since = (recorded, found.written), now
        elif now >= self._since + FORCE_AFTER_S:
            # It changes only the time of the last apply: recorded progress never goes back.
            self._destination.record_low_watermark(self._topology, self._apply, self._epoch, FIRST_SCN)
            self.flushed(recorded)
            self._waiting = None
        return True
