"""Work that runs while a test does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["in_background"]


@contextlib.contextmanager
def in_background(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run each work on its own thread during the block; an error of one fails the test at the block's end.

    It is raised also if the block fails, and then has the block's error as context: mostly the block waited for the
    work.

    Args:
        works: each ends soon after its event is set.
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
