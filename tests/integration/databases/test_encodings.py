"""Databases of different encodings: texts are compared as values, and a text outside of an encoding keeps only its own
table from being copied.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.copying import row_text
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from tests.fix_postgres import drop_database
from tests.support.copies.copied_pair import CopiedPair
from tests.support.redo.postgres_redo import RedoSite
from tests.support.session.matrices import cases, values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLES = (
    "CREATE TABLE p (id text PRIMARY KEY, name text, other text[]); CREATE TABLE plain (id int PRIMARY KEY, name text)"
)
ROWS = (
    "INSERT INTO p VALUES ('ü', 'Müller', '{ß,NULL}'), ('a', 'ascii', NULL), ('ÿ', NULL, '{}'); INSERT INTO plain"
    " VALUES (1, 'plain')"
)
ALL = 'SELECT * FROM p ORDER BY id COLLATE "C"'


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., CopiedPair]]:
    """Return a function that makes a pair of databases with these encodings."""
    pairs: list[CopiedPair] = []
    databases: list[tuple[EmbeddedServer, str]] = []

    def make(*sides: tuple[EmbeddedServer, str]) -> CopiedPair:
        dsns = []
        for server, encoding in sides:
            name = f"test_{os.getpid()}_{encoding.lower()}_{len(databases)}"
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(
                    f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
                    " TEMPLATE template0".encode()
                )
            databases.append((server, name))
            dsns.append(server.dsn(name))
        here, there = dsns
        pairs.append(CopiedPair(here, there, tmp_path / "redo"))
        for connection in (pairs[-1].redo.user, pairs[-1].there):
            connection.execute("SET client_encoding = 'UTF8'")
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()
    for server, name in databases:
        drop_database(server, name)


@pytest.fixture
def from_latin1(made: Callable[..., CopiedPair], pg_16: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    return made((pg_16, "LATIN1"), (pg_destination, "UTF8"))


@pytest.fixture
def to_latin1(made: Callable[..., CopiedPair], pg_source: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    return made((pg_source, "UTF8"), (pg_destination, "LATIN1"))


@pytest.mark.parametrize("way", values(["from_latin1", "to_latin1"], "from_latin1"))
def test_equal_texts_are_equal_whatever_bytes_each_server_has(request, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(TABLES, TABLES)
    pair.run(ROWS)
    assert {name: state for name, (state, _) in pair.copy().items()} == {"p": "DONE", "plain": "DONE"}
    pair.attach()
    pair.run("INSERT INTO p VALUES ('ñ', 'Señor', NULL)", "UPDATE p SET name = 'Bjørn' WHERE id = 'ü'")
    pair.apply(instantiation=pair.starts())
    assert pair.errors() == ()
    pair.assert_same(ALL)
    assert {name: found.is_equal for name, found in pair.verify().items()} == {"p": True, "plain": True}


@pytest.mark.parametrize("way", values(["from_latin1", "to_latin1"], "to_latin1"))
def test_rows_that_differ_are_named_across_encodings(request, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(TABLES, TABLES)
    pair.run(ROWS)
    pair.copy()
    pair.attach()
    pair.there.execute(
        "UPDATE p SET name = 'Muller' WHERE id = 'ü'; DELETE FROM p WHERE id = 'ÿ'; INSERT INTO p VALUES ('é')"
    )
    found = pair.verify()["p"]
    assert {(each.key, each.what) for each in found.differences} == {
        (("ü",), "differs"),
        (("ÿ",), "missing at the destination"),
        (("é",), "only at the destination"),
    }


def test_value_outside_the_destinations_encoding_is_named_others_copied(to_latin1: CopiedPair):
    to_latin1.create(TABLES, TABLES)
    to_latin1.run(ROWS, "INSERT INTO p VALUES ('x', 'Łódź', NULL)")
    found = to_latin1.copy()
    assert found["plain"] == ("DONE", "")
    state, problem = found["p"]
    assert state == "FAILED"
    assert (
        "column name of a row of public.p has the character U+0141, which the destination's encoding LATIN1 lacks"
        in problem
    )
    statement = problem.partition("at the source: ")[2].partition(" -- ")[0]
    assert to_latin1.redo.user.execute(statement.encode()).fetchall() == [("x", "Łódź", None)]
    to_latin1.run("UPDATE p SET name = 'Lodz' WHERE id = 'x'")
    assert to_latin1.copy()["p"] == ("DONE", "")
    assert to_latin1.verify()["p"].is_equal


@pytest.mark.parametrize(("way", "said"), [("from_latin1", 0), ("to_latin1", 1)])
def test_check_warns_of_characters_outside_the_destinations_encoding(request, way: str, said: int):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(TABLES, TABLES)
    found = pair.shape_findings()
    assert len(found) == said
    for finding in found:
        assert not finding.is_error
        assert finding.problem.startswith(
            "its encoding is LATIN1, the source's is UTF8: a change with a character that LATIN1 does not have goes to"
        )


# ------------------------------------------------------------------ values that each server orders in its own way

SORTED = """
CREATE TYPE pair AS (n int, "j %" jsonb);
CREATE TYPE wide AS (p pair[], d jsonb[]);
CREATE DOMAIN doc AS jsonb;
CREATE DOMAIN docs AS doc[];
CREATE TABLE sorted (id int PRIMARY KEY, j jsonb, a jsonb[], c pair, w wide, d doc, e docs, s tsvector);
CREATE TABLE keyless (j jsonb, n int, s tsvector);
ALTER TABLE keyless REPLICA IDENTITY FULL
"""
_DOC = '{"é":1,"zz":{"ßß":[null,{"ö":{},"ab":[]}],"xyz":"ü"}}'
SORTED_ROWS = (
    f'INSERT INTO sorted SELECT k, j, ARRAY[[j, NULL], [\'1\'::jsonb, \'{{"zz":"","é":3}}\'::jsonb]], ROW(k, j)::pair,'
    " ROW(ARRAY[ROW(1, j)::pair, NULL], ARRAY[j])::wide, j, ARRAY[j], 'ärger:1A zug:2 über:3'"
    f" FROM generate_series(1, 3) k CROSS JOIN LATERAL (SELECT '{_DOC}'::jsonb AS j) made",
    "INSERT INTO sorted VALUES (4)",
    "INSERT INTO sorted VALUES (5, 'null', '{}', ROW(NULL, NULL), ROW(NULL, '{}'), '\"é\"', '{NULL}', '')",
    f"INSERT INTO keyless SELECT '{_DOC}', k, 'ärger:1A zug:2' FROM generate_series(1, 3) k",
)
SORTED_VALUES = (
    'SELECT id, j, a[1][1], (c)."j %", ((w).p)[1]."j %", d, e::jsonb[], tsvector_to_array(s) FROM sorted ORDER BY id'
)
SORTED_WAYS = [("LATIN1", "UTF8"), ("UTF8", "LATIN1"), ("UTF8", "WIN1252"), ("LATIN1", "SQL_ASCII")]


def _sorted_values(pair: CopiedPair) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    here, there = pair.here_and_there(SORTED_VALUES)
    return [(*row[:-1], set(row[-1] or ())) for row in here], [(*row[:-1], set(row[-1] or ())) for row in there]


@pytest.mark.parametrize("way", values(SORTED_WAYS, ("LATIN1", "UTF8")), ids="-".join)
def test_equal_documents_are_equal_with_any_order_of_keys(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer, way: tuple[str, str]
):
    pair: CopiedPair = made((pg_source, way[0]), (pg_destination, way[1]))
    pair.create(SORTED, SORTED)
    pair.run(*SORTED_ROWS)
    assert pair.copy() == {"sorted": ("DONE", ""), "keyless": ("DONE", "")}
    pair.attach()
    pair.run(
        "UPDATE sorted SET j = j || '{\"ñ\":0}' WHERE id = 2",
        "UPDATE keyless SET j = j || '{\"ñ\":0}' WHERE n = 2",
        "DELETE FROM keyless WHERE n = 3",
    )
    pair.apply(instantiation=pair.starts())
    assert pair.errors() == ()
    here, there = _sorted_values(pair)
    assert here == there
    assert here[0][1]["zz"]["ßß"][1] == {"ö": {}, "ab": []}
    assert {name: found.is_equal for name, found in pair.verify().items()} == {"sorted": True, "keyless": True}


_SORTED_CHANGES = [
    'j = \'{"é":{"ßß":[null,{"ö":{},"ab":[]}],"xyz":"ü"},"zz":1}\'',  # the same keys and values, exchanged
    'j = \'{"é":1,"zz":{"ßß":[{"ö":{},"ab":[]},null],"xyz":"ü"}}\'',
    'j = \'{"é":1,"zz":{"ßß":[null,{"ö":[],"ab":{}}],"xyz":"ü"}}\'',
    "a = ARRAY[a[1][1], a[1][2], a[2][1], a[2][2]]",  # other dimensions
    "e = array_append(e, NULL)",
    "c = ROW((c).n, NULL)",
    "w = NULL",
    "s = 'ärger:1B zug:2 über:3'",
]


@pytest.mark.parametrize("way", values(["from_latin1", "to_latin1"], "to_latin1"))
def test_differing_documents_are_named_with_any_order_of_keys(request, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(SORTED, SORTED)
    pair.run(*SORTED_ROWS)
    pair.copy()
    pair.attach()
    for change in _SORTED_CHANGES:
        pair.there.execute("CREATE TEMP TABLE kept AS SELECT * FROM sorted")
        pair.there.execute(f"UPDATE sorted SET {change} WHERE id = 1".encode())
        found = pair.verify()
        assert [(each.key, each.what) for each in found["sorted"].differences] == [(("1",), "differs")], change
        pair.there.execute("DELETE FROM sorted; INSERT INTO sorted SELECT * FROM kept; DROP TABLE kept")
    pair.there.execute("UPDATE keyless SET n = 9 WHERE n = 1")
    found = pair.verify()
    assert found["sorted"].is_equal
    assert sorted((each.key[1], each.what) for each in found["keyless"].differences) == [
        ("1", "missing at the destination"),
        ("9", "only at the destination"),
    ]


@pytest.mark.parametrize("way", values(["from_latin1", "to_latin1"], "to_latin1"))
def test_rows_without_a_key_are_found_by_the_other_sides_documents(request, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(SORTED, SORTED)
    pair.run(*SORTED_ROWS)
    pair.copy()
    columns = ("j", "n", "s")
    with contextlib.ExitStack() as opened:
        here, there = (
            opened.enter_context(contextlib.closing(PostgresTableReader(dsn, other_dsn=other)))
            for dsn, other in permutations((pair.redo.dsn, pair._dsn))
        )
        rows = [
            reader.bucket_rows("public", "keyless", columns, columns, buckets=1, wanted=[0], rows_max=9)
            for reader in (here, there)
        ]
        assert rows[0] == rows[1]
        assert len(rows[0]) == 3
        for reader in (here, there):
            found = reader.keyed_rows("public", "keyless", columns, columns, keys=[row.key for row in rows[0]])
            assert set(found) == set(rows[0])


@pytest.mark.parametrize("way", values(["from_latin1", "to_latin1"], "to_latin1"))
def test_rows_with_large_values_are_equal_across_encodings(request, monkeypatch: pytest.MonkeyPatch, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    monkeypatch.setattr(row_text, "LARGE_BYTES", 12)  # the letters take fewer bytes in LATIN1, and more in UTF8
    pair.create(f"{TABLES}; {SORTED}", f"{TABLES}; {SORTED}")
    pair.run(*SORTED_ROWS, ROWS, "INSERT INTO p VALUES ('ü2', 'Müßiggänger', '{é}'), ('ü3', 'éééééé', '{é}')")
    assert {state for state, _ in pair.copy().values()} == {"DONE"}
    pair.attach()
    assert all(found.is_equal for found in pair.verify().values())


def test_equal_hstore_values_are_equal_with_any_order_of_keys(made, pg_hstore: EmbeddedServer):
    pair: CopiedPair = made((pg_hstore, "LATIN1"), (pg_hstore, "UTF8"))
    table = "CREATE SCHEMA x; CREATE EXTENSION hstore SCHEMA x; CREATE TABLE h (id int PRIMARY KEY, v x.hstore, a x.hstore[])"
    pair.create(table, table)
    pair.run("INSERT INTO h VALUES (1, 'é=>1, zz=>NULL', ARRAY['é=>1, zz=>\"NULL\"', NULL]::x.hstore[]), (2, '', '{}')")
    assert pair.copy() == {"h": ("DONE", "")}
    pair.attach()
    assert pair.verify()["h"].is_equal
    pair.there.execute("UPDATE h SET v = 'é=>1, zz=>\"NULL\"' WHERE id = 1")
    assert [each.key for each in pair.verify()["h"].differences] == [("1",)]


# ------------------------------------------------------------------ SQL_ASCII: bytes that are read as UTF-8

RAW = [
    ("SQL_ASCII", "UTF8"),
    ("SQL_ASCII", "LATIN1"),
    ("SQL_ASCII", "SQL_ASCII"),
    ("UTF8", "SQL_ASCII"),
    ("LATIN1", "SQL_ASCII"),
]
SIZED = "CREATE TABLE sized (id int PRIMARY KEY, c char(5), v varchar(5), j jsonb)"


def raw_session(dsn: str) -> psycopg.Connection:
    """Return a session of a user whose text is stored unconverted."""
    raw = psycopg.connect(dsn, autocommit=True)
    raw.execute("SET client_encoding = 'SQL_ASCII'")
    return raw


@pytest.mark.parametrize("way", values(RAW, ("UTF8", "SQL_ASCII")), ids="-".join)
def test_utf_8_texts_arrive_and_differences_in_counting_bytes_are_reported(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer, way: tuple[str, str]
):
    pair: CopiedPair = made((pg_source, way[0]), (pg_destination, way[1]))
    pair.create(f"{TABLES}; {SIZED}", f"{TABLES}; {SIZED}")
    pair.run(ROWS, "INSERT INTO sized VALUES (1, 'a', 'abcde', '\"ü\"')")
    counts_bytes = [found for found in pair.shape_findings() if "each byte counts" in found.problem]
    assert len(counts_bytes) == (way[0] != way[1])
    assert not any(found.is_error for found in counts_bytes)
    assert {name: state for name, (state, _) in pair.copy().items()} == {"p": "DONE", "plain": "DONE", "sized": "DONE"}
    pair.attach()
    pair.run(
        "INSERT INTO p VALUES ('ñ', 'Señor', NULL)",
        "UPDATE p SET name = 'Bjørn' WHERE id = 'ü'",
        "DELETE FROM p WHERE id = 'ÿ'",
        "UPDATE sized SET c = 'b', v = 'ab' WHERE id = 1",
    )
    pair.apply(instantiation=pair.starts())
    assert pair.errors() == ()
    pair.assert_same(ALL)
    assert {name: found.is_equal for name, found in pair.verify().items()} == {"p": True, "plain": True, "sized": True}
    pair.run("INSERT INTO sized VALUES (2, 'ü', 'ü')")
    if way[0] != "SQL_ASCII":
        pair.run("INSERT INTO sized VALUES (3, 'c', 'fünfü')")  # has seven bytes
    pair.apply(instantiation=pair.starts())
    assert ["too long" in error.message for error in pair.errors()] == ([] if way[0] == "SQL_ASCII" else [True])
    here, there = pair.here_and_there("SELECT * FROM sized ORDER BY id")
    compared = pair.verify()["sized"]
    assert compared.is_equal == (here == there) == (way[0] == way[1])
    assert compared.padded.startswith("char(n) in column c: ") == (way[0] != way[1])


@pytest.mark.parametrize(
    ("way", "name"),
    cases(
        {
            f"{'-'.join(way)}-{what}": (way, name)
            for way in RAW
            if way[0] != way[1]
            for what, name in (("other blanks", "fünf"), ("too long", "fünfü"))
        },
        core=["UTF8-SQL_ASCII-too long", "SQL_ASCII-LATIN1-other blanks"],
    ),
)
def test_char_column_padded_to_another_length_is_named_with_its_alter(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer, way: tuple[str, str], name: str
):
    pair: CopiedPair = made((pg_source, way[0]), (pg_destination, way[1]))
    sized = SIZED.replace("char(5)", "char(7)") if way[0] == "SQL_ASCII" else SIZED
    pair.create(f"{TABLES}; {sized}", f"{TABLES}; {sized}")
    pair.run(f"INSERT INTO sized VALUES (1, '{name}', 'a')", "INSERT INTO plain VALUES (1, 'x')")
    found = pair.copy()
    assert found["plain"] == ("DONE", "")
    state, problem = found["sized"]
    assert state == "FAILED"
    bytes_at, letters_at = ("source", "destination") if way[0] == "SQL_ASCII" else ("destination", "source")
    assert (
        f"char(n) in column c: the {bytes_at} (its encoding is SQL_ASCII) counts bytes and the {letters_at}" in problem
    )
    assert ("the copy differs" in problem) != ("too long for" in problem)
    there, here = (problem.partition(f"at the {side}: ")[2].partition(";")[0] for side in ("source", "destination"))
    there = there or problem.partition("At the source: ")[2].partition(";")[0]
    assert there == here == 'ALTER TABLE "public"."sized" ALTER COLUMN "c" TYPE text'
    pair.redo.user.execute(there.encode())
    pair.there.execute(here.encode())
    assert pair.copy()["sized"] == ("DONE", "")
    assert pair.verify()["sized"].is_equal
    pair.assert_same("SELECT * FROM sized")


def test_table_with_a_text_that_is_not_utf_8_is_not_copied_and_others_are(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer
):
    pair: CopiedPair = made((pg_source, "SQL_ASCII"), (pg_destination, "UTF8"))
    raw = raw_session(pair.redo.dsn)
    raw.execute(TABLES)
    raw.execute(b"INSERT INTO p VALUES ('x', 'caf\xe9'), ('b', 'b'); INSERT INTO plain VALUES (1, 'x')")
    pair.create("SELECT", TABLES)
    found = pair.copy()
    assert found["plain"] == ("DONE", "")
    state, problem = found["p"]
    assert state == "FAILED"
    assert "a text is not UTF-8, and a database with the encoding SQL_ASCII keeps none out: correct it" in problem
    assert "e9" not in problem, "no part of a value"
    raw.execute("UPDATE p SET name = 'café' WHERE id = 'x'".encode())
    assert pair.copy()["p"] == ("DONE", "")
    pair.assert_same(ALL)


def test_remedy_for_a_log_with_invalid_utf_8_makes_both_sides_equal(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer, tmp_path: Path
):
    pair: CopiedPair = made((pg_source, "SQL_ASCII"), (pg_destination, "UTF8"))
    pair.create(TABLES, TABLES)
    pair.run(ROWS)
    pair.copy()
    pair.attach()
    raw = raw_session(pair.redo.dsn)
    raw.execute(b"INSERT INTO p VALUES ('x', 'caf\xe9')")
    pair.run("INSERT INTO plain VALUES (3, 'behind it')")
    with pytest.raises(DataError) as stopped:
        pair.apply(instantiation=pair.starts())
    assert "e9" not in stopped.value.message
    assert stopped.value.hint.startswith(
        "the log cannot be read past that change: correct the text at the source, and what writes it; then `headrace"
        " down --purge --keep-servers`, empty"
    )
    raw.execute("UPDATE p SET name = 'café' WHERE id = 'x'".encode())
    pair.redo.close()
    pair.redo.source.remove("topo")  # `headrace down --purge`
    pair.redo = RedoSite(pair.redo.dsn, tmp_path / "redo again")
    pair.redo.user.execute("SET client_encoding = 'UTF8'")
    pair.redo.source.prepare("topo", (pair.rules,))
    assert {state for state, _ in pair.copy().values()} == {"DONE"}
    pair.attach()
    pair.run("INSERT INTO plain VALUES (4, 'later')")
    pair.apply(instantiation=pair.starts())
    pair.assert_same(ALL)
    pair.assert_same("SELECT id, name FROM plain ORDER BY id")


def test_invalid_utf_8_of_the_destinations_users_differs_and_stops_nothing(
    made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer
):
    pair: CopiedPair = made((pg_source, "UTF8"), (pg_destination, "SQL_ASCII"))
    pair.create(TABLES, TABLES)
    pair.run(ROWS)
    pair.copy()
    pair.attach()
    raw = raw_session(pair._dsn)
    raw.execute(
        b"UPDATE p SET name = 'caf\xe9' WHERE id = 'a'; INSERT INTO p VALUES ('y', 'caf\xe9'); INSERT INTO p VALUES"
        b" ('z\xe9', 'z')"
    )
    found = pair.verify()["p"]
    assert not found.is_equal
    assert "a text is not UTF-8" in found.problem
    pair.run(
        "UPDATE p SET name = 'right' WHERE id = 'a'",
        "INSERT INTO p VALUES ('y', 'right')",
        "INSERT INTO plain VALUES (2, 'goes on')",
    )
    pair.apply(instantiation=pair.starts())
    (error,) = pair.errors()
    assert "duplicate key" in error.message
    assert pair.there.execute("SELECT name FROM p WHERE id = 'a'").fetchall() == [("right",)]
    pair.assert_same("SELECT id, name FROM plain ORDER BY id")
