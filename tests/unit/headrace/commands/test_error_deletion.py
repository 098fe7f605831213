"""`headrace errors delete`: how error transactions are grouped, and the output for many."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.commands import error_deletion
from headrace.commands.error_deletion import delete_together
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output

ERRORS = [{"apply": apply, "number": number} for apply, number in [("a", 1), ("a", 2), ("a", 3), ("b", 2)]]


class Applies:
    """Deletes error transactions on request, except those being executed, and records each call."""

    def __init__(self, *executed: int) -> None:
        self.executed, self.asked = executed, list[Any]()

    def delete(self, apply: str, numbers: list[int]) -> list[dict[str, Any]]:
        self.asked.append((apply, numbers))
        return [
            {
                "number": each,
                "done": each not in self.executed,
                "problem": "it is being executed" if each in self.executed else "",
            }
            for each in numbers
        ]


def deleted(applies: Applies, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = delete_together(Output(as_json=False), ERRORS, applies.delete)
    return code, capsys.readouterr().out


def test_errors_of_an_apply_process_are_deleted_together_and_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    applies = Applies()
    assert deleted(applies, capsys) == (
        DONE,
        "1/4 a 1: deleted\n2/4 a 2: deleted\n3/4 a 3: deleted\n4/4 b 2: deleted\n",
    )
    assert applies.asked == [("a", [1, 2, 3]), ("b", [2])]


def test_many_errors_are_deleted_in_groups_with_exceptions_and_a_sum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(error_deletion, "LINES_MAX", 3)
    monkeypatch.setattr(error_deletion, "DELETED_AT_ONCE", 2)
    applies = Applies(3)
    assert deleted(applies, capsys) == (
        FINDING,
        "3/4 a 3: not deleted: it is being executed\n3 of 4 error transactions deleted\n",
    )
    assert applies.asked == [("a", [1, 2]), ("a", [3]), ("b", [2])]
