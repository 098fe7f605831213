"""A table's owner chooses its name and its columns' names. None of them becomes a statement of the apply role, or of
the operator who runs printed statements.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import conninfo, sql

from headrace.databases.postgres.destination.database import PostgresDestination

pytestmark = [pytest.mark.postgres]

BOB = "test_hostile_bob"
# Ends a dollar quote of the body, disables the check of bodies, runs the owner's function, and hides the rest.
COLUMN = ",$body$SET check_function_bodies=0;SELECT app.f(),$q$,$r$"
TABLE = f"x'); ALTER ROLE {BOB} SUPERUSER; --"
NAMES = (COLUMN, TABLE, "a'b", 'a"b', "a%b %s %1$s", "a\nb", "$$", "$made$", "\\", "--", "/*", "é;")


@pytest.fixture
def admin(destination_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(destination_database, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {BOB}")
        connection.execute(f"CREATE ROLE {BOB} LOGIN PASSWORD 'secret'")
        connection.execute(f"CREATE SCHEMA app AUTHORIZATION {BOB}")
        connection.execute(f"SET ROLE {BOB}")
        connection.execute(
            "CREATE FUNCTION app.f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TABLE public.taken (a int); RETURN"
            " 1; END $$"
        )
        connection.execute("RESET ROLE")
        yield connection
        connection.execute(f"DROP OWNED BY {BOB} CASCADE")
        connection.execute(f"DROP ROLE {BOB}")


@pytest.fixture
def destination(admin: psycopg.Connection, destination_database: str) -> Iterator[PostgresDestination]:
    made = PostgresDestination(destination_database, site="b")
    made.prepare(())
    yield made
    made.close()


def make_table(admin: psycopg.Connection, name: str, column: str) -> None:
    statement = sql.SQL(
        "SET ROLE {}; CREATE TABLE app.{} ({} int PRIMARY KEY); INSERT INTO app.{} VALUES (1); RESET ROLE"
    ).format(
        sql.Identifier(BOB),
        sql.Identifier(name),
        sql.Identifier(column),
        sql.Identifier(name),
    )
    admin.execute(statement)


def assert_nothing_was_taken(admin: psycopg.Connection) -> None:
    assert admin.execute("SELECT to_regclass('public.taken')").fetchone() == (None,)
    assert admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (BOB,)).fetchone() == (False,)


def test_no_name_becomes_a_statement_where_deletes_are_recorded(
    admin: psycopg.Connection, destination: PostgresDestination
):
    for count, name in enumerate(NAMES):
        make_table(admin, name, name)
        (statement,) = destination.keep_tombstones([("app", name)])
        assert destination.keep_tombstones([("app", name)]) == ()
        assert_nothing_was_taken(admin)
        admin.execute(sql.SQL("DELETE FROM app.{}").format(sql.Identifier(name)))
        assert_nothing_was_taken(admin)
        assert admin.execute("SELECT count(*) FROM headrace.row_change WHERE is_gone AND relation <> 0").fetchone() == (
            count + 1,
        )
        # As printed for a superuser to run.
        admin.execute(sql.SQL("DROP TRIGGER headrace_tombstones ON app.{}").format(sql.Identifier(name)))
        admin.execute(statement.encode())
        assert_nothing_was_taken(admin)
        assert destination.keep_tombstones([("app", name)]) == ()


def test_function_that_records_a_tables_deletes_serves_no_other_table(
    admin: psycopg.Connection, destination: PostgresDestination, destination_database: str
):
    admin.execute("CREATE TABLE public.victim (id int PRIMARY KEY)")
    destination.keep_tombstones([("public", "victim")])
    row = admin.execute("SELECT 'public.victim'::regclass::oid::bigint").fetchone()
    assert row is not None
    function = f"headrace.note_gone_{row[0]}()"
    admin.execute(f"GRANT USAGE ON SCHEMA headrace TO {BOB}")  # for set_tag and track
    attack = f"CREATE TRIGGER forged AFTER DELETE ON app.mine FOR EACH ROW EXECUTE FUNCTION {function}"
    with psycopg.connect(
        conninfo.make_conninfo(destination_database, user=BOB, password="secret"), autocommit=True
    ) as bob:
        bob.execute("CREATE TABLE app.mine (id int PRIMARY KEY)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(attack)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute("SELECT headrace.keep_tombstones('app.mine')")
        # An earlier version of the schema created it in this way; its owner recreates it.
        admin.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
        bob.execute(attack)
        bob.execute("DROP TRIGGER forged ON app.mine")
        assert len(destination.keep_tombstones([("public", "victim")])) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(attack)
    # Without the right, the user's own deletes are still recorded.
    admin.execute(f"GRANT DELETE, SELECT ON public.victim TO {BOB}; INSERT INTO public.victim VALUES (7)")
    with psycopg.connect(
        conninfo.make_conninfo(destination_database, user=BOB, password="secret"), autocommit=True
    ) as bob:
        bob.execute("DELETE FROM public.victim")
    assert admin.execute(
        "SELECT count(*) FROM headrace.row_change WHERE is_gone AND relation = %s", row
    ).fetchone() == (1,)


def test_foreign_trigger_with_our_triggers_name_is_left_alone(
    admin: psycopg.Connection, destination: PostgresDestination
):
    """Otherwise it would be dropped, or a role that does not own its table could not drop the schema."""
    admin.execute("CREATE TABLE public.victim (id int PRIMARY KEY)")
    destination.keep_tombstones([("public", "victim")])
    admin.execute(
        f"SET ROLE {BOB}; CREATE FUNCTION app.fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        " CREATE TABLE app.mine (id int PRIMARY KEY); CREATE TRIGGER headrace_tombstones AFTER DELETE ON app.mine FOR"
        " EACH ROW EXECUTE FUNCTION app.fired(); RESET ROLE"
    )
    destination.remove("top")
    assert admin.execute("SELECT to_regnamespace('headrace')").fetchone() == (None,)
    assert admin.execute(
        "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'headrace_tombstones'"
    ).fetchall() == [("app.mine",)]
