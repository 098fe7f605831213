"""The command line: arguments, exit codes and messages.

Longer than 500 lines: one short test per verb and outcome, all over the same runner.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

import headrace.cli.app
import headrace.console.progress
from headrace.base.errors import ConfigError, DatabaseUnavailable
from headrace.cli.app import main
from headrace.console.exit_codes import DONE, FAILURE, FINDING, INTERRUPTED, WRONG_USE
from headrace.databases.ports import Finding
from headrace.deployment.deployment import Deployment, NotUp
from headrace.status.overview import Flow, FoundProblem, Overview
from headrace.status.plain import plain_overview
from tests.support.actors.overviews import component_status
from tests.support.topologies.files import ONE_WAY
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.file.reading import read_topology

Run = Callable[..., int]
ENDED_S = 60.0  # a loaded machine needs seconds to start Python


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_it(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run_it


def test_check_of_a_valid_topology_exits_with_done(run, topology, capsys):
    assert run("check", topology) == DONE
    assert "0 problems" in capsys.readouterr().out


def test_problem_of_a_topology_is_a_finding_with_its_fix(run, tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text(ONE_WAY.replace("to: [b]", "to: [c]"))
    assert run("check", file) == FINDING
    told = capsys.readouterr().out
    assert "error: " in told
    assert "fix: " in told


def test_problem_of_a_topology_is_a_finding_for_every_verb(run, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("topology: t\n")
    assert [run(verb, file) for verb in ("plan", "up", "status", "down")] == [FINDING] * 4


CYCLE = """
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{tables: [public.*], between: [a, b]}]
captures:
  capture_a: {site: a, source: a, queue: q_a, rules: {include: [{table: public.*, tagged: true}]}}
  capture_b: {site: b, source: b, queue: q_b, rules: {include: [{table: public.*, tagged: true}]}}
