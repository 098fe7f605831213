"""The status of a topology's controller."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["ControllerStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus(ComponentStatus):
    """The controller itself.

    Args:
        phase: of what it does for `up`.
        calls: the latest calls of `up` by what identifies them, and how far each is; None: it is of a version that
            settles none.
    """

    phase: str = ""
    calls: dict[str, str] | None = None
