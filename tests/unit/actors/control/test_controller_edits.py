"""What an edited topology file does to running components: a controller over fake actors and sites."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.controller import Controller, fingerprint_of
from headrace.base.errors import PropagationError
from headrace.databases.ports import Finding
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import (
    EVERYTHING,
    captured,
    labels,
    reconfigured,
    started,
    with_another_destination,
)
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, QueueSpec, TopologySpec


def test_table_that_left_is_recorded_before_new_components_run(spec, actors):
    actors.captured["site:a"] = captured("t", "u")
    started(spec, actors)
    assert actors.kept == {"x": ("id of t", "id of u")}
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    changed = replace(spec, applies=tuple(replace(apply, rules=rules) for apply in spec.applies))
    actors.calls.clear()
    started(changed, actors, steps=10)
    assert actors.kept == {"x": ("id of t",)}
    # The components with the new rules are created afterwards.
    left, ended = actors.calls.index(("site:b", "leave_out")), actors.calls.index(("apply:x", "end"))
    assert ended < left
    assert ("apply:x", "status") not in actors.calls[ended:left]
    assert ("apply:x", "status") in actors.calls[left:]


@pytest.mark.parametrize("phase", ["STARTING SITES", "PREPARING", "REFUSED"])
def test_components_show_their_state_while_an_edit_is_prepared_or_refused(spec, actors, monkeypatch, phase):
    started(spec, actors)
    changed = with_another_destination(spec)
    if phase == "REFUSED":
        actors.findings["site:a"] = (Finding(path="x", problem="y", fix="z"),)
    elif phase == "STARTING SITES":
        actors.silent.add("site:a")
    seen = []

    def call(name, method, *arguments, timeout_s=5.0):
        if method == "prepare" and phase == "PREPARING":
            seen.append(shown(controller))
        return FakeActors.call(actors, name, method, *arguments, timeout_s=timeout_s)

    def shown(controller):
        assert controller.overview()["state"] == phase
        return {c["name"]: c["state"] for c in controller.overview()["components"]}

    monkeypatch.setattr(actors, "call", call)
    controller = Controller(changed, actors=actors)
    controller.open()
    controller.life.enter("ENABLED")
    for _ in range(6):
        controller.step()
    states = seen[0] if phase == "PREPARING" else shown(controller)
    new = {"queue:qc", "propagation:p2", "apply:y", "spark:c"}
    assert {name: state for name, state in states.items() if name in new} == dict.fromkeys(new, "NOT CREATED")
    assert {states[name] for name in EVERYTHING if not name.startswith("site:")} == {"ENABLED"}


def test_apply_process_ended_for_an_abandoned_edit_runs_again(spec, actors, monkeypatch):
    """The controller records that it will end the apply process before it does, so a dead process cannot keep its old
    label.
    """
    started(spec, actors)
    end = actors.end

    def dies(names, *, timeout_s):
        end(names, timeout_s=timeout_s)
        raise PropagationError("the controller is killed")

    monkeypatch.setattr(actors, "end", dies)
    changed = replace(spec, applies=tuple(replace(apply, parallelism=apply.parallelism + 1) for apply in spec.applies))
    with pytest.raises(PropagationError, match="is killed"):
        started(changed, actors)
    assert "apply:x" not in actors.running
    assert started(spec, actors).detail_state() == "RUNNING"
    assert actors.created.count("apply:x") == 2


@pytest.mark.parametrize("was_down", [False, True])
@pytest.mark.parametrize("redo_bytes_max", [1 << 30, None], ids=["site restarts", "site takes over"])
def test_site_keeps_redo_for_removed_capture_until_the_edit_is_prepared(spec, actors, was_down, redo_bytes_max):
    """Otherwise the next purge takes the redo, and putting the refused file back fails with "changes are gone"."""
    rules = spec.captures[0].rules
    two = replace(
        spec, captures=(*spec.captures, CaptureSpec(name="c2", site="a", source="a", queue="qa", rules=rules))
    )
    started(two, actors)
    if was_down:
        actors.running.clear()
    one = replace(spec, redo_bytes_max=redo_bytes_max or spec.redo_bytes_max)
    actors.findings["site:b"] = (Finding(path="sites.b", problem="y", fix="z"),)
    controller = started(one, actors)
    assert controller.detail_state() == "REFUSED"

    def served():
        itself = actors.running["site:a"]["spec"]
        return [capture.name for capture in itself.captures], itself.redo_bytes_max

    for _ in range(2):  # also when its process is lost meanwhile
        assert served() == (["c", "c2"], one.redo_bytes_max)
        actors.kill("site:a")
        controller.step()
    actors.findings.clear()
    controller = started(one, actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert served() == (["c"], one.redo_bytes_max)
    assert labels(actors)["site:a"] == fingerprint_of(one)
    assert not any(component["outdated"] for component in controller.overview()["components"])

    controller = started(two, actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert served() == (["c", "c2"], two.redo_bytes_max)


def test_project_moved_while_down_begins_at_its_new_place(spec, actors):
    """The record names the old place: a site that began there would make an empty server and an empty redo log."""
    started(spec, actors)
    actors.running.clear()
    folder = spec.state_dir.parent.with_name("moved")
    spec.state_dir.parent.rename(folder)
    moved = replace(spec, file=folder / spec.file.name, state_dir=folder / spec.state_dir.name)
    actors.findings["site:b"] = (Finding(path="sites.b", problem="y", fix="z"),)
    assert started(moved, actors).detail_state() == "REFUSED"
    assert {arguments["spec"].state_dir for arguments in actors.running.values()} == {moved.state_dir}
    actors.findings.clear()
    assert started(moved, actors, steps=10).detail_state() == "RUNNING"
    assert {arguments["spec"].state_dir for arguments in actors.running.values()} == {moved.state_dir}
    assert actors.new == set()


def test_file_restored_after_a_refusal_restores_the_sites_bounds(spec, actors):
    started(spec, actors)
    actors.findings["site:b"] = (Finding(path="sites.b", problem="y", fix="z"),)
    assert started(replace(spec, redo_bytes_max=1 << 30), actors).detail_state() == "REFUSED"
    controller = started(spec, actors)
    assert controller.detail_state() == "RUNNING"
    assert actors.running["site:a"]["spec"] == spec
    assert not any(component["outdated"] for component in controller.overview()["components"])


def test_change_that_components_adopt_while_running_ends_none(spec, actors):
    started(spec, actors)
    before = labels(actors)
    actors.prepared.clear()
    actors.killed.clear()
    changed = replace(spec, heartbeat_s=3.0)
    controller = started(changed, actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert actors.prepared == ["site:a", "site:b"]
    assert actors.killed == []
    assert labels(actors) == before | {"site:a": fingerprint_of(changed), "site:b": fingerprint_of(changed)}
    assert not any(component["outdated"] for component in controller.overview()["components"])


def test_added_destination_reconfigures_only_the_sources_site_and_queue(spec, actors):
    started(spec, actors)
    before = labels(actors)
    grown = with_another_destination(spec)
    started(grown, actors, steps=10)
    assert actors.killed == []
    assert set(reconfigured(actors)) == {"site:a", "queue:qa"}
    assert {name for name, label in labels(actors).items() if before.get(name) == label} == {
        "site:b",
        "spark:b",
        "queue:qb",
        "capture:c",
        "propagation:p",
        "apply:x",
    }
    actors.calls.clear()
    started(spec, actors, steps=10)
    assert set(actors.killed) == {"site:c", "spark:c", "queue:qc", "propagation:p2", "apply:y"}
    assert set(reconfigured(actors)) == {"site:a", "queue:qa"}


def test_queue_drops_a_destination_after_the_queue_before_it_adopted_it(spec, actors):
    """Site b first gets its changes by way of c, then directly from a.

    Otherwise the queue at c would report changes as DURABLE that b still lacks, and their redo would be purged.
    """
    straight = with_another_destination(spec)
    over = route(
        replace(straight, propagations=(replace(straight.propagations[0], from_queue="qc"), straight.propagations[1]))
    )
    started(over, actors)
    actors.calls.clear()
    actors.holds_back.add("queue:qa")
    started(straight, actors, steps=10)
    assert "queue:qa" in reconfigured(actors)
    assert "queue:qc" not in reconfigured(actors)
    actors.silent.add("queue:qa")
    started(straight, actors, steps=3)
    assert "queue:qc" not in reconfigured(actors), (
        "also after a restart of the controller, and although the first queue does not answer"
    )
    actors.silent.clear()
    actors.holds_back.clear()
    controller = started(straight, actors, steps=2)
    actors.silent.add("queue:qa")
    controller.step()
    assert "queue:qc" in reconfigured(actors), "the first queue was seen to have adopted the edit"
    assert not any(component["outdated"] for component in controller.overview()["components"])


@pytest.mark.parametrize(
    ("behind_s", "ahead_scn", "phase"), [(3600.0, 90, "REFUSED"), (3600.0, 40, "RUNNING"), (2.0, 90, "RUNNING")]
)
def test_edit_that_puts_a_destination_behind_one_far_ahead_is_refused(spec, actors, behind_s, ahead_scn, phase):
    """Site b gets its changes by way of c after the edit: no queue would hold the changes that only b lacks."""
    straight = with_another_destination(spec)
    over = route(
        replace(straight, propagations=(replace(straight.propagations[0], from_queue="qc"), straight.propagations[1]))
    )
    started(straight, actors)
    actors.statuses["queue:qa"] = {
        "subscribers": [
            {"subscriber": "p", "source": "a", "acknowledged_scn": 40, "held_alone_s": behind_s},
            {"subscriber": "p2", "source": "a", "acknowledged_scn": ahead_scn, "held_alone_s": 0.0},
        ]
    }
    controller = started(over, actors, steps=10)
    assert controller.detail_state() == phase
    if phase == "REFUSED":
        assert [each["path"] for each in controller.overview()["findings"]] == ["propagations.p2"]
        assert (
            "is ahead of p, and would bring the changes of a to b in its place"
            in controller.overview()["findings"][0]["problem"]
        )
        assert actors.killed == []


@pytest.mark.parametrize(
    ("behind_s", "ahead_scn", "phase"), [(3600.0, 90, "REFUSED"), (3600.0, 40, "RUNNING"), (2.0, 90, "RUNNING")]
)
def test_move_of_a_destination_to_a_capture_process_far_ahead_is_refused(spec, actors, behind_s, ahead_scn, phase):
    """A new subscriber of that queue begins at the most advanced position, and the other queue stops holding changes
    for the destination.
    """
    straight = with_another_destination(spec)
    both = route(
        replace(
            straight,
            queues=(*straight.queues, QueueSpec(name="qa2", site="a")),
            captures=(*straight.captures, replace(straight.captures[0], name="c_also", queue="qa2")),
            propagations=(straight.propagations[0], replace(straight.propagations[1], from_queue="qa2")),
        )
    )
    after = route(replace(both, propagations=(replace(both.propagations[0], from_queue="qa2"), both.propagations[1])))
    started(both, actors, steps=10)
    actors.statuses["queue:qa"] = {
        "subscribers": [
            {
                "subscriber": "p",
                "source": "a",
                "acknowledged_scn": 40,
                "held_alone_s": 0.0,
                "unacknowledged_s": behind_s,
                "gone_scn": None,
            },
        ]
    }
    actors.statuses["queue:qa2"] = {
        "subscribers": [
            {
                "subscriber": "p2",
                "source": "a",
                "acknowledged_scn": ahead_scn,
                "held_alone_s": 0.0,
                "unacknowledged_s": 0.0,
                "gone_scn": None,
            },
        ]
    }
    controller = started(after, actors, steps=10)
    assert controller.detail_state() == phase
    if phase == "REFUSED":
        (finding,) = controller.overview()["findings"]
        assert finding["path"] == "propagations.p"
        assert "qa has held some for p for 3600 s" in finding["problem"]


def with_a_sibling(spec):
    """Site c gets the changes of a from a second capture process and queue."""
    straight = with_another_destination(spec)
    return route(
        replace(
            straight,
            queues=(*straight.queues, QueueSpec(name="qa2", site="a")),
            captures=(*straight.captures, replace(straight.captures[0], name="c_also", queue="qa2")),
            propagations=(straight.propagations[0], replace(straight.propagations[1], from_queue="qa2")),
        )
    )


def all_from_the_sibling(both):
    """Site b moves there too, and the first capture process leaves with its queue."""
    return route(
        replace(
            both,
            queues=tuple(each for each in both.queues if each.name != "qa"),
            captures=both.captures[1:],
            propagations=(replace(both.propagations[0], from_queue="qa2"), both.propagations[1]),
        )
    )


@pytest.mark.parametrize(("gone_scn", "phase"), [(None, "REFUSED"), (60, "RUNNING")])
def test_leaving_queue_blocks_an_edit_unless_its_subscriber_is_refused(spec, actors, gone_scn, phase):
    """A refused subscriber can never catch up, and has nothing to lose."""
    both = with_a_sibling(spec)
    started(both, actors, steps=10)
    actors.statuses["queue:qa"] = {
        "subscribers": [
            {
                "subscriber": "p",
                "source": "a",
                "acknowledged_scn": 40,
                "held_alone_s": 0.0,
                "unacknowledged_s": 3600.0,
                "gone_scn": gone_scn,
            },
        ]
    }
    actors.statuses["queue:qa2"] = {
        "subscribers": [
            {
                "subscriber": "p2",
                "source": "a",
                "acknowledged_scn": 90,
                "held_alone_s": 0.0,
                "unacknowledged_s": 0.0,
                "gone_scn": None,
            },
        ]
    }
    controller = started(all_from_the_sibling(both), actors, steps=10)
    assert controller.detail_state() == phase
    assert [each["path"] for each in controller.overview()["findings"]] == (
        ["propagations.p"] if phase == "REFUSED" else []
    )


@pytest.mark.parametrize(
    ("behind_s", "ahead_scn", "phase"), [(3600.0, 90, "REFUSED"), (3600.0, 40, "RUNNING"), (2.0, 90, "RUNNING")]
)
def test_combined_destinations_far_apart_are_refused(spec, actors, behind_s, ahead_scn, phase):
    """Their queues do not run: the capture processes report the positions."""
    apart = with_a_sibling(spec)
    both = replace(apart, applies=tuple(replace(each, combined=True) for each in apart.applies))
    started(both, actors, steps=10)
    assert "queue:qa" not in actors.running
    for capture, apply, scn, unacknowledged_s in (("c", "x", 40, behind_s), ("c_also", "y", ahead_scn, 0.0)):
        actors.statuses[f"capture:{capture}"] = {
            "subscribers": [
                {
                    "subscriber": apply,
                    "source": "a",
                    "acknowledged_scn": scn,
                    "unacknowledged_s": unacknowledged_s,
                    "gone_scn": None,
                },
            ]
        }
    controller = started(all_from_the_sibling(both), actors, steps=10)
    assert controller.detail_state() == phase
    assert [each["path"] for each in controller.overview()["findings"]] == (["applies.x"] if phase == "REFUSED" else [])


@pytest.mark.parametrize(("applied_scn", "phase"), [(90, "RUNNING"), (40, "REFUSED")])
def test_hubs_own_backlog_does_not_hold_up_a_destination_behind_it(spec, actors, applied_scn, phase):
    """What the propagation to the hub has not acknowledged is the hub's own backlog.

    Site c reports its own position.
    """
    both = with_another_destination(spec)
    both = route(
        replace(
            both,
            sites=(*both.sites, replace(both.sites[2], name="d")),
            queues=(*both.queues, QueueSpec(name="qa2", site="a"), QueueSpec(name="qd", site="d")),
            captures=(*both.captures, replace(both.captures[0], name="c_also", queue="qa2")),
            propagations=(
                both.propagations[0],
                replace(both.propagations[1], from_queue="qb"),
                replace(both.propagations[0], name="p3", from_queue="qa2", to_queue="qd"),
            ),
            applies=(*both.applies, ApplySpec(name="z", site="d", source="a", queue="qd")),
        )
    )
    after = route(
        replace(
            both,
            propagations=(both.propagations[0], replace(both.propagations[1], from_queue="qa2"), both.propagations[2]),
        )
    )
    started(both, actors, steps=10)
    for queue, subscribers in {
        "qa": {"p": 40},
        "qb": {"x": 40, "p2": applied_scn},
        "qc": {"y": applied_scn},
        "qa2": {"p3": 90},
        "qd": {"z": 90},
    }.items():
        actors.statuses[f"queue:{queue}"] = {
            "subscribers": [
                {
                    "subscriber": name,
                    "source": "a",
                    "acknowledged_scn": scn,
                    "held_alone_s": 0.0,
                    "gone_scn": None,
                    "unacknowledged_s": 3600.0 if scn < 90 else 0.0,
                }
                for name, scn in subscribers.items()
            ]
        }
    assert started(after, actors, steps=10).detail_state() == phase


@pytest.mark.parametrize(("behind_s", "phase"), [(3600.0, "REFUSED"), (2.0, "RUNNING")])
def test_swapped_names_of_two_propagations_are_refused_while_one_is_behind(spec, actors, behind_s, phase):
    """The queue knows each by its name, and would hold changes for the slow one only from the other's position on."""
    both = with_another_destination(spec)
    one, two = both.propagations
    after = route(replace(both, propagations=(replace(one, name=two.name), replace(two, name=one.name))))
    started(both, actors)
    actors.statuses["queue:qa"] = {
        "subscribers": [
            {"subscriber": "p", "source": "a", "acknowledged_scn": 40, "held_alone_s": behind_s},
            {"subscriber": "p2", "source": "a", "acknowledged_scn": 90, "held_alone_s": 0.0},
        ]
    }
    controller = started(after, actors, steps=10)
    assert controller.detail_state() == phase
    assert [each["path"] for each in controller.overview()["findings"]] == (
        ["propagations.p2"] if phase == "REFUSED" else []
    )


