from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import ApplyError, PropagationError
from headrace.commands.verification import verify_topology
from headrace.console.exit_codes import FINDING
from headrace.console.output import exit_code_of
from headrace.deployment.failures import TablesNotCopied
from headrace.deployment.waiting import NotCaughtUp, wait_caught_up
from headrace.status.overview import Overview
from tests.support.actors.overviews import overview_from
from tests.support.topologies.files import read


class Actors:
    """Two sources with scripted markers and low watermarks."""

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
    return read(
        tmp_path,
        """
        topology: t
        sites:
          a: {database: {kind: embedded}}
          b: {database: {kind: embedded}}
        replicate:
          - {tables: [public.*], between: [a, b]}
    """,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Wait in virtual time."""
    clock = VirtualClock()
    clock.advance(1000.0)  # a machine has run for some time
    time = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.advance)
    monkeypatch.setattr("headrace.deployment.waiting.time", time)
    monkeypatch.setattr("headrace.commands.verification.LOOK_INTERVAL_S", 0.0)


def names(spec) -> tuple[str, str]:
    return tuple(next(apply.name for apply in spec.applies if apply.source == source) for source in ("a", "b"))


def test_wait_ends_when_every_apply_is_past_its_own_sources_marker(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [50, 99, 100], from_b: [6, 7]})
    assert wait_caught_up(spec, actors, timeout_s=60) == {"a": 100, "b": 7}


def test_wait_is_repeated_for_every_site_that_forwards(tmp_path):
    """Changes from b enter the hub's redo only when they are applied there, so markers are written again, the hub's
    last.
    """
    spec = read(
        tmp_path,
        """
        topology: t
        sites: {h: {database: {kind: embedded}}, b: {database: {kind: embedded}}, c: {database: {kind: embedded}}}
        replicate: [{tables: [public.*], hub: h, spokes: [b, c]}]
    """,
    )
    written: list[str] = []

    class Growing(Actors):
        def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> int:
            if method == "write_marker":
                written.append(name)
                return len(written)
            return 100

    assert wait_caught_up(spec, Growing({}, {}), timeout_s=60) == {"b": 4, "c": 5, "h": 6}
    assert written == ["site:b", "site:c", "site:h"] * 2


def test_unreachable_apply_is_asked_again(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [PropagationError("gone"), 100], from_b: [8]})
    assert wait_caught_up(spec, actors, timeout_s=60)


def test_time_out_names_the_apply_process_that_is_behind_and_the_reason(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [PropagationError("the driver is not up")], from_b: [8]})
    with pytest.raises(NotCaughtUp, match=rf"{from_a} has not reached.*the driver is not up") as caught:
        wait_caught_up(spec, actors, timeout_s=0.0)
    assert from_b not in caught.value.message


def overview(state: str, *components: dict[str, Any]) -> Overview:
    return overview_from({"state": state, "components": components})


STOPPED = {"name": "capture:c", "kind": "capture", "state": "DISABLED", "enabled": False}


def test_stuck_component_is_shown_while_waiting_and_at_the_time_out(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [50, 50], from_b: [8]})
    told: list[str] = []
    with pytest.raises(NotCaughtUp, match="capture:c: is stopped") as caught:
        wait_caught_up(spec, actors, timeout_s=1.0, progress=told.append, overview=lambda: overview("RUNNING", STOPPED))
    assert caught.value.hint == "headrace start FILE capture:c"
    assert f"{from_a} 50 B behind" in told[-1]
    assert "capture:c: is stopped" in told[-1]


@pytest.mark.parametrize("asked", [wait_caught_up, verify_topology])
def test_verify_ends_early_when_a_capture_process_stops_meanwhile(spec, monkeypatch, asked):
    """`headrace wait` continues, because an operator may start it; a comparison is not worth ten minutes."""
    monkeypatch.setattr("headrace.deployment.waiting.LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr("headrace.deployment.waiting.STUCK_S", 0.2)
    from_a, from_b = names(spec)
    actors: Any = Actors({"a": 100, "b": 7}, {from_a: [50], from_b: [8]})
    looks = 0

    def seen() -> Overview:
        nonlocal looks
        looks += 1
        return overview("RUNNING", STOPPED) if looks > 3 else overview("RUNNING")

    ends_late = {"timeout_s": 2.0} if asked is wait_caught_up else {"timeout_s": 60.0}
    with pytest.raises(NotCaughtUp, match="capture:c: is stopped") as caught:
        asked(spec, actors, **ends_late, progress=lambda _: None, overview=seen)
    assert looks > 3
    assert caught.value.hint == "headrace start FILE capture:c"
    assert ("changes have been stuck" in caught.value.message) == (asked is verify_topology)


@pytest.mark.parametrize(
    "seen",
    [
        {
            "name": "site:b",
            "kind": "site",
            "state": "DATABASE DOES NOT ANSWER",
            "database_problem": "connecting: connection refused",
        },
        {
            "name": "apply:x",
            "kind": "apply",
            "state": "WAITING FOR DATABASE",
            "last_error": {"message": "connecting: connection refused", "hint": "start the database"},
        },
    ],
    ids=["its site", "its apply process"],
)
def test_unreachable_database_is_shown_as_the_reason_for_waiting(spec, seen):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [50, 50], from_b: [8]})
    told: list[str] = []
    words = f"{seen['name']}: connecting: connection refused"
    with pytest.raises(NotCaughtUp, match=words) as caught:
        wait_caught_up(spec, actors, timeout_s=1.0, progress=told.append, overview=lambda: overview("RUNNING", seen))
    assert "start the database" in caught.value.hint
    assert words in told[0], "shown at once, not only at the end"


def test_closed_window_is_shown_as_the_reason_for_waiting(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [50, 50], from_b: [8]})
    closed = {
        "name": "propagation:p",
        "kind": "propagation",
        "state": "CLOSED",
        "closed_until": "2026-11-22 22:00 UTC",
        "from_queue": "q",
    }
    told: list[str] = []
    words = "propagation:p: is closed by its schedule until 2026-11-22 22:00 UTC: changes wait in queue q"
    with pytest.raises(NotCaughtUp, match=words):
        wait_caught_up(spec, actors, timeout_s=1.0, progress=told.append, overview=lambda: overview("RUNNING", closed))
    assert words in told[-1]


def test_refused_topology_is_not_waited_for(spec):
    refused = overview("REFUSED", {"name": "apply:x", "kind": "apply", "state": "NOT CREATED"})
    with pytest.raises(NotCaughtUp, match="does not replicate") as caught:
        wait_caught_up(spec, Actors({}, {}), overview=lambda: refused)
    assert "headrace check" in caught.value.hint


def test_running_components_are_waited_for_although_new_tables_are_refused(spec):
    from_a, from_b = names(spec)
    actors = Actors({"a": 100, "b": 7}, {from_a: [100], from_b: [8]})
    running = overview("REFUSED", {"name": "apply:x", "kind": "apply", "state": "IDLE"})
    assert wait_caught_up(spec, actors, overview=lambda: running) == {"a": 100, "b": 7}


def test_nothing_is_compared_while_a_component_is_stopped(spec):
    with pytest.raises(ApplyError, match="nothing can be compared now: capture:c: is stopped") as caught:
        verify_topology(
            spec, Actors({}, {}), timeout_s=60.0, progress=lambda _: None, overview=lambda: overview("RUNNING", STOPPED)
        )
    assert caught.value.hint == "headrace start FILE capture:c"


def test_just_started_component_is_waited_for_before_a_comparison(spec):
    """The controller's news is up to a second old: a first look can still show the component as stopped."""
    looks = [overview("RUNNING", STOPPED), overview("RUNNING"), overview("RUNNING")]
    with pytest.raises(NotCaughtUp):  # it reached the wait
        verify_topology(
            spec,
            Actors({"a": 1, "b": 1}, {name: [PropagationError("not yet")] for name in names(spec)}),
            timeout_s=0.0,
            progress=lambda _: None,
            overview=lambda: looks.pop(0) if len(looks) > 1 else looks[0],
        )


def with_tables(name: str, **states: str) -> dict[str, Any]:
    tables = [
        {"owner": "public", "name": table, "state": state, "problem": "it is not empty" if state == "FAILED" else ""}
        for table, state in states.items()
    ]
    return {"name": f"apply:{name}", "kind": "apply", "state": "IDLE", "instantiation": tables}


class Answering(Actors):
    """Apply processes with missing tables: `caught_up_scn` is 0, and `low_watermark` advances."""

    def __init__(self, failing: str, watermark: int) -> None:
        super().__init__({"a": 100, "b": 7}, {})
        self.failing, self.watermark, self.looks = f"apply:{failing}", watermark, 0

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> int:
        if method == "write_marker":
            return super().call(name, method, timeout_s=timeout_s)
        if method == "look_at_tables":
            self.looks += 1
            return 1
        return 0 if name == self.failing and method == "caught_up_scn" else self.watermark


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr("headrace.deployment.waiting.LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr("headrace.deployment.failures.LOOKED_S", 0.01)


@pytest.mark.usefixtures("looks_often")
def test_failed_table_is_a_finding_when_everything_else_is_caught_up(spec):
    from_a, _ = names(spec)
    actors = Answering(from_a, 100)
    with pytest.raises(TablesNotCopied, match=r"table public\.bad: it is not empty") as caught:
        wait_caught_up(
            spec,
            actors,
            timeout_s=60,
            overview=lambda: overview("RUNNING", with_tables(from_a, good="DONE", bad="FAILED")),
        )
    assert exit_code_of(caught.value) == FINDING
    assert [finding.path for finding in caught.value.findings] == [f"apply:{from_a} table public.bad"]
    assert actors.looks > 0, "the table is checked again first, because an operator may have fixed it"


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize(
    ("watermark", "other"), [(99, "DONE"), (100, "COPYING")], ids=["changes on the way", "a table being copied"]
)
def test_other_changes_are_waited_for_although_a_table_failed(spec, watermark, other):
    from_a, _ = names(spec)
    with pytest.raises(NotCaughtUp):
        wait_caught_up(
            spec,
            Answering(from_a, watermark),
            timeout_s=0.5,
            overview=lambda: overview("RUNNING", with_tables(from_a, good=other, bad="FAILED")),
        )
