"""Requests of operators and copies to execute, edit or delete error transactions of a running apply process.

Each error transaction has one execution at a time, whoever requests it. A second request meanwhile gets the same
outcome, or is refused if it names another role or function. A transaction that is being executed is neither edited nor
deleted.

Only the loop's thread uses this module. Outcomes arrive on queues, which any thread may read.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.base.errors import ApplyError, DatabaseUnavailable, ProtocolError
from headrace.databases.ports import DdlPlace
from protos import codec
from spark_apply.driver.groups.executions import ErrorOutcome, ExecutionRequest, not_tried

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.databases.ports import DestinationDatabase, ErrorEdit
    from headrace.lcr.ddl import DdlChange
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.loop.destination_problem import DestinationProblem

__all__ = ["ErrorRequests", "ddl_in"]

# Checks of an error transaction whose deletion was not answered. They take a minute, in which a commit without a client
# ends.
_DELETED_LOOKS = 12
_EXECUTED_OTHERWISE = (
    "it is being executed already, with another role or function than this command names: look"
    " again with `headrace errors list`"
)
_IS_EXECUTED = "it is being executed: look again with `headrace errors list`"


class ErrorRequests:
    """Executes, edits and deletes error transactions of one apply process.

    Args:
        destination: has the error queue.
        coordinator: executes error transactions, and holds transactions that depend on the error queue.
        problem: notes that the destination does not answer.
        has_ddl: error transactions may have DDL LCRs.
    """

    def __init__(
        self,
        topology: str,
        apply: str,
        *,
        destination: DestinationDatabase,
        coordinator: ApplyCoordinator,
        problem: DestinationProblem,
        has_ddl: bool = False,
    ) -> None:
        self._ddl_in = ddl_in if has_ddl else None
        self._topology, self._apply = topology, apply
        self._destination, self._coordinator, self._problem = destination, coordinator, problem
        # How each error transaction is executed, and the queues that wait for its outcome.
        self._executing: dict[int, tuple[ExecutionRequest, list[queue.SimpleQueue[ErrorOutcome]]]] = {}
        # Error transactions whose deletion was not answered, and the number of checks left.
        self._deleting: dict[int, int] = {}

    # ------------------------------------------------------------------ requests

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers in the error queue."""
        found = self._destination.errors(self._topology, self._apply)
        return tuple(sorted(error.number for error in found))

    @property
    def queued(self) -> tuple[int, ...]:
        """Ascending numbers in the error queue, as the coordinator knows it."""
        return self._coordinator.errors.numbers

    def withdraw(self, outcomes: queue.SimpleQueue[ErrorOutcome], numbers: Iterable[int], why: str) -> None:
        """Withdraw one caller's request to execute error transactions.

        Those that no other caller wants, and that no server has begun, are not executed.

        Args:
            outcomes: the caller's queue, from `execute`.
            numbers: numbers of the error transactions.
            why: their outcome.
        """
        alone = []
        for number in numbers:
            _, every = self._executing.get(number, (None, []))
            if every == [outcomes]:
                alone.append(number)
            elif outcomes in every:
                every.remove(outcomes)
                outcomes.put(not_tried(number, why))
        self._coordinator.errors.executions.withdraw(alone, why)
        self.deliver_outcomes()  # the next caller that wants one of them must not get these outcomes

    def execute(
        self, numbers: Iterable[int], request: ExecutionRequest | None = None
    ) -> queue.SimpleQueue[ErrorOutcome]:
        """Execute error transactions; the returned queue receives one outcome for each.

        Args:
            numbers: numbers of the error transactions.
            request: as in `ErrorExecutions.add`. A transaction that is being executed keeps its request; a caller with
                another request is refused.
        """
        outcomes: queue.SimpleQueue[ErrorOutcome] = queue.SimpleQueue()
        wanted, mine = request or ExecutionRequest(), []
        for number in dict.fromkeys(numbers):
            before, waiting = self._executing.setdefault(number, (wanted, []))
            if before.is_as(wanted):
                waiting.append(outcomes)
                mine.append(number)
            else:  # its outcome would be attributed to this role or function, which had nothing to do with it
                outcomes.put(not_tried(number, _EXECUTED_OTHERWISE))
        self._coordinator.errors.executions.add(mine, wanted)
        return outcomes

    def edit(self, edit: ErrorEdit, *, part: int, batch: bytes, key_hashes: NDArray[np.uint64]) -> bool:
        """Edit an error transaction; later transactions wait behind its new keys too.

        See `DestinationDatabase.edit_error` for the arguments.

        Raises:
            ApplyError: the transaction is being executed.
        """
        self._refuse_executing(edit.number)
        try:
            done = self._destination.edit_error(self._topology, edit, part=part, batch=batch, key_hashes=key_hashes)
        except DatabaseUnavailable:
            # It may be committed although the answer was lost: surplus keys only hold too much.
            self._coordinator.errors.edited(edit.number, key_hashes)
            raise
        if done:
            self._coordinator.errors.edited(edit.number, key_hashes)
        return done

    def delete(self, numbers: Sequence[int]) -> dict[int, str]:
        """Delete error transactions in one transaction of the destination, which records their DDL LCRs as skipped.

        Returns:
            For each, why it was not deleted; empty: it was. One that is being executed stays: its row is locked, and
            a deletion would block all applying until the execution ends.
        """
        chosen = [number for number in numbers if number not in self._executing]
        try:
            there = self._destination.delete_errors(self._topology, chosen, ddl_in=self._ddl_in)
        except DatabaseUnavailable:
            self._deleting |= dict.fromkeys(chosen, _DELETED_LOOKS)
            raise
        for number in chosen:
            self._coordinator.errors.deleted(number)
        problems = dict.fromkeys(numbers, _IS_EXECUTED) | {
            number: "" if number in there else "it is not in the error queue" for number in chosen
        }
        return {number: problems[number] for number in numbers}

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies of their tables have made obsolete, like `delete`.

        Returns:
            The numbers that are no longer in the queue.
        """
        return frozenset(number for number, problem in self.delete(numbers).items() if problem != _IS_EXECUTED)

    # ------------------------------------------------------------------ the loop's turn

    def deliver_outcomes(self) -> None:
        """Deliver the outcomes of executions that have ended since the last call."""
        for outcome in self._coordinator.errors.executions.take_outcomes():
            self._note_failure(outcome)
            _, every = self._executing.pop(outcome.number, (None, ()))
            for waiting in every:
                waiting.put(outcome)

    def look_for_deleted(self) -> None:
        """Release error transactions whose deletion was not answered, if they are gone.

        Otherwise they would hold later transactions for as long as this driver lives.
        """
        if not self._deleting:
            return
        try:
            there = self.numbers()
        except DatabaseUnavailable as error:
            self._problem.note(error)
            return
        for number in [each for each in self._deleting if each not in there]:
            self._coordinator.errors.deleted(number)
        self._deleting = {
            number: looks - 1 for number, looks in self._deleting.items() if number in there and looks > 1
        }

    def end(self) -> None:
        """Answer callers that wait for executions: this driver will not report how they end."""
        for number, (_, every) in self._executing.items():
            outcome = not_tried(
                number,
                f"the apply process ended while error transaction {number} was to be executed: if `headrace errors list`"
                " still shows it, execute it again",
            )
            for waiting in every:
                waiting.put(outcome)
        self._executing = {}

    # ------------------------------------------------------------------ inside

    def _note_failure(self, outcome: ErrorOutcome) -> None:
        """Record why an error transaction failed again: the list shows what the operator must correct now."""
        failure = outcome.failure
        if failure is None or not outcome.is_of_server:
            return
        try:
            for found in self._destination.errors(self._topology, self._apply, number=outcome.number):
                self._destination.note_failure(
                    self._topology,
                    replace(
                        found,
                        failed_position=failure.position,
                        conflict_type=failure.conflict_type,
                        sqlstate=failure.sqlstate,
                        message=failure.message,
                        readable=failure.readable,
                    ),
                )
        except DatabaseUnavailable as error:
            # The requesting operator gets the outcome all the same; the queue shows the earlier failure.
            self._problem.note(error)

    def _refuse_executing(self, number: int) -> None:
        if number in self._executing:
            raise ApplyError(f"error transaction {number}: {_IS_EXECUTED}")


def ddl_in(data: bytes) -> tuple[DdlChange, DdlPlace] | None:
    """Return the DDL LCR of a part of an error transaction, and its place; None: it has rows, or is unreadable."""
    try:
        batch = codec.decode(data)
    except ProtocolError:
        return None
    return None if batch.ddl is None else (batch.ddl, DdlPlace.of(batch))
