"""Alerts reach a real command and a real HTTP server; nothing waits for an alert, and none shows a secret."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors.alerts import sending, watch
from actors.alerts.sending import Alerts, Sender, deliver
from actors.controller import Controller
from headrace.base.clock import SystemClock, VirtualClock
from headrace.base.errors import DatabaseUnavailable
from headrace.console.status_view import notes
from headrace.databases.ports import Finding
from headrace.status.overview import Overview
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import call_again, started, with_another_destination
from tests.support.actors.overviews import overview_from
from topology.alerts import AlertsSpec, AlertTarget
from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import examine, read_topology
from topology.problems import TopologyError
from topology.spec import TopologySpec

DOCUMENT = {"kind": "lag", "subject": "apply:a", "message": "late"}
TOKEN, PATH = "s3cr3t-token", "/hooks/s3cr3t-path"


class Hook(ThreadingHTTPServer):
    """A webhook on loopback that sends each of `answers` in turn, then repeats the last."""

    def __init__(self) -> None:
        self.answers: list[int] = [200]
        self.posts: list[tuple[str, str, Any]] = []
        self.tells_more = threading.Event()  # the answer announces a body that is sent only when this is set
        self.tells_more.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.posts.append((self.path, self.headers.get("Authorization", ""), json.loads(body)))
                code = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", f"http://127.0.0.1:{hook.server_port}/elsewhere")
                self.send_header("Content-Length", "0" if hook.tells_more.is_set() else "5")
                self.end_headers()
                hook.tells_more.wait()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def target(self) -> AlertTarget:
        return AlertTarget(name="webhook at 127.0.0.1", url=f"http://127.0.0.1:{self.server_port}{PATH}", token=TOKEN)


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSES_S", (0.0, 0.0, 0.0))


def test_webhook_gets_alert_with_token(hook: Hook):
    deliver(hook.target(), DOCUMENT)
    assert hook.posts == [(PATH, f"Bearer {TOKEN}", DOCUMENT)]


def test_webhook_response_status_alone_acknowledges_alert(hook: Hook, monkeypatch: pytest.MonkeyPatch):
    """Waiting for the body would count the alert as failed and send it twice."""
    monkeypatch.setattr(sending, "TIMEOUT_S", 20.0)  # enough for an answer on a busy machine
    hook.tells_more.clear()
    try:
        deliver(hook.target(), DOCUMENT)
    finally:
        hook.tells_more.set()
    assert len(hook.posts) == 1


def test_command_gets_alert_on_standard_input(tmp_path: Path):
    script = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.argv[1] + sys.stdin.read())"
    deliver(AlertTarget(name="command", command=(sys.executable, "-c", script, "to the dba: ")), DOCUMENT)
    text = (tmp_path / "told").read_text()
    assert text.startswith("to the dba: ")
    assert json.loads(text.removeprefix("to the dba: ")) == DOCUMENT


def test_alert_is_retried_then_given_up(hook: Hook, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    sender = Sender(hook.target(), 20, SystemClock())
    hook.answers = [503, 500, 200]
    sender.put(DOCUMENT)
    until(lambda: sender.sent == 1)
    assert (len(hook.posts), sender.problem, sender.given_up) == (3, "", 0)
    hook.answers = [404]
    sender.put(DOCUMENT)
    until(lambda: sender.given_up == 1)
    until(lambda: not sender.described().waiting)
    assert asdict(sender.described()) == {
        "to": "webhook at 127.0.0.1",
        "sent": 1,
        "waiting": 0,
        "left_out": 0,
        "left_out_before_next": 0,
        "given_up": 1,
        "problem": "it answered 404",
    }
    assert len(hook.posts) == 7
    sender.stop()


def test_redirect_does_not_get_the_token(hook: Hook):
    hook.answers = [302]
    with pytest.raises(Exception, match="it answered 302, and redirects are not followed"):
        deliver(hook.target(), DOCUMENT)
    assert [path for path, _, _ in hook.posts] == [PATH]


@pytest.mark.parametrize(
    "target",
    [
        AlertTarget(name="command x", command=("/there/is/no/such/program",)),
        AlertTarget(name="command false", command=(sys.executable, "-c", "raise SystemExit(3)")),
        AlertTarget(name="webhook at 127.0.0.1", url=f"http://127.0.0.1:1{PATH}", token=TOKEN),
        AlertTarget(name="webhook at 127.0.0.1", url=f"http://127.0.0.1:1{PATH} {TOKEN}", token=TOKEN),
    ],
)
def test_failed_target_reports_problem_without_secrets(
    target: AlertTarget,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    quick(monkeypatch)
    sender = Sender(target, 20, SystemClock())
    with caplog.at_level(logging.DEBUG, "headrace"):
        sender.put(DOCUMENT)
        until(lambda: sender.given_up == 1)
    assert sender.problem
    for text in (caplog.text, repr(target), repr(sender.described())):
        assert TOKEN not in text
        assert PATH not in text
    sender.stop()


def test_command_that_exits_has_taken_alert_although_its_child_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The child holds the command's output: waiting for it would count the alert as failed and send it twice."""
    monkeypatch.setattr(sending, "TIMEOUT_S", 30.0)
    script = (
        "import subprocess, sys; left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f" open({str(tmp_path / 'left')!r}, 'w').write(str(left.pid))"
    )
    try:
        # otherwise this raises: did not end in time
        deliver(AlertTarget(name="mail", command=(sys.executable, "-c", script)), DOCUMENT)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_command_that_exceeds_timeout_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.2)
    with pytest.raises(Exception, match=r"did not end within 0\.2 s"):
        deliver(AlertTarget(name="slow", command=(sys.executable, "-c", "import time; time.sleep(60)")), DOCUMENT)


