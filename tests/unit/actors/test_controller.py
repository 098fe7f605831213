"""The controller, step by step, over fake actors and sites; its edits are in `test_controller_edits`.

Longer than 500 lines: all of it shares the controller over fake actors.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.control.observation import gather
from actors.controller import CONTROLLER, Controller, fingerprint_of
from headrace.base.clock import VirtualClock
from headrace.base.errors import ConfigError, DatabaseError, DatabaseUnavailable, PropagationError
from headrace.databases.ports import CapturedTable, DomainColumn, Finding, TableShape
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import (
    EVERYTHING,
    call_again,
    captured,
    started,
)
from topology.edits.changes import components_of
from topology.file.reading import read_topology
from topology.spec import DatabaseSpec


def test_counters_of_a_component_become_rates_until_it_restarts(spec, actors):
    clock = VirtualClock()
    controller = started(spec, actors, clock=clock)
    for rows, read_bytes in ((1000, 0), (1100, 4096)):
        actors.statuses["apply:x"] = {"rows_total": rows, "transactions_total": rows // 10}
        actors.statuses["capture:c"] = {"bytes_total": read_bytes}
        clock.advance(2.0)
        controller.step()

    def shown(name):
        return next(component for component in controller.overview()["components"] if component["name"] == name)

    assert (shown("apply:x")["rows_per_s"], shown("apply:x")["transactions_per_s"]) == (50.0, 5.0)
    assert shown("capture:c")["bytes_per_s"] == 2048.0
    actors.statuses["apply:x"] = {"rows_total": 7, "transactions_total": 1}
    clock.advance(2.0)
    controller.step()
    assert "rows_per_s" not in shown("apply:x"), "its counters restarted"


def test_databases_are_prepared_before_anything_streams(spec, actors):
    controller = Controller(spec, actors=actors)
    controller.open()
    controller.step()
    assert set(actors.running) == {"site:a", "site:b"}
    for _ in range(5):
        controller.step()
    assert actors.prepared == ["site:a", "site:b"]
    assert set(actors.running) == EVERYTHING
    assert controller.overview()["statements"]["site:a"] == ["CREATE something AT site:a"]


def test_setup_waits_for_every_site(spec, actors):
    actors.statuses["site:b"] = {"ready": False}
    started(spec, actors)
    assert not actors.prepared
    actors.statuses["site:b"] = {"ready": True}
    started(spec, actors)
    assert actors.prepared == ["site:a", "site:b"]


def test_refused_preflight_creates_nothing_and_is_shown(spec, actors):
    actors.findings["site:a"] = (Finding(path="sites.a", problem="wal_level is replica", fix="ALTER SYSTEM ..."),)
    controller = started(spec, actors)
    assert controller.detail_state() == "REFUSED"
    assert not actors.prepared
    assert set(actors.running) == {"site:a", "site:b"}
    assert controller.overview()["findings"][0]["problem"] == "wal_level is replica"

    actors.findings.clear()
    call_again(controller)
    for _ in range(4):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert controller.overview()["findings"] == []


def test_one_database_under_two_names_is_refused_before_preparation(spec, actors):
    actors.identities = {"site:a": "postgres 1 5 0", "site:b": "postgres 1 5 0"}
    controller = started(spec, actors)
    assert controller.detail_state() == "REFUSED"
    assert not actors.prepared
    (found,) = controller.overview()["findings"]
    assert (found["path"], found["problem"]) == ("sites.b", "is the same database as sites.a, under another name")


def table(owner: str, name: str) -> TableVersion:
    return TableVersion(object_number=1, version=1, owner=owner, name=name, columns=(), old_image=OldImage.KEY)


def test_arriving_tables_are_compared_with_the_destinations(spec, actors):
    actors.versions = (table("public", "t"), table("private", "u"))
    actors.table_findings["site:b"] = (
        Finding(path="sites.b table public.t", problem="is missing", fix="CREATE TABLE"),
    )
    controller = started(spec, actors)
    assert actors.compared[0] == ("site:b", ("t",))
    assert controller.detail_state() == "REFUSED"
    assert not actors.prepared


def test_destination_is_asked_about_ddl_of_its_tables_alone(spec, actors):
    actors.versions = (table("public", "t"), table("private", "u"))
    started(spec, actors)
    assert not {("site:a", "release"), ("site:b", "preflight_ddl")} & {*actors.calls}, "no rule takes DDL"
    (capture,) = spec.captures
    rules = RuleSet(include=(Rule(owner="public", ddl=True), Rule(owner="private")))
    actors.ddl_findings["site:b"] = (Finding(path="sites.b", problem="may not act as the owner", fix="GRANT"),)
    controller = started(replace(spec, captures=(replace(capture, rules=rules),)), actors)
    assert actors.asked_of_ddl[0] == ((TableName("public", "t"),), 18)
    assert controller.detail_state() == "REFUSED"


def test_domains_are_compared_before_anything_is_prepared(spec, actors):
    actors.versions = (table("public", "t"),)
    below = (DomainColumn(name="v", domain="public.price", base_type="pg_catalog.numeric", modifier=-1),)
    actors.domains = (
        TableShape(owner="public", name="t", domains=below),
        TableShape(owner="private", name="u", domains=below),
    )
    started(spec, actors)
    assert actors.compared_domains[0] == (TableShape(owner="public", name="t", domains=below),)


def test_tables_are_compared_by_identity_so_a_renamed_one_is_recognised(spec, actors):
    actors.versions = (table("public", "t2"),)
    actors.captured["site:a"] = (CapturedTable(identity="id of t", owner="public", name="t2", object_numbers=(1,)),)
    started(spec, actors)
    assert actors.identified[0] == {TableName("public", "t2"): "id of t"}
    assert actors.named_at_source[0] == {TableName("public", "t2"): TableName("public", "t2")}


def test_no_edit_forgets_a_masked_column_until_the_table_has_a_rule_of_its_own(tmp_path, actors, monkeypatch):
    """The fix, as printed, for a rule of a schema: other tables keep their mask and are not copied anew."""
    call = actors.call
    monkeypatch.setattr(actors, "call", lambda n, m, *a, **more: 500 if m == "write_marker" else call(n, m, *a, **more))

    def having(*names):
        columns = tuple(Column(name=name, type_name="pg_catalog.text") for name in names)
        return (replace(table("public", "t"), columns=columns),)

    def started_with(*rules, parallelism=2):
        (tmp_path / "t.yaml").write_text(f"""
