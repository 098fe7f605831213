"""What a source records of DDL: every change of a table's structure, in the statement's transaction."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.ddl.structure_query import STRUCTURE
from headrace.lcr.batch import Command
from headrace.lcr.ddl import ddl_of, failed_ddl_of
from headrace.lcr.structure import Structure, structure_from_json
from tests.fix_postgres import drop_database
from tests.support.databases.ddl_recording import DDL, Recording, columns, names, site_of_version
from tests.support.databases.postgres_site import Site
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_alter_makes_one_record_with_the_table_before_and_after(recording: Recording) -> None:
    recording.site.run("INSERT INTO t VALUES (1)")
    record = recording.one("ALTER TABLE t DROP COLUMN b, ADD COLUMN c int DEFAULT 5, ADD COLUMN d text")
    assert columns(record["before"]) == {"id": "integer", "a": "text", "b": "integer"}
    assert columns(record["after"]) == {"id": "integer", "a": "text", "c": "integer", "d": "text"}
    assert record["is_known"]
    assert record["older"] == {"c": "5"}
    assert {"kind": "table column", "name": "b"} in record["gone"]
    assert record["tag"] == "ALTER TABLE"
    assert record["query"].startswith("ALTER TABLE t DROP COLUMN b")
    assert record["user"] == recording.site.user.info.user
    assert (record["role"], record["is_nested"], record["rewritten"]) == ("none", False, 0)
    assert record["version"] == recording.site.user.info.server_version // 10000
    assert record["relation"] == row_of(recording.site.run("SELECT 't'::regclass::oid::int8"))[0]


def test_recorded_structure_is_what_the_destination_would_read(recording: Recording) -> None:
    record = recording.one(
        "ALTER TABLE t ADD CONSTRAINT ck CHECK (b > 0), ADD COLUMN at timestamptz DEFAULT '2020-01-01 00:00+00'"
    )
    with psycopg.connect(recording.site.dsn, autocommit=True) as reader:
        reader.execute("SET search_path = ''; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        (now,) = reader.execute(STRUCTURE.replace("$1", str(record["relation"])).encode()).fetchone() or (None,)
    assert record["after"] == now
    assert isinstance(structure_from_json(now), Structure)


WAYS = {
    "alone": "ALTER TABLE t ADD COLUMN c int",
    "DO": "DO $$ BEGIN ALTER TABLE t ADD COLUMN c int; END $$",
    "EXECUTE": "DO $$ BEGIN EXECUTE format('ALTER TABLE %I ADD COLUMN %I int', 't', 'c'); END $$",
    "plpgsql": "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE t ADD COLUMN c int; END $$;"
    " SELECT f()",
    "sql": "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $$ ALTER TABLE t ADD COLUMN c int $$; SELECT f()",
    "several": "SELECT 1; ALTER TABLE t ADD COLUMN c int; SELECT 2",
}


@pytest.mark.parametrize("way", WAYS)
def test_ddl_is_recorded_however_it_is_run(recording: Recording, way: str) -> None:
    record = recording.one(WAYS[way])
    assert columns(record["after"]).keys() - columns(record["before"]).keys() == {"c"}
    assert record["is_nested"] == (way not in {"alone", "several"})
    assert record["query"] == WAYS[way]


def test_procedure_with_commits_is_recorded_in_each_transaction(recording: Recording) -> None:
    recording.site.run(
        "CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE t ADD COLUMN c int; COMMIT; ALTER TABLE t ADD"
        " COLUMN d int; ROLLBACK; ALTER TABLE t ADD COLUMN e int; END $$"
    )
    first, second = recording.run("CALL p()")
    assert "c" in columns(first["after"])
    assert columns(second["before"]) == columns(first["after"])
    assert columns(second["after"]).keys() - columns(second["before"]).keys() == {"e"}


def test_prepared_statement_and_prepared_transaction_are_recorded(recording: Recording) -> None:
    recording.site.user.execute("ALTER TABLE t ADD COLUMN c int", prepare=True)
    assert not recording.one()["is_nested"]
    name = recording.site.user.info.dbname
    assert recording.run(f"BEGIN; ALTER TABLE t ADD COLUMN d int; PREPARE TRANSACTION '{name}'") == []
    assert "d" in columns(recording.one(f"COMMIT PREPARED '{name}'")["after"])


def test_record_has_its_place_among_the_rows_of_its_transaction(recording: Recording) -> None:
    site = recording.site
    site.run(
        "BEGIN; INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN c int; INSERT INTO t VALUES (2); SAVEPOINT s; ALTER"
        " TABLE t ADD COLUMN lost int; INSERT INTO t VALUES (3); ROLLBACK TO s; INSERT INTO t VALUES (4); DROP INDEX IF"
        " EXISTS none; ALTER TABLE t DROP COLUMN a; INSERT INTO t VALUES (5); COMMIT"
    )
    site.run("BEGIN; ALTER TABLE t ADD COLUMN never int; ROLLBACK")
    reading = site.open().through(site.mark())
    (transaction,) = [each for each in reading.transactions if any(row.table.name == "t" for row in each.rows)]
    seen = []
    for row in transaction.rows:
        assert row.command is Command.INSERT
        if row.table.name == "t":
            seen.append(
                int(row.new["id"]) if not _is_binary(row.table, "id") else int.from_bytes(bytes(row.new["id"]), "big")
            )
        else:
            assert (row.table.owner, row.table.name) == ("headrace_ddl", "log")
            change = ddl_of(bytes(row.new["content"]))
            assert change is not None
            seen.append("".join(sorted(columns(json.loads(change.content)["after"]).keys() - {"id", "b"})))
    assert seen == [1, "ac", 2, 4, "c", 5]


def _is_binary(table: Any, name: str) -> bool:
    return next(bool(each.is_binary) for each in table.columns if each.name == name)


def test_what_has_no_table_of_users_is_not_recorded(recording: Recording) -> None:
    assert (
        recording.run(
            "CREATE TEMP TABLE tt (id int PRIMARY KEY, a int); CREATE INDEX ON tt (a); ALTER TABLE tt ADD COLUMN c int;"
            " ALTER TABLE tt DROP COLUMN a; DROP TABLE tt",
            "CREATE VIEW v AS SELECT 1 AS one; ALTER TABLE v RENAME TO w; DROP VIEW w",
            "CREATE SEQUENCE s; DROP SEQUENCE s; CREATE TYPE y AS (a int); DROP TYPE y",
            "CREATE MATERIALIZED VIEW m AS SELECT 1 AS one; CREATE INDEX ON m (one); DROP MATERIALIZED VIEW m",
            "CREATE SCHEMA headrace CREATE TABLE x (id int); ALTER TABLE headrace.x ADD COLUMN c int; DROP SCHEMA"
            " headrace CASCADE",
            "ALTER TABLE t SET (fillfactor = 70); ALTER TABLE t ALTER COLUMN a SET STATISTICS 10",
            "CREATE TABLE IF NOT EXISTS t (other int); CREATE INDEX IF NOT EXISTS t_pkey ON t (a)",
        )
        == []
    )


@pytest.mark.parametrize(
    ("statement", "kind", "before", "after"),
    [
        ("ALTER TABLE t ADD COLUMN c int UNIQUE", "constraints", ["t_pkey"], ["t_c_key", "t_pkey"]),
        ("ALTER TABLE t ADD CONSTRAINT ck CHECK (b > 0)", "constraints", ["t_pkey"], ["ck", "t_pkey"]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "constraints", ["t_pkey"], []),
        ("ALTER TABLE t RENAME CONSTRAINT t_pkey TO p", "constraints", ["t_pkey"], ["p"]),
        ("ALTER INDEX t_pkey RENAME TO p", "constraints", ["t_pkey"], ["p"]),
        ("CREATE INDEX j ON t (b)", "indexes", ["i"], ["i", "j"]),
        ("CREATE INDEX CONCURRENTLY j ON t (b)", "indexes", ["i"], ["i", "j"]),
        ("ALTER INDEX i RENAME TO j", "indexes", ["i"], ["j"]),
        ("ALTER TABLE i RENAME TO j", "indexes", ["i"], ["j"]),
        ("DROP INDEX i", "indexes", ["i"], []),
        ("DROP INDEX CONCURRENTLY i", "indexes", ["i"], []),
        ("ALTER TABLE t DROP COLUMN a", "indexes", ["i"], []),
    ],
)
def test_constraints_and_indexes_are_recorded(
    recording: Recording, statement: str, kind: str, before: list[str], after: list[str]
) -> None:
    recording.run("CREATE INDEX i ON t (a)")
    record = recording.one(statement)
    assert (names(record["before"], kind), names(record["after"], kind)) == (before, after)
    gone = set(before) - set(after) if "DROP" in statement else set()
    assert {each["name"] for each in record["gone"] if each["kind"] != "table column"} >= gone - {"i"} or gone == {"i"}


def test_index_that_was_rebuilt_or_moved_is_found_when_it_is_dropped(recording: Recording) -> None:
    """REINDEX CONCURRENTLY gives it another number, and ALTER SCHEMA another name, and neither fires a trigger."""
    recording.run("CREATE SCHEMA s; CREATE TABLE s.t (a int); CREATE INDEX i ON s.t (a); CREATE INDEX j ON s.t (a)")
    recording.run("REINDEX INDEX CONCURRENTLY s.i")
    record = recording.one("DROP INDEX s.i")
    assert record["gone"] == [{"kind": "index", "name": "i"}]
    assert names(record["after"], "indexes") == ["j"]
    record = recording.one("ALTER SCHEMA s RENAME TO r; DROP INDEX r.j")
    assert record["gone"] == [{"kind": "index", "name": "j"}]
    assert (record["before"]["owner"], record["after"]["owner"]) == ("s", "r")


def test_index_that_failed_is_recorded_only_when_it_is_valid(recording: Recording) -> None:
    """REINDEX, which repairs it, fires no trigger: the next record of the table has it."""
    recording.site.run("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        recording.site.run("CREATE UNIQUE INDEX CONCURRENTLY i ON t (a)")
    assert recording.run("DROP INDEX CONCURRENTLY i") == []
    with pytest.raises(psycopg.errors.UniqueViolation):
        recording.site.run("CREATE UNIQUE INDEX CONCURRENTLY i ON t (a)")
    recording.site.run("DELETE FROM t WHERE id = 2")
    assert recording.run("REINDEX INDEX CONCURRENTLY i") == []
    record = recording.one("ALTER TABLE t ADD COLUMN c int")
    assert (names(record["before"], "indexes"), names(record["after"], "indexes")) == ([], ["i"])


def test_effects_of_cascade_are_recorded_for_each_table(recording: Recording) -> None:
    recording.run("CREATE TYPE y AS ENUM ('a'); ALTER TABLE t ADD COLUMN c y")
    record = recording.one("DROP TYPE y CASCADE")
    assert record["tag"] == "DROP TYPE"
    assert record["gone"] == [{"kind": "table column", "name": "c"}]
    recording.run(
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER TABLE t ALTER COLUMN b SET DEFAULT one();"
        " ALTER TABLE t ADD CONSTRAINT ck CHECK (b > one())"
    )
    record = recording.one("DROP FUNCTION one() CASCADE")
    assert names(record["after"], "constraints") == ["t_pkey"]
    assert [each["default"] for each in record["after"]["columns"]] == [None, None, None]
    recording.run("CREATE SCHEMA s CREATE TABLE one (id int PRIMARY KEY) CREATE TABLE two (id int REFERENCES one)")
    dropped = recording.run("DROP SCHEMA s CASCADE")
    assert sorted((each["before"]["name"], each["after"], each["is_known"]) for each in dropped) == [
        ("one", None, True),
        ("two", None, True),
    ]


def test_new_tables_are_known_from_their_first_record_on(recording: Recording) -> None:
    made = recording.run(
        "CREATE TABLE one (id int PRIMARY KEY)",
        "CREATE TABLE two AS SELECT 1 AS x",
        "SELECT 1 AS x INTO three",
        "CREATE SCHEMA s CREATE TABLE four (id int) CREATE INDEX ON four (id)",
        "CREATE TABLE five (LIKE t INCLUDING ALL)",
    )
    assert [(each["before"], each["is_known"], each["after"]["name"]) for each in made] == [
        (None, True, name) for name in ("one", "two", "three", "four", "five")
    ]
    assert [names(each["after"], "indexes") for each in made] == [[], [], [], ["four_id_idx"], []]
    record = recording.one("ALTER TABLE two ADD COLUMN y int")
    assert columns(record["before"]) == {"x": "integer"}


def test_children_are_recorded_with_their_parent(recording: Recording) -> None:
    recording.run("CREATE TABLE child (own int) INHERITS (t); CREATE TABLE grandchild () INHERITS (child)")
    altered = recording.run("ALTER TABLE t ADD COLUMN c int")
    assert sorted(each["after"]["name"] for each in altered) == ["child", "grandchild", "t"]
    assert all("c" in columns(each["after"]) and "c" not in columns(each["before"]) for each in altered)
    recording.run("CREATE TABLE p (id int, a int) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p DEFAULT")
    assert sorted(each["after"]["name"] for each in recording.run("ALTER TABLE p DROP COLUMN a")) == ["p", "p1"]


def test_rewrites_are_noted_with_the_statement_that_made_them(recording: Recording) -> None:
    recording.site.run("INSERT INTO t VALUES (1, 'x', 1)")
    default, rewrite = 2, 4
    file = "SELECT pg_relation_filenode('t')::int8"
    (was,) = row_of(recording.site.run(file))
    record = recording.one("ALTER TABLE t ALTER COLUMN b TYPE bigint")
    assert (record["rewritten"], record["rewriting"]) == (rewrite, {"from": was, "encoding": "UTF8", "casts": False})
    assert record["file"] == row_of(recording.site.run(file))[0] != was
    first, second = recording.run(
        "BEGIN; ALTER TABLE t ALTER COLUMN b TYPE int; ALTER TABLE t ADD COLUMN c int; COMMIT"
    )
    assert (first["rewritten"], second["rewritten"]) == (rewrite, 0)
    record = recording.one("ALTER TABLE t ALTER COLUMN b TYPE int USING b + 1")
    assert record["rewritten"] == rewrite
    assert record["before"] == record["after"]
    record = recording.one("ALTER TABLE t DROP COLUMN c, ADD COLUMN d float8 DEFAULT random()")
    assert record["rewritten"] == default
    assert record["older"] == {}
    lost = "BEGIN; SAVEPOINT s; ALTER TABLE t ALTER COLUMN b TYPE bigint; ROLLBACK TO s; ALTER TABLE t ADD COLUMN e int; COMMIT"
    assert recording.one(lost)["rewritten"] == 0
    recording.run("CREATE TABLE child () INHERITS (t); INSERT INTO child (id) VALUES (1)")
    assert {each["rewritten"] for each in recording.run("ALTER TABLE t ALTER COLUMN b TYPE bigint")} == {rewrite}


def test_values_of_older_rows_are_recorded_in_one_form_for_all_users(recording: Recording) -> None:
    recording.site.run("INSERT INTO t VALUES (1)")
    hostile = (
        "SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; SET bytea_output = 'escape'; SET extra_float_digits = -15;"
        " SET IntervalStyle = 'iso_8601'; SET quote_all_identifiers = on; SET standard_conforming_strings = off; SET"
        " array_nulls = off; SET transform_null_equals = on; SET search_path = ''; "
    )
    record = recording.one(
        hostile
        + "ALTER TABLE public.t ADD COLUMN at timestamptz DEFAULT '2020-01-01 00:00+00', ADD COLUMN by bytea DEFAULT"
        " '\\xff00', ADD COLUMN f float8 DEFAULT 0.1, ADD COLUMN x text[] DEFAULT '{\"NULL\",a}', ADD COLUMN every"
        " interval DEFAULT '90 minutes'; RESET ALL"
    )
    assert record["older"] == {
        "at": "2020-01-01 00:00:00+00",
        "by": "\\xff00",
        "f": "0.1",
        "x": '{"NULL",a}',
        "every": "01:30:00",
    }
    printed = {each["name"]: each["default"] for each in record["after"]["columns"]}
    assert printed["at"] == "'2020-01-01 00:00:00+00'::timestamp with time zone"
    assert printed["every"] == "'01:30:00'::interval"


def test_session_that_replicates_is_recorded_too(recording: Recording) -> None:
    assert recording.one("BEGIN; SET LOCAL session_replication_role = replica; ALTER TABLE t ADD COLUMN c int; COMMIT")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
def test_record_can_be_sent_whatever_the_encoding_is(
    make_site: Callable[[EmbeddedServer], Site], pg_source: EmbeddedServer, encoding: str
) -> None:
    """A text that is not UTF-8 would stop the log stream for good."""
    outer = make_site(pg_source)
    name = f"{outer.user.info.dbname}_{encoding.lower()}"
    outer.run(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
    inner = Site(pg_source.dsn(name))
    try:
        inner.run("SET client_encoding = 'UTF8'; CREATE TABLE t (id int PRIMARY KEY)")
        inner.prepare(DDL)
        recording = Recording(inner)
        recording.records()
        assert "ü" in columns(recording.one('ALTER TABLE t ADD COLUMN "ü" int -- ä')["after"])
        (kept,) = row_of(
            inner.run("SELECT content::jsonb ->> 'query' FROM headrace_ddl.log ORDER BY number DESC LIMIT 1")
        )
        assert str(kept).endswith("ä" if encoding == "UTF8" else "?")
        if encoding == "SQL_ASCII":
            raw = b"SET client_encoding = 'SQL_ASCII'", b"SET client_encoding = 'UTF8'"
            for statement in (raw[0], b"ALTER TABLE t ADD COLUMN c int -- \xff", raw[1]):
                inner.user.pgconn.exec_(statement)
            assert "c" in columns(recording.one()["after"])
            for statement in (raw[0], b'ALTER TABLE t ADD COLUMN "\xff" int', raw[1]):
                inner.user.pgconn.exec_(statement)
            (record,) = recording.records()
            assert record["failed"] == "22021"
        reading = inner.open().through(inner.mark())
        rows = [row for row in reading.rows() if row.table.name == "log"]
        assert all(ddl_of(bytes(row.new["content"])) or failed_ddl_of(bytes(row.new["content"])) for row in rows)
        assert len(rows) == (3 if encoding == "SQL_ASCII" else 1)
    finally:
        inner.close()
        drop_database(pg_source, name)


RENAMES = ("VIEW t RENAME COLUMN", "MATERIALIZED VIEW t RENAME COLUMN", "FOREIGN TABLE t RENAME COLUMN")


@pytest.mark.parametrize("rename", [*RENAMES, "TYPE t RENAME ATTRIBUTE"])
def test_column_of_a_table_renamed_as_that_of_another_object_is_recorded(recording: Recording, rename: str) -> None:
    record = recording.one(f"ALTER {rename} a TO aa")
    assert (columns(record["before"]), columns(record["after"])) == (
        {"id": "integer", "a": "text", "b": "integer"},
        {"id": "integer", "aa": "text", "b": "integer"},
    )


def test_thousand_statements_in_one_transaction_are_recorded(recording: Recording) -> None:
    made = recording.run(
        "DO $$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('ALTER TABLE t ADD COLUMN c%s int', i); EXECUTE format('ALTER"
        " TABLE t DROP COLUMN c%s', i); END LOOP; END $$"
    )
    assert len(made) == 1000
    assert all(later["before"] == earlier["after"] for earlier, later in itertools.pairwise(made))


def test_script_of_an_extension_is_not_recorded(
    request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site], pg_source: EmbeddedServer
) -> None:
    """Its objects belong to it: the destination gets them with the extension."""
    site = site_of_version(request, make_site, "18")
    site.prepare(DDL)
    folder = pg_source.folder / "extension"
    folder.mkdir(exist_ok=True)
    (folder / "shop.control").write_text("default_version = '1'\nrelocatable = true\n")
    (folder / "shop--1.sql").write_text(
        "CREATE TABLE of_shop (id int PRIMARY KEY); ALTER TABLE of_shop ADD COLUMN a int;"
    )
    site.run(f"SET extension_control_path = '{pg_source.folder}'; CREATE EXTENSION shop; RESET extension_control_path")
    assert Recording(site).records() == []
    site.run("DROP EXTENSION shop")
    assert Recording(site).records() == []
