"""Commands in messages can be pasted into a shell as printed."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from headrace.cli.app import app
from headrace.console.output import Output
from tests.support.session.packages import PACKAGES, ROOT
from topology.printed_commands import FILE_VERBS, commands_with_file, with_file

FILE = "hr.yaml"
# Mentioned in prose, not to be typed as printed.
SPOKEN_OF = {
    ("headrace/databases/connectors.py", "copy hr.yaml"): "what a session calls itself",
    ("headrace/databases/postgres/copying/table_copy.py", "copy hr.yaml"): "what a session calls itself",
    (
        "headrace/databases/destination_views.py",
        "errors show hr.yaml",
    ): "says of a view's column where the whole of it is",
    (
        "headrace/databases/postgres/destination/planning.py",
        "track hr.yaml",
    ): "says what a row that is to be granted is for",
    (
        "headrace/cli/topology.py",
        "down hr.yaml --purge",
    ): "one of two ends of a slot; it lists what it removes, and asks",
    ("topology/edits/capture_scns.py", "capture hr.yaml 7 7 7"): "the second 7 is an option of two",
}

# A text with a command, which can begin in one literal and continue in the next. Modules without a match need no syntax
# tree.
_MAY_PRINT = re.compile(r"headrace(?: |[\"'`]|\\)")


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
def test_printed_command_names_the_users_file(text: str, words: list[str], file: str):
    shown = with_file(text, file)
    command = shown[shown.index("headrace") :].partition("`")[0]
    assert shlex.split(command.replace(", or", " or"))[: len(words) + 2] == ["headrace", *words, file]
    assert "FILE" not in shown
    assert with_file(shown, file) == shown


@pytest.mark.parametrize("file", ["hr.yaml", "my hr.yaml", "hr.conf", "my file's.yaml", "/etc/$(reboot)"])
def test_file_is_inserted_once_per_shown_command(
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
def test_other_texts_are_left_unchanged(text: str):
    assert with_file(text, "hr.yaml") == text
    assert with_file("headrace up", "") == "headrace up"


def test_commands_in_a_json_document_keep_it_valid_json():
    document = {"hint": 'say "headrace up FILE"', "at": ["headrace status"]}
    shown = json.loads(with_file(json.dumps(document), 'a "b".yaml', in_json=True))
    assert shown == {"hint": 'say "headrace up \'a "b".yaml\'"', "at": ["headrace status 'a \"b\".yaml'"]}


def test_file_verbs_are_the_commands_that_take_a_file():
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


def test_no_message_inserts_the_file_name_itself():
    """Such a file name would not be quoted. Messages write FILE or omit it; the output inserts the user's file name."""
    places = re.compile(r"headrace (" + "|".join(FILE_VERBS) + r") $")
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if not _MAY_PRINT.search(text := path.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.JoinedStr):
                    continue
                for part, value in itertools.pairwise(node.values):
                    is_command = (
                        isinstance(part, ast.Constant)
                        and places.search(str(part.value))
                        and isinstance(value, ast.FormattedValue)
                    )
                    if is_command and "file" in ast.unparse(value):
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module except docstrings; 7 stands for each inserted value."""
    found: list[str] = []
    source = path.read_text(encoding="utf-8")
    pending: list[ast.AST] = [ast.parse(source)] if _MAY_PRINT.search(source) else []
    for node in pending:
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(each.value) if isinstance(each, ast.Constant) else "7" for each in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            pending += ast.iter_child_nodes(node)
    # A command on another file is checked like any other command.
    yield from (re.sub(r"\b[A-Z]+_FILE\b", "FILE", text) for text in found if "headrace " in text)


def printed_commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield each command's words after `headrace` in a text, and whether its end is marked (else prose follows)."""
    shown = with_file(text, FILE)
    for start, end, _ in commands_with_file(text, FILE):
        before = len(with_file(text[:start], FILE))
        command = with_file(text[start:end], FILE)
        assert shown[before:].startswith(command), (text, command)
        is_marked = before > 0 and shown[before - 1] == "`"
        rest = shown[before + len(command) :]
        rest = rest.partition("`")[0] if is_marked else re.split(r"[`;,()\n]|[:.](?= |$)", rest, maxsplit=1)[0]
        numbered = ("7" if each in {"N", "NUMBER"} else each for each in rest.split())
        yield [*command.split()[1:], *numbered], is_marked


@cache  # Typer makes it anew each time
def command_line() -> Any:
    return get_command(app)


def wrong(words: Sequence[str]) -> str:
    """Return why the command line rejects these words or does nothing with them; empty if it accepts them."""
    command, rest = command_line(), list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    try:
        given = command.make_context(words[0], rest).params
    except Exception as error:  # noqa: BLE001 - click's, which Typer brings along
        return str(error)
    if words[0] == "copy" and not (given["tables"] or given["different"]):
        return "no table is named"
    if words[0] == "errors" and "numbers" in given and not (given["numbers"] or given["everything"]):
        return "no error transaction is named"
    if given.get("purge") and not given["keep_servers"]:
        return "it removes embedded servers with their rows"
    return ""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_printed_command_is_accepted_by_the_command_line(package: str):
    """A user who types the command gets the promised result, not a message about a missing argument."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        for text in texts(path):
            for words, is_marked in printed_commands(text):
                tried = [words] if is_marked else [words[:length] for length in range(len(words), 1, -1)]
                problems = [problem for each in tried if (problem := wrong(each))]
                if len(problems) == len(tried) and (place, " ".join(words)) not in SPOKEN_OF:
                    found.append(f"{place}: headrace {' '.join(words)}: {problems[-1]}")
    assert found == []