def test_lagging_destination_may_move_to_a_new_propagation_and_queue(spec, actors):
    """The new ones begin at the destination's position."""
    straight = with_another_destination(spec)
    started(straight, actors)
    actors.statuses["queue:qa"] = {
        "subscribers": [
            {"subscriber": "p", "source": "a", "acknowledged_scn": 40, "held_alone_s": 3600.0},
            {"subscriber": "p2", "source": "a", "acknowledged_scn": 90, "held_alone_s": 0.0},
        ]
    }
    over = route(
        replace(
            straight,
            queues=(*straight.queues, QueueSpec(name="qc2", site="c")),
            propagations=(
                replace(straight.propagations[0], from_queue="qc2"),
                straight.propagations[1],
                replace(straight.propagations[1], name="p3", to_queue="qc2"),
            ),
        )
    )
    assert started(over, actors, steps=10).detail_state() == "RUNNING"


def test_queues_that_missed_an_edit_adopt_the_next_one_in_order(spec, actors):
    """The queue of the source hangs meanwhile, and later gets what the other queue reported."""
    straight = with_another_destination(spec)
    over = route(
        replace(straight, propagations=(replace(straight.propagations[0], from_queue="qc"), straight.propagations[1]))
    )
    started(over, actors)
    actors.holds_back.add("queue:qa")
    started(straight, actors, steps=10)
    again = replace(straight, heartbeat_s=3.0)
    actors.silent.add("queue:qa")
    started(again, actors, steps=10)
    assert "queue:qc" not in actors.running or actors.running["queue:qc"]["spec"] == over
    actors.silent.clear()
    actors.holds_back.clear()
    controller = started(again, actors, steps=4)
    assert actors.running["queue:qc"]["spec"] == again
    assert not any(component["outdated"] for component in controller.overview()["components"])