def test_command_that_exceeds_timeout_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.5)
    with pytest.raises(Exception, match="did not end"):
        deliver(
            AlertTarget(name="slow", command=("/bin/sh", "-c", f"sleep 60 & echo $! > {tmp_path / 'started'}; wait")),
            DOCUMENT,
        )
    started = Path(f"/proc/{int((tmp_path / 'started').read_text())}/stat")
    until(lambda: not started.exists() or started.read_text().rpartition(")")[2].split()[0] == "Z")


def test_command_that_cannot_be_killed_does_not_delay_other_alerts(monkeypatch: pytest.MonkeyPatch):
    """For example a command that `sudo` runs as another user."""
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(sending, "KILLED_S", 0.2)
    quick(monkeypatch)
    killpg, refused = os.killpg, []

    def refuse(group: int, _number: int) -> None:
        refused.append(group)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    sender = Sender(
        AlertTarget(name="sudo", command=(sys.executable, "-c", "import time; time.sleep(600)")), 20, SystemClock()
    )
    with pytest.warns(ResourceWarning):  # it keeps running
        sender._attempt(DOCUMENT)
    for group in refused:
        killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
    assert (sender.given_up, sender.problem) == (1, "it did not end within 0.2 s, and cannot be ended")


@pytest.fixture
def odd_server() -> Iterator[tuple[AlertTarget, Callable[[bytes, float], None]]]:
    """A server that sends some bytes one by one, with a pause after each, then holds the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    says: list[tuple[bytes, float]] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                connection.recv(65536)
                for byte in says[0][0]:
                    connection.sendall(bytes((byte,)))
                    time.sleep(says[0][1])

    thread = threading.Thread(target=serve)
    thread.start()
    yield (
        AlertTarget(name="odd", url=f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}"),
        lambda text, pause_s: says.append((text, pause_s)),
    )
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("connects_in_s", [0.0, 0.6])
def test_webhook_that_answers_byte_by_byte_gets_no_extra_time(
    connects_in_s: float,
    odd_server: tuple[AlertTarget, Callable[[bytes, float], None]],
    monkeypatch: pytest.MonkeyPatch,
):
    """Each byte is in time, the whole answer is too slow: the target's queue would stall for hours."""
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.3)
    connect = HTTPConnection.connect

    def slow(connection: HTTPConnection) -> None:
        time.sleep(connects_in_s)
        connect(connection)

    monkeypatch.setattr(HTTPConnection, "connect", slow)
    target, says = odd_server
    says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000, 0.05)
    threads = {thread.name for thread in threading.enumerate()}
    with pytest.raises(Exception, match=r"it did not answer within 0\.3 s"):
        deliver(target, DOCUMENT)
    until(lambda: {thread.name for thread in threading.enumerate()} <= threads)  # the attempt leaves no thread behind


