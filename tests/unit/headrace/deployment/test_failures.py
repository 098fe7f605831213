"""Errors that end `up` because waiting would not help, and their exit codes."""

from __future__ import annotations

import pickle
from typing import Any

from headrace.console.exit_codes import FAILURE, FINDING
from headrace.console.output import exit_code_of
from headrace.console.status_view import everything_runs
from headrace.deployment.failures import LOOK_AT_ALL_S, LOOKED_S, Failures, TablesNotCopied, together
from headrace.status.overview import Overview
from tests.support.actors.overviews import overview_from


def overview(*components: dict[str, Any], state: str = "RUNNING") -> Overview:
    return overview_from({"state": state, "components": components})


def apply(name: str, state: str = "IDLE", **tables: str) -> dict[str, Any]:
    found = [
        {"owner": "public", "name": table, "state": at, "problem": "it is not empty" if at == "FAILED" else ""}
        for table, at in tables.items()
    ]
    return {"name": f"apply:{name}", "kind": "apply", "state": state, "instantiation": found}


def aborted(name: str) -> dict[str, Any]:
    return {
        "name": f"apply:{name}",
        "kind": "apply",
        "state": "ABORTED",
        "last_error": {"message": "gone", "hint": "start it"},
    }


def ended_by(seen: Overview) -> Any:
    """The error with which `up` ends if the topology stays in this state."""
    failures, now, errors = Failures(lambda name: True), 0.0, list[Any]()
    while not errors:
        errors = failures.told(seen, now, is_settled=True)
        now += min(LOOKED_S, LOOK_AT_ALL_S) / 4
        assert now < 60.0
    return together(errors, everything_runs=everything_runs(seen))


def test_one_failed_table_of_a_running_component_is_a_finding():
    error = ended_by(overview(apply("x", good="DONE", bad="FAILED")))
    assert exit_code_of(error) == FINDING
    assert [(each.path, each.problem) for each in error.findings] == [("apply:x table public.bad", "it is not empty")]


def test_several_tables_are_all_named():
    error = ended_by(overview(apply("x", bad="FAILED", worse="FAILED"), apply("y", bad="FAILED")))
    assert exit_code_of(error) == FINDING
    assert [each.path for each in error.findings] == [
        "apply:x table public.bad",
        "apply:x table public.worse",
        "apply:y table public.bad",
    ]
    assert all(each.path.replace(" table", ": table") in error.message for each in error.findings)


def test_failed_table_together_with_a_stopped_component_is_a_failure():
    for other in (aborted("y"), apply("y", "RETRYING"), apply("y", "NOT CREATED")):
        assert exit_code_of(ended_by(overview(apply("x", bad="FAILED"), other))) == FAILURE


def test_component_that_does_not_run_is_a_failure():
    assert exit_code_of(ended_by(overview(apply("x", good="DONE"), aborted("y")))) == FAILURE


def test_named_tables_survive_pickling():
    error = ended_by(overview(apply("x", bad="FAILED", worse="FAILED")))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, TablesNotCopied)
    assert (again.findings, again.message, again.hint) == (error.findings, error.message, error.hint)
