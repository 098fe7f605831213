"""Only one process at a time runs a component on a disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.hosting.components import Components
from actors.records.running import Running
from headrace.base.errors import PropagationError
from tests.support.actors.components import FakeRecords, goes_on

HOLD = """
import sys, time
from pathlib import Path
from actors.records.running import Running
held = Running(Path(sys.argv[1]), "part:p")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs part:p."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.slow
def test_component_begins_only_when_its_other_process_is_dead(tmp_path, other):
    records = FakeRecords(tmp_path)
    records.create("part:p")
    records.create("well")
    components = Components(records)
    components.settle_all()
    goes_on(components, "well")
    with pytest.raises(PropagationError, match=rf"part:p still runs in process {other.pid} of this machine"):
        components.call("part:p", "status")
    other.kill()
    other.wait()
    goes_on(components, "part:p")


def test_ended_or_unbuilt_component_can_begin_elsewhere(tmp_path):
    records = FakeRecords(tmp_path)
    records.create("ends")
    records.create("broken", "cannot be built")
    components = Components(records)
    components.settle_all()
    with pytest.raises(PropagationError, match="ends still runs in process"):
        Running(tmp_path, "ends")
    records.records["ends"] = None
    components.settle("ends")
    for name in ("ends", "broken"):
        Running(tmp_path, name).release()


def test_component_whose_lock_cannot_be_made_reports_it(tmp_path):
    (tmp_path / "components").write_text("in the way")
    with pytest.raises(PropagationError, match="part:p cannot begin"):
        Running(tmp_path, "part:p")


def test_program_that_a_component_starts_does_not_hold_its_lock(tmp_path):
    running = Running(tmp_path, "part:p")
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        running.release()
        Running(tmp_path, "part:p").release()
    finally:
        child.kill()
        child.wait()
