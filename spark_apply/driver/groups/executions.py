"""Executions of error transactions at an operator's request: which run next together, and their outcomes.

Error transactions are executed in the order of the queue, many at a time, one execution after the other. Nothing left
in the queue may block one: what it depends on is executed before it, in the same execution or earlier, or it is
refused. An execution ends with the first transaction that fails again. The rest is tried again, without those that
depend on the failed one.

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

# Error transactions in one execution. As sets they take half a second, for which everything else waits. More would save
# nothing: at 512, the fixed part of an execution (a round trip to the server, a look at the tables, a commit) is a
# twentieth.
_EXECUTED_MAX = 512
_STOPPED = "not tried: one before it failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOutcome:
    """The outcome of executing an error transaction. `failure` None: applied and deleted.

    `is_of_server`: an apply server tried it. Otherwise it was refused, and its earlier failure still holds.
    """

    number: int
    failure: Failure | None
    is_of_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """How to execute error transactions.

    Args:
        role: role of the destination whose rights are checked; empty: the apply servers' own.
        handler: a function for their row LCRs (`headrace.rules.user_code.handlers.ExecutionHandler`); empty: they are
            applied as usual.
        failures: why they are in the error queue, by number: for the function.
        stops: after the first that fails again, the others of the request are not tried.
    """

    role: str = ""
    handler: bytes = b""
    failures: Mapping[int, Failure] = field(default_factory=dict)
    stops: bool = False

    def is_as(self, other: ExecutionRequest) -> bool:
        """Return whether both name the same role and the same function."""
        return (self.role, self.handler) == (other.role, other.handler)


class ErrorExecutions:
    """The executions of one apply process.

    Args:
        holds: error queue of the apply process.
    """

    def __init__(self, holds: ErrorHolds) -> None:
        self._holds = holds
        self._waiting: deque[int] = deque()
        self._requests: dict[int, ExecutionRequest] = {}  # of pending ones, and of those at a server
        self._withdrawn: dict[int, str] = {}  # those at a server: why they are not tried if it returns them
        self._outcomes: list[ErrorOutcome] = []
        self._most = _EXECUTED_MAX  # most error transactions in the next execution

    def __contains__(self, number: int) -> bool:
        """Return whether an error transaction is to be executed, or is being executed."""
        return number in self._requests

    @property
    def is_empty(self) -> bool:
        """Whether no error transaction is to be executed or being executed."""
        return not self._requests

    @property
    def waits(self) -> bool:
        """Whether an error transaction is to be executed that no server has."""
        return bool(self._waiting)

    def add(self, numbers: Iterable[int], request: ExecutionRequest | None = None) -> None:
        """Add error transactions to execute, in the order of the queue, behind those requested earlier.

        Args:
            numbers: numbers of the error transactions; those already requested keep their request.
            request: how to execute them; None: as usual.
        """
        numbers, request = set(numbers), request or ExecutionRequest()
        for number in numbers & self._withdrawn.keys():  # requested again before its server returned it
            del self._withdrawn[number]
        wanted = sorted(numbers - self._requests.keys())
        self._requests |= dict.fromkeys(wanted, request)
        self._waiting.extend(wanted)
        self._most = _EXECUTED_MAX

    def withdraw(self, numbers: Iterable[int], why: str) -> None:
        """Withdraw error transactions that no server has begun; the others continue.

        Args:
            numbers: numbers of the error transactions.
            why: outcome of the withdrawn ones.
        """
        numbers = set(numbers)
        unwanted = numbers.intersection(self._waiting)
        self._withdrawn |= dict.fromkeys(numbers.intersection(self._requests) - unwanted, why)
        self._waiting = deque(number for number in self._waiting if number not in unwanted)
        for number in sorted(unwanted):
            del self._requests[number]
            self._outcomes.append(not_tried(number, why))

    def choose(self) -> tuple[int, ...]:
        """Return the error transactions of the next execution, all with the same request.

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
                break  # it is refused in the next execution, after those before it
            why = (
                "it is not in the error queue"
                if blocker < 0
                else f"it depends on error transaction {blocker}, which must be executed or deleted first"
            )
            numbers.pop(0)
            if stops:  # nothing after it is tried
                self.give_back(numbers)
                numbers.clear()
            self._end(not_tried(number, f"error transaction {number} cannot be executed: {why}"))
        self.give_back(numbers)
        return tuple(chosen)

    def request_of(self, number: int) -> ExecutionRequest:
        """Return the request of an error transaction that is to be executed."""
        return self._requests[number]

    def give_back(self, numbers: Iterable[int]) -> None:
        """Put back chosen error transactions that did not reach a server, or that no server began.

        They are chosen next again, except those withdrawn meanwhile.
        """
        known = list(numbers)
        self._waiting.extendleft(number for number in reversed(known) if number not in self._withdrawn)
        for number in known:
            if (why := self._withdrawn.get(number)) is not None:
                self._end(not_tried(number, why))

    def executed(self, numbers: Iterable[int]) -> None:
        """Note that error transactions were executed and are no longer in the queue."""
        for number in numbers:
            self._holds.remove(number)
            self._end(ErrorOutcome(number=number, failure=None, is_of_server=True))

    def finished(self, numbers: tuple[int, ...], result: GroupResult) -> None:
        """Note that a server has executed the chosen error transactions, or a part of them.

        Args:
            numbers: the chosen error transactions.
            result: the server's result.
        """
        self.executed(numbers[: result.executed])
        left = numbers[result.executed :]
        self.give_back(left if result.failure is None else left[1:])
        if result.failure is not None:
            # Many may fail, and an execution with a failure tries halves.
            self._most = 1
            self._end(ErrorOutcome(number=left[0], failure=result.failure, is_of_server=True))
        elif not left:
            self._most = min(2 * self._most, _EXECUTED_MAX)

    def take_outcomes(self) -> tuple[ErrorOutcome, ...]:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    # ------------------------------------------------------------------ inside

    def _next(self) -> list[int]:
        """Return the next ones, ascending, with the same request."""
        request = self._requests[self._waiting[0]]
        most = 1 if request.handler else self._most  # a function gets the reason of each failure
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
    """Return the outcome of an error transaction that was not executed.

    Args:
        number: number of the error transaction.
        why: the reason, for the operator.
    """
    return ErrorOutcome(number=number, failure=Failure(position=-1, conflict_type="", sqlstate="", message=why))
