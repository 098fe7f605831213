"""Work that goes on while a test does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["in_background"]


@contextlib.contextmanager
def in_background(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Do each work on a thread of its own during the block; an error of one fails the test at the block's end.

    It is raised also where the block fails, which is then its context: mostly the block waited for what the work had to do.

    Args:
        works: each ends soon after the event that it is called with is set.
    """
    ended = threading.Event()
    futures: list[Future[object]] = []
    try:
        with ThreadPoolExecutor(len(works)) as pool:
            futures += [pool.submit(work, ended) for work in works]
            try:
                yield
            finally:
                ended.set()
    finally:
        for future in futures:
            future.result()
