"""What a new user reads first is true: the README's commands with their output, and all keys and options of the
reference.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from headrace.cli.app import app, main
from headrace.commands.verification import comparison_line
from headrace.console.exit_codes import DONE
from headrace.console.status_view import render
from headrace.rules.conflict_handlers import KINDS, METHODS
from headrace.status.overview import Flow, Overview
from tests.support.actors.overviews import component_status
from tests.support.session.packages import ROOT
from tests.support.session.verbs import verbs
from topology.checks.static import check
from topology.edits.changes import components_of
from topology.file.reading import read_topology
from topology.file.shape import models

README = ROOT / "README.md"
START = ROOT / "docs" / "start" / "two-databases.md"
FIRST = pytest.mark.parametrize("document", [README, START], ids=lambda path: path.stem)
FILE, COMMANDS = (ROOT / "docs" / "reference" / f"{name}.md" for name in ("file", "commands"))
CONFLICTS = ROOT / "docs" / "how" / "conflicts.md"
SERVERS = {"DBS1_DSN": "postgresql://127.0.0.1/a", "DBS2_DSN": "postgresql://127.0.0.1/b"}
WORDS_MAX = 1_300  # five minutes at 260 words per minute


@pytest.fixture
def hr(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first topology of a document as a file, in the folder of the session and with its environment."""
    (block,) = re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
    (tmp_path / "hr.yaml").write_text(block)
    monkeypatch.chdir(tmp_path)
    exported = dict(re.findall(r'^\$ export (\w+)="(postgresql:.*)"$', document.read_text(), re.MULTILINE))
    assert set(exported) == set(SERVERS)
    for name, dsn in exported.items():
        monkeypatch.setenv(name, dsn)
    return tmp_path / "hr.yaml"


def shown(document: Path, verb: str) -> str:
    """What a document says that a verb prints the last time: the lines behind its command, up to the next one."""
    printed = re.findall(
        rf"^\$ (?:\.venv/bin/)?headrace {verb} hr\.yaml\n(.*?)(?=^\$ |^```$)",
        document.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert printed, f"{document.name} shows no `headrace {verb}`"
    return str(printed[-1])


@pytest.mark.parametrize("document", [README, COMMANDS], ids=lambda path: path.name)
def test_every_make_command_is_a_target(document: Path):
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"make (\w+)", document.read_text())) - {"and", "it"}
    assert {"demo", "test", "setup"} <= commands
    assert [command for command in commands if f"\n{command}:" not in makefile] == []


def test_every_make_target_is_in_the_reference():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"help"}
    assert {"demo", "test"} <= targets
    assert [target for target in targets if f"`make {target}`" not in COMMANDS.read_text()] == []


@pytest.mark.parametrize("document", [README, START, FILE], ids=lambda path: path.name)
def test_first_topology_of_a_document_is_valid(document: Path, tmp_path: Path):
    block = re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)[0]
    (tmp_path / "hr.yaml").write_text(block)
    assert check(read_topology(tmp_path / "hr.yaml", SERVERS)) == ()


def test_readme_has_one_topology_and_is_read_in_five_minutes():
    text = README.read_text()
    assert text.count("```yaml\n") == 1
    assert len(text.split()) <= WORDS_MAX


