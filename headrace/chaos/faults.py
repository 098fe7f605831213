"""Faults of `headrace chaos` in a running topology.

Each fault finds its target, fires, proves that it fired, is undone, and knows when its own damage has healed.

A fault that was made has not necessarily fired. A cut link proves it by a refused connection, a half-open link by lost
bytes, a full disk by the component's state. A fault without proof is reported as not fired, and does not count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from actors.controller import CONTROLLER
from actors.site.connection import redo_folder
from headrace.base.errors import HeadraceError
from headrace.faults.errors import NotFired
from headrace.faults.links import links_of
from headrace.faults.processes import GONE_TIMEOUT_S, executor_of, is_stopped, kill
from topology.edits.changes import components_of

if TYPE_CHECKING:
    from headrace.deployment.deployment import Deployment
    from headrace.faults.in_force import ProcessesInForce
    from headrace.faults.links import Links
    from headrace.faults.processes import Processes
    from headrace.faults.proxy import Proxy
    from topology.spec import TopologySpec

__all__ = ["ACTIONS", "Action", "Fault", "Field", "action_of"]

_DELAY_S = 0.3  # per direction of a slow link: twice the round trip around the world
_DISK_FULL = "PAUSED: DISK IS FULL"  # state of the log writer
_REDO_ROOM_BYTES = 4096  # a full disk accepts the next page, and only a part of what follows


@dataclass(slots=True, kw_only=True)
class Field:
    """What faults act on.

    Args:
        deployment: the topology's deployment.
        processes: the topology's processes.
        in_force: faults in force on processes.
        links: links between the topology's sites.
    """

    deployment: Deployment
    processes: Processes
    in_force: ProcessesInForce
    links: Links

    @property
    def spec(self) -> TopologySpec:
        """The topology."""
        return self.deployment.spec


class Fault:
    """One fault: `fire`, `watch` while it is in force, `undo`, then `missing` until it returns an empty text.

    Args:
        field: what it acts on.
        target: one of the targets that its action lists.
    """

    def __init__(self, field: Field, target: str) -> None:
        self.field, self.target = field, target
        self.evidence = ""
        """The proof that it fired; empty: it has not."""

    def fire(self) -> None:
        """Make the fault.

        Raises:
            NotFired: the target does not exist now.
        """
        raise NotImplementedError

    def watch(self) -> None:
        """Look for evidence; called repeatedly while the fault is in force."""

    def undo(self) -> None:
        """Undo what does not heal by itself; idempotent."""

    def missing(self) -> str:
        """Return what of its own damage has not healed yet; empty: nothing."""
        return ""


# --------------------------------------------------------------------------- processes that die


class _Kill(Fault):
    """SIGKILL of a component's process, and of everything else that runs in it."""

    def fire(self) -> None:
        self._process = self._find()
        kill([self._process])
        self.evidence = f"process {self._process.pid} ended by SIGKILL"

    def _find(self) -> psutil.Process:
        return self.field.processes.of(self.target)

    def missing(self) -> str:
        pid = self.field.processes.pid(self.target)
        return "" if pid not in {0, self._process.pid} else f"{self.target} has no new process"


class _KillDriver(_Kill):
    """SIGKILL of the driver of a site's Spark application."""

    def _find(self) -> psutil.Process:
        return self.field.processes.driver(self.target)

    def missing(self) -> str:
        pid = self.field.processes.application_pid(self.target)
        return "" if pid not in {0, self._process.pid} else f"spark:{self.target} has no new driver"


class _KillWorker(_Kill):
    """SIGKILL of a Spark task's Python worker, which is an apply server."""

    def _find(self) -> psutil.Process:
        if not (workers := self.field.processes.workers(self.target)):
            raise NotFired(f"no apply server of {self.target} runs now")
        return workers[0]

    def missing(self) -> str:
        pids = {worker.pid for worker in self.field.processes.workers(self.target)}
        return "" if pids - {self._process.pid} else f"no apply server of {self.target} runs"


class _KillExecutor(_KillWorker):
    """SIGKILL of the Spark executor in which an apply server of an apply process runs."""

    def _find(self) -> psutil.Process:
        return executor_of(super()._find())

    def missing(self) -> str:
        for worker in self.field.processes.workers(self.target):
            with contextlib.suppress(NotFired):
                if executor_of(worker).pid != self._process.pid:
                    return ""
        return f"no apply server of {self.target} runs on a new executor"


class _ServerDown(Fault):
    """SIGKILL of every process of an embedded server, as after a power cut. Its site restarts it."""

    def fire(self) -> None:
        processes = self.field.processes.server(self.target)
        self._pid = processes[0].pid
        kill(processes)
        self.evidence = f"server {self._pid} and {len(processes) - 1} processes of it ended by SIGKILL"

    def missing(self) -> str:
        try:
            pid = self.field.processes.server(self.target)[0].pid
        except NotFired as error:
            return error.message
        return "" if pid != self._pid else f"the server of {self.target} has not been restarted"


