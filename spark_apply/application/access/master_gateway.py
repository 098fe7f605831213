"""Gateway from RayDP's actor into the application master's JVM: only a caller with its secret may call.

RayDP starts a py4j server that obeys any caller on the machine, with the rights of Headrace's user. Spark has a similar
server that asks each caller for a secret. It writes port and secret to a file that only its user can read. So RayDP's
master starts that one. The entry point of RayDP's server becomes a class of the same JVM.
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
"""Seconds between checks for the file; a JVM takes one to ten until it writes it."""
_START_MAX = 300.0
"""Seconds that a JVM may take until it listens: on a machine with all processors busy it took 40."""


def open_gateway(command: Sequence[str], environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - py4j has no types
    """Start a JVM, and connect with its secret.

    Args:
        command: the program with its options and class path, without a class to run.
        environment: environment of the JVM.

    Returns:
        py4j's gateway, with the process in its attribute `proc`. The JVM ends when its standard input is closed, and so
        with the caller.

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
    """Return the port and the secret that the JVM writes.

    It writes another file and renames it to this name, so an existing file is complete.
    """
    deadline = time.monotonic() + _START_MAX
    while not file.exists():
        if (code := process.poll()) is not None:
            raise ApplyError(
                f"the application master's JVM ended with {code}", hint="see its log, next to the logs of Ray's workers"
            )
        if time.monotonic() > deadline:
            raise ApplyError(f"the application master's JVM did not listen within {_START_MAX:.0f} s")
        time.sleep(_LOOK)
    told = file.read_bytes()
    port, length = _ADDRESS.unpack_from(told)
    return port, told[_ADDRESS.size : _ADDRESS.size + length].decode()
