"""`headrace errors execute`: its rounds and sums; whatever ends the command also ends the execution that it began."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ApplyError, PropagationError
from headrace.commands.error_execution import Execution
from headrace.console.exit_codes import FINDING

FAILS = {"number": 7, "done": False, "problem": "again", "failure": {"message": "again", "position": 0}}
DONE = {"number": 8, "done": True, "problem": "", "failure": {}}


class Silent:
    """An output that keeps its lines and its document."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.document: Any = None

    def result(self, line: str) -> None:
        self.lines.append(line)

    say = result

    def json(self, document: Any) -> None:
        self.document = document


class Actors:
    """Apply processes with given answers: a count for `begin_execution`, then pages; an exception is raised."""

    def __init__(self, *pages: Any, count: Any = 1, queued: int = 0) -> None:
        self.pages, self.count, self.queued = list(pages), count, queued
        self.calls: list[tuple[str, str]] = []
        self.besides: list[list[int]] = []

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        self.calls.append((name, method))
        if method == "errors":
            return [{}] * self.queued
        if method == "begin_execution":
            self.besides.append(arguments[-1])
        answer = (
            self.count if method == "begin_execution" else self.pages.pop(0) if method == "execution_outcomes" else None
        )
        if isinstance(answer, BaseException):
            raise answer
        return answer


def page(*outcomes: dict[str, Any], left: int = 0, arrived: int = 0, is_over: bool = True) -> dict[str, Any]:
    return {"outcomes": list(outcomes), "is_over": is_over, "left": left, "arrived": arrived}


def execution(actors: Actors, **more: Any) -> Execution:
    return Execution(output=Silent(), connect=lambda: actors, **more)  # type: ignore[return-value]  # they stand in for a session


def test_remaining_errors_are_counted_over_all_apply_processes() -> None:
    made = execution(Actors(page(FAILS, left=1), queued=3), stops=True)
    for apply in ("a", "b"):
        made.execute_all(apply)
    assert made.tell(all_of_it=True) == FINDING
    assert made.output.document["left"] == 4  # type: ignore[attr-defined]


def test_newly_arrived_errors_are_tried_once_more() -> None:
    actors = Actors(page(FAILS, left=2, arrived=1), page(DONE, left=1))
    execution(actors).execute_all("a")
    assert actors.besides == [[], [7]]
    actors = Actors(*[page(FAILS, left=2, arrived=1)] * 5)
    execution(actors).execute_all("a")
    assert len(actors.besides) == 2


@pytest.mark.parametrize(
    ("actors", "error"),
    [
        (Actors(count=KeyboardInterrupt()), KeyboardInterrupt),
        (Actors(KeyboardInterrupt()), KeyboardInterrupt),
        (Actors(SystemExit()), SystemExit),
        (Actors(PropagationError("apply:a does not answer within 60 s")), PropagationError),
    ],
    ids=["Ctrl-C while it begins", "Ctrl-C while it waits", "SIGTERM", "a page that does not come"],
)
def test_interruption_ends_the_execution_and_is_reported(actors: Actors, error: type[BaseException]) -> None:
    made = execution(actors)
    with pytest.raises(error):
        made.execute_all("a")
    assert actors.calls[-1] == ("apply:a", "end_execution")
    assert "`headrace errors list FILE` shows what is left" in made.output.lines[-1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [BrokenPipeError, KeyboardInterrupt])
def test_reader_that_leaves_ends_the_execution(error: type[BaseException]) -> None:
    """As in `headrace errors execute FILE --all | head -1`."""
    actors = Actors(page(DONE, is_over=False))
    made = execution(actors)

    def leaves(_: str) -> None:
        raise error

    made.output.result = leaves  # type: ignore[method-assign, assignment]
    with pytest.raises(error):
        made.execute_all("a")
    assert actors.calls[-1] == ("apply:a", "end_execution")


def test_refusal_to_begin_ends_nothing() -> None:
    actors = Actors(count=ApplyError("another command executes error transactions"))
    with pytest.raises(ApplyError):
        execution(actors).execute_all("a")
    assert actors.calls == [("apply:a", "begin_execution")]
