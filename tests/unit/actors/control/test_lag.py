from __future__ import annotations

from actors.control.lag import TOLD_MAX_S, PositionSamples, seen_at_us

SECOND_US = 1_000_000


def test_newest_sample_at_or_below_the_applied_scn_counts():
    samples = PositionSamples()
    for second, scn in enumerate((10, 20, 20, 30)):
        samples.add((second + 1) * SECOND_US, scn)
    assert samples.time_us(9) is None
    assert samples.time_us(10) == 1 * SECOND_US
    assert samples.time_us(29) == 3 * SECOND_US
    assert samples.lag_s(30, 10 * SECOND_US) == 6.0


def test_stale_and_repeated_answers_prove_nothing():
    samples = PositionSamples()
    samples.add(5 * SECOND_US, 50)
    samples.add(5 * SECOND_US, 60)
    samples.add(4 * SECOND_US, 70)
    samples.add(6 * SECOND_US, 40)
    assert len(samples) == 1


def test_a_day_of_samples_stays_small_and_accurate():
    samples = PositionSamples()
    for second in range(86_400):
        samples.add((second + 1) * SECOND_US, second * 10)
    assert len(samples) < 1500
    for age, tolerance in ((5, 1), (1000, 11), (50_000, 301)):
        applied = (86_400 - age) * 10
        lag_s = samples.lag_s(applied, 86_400 * SECOND_US)
        assert lag_s is not None
        assert abs(lag_s - age) <= tolerance


def test_lag_counts_from_now_when_the_position_is_old_or_unknown():
    now_us = 1000 * SECOND_US
    assert seen_at_us(now_us - SECOND_US, now_us) == now_us - SECOND_US
    assert seen_at_us(now_us - int(TOLD_MAX_S * SECOND_US) - 1, now_us) == now_us
    assert seen_at_us(0, now_us) == now_us
    assert seen_at_us(now_us + 1, now_us) == now_us, "an answer from the future proves nothing"
