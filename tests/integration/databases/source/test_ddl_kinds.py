"""Which statements of a source's users are recorded, and which are not: points of docs/reference/ddl-points.md."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.databases.ddl_recording import DDL, USER, Recording, columns, names
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROLE = "headrace_test_ddl_kinds"
FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
VIEW = "CREATE MATERIALIZED VIEW m AS SELECT id FROM t; CREATE UNIQUE INDEX ON m (id)"
# What is there before, and the statements that leave no record. A statement that takes no transaction is alone.
UNNOTICED: dict[str, tuple[str, list[str]]] = {
    "15 schema": ("CREATE SCHEMA s; CREATE TABLE s.n (id int)", ["ALTER SCHEMA s RENAME TO r"]),
    "17 labels of a type": (
        "CREATE TYPE mood AS ENUM ('a', 'b'); ALTER TABLE t ADD m mood",
        [
            "ALTER TYPE mood ADD VALUE 'c'",
            "ALTER TYPE mood ADD VALUE 'd' BEFORE 'a'",
            "ALTER TYPE mood RENAME VALUE 'a' TO 'z'",
            "CREATE TYPE empty AS ENUM ()",
        ],
    ),
    "18 domains and other types": (
        "CREATE DOMAIN few AS int; ALTER TABLE t ADD f few; CREATE TYPE pair AS (a int, b int)",
        [
            "ALTER DOMAIN few ADD CONSTRAINT c CHECK (VALUE > 0) NOT VALID",
            "ALTER DOMAIN few VALIDATE CONSTRAINT c",
            "ALTER TYPE pair ALTER ATTRIBUTE a TYPE text",
            "ALTER TYPE pair RENAME ATTRIBUTE a TO aa",
            "CREATE TYPE spans AS RANGE (subtype = float8)",
            'CREATE COLLATION other FROM "C"',
        ],
    ),
    "19 sequences": (
        "CREATE SEQUENCE s; ALTER TABLE t ADD n int DEFAULT nextval('s'), ADD k int GENERATED ALWAYS AS IDENTITY",
        [
            "ALTER SEQUENCE s AS int INCREMENT 5",
            "ALTER SEQUENCE s RESTART 100",
            "ALTER SEQUENCE s OWNED BY t.n",
            "ALTER TABLE t ALTER k RESTART WITH 100",
            "ALTER TABLE t ALTER k SET INCREMENT 5",
        ],
    ),
    "21 replica identity": (
        "CREATE UNIQUE INDEX u ON t (id)",
        [f"ALTER TABLE t REPLICA IDENTITY {how}" for how in ("FULL", "NOTHING", "USING INDEX u", "DEFAULT")],
    ),
    "25 rebuilt indexes": ("", ["REINDEX TABLE t", "REINDEX INDEX CONCURRENTLY t_pkey"]),
    "27 materialized views": (VIEW, ["REFRESH MATERIALIZED VIEW m", "REFRESH MATERIALIZED VIEW CONCURRENTLY m"]),
    "28 temporary tables": (
        "",
        [
            "BEGIN; CREATE TEMP TABLE x (id int) ON COMMIT DROP; ALTER TABLE x ADD y int; COMMIT",
            "SET search_path = pg_temp, public; CREATE TABLE x (id int); CREATE INDEX ON x (id); RESET search_path",
            "CREATE TEMP TABLE y AS SELECT 1 AS id; DROP TABLE y, x",
        ],
    ),
    "31 rows written anew": (
        "INSERT INTO t VALUES (1)",
        ["VACUUM FULL t", "CLUSTER t USING t_pkey", "ALTER TABLE t SET TABLESPACE pg_default"],
    ),
    "32 functions": (
        "",
        [
            "SET check_function_bodies = off; CREATE FUNCTION later() RETURNS int LANGUAGE sql AS 'SELECT x FROM later';"
            " RESET check_function_bodies",
            "CREATE FUNCTION one(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT a; END",
            "CREATE OR REPLACE FUNCTION one(a int) RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = '' AS"
            " $$ SELECT 1 $$",
            "CREATE PROCEDURE p() LANGUAGE plpgsql AS $body$ BEGIN EXECUTE $$SELECT 1$$; END $body$",
            "CREATE AGGREGATE most(int) (SFUNC = int4larger, STYPE = int)",
            "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)",
            "CREATE TYPE own AS (a int); CREATE CAST (own AS text) WITH INOUT",
            "DROP FUNCTION one CASCADE",
        ],
    ),
    "33 triggers": (
        f"{FUNCTION}; CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$",
        [
            "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
            *[f"ALTER TABLE t {how} TRIGGER g" for how in ("ENABLE REPLICA", "ENABLE ALWAYS", "DISABLE")],
            "DROP TRIGGER g ON t",
            "CREATE EVENT TRIGGER own ON ddl_command_start EXECUTE FUNCTION e()",
            "ALTER EVENT TRIGGER own DISABLE",
            "DROP EVENT TRIGGER own",
        ],
    ),
    "34 rules and views": (
        "",
        [
            "CREATE VIEW v WITH (security_barrier) AS SELECT id FROM t WHERE id > 0 WITH CHECK OPTION",
            "CREATE OR REPLACE VIEW v AS SELECT id, a FROM t",
            "CREATE VIEW w AS SELECT id FROM v",
            "CREATE RECURSIVE VIEW r (n) AS SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3",
            "CREATE RULE nothing AS ON DELETE TO t DO INSTEAD NOTHING",
            "DROP RULE nothing ON t",
        ],
    ),
    "35 row security": (
        "",
        [
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE t FORCE ROW LEVEL SECURITY",
            "CREATE POLICY own ON t USING (a = current_user)",
            "DROP POLICY own ON t",
        ],
    ),
    "36 rights and owners": (
        f"DROP ROLE IF EXISTS {ROLE}; CREATE ROLE {ROLE}; CREATE TABLE n (id int)",
        [
            f"GRANT SELECT, UPDATE (a) ON t TO {ROLE}",
            f"REVOKE SELECT ON t FROM {ROLE}",
            f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {ROLE}",
            f"ALTER TABLE t OWNER TO {ROLE}",
            f"REASSIGN OWNED BY {ROLE} TO CURRENT_USER",
            f"DROP OWNED BY {ROLE}",
            f"DROP ROLE {ROLE}",
        ],
    ),
    "37 what describes a table": (
        "",
        [
            "COMMENT ON TABLE t IS 'of shop'",
            "COMMENT ON COLUMN t.a IS 'name'",
            "CREATE STATISTICS both_of (dependencies) ON a, b FROM t",
            "ALTER TABLE t ALTER a SET STATISTICS 10, ALTER a SET STORAGE EXTERNAL, ALTER a SET COMPRESSION pglz",
            "ALTER TABLE t SET (fillfactor = 70, autovacuum_enabled = off)",
        ],
    ),
    "39 other objects": (
        "",
        [
            "CREATE FOREIGN DATA WRAPPER none",
            "CREATE SERVER far FOREIGN DATA WRAPPER none",
            "CREATE USER MAPPING FOR PUBLIC SERVER far OPTIONS (password 'secret')",
            "CREATE FOREIGN TABLE of_far (id int) SERVER far",
            "ALTER FOREIGN TABLE of_far ADD a int",
            "CREATE PUBLICATION own FOR TABLE t",
            "ALTER PUBLICATION own SET (publish = 'insert')",
            "CREATE TEXT SEARCH CONFIGURATION mine (COPY = simple)",
            "DO $$ DECLARE l oid := lo_create(0); BEGIN EXECUTE format('ALTER LARGE OBJECT %s OWNER TO CURRENT_USER', l); END $$",
        ],
    ),
    "40 settings": (
        "",
        [
            "ALTER SYSTEM SET log_min_duration_statement = 123456",
            "ALTER SYSTEM RESET log_min_duration_statement",
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''8MB''', current_database()); END $$",
            "ALTER ROLE CURRENT_USER IN DATABASE postgres SET work_mem = '8MB'",
            "ALTER ROLE CURRENT_USER IN DATABASE postgres RESET work_mem",
        ],
    ),
}


@pytest.mark.parametrize("case", UNNOTICED)
def test_statement_that_changes_no_columns_constraints_or_indexes_is_not_recorded(
    recording: Recording, case: str
) -> None:
    before, statements = UNNOTICED[case]
    if before:
        recording.run(before)
    for statement in statements:
        assert recording.run(statement) == [], statement
    assert recording.one("ALTER TABLE t ADD COLUMN behind int")["is_known"] or case.startswith("31")


def test_string_of_several_statements_has_a_record_of_each_that_changes_a_table(recording: Recording) -> None:
    """The server runs such a string in one transaction. Each record has the whole string."""
    string = "ALTER TABLE t ADD COLUMN c int; INSERT INTO t VALUES (1); CREATE TABLE n (id int PRIMARY KEY)"
    first, second = recording.run(string)
    assert [each["query"] for each in (first, second)] == [string] * 2
    assert columns(first["after"]).keys() - columns(first["before"]).keys() == {"c"}
    assert (second["before"], second["after"]["name"]) == (None, "n")


def test_prepared_transaction_that_is_rolled_back_leaves_no_record(recording: Recording) -> None:
    name = recording.site.user.info.dbname
    recording.site.run(f"BEGIN; ALTER TABLE t ADD COLUMN c int; PREPARE TRANSACTION '{name}'")
    assert recording.run(f"ROLLBACK PREPARED '{name}'") == []


WITH_ROWS = {
    "random": "CREATE TABLE n AS SELECT random() AS x",
    "prepared": "PREPARE one AS SELECT 1 AS id; CREATE TABLE n AS EXECUTE one; DEALLOCATE one",
    "temporary": "CREATE TEMP TABLE x AS SELECT 1 AS id; CREATE TABLE n AS TABLE x; DROP TABLE x",
}


@pytest.mark.parametrize("how", WITH_ROWS)
def test_table_that_is_made_with_rows_is_recorded_and_not_published(recording: Recording, how: str) -> None:
    (record,) = [each for each in recording.run(WITH_ROWS[how]) if each["after"]]
    assert (record["after"]["name"], record["made"]["identities"]) == ("n", {})
    assert record["made"]["why_not"].startswith("it was made with rows")


def test_table_like_a_temporary_one_is_a_new_table(recording: Recording) -> None:
    record = recording.one(
        "CREATE TEMP TABLE x (id int PRIMARY KEY); CREATE TABLE n (LIKE x INCLUDING ALL); DROP TABLE x"
    )
    assert columns(record["after"]) == {"id": "integer"}
    assert record["made"]["identities"].keys() == {"topo"}


def test_drop_of_a_temporary_and_another_table_is_recorded_for_the_other_one(recording: Recording) -> None:
    recording.run("CREATE TEMP TABLE x (id int); CREATE TABLE n (id int)")
    record = recording.one("DROP TABLE x, n")
    assert (record["before"]["name"], record["after"]) == ("n", None)


def test_published_table_cannot_become_unlogged(recording: Recording) -> None:
    recording.run("CREATE TABLE n (id int PRIMARY KEY)")
    for name in ("t", "n"):
        with pytest.raises(psycopg.Error, match="logged"):
            recording.site.run(f"ALTER TABLE {name} SET UNLOGGED")
    assert recording.records() == []


PATHS = {
    "empty": "''",
    "missing": "nowhere, public",
    "comma": '"a,b", public',
    "user": '"$user", public',
}


@pytest.mark.parametrize("path", PATHS)
def test_record_names_the_table_that_the_search_path_means(recording: Recording, path: str) -> None:
    """Two schemas have a table of the same name."""
    recording.run('CREATE SCHEMA "a,b"; CREATE TABLE "a,b".t (id int PRIMARY KEY)')
    of = "public.t" if path == "empty" else "t"
    record = recording.one(f"SET search_path = {PATHS[path]}; ALTER TABLE {of} ADD COLUMN c int; RESET search_path")
    owner = "a,b" if path == "comma" else "public"
    assert (record["before"]["owner"], record["after"]["owner"]) == (owner, owner)


def test_names_are_recorded_as_the_server_keeps_them(recording: Recording) -> None:
    long = "é" * 40  # 80 bytes: the server keeps whole characters of the first 63
    record = recording.one(
        f'CREATE TABLE "Of, ""x""" ("select" int PRIMARY KEY, U&"d\\0061t\\+000061" int, "{long}" int, MiXed int)'
    )
    assert record["after"]["name"] == 'Of, "x"'
    assert list(columns(record["after"])) == ["select", "data", "é" * 31, "mixed"]