def test_recreated_queue_waits_until_the_queue_before_it_adopted_the_edit(spec, actors):
    straight = with_another_destination(spec)
    over = route(
        replace(straight, propagations=(replace(straight.propagations[0], from_queue="qc"), straight.propagations[1]))
    )
    started(over, actors)
    actors.holds_back.add("queue:qa")
    changed = replace(
        straight,
        queues=tuple(
            replace(each, memory_bytes_max=1 << 24) if each.name == "qc" else each for each in straight.queues
        ),
    )
    started(changed, actors, steps=10)
    assert "queue:qc" not in actors.running
    actors.holds_back.clear()
    started(changed, actors, steps=3)
    assert actors.running["queue:qc"]["spec"] == changed


def with_rules(spec: TopologySpec, *names: str) -> TopologySpec:
    rules = RuleSet(include=tuple(Rule(owner="public", name=name) for name in names))
    return replace(spec, captures=(replace(spec.captures[0], rules=rules),))


def test_added_table_restarts_its_applies_after_capture_adopts_the_rules(spec, actors):
    started(with_rules(spec, "t"), actors)
    actors.calls.clear()
    changed = with_rules(spec, "t", "u")
    actors.holds_back.add("capture:c")
    started(changed, actors, steps=10)
    assert actors.calls.index(("apply:x", "end")) < actors.calls.index(("site:a", "prepare"))
    assert actors.killed == ["apply:x"]
    assert set(reconfigured(actors)) == {"site:a", "capture:c"}
    # Before capture takes the table's changes, its instantiation SCN could be too low.
    assert "apply:x" not in actors.running
    actors.holds_back.clear()
    started(changed, actors, steps=3)
    assert actors.running["apply:x"]["spec"] == changed
    assert actors.created.count("capture:c") == 1