topology: t
state_dir: state
sites: {{a: {{database: {{kind: embedded}}}}, b: {{database: {{kind: embedded}}}}}}
queues: {{qa: {{site: a}}, qb: {{site: b}}}}
captures: {{c: {{site: a, source: a, queue: qa, rules: {{include: [{", ".join(rules)}]}}}}}}
propagations: {{p: {{from: qa, to: qb, rules: {{include: [{{schema: public}}]}}}}}}
applies: {{x: {{site: b, source: a, queue: qb, parallelism: {parallelism}, rules: {{include: [{{schema: public}}]}}}}}}
""")
        return started(read_topology(tmp_path / "t.yaml"), actors, steps=12)

    mask = "transform: [{delete_columns: [salary]}]"
    actors.versions = having("id", "salary")
    assert started_with(f"{{schema: public, {mask}}}", parallelism=1).detail_state() == "RUNNING"
    actors.versions = having("id", "pay")
    for _ in range(2):
        controller = started_with(f"{{schema: public, {mask}}}")
        assert controller.detail_state() == "REFUSED"
        found = controller.overview()["findings"][0]
        assert "public.t has no column salary any more, which captures.c.rules.include[0] names" in found["problem"]
    condition = "object_name <> 't'"
    assert condition in found["fix"]
    others = f'{{schema: public, condition: "{condition}", {mask}}}'
    controller = started_with(others)
    assert controller.detail_state() == "RUNNING", str(controller.overview()["findings"])
    actors.statuses["apply:x"] = {"low_watermark_scn": 10_000, "told_scn": 10_000}
    controller = started_with(others, "{table: public.t, transform: [{delete_columns: [pay]}]}")
    assert controller.detail_state() == "RUNNING", str(controller.overview()["findings"])


def test_warnings_of_the_preflight_do_not_stop_it(spec, actors):
    actors.findings["site:b"] = (Finding(path="sites.b", problem="few connections", fix="raise", is_error=False),)
    controller = started(spec, actors)
    assert controller.detail_state() == "RUNNING"
    assert len(controller.overview()["findings"]) == 1


def test_table_written_at_two_sites_without_logged_old_values_is_warned_of(tmp_path, actors):
    file = tmp_path / "both.yaml"
    file.write_text("""
