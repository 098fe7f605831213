"""Statuses of hosts, as the kinds that they are."""

from __future__ import annotations

from typing import TypeVar

from actors.hosting.host import Host
from headrace.status.component import ComponentStatus

__all__ = ["status_of"]

S = TypeVar("S", bound=ComponentStatus)


def status_of(host: Host, kind: type[S]) -> S:
    """Return a host's status, which must be of this kind."""
    status = host.status()
    assert isinstance(status, kind), status
    return status
