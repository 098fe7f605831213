"""Timelines of a source's log: two servers promoted independently give their timelines the same number."""

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
        (on(3, (1, 100), (2, 200)), on(4, (1, 100), (3, 200)), False),  # was never on timeline 2
        (on(2, (1, 100)), on(1), False),
        (on(2, (1, 100)), on(2), True),  # written by an earlier version, without switches
        (on(2), on(2, (1, 100)), True),
    ],
)
def test_log_pieces_share_a_history_if_they_left_timelines_at_equal_scns(
    earlier: StreamOptions, later: StreamOptions, expected: bool
) -> None:
    assert is_of_one_history(earlier, later) is expected
