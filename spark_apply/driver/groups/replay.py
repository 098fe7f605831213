"""Dropping what may not be written yet, to dequeue it again from the low watermark.

Groups that a server may be writing come to their end first; the others are dropped. Until then nothing is assigned.
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
    """See the module.

    Args:
        groups: those that are not below the low watermark.
        slots: the servers that have them.

    Attributes:
        is_wanted: nothing is accepted or assigned until everything was dequeued again.
    """

    def __init__(self, groups: UnfinishedGroups, slots: ServerSlots) -> None:
        self._groups, self._slots = groups, slots
        self.is_wanted = False

    @property
    def is_due(self) -> bool:
        """Whether it can begin: no server may be writing."""
        return self.is_wanted and not self._groups.may_have_written

    def start(self, failed: FormedGroup | None = None) -> None:
        """Drop groups without permission to write, and roll back the writes of `failed`; the other groups finish."""
        self.is_wanted = True
        for group in self._groups:
            if group.state is GroupState.ASSIGNED or (group is failed and group.state is GroupState.WRITING):
                self.abandon(group)

    def abandon(self, group: FormedGroup) -> None:
        """Drop a group, wherever it is."""
        if group.server < 0 or group.server not in self._slots:
            self.forget(group)
            return
        group.drop()
        self._slots.put(group.server, GroupAbandon(group=group.number, attempt=group.attempt))

    def forget(self, group: FormedGroup) -> None:
        """Nothing of a group is written. In a replay it is read again."""
        group.forget(comes_again=self.is_wanted)
