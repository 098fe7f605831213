"""Timelines of a source's log: two servers that were promoted beside each other give their timelines the same number."""

from __future__ import annotations

import pytest

from headrace.databases.ports import StreamOptions
from headrace.databases.timelines import is_of_one_history
from headrace.lcr.scn import Scn


def on(timeline: int, *switches: tuple[int, int]) -> StreamOptions:
    return StreamOptions(
        database_kind="memory",
        system_identifier="1",
        timeline=timeline,
        binary=False,
        encoding="UTF8",
        server_version=1,
        switches=tuple((number, Scn(scn)) for number, scn in switches),
    )


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (on(1), on(1), True),
        (on(1), on(2, (1, 100)), True),
        (on(2, (1, 100)), on(2, (1, 100)), True),
        (on(2, (1, 100)), on(3, (1, 100), (2, 200)), True),
        (on(2, (1, 100)), on(2, (1, 120)), False),
        (on(2, (1, 100)), on(3, (1, 120), (2, 200)), False),
        (on(3, (1, 100), (2, 200)), on(4, (1, 100), (3, 200)), False),  # never was on timeline 2
        (on(2, (1, 100)), on(1), False),
        (on(2, (1, 100)), on(2), True),  # written by an earlier version: nothing is known
        (on(2), on(2, (1, 100)), True),
    ],
)
def test_pieces_of_a_log_are_of_one_history_where_they_left_every_timeline_at_the_same_scn(
    earlier: StreamOptions, later: StreamOptions, expected: bool
) -> None:
    assert is_of_one_history(earlier, later) is expected
