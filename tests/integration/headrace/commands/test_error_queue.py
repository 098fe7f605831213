"""The error queue as a user reads it directly from the destination's database, while the topology does not run."""

from __future__ import annotations

import json
import queue
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest

from actors.apply import ApplyHost
from headrace.base.errors import ConfigError
from headrace.cli.app import main
from headrace.commands import error_execution
from headrace.console.exit_codes import DONE, FAILURE, FINDING, WRONG_USE
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import ErrorEdit
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.schema import VERSIONS, schema_version
from headrace.databases.postgres.destination.row_reader import PostgresRowReader
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion
from spark_apply.apply_config import ApplyConfig
from spark_apply.driver.control import ApplyControl, Cores
from spark_apply.driver.groups.executions import ExecutionRequest
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, Engine
from tests.support.session.matrices import values
from tests.support.values.lcr_batches import column_values, transactions

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = f"""
topology: {TOPOLOGY}
sites:
  {SOURCE}: {{database: {{kind: postgres, dsn: "host=127.0.0.1 port=1 dbname=nobody_asks_it"}}}}
  dbs2: {{database: {{kind: postgres, dsn: "${{ERRORS_DSN}}"}}}}
queues:
  q: {{site: {SOURCE}}}
  q2: {{site: dbs2}}
captures:
  c: {{site: {SOURCE}, source: {SOURCE}, queue: q, rules: {{include: [{{schema: public}}]}}}}
propagations:
  p: {{from: q, to: q2}}
applies:
  {APPLY}: {{site: dbs2, source: {SOURCE}, queue: q2}}
"""
_THERE = 99_999  # the source's number of a type that has another number here


def array(element: int, *items: bytes) -> bytes:
    """Return a one-dimensional array in PostgreSQL's binary form."""
    return struct.pack(">iiIii", 1, 0, element, len(items), 1) + b"".join(
        struct.pack(">i", len(item)) + item for item in items
    )


COLUMNS = (
    Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True, is_binary=True),
    Column(name="mood", type_name="public.mood", type_number=_THERE, is_binary=True),
    Column(name="moods", type_name="public._mood", type_number=_THERE + 1, is_binary=True),
    Column(name="words", type_name="pg_catalog._text", type_number=1009, is_binary=True),
    Column(name="day", type_name="pg_catalog.date", type_number=1082, is_binary=True),
    Column(name="yes", type_name="pg_catalog.bool", type_number=16, is_binary=True),
    Column(name="alien", type_name="public.alien", type_number=_THERE + 2, is_binary=True),
)
NAMES = [column.name for column in COLUMNS]
OLD = (
    struct.pack(">i", 7),
    b"sad",
    array(_THERE, b"sad", b"happy"),
    array(25, b"a,b", b"c"),
    struct.pack(">i", -800_000),
    b"\x01",
    b"\xff",
)
TEXTS = ["7", "sad", "{sad,happy}", '{"a,b",c}', "0192-09-05 BC", "t", "\\xff"]


@pytest.fixture
def destination(destination_database: str) -> str:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        user.execute("CREATE TABLE t (id int PRIMARY KEY, mood mood, moods mood[], words text[], day date, yes bool)")
        user.execute("INSERT INTO t VALUES (7, 'happy', '{sad}', '{x}', '2026-01-02', false)")
    return destination_database


def test_values_are_shown_as_in_psql_and_an_unreadable_one_spoils_no_other(destination: str):
    with closing(PostgresRowReader(destination)) as reader:
        assert list(reader.texts(COLUMNS, OLD)[:4]) == TEXTS[:4]
        shown = reader.texts(COLUMNS, OLD)
        assert shown[5:] == ("t", "\\xff")
        assert shown[4].endswith(" BC")
        assert reader.texts(COLUMNS[:2], [None, b"happy"]) == (None, "happy")


def test_destinations_row_is_found_by_the_tables_own_key(destination: str):
    given = dict(zip(NAMES, zip(COLUMNS, OLD, strict=True), strict=True))
    with closing(PostgresRowReader(destination)) as reader:
        (row,) = reader.beside("public", "t", given)
        assert (row["id"], row["mood"], row["moods"], row["yes"]) == ("7", "happy", "{sad}", "f")
        assert reader.beside("public", "t", {"mood": given["mood"]}) == ()
        assert reader.beside("public", "nowhere", given) == ()


