"""Commands in messages can be taken into a shell as they are printed."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from headrace.cli import app
from headrace.console import Output
from topology.printed_commands import FILE_VERBS, with_file

ROOT = Path(__file__).parents[3]
PACKAGES = ("actors", "databases", "headrace", "protos", "redo", "rules", "spark_apply", "streams", "topology")


@pytest.mark.parametrize("file", ["hr.yaml", "my file's.yaml", "/etc/headrace/$(reboot).yaml"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run `headrace up` again", ["up"]),
        ("headrace down FILE --purge", ["down"]),
        ("`headrace errors execute FILE 7`", ["errors", "execute"]),
        ("headrace copy FILE hr.t, or wait", ["copy"]),
        ("""headrace copy FILE '"hr"."t"' """, ["copy"]),
        ("""`headrace verify FILE '"Odd Schema".t'`""", ["verify"]),
    ],
)
def test_command_names_the_reader_s_file(text: str, words: list[str], file: str):
    shown = with_file(text, file)
    command = shown[shown.index("headrace") :].partition("`")[0]
    assert shlex.split(command.replace(", or", " or"))[: len(words) + 2] == ["headrace", *words, file]
    assert "FILE" not in shown
    assert with_file(shown, file) == shown


@pytest.mark.parametrize("file", ["hr.yaml", "my hr.yaml", "hr.conf", "my file's.yaml", "/etc/$(reboot)"])
def test_file_is_named_once_in_whatever_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str
):
    monkeypatch.setattr(Output, "file", file)
    table = Table.grid()
    table.add_row("run `headrace up` again")
    Output().result(Group(Group(Text("run `headrace up` again")), Panel(Text("run `headrace up` again")), table))
    shown = capsys.readouterr().out
    assert shown.count(f"run `headrace up {shlex.quote(file)}` again") == 3
    assert shown.count(shlex.quote(file)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "headrace up other.yaml",
        "headrace up /a/b.yml",
        "headrace doctor",
        "headrace claim t",
        "/opt/headrace up",
        "the schema headrace belongs to",
        "headrace demo",
        "headrace start-up",
        "headrace upgrades",
        "end it with `headrace down OTHER_FILE`",
        "headrace up EARLIER_FILE",
    ],
)
def test_nothing_else_is_touched(text: str):
    assert with_file(text, "hr.yaml") == text
    assert with_file("headrace up", "") == "headrace up"


def test_commands_in_a_json_document_leave_it_one():
    document = {"hint": 'say "headrace up FILE"', "at": ["headrace status"]}
    shown = json.loads(with_file(json.dumps(document), 'a "b".yaml', in_json=True))
    assert shown == {"hint": 'say "headrace up \'a "b".yaml\'"', "at": ["headrace status 'a \"b\".yaml'"]}


def test_verbs_are_those_of_the_command_line_that_take_a_file():
    def verbs(command: object, before: str = "") -> set[str]:
        found: set[str] = set()
        for name, each in getattr(command, "commands", {}).items():
            full = f"{before}{name}"
            found |= (
                verbs(each, f"{full} ")
                if hasattr(each, "commands")
                else {full}
                if "file" in {p.name for p in each.params}
                else set()
            )
        return found

    assert isinstance(app, typer.Typer)
    assert set(FILE_VERBS) == verbs(get_command(app)) - {"doctor"}  # that one can do without


def test_no_message_names_the_file_by_itself():
    """It would not be quoted; written as FILE, or left out, it is put in where the message is shown."""
    places = re.compile(r"headrace (" + "|".join(FILE_VERBS) + r") $")
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = node.values if isinstance(node, ast.JoinedStr) else []
                for part, value in itertools.pairwise(parts):
                    is_command = (
                        isinstance(part, ast.Constant)
                        and places.search(str(part.value))
                        and isinstance(value, ast.FormattedValue)
                    )
                    if is_command and "file" in ast.unparse(value):
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
