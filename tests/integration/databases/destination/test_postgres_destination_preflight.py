"""The preflight's findings, and that a role without superuser rights works after the printed statements.

Longer than 500 lines: every finding is about one role without rights at one database, which each test gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import ErrorTransaction, Finding, Instantiation, TruncatedTable
from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.claim import PostgresClaim
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.schema import VERSION, prepare_schema, schema_version
from headrace.lcr.batch import Column, TableVersion
from headrace.rules.table_settings import KeyColumns, TableSettings, TriggerFiring
from tests.support.clusters.system import wait_until
from tests.support.session.server_versions import DESTINATIONS, on_every_version
from tests.support.values.writes import insert, int4, update

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROLE = "headrace_test_apply"


@pytest.fixture(params=DESTINATIONS)
def dsn(request: pytest.FixtureRequest, fresh_database: Callable[[EmbeddedServer], str]) -> str:
    """Create an empty database; return its DSN as a superuser."""
    return fresh_database(request.getfixturevalue(request.param))


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    connection = psycopg.connect(dsn, autocommit=True)
    yield connection
    connection.close()


@pytest.fixture
def destination(dsn: str) -> Iterator[PostgresDestination]:
    made = PostgresDestination(dsn, site="b")
    yield made
    made.close()


@pytest.fixture
def role_dsn(admin: psycopg.Connection, dsn: str) -> Iterator[str]:
    """Return the DSN of the same database as a role without rights."""
    admin.execute(f"DROP ROLE IF EXISTS {ROLE}")
    admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'")
    admin.execute(f"REVOKE ALL ON DATABASE {admin.info.dbname} FROM PUBLIC")
    admin.execute(f"GRANT CONNECT ON DATABASE {admin.info.dbname} TO {ROLE}")
    yield conninfo.make_conninfo(dsn, user=ROLE, password="secret")
    admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (ROLE,))
    admin.execute(f"DROP OWNED BY {ROLE}")
    for grant in (
        "SET ON PARAMETER session_replication_role",
        *(
            f"EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_{name}"
            for name in ("create(text)", "session_setup(text)", "xact_setup(pg_lsn, timestamptz)")
        ),
    ):
        admin.execute(f"REVOKE {grant} FROM {ROLE}")
    admin.execute(f"DROP ROLE {ROLE}")


def version(connection: psycopg.Connection, name: str = "t") -> TableVersion:
    catalog = describe_table(connection, "public", name)
    assert catalog is not None
    return table_version(catalog, is_binary=True)


def fixes(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.fix for finding in findings if finding.is_error]


@on_every_version("dsn")
def test_role_works_after_the_printed_statements(admin, role_dsn):
    """Every statement is needed, and together they suffice."""
    admin.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int[])")
    destination = PostgresDestination(role_dsn, site="b")
    source = version(admin)
    needed = [*fixes(destination.preflight("top", sessions=2)), *fixes(destination.preflight_tables([source]))]
    assert len(needed) == 7
    for statement in needed:
        admin.execute(statement)
    assert destination.preflight("top", sessions=2) == ()
    (unowned,) = destination.preflight_tables([source])  # a TRUNCATE may restart its sequence
    assert (unowned.is_error, unowned.fix.startswith("GRANT ")) == (False, True)
    admin.execute(unowned.fix)
    assert destination.preflight_tables([source]) == ()
    admin.execute(unowned.fix.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
    assert len(destination.prepare("top")) > 5
    assert destination.preflight("top", sessions=2) == ()
    epoch = destination.raise_epoch("top", "a").epoch
    session = destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00")
    table = session.describe("public", "t")
    row = [(int4(1), int4(0) + int4(0) + int4(23))]
    session.begin()
    assert session.write([insert(table, row), update(table, row, row)]) == (1, 1)
    session.truncate([TruncatedTable(table=table)], restart_identity=False)
    session.commit([], 0)
    again = destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00")
    destination.raise_epoch("top", "a")
    for opened in (session, again, destination):
        opened.close()


def test_role_may_use_a_schema_that_another_role_made(admin, role_dsn):
    prepare_schema(admin)
    destination = PostgresDestination(role_dsn, site="b")
    for _ in range(2):  # the tables' rights can be checked only when the schema may be used
        for statement in fixes(destination.preflight("top", sessions=1)):
            admin.execute(statement)
    assert destination.preflight("top", sessions=1) == ()
    assert destination.prepare("top") == ()
    assert destination.raise_epoch("top", "a").epoch > 0
    destination.close()


def test_schema_that_another_role_made_is_refused_until_the_role_owns_it(admin, role_dsn):
    """A role that may create in the database can make the schema before `up`, with its own functions."""
    admin.execute("CREATE ROLE headrace_test_first; CREATE SCHEMA headrace AUTHORIZATION headrace_test_first")
    try:
        destination = PostgresDestination(role_dsn, site="b")
        (refused,) = (each for each in destination.preflight("top", sessions=1) if "belongs to" in each.problem)
        assert (refused.is_error, "headrace_test_first" in refused.problem) == (True, True)
        admin.execute(refused.fix)
        assert not [each for each in destination.preflight("top", sessions=1) if "headrace_test_first" in each.problem]
        destination.close()
    finally:
        admin.execute("DROP SCHEMA IF EXISTS headrace CASCADE; DROP ROLE headrace_test_first")


OWNED = """
CREATE DOMAIN even AS int CHECK (f(VALUE) > 0);
CREATE TYPE mood AS ENUM ('sad');
CREATE FUNCTION of_mood(mood) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE CAST (mood AS int) WITH FUNCTION of_mood(mood);
CREATE TABLE t (id int PRIMARY KEY, e even, m mood, d int DEFAULT f(1), g int GENERATED ALWAYS AS (f(2)) STORED, CHECK (f(id) > 0), CHECK (f(id) < 9));
CREATE INDEX ON t (f(id));
CREATE POLICY p ON t USING (f(id) > 0);
CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fired();
CREATE TRIGGER b AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fired();
"""


def test_owner_of_a_table_whose_functions_run_on_apply_can_act_as_the_role(admin, role_dsn):
    admin.execute("CREATE ROLE headrace_test_owner; GRANT CREATE, USAGE ON SCHEMA public TO headrace_test_owner")
    destination = PostgresDestination(role_dsn, site="b")

    def said() -> list[str]:
        found = destination.preflight_tables([version(admin)])
        return [each.problem for each in found if each.problem.startswith("its owner")]

    try:
        admin.execute(
            "SET ROLE headrace_test_owner; CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'"
        )
        admin.execute(OWNED)
        admin.execute("RESET ROLE; ALTER TABLE t ENABLE ALWAYS TRIGGER a")
        (problem,) = said()
        assert problem == (
            'its owner "headrace_test_owner" can act as the role that applies: functions of roles that are not'
            " superusers run as it, in"
            " casts (1), checks (1), defaults (1), domains (1), generated columns (1), indexes (1), policies (1),"
            " triggers (1)"
        )
        admin.execute("ALTER TABLE t OWNER TO CURRENT_USER")
        assert said() == [], "a superuser owns the table"
        admin.execute("ALTER TABLE t OWNER TO headrace_test_owner; ALTER FUNCTION f(int) OWNER TO CURRENT_USER")
        (problem,) = said()
        assert problem.endswith("in casts (1), triggers (1)")
    finally:
        destination.close()
        admin.execute("DROP OWNED BY headrace_test_owner CASCADE; DROP ROLE headrace_test_owner")


def refused(dsn: str, *statements: str) -> bool:
    """Return whether a role may not run the statements, which are undone."""
    with psycopg.connect(dsn) as connection:
        try:
            for statement in statements:
                connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return True
        finally:
            connection.rollback()
    return False


@pytest.fixture
def mallory(admin: psycopg.Connection, role_dsn: str) -> Iterator[str]:
    """Return the DSN of the database as a role that owns no table, beside a role that does."""
    admin.execute("CREATE ROLE headrace_test_owner; CREATE ROLE headrace_test_mallory LOGIN PASSWORD 'secret'")
    admin.execute(f"GRANT CONNECT ON DATABASE {admin.info.dbname} TO headrace_test_mallory")
    yield conninfo.make_conninfo(role_dsn, user="headrace_test_mallory")
    admin.execute("DROP OWNED BY headrace_test_mallory, headrace_test_owner CASCADE")
    admin.execute("DROP ROLE headrace_test_mallory, headrace_test_owner")


@on_every_version("dsn")
def test_roles_that_can_become_table_owners_are_named_with_a_remedy(admin, role_dsn, mallory):
    admin.execute("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO headrace_test_owner")
    attack = ("GRANT headrace_test_owner TO headrace_test_mallory", "SET ROLE headrace_test_owner", "DROP TABLE t")
    with closing(PostgresDestination(role_dsn, site="b")) as destination:

        def said() -> list[Finding]:
            return [each for each in destination.preflight("top", sessions=1) if "CREATEROLE" in each.problem]

        assert refused(mallory, *attack)
        assert said() == []
        admin.execute("ALTER ROLE headrace_test_mallory CREATEROLE")
        found = said()
        assert bool(found) != refused(mallory, *attack)
        assert bool(found) == (admin.info.server_version < 160000)
        for each in found:
            assert (each.path, each.is_error) == ("sites.b", False)
            assert '"headrace_test_mallory"' in each.problem
            admin.execute(each.fix)
            assert refused(mallory, *attack)
        assert not found or said() == []


CALLED = {
    "checks": "CREATE TABLE t (id int PRIMARY KEY, CHECK (f(id) > 0))",
    "indexes": "CREATE TABLE t (id int PRIMARY KEY); CREATE INDEX ON t (f(id))",
    "indexes, of operators": "CREATE OPERATOR @@@ (FUNCTION = f, RIGHTARG = int); CREATE TABLE t (id int PRIMARY KEY); CREATE INDEX ON t ((@@@ id))",
    "partition keys": "CREATE TABLE t (id int) PARTITION BY RANGE (f(id)); CREATE TABLE p PARTITION OF t DEFAULT",
    "defaults": "CREATE TABLE t (id int PRIMARY KEY DEFAULT f(1))",
    "domains, of fields": "CREATE DOMAIN d AS int CHECK (f(VALUE) > 0); CREATE TYPE c AS (d d); CREATE TABLE t (id int PRIMARY KEY, c c[])",
    "triggers": "CREATE TABLE t (id int PRIMARY KEY); CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fired();"
    " ALTER TABLE t ENABLE ALWAYS TRIGGER a",
}


@pytest.mark.parametrize("called", CALLED)
def test_author_of_a_function_that_runs_on_apply_is_named_with_a_remedy(admin, role_dsn, mallory, called):
    """A superuser owns the table, but another role owns a function that runs when a row is written."""
    of_trigger = called == "triggers"
    name, returns = ("fired()", "trigger") if of_trigger else ("f(int)", "int")
    body = "$$BEGIN RETURN NEW; END$$ LANGUAGE plpgsql" if of_trigger else "'SELECT $1' LANGUAGE sql IMMUTABLE"
    admin.execute(
        "GRANT CREATE, USAGE ON SCHEMA public TO headrace_test_mallory; SET ROLE headrace_test_mallory;"
        f" CREATE FUNCTION public.{name} RETURNS {returns} AS {body}; RESET ROLE; {CALLED[called]}"
    )
    attack = f"CREATE OR REPLACE FUNCTION public.{name} RETURNS {returns} AS {body}"
    with closing(PostgresDestination(role_dsn, site="b")) as destination:

        def said() -> list[Finding]:
            return [each for each in destination.preflight_tables([version(admin)]) if "can replace" in each.problem]

        assert not refused(mallory, attack)
        (found,) = said()
        assert (found.path, found.is_error) == ("sites.b", False)
        function = "public.fired()" if of_trigger else "public.f(integer)"
        assert '"headrace_test_mallory" can act as the role that applies' in found.problem
        assert f"{function}, in {called.partition(',')[0]} of public.t" in found.problem
        admin.execute(found.fix)
        assert refused(mallory, attack)
        assert said() == []


def test_author_who_is_the_administrator_is_not_named(admin, role_dsn, mallory):
    admin.execute(
        "GRANT CREATE, USAGE ON SCHEMA public TO headrace_test_mallory; SET ROLE headrace_test_mallory;"
        " CREATE FUNCTION public.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'; RESET ROLE;"
        " CREATE TABLE t (id int PRIMARY KEY, CHECK (f(id) > 0))"
    )
    with closing(PostgresDestination(role_dsn, site="b")) as destination:
        assert [each for each in destination.preflight_tables([version(admin)]) if "can replace" in each.problem]
        admin.execute("CREATE SCHEMA headrace AUTHORIZATION headrace_test_mallory")
        assert not [each for each in destination.preflight_tables([version(admin)]) if "can replace" in each.problem]
        admin.execute("DROP SCHEMA headrace")


def test_schema_owner_who_can_replace_others_tables_is_named_with_a_remedy(admin, role_dsn, mallory):
    admin.execute("CREATE SCHEMA app AUTHORIZATION headrace_test_mallory; CREATE TABLE app.t (id int PRIMARY KEY)")
    admin.execute("CREATE TABLE app.u (id int PRIMARY KEY); ALTER TABLE app.t OWNER TO headrace_test_owner")
    # An owner's right to use it passes with the ownership: it is the only right of the role that applies.
    admin.execute(f"GRANT headrace_test_mallory TO {ROLE}")
    attack = ("DROP TABLE app.t", "CREATE TABLE app.t (id int PRIMARY KEY DEFAULT random())")
    versions = []
    for name in "tu":
        catalog = describe_table(admin, "app", name)
        assert catalog is not None
        versions.append(table_version(catalog, is_binary=True))
    with closing(PostgresDestination(role_dsn, site="b")) as destination:

        def said(*tables: TableVersion) -> list[Finding]:
            return [each for each in destination.preflight_tables(tables) if each.path == "sites.b schema app"]

        assert not refused(mallory, *attack)
        (both,) = said(*versions)
        assert both.problem.endswith(": t, u")
        assert both.fix.startswith(f'ALTER SCHEMA "app" OWNER TO "{admin.info.user}";'), "several roles own the tables"
        (found,) = said(versions[0])
        assert not found.is_error
        assert '"headrace_test_mallory"' in found.problem
        admin.execute(found.fix)
        assert refused(mallory, *attack)
        with psycopg.connect(role_dsn) as applying:
            assert applying.execute("SELECT to_regclass('app.t')").fetchone() != (None,), "it may use the schema"
        assert said(*versions) != [], "a superuser's table is in it, too"
        assert said(versions[0]) == []
        # An owner who also owns the table is no other role.
        admin.execute(
            "ALTER SCHEMA app OWNER TO headrace_test_mallory; ALTER TABLE app.t OWNER TO headrace_test_mallory"
        )
        assert said(versions[0]) == []
        admin.execute("ALTER SCHEMA app OWNER TO pg_database_owner; ALTER TABLE app.t OWNER TO headrace_test_owner")
        assert said(*versions) == []


def test_right_missing_at_run_time_is_a_database_error_and_no_pause(admin, role_dsn):
    destination = PostgresDestination(role_dsn, site="b")
    with pytest.raises(DatabaseError) as caught:
        destination.prepare("top")
    assert caught.value.context["sqlstate"] == "42501"
    destination.close()


@on_every_version("dsn")
def test_bounds_on_connections_and_origins_are_checked(admin, destination):
    origins = "max_active_replication_origins" if admin.info.server_version >= 180000 else "max_replication_slots"
    found = destination.preflight("top", sessions=5000)
    assert [needed_and_free(finding)[0] for finding in found] == [5000, 5003]
    for finding, setting in zip(found, (origins, "max_connections"), strict=True):
        (now,) = admin.execute("SELECT current_setting(%s)::int", (setting,)).fetchone()
        needed, free = needed_and_free(finding)
        assert finding.fix == f"ALTER SYSTEM SET {setting} = {now + needed - free}; -- and restart the server"
        admin.execute(finding.fix)
        admin.execute(f"ALTER SYSTEM RESET {setting}")


def needed_and_free(finding: Finding) -> tuple[int, int]:
    """Return the numbers of a finding's problem."""
    needed, free = (int(number) for number in re.findall(r"\d+", finding.problem)[:2])
    return needed, free


