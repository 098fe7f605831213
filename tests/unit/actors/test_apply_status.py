"""When an apply process was asked for the position that its status shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.apply import ApplyHost
from protos import apply_pb2 as pb


class Clock:
    """Stands where it is put."""

    now_us = 1000

    def time_us(self) -> int:
        return self.now_us


@pytest.mark.parametrize(("asked_us", "expected"), [(990, 990), (1010, 1010), (0, 1000)], ids=["busy since", "answered", "not yet running"])
def test_position_is_as_old_as_the_question_though_the_process_stood_still_after_it(spec: Any, asked_us: int, expected: int) -> None:
    """Found by `headrace chaos`: a process that was frozen between the answer and a look at the clock told an old watermark as a new one."""
    host, clock = ApplyHost(spec, "x", "label"), Clock()
    host._clock = clock

    def status() -> pb.ApplyStatus:
        clock.now_us += 5_000_000  # frozen
        return pb.ApplyStatus(low_watermark_scn=7, asked_us=asked_us)

    host._driver = SimpleNamespace(outcome=lambda: None, control=SimpleNamespace(status=status), admission=None)
    host.step()
    assert host._answered_us == expected
    assert host._latest["low_watermark_scn"] == 7
