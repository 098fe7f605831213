"""When no change in a table's earlier shape is in flight any more: the conditions per source, per client and per table
copy.
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
    """The sources answer with a marker at 500; `asked` lists them, and those in `away` cannot write one."""

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
    """The topology with these rules for its first capture process and propagation."""
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
    """The topology with another source s, whose changes also arrive at b."""
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


def test_source_that_left_with_the_table_needs_no_marker(spec, actors):
    both = with_another_source(spec)
    started(added_at_capture(both), actors, steps=12)
    out = without_people(spec)  # without s
    assert started(out, actors, steps=12).detail_state() == "RUNNING"
    actors.statuses["apply:x"] = {"low_watermark_scn": 10_000, "told_scn": 10_000}
    assert started(out, actors, steps=12).detail_state() == "RUNNING"
    assert started(added_by_propagation(spec), actors, steps=12).detail_state() == "RUNNING"


def test_absent_source_does_not_hold_up_markers_of_others(spec, actors):
    both = with_another_source(spec)
    actors.away = {"site:s"}
    started(added_at_capture(both), actors, steps=12)
    started(without_people(both), actors, steps=12)
    (shape,) = earlier(spec)
    assert shape.markers == {"a": MARKER}
    # the absent source is asked again only after a while
    assert [actors.asked.count(each) for each in ("site:a", "site:s")] == [1, 1]


@pytest.mark.parametrize("name", ["capture:c", "propagation:p"])
def test_no_marker_is_written_while_a_client_may_run_the_old_topology(spec, actors, name):
    started(added_at_capture(spec), actors, steps=12)
    actors.holds_back = {name}
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    controller = started(without_people(spec), actors, steps=4)
    actors.silent = {name}  # it keeps running, and is too busy to answer in time
    for _ in range(8):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.asked == []


def test_table_that_two_clients_now_transform_is_refused_too(spec, actors):
    """Rows in flight still have the column that the capture process deletes and the propagation adds: adding it to them
    would fail.
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


def test_edit_that_also_renames_the_apply_process_cannot_change_the_shape(spec, actors):
    """The propagation and its queue stay, with the changes that they hold."""
    started(added_at_capture(spec), actors, steps=12)
    actors.statuses["apply:x"] = {"low_watermark_scn": 400, "told_scn": 400}
    controller = started(added_by_propagation(renamed(spec)), actors, steps=12)
    assert controller.detail_state() == "REFUSED"
    assert [each["path"] for each in controller.overview()["findings"] if "would arrive at b" in each["problem"]] == [
        "applies.z"
    ]


@pytest.mark.parametrize("when", ["as the table leaves", "as it comes back"])
def test_renamed_apply_process_gets_another_shape_only_after_the_old_one(spec, actors, when):
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


def test_changes_kept_for_a_table_copy_are_in_flight(spec, actors):
    """The low watermark has passed the marker, but the queues hold everything from SCN 100 on for a concurrent table
    copy.

    If such a queue dies, the propagation sends all of that again, transformed differently.
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
        ),  # a DELETE has old values only
        (Rule(owner="public", name="people", condition=parse("new.region = 1", "where")), False),
    ],
)
def test_rule_that_needs_old_values_waits_for_rows_without_them(spec, actors, asks, waits):
    """docs/reference/rules.md changes a subset in these steps: out of the rules, `up`, REPLICA IDENTITY FULL, the new subset,
    `up`.

    Earlier rows have no old values, so whether one was in the subset is unknown: the propagation stops at it.
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
