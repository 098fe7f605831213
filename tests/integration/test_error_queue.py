"""The error queue as a person reads it, straight from the destination's database: nothing of the topology runs."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from databases.postgres.destination.database import PostgresDestination
from databases.postgres.destination.row_reader import PostgresRowReader
from headrace.cli import main
from headrace.console import DONE, WRONG_USE
from streams.lcr_batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion
from tests.support.apply_engine import APPLY, SOURCE, TOPOLOGY, Engine
from tests.support.lcr_batches import column_values, transactions

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
_THERE = 99_999  # the number the source has for a type that has another one here


def array(element: int, *items: bytes) -> bytes:
    """A one-dimensional array in PostgreSQL's binary form."""
    return struct.pack(">iiIii", 1, 0, element, len(items), 1) + b"".join(struct.pack(">i", len(item)) + item for item in items)


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
OLD = (struct.pack(">i", 7), b"sad", array(_THERE, b"sad", b"happy"), array(25, b"a,b", b"c"), struct.pack(">i", -800_000), b"\x01", b"\xff")
TEXTS = ["7", "sad", "{sad,happy}", '{"a,b",c}', "0192-09-05 BC", "t", "\\xff"]


@pytest.fixture
def destination(destination_database: str) -> str:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        user.execute("CREATE TABLE t (id int PRIMARY KEY, mood mood, moods mood[], words text[], day date, yes bool)")
        user.execute("INSERT INTO t VALUES (7, 'happy', '{sad}', '{x}', '2026-01-02', false)")
    return destination_database


def test_values_are_shown_as_psql_shows_them_and_one_that_is_not_understood_spoils_no_other(destination: str):
    with closing(PostgresRowReader(destination)) as reader:
        assert list(reader.texts(COLUMNS, OLD)[:4]) == TEXTS[:4]
        shown = reader.texts(COLUMNS, OLD)
        assert shown[5:] == ("t", "\\xff")
        assert shown[4].endswith(" BC")  # type: ignore[union-attr]
        assert reader.texts(COLUMNS[:2], [None, b"happy"]) == (None, "happy")


def test_destinations_row_is_found_by_the_tables_own_key(destination: str):
    given = dict(zip(NAMES, zip(COLUMNS, OLD, strict=True), strict=True))
    with closing(PostgresRowReader(destination)) as reader:
        (row,) = reader.beside("public", "t", given)
        assert (row["id"], row["mood"], row["moods"], row["yes"]) == ("7", "happy", "{sad}", "f")
        assert reader.beside("public", "t", {"mood": given["mood"]}) == ()
        assert reader.beside("public", "nowhere", given) == ()


def batch(command: Command, commit: int, *, old: tuple[bytes, ...] | None, new: tuple[bytes, ...] | None) -> LcrBatch:
    version = TableVersion(object_number=1, version=1, owner="public", name="t", old_image=OldImage.FULL, columns=COLUMNS[:6])
    images = [None if image is None else column_values([[value] for value in image[:6]]) for image in (old, new)]
    group = RowGroup(table=0, command=command, row_numbers=np.zeros(1, np.int32), old=images[0], new=images[1])
    return LcrBatch(
        source=SOURCE, previous_scn=commit - 100, through_scn=commit, tables=(version,), transactions=transactions([commit], [1]),
        groups=(group,),
    )


@pytest.fixture
def run(tmp_path: Path, destination: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `headrace errors ...` on the file: (exit code, output)."""
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


def test_error_queue_is_read_while_nothing_runs(destination: str, run: Callable[..., Any]):
    assert run("list") == (DONE, "0 error transactions\n")
    changed = (*OLD[:1], b"happy", *OLD[2:])
    fail(
        destination, batch(Command.INSERT, 100, old=None, new=OLD), batch(Command.UPDATE, 200, old=OLD, new=changed),
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


def test_number_that_is_not_there_is_said_without_anything_running(run: Callable[..., Any]):
    code, said = run("show", 5)
    assert code == WRONG_USE
    assert "no error transaction 5" in said
