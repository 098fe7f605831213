"""cluster.yaml is what `ray up` takes, and puts Java where RayDP looks for it."""

from __future__ import annotations

import importlib.metadata
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster():
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_ray_up_accepts_the_file(cluster):
    """The two steps `ray up` takes before it asks the provider for nodes."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster))


def test_the_validation_refuses_a_key_ray_does_not_know(cluster):
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(ValidationError):
        validate_config(prepare_config({**cluster, "worker_start_commands": []}))


def test_every_site_has_a_node_with_its_custom_resource(cluster):
    nodes = {name: node for name, node in cluster["available_node_types"].items() if name != cluster["head_node_type"]}
    assert nodes
    assert all(node["min_workers"] >= 1 and name in node["resources"] for name, node in nodes.items())
    assert cluster["max_workers"] >= sum(node["min_workers"] for node in nodes.values())


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_ray_starts_with_java_on_its_path(cluster, commands):
    start = next(command for command in cluster[commands] if "ray start" in command)
    export = start.partition(" && ulimit")[0]
    folder = Path(sys.executable).parent
    found = subprocess.run(
        ["bash", "-c", f"{export} && command -v java && echo $JAVA_HOME"], capture_output=True, text=True, check=True,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    ).stdout.split()
    assert len(found) == 2
    assert Path(found[0]) == Path(found[1]) / "bin" / "java"


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_workers_run_at_normal_priority(cluster, commands):
    """Ray's 15 is for batch jobs: beside a busy database server they would hardly run."""
    start = next(command for command in cluster[commands] if "ray start" in command)
    before = start.partition(" && ulimit")[0].rpartition(" && ")[2]
    told = subprocess.run(["bash", "-c", f"{before} && env"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "RAY_worker_niceness=0" in told
    import ray

    # A variable that Ray does not know would be ignored in silence.
    assert b"RAY_worker_niceness" in (Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet").read_bytes()


def test_the_image_has_the_ray_and_the_python_that_are_installed_here(cluster):
    _, _, version = cluster["docker"]["image"].partition(":")
    ray, _, python = version.partition("-py")
    assert ray.split(".")[:2] == importlib.metadata.version("ray").split(".")[:2]
    assert python == f"{sys.version_info.major}{sys.version_info.minor}"


def test_the_file_carries_no_secret(cluster):
    text = (ROOT / "cluster.yaml").read_text()
    words = {word.lower() for word in shlex.split(text.replace("'", " ").replace('"', " "), comments=False)}
    assert not {word for word in words if "password" in word or "secret" in word or "ssh_private_key" in word}
