"""Sequences before a switch-over: what is behind is shown, and set ahead within bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.cli.app import main
from headrace.console.exit_codes import DONE, FINDING, WRONG_USE

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: seq
sites:
  a: {database: {kind: postgres, dsn: "${SEQ_A}"}}
  b: {database: {kind: postgres, dsn: "${SEQ_B}"}}
replicate:
  - {tables: [public.*], from: a, to: [b]}
"""
TABLES = (
    "CREATE TABLE identity (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)",
    "CREATE TABLE serial (id serial PRIMARY KEY, v int)",
    "CREATE TABLE untouched (id serial PRIMARY KEY)",
    "CREATE TABLE plain (id int PRIMARY KEY)",
)
DOWN = "CREATE SEQUENCE {} INCREMENT -5 MINVALUE -1000 MAXVALUE -1 START -1"
BY_DEFAULT = "CREATE TABLE shared (id int PRIMARY KEY DEFAULT nextval('{}'))"


@pytest.fixture
def run(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """Run `headrace sequences` on two databases: (exit code, document or error)."""
    for dsn, name in ((source_database, "numbers"), (destination_database, "other_numbers")):
        with psycopg.connect(dsn, autocommit=True) as user:
            for statement in (*TABLES, DOWN.format(name), BY_DEFAULT.format(name)):
                user.execute(statement)
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute("CREATE TABLE missing (id serial PRIMARY KEY)")
        user.execute("CREATE TABLE bare (id serial PRIMARY KEY)")
        user.execute("INSERT INTO identity (v) SELECT 1 FROM generate_series(1, 41)")
        user.execute("INSERT INTO serial (v) VALUES (1)")
        user.execute("INSERT INTO shared SELECT nextval('numbers') FROM generate_series(1, 3)")  # -1, -6, -11
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE bare (id int PRIMARY KEY)")
        user.execute("INSERT INTO serial SELECT nextval('serial_id_seq') FROM generate_series(1, 9)")
    file = tmp_path / "seq.yaml"
    file.write_text(FILE)
    monkeypatch.setenv("SEQ_A", source_database)
    monkeypatch.setenv("SEQ_B", destination_database)

    def run_it(*arguments: object) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", ["headrace", "sequences", str(file), "--json", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        document = json.loads(capsys.readouterr().out)
        lines = {line["column"].removeprefix("public."): line for line in document.get("sequences", ())}
        return int(ended.value.code or 0), lines or document

    return run_it


def test_what_is_behind_is_shown_and_nothing_is_changed_until_wanted(
    run: Callable[..., Any], destination_database: str
):
    code, lines = run()
    assert code == FINDING
    nexts = {column: (line["source_next"], line["destination_next"]) for column, line in lines.items()}
    assert nexts == {
        "bare.id": (1, None),
        "identity.id": (42, 1),
        "missing.id": (1, None),
        "serial.id": (2, 10),
        "shared.id": (-16, -1),
        "untouched.id": (1, 1),
    }
    behind = {column for column, line in lines.items() if line["problem"].startswith("behind")}
    assert behind == {"identity.id", "shared.id"}
    assert run()[1] == lines

    code, lines = run("--advance", "--ahead", 10)
    assert code == DONE
    assert {column for column, line in lines.items() if line["was_set"]} == {
        "identity.id",
        "serial.id",
        "shared.id",
        "untouched.id",
    }
    with psycopg.connect(destination_database, autocommit=True) as user:
        (first,) = user.execute("INSERT INTO identity (v) VALUES (1) RETURNING id").fetchone() or ()
        (second,) = user.execute("INSERT INTO shared DEFAULT VALUES RETURNING id").fetchone() or ()
        (third,) = user.execute("INSERT INTO serial (v) VALUES (1) RETURNING id").fetchone() or ()
    assert (first, second, third) == (52, -66, 12)
    assert run("--advance")[0] == DONE  # nothing is behind: nothing is set back
    assert not any(line["was_set"] for line in run("--advance")[1].values())


def test_bounds_of_sequences_and_of_the_command_are_kept(run: Callable[..., Any]):
    code, lines = run("--advance", "--ahead", 300)
    assert code == FINDING
    assert "which is out of its bounds -1000 to -1: ALTER SEQUENCE" in lines["shared.id"]["problem"]
    assert lines["shared.id"]["destination_next"] == -1
    assert lines["identity.id"]["was_set"]
    for arguments in (("--ahead", -1), ("--ahead", 10**10), ("--at", "nowhere")):
        assert run("--advance", *arguments)[0] == WRONG_USE
