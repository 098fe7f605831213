"""Every suite's setting: fixtures of `tests/fix_*.py`, and nothing left running when the session ends.

Import mode is importlib, so test modules may have equal names in different folders. Shared code is imported as
`tests.support.<module>`, fixtures come from `tests/fix_<resource>.py`, found by name: no list to keep.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `tests` is not installed
    sys.path.insert(0, str(ROOT))

from tests.support.processes import Process, end, left_over  # noqa: E402 - needs the line above
from tests.support.shared import by_what_they_share, end_what_is_no_longer_needed, note_last, unit_of  # noqa: E402 - the same

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]

# Every process that a test starts, directly or not, inherits it.
SESSION_VARIABLE = "HEADRACE_TEST_SESSION"
# A server that was told to stop may need a moment; Spark's JVMs are the slowest.
LEFT_OVER_GRACE_S = 45.0

# No deadline per example: numba compiles in the first one, and CI machines stall.
# Not `explain`: to say which lines only failures run, it traces, and CPython 3.11 can then stand for ever at the begin of a function, out of reach of signals.
_PHASES = tuple(phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain)
hypothesis.settings.register_profile("headrace", deadline=None, print_blob=True, phases=_PHASES)
hypothesis.settings.load_profile("headrace")

SESSION = pytest.StashKey[str]()
LEFT_OVER = pytest.StashKey[list[Process]]()


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of the processes among which pytest-xdist divides a session."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):  # a worker inherits the variable, and the session's own process looks after all of them
        config.stash[SESSION] = uuid.uuid4().hex
        os.environ[SESSION_VARIABLE] = config.stash[SESSION]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A script's background job ignores Ctrl-C, and so would every command that a test starts and interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_what_they_share(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` keeps files together that share something, too."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(ROOT / nodeid.partition("::")[0])

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    note_last(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    end_what_is_no_longer_needed(item)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session when a server outlives it; end what was left, so that the next one starts clean."""
    if _is_worker(session.config):
        return
    marker = f"{SESSION_VARIABLE}={session.config.stash[SESSION]}"
    deadline = time.monotonic() + LEFT_OVER_GRACE_S
    while (processes := left_over(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if processes:
        session.config.stash[LEFT_OVER] = processes
        end(processes)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    processes = config.stash.get(LEFT_OVER, [])
    if processes:
        terminalreporter.section("left running by this session (now ended)", red=True)
        for process in processes:
            terminalreporter.line(f"{process.pid} {process.command}")
