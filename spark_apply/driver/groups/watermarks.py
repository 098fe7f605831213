"""The positions of an apply coordinator, and every rule that moves them.

    low         everything up to it is applied or in the error queue.
    durable     a low watermark that is certainly recorded at the destination, on disk or not; never above `low`.
    formed      groups cover everything up to it.
    received    pieces of the source are accepted up to it.

A finished group moves `low` only when it is the lowest. What is applied above an unfinished group is kept as separate
ranges (`progress`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.databases.ports import ApplyProgress, ScnRange

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn
    from spark_apply.driver.groups.formed_group import FormedGroup
    from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups

__all__ = ["Watermarks"]


class Watermarks:
    """The positions of one coordinator. Its owner writes `formed` and `received`.

    Args:
        progress: the progress recorded at the destination.
        groups: the groups above the low watermark.
    """

    def __init__(self, progress: ApplyProgress, groups: UnfinishedGroups) -> None:
        self._groups = groups
        self._epoch, self._ahead = progress.epoch, progress.ahead_scn
        self.durable = progress.low_watermark
        self.restart(progress)

    def restart(self, progress: ApplyProgress) -> None:
        """Restart from `progress`; everything after it is replayed."""
        self.low: Scn = progress.low_watermark
        self.formed = self.received = self.low
        self._above = list(progress.above)  # applied by earlier incarnations, or before the restart

    def set_back(self, progress: ApplyProgress) -> None:
        """Set back to the destination's new progress, because tables join or are skipped."""
        self._ahead, self.durable = progress.ahead_scn, min(self.durable, progress.low_watermark)
        self.restart(progress)

    # ------------------------------------------------------------------ facts

    @property
    def high(self) -> Scn:
        """The high watermark: nothing above it is applied, by this incarnation or an earlier one."""
        return max([self.low, *(found.through for found in self.progress.above)])

    @property
    def progress(self) -> ApplyProgress:
        """The progress from which the reader can restart."""
        above = [found for found in self._above if found.through > self.low]
        for group in self._groups:
            above += group.applied
            if group.is_done and group.through_scn > group.after_scn:
                above.append(ScnRange(after=group.after_scn, through=group.through_scn))
        above.sort(key=lambda found: found.after)
        return ApplyProgress(epoch=self._epoch, low_watermark=self.low, above=tuple(above), ahead_scn=self._ahead)

    @property
    def had_gaps(self) -> bool:
        """Whether something was applied above the low watermark at the start, or at the last restart."""
        return bool(self._above)

    @property
    def has_above(self) -> bool:
        """Whether something applied above the low watermark at that start is still above it."""
        return any(found.through > self.low for found in self._above)

    @property
    def may_settle(self) -> bool:
        """Whether it can settle when nothing more is accepted.

        Everything that earlier incarnations applied above the low watermark has been received.
        """
        return not any(found.through > self.received for found in self._above)

    # ------------------------------------------------------------------ moves

    def recorded(self, scn: Scn) -> None:
        """Note a low watermark that was recorded at the destination without data."""
        self.durable = max(self.durable, scn)

    def advance(self) -> None:
        """Move the low watermark over finished groups with no unfinished group below."""
        for group in self._groups.take_done():
            self._pass_over(group)

    def catch_up(self) -> None:
        """Move the low watermark over what had no data, when nothing accepted is left to apply."""
        self.low = max(self.low, self.received)

    def _pass_over(self, group: FormedGroup) -> None:
        self.low = max(self.low, group.through_scn)
        # The commit recorded the low watermark of its go, and its own range.
        self.durable = max(self.durable, group.watermark_sent)
        if group.after_scn <= self.durable:
            self.durable = max(self.durable, group.through_scn)
