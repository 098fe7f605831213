"""A task's access to its apply process. It imports next to nothing, because it travels to every worker."""

from __future__ import annotations

from dataclasses import dataclass

from protos.wire.identity import Identity, Peer

__all__ = ["TaskAccess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAccess:
    """A task's access to its apply process.

    Args:
        endpoint: "host:port" of the coordinator.
        token: token of the run, which proves that the task belongs to it.
        identity: certificate of the site of tasks and apply process, as the names of its files; None: without TLS.
    """

    endpoint: str
    token: str
    identity: Identity | None = None

    @property
    def peer(self) -> Peer:
        """The coordinator."""
        return Peer(
            address=self.endpoint, site="" if self.identity is None else self.identity.site, identity=self.identity
        )
