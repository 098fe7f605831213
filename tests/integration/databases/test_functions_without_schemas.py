"""Users' functions with unqualified names that run because of Headrace: they are named, and the printed fix works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import HeadraceError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.rules.rule import Rule, RuleSet
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

RULES = RuleSet(include=(Rule(owner="public", name="t"),))
NOTES = """
CREATE TABLE public.ddl_history (at timestamptz, tag text);
CREATE FUNCTION public.note_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO ddl_history VALUES (now(), tg_tag); END $$;
CREATE EVENT TRIGGER note_ddl ON ddl_command_end EXECUTE FUNCTION public.note_ddl();
"""
REMEDY = "ALTER FUNCTION public.note_ddl() SET search_path = public;"


@pytest.mark.parametrize("role", ["source", "destination"])
def test_event_trigger_is_named_by_check_and_error_and_the_fix_works(
    fresh_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, role: str
) -> None:
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute("CREATE TABLE t (id int PRIMARY KEY)")
        user.execute(NOTES)
        with closing(PostgresSource(dsn) if role == "source" else PostgresDestination(dsn, site="b")) as database:
            findings = (
                database.preflight((RULES,), streams=1)
                if isinstance(database, PostgresSource)
                else database.preflight("topo", sessions=1)
            )
            (found,) = (finding for finding in findings if "event trigger" in finding.problem)
            assert not found.is_error, "it may name its table with the schema"
            assert "note_ddl" in found.problem
            with pytest.raises(HeadraceError, match="ddl_history") as failed:
                database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
            assert REMEDY in failed.value.hint
            assert found.fix.startswith(REMEDY)
            user.execute(found.fix)
            database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
            findings = (
                database.preflight((RULES,), streams=1)
                if isinstance(database, PostgresSource)
                else database.preflight("topo", sessions=1)
            )
            assert not [finding for finding in findings if "event trigger" in finding.problem]
            assert user.execute("SELECT count(*) > 0 FROM ddl_history").fetchone() == (True,)
            database.remove("topo")


ROLE = "headrace_test_ddl"
WITH_SCHEMAS = NOTES.replace("INTO ddl_history", "INTO public.ddl_history")


@pytest.fixture
def as_role(
    fresh_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer
) -> Iterator[tuple[psycopg.Connection, str]]:
    """Yield a superuser's session, and the connection string of a role without superuser rights that has what Headrace
    needs.
    """
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute(f"DROP ROLE IF EXISTS {ROLE}")
        user.execute(
            f"CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD 'secret'; CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE"
            f" t OWNER TO {ROLE}"
        )
        made = conninfo.make_conninfo(dsn, user=ROLE, password="secret")
        user.execute(f'GRANT CREATE ON DATABASE "{user.info.dbname}" TO {ROLE}')
        with closing(PostgresDestination(made, site="b")) as destination:
            for finding in destination.preflight("topo", sessions=1):
                user.execute(finding.fix)
        yield user, made
        user.execute(f"DROP OWNED BY {ROLE} CASCADE; DROP ROLE {ROLE}")


@pytest.mark.parametrize("helps", ["SECURITY DEFINER", "GRANT", "DISABLE"])
@pytest.mark.parametrize("role", ["source", "destination"])
def test_event_trigger_that_lacks_a_right_is_named_by_check_and_error(
    as_role: tuple[psycopg.Connection, str], role: str, helps: str
) -> None:
    user, dsn = as_role
    user.execute(WITH_SCHEMAS)
    with closing(PostgresSource(dsn, site="a") if role == "source" else PostgresDestination(dsn, site="b")) as database:

        def found() -> list[str]:
            findings = (
                database.preflight((RULES,), streams=1)
                if isinstance(database, PostgresSource)
                else database.preflight("topo", sessions=1)
            )
            return [
                finding.fix
                for finding in findings
                if finding.is_error and "note_ddl" in finding.problem and "public.note_ddl()" in finding.problem
            ]

        (fix,) = found()
        with pytest.raises(
            HeadraceError,
            match=f'site {"a" if role == "source" else "b"}: .*permission denied.*event trigger "note_ddl" calls'
            " public.note_ddl",
        ) as failed:
            database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
        assert failed.value.hint == fix
        if helps == "GRANT":
            assert f'grant "{ROLE}"' in fix
            user.execute(f"GRANT INSERT ON ddl_history TO {ROLE}")
        else:
            user.execute(fix if helps == "SECURITY DEFINER" else fix[fix.index("ALTER EVENT TRIGGER") :])
        assert found() == []
        database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
        database.remove("topo")


OWN_PATH = "LANGUAGE plpgsql SET search_path = public"


@pytest.mark.parametrize("path", ['LANGUAGE plpgsql SET search_path = "$user", public', OWN_PATH])
@pytest.mark.parametrize("role", ["source", "destination"])
def test_event_trigger_whose_function_sets_search_path_is_named_and_fixed(
    as_role: tuple[psycopg.Connection, str], role: str, path: str
) -> None:
    """The server names such a function without its schema."""
    user, dsn = as_role
    user.execute(NOTES.replace("LANGUAGE plpgsql", path))
    with closing(PostgresSource(dsn, site="a") if role == "source" else PostgresDestination(dsn, site="b")) as database:
        for lacks, helps in ((True, "ALTER FUNCTION"), (False, "ALTER EVENT TRIGGER")):
            if not lacks:
                user.execute("ALTER EVENT TRIGGER note_ddl DISABLE")
                user.execute("DROP TABLE ddl_history")
                user.execute("ALTER EVENT TRIGGER note_ddl ENABLE")
            with pytest.raises(
                HeadraceError, match=r'ddl_history.*event trigger "note_ddl" calls public.note_ddl\(\)'
            ) as failed:
                database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
            found = [
                finding.fix
                for finding in (
                    database.preflight((RULES,), streams=1)
                    if isinstance(database, PostgresSource)
                    else database.preflight("topo", sessions=1)
                )
                if finding.is_error and "public.note_ddl()" in finding.problem
            ]
            assert found == [failed.value.hint]
            user.execute(found[0][found[0].index(helps) :])
        database.prepare("topo", (RULES,)) if isinstance(database, PostgresSource) else database.prepare("topo")
        database.remove("topo")


def test_same_named_event_trigger_functions_are_not_confused(as_role: tuple[psycopg.Connection, str]) -> None:
    user, dsn = as_role
    user.execute(NOTES.replace("LANGUAGE plpgsql", OWN_PATH))
    user.execute(
        "CREATE SCHEMA other; CREATE FUNCTION other.note_ddl() RETURNS event_trigger LANGUAGE plpgsql SET search_path ="
        " other AS $$ BEGIN END $$; CREATE EVENT TRIGGER another ON ddl_command_end EXECUTE FUNCTION other.note_ddl()"
    )
    with closing(PostgresDestination(dsn, site="b")) as database, pytest.raises(HeadraceError) as failed:
        database.prepare("topo")
    assert "permission denied" in failed.value.message
    assert "event trigger" not in failed.value.message


ARRAYS = "CREATE TABLE p (id int PRIMARY KEY, v int[])"


def statement_in(text: str) -> str:
    return text[text.index("ALTER FUNCTION") : text.index(";", text.index("ALTER FUNCTION")) + 1]


def test_apply_names_the_function_of_an_event_trigger_and_the_fix_works(pair: Pair) -> None:
    pair.create(ARRAYS, ARRAYS)
    pair.there.execute(NOTES + "ALTER EVENT TRIGGER note_ddl ENABLE ALWAYS")
    pair.run("INSERT INTO p VALUES (1, '{1,2}')")
    engine = pair.apply()
    (error,) = pair.errors()
    assert statement_in(error.message) == REMEDY
    pair.there.execute(statement_in(error.message))
    assert engine.execute_errors([error.number]) == {error.number: ""}
    pair.assert_same()


def test_apply_names_an_event_trigger_that_lacks_a_right_and_the_fix_works(pair: Pair) -> None:
    pair.create(f"{ARRAYS}; CREATE TABLE q (id int PRIMARY KEY)", f"{ARRAYS}; CREATE TABLE q (id int PRIMARY KEY)")
    pair.there.execute(WITH_SCHEMAS + "ALTER EVENT TRIGGER note_ddl DISABLE")
    pair.there.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$"
    )
    pair.there.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON ddl_history FOR EACH ROW EXECUTE FUNCTION public.refuse(); ALTER TABLE"
        " ddl_history ENABLE ALWAYS TRIGGER refuse"
    )
    pair.there.execute("ALTER EVENT TRIGGER note_ddl ENABLE ALWAYS")
    pair.run("INSERT INTO p VALUES (1, '{1,2}')", "INSERT INTO q VALUES (1)")
    engine = pair.apply()
    (error,) = pair.errors()
    pair.assert_same("SELECT id FROM q")
    assert 'event trigger "note_ddl" calls public.note_ddl()' in error.message
    fix = error.message[error.message.index("ALTER EVENT TRIGGER") :]
    assert fix == 'ALTER EVENT TRIGGER "note_ddl" DISABLE;'
    pair.there.execute(fix)
    assert engine.execute_errors([error.number]) == {error.number: ""}
    pair.assert_same()


def test_error_transaction_names_the_function_of_an_index_and_its_fix(pair: Pair) -> None:
    """`test_errors_alone` executes the error transaction afterwards."""
    pair.create(ARRAYS, ARRAYS)
    pair.there.execute(
        "CREATE FUNCTION public.half(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n / 2';"
        "CREATE FUNCTION public.bucket(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN half(n); END';"
        " CREATE INDEX ON p (public.bucket(id))"
    )
    pair.run("INSERT INTO p VALUES (1, '{1,2}')")
    pair.apply()
    (error,) = pair.errors()
    assert statement_in(error.message) == "ALTER FUNCTION public.bucket(integer) SET search_path = public;"
    pair.there.execute(statement_in(error.message))
    pair.run("INSERT INTO p VALUES (2, '{3}')")
    pair.apply()
    assert pair.there.execute("SELECT id FROM p WHERE id = 2").fetchall() == [(2,)]
