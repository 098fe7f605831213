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
def test_rows_are_kept_until_a_later_call_comes(spec, actors, call, earlier, remain):
    actors.captured["site:a"] = captured("t")
    controller = started(spec, actors, keep_call="one")
    controller.retry(call, earlier)
    actors.kill("apply:x")
    controller.step()
    assert kept(actors) == (("id of t",) if remain else ())


def test_later_call_wins_also_before_it_is_known_what_is_kept(spec, actors):
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


def test_existing_rows_are_kept_of_the_tables_of_one_call_and_of_no_later_ones(spec, actors):
    actors.captured["site:a"] = captured("t", "u")
    started(spec, actors)
    assert kept(actors) == ()
    actors.kill("apply:x")
    actors.captured["site:a"] = captured("t", "u", "v")
    controller = started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of t", "id of u", "id of v")
    assert controller.detail_state() == "RUNNING"

    actors.captured["site:a"] = captured("t", "u", "v", "later")
    for _ in range(2):  # the apply process is killed; then the controller as well
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
def test_existing_rows_are_kept_by_no_later_call_for_a_destination_that_is_added(spec, actors, call):
    """The added destination may hold an old copy: what was changed since would be missing without a sign."""
    actors.captured["site:a"] = captured("t", "u")
    started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of t", "id of u")
    grown = with_another_destination(spec)
    started(grown, actors, steps=10, keep_call=call)
    found = ("id of t", "id of u") if call else ()
    assert kept(actors, "apply:y") == found
    actors.kill("apply:y")
    started(grown, actors, steps=10, keep_call=call)  # the controller is restarted with it
    assert kept(actors, "apply:y") == found
    actors.kill("apply:x")
    started(grown, actors, steps=10, keep_call=call)
    assert kept(actors) == found


def test_existing_rows_are_kept_at_the_destination_at_which_the_table_arrived_at_that_call(spec, actors):
    """A table that is renamed into the rules of another apply process keeps its identity."""
    grown = with_another_destination(spec)
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    narrow = replace(grown, applies=(grown.applies[0], replace(grown.applies[1], rules=rules)))
    actors.captured["site:a"] = captured("t", "u")
    started(narrow, actors, steps=10, keep_call="one")
    assert kept(actors) == ("id of t", "id of u")
    assert kept(actors, "apply:y") == ("id of t",)


def test_apply_process_does_not_begin_before_it_is_known_what_is_kept(spec, actors):
    started(spec, actors)
    actors.kill("apply:x")
    controller = started(spec, actors, steps=1, keep_call="one")
    assert "apply:x" not in actors.running
    for _ in range(5):
        controller.step()
    assert kept(actors) == ()
    assert actors.created.count("queue:qb") == 1


def test_rows_that_another_apply_process_copies_after_the_call_are_not_kept_by_it(spec, actors):
    """Both would copy at once: the second one would keep what the first one copied, and miss what that one's source did
    not have.
    """
    actors.captured |= {"site:a": captured("t", "u"), "site:c": captured("t", "u")}
    actors.empty = {TableName("public", "t")}
    started(with_another_source(spec), actors, steps=10, keep_call="one")
    assert kept(actors) == kept(actors, "apply:y") == ("id of u",)
    actors.empty = set()
    for apply in ("apply:x", "apply:y"):
        actors.kill(apply)
    started(with_another_source(spec), actors, steps=10, keep_call="one")
    assert kept(actors) == ("id of u",), "of the call, whatever became of the tables"
    for apply in ("apply:x", "apply:y"):
        actors.kill(apply)
    started(with_another_source(spec), actors, steps=10, keep_call="two")
    assert kept(actors) == kept(actors, "apply:y") == ("id of t", "id of u")


def test_rows_that_another_topology_copies_after_the_call_are_not_kept_by_it(spec, actors):
    """This topology knows nothing of the other one: alone in its file is not alone in the table."""
    actors.captured["site:a"] = captured("t", "u")
    actors.empty = {TableName("public", "t")}
    started(spec, actors, keep_call="one")
    assert kept(actors) == ("id of u",)


def test_a_destination_is_asked_for_some_of_many_tables_at_once(spec, actors):
    """A call has a bound of time, and a distant database takes long for each table."""
    names = [f"t{number}" for number in range(1200)]
    actors.captured["site:a"] = captured(*names)
    actors.empty = {TableName("public", "t7")}
    started(spec, actors, keep_call="one")
    assert set(kept(actors)) == {f"id of {name}" for name in names} - {"id of t7"}
    assert actors.calls.count(("site:b", "filled")) == 3


def test_tables_of_an_apply_process_that_is_dropped_are_recorded_as_left(spec, actors):
    """Its record would keep every other one from the table."""
    actors.captured |= {"site:a": captured("t"), "site:c": captured("t")}
    started(with_another_source(spec), actors, steps=10)
    assert actors.kept["y"] == ("id of t",)
    started(spec, actors, steps=10)
    assert actors.kept == {"x": ("id of t",), "y": ()}


@pytest.mark.parametrize("is_away", [False, True])
def test_tables_of_an_apply_process_that_leaves_with_its_site_are_recorded_as_left_if_the_site_answers(
    spec, actors, is_away
):
    """A site that was taken out in the middle of a copy, and came back with other apply processes, waited for that copy
    for ever.
    """
    actors.captured |= {"site:a": captured("t")}
    started(with_another_destination(spec), actors, steps=10)
    assert actors.kept["y"] == ("id of t",)
    if is_away:
        actors.silent.add("site:c")
    started(spec, actors, steps=10)
    assert actors.kept == {"x": ("id of t",), "y": ("id of t",) if is_away else ()}
    assert "apply:y" not in actors.running


@pytest.mark.parametrize("is_edit", [False, True], ids=["up", "edit"])
def test_tables_of_an_apply_process_that_an_earlier_version_dropped_are_recorded_as_left(spec, actors, is_edit):
    """That version left its records as they were: each other copy into the table waited for it for ever."""
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


def test_a_destination_that_cannot_say_whose_records_it_has_holds_up_no_call_of_up_that_changes_nothing(
    spec, actors, monkeypatch
):
    """A right of its role was taken away, for example: the others go on, and the next call asks again."""
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


def test_a_destination_that_has_no_database_in_the_file_any_more_is_not_asked_for_its_records(spec, actors):
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
