"""Sequences before a switch-over: those that are behind are shown, and advanced within bounds."""

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
def command(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Run `headrace sequences` on two databases; return the exit code and the output."""
    file = tmp_path / "seq.yaml"
    file.write_text(FILE)
    monkeypatch.setenv("SEQ_A", source_database)
    monkeypatch.setenv("SEQ_B", destination_database)

    def run_it(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "sequences", str(file), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().out

    return run_it


@pytest.fixture
def run(
    command: Callable[..., tuple[int, str]], source_database: str, destination_database: str
) -> Callable[..., tuple[int, Any]]:
    """Run the command on databases with tables; return the exit code and the lines by column, or the error."""
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

    def run_it(*arguments: object) -> tuple[int, Any]:
        code, printed = command("--json", *arguments)
        document = json.loads(printed)
        lines = {line["column"].removeprefix("public."): line for line in document.get("sequences", ())}
        return code, lines or document

    return run_it


def test_sequences_that_are_behind_are_shown_and_changed_only_on_request(
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
    assert run("--advance")[0] == DONE  # none is behind, so none is set back
    assert not any(line["was_set"] for line in run("--advance")[1].values())


def test_bounds_of_sequences_and_of_the_command_are_kept(run: Callable[..., Any]):
    code, lines = run("--advance", "--ahead", 300)
    assert code == FINDING
    assert "which is out of its bounds -1000 to -1: ALTER SEQUENCE" in lines["shared.id"]["problem"]
    assert lines["shared.id"]["destination_next"] == -1
    assert lines["identity.id"]["was_set"]
    for arguments in (("--ahead", -1), ("--ahead", 10**10), ("--at", "nowhere")):
        assert run("--advance", *arguments)[0] == WRONG_USE


BY_ANOTHER = (
    # A serial column whose default names another sequence, which also gives a second table its values.
    "CREATE SEQUENCE everywhere",
    "CREATE TABLE o (id bigserial PRIMARY KEY, v text)",
    "ALTER TABLE o ALTER id SET DEFAULT nextval('everywhere')",
    "CREATE TABLE p (id bigint PRIMARY KEY DEFAULT nextval('everywhere'), v text)",
    # A column that only its owned sequence gives values, through a trigger or the application.
    "CREATE TABLE q (id bigserial PRIMARY KEY)",
    "ALTER TABLE q ALTER id DROP DEFAULT",
    # A column whose default names two sequences.
    "CREATE SEQUENCE odd INCREMENT 2",
    "CREATE SEQUENCE even INCREMENT 2 START 2",
    "CREATE TABLE r (id bigint PRIMARY KEY DEFAULT CASE WHEN random() < 0.5 THEN nextval('odd') ELSE nextval('even') END)",
    # A column whose default comes from its domain.
    "CREATE SEQUENCE of_domain",
    "CREATE DOMAIN number AS bigint DEFAULT nextval('of_domain')",
    "CREATE TABLE u (id number PRIMARY KEY)",
    "CREATE SEQUENCE of_a_trigger",
)


def test_sequence_that_a_default_names_is_set_and_not_the_owned_one(
    command: Callable[..., tuple[int, str]], source_database: str, destination_database: str
) -> None:
    for dsn in (source_database, destination_database):
        with psycopg.connect(dsn, autocommit=True) as user:
            for statement in BY_ANOTHER:
                user.execute(statement)
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute("INSERT INTO o (v) SELECT 'x' FROM generate_series(1, 50)")
        user.execute("INSERT INTO q SELECT nextval('q_id_seq') FROM generate_series(1, 5)")
        user.execute("INSERT INTO r SELECT FROM generate_series(1, 100)")
        user.execute("INSERT INTO u DEFAULT VALUES")
        tables = {name: user.execute(f"SELECT id FROM {name}".encode()).fetchall() for name in "oqru"}
    code, printed = command("--json", "--advance")
    assert code == DONE
    document = json.loads(printed)
    assert [(line["column"], line["destination_sequence"]) for line in document["sequences"]] == [
        ("public.o.id", '"public"."everywhere"'),
        ("public.p.id", '"public"."everywhere"'),
        ("public.q.id", '"public"."q_id_seq"'),
        ("public.r.id", '"public"."even"'),
        ("public.r.id", '"public"."odd"'),
        ("public.u.id", '"public"."of_domain"'),
    ]
    assert [line["was_set"] for line in document["sequences"]] == [True, False, True, True, True, True]
    assert document["not_looked_at"] == [
        {"source": "a", "names": ["public.o_id_seq", "public.of_a_trigger"], "count": 2}
    ]
    with psycopg.connect(destination_database, autocommit=True) as user:  # as after the switch-over
        for name, rows in tables.items():
            user.cursor().executemany(f"INSERT INTO {name} (id) VALUES (%s)".encode(), rows)
        for statement in (
            "INSERT INTO o (v) VALUES ('new')",
            "INSERT INTO p (v) VALUES ('new')",
            "INSERT INTO q VALUES (nextval('q_id_seq'))",
            "INSERT INTO u DEFAULT VALUES",
        ):
            user.execute(statement)
        user.execute("INSERT INTO r SELECT FROM generate_series(1, 20)")
    code, printed = command()
    assert code == DONE
    assert "not looked at: sequences public.o_id_seq, public.of_a_trigger of a, which" in printed


def test_sequence_of_several_columns_is_never_set_back(
    command: Callable[..., tuple[int, str]], source_database: str, destination_database: str
) -> None:
    """The source has two sequences, the destination one: the second column is no reason to lower it."""
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute("CREATE TABLE a (id serial PRIMARY KEY); CREATE TABLE b (id serial PRIMARY KEY)")
        user.execute(
            "INSERT INTO a SELECT FROM generate_series(1, 50); INSERT INTO b SELECT FROM generate_series(1, 9)"
        )
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE SEQUENCE one")
        user.execute("CREATE TABLE a (id int PRIMARY KEY DEFAULT nextval('one'))")
        user.execute("CREATE TABLE b (id int PRIMARY KEY DEFAULT nextval('one'))")
    assert command("--advance")[0] == DONE
    with psycopg.connect(destination_database, autocommit=True) as user:
        assert user.execute("SELECT nextval('one')").fetchone() == (51,)
