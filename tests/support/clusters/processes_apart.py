"""In which processes the components of a running topology are."""

from __future__ import annotations

from actors.controller import CONTROLLER
from actors.hosting.processes import process_of
from tests.support.clusters.system import System, wait_until
from topology.edits.changes import components_of

__all__ = ["listed_actors", "pids", "wait_processes"]


def wait_processes(system: System) -> dict[str, set[str]]:
    """The processes of a topology with their components, once these are what its file says."""
    wanted: dict[str, set[str]] = {CONTROLLER: {CONTROLLER}}
    for component in components_of(system.spec):
        wanted.setdefault(process_of(system.spec, component), set()).add(component.name)
    # What an edit ended is in its process for as long as its thread takes to end.
    wait_until("nothing else runs", lambda: system.deployment.connect().processes() == wanted)
    return wanted


def pids(system: System) -> dict[str, int]:
    """The process of each component."""
    return {component.name: system.pid(component.name) for component in components_of(system.spec)}


def listed_actors(system: System) -> dict[str, int]:
    """The process of each named actor that lives on the topology's cluster.

    What `ray list actors` lists: its dashboard, without which a private cluster runs, asks Ray's control service for
    the same table (`GetAllActorInfo`).
    """
    system.deployment.connect()  # this process may have spoken to another cluster last
    from ray._private.state import actors  # Ray is imported when the cluster's environment is set

    return {each["Name"]: each["Pid"] for each in actors(actor_state_name="ALIVE").values() if each["Name"]}
