"""An apply server's task reports to its coordinator that it is alive, whatever its destination does."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from protos import apply_pb2 as pb
from protos.links import apply_link
from spark_apply.application.access.task_access import TaskAccess
from spark_apply.handlers.process_bounds import HandlersGrew
from spark_apply.server import task as tasks
from spark_apply.server.apply_server import ServerStep

TOLD_S = 30.0  # a thread reports within milliseconds


class Link:
    """The coordinator's end of the stream."""

    def __init__(self, _endpoint: str, _hello: pb.ServerHello, inbox: Any) -> None:
        self.states: list[str] = []
        self.told_often = threading.Event()
        self.inbox = inbox
        inbox(pb.CoordinatorMessage(welcome=pb.Welcome()))

    def send(self, message: pb.ServerMessage) -> None:
        self.states.append(message.state.state)
        if self.states.count("EXECUTE TRANSACTION") >= 3:
            self.told_often.set()

    def close(self) -> None:
        pass


def test_long_statement_is_reported_while_it_runs(monkeypatch: pytest.MonkeyPatch):
    links: list[Link] = []

    def connect(*arguments: Any) -> Link:
        links.append(Link(*arguments))
        return links[0]

    def step(_now: float) -> ServerStep:
        server.state = "EXECUTE TRANSACTION"
        assert links[0].told_often.wait(TOLD_S), links[0].states  # stands for the statement
        links[0].inbox(pb.CoordinatorMessage(stop=pb.StopServer()))
        return ServerStep(reports=(), wake_at=None, is_idle=False)

    server = SimpleNamespace(
        state="IDLE",
        unfit=None,
        last_error="",
        connect=lambda: None,
        step=step,
        check_calls=lambda _: None,
        close=lambda: None,
    )
    monkeypatch.setattr(apply_link, "CoordinatorLink", connect)
    monkeypatch.setattr(tasks, "_server_factory", lambda: lambda *_: server)
    monkeypatch.setattr(tasks, "_HEARTBEAT_S", 0.05)
    monkeypatch.setattr(tasks, "die_with_parent", lambda: None)
    list(tasks.serve(TaskAccess(endpoint="", token=""), "hr", "apply_hr", 0, ()))
    assert links[0].states[0] == "IDLE"


def test_uninterruptible_function_is_reported_and_ends_the_process(monkeypatch: pytest.MonkeyPatch):
    links: list[Link] = []
    told: list[tuple[str, bool]] = []
    ended = threading.Event()

    class Told(Link):
        def send(self, message: pb.ServerMessage) -> None:
            if message.WhichOneof("kind") == "failure":
                told.append((message.failure.message, message.failure.replaced))

        def finish(self, _timeout_s: float) -> None:
            pass

    def connect(*arguments: Any) -> Link:
        links.append(Told(*arguments))
        return links[0]

    def check_calls(_now: float) -> None:
        raise HandlersGrew("own:run has not ended")

    def step(_now: float) -> ServerStep:
        assert ended.wait(TOLD_S)  # stands for the function
        links[0].inbox(pb.CoordinatorMessage(stop=pb.StopServer()))
        return ServerStep(reports=(), wake_at=None, is_idle=False)

    server = SimpleNamespace(
        state="IDLE",
        unfit=None,
        last_error="",
        connect=lambda: None,
        step=step,
        check_calls=check_calls,
        close=lambda: None,
    )
    monkeypatch.setattr(apply_link, "CoordinatorLink", connect)
    monkeypatch.setattr(tasks, "_server_factory", lambda: lambda *_: server)
    monkeypatch.setattr(tasks, "_HEARTBEAT_S", 0.05)
    monkeypatch.setattr(tasks, "_FAILURE_DELAY_S", 0.0)
    monkeypatch.setattr(tasks, "_end_process", ended.set)
    monkeypatch.setattr(tasks, "die_with_parent", lambda: None)
    list(tasks.serve(TaskAccess(endpoint="", token=""), "hr", "apply_hr", 0, ()))
    assert told == [("own:run has not ended", True)]


def test_message_arriving_during_an_idle_step_is_handled_at_once(monkeypatch: pytest.MonkeyPatch):
    """A message arrives at the end of a step that found no work; no other message may follow for long."""
    links: list[Link] = []
    received: list[object] = []
    steps: list[int] = []

    def connect(*arguments: Any) -> Link:
        links.append(Link(*arguments))
        return links[0]

    def step(_now: float) -> ServerStep:
        steps.append(len(received))
        if len(steps) == 1:
            links[0].inbox(pb.CoordinatorMessage(go=pb.GroupGo()))
        else:
            links[0].inbox(pb.CoordinatorMessage(stop=pb.StopServer()))
        return ServerStep(reports=(), wake_at=None, is_idle=len(steps) == 1)

    server = SimpleNamespace(
        state="IDLE",
        unfit=None,
        last_error="",
        connect=lambda: None,
        step=step,
        receive=received.append,
        check_calls=lambda _: None,
        close=lambda: None,
    )
    monkeypatch.setattr(apply_link, "CoordinatorLink", connect)
    monkeypatch.setattr(tasks, "_server_factory", lambda: lambda *_: server)
    monkeypatch.setattr(tasks, "_HEARTBEAT_S", 60.0)
    monkeypatch.setattr(tasks._ServerTask, "_wait", lambda *_: pytest.fail("it waits although a message is pending"))
    monkeypatch.setattr(tasks, "die_with_parent", lambda: None)
    list(tasks.serve(TaskAccess(endpoint="", token=""), "hr", "apply_hr", 0, ()))
    assert steps == [0, 1]
