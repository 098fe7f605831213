"""Error transactions that an operator has executed again: which come next, together, and what became of each.

They are executed in the order of the queue, many at a time, and one such execution after the other. Nothing in the
queue that is left may be in the way of one: what it depends on is executed before it, in the same execution or earlier,
or it is refused. An execution ends with the first that fails again; what is left of it comes once more, without those
that depend on that one.

    1 2 3 4 wanted, 3 depends on 1, 4 on 2
    execution 1 2 3 4 -> 1 executed, 2 fails -> execution 3 (few at a time behind a failure), 3 executed -> 4 is
      refused: it depends on 2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_apply.conversation.groups import Failure, GroupResult

if TYPE_CHECKING:
    from spark_apply.dependencies.holds import ErrorHolds

__all__ = ["ErrorExecutions", "ErrorOutcome", "ExecutionRequest", "not_tried"]

# Error transactions in one execution. As sets they take half a second, for which everything else waits; more would save
# nothing: of 512, the fixed part of an execution (a round trip to the server, a look at the tables, a commit) is a
# twentieth.
_EXECUTED_MAX = 512
_STOPPED = "not tried: one before it failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOutcome:
    """The outcome of executing an error transaction. `failure` None: applied and deleted.

    `is_of_server`: an apply server tried it; otherwise it was refused, and why it failed before still holds.
    """

    number: int
    failure: Failure | None
    is_of_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """How an operator wants error transactions executed.

    Args:
        role: of the destination, whose rights are checked; empty: the apply servers' own.
        handler: a function for their row LCRs (`headrace.rules.user_code.handlers.ExecutionHandler`); empty: they go the usual
            way.
        failures: why they are in the error queue, by number: for the function.
        stops: behind the first that fails again, the others of the request are not tried.
    """

    role: str = ""
    handler: bytes = b""
    failures: Mapping[int, Failure] = field(default_factory=dict)
    stops: bool = False

    def is_as(self, other: ExecutionRequest) -> bool:
        """Whether both want it with the same rights and through the same function."""
        return (self.role, self.handler) == (other.role, other.handler)


class ErrorExecutions:
    """See the module.

    Args:
        holds: the error queue of the apply process.
    """

    def __init__(self, holds: ErrorHolds) -> None:
        self._holds = holds
        self._waiting: deque[int] = deque()
        self._requests: dict[int, ExecutionRequest] = {}  # of those that wait, and of those that a server has
        self._withdrawn: dict[int, str] = {}  # that a server has: why they are not tried if it gives them back
        self._outcomes: list[ErrorOutcome] = []
        self._most = _EXECUTED_MAX  # in the next execution

    def __contains__(self, number: int) -> bool:
        """Whether an error transaction is to be executed, or is being executed."""
        return number in self._requests

    @property
    def is_empty(self) -> bool:
        """Whether none is to be executed, and none is being executed."""
        return not self._requests

    @property
    def waits(self) -> bool:
        """Whether one is to be executed that no server has."""
        return bool(self._waiting)

    def add(self, numbers: Iterable[int], request: ExecutionRequest | None = None) -> None:
        """Error transactions are to be executed, in the order of the queue, behind those that were wanted before.

        Args:
            numbers: of the error transactions; those that are to be executed already stay as they were wanted.
            request: how; None: in the usual way.
        """
        numbers, request = set(numbers), request or ExecutionRequest()
        for number in numbers & self._withdrawn.keys():  # it is wanted again before its server gave it back
            del self._withdrawn[number]
        wanted = sorted(numbers - self._requests.keys())
        self._requests |= dict.fromkeys(wanted, request)
        self._waiting.extend(wanted)
        self._most = _EXECUTED_MAX

    def withdraw(self, numbers: Iterable[int], why: str) -> None:
        """Do not execute error transactions that no server has begun; the others go on.

        Args:
            numbers: of the error transactions.
            why: the outcome of those that are withdrawn.
        """
        numbers = set(numbers)
        unwanted = numbers.intersection(self._waiting)
        self._withdrawn |= dict.fromkeys(numbers.intersection(self._requests) - unwanted, why)
        self._waiting = deque(number for number in self._waiting if number not in unwanted)
        for number in sorted(unwanted):
            del self._requests[number]
            self._outcomes.append(not_tried(number, why))

    def choose(self) -> tuple[int, ...]:
        """The error transactions of the next execution, all wanted in the same way.

        Those that cannot be executed are refused. Empty: none is left to try now.
        """
        numbers = self._next()
        blockers = self._holds.blockers([number for number in numbers if number in self._holds])
        chosen: list[int] = []
        while numbers:
            number = numbers[0]
            blocker = blockers.get(number, -1)
            if blocker == 0:
                chosen.append(numbers.pop(0))
                continue
            stops = self._requests[number].stops
            if stops and chosen:
                break  # it is refused when it comes again, behind those before it
            why = (
                "it is not in the error queue"
                if blocker < 0
                else f"it depends on error transaction {blocker}, which must be executed or deleted first"
            )
            numbers.pop(0)
            if stops:  # nothing behind it is tried
                self.give_back(numbers)
                numbers.clear()
            self._end(not_tried(number, f"error transaction {number} cannot be executed: {why}"))
        self.give_back(numbers)
        return tuple(chosen)

    def request_of(self, number: int) -> ExecutionRequest:
        """How one that is to be executed is wanted."""
        return self._requests[number]

    def give_back(self, numbers: Iterable[int]) -> None:
        """What was chosen did not reach a server, or was not begun there.

        It comes next again, but for what was withdrawn meanwhile.
        """
        known = list(numbers)
        self._waiting.extendleft(number for number in reversed(known) if number not in self._withdrawn)
        for number in known:
            if (why := self._withdrawn.get(number)) is not None:
                self._end(not_tried(number, why))

    def executed(self, numbers: Iterable[int]) -> None:
        """Error transactions are executed: they are in the queue no more."""
        for number in numbers:
            self._holds.remove(number)
            self._end(ErrorOutcome(number=number, failure=None, is_of_server=True))

    def finished(self, numbers: tuple[int, ...], result: GroupResult) -> None:
        """A server has executed what was chosen, or a part of it.

        Args:
            numbers: as they were chosen.
            result: of the server.
        """
        self.executed(numbers[: result.executed])
        left = numbers[result.executed :]
        self.give_back(left if result.failure is None else left[1:])
        if result.failure is not None:
            # Many may fail, and an execution in which one fails tries halves.
            self._most = 1
            self._end(ErrorOutcome(number=left[0], failure=result.failure, is_of_server=True))
        elif not left:
            self._most = min(2 * self._most, _EXECUTED_MAX)

    def take_outcomes(self) -> tuple[ErrorOutcome, ...]:
        """The outcomes since the last call."""
        outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    # ------------------------------------------------------------------ inside

    def _next(self) -> list[int]:
        """Those that come next, ascending, and wanted in the same way."""
        request = self._requests[self._waiting[0]]
        most = 1 if request.handler else self._most  # a function is told why each failed
        numbers: list[int] = []
        while self._waiting and len(numbers) < most:
            number = self._waiting[0]
            if self._requests[number] is not request or (numbers and number < numbers[-1]):
                break
            numbers.append(self._waiting.popleft())
        return numbers

    def _end(self, outcome: ErrorOutcome) -> None:
        request = self._requests.pop(outcome.number)
        self._withdrawn.pop(outcome.number, None)
        self._outcomes.append(outcome)
        if outcome.failure is not None and request.stops:
            self.withdraw([number for number, found in self._requests.items() if found is request], _STOPPED)


def not_tried(number: int, why: str) -> ErrorOutcome:
    """The outcome of an error transaction that was not executed.

    Args:
        number: of it.
        why: for the operator.
    """
    return ErrorOutcome(number=number, failure=Failure(position=-1, conflict_type="", sqlstate="", message=why))
