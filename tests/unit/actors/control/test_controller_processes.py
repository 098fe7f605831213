"""Edits of how components share processes: a controller over fake actors and sites."""

from __future__ import annotations

from dataclasses import replace

from tests.support.actors.controllers import EVERYTHING, started, stop


def test_edit_of_processes_moves_components_and_keeps_sites_running(spec, actors):
    started(spec, actors)
    together = dict(actors.processes)
    alone = {name for name, process in together.items() if name == process}
    assert alone == {"site:a", "site:b", "spark:b"}
    apart = replace(spec, processes_apart=True)
    for wanted, processes in ((apart, {name: name for name in EVERYTHING}), (spec, together)):
        actors.created.clear()
        controller = started(wanted, actors, steps=10)
        assert controller.detail_state() == "RUNNING"
        assert actors.processes == processes
        assert sorted(actors.created) == sorted(EVERYTHING - alone)
        assert not any(component["outdated"] for component in controller.overview()["components"])


def test_stop_survives_a_move_into_a_process_of_its_own(spec, actors):
    started(spec, actors)
    file = stop(spec, "propagation:p")
    controller = started(replace(spec, processes_apart=True), actors, steps=10)
    assert (controller.detail_state(), actors.processes["propagation:p"]) == ("RUNNING", "propagation:p")
    assert file.exists()
