"""A session's memory of which transactions had ended at which time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.databases.postgres.destination.row_times.recent_changes import _APART, _REMEMBERED, Horizon

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 100)), max_size=2000)


@pytest.mark.seeded
@given(STEPS, st.integers(0, 60_000))
def test_transaction_reported_as_ended_before_a_time_had_ended_by_then(
    steps: list[tuple[int, int]], asked: int
) -> None:
    """Transactions end one after the other; the clock advances, or steps back a little."""
    horizon, number, clock, ends = Horizon(), 3, 1000, dict[int, int]()
    for more, passed in steps:
        for _ in range(more):
            number += 1
            ends[number] = clock  # at the latest
        clock += passed
        horizon.note(number + 1, clock)
        clock = max(clock, horizon._times[-1])  # a clock that was set back is ignored until it has caught up
    found = horizon.ended_before(asked)
    assert all(ended < asked for each, ended in ends.items() if each < found)
    assert len(horizon._times) == len(horizon._numbers) <= _REMEMBERED


def test_newest_earlier_time_counts() -> None:
    horizon = Horizon()
    for number, time_us in ((10, 100), (20, 200), (20, 250), (30, 300)):
        horizon.note(number, time_us)
    assert [horizon.ended_before(each) for each in (100, 101, 200, 201, 251, 300, 301, 1000)] == [
        0,
        10,
        10,
        20,
        20,
        20,
        30,
        30,
    ]


def test_time_before_the_known_one_is_not_earlier() -> None:
    horizon = Horizon()
    horizon.note(10, 500)
    horizon.note(20, 400)
    assert horizon.ended_before(450) == 0
    assert horizon.ended_before(501) == 20


def test_many_times_are_thinned_and_the_newest_stay() -> None:
    horizon = Horizon()
    for number in range(1, 100_000):
        horizon.note(number, number * 10)
    newest = horizon._numbers[-_REMEMBERED // 4 :]
    assert newest == list(range(100_000 - len(newest), 100_000))
    assert 0 < horizon.ended_before(5000) <= 500


def test_numbers_too_far_apart_for_32_bits_prove_nothing() -> None:
    horizon = Horizon()
    horizon.note(10, 100)
    horizon.note(10 + _APART, 200)
    assert horizon.ended_before(150) == 10
    horizon.note(11 + _APART, 300)
    assert horizon.ended_before(150) == 0
    assert horizon.ended_before(250) == 10 + _APART
