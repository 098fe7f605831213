"""Where a session's transaction can go back to, in the statements that say so."""

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


def test_savepoint_behind_a_mark_does_not_release_the_one_before_it() -> None:
    savepoints = Savepoints()
    savepoints.set()
    assert texts(savepoints.mark()) == ["SAVEPOINT headrace_mark_1"]
    with pytest.raises(BugError, match="no savepoint"):
        savepoints.go_back()
    assert texts(savepoints.set()) == ["SAVEPOINT headrace"]


def test_what_was_set_before_a_mark_is_there_again_behind_it() -> None:
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


def test_outermost_ones_are_released_before_a_statement_outside_of_all() -> None:
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
    # The savepoint behind the mark goes with the mark.
    assert texts(savepoints.release_all()) == ["RELEASE SAVEPOINT headrace_mark_1"]
