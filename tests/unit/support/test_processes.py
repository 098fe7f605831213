"""The check for processes that outlive a test session finds such processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.session.processes import end, is_server, left_over

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")


def test_server_is_found_by_its_inherited_environment_and_ended(tmp_path):
    marker = f"HEADRACE_TEST_MARKER={uuid.uuid4().hex}"
    program = tmp_path / "postgres"
    program.symlink_to(Path(sys.executable).resolve())
    name, _, value = marker.partition("=")
    with subprocess.Popen(
        [program, "-S", "-c", "print(flush=True); import signal; signal.pause()"],
        env={**os.environ, name: value, "PYTHONHOME": sys.base_prefix},
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        found = left_over(marker)
        assert [process.pid for process in found] == [server.pid]
        end(found)
        assert server.wait(10) == -9
    assert left_over(marker) == []


def test_process_without_the_marker_is_never_found():
    assert left_over(f"HEADRACE_TEST_MARKER={uuid.uuid4().hex}") == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([b"/opt/pg/bin/postgres", b"-D", b"/tmp/x"], True),
        ([b"/venv/bin/python", b"/venv/bin/headrace", b"up"], True),
        ([b"ray::capture"], True),
        ([b"/jdk/bin/java", b"-cp"], True),
        ([b"/usr/bin/python3", b"-m", b"pytest"], False),
        ([b"/bin/bash", b"-c", b"postgres"], False),
    ],
)
def test_servers_are_recognised_by_their_program(arguments, expected):
    assert is_server(arguments) is expected