def test_sessions_that_already_run_are_not_counted_again(admin, role_dsn):
    """This is `up` on a running topology, at a server with places for it alone."""
    with (
        closing(PostgresDestination(role_dsn, site="b")) as driver,
        closing(PostgresDestination(role_dsn, site="b")) as site,
    ):
        for statement in fixes(site.preflight("top", sessions=2)):
            admin.execute(statement)
        # Two apply servers, the driver's administrative session, the claim, one for `status`, and the checking session.
        admin.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT 6")
        assert site.preflight("top", sessions=2) == ()
        driver.prepare("top")
        epoch = driver.raise_epoch("top", "a").epoch
        with ExitStack() as servers:
            claim = servers.enter_context(
                closing(PostgresClaim(role_dsn, topology="top", site="b", place="here", identity="1"))
            )
            claim.hold()
            for server in range(2):
                servers.enter_context(closing(driver.open_session("top", "a", server=server, epoch=epoch, tag=b"\x00")))
            assert site.preflight("top", sessions=2) == ()
            (more,) = site.preflight("top", sessions=3)
            assert more.problem == "2 connections are needed, the role may open 1 more"
            (others,) = site.preflight("top2", sessions=2)
            assert others.problem == "5 connections are needed, the role may open 1 more"
            admin.execute(others.fix)
            assert site.preflight("top2", sessions=2) == ()