# --------------------------------------------------------------------------- frozen processes


class _Freeze(Fault):
    """SIGSTOP of a process: it does not answer, and does not notice that time passes. SIGCONT undoes it."""

    _processes: Sequence[psutil.Process] = ()

    def fire(self) -> None:
        found = self._find()
        self._processes = found
        self.field.in_force.freeze(found)
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while not is_stopped(self._processes[0]):
            if time.monotonic() > deadline:
                raise NotFired(f"process {self._processes[0].pid} cannot be frozen")
            time.sleep(0.01)

    def _find(self) -> list[psutil.Process]:
        return [self.field.processes.of(self.target)]

    def watch(self) -> None:
        if is_stopped(self._processes[0]):
            self.evidence = f"process {self._processes[0].pid} was frozen"

    def undo(self) -> None:
        self.field.in_force.undo()

    def missing(self) -> str:
        return f"{self.target} is still frozen" if any(map(is_stopped, self._processes)) else ""


class _FreezeServer(_Freeze):
    """SIGSTOP of every process of an embedded server, like a machine that hangs.

    New connections are accepted, but never answered.
    """

    def _find(self) -> list[psutil.Process]:
        return self.field.processes.server(self.target)


class _FreezeWorker(_Freeze):
    """SIGSTOP of an apply server's Python worker: its transaction stays open."""

    def _find(self) -> list[psutil.Process]:
        if not (workers := self.field.processes.workers(self.target)):
            raise NotFired(f"no apply server of {self.target} runs now")
        return workers[:1]


# --------------------------------------------------------------------------- links


class _OnLinks(Fault):
    """A fault of one link, or of all links of a site."""

    proxies: Sequence[Proxy] = ()
    _before: Sequence[int] = ()

    def fire(self) -> None:
        self.proxies = self.field.links.of(self.target)
        self._before = [self._count(proxy) for proxy in self.proxies]
        self._used = [proxy for proxy in self.proxies if proxy.connections]
        for proxy in self.proxies:
            self._break(proxy)

    def _break(self, proxy: Proxy) -> None:
        raise NotImplementedError

    def _count(self, proxy: Proxy) -> int:
        """Return a counter of the link that grows when this fault has fired."""
        raise NotImplementedError

    def watch(self) -> None:
        grown = [self._count(proxy) - before for proxy, before in zip(self.proxies, self._before, strict=True)]
        if any(grown):
            self.evidence = self._words(sum(grown), sum(map(bool, grown)))

    def _words(self, total: int, links: int) -> str:
        raise NotImplementedError

    def undo(self) -> None:
        for proxy in self.proxies:
            proxy.heal()

    def missing(self) -> str:
        # A component that had no connection before need not connect again.
        return "" if all(proxy.connections for proxy in self._used) else f"{self.target}: not connected again"


class _Cut(_OnLinks):
    """Reset every connection, and refuse new ones."""

    def _break(self, proxy: Proxy) -> None:
        proxy.cut()

    def _count(self, proxy: Proxy) -> int:
        return proxy.refused

    def _words(self, total: int, links: int) -> str:
        return f"{links} links reset, {total} connections refused"


class _HalfOpen(_OnLinks):
    """Keep connections open, but lose what is sent on them: only pings detect it."""

    def fire(self) -> None:
        super().fire()
        self._accepted = [proxy.accepted for proxy in self.proxies]

    def _break(self, proxy: Proxy) -> None:
        proxy.swallow()

    def _count(self, proxy: Proxy) -> int:
        return proxy.swallowed_bytes

    def _words(self, total: int, links: int) -> str:
        return f"{total} bytes lost on {links} links that seemed open"

    def missing(self) -> str:
        lost = [self._count(proxy) > before for proxy, before in zip(self.proxies, self._before, strict=True)]
        anew = [proxy.accepted > accepted for proxy, accepted in zip(self.proxies, self._accepted, strict=True)]
        # A connection that was used while bytes were lost is dead for good: both ends must have noticed.
        if all(new for new, is_lost in zip(anew, lost, strict=True) if is_lost):
            return ""
        return f"{self.target}: no component has noticed that a connection is dead"


class _Slow(_OnLinks):
    """Deliver everything late, in order."""

    def _break(self, proxy: Proxy) -> None:
        proxy.delay_s = _DELAY_S

    def _count(self, proxy: Proxy) -> int:
        return proxy.delayed_bytes

    def _words(self, total: int, links: int) -> str:
        return f"{total} bytes on {links} links came {_DELAY_S:g} s late"

    def undo(self) -> None:
        for proxy in self.proxies:
            proxy.delay_s = 0.0


# --------------------------------------------------------------------------- disks


