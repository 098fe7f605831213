"""The status of a topology's controller."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["ControllerStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus(ComponentStatus):
    """The controller itself.

    Args:
        phase: current phase of its work for `up`.
        calls: progress of the latest calls of `up`, by id; None: a version that does not record calls.
    """

    phase: str = ""
    calls: dict[str, str] | None = None
