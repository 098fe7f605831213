"""Settings of every suite: fixtures of `tests/fix_*.py`, and a check that nothing runs when the session ends.

Import mode is importlib, so test modules may have equal names in different folders. Shared code is imported as
`tests.support.<topic>.<module>`. Fixtures come from `tests/fix_<resource>.py`, found by name, so there is no list to
maintain.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `tests` is not an installed package
    sys.path.insert(0, str(ROOT))

from tests.support.session.collected import note_collected  # noqa: E402 - needs the line above
from tests.support.session.processes import Process, end, left_over  # noqa: E402 - the same
from tests.support.session.reporting import REPORT, Reporting  # noqa: E402 - the same
from tests.support.session.seeds import draw_session_seed, is_soak, session_seed  # noqa: E402 - the same
from tests.support.session.shared import FAILED, end_all, end_unit, group, sort_by_unit  # noqa: E402 - the same

pytest_plugins = ["pytester", *(f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py")))]

# Every process that a test starts, directly or not, inherits this variable.
SESSION_VARIABLE = "HEADRACE_TEST_SESSION"
# A stopping server may need a moment; Spark's JVMs are the slowest.
LEFT_OVER_GRACE_S = 45.0

# No deadline per example: numba compiles in the first one, and CI machines stall.
# Sixty examples by default: `make soak` has eight times as many, new ones each time.
# Without `explain`: it traces to find lines that only failures run, and then CPython 3.11 can hang at the start of a
# function, out of reach of signals.
_PHASES = tuple(phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain)
hypothesis.settings.register_profile(
    "test", deadline=None, print_blob=True, phases=_PHASES, derandomize=True, max_examples=60
)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, phases=_PHASES, max_examples=500)

SESSION = pytest.StashKey[str]()
LEFT_OVER = pytest.StashKey[list[Process]]()


def _is_worker(config: pytest.Config) -> bool:
    """Return whether this is one of the processes among which pytest-xdist divides a session."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):  # a worker inherits the variables, and the session's main process checks all of them
        config.stash[SESSION] = uuid.uuid4().hex
        os.environ[SESSION_VARIABLE] = config.stash[SESSION]
        draw_session_seed()
        if folder := os.environ.get(REPORT):
            config.pluginmanager.register(Reporting(Path(folder)))
    hypothesis.settings.load_profile("soak" if is_soak() else "test")
    if is_soak():
        hypothesis.core.global_force_seed = session_seed()  # type: ignore[assignment]  # declared by its None; as its option --hypothesis-seed does
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A script's background job ignores Ctrl-C, and so would every command that a test starts and interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"seeds: HEADRACE_TEST_SEED={session_seed()}" + ("" if is_soak() else ", fixed")


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """Restore the umask, which code in this process may close, as every process of Headrace does."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.hookimpl(tryfirst=True)  # before deselection: each worker has the same order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    note_collected(config, items)
    sort_by_unit(items)
    group(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that pytest-xdist has recognised the groups, and keep the collected tests out of garbage collections.

    Without groups it would distribute the tests of a topology one by one, and start the topology twice. A full garbage
    collection takes 0.3 s with ten thousand collected tests, and no time worth mentioning without them.
    """
    gc.collect()
    gc.freeze()
    if _is_worker(session.config) and session.config.getoption("loadgroup"):
        assert all("@" in item.nodeid for item in session.items), (
            "pytest-xdist has not taken the groups of tests: see its version and pytest's"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        yield
    finally:
        end_unit(item, nextitem)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session when a server outlives it, and end leftovers, so that the next session starts clean."""
    end_all(session.config)  # Ctrl-C skips the end of a unit
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
