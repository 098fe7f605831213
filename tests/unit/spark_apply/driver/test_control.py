"""What the control of a driver answers while its coordinator is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from protos import apply_pb2 as pb
from spark_apply.driver.control import ApplyControl


class Coordinator:
    """Answers with a low watermark, unless it is busy."""

    def __init__(self) -> None:
        self.is_busy, self.low_watermark = False, 10

    def call_within(self, read: Callable[[], pb.ApplyStatus], seconds: float) -> tuple[pb.ApplyStatus] | None:
        return None if self.is_busy else (read(),)


def test_status_of_a_busy_coordinator_says_since_when_it_is_known(monkeypatch: Any) -> None:
    """The lag, and what `headrace chaos` checks of watermarks, go by the time at which a position was read."""
    coordinator = Coordinator()
    monkeypatch.setattr(ApplyControl, "_read", lambda self, cores: pb.ApplyStatus(low_watermark_scn=coordinator.low_watermark))
    control = ApplyControl(config=SimpleNamespace(), cores=SimpleNamespace(host=coordinator))  # type: ignore[arg-type]
    before_us = time.time_ns() // 1000
    first = control.status()
    coordinator.is_busy, coordinator.low_watermark = True, 20
    later = control.status()
    assert before_us <= first.asked_us <= time.time_ns() // 1000
    assert (later.low_watermark_scn, later.asked_us) == (10, first.asked_us)
    coordinator.is_busy = False
    again = control.status()
    assert again.low_watermark_scn == 20
    assert again.asked_us >= first.asked_us
