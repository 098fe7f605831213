"""A private Ray cluster on this machine, for topologies without the address of a cluster.

Job
    Start Ray for one state folder, find it from any process, and end it without touching any other Ray.

Main path
    LocalCluster.start -> `ray start --head --block` in a separate session -> cluster.json -> LocalCluster.stop.

States
    Not started, running. `cluster.json` in the state folder says which. It names every process
    (`actors.cluster.known_process`), so a process that reuses an id is never ended. It also names its folder: in a copied
    state folder it refers to the original's cluster, and is ignored.

Access
    Anyone who may submit work to a Ray cluster can run code as its user, and loopback ports are open to every user of the
    machine. So each start makes a token, in a file of the state folder that only its owner can read; Ray's services refuse
    callers without it. `client_environment` contains what a process needs to present it.

Durable when
    The first process is recorded before Ray can have started anything, so the next start or stop cleans up after an
    interrupted start. `ray stop` is never used: it ends every Ray on the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

from actors.cluster.known_process import KnownProcess, known_process, living
from actors.cluster.own_ray import PRIVATE
from actors.cluster.ray_head import HOOK
from actors.state_folder import make_private
from headrace.base.durable_file import replace_file
from headrace.base.errors import HeadraceError
from headrace.base.folder_place import is_copy
from spark_apply.application.environment import LOOPBACK, java_environment

__all__ = ["ClusterFacts", "LocalCluster"]

FILE = "cluster.json"
HOST = "127.0.0.1"  # a private cluster never listens to other machines
# Ray starts its workers with a low priority (15), meant for batch jobs: next to a busy database server on the same
# machine they hardly run at all (measured: a lag of seconds instead of milliseconds).
_PRIORITY = {"RAY_worker_niceness": "0"}
# Ray starts as many idle workers as it has CPUs, at about a second of CPU time each. Actors reserve no CPUs
# here (they mostly wait), so this only sets how many of them find a worker ready.
CPUS_DEFAULT = 8
OBJECT_STORE_BYTES = 100_000_000  # only small answers pass through the object store
# An unneeded worker ends. Ray would keep one per CPU forever, among them a JVM of 150 MB that it starts with every Spark
# application and never uses. It does not end at once, because components that `up` creates start in ready workers.
_IDLE = {"RAY_num_workers_soft_limit": "0", "RAY_idle_worker_killing_time_threshold_ms": "60000"}
# glibc keeps a heap for each thread that allocates, and Ray and Spark have dozens of threads that rarely allocate.
_HEAPS = {"MALLOC_ARENA_MAX": "2"}
_FOREIGN = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_AUTH_", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "JAVA_OPTS")
_START_TIMEOUT_S = 180.0  # 3 s measured on an idle machine, over a minute on an overloaded one
# Ray gives its own node 30 s, which cannot be configured, and an overloaded machine may need more. Whatever has started
# by then is ended and started anew.
_STARTS_MAX = 3
_NODE_TIMED_OUT = "node timed out during startup"
_STOP_TIMEOUT_S = 20.0  # Ray's own ordered shutdown takes 1-3 s; then the rest is killed
_POLL_S = 0.05
TOKEN_BYTES = 32  # 256 bits cannot be guessed
_STOP_ROUNDS = 3
_PROGRAMS = ("python", "java", "gcs_server", "raylet")  # of Ray, its workers and Spark
_TEMPORARY_LENGTH_MAX = 20  # of the base: a socket's path is limited to 107 bytes, of which Ray and we add 86
_LOG_TAIL_BYTES = 1500


log = logging.getLogger("headrace")


class ClusterError(HeadraceError):
    """The local Ray cluster did not start."""

    code = "HDR-7000"
    fix = "Read the log that the message names; usually a port or memory is missing."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The contents of `cluster.json`.

    Args:
        address: address of Ray's control service.
        temporary: Ray's own folder: sockets, session logs. Its unique name marks the cluster's processes.
        folder: the state folder of the cluster; empty: an earlier version started it.
        processes: recorded processes; descendants are looked up when needed.
        ready: whether the start was completed.
    """

    address: str
    temporary: str
    folder: str = ""
    processes: tuple[KnownProcess, ...] = ()
    ready: bool = False


