"""Which commits of the apply servers are on the destination's disk, where they do not wait for it.

Job
    Hold back what is told upstream as durable until a crash of the destination cannot take it any more.

Main path
    RecordedProgress -> FlushGate.step -> DestinationDatabase.log_positions -> `durable_scn` -> feed.

Durable when
    The driver notes the recorded low watermark, then asks for the written position: every commit that was reported
    before is at or below it. When the flushed position has reached it, the noted low watermark is durable. Both
    questions are asked in the epoch's life of the server; a crash ends the epoch, and the question raises
    DestinationRestarted.

Worked flow
    servers report commits up to SCN 40 -> written 900, flushed 850: 40 waits for 900
    0.05 s later, commits up to 55      -> written 990, flushed 900: 40 is durable and told, 55 waits for 990
    nothing more; 1 s later             -> flushed 950: the driver commits durably, which takes all before it to disk -> 55
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.databases.ports import ApplyRecords

__all__ = ["FORCE_AFTER_S", "POLL_INTERVAL_S", "RETRY_S", "FlushGate"]

# One query of a fraction of a millisecond, and only while commits wait for the disk. What is told later only lets go of
# redo later.
POLL_INTERVAL_S = 0.05
# The WAL writer takes commits to disk within three times wal_writer_delay: 0.6 s by default, so that this is rare
# there. It may be set to 10 s, and it leaves what other transactions wrote behind the last commit. Then the driver's
# own commit does it, once a second at most, and only while something waits.
FORCE_AFTER_S = 1.0
# After the destination did not answer. Each attempt to connect may take ten seconds of the loop's thread, and a server
# that recovers logs each.
RETRY_S = 1.0


class FlushGate:
    """See the module.

    Args:
        destination: used by the caller's thread.
        topology: name of the topology.
        apply: name of the apply process.
        epoch: of the driver.
        scn: durable already: what `raise_epoch` answered, which commits durably behind the last session of before.
        is_needed: the servers' sessions are lazy; False: what is recorded is durable.
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
        """What of the recorded low watermark is durable.

        Called before any commit above it when tables join, which sets it back.
        """
        if not self.is_needed:
            return recorded
        if recorded < self._durable:
            self._durable, self._waiting = recorded, None
        return self._durable

    def flushed(self, scn: Scn) -> None:
        """A commit that waited for the disk was made after everything up to `scn` was recorded."""
        self._durable = max(self._durable, scn)

    def due_at(self, recorded: Scn) -> float | None:
        """When `step` has something to ask, by the clock of its callers; None: nothing waits."""
        return self._due_at if self.is_needed and recorded > self._durable else None

    def is_away(self, now: float) -> None:
        """The destination did not answer: it is asked again after a while.

        Args:
            now: monotonic seconds, when that was known.
        """
        self._due_at = now + RETRY_S

    def step(self, recorded: Scn, now: float) -> bool:
        """Ask the destination, when it is time.

        Args:
            recorded: `Watermarks.durable` of this moment.
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
            # It changes nothing but the time of the last apply: what is recorded never goes back.
            self._destination.record_low_watermark(self._topology, self._apply, self._epoch, FIRST_SCN)
            self.flushed(recorded)
            self._waiting = None
        return True
