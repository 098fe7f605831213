"""The controller: what combined capture and apply bypasses, and which of those components an operator had stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.controller import Controller
from headrace.base.errors import PropagationError
from headrace.databases.ports import Finding
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import (
    EVERYTHING,
    call_again,
    labels,
    reconfigured,
    started,
    stop,
    with_another_destination,
    with_another_source,
)
from topology.routing.ways import route
from topology.spec import QueueSpec, TopologySpec

BETWEEN = {"queue:qa", "propagation:p", "queue:qb"}


def combining(spec: TopologySpec) -> TopologySpec:
    return replace(spec, applies=(replace(spec.applies[0], combined=True), *spec.applies[1:]))


def bypassed_states(controller: Controller) -> dict[str, str]:
    return {c["name"]: c["state"] for c in controller.overview()["components"] if c["name"] in BETWEEN}


def test_combining_ends_bypassed_components_and_undoing_it_creates_them(spec, actors):
    combined = combining(spec)
    controller = started(combined, actors)
    assert set(actors.running) == EVERYTHING - BETWEEN
    shown = {c["name"]: (c["site"], c["state"], c.get("bypassed_by")) for c in controller.overview()["components"]}
    assert {name: shown[name] for name in BETWEEN} == {
        "queue:qa": ("a", "BYPASSED", "capture:c"),
        "propagation:p": ("a", "BYPASSED", "capture:c"),
        "queue:qb": ("b", "BYPASSED", "capture:c"),
    }
    started(spec, actors, steps=10)
    assert actors.killed == []
    assert set(reconfigured(actors)) == {"capture:c", "apply:x"}
    assert actors.new == BETWEEN
    assert set(actors.running) == EVERYTHING
    actors.calls.clear()
    started(combined, actors, steps=10)
    assert set(actors.killed) == BETWEEN
    assert set(reconfigured(actors)) == {"capture:c", "apply:x"}
    assert set(actors.running) == EVERYTHING - BETWEEN


def test_edit_that_would_bypass_a_stopped_component_is_refused_until_start(spec, actors):
    started(spec, actors)
    before = labels(actors)
    assert before.keys() >= BETWEEN
    stop(spec, "propagation:p")
    actors.prepared.clear()
    controller = started(combining(spec), actors, steps=10)
    assert controller.detail_state() == "REFUSED"
    (found,) = controller.overview()["findings"]
    assert (found["path"], found["is_error"]) == ("propagations.p", True)
    assert "is stopped" in found["problem"]
    assert "capture:c" in found["problem"]
    assert "headrace start FILE p`" in found["fix"]
    assert "combined: never" in found["fix"]
    assert (actors.prepared, actors.killed, reconfigured(actors)) == ([], [], [])
    assert labels(actors) == before
    stop(spec, "propagation:p", enabled=True)
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert set(actors.running) == EVERYTHING - BETWEEN


def test_second_destination_turns_combined_capture_into_direct_dequeuing(spec, actors):
    both = with_another_destination(combining(spec))
    started(combining(spec), actors)
    controller = started(both, actors, steps=10)  # the new apply process is not combined
    assert set(actors.running) == EVERYTHING - {"propagation:p", "queue:qb"} | {
        "site:c",
        "queue:qc",
        "propagation:p2",
        "apply:y",
        "spark:c",
    }
    assert bypassed_states(controller) == {"queue:qa": "ENABLED", "propagation:p": "BYPASSED", "queue:qb": "BYPASSED"}
    stop(spec, "propagation:p2")
    all_direct = replace(both, applies=tuple(replace(each, combined=True) for each in both.applies))
    refused = started(all_direct, actors, steps=10)
    assert refused.detail_state() == "REFUSED"
    (found,) = refused.overview()["findings"]
    assert found["path"] == "propagations.p2"
    assert "apply:y" in found["problem"]
    assert actors.killed == []
    stop(spec, "propagation:p2", enabled=True)
    call_again(refused)
    for _ in range(6):
        refused.step()
    assert refused.detail_state() == "RUNNING"
    assert set(actors.killed) == {"queue:qc", "propagation:p2"}


def test_version_that_newly_combines_is_refused_while_a_queue_is_stopped(spec, actors):
    stop(spec, "queue:qb")
    controller = started(combining(spec), actors)
    assert controller.detail_state() == "REFUSED"
    assert set(actors.running) == {"site:a", "site:b"}
    assert controller.overview()["findings"][0]["path"] == "queues.qb"


def test_up_names_a_stop_that_an_earlier_version_lifted(spec, actors):
    controller = started(combining(spec), actors)
    file = stop(spec, "propagation:p")
    call_again(controller)
    controller.step()
    assert controller.detail_state() == "REFUSED"
    assert controller.overview()["findings"][0]["path"] == "propagations.p"
    assert set(actors.running) == EVERYTHING - BETWEEN
    file.unlink()
    call_again(controller)
    controller.step()
    assert controller.detail_state() == "RUNNING"


def test_component_stopped_during_preparation_is_not_bypassed(spec, actors, monkeypatch):
    started(spec, actors)

    def call(name, method, *arguments, timeout_s=5.0):
        if method == "prepare":
            stop(spec, "propagation:p")
        return FakeActors.call(actors, name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(actors, "call", call)
    controller = started(combining(spec), actors, steps=10)
    assert controller.detail_state() == "REFUSED"
    assert actors.prepared
    assert set(actors.running) == EVERYTHING
    assert reconfigured(actors) == []


def renamed(spec: TopologySpec, kind: str) -> TopologySpec:
    """The topology with one renamed component."""
    match kind:
        case "propagation":
            return replace(spec, propagations=(replace(spec.propagations[0], name="p_new"), *spec.propagations[1:]))
        case "apply":
            return replace(spec, applies=(replace(spec.applies[0], name="x_new"), *spec.applies[1:]))
        case "capture":
            return replace(spec, captures=(replace(spec.captures[0], name="c_new"), *spec.captures[1:]))
    queues = tuple(replace(each, name="qb_new") if each.name == "qb" else each for each in spec.queues)
    return replace(
        spec,
        queues=queues,
        applies=(replace(spec.applies[0], queue="qb_new"), *spec.applies[1:]),
        propagations=(replace(spec.propagations[0], to_queue="qb_new"), *spec.propagations[1:]),
    )


@pytest.mark.parametrize("name", ["propagation:p", "apply:x", "capture:c", "queue:qb"])
def test_edit_that_renames_a_stopped_component_is_refused_until_start(spec, actors, name):
    """The new component would begin enabled and apply the changes that the stop holds back."""
    spec = with_another_destination(spec)
    started(spec, actors, steps=10)
    was, after = labels(actors), renamed(spec, name.partition(":")[0])
    stopped = stop(spec, name)
    controller = started(after, actors, steps=10)
    assert controller.detail_state() == "REFUSED"
    (finding,) = controller.overview()["findings"]
    assert f"{name}_new would take its place" in finding["problem"]
    assert labels(actors) == was
    stopped.unlink()
    call_again(controller)
    for _ in range(10):
        controller.step()
    assert (controller.detail_state(), f"{name}_new" in actors.running, name in actors.running) == (
        "RUNNING",
        True,
        False,
    )


@pytest.mark.parametrize("is_one_machine", [True, False])
def test_move_of_stopped_capture_process_to_another_machine_is_refused(spec, actors, monkeypatch, is_one_machine):
    """It would begin enabled there; on the same machine it stays stopped."""
    asked = FakeActors.call

    def call(name, method, *arguments, timeout_s=5.0):
        return (
            ()
            if (name, method, is_one_machine) == ("site:b", "stopped", False)
            else asked(actors, name, method, *arguments, timeout_s=timeout_s)
        )

    monkeypatch.setattr(actors, "call", call)
    spec = route(spec)
    after = route(
        replace(
            spec, queues=spec.queues[1:], propagations=(), captures=(replace(spec.captures[0], site="b", queue="qb"),)
        )
    )
    started(spec, actors, steps=10)
    stopped = stop(spec, "capture:c")
    controller = started(after, actors, steps=10)
    if is_one_machine:
        assert controller.detail_state() == "RUNNING"
        assert stopped.exists()
        return
    (finding,) = controller.overview()["findings"]
    assert (
        finding["problem"] == "is stopped at a, and would not be at b: the changes that it holds back would be applied"
    )
    stopped.unlink()
    call_again(controller)
    for _ in range(10):
        controller.step()
    assert controller.detail_state() == "RUNNING"


@pytest.mark.parametrize("is_away", [False, True])
def test_leaving_site_reports_its_stopped_components_if_it_answers(spec, actors, monkeypatch, is_away):
    """Its capture process continues at another site under the same name.

    An absent site cannot report, and may be the reason for the edit.
    """
    asked = FakeActors.call

    def call(name, method, *arguments, timeout_s=5.0):
        return (
            ()
            if (name, method) == ("site:a", "stopped")
            else asked(actors, name, method, *arguments, timeout_s=timeout_s)
        )

    monkeypatch.setattr(actors, "call", call)
    after = route(spec)
    before = route(
        replace(
            spec,
            sites=(*spec.sites, replace(spec.sites[0], name="d")),
            queues=(*spec.queues, QueueSpec(name="qd", site="d")),
            captures=(replace(spec.captures[0], site="d", queue="qd"),),
            propagations=(replace(spec.propagations[0], from_queue="qd"),),
        )
    )
    started(before, actors, steps=10)
    stop(before, "capture:c")
    if is_away:
        actors.silent.add("site:d")
    controller = started(after, actors, steps=10)
    problems = [each["problem"] for each in controller.overview()["findings"]]
    assert problems == (
        [] if is_away else ["is stopped at d, and would not be at a: the changes that it holds back would be applied"]
    )


def test_new_component_is_accepted_when_a_stopped_one_leaves(spec, actors):
    both = with_another_destination(spec)
    started(both, actors)
    stop(both, "propagation:p2")
    elsewhere = replace(
        both,
        sites=(*both.sites[:2], replace(both.sites[2], name="d")),
        queues=(*both.queues[:2], QueueSpec(name="qd", site="d")),
        propagations=(both.propagations[0], replace(both.propagations[1], name="p3", to_queue="qd")),
        applies=(both.applies[0], replace(both.applies[1], name="z", site="d", queue="qd")),
    )
    assert started(elsewhere, actors, steps=10).detail_state() == "RUNNING"


def test_stop_ends_when_its_component_leaves_or_is_bypassed(spec, actors):
    both = with_another_destination(spec)
    started(both, actors)
    leaves, stays, bypassed = (
        stop(spec, "propagation:p2"),
        stop(spec, "propagation:p"),
        stop(spec, "queue:qa", enabled=True),
    )
    started(spec, actors, steps=10)
    assert not leaves.exists()
    assert stays.exists()
    stays.unlink()
    started(combining(spec), actors, steps=10)
    assert not bypassed.exists()
    stale = stop(spec, "propagation:p")  # left behind by an earlier version
    started(spec, actors, steps=10)
    assert not stale.exists()
    assert set(actors.running) == EVERYTHING


def test_abandoned_edit_does_not_lift_the_stop_of_a_removed_component(spec, actors):
    """A site does not answer during preparation, and the operator returns to the previous file."""
    both = with_another_destination(spec)
    started(both, actors)
    leaves = stop(both, "propagation:p2")
    actors.breaks["receivers"] = PropagationError("site:c does not answer")
    with pytest.raises(PropagationError):
        started(spec, actors, steps=10)
    actors.breaks.clear()
    started(both, actors, steps=10)
    assert "propagation:p2" in actors.running
    assert leaves.exists()


def test_spill_files_of_ended_queues_are_deleted(spec, actors):
    started(replace(spec, queues=(*spec.queues, QueueSpec(name="qx", site="b"))), actors)
    removed, bypassed = (
        spec.state_dir / "sites" / site / "queues" / name / "spill" / "00000000.spill"
        for site, name in (("b", "qx"), ("a", "qa"))
    )
    for spilled in (removed, bypassed):
        spilled.parent.mkdir(parents=True)
        spilled.write_bytes(b"x")
    started(spec, actors, steps=10)
    assert not removed.exists()
    assert bypassed.exists(), "its queue still runs"
    started(combining(spec), actors, steps=10)
    assert not bypassed.exists()


def test_component_to_be_bypassed_is_shown_running_until_it_ends(spec, actors, monkeypatch):
    started(spec, actors)
    actors.statuses["propagation:p"] = {"state": "PROPAGATING"}
    actors.findings["site:b"] = (Finding(path="sites.b", problem="no rights", fix="GRANT"),)
    controller = started(combining(spec), actors)
    assert controller.detail_state() == "REFUSED"
    runs = {"queue:qa": "ENABLED", "propagation:p": "PROPAGATING", "queue:qb": "ENABLED"}
    assert bypassed_states(controller) == runs
    (shown,) = (c for c in controller.overview()["components"] if c["name"] == "propagation:p")
    assert shown["outdated"]
    assert shown["to_be_bypassed_by"] == "capture:c"
    assert "bypassed_by" not in shown
    seen = []

    def call(name, method, *arguments, timeout_s=5.0):
        if method == "prepare":
            seen.append(bypassed_states(controller))
        return FakeActors.call(actors, name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(actors, "call", call)
    actors.findings.clear()
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert seen == [runs, runs]
    assert controller.detail_state() == "RUNNING"
    assert bypassed_states(controller) == dict.fromkeys(BETWEEN, "BYPASSED")


def test_apply_process_begins_while_bypassed_components_are_ending(spec, actors, monkeypatch):
    started(spec, actors)
    names = actors.names
    monkeypatch.setattr(actors, "names", lambda: names() | {"propagation:p"})
    changed = replace(combining(spec), applies=(replace(spec.applies[0], combined=True, parallelism=5),))
    started(changed, actors, steps=10)
    assert actors.running["apply:x"]["spec"] == changed


def test_edit_that_bypasses_a_stopped_queue_for_one_source_is_refused(spec, actors):
    """Two sources send to qb, which keeps running: the changes of one source that qb holds back would be applied."""
    both = with_another_source(spec)
    started(both, actors)
    stop(spec, "queue:qb")
    alone = replace(both, applies=(replace(both.applies[0], combined=True), *both.applies[1:]))
    controller = started(alone, actors, steps=10)
    assert controller.detail_state() == "REFUSED"
    (found,) = controller.overview()["findings"]
    assert (found["path"], found["is_error"]) == ("queues.qb", True)
    assert "capture:c would bypass it" in found["problem"]
    assert (actors.killed, reconfigured(actors)) == ([], [])
    stop(spec, "queue:qb", enabled=True)
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert "queue:qb" in actors.running
    stop(spec, "queue:qb")  # now it holds back nothing from the bypassing source
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
