"""What a source records of DDL: every change of a table's structure, in the statement's transaction, and never at a
user's expense.

Longer than 500 lines: all of it is about one schema and its event triggers.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.ddl.structure_query import STRUCTURE
from headrace.databases.postgres.source.admin import PostgresSourceAdmin
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.ddl_objects import VERSION
from headrace.lcr.batch import Command
from headrace.lcr.ddl import ddl_of, failed_ddl_of
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import Structure, structure_from_json
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.fix_postgres import drop_database
from tests.support.databases.postgres_site import ALL, Site, slot_of
from tests.support.databases.statements import row_of
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

DDL = (RuleSet(include=(Rule(owner="public", ddl=True),)),)
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text, b int)"
USER = "headrace_test_ddl_user"
PATIENCE_S = 30.0  # for another session to begin to wait, on a busy machine


class Recording:
    """A database that records DDL, and the records since the last look at them."""

    def __init__(self, site: Site) -> None:
        self.site, self.seen = site, 0

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements as their user; return what was recorded."""
        for statement in statements:
            self.site.run(statement)
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        """Return the records since the last call."""
        rows = self.site.run(
            "SELECT number, content FROM headrace_ddl.log WHERE number > %s ORDER BY number", self.seen
        ).fetchall()
        self.seen = max([self.seen, *(int(str(number)) for number, _ in rows)])
        return [json.loads(str(content)) for _, content in rows]

    def one(self, *statements: str) -> dict[str, Any]:
        """Run statements that make one record, and return it."""
        (record,) = self.run(*statements)
        assert ddl_of(json.dumps(record).encode()) is not None
        return record


def _site(request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site], version: str) -> Site:
    return make_site(request.getfixturevalue("pg_source" if version == "18" else f"pg_{version}"))


@pytest.fixture(params=values(["18", "16", "15"], "18"))
def recording(request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]) -> Recording:
    site = _site(request, make_site, request.param)
    site.run(TABLE)
    site.prepare(DDL)
    made = Recording(site)
    (base,) = made.records()
    assert base["base"]
    return made


