"""Errors of faults."""

from __future__ import annotations

from headrace.base.errors import PropagationError

__all__ = ["NotFired"]


class NotFired(PropagationError):  # noqa: N818 - says what is the matter
    """A fault could not be made: its target is not there now, or nothing passed where it was."""

    code = "HDR-7004"
