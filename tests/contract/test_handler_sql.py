"""Users' SQL at every destination database: in the data's transaction, with marks to roll back to, and never ending it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from psycopg.types.json import Json, Jsonb

from headrace.base.errors import BugError, DatabaseUnavailable, DataError
from headrace.databases.connectors import column_of_type
from headrace.databases.ports import HandlerSql
from headrace.databases.postgres.values.python_values import decoded
from tests.support.databases.destination_contract import MemoryHarness, PostgresHarness
from tests.support.histories.conflicts import COLUMNS, raw
from tests.support.session.bounds import STALL_S

PUT = "INSERT INTO public.c (id, a) VALUES ($1, $2)"


@pytest.fixture(autouse=True)
def table(harness):
    harness.create_table("c", COLUMNS, key=["id"])
    if isinstance(harness, MemoryHarness):

        def put(session, values):
            session.put_row("public", "c", raw((*values, None, None, None, None)))
            return ()

        harness._store.sql[PUT] = put


def put(session, *keys):
    session.run_sql([HandlerSql(sql=PUT, values=(key, "x")) for key in keys], timeout_s=STALL_S)


def keys(harness):
    return [int.from_bytes(row[0], "big") for row in harness.rows("c")]


def test_statements_are_committed_with_the_data_or_not_at_all(harness, session):
    session.begin()
    put(session, 1, 2, 3)
    session.rollback()
    session.begin()
    put(session, 4)
    put(session, 5, 6)
    session.commit((), 0)
    assert keys(harness) == [4, 5, 6]


def test_marks_nest_and_a_savepoint_does_not_end_them(harness, session):
    session.begin()
    session.savepoint()
    put(session, 1)
    outer = session.mark()
    put(session, 2)
    session.savepoint()
    put(session, 3)
    session.savepoint()
    put(session, 4)
    session.rollback_to_savepoint()
    inner = session.mark()
    session.savepoint()
    put(session, 5)
    session.undo_to_mark(inner)
    session.savepoint()
    put(session, 6)
    session.drop_mark(outer)
    put(session, 7)
    kept = session.mark()
    put(session, 8)
    session.undo_to_mark(kept)
    session.commit((), 0)
    assert keys(harness) == [1, 2, 3, 6, 7]


def test_the_savepoint_before_a_mark_is_there_behind_it(harness, session):
    session.begin()
    put(session, 1)
    session.savepoint()
    mark = session.mark()
    put(session, 2)
    session.drop_mark(mark)
    session.rollback_to_savepoint()
    session.commit((), 0)
    assert keys(harness) == [1]


def test_refused_statement_is_undone_to_the_mark_and_the_rest_continues(harness, session):
    session.begin()
    put(session, 1)
    mark = session.mark()
    with pytest.raises(DataError) as caught:
        put(session, 2, 1)
    assert caught.value.context["sqlstate"] == "23505"
    session.undo_to_mark(mark)
    put(session, 3)
    session.commit((), 0)
    assert keys(harness) == [1, 3]


def test_a_mark_that_is_gone_is_a_bug(session):
    session.begin()
    mark = session.mark()
    session.drop_mark(mark)
    with pytest.raises(BugError, match="no mark"):
        session.undo_to_mark(mark)


# --------------------------------------------------------------------------- PostgreSQL's own


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        "/* */ rollback",
        "BEGIN",
        "SAVEPOINT a",
        "ROLLBACK TO SAVEPOINT headrace",
        "SET search_path TO public",
        "SELECT 1; COMMIT",
        "SELECT 1; COMMIT; BEGIN",
        "END",
        "ABORT",
        "PREPARE TRANSACTION 'x'",
        "DO $$ BEGIN COMMIT; END $$",
        "TRUNCATE public.c",
        "DEALLOCATE ALL",
        "CALL public.ends()",
        "SELECT public.ends_too()",
        "EXPLAIN ANALYZE SELECT 1",
        "COPY public.c FROM STDIN",
        "LOCK TABLE public.c",
        "DISCARD ALL",
    ],
)
def test_no_statement_can_end_the_transaction(harness, session, text):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    harness._admin.execute("CREATE OR REPLACE PROCEDURE ends() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
    harness._admin.execute("CREATE OR REPLACE FUNCTION ends_too() RETURNS void LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
    session.begin()
    put(session, 1)
    mark = session.mark()
    with pytest.raises(DataError):
        session.run_sql([HandlerSql(sql=text)], timeout_s=STALL_S)
    session.undo_to_mark(mark)
    put(session, 2)
    assert keys(harness) == []
    session.rollback()
    assert keys(harness) == []


def test_values_travel_as_python_objects_and_rows_come_back(harness, session):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    session.begin()
    put(session, 1, 2)
    (result, changed) = session.run_sql(
        [
            HandlerSql(sql="SELECT id, a, NULL::int, $1::numeric FROM public.c ORDER BY id", values=(1.5,)),
            HandlerSql(sql="UPDATE public.c SET b = 'y' WHERE id > $1", values=(1,)),
        ],
        timeout_s=STALL_S,
    )
    assert result.rows == ((1, "x", None, 1.5), (2, "x", None, 1.5))
    assert changed.row_count == 1
    session.commit((), 0)


def test_numbers_of_json_that_was_read_are_sent_as_they_were(harness, session):
    """A float has 17 digits; a list needs `Jsonb`."""
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    text = "0.1234567890123456789"
    read = [
        decoded(replace(column_of_type("c", "jsonb"), is_binary=False), written)
        for written in (f'{{"a": {text}}}'.encode(), f"[{text}]".encode())
    ]
    session.begin()
    (result,) = session.run_sql(
        [
            HandlerSql(
                sql="SELECT $1::jsonb ->> 'a', $2::jsonb ->> 'a', $3::jsonb ->> 0",
                values=(read[0], Json(read[0]), Jsonb(read[1])),
            )
        ],
        timeout_s=STALL_S,
    )
    assert result.rows == ((text, text, text),)
    session.commit((), 0)


def test_slow_statement_is_refused_and_its_limit_bounds_nothing_else(harness, session):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    session.begin()
    put(session, 1)
    mark = session.mark()
    with pytest.raises(DataError, match="took too long"):
        session.run_sql([HandlerSql(sql="SELECT pg_catalog.pg_sleep(30)")], timeout_s=0.2)
    session.undo_to_mark(mark)
    session.run_sql([HandlerSql(sql="SELECT 1")], timeout_s=20)
    session.savepoint()
    (shown,) = session.run_sql([HandlerSql(sql="SELECT pg_catalog.current_setting('statement_timeout')")], timeout_s=7)
    assert shown.rows == (("7s",),)
    session.savepoint()
    session._transaction.send_pending()
    assert session._transaction.connection.execute("SHOW statement_timeout").fetchone() == ("0",)
    session.commit((), 0)
    assert keys(harness) == [1]


def test_text_that_parses_differently_again_still_holds_one_statement(harness, session):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    text = "select '\\', '; commit; select 1 --'"
    session.begin()
    put(session, 1)
    session.run_sql([HandlerSql(sql=text)], timeout_s=STALL_S)
    with pytest.raises(DataError):
        session.run_sql(
            [HandlerSql(sql="SELECT pg_catalog.set_config('standard_conforming_strings', 'off', true)")],
            timeout_s=STALL_S,
        )
    session.rollback()
    session.begin()
    put(session, 1)
    session._transaction.send_pending()
    session._transaction.connection.execute("SET LOCAL standard_conforming_strings TO off")
    session._users_sql._checked.add(text)
    with pytest.raises(DataError):
        session.run_sql([HandlerSql(sql=text)], timeout_s=STALL_S)
    session.rollback()
    assert keys(harness) == []


def run_and_commit(session, text):
    session.run_sql([HandlerSql(sql=text)], timeout_s=STALL_S)
    session.commit((), 0)


_CHANGES = [
    "SELECT pg_catalog.set_config('synchronous_commit', 'off', false)",
    "SELECT pg_catalog.set_config('session_replication_role', 'origin', false)",
    "SELECT pg_catalog.set_config('lock_timeout', '0', false)",
    "SELECT pg_catalog.set_config('role', 'pg_monitor', false)",
    "SELECT pg_catalog.pg_replication_origin_session_reset()",
    "SELECT pg_catalog.pg_advisory_unlock_all()",
    "SELECT public.forgets()",
]


@pytest.mark.parametrize("text", _CHANGES)
def test_sql_that_changes_the_session_is_an_error_and_is_reverted(harness, session, text):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    harness._admin.execute(
        "CREATE OR REPLACE FUNCTION forgets() RETURNS void LANGUAGE plpgsql AS 'BEGIN EXECUTE ''DEALLOCATE ALL''; END'"
    )
    for _ in range(2):
        session.begin()
        put(session, 1)
        with pytest.raises(DataError, match="changed the apply server's session"):
            run_and_commit(session, text)
        session.rollback()
        assert keys(harness) == []
    session.begin()
    put(session, 2)
    (found,) = session.run_sql(
        [
            HandlerSql(
                sql=(
                    "SELECT current_setting('synchronous_commit'), current_setting('session_replication_role'),"
                    " current_setting('lock_timeout'), current_setting('role'),"
                    " pg_replication_origin_session_is_setup(), (SELECT count(*) FROM pg_locks WHERE locktype ="
                    " 'advisory' AND pid = pg_backend_pid())"
                )
            )
        ],
        timeout_s=STALL_S,
    )
    assert found.rows == (("on", "replica", "5s", "none", True, 2),)
    session.commit((), 0)
    assert keys(harness) == [2]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pg_catalog.currval('public.s')",
        "SELECT public.raises('57000')",
        "SELECT public.raises('55P03')",
        "SELECT public.raises('53400')",
        "SELECT public.raises('08003')",
        "SELECT $1::int4",
    ],
)
def test_what_a_statement_itself_raises_is_its_error_whatever_the_class(harness, session, text):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    harness._admin.execute("CREATE SEQUENCE IF NOT EXISTS public.s")
    harness._admin.execute(
        "CREATE OR REPLACE FUNCTION raises(state text) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''no'' USING"
        " ERRCODE = state; END'"
    )
    session.begin()
    with pytest.raises(DataError):
        session.run_sql([HandlerSql(sql=text)], timeout_s=STALL_S)
    session.rollback()


@pytest.mark.parametrize(
    ("text", "value", "problem"),
    [
        ("SELECT $1::text", "a\0b", "the value of \\$1 holds a NUL character"),
        ("SELECT $1::text", "a\ud800b", "the value of \\$1 holds a lone surrogate"),
        ("SELECT $1::text, 'a\ud800b'", "a", "the text of the statement holds a lone surrogate"),
        ("SELECT $1::jsonb", {"a": object()}, "a value cannot be a parameter: TypeError"),
    ],
)
def test_a_value_that_cannot_be_sent_is_the_statements_error(harness, session, text, value, problem):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    session.begin()
    with pytest.raises(DataError, match=problem):
        session.run_sql([HandlerSql(sql=text, values=(value,))], timeout_s=STALL_S)
    session.rollback()
    session.begin()
    put(session, 1)
    session.commit((), 0)
    assert keys(harness) == [1]


def test_statement_prepared_before_an_alter_is_retried_in_a_new_session(harness, session, open_session):
    """Frequent statements are prepared with their table's columns at that time. The transaction is not at fault."""
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    harness._admin.execute(
        "DROP TABLE IF EXISTS public.looked_up; CREATE TABLE public.looked_up (a int4); INSERT INTO public.looked_up"
        " VALUES (1)"
    )

    def looked_up(session):
        session.begin()
        (found,) = session.run_sql([HandlerSql(sql="SELECT * FROM public.looked_up")], timeout_s=STALL_S)
        session.rollback()
        return found.rows[0]

    assert {looked_up(session) for _ in range(10)} == {(1,)}
    harness._admin.execute("ALTER TABLE public.looked_up ADD COLUMN b int4 NOT NULL DEFAULT 2")
    with pytest.raises(DatabaseUnavailable, match="was altered"):
        looked_up(session)
    with pytest.raises(DatabaseUnavailable, match="open a new one"):
        session.begin()
    assert looked_up(open_session()) == (1, 2)
