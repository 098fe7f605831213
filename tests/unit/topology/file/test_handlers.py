"""Users' handlers in a topology file: reading, mutual exclusions, and reports of code that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.deployment.inspection import check_topology
from headrace.rules.user_code.binds import read_statement
from headrace.rules.user_code.handlers import NO_HANDLERS, HandlerRules
from topology.edits.changes import changes
from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import read_topology
from topology.plan import make_plan

EXAMPLE = Path(__file__).parents[4] / "examples" / "handlers.yaml"
HEAD = """
topology: t
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
replicate:
  - {tables: [shop.*], from: dbs1, to: [dbs2]}
code: code
"""


def written(
    folder: Path, lists: str, code: str = "def run(lcr, session): ...\ndef fix(lcr, error, session): ...\n"
) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "own.py").write_text(code)
    (folder / "t.yaml").write_text(HEAD + lists)
    return folder / "t.yaml"


def problems(
    folder: Path, lists: str, code: str = "def run(lcr, session): ...\ndef fix(lcr, error, session): ...\n"
) -> list[str]:
    found = check_topology(written(folder, lists, code), ask_databases=False).findings
    return [f"{finding.problem}: {finding.fix}" for finding in found if finding.is_error]


def test_example_is_checked_with_its_code_and_versions_are_planned() -> None:
    assert [finding for finding in check_topology(EXAMPLE, ask_databases=False).findings if finding.is_error] == []
    spec = read_topology(EXAMPLE)
    (apply,) = spec.applies
    assert [function.name for function in apply.handlers.functions()] == ["orders:apply_order", "customers:keep_both"]
    text = make_plan(spec).as_text()
    assert all(str(function) in text for function in apply.handlers.functions())


def test_handlers_survive_storage() -> None:
    (apply,) = read_topology(EXAMPLE).applies
    assert HandlerRules.from_bytes(apply.handlers.to_bytes()) == apply.handlers
    assert HandlerRules.from_bytes(NO_HANDLERS.to_bytes()) == NO_HANDLERS
    spec = read_topology(EXAMPLE)
    assert spec_from_json(spec_to_json(spec)).applies == spec.applies


def test_code_change_restarts_only_the_apply_process(tmp_path: Path) -> None:
    lists = 'dml_handlers:\n  - {table: shop.a, function: "own:run"}\n'
    before = read_topology(written(tmp_path, lists))
    (tmp_path / "code" / "other.py").write_text("x = 1\n")
    assert all(change.action == "same" for change in changes(before, read_topology(tmp_path / "t.yaml")))
    after = read_topology(written(tmp_path, lists, "def run(lcr, session):\n    pass\n"))
    found = {
        change.component.partition(":")[0]: change.action
        for change in changes(before, after)
        if change.action != "same"
    }
    assert found == {"apply": "restarts", "site": "takes over"}


def test_handler_list_of_an_apply_process_replaces_the_files_list(tmp_path: Path) -> None:
    lists = 'dml_handlers:\n  - {table: shop.a, function: "own:run"}\n'
    text = (
        written(tmp_path, lists)
        .read_text()
        .replace(
            "replicate:\n  - {tables: [shop.*], from: dbs1, to: [dbs2]}\n",
            "queues: {q1: {site: dbs1}, q2: {site: dbs2}}\ncaptures: {c: {site: dbs1, queue: q1, rules: {include:"
            " [{tables: [shop.*]}]}}}\n"
            "propagations: {p: {from: q1, to: q2}}\napplies:\n  mine: {site: dbs2, source: dbs1, queue: q2,"
            " dml_handlers: []}\n  other: {site: dbs2, source: dbs1, queue: q2}\n",
        )
    )
    (tmp_path / "t.yaml").write_text(text)
    from topology.file.reading import examine

    spec = examine(tmp_path / "t.yaml").spec
    assert spec is not None
    assert {apply.name: len(apply.handlers.dml) for apply in spec.applies} == {"mine": 0, "other": 1}


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ('dml_handlers: [{table: shop.a, function: "own:none"}]', "code/own.py has no function none: it has fix, run"),
        (
            'dml_handlers: [{table: shop.a, function: "nowhere:run"}]',
            "there is no module nowhere in code or on the Python path",
        ),
        (
            'dml_handlers: [{table: shop.a, function: "own:fix"}]',
            "code/own.py, line 2: fix cannot be called with (lcr, session)",
        ),
        ('dml_handlers: [{table: shop.a, function: "own.py"}]', "'own.py' does not name a function"),
        ("dml_handlers: [{table: shop.a}]", "has neither a function nor statements"),
        (
            'dml_handlers: [{table: shop.a, function: "own:run"}, {table: shop.a, statements: [lcr.execute true]}]',
            "insert of shop.a has a DML handler already",
        ),
        (
            'dml_handlers: [{table: shop.a, operations: [delete], function: "own:run"}]\nerror_handlers: [{table:'
            ' shop.a, function: "own:fix"}]',
            "delete of shop.a has a procedure DML handler",
        ),
        (
            'error_handlers: [{table: shop.a, function: "own:fix"}, {table: shop.a, function: "own:fix"}]',
            "insert of shop.a has an error handler already",
        ),
        (
            'dml_handlers: [{table: shop.a, statements: ["INSERT INTO x VALUES (:now.id)"]}]',
            ":now.id names nothing of an LCR",
        ),
        ('precommit_handler: "own:fix"', "cannot be called with (commit_scn, session)"),
    ],
)
def test_handler_that_cannot_run_is_refused_with_its_place(tmp_path: Path, lists: str, problem: str) -> None:
    assert any(problem in found for found in problems(tmp_path, lists))


def test_code_that_cannot_be_parsed_is_refused_with_its_line(tmp_path: Path) -> None:
    found = problems(tmp_path, 'dml_handlers: [{table: shop.a, function: "own:run"}]', "def run(lcr:\n")
    assert found
    assert all("code/own.py, line 1" in each for each in found)


@pytest.mark.parametrize(
    ("text", "sql", "binds"),
    [
        ("INSERT INTO x VALUES (:new.a, :old.b, :NEW.A)", "INSERT INTO x VALUES ($1, $2, $1)", ("new.a", "old.b")),
        (
            "SELECT ':new.a', \":new.b\", $$:new.c$$, $t$ :x $t$, a::text, E'\\':new.d' -- :new.e\n, :commit_scn;",
            "SELECT ':new.a', \":new.b\", $$:new.c$$, $t$ :x $t$, a::text, E'\\':new.d' -- :new.e\n, $1",
            ("commit_scn",),
        ),
        (
            "UPDATE x SET a = :new.\"Some Name\" WHERE b[1:2] = '{}'",
            "UPDATE x SET a = $1 WHERE b[1:2] = '{}'",
            ("new.Some Name",),
        ),
    ],
)
def test_binds_are_found_by_postgresqls_lexical_rules(text: str, sql: str, binds: tuple[str, ...]) -> None:
    found = read_statement(text)
    assert (found.sql, found.binds) == (sql, binds)


@pytest.mark.parametrize(
    "text", ["", "SELECT $1", "SELECT :new", "lcr.execute", "SELECT 'open", "SELECT /* a /* b */ */ 1"]
)
def test_unparsable_statement_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_statement(text)