def test_several_apply_processes_and_copies_need_their_own_sessions(admin, role_dsn):
    with closing(PostgresDestination(role_dsn, site="b")) as site:
        for statement in fixes(site.preflight("top", sessions=4)):
            admin.execute(statement)
        admin.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT 8")  # the checking session is one
        assert site.preflight("top", sessions=4) == ()
        (found,) = site.preflight("top", sessions=4, applies=2)
        assert (found.is_error, found.problem) == (True, "8 connections are needed, the role may open 7 more")
        (found,) = site.preflight("top", sessions=4, copies=2)
        assert (found.is_error, found.problem) == (
            False,
            "13 connections are needed to copy tables while others are applied, the role may open 7 more",
        )
        (found,) = (f for f in site.preflight("top", sessions=5000) if "origins are needed" in f.problem)
        origins = needed_and_free(found)[1]  # other tests' topologies on this server have some
        (found,) = (f for f in site.preflight("top", sessions=origins - 1, copies=2) if "origins" in f.problem)
        assert not found.is_error
        assert found.problem.endswith(f"tables that are copied while others are applied need {origins + 1}")


def test_connections_of_other_roles_take_places(admin, role_dsn, destination):
    """A role that may not look at other roles' sessions still counts them."""

    def free(asked: PostgresDestination) -> int:
        (found,) = (f for f in asked.preflight("top", sessions=5000) if "connections are needed" in f.problem)
        return needed_and_free(found)[1]

    with closing(PostgresDestination(role_dsn, site="b")) as restricted:
        restricted.describe("public", "t")  # both are connected
        wait_until("both count the same", lambda: free(destination) == free(restricted), 30.0)


