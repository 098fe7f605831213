"""The process that forks Spark's Python workers: `python -m spark_apply.application.daemon`, started by each executor.

It imports the tasks' modules before the first fork and loads the compiled kernels, so workers share those pages and
begin at once. A worker needs about 20 MB of private memory instead of 100, and starts in 0.1 s instead of 4. It only
imports and loads: no thread, gRPC channel or connection may exist when Spark's daemon forks. The environment arms
failpoints, in the daemon too. It forks for no connection of another user (`spark_apply.application.access.peers`).
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

from headrace.databases.connectors import SESSION_MODULES

__all__ = ["TASK_MODULES", "load_kernels", "preload"]

TASK_MODULES = (
    "spark_apply.application.runs",
    "spark_apply.server.task",
    "spark_apply.copy.pieces.tasks",
    "spark_apply.server.apply_server",
    "spark_apply.conversation.messages",
    "protos.links.apply_link",
    "protos.codec",
    *SESSION_MODULES,
    # numba, and the compiled kernels.
    "spark_apply.sets.collapse_kernels",
    "headrace.lcr.cells_kernels",
)


def preload() -> None:
    """Import the tasks' modules, and exclude them from garbage collection, so that the pages stay shared."""
    for module in TASK_MODULES:
        importlib.import_module(module)
    load_kernels()
    gc.collect()
    gc.freeze()


def load_kernels() -> int:
    """Load the imported kernels from Numba's cache and return how many; compile nothing.

    Otherwise Numba loads at a kernel's first call, for each signature, in every process anew: 35 MB and two seconds of
    CPU time. It has no public way to load earlier.
    """
    from numba.core.dispatcher import Dispatcher

    loaded = 0
    for name in [name for name in sys.modules if name.endswith("_kernels")]:
        for kernel in vars(sys.modules[name]).values():
            if isinstance(kernel, Dispatcher):
                loaded += _load(kernel)
    return loaded


def _load(kernel: Any) -> int:  # noqa: ANN401 - uses non-public parts of it
    cache, target = kernel._cache, kernel.targetctx.codegen()  # noqa: SLF001
    # The cache may have another machine's entries: their signatures are compiled when needed.
    signatures = [key[0] for key in cache._cache_file._load_index() if key == cache._index_key(key[0], target)]  # noqa: SLF001
    for signature in signatures:
        kernel.compile(signature)
    return len(signatures)


if __name__ == "__main__":
    from pyspark.daemon import manager

    from spark_apply.application.access.peers import guard_worker_daemon

    preload()
    guard_worker_daemon()
    manager()
