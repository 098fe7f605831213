"""Threads that handlers leave running: those that cost a process, those that are an error, and those not counted."""

from __future__ import annotations

import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

import pytest

from spark_apply.handlers import process_bounds
from tests.support.apply.handlers import Handled, inserts, only, row, rules_of, through

THREADS = (
    "import threading\ndef run(lcr, session):\n    import own_gate  # that of this test: the module is loaded"
    " once\n    lcr.execute(True)\n    threading.Thread(target=own_gate.wait, daemon=True).start()\n"
)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The event that the threads of `THREADS` wait for."""
    gate, module = threading.Event(), types.ModuleType("own_gate")
    module.wait = lambda: gate.wait(60)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_gate", module)
    yield gate
    gate.set()


@pytest.mark.long
def test_handler_leaving_a_thread_per_row_costs_processes_but_no_row(gate: threading.Event) -> None:
    at, told, scn = Handled(rules_of(THREADS, dml=["run"])), list[str](), 100
    keys, running, most = range(1, 401), threading.active_count(), 0
    while len(at.values()) < len(keys) and len(told) < 20 and not at.errors():
        done = len(at.values())  # they are committed in order
        at.scn = scn + 10 * done
        try:
            # The coordinator sets it after the first death.
            at.apply(*map(inserts, keys[done:]), is_careful=bool(told))
        except process_bounds.HandlersGrew as error:
            told.append(f"{error.message} {error.hint}")
            most = max(most, threading.active_count() - running)
            gate.set()  # its process is gone
            until(lambda: threading.active_count() <= running)
            gate.clear()
            at.server = at.new_server()
    assert (at.errors(), at.values()) == ((), dict.fromkeys(keys, "a"))
    assert at.store.handler_calls == {}
    assert 4 <= len(told) <= 8
    assert most <= process_bounds.TRANSACTION_THREADS_MAX
    assert all(
        "own:run (handlers/own.py, line 2, in run) has left" in each and "must end the threads that it starts" in each
        for each in told
    )
    assert (
        "has left 65 threads running in the apply server's process, and 64 are allowed: another process takes its place"
        in told[-1]
    )


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("gate")
def test_only_the_transaction_that_leaves_too_many_threads_is_queued() -> None:
    at = Handled(rules_of(THREADS, dml=["run"]))
    large = [row for key in range(10, 210) for row in inserts(key)]
    with pytest.raises(process_bounds.HandlersGrew):
        at.apply(inserts(1), large, inserts(2), is_careful=True)
    # Slightly over the limit: after the attempt its rows were applied one by one.
    assert re.search(
        r"own:run \(handlers/own\.py, line 2, in run\) left 1[23]\d threads running, 1[23]\d of them since its"
        r" transaction began",
        only(at),
    )
    assert at.values() == {1: "a"}
    at.server, at.scn = at.new_server(), 120
    at.apply(inserts(2))
    assert (at.values(), len(at.errors())) == ({1: "a", 2: "a"}, 1)


def test_ended_module_and_process_threads_are_not_counted(gate: threading.Event) -> None:
    own = [threading.Thread(target=gate.wait, args=(60,), daemon=True) for _ in range(40)]
    text = (
        "import own_gate, threading\nfor _ in range(40):\n    threading.Thread(target=own_gate.wait,"
        " daemon=True).start()\n"
        "def run(lcr, session):\n    lcr.execute(True)\n    thread = threading.Thread(target=print)\n   "
        " thread.start()\n    thread.join()\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1))
    for thread in own:
        thread.start()
    keys = range(1, 101)
    at.apply(*map(inserts, keys[1:]))
    assert (at.values(), at.errors()) == (dict.fromkeys(keys, "a"), ())


@pytest.mark.usefixtures("gate")
def test_threads_started_by_a_handlers_thread_count_for_the_handler() -> None:
    text = (
        "import own_gate, threading\ndef many():\n    for _ in range(70):\n       "
        " threading.Thread(target=own_gate.wait, daemon=True).start()\n"
        "def run(commit_scn, session):\n    thread = threading.Thread(target=many)\n    thread.start()\n   "
        " thread.join()\n"
    )
    at = Handled(rules_of(text, precommit="run"))
    with pytest.raises(
        process_bounds.HandlersGrew, match=r"own:run \(handlers/own\.py, line 5, in run\) has left 70 threads"
    ):
        at.apply(inserts(1))
    assert at.values() == {1: "a"}


@pytest.mark.usefixtures("gate")
def test_failed_execution_with_threads_is_reported_before_the_replacement() -> None:
    """Otherwise the coordinator would have the next process execute it, and that process would end the same way."""
    at = Handled(rules_of(), rows=[row(70, "theirs")])
    at.apply([found for key in range(1, 71) for found in inserts(key)])
    (error,) = at.errors()
    at.rules = rules_of(THREADS, dml=["run"])
    at.server = at.new_server()
    failure = at.execute_error(error.number).failure
    assert failure is not None
    assert failure.conflict_type == "insert_exists"
    with pytest.raises(process_bounds.HandlersGrew):
        at.step()


@pytest.mark.usefixtures("gate")
def test_threads_left_by_successive_executions_are_counted_together() -> None:
    at = Handled(rules_of(), rows=[row(key, "theirs") for key in range(1, 6)])
    mend = through(
        "import own_gate, threading\ndef mend(lcr, error, session):\n    for _ in range(20):\n       "
        " threading.Thread(target=own_gate.wait, daemon=True).start()\n"
    )
    at.apply(*map(inserts, range(1, 6)))
    errors = at.errors()
    for error in errors[:4]:
        assert at.execute_error(error.number, mend).failure is None
    with pytest.raises(
        process_bounds.HandlersGrew, match=r"own:mend \(handlers/own\.py, line 2, in mend\) has left 80 threads running"
    ):
        at.execute_error(errors[4].number, mend)
    assert at.errors() == errors[4:]
