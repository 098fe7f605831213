"""Ray's start hook: the head of a private cluster runs only what a topology uses.

`ray start` starts a server for Ray clients (46 MB) and one for the dashboard (55 MB), the latter also when it is told that there
is to be none. Nobody connects to either: commands and components are drivers and workers of the cluster.
"""

from __future__ import annotations

from typing import Any

__all__ = ["HOOK", "omit_servers"]

HOOK = {"RAY_START_HOOK": f"{__name__}.omit_servers"}
"""Environment of `ray start`."""


def omit_servers(ray_params: Any, head: bool) -> None:  # noqa: ANN401, FBT001 - as Ray calls it
    """Have this process start neither server.

    Args:
        ray_params: Ray's settings of the node, before it starts.
        head: the node is the cluster's head; only that one would start them.
    """
    from ray._private.node import Node

    if head:
        ray_params.ray_client_server_port = None
        Node.start_api_server = lambda *_, **__: None
