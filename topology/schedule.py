"""Schedules: the windows in which a propagation may use its line.

A window opens at a minute of the day, or of every hour, on some days of the week, in the time zone of the schedule, for
so long. Windows may overlap; together they are one. Around a change of the clocks a window opens when the clock on the
wall first shows its time, or, where that time is skipped, as much later as the clock is set forward; it lasts as long
as ever.

The manuals' start time, duration and next_time become `opens` and `duration`. Their latency, the longest time that a
message waits inside of a window, has no meaning here: a propagation sends as changes come.

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
DURATION_MAX_S = 7 * 86_400  # a longer window that opens every week never closes
HOUR_S = 3600
_AHEAD = timedelta(days=8)  # a window opens at least once a week; one more day for changes of the clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When a window opens, and for how long.

    Args:
        hour: of the day; None: every hour.
        minute: of the hour.
        duration_s: how long it stays open, seconds.
        days: of the week on which it opens, Monday is 0.
    """

    hour: int | None
    minute: int
    duration_s: int
    days: tuple[int, ...] = EVERY_DAY

    def openings(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        """The moments at which it opens.

        Args:
            zone: whose clock it goes by.
            after: moments at this or later, UTC.
            until: moments before this, UTC.
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
        # Zones differ from UTC by quarters of an hour, too: the minute is looked for on the local clock, hour by hour
        # of real time.
        at = after.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
        while at < until:
            local = at.astimezone(zone)
            yield (at + timedelta(minutes=(self.minute - local.minute) % 60)).astimezone(zone)
            at += timedelta(hours=1)

    def described(self) -> str:
        """The window in a few words."""
        when = f"every hour at :{self.minute:02}" if self.hour is None else f"{self.hour:02}:{self.minute:02}"
        days = "" if self.days == EVERY_DAY else " on " + ", ".join(DAYS[day] for day in self.days)
        length = f"{self.duration_s // HOUR_S} h" if self.duration_s % HOUR_S == 0 else f"{self.duration_s / 60:g} min"
        return f"{when}{days} for {length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Whether a schedule is open.

    Args:
        is_open: now.
        until_us: when that may change, microseconds since the epoch.
    """

    is_open: bool
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """See the module.

    Args:
        windows: at least one.
        time_zone: name in the IANA database.
    """

    windows: tuple[Window, ...]
    time_zone: str = "UTC"

    def at(self, now_us: int) -> Opening:
        """Whether a window is open.

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
                break  # in order: the others open later still
            if closes > (end or now):
                end = closes
        if end is not None:
            return Opening(is_open=True, until_us=_us(end))
        return Opening(is_open=False, until_us=_us(next(opens for opens, _ in times if opens > now)))

    def described(self) -> str:
        """The windows in one line."""
        return f"{'; '.join(window.described() for window in self.windows)} ({self.time_zone})"

    def shown(self, at_us: int) -> str:
        """A moment on the clock of the schedule's time zone.

        Args:
            at_us: microseconds since the epoch.
        """
        return f"{datetime.fromtimestamp(at_us / 1e6, ZoneInfo(self.time_zone)):%Y-%m-%d %H:%M} {self.time_zone}"


def knows_time_zone(name: str) -> bool:
    """Whether this machine has the rules of a time zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1e6)
