"""How a task reaches the apply process it belongs to. Imports next to nothing: it travels to every worker."""

from __future__ import annotations

from dataclasses import dataclass

from protos.wire.identity import Identity, Peer

__all__ = ["TaskAccess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAccess:
    """How a task reaches its apply process.

    Args:
        endpoint: "host:port" of the coordinator.
        token: of the run of tasks: what proves the task to belong to it.
        identity: certificate of the site that tasks and apply process belong to: the names of its files; None: without
            TLS.
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