def test_rule_that_changes_nothing_for_a_destination_restarts_no_apply(spec, actors):
    """The other destination gets one more table, so more is captured; this destination's changes stay the same."""
    only_t = replace(spec.propagations[0], rules=RuleSet(include=(Rule(owner="public", name="t", tags=ANY_TAG),)))
    both = with_another_destination(replace(spec, propagations=(only_t,)))
    started(with_rules(both, "t"), actors)
    actors.calls.clear()
    started(with_rules(both, "t", "u"), actors, steps=10)
    assert set(actors.killed) == {"apply:y"}
    assert set(reconfigured(actors)) == {"site:a", "capture:c"}


def test_components_to_restart_end_together_after_preparation(spec, actors):
    started(spec, actors)
    actors.killed.clear()
    changed = Controller(
        replace(
            spec,
            queues=(replace(spec.queues[0], memory_bytes_max=1 << 20), spec.queues[1]),
            applies=(replace(spec.applies[0], parallelism=5),),
        ),
        actors=actors,
    )
    changed.open()
    while changed.detail_state() != "RUNNING":
        assert not set(actors.killed) - {"apply:x"}
        changed.step()
    assert set(actors.killed) == {"queue:qa", "apply:x"}
    changed.step()
    assert set(actors.running) == EVERYTHING


