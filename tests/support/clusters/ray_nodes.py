"""A Ray cluster of several nodes on this machine.

Each node has its own address, processes and, where the system allows it, disk.

Nodes are started with `ray start`. For a node's processes alone, its folder is mounted in place of the topology's state
folder, and another one in place of /tmp. So a component that used files of another machine would not find them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from actors.cluster.local import HOST
from actors.cluster.ray_head import HOOK
from actors.hosting.runtime import disconnect, prepare_process
from spark_apply.application.environment import java_environment
from tests.support.clusters.system import wait_until

__all__ = ["RayNode", "RayNodes", "has_own_disks", "kill"]

HEAD = "head"
# Not 127.0.0.1: in a cluster of several nodes Ray replaces it by this machine's outer address.
HEAD_ADDRESS = "127.0.0.2"
MARK = "HEADRACE_TEST_NODE"  # environment of every process of a node
STARTED_S = 240.0  # 5 s on an idle machine
# Ray gives a node half a minute to start, which may be too little on a machine that is busy with other tests
TRIES_MAX = 3
_TOO_SLOW = "timed out during startup"
ENDED_S = 20.0  # Ray ends a node's workers within seconds; then the rest is killed
OBJECT_STORE_BYTES = 80_000_000  # nearly Ray's minimum; it is not used
# Idle workers end, and Ray's allocators keep less: as on a private cluster.
_LEAN = {
    "RAY_num_workers_soft_limit": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    "MALLOC_ARENA_MAX": "2",
    "RAY_worker_niceness": "0",
}
# An ending `ray start --block` waits this long for its actors to be idle, which Headrace's never are; `ray stop` does
# not wait.
_AT_ONCE = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
# A node that refuses connections five times is gone after 5 s (by default after 15, as Ray asks every 3 s); a slow one
# gets more than Ray's 10 s to answer.
_PATIENT = {"RAY_health_check_timeout_ms": "60000", "RAY_health_check_period_ms": "1000"}
_PROJECT = Path(__file__).resolve().parents[3]
_FOREIGN = ("RAY_", "SPARK_", "PYSPARK_", "JAVA_OPTS")
_MOUNTS = """
set -e
own_state=$1 state=$2 own_tmp=$3 folder=$4 project=$5
shift 5
mkdir -p "$own_tmp$folder"
mount --bind "$folder" "$own_tmp$folder"
case $project in /tmp/*)  # a checkout in /tmp is every node's
    mkdir -p "$own_tmp$project"
    mount --bind "$project" "$own_tmp$project"
esac
mount --rbind "$own_tmp/tmp" /tmp
mount --bind "$own_state" "$state"
exec "$@"
"""


@functools.cache
def _isolated() -> tuple[str, ...]:
    """Return the command that gives a program its own mounts; empty: this user may not do that here."""
    for command in (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")):
        with contextlib.suppress(OSError):
            if (
                subprocess.run(
                    [*command, "mount", "--bind", "/tmp", "/tmp"], capture_output=True, check=False
                ).returncode
                == 0
            ):
                return command
    return ()


def has_own_disks() -> bool:
    """Return whether every node has its own files."""
    return bool(_isolated())


def kill(processes: Iterable[psutil.Process]) -> int:
    """SIGKILL processes; return how many still lived."""
    killed = list(processes)
    for process in tuple(killed):
        try:
            process.kill()
        except psutil.Error:
            killed.remove(process)
    psutil.wait_procs(killed, timeout=1.0)
    return len(killed)


class RayNode:
    """One node: a head, or a site's node.

    Args:
        cluster: its cluster.
        name: of the node; it offers the resource site_<name>, unless it is the head.
        address: of the node.
    """

    def __init__(self, cluster: RayNodes, name: str, address: str) -> None:
        self._cluster, self.name, self.address = cluster, name, address
        self._process: subprocess.Popen[bytes] | None = None
        self._earlier: list[subprocess.Popen[bytes]] = []  # of frozen incarnations
        self._starts = 0

    @property
    def folder(self) -> Path:
        return self._cluster.folder / "nodes" / self.name

    @property
    def state_dir(self) -> Path:
        """Return this node's part of the state folder, as seen from outside."""
        return self._cluster.state_dir if self.name == HEAD or not has_own_disks() else self.folder / "state"

    @property
    def _mark(self) -> str:
        return f"{self._cluster.folder}:{self.name}:{self._starts}"

    def begin(self) -> None:
        """Start it; `wait_started` waits for it."""
        self._starts += 1
        self._earlier += [] if self._process is None else [self._process]
        self.state_dir.mkdir(parents=True, exist_ok=True)
        (self.folder / "own" / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        environment |= {
            **java_environment(),
            "PYSPARK_PYTHON": sys.executable,
            **_LEAN,
            **_AT_ONCE,
            **self._cluster.access,
            MARK: self._mark,
        }
        if self.name != HEAD and has_own_disks():
            environment["TMPDIR"] = "/tmp"  # its own
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env=environment | (HOOK | _PATIENT if self.name == HEAD else {}),
            )

    @property
    def _log(self) -> Path:
        return self.folder / f"start{self._starts}.log"

    @property
    def _temporary(self) -> Path:
        """A new folder for each incarnation: Ray would take a frozen node for a running head."""
        return self._cluster.folder / f"{self.name}{self._starts}"

    def _command(self) -> list[str]:
        common = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--block",
            f"--node-ip-address={self.address}",
            "--num-cpus=3",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",
            "--log-color=false",
            "--disable-usage-stats",
            "--dashboard-agent-listen-port=0",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        if self.name == HEAD:
            return [
                *common,
                "--head",
                f"--port={self._cluster.port}",
                "--include-dashboard=false",
                "--no-monitor",
                f"--temp-dir={self._temporary}",
            ]
        isolated = _isolated()
        command = [
            *common,
            f"--address={self._cluster.address}",
            f"--resources={json.dumps({f'site_{self.name}': 1})}",
            f"--temp-dir={'/tmp/r' if isolated else self._temporary}",  # the node's own /tmp
        ]
        if not isolated:
            return command
        folders = (self.state_dir, self._cluster.state_dir, self.folder / "own", self._cluster.folder, _PROJECT)
        return [*isolated, "sh", "-c", _MOUNTS, "node", *map(str, folders), *command]

    def wait_started(self) -> None:
        tries = 1

        def has_started() -> bool:
            nonlocal tries
            assert self._process is not None
            has_ended, told = self._process.poll() is not None, self._log.read_text(errors="replace")
            if has_ended and _TOO_SLOW in told and tries < TRIES_MAX:
                self.kill()
                self.begin()
                tries += 1
                return False
            assert not has_ended, f"node {self.name} did not start: {told}"
            return "Ray runtime started" in told

        wait_until(f"node {self.name} has started", has_started, STARTED_S)

    def start(self, address: str = "") -> None:
        """Start it, and wait until it has started.

        Args:
            address: its new address; empty: unchanged.
        """
        self.address = address or self.address
        self.begin()
        self.wait_started()

    def processes(self) -> list[psutil.Process]:
        """Return its processes since its last start."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> int:
        """Let the machine fail: SIGKILL everything on it. Return how many processes were killed."""
        killed, deadline = 0, time.monotonic() + STARTED_S
        while found := self.processes():
            assert time.monotonic() < deadline
            killed += kill(found)
        if self._process is not None:
            self._process.wait()
        return killed

    def freeze(self) -> list[psutil.Process]:
        """Let the machine hang: SIGSTOP everything on it, and return the processes.

        The next start is a second incarnation of the node.
        """
        frozen: dict[int, psutil.Process] = {}
        while found := [process for process in self.processes() if process.pid not in frozen]:
            for process in found:
                frozen[process.pid] = process
                with contextlib.suppress(psutil.Error):
                    process.suspend()
        self._cluster.frozen += frozen.values()
        return list(frozen.values())

    def stop(self) -> None:
        """End it as `ray stop` does; kill what is left."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDED_S)
        self.kill()
        for process in self._earlier:
            process.wait()


class RayNodes:
    """A cluster.

    Args:
        folder: of all of its nodes; its path must be short, because it holds Ray's sockets.
        state_dir: of the topology, in that folder.
    """

    def __init__(self, folder: Path, state_dir: Path) -> None:
        self.folder, self.state_dir, self.port = folder, state_dir, _free_port()
        self.nodes: dict[str, RayNode] = {}
        self.frozen: list[psutil.Process] = []  # of earlier incarnations of nodes
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        # Every user of the machine can reach Ray's ports.
        self.access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self.head = RayNode(self, HEAD, HEAD_ADDRESS)

    @property
    def address(self) -> str:
        return f"{HEAD_ADDRESS}:{self.port}"

    def __getitem__(self, name: str) -> RayNode:
        return self.nodes[name]

    def add(self, name: str) -> RayNode:
        """Add a node; it does not run yet."""
        self.nodes[name] = RayNode(self, name, f"127.0.0.{len(self.nodes) + 11}")
        return self.nodes[name]

    def remove(self, name: str) -> None:
        """End a node for good."""
        self.nodes.pop(name).kill()

    def start(self) -> None:
        """Start the head, then all nodes at once."""
        self.head.start()
        for node in self.nodes.values():
            node.begin()
        for node in self.nodes.values():
            node.wait_started()

    @contextlib.contextmanager
    def running(self, *names: str) -> Iterator[RayNodes]:
        """Run a head and nodes of these names; this process can connect to the cluster meanwhile."""
        prepare_process(self.address, self.access)
        for name in names:
            self.add(name)
        try:
            self.start()
            yield self
        finally:
            disconnect()  # Ray ends a process that lost its head node
            kill(self.frozen)
            for node in (*self.nodes.values(), self.head):
                node.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