def test_record_says_who_ran_a_statement(recording: Recording, user: psycopg.Connection[Any]) -> None:
    """SET ROLE, SET SESSION AUTHORIZATION, and a function with its owner's rights."""
    made = recording.run(
        f"SET ROLE {USER}; CREATE TABLE own.a (id int); RESET ROLE",
        f"SET SESSION AUTHORIZATION {USER}; CREATE TABLE own.b (id int); RESET SESSION AUTHORIZATION",
    )
    superuser = recording.site.user.info.user
    assert [(each["user"], each["role"]) for each in made] == [(superuser, USER), (USER, "none")]
    assert [each["after"]["role"] for each in made] == [USER] * 2
    recording.run(
        "CREATE FUNCTION of_owner() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN ALTER TABLE public.t ADD c"
        " int; END $$"
    )
    user.execute("SELECT public.of_owner()")
    (record,) = recording.records()
    assert (record["user"], record["is_nested"], record["after"]["role"]) == (USER, True, superuser)


def test_statement_of_a_megabyte_is_recorded_with_its_beginning(recording: Recording) -> None:
    text = f"-- first;\nALTER TABLE t /* ; */ ADD COLUMN c text DEFAULT '{'x' * 1_000_000}';;\n-- last"
    record = recording.one(text)
    assert record["query"] == text[:65536]
    assert len(record["older"]["c"]) == 1_000_000


