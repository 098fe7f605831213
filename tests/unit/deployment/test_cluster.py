"""cluster.yaml and cluster.local.yaml: `ray up` accepts them, Java is where RayDP looks for it, and each site has its
node.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from actors.cluster.nodes import placement
from topology.file.reading import examine

ROOT = Path(__file__).parents[3]


FILES = ("cluster.yaml", "cluster.local.yaml")


@pytest.fixture(scope="module", params=FILES)
def file(request):
    return ROOT / request.param


@pytest.fixture(scope="module")
def cluster(file):
    return yaml.safe_load(file.read_text())


def start_of(cluster, commands):
    return next(command for command in cluster[commands] if "ray start" in command)


def option(command, name):
    found = re.search(rf"{name}=(\S+)", command)
    assert found is not None, command
    return found[1]


def exports_of(cluster, commands):
    """The exports before `ray start`, which follows the `ulimit`; the environment in the home folder stands for this
    one.
    """
    return re.split(r" && (?:\{ )?ulimit", start_of(cluster, commands))[0].replace(
        "~/headrace-env/bin", str(Path(sys.executable).parent)
    )


def test_ray_up_accepts_the_file(cluster):
    """The two steps that `ray up` takes before it asks the provider for nodes."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster))


def test_validation_refuses_a_key_that_ray_does_not_know(cluster):
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(ValidationError):
        validate_config(prepare_config({**cluster, "worker_start_commands": []}))


def test_cloud_has_a_node_with_its_custom_resource_for_every_site():
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    nodes = {name: node for name, node in cluster["available_node_types"].items() if name != cluster["head_node_type"]}
    assert nodes
    assert all(node["min_workers"] >= 1 and name in node["resources"] for name, node in nodes.items())
    assert cluster["max_workers"] >= sum(node["min_workers"] for node in nodes.values())


def test_own_machine_offers_the_resource_of_the_site_in_its_file(tmp_path):
    """Ray starts every machine with the same command; what the machine's shell makes of it is what `ray start` gets."""
    cluster = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
    site = tmp_path / "site"
    site.write_text("dbs1\n")
    start = start_of(cluster, "worker_start_ray_commands").replace("/etc/headrace/site", str(site))
    options = start[start.index("--resources") :]
    told = subprocess.run(["bash", "-c", f"printf %s {options}"], capture_output=True, text=True, check=True).stdout
    assert json.loads(told.removeprefix("--resources=")) == {"site_dbs1": 1}
    assert "--resources" not in start_of(cluster, "head_start_ray_commands")


def test_all_own_machines_become_nodes():
    from ray.autoscaler._private.util import prepare_config

    cluster = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
    (prepared,) = prepare_config(cluster)["available_node_types"].values()
    assert prepared["min_workers"] == prepared["max_workers"] == len(cluster["provider"]["worker_ips"])


@pytest.mark.parametrize("name", FILES)
def test_node_offers_enough_of_its_resource_for_every_actor_of_its_site(name):
    """A node that offers 1 has room for a thousand actors."""
    topology = next(line.removeprefix("#") for line in (ROOT / name).read_text().splitlines() if "node: {" in line)
    (site,) = yaml.safe_load(topology).values()
    assert all(amount <= 1 for amount in placement(site["node"]).values())


@pytest.mark.parametrize("name", FILES)
def test_topology_in_the_file_has_certificates_for_its_nodes(name, tmp_path):
    shown = [line.removeprefix("#   ") for line in (ROOT / name).read_text().splitlines() if line.startswith("#   ")]
    (tmp_path / "hr.yaml").write_text(
        "\n".join(["topology: hr", *shown, "  dbs2: {database: {kind: embedded}, node: {site_dbs2: 1}}"])
    )
    found = examine(tmp_path / "hr.yaml", {"DBS1_DSN": "postgresql://headrace@one/app"})
    assert [each for each in found.findings if each.is_error] == []
    assert [site.tls is not None for site in found.topology().sites] == [True, True]


