"""What the pages say that a person types can be typed: commands, options and arguments exist. Each task page has its parts.

`test_guides` reads and checks the YAML blocks of the same pages. Each page names the test that does its task for real.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from headrace.cli.app import app
from headrace.commands.kept import KeptSlot
from headrace.console.output import Output
from headrace.databases.postgres.compared.types import missing_tables
from headrace.databases.postgres.source.preflight import _role_findings
from headrace.lcr.table_name import TableName
from tests.support.session.guides import blocks
from tests.support.session.packages import ROOT
from tests.support.session.verbs import verbs

DOCS = ROOT / "docs"
TASKS = sorted((DOCS / "tasks").glob("*.md"))
START = DOCS / "start" / "two-databases.md"
PAGES = sorted(file for file in DOCS.rglob("*.md") if file.parent.name != "decisions")
EXPECTED = {
    *("add-a-table", "alter-a-table", "resolve-conflicts", "write-a-handler", "add-a-site", "switch-over", "recover"),
    *("secure", "tune", "read-an-incident"),
}
VERBS = dict(verbs(typer.main.get_command(app)))
GROUPS = {verb.partition(" ")[0] for verb in VERBS if " " in verb}
# Not commands: what sessions are called, and a word for any verb.
NAMES = {"compare", "COMMAND"}
LINE_MAX = 120

ids = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
of_tasks = pytest.mark.parametrize("page", TASKS, ids=lambda path: path.stem)


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Every command of a page, and whether it stands in a block: there it is complete."""
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
    for _, language, block in fence.findall(text):
        for line in block.splitlines():
            found = re.match(r"\s*(?:\$ )?(?:sudo -u \w+ )?(?:[\w./]*bin/)?(headrace .*)", line)
            if found and language in {"", "console", "sh"}:
                yield found[1], True
    for span in re.findall(r"`(headrace [^`]+)`", fence.sub("", text)):
        yield span, False


def wrong(command: str, *, is_complete: bool = False) -> str:
    """What the command line says of a command; empty: nothing."""
    plain = re.sub(r"[\[\]]|\|\w+", "", command)  # what may be left out, and other words for one
    _, first, *rest = shlex.split(plain, comments=True)
    if first in NAMES or first in {"--help", "--version"}:
        return ""
    verb = first
    if first in GROUPS:
        verb = f"{first} {rest.pop(0)}" if rest and f"{first} {rest[0]}" in VERBS else f"{first} list"
    if verb not in VERBS:
        return f"{command}: no such command"
    found = VERBS[verb]
    context = found.make_context(verb, [], resilient_parsing=True)
    context.resilient_parsing = False
    try:
        given, left, _ = found.make_parser(context).parse_args([word for word in rest if word != "--help"])
    except Exception as error:  # noqa: BLE001 - of the library that typer was built on
        return f"{command}: {error}"
    if left:
        return f"{command}: {left} is too much"
    missing = [each.name for each in found.params if is_complete and each.required and not given.get(each.name or "")]
    return f"{command}: lacks {missing}" if missing else ""


@ids
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    found = [wrong(command, is_complete=complete) for command, complete in commands(page.read_text())]
    assert [each for each in found if each] == []


@pytest.mark.parametrize(
    "command",
    [
        "headrace frobnicate FILE",
        "headrace up FILE --nowait",
        "headrace down",
        "headrace errors lists FILE extra",
        "headrace split FILE P Q",
    ],
)
def test_a_command_that_cannot_be_typed_is_found(command: str) -> None:
    assert wrong(command, is_complete=True)


def test_commands_are_found_in_blocks_of_lists_and_in_lines() -> None:
    text = (
        "1. Do:\n\n    ```console\n    $ headrace up a.yaml  # now\n    said\n    ```\n\nThen `headrace down FILE`.\n"
    )
    assert list(commands(text)) == [("headrace up a.yaml  # now", True), ("headrace down FILE", False)]


def test_there_is_a_page_for_each_task() -> None:
    assert {page.stem for page in TASKS} >= EXPECTED


@of_tasks
def test_a_task_says_when_how_and_how_to_check(page: Path) -> None:
    parts = re.findall(r"^## (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    assert parts[:3] == ["When", "Steps", "Check"]
    assert set(parts[3:]) <= {"Details", "Exceptions"}


@of_tasks
def test_a_task_names_the_test_that_does_it(page: Path) -> None:
    check = page.read_text().partition("\n## Check\n")[2].partition("\n## ")[0]
    assert re.search(r"`tests/[\w/]+(\.py(::test_\w+)?)?`", check)


@pytest.mark.parametrize("page", [*TASKS, START, DOCS / "index.md"], ids=lambda path: path.stem)
def test_lines_are_short(page: Path) -> None:
    """Rows of tables and what commands print are as long as they are."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > LINE_MAX and not re.match(r"\s*(\||- `tests/|`)", line)]
    assert long == []


def test_the_handler_of_the_page_passes_its_own_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, test = (text for name, text in blocks("python") if name.startswith("write-a-handler "))
    (handler,) = (text for name, text in blocks("yaml") if name.startswith("write-a-handler "))
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "orders.py").write_text(function)
    (tmp_path / "shop.yaml").write_text(handler)
    (shell,) = (text for name, text in blocks("console") if name.startswith("write-a-handler "))
    for name, dsn in re.findall(r'(\w+_DSN)="([^"]+)"', shell):
        monkeypatch.setenv(name, dsn)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(test, str(DOCS / "tasks" / "write-a-handler.md"), "exec"), names)
    (run,) = (each for name, each in names.items() if name.startswith("test_"))
    run()  # type: ignore[operator]


def test_the_first_page_shows_findings_as_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "file", "hr.yaml")
    output, text = Output(), START.read_text()
    server = type("Server", (), {"role": "headrace", "can_replicate": True, "can_create": False, "database": "hr"})
    output.findings(_role_findings(server, "sites.dbs1", has_admin=False))
    assert (printed := capsys.readouterr().out)
    assert printed in text
    assert f"  fix: {missing_tables([TableName('hr', 'employees')], ['hr'])}\n" in text
    kept = KeptSlot(site="dbs1", retained_bytes=56)
    output.say(f"warning: {kept.text()}; it ends with `headrace up FILE` or `headrace down FILE --purge`")
    assert capsys.readouterr().err in text
