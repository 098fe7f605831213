"""The small processes that stand in for two of Ray's."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray.core.generated.common_pb2 import Language

from actors.cluster import ray_stand_in
from tests.support.clusters.system import wait_until

_STAND_IN = [sys.executable, "-I", "-S", ray_stand_in.__file__]
_TIMEOUT_S = 60.0  # each process starts and ends in less than a second

# Starts two children, prints their ids, and becomes the watch, as Ray's first process does.
_FIRST = """
import os, subprocess, sys
children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]) for _ in range(2)]
print(*(child.pid for child in children), flush=True)
os.execv(sys.argv[1], [*sys.argv[1:], "watch", *(f"--{name}={child.pid}" for name, child in zip(("raylet", "gcs"), children))])
"""


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def first() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", _FIRST, *_STAND_IN], stdout=subprocess.PIPE, text=True)


def _children(first: subprocess.Popen[str]) -> list[int]:
    assert first.stdout is not None
    with first.stdout:
        return [int(pid) for pid in first.stdout.readline().split()]


@pytest.mark.parametrize("killed", [0, 1])
def test_watch_ends_its_other_process_and_fails_when_one_ends(first: subprocess.Popen[str], killed: int) -> None:
    children = _children(first)
    wait_until("the watch runs", lambda: "watch" in psutil.Process(first.pid).cmdline(), _TIMEOUT_S)
    os.kill(children[killed], signal.SIGKILL)
    assert first.wait(_TIMEOUT_S) == 1
    wait_until("both have ended", lambda: not any(_is_alive(pid) for pid in children), _TIMEOUT_S)


def test_watch_that_is_terminated_ends_both_processes(first: subprocess.Popen[str]) -> None:
    children = _children(first)
    wait_until("the watch runs", lambda: "watch" in psutil.Process(first.pid).cmdline(), _TIMEOUT_S)
    # SIGTERM ends the watch at once before it has its handlers; the caller then ends the rest (`actors.cluster.local`).
    wait_until("the watch handles SIGTERM", lambda: _handles_sigterm(first.pid), _TIMEOUT_S)
    first.terminate()
    assert first.wait(_TIMEOUT_S) == 0
    assert not any(_is_alive(pid) for pid in children)


def _handles_sigterm(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_agent_reports_no_port_and_ends_with_its_raylet(tmp_path: Path) -> None:
    started = (
        "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); sys.stdin.read()"
    )
    raylet = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            started,
            *_STAND_IN,
            "agent",
            "ray/dashboard/agent.py",
            "--node-id=ab12",
            f"--session-dir={tmp_path}",
            "--minimal",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert raylet.stdin is not None
    assert raylet.stdout is not None
    with raylet.stdin, raylet.stdout:
        agent = int(raylet.stdout.readline())
        names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
        files = [tmp_path / f"{name}_ab12" for name in names]
        wait_until("the ports are told", lambda: all(file.exists() for file in files), _TIMEOUT_S)
        assert {file.read_text() for file in files} == {"-1"}
        assert _is_alive(agent)
        raylet.kill()
        raylet.wait(_TIMEOUT_S)
    wait_until("the agent has ended", lambda: not _is_alive(agent), _TIMEOUT_S)


_WORKER = ["-Dray.address=127.0.0.1:1", "-Xmx512M", "-cp", "a.jar:b.jar", "io.ray.runtime.runner.worker.DefaultWorker"]


@pytest.mark.parametrize("own", [["--language=JAVA"], ["--language=JAVA", "--serialized-runtime-env-context={}"]])
def test_java_worker_becomes_the_jvm_that_ray_would_start(own: list[str]) -> None:
    command = ray_stand_in.java_command(["/ray/setup_worker.py", "/ray/jars", *_WORKER, *own])
    assert command == ["java", "-cp", "/ray/jars/*:", *_WORKER]
    context = RuntimeEnvContext.deserialize("{}")
    with pytest.MonkeyPatch.context() as patched:
        executed: list[list[str]] = []
        patched.setattr(os, "execvp", lambda _, args: executed.append(args))
        context.exec_worker(list(_WORKER), Language.JAVA)
    (theirs,) = executed
    assert [shlex.split(theirs[2])[0], *shlex.split(theirs[2])[3:]] == [command[0], *command[3:]]
    assert shlex.split(theirs[2])[2].endswith("/jars/*:")


def test_java_worker_with_a_runtime_environment_is_set_up_by_ray() -> None:
    given = [*_WORKER, "--language=JAVA", '--serialized-runtime-env-context={"env_vars": {"A": "b"}}']
    assert ray_stand_in.java_command(["/ray/setup_worker.py", "/ray/jars", *given]) == [
        sys.executable,
        "/ray/setup_worker.py",
        *given,
    ]