@pytest.mark.parametrize("name", FILES)
def test_state_folder_of_a_machine_belongs_to_the_user_who_runs_headrace(name):
    """Commands refuse a folder that another user owns or may write."""
    cluster = yaml.safe_load((ROOT / name).read_text())
    (made,) = (command for command in cluster["initialization_commands"] if " install -d " in command)
    options = shlex.split(made.removeprefix("sudo install ").replace("$(id -un)", "me"))
    assert options[:5] == ["-d", "-o", "1000" if "docker" in cluster else "me", "-m", "0700"]


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_ray_starts_with_java_on_its_path(cluster, commands):
    export = exports_of(cluster, commands)
    folder = Path(sys.executable).parent
    found = subprocess.run(
        ["bash", "-c", f"{export} && command -v java && echo $JAVA_HOME"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    ).stdout.split()
    assert len(found) == 2
    assert Path(found[0]) == Path(found[1]) / "bin" / "java"


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_workers_run_at_normal_priority(cluster, commands):
    """Ray's niceness of 15 is for batch jobs: next to a busy database server the workers would hardly run."""
    before = exports_of(cluster, commands).rpartition(" && ")[2]
    told = subprocess.run(
        ["bash", "-c", f"{before} && env"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "RAY_worker_niceness=0" in told
    import ray

    # Ray silently ignores a variable that it does not know.
    assert (
        b"RAY_worker_niceness"
        in (Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet").read_bytes()
    )


def test_image_has_the_ray_and_python_versions_installed_here():
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    _, _, version = cluster["docker"]["image"].partition(":")
    ray, _, python = version.partition("-py")
    assert ray.split(".")[:2] == importlib.metadata.version("ray").split(".")[:2]
    assert python == f"{sys.version_info.major}{sys.version_info.minor}"


def test_own_machines_get_the_python_version_installed_here():
    cluster = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
    assert any(
        f"python{sys.version_info.major}.{sys.version_info.minor} -m venv ~/headrace-env" in command
        for command in cluster["setup_commands"]
    )


def test_file_carries_no_secret(file):
    words = {word.lower() for word in shlex.split(file.read_text().replace("'", " ").replace('"', " "), comments=False)}
    assert not {word for word in words if "password" in word or "secret" in word or "ssh_private_key" in word}


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_asks_for_the_token(cluster, commands, tmp_path):
    before = exports_of(cluster, commands).rpartition(" && ")[2]
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a token")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    told = subprocess.run(
        ["bash", "-c", f"{before} && env"], capture_output=True, text=True, check=True, env=environment
    ).stdout.splitlines()
    assert "RAY_AUTH_MODE=token" in told
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"  # where Ray looks for it
    assert "chmod 600 ~/.ray/auth_token" in cluster["setup_commands"]


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_other_users_of_an_own_machine_cannot_reach_rays_sockets_and_logs(commands, tmp_path):
    command = start_of(yaml.safe_load((ROOT / "cluster.local.yaml").read_text()), commands)
    made = next(part for part in command.split(" && ") if part.startswith("install "))
    subprocess.run(["bash", "-c", made], check=True, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    folder = Path(option(command, "--temp-dir").replace("$HOME", str(tmp_path)))
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert folder.parent != tmp_path
    assert (
        len(str(folder).replace(str(tmp_path), "/home/headrace")) < 40
    )  # a socket's name has at most a hundred characters


def test_state_folder_of_a_node_is_closed_to_other_users(cluster):
    (made,) = [command for command in cluster["initialization_commands"] if "/var/lib/headrace" in command]
    words = shlex.split(made.replace("$(id -un)", "user"))
    assert words[words.index("-m") + 1] == "0700"
    assert words[words.index("-o") + 1] in {"1000", "user"}


def test_ray_restarts_on_the_machine_where_it_ended(cluster):
    """Version 1 of the autoscaler does that. Version 2 ends the machine, and counts the head among the nodes on own
    machines.

    `ray up` puts the variable for version 2 before the command, so the command's own variable must follow it.
    """
    from ray.autoscaler._private.util import with_envs

    (command,) = with_envs(
        [exports_of(cluster, "head_start_ray_commands")],
        {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": "i"},
    )
    told = subprocess.run(
        ["bash", "-c", f"{command} && python -c 'import ray; print(ray._config.enable_autoscaler_v2())'"],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(ROOT), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
    )
    assert told.stdout.split()[-1:] == ["False"], told.stderr


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_machine_with_a_low_limit_of_open_files_starts(commands):
    cluster = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
    found = re.search(r"&& (\{ ulimit .*?; \}) && install", start_of(cluster, commands))
    assert found is not None
    limit = found[1]
    told = subprocess.run(
        ["bash", "-c", f"ulimit -Sn 500; ulimit -Hn 1000; {limit} && ulimit -n"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["1000"]


def test_cloud_keeps_the_instance_and_the_disk_of_a_site():
    """Ray stops instances instead of terminating them, except spot instances; a disk survives the termination of its
    instance.
    """
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    assert cluster["provider"]["cache_stopped_nodes"]
    assert "-v /var/lib/headrace:/headrace" in cluster["docker"]["run_options"]
    for node in cluster["available_node_types"].values():
        assert "InstanceMarketOptions" not in node["node_config"]
        (disk,) = node["node_config"]["BlockDeviceMappings"]
        assert disk["DeviceName"] == "/dev/sda1"  # the root disk, which has /var/lib/headrace
        assert disk["Ebs"]["VolumeSize"] >= 50
        assert disk["Ebs"]["Encrypted"]
        assert disk["Ebs"]["DeleteOnTermination"] is False
        # a placeholder: AWS refuses it, and the head of the file says what to write
        assert node["node_config"]["ImageId"] == "ami-..."


def test_head_in_a_cloud_can_call_the_clouds_interface():
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    assert any("boto3" in command for command in cluster["head_setup_commands"])


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_object_store_fits_the_shared_memory_of_a_node(cluster, commands):
    size = int(option(start_of(cluster, commands), "--object-store-memory"))
    assert size >= 75 * 1024**2  # Ray's minimum
    (shared,) = [
        each.removeprefix("--shm-size=")
        for each in cluster.get("docker", {}).get("run_options", ())
        if "shm-size" in each
    ] or ["1g"]
    assert size < int(shared.removesuffix("g")) * 1024**3


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (True, "pyproject.toml"),
        (True, "headrace/cli/app.py"),
        (False, "certs/ca.key"),
        (False, "certs/dbs1.key"),
        (False, ".git/config"),
    ],
)
def test_node_gets_its_package_files_and_no_private_key(cluster, sent, path):
    """A pattern without a slash matches names in any folder, as in rsync."""
    assert cluster["file_mounts"]["~/headrace"] == "."
    patterns = cluster["rsync_exclude"]
    assert sent is not any(fnmatch.fnmatch(name, pattern) for name in Path(path).parts for pattern in patterns)