@on_every_version("dsn")
def test_only_origins_of_other_topologies_take_places(admin, destination):
    (before,) = [f for f in destination.preflight("top", sessions=1000) if "origins are needed" in f.problem]
    free = int(before.problem.split(" needed, ")[1].split()[0])
    for name in ("headrace:top/apply/0:00", "headrace:top2/apply/0:00", "another's"):
        admin.execute("SELECT pg_replication_origin_create(%s)", (name,))
    try:
        (after,) = [f for f in destination.preflight("top", sessions=1000) if "origins are needed" in f.problem]
        assert f"{free - 2} are free" in after.problem
    finally:
        admin.execute(
            "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname ~"
            " '^headrace:top2?/|another'"
        )


TABLES = [
    ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "DEFERRABLE", True),
    ("CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE DEFERRABLE INITIALLY DEFERRED)", "DEFERRABLE", True),
    ("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY REFERENCES p)", "foreign key", False),
    ("CREATE TABLE t (id int)", "no primary key", False),
    (
        "CREATE TABLE t (id int PRIMARY KEY); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN"
        " NULL; END';CREATE TRIGGER g AFTER INSERT ON t EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER g",
        "ENABLE ALWAYS",
        False,
    ),
]


TRIGGER = (
    "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE seen (id int); CREATE FUNCTION f() RETURNS trigger LANGUAGE"
    " plpgsql"
    " AS 'BEGIN INSERT INTO public.seen VALUES (NEW.id); RETURN NEW; END'; CREATE TRIGGER g AFTER INSERT ON t FOR EACH"
    " ROW EXECUTE FUNCTION f();"
)