"""


def test_topology_with_a_cycle_is_not_started_but_planned_and_stopped(run, tmp_path, capsys):
    """An earlier version may have started it."""
    file = tmp_path / "cycle.yaml"
    file.write_text(CYCLE)
    assert run("up", file) == FINDING
    assert "circulate for ever: a -> b" in capsys.readouterr().err
    assert run("plan", file, "--offline") == FINDING
    shown = capsys.readouterr().out
    assert (
        "  error captures.capture_b.rules (line 7): changes of public.* made at a circulate for ever: a -> b" in shown
    )
    assert "    a -> b (1 hop, in a cycle), a (2 hops, over b, in a cycle)" in shown
    assert run("down", file) == DONE


def test_check_reports_its_proof_and_the_reach_as_json(run, topology, tmp_path, capsys):
    assert run("check", topology, "--offline") == DONE
    assert (
        "proven from the file: every change arrives once wherever it goes, and none returns to its origin"
        in capsys.readouterr().out
    )
    file = tmp_path / "cycle.yaml"
    file.write_text(CYCLE)
    assert run("check", file, "--offline") == FINDING
    assert "proven" not in capsys.readouterr().out
    assert run("check", file, "--offline", "--json") == FINDING
    answer = json.loads(capsys.readouterr().out)
    assert [
        (finding["path"], finding["is_error"]) for finding in answer["findings"] if "for ever" in finding["problem"]
    ] == [
        ("captures.capture_b.rules (line 7)", True),
    ]
    assert [(line["origin"], line["tables"], line["tags"]) for line in answer["reach"]] == [
        ("a", ["public.*"], ["none", "any"]),
        ("b", ["public.*"], ["none", "any"]),
    ]
    assert {site["times"] for line in answer["reach"] for site in line["reached"]} == {"in a cycle"}


def test_findings_are_one_json_document(run, tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text(ONE_WAY.replace("replicate", "replicat"))
    assert run("check", file, "--json") == FINDING
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"path", "problem", "fix", "is_error"} == set(findings[0])


@pytest.mark.parametrize("arguments", [["nonsense"], ["up"], ["check", "--nonsense", "x"], ["errors"], []])
def test_wrong_use_is_reported_without_a_traceback(run, arguments, capsys):
    assert run(*arguments) == WRONG_USE
    told = capsys.readouterr()
    assert "Traceback" not in told.err + told.out


def test_verbs_that_need_a_running_topology_report_that_it_is_down(run, topology, capsys):
    for verb in ("status", "verify"):
        assert run(verb, topology) == WRONG_USE
        told = capsys.readouterr().err
        assert "is not up" in told
        assert f"headrace up {topology}" in told


def test_wait_needs_a_condition(run, topology):
    assert run("wait", topology) == WRONG_USE


def test_errors_without_a_verb_lists_them(run, topology, capsys):
    code = run("errors", "list", topology)
    assert "is not up" in (said := capsys.readouterr().err)
    assert run("errors", topology) == code
    assert capsys.readouterr().err == said
    assert run("errors", "lst", topology) == WRONG_USE


def test_errors_delete_needs_numbers_or_all(run, topology, monkeypatch):
    monkeypatch.setattr(Deployment, "connect", lambda self: None)
    assert run("errors", "delete", topology) == WRONG_USE
    assert run("errors", "delete", topology, "1", "--all") == WRONG_USE


def test_unknown_component_names_the_nearest(run, topology, monkeypatch, capsys):
    monkeypatch.setattr(Deployment, "connect", lambda self: None)
    assert run("stop", topology, "capture:capture_b") == WRONG_USE
    assert "capture:capture_a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("track", "--label", ""), "1 to 200 bytes"),
        (("explain", "t", "1"), "'t' is no table"),
        (("explain", "public.t", "id=1,2"), "is no key"),
    ],
)
def test_invalid_label_table_or_key_is_wrong_use_before_any_query(run, topology, capsys, words, said):
    verb, *rest = words
    assert run(verb, topology, *rest) == WRONG_USE
    told = capsys.readouterr().err
    assert said in told
    assert "fix: " in told


def test_failure_shows_message_and_fix_only(run, topology, monkeypatch, capsys):
    def fail(self: Deployment) -> None:
        raise DatabaseUnavailable("the server does not answer", hint="start it")

    monkeypatch.setattr(Deployment, "overview", fail)
    assert run("status", topology) == FAILURE
    assert capsys.readouterr().err == "error: the server does not answer\nfix: start it\n"
    assert run("status", topology, "--json") == FAILURE
    assert json.loads(capsys.readouterr().out)["hint"] == "start it"


def test_error_of_the_operating_system_is_no_defect(run, topology, monkeypatch, capsys):
    def fail(self: Deployment) -> None:
        raise PermissionError(13, "Permission denied", "/somebody/else")

    monkeypatch.setattr(Deployment, "overview", fail)
    assert run("status", topology) == FAILURE
    told = capsys.readouterr().err
    assert told.startswith("error: /somebody/else: Permission denied\nfix: correct the rights")
    assert run("status", topology, "--json") == FAILURE
    assert "Permission denied" in json.loads(capsys.readouterr().out)["message"]


def test_defect_is_one_line_and_a_file_with_the_traceback(run, topology, monkeypatch, capsys):
    def fail(self: Deployment) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Deployment, "overview", fail)
    assert run("status", topology) == FAILURE
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "Traceback" not in told
    file = Path(told.strip().rpartition(" ")[2])
    assert "ZeroDivisionError: oops" in file.read_text()
    file.unlink()


def test_ctrl_c_is_no_failure(run, topology, monkeypatch, capsys):
    def interrupt(self: Deployment) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Deployment, "overview", interrupt)
    assert run("status", topology) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_interrupted_up_reports_that_components_keep_running(run, topology, monkeypatch, capsys):
    def interrupt(self: Deployment, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Deployment, "up", interrupt)
    assert run("up", topology) == INTERRUPTED
    told = capsys.readouterr().err
    assert f"headrace down {topology}" in told
    assert told.endswith("interrupted\n")


def test_down_of_a_topology_that_never_ran_reports_no_cluster(run, topology, capsys):
    assert run("down", topology) == DONE
    assert run("down", topology, "--purge", "--yes") == DONE
    assert capsys.readouterr().err == "no running cluster\n" * 2


def test_check_names_the_databases_that_it_could_not_ask(run, topology, capsys):
    assert run("check", topology) == DONE
    told = capsys.readouterr().out
    assert "warning: sites.a: its embedded server does not run: its contents were not checked" in told
    assert f"headrace up {topology}" in told


def test_progress_is_not_shown_with_json(run, topology, monkeypatch, capsys):
    def up(self: Deployment, *, progress: Callable[[object], None], **_: object) -> Overview:
        progress(overview("ENABLED"))
        return overview("ENABLED")

    monkeypatch.setattr(Deployment, "up", up)
    assert run("up", topology, "--json") == DONE
    assert capsys.readouterr().err == ""


def overview(*states: str) -> Overview:
    components = tuple(component_status(f"queue:q{n}", state) for n, state in enumerate(states))
    flow = Flow(apply="x", source="a", destination="b", source_scn=5)
    return Overview(topology="t", state="RUNNING", flows=(flow,), components=components)


def test_status_of_a_healthy_topology_is_done_with_unknown_lag(run, topology, monkeypatch, capsys):
    monkeypatch.setattr(Deployment, "overview", lambda self: overview("ENABLED", "PAUSED FOR FLOW CONTROL"))
    assert run("status", topology) == DONE
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    "waits",
    [
        component_status("apply:x", "IDLE", errors=1),
        component_status("site:a", "IDLE", uncaptured_tables=["public.late"]),
    ],
)
def test_status_of_a_topology_that_needs_an_operator_is_a_finding(run, topology, monkeypatch, waits):
    seen = replace(overview("ENABLED"), components=(waits,))
    monkeypatch.setattr(Deployment, "overview", lambda self: seen)
    assert run("status", topology) == FINDING
    assert run("status", topology, "--json") == FINDING


class Watched:
    """Standard output as a program at the other end of a pipe sees it, look by look; `ended` is raised after the last
    look.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: list[object], ended: BaseException) -> None:
        self.arrived = io.BytesIO()
        self.arrived_before: list[int] = []
        self._looks, self._ended = iter(looks), ended
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(self.arrived, encoding="utf-8"))
        monkeypatch.setattr(headrace.console.progress, "WATCH_INTERVAL_S", 0.0)
        monkeypatch.setattr(Deployment, "overview", lambda _: self.look())

    def look(self) -> object:
        self.arrived_before.append(len(self.lines))
        for overview in self._looks:
            return overview
        raise self._ended

    @property
    def lines(self) -> list[str]:
        return self.arrived.getvalue().decode().splitlines()


