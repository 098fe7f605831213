"""Bounds on the memory, threads and time of users' handlers in an apply server's process.

Memory has two bounds. A single call that asks for `CALL_BYTES_MAX` more than the process had before its destination
transaction gets a MemoryError where it asks. Its transaction goes into the error queue with the line. Memory that the
process itself holds by then (pending groups) does not count. What calls leave behind is checked between destination
transactions: a process that has grown by `GROWTH_BYTES_MAX` since the handlers were loaded ends and is replaced. That
costs some seconds, and `status` shows it. These bounds need Linux; elsewhere only the operating system's bounds apply.

Threads have two bounds as well. A process in which calls of a handler have left more than `THREADS_MAX` running is
replaced in the same way. If a transaction's calls leave `TRANSACTION_THREADS_MAX` more threads than there were before
its destination transaction, it goes into the error queue: the process cannot be replaced before its end.

A call that times out is interrupted (`headrace.rules.user_code.time_limit`). A function can catch that and continue,
and a waiting compiled module (libpq, for an answer on the handler's own connection) never notices. So another thread of
the process watches calls (`stuck`). If a call continues for `VAIN_S` more, its process ends, which counts like any
function that ends its process (`crashes`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from headrace.base.errors import HandlerError, Retry
from headrace.rules.user_code.loading import place_of_call
from headrace.rules.user_code.source import UserCode
from headrace.rules.user_code.threads import THREADS_MAX, FunctionThreads
from headrace.rules.user_code.time_limit import TooLong

__all__ = [
    "CALL_BYTES_MAX",
    "GROWTH_BYTES_MAX",
    "TRANSACTION_THREADS_MAX",
    "VAIN_S",
    "HandlersGrew",
    "ProcessBounds",
    "TimedCall",
]

GROWTH_BYTES_MAX = 1 << 30
"""Far more than a handler's caches should hold, and less than a node has besides the databases."""
CALL_BYTES_MAX = 2 << 30
"""More than `GROWTH_BYTES_MAX`, so that a leak replaces the process before it fails a call."""

TRANSACTION_THREADS_MAX = 2 * THREADS_MAX
"""More than `THREADS_MAX`, so that leftovers of short transactions replace the process and fail none of them. Fewer
than the stacks that fill `CALL_BYTES_MAX` (8 MiB each).
"""

VAIN_S = 10.0
"""More than a function needs to undo its work; two looks of the watching thread (`spark_apply.server.task`)."""

_LOOK_CALLS = 100  # a look takes some 20 microseconds, as long as a short call
_DATA_KB = "VmData:"
_END_THREADS = "a handler must end the threads that it starts, or run their work in one pool that its module creates"


class HandlersGrew(HandlerError):  # noqa: N818 - the name states the condition
    """Users' handlers made an apply server's process grow, have too many threads, or hang.

    Another process takes its place.
    """

    code = "HDR-5005"
    fix = "Correct the handler that the message names: it leaks memory or threads, or does not return."
    retry = Retry.TIMED


class TimedCall:
    """A call and its time limit. Every handled row has one, so it is minimal.

    Args:
        function: its name and place.
        code: the code whose places messages name.
        limit_s: its time limit.
        holds: whether it waits for the database now.
    """

    __slots__ = ("_holds", "_interrupted_at", "_thread", "_waited_at", "code", "function", "limit_s", "until")

    def __init__(self, function: str, code: UserCode, limit_s: float, holds: Callable[[], bool]) -> None:
        self.function, self.code, self.limit_s = function, code, limit_s
        self.until = time.monotonic() + limit_s
        self._holds, self._thread = holds, threading.get_ident()
        self._interrupted_at = self._waited_at = 0.0

    def holds(self) -> bool:
        """Return whether it must not be interrupted now; the caller has found it late, and interrupts it if not."""
        held = self._holds()
        if not held and not self._interrupted_at:
            self._interrupted_at = time.monotonic()
        return held

    def check(self) -> None:
        """End the call if it timed out while it waited for the database.

        Raises:
            TooLong: it timed out.
        """
        if time.monotonic() > self.until and not self.holds():
            raise TooLong

    def stuck(self, now: float) -> str:
        """Return where the call hangs, if it does; empty: it does not. Another thread asks.

        Args:
            now: seconds on a monotonic clock.
        """
        if now <= self.until + VAIN_S:
            return ""
        if not self._interrupted_at and self._holds():  # a statement has its own bound
            self._waited_at = now
            return ""
        if now <= (self._interrupted_at or max(self.until, self._waited_at)) + VAIN_S:
            return ""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way to see where another thread is
        return "" if frame is None else place_of_call(frame, self.code)


