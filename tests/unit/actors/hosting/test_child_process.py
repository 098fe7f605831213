"""The owner of a process reports why it ended, in the process's own words; here the process is a small script."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from actors.hosting.child_process import ChildEnded, ChildProcess, ChildRefused

START_S = 30.0  # a Python process starts in a tenth of a second


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChildProcess:
    """The child runs `tmp_path/program`, a shell script that a test writes."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    return make(tmp_path)


def make(folder: Path) -> ChildProcess:
    return ChildProcess(
        "spark:b", "the Spark application", module="m", file=folder / "child.json", log=folder / "child.log"
    )


def script(folder: Path, *lines: str) -> None:
    program = folder / "program"
    program.write_text("\n".join(["#!/bin/sh", "read -r configuration", *lines]) + "\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("retry", "kind"), [("timed", ChildEnded), ("manual", ChildRefused), ("never", ChildRefused)])
def test_error_of_a_process_that_ends_before_it_serves_is_reported(
    child: ChildProcess, tmp_path: Path, retry: str, kind: type[ChildEnded | ChildRefused]
):
    words = {"error": "SparkUnavailable", "message": "no room", "hint": "make room", "retry": retry}
    script(tmp_path, f"echo '{json.dumps(words)}'", "exit 1")
    child.start("{}")
    with pytest.raises(kind, match="SparkUnavailable: no room") as told:
        child.first_answer(START_S, lambda: True)
    child.end()
    assert told.value.hint == "make room"


def test_process_that_ends_without_an_error_names_its_code_and_its_log(child: ChildProcess, tmp_path: Path):
    script(tmp_path, "echo '[1]'", "echo not json", "exit 7")
    child.start("{}")
    with pytest.raises(ChildEnded, match="ended with code 7") as told:
        child.first_answer(START_S, lambda: True)
    child.end()
    assert "child.log" in told.value.hint


def test_process_of_an_earlier_life_is_gone_before_the_next_one_starts(child: ChildProcess, tmp_path: Path):
    script(tmp_path, 'echo \'{"endpoint": "a:1"}\'', "read -r nothing")
    child.start("{}")
    assert child.first_answer(START_S, lambda: True) == {"endpoint": "a:1"}
    older = psutil.Process(child.pid)
    after = make(tmp_path)
    child._process.stdin.close()  # as the kernel does when the owner is killed
    after.start("{}")
    assert not older.is_running() or older.status() == psutil.STATUS_ZOMBIE
    after.end()
    child.end()
    assert after.pid == 0


def test_copied_folder_does_not_end_the_process_of_the_original(child: ChildProcess, tmp_path: Path):
    original, copy = tmp_path / "one", tmp_path / "two"
    script(tmp_path, 'echo \'{"endpoint": "a:1"}\'', "read -r nothing")
    one = make(original)
    one.start("{}")
    assert one.first_answer(START_S, lambda: True) == {"endpoint": "a:1"}
    shutil.copytree(original, copy)
    two = make(copy)
    two.start("{}")
    assert one.pid
    two.end()
    # A folder that was moved while its owner was dead keeps its process.
    older = psutil.Process(one.pid)
    original.rename(tmp_path / "three")
    one._process.stdin.close()
    three = make(tmp_path / "three")
    three.start("{}")
    assert not older.is_running() or older.status() == psutil.STATUS_ZOMBIE
    three.end()
    one.end()


def test_clock_step_and_older_file_do_not_hide_an_earlier_lifes_process(
    child: ChildProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script(tmp_path, 'echo \'{"endpoint": "a:1"}\'', "read -r nothing")
    real = psutil._pslinux.boot_time
    for is_earlier in (False, True):
        before = make(tmp_path)
        before.start("{}")
        older = psutil.Process(before.pid)
        if is_earlier:
            (tmp_path / "child.json").write_text(json.dumps({"pid": before.pid, "created": older.create_time()}))
        else:
            monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: real() + 1)
        before._process.stdin.close()
        after = make(tmp_path)
        after.start("{}")
        assert not older.is_running() or older.status() == psutil.STATUS_ZOMBIE
        for each in (after, before):
            each.end()
