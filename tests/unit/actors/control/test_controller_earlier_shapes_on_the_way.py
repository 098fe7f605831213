"""What must have happened before nothing of a table's earlier shape is on the way: of each source, of each client, of
each table's copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.control.earlier_shapes import earlier_of
from headrace.lcr.scn import scn_text
from headrace.rules.conditions.condition import parse
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import AddColumn, DeleteColumns, Transformation, TransformationError
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import started
from topology.edits.stored import prepared_document
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

MASK = Transformation(operations=(DeleteColumns(deleted=("phone",)),))
CONSTANT = Transformation(operations=(AddColumn(name="phone", type_name="pg_catalog.text", value="none"),))
MARKER = 500


class MarkingActors(FakeActors):
    """The sources answer with a marker at 500; `asked`: which were asked, `away`: at which no marker can be written."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.away: set[str] = set()

    def call(self, name, method, *arguments, timeout_s=5.0):
        if method != "write_marker":
            return super().call(name, method, *arguments, timeout_s=timeout_s)
        self.asked.append(name)
        if name in self.away:
            self.silent.add(name)
        try:
            super().call(name, "status")
        finally:
            self.silent -= self.away
        return MARKER


@pytest.fixture
def actors() -> MarkingActors:
    return MarkingActors()


def rules(*tables: tuple[str, Transformation | None]) -> RuleSet:
    return RuleSet(include=tuple(Rule(owner="public", name=name, transformation=each) for name, each in tables))


def clients(spec: TopologySpec, capture: RuleSet, propagation: RuleSet) -> TopologySpec:
    """The topology with the rules of its first capture process and propagation."""
    return replace(
        spec,
        captures=(replace(spec.captures[0], rules=capture), *spec.captures[1:]),
        propagations=(replace(spec.propagations[0], rules=propagation), *spec.propagations[1:]),
    )


def added_at_capture(spec: TopologySpec) -> TopologySpec:
    return clients(spec, rules(("people", CONSTANT), ("others", None)), rules(("people", None), ("others", None)))


def added_by_propagation(spec: TopologySpec) -> TopologySpec:
    return clients(spec, rules(("people", None), ("others", None)), rules(("people", CONSTANT), ("others", None)))


def without_people(spec: TopologySpec) -> TopologySpec:
    return clients(spec, rules(("others", None)), rules(("others", None)))


def with_another_source(spec: TopologySpec) -> TopologySpec:
    """Another source s, whose changes arrive at b too."""
    return route(
        replace(
            spec,
            sites=(*spec.sites, SiteSpec(name="s", database=DatabaseSpec(kind="embedded"))),
            queues=(*spec.queues, QueueSpec(name="qs", site="s")),
            captures=(
                *spec.captures,
                CaptureSpec(name="cs", site="s", source="s", queue="qs", rules=rules(("elsewhere", None))),
            ),
            propagations=(
                *spec.propagations,
                PropagationSpec(name="ps", from_queue="qs", to_queue="qb", sources=("s",)),
            ),
            applies=(*spec.applies, ApplySpec(name="xs", site="b", source="s", queue="qb")),
        )
    )


def earlier(spec: TopologySpec):
    return earlier_of(prepared_document(spec.state_dir))


def refusals(controller) -> list[dict[str, Any]]:
    assert controller.detail_state() == "REFUSED"
    return [each for each in controller.overview()["findings"] if "still" in each["problem"]]


def test_a_source_that_left_together_with_the_table_needs_no_marker(spec, actors):
    both = with_another_source(spec)
    started(added_at_capture(both), actors, steps=12)
    out = without_people(spec)  # s is no part of the topology any more
    assert started(out, actors, steps=12).detail_state() == "RUNNING"
    actors.statuses["apply:x"] = {"low_watermark_scn": 10_000, "told_scn": 10_000}
    assert started(out, actors, steps=12).detail_state() == "RUNNING"
    assert started(added_by_propagation(spec), actors, steps=12).detail_state() == "RUNNING"


def test_a_source_that_is_away_does_not_hold_up_the_markers_of_others(spec, actors):
    both = with_another_source(spec)
    actors.away = {"site:s"}
    started(added_at_capture(both), actors, steps=12)
    started(without_people(both), actors, steps=12)
    (shape,) = earlier(spec)
    assert shape.markers == {"a": MARKER}
    # the one that is away is asked again after a while
    assert [actors.asked.count(each) for each in ("site:a", "site:s")] == [1, 1]


