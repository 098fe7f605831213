"""The driver's worker for indexes: in order, with pauses after failures, and never the end of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import DatabaseUnavailable, FencedError
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import DdlJob
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import ApplyConfig
from spark_apply.driver import index_jobs
from spark_apply.driver.index_jobs import IndexJobs

EPOCH = 7


class Destination:
    """Jobs by number, each with what its attempts do: nothing, an error, or the end of the job."""

    def __init__(self, jobs: dict[int, list[Exception | str]]) -> None:
        self.jobs, self.runs, self.looks = jobs, [], 0  # type: ignore[var-annotated]
        self.closed = 0

    def ddl_jobs(self, topology: str, apply: str) -> tuple[DdlJob, ...]:
        self.looks += 1
        return tuple(DdlJob(number=number, owner="hr", name="t", index=f"i{number}") for number in sorted(self.jobs))

    def run_ddl_job(
        self, topology: str, apply: str, epoch: int, number: int, *, should_end: Callable[[], bool]
    ) -> None:
        assert epoch == EPOCH
        self.runs.append(number)
        what = self.jobs[number].pop(0)
        if isinstance(what, Exception):
            raise what
        if what == "done":
            del self.jobs[number]

    def close(self) -> None:
        self.closed += 1


def worker(
    monkeypatch: pytest.MonkeyPatch, destination: Destination, *, looks: int, takes_ddl: bool = True
) -> tuple[IndexJobs, list[float]]:
    """Return a worker whose time passes with its looks, which end it; and the pauses between them."""
    now, pauses = [0.0], []
    access = DatabaseAccess(site="a", kind="memory", dsn="a")
    rule = Rule(owner="hr", ddl=takes_ddl)
    config = ApplyConfig(
        topology="t", apply="p", source=access, destination=access, queue="q", rules=(RuleSet(include=(rule,)),)
    )
    assert config.takes_ddl == takes_ddl
    monkeypatch.setattr(index_jobs, "open_destination", lambda _: destination)
    monkeypatch.setattr("spark_apply.driver.index_jobs.time.monotonic", lambda: now[0])
    made = IndexJobs(config, EPOCH, lambda: destination.looks >= looks)

    def wait(pause: float) -> None:
        pauses.append(pause)
        now[0] += pause

    monkeypatch.setattr(made._woken, "wait", wait)
    return made, pauses


def test_jobs_run_one_after_another_and_one_that_fails_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = Destination({1: ["failed", "failed", "done"], 2: ["done"], 3: ["done"]})
    jobs, pauses = worker(monkeypatch, destination, looks=20)
    jobs.run()
    assert destination.runs == [1, 2, 3, 1, 1]
    assert destination.closed >= 5
    assert jobs.found == ()
    assert set(pauses) == {2.0}


def test_jobs_are_looked_for_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = Destination({1: ["failed"]})
    jobs, _ = worker(monkeypatch, destination, looks=2)
    seen: list[int] = []

    def run(*_: object, should_end: Callable[[], bool]) -> None:
        assert not should_end()
        destination.jobs[2] = ["done"]
        monkeypatch.setattr("spark_apply.driver.index_jobs.time.monotonic", lambda: 3.0)
        should_end()
        seen.extend(job.number for job in jobs.found)

    monkeypatch.setattr(destination, "run_ddl_job", run)
    jobs.run()
    assert seen == [1, 2]


def test_unreachable_destination_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = Destination({1: [DatabaseUnavailable("gone"), "done"]})
    jobs, _ = worker(monkeypatch, destination, looks=10)
    jobs.run()
    assert destination.runs == [1, 1]


def test_newer_driver_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = Destination({1: [FencedError("newer"), "done"]})
    jobs, _ = worker(monkeypatch, destination, looks=10)
    jobs.run()
    assert (destination.runs, destination.looks) == ([1], 1)


def test_worker_ends_where_no_ddl_is_taken_and_no_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = Destination({1: ["done"]})
    jobs, _ = worker(monkeypatch, destination, looks=10, takes_ddl=False)
    jobs.run()
    assert (destination.runs, destination.looks) == ([1], 2)


def test_pauses_grow_and_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Any] = ["failed"] * 100
    destination = Destination({1: attempts})
    jobs, pauses = worker(monkeypatch, destination, looks=3000)
    jobs.run()
    total = sum(pauses)
    assert total / 320 < len(destination.runs) < total / 290 + 12
