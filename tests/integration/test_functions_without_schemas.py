"""Functions of users that name things without their schema, run by what Headrace does: they are named, and what is printed helps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from databases.postgres.destination.database import PostgresDestination
from databases.postgres.source.database import PostgresSource
from rules.rule import Rule, RuleSet
from streams.errors import StreamsError
from tests.support.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

RULES = RuleSet(include=(Rule(owner="public"),))
NOTES = """
CREATE TABLE public.ddl_history (at timestamptz, tag text);
CREATE FUNCTION public.note_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO ddl_history VALUES (now(), tg_tag); END $$;
CREATE EVENT TRIGGER note_ddl ON ddl_command_end EXECUTE FUNCTION public.note_ddl();
"""
REMEDY = "ALTER FUNCTION public.note_ddl() SET search_path = public;"


@pytest.mark.parametrize("role", ["source", "destination"])
def test_an_event_trigger_is_named_by_check_and_by_the_error_and_the_printed_statement_helps(
    fresh_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, role: str,
) -> None:
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute("CREATE TABLE t (id int PRIMARY KEY)")
        user.execute(NOTES)
        with closing(PostgresSource(dsn) if role == "source" else PostgresDestination(dsn, site="b")) as database:
            findings = database.preflight((RULES,), streams=1) if isinstance(database, PostgresSource) else database.preflight("topo", sessions=1)
            (found,) = (finding for finding in findings if "event trigger" in finding.problem)
            assert not found.is_error, "it may name its table with the schema"
            assert "note_ddl" in found.problem
            with pytest.raises(StreamsError, match="ddl_history") as failed:
                database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
            assert REMEDY in failed.value.hint
            assert found.fix.startswith(REMEDY)
            user.execute(found.fix)
            database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
            findings = database.preflight((RULES,), streams=1) if isinstance(database, PostgresSource) else database.preflight("topo", sessions=1)
            assert not [finding for finding in findings if "event trigger" in finding.problem]
            assert user.execute("SELECT count(*) > 0 FROM ddl_history").fetchone() == (True,)
            database.remove("topo")


ARRAYS = "CREATE TABLE p (id int PRIMARY KEY, v int[])"


def statement_in(text: str) -> str:
    return text[text.index("ALTER FUNCTION"): text.index(";", text.index("ALTER FUNCTION")) + 1]


def test_apply_names_the_function_of_an_event_trigger_and_the_printed_statement_helps(pair: Pair) -> None:
    pair.create(ARRAYS, ARRAYS)
    pair.there.execute(NOTES + "ALTER EVENT TRIGGER note_ddl ENABLE ALWAYS")
    pair.run("INSERT INTO p VALUES (1, '{1,2}')")
    with pytest.raises(StreamsError, match="ddl_history") as failed:
        pair.apply()
    assert statement_in(failed.value.hint) == REMEDY
    pair.there.execute(statement_in(failed.value.hint))
    pair.apply()
    pair.assert_same()


def test_error_transaction_names_the_function_of_an_index_and_the_statement_that_helps(pair: Pair) -> None:
    """`test_errors_alone` executes the error transaction then."""
    pair.create(ARRAYS, ARRAYS)
    pair.there.execute(
        "CREATE FUNCTION public.half(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n / 2';"
        "CREATE FUNCTION public.bucket(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN half(n); END'; CREATE INDEX ON p (public.bucket(id))"
    )
    pair.run("INSERT INTO p VALUES (1, '{1,2}')")
    pair.apply()
    (error,) = pair.errors()
    assert statement_in(error.message) == "ALTER FUNCTION public.bucket(integer) SET search_path = public;"
    pair.there.execute(statement_in(error.message))
    pair.run("INSERT INTO p VALUES (2, '{3}')")
    pair.apply()
    assert pair.there.execute("SELECT id FROM p WHERE id = 2").fetchall() == [(2,)]
