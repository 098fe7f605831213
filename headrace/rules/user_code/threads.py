"""Bounding the threads that a user's function leaves running.

A thread that is started during a call of the function belongs to that call, and so do the threads that it starts; it
counts when the call has ended. All other threads are not counted: those of gRPC, of the other components of the
process, and those that a module starts while it is imported. Threads started through `_thread` are not detected.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["THREADS_MAX", "FunctionThreads", "threads_of"]

THREADS_MAX = 64
"""Two of Python's default pools, which have at most 32 threads each; one thread per row exceeds it at once."""

_OWNER = "headrace_owner"  # attribute of a thread: the call to which it belongs
_CALLED = threading.local()  # `call`: the current call of a thread
_INSTALLING = threading.Lock()
_start = threading.Thread.start
_of_process: dict[str, FunctionThreads] = {}


class _Call(AbstractContextManager[None]):
    """One call of a function. Others may run at the same time, in other threads of the process."""

    __slots__ = ("_before", "has_ended", "threads")

    def __init__(self, threads: FunctionThreads) -> None:
        self.threads = threads
        self.has_ended = False

    def __enter__(self) -> None:
        self._before = getattr(_CALLED, "call", None)
        _CALLED.call = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _CALLED.call, self.has_ended = self._before, True


class FunctionThreads:
    """The threads of one function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[threading.Thread, _Call] = {}
        with _INSTALLING:
            threading.Thread.start = _noted_start  # type: ignore[assignment, method-assign]

    def call(self) -> AbstractContextManager[None]:
        """Return a context: threads started inside belong to the function."""
        return _Call(self)

    @property
    def count(self) -> int:
        """Number of running threads whose call has ended."""
        if not self._running:
            return 0
        with self._lock:
            self._running = {thread: call for thread, call in self._running.items() if thread.is_alive()}
            return sum(call.has_ended for call in self._running.values())

    def add(self, thread: threading.Thread, call: _Call) -> None:
        """Record a thread that has begun.

        Args:
            thread: the thread.
            call: the call to which it belongs.
        """
        with self._lock:
            self._running[thread] = call


def threads_of(function: str) -> FunctionThreads:
    """Return the threads of a function in this process, over all of its clients and tasks.

    Args:
        function: name and version.
    """
    found = _of_process.get(function)
    return _of_process.setdefault(function, FunctionThreads()) if found is None else found


def _noted_start(thread: threading.Thread) -> None:
    """Replace `Thread.start`: only here it is known who starts a thread."""
    call: _Call | None = getattr(_CALLED, "call", None) or getattr(threading.current_thread(), _OWNER, None)
    if call is None:
        _start(thread)
        return
    setattr(thread, _OWNER, call)  # before it runs: it may start others
    _start(thread)
    call.threads.add(thread, call)
