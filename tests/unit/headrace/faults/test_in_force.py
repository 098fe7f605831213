"""Faults of processes are undone, whoever caused them, and a killed process is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.faults.errors import NotFired
from headrace.faults.in_force import ProcessesInForce
from headrace.faults.processes import is_stopped


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    """A process that writes a line on request."""
    code = (
        "import sys\nfor line in sys.stdin:\n  with open(line.strip(), 'ab', buffering=0) as f:\n   "
        " print(f.write(b'x' * 8192), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:
        yield psutil.Process(started.pid)
        started.kill()


def wait_stopped(process: psutil.Process, stopped: bool) -> None:
    for _ in range(6000):
        if is_stopped(process) is stopped:
            return
        psutil.wait_procs([process], timeout=0.01)
    pytest.fail(f"stopped: {is_stopped(process)}")


@pytest.mark.parametrize("is_killed", [False, True])
def test_frozen_process_resumes_even_if_its_freezer_was_killed(
    sleeper: psutil.Process, tmp_path: Path, is_killed: bool
):
    file = tmp_path / "chaos.json"
    before = sleeper.rlimit(psutil.RLIMIT_FSIZE)
    in_force = ProcessesInForce(file)
    in_force.limit_files(sleeper, 4096)
    in_force.freeze([sleeper])
    wait_stopped(sleeper, True)
    assert sleeper.rlimit(psutil.RLIMIT_FSIZE) == (4096, before[1])
    if is_killed:
        in_force = ProcessesInForce(file)
        assert in_force.undo_earlier()
    else:
        in_force.undo()
    wait_stopped(sleeper, False)
    assert sleeper.rlimit(psutil.RLIMIT_FSIZE) == before
    assert not file.exists()
    assert not in_force.undo_earlier()


def test_copied_state_folder_does_not_resume_a_frozen_process(sleeper: psutil.Process, tmp_path: Path):
    file, copy = tmp_path / "one" / "chaos.json", tmp_path / "two" / "chaos.json"
    for each in (file, copy):
        each.parent.mkdir()
    ProcessesInForce(file).freeze([sleeper])
    copy.write_text(file.read_text())
    assert not ProcessesInForce(copy).undo_earlier()
    wait_stopped(sleeper, True)
    file.rename(copy)  # the folder moved
    assert ProcessesInForce(copy).undo_earlier()
    wait_stopped(sleeper, False)


def test_process_frozen_by_an_earlier_version_resumes(sleeper: psutil.Process, tmp_path: Path):
    file = tmp_path / "chaos.json"
    before = sleeper.rlimit(psutil.RLIMIT_FSIZE)
    ProcessesInForce(file).freeze([sleeper])
    ProcessesInForce(file).limit_files(sleeper, 4096)
    named = [sleeper.pid, sleeper.create_time()]
    file.write_text(json.dumps({"frozen": [named], "limited": [[*named, *before]]}))
    assert ProcessesInForce(file).undo_earlier()
    wait_stopped(sleeper, False)
    assert sleeper.rlimit(psutil.RLIMIT_FSIZE) == before


def test_other_process_with_the_id_of_a_frozen_one_is_left_alone(sleeper: psutil.Process, tmp_path: Path):
    file = tmp_path / "chaos.json"
    ProcessesInForce(file).freeze([sleeper])
    document = json.loads(file.read_text())
    document["frozen"][0]["ticks"] -= 6000
    file.write_text(json.dumps(document))
    assert ProcessesInForce(file).undo_earlier()
    wait_stopped(sleeper, True)


def test_limit_that_the_system_refuses_is_a_fault_that_did_not_fire(sleeper: psutil.Process, tmp_path: Path):
    sleeper.kill()
    psutil.wait_procs([sleeper], timeout=10)
    with pytest.raises(NotFired):
        ProcessesInForce(tmp_path / "chaos.json").limit_files(sleeper, 1)
