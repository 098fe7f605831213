"""The private Ray cluster: found again, on loopback only, ended completely, cleaned up after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.cluster.local import LocalCluster
from spark_apply.application.environment import LOOPBACK

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ENDED_S = 300.0  # bounds a program that starts and ends clusters; each takes seconds on a quiet machine


@pytest.fixture
def state_dir():
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-cluster-"))
    yield folder
    LocalCluster(folder).stop()
    shutil.rmtree(folder)


FOREIGN = {
    "RAY_ADDRESS": "10.255.0.1:6379",
    "SPARK_HOME": "/nonexistent",
    "PYSPARK_DRIVER_PYTHON": "/bin/false",
    "HADOOP_CONF_DIR": "/x",
}
USERS_TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def started() -> Iterator[LocalCluster]:
    """Start a cluster whose caller also uses another Ray, with a token in the home folder, and another Spark.

    The tests use the cluster one after the other.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-cluster-"))
    (folder / "home" / ".ray").mkdir(parents=True)
    (folder / "home" / ".ray" / "auth_token").write_text(USERS_TOKEN)
    cluster = LocalCluster(folder / "state", cpus=1, resources={"site_a": 5.0})
    cluster.state_dir.mkdir()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**FOREIGN, "HOME": str(folder / "home")}.items():
                patch.setenv(name, value)
            cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def test_cluster_is_found_again_and_serves_loopback_only(started):
    again = LocalCluster(started.state_dir)
    assert again.start() == again.address() == started.address() is not None
    processes = started.processes()
    assert {"gcs_server", "raylet"} <= {process.name for process in processes}
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    assert Path(started.facts().temporary).parent.stat().st_mode & 0o077 == 0


def _command_line(pid: int) -> list[str]:
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []  # just ended


def test_cluster_refuses_callers_without_its_token_or_with_the_users_own(started):
    """A user who runs Ray elsewhere has a token in the home folder. By default Ray uses it for every cluster."""
    program = "import sys; from actors.hosting.runtime import connect; print(connect(sys.argv[1], 't').names())"
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | LOOPBACK
    own["HOME"] = str(started.state_dir.parent / "home")

    def answer(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, started.address()],
            env=environment,
            capture_output=True,
            text=True,
            timeout=ENDED_S,
            check=False,
        )

    token = started.state_dir / "ray_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text() != USERS_TOKEN
    assert token.read_text() not in " ".join(
        word for process in started.processes() for word in _command_line(process.pid)
    )
    known = answer(own | started.client_environment())
    assert (known.returncode, known.stdout.strip()) == (0, "set()"), known.stderr
    refused = answer(own)
    assert refused.returncode != 0
    assert "oken" in refused.stderr


def test_callers_other_ray_and_spark_do_not_become_the_clusters(started):
    environment = psutil.Process(started.facts().processes[0].pid).environ()
    assert not {name for name, value in FOREIGN.items() if environment.get(name) == value}
    assert environment["PYSPARK_PYTHON"] == sys.executable