def test_watched_status_is_a_json_document_per_line_until_ctrl_c(run, topology, monkeypatch, capsys):
    looks = [overview("ENABLED"), overview("ABORTED"), overview("ENABLED")]
    watched = Watched(monkeypatch, looks, KeyboardInterrupt())
    assert run("status", topology, "--watch", "--json") == INTERRUPTED
    assert [json.loads(line) for line in watched.lines] == [plain_overview(look) for look in looks]
    assert watched.arrived_before == [0, 1, 2, 3]  # nothing stays in a buffer
    assert capsys.readouterr().err == "interrupted\n"


def test_watched_status_ends_with_the_error_on_its_own_line(run, topology, monkeypatch):
    watched = Watched(monkeypatch, [overview("ENABLED")], NotUp("it was ended meanwhile", hint="headrace up"))
    assert run("status", topology, "--watch", "--json") == WRONG_USE
    assert [json.loads(line).get("hint") for line in watched.lines] == [None, f"headrace up {topology}"]


@pytest.mark.parametrize("state", ["ABORTED", "UNREACHABLE", "RETRYING"])
def test_status_with_a_broken_component_is_a_finding(run, topology, monkeypatch, state):
    monkeypatch.setattr(Deployment, "overview", lambda self: overview("ENABLED", state))
    assert run("status", topology) == FINDING


