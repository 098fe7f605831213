"""A bound of time for one call of users' code."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["TooLong", "time_limit"]

_LOOKS_PER_S = 5  # how often the watchdog looks: a function may run a fifth of a second longer than it should


class TooLong(BaseException):
    """The function had its time."""


@contextmanager
def time_limit(limit_s: float, holds: Callable[[], bool], *, late: Callable[[FrameType], None] | None = None) -> Iterator[None]:
    """Interrupt what runs inside after a while.

    In a process's main thread, where apply servers run, a signal also ends what waits in the kernel (`time.sleep`, a socket). In another
    thread only Python code is interrupted, at its next line.

    Args:
        limit_s: seconds.
        holds: whether it must not be interrupted just now: a statement has a bound of its own.
        late: outside the main thread, called by the thread that watches, when the time is over and again while the call still runs: with where
            the call is. What waits in the kernel may never notice its interruption, so the operator must be told.

    Raises:
        TooLong: inside, when the time is over.
    """
    if threading.current_thread() is threading.main_thread():
        yield from _by_signal(limit_s, holds)
    else:
        yield from _by_watchdog(limit_s, holds, late)


def _by_signal(limit_s: float, holds: Callable[[], bool]) -> Iterator[None]:
    has_ended = has_rung = False

    def ring(number: int, frame: object) -> None:  # noqa: ARG001 - a signal handler's
        nonlocal has_rung
        if has_ended:
            return
        has_rung = True
        # Again and again: a handler can catch it.
        signal.setitimer(signal.ITIMER_REAL, 1 / _LOOKS_PER_S)
        if not holds():
            raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
        if has_rung:
            raise TooLong  # it has caught it
    finally:
        has_ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _by_watchdog(limit_s: float, holds: Callable[[], bool], late: Callable[[FrameType], None] | None) -> Iterator[None]:
    watch = _Watch(threading.get_ident(), time.monotonic() + limit_s, holds, late)
    _WATCHDOG.begin(watch)
    try:
        yield
    finally:
        # It can be interrupted here, too, when the function has just ended: a watch that stayed would interrupt what the thread does later.
        # No call stands outside of `try`: Python raises such an exception at calls and at the end of a loop alone.
        is_watched = True
        while is_watched:
            try:
                _WATCHDOG.end(watch)
                is_watched = False
            except TooLong:
                pass
    if watch.has_rung:
        raise TooLong  # it has caught it


@dataclass(slots=True)
class _Watch:
    """A call that is watched: its thread, until when, and whether it was interrupted."""

    thread: int
    until: float
    holds: Callable[[], bool]
    late: Callable[[FrameType], None] | None = None
    has_rung: bool = False


class _Watchdog:
    """One thread that looks after the calls of all other threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, _Watch] = {}  # by thread
        self._has_thread = False

    def begin(self, watch: _Watch) -> None:
        with self._lock:
            self._calls[watch.thread] = watch
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._look, name="handler timeouts", daemon=True).start()

    def end(self, watch: _Watch) -> None:
        with self._lock:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), None)  # one that was not raised yet
            self._calls.pop(watch.thread, None)

    def _look(self) -> None:
        while True:
            time.sleep(1 / _LOOKS_PER_S)
            with self._lock:
                for watch in self._calls.values():
                    if time.monotonic() > watch.until and not watch.holds():
                        watch.has_rung = True
                        frame = sys._current_frames().get(watch.thread)  # noqa: SLF001 - the only way to see where another thread is
                        if watch.late is not None and frame is not None:
                            watch.late(frame)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), ctypes.py_object(TooLong))


_WATCHDOG = _Watchdog()
