"""Assignment of groups to apply servers: which server gets a group, when it may write, and parts of large transactions.

A group is assigned only when everything that it depends on is done or assigned, and may write when all of that is done.
Before that, the coordinator checks it once more. Transactions that depend on an error transaction join the error queue
with it; if that error transaction is to be executed, they are dropped and dequeued again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN, Scn
from spark_apply.conversation.groups import GroupAssignment, GroupGo, GroupMode, GroupPart, HeldTransaction
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.groups.formed_group import FormedGroup, GroupState

if TYPE_CHECKING:
    from spark_apply.dependencies.hashes import KeyHashes
    from spark_apply.driver.groups.forming import Part
    from spark_apply.driver.groups.known_errors import KnownErrors
    from spark_apply.driver.groups.next_group import NextGroup
    from spark_apply.driver.groups.replay import Replay
    from spark_apply.driver.groups.server_slots import ServerSlots
    from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups
    from spark_apply.driver.groups.watermarks import Watermarks

__all__ = ["GroupHandout"]


class GroupHandout:
    """Assigns groups to servers and lets them write.

    Args:
        groups: the groups above the low watermark.
        slots: the servers.
        watermarks: a group that may write records the low watermark.
        errors: transactions that depend on one of these must not be written.
        replay: started when something must be dropped.
        next_group: learns that a large transaction must join the error queue.
    """

    def __init__(
        self,
        *,
        groups: UnfinishedGroups,
        slots: ServerSlots,
        watermarks: Watermarks,
        errors: KnownErrors,
        replay: Replay,
        next_group: NextGroup,
    ) -> None:
        self._groups, self._slots, self._watermarks = groups, slots, watermarks
        self._errors, self._replay, self._next_group = errors, replay, next_group
        # A server died while it wrote transactions up to this SCN; they may be in other groups now.
        self._careful_through = FIRST_SCN

    def assign(self) -> FormedGroup | None:
        """Assign the lowest group that can be assigned; None: there is no such group."""
        is_lowest = True
        for group in self._groups:
            if group.is_done:
                continue
            is_free = group.state is GroupState.FORMED
            if is_free and all(self._groups[number].server >= 0 for number in self._groups.still(group)):
                server = self._slots.choose(is_lowest=is_lowest)
                if server < 0:
                    return None
                self._hand_out(group, server)
                return group
            is_lowest = False
        return None

    def let_go(self) -> None:
        """Let every group write that may, and send the arrived parts of large transactions."""
        for group in self._groups:
            if group.is_at_server:
                self._let_go(group)
                self._send_parts(group)

    def put_in_doubt(self, group: FormedGroup) -> None:
        """Note that a group's server died while it may have written; its transactions are then written with care."""
        group.state = GroupState.IN_DOUBT
        begun = group.after_scn + 1 if group.mode is not GroupMode.EXECUTE_ERROR else FIRST_SCN
        self._careful_through = Scn(max(self._careful_through, begun, group.through_scn if begun else FIRST_SCN))

    # ------------------------------------------------------------------ inside

    def _hand_out(self, group: FormedGroup, server: int) -> None:
        group.assign(server)
        self._slots.hold(server, group.number)
        is_execution = group.mode is GroupMode.EXECUTE_ERROR
        request = self._errors.executions.request_of(group.error_numbers[0]) if is_execution else ExecutionRequest()
        self._slots.put(
            server,
            GroupAssignment(
                group=group.number,
                attempt=group.attempt,
                mode=group.mode,
                streamed=group.streamed is not None,
                batches=group.batches,
                after_scn=group.after_scn,
                through_scn=0 if group.streamed is not None else group.through_scn,
                first_transaction=group.next_transaction,
                error_number=group.error_number,
                failure=request.failures.get(group.error_numbers[0]) if is_execution else group.failure,
                role=request.role,
                handler=request.handler,
                error_numbers=group.error_numbers,
                is_careful=bool(group.attempt) if is_execution else group.after_scn < self._careful_through,
            ),
        )

    def _let_go(self, group: FormedGroup) -> None:
        if group.state is not GroupState.ASSIGNED or self._replay.is_wanted or self._groups.still(group):
            return
        held: tuple[HeldTransaction, ...] = ()
        if group.run is not None:
            held = tuple(
                found for found in self._errors.held(group.run.hashes) if found.transaction >= group.next_transaction
            )
            if self._errors.awaits_execution(held):
                self._replay.start()
                return
        if group.streamed is not None:
            for hashes in group.streamed.unchecked:
                if self._hold_large(group, hashes):
                    return
            group.streamed.unchecked.clear()
        group.go(self._watermarks.low)
        self._slots.put(
            group.server,
            GroupGo(
                group=group.number,
                attempt=group.attempt,
                low_watermark=self._watermarks.low,
                below_applied=self._groups.unfinished[0] == group.number,
                held=held,
                on_error=self._errors.on_error,
            ),
        )

    def _send_parts(self, group: FormedGroup) -> None:
        streamed = group.streamed
        if streamed is None:
            return
        while group.is_at_server and (part := streamed.next_part()) is not None:
            if group.state is GroupState.ASSIGNED:
                streamed.unchecked.append(part.hashes)
            elif self._hold_large(group, part.hashes):
                return
            self._slots.put(group.server, _part_message(group, part))

    def _hold_large(self, group: FormedGroup, hashes: KeyHashes) -> bool:
        """Return whether a part depends on an error transaction: then the whole one must join the error queue."""
        held = self._errors.held(hashes) if group.mode is GroupMode.SETS else ()
        if held and group.large is not None:
            self._next_group.escalate(group.large, None, depends_on=max(found.depends_on for found in held))
            self._replay.start(group)
        return bool(held)


def _part_message(group: FormedGroup, part: Part) -> GroupPart:
    return GroupPart(
        group=group.number,
        attempt=group.attempt,
        part=part.number,
        batch=part.data,
        is_last=part.is_last,
        through_scn=part.through_scn if part.is_last else 0,
    )