def batch(command: Command, commit: int, *, old: tuple[bytes, ...] | None, new: tuple[bytes, ...] | None) -> LcrBatch:
    version = TableVersion(
        object_number=1, version=1, owner="public", name="t", old_image=OldImage.FULL, columns=COLUMNS[:6]
    )
    images = [None if image is None else column_values([[value] for value in image[:6]]) for image in (old, new)]
    group = RowGroup(table=0, command=command, row_numbers=np.zeros(1, np.int32), old=images[0], new=images[1])
    return LcrBatch(
        source=SOURCE,
        previous_scn=commit - 100,
        through_scn=commit,
        tables=(version,),
        transactions=transactions([commit], [1]),
        groups=(group,),
    )


@pytest.fixture
def run(
    tmp_path: Path, destination: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run `headrace errors ...` on the file; return (exit code, output)."""
    file = tmp_path / "t.yaml"
    file.write_text(FILE)
    monkeypatch.setenv("ERRORS_DSN", destination)

    def run_it(verb: str, *arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "errors", verb, str(file), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out or told.err

    return run_it


def fail(destination: str, *batches: LcrBatch) -> None:
    """Let an apply process fail with these transactions."""
    with closing(PostgresDestination(destination, site="dbs2")) as database:
        database.prepare(TOPOLOGY)
        engine = Engine(seed=1, batches=batches, destination=database, parallelism=1)
        engine.run()
        for server in engine.servers.values():
            server.close()


def test_error_queue_is_read_while_the_topology_is_down(destination: str, run: Callable[..., Any]):
    assert run("list") == (DONE, "0 error transactions\n")
    changed = (*OLD[:1], b"happy", *OLD[2:])
    fail(
        destination,
        batch(Command.INSERT, 100, old=None, new=OLD),
        batch(Command.UPDATE, 200, old=OLD, new=changed),
    )
    code, listed = run("list")
    assert code == DONE
    first, second = listed.splitlines()[:2]
    assert "insert_exists" in first
    assert second.endswith("waits behind 1")

    code, shown = run("show", 1)
    assert code == DONE
    assert "the database: Key (id)=(7) already exists." in shown
    assert "destination: id='7', mood='happy', moods='{sad}'" in shown
    assert "moods='{sad,happy}'" in shown
    document = json.loads(run("show", 2, "--json")[1])
    assert document["lcrs"][0]["changed"] == ["mood"]
    assert "changes: mood='happy'" in run("show", 2)[1]

    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("DELETE FROM headrace.apply_error WHERE number = 1")
    assert "waited behind 1, which is gone: execute it now" in run("list")[1]
    code, said = run("execute", 2)
    assert code == WRONG_USE
    assert "is not up" in said


@pytest.mark.parametrize("shown", values([1, 2, 3, 10], 2, 10))
def test_row_that_failed_is_shown_at_any_place_of_a_large_transaction(
    destination: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, shown: int
):
    version = TableVersion(
        object_number=1, version=1, owner="public", name="t", old_image=OldImage.FULL, columns=COLUMNS[:6]
    )
    ids = [21, 22, 7, 24, 25]  # 7 already exists
    rows = [(struct.pack(">i", number), *OLD[1:6]) for number in ids]
    group = RowGroup(
        table=0,
        command=Command.INSERT,
        row_numbers=np.arange(5, dtype=np.int32),
        old=None,
        new=column_values([list(column) for column in zip(*rows, strict=True)]),
    )
    fail(
        destination,
        LcrBatch(
            source=SOURCE,
            previous_scn=0,
            through_scn=100,
            tables=(version,),
            transactions=transactions([100], [5]),
            groups=(group,),
        ),
    )
    monkeypatch.setattr("headrace.commands.error_queue.SHOWN_ROWS_MAX", shown)
    code, told = run("show", 1)
    assert code == DONE
    assert ("> 2: INSERT public.t" in told, "destination: id='7', mood='happy'" in told) == (True, True), told
    positions = [each["position"] for each in json.loads(run("show", 1, "--json")[1])["lcrs"]]
    assert positions == sorted({*range(min(shown, 5)), 2})
    assert sum(int(line.split()[1]) for line in told.splitlines() if line.endswith(" more")) == 5 - len(positions)


class Applying:
    """A running apply process as the command line uses it, in this process: its control, its coordinator and its
    servers.
    """

    def __init__(self, destination: str) -> None:
        access = DatabaseAccess(site="dbs2", kind="postgres", dsn=destination)
        config = ApplyConfig(
            topology=TOPOLOGY, apply=APPLY, source=replace(access, site=SOURCE), destination=access, queue="q2"
        )
        self.database = PostgresDestination(destination, site="dbs2")
        self.engine = Engine(seed=1, batches=(), destination=self.database, parallelism=1)
        cores: Any = Cores(host=self, reader=None, coordinator=self.engine.coordinator, epoch=1)
        self.arriving: list[LcrBatch] = []
        self.inbox = self.errors = self  # the host is also that of the coordinator
        self.host = ApplyHost.__new__(ApplyHost)
        self.host._driver = SimpleNamespace(control=ApplyControl(config=config, cores=cores))  # type: ignore[assignment]

    def call(self, *arguments: Any, timeout_s: float = 0.0) -> Any:
        """Call as an actor's method does, or as the coordinator's thread."""
        if callable(arguments[0]):
            return arguments[0]()
        assert arguments[0] == f"apply:{APPLY}"
        return getattr(self.host, arguments[1])(*arguments[2:])

    def edit(self, edit: ErrorEdit, **stored: Any) -> bool:
        done = self.database.edit_error(TOPOLOGY, edit, **stored)
        self.engine.coordinator.errors.edited(edit.number, stored["key_hashes"])
        return done

    def delete(self, numbers: Sequence[int]) -> dict[int, str]:
        there = self.database.delete_errors(TOPOLOGY, numbers)
        return {number: "" if number in there else "it is not in the error queue" for number in numbers}

    @property
    def queued(self) -> tuple[int, ...]:
        return self.engine.coordinator.errors.numbers

    def execute(self, numbers: Sequence[int], request: ExecutionRequest) -> Any:
        outcomes: Any = queue.SimpleQueue()
        self.engine.coordinator.errors.executions.add(numbers, request)
        while outcomes.qsize() < len(numbers):
            self.engine.step()
            for outcome in self.engine.coordinator.errors.executions.take_outcomes():
                outcomes.put(outcome)
        self.arrive()
        return outcomes

    def arrive(self) -> None:
        """Apply the transactions that arrive during the first execution, or add them to the queue."""
        self.engine.batches, self.arriving = [*self.engine.batches, *self.arriving], []
        self.engine.run()

    def withdraw(self, _: Any, numbers: Sequence[int], why: str) -> None:
        self.engine.coordinator.errors.executions.withdraw(numbers, why)

    def close(self) -> None:
        for server in self.engine.servers.values():
            server.close()
        self.database.close()


@pytest.fixture
def applying(destination: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Applying]:
    """Yield two error transactions, the second dependent on the first, and the apply process that can execute them."""
    changed = (*OLD[:1], b"happy", *OLD[2:])
    fail(destination, batch(Command.INSERT, 100, old=None, new=OLD), batch(Command.UPDATE, 200, old=OLD, new=changed))
    found = Applying(destination)
    monkeypatch.setattr("headrace.deployment.deployment.Deployment.connect", lambda _: found)
    yield found
    found.close()


def test_operator_edits_a_row_and_executes_it(destination: str, run: Callable[..., Any], applying: Applying):
    code, said = run(
        "edit", 1, "--set", "id=8", "--set", "mood=happy", "--set", "moods={happy,sad}", "--null", "yes", "--json"
    )
    assert code == DONE
    assert json.loads(said)["edit"]["changes"] == [
        "new.id: 7 -> 8",
        "new.mood: sad -> happy",
        "new.moods: {sad,happy} -> {happy,sad}",
        "new.yes: t -> NULL",
    ]
    shown = run("show", 1)[1]
    assert "edited by " in shown
    assert "id='8', mood='happy', moods='{happy,sad}'" in shown
    assert "id='7', mood='sad', moods='{sad,happy}'" in run("show", 1, "--original")[1]
    assert "edited 1 time:" in run("list")[1]
    code, said = run("execute", 1)
    assert (code, said.strip()) == (DONE, f"1/1 {APPLY} 1: executed")
    with psycopg.connect(destination, autocommit=True) as user:
        rows = user.execute("SELECT id, mood::text, moods::text, yes FROM t ORDER BY id").fetchall()
        assert rows == [(7, "happy", "{sad}", False), (8, "happy", "{happy,sad}", None)]
        assert user.execute("SELECT outcome FROM headrace.apply_error_edit").fetchall() == [("EXECUTED",)]
        assert user.execute("SELECT FROM headrace.apply_error_original").fetchall() == []


def test_error_transaction_is_executed_with_a_function_that_edits_its_rows(
    destination: str, run: Callable[..., Any], applying: Applying, tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "t.yaml").write_text(f"{FILE}code: code\n")
    (tmp_path / "code" / "mend.py").write_text(
        "def mend(lcr, error, session):\n    assert (error.kind, error.number, error.position) == ('insert_exists',"
        " '23505', 0)\n"
        "    lcr.set_value('new', 'id', 8)\n    lcr.execute(True)\n    session.execute('UPDATE public.t SET yes = NULL"
        " WHERE id = $1', 8)\ndef refuse(lcr, error, session):\n    raise ValueError('not today')\n"
    )
    code, said = run("execute", 1, "--handler", "mend:refuse")
    assert (code, "mend:refuse" in said, "code/mend.py, line 7, in refuse: ValueError: not today" in said) == (
        FINDING,
        True,
        True,
    ), said
    code, said = run("execute", 1, "--handler", "mend:nothing")
    assert (code, "has no function nothing" in said) == (WRONG_USE, True), said
    code, said = run("execute", 1, "--handler", "mend:mend")
    assert (code, said.strip()) == (DONE, f"1/1 {APPLY} 1: executed"), said
    with psycopg.connect(destination, autocommit=True) as user:
        assert user.execute("SELECT id, mood::text, yes FROM t ORDER BY id").fetchall() == [
            (7, "happy", False),
            (8, "sad", None),
        ]


def test_value_that_a_column_rejects_is_refused_before_anything_is_stored(run: Callable[..., Any], applying: Applying):
    for given, message in (
        (("--set", "id=seven"), "'seven' is not a value of type int4"),
        (("--set", "mood=angry"), "'angry' is not a value of type public.mood"),
        (("--null", "id"), "column id is NOT NULL"),
        (("--set", "nothing=1"), "has no column nothing"),
        (("--set", "id"), "there is no value"),
        (("--row", 5, "--set", "id=8"), "has no row 5"),
        ((), "no terminal for an editor"),
    ):
        code, said = run("edit", 1, *given)
        assert (code, message in said) == (WRONG_USE, True), said
    assert run("edit", 1, "--set", "id=7")[0] == FINDING
    assert "edited" not in run("list")[1]


def test_edit_names_the_column_that_the_table_has_lost(destination: str, run: Callable[..., Any], applying: Applying):
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("ALTER TABLE t DROP COLUMN yes")
    code, said = run("edit", 1, "--set", "id=8")
    assert (code, "does not fit the LCRs" in said, "ADD COLUMN" in said) == (FAILURE, True, True), said
    assert "edited" not in run("list")[1]


def test_value_that_is_too_long_or_too_precise_is_refused(destination: str):
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("CREATE TABLE narrow (v varchar(3), n numeric(4,1), c char(2), t timestamp(0))")
    column = {
        name: Column(name=name, type_name=f"pg_catalog.{kind}", type_number=number, is_binary=True)
        for name, kind, number in (
            ("v", "varchar", 1043),
            ("n", "numeric", 1700),
            ("c", "bpchar", 1042),
            ("t", "timestamp", 1114),
        )
    }
    with closing(PostgresRowReader(destination)) as reader:
        for name, good, bad in (
            ("v", "abc", "abcd"),
            ("n", "100.5", "1.25"),
            ("c", "a", "abc"),
            ("t", "2026-01-01", "2026-01-01 00:00:00.5"),
        ):
            raw, shown = reader.value_of("public", "narrow", column[name], good)
            assert (raw is not None, shown) != (False, None)
            with pytest.raises(ConfigError, match=r"does not fit|is no "):
                reader.value_of("public", "narrow", column[name], bad)


def test_value_that_a_domain_would_cut_or_round_is_refused(destination: str):
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute(
            "CREATE DOMAIN price AS numeric(4,1); CREATE DOMAIN low AS price CHECK (value < 50); CREATE DOMAIN short AS"
            " varchar(3); CREATE DOMAIN doc AS json"
        )
        user.execute("CREATE TABLE narrow (v short, n price, m low, j doc)")
    column = {
        name: Column(name=name, type_name=f"pg_catalog.{kind}", type_number=number, is_binary=True)
        for name, kind, number in (
            ("v", "varchar", 1043),
            ("n", "numeric", 1700),
            ("m", "numeric", 1700),
            ("j", "json", 114),
        )
    }
    with closing(PostgresRowReader(destination)) as reader:
        for name, good, bad in (
            ("v", "abc", "abcd"),
            ("n", "100.5", "1.25"),
            ("m", "10.5", "1.25"),
            ("m", "10.5", "60"),
            ("j", '{"a": 1}', "{"),
        ):
            raw, _ = reader.value_of("public", "narrow", column[name], good)
            assert raw is not None
            with pytest.raises(ConfigError, match=r"does not fit|is not a value"):
                reader.value_of("public", "narrow", column[name], bad)


def test_editor_shows_the_row_and_takes_the_changes(
    run: Callable[..., Any], applying: Applying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i -e \'s/"id": "7"/"id": "9"/\' -e \'s/"day": .*/"day": null/\' "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    code, said = run("edit", 1)
    assert (code, "new.id: 7 -> 9" in said, " BC -> NULL" in said) == (DONE, True, True), said
    monkeypatch.setenv("VISUAL", "true")
    assert run("edit", 1) == (FINDING, "nothing was changed\n")
    monkeypatch.setenv("VISUAL", "false")
    assert run("edit", 1)[0] == WRONG_USE


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (b"new:\n  day: 2026-02-30\n", "'2026-02-30' is not a value of type date"),
        (b"new:\n  yes: f\n", "new.yes: t -> f"),
        (b"new:\n  yes: null\n", "new.yes: t -> NULL"),
        (b"new:\n  id: 0x10: 1\n", "cannot be read"),
        (b"new:\n  id: [8]\n", "new.id is not a text"),
        (b"[new]:\n  id: 8\n", "keep old: and new:"),
        (b'new:\n  "mood": "\xfc"\n', "not in UTF-8"),
        (b"", "nothing was changed"),
    ],
)
def test_edited_text_is_taken_as_written(
    run: Callable[..., Any], applying: Applying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes, told: str
):
    """An unquoted invalid date, and an unquoted column that YAML reads as a boolean, ended the command as a defect."""
    (tmp_path / "left").write_bytes(left)
    monkeypatch.setenv("VISUAL", f"cp {tmp_path / 'left'}")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    code, said = run("edit", 1)
    assert (told in said, code) == (True, DONE if "->" in told else FINDING if not left else WRONG_USE), said


def test_all_errors_are_executed_in_queue_order_and_stop_or_continue(run: Callable[..., Any], applying: Applying):
    code, said = run("execute", "--all", "--json")
    first, second = json.loads(said)["outcomes"]
    assert (code, first["done"], second["done"]) == (FINDING, False, False)
    assert first["failure"]["conflict_type"] == "insert_exists"
    assert first["failure"]["sqlstate"] == "23505"
    assert "id=7" in " ".join(first["failure"]["readable"])
    assert "depends on error transaction 1" in second["problem"]
    assert (json.loads(said)["left"], json.loads(said)["arrived"]) == (2, 0)
    _, stopped = run("execute", "--all", "--stop")
    assert "0 of 2 error transactions executed; 2 left in the queue" in stopped
    assert "not tried: one before it failed" in stopped
    assert f"1/2 {APPLY} 1: not executed: row 0: insert_exists: " in stopped
    assert second["failure"]["position"] == -1
    assert "2: not executed: it depends" not in stopped


def test_newly_queued_errors_are_executed_and_the_remainder_is_reported(
    destination: str, run: Callable[..., Any], applying: Applying
):
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("DELETE FROM t")
    applying.arriving = [batch(Command.INSERT, 300, old=None, new=OLD)]  # the row exists by then
    code, said = run("execute", "--all")
    lines = said.splitlines()
    assert (code, lines[:2], lines[-1]) == (
        FINDING,
        [f"1/2 {APPLY} 1: executed", f"2/2 {APPLY} 2: executed"],
        ("2 of 3 error transactions executed; 1 arrived meanwhile; 1 left in the queue"),
    ), said
    assert lines[2].startswith(f"3/3 {APPLY} 3: not executed: row 0: insert_exists")
    code, said = run("execute", "--all", "--json")
    told = json.loads(said)
    assert (code, [each["number"] for each in told["outcomes"]], told["left"], told["arrived"]) == (FINDING, [3], 1, 0)
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("DELETE FROM t")
    assert run("execute", "--all") == (DONE, f"1/1 {APPLY} 3: executed\n")
    assert run("execute", "--all") == (DONE, "no error transactions\n")


def test_of_many_errors_only_failures_and_the_sum_are_reported(
    destination: str, run: Callable[..., Any], applying: Applying, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(error_execution, "LINES_MAX", 1)
    assert [line.partition(":")[0] for line in run("execute", "--all")[1].splitlines()[:2]] == [
        f"1/2 {APPLY} 1",
        f"2/2 {APPLY} 2",
    ]
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("DELETE FROM t")
    assert run("execute", "--all") == (DONE, "2 of 2 error transactions executed\n")


def test_interrupted_command_leaves_transactions_that_were_not_begun(
    run: Callable[..., Any], applying: Applying, monkeypatch: pytest.MonkeyPatch
):
    """A Ctrl-C between two pages: pending transactions are withdrawn and stay in the queue."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def begun_only(numbers: Sequence[int], request: ExecutionRequest) -> Any:
        applying.engine.coordinator.errors.executions.add(numbers, request)
        return queue.SimpleQueue()

    monkeypatch.setattr(applying, "execute", begun_only)
    monkeypatch.setattr(applying.host, "execution_outcomes", interrupted)
    assert "those that were begun go on, the others are not tried" in run("execute", "--all")[1]
    outcomes = applying.engine.coordinator.errors.executions.take_outcomes()
    assert [(each.number, each.failure.message if each.failure else "") for each in outcomes] == [
        (number, "not tried: the command was ended") for number in (1, 2)
    ]
    assert applying.engine.coordinator.errors.numbers == (1, 2)


def test_missing_right_keeps_the_transaction_queued_and_apply_running(
    destination: str, run: Callable[..., Any], applying: Applying
):
    with psycopg.connect(destination, autocommit=True) as user:
        user.execute("CREATE ROLE headrace_clerk")
        user.execute("DELETE FROM t")
        try:
            assert "as role headrace_clerk: " in run("execute", 1, "--role", "headrace_clerk")[1]
            assert "as role headrace_nobody: " in run("execute", 1, "--role", "headrace_nobody")[1]
            user.execute("GRANT SELECT, INSERT, UPDATE ON t TO headrace_clerk")
            assert run("execute", 1, "--role", "headrace_clerk")[0] == DONE
            assert run("execute", 2)[0] == DONE
            assert user.execute("SELECT id, mood::text FROM t").fetchall() == [(7, "happy")]
        finally:
            user.execute("DROP OWNED BY headrace_clerk")
            user.execute("DROP ROLE headrace_clerk")


def test_deletion_asks_for_confirmation(run: Callable[..., Any], applying: Applying):
    code, said = run("delete", "--all")
    assert (code, "loses the changes of 2 error transactions" in said) == (WRONG_USE, True)
    code, said = run("delete", "--all", "--yes")
    assert (code, said) == (DONE, f"1/2 {APPLY} 1: deleted\n2/2 {APPLY} 2: deleted\n")
    assert run("delete", "--all") == (DONE, "no error transactions\n")


def test_queue_of_the_previous_version_is_read_and_its_content_upgraded(unprepared_database: str):
    """Version 8 had no edits."""
    with (
        psycopg.connect(unprepared_database, autocommit=True) as admin,
        closing(PostgresDestination(unprepared_database)) as database,
    ):
        for statement in (statement for version in VERSIONS[:8] for statement in version):
            admin.execute(statement.encode())
        admin.execute("UPDATE headrace.schema_version SET version = 8")
        admin.execute(
            "INSERT INTO headrace.apply_error (topology, apply, source, transaction_id, commit_scn, commit_time,"
            " row_count, failed_position,"
            " depends_on, conflict_type, sqlstate, message, readable) VALUES (%s, %s, 'a', 1, 2, now(), 1, 0, 0, '',"
            " '', 'old', '{}')",
            (TOPOLOGY, APPLY),
        )
        admin.execute("INSERT INTO headrace.apply_error_part VALUES (1, 0, 'batch')")
        assert [error.edits for error in database.errors(TOPOLOGY)] == [0]
        assert (database.error_edits(TOPOLOGY), list(database.error_batches(1, original=True))) == ((), [b"batch"])
        database.prepare(TOPOLOGY)
        assert [(error.number, error.message, error.edits) for error in database.errors(TOPOLOGY)] == [(1, "old", 0)]
        assert list(database.error_batches(1, original=True)) == [b"batch"]
        assert database.delete_errors(TOPOLOGY, [1])
        database.remove(TOPOLOGY)
        assert schema_version(admin) == 0


def test_missing_number_is_reported_while_the_topology_is_down(run: Callable[..., Any]):
    code, said = run("show", 5)
    assert code == WRONG_USE
    assert "no error transaction 5" in said
