"""Trace of a simulation: a bounded list of events, and a digest that is equal for two runs of one seed."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.clock import Clock

__all__ = ["Event", "Trace"]

_EVENTS_MAX = 50_000  # several times the events between a change's commit and its last destination
_LINES_MAX = 60  # of the trace of one change: one or two screens


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Args:
        at: virtual time, seconds.
        place: component, site or stream.
        what: what happened there.
        source: source of the affected changes; empty: none, the event is a fault or an action of the operator.
        after: SCN of that source; later changes are affected ...
        through: ... up to this SCN.
    """

    at: float
    place: str
    what: str
    source: str = ""
    after: int = 0
    through: int = 0

    def __str__(self) -> str:
        span = f" {self.source} {self.after}..{self.through}" if self.source else ""
        return f"{self.at:10.3f}s  {self.place:<34} {self.what}{span}"


class Trace:
    """The trace of one run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=_EVENTS_MAX)
        self._digest = hashlib.sha256()
        self.count = 0

    def note(self, place: str, what: str, source: str = "", after: int = 0, through: int = 0) -> None:
        """Record an event.

        Args:
            place: component, site or stream.
            what: what happened there.
            source: source of the affected changes.
            after: SCN before the first affected change.
            through: SCN of the last affected change.
        """
        event = Event(round(self._clock.monotonic(), 6), place, what, source, after, through)
        self._events.append(event)
        self._digest.update(str(event).encode())
        self.count += 1

    @property
    def digest(self) -> str:
        """Hash of all events, equal for two runs with the same events."""
        return self._digest.hexdigest()

    def about(self, scns: Mapping[str, int]) -> tuple[str, ...]:
        """Return the events of one transaction, and the faults since its commit.

        Args:
            scns: its commit SCN in each source's log; empty: return the last events only.
        """
        found = [e for e in self._events if e.source and e.after < scns.get(e.source, -1) <= e.through]
        if not found:
            return tuple(str(event) for event in list(self._events)[-_LINES_MAX:])
        began = found[0].at
        found += [e for e in self._events if not e.source and e.at >= began]
        found.sort(key=lambda event: event.at)
        lines = [str(event) for event in found]
        if len(lines) <= _LINES_MAX:
            return tuple(lines)
        half = _LINES_MAX // 2
        return (*lines[:half], f"... {len(lines) - 2 * half} more events ...", *lines[-half:])
