"""Which commands the audit log records, and with which operator, beginning at the command line."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.audit.log import FILE, AuditLog
from headrace.audit.verbs import NOTED, READ_ONLY, written_arguments
from headrace.base.errors import ApplyError, ConfigError
from headrace.cli.app import app, main
from headrace.cli.verbs import Verb
from headrace.console.exit_codes import DONE, FAILURE, FINDING, INTERRUPTED, WRONG_USE
from headrace.deployment.deployment import Deployment

OWN = pwd.getpwuid(os.getuid()).pw_name
# The arguments after FILE for each recorded verb; each call is refused, because nothing runs.
ARGUMENTS = {
    "up": ["--keep-existing", "--timeout", "5"],
    "down": [],
    "start": ["capture_a"],
    "stop": ["capture_a"],
    "split": ["p"],
    "merge": ["p"],
    "capture": ["capture_a", "--first-scn", "7"],
    "copy": ["public.t", "--yes"],
    "sequences": ["--advance"],
    "chaos": ["--for", "5s"],
    "errors edit": ["3", "--set", "salary=4711"],
    "errors execute": ["3", "4"],
    "errors delete": ["3", "--yes"],
}


def verbs(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, *path, name)
    if path and not hasattr(command, "commands"):
        yield " ".join(path), command


VERBS = dict(verbs(typer.main.get_command(app)))


@pytest.fixture
def log(topology: Path) -> AuditLog:
    return AuditLog(Deployment.read(topology).spec.state_dir)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    def run_it(*arguments: object) -> object:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run_it


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_each_verb_is_recorded_or_read_only():
    assert set(NOTED).isdisjoint(READ_ONLY)
    assert sorted(VERBS) == sorted({*NOTED, *READ_ONLY}), "a new verb: add it to headrace.audit.verbs"
    assert {name for name, verb in VERBS.items() if not isinstance(verb, Verb)} == set()


def test_options_that_decide_whether_a_verb_is_recorded_exist():
    assert {
        name: needed - {each.name for each in VERBS[name].params} for name, needed in NOTED.items()
    } == dict.fromkeys(NOTED, frozenset())


def test_recorded_arguments_are_known():
    """A new option whose value is a secret or a row's value cannot get into the log unnoticed."""
    assert {each.name for verb in NOTED for each in VERBS[verb].params} == {
        "file",
        "address",
        "as_json",
        "verbose",
        "wait",
        "timeout",
        "yes",
        "everything",
        "stop",
        "apply",
        "at",
        "ahead",
        "advance",
        "different",
        "tables",
        "keep_existing",
        "take_over",
        "purge",
        "keep_servers",
        "component",
        "propagation",
        "name",
        "first_scn",
        "start_scn",
        "number",
        "numbers",
        "lost",  # names of sites
        "row",
        "role",
        "handler",
        "duration",
        "seed",
        "faults",
        "load",
        "dry_run",
        "allow_servers",
        "nulls",
        "sets",  # has values, so only the columns are recorded
    }


@pytest.mark.parametrize("verb", NOTED)
def test_recorded_verb_leaves_its_beginning_and_its_end(run, topology, log, monkeypatch, verb):
    monkeypatch.setattr(Deployment, "connect", raising(ConfigError("it is not up")))
    monkeypatch.setattr(Deployment, "up", raising(ConfigError("it is refused")))
    monkeypatch.setattr("headrace.commands.sequences.compare_sequences", raising(ConfigError("it is refused")))
    code = run(*verb.split(), topology, *ARGUMENTS[verb])
    first, last = log.lines().entries
    assert (first["event"], first["verb"], first["uid"], first["user"], first["pid"]) == (
        "began",
        verb,
        os.getuid(),
        OWN,
        os.getpid(),
    )
    assert {"file"} < {*first["arguments"]} or verb == "down"
    assert first["at"].endswith("Z")
    assert "login_uid" in first
    assert (last["event"], last["id"], last["exit_code"]) == ("ended", first["id"], code)
    assert last["outcome"] == ("done" if verb == "down" else "refused")
    assert "4711" not in (log.state_dir / FILE).read_text()


