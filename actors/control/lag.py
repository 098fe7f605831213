"""Lag in seconds, computed only from reported positions.

A source's position is sampled with the time at which its database reported it. When everything up to an SCN is applied,
so is everything that was committed when a sample with that SCN or a lower one was taken. The lag is the age of the
newest such sample. A dead source, log writer, queue or destination therefore makes the lag grow; an unknown lag is
`None`, never 0.

The age ends when the apply process reported its position, not when the lag is queried. A report that is half a second
old is not half a second of lag. If the last report is older than `TOLD_MAX_S`, the age ends now.
"""

from __future__ import annotations

from bisect import bisect_right

from headrace.lcr.scn import Scn

__all__ = ["TOLD_MAX_S", "PositionSamples", "seen_at_us"]

TOLD_MAX_S = 5.0  # positions are queried every second, and a node under load may take three to answer

# Samples cover an outage of a day; older ones are thinned: a lag of an hour needs no precision of a second.
_SPACING_US = ((60_000_000, 1), (3_600_000_000, 10_000_000), (86_400_000_000, 300_000_000))
_THIN_EVERY = 256  # additions between two rounds of thinning


def seen_at_us(told_us: int, now_us: int) -> int:
    """Return the time to which a lag refers: that of the reported position.

    Now, if the report is older than `TOLD_MAX_S` or its time unknown.

    Args:
        told_us: when the apply process reported its position, microseconds since the epoch; 0: unknown.
        now_us: current time, microseconds since the epoch.
    """
    return told_us if 0 <= now_us - told_us <= TOLD_MAX_S * 1e6 else now_us


class PositionSamples:
    """Samples (time, SCN) of one source's log, ascending in both."""

    def __init__(self) -> None:
        self._times_us: list[int] = []
        self._scns: list[int] = []
        self._added = 0

    def add(self, time_us: int, scn: Scn) -> None:
        """Record that the source's log ended at `scn` at `time_us`; ignores older or repeated answers.

        Args:
            time_us: microseconds since the epoch, taken before the source was queried.
            scn: the end of its log, as the source answered.
        """
        if self._times_us and (time_us <= self._times_us[-1] or scn < self._scns[-1]):
            return
        # Only the newest of consecutive samples with one SCN matters, but the first one keeps the order complete.
        self._times_us.append(time_us)
        self._scns.append(scn)
        self._added += 1
        if self._added % _THIN_EVERY == 0:
            self._thin()

    def time_us(self, applied_scn: Scn) -> int | None:
        """Return the newest time at which the log was not beyond `applied_scn`; None: no sample is that old."""
        place = bisect_right(self._scns, applied_scn)
        return self._times_us[place - 1] if place else None

    def lag_s(self, applied_scn: Scn, now_us: int) -> float | None:
        """Return the seconds between `now_us` and the newest moment whose commits are all applied; None: unknown.

        Args:
            applied_scn: everything up to it is applied.
            now_us: the time to which the lag refers, in microseconds since the epoch.
        """
        time_us = self.time_us(applied_scn)
        return None if time_us is None else max(0.0, (now_us - time_us) / 1e6)

    def __len__(self) -> int:
        return len(self._times_us)

    def _thin(self) -> None:
        """Keep one sample per bucket; the bucket size grows with age. Buckets are fixed, so a kept sample stays kept."""
        newest = self._times_us[-1]
        kept: dict[tuple[int, int], tuple[int, int]] = {}
        for time_us, scn in zip(self._times_us, self._scns, strict=True):
            spacing = next((spacing for bound, spacing in _SPACING_US if newest - time_us <= bound), None)
            if spacing is not None:
                kept.setdefault((spacing, time_us // spacing), (time_us, scn))
        self._times_us = [time_us for time_us, _ in kept.values()]
        self._scns = [scn for _, scn in kept.values()]