def test_refused_preflight_is_a_finding(run, topology, monkeypatch, capsys):
    finding = FoundProblem(path="sites.a", problem="wal_level is replica", fix="ALTER SYSTEM SET wal_level = logical")
    refused = replace(overview(), state="REFUSED", findings=(finding,))
    monkeypatch.setattr(Deployment, "up", lambda self, **_: refused)
    assert run("up", topology) == FINDING
    assert "fix: ALTER SYSTEM SET wal_level = logical" in capsys.readouterr().out


def test_difference_is_a_finding(run, topology, monkeypatch, capsys):
    import headrace.commands.verification

    same = {
        "apply": "x",
        "source": "a",
        "destination": "b",
        "owner": "public",
        "name": "t",
        "destination_owner": "public",
        "destination_name": "t",
        "equal": True,
        "source_rows": 3,
        "destination_rows": 3,
        "source_digest": "aa",
        "destination_digest": "aa",
        "checks": 1,
        "problem": "",
        "can_be_copied": True,
    }
    row = {"columns": ["id", "site"], "values": ["7", ""], "nulls": [False, True], "what": "only at the source"}
    other = {
        **same,
        "name": "u",
        "destination_name": "v",
        "equal": False,
        "destination_rows": 2,
        "differences": [row],
        "has_more_differences": True,
    }
    monkeypatch.setattr(Deployment, "connect", lambda self: None)
    monkeypatch.setattr(headrace.commands.verification, "verify_topology", lambda *_, **__: [same])
    assert run("verify", topology) == DONE
    monkeypatch.setattr(headrace.commands.verification, "verify_topology", lambda *_, **__: [same, other])
    assert run("verify", topology) == FINDING
    told, err = capsys.readouterr()
    assert f'headrace copy {topology} \'"public"."u"\'' in err
    assert told.splitlines()[-1] == "different"
    monkeypatch.setattr(
        headrace.commands.verification, "verify_topology", lambda *_, **__: [same, {**other, "can_be_copied": False}]
    )
    run("verify", topology)
    said = capsys.readouterr().err
    assert "headrace copy" not in said, "the copy would be refused, because another apply process writes the table"
    assert "correct its rows at the destination alone: BEGIN; SELECT headrace.set_tag('0e'); " in said
    assert "public.u a -> b public.v: DIFFERENT" in told
    assert "  id=7, site=NULL: only at the source\n  ... and others\n" in told


def test_verify_counts_rows_in_flight_and_names_uncompared_ones(run, topology, monkeypatch, capsys):
    import headrace.commands.verification

    busy = {
        "apply": "x",
        "source": "a",
        "destination": "b",
        "owner": "public",
        "name": "t",
        "destination_owner": "public",
        "destination_name": "t",
        "equal": True,
        "source_rows": 3,
        "problem": "",
        "can_be_copied": True,
        "settled": 2,
        "in_flight": [],
        "in_flight_rows": 0,
    }
    hot = {"columns": ["id"], "values": ["7"], "nulls": [False], "what": "changed at each look"}
    monkeypatch.setattr(Deployment, "connect", lambda self: None)
    monkeypatch.setattr(
        headrace.commands.verification,
        "verify_topology",
        lambda *_, **__: [busy, {**busy, "settled": 0, "in_flight": [hot], "in_flight_rows": 9}],
    )
    assert run("verify", topology) == DONE
    assert capsys.readouterr().out == (
        "public.t a -> b: identical, 3 rows (2 rows on the way, and compared again)\n"
        "public.t a -> b: identical, all but 9 rows in flight, 3 rows\n"
        "  not compared: 9 rows in flight: id=7: changed at each look; ...\n"
        "identical\n"
    )


def test_uncompared_table_is_not_called_different_and_needs_no_copy(run, topology, monkeypatch, capsys):
    import headrace.commands.verification

    unknown = {
        "apply": "x",
        "source": "a",
        "destination": "b",
        "owner": "public",
        "name": "t",
        "destination_owner": "public",
        "destination_name": "t",
        "equal": False,
        "problem": "digesting a table: a value is too large",
    }
    monkeypatch.setattr(Deployment, "connect", lambda self: None)
    monkeypatch.setattr(headrace.commands.verification, "verify_topology", lambda *_, **__: [unknown])
    assert run("verify", topology) == FINDING
    told, err = capsys.readouterr()
    assert told.splitlines()[-1] == "1 table not compared"
    assert "copy" not in err


