"""`scripts/beside.py`, with which `make test` runs its two halves: both run, both count, and nothing of the second one stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "scripts" / "beside.py"
TIMEOUT_S = 60.0


def beside(first: str, second: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BESIDE), "sh", "-c", first, "--", "sh", "-c", second]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(("first", "second", "code"), [(0, 0, 0), (4, 0, 4), (0, 3, 3), (4, 3, 4)])
def test_either_command_that_fails_fails_both(first: int, second: int, code: int):
    assert beside(f"exit {first}", f"exit {second}").returncode == code


def test_both_run_at_once_and_what_the_second_prints_comes_last(tmp_path: Path):
    wait = "n=0; until [ -e {other} ] || [ $n = 500 ]; do sleep 0.05; n=$((n+1)); done; [ -e {other} ]"
    a, b = tmp_path / "a", tmp_path / "b"
    done = beside(f"touch {a}; {wait.format(other=b)} && echo first", f"touch {b}; echo second; echo wrong >&2; {wait.format(other=a)}")
    assert (done.returncode, done.stdout) == (0, "first\nsecond\nwrong\n")


def test_second_command_yields_to_the_first():
    done = beside("nice", "sleep 0.3; nice")
    own, other = map(int, done.stdout.split())
    assert (own, other) == (os.getpriority(os.PRIO_PROCESS, 0), 10)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_what_ends_the_first_ends_the_second(tmp_path: Path, how: signal.Signals):
    ended = tmp_path / "ended"
    second = f"trap 'touch {ended}; exit 1' INT; touch {tmp_path / 'began'}; n=0; until [ $n = 600 ]; do sleep 0.05; n=$((n+1)); done"
    command = [sys.executable, str(BESIDE), "sleep", "60", "--", "sh", "-c", second]
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]  # where a shell lets it ignore Ctrl-C
    process = subprocess.Popen(in_background, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, how)  # as Ctrl-C in a terminal does, and whoever ends a job
    assert process.wait(TIMEOUT_S) != 0
    assert ended.exists()


def test_wrong_use_says_how():
    done = subprocess.run([sys.executable, str(BESIDE), "true"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, "usage:" in done.stderr) == (2, True)
