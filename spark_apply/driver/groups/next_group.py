"""The next group to form from what has arrived.

Whole transactions come in the order of the source. An execution of error transactions comes before them, one at a time.
While some are to be executed, no group is formed of transactions that depend on them, nor of anything behind. While an
error disables the apply process, only executions are formed.

A large transaction whose attempt failed goes into the error queue whole when it is read again. The reason is kept here
until it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_apply.conversation.groups import GroupMode, OnError
from spark_apply.driver.groups.formed_group import FormedGroup, StreamedParts
from spark_apply.driver.groups.forming import FormedRun, GroupFormer, Large

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn
    from spark_apply.conversation.groups import Failure
    from spark_apply.driver.groups.known_errors import KnownErrors
    from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups
    from spark_apply.driver.groups.watermarks import Watermarks

__all__ = ["NextGroup"]


@dataclass(frozen=True, slots=True)
class _Escalation:
    """Why a large transaction goes into the error queue when it is read again."""

    failure: Failure | None
    depends_on: int


class NextGroup:
    """Forms the next group.

    Args:
        new_former: makes the object that holds and cuts transactions.
        groups: receives the group.
        watermarks: give the range that the group covers.
        errors: the error queue; transactions that depend on one to be executed must not be formed.

    Attributes:
        former: holds what was accepted and is in no group yet.
    """

    def __init__(
        self,
        new_former: Callable[[], GroupFormer],
        *,
        groups: UnfinishedGroups,
        watermarks: Watermarks,
        errors: KnownErrors,
    ) -> None:
        self._new_former, self._groups, self._watermarks, self._errors = new_former, groups, watermarks, errors
        self.former = new_former()
        self._escalations: dict[Scn, _Escalation] = {}  # by the order SCN of the transaction

    def restart(self) -> None:
        """Forget everything that is in no group; it is replayed."""
        self.former = self._new_former()

    def form(self) -> FormedGroup | None:
        """Form the next group; None: nothing to form, or it must wait."""
        while self._may_execute:
            if (execution := self._execution()) is not None:
                return execution
        if self._errors.disables:
            return None
        formed = self.former.take()
        if formed is None:
            return None
        if self._must_wait(formed):
            self.former.put_back(formed)
            return None
        # Not below the recorded position: the destination has already merged that range.
        after = max(self._watermarks.formed, self._watermarks.durable)
        group = self._of_run(formed, after) if isinstance(formed, FormedRun) else self._of_large(formed, after)
        self._add(group)
        return group

    # ------------------------------------------------------------------ large transactions that failed

    def escalate(self, large: Large, failure: Failure | None, *, depends_on: int = 0) -> None:
        """Send a large transaction to the error queue when it is read again.

        Args:
            large: the transaction.
            failure: why it failed; None: it depends on an error transaction.
            depends_on: number of that error transaction; 0: it failed itself.
        """
        self._escalations[large.order_scn] = _Escalation(failure, depends_on)

    def done(self, group: FormedGroup) -> None:
        """Note that a group is done: if it is a large transaction, it is never replayed."""
        if group.large is not None:
            self._escalations.pop(group.large.order_scn, None)

    # ------------------------------------------------------------------ inside

    @property
    def _may_execute(self) -> bool:
        """Whether error transactions can be executed now."""
        # One at a time: its outcome decides what the next can execute.
        if not self._errors.executions.waits or self._groups.executing:
            return False
        # A streamed transaction that is being written takes parts until it is complete. One that is not formed yet (an
        # apply process that an error disabled forms none) waits behind the execution.
        return not any(group.large is not None and group.large is self.former.open for group in self._groups)

    def _execution(self) -> FormedGroup | None:
        numbers = self._errors.executions.choose()
        if not numbers:
            return None
        group = FormedGroup(
            number=self._groups.next_number,
            after_scn=self._watermarks.formed,
            through_scn=self._watermarks.formed,
            mode=GroupMode.EXECUTE_ERROR,
            error_numbers=numbers,
            waits=self._groups.barrier(),
        )
        self._add(group)
        return group

    def _of_run(self, run: FormedRun, after: Scn) -> FormedGroup:
        return FormedGroup(
            number=self._groups.next_number,
            after_scn=after,
            through_scn=run.through_scn,
            run=run,
            waits=self._groups.dependencies(run.hashes.hashes),
        )

    def _of_large(self, large: Large, after: Scn) -> FormedGroup:
        escalation = self._escalations.get(large.order_scn)
        group = FormedGroup(
            number=self._groups.next_number,
            after_scn=after,
            through_scn=after,
            streamed=StreamedParts(large),
            waits=self._groups.barrier(),
        )
        group.completed()
        # The transaction that it waited for may be executed or deleted by now: its parts show whether others hold it.
        if escalation is not None and (escalation.failure is not None or escalation.depends_on in self._errors):
            group.mode = GroupMode.ERROR_QUEUE
            group.failure, group.error_number = escalation.failure, escalation.depends_on
        return group

    def _must_wait(self, formed: FormedRun | Large) -> bool:
        """Return whether the next transactions must not join the error queue now.

        They depend, or may depend, on an error transaction that is to be executed.
        """
        if self._errors.executions.is_empty or self._errors.on_error is OnError.CONTINUE:
            return False
        return isinstance(formed, Large) or self._errors.awaits_execution(self._errors.held(formed.hashes))

    def _add(self, group: FormedGroup) -> None:
        self._groups.add(group)
        self._watermarks.formed = group.through_scn