def test_log_is_truncated_by_its_owner_alone_and_then_nothing_is_known(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    recording.site.run(f"GRANT pg_write_all_data TO {USER}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.execute("TRUNCATE headrace_ddl.log")
    recording.site.run("TRUNCATE headrace_ddl.log")
    record = recording.one("ALTER TABLE t ADD COLUMN c int")
    assert (record["before"], record["is_known"]) == (None, False)


def test_superusers_session_without_event_triggers_is_found_by_the_next_up(recording: Recording) -> None:
    if recording.site.user.info.server_version < 170000:
        pytest.skip("event_triggers is new in PostgreSQL 17")
    assert recording.run("SET event_triggers = off; ALTER TABLE t ADD COLUMN c int; RESET event_triggers") == []
    recording.site.prepare(DDL)
    (record,) = recording.records()
    assert record["is_known"] is False
    assert "c" in columns(record["after"])


def test_invalid_index_of_a_cancelled_statement_is_none(recording: Recording) -> None:
    """CREATE INDEX CONCURRENTLY that fails leaves an index which is not valid, and no record."""
    recording.site.run("INSERT INTO t VALUES (1, 'x', 1), (2, 'x', 2)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        recording.site.run("CREATE UNIQUE INDEX CONCURRENTLY u ON t (a)")
    assert recording.records() == []
    assert row_of(recording.site.run("SELECT indisvalid FROM pg_index WHERE indexrelid = 'u'::regclass")) == (False,)
    assert names(recording.one("ALTER TABLE t ADD COLUMN c int")["after"], "indexes") == []
