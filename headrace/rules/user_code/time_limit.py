"""A time limit for one call of users' code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its enumerations would take longer than the rest of a call
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType

__all__ = ["TooLong", "time_limit"]

_SIGALRM = int(_signal.SIGALRM)
_OVERDUE_S = 0.001  # an outer timer that expired meanwhile fires at once; 0 would disable it
_LOOKS_PER_S = 5  # the watchdog's frequency: a function may run a fifth of a second too long


class TooLong(BaseException):
    """The function exceeded its time."""


def time_limit(
    limit_s: float,
    holds: Callable[[], bool],
    *,
    late: Callable[[FrameType], None] | None = None,
) -> AbstractContextManager[None]:
    """Interrupt the code inside after a while.

    In a process's main thread, where apply servers run, a signal also ends waits in the kernel (`time.sleep`, a
    socket). In another thread only Python code is interrupted, at its next line.

    Args:
        limit_s: seconds.
        holds: whether an interruption is forbidden right now: a statement has its own limit.
        late: outside the main thread, called with the call's frame by the watchdog's thread, when the time is over and
            again while the call still runs. A wait in the kernel may never notice its interruption, so the operator
            must be told.

    Raises:
        TooLong: inside, when the time is over.
    """
    if threading.current_thread() is threading.main_thread():
        return _Alarm(limit_s, holds)
    return _by_watchdog(limit_s, holds, late)


class _Alarm(AbstractContextManager[None]):
    """A limit by a signal; one for each row that a handler gets, so as cheap as possible.

    A process has one such timer. An earlier user of the timer (a test with its own limit) gets it back with the
    remaining time.
    """

    __slots__ = ("_before", "_begun", "_has_ended", "_has_rung", "_holds", "_limit_s", "_outer")

    def __init__(self, limit_s: float, holds: Callable[[], bool]) -> None:
        self._limit_s, self._holds = limit_s, holds
        self._has_ended = self._has_rung = False

    def __enter__(self) -> None:
        # Stopped first: it could fire between the two calls, which would count as the end of this call's time.
        self._outer = _signal.setitimer(_signal.ITIMER_REAL, 0)
        self._before = _signal.signal(_SIGALRM, self._ring)
        if self._outer[0]:
            self._begun = time.monotonic()
        _signal.setitimer(_signal.ITIMER_REAL, self._limit_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended = True
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_SIGALRM, self._before)
        if self._outer[0]:
            left_s, again_s = self._outer
            _signal.setitimer(_signal.ITIMER_REAL, max(left_s - (time.monotonic() - self._begun), _OVERDUE_S), again_s)
        if kind is None and self._has_rung:
            raise TooLong  # the handler caught it

    def _ring(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's
        if self._has_ended:
            return
        self._has_rung = True
        # Repeatedly: a handler can catch it.
        _signal.setitimer(_signal.ITIMER_REAL, 1 / _LOOKS_PER_S)
        # Raised while entering or leaving, it would leave the timer behind for unrelated code.
        is_own = frame is not None and frame.f_code in {_Alarm.__enter__.__code__, _Alarm.__exit__.__code__}
        if not is_own and not self._holds():
            raise TooLong


@contextmanager
def _by_watchdog(limit_s: float, holds: Callable[[], bool], late: Callable[[FrameType], None] | None) -> Iterator[None]:
    watch = _Watch(threading.get_ident(), time.monotonic() + limit_s, holds, late)
    _WATCHDOG.begin(watch)
    try:
        yield
    finally:
        # An interruption can also arrive here, when the function has just ended: a remaining watch would interrupt
        # later code of the thread. No call is outside of `try`: Python raises such an exception only at calls and at
        # the end of a loop.
        is_watched = True
        while is_watched:
            try:
                _WATCHDOG.end(watch)
                is_watched = False
            except TooLong:
                pass
    if watch.has_rung:
        raise TooLong  # the handler caught it


@dataclass(slots=True)
class _Watch:
    """A watched call: its thread, its deadline, and whether it was interrupted."""

    thread: int
    until: float
    holds: Callable[[], bool]
    late: Callable[[FrameType], None] | None = None
    has_rung: bool = False


class _Watchdog:
    """One thread that watches the calls of all other threads of a process."""

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
            # cancel an exception that is pending
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), None)
            self._calls.pop(watch.thread, None)

    def _look(self) -> None:
        while True:
            time.sleep(1 / _LOOKS_PER_S)
            with self._lock:
                for watch in self._calls.values():
                    if time.monotonic() > watch.until and not watch.holds():
                        watch.has_rung = True
                        frame = sys._current_frames().get(watch.thread)  # noqa: SLF001 - no other way to the frame
                        if watch.late is not None and frame is not None:
                            watch.late(frame)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(watch.thread), ctypes.py_object(TooLong)
                        )


_WATCHDOG = _Watchdog()
