"""The processes in which the components of a running topology are."""

from __future__ import annotations

from actors.controller import CONTROLLER
from actors.hosting.processes import process_of
from tests.support.clusters.system import System, wait_until
from topology.edits.changes import components_of

__all__ = ["listed_actors", "pids", "wait_processes"]


def wait_processes(system: System) -> dict[str, set[str]]:
    """Wait until the processes match the topology's file; return them with their components."""
    wanted: dict[str, set[str]] = {CONTROLLER: {CONTROLLER}}
    for component in components_of(system.spec):
        wanted.setdefault(process_of(system.spec, component), set()).add(component.name)
    # A component that an edit ended stays in its process until its thread ends.
    wait_until("nothing else runs", lambda: system.deployment.connect().processes() == wanted)
    return wanted


def pids(system: System) -> dict[str, int]:
    """Return the process of each component."""
    return {component.name: system.pid(component.name) for component in components_of(system.spec)}


def listed_actors(system: System) -> dict[str, int]:
    """Return the process of each live named actor of the topology's cluster.

    It is the output of `ray list actors`: that command asks the dashboard, which private clusters do not run. The
    dashboard asks Ray's control service for the same table (`GetAllActorInfo`).
    """
    system.deployment.connect()  # this process may have connected to another cluster last
    from ray._private.state import actors  # Ray must be imported after the cluster's environment is set

    return {each["Name"]: each["Pid"] for each in actors(actor_state_name="ALIVE").values() if each["Name"]}