class ProcessBounds:
    """The bounds of one process, made when the handlers are loaded."""

    def __init__(self) -> None:
        self._resident = _resident_bytes()
        self._data = 0
        self._is_before = True  # no function was called in this destination transaction
        self._calls = 0
        self._grown = 0
        self._threads: dict[str, FunctionThreads] = {}  # by function called so far
        self._threads_before = 0
        self.timed: TimedCall | None = None
        """The current call."""

    def stuck(self, now: float) -> None:
        """Check that no call hangs; another thread asks at intervals.

        Args:
            now: seconds on a monotonic clock.

        Raises:
            HandlersGrew: a call hangs: end the process.
        """
        timed = self.timed
        if timed is not None and (place := timed.stuck(now)):
            raise HandlersGrew(
                f"{timed.function} has not ended within {timed.limit_s:g} s, and goes on at {place} although it was"
                " interrupted: another process takes its place",
                hint="a handler must not catch BaseException, and what waits inside a compiled module needs a time-out"
                " of its own; make it shorter, or raise handler_timeout_s",
            )

    def call(self, function: str) -> AbstractContextManager[None]:
        """Bound the memory that a function may ask for while it runs."""
        threads = self._threads.get(function)
        if threads is None:
            threads = self._threads[function] = FunctionThreads()
        return _BoundedCall(self, threads.call())

    def memory_bound(self) -> int:
        """Return the bound of RLIMIT_DATA for the call that begins, in bytes; 0: unknown on this system."""
        self._calls += 1
        if self._calls % _LOOK_CALLS == 0:
            self._grown = _resident_bytes() - self._resident
        if self._is_before:
            self._data, self._is_before = _data_bytes(), False
            self._threads_before = self._thread_count()
        return self._data + CALL_BYTES_MAX if self._data else 0

    def check_transaction(self, function: str) -> None:
        """Check, after each call, that a transaction's calls do not leave too many threads.

        Args:
            function: its name and place, as it was called.

        Raises:
            HandlerError: they do.
        """
        left = self._thread_count() - self._threads_before
        if left >= TRANSACTION_THREADS_MAX:
            raise HandlerError(
                f"{function} left {self._threads[function].count} threads running, {left} of them since its transaction"
                " began",
                hint=_END_THREADS,
            )

    def _thread_count(self) -> int:
        return sum(each.count for each in self._threads.values())

    def check(self) -> None:
        """Check, between destination transactions, the size of the process and its number of threads.

        Raises:
            HandlersGrew: one exceeds its bound: end the process.
        """
        self._is_before = True
        for function, threads in self._threads.items():
            if threads.count > THREADS_MAX:
                raise HandlersGrew(
                    f"{function} has left {threads.count} threads running in the apply server's process, and"
                    f" {THREADS_MAX} are allowed: another process takes its place",
                    hint=_END_THREADS,
                )
        if self._grown > GROWTH_BYTES_MAX:
            raise HandlersGrew(
                f"the apply server's process has grown by {self._grown >> 20:,} MiB since its handlers were loaded"
                f" ({', '.join(self._threads)}): another process takes its place",
                hint="a handler keeps what it should forget: look for lists and caches of its modules that only grow",
            )


class _BoundedCall(AbstractContextManager[None]):
    """One call. Every handled row has one, so it is minimal."""

    __slots__ = ("_before", "_bounds", "_threads")

    def __init__(self, bounds: ProcessBounds, threads: AbstractContextManager[None]) -> None:
        self._bounds, self._threads = bounds, threads
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        wanted = self._bounds.memory_bound()
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if wanted and (soft == resource.RLIM_INFINITY or wanted < soft):
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        self._threads.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.__exit__(kind, error, traceback)
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


def _resident_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts, in bytes; 0: unknown on this system."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(_DATA_KB):
                return int(line.split()[1]) << 10
    return 0
