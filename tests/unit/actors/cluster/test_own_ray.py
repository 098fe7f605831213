"""Which cluster `--address auto` is: the one of the user who asks, whatever others say on their command lines."""

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

# Says that it runs, as whoever it is told to be, and stays for as long as its input is open.
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
    """None is named, and what else runs on this machine is not looked at."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(_nodes))


@contextmanager
def node(folder: Path, *words: str, user: int = -1) -> Iterator[None]:
    """A process as Ray's node manager shows itself, of another user where one is named."""
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


def test_the_node_that_this_user_started_is_found(tmp_path: Path):
    with node(tmp_path, "--gcs-address=10.0.0.1:6379", "--temp_dir=/tmp/ray"):
        assert found_address("auto") == "10.0.0.1:6379"
        assert found_address("head:1") == "head:1"


def test_a_private_cluster_of_a_topology_is_not_meant(tmp_path: Path):
    with (
        node(tmp_path, "--gcs-address=127.0.0.1:5", "--temp_dir=/tmp/headrace-ray-x/r"),
        pytest.raises(ConfigError, match="no Ray runs here that this user started") as refused,
    ):
        found_address("auto")
    assert "--address HOST:PORT" in refused.value.hint


def test_of_several_clusters_one_is_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"), node(tmp_path, "--gcs-address=10.0.0.2:6379"):
        with pytest.raises(ConfigError, match="several Ray clusters have nodes here") as refused:
            found_address("auto")
        assert "10.0.0.1:6379, 10.0.0.2:6379" in refused.value.message
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
        assert found_address("auto") == "10.0.0.2:6379"


@pytest.mark.parametrize("named", ["", "auto"])
def test_a_variable_that_names_none_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str):
    monkeypatch.setenv("RAY_ADDRESS", named)
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"):
        assert found_address("auto") == "10.0.0.1:6379"


@pytest.mark.parametrize("named", ["local", "ray://head:10001", "http://head:8265", "head"])
def test_a_variable_that_is_no_address_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, named: str):
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        found_address("auto")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_head_that_is_named_as_this_machine_has_the_address_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
):
    monkeypatch.setenv("RAY_ADDRESS", f"{host}:6379")
    assert found_address("auto") == f"{host}:6379"
    with node(tmp_path, "--gcs-address=10.0.0.1:6379"):
        assert found_address("auto") == "10.0.0.1:6379"
    with node(tmp_path, "--gcs-address=10.0.0.1:6380"):
        assert found_address("auto") == f"{host}:6379"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_what_another_user_says_on_a_command_line_is_no_cluster_of_this_one():
    with (
        open_folder() as folder,
        node(folder, "--gcs-address=10.6.6.6:6379", user=NOBODY),
        pytest.raises(ConfigError, match="no Ray runs here that this user started"),
    ):
        found_address("auto")
