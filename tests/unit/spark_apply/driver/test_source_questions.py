"""Questions to a source that may be down, and the work that continues meanwhile."""

from __future__ import annotations

import threading

import pytest

from headrace.base.backoff import Backoff
from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.lcr.batch import TableVersion
from headrace.lcr.table_name import TableName
from spark_apply.driver.source_questions import SourceQuestions, TablesOfNow
from tests.support.apply.apply_driver import wait_for
from tests.support.values.lcr_batches import table_version

T, OTHER = table_version("t"), table_version("other")
ANSWERED_S = 60.0  # a thread answers within milliseconds


class Source:
    def __init__(self) -> None:
        self.is_up, self.questions = threading.Event(), 0
        self.error: DatabaseError | None = None

    def identities(self) -> dict[int, str]:
        self.questions += 1
        if self.error is not None:
            raise self.error
        if not self.is_up.wait(0.01):
            raise DatabaseUnavailable("it is down")
        return {7: "id of t"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_s", lambda self: 0.01)


def test_answer_arrives_with_the_source_and_one_question_serves_all():
    source, ended = Source(), threading.Event()
    questions = SourceQuestions(source.identities, ended)
    assert [questions.identity_of(number) for number in (7, 8)] == [None, None]
    wait_for("questions", lambda: source.questions > 2, ANSWERED_S)
    assert questions.identity_of(7) is None
    source.is_up.set()
    wait_for("an answer", lambda: questions.identity_of(7) is not None, ANSWERED_S)
    asked = source.questions
    assert [questions.identity_of(number) for number in (7, 8, 7)] == ["id of t", "", "id of t"]
    assert source.questions == asked


def test_permanent_error_is_raised_to_the_caller():
    source = Source()
    source.error = DatabaseError("permission denied")
    questions = SourceQuestions(source.identities, threading.Event())

    def refused() -> bool:
        with pytest.raises(DatabaseError):
            questions.identity_of(7)
        return True

    questions.identity_of(7)
    wait_for("the question", lambda: source.questions, ANSWERED_S)
    wait_for("the error", lambda: questions._error is not None, ANSWERED_S)
    assert refused()


def test_source_is_not_queried_after_the_driver_has_ended():
    source, ended = Source(), threading.Event()
    questions = SourceQuestions(source.identities, ended)
    questions.identity_of(7)
    ended.set()
    wait_for(
        "the thread to end", lambda: not any(t.name == "source-questions" for t in threading.enumerate()), ANSWERED_S
    )


def test_source_that_is_down_does_not_block_checks_of_an_unfit_table():
    answers, asked = threading.Event(), []

    def ask(name: TableName) -> tuple[TableVersion, ...]:
        asked.append(name)
        if not answers.wait(20.0):
            raise DatabaseUnavailable("it is down")
        return (T,) if name == TableName.of(T) else ()

    of_now = TablesOfNow(ask)
    assert [of_now.of(T) for _ in range(5)] == [()] * 5
    answers.set()
    wait_for("an answer", lambda: of_now.of(T) == (T,), ANSWERED_S)
    assert of_now.of(OTHER) == (), "an answer is for one table"
    assert set(asked) <= {TableName.of(T), TableName.of(OTHER)}


def test_source_that_refuses_a_question_about_a_table_is_asked_again():
    errors = [DatabaseError("permission denied"), DatabaseUnavailable("it is down")]

    def ask(name: TableName) -> tuple[TableVersion, ...]:
        if errors:
            raise errors.pop()
        return (T,)

    of_now = TablesOfNow(ask)
    wait_for("an answer", lambda: of_now.of(T) == (T,), ANSWERED_S)
