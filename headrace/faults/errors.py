"""Errors of faults."""

from __future__ import annotations

from headrace.base.errors import PropagationError

__all__ = ["NotFired"]


class NotFired(PropagationError):  # noqa: N818 - says what is the matter
    """A fault could not be made: its target does not exist now, or carried no traffic."""

    code = "HDR-7004"
    fix = "Run chaos again while the topology has load, or leave that fault out."
