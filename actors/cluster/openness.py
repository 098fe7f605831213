"""Whether a Ray cluster of the user's takes work from anybody who reaches it.

Then whoever does runs code as the user of each of its nodes, and reads connection strings.
"""

from __future__ import annotations

import os
import subprocess
import sys

from spark_apply.application.environment import LOOPBACK

__all__ = ["takes_work_from_anybody"]

_TIMEOUT_S = 60.0  # Ray is imported, which takes seconds on a busy machine
_OPEN = 42  # an exit code that neither Python nor Ray has
# Where "auto" is, Ray says as it does for `ray.init`.
_ASK = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
GcsClient(address=canonicalize_bootstrap_address(sys.argv[1])).get_all_node_info(timeout=10.0)
sys.exit({open})
"""


def takes_work_from_anybody(address: str) -> bool:
    """Ask a cluster's control service without a token; False also where nothing answers, or none is found.

    Args:
        address: "host:port", or "auto".
    """
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