@pytest.mark.parametrize(
    ("fire", "state", "problem"),
    [
        ("always", "ENABLE", "is ENABLE, and the file says fire: always"),
        ("always", "DISABLE", "is DISABLE, and the file says fire: always"),
        ("always", "ENABLE REPLICA", "is ENABLE REPLICA, and the file says fire: always"),
        ("always", "ENABLE ALWAYS", None),
        ("once", "ENABLE ALWAYS", "is ENABLE ALWAYS, and the file says fire: once"),
        ("once", "ENABLE", None),
        ("once", "DISABLE", None),
    ],
)
@pytest.mark.usefixtures("role_dsn")
def test_triggers_fire_as_configured_or_the_fix_is_named(admin, dsn, fire, state, problem):
    """After the fix they fire once for each applied row, or not at all. Statements of the table's owner need no
    superuser.
    """
    admin.execute(f"{TRIGGER} ALTER TABLE t {state} TRIGGER g")
    settings = TableSettings(triggers=(TriggerFiring(owner="public", name="t", trigger="g", fire=fire),))
    found = PostgresDestination(dsn, site="b", settings=settings)
    findings = found.preflight_tables([version(admin)])
    if problem is not None:
        assert [(finding.is_error, problem in finding.problem) for finding in findings] == [(True, True)]
        admin.execute(f"ALTER TABLE t OWNER TO {ROLE}; GRANT CREATE ON SCHEMA public TO {ROLE}; SET ROLE {ROLE}")
        admin.execute(findings[0].fix)
        admin.execute("RESET ROLE")
        findings = found.preflight_tables([version(admin)])
    assert findings == ()
    found.prepare("top")
    session = found.open_session("top", "a", server=0, epoch=found.raise_epoch("top", "a").epoch, tag=b"")
    session.begin()
    session.write([insert(session.describe("public", "t"), [(int4(7),)])])
    session.commit([], 0)
    session.close()
    found.close()
    assert admin.execute("SELECT id FROM seen").fetchall() == ([(7,)] if fire == "always" else [])


