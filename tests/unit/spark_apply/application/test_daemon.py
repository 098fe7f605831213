"""What Spark's Python workers are forked from has loaded what they need, and nothing that must not be forked."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, os, sys, threading
from spark_apply.application import daemon

daemon.preload()
import headrace.databases.postgres.destination.writing.write_kernels, spark_apply.sets.collapse_kernels, headrace.lcr.cells_kernels
from numba.core.dispatcher import Dispatcher

loaded = {}
for name in [name for name in sys.modules if name.endswith("_kernels")]:
    for label, kernel in vars(sys.modules[name]).items():
        if isinstance(kernel, Dispatcher):
            loaded[f"{name}:{label}"] = [str(signature) for signature in kernel.signatures]
            assert not kernel.stats.cache_misses, f"{name} was compiled"
print(json.dumps({"loaded": loaded, "again": daemon.load_kernels(), "threads": len(os.listdir("/proc/self/task"))}))
"""


def cached() -> dict[str, set[str]]:
    """The signatures of each kernel that are compiled, by `make setup` or by a test that needed another one.

    Where the cache is empty, nothing can be loaded.
    """
    found = {}
    for path in ROOT.glob("[!.]*/**/*_kernels.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name.startswith("tests."):
            continue
        for label, kernel in vars(importlib.import_module(name)).items():
            if isinstance(kernel, Dispatcher):
                found[f"{name}:{label}"] = {str(key[0]) for key in kernel._cache._cache_file._load_index()}
    return found


def test_kernels_are_loaded_from_the_cache_before_the_first_fork_and_no_thread_is_started():
    before = cached()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
    after = cached()  # other tests, which run at the same time, may have compiled some
    found = json.loads(done.stdout)
    assert found["threads"] == 1
    assert found["loaded"]
    for kernel, loaded in found["loaded"].items():
        assert before[kernel] <= set(loaded) <= after[kernel], kernel
    assert (
        sum(len(before[kernel]) for kernel in found["loaded"])
        <= found["again"]
        <= sum(len(after[kernel]) for kernel in found["loaded"])
    )
