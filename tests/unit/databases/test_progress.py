from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.databases.ports import ScnRange
from headrace.databases.progress import covers, fold_ranges, merge_ranges, ranges_from_bounds, ranges_to_bounds

BOUNDS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=12)


def ranges(bounds):
    return [ScnRange(after=after, through=after + length) for after, length in bounds]


def members(low_watermark, found):
    return {scn for scn in range(1, 60) if scn <= low_watermark or any(r.after < scn <= r.through for r in found)}


@pytest.mark.seeded
@given(st.integers(0, 40), BOUNDS)
def test_folding_loses_and_invents_no_scn(low_watermark, bounds):
    found = ranges(bounds)
    folded, above = fold_ranges(low_watermark, found)
    assert members(folded, above) == members(low_watermark, found)


@pytest.mark.seeded
@given(st.integers(0, 40), BOUNDS)
def test_remaining_ranges_are_ascending_with_a_gap_below_each(low_watermark, bounds):
    folded, above = fold_ranges(low_watermark, ranges(bounds))
    ends = [folded, *(bound for r in above for bound in (r.after, r.through))]
    assert ends == sorted(set(ends))


@pytest.mark.seeded
@given(st.integers(0, 40), BOUNDS, st.integers(0, 40), st.integers(1, 6))
def test_covers_is_true_only_if_every_scn_is_applied(low_watermark, bounds, after, length):
    found = ranges(bounds)
    wanted = ScnRange(after=after, through=after + length)
    applied = set(range(after + 1, after + length + 1)) <= members(low_watermark, found)
    assert covers(low_watermark, merge_ranges(found, low_watermark), wanted) is applied


def test_adjacent_ranges_are_joined():
    assert merge_ranges(ranges([(10, 5), (15, 5), (30, 1)]), 0) == tuple(ranges([(10, 10), (30, 1)]))


@pytest.mark.seeded
@given(BOUNDS)
def test_ranges_survive_their_stored_form(bounds):
    found = tuple(ranges(bounds))
    assert ranges_from_bounds(ranges_to_bounds(found)) == found
