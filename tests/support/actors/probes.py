"""Probes of the demo with measurements."""

from __future__ import annotations

from headrace.demo.load import Probe

__all__ = ["probe"]


def probe(*samples: tuple[float, float]) -> Probe:
    """Return a probe with written rows: the commit time and the visible time of each; 0: not visible yet."""
    made = Probe("", "", "t")
    for number, (committed, visible) in enumerate(samples, 1):
        made.crossings.commit(number, committed)
        if visible:
            made.crossings.see([number], visible)
    return made
