"""The private cluster without Ray: its start on a busy machine, and the cluster and processes of a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.cluster import local
from actors.cluster.known_process import known_process
from actors.cluster.local import ClusterError, ClusterFacts, LocalCluster

TOO_LATE = (
    "the local Ray cluster did not start: Exception: The current node timed out during startup. This could"
    " happen because"
)


def test_start_is_retried_only_when_the_node_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answers: list[str] = []

    def start(cluster: LocalCluster) -> str:
        answer = answers.pop(0)
        if answer.startswith("127."):
            return answer
        raise ClusterError(answer)

    monkeypatch.setattr(LocalCluster, "_start", start)
    answers[:] = [TOO_LATE, "127.0.0.1:1"]
    assert LocalCluster(tmp_path).start() == "127.0.0.1:1"
    answers[:] = ["the port is taken", "127.0.0.1:1"]
    with pytest.raises(ClusterError, match="port is taken"):
        LocalCluster(tmp_path).start()
    answers[:] = [TOO_LATE] * local._STARTS_MAX
    with pytest.raises(ClusterError, match="timed out"):
        LocalCluster(tmp_path).start()
    assert answers == []


def test_time_out_text_is_the_one_of_the_installed_ray():
    node = Path(__import__("ray").__file__).parent / "_private" / "node.py"
    text = " ".join(node.read_text(encoding="utf-8").replace('"', " ").split())
    assert local._NODE_TIMED_OUT in text


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until the test ends."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def running(
    folder: Path, process: subprocess.Popen[bytes], temporary: str = "/nonexistent/headrace-ray-x/r"
) -> LocalCluster:
    """A cluster whose first process is `process`."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(folder)
    first = known_process(psutil.Process(process.pid))
    cluster._save(
        ClusterFacts(address="127.0.0.1:1", temporary=temporary, folder=str(folder), processes=(first,), ready=True)
    )
    (folder / "ray_token").write_text("token")
    return cluster


def test_copied_state_folder_neither_shows_nor_ends_the_original_cluster(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
):
    private = tmp_path / "headrace-ray-x"
    (private / "r").mkdir(parents=True)
    original = running(tmp_path / "one", sleeper, str(private / "r"))
    copy = LocalCluster(Path(shutil.copytree(original.state_dir, tmp_path / "two")))
    assert original.address() == "127.0.0.1:1"
    assert (copy.address(), copy.facts(), copy.processes()) == (None, None, [])
    copy.stop()
    assert sleeper.poll() is None
    assert private.exists()
    assert not copy.file.exists()
    assert original.address() == "127.0.0.1:1"
    assert original.client_environment()["RAY_AUTH_MODE"] == "token"


def test_moved_state_folder_keeps_its_cluster(tmp_path: Path, sleeper: subprocess.Popen[bytes]):
    running(tmp_path / "one", sleeper)
    (tmp_path / "one").rename(tmp_path / "two")
    assert LocalCluster(tmp_path / "two").address() == "127.0.0.1:1"
    # Another project can take the old place, with its own cluster.
    running(tmp_path / "one", sleeper, "/nonexistent/headrace-ray-y/r")
    assert LocalCluster(tmp_path / "two").address() == "127.0.0.1:1"


def test_linked_state_folder_is_the_same_folder(tmp_path: Path, sleeper: subprocess.Popen[bytes]):
    running(tmp_path / "one", sleeper)
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert LocalCluster(tmp_path / "two").address() == "127.0.0.1:1"


@pytest.mark.parametrize("keeps_log", [True, False])
def test_cluster_of_earlier_build_is_recognised_by_its_open_log(tmp_path: Path, keeps_log: bool):
    logs = tmp_path / "one" / "logs"
    logs.mkdir(parents=True)
    with (logs / "ray_start.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=log)
    try:
        original = running(tmp_path / "one", process)
        document = json.loads(original.file.read_text())
        del document["folder"]
        for each in document["processes"]:
            del each["boot"], each["ticks"]
        original.file.write_text(json.dumps(document))
        copy = LocalCluster(Path(shutil.copytree(original.state_dir, tmp_path / "two")))
        if not keeps_log:
            shutil.rmtree(copy.state_dir / "logs")
        assert (original.address(), copy.address()) == ("127.0.0.1:1", None)
        (tmp_path / "one").rename(tmp_path / "moved")
        assert LocalCluster(tmp_path / "moved").address() == "127.0.0.1:1"
    finally:
        process.communicate(b"\n")


def test_clock_step_does_not_hide_the_cluster(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """The system computes a process's start time from the current clock at every query."""
    cluster = running(tmp_path, sleeper)
    real = psutil._pslinux.boot_time
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: real() + 1)
    assert LocalCluster(tmp_path).address() == "127.0.0.1:1"
    assert [process.pid for process in cluster.processes()] == [sleeper.pid]


@pytest.mark.parametrize("changed", [{"boot": "another"}, {"ticks": 1}])
def test_reused_process_id_is_not_the_clusters(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], changed: dict[str, object]
):
    cluster = running(tmp_path, sleeper)
    document = json.loads(cluster.file.read_text())
    document["processes"][0] |= changed
    cluster.file.write_text(json.dumps(document))
    assert cluster.address() is None
    cluster.stop()
    assert sleeper.poll() is None


def test_clock_step_does_not_hide_cluster_of_earlier_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An earlier build recorded only the start time; its first process has the cluster's own folder on its command
    line.
    """
    temporary = "/nonexistent/headrace-ray-x/r"
    process = subprocess.Popen([sys.executable, "-c", "input()", f"--temp-dir={temporary}"], stdin=subprocess.PIPE)
    try:
        cluster = running(tmp_path, process, temporary)
        document = json.loads(cluster.file.read_text())
        del document["folder"], document["processes"][0]["boot"], document["processes"][0]["ticks"]
        document["processes"][0]["created"] -= 1
        cluster.file.write_text(json.dumps(document))
        assert cluster.address() == "127.0.0.1:1"
    finally:
        process.communicate(b"\n")


def test_processes_that_read_the_clusters_folder_are_not_its_processes(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
):
    """For example `tail -f` of a log there, the terminal server that started it, and everything in that server."""
    private = tmp_path / "headrace-ray-x"
    (private / "r" / "logs").mkdir(parents=True)
    log = private / "r" / "logs" / "raylet.out"
    log.touch()
    cluster = running(tmp_path / "state", sleeper, str(private / "r"))
    looks = [
        subprocess.Popen(["tail", "-f", str(log)], stdout=subprocess.DEVNULL),
        subprocess.Popen(["/bin/sh", "-c", f"true {log}; sleep 60 & wait"]),
    ]
    member = subprocess.Popen([sys.executable, "-c", "input()", f"--logs-dir={private / 'r'}"], stdin=subprocess.PIPE)
    try:
        assert {process.pid for process in cluster.processes()} == {sleeper.pid, member.pid}
    finally:
        for process in looks:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
            process.wait()
        member.communicate(b"\n")
