"""Numbered rows that are committed at one place and watched for at another, with their travel times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Crossings", "quantile"]


@dataclass(slots=True)
class Crossings:
    """When rows were committed, and when they were first seen. One thread writes, another one looks.

    Rows are numbered in sequence. Times are seconds on the caller's clock.

    Args:
        below: every row up to this number has been seen, so that queries can skip them.
    """

    below: int = 0
    _committed: dict[int, float] = field(default_factory=dict)
    _seen: dict[int, float] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """Number of the next row."""
        return max([self.below, *self._committed, *self._seen]) + 1

    @property
    def seen_count(self) -> int:
        """Number of rows that were seen."""
        return len(self._seen)

    def commit(self, number: int, at: float) -> None:
        """Record the commit time of a row."""
        self._committed[number] = at

    def see(self, numbers: Iterable[int], at: float) -> None:
        """Record that rows are visible; only the first time counts.

        Args:
            numbers: their numbers.
            at: the time.
        """
        for number in numbers:
            self._seen.setdefault(number, at)
        # Parallel apply servers may commit out of order: only a sequence without a gap is complete.
        while self.below + 1 in self._seen:
            self.below += 1

    def times(self) -> list[tuple[float, float]]:
        """Return when each row was committed and when it was visible, for rows with both times.

        A row may be seen before its writer learns of its commit; it then counts as visible at once.
        """
        seen, committed = dict(self._seen), dict(self._committed)
        return [(at, max(at, seen[number])) for number, at in committed.items() if number in seen]


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which a share of all values lies.

    Args:
        ordered: the values, in ascending order; at least one.
        share: from 0 to 1.
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