@pytest.fixture
def user(recording: Recording) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role without any right but those on its own schema."""
    run = recording.site.run
    run(
        f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN PASSWORD 'secret'; CREATE SCHEMA own AUTHORIZATION {USER}"
    )
    recording.records()
    dsn = conninfo.make_conninfo(recording.site.dsn, user=USER, password="secret")
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection
    finally:
        run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def columns(structure: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["type"] for each in structure["columns"]}


def names(structure: dict[str, Any], kind: str) -> list[str]:
    return [each["name"] for each in structure[kind]]


def is_waiting(site: Site, pid: int) -> bool:
    row = site.run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid).fetchone()
    return row == ("Lock",)


def wait_until_waiting(site: Site, pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_waiting(site, pid):
        assert time.monotonic() < deadline, "it does not wait for a lock"
        time.sleep(0.002)


# ---------------------------------------------------------------------- records


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
    assert recording.one("ALTER TABLE t ALTER COLUMN b TYPE bigint")["rewritten"] == rewrite
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


# ---------------------------------------------------------------------- at nobody's expense


def test_users_without_rights_are_recorded_and_can_do_nothing_else(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    user.execute("CREATE TABLE own.t (id int); ALTER TABLE own.t ADD COLUMN c int; DROP TABLE own.t")
    made = recording.records()
    assert [each["tag"] for each in made] == ["CREATE TABLE", "ALTER TABLE", "DROP TABLE"]
    assert {each["user"] for each in made} == {USER}
    forged = "INSERT INTO headrace_ddl.log (relation, parts, content) VALUES (1, '{}', '{}')"
    for statement in (
        "SELECT * FROM headrace_ddl.log",
        forged,
        "SELECT headrace_ddl.structure_of(1)",
        "CALL headrace_ddl.watch('{}')",
        "CREATE TABLE headrace_ddl.mine ()",
        "DROP SCHEMA headrace_ddl CASCADE",
        "DROP EVENT TRIGGER headrace_ddl_end",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement.encode())
    recording.site.run(f"GRANT pg_write_all_data, pg_read_all_data TO {USER}")
    for statement in (forged, "DELETE FROM headrace_ddl.log", "UPDATE headrace_ddl.log SET content = '{}'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="event triggers alone"):
            user.execute(statement.encode())
    assert recording.records() == []


def test_default_privileges_of_the_owner_do_not_open_the_log(
    request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]
) -> None:
    site = _site(request, make_site, "18")
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER}; {TABLE}")
    site.run(
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {USER}, PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS"
        f" TO {USER}; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {USER}; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON"
        f" FUNCTIONS TO {USER}"
    )
    try:
        site.prepare(DDL)
        assert row_of(
            site.run(
                f"SELECT has_schema_privilege('{USER}', 'headrace_ddl', 'USAGE'), has_table_privilege('{USER}',"
                f" 'headrace_ddl.log', 'INSERT'), has_function_privilege('{USER}', 'headrace_ddl.note()', 'EXECUTE'),"
                f" has_sequence_privilege('{USER}', 'headrace_ddl.log_number_seq', 'USAGE')"
            )
        ) == (False, False, False, False)
        assert site.prepare(DDL) == ()
        site.run(f"GRANT INSERT ON headrace_ddl.log TO {USER}")
        assert [each.split(";")[0] for each in site.prepare(DDL)] == ["CREATE SCHEMA headrace_ddl"]
        assert not row_of(site.run(f"SELECT has_table_privilege('{USER}', 'headrace_ddl.log', 'INSERT')"))[0]
        assert site.prepare(DDL) == ()
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_functions_of_users_are_never_called_with_our_rights(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    """Names are looked up in pg_catalog alone, whatever the user's search_path is."""
    body = "LANGUAGE plpgsql AS $$ BEGIN INSERT INTO own.caught VALUES (current_user); RETURN '{}'; END $$"
    user.execute(
        f"CREATE TABLE own.caught (by name); CREATE FUNCTION own.left(text, int) RETURNS text {body}; CREATE FUNCTION"
        f" own.current_setting(text) RETURNS text {body}; CREATE FUNCTION own.same(jsonb, text) RETURNS jsonb {body};"
        " CREATE OPERATOR own.-> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = own.same); CREATE OPERATOR own.- (LEFTARG ="
        " jsonb, RIGHTARG = text, FUNCTION = own.same); CREATE TABLE own.pg_class (oid oid, relname name, relnamespace"
        ' oid, relkind "char")'.encode()
    )
    recording.records()
    user.execute(
        "SET search_path = own, pg_catalog; CREATE TABLE own.t (id text DEFAULT own.left('x', 1)); ALTER TABLE own.t ADD"
        " COLUMN a int, DROP COLUMN id; RESET search_path"
    )
    assert len(recording.records()) == 2
    assert user.execute("SELECT * FROM own.caught").fetchall() == []


