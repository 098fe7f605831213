"""Handlers that hang, end the process, use threads or hide errors, and servers dying in them: no loss, no duplicates.

Longer than 500 lines: one place lists the possible faults of a handler, so that a missing case is noticed.
"""

from __future__ import annotations

import gc
import importlib
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.base.errors import ConfigError, DatabaseUnavailable, DataError, HandlerError, Retry
from headrace.databases.memory.destination import MemorySession
from headrace.databases.ports import SqlResult
from headrace.rules.conflict_handlers import ConflictHandler
from headrace.rules.user_code import time_limit as time_limits
from spark_apply.conversation.groups import GroupResult, GroupRetry
from spark_apply.handlers import process_bounds
from spark_apply.handlers.crashes import CRASHES_MAX
from spark_apply.handlers.loaded import Handlers
from spark_apply.sets import resolution
from tests.support.apply.handlers import Handled, inserts, only, row, rules_of, updates

LOG = "    session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', lcr.get_value('new', 'id').decoded, 'x')\n"


HOURS_S = 3600.0  # a call's time limit that no slow machine reaches


def set_timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the timers that calls set from now on; none of them rings."""
    timers: list[float] = []

    def never_rings(_: int, seconds: float) -> tuple[float, float]:
        timers.append(seconds)
        return 0.0, 0.0

    monkeypatch.setattr(
        time_limits,
        "_signal",
        types.SimpleNamespace(**vars(importlib.import_module("_signal")) | {"setitimer": never_rings}),
    )
    return timers


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module that a test's handlers import as `own_state`: `hurry()` soon ends the time of this call only."""
    module = types.ModuleType("own_state")
    module.calls = 0  # type: ignore[attr-defined]
    module.hurry = lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)  # type: ignore[attr-defined]  # it waits by then
    monkeypatch.setitem(sys.modules, "own_state", module)
    return module


@pytest.mark.parametrize("wait", ["import time\n    time.sleep(60)", "while True:\n        pass"])
def test_hanging_handler_is_interrupted_and_reported(state: types.ModuleType, wait: str) -> None:
    text = (
        "import own_state\ndef run(lcr, session):\n    lcr.execute(True)\n"
        "    if lcr.get_value('new', 'id').decoded == 1:\n        own_state.hurry()\n       "
        f" {wait.replace(chr(10), chr(10) + '    ')}\n"
    )
    at = Handled(rules_of(text, dml=["run"], timeout_s=HOURS_S))
    began = time.monotonic()
    at.apply(inserts(1), inserts(2))
    assert time.monotonic() - began < 50
    assert "did not end within 3600 s; it was at handlers/own.py, line" in only(at)
    assert at.values() == {2: "a"}


@pytest.mark.parametrize("late", [1, 3, 5])
def test_hanging_handler_gets_its_time_twice_in_any_group(state: types.ModuleType, late: int) -> None:
    text = (
        "import time, own_state\ndef run(lcr, session):\n    lcr.execute(True)\n"
        f"    if lcr.get_value('new', 'id').decoded == {late}:\n        own_state.calls += 1\n"
        "        own_state.hurry()\n        time.sleep(60)\n"
    )
    at = Handled(rules_of(text, dml=["run"], timeout_s=HOURS_S))
    at.apply(*map(inserts, range(1, 6)))
    assert "did not end within 3600 s" in only(at)
    assert at.values() == {number: "a" for number in range(1, 6) if number != late}
    assert state.calls == 2


