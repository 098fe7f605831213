"""Which node an actor runs on, and what is said when there is none."""

from __future__ import annotations

import pytest

from actors.cluster.nodes import HEAD, absence_of, placement
from headrace.console.status_view import notes
from tests.support.actors.controllers import started


def test_what_belongs_to_a_site_with_a_node_runs_there_and_all_else_on_the_head():
    assert placement({}).keys() == {HEAD}
    assert placement({"site_b": 1.0, "ssd": 2.0}).keys() == {"site_b", "ssd"}


def test_a_node_that_offers_one_of_its_resource_has_room_for_every_actor_of_a_large_site():
    assert all(amount * 500 <= 1 for amount in placement({"site_b": 1000.0}).values())


@pytest.mark.parametrize(
    ("offered", "is_absent"),
    [
        ([{"CPU": 4.0}, {"site_b": 1.0}], True),
        ([{"site_b": 1.0, "ssd": 1.0}], False),
        ([], True),
    ],
)
def test_a_site_has_a_node_when_one_living_node_offers_all_of_its_resources(offered, is_absent):
    found = absence_of("b", {"site_b": 1.0, "ssd": 1.0}, offered)
    assert (found is not None) is is_absent
    if found is not None:
        assert "site b" in found[0]
        assert "site_b: 1, ssd: 1" in found[0]


def test_a_site_without_a_node_of_its_own_is_never_called_absent():
    assert absence_of("a", {}, []) is None


def test_status_says_once_that_the_node_of_a_site_is_not_there_and_shows_the_others_at_work(spec, actors):
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


def test_a_site_that_does_not_answer_on_a_node_that_is_there_is_not_said_to_have_none(spec, actors):
    controller = started(spec, actors)
    actors.silent.add("site:b")
    controller.step()
    assert [note.problem for note in notes(controller.seen())] == ["does not answer"]


def test_a_component_that_is_created_while_its_node_is_away_is_created_once(spec, actors):
    """Ray keeps it until there is a node."""
    actors.offered = []
    controller = started(spec, actors)
    created = len(actors.created)
    actors.silent |= {"site:b"}
    for _ in range(3):
        controller.step()
    assert len(actors.created) == created


def test_a_source_that_comes_back_on_a_node_without_its_folder_is_a_finding(spec, actors):
    controller = started(spec, actors)
    actors.statuses["site:a"] = {"state": "WAITING FOR PREPARATION", "is_prepared": False}
    controller.step()
    (note,) = notes(controller.seen())
    assert note.component == "site:a"
    assert str(spec.state_dir) in note.problem
    assert not note.is_remark


def test_a_source_that_is_not_prepared_yet_is_no_finding(spec, actors):
    actors.statuses["site:a"] = {"state": "WAITING FOR PREPARATION", "is_prepared": False, "ready": False}
    controller = started(spec, actors)
    assert controller.detail_state() == "STARTING SITES"
    assert notes(controller.seen()) == []