def test_read_only_command_leaves_no_entry(run, topology, log):
    for words in (
        ["capture", topology, "capture_a"],
        ["sequences", topology],
        ["status", topology],
        ["errors", "list", topology],
        ["check", topology, "--offline"],
    ):
        run(*words)
    assert not log.state_dir.exists()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ApplyError("it does not answer"), {"outcome": "failed", "exit_code": FAILURE, "code": ApplyError.code}),
        (ConfigError("no"), {"outcome": "refused", "exit_code": WRONG_USE, "code": ConfigError.code}),
        (KeyboardInterrupt(), {"outcome": "interrupted", "exit_code": INTERRUPTED}),
        (typer.Abort(), {"outcome": "interrupted", "exit_code": INTERRUPTED}),
        (ZeroDivisionError("a defect"), {"outcome": "failed", "exit_code": FAILURE, "code": "ZeroDivisionError"}),
    ],
)
def test_end_entry_has_the_outcome(run, topology, log, tmp_path, monkeypatch, error, outcome):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for the traceback of a defect
    monkeypatch.setattr(Deployment, "switch", raising(error))
    assert run("stop", topology, "capture_a") == outcome["exit_code"]
    last = log.lines().entries[-1]
    assert {name: last[name] for name in ("outcome", "exit_code", "code") if name in last} == outcome


def test_command_that_the_operator_declines_ends_as_a_finding(run, topology, log, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert run("down", topology, "--purge") == FINDING
    assert log.lines().entries[-1]["outcome"] == "finding"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_command_that_a_signal_ended_is_recorded(topology, log, number):
    program = (
        "import sys, time; import headrace.cli.app, headrace.deployment.deployment\n"
        "def hang(*_, **__): print('there', flush=True); time.sleep(60)\n"
        "headrace.deployment.deployment.Deployment.switch = hang\n"
        f"sys.argv = ['headrace', 'stop', {str(topology)!r}, 'capture_a']; headrace.cli.app.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        process.wait()
    events = [(entry["event"], entry.get("outcome"), entry.get("exit_code")) for entry in log.lines().entries]
    assert events == [("began", None, None), *([("ended", "interrupted", 143)] if number == signal.SIGTERM else [])]


def test_command_continues_with_a_warning_when_the_log_cannot_be_written(run, topology, log, monkeypatch, capsys):
    monkeypatch.setattr(Deployment, "switch", lambda *_, **__: "it is stopped")
    (log.state_dir / FILE).mkdir(parents=True)
    assert run("stop", topology, "capture_a") == DONE
    told = capsys.readouterr().err
    assert f"warning: {log.state_dir / FILE} does not record that this command began: Is a directory" in told
    assert "it is stopped" in told


def test_log_survives_the_purge_that_it_records(run, topology, log, capsys):
    (log.state_dir / "sites").mkdir(parents=True)
    assert run("down", topology, "--purge", "--yes") == DONE
    assert "state folder removed, its audit log excepted" in capsys.readouterr().err
    assert [each.name for each in log.state_dir.iterdir()] == [FILE]
    assert log.lines().entries[0]["arguments"] == {"file": str(topology), "purge": True, "yes": True}


def test_commands_are_listed_with_their_ends(run, topology, log, monkeypatch, capsys):
    monkeypatch.setattr(Deployment, "switch", raising(ConfigError("no")))
    assert run("audit", topology) == DONE
    assert capsys.readouterr().out == "no command is recorded\n"
    run("stop", topology, "capture a")
    entry = log.lines().entries[0]
    log.append({**entry, "id": "killed", "login": "a\x1b[2J", "verb": "up"})
    capsys.readouterr()
    assert run("audit", topology) == DONE
    stopped, killed = capsys.readouterr().out.splitlines()
    assert f"stop file={topology} 'component=capture a': refused {ConfigError.code} at 2" in stopped
    assert f"{OWN} (login a\u241b[2J)@" in killed
    assert killed.endswith("no end: it is running, or was killed")
    assert run("audit", topology, "--json", "--last", 1) == DONE
    (shown,) = json.loads(capsys.readouterr().out)["commands"]
    assert (shown["id"], shown["ended"], shown["outcome"]) == ("killed", None, None)


def test_log_with_damaged_lines_is_listed(run, topology, log, capsys):
    log.append({"verb": "up"})
    with (log.state_dir / FILE).open("a") as file:
        file.write("[]\nnonsense\n")
    assert run("audit", topology) == DONE
    assert "2 lines of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (
            {"sets": ["salary=4711", "old.note=a=b"], "nulls": ["note"]},
            {"sets": ["salary", "old.note"], "nulls": ["note"]},
        ),
        ({"numbers": list(range(250))}, {"numbers": [*range(100), "and 150 more"]}),
        ({"role": "r" * 1000, "yes": False, "at": "", "row": 0, "tables": None}, {"role": "r" * 300 + "...", "row": 0}),
    ],
)
def test_arguments_are_recorded_bounded_and_without_row_values(given, written):
    assert written_arguments(given) == written
