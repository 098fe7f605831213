"""The door from RayDP's actor into the application master's JVM: only who knows its secret may call.

RayDP starts a py4j server that does what any caller on the machine tells it to, with the rights of the user that
Headrace runs as. Spark has one of the same kind that asks each caller for a secret, and tells port and secret in a file
that only its user may read. So RayDP's master starts that one. What RayDP called at its own entry point is a class of
the same JVM.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import ApplyError

__all__ = ["open_gateway"]

_SERVER = "org.apache.spark.api.python.PythonGatewayServer"
_ADDRESS_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_ADDRESS = struct.Struct("!ii")
"""The file begins with the port and the length of the secret."""
_LOOK = 0.05
"""Seconds between two looks for the file; a JVM takes one to ten until it writes it."""
_START_MAX = 300.0
"""Seconds that a JVM may take until it listens: on a machine whose processors are all busy it took 40."""


def open_gateway(command: Sequence[str], environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - py4j has no types
    """Start a JVM, and connect with its secret.

    Args:
        command: the program with its options and class path, without a class to run.
        environment: of the JVM.

    Returns:
        py4j's gateway, with the process in its attribute `proc`. The JVM ends when its standard input is closed: with
        the caller.

    Raises:
        ApplyError: the JVM ended, or did not listen in time.
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway

    with tempfile.TemporaryDirectory(prefix="headrace-gateway-") as folder:  # mode 0700
        file = Path(folder) / "address"
        process = subprocess.Popen(
            [*command, _SERVER], stdin=subprocess.PIPE, env={**environment, _ADDRESS_FILE: str(file)}
        )
        try:
            port, secret = _address(file, process)
        except BaseException:
            process.kill()
            process.wait()
            raise
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True, auth_token=secret))
    gateway.proc = process
    return gateway


def _address(file: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The port and the secret that the JVM tells.

    It writes another file and gives it this name: it is whole once it is there.
    """
    deadline = time.monotonic() + _START_MAX
    while not file.exists():
        if (code := process.poll()) is not None:
            raise ApplyError(
                f"the application master's JVM ended with {code}", hint="its log is beside those of Ray's workers"
            )
        if time.monotonic() > deadline:
            raise ApplyError(f"the application master's JVM did not listen within {_START_MAX:.0f} s")
        time.sleep(_LOOK)
    told = file.read_bytes()
    port, length = _ADDRESS.unpack_from(told)
    return port, told[_ADDRESS.size : _ADDRESS.size + length].decode()
