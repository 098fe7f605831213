"""Sites that an edit removes: their source objects are cleared, and what cannot be cleared is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.control.leaving import CLEAR_INTERVAL_S
from actors.intermediate_database import IntermediateSite
from actors.site.left import left_in
from headrace.base.clock import VirtualClock
from headrace.console.status_view import notes
from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import started, with_another_destination
from tests.support.topologies.files import WRITERS, read_anyway
from topology.spec import CaptureSpec, DatabaseSpec, TopologySpec


def between(folder: Path, sites: str) -> TopologySpec:
    return read_anyway(folder, f"{WRITERS}replicate:\n  - {{tables: [public.t], between: {sites}}}\n")


def record(source: str) -> Instantiation:
    return Instantiation(
        source=source, identity=f"{source}.1", owner="public", name="t", scn=Scn(9), state="DONE", digest="copied"
    )


@pytest.fixture
def both(spec) -> TopologySpec:
    """The topology with a third site c and a second capture process there."""
    grown = with_another_destination(spec)
    sites = tuple(
        replace(site, database=DatabaseSpec(kind="postgres", dsn=f"dbname={site.name}")) for site in grown.sites
    )
    rules = spec.captures[0].rules
    return replace(
        grown,
        sites=sites,
        captures=(*grown.captures, CaptureSpec(name="c2", site="c", source="c", queue="qc", rules=rules)),
    )


def without_site(both: TopologySpec) -> TopologySpec:
    return replace(
        both,
        sites=both.sites[:2],
        queues=both.queues[:2],
        captures=both.captures[:1],
        propagations=both.propagations[:1],
        applies=both.applies[:1],
    )


def without_capture(both: TopologySpec) -> TopologySpec:
    return replace(both, captures=both.captures[:1])


def cleared(actors: FakeActors) -> list[str]:
    return [name for name, method in actors.calls if method == "end_source"]


def told(controller: Any) -> list[tuple[str, str, bool]]:
    overview = replace(controller.seen(), components=())
    return [(note.component, note.problem, note.is_remark) for note in notes(overview)]


@pytest.mark.parametrize("edit", [without_site, without_capture])
def test_source_that_an_edit_removes_is_cleared_after_preparation_and_ends(both, actors, edit):
    started(both, actors, steps=10)
    assert cleared(actors) == []
    controller = started(edit(both), actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert cleared(actors) == ["site:c"]
    assert actors.calls.index(("site:a", "prepare")) < actors.calls.index(("site:c", "end_source"))
    assert left_in(both.state_dir) == ()
    assert ("site:c" in actors.running) == (edit is without_capture)
    assert told(controller) == []


def test_unreachable_source_is_cleared_later_and_holds_up_nothing(both, actors):
    started(both, actors, steps=10)
    actors.silent.add("site:c")
    controller = started(without_site(both), actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert set(actors.running) == {
        "site:a",
        "site:b",
        "queue:qa",
        "queue:qb",
        "capture:c",
        "propagation:p",
        "apply:x",
        "spark:b",
        "site:c",
    }
    ((component, problem, is_remark),) = told(controller)
    assert (component, is_remark) == ("site:c", False)
    assert "its database keeps WAL for slot headrace_one_way_" in problem
    actors.silent.clear()
    controller = started(without_site(both), actors, steps=3)  # also by a restarted controller
    assert cleared(actors) == ["site:c"]
    assert "site:c" not in actors.running
    assert told(controller) == []


def test_source_that_died_uncleared_stays_shown_and_is_cleared_on_return(both, actors):
    started(both, actors, steps=10)
    actors.silent.add("site:c")
    started(without_site(both), actors, steps=10)
    actors.running.clear()  # as after `headrace down`, which cannot reach it either
    actors.silent.clear()
    controller = started(without_site(both), actors, steps=10)
    assert cleared(actors) == []
    assert [(component, is_remark) for component, _, is_remark in told(controller)] == [("site:c", True)]

    actors.calls.clear()
    controller = started(both, actors, steps=15)
    assert controller.detail_state() == "RUNNING"
    assert cleared(actors) == ["site:c"]
    assert actors.calls.index(("site:c", "end_source")) < actors.calls.index(("site:c", "prepare"))
    assert left_in(both.state_dir) == ()
    assert told(controller) == []


def test_site_that_returns_as_a_destination_is_cleared_as_a_source(both, actors):
    started(both, actors, steps=10)
    actors.silent.add("site:c")
    started(without_site(both), actors, steps=10)
    actors.silent.clear()
    actors.running.clear()
    controller = started(without_capture(both), actors, steps=15)
    assert controller.detail_state() == "RUNNING"
    assert cleared(actors) == ["site:c"]
    assert "site:c" in actors.running
    assert left_in(both.state_dir) == ()


def test_site_without_a_database_names_the_slot_at_its_former_one(both, actors):
    started(both, actors, steps=10)
    nothing = replace(both.sites[2], database=DatabaseSpec(kind="none"))
    edited = replace(without_capture(both), sites=(*both.sites[:2], nothing), applies=both.applies[:1])
    actors.call = lambda name, method, *arguments, timeout_s=5.0: (
        IntermediateSite(edited, "c", "").end_source()
        if method == "end_source"
        else FakeActors.call(actors, name, method, *arguments)
    )
    ((component, problem, _),) = told(started(edited, actors, steps=10))
    assert component == "site:c"
    assert "no connection string of its former one" in problem


def test_embedded_server_of_a_removed_site_is_stopped(spec, actors):
    grown = with_another_destination(spec)
    started(grown, actors, steps=10)
    controller = started(spec, actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert ("site:c", "stop_server") in actors.calls
    assert "site:c" not in actors.running


def test_refused_edit_clears_nothing(both, actors):
    started(both, actors, steps=10)
    actors.statuses["site:b"] = {"ready": False}
    started(without_site(both), actors, steps=10)
    assert cleared(actors) == []
    assert left_in(both.state_dir) == ()
    controller = started(both, actors, steps=3)
    assert controller.detail_state() == "RUNNING"
    assert cleared(actors) == []


def test_clearing_is_retried_every_few_seconds_only(both, actors):
    started(both, actors, steps=10)
    actors.silent.add("site:c")
    clock = VirtualClock()
    controller = started(without_site(both), actors, steps=10, clock=clock)
    clock.advance(CLEAR_INTERVAL_S)
    tried: list[str] = []
    call = actors.call

    def counted(name: str, method: str, *arguments: Any, timeout_s: float = 5.0) -> Any:
        tried.extend([method] if name == "site:c" else [])
        return call(name, method, *arguments, timeout_s=timeout_s)

    actors.call = counted
    for _ in range(5):
        controller.step()
    assert tried == ["status"]
    clock.advance(CLEAR_INTERVAL_S)
    controller.step()
    assert tried == ["status", "status"]


def test_source_whose_rows_some_site_lacks_leaves_with_a_warning(actors, tmp_path):
    """No site may send them: the neighbours of the site that lacks them send only their own changes."""
    actors.instantiations |= {"apply_from_a_at_b": (record("a"),), "apply_from_b_at_c": (record("b"),)}
    assert started(between(tmp_path, "[a, b, c]"), actors, steps=10).seen().findings == ()
    controller = started(between(tmp_path, "[b, c]"), actors, steps=10)
    assert controller.detail_state() == "RUNNING"
    assert "sites.c table public.t" in [each.path for each in controller.seen().findings]
    assert "apply:apply_from_a_at_c" not in actors.running