topology: both
state_dir: state
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{schemas: [public], between: [a, b]}]
""")
    columns = (
        Column(name="id", type_name="pg_catalog.int4", is_key=True),
        Column(name="v", type_name="pg_catalog.int4"),
    )
    actors.versions = (replace(table("public", "t"), columns=columns),)
    controller = started(read_topology(file), actors)
    assert controller.detail_state() == "RUNNING"
    found = controller.overview()["findings"]
    assert [(each["path"].rpartition(" ")[2], each["is_error"]) for each in found] == [("public.t", False)] * 2
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in found[0]["fix"]


def test_component_that_ray_gave_up_on_is_recreated(spec, actors):
    controller = started(spec, actors)
    del actors.running["queue:qb"]
    controller.step()
    assert "queue:qb" in actors.running
    assert actors.created.count("queue:qb") == 2


def test_restarted_controller_does_not_prepare_again(spec, actors):
    started(spec, actors)
    actors.prepared.clear()
    controller = started(spec, actors, steps=1)
    assert controller.detail_state() == "RUNNING"
    assert not actors.prepared


def test_damaged_record_is_not_taken_for_a_missing_one(spec, actors):
    started(spec, actors)
    (spec.state_dir / "desired.json").write_text('{"prepared": "', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"desired\.json is damaged"):
        started(spec, actors)


def test_controller_that_cannot_begin_shows_why_and_the_running_components(spec, actors):
    started(spec, actors)
    (spec.state_dir / "desired.json").write_text('{"prepared": "', encoding="utf-8")
    controller = Controller(spec, actors=actors)
    controller._attempt(controller._run_once)
    seen = controller.overview()
    assert (seen["state"], seen["problem"].partition(": ")[0]) == (
        "ABORTED",
        f"{spec.state_dir / 'desired.json'} is damaged",
    )
    assert "headrace up" in seen["fix"]
    assert {each["name"]: (each["state"], each["outdated"]) for each in seen["components"]} == dict.fromkeys(
        EVERYTHING, ("ENABLED", False)
    )
    assert seen["at_us"] > 0
    for ask in (controller.split, controller.merge):
        with pytest.raises(PropagationError, match="has not begun yet"):
            ask("p")


def test_new_tables_are_prepared_and_copied_by_another_up(spec, actors):
    controller = started(spec, actors)
    actors.prepared.clear()
    actors.uncaptured["site:a"] = ("public.new",)
    actors.calls.clear()
    call_again(controller)
    for _ in range(5):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.prepared == ["site:a", "site:b"]
    assert actors.calls.index(("apply:x", "end")) < actors.calls.index(("site:a", "prepare"))
    assert actors.created.count("apply:x") == 2
    assert actors.created.count("capture:c") == 1
    assert set(actors.running) == EVERYTHING


def test_running_state_excludes_an_apply_process_ended_for_new_tables(spec, actors):
    """`up` waits for the copies that the apply process reports: the report must be the new process's."""
    controller = started(spec, actors)
    actors.uncaptured["site:a"] = ("public.new",)
    call_again(controller)
    controller.step()
    while controller.detail_state() != "RUNNING":
        controller.step()
    (apply,) = (component for component in controller.overview()["components"] if component["name"] == "apply:x")
    assert apply["state"] == "UNREACHABLE"
    assert not apply.get("ready", False)


