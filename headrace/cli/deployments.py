"""The topology that a verb is about, read and connected to for as long as the verb runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.audit.verbs import began

if TYPE_CHECKING:
    from headrace.deployment.deployment import Deployment

__all__ = ["deployment_of"]


@contextmanager
def deployment_of(file: Path, address: str = "", *, to_start: bool = False) -> Iterator[Deployment]:
    """Read a topology, note the verb that runs, and disconnect from the cluster at the end.

    Args:
        file: the topology's YAML file.
        address: of a Ray cluster; empty: see `headrace.deployment.deployment.Deployment.read`.
        to_start: see there.
    """
    from headrace.deployment.deployment import Deployment

    deployment = Deployment.read(file, address, to_start=to_start)
    began(deployment.spec.state_dir)
    try:
        yield deployment
    finally:
        deployment.disconnect()
