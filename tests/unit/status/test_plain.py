"""Every kind of status documents its fields and survives conversion to JSON and back."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import headrace.status
from headrace.status.applies import ApplyStatus
from headrace.status.component import ComponentStatus, Failure
from headrace.status.overview import Flow, Overview
from headrace.status.plain import KINDS, overview_of, plain_overview, plain_status, status_of
from headrace.status.queues import QueueStatus, QueueSubscriber

MODULES = [import_module(f"headrace.status.{each.name}") for each in iter_modules(headrace.status.__path__)]
STATUSES = {
    name: found
    for module in MODULES
    for name, found in vars(module).items()
    if dataclasses.is_dataclass(found) and found.__module__ == module.__name__
}


def own_fields(kind: Any) -> list[str]:
    """Return the fields without those of the base classes."""
    inherited = {field.name for base in kind.__mro__[1:] if base is not object for field in dataclasses.fields(base)}
    return [field.name for field in dataclasses.fields(kind) if field.name not in inherited]


def filled(kind: Any, number: int = 1) -> Any:
    """Return a value of a type with every field set to a different value."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = dataclasses.fields(kind)
        return kind(**{each.name: filled(hints[each.name], number + at) for at, each in enumerate(fields)})  # type: ignore[operator]
    if get_origin(kind) is types.UnionType:
        return filled(next(each for each in get_args(kind) if each is not type(None)), number)
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            return (filled(members[0], number), filled(members[0], number + 1))
        return tuple(filled(each, number + at) for at, each in enumerate(members))
    if get_origin(kind) is dict:
        return {f"name {number}": filled(get_args(kind)[1], number)}
    return f"text {number}" if kind is str else True if kind is bool else kind(number)


@pytest.mark.parametrize("kind", STATUSES.values(), ids=STATUSES.keys())
def test_status_docstring_describes_exactly_its_fields(kind: Any):
    assert list(re.findall(r"^    (\w+): \S", inspect.getdoc(kind) or "", re.MULTILINE)) == own_fields(kind)


@pytest.mark.parametrize("kind", STATUSES.values(), ids=STATUSES.keys())
def test_status_field_names_follow_one_spelling(kind: Any):
    """The spelling rule of `headrace.status`: `rows_total`, never `total_rows`, `cnum_msgs` or `row_count`."""
    assert [name for name in own_fields(kind) if re.search(r"^total_|msgs?(_|$)|^c?num_|_count$|_time_us$", name)] in (
        [],
        ["last_commit_time_us"],
    )


@pytest.mark.parametrize("name", KINDS)
def test_status_of_each_kind_round_trips_through_json(name: str):
    status = dataclasses.replace(filled(KINDS[name]), name=f"{name}:x", kind=name)
    plain = json.loads(json.dumps(plain_status(status)))
    assert set(plain) == {field.name for field in dataclasses.fields(KINDS[name])}
    assert status_of(plain) == status


def test_overview_round_trips_through_json():
    components = tuple(dataclasses.replace(filled(kind), kind=name) for name, kind in KINDS.items())
    overview = Overview(
        **{
            field.name: filled(get_type_hints(Overview)[field.name], number)
            for number, field in enumerate(dataclasses.fields(Overview))
            if field.name != "components"
        },
        components=components,
    )
    assert overview_of(json.loads(json.dumps(plain_overview(overview)))) == overview


def test_unknown_values_are_omitted_in_components_and_null_in_parts():
    subscriber = QueueSubscriber(subscriber="apply_x", source="a")
    plain = plain_status(QueueStatus(name="queue:q", kind="queue", subscribers=(subscriber,)))
    assert "rows_per_s" not in plain
    assert (plain["subscribers"][0]["gone_scn"], plain["rows"]) == (None, 0)
    assert (
        plain_overview(Overview(topology="t", state="RUNNING", flows=(Flow(apply="x", source="a", destination="b"),)))[
            "flows"
        ][0]["lag_s"]
        is None
    )


def test_unreachable_component_has_no_figures():
    away = ComponentStatus(name="queue:q", kind="queue", site="a", state="UNREACHABLE", problem="no answer")
    assert status_of(plain_status(away)) == away


def test_status_of_another_version_is_read_as_far_as_possible():
    later = status_of({"name": "queue:q", "kind": "queue", "rows": 3, "invented_later": 1, "subscribers": []})
    assert isinstance(later, QueueStatus)
    assert later.rows == 3
    earlier = {"name": "queue:q", "kind": "queue", "state": "ENABLED", "subscribers": [{"lost": [40, 10, 5]}]}
    assert status_of(earlier) == ComponentStatus(name="queue:q", kind="queue", state="ENABLED")
    damaged = {"name": "queue:q", "kind": "queue", "state": "ENABLED", "errors_total": "none"}
    assert status_of(damaged) == ComponentStatus(name="queue:q", kind="queue", state="ENABLED")
    assert status_of({}) == ComponentStatus(name="")


def test_status_parts_are_read_by_their_field_types():
    status = status_of(
        {
            "name": "apply:x",
            "kind": "apply",
            "last_error": {"message": "no room"},
            "instantiation": [{"owner": "hr", "name": "jobs", "state": "FAILED"}],
        }
    )
    assert isinstance(status, ApplyStatus)
    assert status.last_error == Failure(message="no room")
    assert [(table.owner, table.name, table.state) for table in status.instantiation] == [("hr", "jobs", "FAILED")]
