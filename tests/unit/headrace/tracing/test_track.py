"""`headrace track`: one look or a watch, lines, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError, PropagationError
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output
from headrace.lcr.tracking import Label, TrackLog
from headrace.status.overview import Overview
from headrace.tracing import track as tracking
from headrace.tracing.following import Arrival, Followed, Step, Tracking
from headrace.tracing.track import checked_label, look, track
from tests.support.wire.staging import one_way

AT_US = 1_700_000_000_000_000


def tracking_of(*verdicts: str) -> Tracking:
    step = Step(
        component="capture:c", action="CAPTURED", peer="", detail="", rows=2, first_us=AT_US, last_us=AT_US, times=1
    )
    arrivals = tuple(
        Arrival(site=f"dbs{number}", apply=f"apply_{number}", verdict=verdict, at_us=AT_US + 500_000, text="so it is")
        for number, verdict in enumerate(verdicts, 2)
    )
    transaction = Followed(source="dbs1", transaction_id=7, commit_scn=1 << 33, steps=(step,), arrivals=arrivals)
    return Tracking(
        label="order 7",
        transactions=(transaction,) if verdicts else (),
        since_us={"capture:c": AT_US},
        silent={"queue:q": "is dead"},
        captured={"capture:c": 1 << 33},
    )


class Looks:
    """A sequence of looks; the last one repeats."""

    def __init__(self, *found: Tracking) -> None:
        self.found, self.count, self.now = found, 0, 0.0

    def __call__(self) -> Tracking:
        self.count += 1
        return self.found[min(self.count, len(self.found)) - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, output: Output, *, watch: bool = False, timeout_s: float | None = None) -> int:
        return track(output, self, watch=watch, timeout_s=timeout_s, sleep=self.sleep, now=lambda: self.now)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("APPLIED", "APPLIED"), DONE),
        (("APPLIED", "DISCARDED", "PASSED"), DONE),
        (("APPLIED", "ON THE WAY"), FINDING),
        (("ERROR QUEUE",), FINDING),
        ((), FINDING),
    ],
)
def test_exit_code_shows_whether_it_arrived_at_every_destination(verdicts: tuple[str, ...], code: int) -> None:
    assert Looks(tracking_of(*verdicts)).run(Output()) == code


def test_final_line_lists_where_it_arrived_and_where_not(capsys: pytest.CaptureFixture[str]) -> None:
    Looks(tracking_of("APPLIED", "ERROR QUEUE", "APPLIED")).run(Output())
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1] == "label order 7: APPLIED at dbs2, dbs4; ERROR QUEUE at dbs3"
    assert "commit SCN 2/00000000" in lines[0]
    assert "capture:c" in lines[1]
    assert "no answer from queue:q: is dead" in lines[-2]


def test_unknown_label_shows_how_far_was_searched_and_how_to_label(capsys: pytest.CaptureFixture[str]) -> None:
    Looks(tracking_of()).run(Output())
    shown = capsys.readouterr().out
    assert "no component remembers" in shown
    assert "capture:c has mined up to SCN 2/00000000" in shown
    assert "headrace.track" in shown


def test_watch_prints_json_lines_and_ends_on_arrival(capsys: pytest.CaptureFixture[str]) -> None:
    looks = Looks(tracking_of(), tracking_of("ON THE WAY"), tracking_of("APPLIED"))
    assert looks.run(Output(as_json=True, in_lines=True), watch=True) == DONE
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["settled"] for document in documents] == [False, False, True]
    assert documents[-1]["transactions"][0]["arrivals"][0]["verdict"] == "APPLIED"


def test_watch_ends_at_an_error_transaction() -> None:
    looks = Looks(tracking_of("APPLIED", "ERROR QUEUE"))
    assert looks.run(Output(), watch=True) == FINDING
    assert looks.count == 1


def test_watch_ends_at_its_time_out() -> None:
    looks = Looks(tracking_of("ON THE WAY"))
    assert looks.run(Output(), watch=True, timeout_s=3.0) == FINDING
    assert looks.now == pytest.approx(3.0)


@pytest.mark.parametrize("label", ["", "x" * 201, "ü" * 101])
def test_impossible_label_is_refused(label: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200 bytes"):
        checked_label(label)


class Actors:
    """Components that answer from their notes."""

    def __init__(self, logs: dict[str, TrackLog]) -> None:
        self.logs, self.asked = logs, list[tuple[str, str]]()

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        self.asked.append((name, method))
        assert timeout_s == tracking.CALL_TIMEOUT_S
        if method == "errors":
            return [{"commit_scn": 1000}]
        if name not in self.logs:
            raise PropagationError(f"{name} is dead")
        return self.logs[name].answer(*arguments)


def test_look_asks_for_labels_and_error_queues_only_along_the_way(tmp_path: Path) -> None:
    spec = one_way(tmp_path, subscribers=("to_dbs2",))
    log = TrackLog()
    label = Label(text="order 7", transaction_id=1, order_scn=999, commit_scn=1000, rows=1)
    log.note(label, "dbs1", "ERROR QUEUE", detail="error transaction 1")
    actors = Actors({"apply:apply_far": log})
    found = look(spec, actors, "order 7", Overview(topology="t", state="RUNNING"))
    assert {name.partition(":")[0] for name, _ in actors.asked} <= {"capture", "queue", "propagation", "apply"}
    assert [name for name, method in actors.asked if method == "errors"] == ["apply:apply_far"]
    (transaction,) = found.transactions
    assert [arrival.verdict for arrival in transaction.arrivals] == ["ERROR QUEUE"]
    assert "capture:capture_dbs1" in found.silent
