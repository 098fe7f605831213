"""Numbered rows that are committed at one place and looked for at another: how long each was on its way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Crossings", "quantile"]


@dataclass(slots=True)
class Crossings:
    """When rows were committed, and when they were seen first. One thread writes, another one looks.

    Rows are numbered one after the other. Times are seconds on a clock of the caller's.

    Args:
        below: every row up to this number has been seen, so no query need ask for it again.
    """

    below: int = 0
    _committed: dict[int, float] = field(default_factory=dict)
    _seen: dict[int, float] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """The number of the next row."""
        return max([self.below, *self._committed, *self._seen]) + 1

    @property
    def seen_count(self) -> int:
        """How many rows were seen."""
        return len(self._seen)

    def commit(self, number: int, at: float) -> None:
        """A row is committed.

        Args:
            number: of it.
            at: the time.
        """
        self._committed[number] = at

    def see(self, numbers: Iterable[int], at: float) -> None:
        """Rows are visible where they are looked for; only the first time counts.

        Args:
            numbers: of them.
            at: the time.
        """
        for number in numbers:
            self._seen.setdefault(number, at)
        # Parallel apply servers may commit out of order: only a run without a gap is complete.
        while self.below + 1 in self._seen:
            self.below += 1

    def times(self) -> list[tuple[float, float]]:
        """When each row was committed, and when it was visible; without those of which one of both is not known.

        A row may be seen before its writer hears of its commit: then it was visible at once.
        """
        seen, committed = dict(self._seen), dict(self._committed)
        return [(at, max(at, seen[number])) for number, at in committed.items() if number in seen]


def quantile(ordered: list[float], share: float) -> float:
    """The value below which a share of all values is.

    Args:
        ordered: the values, lowest first; at least one.
        share: from 0 to 1.
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
