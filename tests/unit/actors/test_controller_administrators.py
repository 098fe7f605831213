"""The controller over fake actors, where a source has an administrator: the log may have tables that no topology has
taken up.
"""

from __future__ import annotations

from dataclasses import replace

from actors.controller import Controller
from databases.ports import CapturedTable
from tests.support.actor_system import FakeActors
from tests.support.controllers import call_again, captured, started, with_another_source
from topology.spec import TopologySpec


def administered(spec: TopologySpec) -> TopologySpec:
    return replace(
        spec,
        sites=tuple(
            replace(site, database=replace(site.database, has_admin=True)) if site.name == "a" else site
            for site in spec.sites
        ),
    )


def known(actors: FakeActors) -> set[str]:
    return set(actors.running["apply:x"]["known"])


def test_table_that_the_administrator_added_is_taken_up_by_up_and_by_nothing_else(
    spec: TopologySpec, actors: FakeActors
) -> None:
    spec = administered(spec)
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    assert known(actors) == {"id of t"}
    actors.captured["site:a"] = captured("t", "new")
    # A driver that begins again, and a controller that does.
    del actors.running["apply:x"]
    controller.step()
    assert known(actors) == {"id of t"}
    controller = Controller(spec, actors=actors)
    controller.open()
    del actors.running["apply:x"]
    for _ in range(3):
        controller.step()
    assert known(actors) == {"id of t"}
    assert {each.identity for each in actors.noted["site:a"].tables} == {"id of t"}
    actors.calls.clear()
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}
    assert actors.calls.index(("apply:x", "end")) < actors.calls.index(("site:a", "prepare"))
    assert {each.identity for each in actors.noted["site:a"].tables} == {"id of t", "id of new"}
    # Another call changes nothing.
    actors.prepared.clear()
    call_again(controller)
    for _ in range(3):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert not actors.prepared


def test_controller_that_dies_before_its_record_takes_the_table_up_in_its_next_life(
    spec: TopologySpec, actors: FakeActors, monkeypatch
) -> None:
    spec = administered(spec)
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    actors.captured["site:a"] = captured("t", "new")
    call_again(controller)
    with monkeypatch.context() as patch:

        def dies(noted: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(controller, "_save_prepared", dies)
        for _ in range(6):
            try:
                controller.step()
            except KeyboardInterrupt:
                break
    assert "apply:x" not in actors.running
    controller = Controller(spec, actors=actors)
    controller.open()
    for _ in range(3):
        controller.step()
    assert known(actors) == {"id of t"}, "what was not recorded does not hold"
    controller.retry("again")
    for _ in range(6):
        controller.step()
    assert known(actors) == {"id of t", "id of new"}


def test_table_that_another_up_adds_in_the_middle_is_taken_up_with_the_others(
    spec: TopologySpec, actors: FakeActors, monkeypatch
) -> None:
    """Else it would be recorded, and the apply process that runs would not know it."""
    spec = administered(with_another_source(spec))
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors, steps=10)
    actors.uncaptured["site:c"] = ("public.other",)
    prepared = FakeActors.call

    def call(name, method, *arguments, timeout_s=5.0):
        found = prepared(actors, name, method, *arguments, timeout_s=timeout_s)
        if (name, method) == ("site:b", "prepare"):
            actors.captured["site:a"] = captured("t", "late")
        return found

    monkeypatch.setattr(actors, "call", call)
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of late"}


def test_table_that_left_the_rules_is_nobodys_while_it_is_still_in_the_log(
    spec: TopologySpec, actors: FakeActors
) -> None:
    spec = administered(spec)
    left = CapturedTable(identity="id of left", owner="elsewhere", name="t", object_numbers=(7,))
    actors.captured["site:a"] = (*captured("t"), left)
    started(spec, actors)
    assert known(actors) == {"id of t"}
    assert [each.identity for each in actors.noted["site:a"].tables] == ["id of t"]
