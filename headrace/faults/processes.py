"""The processes of a running topology: found by component, and killed. No other process is touched.

A process that is found by its component must belong to the topology's private cluster, or to one of its embedded
servers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from actors.site.connection import embedded_server
from headrace.base.errors import HeadraceError
from headrace.faults.errors import NotFired
from headrace.status.applies import apply_status
from headrace.status.component import ComponentStatus
from headrace.status.plain import status_of
from headrace.status.sparks import SparkStatus

if TYPE_CHECKING:
    from headrace.databases.embedded.servers import EmbeddedServer
    from headrace.deployment.deployment import Deployment

__all__ = ["Processes", "executor_of", "is_gone", "is_stopped", "kill", "server_processes"]

CALL_TIMEOUT_S = 5.0  # a component that answers at all answers in milliseconds
GONE_TIMEOUT_S = 10.0  # the kernel ends a killed process at once, but a loaded machine reports it later
_GONE_POLL_S = 0.01


@dataclass(slots=True)
class Processes:
    """Finds processes by component.

    Args:
        deployment: the topology's deployment; on a private cluster.
    """

    deployment: Deployment

    def of(self, component: str) -> psutil.Process:
        """Return the process of a component.

        Args:
            component: full name.

        Raises:
            NotFired: the component does not answer now, or its process is not in the private cluster.
        """
        try:
            return self._own(self.deployment.connect().pid(component))
        except HeadraceError as error:
            raise NotFired(f"{component} has no process now: {error.message}") from error

    def pid(self, component: str) -> int:
        """Return the process id of a component; 0: it does not answer now."""
        try:
            return self.deployment.connect().pid(component)
        except HeadraceError:
            return 0

    def status(self, component: str) -> ComponentStatus | None:
        """Return the status of a component; None: it does not answer now."""
        try:
            return status_of(self.deployment.connect().call(component, "status", timeout_s=CALL_TIMEOUT_S))
        except HeadraceError:
            return None

    def application_pid(self, site: str) -> int:
        """Return the process id of the driver of a site's Spark application; 0: no driver runs now."""
        status = self.status(f"spark:{site}")
        return status.application_pid if isinstance(status, SparkStatus) else 0

    def driver(self, site: str) -> psutil.Process:
        """Return the driver of a site's Spark application.

        Raises:
            NotFired: no driver runs now.
        """
        return self._own(self.application_pid(site))

    def workers(self, apply: str) -> list[psutil.Process]:
        """Return the Python workers on this machine that are the apply servers of an apply process."""
        found = []
        for server in apply_status(self.status(f"apply:{apply}")).servers:
            with contextlib.suppress(NotFired):
                found.append(self._own(server.pid))
        return found

    def server(self, site: str) -> list[psutil.Process]:
        """Return the processes of a site's embedded server, its postmaster first.

        Raises:
            NotFired: the server does not run.
        """
        spec = self.deployment.spec
        return server_processes(embedded_server(spec, spec.site(site)))

    def _own(self, pid: int) -> psutil.Process:
        """Return the process with this id if the private cluster started it."""
        if pid not in {each.pid for each in self.deployment.cluster.processes()}:
            raise NotFired(f"process {pid} is not one of the private cluster of topology {self.deployment.spec.name}")
        try:
            return psutil.Process(pid)
        except psutil.Error as error:
            raise NotFired(f"process {pid} has ended") from error


def executor_of(worker: psutil.Process) -> psutil.Process:
    """Return the JVM in which an apply server's Python worker runs.

    Raises:
        NotFired: the JVM has ended.
    """
    with contextlib.suppress(psutil.Error):
        for parent in worker.parents():
            if "java" in parent.name():
                return parent
    raise NotFired(f"apply server {worker.pid} runs in no executor")


def server_processes(server: EmbeddedServer) -> list[psutil.Process]:
    """Return the processes of an embedded server, its postmaster first.

    Raises:
        NotFired: the server does not run.
    """
    pid = server.pid()
    if pid is None:
        raise NotFired(f"the embedded server {server.name} does not run")
    try:
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children(recursive=True)]
    except psutil.Error as error:
        raise NotFired(f"the embedded server {server.name} has ended") from error


def kill(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL processes in this order, and wait until they have ended; ones that end by themselves are no error.

    Raises:
        NotFired: a process does not end.
    """
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while not all(map(is_gone, processes)):
        if time.monotonic() > deadline:
            raise NotFired(f"process {processes[0].pid} does not end")
        time.sleep(_GONE_POLL_S)


def is_gone(process: psutil.Process) -> bool:
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def is_stopped(process: psutil.Process) -> bool:
    """Return whether a process is stopped by a signal."""
    try:
        return bool(process.is_running() and process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
