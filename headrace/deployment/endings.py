"""How components end: killed until none begins again, apply processes in order, Spark's processes of this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from actors.controller import CONTROLLER, SHUT_DOWN_TIMEOUT_S
from actors.records.running import Running
from headrace.base.errors import PropagationError
from headrace.status.plain import status_of
from headrace.status.sparks import SparkStatus

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors

__all__ = [
    "end_applies",
    "is_apply",
    "is_controller",
    "kill_and_wait",
    "spark_processes",
    "wait_free",
    "wait_gone",
]

GONE_TIMEOUT_S = 15.0  # an ended actor's name is free within a second
KILL_AGAIN_S = 1.0  # after it: what is there was begun again by what was killed later
_FREE_POLL_S = 0.2  # between two looks for a process that is about to end
_STATUS_TIMEOUT_S = 5.0  # a Spark application that does not answer by then is ended with its cluster


def is_controller(name: str) -> bool:
    """Whether a component is the controller.

    It ends before all others: it creates what it misses.
    """
    return name == CONTROLLER


def is_apply(name: str) -> bool:
    """Whether a component is an apply process."""
    return name.startswith("apply:")


def kill_and_wait(actors: RayActors, is_meant: Callable[[str], bool]) -> set[str]:
    """End the components that are meant, also those that begin (again) meanwhile.

    Args:
        actors: of the topology.
        is_meant: whether a component of this name is.

    Returns:
        What is left when the time is over.
    """
    killed: dict[str, float] = {}
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while left := {name for name in actors.names() if is_meant(name)}:
        now = time.monotonic()
        for name in sorted(name for name in left if now >= killed.get(name, -math.inf) + KILL_AGAIN_S):
            actors.kill(name)
            killed[name] = now
        if now > deadline:
            break
        time.sleep(0.05)
    return left


def end_applies(actors: RayActors) -> bool:
    """End the apply processes orderly: servers finish their groups, and progress is recorded.

    False: there are none.
    """
    applies = sorted(filter(is_apply, actors.names()))
    if applies:
        actors.end(applies, timeout_s=SHUT_DOWN_TIMEOUT_S)
    return bool(applies)


def spark_processes(actors: RayActors, names: set[str]) -> list[psutil.Process]:
    """The processes of Spark applications that run on this machine.

    Args:
        actors: of the topology, on its private cluster: on another one they are not this command's to end.
        names: of the components that run.
    """
    sparks = [name for name in names if name.startswith("spark:")]
    found = []
    for answer in actors.call_all(sparks, "status", timeout_s=_STATUS_TIMEOUT_S).values():
        status = status_of(answer) if isinstance(answer, Mapping) else None
        if isinstance(status, SparkStatus) and status.application_pid:
            with suppress(psutil.Error):
                found.append(psutil.Process(status.application_pid))
    return found


def wait_gone(processes: list[psutil.Process]) -> list[str]:
    """Wait for processes that end with their components, and kill those that do not.

    Returns one line of text for each that could not be ended.
    """
    _, alive = psutil.wait_procs(processes, timeout=GONE_TIMEOUT_S)
    for process in alive:
        process.kill()
    _, alive = psutil.wait_procs(alive, timeout=GONE_TIMEOUT_S)
    return [f"process {process.pid} (a Spark driver) could not be ended" for process in alive]


def wait_free(state_dir: Path, component: str, timeout_s: float) -> None:
    """Wait for the end of whatever still runs a component of a state folder on this machine.

    Args:
        state_dir: of the topology.
        component: its full name.
        timeout_s: of a process that is about to end: Ray calls one dead before the kernel has ended it.

    Raises:
        PropagationError: it still runs, and the process is named.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            Running(state_dir, component).release()
        except PropagationError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_FREE_POLL_S)
        else:
            return
