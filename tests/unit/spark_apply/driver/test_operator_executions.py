"""Executions requested by operators: one at a time, named by their caller, and ended whatever has been assigned."""

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
    """The requests of a host to a coordinator, without a loop."""

    def __init__(self, talk: Talk) -> None:
        destination: Any = SimpleNamespace(errors=lambda *_, **__: ())  # the failures' reasons are not recorded
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


def test_outcomes_are_paged_and_the_last_page_reports_the_remaining_errors() -> None:
    talk, host, executions = begun(3)
    assert executions.begin(host, "a", [1, 2], ExecutionRequest()) == 2
    assert executions.begin(host, "a", [1, 2], ExecutionRequest()) == 2, "a repeated call begins nothing again"
    assert not executions.outcomes(host, "a", 0.01).is_over
    (first,) = assignments(talk.coordinator.messages())
    talk.done(0, first.group)
    host.errors.deliver_outcomes()
    page = executions.outcomes(host, "a", 0.0)
    assert (told(page.outcomes), page.is_over, page.left, page.arrived) == ({1: "", 2: ""}, True, 1, 0)
    with pytest.raises(ConfigError, match="was ended, or its apply process"):
        executions.outcomes(host, "a", 0.0)


def test_second_command_is_refused_while_the_first_is_attended() -> None:
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
        "the first is over when all its outcomes are known, read or not"
    )
    assert told(executions.outcomes(host, "a", 0.0).outcomes) == {1: "", 2: ""}


def test_unattended_execution_yields_its_unstarted_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, host, executions = begun(1000)
    executions.begin(host, "killed", None, ExecutionRequest(role="clerk"))
    (first,) = assignments(talk.coordinator.messages())
    assert len(first.error_numbers) == 512
    monkeypatch.setattr(operator_executions, "_ATTENDED_S", -1.0)
    executions.begin(host, "next", [1000], ExecutionRequest())
    found = assignments(talk.done(0, first.group))
    assert [each.error_numbers for each in found] == [(1000,)]


def test_ended_execution_does_not_execute_errors_that_a_server_returns() -> None:
    """512 errors are assigned, 32 are executed, and the other 480 are returned unstarted."""
    talk, host, executions = begun(600)
    executions.begin(host, "a", None, ExecutionRequest(role="clerk"))
    (first,) = assignments(talk.coordinator.messages())
    executions.end(host, "a")
    assert assignments(talk.done(0, first.group, executed=32, failure=None)) == []
    assert talk.coordinator.errors.numbers == tuple(range(33, 601))


def test_withdrawn_errors_requested_again_before_their_return_are_executed() -> None:
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


def test_ended_execution_does_not_execute_errors_that_a_replay_returns() -> None:
    """It waits for a group, without permission to write."""
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


def test_execution_ended_before_it_begins_executes_nothing() -> None:
    """Ctrl-C while the first call waits for the coordinator."""
    talk, host, executions = begun(5)
    executions.end(host, "a")
    executions.begin(host, "a", None, ExecutionRequest())
    assert assignments(talk.coordinator.messages()) == []


def test_ending_withdraws_only_errors_that_no_other_command_requests() -> None:
    """It failed for the first command; an operator corrects and executes it; then the first command is ended."""
    talk, host, executions = begun(3)
    executions.begin(host, "a", [1, 2, 3], ExecutionRequest())
    (first,) = assignments(talk.coordinator.messages())
    found = assignments(talk.done(0, first.group, executed=0, failure=FAILED))  # 2 is assigned
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
