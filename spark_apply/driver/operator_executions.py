"""Executions of error transactions that operators have asked for: begun in one call, heard of in pages, ended in between.

All numbers are given at once, so that the coordinator knows what is to be executed and lets nothing join the queue behind it; the outcomes come
page by page, so that no call lasts long and an operator sees how far it is. Called on the actor's threads.

    begin(all of 5,000) -> execution 1; outcomes(1) -> 512 of them; outcomes(1) -> 488; ... outcomes(1) -> the last, 3 are left in the queue, 1 arrived
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.errors import ConfigError

if TYPE_CHECKING:
    from spark_apply.driver.executions import ErrorOutcome, ExecutionRequest
    from spark_apply.driver.loop import CoordinatorHost

__all__ = ["ExecutionPage", "OperatorExecutions"]

_KEPT_MAX = 16  # of which somebody may ask: a command asks until its own is over, and an operator has few at a time
_PAGE_MAX = 1000  # outcomes: a megabyte, where all of them failed and show their rows
_WITHDRAWN = "not tried: the command was ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """Some outcomes of an execution.

    Args:
        outcomes: in the order in which they were known.
        is_over: these are the last.
        left: when it is over, how many error transactions are in the queue.
        arrived: how many of these entered the queue since the execution began.
    """

    outcomes: tuple[ErrorOutcome, ...]
    is_over: bool
    left: int = 0
    arrived: int = 0


@dataclass(slots=True, kw_only=True)
class _Execution:
    numbers: tuple[int, ...]
    there: frozenset[int]  # in the queue when it began
    outcomes: queue.SimpleQueue[ErrorOutcome]
    known: int = 0  # outcomes that were passed on


class OperatorExecutions:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = itertools.count(1)
        self._executions: dict[int, _Execution] = {}

    def begin(self, host: CoordinatorHost, numbers: Sequence[int] | None, request: ExecutionRequest, *, besides: Collection[int] = ()) -> tuple[int, int]:
        """Begin to execute error transactions.

        Args:
            host: of the coordinator.
            numbers: of the error transactions; None: all that the queue has at this moment.
            request: how.
            besides: of all, without these.

        Returns:
            The number of the execution, and how many error transactions it has.
        """
        def make() -> _Execution:
            there = frozenset(host.queued_errors)
            chosen = tuple(sorted(set(numbers) if numbers is not None else there.difference(besides)))
            return _Execution(numbers=chosen, there=there, outcomes=host.execute_errors(chosen, request))

        made = host.call(make)
        with self._lock:
            number = next(self._number)
            self._executions[number] = made
            while len(self._executions) > _KEPT_MAX:
                del self._executions[next(iter(self._executions))]
        return number, len(made.numbers)

    def outcomes(self, host: CoordinatorHost, number: int, wait_s: float) -> ExecutionPage:
        """Outcomes that were not passed on yet; one call at a time for each execution.

        Args:
            host: of the coordinator.
            number: of the execution.
            wait_s: how long to wait for the first one.

        Raises:
            ConfigError: there is no such execution: it was begun by an apply process that has ended since.
        """
        execution = self._found(number)
        found: list[ErrorOutcome] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < _PAGE_MAX and execution.known + len(found) < len(execution.numbers):
                found.append(execution.outcomes.get(timeout=wait_s) if not found else execution.outcomes.get_nowait())
        execution.known += len(found)
        if execution.known < len(execution.numbers):
            return ExecutionPage(outcomes=tuple(found), is_over=False)
        with self._lock:
            self._executions.pop(number, None)
        there = host.call(lambda: host.queued_errors)
        return ExecutionPage(outcomes=tuple(found), is_over=True, left=len(there), arrived=sum(each not in execution.there for each in there))

    def end(self, host: CoordinatorHost, number: int) -> None:
        """Execute nothing of an execution that no server has yet; one that is over, or not known, is left alone.

        Args:
            host: of the coordinator.
            number: of the execution.
        """
        with self._lock:
            execution = self._executions.get(number)
        if execution is not None:
            host.call(lambda: host.withdraw_errors(execution.numbers, _WITHDRAWN))

    def _found(self, number: int) -> _Execution:
        with self._lock:
            execution = self._executions.get(number)
        if execution is None:
            raise ConfigError(
                f"there is no execution {number} of error transactions", hint="the apply process has ended since: headrace errors list FILE shows what is left",
            )
        return execution
