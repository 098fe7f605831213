"""Which cluster "auto" means: one that the user who asks has started here.

Ray itself would take what any process of the machine says on its command line, or a file that everybody may replace:
whoever else is on the machine could answer in the cluster's place, be shown its token, and be given the connection
strings of all sites.
"""

from __future__ import annotations

import contextlib
import os
import re

import psutil  # type: ignore[import-untyped]

from headrace.base.errors import ConfigError

__all__ = ["AUTO", "PRIVATE", "found_address"]

AUTO = "auto"
"""In an address's place: the one that is found."""
PRIVATE = "headrace-ray-"
"""Begins the name of the folder of temporary files of a topology's private cluster."""
_VARIABLE = "RAY_ADDRESS"
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
_OPTION = "--gcs-address="  # so the processes of a node name their cluster on their command lines


def found_address(address: str) -> str:
    """The address of a cluster, as its user named it, or found.

    Args:
        address: "host:port", which is returned; `AUTO`: the one that the variable `RAY_ADDRESS` names, else the one
            that a node of this machine belongs to which the same user started.

    Raises:
        ConfigError: there is no such node, or there are nodes of several clusters.
    """
    if address != AUTO:
        return address
    named = os.environ.get(_VARIABLE, AUTO)
    if named not in {"", AUTO}:
        return _of_variable(named)
    found = sorted(_addresses())
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"--address {AUTO}: several Ray clusters have nodes here that this user started: {', '.join(found)}"
        if found
        else f"--address {AUTO}: no Ray runs here that this user started",
        hint="name the one that you mean: --address HOST:PORT, of its head (6379 is Ray's port)",
    )


def _of_variable(named: str) -> str:
    """The address that the variable names with this value.

    Raises:
        ConfigError: it is no address.
    """
    host, _, port = named.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal():
        raise ConfigError(
            f"--address {AUTO}: {_VARIABLE} is {named!r}, and no HOST:PORT",
            hint=f"set {_VARIABLE} to the address of the cluster's head, or leave it out, or name --address HOST:PORT",
        )
    # Ray's nodes are called by their own addresses; whoever is on the head may name it as this machine.
    here = [each for each in _addresses() if each.rpartition(":")[2] == port] if host in _LOOPBACK else []
    return here[0] if len(here) == 1 else named


def _addresses() -> set[str]:
    user, found = os.getuid(), set[str]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # All three: somebody else's call of a program with the rights of this user has one of another number.
            if process.name() != "raylet" or set(process.uids()) != {user}:
                continue
            words = process.cmdline()
            if not any(PRIVATE in word for word in words):
                found |= {word.removeprefix(_OPTION) for word in words if word.startswith(_OPTION)}
    return found