@pytest.mark.parametrize("name", ["capture:c", "propagation:p"])
def test_no_marker_while_a_client_may_still_run_by_the_topology_before(spec, actors, name):
    started(added_at_capture(spec), actors, steps=12)
    actors.holds_back = {name}
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    controller = started(without_people(spec), actors, steps=4)
    actors.silent = {name}  # it runs on, and is too busy to answer in time
    for _ in range(8):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.asked == []


def test_a_table_that_nobody_transformed_and_two_clients_do_now_waits_too(spec, actors):
    """The rows on the way still have the column that the capture process deletes and the propagation adds: it cannot
    add it to them.
    """
    plain = rules(("people", None), ("others", None))
    started(clients(spec, plain, plain), actors, steps=12)
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    started(without_people(spec), actors, steps=12)
    both = clients(spec, rules(("people", MASK), ("others", None)), rules(("people", CONSTANT), ("others", None)))
    with pytest.raises(TransformationError):
        CONSTANT.shape(("id", "phone"), table="public.people")
    assert refusals(started(both, actors, steps=12))


def renamed(spec: TopologySpec) -> TopologySpec:
    return replace(spec, applies=(replace(spec.applies[0], name="z"),))


def test_an_apply_process_that_is_renamed_gets_no_other_shape_with_the_same_edit(spec, actors):
    """The propagation and its queue stay, with what they hold."""
    started(added_at_capture(spec), actors, steps=12)
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    controller = started(added_by_propagation(renamed(spec)), actors, steps=12)
    assert controller.detail_state() == "REFUSED"
    assert [each["path"] for each in controller.overview()["findings"] if "would arrive at b" in each["problem"]] == [
        "applies.z"
    ]


@pytest.mark.parametrize("when", ["as the table leaves", "as it comes back"])
def test_an_apply_process_under_another_name_gets_another_shape_only_behind_the_old_one(spec, actors, when):
    started(added_at_capture(spec), actors, steps=12)
    name = "z" if when == "as the table leaves" else "x"
    actors.statuses[f"apply:{name}"] = {"low_watermark_scn": 400, "told_scn": 400}
    out = without_people(renamed(spec) if name == "z" else spec)
    started(out, actors, steps=12)
    (found,) = refusals(started(added_by_propagation(renamed(spec)), actors, steps=12))
    assert f"until {name} has applied up to SCN {scn_text(MARKER)} (it is at 0/00000190)" in found["fix"]
    started(out, actors, steps=12)
    actors.statuses[f"apply:{name}"] = {"low_watermark_scn": MARKER, "told_scn": MARKER}
    assert started(added_by_propagation(renamed(spec)), actors, steps=12).detail_state() == "RUNNING"


def test_what_the_queues_keep_for_a_table_that_is_copied_is_on_the_way(spec, actors):
    """The low watermark has passed the marker, but the queues hold everything from SCN 100 on for a table that is
    copied beside.

    A queue that dies then is sent all of that again, by the propagation that would transform it otherwise.
    """
    started(added_at_capture(spec), actors, steps=12)
    actors.statuses["apply:x"] = {"low_watermark_scn": 600, "told_scn": 100}
    started(without_people(spec), actors, steps=12)
    assert refusals(started(added_by_propagation(spec), actors, steps=12))


@pytest.mark.parametrize(
    ("asks", "waits"),
    [
        (Rule(owner="public", name="people", subset=parse("region = 1", "subset")), True),
        (Rule(owner="public", name="people", condition=parse("old.region = 1", "condition")), True),
        (
            Rule(owner="public", name="people", condition=parse("region = 1", "where")),
            True,
        ),  # of a DELETE the old value
        (Rule(owner="public", name="people", condition=parse("new.region = 1", "where")), False),
    ],
)
def test_what_asks_for_old_values_that_the_rows_on_the_way_may_lack_waits_too(spec, actors, asks, waits):
    """What docs/rules.md says of another subset: out of the rules, `up`, REPLICA IDENTITY FULL, the new subset, `up`.

    Rows from before have no old values: the propagation stops at them
    (`test_row_of_which_it_is_not_known_whether_it_was_in_the_subset_...`).
    """
    plain = rules(("people", None), ("others", None))
    started(clients(spec, plain, plain), actors, steps=12)
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    started(without_people(spec), actors, steps=12)
    asking = started(
        clients(spec, plain, RuleSet(include=(asks, Rule(owner="public", name="others")))), actors, steps=12
    )
    assert asking.detail_state() == ("REFUSED" if waits else "RUNNING")
    if waits:
        assert refusals(asking)
