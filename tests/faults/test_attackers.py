"""Attacks by another user of the machine on a running topology, and by a file in the command's folder."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.base.failpoints import FOLDER_ENVIRONMENT
from tests.support.clusters.system import System
from tests.support.wire.attackers import (
    Address,
    ask_for_variable,
    assert_spark_reads_nothing,
    listening_of,
    silent_connections,
    speak_to,
)

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

# Prints the module search path of a component created by a command in this folder.
_SEARCHED = """
import json, sys
from headrace.deployment.deployment import Deployment
from topology.file.reading import read_topology
Deployment(read_topology(sys.argv[1]), "").connect()
import ray
print(json.dumps(ray.get(ray.remote(num_cpus=0)(lambda: __import__("sys").path).remote(), timeout=120)))
"""


def processes(system: System) -> Iterator[psutil.Process]:
    """Yield every process of the topology; all of them inherit one variable."""
    assert system.spec.name
    folder = os.environ[FOLDER_ENVIRONMENT]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(FOLDER_ENVIRONMENT) == folder:
                yield process


def listening(system: System) -> list[tuple[str, Address]]:
    """Return name and address of every process of the topology for each socket that it listens on."""
    return list(listening_of(processes(system)))


def test_silent_connections_of_another_user_to_every_port_stop_nothing(one_way: System):
    found = listening(one_way)
    daemons = [process for process in processes(one_way) if "spark_apply.application.daemon" in process.cmdline()]
    with silent_connections([address for _, address in found]) as opened:
        # Short-lived sockets, such as a result's port, may be closed.
        assert {address for _, address in listening(one_way)} & {address for _, address in found} <= set(opened)
        assert {address for _, address in listening_of(daemons)} & set(opened)
        one_way.execute("src", "INSERT INTO notes VALUES (4711, 'while they are silent')")
        one_way.assert_converged(["notes"])
    one_way.execute("src", "DELETE FROM notes WHERE id = 4711")
    one_way.assert_converged(["notes"])


def test_no_port_of_a_topology_does_what_another_user_tells_it(one_way: System):
    found = listening(one_way)
    assert sum("java" in name for name, _ in found) >= 4  # the application master, the driver, two executors
    answers = ask_for_variable([address for _, address in found], FOLDER_ENVIRONMENT)
    told = [each for each in zip(found, answers, strict=True) if os.environ[FOLDER_ENVIRONMENT] in each[1]]
    assert not told
    one_way.assert_converged(["notes"])


def test_no_process_of_spark_reads_what_another_user_sends(one_way: System):
    """The ports of an application: its master's port, the driver's two, and one of each executor."""
    assert_spark_reads_nothing(listening(one_way), executors=2)
    # Every user of the machine can read command lines.
    files = list(one_way.spec.state_dir.rglob("executor.options"))
    secrets = {file.read_text().splitlines()[0].partition("=")[2] for file in files}
    assert secrets
    assert "" not in secrets
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    lines = []
    for process in processes(one_way):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    assert any("executor.options" in line for line in lines)
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    one_way.assert_converged(["notes"])


def test_no_port_serves_another_user_who_speaks_the_components_protocol(one_way: System):
    spec = one_way.spec
    (capture,), (propagation,), (apply,) = spec.captures, spec.propagations, spec.applies
    calls = [(method, spec.name, capture.name, "src", "src") for method in ("Watch", "Checkpoint", "Ship")]
    calls += [
        ("Enqueue", spec.name, capture.name, capture.queue, "src"),
        ("Enqueue", spec.name, propagation.name, apply.queue, "src"),
    ]
    calls += [
        ("Dequeue", spec.name, propagation.name, capture.queue, "src"),
        ("Dequeue", spec.name, apply.name, apply.queue, "src"),
    ]
    ports = {address[1]: name for name, address in listening(one_way)}
    secured, served = speak_to(list(ports), calls)
    assert not served
    assert len(secured) >= 5, "the redo of src, two queues, the apply process and its Spark application"
    one_way.assert_converged(["notes"])


def test_components_search_no_modules_in_the_folder_of_the_command(one_way: System, tmp_path: Path):
    (tmp_path / "types.py").write_text("raise SystemExit('a file of the folder that the command ran in')")
    script = tmp_path / "script" / "look.py"
    script.parent.mkdir()
    script.write_text(_SEARCHED)
    answer = subprocess.run(
        [sys.executable, str(script), str(one_way.spec.file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    searched = json.loads(answer.stdout.splitlines()[-1])
    assert searched
    assert not [path for path in searched if Path(path).is_relative_to(tmp_path)]