@FIRST
@pytest.mark.parametrize("verb", ["check", "plan"])
def test_what_a_command_is_shown_to_print_it_prints(
    document: Path, verb: str, hr: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The README shows a part of the plan. The databases are not asked, and neither output mentions them."""
    monkeypatch.setattr(sys, "argv", ["headrace", verb, "--offline", hr.name])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == DONE
    assert shown(document, verb).strip() in capsys.readouterr().out


@FIRST
def test_the_status_is_shown_as_the_command_prints_it(document: Path, hr: Path):
    spec = read_topology(hr, SERVERS)
    states = {
        "site:dbs1": "IDLE",
        "site:dbs2": "READY",
        "spark:dbs2": "RUNNING",
        "apply:apply_from_dbs1_at_dbs2": "IDLE",
        "capture:capture_dbs1": "WAITING FOR REDO",
    }
    seen = Overview(
        topology=spec.name,
        state="RUNNING",
        flows=tuple(
            Flow(
                apply=apply.name,
                source=apply.source,
                destination=apply.site,
                lag_s=0.2,
                applied_scn=1,
                source_scn=1,
                scn_gap=0,
                errors=0,
            )
            for apply in spec.applies
        ),
        components=tuple(component_status(each.name, states[each.name]) for each in components_of(spec)),
    )
    console = Console(file=io.StringIO(), width=80)
    console.print(render(seen))
    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert shown(document, "status").splitlines() == printed


@FIRST
def test_a_comparison_is_shown_as_the_command_prints_it(document: Path):
    line = comparison_line(
        {
            "owner": "hr",
            "name": "employees",
            "destination_owner": "hr",
            "destination_name": "employees",
            "source": "dbs1",
            "destination": "dbs2",
            "equal": True,
            "source_rows": 107,
        }
    )
    assert shown(document, "verify").splitlines() == [line, "identical"]


def test_readme_has_ten_limits_and_links_to_the_others():
    (limits,) = re.findall(r"^## Limits\n(.*?)^## ", README.read_text(), re.DOTALL | re.MULTILINE)
    assert limits.count("\n- ") == 10
    assert "(docs/reference/limits.md)" in limits


SECTIONS = (
    models.TopologyModel,
    models.SiteModel,
    models.DatabaseModel,
    models.TlsModel,
    models.ReplicateModel,
    models.SpokeModel,
    models.QueueModel,
    models.CaptureModel,
    models.PropagationModel,
    models.ApplyModel,
    models.RulesModel,
    models.RuleModel,
)
REFUSED = {"latency"}  # a key that exists only to explain its absence


@pytest.mark.parametrize("section", SECTIONS, ids=lambda model: model.__name__)
def test_every_key_of_the_file_is_in_the_reference(section: type[models.Model]):
    spans = " ".join(re.findall(r"`[^`\n]+`", FILE.read_text()))
    keys = {field.alias or name for name, field in section.model_fields.items()} - REFUSED
    assert keys
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", spans)) == []


def test_keys_methods_and_kinds_of_conflict_handlers_are_in_their_table():
    section = FILE.read_text().partition("\n### Conflict handlers\n")[2].partition("\n### ")[0]
    rows = {
        key: (default, text) for key, default, text in re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", section, re.MULTILINE)
    }
    fields = models.ConflictHandlerModel.model_fields
    assert list(rows) == list(fields)
    words = {key: re.findall(r"`(\w+)`", "".join(row)) for key, row in rows.items()}
    assert sorted(words["method"]) == sorted(METHODS)
    assert sorted(words["on"]) == sorted(KINDS)
    assert rows["on"][0].strip() == f"`{fields['on'].default}`"
    of_methods = CONFLICTS.read_text().partition("\n## Handlers\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", of_methods, re.MULTILINE)) == sorted(METHODS)


def test_every_command_and_option_is_in_the_reference():
    text = COMMANDS.read_text()
    found = list(verbs(typer.main.get_command(app)))
    assert {"check", "errors show"} <= {verb for verb, _ in found}
    assert [
        verb for verb, _ in found if f"| `headrace {verb} " not in text and f"| `headrace {verb}`" not in text
    ] == []
    missing = {
        f"{verb}: {option}"
        for verb, command in found
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--") and not getattr(parameter, "hidden", False)
        # whole words only: `--at` does not match in `--at-all`
        if not re.search(rf"{option}(?![\w-])", text)
    }
    assert missing - {f"{verb}: --help" for verb, _ in found} == set()


def test_reference_names_only_existing_options():
    found = list(verbs(typer.main.get_command(app)))
    known = {
        option
        for _, command in found
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", COMMANDS.read_text()))
    assert named - known <= {"--help", "--version"}
