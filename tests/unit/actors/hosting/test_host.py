from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.hosting.host import Host
from actors.hosting.life import Life
from headrace.base.backoff import RETRY_DELAY_MAX_S, RETRY_DELAY_MIN_S, Backoff
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BugError, DatabaseUnavailable, LogGone
from headrace.console.status_view import is_healthy, notes
from headrace.status.overview import Overview

WAIT_S = 60.0  # as long as `STALL_S`, for what takes milliseconds


class _Mended(Life):
    """The operator starts the component a moment before it becomes ABORTED."""

    def __init__(self, clock: Clock, start: Callable[[], None]) -> None:
        super().__init__(clock)
        self._start = start

    def enter(self, state: str) -> None:
        if state == "ABORTED":
            self._start()
        super().enter(state)


class StartedLate(Host):
    """The operator fixes the cause and starts it between its error and its state."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__("scripted:one", state_dir)
        self.errors = [BugError("its cause is mended now")]
        self.stepped = threading.Event()
        self.life = _Mended(SystemClock(), self.start_component)

    def step(self) -> float:
        if self.errors:
            raise self.errors.pop()
        self.stepped.set()
        return 60.0


class ScriptedHost(Host):
    """Step through a script: a number is a pause, an exception is raised, a `threading.Event` is set."""

    kind = "scripted"

    def __init__(self, state_dir: Path, script: list[object]) -> None:
        super().__init__("scripted:one", state_dir)
        self.script = script
        self.opened = 0
        self.closed = 0
        self.pauses: list[float | None] = []

    def open(self) -> None:
        self.opened += 1

    def step(self) -> float:
        entry = self.script.pop(0) if self.script else 60.0
        if isinstance(entry, Exception):
            raise entry
        if isinstance(entry, threading.Event):
            entry.set()
            return 0.0
        return float(entry)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def hosts(tmp_path: Path):
    made: list[Host] = []

    def make(*script: object) -> ScriptedHost:
        host = ScriptedHost(tmp_path, list(script))
        made.append(host)
        return host

    yield make
    for host in made:
        host.end()


def wait_state(host: Host, state: str) -> None:
    waiter = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if host.status().state == state:
            return
        waiter.wait(0.005)
    pytest.fail(f"state is {host.status().state}, not {state}")


def wait_paused(host: ScriptedHost, *, left: int) -> None:
    """Wait until the step before the pause has begun: a wake-up that comes before a step does not end the pause after
    it.
    """
    waiter = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if len(host.script) == left:
            return
        waiter.wait(0.005)
    pytest.fail(f"{len(host.script)} entries are left, not {left}")


def test_backoff_doubles_up_to_its_bound():
    backoff = Backoff()
    pauses = [backoff.next_s() for _ in range(8)]
    assert pauses[:3] == [RETRY_DELAY_MIN_S, 2 * RETRY_DELAY_MIN_S, 4 * RETRY_DELAY_MIN_S]
    assert pauses[-1] == RETRY_DELAY_MAX_S
    backoff.reset()
    assert backoff.next_s() == RETRY_DELAY_MIN_S


def test_component_reopens_after_a_timed_error(hosts):
    reached = threading.Event()
    host = hosts(DatabaseUnavailable("gone"), reached)
    host.start()
    assert reached.wait(WAIT_S)
    wait_state(host, "ENABLED")
    assert (host.opened, host.closed) == (2, 1)
    status = host.status()
    assert status.errors_total == 1
    assert status.last_error.message == "gone"


def test_component_that_keeps_failing_is_retried_without_end(hosts, monkeypatch):
    """The manuals disable a propagation after 16 failures in a row; here an outage of any length ends by itself."""
    failures = 3 * 16
    monkeypatch.setattr("actors.hosting.host.Backoff.next_s", lambda _self: 0.0)  # another test covers the pauses
    reached = threading.Event()
    host = hosts(*(DatabaseUnavailable("gone") for _ in range(failures)), reached)
    host.start()
    assert reached.wait(WAIT_S)
    wait_state(host, "ENABLED")
    assert host.opened == failures + 1
    assert host.status().errors_total == failures


def test_component_aborts_with_error_and_hint_when_an_operator_must_act(hosts):
    host = hosts(LogGone("the slot is gone", hint="instantiate again"))
    host.start()
    wait_state(host, "ABORTED")
    error = host.status().last_error
    assert (error.error, error.hint, error.retry) == ("LogGone", "instantiate again", "manual")
    assert host.closed == 1
    assert host.opened == 1


def test_aborted_component_runs_again_after_start(hosts):
    reached = threading.Event()
    host = hosts(LogGone("x"), reached)
    host.start()
    wait_state(host, "ABORTED")
    host.start_component()
    assert reached.wait(WAIT_S)
    wait_state(host, "ENABLED")


def test_unexpected_exception_becomes_a_recorded_defect(hosts):
    host = hosts(ZeroDivisionError("division"))
    host.start()
    wait_state(host, "ABORTED")
    assert host.status().last_error.error == BugError.__name__
    assert "ZeroDivisionError" in host.status().last_error.message


def test_only_a_full_disk_among_system_errors_is_retried(hosts):
    reached = threading.Event()
    host = hosts(OSError(errno.ENOSPC, "No space left on device"), reached, OSError(errno.EIO, "Input/output error"))
    host.start()
    assert reached.wait(WAIT_S)
    wait_state(host, "ABORTED")
    assert host.opened == 2


def test_full_disk_behind_a_domain_error_is_retried(hosts):
    error = LogGone("cannot write")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    reached = threading.Event()
    host = hosts(error, reached)
    host.start()
    assert reached.wait(WAIT_S)


def test_stopped_component_stays_stopped_after_a_restart_of_its_process(hosts, tmp_path):
    host = hosts()
    host.start()
    wait_state(host, "ENABLED")
    host.stop_component()
    wait_state(host, "DISABLED")
    assert json.loads((tmp_path / "components" / "scripted.one.json").read_text()) == {"enabled": False}

    after = hosts()
    after.start()
    wait_state(after, "DISABLED")
    assert after.opened == 0
    after.start_component()
    wait_state(after, "ENABLED")
    assert after.opened == 1


def test_stop_interrupts_the_pause_between_two_tries(hosts):
    host = hosts(*(DatabaseUnavailable("gone") for _ in range(50)))
    host.start()
    wait_state(host, "RETRYING")
    host.stop_component()
    wait_state(host, "DISABLED")


def test_component_that_wakes_itself_as_it_fails_still_pauses(hosts):
    """A stream that ends wakes its component, but is no reason to reconnect at once."""
    host = hosts()
    host.step = lambda: host.wake() or (_ for _ in ()).throw(DatabaseUnavailable("gone"))
    began = time.monotonic()
    host.start()
    wait_state(host, "RETRYING")
    threading.Event().wait(3 * RETRY_DELAY_MIN_S)
    opened, left_s = host.opened, time.monotonic() - began
    pauses, opened_max = Backoff(), 1
    while (left_s := left_s - pauses.next_s()) >= 0:
        opened_max += 1
    assert opened <= opened_max


def test_wake_ends_a_pause(hosts):
    reached = threading.Event()
    host = hosts(60.0, reached)
    host.start()
    wait_paused(host, left=1)
    host.wake()
    assert reached.wait(WAIT_S)


def test_reopen_opens_once_more_and_counts_no_error(hosts):
    host = hosts()
    host.start()
    wait_state(host, "ENABLED")
    host.reopen()
    for _ in range(int(WAIT_S / 0.005)):
        if host.opened == 2:
            break
        threading.Event().wait(0.005)
    wait_state(host, "ENABLED")
    assert (host.opened, host.closed) == (2, 1)
    assert host.status().errors_total == 0


class ChangingHost(ScriptedHost):
    """Records which topology it adopted, and whether it was open then."""

    taken: tuple[object, str, bool] | None = None

    def adopt(self, spec, fingerprint):
        self.taken = spec, fingerprint, self.opened > self.closed


class ChangingOpenHost(ChangingHost):
    adopts_open = True


def wait_problem(host: Host, *, is_there: bool) -> None:
    waiter = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if bool(host.status().problem) == is_there:
            return
        waiter.wait(0.005)
    pytest.fail(f"a problem: {not is_there}")


def wait_taken(host: ChangingHost, fingerprint: str) -> None:
    waiter = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if host.taken is not None and host.taken[1] == fingerprint:
            return
        waiter.wait(0.005)
    pytest.fail(f"{fingerprint} was not taken over")


@pytest.mark.parametrize(("kind", "opened"), [(ChangingHost, 2), (ChangingOpenHost, 1)])
def test_changed_topology_is_adopted_between_steps(tmp_path, kind, opened):
    host = kind(tmp_path, [])
    try:
        host.start()
        wait_state(host, "ENABLED")
        host.reconfigure("changed", "two")
        wait_taken(host, "two")
        assert host.taken == ("changed", "two", opened == 1)
        wait_state(host, "ENABLED")
        assert (host.opened, host.closed) == (opened, opened - 1)
    finally:
        host.end()


@pytest.mark.parametrize("kind", [ChangingHost, ChangingOpenHost])
def test_changed_topology_restarts_aborted_component_but_no_stopped_one(tmp_path, kind):
    host = kind(tmp_path, [LogGone("the slot is gone")])
    try:
        host.start()
        wait_state(host, "ABORTED")
        host.reconfigure("changed", "two")
        wait_taken(host, "two")
        wait_state(host, "ENABLED")
        host.stop_component()
        wait_state(host, "DISABLED")
        opened = host.opened
        host.reconfigure("changed", "three")
        wait_taken(host, "three")
        wait_state(host, "DISABLED")
        assert host.opened == opened
    finally:
        host.end()


class RefusingHost(ChangingHost):
    """Cannot adopt a changed topology while it has errors left."""

    refusals: list[Exception]
    tries = 0

    def adopt(self, spec, fingerprint):
        self.tries += 1
        if self.refusals:
            raise self.refusals.pop(0)
        super().adopt(spec, fingerprint)


class RefusingOpenHost(RefusingHost):
    adopts_open = True


@pytest.fixture(params=[RefusingHost, RefusingOpenHost])
def refusing(request, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("actors.hosting.host.Backoff.next_s", lambda _self: 0.01)
    host = request.param(tmp_path, [])
    host.refusals = []
    yield host
    host.end()


def test_topology_that_cannot_be_adopted_at_first_is_adopted_later(refusing):
    refusing.start()
    wait_state(refusing, "ENABLED")
    refusing.refusals = [OSError(errno.ENOSPC, "No space left on device") for _ in range(3)]
    refusing.reconfigure("changed", "two")
    wait_taken(refusing, "two")
    wait_state(refusing, "ENABLED")
    assert refusing.tries == 4
    assert refusing.status().errors_total == 3


def test_stopped_component_retries_adoption_and_stays_stopped(refusing):
    refusing.start()
    refusing.stop_component()
    wait_state(refusing, "DISABLED")
    refusing.refusals = [DatabaseUnavailable("gone"), DatabaseUnavailable("gone")]
    refusing.reconfigure("changed", "two")
    wait_taken(refusing, "two")
    wait_state(refusing, "DISABLED")


@pytest.mark.parametrize(
    "error", [DatabaseUnavailable("gone", hint="wait"), OSError(errno.EACCES, "Permission denied")]
)
def test_stopped_component_reports_why_it_cannot_adopt_a_topology(refusing, error):
    """`up` waits for it, and its state remains DISABLED."""
    refusing.start()
    refusing.stop_component()
    wait_state(refusing, "DISABLED")
    refusing.refusals = [error] * 1000
    refusing.reconfigure("changed", "two")
    wait_problem(refusing, is_there=True)
    status = refusing.status()
    assert (status.state, status.enabled) == ("DISABLED", False)
    assert status.problem.startswith("cannot adopt the changed topology: ")
    assert status.fix
    refusing.refusals = []
    wait_taken(refusing, "two")
    wait_problem(refusing, is_there=False)


def test_component_that_aborts_during_adoption_adopts_after_start(refusing):
    refusing.start()
    wait_state(refusing, "ENABLED")
    # A component that fails between two steps tries once more as it closes.
    refusing.refusals = [LogGone("the slot is gone", hint="instantiate again") for _ in range(1 + refusing.adopts_open)]
    refusing.reconfigure("changed", "two")
    wait_state(refusing, "ABORTED")
    assert refusing.status().last_error.message == "the slot is gone"
    refusing.start_component()
    wait_taken(refusing, "two")
    wait_state(refusing, "ENABLED")


def test_component_started_while_its_error_is_recorded_runs_again(tmp_path):
    host = StartedLate(tmp_path)
    host.start()
    try:
        assert host.stepped.wait(WAIT_S), host.status()
    finally:
        host.end()


def test_start_of_a_running_component_does_not_retry_a_later_error(hosts):
    stepped, again = threading.Event(), threading.Event()
    host = hosts(stepped, 60.0, again, 60.0, BugError("no"))
    host.start()
    assert stepped.wait(WAIT_S)
    wait_paused(host, left=3)
    host.start_component()
    assert again.wait(WAIT_S)
    wait_paused(host, left=1)
    host.wake()
    wait_state(host, "ABORTED")
    assert host.opened == 1


class Waiting(Host):
    """It waits in a user's function."""

    kind = "waiting"
    late = ""

    def step(self) -> float:
        return 60.0

    def late_call(self) -> str:
        return self.late


def test_function_that_exceeds_its_time_is_shown_and_unhealthy(tmp_path):
    host = Waiting("waiting:one", tmp_path)
    host.start()
    wait_state(host, "ENABLED")
    host.late = "own:mask (1) has not ended within 5 s, and waits at code/own.py, line 3, in mask"
    status = host.status()
    assert (status.state, status.detail) == ("PAUSED: WAITING FOR FUNCTION", host.late)
    (note,) = notes(Overview(topology="t", state="RUNNING", components=(status,)))
    assert (note.problem, note.is_stuck, "headrace up" in note.fix) == (host.late, True, True)
    assert not is_healthy(Overview(topology="t", state="RUNNING", components=(status,)))
    host.late = ""
    assert host.status().state == "ENABLED"
    host.end()
