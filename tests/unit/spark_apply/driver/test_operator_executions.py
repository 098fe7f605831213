"""Executions that operators ask for: one at a time, named by who asks, and ended whatever has been handed out."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ApplyError, ConfigError
from spark_apply.conversation.groups import Failure, GroupRetry, RetryReason
from spark_apply.driver import operator_executions
from spark_apply.driver.groups.executions import ErrorOutcome, ExecutionRequest
from spark_apply.driver.loop.destination_problem import DestinationProblem
from spark_apply.driver.loop.error_requests import ErrorRequests
from spark_apply.driver.operator_executions import OperatorExecutions
from tests.support.apply.coordinator_talk import Talk, assignments, made, run

FAILED = Failure(position=0, conflict_type="x", sqlstate="", message="again")
ENDED = "not tried: the command was ended"


class Host:
    """The requests of a host over a coordinator, without a loop."""

    def __init__(self, talk: Talk) -> None:
        destination: Any = SimpleNamespace(errors=lambda *_, **__: ())  # why they fail is recorded nowhere
        self.inbox = SimpleNamespace(call=lambda function: function())
        self.errors = ErrorRequests(
            "t", "a", destination=destination, coordinator=talk.coordinator, problem=DestinationProblem()
        )


def begun(count: int) -> tuple[Talk, Any, OperatorExecutions]:
    talk = Talk(errors=[(number, np.array([number * 4], np.uint64)) for number in range(1, count + 1)])
    return talk, Host(talk), OperatorExecutions()


def told(outcomes: queue.SimpleQueue[ErrorOutcome] | tuple[ErrorOutcome, ...]) -> dict[int, str]:
    found = list(outcomes) if isinstance(outcomes, tuple) else [outcomes.get_nowait() for _ in range(outcomes.qsize())]
    return {each.number: "" if each.failure is None else each.failure.message for each in found}


def test_outcomes_come_in_pages_and_the_last_says_what_is_left() -> None:
    talk, host, executions = begun(3)
    assert executions.begin(host, "a", [1, 2], ExecutionRequest()) == 2
    assert executions.begin(host, "a", [1, 2], ExecutionRequest()) == 2, "a call that is repeated begins nothing again"
    assert not executions.outcomes(host, "a", 0.01).is_over
    (first,) = assignments(talk.coordinator.messages())
    talk.done(0, first.group)
    host.errors.deliver_outcomes()
    page = executions.outcomes(host, "a", 0.0)
    assert (told(page.outcomes), page.is_over, page.left, page.arrived) == ({1: "", 2: ""}, True, 1, 0)
    with pytest.raises(ConfigError, match="was ended, or its apply process"):
        executions.outcomes(host, "a", 0.0)


def test_while_one_is_attended_another_command_is_refused_and_nothing_of_it_begins() -> None:
    talk, host, executions = begun(5)
    executions.begin(host, "a", [1, 2], ExecutionRequest(role="clerk"))
    with pytest.raises(ApplyError, match="another command executes"):
        executions.begin(host, "b", None, ExecutionRequest())
    executions.end(host, "b")
    (first,) = assignments(talk.coordinator.messages())
    assert first.error_numbers == (1, 2)
    talk.done(0, first.group)
    host.errors.deliver_outcomes()
    assert executions.begin(host, "c", None, ExecutionRequest()) == 3, (
        "all outcomes of the first are known, read or not"
    )
    assert told(executions.outcomes(host, "a", 0.0).outcomes) == {1: "", 2: ""}


def test_one_that_nobody_asks_for_any_more_gives_way_with_what_no_server_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk, host, executions = begun(1000)
    executions.begin(host, "killed", None, ExecutionRequest(role="clerk"))
    (first,) = assignments(talk.coordinator.messages())
    assert len(first.error_numbers) == 512
    monkeypatch.setattr(operator_executions, "_ATTENDED_S", -1.0)
    executions.begin(host, "next", [1000], ExecutionRequest())
    found = assignments(talk.done(0, first.group))
    assert [each.error_numbers for each in found] == [(1000,)]


def test_ended_one_executes_no_more_of_what_a_server_gives_back() -> None:
    """512 are handed out, 32 are executed, and the other 480 come back: no server has begun them."""
    talk, host, executions = begun(600)
    executions.begin(host, "a", None, ExecutionRequest(role="clerk"))
    (first,) = assignments(talk.coordinator.messages())
    executions.end(host, "a")
    assert assignments(talk.done(0, first.group, executed=32, failure=None)) == []
    assert talk.coordinator.errors.numbers == tuple(range(33, 601))


def test_what_was_taken_back_and_is_wanted_again_before_its_server_gives_it_back_is_executed() -> None:
    talk, host, executions = begun(40)
    executions.begin(host, "a", None, ExecutionRequest())
    (first,) = assignments(talk.coordinator.messages())
    executions.end(host, "a")
    executions.begin(host, "b", None, ExecutionRequest())
    (again,) = assignments(talk.done(0, first.group, executed=32, failure=None))
    assert again.error_numbers == tuple(range(33, 41))
    talk.done(0, again.group)
    host.errors.deliver_outcomes()
    assert told(executions.outcomes(host, "b", 0.0).outcomes) == dict.fromkeys(range(1, 41), "")


def test_ended_one_executes_no_more_of_what_a_replay_gives_back() -> None:
    """It waits behind a group, without permission to write."""
    talk, host, executions = begun(5)
    (group,) = assignments(talk.accept(run(made(1, 77))))
    executions.begin(host, "a", None, ExecutionRequest())
    talk.coordinator.messages()
    executions.end(host, "a")
    talk.coordinator.report(0, GroupRetry(group=group.group, attempt=0, reason=RetryReason.REPLAY, next_transaction=0))
    assert talk.coordinator.must_replay
    talk.coordinator.replayed()
    assert assignments(talk.coordinator.messages()) == []
    assert talk.coordinator.errors.numbers == (1, 2, 3, 4, 5)


def test_one_that_is_ended_before_it_begins_executes_nothing() -> None:
    """Ctrl-C while the first call waits for the coordinator."""
    talk, host, executions = begun(5)
    executions.end(host, "a")
    executions.begin(host, "a", None, ExecutionRequest())
    assert assignments(talk.coordinator.messages()) == []


def test_ending_takes_back_only_what_nobody_else_wants() -> None:
    """It failed for the first command, an operator corrects it and executes it; then the first one is ended."""
    talk, host, executions = begun(3)
    executions.begin(host, "a", [1, 2, 3], ExecutionRequest())
    (first,) = assignments(talk.coordinator.messages())
    found = assignments(talk.done(0, first.group, executed=0, failure=FAILED))  # 2 is handed out
    host.errors.deliver_outcomes()
    others = host.errors.execute([1, 3], ExecutionRequest())
    executions.end(host, "a")
    executed: list[int] = []
    while found:
        executed += [number for each in found for number in each.error_numbers]
        found = assignments(talk.done(0, found[0].group))
        host.errors.deliver_outcomes()
    assert sorted(executed) == [1, 2, 3]
    assert told(others) == {1: "", 3: ""}
