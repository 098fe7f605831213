"""Error transactions executed again from the command line: all at once, heard of in pages.

Each apply process gets what it is to execute in one call, so that it lets nothing join the queue behind that, and then tells page by page what became
of it. With `--all` what entered the queue meanwhile is executed too, until nothing has, or nothing of it can be.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.console import DONE, FINDING, Output
from streams.errors import StreamsError, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from actors.runtime import RayActors

__all__ = ["Execution", "why"]

BEGIN_TIMEOUT_S = 60.0  # ten thousand numbers are looked up, and with a function also why each failed
PAGE_WAIT_S = 5.0  # for the next outcome; then it is asked again, for as long as a transaction of millions of rows takes
PAGE_TIMEOUT_S = 60.0  # of an apply process that is busy with its destination
LINES_MAX = 100  # of so many, each has its line; of more, those that are left
PROGRESS_S = 2.0  # between two lines that say how far it is


@dataclass(slots=True, kw_only=True)
class Execution:
    """What a command has executed, so far.

    Args:
        output: where outcomes are printed as soon as they are known.
        connect: connects to the topology's actors.
        file: of the topology, for messages.
        role: see `ErrorQueue.execute`.
        handler: the function as it travels.
        stops: behind the first that fails, nothing is tried.
    """

    output: Output
    connect: Callable[[], RayActors]
    file: Path
    role: str = ""
    handler: bytes = b""
    stops: bool = False
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0  # in the queues, where all of them was wanted
    arrived: int = 0  # since the command began, executed or left
    _count: int = 0
    _said_at: float = field(default_factory=time.monotonic)

    @property
    def has_failed(self) -> bool:
        """Whether one was not executed."""
        return any(not outcome["done"] for outcome in self.outcomes)

    def execute(self, apply: str, numbers: Sequence[int]) -> None:
        """Execute error transactions of one apply process.

        Args:
            apply: its name.
            numbers: of the error transactions.
        """
        if self.stops and self.has_failed:
            self._count += len(numbers)
            self._note(apply, [{"number": number, "done": False, "problem": "not tried: one before it failed"} for number in numbers])
            return
        self._round(apply, numbers)

    def execute_all(self, apply: str) -> None:
        """Execute the queue of an apply process until it is empty, or what is left has failed again.

        Args:
            apply: its name.
        """
        left, first = 0, len(self.outcomes)
        while not (self.stops and self.has_failed):
            before = len(self.outcomes)
            page = self._round(apply, (), besides=[outcome["number"] for outcome in self.outcomes[first:] if not outcome["done"]])
            left = page["left"]
            self.arrived += page["arrived"]
            if not page["arrived"] or not any(outcome["done"] for outcome in self.outcomes[before:]):
                break
            self.output.say(f"{apply}: {counted(page['arrived'], 'error transaction')} arrived meanwhile")
        self.left += left

    def tell(self, *, all_of_it: bool) -> int:
        """Print the result.

        Args:
            all_of_it: everything was wanted, so whatever is in the queue is left.

        Returns:
            The exit code: a finding when one is left.
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
        """Execute some, or what is in the queue now besides some; answers the last page of outcomes."""
        name = f"apply:{apply}"
        begun = self.connect().call(
            name, "begin_execution", list(numbers), self.role, self.handler, self.stops, list(besides), timeout_s=BEGIN_TIMEOUT_S
        )
        self._count += begun["count"]
        known = 0
        while True:
            with self._ended(name, begun["execution"], begun["count"] - known):
                page = self.connect().call(name, "execution_outcomes", begun["execution"], PAGE_WAIT_S, timeout_s=PAGE_TIMEOUT_S)
            known += len(page["outcomes"])
            self._note(apply, page["outcomes"])
            if page["is_over"]:
                return dict(page)

    @contextmanager
    def _ended(self, name: str, execution: int, count: int) -> Iterator[None]:
        """Where the command is ended meanwhile, what no apply server has begun is not executed."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            with suppress(StreamsError):
                self.connect().call(name, "end_execution", execution, timeout_s=PAGE_TIMEOUT_S)
            self.output.say(
                f"{name}: of {counted(count, 'error transaction')} those that were begun go on, the others are not tried: `headrace errors list {self.file}` shows what is left"
            )
            raise

    def _note(self, apply: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
        for each in outcomes:
            outcome = {"apply": apply, **each}
            if not outcome.get("failure", {}).get("message"):  # nothing was tried, or it was done
                outcome["failure"] = None
            self.outcomes.append(outcome)
            if self._count <= LINES_MAX or (not outcome["done"] and not outcome["problem"].startswith("not tried")):
                words = "executed" if outcome["done"] else f"not executed: {' '.join(why(outcome).splitlines())}"
                self.output.result(f"{len(self.outcomes)}/{self._count} {apply} {outcome['number']}: {words}")
        if self._count > LINES_MAX and time.monotonic() - self._said_at > PROGRESS_S:
            self._said_at = time.monotonic()
            self.output.say(f"{apply}: {len(self.outcomes):,} of {self._count:,} done")


def why(outcome: Mapping[str, Any]) -> str:
    """Why one was not executed: the row, the conflict or the database's number of the error, and the message."""
    failure = outcome.get("failure") or {}
    row = f"row {failure['position']}: " if failure.get("position", -1) >= 0 else ""
    kind = failure.get("conflict_type") or failure.get("sqlstate") or ""
    return f"{row}{kind + ': ' if kind else ''}{outcome['problem']}"
