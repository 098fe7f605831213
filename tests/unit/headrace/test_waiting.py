from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.waiting import NotCaughtUp, wait_caught_up
from streams.errors import PropagationError
from tests.support.topologies import read


class Actors:
    """Two sources, markers and low watermarks as scripted."""

    def __init__(self, markers: dict[str, int], watermarks: dict[str, list[int | Exception]]) -> None:
        self.markers, self.watermarks = markers, watermarks

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> int:
        short = name.partition(":")[2]
        if method == "write_marker":
            return self.markers[short]
        answers = self.watermarks[short]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def spec(tmp_path: Path):
    return read(tmp_path, """
        topology: t
        sites:
          a: {database: {kind: embedded}}
          b: {database: {kind: embedded}}
        replicate:
          - {tables: [public.*], between: [a, b]}
    """)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("headrace.waiting.POLL_S", 0.0)


def names(spec) -> tuple[str, str]:
    return tuple(next(apply.name for apply in spec.applies if apply.source == source) for source in ("a", "b"))  # type: ignore[return-value]


def test_waits_until_every_apply_is_past_its_own_sources_marker(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [50, 99, 100], from_b: [6, 7]})
    assert wait_caught_up(spec, actors, timeout_s=60) == {"a": 100, "b": 7}


def test_dead_apply_is_asked_again(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [PropagationError("gone"), 100], from_b: [8]})
    assert wait_caught_up(spec, actors, timeout_s=60)


def test_time_out_names_who_is_behind_and_why(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [PropagationError("the driver is not up")], from_b: [8]})
    with pytest.raises(NotCaughtUp, match=rf"{from_a} has not reached.*the driver is not up") as caught:
        wait_caught_up(spec, actors, timeout_s=0.0)
    assert from_b not in caught.value.message
