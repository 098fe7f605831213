"""The demo as users run it: its promises with `--json`, and its complete clean-up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.console.exit_codes import DONE
from headrace.demo.load import ORDERS

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

KEYS = {
    "identical",
    "transactions",
    "row_changes",
    "rows_per_s",
    "latency_p50_ms",
    "latency_p99_ms",
    "killed",
    "healed_s",
    "returned_changes",
    "duration_s",
}
TRANSACTIONS = 2000  # five seconds of writing at each site, so enough is left after the kill
MARKER = "HEADRACE_TEST_DEMO"
TIMEOUT_S = 480.0  # one demo takes 30 to 50 s on a small machine; if it hangs, its own bounds apply first
GONE_S = 45.0  # the kernel takes a moment to end the last killed processes


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that the demo may write; its path is short, so that Ray's sockets have room in it."""
    made = Path(tempfile.mkdtemp(prefix="hd-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def demo(folder: Path, *arguments: object) -> dict[str, Any]:
    """Run the demo to its end, which must succeed; return its summary. Check that no process and no file is left."""
    marker = uuid.uuid4().hex
    command = [str(Path(sys.executable).parent / "headrace"), "demo", "--json", "--state-dir", str(folder / "state")]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, MARKER: marker, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == DONE, done.stderr + done.stdout
    psutil.wait_procs(_running(marker), timeout=GONE_S)
    assert _running(marker) == []
    assert [file.name for file in folder.iterdir()] == []
    summary: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)  # NaN is not JSON
    assert set(summary) == KEYS
    assert summary["identical"] is True
    assert summary["killed"].startswith("capture:")
    assert "SIGKILL" in summary["killed"]
    assert 0 < summary["healed_s"] < summary["duration_s"]
    assert 0 < summary["latency_p50_ms"] <= summary["latency_p99_ms"]
    return summary


def _running(marker: str) -> list[psutil.Process]:
    """Return the processes that inherited the marker."""
    return [each for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get(MARKER) == marker]


def test_demo_ends_with_identical_sites_after_a_kill_and_leaves_nothing(folder: Path):
    summary = demo(folder, "--transactions", TRANSACTIONS)
    assert (summary["transactions"], summary["row_changes"]) == (TRANSACTIONS, 4 * TRANSACTIONS)
    assert summary["returned_changes"] == 0


@pytest.mark.soak
def test_demo_of_two_sites_ends_identical_and_no_change_returned(folder: Path):
    summary = demo(folder, "--two-way", "--transactions", TRANSACTIONS)
    assert summary["transactions"] == 2 * TRANSACTIONS
    assert summary["row_changes"] == 4 * TRANSACTIONS + 2 * ORDERS  # each site's own orders are inserted first
    assert summary["returned_changes"] == 0