def test_webhook_that_hangs_up_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(HTTPConnection, "connect", _hung_up)
    with pytest.raises(Exception, match="it ended the connection"):
        deliver(AlertTarget(name="odd", url=f"http://127.0.0.1:1{PATH}"), DOCUMENT)


def _hung_up(connection: HTTPConnection) -> None:
    connection.sock, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)
    connection.theirs = theirs  # type: ignore[attr-defined]  # keep it open, so that the request can be sent


def test_webhook_that_does_not_speak_http_is_reported(
    odd_server: tuple[AlertTarget, Callable[[bytes, float], None]],
):
    target, says = odd_server
    says(b"220 mail.example ESMTP\r\n", 0.0)
    with pytest.raises(Exception, match="what it answered is not HTTP"):
        deliver(target, DOCUMENT)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (urllib.error.URLError(TimeoutError()), "it did not answer within"),
        (urllib.error.URLError(ConnectionRefusedError()), "nothing listens there"),
        (urllib.error.URLError(socket.gaierror()), "its name is not known"),
        (ConnectionResetError(), "it ended the connection"),
        (urllib.error.URLError(ssl.SSLCertVerificationError()), "its certificate is not accepted"),
        (urllib.error.URLError(ssl.SSLError()), "TLS"),
    ],
)
def test_failed_attempt_has_a_readable_reason(error: Exception, why: str):
    assert why in sending._unreachable(error)


def test_hourly_limit_drops_alerts_and_next_alert_counts_them():
    clock, sent = VirtualClock(), []
    sender = Sender(AlertTarget(name="t"), 2, clock, send=lambda _, document: sent.append(document))
    for _ in range(5):
        sender.put(DOCUMENT)
    until(lambda: len(sent) == 2)
    assert sender.left_out == 3
    overview = Overview(topology="t", state="RUNNING", alerts=(sender.described(),))
    assert [(note.problem, note.is_remark) for note in notes(overview)] == [
        ("3 alerts to t left out: the hour's limit, or its queue, is full", True)
    ]
    clock.advance(sending.HOUR_S + 1)
    sender.put(DOCUMENT)
    until(lambda: len(sent) == 3)
    assert [document["left_out_before"] for document in sent] == [0, 0, 3]
    assert not notes(replace(overview, alerts=(sender.described(),)))
    sender.stop()


def test_hanging_target_blocks_nobody_and_its_queue_is_bounded():
    released = threading.Event()
    sender = Sender(AlertTarget(name="t"), 10**6, VirtualClock(), send=lambda *_: bool(released.wait(30)) and None)
    for _ in range(sending.WAITING_MAX + 50):
        sender.put(DOCUMENT)  # returns at once, or this test never ends
    assert sender.described().waiting <= sending.WAITING_MAX
    assert sender.left_out >= 50
    released.set()
    sender.stop()


