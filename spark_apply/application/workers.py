"""Spark's Python workers, in which tasks run.

Only the standard library is imported at the top, as in everything that a task imports before its worker has forked.
"""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def die_with_parent() -> None:
    """Make this process end with its parent, so that a worker does not outlive its executor (only on Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
