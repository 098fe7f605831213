"""A labelled transaction is tracked over every kind of topology, with the real components in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.simulation.world import Simulation
from headrace.status.applies import ApplyStatus
from headrace.tracing.following import Tracking, follow
from topology.file.reading import read_topology
from topology.spec import TopologySpec

ROOT = Path(__file__).parents[2]
LABEL = "order 7"


def labelled_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """Run an example without faults in which users label every transaction."""
    spec = read_topology(
        ROOT / "examples" / f"{name}.yaml", {"DBS1_DSN": "host=dbs1.invalid", "DBS2_DSN": "host=dbs2.invalid"}
    )
    sim = Simulation(spec, 7, folder, faults=frozenset(), seconds=2.0, edits=False)
    for database in sim.databases.values():
        commit = database.source._commit

        def labelling(tag: Any, changes: Any, message: Any = None, labels: Any = (), commit: Any = commit) -> Any:
            is_users = changes and (tag is None or not tag.apply)
            return commit(tag, changes, message, (LABEL,) if is_users else labels)

        monkeypatch.setattr(database.source, "_commit", labelling)
    sim.run()
    return sim


def tracked(sim: Simulation) -> Tracking:
    statuses = {
        name: ApplyStatus(name=name, low_watermark_scn=component.driver.coordinator.watermarks.low)
        for name, component in ((each.name, each) for each in sim.running.applies.values())
        if component.driver is not None
    }
    answers = {each.name: each.tracks.answer(LABEL) for each in sim.running.components}
    return follow(sim.topology, LABEL, answers, statuses)


def applies_of(spec: TopologySpec, source: str) -> set[str]:
    return {apply.name for apply in spec.applies if apply.source == source}


@pytest.mark.parametrize("name", ["relay", "hub_and_spoke", "fan_out", "downstream", "two_way"])
def test_every_labelled_transaction_is_followed_to_every_destination(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = labelled_run(name, tmp_path, monkeypatch)
    found = tracked(sim)
    assert found.is_settled
    committed = {
        (site, each.commit_scn)
        for site, database in sim.databases.items()
        for each in database.source.log
        if LABEL in each.labels and database.has_log
    }
    assert {(each.source, each.commit_scn) for each in found.transactions} == committed
    applied = 0
    for each in found.transactions:
        assert {arrival.apply for arrival in each.arrivals} == applies_of(sim.topology, each.source)
        times = [step.first_us for step in each.steps]
        assert times == sorted(times)
        for arrival in each.arrivals:
            assert arrival.verdict in {"APPLIED", "DISCARDED"}, arrival
            applied += arrival.verdict == "APPLIED"
    assert applied


def test_label_goes_on_where_an_apply_process_forwards_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = labelled_run("hub_and_spoke", tmp_path, monkeypatch)
    found = tracked(sim)
    hub = max({each.source for each in found.transactions}, key=lambda site: len(applies_of(sim.topology, site)))
    forwarded = [
        each
        for each in found.transactions
        if each.source == hub
        and any(arrival.verdict == "APPLIED" for arrival in each.arrivals)
        and any(arrival.verdict == "DISCARDED" for arrival in each.arrivals)
    ]
    assert forwarded, "what came from a spoke goes to the others, and not home"


def test_killed_process_remembers_nothing_and_its_positions_tell_the_rest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = labelled_run("one_way", tmp_path, monkeypatch)
    (apply,) = sim.running.applies.values()
    driver = apply.driver
    before = tracked(sim)
    sim.clock.advance(60.0)
    apply.kill()
    apply.driver = driver  # the next driver reads this position from the destination
    found = tracked(sim)
    forgotten = {"APPLIED": "PASSED", "DISCARDED": "DISCARDED"}  # capture still knows what it discarded
    verdicts = [arrival.verdict for each in found.transactions for arrival in each.arrivals]
    assert verdicts == [forgotten[arrival.verdict] for each in before.transactions for arrival in each.arrivals]
    assert "PASSED" in verdicts
    assert found.since_us[apply.name] > max(step.last_us for each in before.transactions for step in each.steps)


def test_combined_capture_and_apply_has_no_steps_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = labelled_run("one_way", tmp_path, monkeypatch)
    assert sim.seen["combined"]
    for each in tracked(sim).transactions:
        if each.arrivals[0].verdict == "APPLIED":
            (capture,), (apply,) = sim.running.captures.values(), sim.running.applies.values()
            assert {step.component for step in each.steps} == {capture.name, apply.name}
            assert (capture.name, "SENT", apply.name) in {
                (step.component, step.action, step.peer) for step in each.steps
            }
            break
    else:
        pytest.fail("nothing was applied")