FILE = """
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{from: a, to: [b], tables: [hr.*]}]
alerts:
  to:
    - {command: [mail, dba]}
    - {webhook: "${HOOK}", token: "${TOKEN}"}
  conflicts: {count: 100, seconds: 60}
  lag_s: 300
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    return file


def test_file_configures_alerts_and_stores_their_secrets_as_digests(tmp_path: Path, hook: Hook):
    environment = {"HOOK": hook.target().url, "TOKEN": TOKEN}
    spec = read_topology(written(tmp_path, FILE), environment)
    assert spec.alerts is not None
    assert [target.name for target in spec.alerts.to] == ["command mail", "webhook at 127.0.0.1"]
    assert (spec.alerts.conflicts_count, spec.alerts.lag_s, spec.alerts.environment) == (100, 300.0, ("HOOK", "TOKEN"))
    stored = json.dumps(spec_to_json(spec))
    assert stored.count("sealed:") == 2
    for text in (stored, repr(spec)):
        assert TOKEN not in text
        assert PATH not in text
    assert spec_from_json(json.loads(stored)).alerts is not None


def test_targets_of_one_host_are_named_with_their_paths(tmp_path: Path):
    text = FILE.replace(
        "    - {command: [mail, dba]}", '    - {webhook: "https://x.example/a"}\n    - {command: [mail, dba]}'
    )
    spec = read_topology(written(tmp_path, text), {"HOOK": "https://x.example/b", "TOKEN": TOKEN})
    assert spec.alerts is not None
    assert [target.name for target in spec.alerts.to] == [
        "webhook at x.example (alerts.to[0])",
        "command mail",
        "webhook at x.example (alerts.to[2])",
    ]


def test_address_with_a_blank_is_refused_without_showing_it(tmp_path: Path):
    found = examine(written(tmp_path, FILE), {"HOOK": f"https://x.example{PATH}\n{TOKEN}", "TOKEN": TOKEN})
    (finding,) = [each for each in found.findings if each.is_error]
    assert "blank or a control character" in finding.problem
    assert TOKEN not in f"{finding}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('"${TOKEN}"', "plain-text"), "has a secret in the file"),
        (('"${TOKEN}"', '"${MISSING}"'), "MISSING is not set"),
        (('"${HOOK}"', "ftp://x/y"), "is not the address of a webhook"),
        (('"${HOOK}"', "https://u:p@x/y"), "has a user or a password"),
        (("[mail, dba]", "[]"), "command"),
        (("lag_s: 300", "lag_s: 1"), "out of range"),
        (("{command: [mail, dba]}", "{}"), "is not one target"),
        (("[mail, dba]", "[]"), "is empty"),
        (("    - {command: [mail, dba]}\n", "    - {command: [mail, dba]}\n" * 8), "has 9 entries"),
    ],
)
def test_invalid_alert_setting_is_refused_with_its_path(tmp_path: Path, change: tuple[str, str], problem: str):
    found = examine(written(tmp_path, FILE.replace(*change)), {"HOOK": "https://x.example/y", "TOKEN": TOKEN})
    with pytest.raises(TopologyError):
        found.topology()
    assert problem in " ".join(f"{finding.path} {finding.problem}" for finding in found.findings)
    assert all("alerts" in finding.path for finding in found.findings if finding.is_error)


def test_alert_from_overview_reaches_webhook(tmp_path: Path, hook: Hook):
    spec = read_topology(
        written(tmp_path, FILE.replace("    - {command: [mail, dba]}\n", "")),
        {"HOOK": hook.target().url, "TOKEN": TOKEN},
    )
    alerts = Alerts(spec, SystemClock())
    overview = {
        "state": "RUNNING",
        "at_us": 5,
        "flows": (),
        "components": [
            {"name": "apply:a", "kind": "apply", "state": "IDLE", "errors": 1, "counters": {"total_errors": 1}}
        ],
    }
    alerts.look(lambda: overview_from(overview))
    alerts.look(lambda: overview_from(overview))
    until(lambda: len(hook.posts) == 1)
    (_, _, document) = hook.posts[0]
    assert document == {
        "topology": "t",
        "kind": "error_transaction",
        "subject": "apply:a",
        "message": "1 error transaction in the error queue",
        "fix": f"headrace errors list {spec.file}",
        "is_over": False,
        "at_us": 5,
        "left_out_before": 0,
    }
    alerts.stop()


def test_controller_sends_alerts_and_status_shows_failed_ones(
    spec: TopologySpec,
    actors: FakeActors,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
):
    quick(monkeypatch)
    controller = started(replace(spec, alerts=AlertsSpec(to=(hook.target(),))), actors)
    actors.statuses["apply:x"] = {"errors": 2, "counters": {"total_errors": 2}}
    controller.step()
    controller.step()
    until(lambda: len(hook.posts) == 1)
    assert (hook.posts[0][2]["subject"], hook.posts[0][2]["topology"]) == ("apply:x", "one_way")
    until(lambda: controller.seen().alerts[0].sent == 1)
    assert not [note for note in notes(controller.seen()) if "alerts" in note.problem]
    hook.answers = [500]
    monkeypatch.setattr(watch, "ERRORS_APART_S", 0.0)
    actors.statuses["apply:x"] = {"errors": 3, "counters": {"total_errors": 3}}
    controller.step()
    controller.step()
    until(lambda: controller.seen().alerts[0].given_up == 1)
    (note,) = [note for note in notes(controller.seen()) if "alerts" in note.problem]
    assert note.problem == "alerts cannot be sent to webhook at 127.0.0.1: it answered 500"
    assert TOKEN not in json.dumps(controller.overview(), default=str)
    controller.end()


def with_hook(spec: TopologySpec, actors: FakeActors, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A running controller whose component alerts are sent at its next look."""
    controller = started(replace(spec, alerts=AlertsSpec(to=(hook.target(),))), actors)
    controller.life.enter("ENABLED")
    monkeypatch.setattr(watch, "COMPONENT_AFTER_S", 0.0)
    controller.step()
    return controller