def test_another_up_changes_nothing_without_a_new_table(spec, actors):
    controller = started(spec, actors)
    actors.prepared.clear()
    call_again(controller)
    controller.step()
    assert controller.detail_state() == "RUNNING"
    assert not actors.prepared
    assert not actors.killed


def test_components_keep_running_when_new_tables_are_refused(spec, actors):
    controller = started(spec, actors)
    actors.uncaptured["site:a"] = ("public.t",)
    actors.versions = (table("public", "t"),)
    actors.table_findings["site:b"] = (
        Finding(path="sites.b table public.t", problem="is missing", fix="CREATE TABLE"),
    )
    call_again(controller)
    for _ in range(4):
        controller.step()
    assert controller.detail_state() == "REFUSED"
    assert not actors.killed
    del actors.running["queue:qb"]
    controller.step()
    assert set(actors.running) == EVERYTHING
    assert {component["state"] for component in controller.overview()["components"]} == {"ENABLED"}

    actors.table_findings.clear()
    call_again(controller)
    for _ in range(4):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.uncaptured == {}


def test_new_tables_are_not_forgotten_when_the_controller_reopens(spec, actors):
    controller = started(spec, actors)
    actors.uncaptured["site:a"] = ("public.new",)
    call_again(controller)
    controller.open()  # as after an error in between
    for _ in range(5):
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert actors.uncaptured == {}