def test_statement_is_done_within_a_second_while_the_log_is_locked(recording: Recording) -> None:
    site = recording.site
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(site.dsn) as locker:
        locker.execute("LOCK TABLE headrace_ddl.log IN ACCESS EXCLUSIVE MODE")
        slowest = []
        for name in ("c", "d", "e"):  # on a busy machine one of them may be slow for other reasons
            took = []
            for statement in (
                f"CREATE TABLE {name} (id int)",
                # it fires two triggers
                f"ALTER TABLE t DROP COLUMN IF EXISTS b, DROP COLUMN IF EXISTS {chr(ord(name) - 1)}, ADD COLUMN {name} int",
                f"CREATE INDEX {name}i ON t ({name})",
                f"DROP INDEX {name}i",
            ):
                began = time.monotonic()
                site.run(statement)
                took.append(time.monotonic() - began)
            slowest.append(max(took))
        assert min(slowest) < 1.0
        began = time.monotonic()
        site.run("CREATE TEMP TABLE v (id int); ALTER TABLE v ADD COLUMN f int; DROP TABLE v")
        assert time.monotonic() - began < 0.3, "temporary tables are not looked up in the log"
    assert recording.records() == []
    record = recording.one("ALTER TABLE t ADD COLUMN f int")
    assert columns(record["before"]).keys() == {"id", "a", "b"}, "the last record, which is older"
    record = recording.one("ALTER TABLE c ADD COLUMN f int")
    assert (record["before"], record["is_known"]) == (None, False)


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other",
        "ALTER TABLE headrace_ddl.log RENAME COLUMN relation TO other",
        "ALTER TABLE headrace_ddl.log RENAME TO other",
        "ALTER TABLE headrace_ddl.log ADD CHECK (false) NOT VALID",
        "DROP TABLE headrace_ddl.log",
        "UPDATE headrace_ddl.log SET content = 'damaged'",
        "ALTER SEQUENCE headrace_ddl.log_number_seq MAXVALUE 2",
    ],
)
def test_statement_succeeds_whatever_is_wrong_with_the_objects(recording: Recording, damage: str) -> None:
    site = recording.site
    site.run(damage)
    site.run(
        "ALTER TABLE t DROP COLUMN b, ADD COLUMN c int; CREATE INDEX i ON t (c); DROP INDEX i; CREATE TABLE u (id int)"
    )
    assert row_of(site.run("SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'c'")) == (
        1,
    )


def test_failure_is_recorded_with_its_statement(recording: Recording) -> None:
    recording.run("ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other")
    (record,) = recording.run("ALTER TABLE t ADD COLUMN c int")
    assert record == {"format": 1, "failed": "42883", "tag": "ALTER TABLE", "query": "ALTER TABLE t ADD COLUMN c int"}
    failed = failed_ddl_of(json.dumps(record).encode())
    assert failed is not None
    assert failed.ddl_text == "ALTER TABLE t ADD COLUMN c int"


def test_statement_whose_table_another_one_locks_leaves_a_record(recording: Recording) -> None:
    """An index is renamed without a lock on its table, and its definition cannot be read without one."""
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(recording.site.dsn) as other:
        other.execute("ALTER TABLE t ADD COLUMN c int")
        (record,) = recording.run("ALTER INDEX i RENAME TO j")
        assert (record["failed"], record["query"]) == ("55P03", "ALTER INDEX i RENAME TO j")


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


def test_serializable_transactions_are_not_aborted_for_our_reads(recording: Recording) -> None:
    """Both would read what the other one writes, on one page of an index."""
    site = recording.site
    recording.run("CREATE TABLE u (id int)")
    with psycopg.connect(site.dsn) as one, psycopg.connect(site.dsn) as two:
        for session in (one, two):
            session.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            session.execute("SELECT 1")
        one.execute("ALTER TABLE t ADD COLUMN c int")
        two.execute("ALTER TABLE u ADD COLUMN c int")
        one.execute("ALTER TABLE t ADD COLUMN d int")
        two.execute("ALTER TABLE u ADD COLUMN d int")
    made = recording.records()
    assert [(each["before"], each["is_known"]) for each in made] == [(None, False)] * 4
    assert columns(recording.one("ALTER TABLE t ADD COLUMN e int")["before"]).keys() == {"id", "a", "b", "c", "d"}
    recording.run("CREATE INDEX i ON t (a)")
    (record,) = recording.run("BEGIN ISOLATION LEVEL SERIALIZABLE; DROP INDEX i; COMMIT")
    assert record["failed"] == "0A000", "only a record that it may not read has the index's table"


def test_repeatable_read_records_what_it_sees(recording: Recording) -> None:
    site = recording.site
    with psycopg.connect(site.dsn) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT 1")
        recording.run("ALTER TABLE t ADD COLUMN c int")
        session.execute("ALTER TABLE t ADD COLUMN d int")
    record = recording.one()
    assert columns(record["before"]).keys() == {"id", "a", "b"}
    assert columns(record["after"]).keys() == {"id", "a", "b", "d"}
    record = recording.one("ALTER TABLE t ADD COLUMN e int")
    assert columns(record["before"]).keys() == {"id", "a", "b", "d"}
    assert columns(record["after"]).keys() == {"id", "a", "b", "c", "d", "e"}
    assert record["is_known"] is False, "c was there before"
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(site.dsn) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT 1")
        recording.run("DROP INDEX i")
        session.execute("ALTER TABLE t ADD COLUMN f int")
    (record,) = recording.records()
    assert record.get("failed") == "55000", "the index still has its row, and no definition"