def test_doctor_reports_findings(run, monkeypatch, capsys):
    import headrace.commands.doctor

    report = headrace.commands.doctor.Report(
        {"python": "3.11"}, (Finding(path="java", problem="is missing", fix="make setup"),)
    )
    monkeypatch.setattr(headrace.commands.doctor, "examine", lambda: report)
    assert run("doctor") == FINDING
    assert "fix: make setup" in capsys.readouterr().out


def test_doctor_names_a_path_from_which_ray_cannot_run(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "prefix", "/home/my clone/.venv")
    assert run("doctor") == FINDING
    assert "error: python: lies in /home/my clone/.venv: Ray cannot run from a path with ' '" in capsys.readouterr().out


def test_demo_ends_with_one_json_object(run, monkeypatch, capsys):
    import headrace.demo.run

    summary = {"identical": False, "transactions": 1}
    monkeypatch.setattr(headrace.demo.run, "run_demo", lambda options, output: summary)
    assert run("demo", "--json") == FINDING
    assert json.loads(capsys.readouterr().out) == summary


def test_configuration_errors_are_wrong_use(run, topology, monkeypatch):
    def fail(self: Deployment) -> None:
        raise ConfigError("no")

    monkeypatch.setattr(Deployment, "overview", fail)
    assert run("status", topology) == WRONG_USE


def test_version_is_printed(run, capsys):
    assert run("--version") == DONE
    assert capsys.readouterr().out.strip() == f"headrace {metadata.version('headrace')}"


PROGRAM = """
import sys
from headrace.cli.app import main
from headrace.deployment.deployment import Deployment
from headrace.status.plain import overview_of
Deployment.overview = lambda self: overview_of({overview})
sys.argv = ["headrace", *{arguments}]
main()
"""


def started(topology: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run `status` of a healthy topology, with more arguments, in its own process."""
    program = PROGRAM.format(
        overview=plain_overview(overview("ENABLED")), arguments=["status", str(topology), *arguments]
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Wait for its end; return its standard error."""
    try:
        return process.communicate(timeout=ENDED_S)[1]
    finally:
        process.kill()


@pytest.mark.long
def test_pipe_closed_by_its_reader_is_no_error(topology):
    process = started(topology, "--watch", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["topology"] == "t"
    process.stdout.close()  # as `head -1` does
    process.stdout = None
    assert (end(process), process.returncode) == ("", DONE)


@pytest.mark.long
def test_table_for_a_reader_that_left_is_no_error(topology):
    process = started(topology, "--watch")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("topology t")  # into a pipe it prints one table per look
    process.stdout.close()
    process.stdout = None
    assert (end(process), process.returncode) == ("", DONE)


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "interrupted\n")])
def test_signal_ends_a_verb_without_a_traceback(topology, number, code, said):
    process = started(topology, "--watch", "--json")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(number)
    assert (end(process), process.returncode) == (said, code)


def test_purge_asks_first_and_needs_yes_without_a_terminal(run, topology, monkeypatch, capsys):
    monkeypatch.setattr(Deployment, "down", lambda self, **_: pytest.fail("it was done"))
    assert run("down", topology, "--purge") == WRONG_USE
    told = capsys.readouterr().err
    assert "a: its embedded server, with every table in it" in told
    assert "fix: confirm with --yes" in told
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert run("down", topology, "--purge") == FINDING
    assert "nothing was done" in capsys.readouterr().err
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    monkeypatch.setattr(Deployment, "down", lambda self, **_: [])
    assert run("down", topology, "--purge") == DONE


OWN = """
topology: t
sites:
  a: {database: {kind: postgres, dsn: "${S6_DSN}"}}
  b: {database: {kind: embedded}}
replicate:
  - {tables: [public.*], from: a, to: [b]}
"""


