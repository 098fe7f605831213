"""Settings that a role or a database gives to every session: none of them changes the behaviour of Headrace's sessions."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.rules.rule import Rule, RuleSet
from tests.support.redo.postgres_redo import wait_until
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# Each would do harm: it refuses, ends, or changes the meaning of a session's statements.
PINNED = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "20s",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "20s",
    "idle_session_timeout": "20s",
    "transaction_timeout": "20s",
    "row_security": "on",
    "standard_conforming_strings": "off",
    "xmloption": "document",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "default_table_access_method": "other_heap",
    "exit_on_error": "on",
    "jit": "on",
    "DateStyle": "SQL, MDY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "TimeZone": "Asia/Kolkata",
    "search_path": "nowhere",
}
# Nothing in Headrace depends on these: the test below runs with them.
HARMLESS = {
    "session_replication_role": "replica",
    "check_function_bodies": "off",
    "escape_string_warning": "off",
    "backslash_quote": "off",
    "default_tablespace": "nowhere",
    "temp_tablespaces": "nowhere",
    "default_toast_compression": "pglz",
    "xmlbinary": "hex",
    "client_min_messages": "error",
    "default_text_search_config": "pg_catalog.simple",
    "constraint_exclusion": "on",
    "debug_parallel_query": "regress",
    "enable_indexscan": "off",
    "lc_time": "C",
    "client_encoding": "LATIN1",
    "gin_fuzzy_search_limit": "1",
    "createrole_self_grant": "set",
    "event_triggers": "off",
    "allow_system_table_mods": "on",
    "jit_above_cost": "0",
    "from_collapse_limit": "1",
    "work_mem": "64kB",
    "synchronize_seqscans": "off",
}
TABLE = (
    'CREATE TABLE t (id int PRIMARY KEY, words text[], at timestamptz, span interval, bytes bytea, number float8, "Odd'
    ' " text);'
    "CREATE TABLE loose (id int, words text[], number float8); ALTER TABLE loose REPLICA IDENTITY FULL"
)
ROWS = (
    "INSERT INTO t SELECT g, ARRAY[NULL, 'NULL', 'a\\b'], '2026-11-28 01:02:03.456+00', '1 day -02:03', '\\x00ff5c',"
    " 0.1::float8 + g, 'x\\y' FROM generate_series(1, 20) g;INSERT INTO loose SELECT g % 3, ARRAY['x', NULL],"
    " 0.1::float8 + 0.2 FROM generate_series(1, 9) g"
)

RELOADED_S = 60.0  # a reload takes a second on a quiet machine; this bound is for a machine that stalls


def test_log_level_that_a_restart_would_lower_is_warned_of_with_a_fix(
    pg_source: EmbeddedServer, source_database: str
) -> None:
    def found() -> list[str]:
        with closing(PostgresSource(source_database, site="a")) as source:
            return [
                each.fix
                for each in source.preflight((RuleSet(include=(Rule(owner="public"),)),), streams=1)
                if "next restart" in each.problem
            ]

    with psycopg.connect(source_database, autocommit=True) as user:
        assert found() == []
        user.execute("ALTER SYSTEM SET wal_level = replica")
        user.execute("SELECT pg_reload_conf()")
        try:
            wait_until(lambda: found() != [], timeout_s=RELOADED_S)
            (fix,) = found()
            for statement in fix.split(";")[:-1]:
                user.execute(statement)
            wait_until(lambda: found() == [], timeout_s=RELOADED_S)
        finally:
            user.execute("ALTER SYSTEM RESET wal_level")
            user.execute("SELECT pg_reload_conf()")


def test_every_column_that_forces_text_form_is_named(source_database: str) -> None:
    with psycopg.connect(source_database, autocommit=True) as user:
        user.execute(
            "CREATE DOMAIN pair AS regclass; CREATE TABLE t (id int PRIMARY KEY, c1 pair, c2 pair, c3 pair, c4 pair, c5"
            " pair)"
        )
    with closing(PostgresSource(source_database, site="a")) as source:
        found = [
            each.path
            for each in source.preflight((RuleSet(include=(Rule(owner="public"),)),), streams=1)
            if "text form" in each.problem
        ]
    assert found == [f"sites.a column public.t.c{number}" for number in range(1, 6)]


def all_set(server: EmbeddedServer, name: str) -> None:
    """Give a database every setting that its server knows."""
    with psycopg.connect(server.dsn(name), autocommit=True) as user:
        user.execute("CREATE ACCESS METHOD other_heap TYPE TABLE HANDLER heap_tableam_handler")
        for setting, value in {**PINNED, **HARMLESS}.items():
            if user.execute("SELECT FROM pg_settings WHERE name = %s", (setting,)).rowcount:
                user.execute(
                    f"ALTER DATABASE {name} SET {setting} = '{value}'"
                    if setting != "search_path"
                    else f"ALTER DATABASE {name} SET search_path = {value}"
                )


def name_of(dsn: str) -> str:
    with psycopg.connect(dsn) as user:
        return user.info.dbname


@pytest.fixture
def altered(
    pair: Pair,
    source_database: str,
    destination_database: str,
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
) -> Pair:
    """Yield two databases with all settings, whose tables users write with sessions from before the settings."""
    all_set(pg_source, name_of(source_database))
    all_set(pg_destination, name_of(destination_database))
    pair.redo.source.close()
    pair.destination.close()
    return pair


def test_every_session_has_the_values_that_headrace_relies_on(source_database: str, pg_source: EmbeddedServer) -> None:
    def values(connection: psycopg.Connection) -> dict[str, str]:
        return dict(
            connection.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(PINNED),)
            ).fetchall()
        )

    with closing(connect(source_database, application_name="before")) as session:
        before = values(session)
    all_set(pg_source, name_of(source_database))
    with psycopg.connect(source_database) as user:
        user.autocommit = True
        users = values(user)
    with closing(connect(source_database, application_name="after")) as session:
        assert values(session) == before
    assert {name for name in before if users[name] == before[name]} == set(), (
        "the test sets a value that a session has anyway"
    )


def test_everything_works_where_databases_give_every_session_such_settings(
    altered: Pair, source_database: str, destination_database: str
) -> None:
    pair = altered
    pair.create(TABLE, TABLE)
    pair.run(
        ROWS,
        "UPDATE t SET words = ARRAY[NULL, 'y'], number = number / 3 WHERE id < 9",
        "DELETE FROM t WHERE id = 3",
        "DELETE FROM loose WHERE id = 1",
    )
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same("SELECT * FROM t ORDER BY id")
    pair.assert_same("SELECT * FROM loose ORDER BY id")
    methods = (
        "SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE a.amname = 'other_heap' AND"
        " relnamespace = 'headrace'::regnamespace"
    )
    with closing(connect(destination_database, application_name="looks")) as session:
        assert session.execute(methods).fetchone() == (0,)


def test_schema_is_made_and_removed_in_databases_that_default_to_read_only(
    fresh_database, pg_source: EmbeddedServer, pg_destination: EmbeddedServer
) -> None:
    """As at a switch-over: the source is set read-only before `down --purge`."""
    here, there = fresh_database(pg_source), fresh_database(pg_destination)
    with psycopg.connect(here, autocommit=True) as user:
        user.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    all_set(pg_source, name_of(here))
    all_set(pg_destination, name_of(there))
    with closing(PostgresSource(here)) as source, closing(PostgresDestination(there, site="dbs2")) as destination:
        assert source.prepare("topo", (RuleSet(include=(Rule(owner="public"),)),))
        assert destination.prepare("topo")
        destination.raise_epoch("topo", "apply")
        removed = [*source.remove("topo"), *destination.remove("topo")]
    assert any("DROP PUBLICATION" in line for line in removed)
    assert "DROP SCHEMA headrace" in removed
