"""Databases of different encodings: texts are compared as values, and one that an encoding lacks keeps its own table alone from being copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from tests.fix_postgres import drop_database
from tests.support.copied_pair import CopiedPair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLES = "CREATE TABLE p (id text PRIMARY KEY, name text, other text[]); CREATE TABLE plain (id int PRIMARY KEY, name text)"
ROWS = "INSERT INTO p VALUES ('ü', 'Müller', '{ß,NULL}'), ('a', 'ascii', NULL), ('ÿ', NULL, '{}'); INSERT INTO plain VALUES (1, 'plain')"
ALL = "SELECT * FROM p ORDER BY id COLLATE \"C\""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., CopiedPair]]:
    """Makes a pair of databases with these encodings."""
    pairs: list[CopiedPair] = []
    databases: list[tuple[EmbeddedServer, str]] = []

    def make(*sides: tuple[EmbeddedServer, str]) -> CopiedPair:
        dsns = []
        for server, encoding in sides:
            name = f"test_{os.getpid()}_{encoding.lower()}_{len(databases)}"
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0".encode())
            databases.append((server, name))
            dsns.append(server.dsn(name))
        pairs.append(CopiedPair(*dsns, tmp_path / "redo"))
        for connection in (pairs[-1].redo.user, pairs[-1].there):
            connection.execute("SET client_encoding = 'UTF8'")
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()
    for server, name in databases:
        drop_database(server, name)


@pytest.fixture
def from_latin1(made, pg_16: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    return made((pg_16, "LATIN1"), (pg_destination, "UTF8"))


@pytest.fixture
def to_latin1(made, pg_source: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    return made((pg_source, "UTF8"), (pg_destination, "LATIN1"))


@pytest.mark.parametrize("way", ["from_latin1", "to_latin1"])
def test_equal_texts_are_equal_whatever_bytes_each_server_has_of_them(request, way: str):
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


@pytest.mark.parametrize("way", ["from_latin1", "to_latin1"])
def test_rows_that_differ_are_named_across_encodings(request, way: str):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(TABLES, TABLES)
    pair.run(ROWS)
    pair.copy()
    pair.attach()
    pair.there.execute("UPDATE p SET name = 'Muller' WHERE id = 'ü'; DELETE FROM p WHERE id = 'ÿ'; INSERT INTO p VALUES ('é')")
    found = pair.verify()["p"]
    assert {(each.key, each.what) for each in found.differences} == {
        (("ü",), "differs"), (("ÿ",), "missing at the destination"), (("é",), "only at the destination"),
    }


def test_value_that_the_destination_s_encoding_lacks_is_named_and_the_other_tables_are_copied(to_latin1: CopiedPair):
    to_latin1.create(TABLES, TABLES)
    to_latin1.run(ROWS, "INSERT INTO p VALUES ('x', 'Łódź', NULL)")
    found = to_latin1.copy()
    assert found["plain"] == ("DONE", "")
    state, problem = found["p"]
    assert state == "FAILED"
    assert "column name of a row of public.p has the character U+0141, which the destination's encoding LATIN1 lacks" in problem
    statement = problem.partition("at the source: ")[2].partition(" -- ")[0]
    assert to_latin1.redo.user.execute(statement.encode()).fetchall() == [("x", "Łódź", None)]
    to_latin1.run("UPDATE p SET name = 'Lodz' WHERE id = 'x'")
    assert to_latin1.copy()["p"] == ("DONE", "")
    assert to_latin1.verify()["p"].is_equal


@pytest.mark.parametrize(("way", "said"), [("from_latin1", 0), ("to_latin1", 1)])
def test_check_says_that_the_destination_s_encoding_lacks_characters(request, way: str, said: int):
    pair: CopiedPair = request.getfixturevalue(way)
    pair.create(TABLES, TABLES)
    found = pair.shape_findings()
    assert len(found) == said
    for finding in found:
        assert not finding.is_error
        assert finding.problem.startswith("its encoding is LATIN1, the source's is UTF8: a change with a character that LATIN1 does not have goes to")
