"""Which node an actor runs on, and what the status shows when that node is absent."""

from __future__ import annotations

import pytest

from actors.cluster.nodes import HEAD, absence_of, placement
from headrace.console.status_view import notes
from tests.support.actors.controllers import started


def test_actors_run_on_their_sites_node_and_all_others_on_the_head():
    assert placement({}).keys() == {HEAD}
    assert placement({"site_b": 1.0, "ssd": 2.0}).keys() == {"site_b", "ssd"}


def test_one_unit_of_a_resource_has_room_for_every_actor_of_a_large_site():
    assert all(amount * 500 <= 1 for amount in placement({"site_b": 1000.0}).values())


@pytest.mark.parametrize(
    ("offered", "is_absent"),
    [
        ([{"CPU": 4.0}, {"site_b": 1.0}], True),
        ([{"site_b": 1.0, "ssd": 1.0}], False),
        ([], True),
    ],
)
def test_site_has_a_node_when_one_node_offers_all_its_resources(offered, is_absent):
    found = absence_of("b", {"site_b": 1.0, "ssd": 1.0}, offered)
    assert (found is not None) is is_absent
    if found is not None:
        assert "site b" in found[0]
        assert "site_b: 1, ssd: 1" in found[0]


def test_site_without_resources_is_never_absent():
    assert absence_of("a", {}, []) is None


def test_status_names_absent_node_once_and_shows_the_other_sites(spec, actors):
    controller = started(spec, actors)
    actors.offered = [{"CPU": 2.0}]
    at_b = {"site:b", "spark:b", "apply:x", "queue:qb"}
    actors.silent |= at_b
    controller.step()
    overview = controller.overview()
    assert {each["name"] for each in overview["components"] if each["state"] == "UNREACHABLE"} == at_b
    told = [note for note in notes(controller.seen()) if not note.is_remark]
    assert [note.component for note in told] == ["site:b"]
    assert "the node of site b is missing" in told[0].problem
    assert told[0].fix
    assert controller.detail_state() == "RUNNING"


def test_unreachable_site_on_a_present_node_is_not_called_absent(spec, actors):
    controller = started(spec, actors)
    actors.silent.add("site:b")
    controller.step()
    assert [note.problem for note in notes(controller.seen())] == ["does not answer"]


def test_component_is_created_once_while_its_node_is_away(spec, actors):
    """Ray keeps the creation pending until a node arrives."""
    actors.offered = []
    controller = started(spec, actors)
    created = len(actors.created)
    actors.silent |= {"site:b"}
    for _ in range(3):
        controller.step()
    assert len(actors.created) == created


def test_prepared_source_without_its_folder_on_its_node_is_a_finding(spec, actors):
    controller = started(spec, actors)
    actors.statuses["site:a"] = {"state": "WAITING FOR PREPARATION", "is_prepared": False}
    controller.step()
    (note,) = notes(controller.seen())
    assert note.component == "site:a"
    assert str(spec.state_dir) in note.problem
    assert not note.is_remark


def test_source_that_is_not_prepared_yet_is_no_finding(spec, actors):
    actors.statuses["site:a"] = {"state": "WAITING FOR PREPARATION", "is_prepared": False, "ready": False}
    controller = started(spec, actors)
    assert controller.detail_state() == "STARTING SITES"
    assert notes(controller.seen()) == []