def test_last_record_of_overlapping_transactions_is_not_the_table_before(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as one:
        one.execute("CREATE INDEX i1 ON t (a)")
        recording.site.run("CREATE INDEX i2 ON t (b)")
    first, second = recording.records()
    assert (first["is_known"], second["is_known"]) == (True, True)
    assert (names(first["after"], "indexes"), names(second["after"], "indexes")) == (["i1"], ["i2"])
    record = recording.one("DROP INDEX i1")
    assert record["is_known"] is False
    assert record["before"] == record["after"], "the last record has the table without i1, too"
    assert record["gone"] == [{"kind": "index", "name": "i1"}]
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]


def test_record_that_lacks_its_own_transaction_is_not_the_table_before(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as one, psycopg.connect(recording.site.dsn) as two:
        two.execute("CREATE INDEX i2 ON t (b)")
        one.execute("CREATE INDEX i1 ON t (a)")
        two.commit()
        one.execute("CREATE INDEX i3 ON t (a, b)")
    assert [each["is_known"] for each in recording.records()] == [True, True, False]
    assert recording.one("DROP INDEX i3")["is_known"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_last_record_with_an_old_snapshot_is_not_the_table_before(recording: Recording, level: str) -> None:
    with psycopg.connect(recording.site.dsn) as other:
        other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}; SELECT".encode())
        recording.run("ALTER TABLE t ADD COLUMN c int")
        other.execute("CREATE INDEX i ON t (a)")
    (record,) = recording.records()
    assert "c" not in columns(record["after"])
    record = recording.one("ALTER TABLE t RENAME COLUMN c TO d")
    assert record["is_known"] is False, "else d is a new column"
    assert recording.one("ALTER TABLE t RENAME COLUMN d TO e")["is_known"]


def test_table_that_was_written_anew_without_a_record_is_not_known(recording: Recording) -> None:
    site = recording.site
    site.run("INSERT INTO t VALUES (1, 'x', 1)")
    without = "ALTER EVENT TRIGGER {0} DISABLE; {1}; ALTER EVENT TRIGGER {0} ENABLE ALWAYS"
    site.run(without.format("headrace_ddl_end", "ALTER TABLE t ADD COLUMN w float8 DEFAULT random()"))
    record = recording.one("ALTER TABLE t ADD COLUMN c int")
    assert (record["rewritten"], record["is_known"]) == (0, False), "nobody knows the values of w"
    site.run(without.format("headrace_ddl_end", "ALTER TABLE t ALTER b TYPE bigint USING b + 1"))
    assert recording.one("ALTER TABLE t RENAME COLUMN c TO d")["is_known"] is False
    site.run("VACUUM FULL t")
    assert recording.one("CREATE INDEX i ON t (a)")["is_known"], "no values are in question"
    site.run("VACUUM FULL t")
    assert recording.one("ALTER TABLE t ADD COLUMN e int")["is_known"] is False
    assert recording.one("ALTER TABLE t ADD COLUMN f int")["is_known"]
    record = recording.one("BEGIN; TRUNCATE t; ALTER TABLE t ADD COLUMN g int; INSERT INTO t VALUES (1); COMMIT")
    assert record["is_known"], "without rows there are no values"
    assert recording.one("ALTER TABLE t ADD COLUMN h int")["is_known"]
    assert recording.one("ALTER TABLE t ALTER b TYPE int, ADD COLUMN k int")["rewritten"]
    assert recording.one("ALTER TABLE t ADD COLUMN l int")["is_known"]


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
    site = _site(request, make_site, "18")
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


# ---------------------------------------------------------------------- up and down


def test_prepare_is_idempotent_and_shows_its_steps(site: Site) -> None:
    site.run(TABLE)
    plan = site.source.plan("topo", DDL)
    assert [step.is_done for step in plan] == [False] * 4
    assert [step.statement.split()[0] for step in plan] == ["CREATE", "CREATE", "CALL", "SELECT"]
    assert "names the 1 captured tables" in plan[1].effect
    assert "SHARE UPDATE EXCLUSIVE" in plan[2].lock
    assert '"public"."t"' in plan[2].statement
    assert site.prepare(DDL) == tuple(step.statement for step in plan)
    assert site.prepare(DDL) == ()
    assert all(step.is_done for step in site.source.plan("topo", DDL))
    assert site.source.captures_ddl("topo")
    removed = site.source.remove("topo")
    assert removed[-1] == "DROP SCHEMA headrace_ddl CASCADE"
    assert site.run("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchone() is None
    assert site.source.remove("topo") == ()


def test_without_a_rule_for_ddl_nothing_is_created(site: Site) -> None:
    site.run(TABLE)
    assert len(site.source.plan("topo", ALL)) == 2
    site.prepare(ALL)
    assert site.run("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    assert not site.source.captures_ddl("topo")
    assert len(site.source.remove("topo")) == 2


def test_recording_begins_and_ends_with_the_rule(site: Site) -> None:
    site.run(TABLE)
    site.prepare(ALL)
    begun = site.prepare(DDL)
    assert [each.split()[0] for each in begun] == ["CREATE", "ALTER", "CALL"]
    recording = Recording(site)
    (base,) = recording.records()
    assert columns(base["after"]) == {"id": "integer", "a": "text", "b": "integer"}
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]
    ended = site.prepare(ALL)
    assert ended == (
        f'ALTER PUBLICATION "{slot_of(site)}" DROP TABLE "headrace_ddl"."log"',
        "DROP SCHEMA headrace_ddl CASCADE",
    )
    assert site.prepare(ALL) == ()
    site.run("ALTER TABLE t ADD COLUMN d int")


def test_log_stays_while_another_topology_needs_it(site: Site) -> None:
    site.run(TABLE)
    site.prepare(DDL)
    site.source.prepare("other", DDL)
    assert [each.split()[0] for each in site.source.prepare("other", ALL)] == ["ALTER"]
    site.source.prepare("other", DDL)
    assert "DROP SCHEMA headrace_ddl CASCADE" not in site.source.remove("other")
    assert Recording(site).records()
    assert site.source.remove("topo")[-1] == "DROP SCHEMA headrace_ddl CASCADE"


def test_statement_succeeds_though_its_triggers_are_being_removed(site: Site) -> None:
    """A user's own event trigger is slow, and the functions behind ours must outlive it."""
    site.run(TABLE)
    site.prepare(DDL)
    site.run(
        "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1);"
        " PERFORM count(*) FROM pg_class; END $$; CREATE EVENT TRIGGER a ON ddl_command_end WHEN TAG IN ('ALTER"
        " TABLE') EXECUTE FUNCTION slow(); CREATE EVENT TRIGGER b ON sql_drop WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION"
        " slow()"
    )
    failed: list[Exception] = []
    with psycopg.connect(site.dsn, autocommit=True) as user, psycopg.connect(site.dsn, autocommit=True) as holder:

        def alter() -> None:
            try:
                user.execute("ALTER TABLE t DROP COLUMN b, ADD COLUMN c int")
            except psycopg.Error as error:
                failed.append(error)

        def remove() -> None:
            site.source.remove("topo")

        holder.execute("SELECT pg_advisory_lock(1)")
        threads = [threading.Thread(target=alter), threading.Thread(target=remove)]
        threads[0].start()
        wait_until_waiting(site, user.info.backend_pid)
        threads[1].start()
        deadline = time.monotonic() + PATIENCE_S
        while site.run("SELECT FROM pg_event_trigger WHERE evtname LIKE 'headrace%'").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchall()
        holder.execute("SELECT pg_advisory_unlock(1)")
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failed == []
    assert not site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchall()


def test_users_statements_succeed_while_recording_begins_and_ends(site: Site) -> None:
    site.run(f"{TABLE}; CREATE SCHEMA apart")
    failed: list[Exception] = []

    def work(number: int) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as user:
            for _ in range(40):
                for statement in (
                    f"CREATE TABLE apart.w{number} (id int PRIMARY KEY, a int)",
                    f"ALTER TABLE apart.w{number} DROP COLUMN a, ADD COLUMN b bigint DEFAULT random()",
                    f"CREATE INDEX ON apart.w{number} (b)",
                    f"DROP TABLE apart.w{number}",
                ):
                    try:
                        user.execute(statement.encode())
                    except psycopg.Error as error:
                        failed.append(error)

    users = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for user in users:
        user.start()
    rounds = 0
    while any(user.is_alive() for user in users):
        for rules in (DDL, ALL):
            try:
                site.prepare(rules)
            except DatabaseUnavailable:
                continue
        rounds += 1
    for user in users:
        user.join()
    assert failed == []
    assert rounds > 1


def test_log_is_no_table_of_users(site: Site) -> None:
    site.run(TABLE)
    everything = (RuleSet(include=(Rule(ddl=True, tags=ANY_TAG),)),)
    site.prepare(everything)
    source = site.source
    assert [each.name for each in source.captured("topo")] == ["t"]
    assert [each.name for each in source.tables(everything)] == ["t"]
    assert len(source.row_marks("topo")) == 1
    assert source.uncaptured("topo", everything) == ()
    build = source.dictionary_build("topo")
    assert build is not None
    assert sorted((each.owner, each.name) for each in build.tables) == [("headrace_ddl", "log"), ("public", "t")]
    assert [each for each in source.preflight(everything, streams=1, topology="topo") if each.is_error] == []


def test_objects_that_were_damaged_are_repaired(recording: Recording) -> None:
    site = recording.site
    for damage in (
        "ALTER EVENT TRIGGER headrace_ddl_end DISABLE",
        "ALTER EVENT TRIGGER headrace_ddl_drop ENABLE REPLICA",
        "DROP EVENT TRIGGER headrace_ddl_rewrite",
        "ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other",
    ):
        site.run(damage)
        assert [each.split()[0] for each in site.prepare(DDL)] == ["CREATE", "CALL"], damage
        assert site.prepare(DDL) == ()
        assert recording.records() == [], "nothing changed meanwhile"
    site.run("ALTER TABLE headrace_ddl.log DISABLE TRIGGER refuse")
    assert len(site.prepare(DDL)) == 1
    assert site.prepare(DDL) == ()
    assert recording.one("ALTER TABLE t ADD COLUMN c int")
    site.run("DROP TABLE headrace_ddl.log")
    assert [each.split()[0] for each in site.prepare(DDL)] == ["CREATE", "ALTER", "CALL"]
    assert recording.seen


def test_missed_change_is_recorded_as_one_that_is_not_known(recording: Recording) -> None:
    site = recording.site
    site.run(
        "ALTER EVENT TRIGGER headrace_ddl_end DISABLE; ALTER TABLE t ADD COLUMN c int; ALTER EVENT TRIGGER"
        " headrace_ddl_end ENABLE ALWAYS"
    )
    (called,) = site.prepare(DDL)
    assert called == 'CALL headrace_ddl.watch("public"."t")'
    missed = DdlRecord.of(json.dumps(recording.one()))
    assert not missed.is_known
    assert [part.name for part in missed.delta.added] == ["c"]
    assert "headrace up" in missed.query
    assert site.prepare(DDL) == ()
    assert recording.one("ALTER TABLE t ADD COLUMN d int")["is_known"]


def test_index_that_was_rebuilt_is_no_missed_change(recording: Recording) -> None:
    recording.run("CREATE INDEX i ON t (a)")
    recording.site.run("REINDEX INDEX CONCURRENTLY i")
    assert len(recording.site.prepare(DDL)) == 1
    (record,) = recording.records()
    assert record["base"]
    assert recording.site.prepare(DDL) == ()


def test_source_that_no_longer_records_is_named_until_it_is_repaired(recording: Recording) -> None:
    source = recording.site.source
    assert source.uncaptured("topo", DDL) == ()
    for damage in ("ALTER EVENT TRIGGER headrace_ddl_end DISABLE", "DROP EVENT TRIGGER headrace_ddl_drop"):
        recording.site.run(damage)
        (found,) = source.preflight(DDL, streams=1)
        assert (found.is_error, found.fix) == (False, "headrace up FILE")
        assert "DDL is not recorded" in found.problem
        assert source.uncaptured("topo", DDL) == ("headrace_ddl.log",)
        assert source.uncaptured("topo", ALL) == ()
        recording.site.prepare(DDL)
        assert source.preflight(DDL, streams=1) == ()
        assert source.uncaptured("topo", DDL) == ()
    recording.site.run(f"ALTER PUBLICATION {slot_of(recording.site)} DROP TABLE headrace_ddl.log")
    assert source.uncaptured("topo", DDL) == ("headrace_ddl.log",)


def test_older_objects_are_replaced_and_newer_ones_are_left(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = recording.site
    site.run(f"COMMENT ON SCHEMA headrace_ddl IS 'headrace {VERSION + 1}'")
    assert site.prepare(DDL) == ()
    monkeypatch.setattr("headrace.databases.postgres.source.ddl_capture.VERSION", VERSION + 2)
    assert [each.split(";")[0] for each in site.prepare(DDL)] == ["CREATE SCHEMA headrace_ddl"]
    assert recording.one("ALTER TABLE t ADD COLUMN c int")


def test_base_waits_for_ddl_that_began_before_the_triggers(site: Site) -> None:
    site.run(TABLE)
    site.prepare(ALL)
    began, ended = [], []
    with psycopg.connect(site.dsn) as earlier:
        earlier.execute("ALTER TABLE t ADD COLUMN c int")

        def prepare() -> None:
            with closing(PostgresSource(site.dsn)) as source:
                began.append(source._session().info.backend_pid)
                while True:
                    try:
                        ended.append(source.prepare("topo", DDL))
                    except DatabaseUnavailable:
                        continue
                    return

        other = threading.Thread(target=prepare)
        other.start()
        deadline = time.monotonic() + PATIENCE_S
        while not began:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        wait_until_waiting(site, began[0])
    other.join(PATIENCE_S)
    assert ended
    (base,) = Recording(site).records()
    assert "c" in columns(base["after"])


def test_role_without_rights_is_refused_with_the_fix(site: Site) -> None:
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'; {TABLE}")
    site.run(f"ALTER TABLE t OWNER TO {USER}; GRANT CREATE ON DATABASE {site.user.info.dbname} TO {USER}")
    try:
        with closing(
            PostgresSource(conninfo.make_conninfo(site.dsn, user=USER, password="secret"), site="s")
        ) as source:
            (found,) = [each for each in source.preflight(DDL, streams=1) if each.is_error]
            assert "only superusers can create event triggers" in found.problem
            with pytest.raises(DatabaseError):
                source.prepare("topo", DDL)
            assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchone() is None
            assert [each for each in source.preflight(ALL, streams=1) if each.is_error] == []
            site.run(found.fix)
            source.close()
            assert [each for each in source.preflight(DDL, streams=1) if each.is_error] == []
    finally:
        site.source.remove("topo")
        site.run(f"ALTER TABLE t OWNER TO CURRENT_USER; DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_schema_of_another_hand_is_refused(site: Site) -> None:
    site.run(
        f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER}; {TABLE}; CREATE SCHEMA headrace_ddl AUTHORIZATION {USER}"
    )
    site.run("COMMENT ON SCHEMA headrace_ddl IS 'headrace 1'")
    try:
        (found,) = [each for each in site.source.preflight(DDL, streams=1) if each.is_error]
        assert f'its owner is "{USER}"' in found.problem
        with pytest.raises(DatabaseError, match="did not make"):
            site.prepare(DDL)
        assert site.source.preflight(ALL, streams=1) == ()
        site.run("ALTER SCHEMA headrace_ddl RENAME TO theirs")
        site.prepare(DDL)
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_tables_of_other_kinds_are_refused_by_name(site: Site) -> None:
    site.run(
        "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE"
        " part_1 PARTITION OF part FOR VALUES IN (1); CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY"
        " KEY (id)) INHERITS (parent); CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)"
    )
    found = {
        re.sub(r".* table public\.", "", each.path): each.problem
        for each in site.source.preflight(DDL, streams=1)
        if each.is_error
    }
    assert {name: problem.split(":")[0] for name, problem in found.items()} == {
        "part": "is partitioned",
        "parent": "inherits, or others inherit from it",
        "child": "inherits, or others inherit from it",
        "fast": "is unlogged",
    }
    apart = (RuleSet(include=(Rule(owner="public"), Rule(owner="public", name="plain", ddl=True))),)
    assert [each for each in site.source.preflight(apart, streams=1) if each.is_error] == []


@pytest.mark.parametrize(
    ("setting", "value", "is_error"),
    [("event_triggers", "off", True), ("default_transaction_isolation", "serializable", False)],
)
def test_settings_that_keep_ddl_from_being_replicated_are_reported(
    site: Site, setting: str, value: str, is_error: bool
) -> None:
    site.run(TABLE)
    database = str(site.user.info.dbname)
    role = f'"{site.user.info.user}"' if not str(site.user.info.user).islower() else site.user.info.user
    for where in (f"DATABASE {database}", f"ROLE {role} IN DATABASE {database}"):
        site.run(f"ALTER {where} SET {setting} = {value}")
        with closing(PostgresSource(site.dsn)) as source:
            (found,) = source.preflight(DDL, streams=1)
            assert source.preflight(ALL, streams=1) == ()
        assert found.is_error is is_error
        assert found.problem.startswith(f"{setting} is {value} for {where}: ")
        site.run(found.fix if is_error else f"ALTER {where} RESET {setting}")
        with closing(PostgresSource(site.dsn)) as source:
            assert source.preflight(DDL, streams=1) == ()


def test_publication_for_all_tables_is_reported(site: Site) -> None:
    site.run(TABLE)
    site.run("CREATE PUBLICATION everything FOR ALL TABLES")
    (found,) = site.source.preflight(DDL, streams=1)
    assert not found.is_error
    assert found.problem.startswith('the publication "everything" is for all tables')


def test_administrator_installs_and_removes_what_records_ddl(site: Site) -> None:
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER} LOGIN REPLICATION PASSWORD 'secret'; {TABLE}")
    site.run(f"GRANT SELECT ON t TO {USER}")
    dsn = conninfo.make_conninfo(site.dsn, user=USER, password="secret")
    admin = PostgresSourceAdmin(site.dsn, dsn, site="s")
    try:
        with closing(PostgresSource(dsn, site="s", has_admin=True)) as source:
            assert [each for each in source.preflight(DDL, streams=1) if each.is_error] == []
            assert [each for each in admin.preflight("topo", DDL) if each.is_error] == []
            with pytest.raises(DatabaseError):
                source.prepare("topo", DDL)
            done = admin.prepare("topo", DDL, was_source=False)
            assert [each.split()[0] for each in done] == ["CREATE", "CREATE", "CALL"]
            assert admin.prepare("topo", DDL, was_source=True) == ()
            assert len(source.prepare("topo", DDL)) == 1
            assert all(step.is_done for step in source.plan("topo", DDL))
            assert source.captures_ddl("topo")
            assert source.dictionary_build("topo") is not None
            kept = {each.identity for each in source.captured("topo")}
            assert len(kept) == 1
            assert admin.take_out("topo", kept) == ()
            assert [each.split()[0] for each in admin.take_out("topo", kept, keeps_ddl=False)] == ["ALTER", "DROP"]
            assert not source.captures_ddl("topo")
            with pytest.raises(DatabaseError, match="DDL is not recorded"):
                source.prepare("topo", DDL)
            admin.prepare("topo", DDL, was_source=True)
            source.remove("topo")
            assert admin.remove("topo")[-1] == "DROP SCHEMA headrace_ddl CASCADE"
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")