@dataclass(slots=True)
class LocalCluster:
    """The private cluster of one state folder. Any process can control it.

    Args:
        cpus: Ray CPUs of its node.
        resources: custom resources of its node.
        secrets: names of environment variables that its processes do not get.
    """

    state_dir: Path
    cpus: int = CPUS_DEFAULT
    resources: dict[str, float] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()

    @property
    def file(self) -> Path:
        """The file with the facts."""
        return self.state_dir / FILE

    def facts(self) -> ClusterFacts | None:
        """Return the recorded facts; None: no cluster was started here, or it was stopped."""
        recorded = self._recorded(self.state_dir)
        return None if recorded is None or self._is_of_another_folder(recorded) else recorded

    def address(self) -> str | None:
        """Return the address of the running cluster, None when it does not run."""
        facts = self.facts()
        if facts is None or not facts.ready or not facts.processes:
            return None
        # The cluster lives exactly as long as its first process: when `ray start --block` ends, everything ends.
        return facts.address if _first(facts) is not None else None

    def client_environment(self) -> dict[str, str]:
        """Return the environment with which Ray's client reaches this cluster (`actors.hosting.runtime.prepare_process`)."""
        if self._token_file.exists():
            return LOOPBACK | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._token_file)}
        # Started by an earlier build, without a token. Without this setting Ray would present the user's own token to
        # the cluster.
        return LOOPBACK | {"RAY_AUTH_MODE": "disabled"}

    def start(self) -> str:
        """Start the cluster and return its address; idempotent. Cleans up after an interrupted start.

        Raises:
            ClusterError: Ray did not start; the message ends with Ray's output.
        """
        make_private(self.state_dir)
        with self._locked():
            address = self.address()
            if address is not None:
                return address
            self._stop()
            for _ in range(_STARTS_MAX - 1):
                try:
                    return self._start()
                except ClusterError as error:
                    if _NODE_TIMED_OUT not in error.message:
                        raise
                    log.warning("Ray's node was not up within 30 s, and is started again")
            return self._start()

    def stop(self) -> None:
        """End every process of the cluster and remove its temporary folder; idempotent."""
        if not self.state_dir.exists():
            return
        with self._locked():
            self._stop()

    def processes(self) -> list[KnownProcess]:
        """Return every living process of the cluster, drivers and executors included."""
        facts = self.facts()
        return [] if facts is None else _known(_members(facts))

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _recorded(folder: Path) -> ClusterFacts | None:
        """Read the file in a state folder, whichever cluster it describes."""
        try:
            document: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        processes = tuple(KnownProcess(**process) for process in document.pop("processes"))
        return ClusterFacts(processes=processes, **document)

    def _is_of_another_folder(self, recorded: ClusterFacts) -> bool:
        """Return whether the state folder is a copy, and this cluster the original's."""
        if recorded.folder:
            return is_copy(self.state_dir, recorded.folder, lambda other: _is_same(self._recorded(other), recorded))
        first = _first(recorded)
        return first is not None and _logs_elsewhere(first, self._start_log)

    @property
    def _start_log(self) -> Path:
        return self.state_dir / "logs" / "ray_start.log"

    @property
    def _token_file(self) -> Path:
        return (self.state_dir / "ray_token").absolute()

    def _write_token(self) -> None:
        """Write a new token, readable only by its owner from its first byte on."""
        self._token_file.unlink(missing_ok=True)
        descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token_hex(TOKEN_BYTES))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.state_dir / "cluster.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _save(self, facts: ClusterFacts) -> None:
        replace_file(self.file, json.dumps(asdict(facts), indent=1) + "\n")

    def _start(self) -> str:
        # A private folder; Ray's own folder is accessible to all users, so it lies inside.
        private = tempfile.mkdtemp(prefix=PRIVATE, dir=_temporary_base())
        temporary = str(Path(private) / "r")
        port = _free_port()
        address = f"{HOST}:{port}"
        facts = ClusterFacts(address=address, temporary=temporary, folder=str(self.state_dir.resolve()))
        self._save(facts)
        self._write_token()
        log = self._start_log
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as output:
            # A new session: Ctrl-C in a terminal stops the command, not the topology.
            process = subprocess.Popen(
                self._command(port, temporary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=self._environment(),
                cwd="/",
            )
        first = known_process(psutil.Process(process.pid))
        facts = replace(facts, processes=(first,))
        self._save(facts)
        try:
            self._wait_ready(process, log, address)
        except BaseException:
            self._stop()
            raise
        members = _known(member for member in _members(facts) if member.pid != first.pid)
        self._save(replace(facts, processes=(first, *members), ready=True))
        _link(log.with_name("ray"), Path(temporary) / "session_latest" / "logs")
        return address

    def _command(self, port: int, temporary: str) -> list[str]:
        ray = str(Path(sys.executable).parent / "ray")
        command = [
            ray,
            "start",
            "--head",
            "--block",
            f"--port={port}",
            f"--node-ip-address={HOST}",
            f"--temp-dir={temporary}",
            f"--num-cpus={self.cpus}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-dashboard=false",
            "--disable-usage-stats",
            "--no-monitor",
            "--include-log-monitor=false",
            "--log-color=false",
            # Ray's fixed default ports would collide with another cluster on this machine.
            "--dashboard-agent-listen-port=0",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        if self.resources:
            command.append(f"--resources={json.dumps(self.resources)}")
        return command

    def _environment(self) -> dict[str, str]:
        # Otherwise Ray would join another cluster named in the caller's environment, or start another Spark.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name not in self.secrets
        }
        environment |= {**java_environment(), "PYSPARK_PYTHON": sys.executable}
        environment |= self.client_environment() | _PRIORITY | _IDLE | _HEAPS | HOOK
        return environment | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # there is no other node to drain to

    def _wait_ready(self, process: subprocess.Popen[bytes], log: Path, address: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while "Ray runtime started" not in log.read_text(encoding="utf-8", errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_BYTES:].strip()
                busy = (
                    "; the machine is overloaded: try again when it has less to do" if _NODE_TIMED_OUT in tail else ""
                )
                raise ClusterError(
                    f"the local Ray cluster at {address} did not start: {tail}",
                    hint=f"see {log}; `headrace doctor`{busy}",
                )
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        facts = self.facts()
        if facts is not None:
            _end(facts)
        # In a copied folder too: these files refer to the original's cluster.
        self._token_file.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        (self.state_dir / "logs" / "ray").unlink(missing_ok=True)


def _end(facts: ClusterFacts) -> None:
    """End every process of a cluster, and remove its temporary folder."""
    members = _members(facts)
    first = facts.processes[0].pid if facts.processes else 0
    # The first process ends Ray orderly; drivers and workers end with their raylet.
    for member in members:
        if member.pid == first:
            with contextlib.suppress(psutil.Error):
                member.terminate()
    _, alive = psutil.wait_procs(members, timeout=_STOP_TIMEOUT_S / 4)
    for signal_it in (psutil.Process.terminate, psutil.Process.kill):
        for member in alive:
            with contextlib.suppress(psutil.Error):
                signal_it(member)
        _, alive = psutil.wait_procs(alive, timeout=_STOP_TIMEOUT_S / 4)
    # End processes that were started meanwhile. Afterwards nothing writes into the folder any longer.
    for _ in range(_STOP_ROUNDS):
        late = _members(facts)
        if not late:
            break
        for member in late:
            with contextlib.suppress(psutil.Error):
                member.kill()
        psutil.wait_procs(late, timeout=_STOP_TIMEOUT_S / 4)
    private = Path(facts.temporary).parent
    if private.name.startswith(PRIVATE):  # never remove another folder, even if the file names it
        shutil.rmtree(private, ignore_errors=True)


def _known(processes: Iterable[psutil.Process]) -> list[KnownProcess]:
    """Return the processes that still live, in recorded form."""
    known = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            known.append(known_process(process))
    return known


def _is_same(one: ClusterFacts | None, other: ClusterFacts) -> bool:
    """Return whether both describe one start of one cluster."""
    return one is not None and one.temporary == other.temporary


def _logs_elsewhere(process: psutil.Process, own_log: Path) -> bool:
    """Return whether a process that `_start` started writes its log in another state folder.

    For an earlier version only the system knows the folder.
    """
    output = Path(f"/proc/{process.pid}/fd/1")
    try:
        theirs = output.readlink()
        if theirs.name != own_log.name:
            return False
        return not own_log.exists() or not own_log.samefile(output)
    except OSError:
        return False


def _first(facts: ClusterFacts) -> psutil.Process | None:
    """Return the process with which the cluster lives and ends; None: it ended."""
    if not facts.processes:
        return None
    known = facts.processes[0]
    process = living(known)
    if process is None and not known.boot:
        # An earlier version recorded only the time of day, which moves with the clock.
        with contextlib.suppress(psutil.Error):
            candidate = psutil.Process(known.pid)
            process = candidate if _is_named(candidate, facts) else None
    return process


def _is_named(process: psutil.Process, facts: ClusterFacts) -> bool:
    """Return whether a process is the cluster's, by its command line.

    A program that reads a log there (`tail`, a shell, a terminal server) is not.
    """
    names = any(facts.temporary in argument for argument in process.cmdline())
    return names and Path(process.exe()).name.startswith(_PROGRAMS)


def _members(facts: ClusterFacts) -> list[psutil.Process]:
    """Return living recorded processes, their descendants, and processes whose command line names the cluster's folder."""
    members: dict[int, psutil.Process] = {}
    roots = [process for known in facts.processes if (process := living(known)) is not None]
    own = psutil.Process().pid
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _is_named(process, facts):
                roots.append(process)
    for root in roots:
        with contextlib.suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                if process.pid != own and process.status() != psutil.STATUS_ZOMBIE:
                    members[process.pid] = process
    return list(members.values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _temporary_base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) <= _TEMPORARY_LENGTH_MAX else "/tmp"  # noqa: S108 - the only place that is certainly short


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # only a convenience for finding logs
        link.symlink_to(target)