def test_missing_trigger_is_named(admin, dsn):
    admin.execute(TRIGGER)
    found = PostgresDestination(
        dsn,
        site="b",
        settings=TableSettings(triggers=(TriggerFiring(owner="public", name="t", trigger="h", fire="always"),)),
    )
    (finding,) = found.preflight_tables([version(admin)])
    found.close()
    assert (finding.problem, finding.fix) == ("triggers: the table has no trigger h", "name one of g")


@pytest.mark.parametrize(
    ("ddl", "columns", "problem", "is_error"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY, a int, doc json)", ("doc",), "values of json cannot be compared", True),
        ("CREATE TABLE t (id int PRIMARY KEY, a int)", ("b",), "the table has no such column", True),
        ("CREATE TABLE t (id int PRIMARY KEY, a int)", ("a",), "is not unique here", False),
    ],
)
def test_substitute_keys_are_checked(admin, dsn, ddl, columns, problem, is_error):
    admin.execute(ddl)
    found = PostgresDestination(
        dsn, site="b", settings=TableSettings(key_columns=(KeyColumns(owner="public", name="t", columns=columns),))
    )
    (finding,) = found.preflight_tables([version(admin)])
    assert (problem in finding.problem, finding.is_error) == (True, is_error)
    if not is_error:
        admin.execute(finding.fix.partition(" --")[0])
        assert found.preflight_tables([version(admin)]) == ()
    found.close()


@pytest.mark.parametrize(("ddl", "problem", "is_error"), TABLES)
def test_tables_that_do_not_fit_are_named_with_the_difference(admin, destination, ddl, problem, is_error):
    admin.execute(ddl)
    (found,) = destination.preflight_tables([version(admin)])
    assert found.path == "sites.b table public.t"
    assert problem in found.problem
    assert found.is_error is is_error


@pytest.mark.parametrize(("identity", "fills"), [("FULL", True), ("DEFAULT", False), ("NOTHING", False)])
def test_changeable_table_without_a_key_gets_a_warning_of_errors(admin, destination, identity, fills):
    """Without an identity the source refuses UPDATE and DELETE; a table with INSERTs alone has no dependencies."""
    admin.execute(f"CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY {identity}")
    (found,) = destination.preflight_tables([version(admin)])
    assert ("every later transaction with a row of the table follows it there" in found.problem) is fills
    assert (found.path, found.fix) == (
        "sites.b table public.t",
        "give it a primary key, or a unique key of columns that are NOT NULL",
    )


