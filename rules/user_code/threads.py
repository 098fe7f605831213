"""How many threads a user's function may leave running.

A thread that is started while the function is called belongs to it, and so does what that thread starts. All other threads are not counted,
however many there are: those of gRPC, of the other components of the process, and what a module starts while it is imported. `_thread` is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["THREADS_MAX", "FunctionThreads", "threads_of"]

THREADS_MAX = 64
"""Two of the pools that Python makes by default, which have 32 threads at most; one thread per row exceeds it at once."""

_OWNER = "headrace_owner"  # attribute of a thread
_CALLED = threading.local()  # `threads`: of the function that a thread calls
_INSTALLING = threading.Lock()
_start = threading.Thread.start
_of_process: dict[str, FunctionThreads] = {}


class FunctionThreads:
    """The threads of one function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[threading.Thread] = set()
        with _INSTALLING:
            threading.Thread.start = _noted_start  # type: ignore[assignment, method-assign]

    @contextmanager
    def call(self) -> Iterator[None]:
        """What is started inside belongs to the function."""
        before = getattr(_CALLED, "threads", None)
        _CALLED.threads = self
        try:
            yield
        finally:
            _CALLED.threads = before

    @property
    def count(self) -> int:
        """How many of them run now."""
        if not self._running:
            return 0
        with self._lock:
            self._running = {thread for thread in self._running if thread.is_alive()}
            return len(self._running)

    def add(self, thread: threading.Thread) -> None:
        """Note one that has begun.

        Args:
            thread: which one.
        """
        with self._lock:
            self._running.add(thread)


def threads_of(function: str) -> FunctionThreads:
    """Those of a function in this process, whichever of its clients and tasks call it, one after the other or at once.

    Args:
        function: name and version.
    """
    found = _of_process.get(function)
    return _of_process.setdefault(function, FunctionThreads()) if found is None else found


def _noted_start(thread: threading.Thread) -> None:
    """`Thread.start`. Nothing else knows by whom a thread was started."""
    owner: FunctionThreads | None = getattr(_CALLED, "threads", None) or getattr(threading.current_thread(), _OWNER, None)
    if owner is None:
        _start(thread)
        return
    setattr(thread, _OWNER, owner)  # before it runs: it may start others
    _start(thread)
    owner.add(thread)
