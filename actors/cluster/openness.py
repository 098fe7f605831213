"""Checks whether a user's Ray cluster accepts work from any caller.

Such a caller runs code as the user of each of its nodes, and reads connection strings.
"""

from __future__ import annotations

import os
import subprocess
import sys

from actors.cluster.own_ray import found_address
from headrace.base.errors import ConfigError
from spark_apply.application.environment import LOOPBACK

__all__ = ["takes_work_from_anybody"]

_TIMEOUT_S = 60.0  # Ray is imported, which takes seconds on a busy machine
_OPEN = 42  # an exit code that neither Python nor Ray has
_ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10.0)
sys.exit({open})
"""


def takes_work_from_anybody(address: str) -> bool:
    """Query a cluster's control service without a token; False also if nothing answers, or no cluster is found.

    Args:
        address: "host:port", or "auto" (`actors.cluster.own_ray`).
    """
    try:
        address = found_address(address)
    except ConfigError:
        return False
    environment = (
        {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
        | LOOPBACK
        | {"RAY_AUTH_MODE": "disabled"}
    )
    program = [sys.executable, "-c", _ASK.replace("{open}", str(_OPEN)), address]
    try:
        done = subprocess.run(program, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == _OPEN
