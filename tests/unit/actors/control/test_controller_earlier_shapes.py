"""A transformed table that left the topology returns in another shape only when no change in the old shape is in
flight.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.control.earlier_shapes import EARLIER_MAX, EarlierShape, earlier_of, left_shapes, on_the_way
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import DeleteColumns, Transformation
from tests.support.actors.controllers import started
from topology.edits.stored import prepared_document

MASK = Transformation(operations=(DeleteColumns(deleted=("phone",)),))
MARKER = 500


def shaped(spec, *, at: str, table: str = "people"):
    """The topology with a table whose phone column is deleted by the capture process or by the propagation."""
    rules = {
        where: RuleSet(include=(Rule(owner="public", name=table, transformation=MASK if where == at else None),))
        for where in ("capture", "propagation")
    }
    return replace(
        spec,
        captures=(replace(spec.captures[0], rules=rules["capture"]),),
        propagations=(replace(spec.propagations[0], rules=rules["propagation"]),),
    )


@pytest.fixture
def marks(actors, monkeypatch):
    """Names of the sources that were asked for a marker; each answers 500."""
    asked, call = [], actors.call

    def answering(name, method, *arguments, timeout_s=5.0):
        if method == "write_marker":
            asked.append(name)
            return MARKER
        return call(name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(actors, "call", answering)
    return asked


def reached(actors, scn):
    actors.statuses["apply:x"] = {"low_watermark_scn": scn, "told_scn": scn}


def test_table_returns_in_another_shape_only_after_the_old_one_drained(spec, actors, marks):
    first, out, third = shaped(spec, at="capture"), shaped(spec, at="", table="others"), shaped(spec, at="propagation")
    assert started(first, actors, steps=12).detail_state() == "RUNNING"
    reached(actors, 400)
    assert started(out, actors, steps=12).detail_state() == "RUNNING"
    assert marks == ["site:a"]
    refused = started(third, actors, steps=12)
    assert refused.detail_state() == "REFUSED"
    (finding,) = [each for each in refused.overview()["findings"] if each["path"] == "applies.x"]
    assert "still on the way" in finding["problem"]
    assert "SCN 0/000001F4 (it is at 0/00000190)" in finding["fix"]
    assert started(out, actors, steps=12).detail_state() == "RUNNING"  # the earlier file is accepted
    reached(actors, MARKER)
    assert started(third, actors, steps=12).detail_state() == "RUNNING"
    assert prepared_document(spec.state_dir)["earlier_shapes"] == []


def test_absent_source_is_marked_later_and_the_new_shape_is_refused(spec, actors):
    first, out, third = shaped(spec, at="capture"), shaped(spec, at="", table="others"), shaped(spec, at="propagation")
    started(first, actors, steps=12)
    reached(actors, 10_000)
    call = actors.call

    def away(name, method, *arguments, timeout_s=5.0):
        if method == "write_marker":
            actors.silent.add(name)
        try:
            return call(name, method, *arguments, timeout_s=timeout_s)
        finally:
            actors.silent.discard(name)

    actors.call = away
    started(out, actors, steps=12)
    assert [each.markers for each in earlier_of(prepared_document(spec.state_dir))] == [{}]
    refused = started(third, actors, steps=12)
    assert refused.detail_state() == "REFUSED"


def test_table_returns_in_the_same_shape_at_any_time(spec, actors, marks):
    first, out = shaped(spec, at="capture"), shaped(spec, at="", table="others")
    for each in (first, out, first):
        assert started(each, actors, steps=12).detail_state() == "RUNNING"


@pytest.mark.parametrize("at", ["", "capture", "propagation"])
def test_untransformed_table_returns_for_a_transforming_client_at_any_time(spec, actors, marks, at):
    """The plain rows in flight are behind that client, or are what it expects."""
    for each in (shaped(spec, at=""), shaped(spec, at="", table="others"), shaped(spec, at=at)):
        assert started(each, actors, steps=12).detail_state() == "RUNNING"


def test_number_of_earlier_shapes_is_bounded(spec):
    first, out = shaped(spec, at="capture"), shaped(spec, at="", table="others")
    kept = [EarlierShape(spec=first)] * EARLIER_MAX
    assert [each.problem for each in on_the_way(kept, first, out, {})] == [
        f"changes in {EARLIER_MAX} earlier shapes of tables may still be in flight, and Headrace cannot track more"
    ]
    assert list(on_the_way(kept[1:], first, out, {})) == []


def test_untransformed_tables_are_forgotten_first_and_block_nothing(spec):
    first, plain, out = shaped(spec, at="capture"), shaped(spec, at=""), shaped(spec, at="", table="others")
    kept = (EarlierShape(spec=plain), *[EarlierShape(spec=first)] * (EARLIER_MAX - 1))
    assert list(on_the_way(kept, first, out, {})) == []
    assert left_shapes(kept, first, out) == (EarlierShape(spec=first),) * EARLIER_MAX