def test_secret_without_a_value_stops_only_verbs_that_connect(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(OWN + 'alerts: {to: [{webhook: "${S6_HOOK}"}], component: true}\n')
    for name in ("S6_DSN", "S6_HOOK"):
        monkeypatch.delenv(name, raising=False)
    assert run("check", file, "--offline") == DONE
    told = capsys.readouterr().out
    assert "warning" in told
    assert "S6_DSN is not set" in told
    assert "S6_HOOK is not set" in told
    assert run("plan", file, "--offline") == DONE
    assert run("audit", file) == DONE
    assert run("status", file) == WRONG_USE
    assert "is not up" in capsys.readouterr().err
    for verb in (["check"], ["plan"], ["up"], ["down"], ["verify"]):
        assert run(*verb, file) in {FINDING, WRONG_USE}
        told = capsys.readouterr()
        assert "S6_DSN is not set" in told.out + told.err, verb


def test_offline_plan_takes_a_secret_without_a_value_for_the_one_in_force(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    monkeypatch.setenv("S6_DSN", "host=127.0.0.1 port=1 dbname=nowhere")
    spec = read_topology(file)
    spec.state_dir.mkdir(parents=True)
    document = {"spec": spec_to_json(spec), "prepared": "x", "labels": {}}
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps(document))
    assert run("plan", file, "--offline") == DONE
    expected = capsys.readouterr().out
    monkeypatch.delenv("S6_DSN")
    assert run("plan", file, "--offline") == DONE
    assert capsys.readouterr().out == expected


def test_only_a_users_database_can_be_lost(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    monkeypatch.delenv("S6_DSN", raising=False)  # it went with the server
    assert run("down", file, "--lost", "a") == WRONG_USE
    assert run("down", file, "--purge", "--yes", "--lost", "b") == WRONG_USE
    assert "name one of a" in capsys.readouterr().err
    assert run("down", file, "--purge", "--yes", "--lost", "a") == DONE
    assert "a: lost, nothing was removed there" in capsys.readouterr().err


def test_down_mentions_only_existing_slots(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    monkeypatch.setenv("S6_DSN", "host=127.0.0.1 port=1 dbname=nowhere")
    answers = iter([None, 5_000_000, DatabaseUnavailable("connection refused")])

    def retained(*_: object) -> int | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("actors.site.connection.retained_bytes", retained)
    told = []
    for _ in range(3):
        assert run("down", file) == DONE
        told.append(capsys.readouterr().err)
    assert "slot" not in told[0]
    assert "the slot at a stays, and the database keeps its WAL for it (5.0 MB now)" in told[1]
    assert "a cannot be reached (connection refused): if it has a slot" in told[2]


def test_down_names_triggers_that_keep_recording_deletes(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(
        OWN.replace("tables: [public.*], from: a, to: [b]", "tables: [public.t, public.u], between: [a, b]")
        + "conflict_handlers: [{table: public.t, method: latest_timestamp}]\ntombstones: {retention_days: 7}\n"
    )
    monkeypatch.setenv("S6_DSN", "host=127.0.0.1 port=1 dbname=nowhere")
    monkeypatch.setattr("actors.site.connection.retained_bytes", lambda *_: None)
    assert run("down", file) == DONE
    told = capsys.readouterr().err
    assert "the triggers at a continue to record deletes of public.t (tombstones)" in told
    assert "triggers at b" not in told, "an embedded server has stopped by then"
    assert run("down", file, "--json") == DONE
    assert json.loads(capsys.readouterr().out)["tombstones_kept"] == {"a": ["public.t"]}


def test_unusual_schema_name_is_refused_with_its_spelling(run, tmp_path, capsys):
    file = tmp_path / "odd.yaml"
    file.write_text(ONE_WAY.replace("tables: [public.*]", "schemas: [Ünï cödé]"))
    assert run("check", file, "--offline") == FINDING
    assert """'"Ünï cödé"'""" in capsys.readouterr().out
    file.write_text(ONE_WAY.replace("tables: [public.*]", """schemas: ['"Ünï cödé"']"""))
    assert run("check", file, "--offline") == DONE