def test_printed_statement_makes_a_deferrable_constraint_immediate(admin, destination):
    admin.execute("CREATE TABLE t (id int PRIMARY KEY, v int, UNIQUE (v) DEFERRABLE INITIALLY DEFERRED)")
    for statement in fixes(destination.preflight_tables([version(admin)])):
        admin.execute(statement)
    assert destination.preflight_tables([version(admin)]) == ()


@on_every_version("dsn")
def test_printed_statement_fixes_a_deferrable_constraint_of_one_partition(admin, destination):
    admin.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        " CREATE TABLE t_1 PARTITION OF t (UNIQUE (v) DEFERRABLE) FOR VALUES FROM (0) TO (10)"
    )
    (finding,) = destination.preflight_tables([version(admin)])
    assert "DEFERRABLE" in finding.problem
    admin.execute(finding.fix)
    assert destination.preflight_tables([version(admin)]) == ()


def test_table_that_does_not_fit_is_named_with_its_alter(admin, destination):
    admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
    there = version(admin)
    wider = replace(there, columns=(*there.columns, Column(name="v", type_name="pg_catalog.text")))
    (found,) = destination.preflight_tables([wider])
    admin.execute(found.fix)
    assert destination.preflight_tables([wider]) == ()


def test_foreign_key_is_reported_only_if_its_parent_does_not_arrive(admin, destination):
    admin.execute(
        "CREATE TABLE p (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id); CREATE TABLE p_1 PARTITION OF p FOR VALUES"
        " FROM (0) TO (10)"
    )
    admin.execute("CREATE TABLE t (id int PRIMARY KEY REFERENCES p)")
    assert destination.preflight_tables([version(admin, "p"), version(admin, "t")]) == ()
    found = destination.preflight_tables([version(admin, "t")])
    assert found
    assert {(each.is_error, "refers to public.p, which is not replicated" in each.problem) for each in found} == {
        (False, True)
    }


def test_missing_table_is_named_with_the_command_that_copies_it(admin, destination):
    (found,) = destination.preflight_tables(
        [
            TableVersion(
                object_number=1,
                version=1,
                owner="hr",
                name="jobs",
                columns=(),
                old_image=0,
            )
        ]
    )
    assert "pg_dump --schema-only" in found.fix


