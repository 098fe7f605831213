"""The controller: splitting a stream off, merging it, and resuming after a controller's death in between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.controller import Controller, fingerprint_of
from headrace.base.errors import ConfigError, PropagationError
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import one_way_spec, reconfigured, started, stop, with_another_destination
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec
from topology.split import MERGING, SPLIT, SPLITTING

CLONES = {"queue:qa.p", "capture:c.p"}


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    """From site a to b by p, and to c by p2."""
    return with_another_destination(one_way_spec(tmp_path))


def report(actors: FakeActors, queue: str, **positions: int) -> None:
    """Let a queue report its subscribers' positions."""
    actors.statuses[f"queue:{queue}"] = {
        "subscribers": [
            {"subscriber": name, "source": "a", "acknowledged_scn": scn, "connected": True, "held_alone_s": 0.0}
            for name, scn in positions.items()
        ],
        "sources": {"a": {"position_scn": 100}},
    }
    actors.statuses["capture:c"] = {"required_checkpoint_scn": 30, "applied_scn": 30, "captured_scn": 100}


def phase(controller: Controller, propagation: str = "p") -> str:
    return next(
        (str(each["phase"]) for each in controller.overview()["splits"] if each["propagation"] == propagation),
        "together",
    )


def step_until(controller: Controller, wanted: str, propagation: str = "p") -> None:
    for _ in range(8):
        controller.step()
        if phase(controller, propagation) == wanted:
            return
    pytest.fail(f"it is {phase(controller, propagation)}, not {wanted}")


def with_another_source(spec: TopologySpec) -> TopologySpec:
    """The topology plus site d, which sends to b by p3 and to c by p4."""
    return route(
        replace(
            spec,
            sites=(*spec.sites, SiteSpec(name="d", database=DatabaseSpec(kind="embedded"))),
            queues=(*spec.queues, QueueSpec(name="qd", site="d")),
            captures=(
                *spec.captures,
                CaptureSpec(name="d", site="d", source="d", queue="qd", rules=spec.captures[0].rules),
            ),
            propagations=(
                *spec.propagations,
                *(
                    PropagationSpec(name=name, from_queue="qd", to_queue=to)
                    for name, to in (("p3", "qb"), ("p4", "qc"))
                ),
            ),
            applies=(
                *spec.applies,
                *(ApplySpec(name=f"from_d_to_{site}", site=site, source="d", queue=f"q{site}") for site in "bc"),
            ),
        )
    )


def report_of_d(actors: FakeActors) -> None:
    actors.statuses["queue:qd"] = {
        "subscribers": [
            {"subscriber": name, "source": "d", "acknowledged_scn": 50, "connected": True, "held_alone_s": 0.0}
            for name in ("p3", "p4")
        ],
        "sources": {"d": {"position_scn": 100}},
    }


def split_off(spec: TopologySpec, actors: FakeActors) -> Controller:
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    controller.split("p")
    step_until(controller, SPLIT)
    for _ in range(2):  # the components adopt it
        controller.step()
    report(actors, "qa", p2=90)
    report(actors, "qa.p", p=40)
    return controller


def test_split_and_merge_touch_only_components_of_that_stream(spec, actors):
    controller = started(spec, actors)
    before = set(actors.running)
    report(actors, "qa", p=40, p2=90)
    actors.calls.clear()
    controller.split("p")
    step_until(controller, SPLITTING)
    assert not any(name in CLONES for name in actors.created)
    step_until(controller, SPLIT)
    assert reconfigured(actors)[0] == "site:a"
    for _ in range(2):
        controller.step()
    assert set(actors.running) == before | CLONES
    assert set(reconfigured(actors)) == {"site:a", "queue:qa", "propagation:p"}
    assert actors.killed == []
    report(actors, "qa", p2=90)
    report(actors, "qa.p", p=90)
    controller.merge("p")
    step_until(controller, MERGING)
    report(actors, "qa", p=90, p2=95)
    step_until(controller, "together")
    for _ in range(3):
        controller.step()
    assert set(actors.running) == before
    assert set(actors.killed) == CLONES
    assert ("site:a", "delete_spilled") in actors.calls
    assert controller.detail_state() == "RUNNING"


def test_restarted_controller_keeps_a_split_stream(spec, actors):
    split_off(spec, actors)
    actors.calls.clear()
    again = started(spec, actors)
    assert phase(again) == SPLIT
    assert actors.killed == []
    assert reconfigured(actors) == []
    assert again.details().fingerprint == fingerprint_of(spec)  # `up` finds no change


def test_split_stream_stays_split_after_down_and_up(spec, actors):
    split_off(spec, actors)
    others = FakeActors()
    again = started(spec, others)
    assert phase(again) == SPLIT
    assert set(others.running) >= CLONES
    assert others.new == set()  # the positions are kept


def test_edit_keeps_a_split_stream_unless_it_removes_its_queue(spec, actors):
    split_off(spec, actors)
    edited = replace(spec, heartbeat_s=5.0)
    controller = started(edited, actors, steps=10)
    assert phase(controller) == SPLIT
    assert set(actors.running) >= CLONES
    moved = replace(
        spec, propagations=(replace(spec.propagations[0], from_queue="qb", to_queue="qc"), *spec.propagations[1:])
    )
    refused = started(moved, actors, steps=10)
    assert refused.detail_state() == "REFUSED"
    assert any("is split off from queue qa" in finding["problem"] for finding in refused.overview()["findings"])
    assert set(actors.running) >= CLONES


