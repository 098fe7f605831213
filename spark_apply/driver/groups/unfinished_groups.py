"""The groups that a coordinator has formed and that are not below the low watermark, and what each depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_apply.conversation.groups import GroupMode
from spark_apply.dependencies.hashes import DependencyTracker
from spark_apply.driver.groups.formed_group import FormedGroup, GroupState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lcr.scn import Scn

__all__ = ["UnfinishedGroups"]


class UnfinishedGroups:
    """See the module. In ascending order of their numbers, which is that of the source.

    Args:
        in_order: each group depends on every one below it: they are committed in the order of the source.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order
        self._groups: dict[int, FormedGroup] = {}
        self._tracker = DependencyTracker()
        self._last = 0  # number of the group that was added last

    def __iter__(self) -> Iterator[FormedGroup]:
        """All of them, as they are now: groups may be added and removed meanwhile."""
        return iter(tuple(self._groups.values()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._groups)

    def __getitem__(self, number: int) -> FormedGroup:
        """A group by its number."""
        return self._groups[number]

    def get(self, number: int) -> FormedGroup | None:
        """A group by its number; None: there is none, or none any more."""
        return self._groups.get(number)

    def clear(self) -> None:
        """Forget them: what they wrote is known, and what is left of them comes again."""
        self._groups.clear()
        self._tracker = DependencyTracker()

    # ------------------------------------------------------------------ what is known of them

    @property
    def unfinished(self) -> list[int]:
        """The numbers of those that are not done."""
        return [number for number, group in self._groups.items() if not group.is_done]

    @property
    def may_have_written(self) -> bool:
        """Whether commits of one may be there that are not reported."""
        return any(group.may_have_written for group in self._groups.values())

    @property
    def has_unassigned(self) -> bool:
        """Whether there is one that no server has."""
        return any(group.state is GroupState.FORMED for group in self._groups.values())

    @property
    def executing(self) -> list[int]:
        """The error transactions that are being executed."""
        return [
            number
            for group in self._groups.values()
            if group.mode is GroupMode.EXECUTE_ERROR and not group.is_done
            for number in group.error_numbers
        ]

    def still(self, group: FormedGroup) -> set[int]:
        """The unfinished groups that one waits for."""
        groups = self._groups
        group.waits = {number for number in group.waits if number in groups and not groups[number].is_done}
        return group.waits

    def of_large(self, order_scn: Scn) -> list[FormedGroup]:
        """Those that write a large transaction and are not done.

        Args:
            order_scn: identifies the transaction.
        """
        return [
            group
            for group in self._groups.values()
            if group.large is not None and group.large.order_scn == order_scn and not group.is_done
        ]

    # ------------------------------------------------------------------ what comes and goes

    @property
    def next_number(self) -> int:
        """The number of the next group."""
        return self._last + 1

    def add(self, group: FormedGroup) -> None:
        """Add the next group; what it waits for was asked before (`dependencies`, `barrier`)."""
        self._last = group.number
        self._groups[group.number] = group

    def dependencies(self, hashes: NDArray[np.uint64]) -> set[int]:
        """The groups that the next one depends on.

        Args:
            hashes: of all its transactions.
        """
        unfinished = self.unfinished
        return set(unfinished) if self.in_order else self._tracker.add(self.next_number, hashes, unfinished)

    def barrier(self) -> set[int]:
        """All unfinished groups, which the next one depends on; everything after it depends on it."""
        self._tracker.add_barrier(self.next_number)
        return set(self.unfinished)

    def take_done(self) -> Iterator[FormedGroup]:
        """Remove those that are done and have none below them that is not, the lowest first."""
        for number in list(self._groups):
            group = self._groups[number]
            if not group.is_done:
                return
            yield group
            del self._groups[number]

    def join_done(self) -> None:
        """Merge adjacent groups that are done into one, and let go of their rows.

        A lower group may wait for hours, for a user's lock, while others come and go.
        """
        last: FormedGroup | None = None
        for group in self:
            if not group.is_done:
                last = None
                continue
            group.release()
            if last is None or group.after_scn > max(last.after_scn, last.through_scn):
                last = group
                continue
            last.through_scn = max(last.through_scn, group.through_scn)
            # Both were sent while the low watermark was below the first of them.
            last.watermark_sent = max(last.watermark_sent, group.watermark_sent)
            del self._groups[group.number]
