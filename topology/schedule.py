"""Schedules: the windows in which a propagation may use its line.

A window opens at a minute of the day or of every hour, on some days of the week, in the schedule's time zone. It stays
open for a fixed duration. Overlapping windows act as one. When clocks change, a window opens when the wall clock first
shows its time. If that time is skipped, the window opens later by the amount that the clock is set forward. Its
duration stays the same.

The manuals' start time, duration and next_time become `opens` and `duration`. Their latency, the longest time that a
message waits inside a window, has no meaning here: a propagation sends changes as they arrive.

Source: Oracle Streams Concepts and Administration 11.2, "Propagation Schedules"; `docs/decisions/0034-*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = [
    "DAYS",
    "DURATION_MAX_S",
    "DURATION_MIN_S",
    "EVERY_DAY",
    "HOUR_S",
    "Opening",
    "Schedule",
    "Window",
    "knows_time_zone",
]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = tuple(range(7))
DURATION_MIN_S = 60  # connecting takes seconds
DURATION_MAX_S = 7 * 86_400  # a longer weekly window would never close
HOUR_S = 3600
_AHEAD = timedelta(days=8)  # a window opens at least once a week; one more day for changes of the clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A recurring window.

    Args:
        hour: of the day; None: every hour.
        minute: of the hour.
        duration_s: how long the window stays open, seconds.
        days: days of the week on which it opens; Monday is 0.
    """

    hour: int | None
    minute: int
    duration_s: int
    days: tuple[int, ...] = EVERY_DAY

    def openings(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the moments at which the window opens.

        Args:
            zone: time zone of the window's clock.
            after: earliest moment, inclusive, UTC.
            until: end, exclusive, UTC.
        """
        each = self._daily(zone, after, until) if self.hour is not None else self._hourly(zone, after, until)
        for local in each:
            at = local.astimezone(UTC)
            if after <= at < until and local.weekday() in self.days:
                yield at

    def _daily(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        assert self.hour is not None
        day: date = after.astimezone(zone).date() - timedelta(days=1)
        while day <= until.astimezone(zone).date():
            yield datetime.combine(day, time(self.hour, self.minute), zone)
            day += timedelta(days=1)

    def _hourly(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        # Zones can differ from UTC by quarters of an hour. So each hour of real time is searched for the minute on the
        # local clock.
        at = after.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
        while at < until:
            local = at.astimezone(zone)
            yield (at + timedelta(minutes=(self.minute - local.minute) % 60)).astimezone(zone)
            at += timedelta(hours=1)

    def described(self) -> str:
        """Describe the window in a few words."""
        when = f"every hour at :{self.minute:02}" if self.hour is None else f"{self.hour:02}:{self.minute:02}"
        days = "" if self.days == EVERY_DAY else " on " + ", ".join(DAYS[day] for day in self.days)
        length = f"{self.duration_s // HOUR_S} h" if self.duration_s % HOUR_S == 0 else f"{self.duration_s / 60:g} min"
        return f"{when}{days} for {length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """State of a schedule at a moment.

    Args:
        is_open: whether a window is open.
        until_us: when that can change, microseconds since the epoch.
    """

    is_open: bool
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Windows in one time zone.

    Args:
        windows: at least one.
        time_zone: name in the IANA database.
    """

    windows: tuple[Window, ...]
    time_zone: str = "UTC"

    def at(self, now_us: int) -> Opening:
        """Return whether a window is open.

        Args:
            now_us: microseconds since the epoch.
        """
        now = datetime.fromtimestamp(now_us / 1e6, UTC)
        zone, end = ZoneInfo(self.time_zone), None
        times = sorted(
            (opens, opens + timedelta(seconds=window.duration_s))
            for window in self.windows
            for opens in window.openings(zone, now - timedelta(seconds=window.duration_s), now + _AHEAD)
        )
        for opens, closes in times:
            if opens > (end or now):
                break  # sorted: the rest opens even later
            if closes > (end or now):
                end = closes
        if end is not None:
            return Opening(is_open=True, until_us=_us(end))
        return Opening(is_open=False, until_us=_us(next(opens for opens, _ in times if opens > now)))

    def described(self) -> str:
        """Describe the windows in one line."""
        return f"{'; '.join(window.described() for window in self.windows)} ({self.time_zone})"

    def shown(self, at_us: int) -> str:
        """Format a moment on the clock of the schedule's time zone.

        Args:
            at_us: microseconds since the epoch.
        """
        return f"{datetime.fromtimestamp(at_us / 1e6, ZoneInfo(self.time_zone)):%Y-%m-%d %H:%M} {self.time_zone}"


def knows_time_zone(name: str) -> bool:
    """Return whether this machine has the rules of a time zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1e6)