def test_cluster_ends_completely_and_its_start_cleans_up_after_a_crash(started):
    """This is the last test of that cluster."""
    processes, temporary, address = started.processes(), started.facts().temporary, started.address()
    LocalCluster(started.state_dir).stop()
    assert [process.pid for process in processes if psutil.pid_exists(process.pid)] == []
    assert not Path(temporary).parent.exists()
    assert not (started.state_dir / "ray_token").exists()
    assert started.address() is None
    started.stop()

    again = started.start()
    assert again != address
    first = started.facts().processes[0]
    os.kill(first.pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.wait_procs([psutil.Process(first.pid)], timeout=ENDED_S)
    assert started.address() is None
    survivors = {process.pid for process in started.processes()}
    assert started.start() != again
    assert not survivors & {process.pid for process in psutil.process_iter()}


def test_recycled_process_id_is_not_ended(state_dir):
    cluster = LocalCluster(state_dir)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        facts = {
            "address": "127.0.0.1:1",
            "temporary": str(state_dir / "nothing" / "r"),
            "ready": True,
            "processes": [
                {"pid": bystander.pid, "created": psutil.Process(bystander.pid).create_time() - 100, "name": "ray"}
            ],
        }
        cluster.file.write_text(json.dumps(facts))
        assert cluster.address() is None
        cluster.stop()
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")


@pytest.mark.soak
def test_process_returns_from_another_cluster_by_the_address_alone(state_dir, tmp_path_factory):
    """This happens when `headrace up --address` of a second topology runs in a process that used a third topology's
    cluster.
    """
    other_dir = tmp_path_factory.mktemp("other")
    program = """
        import sys
        from pathlib import Path
        from actors.cluster.local import LocalCluster
        from actors.hosting.runtime import connect, prepare_process

        clusters = [LocalCluster(Path(folder), cpus=1) for folder in sys.argv[1:]]
        addresses = [cluster.start() for cluster in clusters]
        for cluster, address in zip(clusters, addresses, strict=True):
            prepare_process(address, cluster.client_environment())
            assert connect(address, "t").names() == set()
        prepare_process(addresses[0], {})
        assert connect(addresses[0], "t").names() == set()
        clusters[1].stop()
        prepare_process(addresses[0], {})
        print(connect(addresses[0], "t").names())
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(state_dir), str(other_dir)],
            capture_output=True,
            text=True,
            timeout=ENDED_S,
            check=False,
        )
    finally:
        for folder in (state_dir, other_dir):
            LocalCluster(folder).stop()
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.soak  # tests/faults/test_actors_killed.py kills the actors of a topology
def test_actor_survives_the_death_of_its_process_with_its_state(state_dir):
    """Runs in its own process: ray reads the address rules from the environment in which it was imported."""
    program = """
        import contextlib, os, signal, sys, time
        from pathlib import Path
        from types import SimpleNamespace
        from actors.hosting.runtime import connect, prepare_process
        from actors.cluster.local import LocalCluster
        from headrace.base.errors import PropagationError, ConfigError

        ANSWERED_S = 60.0  # an answer takes milliseconds, unless the machine stalls
        state_dir = Path(sys.argv[1])
        cluster = LocalCluster(state_dir, cpus=2)
        address = cluster.start()
        prepare_process(address, cluster.client_environment())
        actors = connect(address, "t")
        arguments = {"spec": SimpleNamespace(state_dir=state_dir), "name": "r", "fingerprint": "f"}
        where = {"process": "site:r", "state_dir": state_dir, "node": {}, "environment": {}}
        actors.create("site:r", "actors.intermediate_database:build", arguments, **where)
        actors.create("site:r", "actors.intermediate_database:build", arguments, **where)
        assert actors.names() == {"site:r"}
        actors.call("site:r", "stop_component", timeout_s=ANSWERED_S)
        pid = actors.pid("site:r")
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 150  # Ray restarts an actor within seconds
        while True:
            assert time.monotonic() < deadline
            try:
                if actors.pid("site:r") != pid and actors.call("site:r", "status")["state"] == "DISABLED":
                    break
            except PropagationError:
                pass
            time.sleep(0.1)
        answers = actors.call_all(["site:r", "site:nobody"], "status", timeout_s=ANSWERED_S)
        assert answers["site:r"]["fingerprint"] == "f"
        assert isinstance(answers["site:nobody"], PropagationError)
        try:
            actors.call("site:r", "endpoint")
        except Exception as error:
            assert type(error).__name__ == "BugError", error
        actors.kill("site:r")

        # Two that share a process: one is ended and created again alone, both come back when it is killed, and it goes with the last.
        def create(name):
            itself = {**arguments, "name": name.partition(":")[2]}
            actors.create(name, "actors.intermediate_database:build", itself, **{**where, "process": "shared"})

        def wait_for(holds):
            deadline = time.monotonic() + 150  # Ray restarts an actor within seconds
            while True:
                with contextlib.suppress(PropagationError):
                    if holds():
                        return
                assert time.monotonic() < deadline
                time.sleep(0.1)

        for name in ("site:a", "site:b"):
            create(name)
        wait_for(lambda: actors.pid("site:a") == actors.pid("site:b"))
        assert actors.processes()["shared"] == {"site:a", "site:b"}
        pid = actors.pid("site:b")
        started = actors.call("site:b", "status", timeout_s=ANSWERED_S)["started_us"]
        actors.kill("site:a")
        wait_for(lambda: actors.names() == {"site:b"})
        create("site:a")
        wait_for(lambda: actors.call("site:a", "status")["state"] == "READY")
        assert actors.pid("site:a") == actors.pid("site:b") == pid
        assert actors.call("site:b", "status", timeout_s=ANSWERED_S)["started_us"] == started
        os.kill(pid, signal.SIGKILL)
        for name in ("site:a", "site:b"):
            wait_for(lambda: actors.pid(name) != pid and actors.call(name, "status")["state"] == "READY")
        for name in ("site:a", "site:b"):
            actors.kill(name)
        wait_for(lambda: not actors.names() and not actors.processes())

        # Ended orderly by whom dies before the process has ended: created again it runs, in another process.
        create("site:a")
        wait_for(lambda: actors.call("site:a", "status")["state"] == "READY")
        pid = actors.pid("site:a")
        actors._kill_process = lambda process: None
        actors.end(["site:a"], timeout_s=ANSWERED_S)
        del actors._kill_process
        assert not actors.names() and actors.processes() == {"shared": set()}

        def is_created():
            create("site:a")
            return actors.call("site:a", "status")["state"] == "READY" and actors.pid("site:a") != pid

        wait_for(is_created)
        actors.end(["site:a", "site:nobody"], timeout_s=ANSWERED_S)
        wait_for(lambda: not actors.names() and not actors.processes())
        print("well")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(state_dir)],
        capture_output=True,
        text=True,
        timeout=2 * ENDED_S,
        check=False,
    )
    assert done.stdout == "well\n", done.stderr
