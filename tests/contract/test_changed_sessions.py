"""Users' SQL that changes an apply server's session: refused before the commit, or reset before the next transaction."""

from __future__ import annotations

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import HandlerSql
from tests.support.databases.destination_contract import PostgresHarness
from tests.support.databases.server_settings import reload_settings
from tests.support.histories.conflicts import COLUMNS, raw
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import values
from tests.support.values.writes import insert, int4

PUT = "INSERT INTO public.c (id, a) VALUES ($1, $2)"
OTHER = "somebody_elses"
# Function bodies by name: what a user's function or trigger function can do to its session.
_BODIES = {
    "replaces_origin": "PERFORM pg_replication_origin_session_reset(); PERFORM"
    f" pg_replication_origin_session_setup('{OTHER}');",
    "resets_origin": "PERFORM pg_replication_origin_session_reset();",
    "fires_triggers": "SET session_replication_role = origin;",
    "fires_triggers_once": "SET LOCAL session_replication_role = origin;",
    "takes_role": "SET ROLE pg_monitor;",
    "takes_path": "SET search_path = public;",
    "commits_lazily": "SET synchronous_commit = off;",
    "hides_rows": "SET row_security = on;",
    "reads_only": "SET LOCAL transaction_read_only = on;",
    "ends_idle_sessions": "SET idle_in_transaction_session_timeout = '1h';",
    "compares_null": "SET transform_null_equals = on;",
    "unlocks": "PERFORM pg_advisory_unlock_all();",
    "forgets": "EXECUTE 'DEALLOCATE ALL';",
}
_LEFT = {
    "hurries": "SET statement_timeout = '1ms';",
    "locks": "PERFORM pg_advisory_lock(5); PERFORM pg_advisory_lock(5); PERFORM pg_advisory_lock_shared(6, 7);",
}
_STATE = (
    "SELECT current_setting('synchronous_commit'), current_setting('session_replication_role'),"
    " current_setting('statement_timeout'), current_setting('role'), current_setting('search_path'),"
    " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
)


@pytest.fixture(autouse=True)
def table(harness):
    if not isinstance(harness, PostgresHarness):
        pytest.skip("there is no SQL")
    harness.create_table("c", COLUMNS, key=["id"])
    admin = harness._admin
    admin.execute(
        "SELECT pg_replication_origin_create(%s) WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname ="
        " %s)",
        (OTHER, OTHER),
    )
    for name, body in {**_BODIES, **_LEFT, "listens": "LISTEN gossip;"}.items():
        admin.execute(f"CREATE OR REPLACE FUNCTION {name}() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
        admin.execute(
            f"CREATE OR REPLACE FUNCTION {name}_too() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW;"
            " END $$"
        )


def run(session, sql, *values):
    return session.run_sql([HandlerSql(sql=sql, values=values)], timeout_s=STALL_S)[0]


def put_row(session, key):
    """Write a row as apply does."""
    table = session.describe("public", "c")
    session.write([insert(table, [raw((key, "x", None, None, None, None))])])


def put_row_and_commit(session, key):
    put_row(session, key)
    session.commit((), 0)


def run_and_commit(session, sql):
    run(session, sql)
    session.commit((), 0)


def state(session):
    """Return the session's state between transactions."""
    return session._transaction.connection.execute(_STATE).fetchone()


def keys(harness):
    return [int.from_bytes(row[0], "big") for row in harness.rows("c")]


@pytest.mark.parametrize("name", _BODIES)
def test_handlers_function_that_changes_the_session_is_refused(harness, session, name):
    before = state(session)
    for _ in range(2):  # first with the checks prepared, then in a new session
        session.begin()
        run(session, PUT, 1, "x")
        with pytest.raises(DataError, match=r"a handler's SQL changed the apply server's session") as caught:
            run_and_commit(session, f"SELECT public.{name}()")
        assert caught.value.context["changed"] == "session"
        session.rollback()
        assert keys(harness) == []
    session.begin()
    run(session, PUT, 2, "x")
    session.commit((), 0)
    assert keys(harness) == [2]
    assert state(session) == before


# The checks are those of a handler's function; of them, one each fails by a setting, the origin, and what it executes.
@pytest.mark.parametrize(
    "name",
    values([each for each in _BODIES if each != "unlocks"], "fires_triggers_once", "replaces_origin", "forgets"),
)
@pytest.mark.parametrize("when", ["ROW", "DEFERRED"])
def test_trigger_that_changes_the_session_is_refused_by_its_table(harness, session, name, when):
    _trigger(harness, f"{name}_too", deferred=when == "DEFERRED")
    try:
        for _ in range(2):
            session.begin()
            with pytest.raises(DataError, match=r"a trigger or rule of public\.c changed the apply server's session"):
                put_row_and_commit(session, 1)
            session.rollback()
            assert keys(harness) == []
    finally:
        harness._admin.execute("DROP TRIGGER changes ON c")
    session.begin()
    put_row(session, 2)
    session.commit((), 0)
    assert keys(harness) == [2]


@pytest.mark.parametrize("name", _LEFT)
def test_what_a_function_leaves_behind_is_gone_before_the_next_transaction(harness, session, name):
    before = state(session)
    session.begin()
    run(session, PUT, 1, "x")
    run(session, f"SELECT public.{name}()")
    session.commit((), 0)
    assert state(session) == before
    session.begin()
    put_row(session, 2)
    session.commit((), 0)
    assert keys(harness) == [1, 2]


def test_function_stops_listening_to_its_channel_with_the_next_transaction(session):
    for key in (1, 2):
        session.begin()
        run(session, PUT, key, "x")
        if key == 1:
            run(session, "SELECT public.listens()")
        session.commit((), 0)
    assert session._transaction.connection.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)


def test_a_function_that_discards_the_sessions_types_is_refused(harness, session):
    harness.create_table("arrays", (("id", "int4"), ("a", "int4[]")), key=["id"])
    harness._admin.execute(
        "CREATE OR REPLACE FUNCTION discards() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DISCARD TEMP'; END $$"
    )
    write = insert(session.describe("public", "arrays"), [(int4(1), int4(0) + int4(0) + int4(23))])
    session.begin()
    session.write([write])
    with pytest.raises(DataError, match="temporary types"):
        run(session, "SELECT public.discards()")
    session.rollback()
    session.begin()
    session.write([write])
    session.commit((), 0)
    assert len(harness.rows("arrays")) == 1


def test_reload_of_the_servers_settings_is_not_blamed_on_a_handler(harness, session):
    session.begin()
    run(session, PUT, 1, "x")
    session.commit((), 0)
    admin = harness._admin
    (before,) = admin.execute("SHOW datestyle").fetchone()
    admin.execute("ALTER SYSTEM SET datestyle = 'SQL, DMY'")
    try:
        reload_settings(harness._dsn, "datestyle", "SQL, DMY")
        session._transaction.connection.execute("SELECT pg_sleep(0.2)")
        session.begin()
        run(session, PUT, 2, "x")
        session.commit((), 0)
    finally:
        admin.execute("ALTER SYSTEM RESET datestyle")
        reload_settings(harness._dsn, "datestyle", before)
    assert keys(harness) == [1, 2]


def _trigger(harness, function, *, deferred):
    kind, when = ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED ") if deferred else ("TRIGGER", "")
    harness._admin.execute(f"CREATE {kind} changes AFTER INSERT ON c {when}FOR EACH ROW EXECUTE FUNCTION {function}()")
    harness._admin.execute("ALTER TABLE c ENABLE ALWAYS TRIGGER changes")