def five_steps(controller):
    for _ in range(5):
        controller.step()


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (PropagationError("site:a does not answer"), False),
        (DatabaseUnavailable("the connection broke"), False),
        (DatabaseUnavailable("a table is locked", sqlstate="55P03"), True),
    ],
)
def test_apply_process_begins_between_attempts_only_if_the_first_has_ended(spec, actors, monkeypatch, error, begins):
    """An attempt that still runs can capture a table that the apply process would not know:
    tests/integration/actors/test_interrupted_preparation.py.
    """
    controller = started(spec, actors)
    actors.uncaptured["site:a"] = ("public.new",)
    answer = FakeActors.call

    def call(name, method, *arguments, timeout_s=5.0):
        if (name, method) == ("site:a", "prepare"):
            raise error
        return answer(actors, name, method, *arguments, timeout_s=timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(actors, "call", call)
        call_again(controller)
        for attempt, again in enumerate((controller, controller, Controller(spec, actors=actors))):
            if attempt:
                again.open()
                call_again(again)
            actors.created.clear()
            with pytest.raises(type(error)):
                five_steps(again)
            assert "apply:x" not in actors.running
            assert ("apply:x" in actors.created) == (begins and attempt > 0)
        controller = again
        controller.open()
    actors.uncaptured.clear()  # the interrupted attempt came to its end
    actors.prepared.clear()
    five_steps(controller)
    assert (controller.detail_state(), set(actors.running)) == ("RUNNING", EVERYTHING)
    assert actors.prepared == ([] if begins else ["site:a", "site:b"])
    assert not json.loads((spec.state_dir / "desired.json").read_text())["unseen"]


def test_call_during_preparation_is_settled_by_another_look(spec, actors, monkeypatch):
    """A slot can wait an hour: tables are created meanwhile, and `up` is called for them."""
    controller = Controller(spec, actors=actors)
    prepared = FakeActors.call

    def call(name, method, *arguments, timeout_s=5.0):
        found = prepared(actors, name, method, *arguments, timeout_s=timeout_s)
        if (name, method) == ("site:b", "prepare") and len(actors.prepared) == 2:
            controller.retry("second")
            actors.uncaptured["site:a"] = ("public.new",)
        return found

    monkeypatch.setattr(actors, "call", call)
    controller.retry("first")
    controller.open()
    while controller.overview()["calls"]["first"] != "settled":
        controller.step()
    assert controller.detail_state() == "RUNNING"
    assert controller.overview()["calls"] == {"first": "settled", "second": "asked"}
    for _ in range(4):
        controller.step()
    assert actors.uncaptured == {}
    assert actors.prepared == ["site:a", "site:b"] * 2
    assert controller.overview()["calls"] == {"first": "settled", "second": "settled"}


def test_table_created_while_everything_is_down_is_captured_by_the_next_up(spec, actors):
    started(spec, actors)
    actors.running.clear()
    actors.uncaptured["site:a"] = ("public.new",)
    controller = Controller(spec, actors=actors)
    controller.open()
    controller.retry("up")
    for _ in range(6):
        controller.step()
    assert controller.overview()["calls"] == {"up": "settled"}
    assert actors.uncaptured == {}


def test_first_capture_process_begins_after_the_receivers_are_recorded(spec, actors, monkeypatch):
    """Without a record no rename is recognised: the rows of a table renamed right away, behind narrower rules, would be
    skipped silently.
    """
    actors.captured["site:a"] = captured("t")
    call, refused = actors.call, list[Any]()

    def away_for_a_moment(name, method, *arguments, timeout_s=5.0):
        if method == "note_receivers" and len(refused) < 3:
            refused.append(name)
            raise PropagationError(f"{name} does not answer")
        return call(name, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(actors, "call", away_for_a_moment)
    controller = started(spec, actors, steps=1)
    for _ in range(10):
        with contextlib.suppress(PropagationError):
            controller.step()
    assert len(refused) == 3
    assert actors.calls.index(("site:a", "note_receivers")) < actors.calls.index(("capture:c", "create"))


def test_table_renamed_during_preparation_is_recorded_by_its_examined_name(spec, actors):
    """Creating a slot waits for every running transaction."""
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    narrow = replace(spec, propagations=tuple(replace(each, rules=rules) for each in spec.propagations))
    actors.versions = (table("public", "t"), replace(table("public", "v"), object_number=2))
    renamed = CapturedTable(identity="id of t", owner="public", name="u", object_numbers=(1,))
    other = CapturedTable(identity="id of v", owner="public", name="v", object_numbers=(2, 1))
    actors.captured["site:a"] = (renamed, other)
    started(narrow, actors)
    assert [each.name for each in actors.noted["site:a"].tables] == ["t", "v"]
    assert actors.noted["site:a"].is_strayed(renamed)


def test_table_renamed_after_preparation_is_recorded_by_its_prepared_name(spec, actors):
    actors.captured["site:a"] = captured("t")
    started(spec, actors)
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    changed = replace(spec, propagations=tuple(replace(each, rules=rules) for each in spec.propagations))
    actors.holds_back.add("propagation:p")
    started(changed, actors, steps=10)
    (renamed,) = captured("t")
    actors.captured["site:a"] = (replace(renamed, name="u"),)
    actors.holds_back.clear()
    started(changed, actors, steps=2)  # also by a restarted controller
    assert actors.noted["site:a"].is_strayed(replace(renamed, name="u"))
    assert actors.kept == {"x": ("id of t",)}, "the table has not left: the capture process waits for an operator"


def test_receivers_are_recorded_when_everything_runs_or_later_if_absent(spec, actors):
    """A capture process that got the new rules early would pass changes that an old propagation still drops."""
    actors.captured["site:a"] = captured("t", "u")
    controller = started(spec, actors)
    assert [table.name for table in actors.noted["site:a"].tables] == ["t", "u"]
    rules = RuleSet(include=(Rule(owner="public", name="t"),))
    changed = replace(spec, propagations=tuple(replace(each, rules=rules) for each in spec.propagations))
    actors.noted.clear()
    actors.holds_back.add("propagation:p")
    controller = started(changed, actors, steps=10)
    assert actors.noted == {}
    actors.holds_back.clear()
    actors.calls.clear()
    actors.silent.add("site:b")
    controller.step()
    assert actors.noted == {}
    actors.silent.clear()
    controller = started(changed, actors, steps=2)  # a controller that died meanwhile completes it
    assert actors.noted["site:a"].lost_by("id of u", "public", "u") == ()
    assert actors.noted["site:a"].lost_by("id of t", "public", "u") == ("x",)
    assert actors.calls.index(("site:b", "leave_out")) < actors.calls.index(("site:a", "note_receivers"))
    assert actors.kept == {"x": ("id of t",)}
    actors.noted.clear()
    controller.step()
    assert started(changed, actors, steps=2).detail_state() == "RUNNING"
    assert actors.noted == {}


def test_controller_never_ends_itself(spec, actors):
    actors.running[CONTROLLER] = {"fingerprint": "?"}
    started(spec, actors)
    assert CONTROLLER in actors.running


def test_connection_string_is_part_of_the_fingerprint_and_never_shown(spec):
    sites = (replace(spec.sites[0], database=DatabaseSpec(kind="postgres", dsn="password=x")), spec.sites[1])
    with_x = replace(spec, sites=sites)
    with_y = replace(
        spec, sites=(replace(sites[0], database=DatabaseSpec(kind="postgres", dsn="password=y")), sites[1])
    )
    assert "password" not in repr(with_x)
    assert fingerprint_of(with_x) != fingerprint_of(with_y)


def test_dead_component_is_shown_as_unreachable(spec, actors):
    controller = started(spec, actors)
    actors.silent.add("capture:c")
    controller.step()
    shown = {component["name"]: component for component in controller.overview()["components"]}
    assert shown["capture:c"]["state"] == "UNREACHABLE"
    assert "does not answer" in shown["capture:c"]["problem"]
    assert shown["queue:qa"]["state"] == "ENABLED"


def test_actors_run_on_their_sites_nodes_with_the_environment(spec, actors):
    started(spec, actors)
    assert actors.running["apply:x"]["node"] == {"site_b": 1.0}
    assert actors.running["capture:c"]["node"] == {}
    assert set(actors.environments["queue:qa"]) == {"E"}


def test_recreated_component_gets_its_own_environment(spec, actors):
    controller = started(spec, actors)
    controller.recreate("capture:c", {"F": "2"})
    controller.step()
    assert actors.environments["capture:c"] == {"E": "1", "F": "2"}
    assert actors.created.count("capture:c") == 2
    assert actors.processes["capture:c"] == "recreated:capture:c"
    controller.recreate("capture:c", {"F": ""})
    controller.step()
    assert actors.processes["capture:c"] == "captures:a"


def test_components_of_one_kind_at_a_site_share_a_process(spec, actors):
    started(spec, actors)
    assert {name: process for name, process in actors.processes.items() if process != name} == {
        "queue:qa": "staging:a",
        "propagation:p": "staging:a",
        "queue:qb": "staging:b@site_b=1",
        "capture:c": "captures:a",
        f"apply:{spec.applies[0].name}": "applies:b@site_b=1",
    }


def flow(controller: Controller) -> dict[str, Any]:
    return dict(controller.overview()["flows"][0])


def sampled(scn: int, at_us: int) -> dict[str, object]:
    return {"source_scn": scn, "source_samples": [[at_us, scn]]}


def test_lag_is_unknown_until_it_is_proven(spec, actors):
    controller = started(spec, actors)
    assert flow(controller)["lag_s"] is None
    actors.statuses["site:a"] = sampled(100, controller._clock.time_us())
    controller.step()
    assert flow(controller)["lag_s"] is None  # the apply process has not reported its position
    assert flow(controller)["scn_gap"] is None


def test_lag_is_the_age_of_the_newest_applied_position(spec, actors):
    controller = started(spec, actors)
    now_us = controller._clock.time_us()
    actors.statuses["site:a"] = sampled(100, now_us - 20_000_000)
    actors.statuses["apply:x"] = {"low_watermark_scn": 150}
    controller.step()
    actors.statuses["site:a"] = sampled(200, now_us - 1_000_000)
    controller.step()
    shown = flow(controller)
    assert shown["lag_s"] == pytest.approx(20, abs=1)
    assert shown["scn_gap"] == 50


def test_lag_counts_to_when_the_apply_process_reported_its_position(spec, actors):
    controller = started(spec, actors)
    now_us = controller._clock.time_us()
    samples = [[now_us - 2_000_000 + place * 100_000, place] for place in range(10)]
    actors.statuses["site:a"] = {"source_scn": 9, "source_samples": samples}
    actors.statuses["apply:x"] = {"low_watermark_scn": 7, "answered_us": samples[7][0] + 50_000}
    controller.step()
    assert flow(controller)["lag_s"] == pytest.approx(0.05)


def test_lag_grows_when_the_apply_process_stops_reporting(spec, actors):
    controller = started(spec, actors)
    now_us = controller._clock.time_us()
    actors.statuses["site:a"] = sampled(100, now_us - 60_000_000)
    actors.statuses["apply:x"] = {"low_watermark_scn": 100, "answered_us": now_us - 59_900_000}
    controller.step()
    assert flow(controller)["lag_s"] >= 60


def test_lag_grows_when_the_source_is_dead(spec, actors):
    controller = started(spec, actors)
    now_us = controller._clock.time_us()
    actors.statuses["site:a"] = sampled(100, now_us - 60_000_000)
    actors.statuses["apply:x"] = {"low_watermark_scn": 100, "answered_us": now_us}
    controller.step()
    actors.silent.add("site:a")
    controller.step()
    assert flow(controller)["lag_s"] >= 60
    assert flow(controller)["source_scn"] is None


def test_scn_gap_is_unknown_when_the_source_does_not_answer(spec, actors):
    controller = started(spec, actors)
    actors.statuses["site:a"] = sampled(0, 1) | {"state": "DATABASE DOES NOT ANSWER"}
    actors.statuses["apply:x"] = {"low_watermark_scn": 100}
    controller.step()
    assert flow(controller)["scn_gap"] is None


def test_gather_keeps_the_order_of_the_components(spec, actors):
    started(spec, actors)
    components = components_of(spec)
    assert [status.name for status in gather(actors, components)] == [component.name for component in components]


def test_apply_process_is_not_idle_while_its_destination_does_not_answer(spec, actors):
    controller = started(spec, actors)
    actors.statuses |= {"site:b": {"state": "DATABASE DOES NOT ANSWER", "ready": False}, "apply:x": {"state": "IDLE"}}
    controller.step()
    states = {component["name"]: component["state"] for component in controller.overview()["components"]}
    assert states["apply:x"] == "WAITING FOR DATABASE"
    actors.statuses["apply:x"] = {"state": "DISABLED"}
    controller.step()
    assert {c["name"]: c["state"] for c in controller.overview()["components"]}["apply:x"] == "DISABLED"


def test_sites_are_asked_while_a_database_is_prepared(spec, actors):
    controller = Controller(spec, actors=actors)
    controller.open()
    controller.step()
    seen: list[object] = []

    def call(name: str, method: str, *arguments: object, timeout_s: float = 5.0) -> object:
        if method == "prepare":
            actors.statuses["site:a"] = {"held_up_by": ["the open transaction of pid 7"]}
            seen.append(controller.overview()["components"][0].get("held_up_by"))
        return FakeActors.call(actors, name, method, *arguments, timeout_s=timeout_s)

    actors.call = call
    for _ in range(5):
        controller.step()
    assert seen[0] == ["the open transaction of pid 7"]


def test_overview_shows_why_the_controller_is_held_up(spec, actors):
    controller = started(spec, actors)
    assert controller.overview()["problem"] == ""
    controller._failed(DatabaseError("publication p is not ours", hint="drop it"))
    seen = controller.overview()
    assert (seen["state"], seen["problem"], seen["fix"]) == ("ABORTED", "publication p is not ours", "drop it")


def test_overview_has_the_function_versions_of_each_component(tmp_path: Path) -> None:
    spec = read_topology(Path(__file__).parents[3] / "examples" / "functions.yaml")
    controller = started(replace(spec, state_dir=tmp_path), FakeActors())
    found = {each["name"]: each["functions"] for each in controller.overview()["components"] if "functions" in each}
    assert {name: sorted(functions) for name, functions in found.items()} == {
        "capture:capture_shop": ["masks:pseudonym", "masks:without_internal"]
    }
    assert {len(version) for functions in found.values() for version in functions.values()} == {12}
