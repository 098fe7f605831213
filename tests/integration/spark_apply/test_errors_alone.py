"""A refusal of one value, one table or one of apply's own statements stays local: its transaction waits in the error
queue, and everything else continues.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.values.value_text import value_text
from spark_apply.sets.conflict_settings import ConflictSettings
from tests.support.apply import apply_engine
from tests.support.session.matrices import values
from tests.support.ways.postgres_pair import Pair

pytestmark = pytest.mark.postgres

OTHER = "CREATE TABLE p (id int PRIMARY KEY, v int)"


def create(pair: Pair, here: str, there: str = "") -> None:
    """Create tables at both sites, and with them `p`, which must keep working."""
    pair.create(f"{here}; {OTHER}", f"{there or here}; {OTHER}")


def execute_all(pair: Pair, engine) -> dict[int, str]:
    numbers = [error.number for error in pair.errors()]
    return dict(engine.execute_errors(numbers))


# --------------------------------------------------------------------------- apply's own statements


@pytest.mark.parametrize(
    "key", values(["PRIMARY KEY (y)", "UNIQUE (y), z int NOT NULL DEFAULT 1, UNIQUE (z, y)"], "PRIMARY KEY (y)")
)
def test_table_whose_only_key_is_generated_is_written_by_all_its_values(pair: Pair, key: str):
    create(
        pair,
        f"CREATE TABLE k (x int, y int GENERATED ALWAYS AS (x * 2) STORED, {key}); ALTER TABLE k REPLICA IDENTITY FULL",
    )
    pair.run(
        "INSERT INTO k (x) SELECT generate_series(1, 9)",
        "UPDATE k SET x = x",
        "UPDATE k SET x = x + 100 WHERE x > 5",
        "DELETE FROM k WHERE x < 3",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.apply()
    pair.assert_same("SELECT x, y FROM k ORDER BY 1")
    pair.assert_same()
    assert pair.errors() == ()


def test_table_with_only_computed_columns_has_the_sources_number_of_rows(pair: Pair):
    create(pair, "CREATE TABLE k (c int GENERATED ALWAYS AS (7) STORED); ALTER TABLE k REPLICA IDENTITY FULL")
    pair.run(*["INSERT INTO k DEFAULT VALUES"] * 5, "UPDATE k SET c = DEFAULT")
    engine = pair.apply()
    pair.run("DELETE FROM k WHERE ctid = ANY (ARRAY(SELECT ctid FROM k LIMIT 2))", "INSERT INTO p VALUES (1, 1)")
    pair.more(engine)
    assert [error.message for error in pair.errors()] == []
    pair.assert_same("SELECT c FROM k")
    pair.assert_same()


@pytest.mark.parametrize("state", values(["ALWAYS", "REPLICA"], "ALWAYS"))
def test_rule_that_takes_the_rows_is_named_and_the_fix_lets_them_in(pair: Pair, state: str):
    create(pair, "CREATE TABLE k (id int PRIMARY KEY, v int)")
    pair.run("INSERT INTO k VALUES (1, 1)")
    engine = pair.apply()
    for command in ("INSERT", "UPDATE"):
        pair.there.execute(
            f"CREATE RULE no_{command} AS ON {command} TO k DO INSTEAD NOTHING; ALTER TABLE k ENABLE {state} RULE"
            f" no_{command}"
        )
    pair.run("INSERT INTO k VALUES (2, 2)", "UPDATE k SET v = 3 WHERE id = 1", "INSERT INTO p VALUES (1, 1)")
    pair.more(engine)
    pair.assert_same()
    inserted, updated = pair.errors()
    assert "the rule no_insert runs" in inserted.message
    assert "the rule no_update runs" in updated.message
    assert (inserted.conflict_type, updated.conflict_type) == ("", ""), "no row is missing"
    catalog = describe_table(pair.there, "public", "k")
    assert catalog is not None
    version = replace(table_version(catalog, is_binary=False), version=1)
    fixes = [found.fix for found in pair.destination.preflight_tables([version]) if "the rule" in found.problem]
    assert len(fixes) == 2
    for fix in fixes:
        pair.there.execute(fix)
    pair.there.execute("DROP RULE no_update ON k")
    assert set(execute_all(pair, engine).values()) == {""}
    pair.run("INSERT INTO k VALUES (4, 4)")
    pair.more(engine)
    assert pair.errors() == ()
    pair.assert_same("SELECT id, v FROM k ORDER BY 1")


# --------------------------------------------------------------------------- values


def test_value_that_names_a_source_only_object_is_an_error_alone(pair: Pair):
    create(pair, "CREATE TABLE audit (id int PRIMARY KEY, rel regclass, what text)")
    pair.run(
        "CREATE SCHEMA hidden; CREATE TABLE only_here (x int); CREATE TABLE hidden.too (x int)",
        "INSERT INTO audit VALUES (1, 'p', 'ok')",
        "INSERT INTO audit VALUES (2, 'only_here', 'boom')",
        "INSERT INTO audit VALUES (3, 'hidden.too', 'boom')",
        "INSERT INTO p SELECT g, g FROM generate_series(1, 10) g",
        "UPDATE audit SET what = 'more' WHERE id = 1",
    )
    engine = pair.apply()
    pair.assert_same()
    assert pair.there.execute("SELECT id, rel::text, what FROM audit").fetchall() == [(1, "p", "more")]
    assert [
        (error.sqlstate, "does not exist" in error.message, "audit" in error.message) for error in pair.errors()
    ] == [("42P01", True, True), ("42P01", True, True)]
    pair.there.execute("CREATE TABLE only_here (x int); CREATE SCHEMA hidden; CREATE TABLE hidden.too (x int)")
    assert set(execute_all(pair, engine).values()) == {""}
    pair.assert_same("SELECT id, rel::text, what FROM audit ORDER BY id")


@pytest.mark.parametrize("many", [1, 3000])
def test_composite_with_other_fields_blocks_only_its_table_with_an_alter(pair: Pair, many: int):
    create(pair, "CREATE TYPE addr AS (street text, zip text); CREATE TABLE person (id int PRIMARY KEY, home addr)")
    pair.run(
        "INSERT INTO person VALUES (0, ROW('Elm', '1'))",
        "ALTER TYPE addr ADD ATTRIBUTE country text",
        f"INSERT INTO person SELECT g, ROW('Oak', '2', 'CH')::addr FROM generate_series(1, {many}) g",
        "INSERT INTO p VALUES (1, 1)",
        "UPDATE person SET home = ROW('Ash', '3', 'DE') WHERE id = 1",
    )
    engine = pair.apply()
    pair.assert_same()
    first, second = pair.errors()
    assert "public.person" in first.message
    assert 'ALTER TYPE "public"."addr" ADD ATTRIBUTE' in first.message
    assert second.depends_on == first.number
    pair.there.execute("ALTER TYPE addr ADD ATTRIBUTE country text")
    assert set(execute_all(pair, engine).values()) == {""}
    pair.assert_same("SELECT id, home::text FROM person ORDER BY id")


@pytest.mark.parametrize(
    "where",
    values(
        ["CREATE INDEX ON t (bucket(n))", "ALTER TABLE t ADD CHECK (bucket(n) > -1)"],
        "ALTER TABLE t ADD CHECK (bucket(n) > -1)",
    ),
)
def test_function_that_needs_a_search_path_blocks_its_table_alone(pair: Pair, where: str):
    create(
        pair,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "CREATE FUNCTION half(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n / 2';"
        "CREATE FUNCTION bucket(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN half(n); END';"
        f"CREATE TABLE t (id int PRIMARY KEY, n int); {where}",
    )
    pair.run(
        "INSERT INTO t VALUES (1, 10)",
        "INSERT INTO p VALUES (1, 1)",
        "INSERT INTO t VALUES (2, 20)",
        "UPDATE t SET n = 11 WHERE id = 1",
    )
    engine = pair.apply()
    pair.assert_same()
    first = pair.errors()[0]
    assert first.sqlstate == "42883"
    assert all(each in first.message for each in ("public.t", "bucket(integer)", "search_path")), first.message
    pair.there.execute("ALTER FUNCTION bucket(int) SET search_path = public")
    assert set(execute_all(pair, engine).values()) == {""}
    pair.assert_same("SELECT id, n FROM t ORDER BY id")


# --------------------------------------------------------------------------- limits


@pytest.mark.parametrize("key", values(["id int PRIMARY KEY", "id int"], "id int"))
@pytest.mark.parametrize("columns", values([900, 1599], 1599))
def test_update_of_more_columns_than_half_a_target_list_is_written(pair: Pair, key: str, columns: int):
    names = ", ".join(f"c{number} smallint" for number in range(1, columns + 1))
    create(pair, f"CREATE TABLE w ({key}, {names}); ALTER TABLE w REPLICA IDENTITY FULL")
    sets = ", ".join(f"c{number} = {number}" for number in range(1, columns + 1))
    pair.run("INSERT INTO w (id) VALUES (1), (2), (3), (4)")
    engine = pair.apply()
    pair.run(
        f"UPDATE w SET {sets}",
        "UPDATE w SET c1 = 7 WHERE id = 1",
        "DELETE FROM w WHERE id = 3",
        f"UPDATE w SET {sets} WHERE id = 1",
        "UPDATE w SET id = 9, c2 = NULL WHERE id = 4",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.more(engine)
    assert [error.message for error in pair.errors()] == []
    pair.assert_same("SELECT md5(ROW(w.*)::text) FROM w ORDER BY id")
    pair.assert_same()


@pytest.mark.parametrize("columns", values([900, 1599], 1599))
def test_differing_row_of_a_wide_table_is_a_conflict_and_blocks_nothing(pair: Pair, columns: int):
    names = ", ".join(f"c{number} smallint" for number in range(1, columns + 1))
    create(pair, f"CREATE TABLE w (id int PRIMARY KEY, {names}); ALTER TABLE w REPLICA IDENTITY FULL")
    pair.run("INSERT INTO w (id) VALUES (1)")
    engine = pair.apply()
    pair.there.execute("UPDATE w SET c7 = 7")
    pair.run(
        f"UPDATE w SET {', '.join(f'c{number} = {number}' for number in range(1, columns + 1))}",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["update_differs"]
    pair.assert_same()


# --------------------------------------------------------------------------- the record of an error


@pytest.fixture
def latin_pair(
    source_database: str,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    """Make a destination whose encoding lacks letters of the source's."""
    dsn = fresh_database(pg_destination)
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(pg_destination.dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name)
            )
        )
    monkeypatch.setattr(apply_engine, "ConflictSettings", functools.partial(ConflictSettings, show=value_text))
    made = Pair(source_database, dsn, tmp_path / "redo")
    yield made
    made.close()


def test_value_outside_the_destinations_encoding_is_recorded_as_an_error(latin_pair: Pair):
    pair = latin_pair
    create(pair, "CREATE TABLE t (id int PRIMARY KEY, name text)")
    pair.run(
        "INSERT INTO t VALUES (1, 'Müller')",
        "INSERT INTO t VALUES (2, 'Łódź')",
        "INSERT INTO p VALUES (1, 1)",
        "UPDATE t SET name = 'Lodz' WHERE id = 2",
    )
    engine = pair.apply()
    pair.assert_same()
    first, second = pair.errors()
    assert first.sqlstate == "22P05"
    assert r"new.name=\u0141\xf3d\u017a" in first.readable
    assert second.depends_on == first.number
    assert pair.there.execute("SELECT name FROM t").fetchall() == [("Müller",)]
    assert "LATIN1" in engine.execute_errors([first.number])[first.number]
    assert r"new.name=\u0141\xf3d\u017a" in pair.errors()[0].readable
    assert set(execute_all(pair, engine).values()) == {""}, "together they leave a value that the encoding has"
    pair.assert_same("SELECT id, name FROM t ORDER BY id")