@pytest.mark.parametrize("late", [1, 3, 5])
def test_handler_with_a_slow_statement_gets_its_time_twice(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The alarm rings only while the statement runs, which defers the interruption. At another time it could meet the
    # statement's end.
    set_timers(monkeypatch)
    at = Handled(rules_of(f"def run(lcr, session):\n    lcr.execute(True)\n{LOG}", dml=["run"], timeout_s=HOURS_S))
    run_sql, called = MemorySession.run_sql, []

    def slow(self: MemorySession, statements: Any, *, timeout_s: float) -> object:
        if statements[0].values[0] == late:
            called.append(1)
            signal.raise_signal(signal.SIGALRM)  # its time is over; the other calls have their own time
            self._transaction.fail()
            raise DataError("it took too long", sqlstate="57014")
        return run_sql(self, statements, timeout_s=timeout_s)

    monkeypatch.setattr(MemorySession, "run_sql", slow)
    at.apply(*map(inserts, range(1, 6)))
    assert "it took too long" in only(at)
    assert at.values() == {number: "a" for number in range(1, 6) if number != late}
    assert len(called) == 2


def test_handler_that_catches_the_interruption_still_fails() -> None:
    text = (
        "import time\ndef run(lcr, session):\n    try:\n        time.sleep(60)\n    except BaseException:\n       "
        " pass\n"
    )
    at = Handled(rules_of(text, dml=["run"], timeout_s=0.2))
    at.apply(inserts(1))
    assert "did not end within 0.2 s" in only(at)


def test_python_code_is_interrupted_in_another_thread() -> None:
    rules = rules_of("def run(lcr, session):\n    while True:\n        pass\n", dml=["run"], timeout_s=0.2)
    found: list[str] = []

    def call() -> None:
        try:
            Handlers(rules).call(rules.dml[0].function, None, None, holds=lambda: False)
        except HandlerError as error:
            found.append(error.message)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert "did not end within 0.2 s" in found[0]


def test_a_handler_that_ends_the_process_in_python_is_an_error() -> None:
    at = Handled(rules_of("import sys\ndef run(lcr, session):\n    sys.exit(1)\n", dml=["run"]))
    at.apply(inserts(1))
    assert "SystemExit: 1" in only(at)


@pytest.mark.parametrize("place", ["dml", "precommit"])
def test_a_handler_that_raises_keyboard_interrupt_is_an_error(place: str) -> None:
    text = f"def run({'lcr, session' if place == 'dml' else 'commit_scn, session'}):\n    raise KeyboardInterrupt\n"
    at = Handled(rules_of(text, **({"dml": ["run"]} if place == "dml" else {"precommit": "run"})))
    at.apply(inserts(1))
    assert "line 2, in run: KeyboardInterrupt" in only(at)


def test_an_operator_can_still_interrupt_a_handler() -> None:
    handlers = Handlers(
        rules_of("import signal\ndef run(lcr, session):\n    signal.raise_signal(signal.SIGINT)\n", dml=["run"])
    )
    with pytest.raises(KeyboardInterrupt):
        handlers.call(handlers.rules.dml[0].function, None, None, holds=lambda: False)


def test_session_is_unusable_in_another_thread_and_after_the_call() -> None:
    text = (
        "import threading\nkept = []\ndef run(lcr, session):\n    found = []\n    def work():\n        try:\n          "
        "  lcr.execute(True)\n"
        "        except Exception as error:\n            found.append(error)\n    thread ="
        " threading.Thread(target=work)\n    thread.start()\n    thread.join()\n    raise found[0]\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1))
    assert "used its session in another thread" in only(at)
    at = Handled(
        rules_of("kept = []\ndef run(lcr, session):\n    kept.append(lcr)\n    kept[0].execute(True)\n", dml=["run"])
    )
    at.apply(inserts(1))
    at.apply(inserts(2))
    assert "only be used inside the handler's call" in only(at)


@pytest.mark.parametrize(
    "use", ["kept[0].execute(True)", "kept[0].set_value('new', 'a', 'z')", "kept[0].get_value('new', 'a')"]
)
def test_kept_lcr_is_unusable_in_a_later_call_of_its_transaction(use: str) -> None:
    text = (
        "kept = []\ndef run(lcr, session):\n    kept.append(lcr)\n    if lcr.get_value('new', 'id').decoded =="
        f" 2:\n        {use}\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply([*inserts(1), *inserts(2)])
    assert "only be used inside the handler's call" in only(at)
    assert at.values() == {}


def test_call_over_its_memory_limit_raises_an_error_with_its_line() -> None:
    text = (
        "def run(lcr, session):\n    lcr.execute(True)\n    if lcr.get_value('new', 'id').decoded == 1:\n       "
        " bytearray(5 << 30)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    at.apply(inserts(1), inserts(2))
    assert "failed at handlers/own.py, line 4, in run: MemoryError" in only(at)
    assert at.values() == {2: "a"}
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.long
def test_memory_of_the_process_does_not_count_against_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_bounds, "CALL_BYTES_MAX", 512 << 20)
    text = (
        "def run(lcr, session):\n    lcr.execute(True)\n    if lcr.get_value('new', 'id').decoded == 2:\n       "
        " bytearray(16 << 20)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1))
    held = bytearray(1 << 30)  # as groups of a slow destination would; no page of it is touched
    at.apply(inserts(2))
    assert (at.errors(), at.values()) == ((), {1: "a", 2: "a"})
    del held


def test_leaking_handler_ends_its_process_between_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_bounds, "GROWTH_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(process_bounds, "_LOOK_CALLS", 1)
    gc.collect()  # memory freed between the two measurements would make the process shrink
    at = Handled(
        rules_of(
            "kept = []\ndef run(lcr, session):\n    lcr.execute(True)\n    kept.append(b'x' * (128 << 20))\n",
            dml=["run"],
        )
    )
    with pytest.raises(
        process_bounds.HandlersGrew,
        match=r"has grown by .* MiB since its handlers were loaded \(own:run \(handlers/own\.py, line 2, in run\)\)",
    ) as told:
        at.apply(inserts(1), inserts(2))
    assert told.value.retry is Retry.TIMED
    assert "keeps what it should forget" in told.value.hint
    at.server = at.new_server()
    assert at.values() == {1: "a", 2: "a"}  # their commit came before


def test_printing_handler_applies_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    at = Handled(rules_of("def run(lcr, session):\n    print(lcr)\n    lcr.execute(True)\n", dml=["run"]))
    at.apply(inserts(1))
    assert at.values() == {1: "a"}
    assert "INSERT public.c" in capsys.readouterr().out


def test_handler_cannot_hide_a_lost_database_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        f"def run(lcr, session):\n    try:\n    {LOG}    except BaseException:\n        pass\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    run_sql, calls = MemorySession.run_sql, []

    def broken(self: MemorySession, statements: object, *, timeout_s: float) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise DatabaseUnavailable("gone")
        return run_sql(self, statements, timeout_s=timeout_s)

    monkeypatch.setattr(MemorySession, "run_sql", broken)
    result = at.apply(inserts(1), inserts(2))
    assert isinstance(result, GroupResult)
    assert (at.values(), at.values("log"), at.errors()) == ({1: "a", 2: "a"}, {1: "x", 2: "x"}, ())
    assert at.store.commit_count == 1


ENDS = "SELECT pg_terminate_backend(pg_backend_pid())"


def ends_its_session(session: MemorySession, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    """The effect of `ENDS` in memory."""
    session.close()
    raise DatabaseUnavailable("terminating connection due to administrator command", sqlstate="57P01")


QUITS = (
    "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded == 3:\n       "
    f" session.execute({ENDS!r})\n    lcr.execute(True)\n"
)


@pytest.mark.parametrize("hides", [False, True])
def test_only_the_transaction_of_a_session_ending_handler_is_queued(hides: bool) -> None:
    text = (
        QUITS
        if not hides
        else (
            "def run(lcr, session):\n    try:\n        if lcr.get_value('new', 'id').decoded == 3:\n           "
            f" session.execute({ENDS!r})\n    except BaseException:\n        pass\n    lcr.execute(True)\n"
        )
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.store.sql[ENDS] = ends_its_session
    result = at.apply(*map(inserts, range(1, 6)))
    assert isinstance(result, GroupResult)
    assert at.values() == dict.fromkeys((1, 2, 4, 5), "a")
    assert only(at).startswith("own:run (")
    assert (
        f"is not called again: its session at the destination ended {1 + CRASHES_MAX} times while it ran for this"
        " transaction" in only(at)
    )


def test_session_ending_handler_in_a_streamed_transaction_is_bounded() -> None:
    at = Handled(rules_of(QUITS, dml=["run"]))
    at.store.sql[ENDS] = ends_its_session
    for _ in range(1 + CRASHES_MAX):
        result = at.apply_large(*inserts(2), *inserts(3))
        assert isinstance(result, GroupRetry)
        assert result.failure is None  # it is to be sent again
        at.scn -= 10
    result = at.apply_large(*inserts(2), *inserts(3))
    assert isinstance(result, GroupRetry)
    assert result.failure is not None
    assert "is not called again: its session" in result.failure.message
    assert at.values() == {}


def test_error_with_a_session_ending_handler_can_be_executed_repeatedly() -> None:
    at = Handled(rules_of(QUITS, dml=["run"]))
    calls: list[int] = []

    def ends(session: MemorySession, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        calls.append(1)
        return ends_its_session(session, values)

    at.store.sql[ENDS] = ends
    at.apply(inserts(3))
    (error,) = at.errors()
    for _ in range(2):
        calls.clear()
        failure = at.execute_error(error.number).failure
        assert failure is not None
        assert "is not called again: its session" in failure.message
        assert len(calls) == 1 + CRASHES_MAX
    at.store.sql[ENDS] = lambda session, values: ()
    assert at.execute_error(error.number).failure is None
    assert (at.values(), at.errors()) == ({3: "a"}, ())


def test_occasional_session_ends_are_not_blamed_on_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network, a pooler or an administrator ends them, once each and in different transactions."""
    at = Handled(rules_of(f"def run(lcr, session):\n    lcr.execute(True)\n{LOG}", dml=["run"]))
    run_sql, broken = MemorySession.run_sql, set[int]()

    def breaks_once(self: MemorySession, statements: Any, *, timeout_s: float) -> object:
        key = statements[0].values[0]
        if key not in broken:
            broken.add(key)
            self.close()
            raise DatabaseUnavailable("gone")
        return run_sql(self, statements, timeout_s=timeout_s)

    monkeypatch.setattr(MemorySession, "run_sql", breaks_once)
    keys = range(1, 3 + 2 * CRASHES_MAX)
    assert isinstance(at.apply(*map(inserts, keys)), GroupResult)
    assert (at.values(), at.errors()) == (dict.fromkeys(keys, "a"), ())
    assert len(broken) == len(keys)


@pytest.mark.parametrize("committed", [False, True])
def test_commit_with_a_lost_answer_is_made_once(committed: bool) -> None:
    at = Handled(rules_of(f"def run(lcr, session):\n    lcr.execute(True)\n{LOG}", dml=["run"]))
    at.store.lose_next_commit_answer(committed=committed)
    at.apply(inserts(1), inserts(2))
    assert (at.values(), at.values("log"), at.store.commit_count) == ({1: "a", 2: "a"}, {1: "x", 2: "x"}, 1)


def test_server_that_dies_in_a_handler_commits_nothing() -> None:
    text = (
        f"import own_state\ndef run(lcr, session):\n    lcr.execute(True)\n{LOG}    own_state.calls += 1\n    if"
        " own_state.calls == 2:\n        import signal; signal.raise_signal(signal.SIGINT)\n"
    )
    state = types.ModuleType("own_state")
    state.calls = 0  # type: ignore[attr-defined]
    sys.modules["own_state"] = state
    try:
        at = Handled(rules_of(text, dml=["run"]))
        with pytest.raises(KeyboardInterrupt):
            at.apply(inserts(1), inserts(2))
        assert at.values("log") == {1: "x", 2: "x"}  # rows of its uncommitted transaction
        # Its process is gone; the next process ends its session.
        at.server = at.new_server()
        assert (at.values(), at.values("log")) == ({}, {})
        at.scn = 100
        at.apply(inserts(1), inserts(2))
        assert (at.values(), at.values("log"), at.store.commit_count) == ({1: "a", 2: "a"}, {1: "x", 2: "x"}, 1)
    finally:
        del sys.modules["own_state"]


def lives_until_it_ends(at: Handled, *found: list[tuple[str, Any]], large: bool = False) -> int:
    """Apply it again after each death of the process in a handler; return the number of deaths.

    The coordinator sets `is_careful` after the first death.
    """
    deaths, scn, whole = 0, at.scn, found
    while deaths < 20:
        done = len(at.values())  # they are committed in order
        at.scn, found = scn + 10 * done, whole[done:]
        try:
            result = (
                at.apply_large(*found[0], is_careful=deaths > 0) if large else at.apply(*found, is_careful=deaths > 0)
            )
        except (
            KeyboardInterrupt
        ):  # stands for os._exit, a segmentation fault, the out-of-memory killer: nothing of the process is left
            deaths += 1
            at.server = at.new_server()
        else:
            assert isinstance(result, GroupRetry if large else GroupResult)
            if large:
                assert isinstance(result, GroupRetry)
                assert result.failure is not None
                assert "run" in result.failure.message
            return deaths
    raise AssertionError("no end")


DIES = (
    "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded == 3:\n        import signal;"
    " signal.raise_signal(signal.SIGINT)\n    lcr.execute(True)\n"
)


def test_only_the_transaction_of_a_process_ending_handler_is_queued() -> None:
    at = Handled(rules_of(DIES, dml=["run"]))
    assert lives_until_it_ends(at, *map(inserts, range(1, 6))) == 1 + CRASHES_MAX
    assert at.values() == dict.fromkeys((1, 2, 4, 5), "a")
    assert only(at).startswith("own:run (")
    assert f"is not called again: {CRASHES_MAX} processes ended while it ran for this transaction" in only(at)
    assert at.store.handler_calls == {}


def test_corrected_handler_is_called_for_its_predecessors_error() -> None:
    at = Handled(rules_of(DIES, dml=["run"]))
    lives_until_it_ends(at, inserts(3))
    (error,) = at.errors()
    at.rules = rules_of("def run(lcr, session):\n    lcr.execute(True)\n", dml=["run"])
    at.server = at.new_server()
    assert at.execute_error(error.number).failure is None
    assert (at.values(), at.errors()) == ({3: "a"}, ())


def test_process_ending_handler_in_a_streamed_transaction_is_bounded() -> None:
    at = Handled(rules_of(DIES, dml=["run"]))
    assert lives_until_it_ends(at, [*inserts(2), *inserts(3)], large=True) == 1 + CRASHES_MAX
    assert at.values() == {}


def test_process_ending_precommit_handler_is_bounded() -> None:
    at = Handled(
        rules_of(
            "def run(commit_scn, session):\n    if commit_scn == 110:\n        import signal;"
            " signal.raise_signal(signal.SIGINT)\n",
            precommit="run",
        )
    )
    assert lives_until_it_ends(at, inserts(1), inserts(2), inserts(3)) == 1 + CRASHES_MAX
    assert at.values() == {1: "a", 3: "a"}
    assert "own:run" in only(at)


def test_server_deaths_are_not_blamed_on_a_sound_handler() -> None:
    at = Handled(rules_of(f"def run(lcr, session):\n    lcr.execute(True)\n{LOG}", dml=["run"]))
    for number in range(1, 1 + 2 * CRASHES_MAX):
        at.apply(inserts(number), is_careful=True)
    assert at.values() == dict.fromkeys(range(1, 1 + 2 * CRASHES_MAX), "a")
    assert at.store.handler_calls == {}


@pytest.mark.parametrize("has_handler", [False, True])
def test_conflict_of_a_server_that_died_resolving_it_is_resolved_once(
    monkeypatch: pytest.MonkeyPatch,
    has_handler: bool,
) -> None:
    fired: list[str] = []

    def dies(name: str) -> None:
        fired.append(name)
        if name == "apply.conflict" and fired.count(name) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(resolution, "failpoint", dies)
    rules = rules_of("def run(lcr, session):\n    lcr.execute(True)\n", dml=["run"]) if has_handler else rules_of()
    keep = ConflictHandler(owner="public", name="c", method="maximum", columns=("a", "t"), resolution_column="t")
    at = Handled(rules, rows=[row(1, "theirs", 5)], conflicts=[keep])
    with pytest.raises(KeyboardInterrupt):
        at.apply(updates(1, "before", "ours", times=(1, 9)))
    at.server = at.new_server()
    assert (at.values(), at.history()) == ({1: "theirs"}, ())
    at.scn = 100
    at.apply(updates(1, "before", "ours", times=(1, 9)), is_careful=True)
    assert fired.count("apply.conflict") >= 2
    assert (at.values(), len(at.history()), at.errors()) == ({1: "ours"}, 1, ())


def test_refused_statement_keeps_the_handlers_other_work() -> None:
    text = (
        "def run(lcr, session):\n    try:\n        session.execute('COMMIT')\n    except Exception:\n       "
        f" pass\n    lcr.execute(True)\n{LOG}"
    )
    at = Handled(rules_of(text, dml=["run"]), rows=[row(9)])
    at.apply(inserts(1))
    assert (at.values(), at.values("log"), at.store.commit_count) == ({9: "a", 1: "a"}, {1: "x"}, 1)


def test_server_with_code_of_another_version_does_not_start() -> None:
    rules = rules_of("def run(lcr): ...\n", dml=["run"])
    with pytest.raises(ConfigError, match="cannot be called with"):
        Handlers(rules)


def test_a_time_limit_inside_sql_of_an_attempt_waits_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Handled(rules_of(f"def run(lcr, session):\n    lcr.execute(True)\n{LOG}", dml=["run"], timeout_s=HOURS_S))
    run_sql, ended, hours = MemorySession.run_sql, [], list[float]()

    def slow(self: MemorySession, statements: object, *, timeout_s: float) -> object:
        hours.append(2 * HOURS_S)
        signal.raise_signal(signal.SIGALRM)  # its time ends while the statement runs
        ended.append(1)
        return run_sql(self, statements, timeout_s=timeout_s)

    set_timers(monkeypatch)
    monkeypatch.setattr(process_bounds, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + sum(hours)))
    monkeypatch.setattr(MemorySession, "run_sql", slow)
    at.apply(inserts(1))
    assert len(ended) == 2  # the attempt, and one by one
    assert "did not end within 3600 s" in only(at)


def test_handler_with_endless_queries_is_ended_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It spends nearly all of its time waiting for the database, where it must not be interrupted."""
    text = (
        "def run(lcr, session):\n    while not session.execute('SELECT a FROM public.log WHERE id = $1', 77):\n   "
        "     pass\n"
    )
    at = Handled(rules_of(text, dml=["run"], timeout_s=0.1))
    ended, timers = list[int](), set_timers(monkeypatch)  # no signal arrives between two statements

    def slow(self: MemorySession, statements: Sequence[object], *, timeout_s: float) -> tuple[SqlResult, ...]:
        assert len(ended) < 20, "it runs forever"
        time.sleep(0.3)
        ended.append(1)
        return tuple(SqlResult(rows=(), row_count=0) for _ in statements)

    monkeypatch.setattr(MemorySession, "run_sql", slow)
    at.apply(inserts(1))
    assert len(ended) == 2  # the attempt, and alone
    assert "did not end within 0.1 s; it was at handlers/own.py, line 2, in run" in only(at)
    assert timers


STUBBORN = (
    "def run(lcr, session):\n    import own_state\n    try:\n        while True:\n            pass\n"
    "    except BaseException:\n        own_state.caught.set()\n        own_state.going.wait(60)\n"
)


@pytest.mark.parametrize("waits", ["no", "always", "until it is interrupted"])
def test_handler_that_continues_after_its_time_ends_its_process(waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.ModuleType("own_state")
    state.going, state.caught = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_state", state)
    rules = rules_of(STUBBORN, dml=["run"], timeout_s=0.2)
    handlers = Handlers(rules)
    found: list[str] = []

    def holds() -> bool:
        return waits == "always" or (waits == "until it is interrupted" and state.caught.is_set())

    def call() -> None:
        try:
            handlers.call(rules.dml[0].function, None, None, holds=holds)
        except HandlerError as error:
            found.append(error.message)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert waits == "always" or state.caught.wait(30)
        handlers.bounds.stuck(time.monotonic())  # it may still be about to end
        if waits == "always":
            for later in range(0, 100, 5):
                handlers.bounds.stuck(time.monotonic() + later)
        else:
            told = (
                r"own:run .* has not ended within 0.2 s, and goes on at handlers/own.py, line ., in run although"
                r" it was interrupted"
            )
            with pytest.raises(process_bounds.HandlersGrew, match=told):
                handlers.bounds.stuck(time.monotonic() + process_bounds.VAIN_S + 1)
    finally:
        state.going.set()
        if waits == "always":
            waits = "no"
        thread.join(30)
    handlers.bounds.stuck(time.monotonic() + 1000)  # no call is running
    assert "did not end within 0.2 s" in found[0]


@pytest.mark.parametrize("large", [False, True])
def test_open_savepoint_of_a_handler_is_its_error(large: bool) -> None:
    text = (
        "kept = []\ndef run(lcr, session):\n    kept.append(session.savepoint())\n    kept[-1].__enter__()\n   "
        " lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    (at.apply_large if large else at.apply)(*(inserts(1) if large else [inserts(1)]))
    if large:
        at.server.step(at.now)
    else:
        assert "left a savepoint open" in only(at)
    assert at.values() == {}


def test_savepoint_of_an_earlier_call_undoes_nothing_in_a_later_call() -> None:
    text = (
        "kept = []\ndef run(lcr, session):\n    lcr.execute(True)\n    if kept:\n        kept.clear()\n    elif"
        " lcr.get_value('new', 'id').decoded == 1:\n        kept.append(session.savepoint())\n       "
        " kept[0].__enter__()\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1), inserts(2))
    at.apply(inserts(3))
    assert {2, 3} <= set(at.values())


CROSSED = """def run(lcr, session):
    first, second, third, fourth = (session.savepoint() for _ in range(4))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    {between}
    second.__exit__(None, None, None)
"""


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("between", ["pass", "third.__enter__(), fourth.__enter__()"], ids=["gone", "its place taken"])
def test_savepoints_ended_out_of_order_are_the_handlers_error(between: str, large: bool) -> None:
    at = Handled(rules_of(CROSSED.format(between=between), dml=["run"]))
    message = at.refusal(inserts(1), large=large)
    assert "line 7, in run: a savepoint ended after the one that encloses it" in message


@pytest.mark.parametrize(
    "text",
    [
        "def run(lcr, session):\n    lcr.execute(True)\n    yield\n",
        "async def later(lcr, session):\n    lcr.execute(True)\ndef run(lcr, session):\n    return later(lcr,"
        " session)\n",
        "class Later:\n    async def __call__(self, lcr, session):\n        lcr.execute(True)\nrun = Later()\n",
    ],
    ids=["generator", "coroutine", "callable"],
)
def test_coroutine_or_generator_handler_is_an_error(text: str) -> None:
    """Nothing of it ran and nothing would report that: a row that a handler does not execute is not applied."""
    rules = rules_of(text, dml=["run"])
    if "yield" in text:
        with pytest.raises(ConfigError, match=r"handlers/own\.py, line 1: run is a generator"):
            Handled(rules)
        return
    at = Handled(rules)
    at.apply(inserts(1), inserts(2, table="d"))
    assert "returned a coroutine, and nothing of it ran" in only(at)
    assert at.values("d") == {2: "a"}


def test_handler_that_returns_a_generator_is_an_error() -> None:
    at = Handled(
        rules_of(
            "def each(lcr):\n    yield lcr.execute(True)\ndef run(lcr, session):\n    return each(lcr)\n", dml=["run"]
        )
    )
    at.apply(inserts(1))
    assert "returned a generator, and nothing of it ran" in only(at)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("session.execute(b'SELECT 1')", "a statement is a text, and not of type bytes"),
        ("session.execute(None)", "a statement is a text, and not of type NoneType"),
        ("session.execute_count(['SELECT 1'])", "a statement is a text, and not of type list"),
        ("lcr.object_name = 5", "5 is no name of a table, a schema or a column"),
        ("lcr.object_owner = None", "None is no name"),
        ("lcr.object_name = 'a\\0b'", "is no name"),
        ("lcr.object_name = '\\ud800'", "is no name"),
        ("lcr.add_column('new', 7, b'x')", "7 is no name"),
        ("lcr.rename_column('a', '', 'new')", "'' is no name"),
    ],
)
def test_invalid_statement_or_name_is_the_handlers_error(line: str, told: str) -> None:
    at = Handled(rules_of(f"def run(lcr, session):\n    {line}\n    lcr.execute(True)\n", dml=["run"]))
    at.apply(inserts(1), inserts(2, table="d"))
    assert "line 2, in run: " in only(at)
    assert told in only(at)
    assert (at.values(), at.values("d")) == ({}, {2: "a"})


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
            "Mute (its message cannot be read: ZeroDivisionError)",
        ),
        ("ValueError('a\\0b \\ud800 \\x1b[31m\\r ünï\\nnext')", "ValueError: a\\x00b \\ud800 \\x1b[31m\\r ünï\nnext"),
        ("ValueError('H' * 1_000_000)", "H ... (1,000,012 characters)"),
    ],
)
def test_handlers_exception_is_recorded_as_bounded_valid_text(raised: str, told: str) -> None:
    at = Handled(rules_of(f"def run(lcr, session):\n    raise {raised}\n", dml=["run"]))
    at.apply(inserts(1))
    assert only(at).endswith(told)
    assert len(only(at).encode()) < 5_000
