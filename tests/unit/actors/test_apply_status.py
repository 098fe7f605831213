"""When an apply process was asked for the position in its status, and how often it is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from actors.apply import STARTING_INTERVAL_S, STARTING_S, STATUS_INTERVAL_S, ApplyHost
from headrace.databases.destination_views import ERRORS_MAX
from headrace.status.applies import ApplyStatus
from protos import apply_pb2 as pb
from tests.support.databases.destination_contract import error_transaction
from tests.support.session.noted import noted


class Clock:
    """A clock that the test sets."""

    now_us = 1000

    def time_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return self.now_us / 1e6


def made(spec: Any, clock: Clock, status: Callable[[], pb.ApplyStatus]) -> ApplyHost:
    host = ApplyHost(spec, "x", "label")
    host._clock = clock
    driver: Any = SimpleNamespace(outcome=lambda: None, control=SimpleNamespace(status=status), admission=None)
    host._driver = driver
    return host


@pytest.mark.parametrize(
    ("asked_us", "expected"), [(990, 990), (1010, 1010), (0, 1000)], ids=["busy since", "answered", "not yet running"]
)
def test_position_counts_from_the_question_although_the_process_froze_then(
    spec: Any, asked_us: int, expected: int
) -> None:
    """Found by `headrace chaos`: a process that was frozen between the answer and reading the clock reported an old
    watermark as new.
    """
    clock = Clock()

    def status() -> pb.ApplyStatus:
        clock.now_us += 5_000_000  # frozen
        return pb.ApplyStatus(low_watermark_scn=7, asked_us=asked_us)

    host = made(spec, clock, status)
    host.step()
    assert host._latest.answered_us == expected
    assert host._latest.low_watermark_scn == 7


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (pb.ApplyStatus(state="INITIALIZING"), None),
        (pb.ApplyStatus(state="IDLE", epoch=1), 0),
        (pb.ApplyStatus(state="IDLE", epoch=1, errors=2), 2),
    ],
    ids=["starting", "empty", "two"],
)
def test_error_queue_is_unknown_until_a_driver_has_read_it(
    spec: Any, said: pb.ApplyStatus, expected: int | None
) -> None:
    host = made(spec, Clock(), lambda: said)
    host.step()
    assert host.details().errors == expected


def test_status_reads_only_the_first_error_transactions_and_no_values(spec: Any) -> None:
    asked: list[tuple[Any, ...]] = []

    def errors(*of: str, first: int) -> list[Any]:
        asked.append((*of, first))
        return [error_transaction(number=3, readable=("id=4711",))]

    host = ApplyHost(spec, "x", "label")
    host._destination = lambda: closing(SimpleNamespace(errors=errors, close=lambda: None))  # type: ignore[method-assign]  # of this host alone
    (found,) = host.first_errors()
    assert (found["number"], found["readable"], asked) == (3, (), [(spec.name, "x", ERRORS_MAX)])


def test_views_come_from_the_driver_or_without_one_from_the_configuration(spec: Any) -> None:
    host = ApplyHost(spec, "x", "label")
    host._described = {"source_database": "a", "rules": [{"schema_name": "hr"}]}
    views = host.views()
    assert [
        (row["topology"], row["streams_name"], row["streams_type"], row["schema_name"], row["object_name"])
        for row in views["dba_streams_rules"]
    ] == [
        (spec.name, "x", "APPLY", "hr", None),
    ]
    assert (
        views["dba_apply"]
        == views["dba_apply_progress"]
        == views["v_streams_apply_coordinator"]
        == views["v_streams_apply_server"]
        == []
    )
    said = {"topology": "t", "apply_name": "x", "epoch": 7, "configuration": {}, "state": {"status": "ENABLED"}}
    driver: Any = SimpleNamespace(control=SimpleNamespace(said=lambda: said))
    host._driver = driver
    assert [(row["apply_name"], row["epoch"], row["status"]) for row in host.views()["dba_apply"]] == [
        ("x", 7, "ENABLED")
    ]


def test_starting_apply_process_is_polled_often_until_ready_or_too_late(spec: Any) -> None:
    clock, ready = Clock(), [False]
    host = made(spec, clock, lambda: pb.ApplyStatus(ready=ready[0]))
    host._starting_until = clock.monotonic() + STARTING_S  # as `open` sets it
    assert host.step() == STARTING_INTERVAL_S
    ready[0] = True
    assert host.step() == STATUS_INTERVAL_S
    ready[0] = False
    clock.now_us += int(STARTING_S * 1e6)
    assert host.step() == STATUS_INTERVAL_S


def test_apply_process_that_is_stopping_does_not_show_starting(spec: Any) -> None:
    host, seen = made(spec, Clock(), pb.ApplyStatus), list[str]()
    look = lambda _: (noted(seen, host.detail_state()), True)[1]  # noqa: E731
    driver: Any = SimpleNamespace(stop=look, join=look)
    host._driver = driver
    host.close()
    assert seen == ["SHUTTING DOWN CLEANLY"] * 2
    assert host._latest == ApplyStatus(name="apply:x")
