"""The processes of a running topology, found by what it says of itself: no other process is ever touched.

Every process must belong to the topology's private cluster, or to one of its embedded servers. `ProcessesInForce`
remembers on disk what is done to processes, so that it is undone even when the one who did it was killed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from actors.cluster.known_process import KnownProcess, known_process, living
from actors.site.connection import embedded_server
from headrace.base.durable_file import replace_file
from headrace.base.errors import HeadraceError
from headrace.base.folder_place import is_copy
from headrace.chaos.errors import NotFired

if TYPE_CHECKING:
    from headrace.deployment.deployment import Deployment

__all__ = ["Processes", "ProcessesInForce", "is_gone", "is_stopped"]

CALL_TIMEOUT_S = 5.0  # a component that answers at all answers in milliseconds


@dataclass(slots=True)
class Processes:
    """Finds processes by component.

    Args:
        deployment: of the topology; it runs on a private cluster.
    """

    deployment: Deployment

    def of(self, component: str) -> psutil.Process:
        """The process of a component.

        Args:
            component: full name.

        Raises:
            NotFired: it does not answer now, or its process is not the private cluster's.
        """
        try:
            return self._own(self.deployment.connect().pid(component))
        except HeadraceError as error:
            raise NotFired(f"{component} has no process now: {error.message}") from error

    def pid(self, component: str) -> int:
        """The process id of a component; 0: it does not answer now."""
        try:
            return self.deployment.connect().pid(component)
        except HeadraceError:
            return 0

    def status(self, component: str) -> Mapping[str, Any]:
        """The status of a component; empty: it does not answer now."""
        try:
            found: Mapping[str, Any] = self.deployment.connect().call(component, "status", timeout_s=CALL_TIMEOUT_S)
        except HeadraceError:
            return {}
        return found

    def driver(self, site: str) -> psutil.Process:
        """The driver of a site's Spark application.

        Raises:
            NotFired: there is none now.
        """
        return self._own(int(self.status(f"spark:{site}").get("application_pid") or 0))

    def workers(self, apply: str) -> list[psutil.Process]:
        """The Python workers that are the apply servers of an apply process, on this machine."""
        found = []
        for server in self.status(f"apply:{apply}").get("servers", ()):
            with contextlib.suppress(NotFired):
                found.append(self._own(int(server.get("pid") or 0)))
        return found

    def executor_of(self, worker: psutil.Process) -> psutil.Process:
        """The JVM in which an apply server's worker runs.

        Raises:
            NotFired: it has ended.
        """
        with contextlib.suppress(psutil.Error):
            for parent in worker.parents():
                if "java" in parent.name():
                    return parent
        raise NotFired(f"apply server {worker.pid} runs in no executor")

    def server(self, site: str) -> list[psutil.Process]:
        """The processes of a site's embedded server, its postmaster first.

        Raises:
            NotFired: it does not run.
        """
        spec = self.deployment.spec
        pid = embedded_server(spec, spec.site(site)).pid()
        if pid is None:
            raise NotFired(f"the embedded server of {site} does not run")
        try:
            postmaster = psutil.Process(pid)
            return [postmaster, *postmaster.children(recursive=True)]
        except psutil.Error as error:
            raise NotFired(f"the embedded server of {site} has ended") from error

    def _own(self, pid: int) -> psutil.Process:
        """The process of this id, if the private cluster started it."""
        if pid not in {each.pid for each in self.deployment.cluster.processes()}:
            raise NotFired(f"process {pid} is not one of the private cluster of topology {self.deployment.spec.name}")
        try:
            return psutil.Process(pid)
        except psutil.Error as error:
            raise NotFired(f"process {pid} has ended") from error


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one whose parent has not asked for its end yet counts."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def is_stopped(process: psutil.Process) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        return bool(process.is_running() and process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


@dataclass(slots=True)
class ProcessesInForce:
    """What is done to processes and is to be undone. It is on disk before it is done.

    Args:
        file: in which it is kept.
    """

    file: Path
    _frozen: list[psutil.Process] = field(default_factory=list)
    _limited: list[tuple[psutil.Process, tuple[int, int]]] = field(default_factory=list)

    def freeze(self, processes: list[psutil.Process]) -> None:
        """Stop processes (SIGSTOP), in this order; one that ends meanwhile makes no difference."""
        self._frozen += processes
        self._save()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def limit_files(self, process: psutil.Process, size: int) -> None:
        """Let a process write no file beyond a size, as when its disk is full.

        Args:
            process: it.
            size: in bytes.

        Raises:
            NotFired: the system does not allow it.
        """
        try:
            before = process.rlimit(psutil.RLIMIT_FSIZE)
            self._limited.append((process, before))
            self._save()
            process.rlimit(psutil.RLIMIT_FSIZE, (size, before[1]))  # the soft limit: it can be raised again
        except (psutil.Error, OSError) as error:
            raise NotFired(f"the file size of process {process.pid} cannot be limited: {error}") from error

    def undo(self) -> None:
        """Continue what is frozen, lift every limit; idempotent."""
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        for process, before in self._limited:
            with contextlib.suppress(psutil.Error, OSError):
                process.rlimit(psutil.RLIMIT_FSIZE, before)
        self._frozen, self._limited = [], []
        self.file.unlink(missing_ok=True)

    def undo_earlier(self) -> bool:
        """Undo what an earlier one left that was killed; whether there was anything."""
        try:
            document: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        if is_copy(
            self.file.parent,
            document.get("folder", str(self.file.parent)),
            lambda original: (original / self.file.name).exists(),
        ):
            return False  # a copied state folder: what is in force is the original's
        self._frozen = [process for each in document["frozen"] for process in _living(each)]
        self._limited = [
            (process, (int(soft), int(hard)))
            for *each, soft, hard in document["limited"]
            for process in _living(each[0] if len(each) == 1 else each)
        ]
        self.undo()
        return True

    def _save(self) -> None:
        frozen = [named for process in self._frozen for named in _named(process)]
        limited = [(named, *before) for process, before in self._limited for named in _named(process)]
        replace_file(
            self.file,
            json.dumps({"folder": str(self.file.parent.resolve()), "frozen": frozen, "limited": limited}) + "\n",
        )


def _named(process: psutil.Process) -> Iterator[dict[str, Any]]:
    """A process, so that another one with its id is not taken for it; nothing when it has ended."""
    with contextlib.suppress(psutil.Error):
        yield asdict(known_process(process))


def _living(named: Mapping[str, Any] | list[Any]) -> Iterator[psutil.Process]:
    """The process that `_named` named, unless it has ended. Earlier versions wrote its number and time of day."""
    known = (
        KnownProcess(**named)
        if isinstance(named, Mapping)
        else KnownProcess(pid=int(named[0]), created=float(named[1]))
    )
    process = living(known)
    if process is not None:
        yield process
