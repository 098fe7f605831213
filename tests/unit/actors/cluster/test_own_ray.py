"""`--address auto` means the cluster of the calling user, whatever other users put on their command lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from actors.cluster.own_ray import found_address
from headrace.base.errors import ConfigError
from tests.support.wire.attackers import NOBODY, open_folder

# Reports that it runs, under the name it was given, and stays until its input closes.
_NODE = """
import os, sys
user = int(sys.argv[1])
if user >= 0:
    os.setgroups([]); os.setgid(user); os.setuid(user)
print("runs", flush=True)
sys.stdin.read()
"""


_nodes: list[psutil.Process] = []


@pytest.fixture(autouse=True)
def no_other_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address is set, and the other processes of this machine are ignored."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(_nodes))


@contextmanager
def node(folder: Path, *words: str, user: int = -1) -> Iterator[None]:
    """A process that looks like Ray's node manager, run by another user if one is given."""
    program = folder / "raylet"
    if not program.exists():
        program.symlink_to(Path(sys.executable).resolve())
    process = subprocess.Popen(
        [str(program), "-I", "-c", _NODE, str(user), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        _nodes.append(psutil.Process(process.pid))
        yield
    finally:
        _nodes.pop()
        process.communicate("")


def test_auto_finds_the_node_that_this_user_started(tmp_path: Path):
    with node(tmp_path, "--gcs-address=10.0.0.1:6379", "--temp_dir=/tmp/ray"):
        assert found_address("auto") == "10.0.0.1:6379"
        assert found_address("head:1") == "head:1"


def test_auto_ignores_private_clusters_of_topologies(tmp_path: Path):
    with (
        node(tmp_path, "--gcs-address=127.0.0.1:5", "--temp_dir=/tmp/headrace-ray-x/r"),
        pytest.raises(ConfigError, match="no Ray runs here that this user started") as refused,
    ):
        found_address("auto")
    assert "--address HOST:PORT" in refused.value.hint


def test_auto_needs_a_name_among_several_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"), node(tmp_path, "--gcs-address=10.0.0.2:6379"):
        with pytest.raises(ConfigError, match="several Ray clusters have nodes here") as refused:
            found_address("auto")
        assert "10.0.0.1:6379, 10.0.0.2:6379" in refused.value.message
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
        assert found_address("auto") == "10.0.0.2:6379"


@pytest.mark.parametrize("named", ["", "auto"])
def test_variable_that_names_no_cluster_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str):
    monkeypatch.setenv("RAY_ADDRESS", named)
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"):
        assert found_address("auto") == "10.0.0.1:6379"


@pytest.mark.parametrize("named", ["local", "ray://head:10001", "http://head:8265", "head"])
def test_variable_that_is_no_address_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, named: str):
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        found_address("auto")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_local_head_address_becomes_the_address_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str):
    monkeypatch.setenv("RAY_ADDRESS", f"{host}:6379")
    assert found_address("auto") == f"{host}:6379"
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"):
        assert found_address("auto") == "10.0.0.1:6379"
    with node(tmp_path, "--gcs-address=10.0.0.1:6380"):
        assert found_address("auto") == f"{host}:6379"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_auto_ignores_command_lines_of_other_users():
    with (
        open_folder() as folder,
        node(folder, "--gcs-address=10.6.6.6:6379", user=NOBODY),
        pytest.raises(ConfigError, match="no Ray runs here that this user started"),
    ):
        found_address("auto")
