"""The controller over fake actors where a source has an administrator: its log can have tables that no topology has
taken up.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.controller import Controller
from headrace.base.errors import DatabaseUnavailable, PropagationError
from headrace.databases.ports import CapturedTable, Finding
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import (
    call_again,
    captured,
    started,
    with_another_destination,
    with_another_source,
)
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


def six_steps(controller: Controller) -> None:
    """Run more steps than any case here needs."""
    for _ in range(6):
        controller.step()


def test_only_up_takes_up_a_table_that_the_administrator_added(spec: TopologySpec, actors: FakeActors) -> None:
    spec = administered(spec)
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    assert known(actors) == {"id of t"}
    actors.captured["site:a"] = captured("t", "new")
    # The driver restarts, then the controller.
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
    # A second call changes nothing.
    actors.prepared.clear()
    call_again(controller)
    for _ in range(3):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert not actors.prepared


def test_controller_that_dies_before_its_record_takes_up_table_on_restart(
    spec: TopologySpec, actors: FakeActors
) -> None:
    spec = administered(spec)
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    actors.captured["site:a"] = captured("t", "new")
    call_again(controller)
    actors.breaks["receivers"] = KeyboardInterrupt()  # the last question before the record is written
    controller.step()  # the preflight
    with pytest.raises(KeyboardInterrupt):
        controller.step()
    actors.breaks.clear()
    assert "apply:x" not in actors.running
    controller = Controller(spec, actors=actors)
    controller.open()
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}, "taken up without another `up`"


def uncaptured(controller: Controller) -> list[str]:
    """Tables that `status` lists as new at site a."""
    (site,) = (each for each in controller.overview()["components"] if each["name"] == "site:a")
    return list(site.get("uncaptured_tables", ()))


def prepared_in_vain(spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare site a with a new table, then lose site b, then kill the controller."""
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    actors.captured["site:a"], actors.uncaptured["site:a"] = captured("t", "new"), ("public.new",)
    answer = FakeActors.call

    def call(name: str, method: str, *arguments: object, timeout_s: float = 5.0) -> object:
        found = answer(actors, name, method, *arguments, timeout_s=timeout_s)
        if (name, method) == ("site:b", "prepare"):
            actors.silent.add("site:b")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(actors, "call", call)
        call_again(controller)
        with pytest.raises(PropagationError, match="site:b does not answer"):
            six_steps(controller)
    assert actors.prepared.count("site:a") == 2
    assert not {"apply:x", "apply:y"} & set(actors.running), "every apply process of site a's changes has ended"


def test_table_of_unrecorded_preparation_is_listed_until_taken_up(
    spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site counts the table as taken up and does not list it: running apply processes would skip its changes
    silently.
    """
    spec = administered(with_another_destination(spec))
    prepared_in_vain(spec, actors, monkeypatch)
    controller = Controller(spec, actors=actors)
    controller.open()
    six_steps(controller)
    assert uncaptured(controller) == ["public.new"]
    actors.silent.clear()
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}
    assert uncaptured(controller) == []


@pytest.mark.parametrize("has_admin", [True, False])
def test_absent_site_in_an_unrecorded_preparation_blocks_no_other_site(
    spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch, has_admin: bool
) -> None:
    spec = with_another_destination(spec)
    spec = administered(spec) if has_admin else spec
    prepared_in_vain(spec, actors, monkeypatch)
    controller = Controller(spec, actors=actors)
    controller.open()
    six_steps(controller)
    assert controller.detail_state() == "STARTING SITES"
    assert actors.running["apply:y"]["known"] == ("id of t",), "the new table can be captured at any moment"
    assert uncaptured(controller) == ["public.new"]
    # y ends before the source is prepared again, and restarts with all tables.
    actors.calls.clear()
    actors.silent.clear()
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert actors.calls.index(("apply:y", "end")) < actors.calls.index(("site:a", "prepare"))
    for name in ("apply:x", "apply:y"):
        assert set(actors.running[name].get("known", ("id of t", "id of new"))) == {"id of t", "id of new"}
    assert ("known" in actors.running["apply:y"]) == has_admin, (
        "without an administrator the driver takes every captured table"
    )


def test_refused_logins_in_an_unrecorded_preparation_block_no_other_site(
    spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's sampler has an open session: the site answers, but its preflight fails."""
    spec = administered(with_another_destination(spec))
    prepared_in_vain(spec, actors, monkeypatch)
    actors.silent.clear()
    answer = FakeActors.call

    def call(name: str, method: str, *arguments: object, timeout_s: float = 5.0) -> object:
        if (name, method) == ("site:b", "preflight"):
            raise DatabaseUnavailable("too many clients already")
        return answer(actors, name, method, *arguments, timeout_s=timeout_s)

    controller = Controller(spec, actors=actors)
    with monkeypatch.context() as patched:
        patched.setattr(actors, "call", call)
        for _ in range(3):  # as its host reopens it
            controller.open()
            with pytest.raises(DatabaseUnavailable):
                six_steps(controller)
        assert actors.running["apply:y"]["known"] == ("id of t",)
        assert uncaptured(controller) == ["public.new"]
    controller.open()
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}


def test_refused_repeat_of_a_preparation_blocks_nothing_and_lists_table(
    spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = administered(with_another_destination(spec))
    prepared_in_vain(spec, actors, monkeypatch)
    actors.silent.clear()
    actors.findings["site:b"] = (Finding(path="sites.b", problem="somebody dropped the new table", fix="make it"),)
    controller = Controller(spec, actors=actors)
    controller.open()
    six_steps(controller)
    assert controller.detail_state() == "REFUSED"
    assert {"apply:x", "apply:y"} <= set(actors.running)
    assert known(actors) == {"id of t"}
    assert uncaptured(controller) == ["public.new"]
    actors.findings.clear()
    call_again(controller)
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}


def test_source_whose_preparation_failed_after_its_work_is_prepared_again(
    spec: TopologySpec, actors: FakeActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database reports that the statement ended, which says nothing about what the site did before."""
    spec = administered(spec)
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors)
    actors.captured["site:a"] = captured("t", "new")
    answer = FakeActors.call

    def call(name: str, method: str, *arguments: object, timeout_s: float = 5.0) -> object:
        found = answer(actors, name, method, *arguments, timeout_s=timeout_s)
        if (name, method) == ("site:a", "prepare"):
            raise DatabaseUnavailable("a table stays locked", sqlstate="55P03")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(actors, "call", call)
        call_again(controller)
        with pytest.raises(DatabaseUnavailable):
            six_steps(controller)
    controller = Controller(spec, actors=actors)
    controller.open()
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of new"}


def test_table_published_during_preparation_is_taken_up_with_the_others(
    spec: TopologySpec, actors: FakeActors, monkeypatch
) -> None:
    """Otherwise it would be recorded although the running apply process does not know it."""
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
    six_steps(controller)
    assert controller.detail_state() == "RUNNING"
    assert known(actors) == {"id of t", "id of late"}


def test_published_table_outside_the_rules_is_not_taken_up(spec: TopologySpec, actors: FakeActors) -> None:
    spec = administered(spec)
    left = CapturedTable(identity="id of left", owner="elsewhere", name="t", object_numbers=(7,))
    actors.captured["site:a"] = (*captured("t"), left)
    started(spec, actors)
    assert known(actors) == {"id of t"}
    assert [each.identity for each in actors.noted["site:a"].tables] == ["id of t"]