def test_refused_edit_touches_nothing_and_the_previous_file_still_fits(spec, actors):
    started(spec, actors)
    before = labels(actors)
    actors.findings["site:c"] = (Finding(path="sites.c", problem="no rights", fix="GRANT"),)
    controller = started(with_another_destination(spec), actors, steps=10)
    assert controller.detail_state() == "REFUSED"
    assert actors.killed == []
    assert reconfigured(actors) == []
    assert labels(actors).items() >= before.items()
    started(spec, actors, steps=3)
    assert set(actors.killed) == {"site:c"}
    assert labels(actors) == before


def test_component_that_missed_an_edit_is_recreated(spec, actors):
    """It could adopt the last edit, but not the one before."""
    started(spec, actors)
    actors.running["queue:qa"] = {**actors.running["queue:qa"], "fingerprint": "of long ago"}
    started(with_another_destination(spec), actors, steps=10)
    assert actors.killed == ["queue:qa"]
    assert labels(actors)["queue:qa"] == fingerprint_of(with_another_destination(spec))


def test_restarted_controller_completes_an_interrupted_edit(spec, actors):
    started(spec, actors)
    grown = with_another_destination(spec)
    actors.holds_back |= {"queue:qa", "site:a"}
    started(grown, actors, steps=10)
    actors.holds_back.clear()
    started(grown, actors, steps=4)
    assert actors.killed == []
    assert labels(actors)["queue:qa"] == labels(actors)["site:a"] == fingerprint_of(grown)


