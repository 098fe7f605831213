"""Rows in flight: when each was committed, and when it was first seen."""

from __future__ import annotations

from headrace.load.latency import Crossings, quantile


def test_rows_are_queried_again_from_the_first_missing_one():
    crossings = Crossings()
    crossings.see([1, 3], 5.0)
    assert crossings.below == 1
    crossings.see([2, 3], 6.0)
    assert crossings.below == 3
    for number in (1, 2, 3):
        crossings.commit(number, 4.0)
    assert crossings.times() == [(4.0, 5.0), (4.0, 6.0), (4.0, 5.0)]


def test_number_of_a_seen_row_is_not_reused_without_an_acknowledgement():
    crossings = Crossings(below=10)
    assert crossings.next_number == 11
    crossings.commit(11, 1.0)
    crossings.see([12], 2.0)
    assert crossings.next_number == 13
    assert crossings.times() == []


def test_quantile_of_one_value_is_that_value():
    assert quantile([7.0], 0.5) == quantile([7.0], 1.0) == 7.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