def test_controller_that_keeps_retrying_sends_one_alert(
    spec: TopologySpec,
    actors: FakeActors,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
):
    controller = with_hook(spec, actors, hook, monkeypatch)

    call_again(controller)
    actors.breaks["uncaptured"] = DatabaseUnavailable("no answer", hint="start it")
    monkeypatch.setattr(controller._backoff, "next_s", lambda: 0.0)
    for _ in range(5):
        controller._attempt(controller._run_once)
    until(lambda: len(hook.posts) == 1)
    assert {name: hook.posts[0][2][name] for name in ("kind", "subject", "message", "fix")} == {
        "kind": "component",
        "subject": "controller",
        "message": "RETRYING: no answer",
        "fix": "start it",
    }
    until(lambda: controller.seen().alerts[0].waiting == 0)  # the answer is still on its way
    assert len(hook.posts) == 1
    controller.end()


def test_controller_that_aborts_sends_alert_before_it_stops_looking(
    spec: TopologySpec,
    actors: FakeActors,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
):
    controller = with_hook(spec, actors, hook, monkeypatch)
    (spec.state_dir / "desired.json").write_text('{"prepared": "', encoding="utf-8")
    controller._attempt(controller._run_once)
    until(lambda: len(hook.posts) == 1)
    assert hook.posts[0][2]["message"].startswith("ABORTED: ")
    assert "headrace up" in hook.posts[0][2]["fix"]
    controller.end()


def test_alerts_are_sent_while_an_edit_is_refused(
    spec: TopologySpec,
    actors: FakeActors,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
):
    with_hook(spec, actors, hook, monkeypatch).end()
    actors.findings["site:b"] = (Finding(path="site b", problem="no right", fix="GRANT it"),)
    monkeypatch.setattr(watch, "COMPONENT_AFTER_S", 60.0)
    edited = with_hook(with_another_destination(spec), actors, hook, monkeypatch)  # its operator walked away
    assert edited.detail_state() == "REFUSED"
    until(lambda: hook.posts)
    assert [(each[2]["subject"], each[2]["fix"]) for each in hook.posts] == [("controller", "GRANT it")]
    actors.statuses["apply:x"] = {"state": "ABORTED", "last_error": {"message": "no room", "hint": "make some"}}
    edited.step()
    until(lambda: len(hook.posts) == 2)
    assert (hook.posts[1][2]["subject"], hook.posts[1][2]["message"]) == ("apply:x", "ABORTED: no room")
    edited.end()


def test_failing_overview_does_not_end_the_controllers_thread(
    spec: TopologySpec,
    actors: FakeActors,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    controller = with_hook(spec, actors, hook, monkeypatch)

    def breaks() -> None:
        raise RuntimeError("no overview")

    monkeypatch.setattr(controller, "seen", breaks)
    assert not controller._attempt(breaks)
    assert "no alert is sent now" in caplog.text
    assert controller.status().state == "ABORTED"
    controller.end()


def test_topology_without_alerts_sends_none(spec: TopologySpec, actors: FakeActors):
    controller = started(spec, actors)
    actors.statuses["apply:x"] = {"errors": 2}
    controller.step()
    assert controller.seen().alerts == ()
