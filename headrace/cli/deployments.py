"""The topology of a verb, read and connected to while the verb runs."""

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
def deployment_of(
    file: Path, address: str = "", *, to_start: bool = False, to_connect: bool = True
) -> Iterator[Deployment]:
    """Read a topology, record the running verb in the audit log, and disconnect from the cluster at the end.

    Args:
        file: the topology's YAML file.
        address: address of a Ray cluster; empty: as in `headrace.deployment.deployment.Deployment.read`.
        to_start: as in the same method.
        to_connect: as in the same method.
    """
    from headrace.deployment.deployment import Deployment

    deployment = Deployment.read(file, address, to_start=to_start, to_connect=to_connect)
    began(deployment.spec.state_dir)
    try:
        yield deployment
    finally:
        deployment.disconnect()
