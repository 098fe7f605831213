"""The bound of operations that take milliseconds on a quiet machine.

It ends a test that waits in vain; no working test reaches it.
"""

from __future__ import annotations

__all__ = ["STALL_S"]

STALL_S = 60.0  # a machine with other work may stall for tens of seconds