def test_everything_restarts_when_the_running_topology_is_unknown(spec, actors):
    started(spec, actors)
    (spec.state_dir / "desired.json").write_text('{"topology": "one_way", "prepared": "?", "components": []}')
    started(replace(spec, heartbeat_s=3.0), actors, steps=10)
    assert set(actors.killed) == EVERYTHING
    assert set(actors.running) == EVERYTHING


def test_component_that_was_not_in_the_topology_begins_anew(spec, actors):
    started(spec, actors)
    assert actors.new == set()  # no earlier topology is known, so nothing is forgotten
    grown = replace(
        spec,
        queues=(*spec.queues, QueueSpec(name="qc", site="b")),
        applies=(*spec.applies, ApplySpec(name="y", site="b", source="a", queue="qc")),
    )
    started(grown, actors, steps=10)
    assert actors.new == {"queue:qc", "apply:y"}
    started(spec, actors, steps=10)
    assert actors.new == set()
    started(grown, actors, steps=10)
    assert actors.new == {"queue:qc", "apply:y"}


def test_apply_of_older_topology_ends_before_new_tables_can_reach_it(spec, actors):
    started(spec, actors)
    actors.prepared.clear()
    actors.calls.clear()
    actors.uncaptured["site:a"] = ("public.new",)
    started(replace(spec, heartbeat_s=3.0), actors, steps=10)
    assert actors.calls.index(("apply:x", "end")) < actors.calls.index(("site:a", "prepare"))


def test_components_that_left_the_topology_are_ended(spec, actors):
    started(spec, actors)
    started(replace(spec, propagations=()), actors, steps=10)
    assert "propagation:p" not in actors.running
