"""Opening times of a schedule: overlaps, days, and days of clock changes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.support.session.seeds import scaled, seed_of
from tests.support.topologies.files import SITES, problems, read
from topology.edits.stored import spec_from_json, spec_to_json
from topology.plan import make_plan
from topology.routing.combined import combination
from topology.schedule import Opening, Schedule, Window

ZURICH = "Europe/Zurich"
EXPLICIT = (
    SITES
    + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p: {from: q1, to: q2, KEYS}}
applies: {a: {site: dbs2, source: dbs1, queue: q2}}
"""
)


def at(schedule: Schedule, local: str, zone: str = "UTC") -> tuple[bool, str]:
    """Return whether the schedule is open, and until when, on the clock of a zone."""
    moment = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
    opening = schedule.at(round(moment.timestamp() * 1e6))
    until = datetime.fromtimestamp(opening.until_us / 1e6, ZoneInfo(zone))
    return opening.is_open, until.replace(tzinfo=None).isoformat(" ", "minutes")


def test_window_over_midnight_is_open_from_start_to_end() -> None:
    nights = Schedule(windows=(Window(hour=22, minute=0, duration_s=6 * 3600),))
    assert at(nights, "2026-11-22 21:59:59") == (False, "2026-11-22 22:00")
    assert at(nights, "2026-11-22 22:00") == (True, "2026-11-23 04:00")
    assert at(nights, "2026-11-23 03:59:59") == (True, "2026-11-23 04:00")
    assert at(nights, "2026-11-23 04:00") == (False, "2026-11-23 22:00")


def test_days_of_a_window_are_the_days_on_which_it_opens() -> None:
    friday_night = Schedule(windows=(Window(hour=22, minute=30, duration_s=4 * 3600, days=(4,)),))
    assert at(friday_night, "2026-11-21 01:00") == (True, "2026-11-21 02:30")  # Saturday, an hour after midnight
    assert at(friday_night, "2026-11-21 22:45") == (False, "2026-11-27 22:30")


def test_overlapping_or_adjacent_windows_merge() -> None:
    both = Schedule(
        windows=(
            Window(hour=1, minute=0, duration_s=3600),
            Window(hour=1, minute=30, duration_s=3600),
            Window(hour=2, minute=30, duration_s=600),
            Window(hour=12, minute=0, duration_s=600),
        )
    )
    assert at(both, "2026-11-22 01:10") == (True, "2026-11-22 02:40")
    assert at(both, "2026-11-22 02:40") == (False, "2026-11-22 12:00")


def test_hourly_window_follows_the_local_minute() -> None:
    hourly = Schedule(windows=(Window(hour=None, minute=50, duration_s=600),), time_zone="Asia/Kathmandu")  # UTC+5:45
    assert at(hourly, "2026-11-22 09:49", "Asia/Kathmandu") == (False, "2026-11-22 09:50")
    assert at(hourly, "2026-11-22 09:55", "Asia/Kathmandu") == (True, "2026-11-22 10:00")


def test_clock_changes_neither_skip_repeat_nor_resize_a_window() -> None:
    at_half_past_two = Schedule(windows=(Window(hour=2, minute=30, duration_s=1800),), time_zone=ZURICH)
    for day, opens_utc in (("2026-03-28", 1.5), ("2026-03-29", 1.5), ("2026-10-25", 0.5), ("2026-10-26", 1.5)):
        midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
        minutes = [
            minute
            for minute in range(-120, 22 * 60)
            if at_half_past_two.at(round((midnight + timedelta(minutes=minute)).timestamp() * 1e6)).is_open
        ]
        assert minutes == list(range(int(opens_utc * 60), int(opens_utc * 60) + 30)), day


