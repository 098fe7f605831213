"""Executions of error transactions that operators request.

One call begins an execution, outcomes come in pages, and another call can end it in between.

`begin` passes all numbers at once, so the coordinator knows what is to be executed and lets nothing join the queue
behind it. The outcomes come page by page, so no call lasts long and the operator sees progress. The calls run on the
actor's threads.

    begin(x, all of 5,000); outcomes(x) -> 512 of them; outcomes(x) -> 488; ... outcomes(x) -> the last, 3 are left in
      the queue, 1 arrived

One execution runs at a time: two that share error transactions could not attribute their outcomes. The caller names the
execution, so it can end it even if the answer to `begin` was lost. An execution that no caller asks for any more gives
way to the next.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import ApplyError, ConfigError

if TYPE_CHECKING:
    from spark_apply.driver.groups.executions import ErrorOutcome, ExecutionRequest
    from spark_apply.driver.loop.host import CoordinatorHost

__all__ = ["ExecutionPage", "OperatorExecutions"]

_KEPT_MAX = 16  # finished executions, or ended before they began: a command asks for its last page within seconds
_PAGE_MAX = 1000  # outcomes: a megabyte, where all of them failed and show their rows
# A command prints and asks again at once. A killed command, or one with a blocked pipe, does not.
_ATTENDED_S = 30.0
_WITHDRAWN = "not tried: the command was ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """A page of an execution's outcomes.

    Args:
        outcomes: outcomes in the order in which they became known.
        is_over: this is the last page.
        left: on the last page, the number of error transactions in the queue.
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
    known: int = 0  # outcomes already returned
    asking: int = 0  # calls that wait for outcomes now
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def is_complete(self) -> bool:
        """Whether all outcomes are known, returned or not."""
        return self.known + self.outcomes.qsize() >= len(self.numbers)

    @property
    def is_attended(self) -> bool:
        """Whether a caller waits for its outcomes."""
        return self.asking > 0 or time.monotonic() - self.asked_at < _ATTENDED_S


class OperatorExecutions:
    """The executions of one apply process."""

    def __init__(self) -> None:
        self._beginning, self._lock = threading.Lock(), threading.Lock()
        self._executions: dict[str, _Execution] = {}
        self._ended: deque[str] = deque(maxlen=_KEPT_MAX)

    def begin(
        self,
        host: CoordinatorHost,
        name: str,
        numbers: Sequence[int] | None,
        request: ExecutionRequest,
        *,
        besides: Collection[int] = (),
    ) -> int:
        """Begin to execute error transactions.

        Args:
            host: host of the coordinator.
            name: name of the execution, chosen by the caller; a name that was begun before is not begun again.
            numbers: numbers of the error transactions; None: all that the queue has now.
            request: how to execute them.
            besides: with `numbers` None, the numbers to skip.

        Returns:
            Number of error transactions in the execution.

        Raises:
            ApplyError: another execution runs, and a caller waits for it.
        """

        def make() -> _Execution:
            there = frozenset(host.errors.queued)
            chosen = tuple(sorted(set(numbers) if numbers is not None else there.difference(besides)))
            return _Execution(numbers=chosen, there=there, outcomes=host.errors.execute(chosen, request))

        with self._beginning:
            with self._lock:
                if name in self._ended:  # Ctrl-C came first
                    return 0
                if name in self._executions:
                    return len(self._executions[name].numbers)
                running = [each for each in self._executions.values() if not each.is_complete]
            if any(each.is_attended for each in running):
                raise ApplyError(
                    "another command executes error transactions of this apply process",
                    hint="repeat it when that one has ended, or end that one with Ctrl-C",
                )
            for each in running:
                self._withdraw(host, each)
            made = host.inbox.call(make)
            with self._lock:
                over = [
                    each
                    for each, execution in self._executions.items()
                    if execution.is_complete or not execution.is_attended
                ]
                for old in over[: max(0, len(over) + 1 - _KEPT_MAX)]:
                    del self._executions[old]
                self._executions[name] = made
        return len(made.numbers)

    def outcomes(self, host: CoordinatorHost, name: str, wait_s: float) -> ExecutionPage:
        """Return outcomes not returned before; one call at a time for each execution.

        Args:
            host: host of the coordinator.
            name: name of the execution.
            wait_s: how long to wait for the first outcome.

        Raises:
            ConfigError: no such execution: it was ended, or its apply process has ended since.
        """
        execution = self._found(name)
        found: list[ErrorOutcome] = []
        execution.asking += 1
        try:
            with contextlib.suppress(queue.Empty):
                while len(found) < _PAGE_MAX and execution.known + len(found) < len(execution.numbers):
                    found.append(
                        execution.outcomes.get(timeout=wait_s) if not found else execution.outcomes.get_nowait()
                    )
        finally:
            execution.asking -= 1
            execution.asked_at = time.monotonic()
        execution.known += len(found)
        if execution.known < len(execution.numbers):
            return ExecutionPage(outcomes=tuple(found), is_over=False)
        with self._lock:
            self._executions.pop(name, None)
        there = host.inbox.call(lambda: host.errors.queued)
        return ExecutionPage(
            outcomes=tuple(found),
            is_over=True,
            left=len(there),
            arrived=sum(each not in execution.there for each in there),
        )

    def end(self, host: CoordinatorHost, name: str) -> None:
        """Withdraw what no server has begun of an execution, even if the execution is only about to begin.

        A finished execution stays unchanged.

        Args:
            host: host of the coordinator.
            name: name of the execution.
        """
        with self._beginning:  # a concurrent `begin` has finished then
            with self._lock:
                self._ended.append(name)
                execution = self._executions.pop(name, None)
            if execution is not None:
                self._withdraw(host, execution)

    def _withdraw(self, host: CoordinatorHost, execution: _Execution) -> None:
        host.inbox.call(lambda: host.errors.withdraw(execution.outcomes, execution.numbers, _WITHDRAWN))

    def _found(self, name: str) -> _Execution:
        with self._lock:
            execution = self._executions.get(name)
        if execution is None:
            raise ConfigError(
                "this execution of error transactions was ended, or its apply process has ended since",
                hint="headrace errors list FILE shows what is left",
            )
        return execution