def test_row_security_is_reported(admin, role_dsn):
    admin.execute("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    admin.execute(f"GRANT ALL ON t TO {ROLE}")
    destination = PostgresDestination(role_dsn, site="b")
    (found,) = destination.preflight_tables([version(admin)])
    assert "BYPASSRLS" in found.fix
    destination.close()


def test_schema_of_a_newer_program_is_refused(admin, destination):
    prepare_schema(admin)
    admin.execute(f"UPDATE headrace.schema_version SET version = {VERSION + 1}")
    assert len(destination.preflight("top", sessions=1)) == 1
    with pytest.raises(DatabaseError, match=r"has version"):
        destination.prepare("top")


def test_interrupted_creation_leaves_no_schema(admin, dsn):
    """Creation is one transaction."""
    admin.execute("CREATE SCHEMA headrace; CREATE TABLE headrace.instantiation (x int)")
    with pytest.raises(DatabaseError):
        prepare_schema(connect(dsn, application_name="test"))
    assert schema_version(admin) == 0


@on_every_version("dsn")
def test_views_show_progress_errors_and_instantiated_objects(admin, destination):
    destination.prepare("top")
    epoch = destination.raise_epoch("top", "a").epoch
    destination.record_low_watermark("top", "a", epoch, 77)
    table = Instantiation(
        source="dbs1", identity="1.t", owner="hr", name="t", scn=55, state="DONE", row_count=5, digest="ab"
    )
    destination.record_instantiation("top", "a", epoch, table)
    failed = ErrorTransaction(
        number=0,
        apply="a",
        source="dbs1",
        transaction_id=7,
        commit_scn=66,
        commit_time_us=1_700_000_000_000_000,
        row_count=3,
        failed_position=1,
        depends_on=0,
        conflict_type="update_missing",
        sqlstate="",
        message="no such row",
        created_us=0,
    )
    session = destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\x00")
    session.begin()
    number = session.put_error(failed, b"batch", np.array([1], np.uint64), part=0, readable=["id=1"])
    session.commit([], 0)
    session.close()

    def shown(columns: str, view: str) -> list[tuple[object, ...]]:
        return list(admin.execute(f"SELECT {columns} FROM headrace.{view}").fetchall())

    assert shown("topology, apply_name, epoch, applied_message_number", "dba_apply_progress") == [
        ("top", "a", epoch, 77)
    ]
    columns = (
        "apply_name, local_transaction_id, source_database, source_transaction_id, source_commit_scn, message_number"
    )
    assert shown(columns, "dba_apply_error") == [("a", number, "dbs1", 7, 66, 2)]
    columns = "message_count, error_number, error_message, conflict_type, failed_message"
    assert shown(columns, "dba_apply_error") == [(3, "", "no such row", "update_missing", ["id=1"])]
    columns = (
        "apply_name, source_database, source_object_owner, source_object_name, instantiation_scn, state, row_count"
    )
    assert shown(columns, "dba_apply_instantiated_objects") == [("a", "dbs1", "hr", "t", 55, "DONE", 5)]


def test_column_of_another_type_gets_one_fix_when_the_older_side_is_known(
    admin: psycopg.Connection, destination: PostgresDestination
) -> None:
    admin.execute("CREATE TABLE t (id int PRIMARY KEY, mood text)")
    here = table_version(describe_table(admin, "public", "t"), is_binary=False)

    def at_the_source(type_name: str) -> TableVersion:
        mood = replace(here.columns[1], type_name=f"pg_catalog.{type_name}")
        return replace(here, columns=(here.columns[0], mood))

    def fix(*now: TableVersion) -> str:
        (found,) = fixes(destination.preflight_tables((at_the_source("int4"),), now=now))
        return found

    alter, create = (
        'ALTER TABLE "public"."t" ALTER COLUMN "mood" TYPE int4;',
        'CREATE FUNCTION headrace."public.t.mood"(int4)',
    )
    # the source altered it, and the destination follows; it was altered twice: one step after the other
    for now in ("int4", "bool"):
        assert fix(at_the_source(now)).startswith(
            f"{alter} -- then headrace verify FILE public.t and the fix that it prints:"
        )
        assert create not in fix(at_the_source(now))
    assert fix(here).startswith(create)  # both were altered: these rows are older
    assert "ALTER TABLE" not in fix(here)
    assert alter in fix()
    assert create in fix()


def test_function_for_older_rows_that_converts_todays_values_is_reported(
    admin: psycopg.Connection, destination: PostgresDestination
) -> None:
    destination.prepare("top")
    admin.execute("CREATE TABLE t (id int PRIMARY KEY, v smallint)")
    admin.execute('CREATE FUNCTION headrace."public.t.v"(int4) RETURNS smallint IMMUTABLE RETURN $1 / 10')
    today = version(admin)
    older = replace(
        today, columns=(today.columns[0], replace(today.columns[1], type_name="pg_catalog.int4", type_number=23))
    )
    assert not destination.preflight_tables((older,), now=(today,))
    (finding,) = destination.preflight_tables((older,), now=(older,))
    assert not finding.is_error
    assert 'headrace."public.t.v"(int4) converts the values of v of the source' in finding.problem
    admin.execute("ALTER TABLE t ALTER v TYPE int4")
    admin.execute(finding.fix.partition("and then ")[2].partition(";")[0])
    assert not destination.preflight_tables((older,), now=(older,))


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        ("view", "CREATE VIEW other AS SELECT 1 AS id"),
        ("materialized view", "CREATE MATERIALIZED VIEW other AS SELECT 1 AS id"),
        ("sequence", "CREATE SEQUENCE other"),
    ],
)
def test_object_with_a_tables_name_has_its_kind_named(admin, destination, kind, ddl):
    admin.execute(ddl)
    missing = TableVersion(object_number=1, version=1, owner="public", name="other", columns=(), old_image=0)
    (found,) = destination.preflight_tables([missing])
    assert found.is_error
    assert found.problem == f"it is a {kind} here, but changes are applied only to tables"
    assert "pg_dump" not in found.fix
    admin.execute("ALTER TABLE other RENAME TO was_there; CREATE TABLE other (id int PRIMARY KEY)")
    assert destination.preflight_tables([version(admin, "other")]) == ()
