"""Replay: dropping groups that may not write yet, to dequeue them again from the low watermark.

Groups that a server may be writing finish first; the others are dropped. Until then nothing is assigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_apply.conversation.groups import GroupAbandon
from spark_apply.driver.groups.formed_group import FormedGroup, GroupState

if TYPE_CHECKING:
    from spark_apply.driver.groups.server_slots import ServerSlots
    from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups

__all__ = ["Replay"]


class Replay:
    """The replay of one coordinator.

    Args:
        groups: the groups above the low watermark.
        slots: the servers that hold them.

    Attributes:
        is_wanted: accept and assign nothing until everything was dequeued again.
    """

    def __init__(self, groups: UnfinishedGroups, slots: ServerSlots) -> None:
        self._groups, self._slots = groups, slots
        self.is_wanted = False

    @property
    def is_due(self) -> bool:
        """Whether the replay can begin: no server may be writing."""
        return self.is_wanted and not self._groups.may_have_written

    def start(self, failed: FormedGroup | None = None) -> None:
        """Drop groups without permission to write, and roll back the writes of `failed`; the other groups finish."""
        self.is_wanted = True
        for group in self._groups:
            if group.state is GroupState.ASSIGNED or (group is failed and group.state is GroupState.WRITING):
                self.abandon(group)

    def abandon(self, group: FormedGroup) -> None:
        """Drop a group, whether or not a server holds it."""
        if group.server < 0 or group.server not in self._slots:
            self.forget(group)
            return
        group.drop()
        self._slots.put(group.server, GroupAbandon(group=group.number, attempt=group.attempt))

    def forget(self, group: FormedGroup) -> None:
        """Forget a group of which nothing is written. A replay reads it again."""
        group.forget(comes_again=self.is_wanted)
