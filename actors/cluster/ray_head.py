"""Ray's start hook: the head of a private cluster runs only what a topology uses.

`ray start` starts a server for Ray clients (46 MB) and one for the dashboard (55 MB), the latter even when the dashboard
is disabled. No process connects to either: commands and components are drivers and workers of the cluster. Two more
processes are needed, but not the 50 MB that each of them imports. A Java worker need not import Ray's Python to become a
JVM either. `actors.cluster.ray_stand_in` replaces these three.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["HOOK", "omit_servers"]

HOOK = {"RAY_START_HOOK": f"{__name__}.omit_servers"}
"""Environment of `ray start`."""

# Python without site-packages: it starts in 20 ms, and no accidental import makes it large.
_STAND_IN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("ray_stand_in.py")))


def omit_servers(ray_params: Any, head: bool) -> None:  # noqa: ANN401, FBT001 - as Ray calls it
    """Make this process start the stand-ins, and neither of the servers.

    Args:
        ray_params: Ray's settings of the node, before it starts.
        head: whether the node is the cluster's head; only the head would start the servers.
    """
    from ray._private import ray_constants, services
    from ray._private.node import Node

    if not head:
        return
    ray_params.ray_client_server_port = None
    Node.start_api_server = lambda *_, **__: None
    # Called once a second when the node is up, to check whether it still is.
    Node.dead_processes = _become_watch
    python_command = services._build_python_executable_command_memory_profileable  # noqa: SLF001 - no setting leads there

    def command(component: str, *arguments: Any, **options: Any) -> list[str]:  # noqa: ANN401
        if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return [*_STAND_IN, "agent"]
        return list(python_command(component, *arguments, **options))

    services._build_python_executable_command_memory_profileable = command  # noqa: SLF001
    java_command = services.build_java_worker_command

    def worker_command(*arguments: Any, **options: Any) -> list[str]:  # noqa: ANN401
        python, program, *rest = java_command(*arguments, **options)
        assert python == sys.executable
        return [*_STAND_IN, "java", program, services.get_ray_jars_dir(), *rest]

    services.build_java_worker_command = worker_command


def _become_watch(node: Any) -> None:  # noqa: ANN401
    """Continue as the stand-in, under the same process id and with the same children."""
    from ray._private import ray_constants

    pids = {
        name: node.all_processes[kind][0].process.pid
        for name, kind in (
            ("raylet", ray_constants.PROCESS_TYPE_RAYLET),
            ("gcs", ray_constants.PROCESS_TYPE_GCS_SERVER),
        )
    }
    sys.stdout.flush()
    sys.stderr.flush()
    # The folder names the cluster that the process belongs to.
    arguments = (*(f"--{name}={pid}" for name, pid in pids.items()), f"--temp-dir={node.get_temp_dir_path()}")
    os.execv(_STAND_IN[0], [*_STAND_IN, "watch", *arguments])  # noqa: S606 - no argument comes from outside
