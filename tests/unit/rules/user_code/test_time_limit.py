"""The time limit of a call, in the main thread (apply servers) and in other threads.

Capture processes, propagations and apply drivers call functions in other threads.
"""

from __future__ import annotations

import importlib
import signal
import threading
import time
import traceback
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from headrace.rules.user_code import time_limit as module
from headrace.rules.user_code.time_limit import TooLong, time_limit


def in_thread(call: Callable[[], object]) -> BaseException | None:
    """Return the exception that a call raises in another thread; None if it raises none."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - what is asked for
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found[0] if found else None


def test_function_that_catches_the_interruption_in_a_thread_still_fails() -> None:
    def call() -> None:
        with time_limit(0.05, lambda: False):
            try:
                while True:
                    pass
            except TooLong:
                pass

    assert isinstance(in_thread(call), TooLong)


def test_interruption_right_after_the_function_leaves_none_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    end, times = module._WATCHDOG.end, []

    def interrupted(*arguments: object) -> None:
        times.append(1)
        if len(times) == 1:
            raise TooLong
        end(*arguments)

    monkeypatch.setattr(module._WATCHDOG, "end", interrupted)

    def call() -> None:
        try:
            with time_limit(0.05, lambda: False):
                pass
        except TooLong:
            pass
        until = time.monotonic() + 0.6  # three checks of the watchdog
        while time.monotonic() < until:
            pass

    assert in_thread(call) is None
    assert not module._WATCHDOG._calls


def test_call_blocked_in_the_kernel_is_reported_by_another_thread() -> None:
    told: list[tuple[int, str]] = []
    going = threading.Event()

    def waits() -> None:
        going.wait(30)

    def call() -> None:
        with time_limit(
            0.05,
            lambda: False,
            late=lambda frame: told.append((threading.get_ident(), str(traceback.extract_stack(frame)))),
        ):
            waits()

    def later() -> None:
        until = time.monotonic() + 30
        while len(told) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        going.set()

    threading.Thread(target=later).start()
    assert isinstance(in_thread(call), TooLong)
    assert len(told) >= 2
    assert all("waits" in stack for _, stack in told)
    assert threading.get_ident() not in {thread for thread, _ in told}


@pytest.mark.parametrize("place", [module._Alarm.__enter__, module._Alarm.__exit__], ids=["begins", "ends"])
def test_signal_at_the_start_or_end_of_a_call_leaves_no_timer(place: FunctionType) -> None:
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)  # the limit of this test itself
    limit: Any = time_limit(60, lambda: False)
    limit.__enter__()
    limit._ring(0, SimpleNamespace(f_code=place.__code__))  # nothing is raised there
    with pytest.raises(TooLong):
        limit.__exit__(None, None, None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    limit._ring(0, None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_main_thread_is_interrupted_while_waiting_and_can_be_limited_again() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)  # as above
    for _ in range(2):
        with pytest.raises(TooLong), time_limit(0.05, lambda: False):
            time.sleep(60)
    with time_limit(60, lambda: False):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_outer_timer_is_restored_with_its_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    bound = signal.setitimer(signal.ITIMER_REAL, 500, 7)
    try:
        with time_limit(60, lambda: False):
            monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 100)
        left_s, again_s = signal.getitimer(signal.ITIMER_REAL)
        assert 300 < left_s <= 400
        assert again_s == 7
        with pytest.raises(TooLong), time_limit(0.05, lambda: False):  # noqa: PT012 - as a function would
            monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1000)
            time.sleep(60)
        for _ in range(100):
            if rang:
                break
            time.sleep(0.05)
        assert rang
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *bound)


def test_outer_timer_ringing_as_a_call_begins_does_not_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled machine can make this window long."""
    rang: list[str] = []

    def stalled(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if not rang:
            rang.append("the outer timer's moment")
            signal.raise_signal(signal.SIGALRM)
        return signal.setitimer(which, seconds, interval)

    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.signal(signal.SIGALRM, lambda *_: rang.append("its owner heard of it"))
    monkeypatch.setattr(
        module, "_signal", SimpleNamespace(**vars(importlib.import_module("_signal")) | {"setitimer": stalled})
    )
    try:
        with time_limit(30.0, lambda: False):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
    assert rang == ["the outer timer's moment", "its owner heard of it"]
