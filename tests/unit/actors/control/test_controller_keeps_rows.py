"""`up --keep-existing`: a controller over fake actors and sites."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.controller import Controller
from headrace.base.errors import DatabaseError
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from tests.support.actors.controllers import (
    call_again,
    captured,
    started,
    with_another_destination,
    with_another_source,
)
from topology.spec import DatabaseSpec


@pytest.mark.parametrize(
    ("call", "earlier", "remain"), [("one", False, True), ("older", True, True), ("newer", False, False)]
)
def test_rows_are_kept_until_a_later_call(spec, actors, call, earlier, remain):
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors, keep_call="one")
    controller.retry(call, earlier)
    actors.kill("apply:x")
    controller.step()
    assert kept(actors) == (("id of t",) if remain else ())


def test_later_call_wins_before_the_kept_tables_are_known(spec, actors):
    actors.captured["site:a"] = captured("t")
    controller = Controller(spec, actors=actors, keep_call="one")
    controller.open()
    controller.retry("one")
    controller.retry("two")
    for _ in range(6):
        controller.step()
    assert kept(actors) == ()
    assert controller.overview()["calls"] == {"one": "settled", "two": "settled"}


def kept(actors, apply="apply:x"):
    return actors.running[apply]["keep_existing"]


def test_existing_rows_are_kept_for_tables_of_one_call_only(spec, actors):
    actors.captured["site:a"] = captured("t", "u")
    started(spec, actors)
    assert kept(actors) == ()
    actors.kill("apply:x")
    actors.captured["site:a"] = captured("t", "u", "v")
    controller = started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of t", "id of u", "id of v")
    assert controller.detail_state() == "RUNNING"

    actors.captured["site:a"] = captured("t", "u", "v", "later")
    for _ in range(2):  # the apply process is killed, then the controller as well
        actors.kill("apply:x")
        controller.step()
        assert kept(actors) == ("id of t", "id of u", "id of v")
        controller = started(spec, actors, keep_call="one")

    call_again(controller)  # `up` without --keep-existing
    actors.kill("apply:x")
    controller.step()
    assert kept(actors) == ()
    actors.kill("apply:x")
    started(spec, actors, keep_call="one")
    assert kept(actors) == ()


@pytest.mark.parametrize("call", ["", "two"])
def test_added_destination_keeps_rows_only_by_its_own_call(spec, actors, call):
    """The added destination may hold an old copy: changes since then would be missing silently."""
    actors.captured["site:a"] = captured("t", "u")
    started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of t", "id of u")
    grown = with_another_destination(spec)
    started(grown, actors, steps=10, keep_call=call)
    found = ("id of t", "id of u") if call else ()
    assert kept(actors, "apply:y") == found
    actors.kill("apply:y")
    started(grown, actors, steps=10, keep_call=call)  # the controller restarts with the same call
    assert kept(actors, "apply:y") == found
    actors.kill("apply:x")
    started(grown, actors, steps=10, keep_call=call)
    assert kept(actors) == found


def test_existing_rows_are_kept_at_the_destination_that_gets_the_table(spec, actors):
    """A table that is renamed into the rules of another apply process keeps its identity."""
    grown = with_another_destination(spec)
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    narrow = replace(grown, applies=(grown.applies[0], replace(grown.applies[1], rules=rules)))
    actors.captured["site:a"] = captured("t", "u")
    started(narrow, actors, steps=10, keep_call="one")
    assert kept(actors) == ("id of t", "id of u")
    assert kept(actors, "apply:y") == ("id of t",)


def test_apply_process_begins_only_when_the_kept_tables_are_known(spec, actors):
    started(spec, actors)
    actors.kill("apply:x")
    controller = started(spec, actors, steps=1, keep_call="one")
    assert "apply:x" not in actors.running
    for _ in range(5):
        controller.step()
    assert kept(actors) == ()
    assert actors.created.count("queue:qb") == 1


def test_rows_copied_by_another_apply_process_after_the_call_are_not_kept(spec, actors):
    """Both would copy at once: the second would keep the rows of the first, and miss the rows that the first one's
    source lacked.
    """
    actors.captured |= {"site:a": captured("t", "u"), "site:c": captured("t", "u")}
    actors.empty = {TableName("public", "t")}
    started(with_another_source(spec), actors, steps=10, keep_call="one")
    assert kept(actors) == kept(actors, "apply:y") == ("id of u",)
    actors.empty = set()
    for apply in ("apply:x", "apply:y"):
        actors.kill(apply)
    started(with_another_source(spec), actors, steps=10, keep_call="one")
    assert kept(actors) == ("id of u",), "decided at the call, whatever the tables hold now"
    for apply in ("apply:x", "apply:y"):
        actors.kill(apply)
    started(with_another_source(spec), actors, steps=10, keep_call="two")
    assert kept(actors) == kept(actors, "apply:y") == ("id of t", "id of u")


def test_rows_copied_by_another_topology_after_the_call_are_not_kept(spec, actors):
    """This topology does not know the other one: the only writer in its file is not the only writer of the table."""
    actors.captured["site:a"] = captured("t", "u")
    actors.empty = {TableName("public", "t")}
    started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of u",)


def test_destination_is_asked_for_many_tables_in_batches(spec, actors):
    """A call has a time limit, and a distant database takes long for each table."""
    names = [f"t{number}" for number in range(1200)]
    actors.captured["site:a"] = captured(*names)
    actors.empty = {TableName("public", "t7")}
    started(spec, actors, keep_call="one")
    assert set(kept(actors)) == {f"id of {name}" for name in names} - {"id of t7"}
    assert actors.calls.count(("site:b", "filled")) == 3


def test_tables_of_a_dropped_apply_process_are_recorded_as_left(spec, actors):
    """Its record would keep every other apply process from the table."""
    actors.captured |= {"site:a": captured("t"), "site:c": captured("t")}
    started(with_another_source(spec), actors, steps=10)
    assert actors.kept["y"] == ("id of t",)
    started(spec, actors, steps=10)
    assert actors.kept == {"x": ("id of t",), "y": ()}


@pytest.mark.parametrize("is_away", [False, True])
def test_tables_of_an_apply_process_whose_reachable_site_leaves_are_left(spec, actors, is_away):
    """A site that was removed during a copy and returned with other apply processes waited for that copy for ever."""
    actors.captured |= {"site:a": captured("t")}
    started(with_another_destination(spec), actors, steps=10)
    assert actors.kept["y"] == ("id of t",)
    if is_away:
        actors.silent.add("site:c")
    started(spec, actors, steps=10)
    assert actors.kept == {"x": ("id of t",), "y": ("id of t",) if is_away else ()}
    assert "apply:y" not in actors.running


@pytest.mark.parametrize("is_edit", [False, True], ids=["up", "edit"])
def test_tables_of_apply_process_dropped_by_earlier_version_are_left(spec, actors, is_edit):
    """That version did not clear its records: every other copy into the table waited for ever."""
    actors.captured |= {"site:a": captured("t")}
    controller = started(spec, actors)
    actors.recorded["site:b"].add("long_gone")
    if is_edit:
        controller = started(with_another_destination(spec), actors, steps=10)
    else:
        call_again(controller)
        for _ in range(6):
            controller.step()
    assert controller.detail_state() == "RUNNING"
    assert (actors.kept["long_gone"], actors.kept["x"]) == ((), ("id of t",))


def test_destination_that_fails_to_list_its_records_does_not_fail_up(spec, actors, monkeypatch):
    """For example its role lost a right: the other sites proceed, and the next call asks again."""
    spec = with_another_destination(spec)
    actors.captured |= {"site:a": captured("t")}
    controller = started(spec, actors, steps=10)
    actors.recorded["site:c"].add("long_gone")
    asked = actors.call

    def call(name, method, *arguments, timeout_s=5.0):
        if (name, method) == ("site:b", "leave_out_others"):
            raise DatabaseError("permission denied")
        return asked(name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(actors, "call", call)
    call_again(controller)
    for _ in range(6):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.kept["long_gone"] == ()


def test_destination_without_a_database_is_not_asked_for_its_records(spec, actors):
    both = with_another_destination(spec)
    started(both, actors, steps=10)
    actors.calls.clear()
    hub = replace(both.sites[2], database=DatabaseSpec(kind="none"))
    assert (
        started(replace(both, sites=(*both.sites[:2], hub), applies=both.applies[:1]), actors, steps=10).detail_state()
        == "RUNNING"
    )
    assert ("site:b", "leave_out_others") in actors.calls
    assert ("site:c", "leave_out_others") not in actors.calls
