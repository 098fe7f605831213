"""The savepoints of a session's transaction, as the statements that set and use them."""

from __future__ import annotations

import pytest

from headrace.base.errors import BugError
from headrace.databases.postgres.destination.server_session.savepoints import Savepoints
from headrace.databases.postgres.pipeline import Statement


def texts(statements: list[Statement]) -> list[str]:
    return [each.sql for each in statements]


def test_savepoint_that_is_set_again_is_moved() -> None:
    savepoints = Savepoints()
    assert texts(savepoints.set()) == ["SAVEPOINT headrace"]
    assert texts(savepoints.set()) == ["RELEASE SAVEPOINT headrace", "SAVEPOINT headrace"]
    assert texts(savepoints.go_back()) == ["ROLLBACK TO SAVEPOINT headrace"]


def test_savepoint_after_a_mark_does_not_release_the_earlier_one() -> None:
    savepoints = Savepoints()
    savepoints.set()
    assert texts(savepoints.mark()) == ["SAVEPOINT headrace_mark_1"]
    with pytest.raises(BugError, match="no savepoint"):
        savepoints.go_back()
    assert texts(savepoints.set()) == ["SAVEPOINT headrace"]


def test_savepoint_before_a_mark_is_valid_again_after_an_undo() -> None:
    savepoints = Savepoints()
    savepoints.set()
    savepoints.mark()
    savepoints.mark()
    savepoints.set()
    assert texts(savepoints.undo_to_mark(1)) == [
        "ROLLBACK TO SAVEPOINT headrace_mark_1",
        "RELEASE SAVEPOINT headrace_mark_1",
    ]
    assert savepoints.mark_count == 0
    assert texts(savepoints.set())[0] == "RELEASE SAVEPOINT headrace"
    with pytest.raises(BugError, match="no mark 1"):
        savepoints.drop_mark(1)


def test_outermost_savepoints_are_released_before_an_outside_statement() -> None:
    savepoints = Savepoints()
    assert texts(savepoints.release_all()) == []
    savepoints.set()
    assert texts(savepoints.release_all()) == ["RELEASE SAVEPOINT headrace"]
    savepoints.mark()
    savepoints.set()
    assert texts(savepoints.release_all()) == ["RELEASE SAVEPOINT headrace_mark_1", "RELEASE SAVEPOINT headrace"]
    savepoints.clear()
    savepoints.mark()
    savepoints.set()
    # The savepoint after the mark is released with the mark.
    assert texts(savepoints.release_all()) == ["RELEASE SAVEPOINT headrace_mark_1"]
