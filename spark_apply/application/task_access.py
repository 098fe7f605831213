"""How a task reaches the apply process it belongs to. Imports nothing: it travels to every worker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TaskAccess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAccess:
    """How a task reaches its apply process.

    Args:
        endpoint: "host:port" of the coordinator.
        token: of the run of tasks: what proves the task to belong to it.
    """

    endpoint: str
    token: str