@pytest.mark.seeded
def test_schedule_state_holds_until_its_next_change() -> None:
    rng = random.Random(seed_of("what a schedule says"))
    for _ in range(scaled(30, 3000)):
        schedule = Schedule(
            time_zone=rng.choice(["UTC", ZURICH, "America/New_York", "Australia/Lord_Howe"]),
            windows=tuple(
                Window(
                    hour=rng.choice([None, *range(24)]),
                    minute=rng.randrange(60),
                    duration_s=rng.randrange(60, 3600, 60),
                    days=tuple(sorted(rng.sample(range(7), rng.randint(1, 7)))),
                )
                for _ in range(rng.randint(1, 3))
            ),
        )
        now_us = rng.randrange(1_770_000_000, 1_800_000_000) * 1_000_000
        opening = schedule.at(now_us)
        assert opening.until_us > now_us
        for moment_us in (*(rng.randrange(now_us, opening.until_us) for _ in range(5)), opening.until_us - 1_000_000):
            if moment_us > now_us:
                assert schedule.at(moment_us) == opening
        after = schedule.at(opening.until_us)
        assert (after.is_open, after.until_us > opening.until_us) == (not opening.is_open, True)


def test_line_keys_are_read_stored_planned_and_end_combined_capture(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        EXPLICIT.replace(
            "KEYS",
            'bandwidth_max: 500kB/s, schedule: {time_zone: Europe/Zurich, windows: [{opens: "22:00", duration: 6h,'
            ' days: [fri, mon]}, {opens: "*:50", duration: 10min}]}',
        ),
    )
    (propagation,) = spec.propagations
    assert propagation.bandwidth_max == 500 << 10
    assert propagation.schedule == Schedule(
        time_zone=ZURICH,
        windows=(
            Window(hour=22, minute=0, duration_s=6 * 3600, days=(0, 4)),
            Window(hour=None, minute=50, duration_s=600),
        ),
    )
    assert spec_from_json(spec_to_json(spec)).propagations == spec.propagations
    text = make_plan(spec).as_text()
    assert "at most 500kB/s, when open: 22:00 on mon, fri for 6 h; every hour at :50 for 10 min (Europe/Zurich)" in text
    assert combination(spec, spec.captures[0]).hindrance == "p has a bandwidth_max"
    other = read(tmp_path, EXPLICIT.replace("KEYS", 'schedule: {windows: [{opens: "22:00", duration: 90min}]}'))
    assert combination(other, other.captures[0]).hindrance == "p sends by a schedule"
    assert other.propagations[0].schedule.described() == "22:00 for 90 min (UTC)"


WRONG = {
    "bandwidth_max: fast": "is not a bandwidth",
    "bandwidth_max: 100": "is too low",
    "latency: 3": "latency has no meaning here",
    "schedule: {windows: []}": "windows",
    "schedule: {windows: [{opens: 22:00, duration: 6h}]}": "YAML reads 22:00 without quotes as a number",
    'schedule: {windows: [{opens: "25:00", duration: 6h}]}': "is not a time of the day",
    'schedule: {windows: [{opens: "22:00", duration: 5s}]}': "is not a duration of a window",
    'schedule: {windows: [{opens: "22:00", duration: 200h}]}': "is not a duration of a window",
    'schedule: {windows: [{opens: "22:00", duration: 6h, days: [monday]}]}': "did you mean 'mon'",
    'schedule: {windows: [{opens: "22:00", duration: 6h, days: []}]}': "lists no day",
    'schedule: {windows: [{opens: "*:00", duration: 1h}]}': "never closes",
    'schedule: {time_zone: Europe/Zurick, windows: [{opens: "22:00", duration: 1h}]}': "there is no time zone"
    " 'Europe/Zurick'",
    'schedule: {opens: "22:00"}': "there is no such key",
    "split_threshold: 5": "at least 10",
    "split: sometimes": "auto",
}


@pytest.mark.parametrize("keys", WRONG)
def test_invalid_line_keys_are_reported_with_a_fix(tmp_path: Path, keys: str) -> None:
    found = problems(tmp_path, EXPLICIT.replace("KEYS", keys))
    assert WRONG[keys] in "\n".join(found)


def test_opening_time_is_shown_on_the_schedules_clock() -> None:
    schedule = Schedule(windows=(Window(hour=22, minute=0, duration_s=3600),), time_zone=ZURICH)
    opening = schedule.at(1_790_000_000_000_000)
    assert opening == Opening(is_open=False, until_us=opening.until_us)
    assert schedule.shown(opening.until_us).endswith("22:00 Europe/Zurich")
