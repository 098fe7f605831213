"""Faults of a simulation."""

from __future__ import annotations

__all__ = ["Killed"]


class Killed(BaseException):
    """A process ends here, inside a step. Not an `Exception`: nothing in the product may handle it."""
