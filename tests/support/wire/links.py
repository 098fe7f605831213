"""Hosts of a test in its process, as in their actors: their links use gRPC on loopback, without a cluster."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from actors.hosting.host import Host
from actors.security.wire import MakeLinks, links_of
from headrace.base.errors import PropagationError
from tests.support.clusters.system import wait_until
from topology.spec import TopologySpec

__all__ = ["adopted", "begun", "loopback", "without_tls"]

_BEGUN_S = 60.0  # generous: it takes long only on a busy machine
_edits = itertools.count(1)
_Host = TypeVar("_Host", bound=Host)


def _nobody(component: str) -> str:
    raise PropagationError(f"{component} does not run")


def loopback(resolve: Callable[[str], str] = _nobody) -> MakeLinks:
    """Replace `actors.security.wire.links_of`.

    Args:
        resolve: returns the address at which a component serves ("queue:q_dbs1").
    """

    return partial(links_of, resolve=resolve, host=lambda: "127.0.0.1")


def begun(host: _Host) -> _Host:
    """Start a host that serves; returns when it does."""
    host.start()
    wait_until(f"{host.name} serves", host.endpoint, _BEGUN_S)
    return host


def adopted(host: Host, spec: TopologySpec) -> None:
    """Let a host adopt a changed topology; returns when it has."""
    edit = f"edit {next(_edits)}"
    host.reconfigure(spec, edit)
    wait_until(f"{host.name} takes the edit", lambda: host.status().fingerprint == edit, _BEGUN_S)


def without_tls(spec: TopologySpec, folder: Path) -> TopologySpec:
    """Return a topology whose components keep their files in a folder, and have no certificates."""
    return dataclasses.replace(
        spec, state_dir=folder, sites=tuple(dataclasses.replace(each, tls=None) for each in spec.sites)
    )
