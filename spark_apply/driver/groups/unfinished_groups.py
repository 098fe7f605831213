"""The groups above the low watermark that a coordinator has formed, and the dependencies of each."""

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
    """The groups above the low watermark, in ascending order of their numbers, which is the source's order.

    Args:
        in_order: each group depends on every group below it, so they commit in the order of the source.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order
        self._groups: dict[int, FormedGroup] = {}
        self._tracker = DependencyTracker()
        self._last = 0  # number of the last group added

    def __iter__(self) -> Iterator[FormedGroup]:
        """Iterate over a snapshot: groups may be added and removed meanwhile."""
        return iter(tuple(self._groups.values()))

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def __getitem__(self, number: int) -> FormedGroup:
        """Return a group by its number."""
        return self._groups[number]

    def get(self, number: int) -> FormedGroup | None:
        """Return a group by its number; None: it does not exist, or no longer."""
        return self._groups.get(number)

    def clear(self) -> None:
        """Forget the groups: what they wrote is known, and the rest is replayed."""
        self._groups.clear()
        self._tracker = DependencyTracker()

    # ------------------------------------------------------------------ facts

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the groups that are not done."""
        return [number for number, group in self._groups.items() if not group.is_done]

    @property
    def may_have_written(self) -> bool:
        """Whether a group may have unreported commits."""
        return any(group.may_have_written for group in self._groups.values())

    @property
    def has_unassigned(self) -> bool:
        """Whether a group has no server."""
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
        """Return the unfinished groups that a group waits for."""
        groups = self._groups
        group.waits = {number for number in group.waits if number in groups and not groups[number].is_done}
        return group.waits

    def of_large(self, order_scn: Scn) -> list[FormedGroup]:
        """Return the unfinished groups that write a large transaction."""
        return [
            group
            for group in self._groups.values()
            if group.large is not None and group.large.order_scn == order_scn and not group.is_done
        ]

    # ------------------------------------------------------------------ additions and removals

    @property
    def next_number(self) -> int:
        """The number of the next group."""
        return self._last + 1

    def add(self, group: FormedGroup) -> None:
        """Add the next group; `dependencies` or `barrier` was asked before what it waits for."""
        self._last = group.number
        self._groups[group.number] = group

    def dependencies(self, hashes: NDArray[np.uint64]) -> set[int]:
        """Return the groups that the next one depends on."""
        unfinished = self.unfinished
        return set(unfinished) if self.in_order else self._tracker.add(self.next_number, hashes, unfinished)

    def barrier(self) -> set[int]:
        """Return all unfinished groups: the next one depends on them, and everything after depends on it."""
        self._tracker.add_barrier(self.next_number)
        return set(self.unfinished)

    def take_done(self) -> Iterator[FormedGroup]:
        """Remove and yield, lowest first, done groups with no unfinished group below."""
        for number in list(self._groups):
            group = self._groups[number]
            if not group.is_done:
                return
            yield group
            del self._groups[number]

    def join_done(self) -> None:
        """Merge adjacent finished groups into one range, and release their rows.

        A lower group may wait for hours for a user's lock while others come and go.
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
            # Both goes were sent while the low watermark was below the first of them.
            last.watermark_sent = max(last.watermark_sent, group.watermark_sent)
            del self._groups[group.number]
