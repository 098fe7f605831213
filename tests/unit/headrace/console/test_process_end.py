"""The effect of a signal on a command that cleans up."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import app as cli
from headrace.console import process_end
from headrace.console.exit_codes import FAILURE
from headrace.console.process_end import TERMINATED, terminated_as_interrupt, uninterrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Signals as a shell leaves them for a command in the foreground, however the tests were started."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_signal_during_a_clean_up_takes_effect_after_it(number: signal.Signals):
    done = []

    def command() -> None:
        with terminated_as_interrupt():
            with uninterrupted():
                signal.raise_signal(number)
                signal.raise_signal(number)
                done.append("clean")
            done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        command()
    assert done == ["clean"]


def test_signal_after_a_clean_up_has_its_earlier_effect():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_error_of_the_clean_up_is_reported_when_no_signal_came():
    with pytest.raises(OSError, match="the disk"), uninterrupted():
        raise OSError("the disk")


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_signal_that_the_caller_ignores_stays_ignored(number: signal.Signals):
    """As in `nohup headrace chaos FILE &`: closing the terminal does not end it."""
    signal.signal(number, signal.SIG_IGN)
    with terminated_as_interrupt(), uninterrupted():
        signal.raise_signal(number)
    assert signal.getsignal(number) == signal.SIG_IGN


@pytest.mark.parametrize("is_in_a_call", [False, True], ids=["between calls", "while it waits for an actor"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGHUP, 129)])
def test_terminated_command_keeps_its_exit_code_although_ray_changes_it(
    number: signal.Signals,
    code: int,
    is_in_a_call: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    def verb(**_: object) -> None:
        try:
            signal.raise_signal(number)
        except SystemExit as error:
            raise SystemExit(1 if is_in_a_call else error.code) from None

    monkeypatch.setattr(process_end, "_ended_with", None)
    monkeypatch.setattr(cli, "app", verb)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code


def test_program_that_was_not_terminated_exits_with_its_own_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_end, "_ended_with", None)
    monkeypatch.setattr(cli, "app", lambda **_: sys.exit(7))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 7


_VERB = """
import sys, time
from headrace.cli import app as cli
from headrace.console.output import Output
from headrace.console.process_end import goes_on
from headrace.console.progress import live_lines

def verb(**_):
    output = Output()
    with live_lines(output, "up") as show, goes_on(output, "it goes on"):
        show("begun")
        output.say("begun")
        while True:
            time.sleep(0.01)
            if not {signalled}:
                output.say("more")

cli.app = verb
if not {signalled}:
    import signal
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.argv = ["headrace"]
cli.main()
"""


@pytest.mark.parametrize(("is_signalled", "code"), [(True, 129), (False, FAILURE)], ids=["with its signal", "without"])
def test_verb_whose_terminal_was_closed_ends_without_a_defect(is_signalled: bool, code: int, tmp_path: Path):
    """Nobody can read its last output: that error was once reported as a defect in a file, with exit code 1."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.environ["TMPDIR"] = str(tmp_path)
            os.execv(sys.executable, [sys.executable, "-c", _VERB.format(signalled=is_signalled)])
        finally:
            os._exit(1)
    said = b""
    while b"begun" not in said:
        said += os.read(terminal, 4096)
    time.sleep(0.1)
    os.close(terminal)
    deadline = time.monotonic() + 60.0
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (ended[0], os.waitstatus_to_exitcode(ended[1]), list(tmp_path.iterdir())) == (pid, code, [])
