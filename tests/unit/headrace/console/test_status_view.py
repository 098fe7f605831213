"""The status for people: what is stuck, how to fix it, and when nothing is wrong."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from headrace.console.status_view import (
    copying_line,
    holding_notes,
    is_healthy,
    notes,
    render,
    stuck_notes,
    summary_line,
)
from headrace.status.applies import ApplyStatus, TableCopy
from headrace.status.component import ComponentStatus
from headrace.status.overview import Flow, FoundProblem, Overview, SplitStream
from tests.support.actors.overviews import component_status

ALTER = 'ALTER TABLE "hr"."jobs" ADD COLUMN "prio" int4;'
ERROR = {"error": "DriverEnded", "message": "the Spark application did not start: no room", "hint": "make room"}


def component(state: str, name: str = "apply:x", **facts: Any) -> ComponentStatus:
    return component_status(name, state, **facts)


def overview(*components: ComponentStatus, state: str = "RUNNING", **facts: Any) -> Overview:
    return Overview(topology="t", state=state, components=components, **facts)


STUCK = {
    "stopped": (component("DISABLED", enabled=False), "is stopped", "headrace start FILE apply:x"),
    "gave up": (component("ABORTED", last_error=ERROR), ERROR["message"], ERROR["hint"]),
    "waits for an ALTER": (
        component("PAUSED: WAITING FOR ALTER", detail="table hr.jobs does not fit", hint=ALTER),
        "table hr.jobs does not fit",
        ALTER,
    ),
    "waits for room": (component("PAUSED: DISK IS FULL", problem="no space left"), "no space left", ""),
    "cannot copy a table": (
        component(
            "INITIALIZING",
            instantiation=[{"owner": "hr", "name": "jobs", "state": "FAILED", "rows": 0, "problem": "not empty"}],
        ),
        "table hr.jobs: not empty",
        "correct it: the table is checked again every few seconds; the others are applied meanwhile",
    ),
}


@pytest.mark.parametrize(("facts", "problem", "fix"), STUCK.values(), ids=STUCK.keys())
def test_component_that_needs_an_operator_is_shown_with_its_fix(facts: ComponentStatus, problem: str, fix: str):
    (note,) = notes(overview(facts))
    assert (note.component, note.problem, note.fix, note.is_stuck) == ("apply:x", problem, fix, True)


PASSES = {
    "tried again": component("RETRYING", last_error=ERROR),
    "error queue": component("APPLYING", errors=2),
    "new tables": component("IDLE", "site:a", uncaptured_tables=["hr.new"]),
    "columns that a transformation names": component(
        "IDLE", "site:a", lost_columns=["email of hr.people (capture_hr)"]
    ),
    "users' changes that the source refuses": component(
        "IDLE", "site:a", refused_changes=[{"table": "table hr.t", "problem": "x", "fix": "ALTER TABLE"}]
    ),
    "rule without a table": component("ENABLED", "capture:c", unmatched_rules=["hr.x"]),
    "definition without a table": component("APPLYING", missing_tables=["hr.x"]),
    "DDL that is not replicated": component("IDLE", source="a", counters={"ddl_not_applied": 2}),
    "DDL that was not recorded": component(
        "ENABLED", "capture:c", source="a", ddl_failed_total=1, last_failed_ddl="ALTER TABLE (42501)"
    ),
}


@pytest.mark.parametrize("facts", PASSES.values(), ids=PASSES.keys())
def test_problem_that_holds_up_nothing_is_shown_as_not_stuck(facts: ComponentStatus):
    (note,) = notes(overview(facts))
    assert not note.is_stuck


def test_ddl_that_did_not_arrive_is_counted_and_says_where_it_is_listed():
    (applied,) = notes(overview(component("IDLE", site="b", source="a", counters={"ddl_not_applied": 2})))
    assert applied.problem.startswith("2 DDL statements of a not applied at b since the apply process started")
    assert applied.fix.startswith("look at headrace.dba_ddl_not_applied at b, which has each one and the reason")
    (recorded,) = notes(overview(PASSES["DDL that was not recorded"]))
    assert recorded.problem == (
        "1 DDL statement of a could not be recorded: no destination gets what changed; the last one: ALTER TABLE (42501)"
    )
    assert recorded.fix.startswith("headrace up FILE; headrace.dba_ddl_not_applied at the destinations then has what")
    assert notes(overview(component("IDLE", source="a", counters={"ddl_not_applied": 0}))) == []


JOB = {"number": 1, "owner": "hr", "name": "jobs", "index": "by_title"}


def test_index_that_is_being_made_is_a_remark_and_one_that_fails_is_not():
    waiting = {**JOB, "state": "WAITING", "since_us": int((time.time() - 600) * 1e6)}
    (note,) = notes(overview(component("IDLE", site="b", ddl_jobs=[waiting])))
    what = "index hr.by_title of hr.jobs, made beside the rows at b,"
    assert note.problem == f"{what} waits for its turn, recorded 10 minutes ago: rows are applied meanwhile"
    assert note.is_remark
    (note,) = notes(overview(component("IDLE", site="b", ddl_jobs=[{**waiting, "state": "RUNNING"}])))
    assert f"{what} is being made" in note.problem
    failed = {**JOB, "state": "FAILED", "problem": "no space left", "fix": "repair the cause; or leave it out: INSERT"}
    (note,) = notes(overview(component("IDLE", site="b", ddl_jobs=[failed])))
    assert (note.problem, note.fix) == (f"{what} failed and is tried again: no space left", failed["fix"])
    assert (note.is_remark, note.is_stuck) == (False, False)
    assert notes(overview(component("IDLE", site="b", ddl_jobs=[{**JOB, "state": "CANCELLED"}]))) == []


def test_ddl_that_was_not_recorded_is_counted_by_the_source_where_it_knows():
    """A capture process counts from its own start, and never hears of a repair."""
    counted = PASSES["DDL that was not recorded"]
    last = {"ddl_failed_total": 2, "last_failed_ddl": "DROP INDEX (55P03)"}
    (note,) = notes(overview(component("IDLE", "site:a", **last), counted))
    assert (note.component, note.problem) == (
        "site:a",
        "2 DDL statements of a could not be recorded: no destination gets what changed; the last one: DROP INDEX (55P03)",
    )
    assert notes(overview(component("IDLE", "site:a", ddl_failed_total=0), counted)) == []
    for unknowing in (component("IDLE", "site:a"), component("IDLE", "site:b", ddl_failed_total=0)):
        (note,) = notes(overview(unknowing, counted))
        assert note.component == "capture:c"


def test_source_that_no_longer_records_ddl_is_told_from_new_tables():
    (table, ddl) = notes(overview(component("IDLE", "site:a", uncaptured_tables=["headrace_ddl.log", "hr.new"])))
    assert table.problem == "created after `up`, and not replicated yet: hr.new"
    assert ddl.problem.startswith("DDL is not recorded, and so not replicated: an event trigger or a function")
    assert ddl.fix.startswith(
        "headrace up FILE; headrace.dba_ddl_not_applied at the destinations then has what changed"
    )
    assert [
        note.problem for note in notes(overview(component("IDLE", "site:a", uncaptured_tables=["headrace_ddl.log"])))
    ] == [ddl.problem]


def test_statement_that_fixes_the_problem_is_shown_once():
    (note,) = notes(overview(component("PAUSED: WAITING FOR ALTER", detail=f"does not fit: {ALTER}", hint=ALTER)))
    assert (note.problem, note.fix) == ("does not fit", ALTER)


def test_table_that_left_is_a_remark_and_not_a_pending_copy():
    tables = tuple(
        TableCopy(owner="hr", name=name, state=state) for name, state in (("t", "DONE"), ("gone", "LEFT OUT"))
    )
    (note,) = notes(overview(ApplyStatus(name="apply:x", state="IDLE", instantiation=tables)))
    assert note.is_remark
    assert "hr.gone" in note.problem
    assert "drop" not in note.fix  # its rows can belong to other replication
    assert copying_line(tables) == ""


def test_table_with_kept_rows_is_a_remark_and_not_a_pending_copy():
    tables = tuple(
        TableCopy(owner="hr", name=name, state=state) for name, state in (("t", "DONE"), ("restored", "KEPT"))
    )
    (note,) = notes(overview(ApplyStatus(name="apply:x", state="IDLE", instantiation=tables)))
    assert note.is_remark
    assert note.problem == "not copied, their rows were kept as they were: hr.restored"
    assert "headrace verify" in note.fix
    assert copying_line(tables) == ""


def test_past_error_is_not_shown():
    assert notes(overview(component("APPLYING", last_error=ERROR, errors_total=1, enabled=True))) == []


@pytest.mark.parametrize("state", ["ABORTED", "UNREACHABLE", "RETRYING", "NOT CREATED", "PAUSED: WAITING FOR ALTER"])
def test_topology_with_a_broken_component_is_not_healthy(state: str):
    assert is_healthy(overview(component("IDLE")))
    assert not is_healthy(overview(component("IDLE"), component(state)))


WAITS = {
    "for an answer to its errors": component("APPLYING", errors=2),
    "to be told of new tables": component("IDLE", "site:a", uncaptured_tables=["hr.new"]),
    "for room": component("ENABLED", problem="batches cannot be spilled: no space left on device"),
    "for its tables": STUCK["cannot copy a table"][0],
}


@pytest.mark.parametrize("facts", WAITS.values(), ids=WAITS.keys())
def test_topology_that_waits_for_an_operator_is_not_healthy(facts: ComponentStatus):
    assert not is_healthy(overview(component("IDLE"), facts))


FINE = {
    "flow control": component("PAUSED FOR FLOW CONTROL"),
    "stopped": component("DISABLED", enabled=False),
    "on its way": component("STARTING SPARK", detail="1 of 2 apply servers"),
    "rule without a table": component("ENABLED", "capture:c", unmatched_rules=["hr.x"]),
    "tables that the first up is about to capture": component(
        "WAITING FOR PREPARATION", "site:a", uncaptured_tables=["hr.new"], is_prepared=False
    ),
    "DDL that is not replicated": component("IDLE", source="a", counters={"ddl_not_applied": 2}),
    "DDL that was not recorded": component("ENABLED", "capture:c", source="a", ddl_failed_total=1),
    "no errors any more": component("IDLE", errors=0, problem="", last_error=ERROR),
    "copying": component(
        "INITIALIZING", instantiation=[{"owner": "hr", "name": "jobs", "state": "COPYING", "rows": 7, "problem": ""}]
    ),
}


@pytest.mark.parametrize("facts", FINE.values(), ids=FINE.keys())
def test_intended_or_temporary_state_is_healthy(facts: ComponentStatus):
    assert is_healthy(overview(facts))


def test_statements_stay_whole_below_the_table_on_a_narrow_terminal():
    console = Console(file=io.StringIO(), width=40, soft_wrap=True)
    console.print(render(overview(component("PAUSED: WAITING FOR ALTER", detail="does not fit", hint=ALTER))))
    assert f"  fix: {ALTER}" in console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_progress_of_a_start_names_missing_components_and_reasons():
    line = summary_line(
        overview(
            component("STARTING SPARK"),
            component("RETRYING", "site:a", last_error=ERROR),
            component("NOT CREATED", "queue:q"),
            component("NOT CREATED", "queue:r"),
            component("STARTING DATABASE", "site:b", database_problem="connection refused"),
        )
    )
    assert "apply:x starting spark" in line
    assert "site:a retrying" in line
    assert f"site:a: {ERROR['message']}" in line
    assert "2 components to be created" in line
    assert "site:b: connection refused" in line
    assert summary_line(overview(component("IDLE"), state="STARTING SITES")) == "starting sites"


def test_up_shows_a_component_that_it_replaces_as_restarting():
    replaced = component("UNREACHABLE", problem="does not run", outdated=True)
    assert summary_line(overview(replaced), is_starting=True) == "running: apply:x restarting"
    assert "unreachable" in summary_line(overview(replace(replaced, outdated=False)), is_starting=True), (
        "this component is not being replaced"
    )
    assert "unreachable" in summary_line(overview(replaced))
    without = overview(component("UNREACHABLE"), state="CONTROLLER UNREACHABLE", problem="controller does not run")
    assert summary_line(without, is_starting=True) == "starting the controller"


def shown(seen: Overview, *, width: int = 80, is_verbose: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(render(seen, is_verbose=is_verbose))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_urgent_notes_come_first_and_nothing_is_cut_on_a_small_terminal():
    many = [component("IDLE", f"queue:a_queue_with_a_long_name_{n}", site="a_long_site") for n in range(40)]
    stuck = component("PAUSED: WAITING FOR ALTER", detail="does not fit", hint=ALTER)
    slow = flow("a_long_site", "another_long_site", "apply_of_a_long_name_from_elsewhere")
    lines = shown(overview(*many, stuck, flows=(replace(slow, lag_s=1.0),)))
    assert lines.index(f"  fix: {ALTER}") < 24
    assert not any("…" in line for line in lines)


def test_refused_up_leaves_its_reason_in_the_status():
    finding = FoundProblem(path="sites.a", problem="wal_level is replica", fix="ALTER SYSTEM")
    lines = shown(overview(component("IDLE"), state="REFUSED", findings=(finding,)))
    assert any(line.endswith("Fix them, then run headrace up FILE: only that checks again") for line in lines)
    assert lines.index("refused: sites.a: wal_level is replica") < lines.index("  fix: ALTER SYSTEM") < 10


def test_controller_that_cannot_continue_shows_why():
    seen = overview(component("IDLE"), state="RETRYING", problem="preparing the source: no room", fix="make room")
    assert "  fix: make room" in shown(seen)
    assert "preparing the source: no room" in summary_line(seen)


def test_unreachable_database_is_shown_with_its_fix():
    (note,) = notes(
        overview(component("DATABASE DOES NOT ANSWER", "site:a", database_problem="connecting: connection refused"))
    )
    assert (note.problem, "start the database" in note.fix) == ("connecting: connection refused", True)


def test_closed_database_is_shown_with_the_statement_that_opens_it():
    statement = 'ALTER DATABASE "shop" ALLOW_CONNECTIONS true; -- in another database of its server'
    closed = component("DATABASE DOES NOT ANSWER", "site:a", database_problem="it is closed", database_fix=statement)
    (note,) = notes(overview(closed))
    assert note.fix == statement


def test_transaction_that_holds_up_a_start_is_named_meanwhile():
    site = component("WAITING FOR PREPARATION", "site:a", held_up_by=["the open transaction of pid 7"])
    assert "site:a: waits for the open transaction of pid 7" in summary_line(overview(site, state="PREPARING"))
    (note,) = notes(overview(site))
    assert note.is_remark


def test_progress_of_copies_is_a_sum_with_the_largest_table():
    def table(name: str, state: str, done: int = 0, total: int = 0) -> dict[str, Any]:
        return {
            "owner": "public",
            "name": name,
            "state": state,
            "rows": 1,
            "problem": "",
            "bytes_done": done,
            "bytes_total": total,
        }

    tables = [table(f"t{number}", "DONE") for number in range(311)]
    tables += [table("orders", "COPYING", 4 << 29, 5 << 30), table("small", "COMPARING", 1 << 20, 1 << 20)]
    tables += [table(f"p{number}", "PENDING") for number in range(14)] + [table("sick", "FAILED")]
    line = summary_line(overview(component("INSTANTIATING", instantiation=tables)))
    assert "copying 16 of 328 tables, 2.1 GB of 5.4 GB, largest: public.orders 40 %, 1 cannot be copied" in line
    assert "t1" not in line
    assert "p1" not in line
    assert "copying" not in summary_line(overview(component("IDLE", instantiation=tables[:311])))


def queue_with(**facts: Any) -> ComponentStatus:
    subscriber = {"subscriber": "apply_b", "source": "a", "acknowledged_scn": 10, **facts}
    return component("ENABLED", "queue:q", subscribers=[subscriber])


def lost_at(at_us: int) -> dict[str, int]:
    return {"acknowledged_scn": 40, "found_scn": 10, "at_us": at_us}


def test_lost_commits_are_shown_until_reapplied_and_for_a_day_after():
    lost = lost_at(time.time_ns() // 1000)
    pending, over = queue_with(lost=lost), queue_with(lost=lost, acknowledged_scn=40)
    assert not is_healthy(overview(pending))
    assert is_healthy(overview(over))
    for facts, words in ((pending, "are applied again"), (over, "were applied again")):
        (note,) = notes(overview(facts))
        assert words in note.problem
        assert "0/0000000A to 0/00000028" in note.problem
    assert notes(overview(queue_with(lost=lost_at(0), acknowledged_scn=40))) == []
    assert len(notes(overview(queue_with(lost=lost_at(0))))) == 1, "shown until the commits are applied again"


def test_refused_subscriber_is_shown_with_its_loss_and_the_fix():
    (note,) = notes(overview(queue_with(gone_scn=30, lost=lost_at(0))))
    assert note.is_stuck
    assert "apply_b is refused" in note.problem
    assert "0/0000001E" in note.problem
    assert "copied again" in note.fix


def test_lost_column_has_a_fix_also_for_a_table_that_is_not_copied():
    (note,) = notes(overview(component("IDLE", "site:a", lost_columns=["v of hr.t (capture_a)"])))
    assert "nothing passes unmasked" in note.problem
    assert "write its name of now there, then headrace up FILE" in note.fix
    assert note.fix.endswith("Where others write the table, too, headrace up FILE asks to empty it there first")


def test_tables_renamed_out_of_the_rules_are_shown_with_both_fixes():
    facts = {"strayed_tables": ["hr.new"], "strayed_renames": ['ALTER TABLE "hr"."t" RENAME TO "new"']}
    (note,) = notes(overview(component("IDLE", "site:a", **facts)))
    assert 'at the destinations, too (ALTER TABLE "hr"."t" RENAME TO "new";), and name' in note.fix
    assert note.fix.endswith("to leave them out, leave the rules as they are; then headrace up FILE")
    (note,) = notes(overview(component("IDLE", "site:a", strayed_tables=["hr.new"])))
    assert "at the destinations, too, and name" in note.fix


def test_compressing_propagation_shows_its_ratio_and_cost():
    found = {"method": "zstd", "bytes_before": 8_000_000, "bytes_after": 2_000_000, "cpu_s": 0.024}
    line = " ".join(shown(overview(component("SENDING", "propagation:p", compression=found)), width=200))
    assert "zstd 4.0:1, 3.0 ms CPU per MB" in line
    nothing = {**found, "bytes_before": 0, "bytes_after": 0}
    assert "zstd" in " ".join(shown(overview(component("SENDING", "propagation:p", compression=nothing)), width=200))


def test_closed_propagation_shows_its_next_window_and_is_no_problem():
    closed = component(
        "CLOSED",
        "propagation:p",
        closed_until="2026-11-22 22:00 Europe/Zurich",
        from_queue="q_a",
        bandwidth_max=512_000,
    )
    seen = overview(closed)
    assert is_healthy(seen)
    assert not stuck_notes(seen)
    (note,) = holding_notes(seen)
    assert note.problem == "is closed by its schedule until 2026-11-22 22:00 Europe/Zurich: changes wait in queue q_a"
    line = " ".join(shown(seen, width=200))
    assert "CLOSED until 2026-11-22 22:00 Europe/Zurich" in line
    assert "at most 512 kB/s" in line
    assert "is closed by its schedule until 2026-11-22 22:00" in summary_line(
        overview(component("INITIALIZING"), closed)
    )


def test_unreadable_list_of_revoked_certificates_is_shown_with_its_format():
    wire = {"tls": True, "revoked_problem": "/c/revoked: no SHA-256 fingerprint stands in line 2"}
    (note,) = notes(overview(component("ENABLED", wire=wire)))
    assert (
        note.problem
        == "/c/revoked: no SHA-256 fingerprint stands in line 2; what the component had read there before stays revoked"
    )
    assert "one SHA-256 fingerprint a line" in note.fix


def test_failed_connections_are_shown_for_a_day():
    def told(age_s: float) -> list[str]:
        wire = {"tls": True, "refused_connections": 3, "last_refused_connection_us": int((time.time() - age_s) * 1e6)}
        return [
            note.problem
            for note in notes(overview(component("ENABLED", wire=wire)))
            if "connections failed" in note.problem
        ]

    assert len(told(60)) == 1
    assert told(2 * 86_400) == []


def test_throttled_callers_are_a_remark_for_a_day():
    def told(age_s: float) -> list[str]:
        wire = {
            "tls": False,
            "held_back": 7,
            "last_held_back": "it sends more (ipv4:10.0.0.1:5)",
            "last_held_back_us": int((time.time() - age_s) * 1e6),
        }
        seen = overview(component("ENABLED", wire=wire))
        assert is_healthy(seen)
        return [note.problem for note in notes(seen) if "held back 7 times a caller" in note.problem]

    (problem,) = told(60)
    assert problem.endswith("the last one: it sends more (ipv4:10.0.0.1:5)")
    assert told(2 * 86_400) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"merges": True, "behind_s": 1800.0},
            "30 min behind the others; it is merged once it is connected and at most 60 s behind",
        ),
        (
            {"merges": False, "by": "operator", "behind_s": None},
            "by the operator; unknown behind the others; it stays so until `headrace merge FILE p`",
        ),
        ({"phase": "merging", "merges": True, "behind_s": 2.0}, "it is being merged with queue q"),
        (
            {"merges": True, "behind_s": 0.0, "stopped": ("capture:c.p",)},
            "it is merged once capture:c.p is started: the stop would end with the merge",
        ),
        (
            {"phase": "splitting", "merges": True, "behind_s": 0.0, "stopped": ("capture:c",)},
            "it reads q until capture:c is started: it would get what the stop holds back",
        ),
    ],
)
def test_split_stream_is_a_remark_with_its_age_reason_and_outcome(facts: dict[str, Any], words: str) -> None:
    split = SplitStream(
        propagation="p",
        queue="q",
        phase="split",
        by="threshold",
        since_us=int((time.time() - 7200) * 1e6),
        merge_threshold_s=60.0,
    )
    told = overview(component("IDLE"), splits=(replace(split, **facts),))
    (note,) = notes(told)
    assert note.component == "propagation:p"
    assert "is split off from queue q for 120 min" in note.problem
    assert words in note.problem
    assert is_healthy(told)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"stopped": ("capture:c",)}, "it waits until capture:c is started: it would get what the stop holds back"),
        ({"hindrance": "nothing else reads q"}, "nothing else reads q; `headrace merge FILE p` withdraws the request"),
        ({}, "every component must have its part of the last change first"),
    ],
)
def test_pending_split_is_a_remark_with_its_reason(facts: dict[str, Any], words: str) -> None:
    split = SplitStream(propagation="p", queue="q", phase="together", **facts)
    told = overview(component("IDLE"), splits=(split,))
    (note,) = notes(told)
    assert note.problem.startswith("is to be split off from queue q: ")
    assert words in note.problem
    assert is_healthy(told)


def test_applied_scn_is_shown_with_the_scn_recorded_at_the_destination() -> None:
    """After a crash the destination resumes at the recorded SCN, which can be lower."""
    (line,) = (
        line
        for line in shown(overview(component("IDLE", low_watermark_scn=0x30, recorded_scn=0x20)), width=200)
        if "apply:x" in line
    )
    assert "applied to 0/00000030, recorded to 0/00000020" in line


def test_details_of_a_component_have_the_versions_of_its_functions() -> None:
    text = io.StringIO()
    found = component("ENABLED", functions={"masks:mask": "0123456789ab", "orders:apply_order": "ba9876543210"})
    Console(file=text, width=400).print(render(overview(found), is_verbose=True))
    assert "runs masks:mask (0123456789ab), orders:apply_order (ba9876543210)" in text.getvalue()


def test_components_with_the_same_problem_are_named_together_once() -> None:
    busy = [
        component("UNREACHABLE", name, problem="has not answered the last call of status yet")
        for name in ("spark:b", "apply:x")
    ]
    line = summary_line(overview(*busy, state="PREPARING"))
    assert (
        line
        == "preparing: spark:b, apply:x unreachable; spark:b, apply:x: has not answered the last call of status yet"
    )


def flow(source: str, destination: str, apply: str = "") -> Flow:
    return Flow(
        apply=apply or f"apply_from_{source}_at_{destination}",
        source=source,
        destination=destination,
        lag_s=0.2,
        applied_scn=0x1A2B3C4D5E,
        source_scn=0x1A2B3C4D5F,
        scn_gap=1,
        errors=0,
    )


def test_short_form_of_two_way_replication_fits_a_small_terminal() -> None:
    kinds = (
        "site:{0}",
        "spark:{0}",
        "capture:capture_{0}",
        "queue:q_{0}",
        "propagation:{0}_to_{1}",
        "apply:apply_from_{1}_at_{0}",
    )
    components = [
        component("IDLE", kind.format(*names), site=names[0])
        for names in (("dbs1", "dbs2"), ("dbs2", "dbs1"))
        for kind in kinds
    ]
    bypassed = [component("BYPASSED", f"queue:q_{n}_in") for n in range(4)]
    stuck = replace(components[-1], state="PAUSED: WAITING FOR ALTER", detail="does not fit", hint=ALTER)
    lines = shown(
        overview(*components[:-1], *bypassed, stuck, flows=(flow("dbs1", "dbs2"), flow("dbs2", "dbs1"))),
        is_verbose=False,
    )
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines if ALTER not in line)
    assert all(any(each.name in line for line in lines) for each in components)
    assert not any("BYPASSED" in line for line in lines)
    assert lines[1:3] == ["apply:apply_from_dbs1_at_dbs2: does not fit", f"  fix: {ALTER}"] or ALTER in "\n".join(
        lines[:4]
    )


def test_short_form_of_many_components_names_only_the_broken_ones() -> None:
    many = [component("IDLE", f"queue:q_{n}") for n in range(40)]
    lines = shown(overview(*many, component("RETRYING", "site:a", last_error=ERROR)), is_verbose=False)
    assert not any("queue:q_" in line for line in lines)
    assert any(line.startswith("site:a") and "RETRYING" in line for line in lines)
    assert lines[-1] == "40 components work (--verbose shows each)"
    assert shown(overview(*many), is_verbose=False)[-1] == "40 components work, all of them (--verbose shows each)"


def test_flows_between_the_same_sites_are_named_by_their_apply_processes() -> None:
    seen = overview(component("IDLE"), flows=(flow("a", "b", "one"), flow("a", "b", "two"), flow("b", "a")))
    lines = [line.split("  ")[0] for line in shown(seen, is_verbose=False) if " -> " in line]
    assert lines == ["a -> b (one)", "a -> b (two)", "b -> a"]
