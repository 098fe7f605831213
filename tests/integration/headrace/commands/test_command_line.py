"""The command line against a running topology: inputs, answers and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.console.exit_codes import DONE, FAILURE, FINDING, WRONG_USE
from tests.fix_cluster import TABLES
from tests.support.clusters.command_line import run
from tests.support.clusters.system import System, wait_until

pytestmark = [pytest.mark.unit("one_way"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TIMEOUT_S = 300.0  # each verb has its own bounds


def headrace(system: System, *arguments: object, verb_end: int = 1) -> tuple[int, str, str]:
    """Run a verb of `verb_end` words on the system's file; return (exit code, standard output, standard error)."""
    words = [str(argument) for argument in arguments]
    code, out, err = run(*words[:verb_end], str(system.spec.file), *words[verb_end:])
    assert "Traceback" not in err, err
    return code, out, err


def as_process(system: System, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb as a user does, in its own process."""
    program = Path(sys.executable).parent / "headrace"
    command = [program, str(words[0]), system.spec.file, *map(str, words[1:])]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )


def answer(system: System, *arguments: object, verb_end: int = 1, code: int = DONE) -> Any:
    """Return the one JSON document that a verb prints with --json."""
    ended, out, err = headrace(system, *arguments, "--json", verb_end=verb_end)
    assert ended == code, err
    return json.loads(out)


def whole_status(system: System) -> dict[str, Any]:
    """Return the answer of `status`; repeat it while a component has not reported its state."""

    def whole() -> dict[str, Any] | None:
        ended, out, err = headrace(system, "status", "--json")
        assert ended in (DONE, FINDING), err
        overview = json.loads(out)
        return overview if ended == DONE and all("started_us" in each for each in overview["components"]) else None

    return dict(wait_until("all components report their state", whole))


@pytest.fixture
def conflict(one_way: System) -> Iterator[int]:
    """Yield the number of an error transaction: the destination already had the row. Afterwards both sides are equal
    again.
    """
    one_way.execute("src", "TRUNCATE notes")
    one_way.wait_caught_up()
    one_way.execute("dst", "INSERT INTO notes VALUES (7, 'in the way')")
    one_way.execute("src", "INSERT INTO notes VALUES (7, 'from the source'), (8, NULL)")
    one_way.wait_caught_up()
    (error,) = answer(one_way, "errors", "list", verb_end=2)["errors"]
    yield error["number"]
    headrace(one_way, "errors", "delete", "--all", "--yes", verb_end=2)
    one_way.execute("dst", "TRUNCATE notes")
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])


def test_status_shows_every_component_and_flow(one_way: System):
    one_way.wait_caught_up()
    one_way.wait_overview()
    overview = whole_status(one_way)
    (flow,) = overview["flows"]
    assert (flow["source"], flow["destination"]) == ("src", "dst")
    assert flow["lag_s"] is not None
    kinds = {component["kind"] for component in overview["components"]}
    assert kinds == {"site", "spark", "queue", "capture", "propagation", "apply"}
    done = as_process(one_way, "status")
    assert done.returncode == DONE, done.stderr
    assert all(component["name"] in done.stdout for component in overview["components"])


def test_error_transaction_is_shown_refused_fixed_and_executed(one_way: System, conflict: int):
    code, out, _ = headrace(one_way, "errors", "list", verb_end=2)
    assert code == DONE
    assert f"{conflict} " in out
    assert out.rstrip().endswith("1 error transaction")
    shown = answer(one_way, "errors", "show", conflict, verb_end=2)
    assert [lcr["new"] for lcr in shown["lcrs"]] == [{"id": "7", "body": "from the source"}, {"id": "8", "body": None}]
    assert shown["lcrs"][shown["error"]["failed_position"]]["table"] == "public.notes"

    refused = answer(one_way, "errors", "execute", conflict, verb_end=2, code=FINDING)
    assert refused["outcomes"][0]["done"] is False
    assert refused["outcomes"][0]["problem"]

    one_way.execute("dst", "DELETE FROM notes WHERE id = 7")
    code, out, _ = headrace(one_way, "errors", "execute", conflict, verb_end=2)
    assert (code, out.strip().endswith("executed")) == (DONE, True)
    assert answer(one_way, "errors", "list", verb_end=2) == {"errors": []}
    one_way.assert_converged(["notes"])


def test_edited_error_transaction_can_be_deleted_and_none_of_it_is_applied(one_way: System, conflict: int):
    edit = answer(one_way, "errors", "edit", conflict, "--set", "body=edited", verb_end=2)["edit"]
    assert (edit["position"], edit["changes"]) == (0, ["new.body: from the source -> edited"])
    assert answer(one_way, "errors", "show", conflict, verb_end=2)["lcrs"][0]["new"] == {"id": "7", "body": "edited"}
    views = (
        "SELECT a.status, e.edits FROM headrace.dba_apply a JOIN headrace.dba_apply_error e USING (topology,"
        " apply_name)"
    )
    # The apply process writes its state there periodically.
    wait_until("the view shows it", lambda: one_way.execute("dst", views) == [("ENABLED", 1)])
    outcome = answer(one_way, "errors", "delete", conflict, "--yes", verb_end=2)["outcomes"][0]
    assert (outcome["number"], outcome["done"]) == (conflict, True)
    assert answer(one_way, "errors", "list", verb_end=2) == {"errors": []}
    assert one_way.execute("dst", "SELECT * FROM notes") == [(7, "in the way")]


def test_labelled_transaction_is_tracked_and_its_rows_are_explained(one_way: System, conflict: int):
    with one_way.connection("src") as session, session.transaction():
        session.execute("SELECT pg_logical_emit_message(true, 'headrace.track', 'order 4711'::bytea)")
        session.execute("INSERT INTO notes VALUES (4711, 'tracked')")
    code, out, err = headrace(one_way, "track", "--label", "order 4711", "--watch", "--timeout", 240)
    assert code == DONE, out + err
    assert out.strip().splitlines()[-1] == "label order 4711: APPLIED at dst"
    (transaction,) = answer(one_way, "track", "--label", "order 4711")["transactions"]
    seen = [(step["component"].partition(":")[0], step["action"]) for step in transaction["steps"]]
    assert sorted(step for step in seen if step[1] != "DEQUEUED") == sorted(
        [
            ("capture", "CAPTURED"),
            ("capture", "ENQUEUED"),
            ("queue", "ENQUEUED"),
            ("propagation", "SENT"),
            ("queue", "ENQUEUED"),
            ("apply", "APPLIED"),
        ]
    )
    assert headrace(one_way, "track", "--label", "no such label")[0] == FINDING

    assert answer(one_way, "explain", "public.notes", "4711")["verdicts"][0]["verdict"] == "SAME"
    (found,) = answer(one_way, "explain", "public.notes", "id=8", code=FINDING)["verdicts"]
    assert (found["verdict"], f"error transaction {conflict}" in found["text"]) == ("ERROR QUEUE", True)
    one_way.execute("dst", "UPDATE notes SET body = 'by hand' WHERE id = 4711")
    code, out, _ = headrace(one_way, "explain", "public.notes", "4711")
    assert (code, "ARRIVED" in out) == (FINDING, True)


def test_missing_error_transaction_is_wrong_use_with_a_hint(one_way: System):
    code, out, err = headrace(one_way, "errors", "execute", 987654, verb_end=2)
    assert (code, out) == (WRONG_USE, "")
    assert "no error transaction 987654" in err
    assert "errors list" in err
    code, _, err = headrace(one_way, "errors", "execute", verb_end=2)
    assert code == WRONG_USE
    assert "--all" in err


def test_stopped_component_stays_stopped_until_it_is_started(one_way: System):
    capture = f"capture:{one_way.spec.captures[0].name}"
    done = as_process(one_way, "stop", capture)
    assert (done.returncode, "Traceback" in done.stderr) == (DONE, False), done.stderr
    one_way.wait_state(capture, "DISABLED")
    # The component is in its requested state, so there is no finding; the controller's overview is a second old.
    wait_until(
        "status says so",
        lambda: {c["name"]: c["state"] for c in answer(one_way, "status")["components"]}[capture] == "DISABLED",
    )
    one_way.execute("src", "INSERT INTO notes VALUES (1, 'written meanwhile')")
    code, _, err = headrace(one_way, "wait", "--caught-up", "--timeout", 1)
    assert code == FAILURE, err
    assert "not caught up within 1 s" in err
    assert one_way.execute("dst", "SELECT * FROM notes") == []

    assert headrace(one_way, "start", one_way.spec.captures[0].name)[0] == DONE
    code, _, err = headrace(one_way, "wait", "--caught-up", "--timeout", 240)
    assert code == DONE, err
    assert one_way.execute("dst", "SELECT * FROM notes") == [(1, "written meanwhile")]
    one_way.execute("src", "TRUNCATE notes")
    one_way.assert_converged(["notes"])
    code, _, err = headrace(one_way, "stop", "captur")
    assert code == WRONG_USE
    assert "captur" in err


def test_verify_finds_a_difference_and_names_the_table(one_way: System):
    one_way.execute("dst", "INSERT INTO notes VALUES (99, 'only here')")
    code, out, _ = headrace(one_way, "verify")
    assert code == FINDING
    different = [line for line in out.splitlines() if ": DIFFERENT: " in line]
    assert len(different) == 1
    assert "notes" in different[0]
    one_way.execute("dst", "DELETE FROM notes WHERE id = 99")
    compared = answer(one_way, "verify")
    assert compared["identical"] is True
    assert {f"{table['owner']}.{table['name']}" for table in compared["tables"]} >= {
        f"public.{table}" for table in TABLES
    }


def test_second_up_changes_nothing_and_says_so_quickly(one_way: System):
    one_way.wait_overview()
    before = {c["name"]: c["started_us"] for c in whole_status(one_way)["components"]}
    overview = answer(one_way, "up")
    assert overview["state"] == "RUNNING"
    assert {c["name"]: c["started_us"] for c in whole_status(one_way)["components"]} == before


def test_check_and_plan_of_a_running_topology_find_nothing_left_to_do(one_way: System):
    assert not any(finding["is_error"] for finding in answer(one_way, "check")["findings"])
    plan = answer(one_way, "plan")
    made = [
        step
        for site in plan["sites"]
        for step in site["live"]["statements"]
        if step["statement"].startswith(("CREATE SCHEMA", "CREATE TABLE", "CREATE PUBLICATION", "SELECT pg_"))
    ]
    assert {step["is_done"] for step in made} == {True}
    assert any("pg_create_logical_replication_slot" in step["statement"] for step in made)
    assert any("pg_replication_origin_create" in step["statement"] for step in made)
    code, out, _ = headrace(one_way, "plan")
    assert code == DONE
    assert all(f"= {step['statement'].splitlines()[0]}" in out for step in made)
    assert "ROW EXCLUSIVE on each table" in out
