"""What Spark's Python workers are forked from has loaded what they need, and nothing that must not be forked."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os, sys, threading
from spark_apply.application import daemon

daemon.preload()
import databases.postgres.destination.writing.write_kernels, spark_apply.server.collapse_kernels, streams.cells_kernels
from numba.core.dispatcher import Dispatcher

# Compiled by `make setup`; where the cache is empty, nothing can be loaded.
cached = loaded = 0
for name in [name for name in sys.modules if name.endswith("_kernels")]:
    for kernel in vars(sys.modules[name]).values():
        if isinstance(kernel, Dispatcher):
            cached += len(kernel._cache._cache_file._load_index())
            loaded += len(kernel.signatures)
            assert not kernel.stats.cache_misses, f"{name} was compiled"
print(json.dumps({"cached": cached, "loaded": loaded, "again": daemon.load_kernels(), "threads": len(os.listdir("/proc/self/task"))}))
"""


def test_kernels_are_loaded_from_the_cache_before_the_first_fork_and_no_thread_is_started():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
    found = json.loads(done.stdout)
    assert found["threads"] == 1
    assert found["loaded"] == found["cached"] == found["again"]
