"""The SCN up to which a capture process's changes are durable everywhere, and its report to the keeper of the redo.

Durable when
    `RedoWatch.checkpoint` has returned: the keeper of the redo may purge it up to there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.links.ports import RedoWatch

__all__ = ["CHECKPOINT_INTERVAL_S", "CaptureCheckpoint"]

CHECKPOINT_INTERVAL_S = 1.0  # reporting which redo can be purged is never urgent


class CaptureCheckpoint:
    """Tracks how far the changes are durable, and reports that to the keeper of the redo.

    Args:
        clock: spaces the reports.

    Attributes:
        durable_scn: everything up to here is durable, by the queue's last report.
        told_scn: the last checkpoint reported to the keeper, possibly by an earlier process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durable_scn = self.told_scn = FIRST_SCN
        self._told_at = 0.0
        # the keeper may hold redo below `told_scn` because it was mined again, possibly by an earlier process
        self._may_mine_again = True

    def open(self, redo: RedoWatch) -> None:
        """Read the checkpoint that the keeper has on record."""
        self.durable_scn, self.told_scn = FIRST_SCN, redo.checkpoint(FIRST_SCN)

    def close(self) -> None:
        """Note that the connection to the keeper ends."""
        self._may_mine_again = True

    @property
    def begin_scn(self) -> Scn:
        """Where mining begins for a queue that has nothing; FIRST_SCN: with the oldest redo left."""
        return max(self.told_scn, self.durable_scn)

    def mine_again(self, redo: RedoWatch, start_scn: Scn) -> None:
        """Make the keeper hold redo that is about to be mined again, if the reported checkpoint allows purging it.

        Args:
            redo: connection to the keeper.
            start_scn: start of the redo that is mined again.
        """
        if FIRST_SCN < start_scn < self.told_scn:
            redo.mine_again(start_scn)  # a destination lost commits
            self._may_mine_again = True

    def tell(self, redo: RedoWatch, durable_scn: Scn, *, mined_scn: Scn | None) -> None:
        """Take the queue's durable position, and report it to the keeper when a report is due.

        Args:
            redo: connection to the keeper.
            durable_scn: everything up to here is durable.
            mined_scn: redo is mined up to here; None: nothing is mined now, or a batch is pending.
        """
        self.durable_scn = durable_scn
        now = self._clock.monotonic()
        if now - self._told_at >= CHECKPOINT_INTERVAL_S and (
            durable_scn > self.told_scn or self._has_mined_again(durable_scn, mined_scn)
        ):
            self._told_at = now
            redo.checkpoint(durable_scn)
            self.told_scn, self._may_mine_again = durable_scn, False

    def _has_mined_again(self, durable_scn: Scn, mined_scn: Scn | None) -> bool:
        """Return whether the recorded checkpoint is reached again, so that the keeper may purge the redo below it.

        Without this report, redo that is full would stay full for every capture process of the site: no newer redo
        could arrive, and so nothing newer could become durable.
        """
        if not self._may_mine_again or mined_scn is None:
            return False
        return FIRST_SCN < self.told_scn <= min(durable_scn, mined_scn)
