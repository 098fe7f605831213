"""The bound of what a quiet machine does in milliseconds: it ends a test that waits in vain, and is met by none that
works.
"""

from __future__ import annotations

__all__ = ["STALL_S"]

STALL_S = 60.0  # a machine that does other work beside may stall for tens of seconds
