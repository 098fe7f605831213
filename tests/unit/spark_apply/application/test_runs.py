"""A run of tasks lives as long as its call, over real gRPC with a fake Spark application."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.base.errors import HeadraceError, PropagationError, ProtocolError
from headrace.databases.connectors import DatabaseAccess
from protos import apply_pb2 as pb
from protos.links.apply_link import CoordinatorLink, fetch_access, make_server_hello, serve_apply
from protos.links.spark_link import serve_tasks
from protos.wire.admission import Admission
from protos.wire.transport import Server
from spark_apply.application.access.run_tokens import RunTokens
from spark_apply.application.process import ALL_LOST_TIMEOUT_S, FIRST_TIMEOUT_S, SILENCE_MAX_S, ApplicationWatch
from spark_apply.application.runs import SparkRuns
from spark_apply.application.spark import SparkUnavailable
from spark_apply.application.task_runs import ApplicationAccess, TaskRunner
from spark_apply.apply_config import ApplyConfig
from spark_apply.driver.gate import Gate
from tests.support.apply.apply_driver import wait_for
from tests.support.clusters.spark_health import fetch_health

SOON_S = 30.0  # limit for what takes milliseconds here
TOKEN = "the application's token"


class Application:
    """Jobs that run until they are cancelled or told to end."""

    def __init__(self) -> None:
        self.jobs: dict[str, threading.Event] = {}
        self.cancelled: list[str] = []
        self.tokens: list[str] = []
        self.results: list[bytes] | HeadraceError | None = None
        self.is_gone = False

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        if self.is_gone:
            raise SparkUnavailable("the JVM has ended")
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def run_job(self, group: str, task: Any, items: Any, tasks: int) -> list[bytes]:
        self.tokens.append(task.args[1].token)
        if self.results is None:
            event = self.jobs[group] = threading.Event()
            assert event.wait(SOON_S)
            del self.jobs[group]
            raise SparkUnavailable(f"{group} was cancelled")
        if isinstance(self.results, HeadraceError):
            raise self.results
        return self.results

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)
        if group in self.jobs:
            self.jobs[group].set()


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def server(application: Application) -> Iterator[Server]:
    server = serve_tasks("127.0.0.1", SparkRuns(application), TOKEN)
    yield server
    server.stop()


def config_of(apply: str) -> ApplyConfig:
    return ApplyConfig(
        topology="t",
        apply=apply,
        source=DatabaseAccess(site="a", kind="memory", dsn=""),
        destination=DatabaseAccess(site="b", kind="memory", dsn=""),
        queue="q",
    )


def runner(server: Server, apply: str, *, token: str = TOKEN, epoch: int = 7) -> TaskRunner:
    return TaskRunner(
        config=config_of(apply),
        find=lambda: ApplicationAccess(endpoint=server.endpoint, token=token),
        tokens=RunTokens(apply),
        epoch=epoch,
    )


def test_closed_run_cancels_only_its_own_job(application: Application, server: Server):
    runs = {name: runner(server, name).start(pb.TASK_KIND_APPLY_SERVER, 2, is_kept=True) for name in ("x", "y")}
    wait_for("both jobs", lambda: len(application.jobs) == 2, SOON_S)
    (of_x,) = [group for group in application.jobs if group.startswith("x/7/apply_server/")]
    runs["x"].close()
    assert runs["x"].join(SOON_S)
    wait_for("the job to end", lambda: len(application.jobs) == 1, SOON_S)
    assert set(application.cancelled) == {of_x}
    wait_for("one run to be left", lambda: fetch_health(server.endpoint, TOKEN).runs == 1, SOON_S)
    runs["y"].close()
    assert runs["y"].join(SOON_S)


def test_run_returns_the_results_of_its_tasks(application: Application, server: Server):
    application.results = [b"one", b"two"]
    run = runner(server, "x").start(pb.TASK_KIND_DIGEST, 2, items=[b"a", b"b"])
    assert run.join(SOON_S)
    assert (run.results, run.error) == ([b"one", b"two"], None)


def test_repeated_run_has_a_new_token_and_refuses_tasks_of_the_older_run(application: Application, server: Server):
    mine, moved = runner(server, "x"), list[bool]()
    run = mine.start(pb.TASK_KIND_APPLY_SERVER, 1, is_kept=True, moved=moved.append)
    wait_for("the job", lambda: application.jobs, SOON_S)
    mine.tokens.check(application.tokens[0])
    next(iter(application.jobs.values())).set()  # as when the application and its executors die
    wait_for("the next job", lambda: len(application.tokens) == 2 and application.jobs, SOON_S)
    with pytest.raises(PropagationError, match="has ended"):
        mine.tokens.check(application.tokens[0])
    mine.tokens.check(application.tokens[1])
    wait_for("what the coordinator is told", lambda: moved == [True, False, True], SOON_S)
    run.close()
    assert run.join(SOON_S)
    with pytest.raises(PropagationError, match="has ended"):
        mine.tokens.check(application.tokens[1])
    with pytest.raises(ProtocolError):
        mine.tokens.check("a token of nobody")


def test_late_task_of_an_ended_run_is_rejected_without_a_refused_call(server: Server):
    """Spark repeats a failed task until the run is cancelled; `status` reports refused calls as calls of strangers."""
    gate = Gate(config_of("x"))
    admission = Admission("apply x")
    coordinator = serve_apply("127.0.0.1", gate, servers=1, admission=admission)
    try:
        token = gate.tokens.admit()
        gate.tokens.dismiss(token)
        with pytest.raises(PropagationError, match="has ended"):
            fetch_access(coordinator.endpoint, token)
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        link = CoordinatorLink(
            coordinator.endpoint,
            make_server_hello(topology="t", apply="x", server=0, incarnation="i", token=token, pid=1, host="here"),
            arrived.put,
        )
        answer = arrived.get(timeout=SOON_S)
        link.close()
        assert isinstance(answer, PropagationError)
        assert "has ended" in answer.message
        assert admission.status().refused_calls == 0
        with pytest.raises(ProtocolError):
            fetch_access(coordinator.endpoint, "a token of nobody")
        assert admission.status().refused_calls == 1
    finally:
        coordinator.stop()


def test_unkept_run_fails_with_the_jobs_message(application: Application, server: Server):
    application.results = SparkUnavailable("the tasks could not be serialized")
    run = runner(server, "x").start(pb.TASK_KIND_COPY, 2)
    assert run.join(SOON_S)
    assert isinstance(run.error, SparkUnavailable)
    assert "could not be serialized" in run.error.message


def test_run_on_an_ended_jvm_reports_it_and_leaves_nothing(application: Application, server: Server):
    application.is_gone = True
    run = runner(server, "x").start(pb.TASK_KIND_APPLY_SERVER, 2, is_kept=True)
    wait_for("the words", lambda: "the JVM has ended" in run.problem, SOON_S)
    assert fetch_health(server.endpoint, TOKEN).runs == 0
    application.is_gone = False
    wait_for("the job", lambda: application.jobs, SOON_S)
    run.close()
    assert run.join(SOON_S)


def test_unavailable_application_is_awaited_and_reported(server: Server):
    mine = runner(server, "x")

    def find() -> ApplicationAccess:
        raise PropagationError("spark:b: the Spark application is not up yet")

    mine.find = find
    run = mine.start(pb.TASK_KIND_APPLY_SERVER, 1, is_kept=True)
    wait_for("the words", lambda: "not up yet" in run.problem, SOON_S)
    run.close()
    assert run.join(SOON_S)


def test_caller_without_the_application_token_runs_nothing(application: Application, server: Server):
    run = runner(server, "x", token="a guess").start(pb.TASK_KIND_APPLY_SERVER, 1, is_kept=True)
    wait_for("the refusal", lambda: "does not know the token" in run.problem, SOON_S)
    assert application.tokens == []
    run.close()
    assert run.join(SOON_S)


def test_call_cancelled_before_it_is_served_starts_nothing(application: Application):
    """Its end would never be reported, and the job would run forever."""
    runs = SparkRuns(application)
    request = pb.RunRequest(kind=pb.TASK_KIND_COPY, apply="x", tasks=1)
    assert list(runs.run(request, lambda _: False)) == []
    assert (application.jobs, runs.health().runs) == ({}, 0)


# --------------------------------------------------------------------------- watch


class Executors:
    def __init__(self) -> None:
        self.count = 2

    def __call__(self) -> int:
        if self.count < 0:
            raise SparkUnavailable("the JVM is gone")
        return self.count


def test_application_without_an_executor_is_given_up_after_a_timeout():
    executors, counts = Executors(), list[int]()
    watch = ApplicationWatch(executors, counts.append, 0.0)
    watch.look(1.0)
    executors.count = 0
    watch.look(ALL_LOST_TIMEOUT_S)
    watch.check(1.0 + ALL_LOST_TIMEOUT_S)
    with pytest.raises(SparkUnavailable, match="no executor has come back"):
        watch.check(2.0 + ALL_LOST_TIMEOUT_S)
    executors.count = 1
    watch.look(3.0 + ALL_LOST_TIMEOUT_S)
    watch.check(4.0 + ALL_LOST_TIMEOUT_S)
    assert counts == [2, 0, 1]


def test_first_executor_has_a_longer_timeout():
    executors = Executors()
    executors.count = 0
    watch = ApplicationWatch(executors, lambda _: None, 0.0)
    watch.look(FIRST_TIMEOUT_S)
    watch.check(FIRST_TIMEOUT_S)
    with pytest.raises(SparkUnavailable, match="no executor started"):
        watch.check(FIRST_TIMEOUT_S + 1.0)


def test_driver_with_a_dead_or_hanging_jvm_is_given_up():
    executors = Executors()
    watch = ApplicationWatch(executors, lambda _: None, 0.0)
    watch.look(1.0)
    with pytest.raises(SparkUnavailable, match="has not answered"):
        watch.check(2.0 + SILENCE_MAX_S)
    executors.count = -1
    watch.look(2.0)
    with pytest.raises(SparkUnavailable, match="gone"):
        watch.check(2.0)
