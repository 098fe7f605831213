"""Failpoints: armed by the environment or by a file in a folder; every name is called somewhere, and every call has a
name.
"""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.failpoints import ARMED_FILE, ENVIRONMENT, FAILPOINTS, FOLDER_ENVIRONMENT, fired_count
from tests.support.session.packages import PACKAGES, ROOT

# Fails at each name on its standard input, and prints what happened.
PROGRAM = """
import sys
from headrace.base.failpoints import failpoint
for line in sys.stdin:
    try:
        failpoint(line.strip())
        print("nothing", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Process:
    """A process with failpoints."""

    def __init__(self, **environment: str) -> None:
        others = {key: value for key, value in os.environ.items() if key not in {ENVIRONMENT, FOLDER_ENVIRONMENT}}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**others, **environment},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def reaches(self, name: str) -> str:
        """Reach a failpoint; return "nothing", an errno, or how the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip() or str(self._process.wait(60))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(request: pytest.FixtureRequest):
    def start_one(**environment: str) -> Process:
        process = Process(**environment)
        request.addfinalizer(process.end)
        return process

    return start_one


def arm(folder: Path, text: str) -> None:
    aside = folder / "aside"
    aside.write_text(text)
    aside.replace(folder / ARMED_FILE)


FULL, KILLED = str(errno.ENOSPC), str(-signal.SIGKILL)


def test_nothing_happens_where_nothing_is_armed(start) -> None:
    assert start().reaches("queue.spill") == "nothing"


def test_environment_arms_a_number_of_failures_over_all_processes(start, tmp_path: Path) -> None:
    armed = {ENVIRONMENT: f"queue.spill=error@{tmp_path}*3"}
    first = start(**armed)
    assert [first.reaches("queue.spill"), first.reaches("log_writer.write"), first.reaches("queue.spill")] == [
        FULL,
        "nothing",
        FULL,
    ]
    assert fired_count(tmp_path, "queue.spill") == 2
    second = start(**armed)
    assert [second.reaches("queue.spill") for _ in range(3)] == [FULL, "nothing", "nothing"]
    assert fired_count(tmp_path, "queue.spill") == 3


def test_killed_process_leaves_its_mark(start, tmp_path: Path) -> None:
    process = start(**{ENVIRONMENT: f"apply.after_commit=kill@{tmp_path}"})
    assert process.reaches("apply.after_commit") == KILLED
    assert fired_count(tmp_path, "apply.after_commit") == 1


def test_file_arms_and_disarms_a_running_process(start, tmp_path: Path) -> None:
    process = start(**{FOLDER_ENVIRONMENT: str(tmp_path)})
    assert process.reaches("queue.spill") == "nothing"
    arm(tmp_path, f"queue.spill=error@{tmp_path / 'first'}*2")
    assert [process.reaches("queue.spill") for _ in range(3)] == [FULL, FULL, "nothing"]
    arm(tmp_path, f"queue.spill=error@{tmp_path / 'second'};queue.after_enqueue=kill@{tmp_path / 'second'}")
    assert process.reaches("queue.spill") == FULL
    (tmp_path / ARMED_FILE).unlink()
    assert process.reaches("queue.after_enqueue") == "nothing"
    assert fired_count(tmp_path / "first", "queue.spill") == 2
    assert fired_count(tmp_path / "second", "queue.spill") == 1


def test_file_and_environment_arm_together(start, tmp_path: Path) -> None:
    process = start(**{ENVIRONMENT: f"queue.spill=error@{tmp_path}", FOLDER_ENVIRONMENT: str(tmp_path)})
    arm(tmp_path, f"log_writer.write=error@{tmp_path}")
    assert [process.reaches("queue.spill"), process.reaches("log_writer.write")] == [FULL, FULL]


def test_unknown_name_is_refused(start, tmp_path: Path) -> None:
    assert start(**{ENVIRONMENT: "queue.spil=error"}).reaches("queue.spill") == "1"


def called_names() -> set[str]:
    found = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if "failpoint" not in (text := file.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
                    (argument,) = node.args
                    assert isinstance(argument, ast.Constant), f"{file}: a failpoint's name must be a literal"
                    found.add(str(argument.value))
    return found


def test_every_failpoint_is_called_and_every_call_has_a_failpoint() -> None:
    assert called_names() == set(FAILPOINTS)
