"""The cluster that "auto" means: one that the same user has started on this machine.

Ray itself would trust the command line of any process of the machine, or a file that every user may replace. Another
user of the machine could impersonate the cluster, and would receive its token and the connection strings of all sites.
"""

from __future__ import annotations

import contextlib
import os
import re

import psutil

from headrace.base.errors import ConfigError

__all__ = ["AUTO", "PRIVATE", "found_address"]

AUTO = "auto"
"""In place of an address: the cluster that is found."""
PRIVATE = "headrace-ray-"
"""Prefix of the folder of temporary files of a topology's private cluster."""
_VARIABLE = "RAY_ADDRESS"
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
_OPTION = "--gcs-address="  # the processes of a node name their cluster with it on their command lines


def found_address(address: str) -> str:
    """Return the address of a cluster, as its user named it, or found.

    Args:
        address: "host:port", which is returned; `AUTO`: the address in the variable `RAY_ADDRESS`, or else that of the
            cluster of a node that the same user started on this machine.

    Raises:
        ConfigError: no such node exists, or there are nodes of several clusters.
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
        hint="specify the address of its head: --address HOST:PORT (6379 is Ray's port)",
    )


def _of_variable(named: str) -> str:
    """Return the address that a value of the variable names.

    Raises:
        ConfigError: the value is no address.
    """
    host, _, port = named.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal():
        raise ConfigError(
            f"--address {AUTO}: {_VARIABLE} is {named!r}, and no HOST:PORT",
            hint=f"set {_VARIABLE} to the address of the cluster's head, unset it, or specify --address HOST:PORT",
        )
    # Ray's nodes are known by their own addresses; a user on the head may name it as this machine.
    here = [each for each in _addresses() if each.rpartition(":")[2] == port] if host in _LOOPBACK else []
    return here[0] if len(here) == 1 else named


def _addresses() -> set[str]:
    user, found = os.getuid(), set[str]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # All three: a program with this user's rights that another user called has one that differs.
            if process.name() != "raylet" or set(process.uids()) != {user}:
                continue
            words = process.cmdline()
            if not any(PRIVATE in word for word in words):
                found |= {word.removeprefix(_OPTION) for word in words if word.startswith(_OPTION)}
    return found
