"""Processes are found by their component, and killed."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from headrace.faults import processes
from headrace.faults.errors import NotFired
from headrace.faults.processes import is_gone, kill


def test_killed_processes_are_gone_and_ended_ones_are_ignored():
    code = "import time; time.sleep(600)"
    ended, living = (psutil.Popen([sys.executable, "-c", code]) for _ in range(2))
    ended.kill()
    ended.wait()
    assert not is_gone(living)
    kill([ended, living])
    assert is_gone(living)
    living.wait()


def test_process_that_survives_a_kill_is_a_fault_that_did_not_fire(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "GONE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(psutil.Process, "kill", lambda _: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        with pytest.raises(NotFired, match=f"process {started.pid} does not end"):
            kill([psutil.Process(started.pid)])
        started.terminate()