class _DiskFull(Fault):
    """Keep a site's log writer from extending its redo file.

    The kernel writes a part of a record, and refuses the rest (EFBIG). The fault is a bound on the size of files
    (RLIMIT_FSIZE) of that process only, because a full disk would affect everything on the machine.
    """

    def fire(self) -> None:
        process = self.field.processes.of(f"site:{self.target}")
        folder = redo_folder(self.field.spec, source=self.target, site=self.target)
        self.field.in_force.limit_files(process, _newest_size(folder) + _REDO_ROOM_BYTES)
        self._marked_at = 0.0

    def watch(self) -> None:
        status = self.field.processes.status(f"site:{self.target}")
        if status is not None and status.state == _DISK_FULL:
            self.evidence = f"site:{self.target}: {_DISK_FULL}"
        elif not self.evidence:
            # The marker makes the log grow even if there are no other writers.
            with contextlib.suppress(HeadraceError):
                self.field.deployment.connect().call(f"site:{self.target}", "write_marker", bytes(_REDO_ROOM_BYTES))

    def undo(self) -> None:
        self.field.in_force.undo()

    def missing(self) -> str:
        status = self.field.processes.status(f"site:{self.target}")
        state = "it does not answer" if status is None else status.state
        return f"site:{self.target}: {state}" if state.startswith(("PAUSED", "it ")) else ""


def _newest_size(folder: Path) -> int:
    """Return the size of the redo file that is being written."""
    newest = max(
        (path.stat() for path in folder.iterdir() if path.is_file()), key=lambda each: each.st_mtime, default=None
    )
    if newest is None:
        raise NotFired(f"nothing has been written into {folder} yet")
    return newest.st_size


# --------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A fault that the schedule can draw.

    Args:
        name: its name, for people.
        kind: the kind by which `--faults` selects it.
        make: makes the fault for a target.
        targets: lists a topology's targets, in a fixed order.
        seconds: shortest and longest time in force; zero for an instant fault.
    """

    name: str
    kind: str
    make: Callable[[Field, str], Fault]
    targets: Callable[[TopologySpec], list[str]]
    seconds: tuple[float, float] = (0.0, 0.0)


def _of_kinds(*kinds: str) -> Callable[[TopologySpec], list[str]]:
    return lambda spec: [component.name for component in components_of(spec) if component.kind in kinds]


def _every_component(spec: TopologySpec) -> list[str]:
    return [*(component.name for component in components_of(spec)), CONTROLLER]


def _applies(spec: TopologySpec) -> list[str]:
    return [apply.name for apply in spec.applies]


def _apply_sites(spec: TopologySpec) -> list[str]:
    return list(dict.fromkeys(apply.site for apply in spec.applies))


def _embedded(spec: TopologySpec) -> list[str]:
    return [site.name for site in spec.sites if site.database.kind == "embedded"]


def _sources(spec: TopologySpec) -> list[str]:
    return list(dict.fromkeys(capture.source for capture in spec.captures))


def _links(spec: TopologySpec) -> list[str]:
    return [link.name for link in links_of(spec)]


def _linked_sites(spec: TopologySpec) -> list[str]:
    linked = {site for link in links_of(spec) for site in (link.site, link.server_site)}
    return [site.name for site in spec.sites if site.name in linked]


# Longer than the pauses between retries (0.1 to 5 s), so that retries fail; short enough that users would not give up.
_A_WHILE = (2.0, 8.0)
_LONG = (3.0, 15.0)  # also longer than pings need to detect a dead connection
ACTIONS: tuple[Action, ...] = (
    *(
        Action(name=f"kill {kind}", kind="crash", make=_Kill, targets=_of_kinds(kind))
        for kind in ("site", "capture", "queue", "propagation", "redo", "apply", "spark")
    ),
    Action(name="kill controller", kind="crash", make=_Kill, targets=lambda _: [CONTROLLER]),
    Action(name="driver killed", kind="crash", make=_KillDriver, targets=_apply_sites),
    Action(name="executor killed", kind="crash", make=_KillExecutor, targets=_applies),
    Action(name="task killed", kind="crash", make=_KillWorker, targets=_applies),
    Action(name="database down", kind="crash", make=_ServerDown, targets=_embedded),
    Action(name="frozen", kind="freeze", make=_Freeze, targets=_every_component, seconds=_LONG),
    Action(name="task frozen", kind="freeze", make=_FreezeWorker, targets=_applies, seconds=_LONG),
    Action(name="database frozen", kind="freeze", make=_FreezeServer, targets=_embedded, seconds=_LONG),
    Action(name="cut", kind="partition", make=_Cut, targets=_links, seconds=_A_WHILE),
    Action(name="parted", kind="partition", make=_Cut, targets=_linked_sites, seconds=_A_WHILE),
    Action(name="half-open", kind="partition", make=_HalfOpen, targets=_links, seconds=_LONG),
    Action(name="delayed", kind="delay", make=_Slow, targets=_links, seconds=_A_WHILE),
    Action(name="disk full", kind="disk", make=_DiskFull, targets=_sources, seconds=_A_WHILE),
)
_BY_NAME: Mapping[str, Any] = {action.name: action for action in ACTIONS}


def action_of(name: str) -> Action:
    """Return the action with this name."""
    action: Action = _BY_NAME[name]
    return action
