"""The process from which Spark forks Python workers has loaded what they need, and nothing that must not be forked."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

from spark_apply.application.environment import OWN_MODULES

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, os, sys, threading
from spark_apply.application import daemon

daemon.preload()
import headrace.databases.postgres.destination.writing.write_kernels, spark_apply.sets.collapse_kernels, headrace.lcr.cells_kernels
from numba.core.dispatcher import Dispatcher

from spark_apply.application.environment import OWN_MODULES

loaded = {}
for name in [name for name in sys.modules if name.endswith("_kernels")]:
    for label, kernel in vars(sys.modules[name]).items():
        if isinstance(kernel, Dispatcher):
            loaded[f"{name}:{label}"] = [str(signature) for signature in kernel.signatures]
            assert not kernel.stats.cache_misses, f"{name} was compiled"
print(json.dumps({"loaded": loaded, "again": daemon.load_kernels(), "threads": len(os.listdir("/proc/self/task"))}))
"""


def cached() -> dict[str, set[str]]:
    """Return the compiled signatures of each kernel: from `make setup` or from a test that needed another one.

    With an empty cache nothing can be loaded.
    """
    found = {}
    for path in ROOT.glob("[!.]*/**/*_kernels.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name.startswith("tests."):
            continue
        for label, kernel in vars(importlib.import_module(name)).items():
            if isinstance(kernel, Dispatcher):
                compiled: Any = kernel
                found[f"{name}:{label}"] = {str(key[0]) for key in compiled._cache._cache_file._load_index()}
    return found


def test_kernels_are_loaded_from_the_cache_before_the_first_fork():
    before = cached()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
    after = cached()  # other tests running at the same time may have compiled some
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


def test_no_module_is_imported_from_the_executors_working_folder(tmp_path: Path):
    """Anyone with write access to that folder, such as /tmp, could run code in every apply server."""
    ran = tmp_path / "ran"
    (tmp_path / "psycopg.py").write_text(f"open({str(ran)!r}, 'w').close(); raise SystemExit(1)")

    def start(environment: dict[str, str]) -> None:
        subprocess.run(
            [sys.executable, "-m", "spark_apply.application.daemon"],
            stdin=subprocess.DEVNULL,  # the executor has ended
            capture_output=True,
            timeout=300,
            check=False,
            cwd=tmp_path,
            env={"OMP_NUM_THREADS": "1", "PATH": "", "PYTHONPATH": str(ROOT), **environment},
        )

    start({})
    assert ran.exists(), "without the protection the attack works"
    ran.unlink()
    start(OWN_MODULES)
    assert not ran.exists()
