"""Ends of components: repeated kills, orderly ends of apply processes, and Spark's processes on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

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
KILL_AGAIN_S = 1.0  # a component that is there this long after its kill was restarted by one that was killed later
_FREE_POLL_S = 0.2  # between two looks for a process that is about to end
_STATUS_TIMEOUT_S = 5.0  # a Spark application that does not answer within this time is ended with its cluster


def is_controller(name: str) -> bool:
    """Return whether a component is the controller, which ends before all others, because it recreates missing ones."""
    return name == CONTROLLER


def is_apply(name: str) -> bool:
    """Return whether a component is an apply process."""
    return name.startswith("apply:")


def kill_and_wait(actors: RayActors, is_meant: Callable[[str], bool]) -> set[str]:
    """End the selected components, including those that start or restart in the meantime.

    Args:
        actors: the topology's actors.
        is_meant: selects components by name.

    Returns:
        The components that remain after the time-out.
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
    """End the apply processes in an orderly way: servers finish their groups, and progress is recorded.

    Return False if no apply process runs.
    """
    applies = sorted(filter(is_apply, actors.names()))
    if applies:
        actors.end(applies, timeout_s=SHUT_DOWN_TIMEOUT_S)
    return bool(applies)


def spark_processes(actors: RayActors, names: set[str]) -> list[psutil.Process]:
    """Return the processes of Spark applications on this machine.

    Args:
        actors: actors of the topology on its private cluster; on a user's cluster these processes are not ours to end.
        names: components that run.
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

    Return one line of text for each that could not be ended.
    """
    _, alive = psutil.wait_procs(processes, timeout=GONE_TIMEOUT_S)
    for process in alive:
        process.kill()
    _, alive = psutil.wait_procs(alive, timeout=GONE_TIMEOUT_S)
    return [f"process {process.pid} (a Spark driver) could not be ended" for process in alive]


def wait_free(state_dir: Path, component: str, timeout_s: float) -> None:
    """Wait until no process of this machine runs a component of a state folder.

    Args:
        state_dir: the topology's state folder.
        component: full name of the component.
        timeout_s: time for a process that is about to end: Ray reports it dead before the kernel has ended it.

    Raises:
        PropagationError: it still runs; the message names the process.
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
