"""Probes of the demo that have measured."""

from __future__ import annotations

from headrace.demo.load import Probe

__all__ = ["probe"]


def probe(*samples: tuple[float, float]) -> Probe:
    """A probe with rows that it has written: when each was committed, and when it was visible; 0: it is not yet."""
    made = Probe("", "", "t")
    for number, (committed, visible) in enumerate(samples, 1):
        made.crossings.commit(number, committed)
        if visible:
            made.crossings.see([number], visible)
    return made
