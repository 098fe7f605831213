"""What happened in a simulation, in order: a bounded record for people, and a digest that two runs of one seed share."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.clock import Clock

__all__ = ["Event", "Trace"]

_EVENTS_MAX = 50_000  # several times what a change needs from its commit to its last destination
_LINES_MAX = 60  # of the trace of one change: a screen or two


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        at: virtual time, seconds.
        place: component, site or stream.
        what: happened there.
        source: the source whose changes it concerns; empty: none's, it is a fault or the operator.
        after: SCN of that source: changes after it are concerned ...
        through: ... up to this one.
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
    """The record of one run.

    Args:
        clock: the simulation's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=_EVENTS_MAX)
        self._digest = hashlib.sha256()
        self.count = 0

    def note(self, place: str, what: str, source: str = "", after: int = 0, through: int = 0) -> None:
        """Record an event; see `Event`.

        Args:
            place: where.
            what: it is.
            source: whose changes it concerns.
            after: the first SCN, exclusive.
            through: the last SCN.
        """
        event = Event(round(self._clock.monotonic(), 6), place, what, source, after, through)
        self._events.append(event)
        self._digest.update(str(event).encode())
        self.count += 1

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same happened, event by event."""
        return self._digest.hexdigest()

    def about(self, scns: Mapping[str, int]) -> tuple[str, ...]:
        """What happened to one transaction, and the faults between its commit and now.

        Args:
            scns: the commit SCN that it has in each source's log; empty: only the last events.
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
