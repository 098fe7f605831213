"""How far a capture process's changes are durable at every destination, and what the keeper of its redo knows of that.

Durable when
    `RedoWatch.checkpoint` has returned: who keeps the redo may purge it up to there.
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
    """See the module.

    Args:
        clock: spaces the reports.

    Attributes:
        durable_scn: up to here everything is durable, as the queue said last.
        told_scn: up to here the keeper was told, also by an earlier life.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.durable_scn = self.told_scn = FIRST_SCN
        self._told_at = 0.0
        # the keeper may keep redo below `told_scn` because it was mined again, also by an earlier life
        self._may_mine_again = True

    def open(self, redo: RedoWatch) -> None:
        """Ask the keeper what it has on record.

        Args:
            redo: connected to it.
        """
        self.durable_scn, self.told_scn = FIRST_SCN, redo.checkpoint(FIRST_SCN)

    def close(self) -> None:
        """The connection to the keeper ends."""
        self._may_mine_again = True

    @property
    def begin_scn(self) -> Scn:
        """Where a queue begins that has nothing; FIRST_SCN: with the oldest redo that is left."""
        return max(self.told_scn, self.durable_scn)

    def mine_again(self, redo: RedoWatch, start_scn: Scn) -> None:
        """Let the keeper keep redo that is about to be mined again, if it may be purged by what it was told.

        Args:
            redo: connected to it.
            start_scn: from where.
        """
        if FIRST_SCN < start_scn < self.told_scn:
            redo.mine_again(start_scn)  # a destination lost commits
            self._may_mine_again = True

    def tell(self, redo: RedoWatch, durable_scn: Scn, *, mined_scn: Scn | None) -> None:
        """Take what the queue says, and report it to the keeper when it is time.

        Args:
            redo: connected to the keeper.
            durable_scn: up to here everything is durable.
            mined_scn: up to here redo is mined; None: it is not mined now, or a batch waits to be sent.
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
        """Whether what the keeper has on record is reached again: redo that is kept below it may go.

        Without that, redo that is full of it would stay full, for every capture process of the site: nothing newer
        comes into it, and so nothing newer becomes durable.
        """
        if not self._may_mine_again or mined_scn is None:
            return False
        return FIRST_SCN < self.told_scn <= min(durable_scn, mined_scn)
