"""`headrace errors execute`: error transactions are executed together, and their outcomes arrive in pages.

Each apply process gets the numbers in one call, so that nothing joins the queue behind them meanwhile, and then reports
the outcomes page by page. With `--all`, error transactions that enter the queue meanwhile are executed too, until no
new ones enter or none of them succeeds.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ApplyError, ConfigError, HeadraceError, counted
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output, ReaderLeft

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.hosting.runtime import RayActors

__all__ = ["Execution", "outcome_of"]

BEGIN_TIMEOUT_S = 60.0  # looks up ten thousand numbers and, with a function, also why each failed
# Wait for the next outcome; then the process is asked again, for as long as a transaction of millions of rows takes.
PAGE_WAIT_S = 5.0
PAGE_TIMEOUT_S = 60.0  # for an apply process that is busy with its destination
LINES_MAX = 100  # up to this many, each has a line; beyond, only those that are left
IN_VAIN_MAX = 2  # rounds of --all that execute nothing: the second one retries with what arrived during the first
PROGRESS_S = 2.0  # between two progress lines


@dataclass(slots=True, kw_only=True)
class Execution:
    """What a command has executed so far.

    Args:
        output: prints outcomes when they are known.
        connect: connects to the topology's actors.
        role: as in `ErrorQueue.execute`.
        handler: the serialized function.
        stops: whether to try nothing after the first failure.
    """

    output: Output
    connect: Callable[[], RayActors]
    role: str = ""
    handler: bytes = b""
    stops: bool = False
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0  # error transactions left in the queues, if all were wanted
    arrived: int = 0  # error transactions that arrived since the command began, executed or left
    _count: int = 0
    _said_at: float = field(default_factory=time.monotonic)

    @property
    def has_failed(self) -> bool:
        """Whether any error transaction was not executed."""
        return any(not outcome["done"] for outcome in self.outcomes)

    def execute(self, apply: str, numbers: Sequence[int]) -> None:
        """Execute error transactions of one apply process.

        Args:
            apply: its name.
            numbers: numbers of the error transactions.
        """
        if self.stops and self.has_failed:
            self._count += len(numbers)
            self._note(
                apply,
                [{"number": number, "done": False, "problem": "not tried: one before it failed"} for number in numbers],
            )
            return
        self._round(apply, numbers)

    def execute_all(self, apply: str) -> None:
        """Execute the queue of an apply process until it is empty or everything left has failed again."""
        if self.stops and self.has_failed:
            self.left += len(self.connect().call(f"apply:{apply}", "errors", timeout_s=PAGE_TIMEOUT_S))
            return
        left, first, in_vain = 0, len(self.outcomes), 0
        while not (self.stops and self.has_failed) and in_vain < IN_VAIN_MAX:
            before = len(self.outcomes)
            page = self._round(
                apply, (), besides=[outcome["number"] for outcome in self.outcomes[first:] if not outcome["done"]]
            )
            left = page["left"]
            self.arrived += page["arrived"]
            if not page["arrived"]:
                break
            in_vain = 0 if any(outcome["done"] for outcome in self.outcomes[before:]) else in_vain + 1
            self.output.say(f"{apply}: {counted(page['arrived'], 'error transaction')} arrived meanwhile")
        self.left += left

    def tell(self, *, all_of_it: bool) -> int:
        """Print the result.

        Args:
            all_of_it: whether everything was wanted, so that whatever is in the queue counts as left.

        Returns:
            The exit code: a finding when any is left.
        """
        self.output.json({"outcomes": self.outcomes, "left": self.left, "arrived": self.arrived})
        if not self.outcomes:
            self.output.result("no error transactions")
        failed = sum(not outcome["done"] for outcome in self.outcomes)
        if self.left or self.arrived or self._count > LINES_MAX:
            words = f"{len(self.outcomes) - failed:,} of {counted(len(self.outcomes), 'error transaction')} executed"
            words += f"; {self.arrived:,} arrived meanwhile" if self.arrived else ""
            self.output.result(words + (f"; {self.left:,} left in the queue" if self.left else ""))
        return FINDING if failed or (all_of_it and self.left) else DONE

    # ------------------------------------------------------------------ inside

    def _round(self, apply: str, numbers: Sequence[int], *, besides: Sequence[int] = ()) -> Mapping[str, Any]:
        """Execute some, or everything now in the queue except `besides`; return the last page of outcomes."""
        name, execution = f"apply:{apply}", secrets.token_hex(8)
        try:
            self._count += self.connect().call(
                name,
                "begin_execution",
                execution,
                list(numbers),
                self.role,
                self.handler,
                self.stops,
                list(besides),
                timeout_s=BEGIN_TIMEOUT_S,
            )
            while True:
                page = self.connect().call(name, "execution_outcomes", execution, PAGE_WAIT_S, timeout_s=PAGE_TIMEOUT_S)
                self._note(apply, page["outcomes"])
                if page["is_over"]:
                    return dict(page)
        except (ApplyError, ConfigError):
            raise  # it has begun nothing, or has ended
        except (
            BaseException
        ):  # Ctrl-C, a closed reader, a call without an answer: whatever ends the command ends the execution
            self._end(name, execution)
            raise

    def _end(self, name: str, execution: str) -> None:
        """Cancel what no apply server has begun."""
        try:
            self.connect().call(name, "end_execution", execution, timeout_s=PAGE_TIMEOUT_S)
            what = "those that were begun go on, the others are not tried"
        except HeadraceError:
            what = "it does not answer, and may go on with the error transactions that it has begun"
        with suppress(ReaderLeft):
            self.output.say(f"{name}: {what}: `headrace errors list FILE` shows what is left")

    def _note(self, apply: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
        for each in outcomes:
            outcome, words = outcome_of(apply, each, "executed")
            self.outcomes.append(outcome)
            if self._count <= LINES_MAX or (not outcome["done"] and not outcome["problem"].startswith("not tried")):
                self.output.result(f"{len(self.outcomes)}/{self._count} {apply} {outcome['number']}: {words}")
        if self._count > LINES_MAX and time.monotonic() - self._said_at > PROGRESS_S:
            self._said_at = time.monotonic()
            self.output.say(f"{apply}: {len(self.outcomes):,} of {self._count:,} done")


def outcome_of(apply: str, answer: Mapping[str, Any], word: str) -> tuple[dict[str, Any], str]:
    """Return the outcome of an error transaction, as a document and in words.

    Args:
        apply: its apply process.
        answer: the apply process's answer.
        word: word for success, such as "executed".
    """
    outcome = {"apply": apply, **answer}
    if not outcome.get("failure", {}).get("message"):  # nothing was tried, or it was done
        outcome["failure"] = None
    return outcome, word if outcome["done"] else f"not {word}: {' '.join(_why(outcome).splitlines())}"


def _why(outcome: Mapping[str, Any]) -> str:
    """Return why one was not executed: the row, the conflict type or SQLSTATE, and the message."""
    failure = outcome.get("failure") or {}
    row = f"row {failure['position']}: " if failure.get("position", -1) >= 0 else ""
    kind = failure.get("conflict_type") or failure.get("sqlstate") or ""
    return f"{row}{kind + ': ' if kind else ''}{outcome['problem']}"
