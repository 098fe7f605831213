"""A bound of time for one call of users' code."""

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
_OVERDUE_S = 0.001  # an outer timer that should have rung meanwhile rings at once; 0 would be none
_LOOKS_PER_S = 5  # how often the watchdog looks: a function may run a fifth of a second longer than it should


class TooLong(BaseException):
    """The function had its time."""


def time_limit(
    limit_s: float,
    holds: Callable[[], bool],
    *,
    late: Callable[[FrameType], None] | None = None,
) -> AbstractContextManager[None]:
    """Interrupt what runs inside after a while.

    In a process's main thread, where apply servers run, a signal also ends what waits in the kernel (`time.sleep`, a
    socket). In another thread only Python code is interrupted, at its next line.

    Args:
        limit_s: seconds.
        holds: whether it must not be interrupted just now: a statement has a bound of its own.
        late: outside the main thread, called by the thread that watches, when the time is over and again while the call
            still runs: with where the call is. What waits in the kernel may never notice its interruption, so the
                operator must be told.

    Raises:
        TooLong: inside, when the time is over.
    """
    if threading.current_thread() is threading.main_thread():
        return _Alarm(limit_s, holds)
    return _by_watchdog(limit_s, holds, late)


class _Alarm(AbstractContextManager[None]):
    """A bound by a signal; one for each row that a handler gets, so as little as can be.

    A process has one such timer. Whoever had set it before (a test that has a bound of its own) gets it back with what
    is left.
    """

    __slots__ = ("_before", "_begun", "_has_ended", "_has_rung", "_holds", "_limit_s", "_outer")

    def __init__(self, limit_s: float, holds: Callable[[], bool]) -> None:
        self._limit_s, self._holds = limit_s, holds
        self._has_ended = self._has_rung = False

    def __enter__(self) -> None:
        # Stopped first: it could ring between the two, and that would be taken for the end of this call's time.
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
            raise TooLong  # it has caught it

    def _ring(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's
        if self._has_ended:
            return
        self._has_rung = True
        # Again and again: a handler can catch it.
        _signal.setitimer(_signal.ITIMER_REAL, 1 / _LOOKS_PER_S)
        # Raised while it begins or ends, it would leave the timer behind, for code that has nothing to do with it.
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
        # It can be interrupted here, too, when the function has just ended: a watch that stayed would interrupt what
        # the thread does later. No call stands outside of `try`: Python raises such an exception at calls and at the
        # end of a loop alone.
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
            # one that was not raised yet
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread), None)
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
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(watch.thread), ctypes.py_object(TooLong)
                        )


_WATCHDOG = _Watchdog()
