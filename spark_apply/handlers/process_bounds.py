"""How much memory and how many threads users' handlers may take in an apply server's process.

Memory has two bounds. A single call that asks for `CALL_BYTES_MAX` more than the process had before its destination transaction gets a MemoryError where it
asks: its transaction goes into the error queue with the line. What the process holds for itself by then (groups that wait) is not counted. What calls leave
behind is looked at between destination transactions: a process that has grown by `GROWTH_BYTES_MAX` since the handlers were loaded ends and is replaced, which costs some seconds, and `status` says so. Only on Linux; elsewhere the operating system's bounds are all there is.

Threads have two bounds as well. A process in which calls of a handler have left more than `THREADS_MAX` running is replaced in the same way. A transaction whose calls leave
`TRANSACTION_THREADS_MAX` more than were there before its destination transaction goes into the error queue: until its end nothing can be replaced.
"""

from __future__ import annotations

import contextlib
import os
import resource
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from rules.user_code.threads import THREADS_MAX, FunctionThreads
from streams.errors import HandlerError, Retry

__all__ = ["CALL_BYTES_MAX", "GROWTH_BYTES_MAX", "TRANSACTION_THREADS_MAX", "HandlersGrew", "ProcessBounds"]

GROWTH_BYTES_MAX = 1 << 30
"""Far more than a handler's caches should hold, and less than what a node has beside the databases."""
CALL_BYTES_MAX = 2 << 30
"""More than `GROWTH_BYTES_MAX`, so that a leak replaces the process before it fails a call."""

TRANSACTION_THREADS_MAX = 2 * THREADS_MAX
"""More than `THREADS_MAX`, so that what short transactions leave replaces the process and fails none of them; and fewer than the stacks that fill `CALL_BYTES_MAX` (8 MiB each)."""

_LOOK_CALLS = 100  # a look takes some 20 microseconds, as long as a short call
_DATA_KB = "VmData:"
_END_THREADS = "a handler must end the threads that it starts, or give what they do to one pool that its module makes"


class HandlersGrew(HandlerError):  # noqa: N818 - says what is the matter
    """The process of an apply server has grown, or has too many threads, while users' handlers ran in it; another one takes its place."""

    code = "HDR-5005"
    retry = Retry.TIMED


class ProcessBounds:
    """See the module. One per process, made when the handlers are loaded."""

    def __init__(self) -> None:
        self._resident = _resident_bytes()
        self._data = 0
        self._is_before = True  # no function was called in this destination transaction
        self._calls = 0
        self._grown = 0
        self._threads: dict[str, FunctionThreads] = {}  # of the functions that were called
        self._threads_before = 0

    def call(self, function: str) -> AbstractContextManager[None]:
        """Bound what a function may ask for while it runs.

        Args:
            function: its name and place.
        """
        threads = self._threads.get(function)
        if threads is None:
            threads = self._threads[function] = FunctionThreads()
        return _BoundedCall(self, threads.call())

    def memory_bound(self) -> int:
        """Of what RLIMIT_DATA counts, for the call that begins, bytes; 0: it is not known here."""
        self._calls += 1
        if self._calls % _LOOK_CALLS == 0:
            self._grown = _resident_bytes() - self._resident
        if self._is_before:
            self._data, self._is_before = _data_bytes(), False
            self._threads_before = self._thread_count()
        return self._data + CALL_BYTES_MAX if self._data else 0

    def check_transaction(self, function: str) -> None:
        """See that a transaction's calls do not leave too many threads; after each.

        Args:
            function: as it was called.

        Raises:
            HandlerError: they do.
        """
        left = self._thread_count() - self._threads_before
        if left >= TRANSACTION_THREADS_MAX:
            raise HandlerError(f"{function} left {self._threads[function].count} threads running, {left} of them since its transaction began", hint=_END_THREADS)

    def _thread_count(self) -> int:
        return sum(each.count for each in self._threads.values())

    def check(self) -> None:
        """See that the process has not grown too large, and has no more threads than it may; between destination transactions.

        Raises:
            HandlersGrew: it has: end it.
        """
        self._is_before = True
        for function, threads in self._threads.items():
            if threads.count > THREADS_MAX:
                raise HandlersGrew(
                    f"{function} has left {threads.count} threads running in the apply server's process, and {THREADS_MAX} are allowed: another process takes"
                    " its place", hint=_END_THREADS,
                )
        if self._grown > GROWTH_BYTES_MAX:
            raise HandlersGrew(
                f"the apply server's process has grown by {self._grown >> 20:,} MiB since its handlers were loaded ({', '.join(self._threads)}):"
                " another process takes its place",
                hint="a handler keeps what it should forget: look for lists and caches of its modules that only grow",
            )


class _BoundedCall(AbstractContextManager[None]):
    """One call; each row that a handler gets has one, so as little as can be."""

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._threads.__exit__(kind, error, traceback)
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


def _resident_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _data_bytes() -> int:
    """What RLIMIT_DATA counts; 0: it is not known here."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(_DATA_KB):
                return int(line.split()[1]) << 10
    return 0
