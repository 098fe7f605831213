"""SCNs of capture and apply processes: shown, set in the file, and missing redo for a capture process that moves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from actors.apply import ApplyHost
from protos import apply_pb2 as pb
from tests.support.actors.controllers import started
from topology.routing.ways import route
from topology.spec import ApplySpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec


def findings(controller):
    return [f"{found['path']}: {found['problem']}" for found in controller.overview()["findings"]]


def test_first_and_start_scn_are_shown_with_their_capture_process(spec, actors):
    actors.statuses["capture:c"] = {"source": "a", "site": "a", "captured_scn": 90}
    actors.statuses["site:a"] = {"captures": {"c": {"first_scn": 10, "start_scn": 20}}}
    controller = started(spec, actors)
    controller.step()
    (shown,) = [each for each in controller.overview()["components"] if each["name"] == "capture:c"]
    assert (shown["first_scn"], shown["start_scn"], shown["captured_scn"]) == (10, 20, 90)


def test_scns_of_the_file_below_available_redo_are_refused(spec, actors):
    (capture,) = spec.captures
    actors.oldest["site:a"] = 50
    controller = started(replace(spec, captures=(replace(capture, first_scn=40, start_scn=60),)), actors)
    assert findings(controller) == [
        "captures.c.first_scn: is 0/00000028, and the redo of a that it would mine begins at 0/00000032"
    ]
    actors.oldest.clear()
    controller = started(replace(spec, captures=(replace(capture, start_scn=60),)), actors)
    assert findings(controller) == [
        "captures.c.start_scn: is 0/0000003C, and the redo of a that it would mine has not begun"
    ]


def test_changed_scn_of_a_running_capture_process_names_the_command(spec, actors):
    started(spec, actors)
    (capture,) = spec.captures
    controller = started(replace(spec, captures=(replace(capture, start_scn=60),)), actors)
    (found,) = controller.overview()["findings"]
    assert found["path"] == "captures.c.start_scn"
    assert found["fix"].endswith("run `headrace capture FILE c --start-scn 0/0000003C`")


def with_receiver(spec):
    """`c` mines at a; `d` already mines the redo of a at b, for another destination."""
    (capture,) = spec.captures
    return route(
        replace(
            spec,
            sites=(*spec.sites, SiteSpec(name="e", database=DatabaseSpec(kind="embedded"))),
            queues=(*spec.queues, QueueSpec(name="qd", site="b"), QueueSpec(name="qe", site="e")),
            captures=(capture, replace(capture, name="d", site="b", queue="qd")),
            propagations=(*spec.propagations, PropagationSpec(name="p2", from_queue="qd", to_queue="qe")),
            applies=(*spec.applies, ApplySpec(name="y", site="e", source="a", queue="qe")),
        )
    )


def moved(spec):
    """`with_receiver` with `c` moved to b."""
    return route(
        replace(
            spec,
            captures=tuple(replace(each, site="b", queue="qb") if each.name == "c" else each for each in spec.captures),
            propagations=tuple(each for each in spec.propagations if each.name != "p"),
        )
    )


def test_move_of_capture_process_to_redo_that_begins_too_late_is_refused(spec, actors):
    before = with_receiver(spec)
    started(before, actors, steps=12)
    assert "redo:a@b" in actors.running
    actors.oldest |= {"redo:a@b": 500, "site:a": 100}
    actors.statuses["apply:x"] = {"low_watermark_scn": 600, "recorded_scn": 300}
    controller = started(moved(before), actors)
    (found,) = findings(controller)
    assert found.startswith(
        "captures.c: would mine the redo of a at b, which begins at SCN 0/000001F4, and apply process x has applied"
        " only up to 0/0000012C: the changes in between"
    )
    assert controller.details().phase == "REFUSED"
    actors.statuses["apply:x"] = {"low_watermark_scn": 600, "recorded_scn": 500}
    assert findings(started(moved(before), actors, steps=12)) == []


def test_move_of_capture_process_to_a_new_receiver_is_accepted(spec, actors):
    started(spec, actors, steps=12)
    actors.oldest |= {"site:a": 100}
    actors.statuses["apply:x"] = {"low_watermark_scn": 600, "recorded_scn": 300}
    assert findings(started(moved(spec), actors)) == []


def test_apply_process_reports_the_scn_recorded_at_its_destination(spec):
    host = ApplyHost(spec, "x", "1")
    assert host.details().recorded_scn is None
    said = pb.ApplyStatus(state="IDLE", low_watermark_scn=48, counters={"durable_scn": 32})
    driver: Any = SimpleNamespace(outcome=lambda: None, control=SimpleNamespace(status=lambda: said), admission=None)
    host._driver = driver
    host.step()
    assert (host.details().low_watermark_scn, host.details().recorded_scn) == (48, 32)