def test_phase_is_on_disk_before_any_component_adopts_it(spec, actors):
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    controller.split("p")
    actors.calls.clear()
    while phase(controller) == "together":
        controller.step()
    assert reconfigured(actors) == []
    stored = json.loads((spec.state_dir / "desired.json").read_text())
    assert [each["phase"] for each in stored["splits"]] == [SPLITTING]
    assert {each["name"] for each in stored["spec"]["queues"]} >= {"qa.p"}


def test_absent_destination_does_not_hold_up_a_split(spec, actors):
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    actors.silent |= {"site:b", "queue:qb", "apply:x"}
    controller.split("p")
    step_until(controller, SPLIT)


def test_split_names_a_stream_that_cannot_be_split(spec, actors):
    with pytest.raises(ConfigError, match="no propagation"):
        started(spec, actors).split("nobody")


def merged_while_away(spec: TopologySpec, actors: FakeActors) -> Controller:
    """A controller that must end the clones of p at the absent site a."""
    controller = split_off(spec, actors)
    report(actors, "qa.p", p=90)
    controller.merge("p")
    step_until(controller, MERGING)
    report(actors, "qa", p=90, p2=95)
    step_until(controller, "together")
    actors.silent |= {"site:a", "queue:qa", "capture:c", *CLONES}
    return controller


def test_restarted_controller_executes_a_recorded_request(spec, actors):
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    controller.split("p")
    controller.open()  # as after an error
    step_until(controller, SPLIT)
    again = started(spec, actors, steps=3)
    report(actors, "qa", p2=90)
    report(actors, "qa.p", p=90)
    again.merge("p")
    step_until(started(spec, actors, steps=0), MERGING)


def test_site_absent_during_a_merge_holds_up_nothing_and_is_cleared_later(spec, actors):
    spec = with_another_source(spec)
    controller = merged_while_away(spec, actors)
    actors.kill = lambda name: None  # its process is gone and cannot end them
    report_of_d(actors)
    controller.split("p3")
    step_until(controller, SPLIT, "p3")
    actors.silent.clear()
    del actors.kill
    actors.calls.clear()
    for _ in range(3):
        controller.step()
    assert not CLONES & set(actors.running)
    assert [call for call in actors.calls if call[1] == "delete_spilled"] == [("site:a", "delete_spilled")] * len(
        CLONES
    )


def test_site_absent_during_a_split_is_waited_for_without_an_error(spec, actors, monkeypatch):
    spec = with_another_source(spec)
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    report_of_d(actors)
    # The site answered the first question, and is away when its clones are to begin.
    answers = FakeActors.call

    def call(self: FakeActors, name: str, method: str, *arguments: object, timeout_s: float = 5.0) -> object:
        if (name, method) == ("site:a", "begin_anew"):
            raise PropagationError("site:a does not answer")
        return answers(self, name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(FakeActors, "call", call)
    controller.split("p")
    for _ in range(3):
        controller.step()
    assert phase(controller) == "together"
    actors.silent |= {"site:a", "queue:qa", "capture:c"}  # the next look finds it away, so the others need not wait
    controller.split("p3")
    step_until(controller, SPLIT, "p3")
    actors.silent.clear()
    monkeypatch.undo()
    step_until(controller, SPLIT, "p")


def test_remains_of_an_earlier_split_are_not_deleted_under_a_new_one(spec, actors):
    controller = merged_while_away(spec, actors)
    controller.step()
    actors.silent.clear()
    report(actors, "qa", p=90, p2=95)
    controller.split("p")
    step_until(controller, SPLITTING)
    actors.calls.clear()
    for _ in range(4):
        controller.step()
    assert [call for call in actors.calls if call[1] == "delete_spilled"] == []
    assert set(actors.running) >= CLONES


def test_split_waits_for_a_stopped_capture_process_that_does_not_answer(spec, actors):
    """Its process was killed or is busy, and does not report the stop: its clone would run."""
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    stop(spec, "capture:c")
    actors.silent.add("capture:c")
    controller.split("p")
    for _ in range(4):
        controller.step()
    assert phase(controller) == "together"
    stop(spec, "capture:c", enabled=True)
    step_until(controller, SPLIT)


@pytest.mark.parametrize("stopped", ["capture:c", "queue:qa"])
def test_split_waits_while_a_component_is_stopped_during_it(spec, actors, stopped):
    """The clones would deliver what the stop holds back."""
    controller = started(spec, actors)
    report(actors, "qa", p=40, p2=90)
    controller.split("p")
    step_until(controller, SPLITTING)
    stop(spec, stopped)
    for _ in range(4):
        controller.step()
    assert phase(controller) == SPLITTING
    stop(spec, stopped, enabled=True)
    step_until(controller, SPLIT)


@pytest.mark.parametrize("stopped", ["capture:c.p", "queue:qa.p", "queue:qa"])
@pytest.mark.parametrize("since", [SPLIT, MERGING])
def test_merge_waits_for_a_stopped_component_that_does_not_answer(spec, actors, stopped, since):
    controller = split_off(spec, actors)
    report(actors, "qa.p", p=90)
    controller.merge("p")
    if since == MERGING:
        step_until(controller, MERGING)
        report(actors, "qa", p=90, p2=90)
    stop(spec, stopped)
    actors.silent.add("capture:c.p")
    for _ in range(6):
        controller.step()
    assert phase(controller) == SPLIT
    assert controller.overview()["splits"][0]["stopped"] == [stopped]
    actors.silent.clear()
    stop(spec, stopped, enabled=True)
    report(actors, "qa", p2=90)
    step_until(controller, MERGING)
    report(actors, "qa", p=90, p2=90)
    step_until(controller, "together")
