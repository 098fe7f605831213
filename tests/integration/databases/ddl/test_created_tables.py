"""New tables at a destination: made with their record or not at all, equal to the source's, and never over another one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseUnavailable, DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.databases.table_digest import TableDigest
from headrace.lcr.ddl import DdlChange
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.destination_contract import APPLY, TOPOLOGY
from tests.support.databases.random_tables import NAMES, TYPES_TO_MAKE, random_table
from tests.support.databases.statements import row_of
from tests.support.session.seeds import scaled, seeds
from tests.support.values.writes import insert, int4

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text)"


def refused(pair: CreatedPair, change: DdlChange) -> DataError:
    """Return the refusal of a change; it left nothing."""
    before = pair.records()
    with pytest.raises(DataError) as caught:
        pair.apply(change)
    assert DDL_REFUSED in caught.value.context
    assert "or leave it out: INSERT INTO headrace.ddl_skip" in caught.value.hint
    assert pair.records() == before
    return caught.value


# --------------------------------------------------------------------------- the table and its record


def test_table_and_record_commit_together(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    (outcome,) = created.apply(change)
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.APPLIED, "")
    created.assert_equal("jobs")
    (record,) = created.records().values()
    assert record.identity == f"1.2.{created.number('jobs')}.7"
    assert (record.source, record.owner, record.name, record.state, record.scn) == ("a", "hr", "jobs", "DONE", 149)
    assert (record.row_count, record.digest, record.problem) == (0, str(TableDigest()), "")
    assert (record.is_kept, record.is_remade, record.is_gone) == (False, False, False)
    assert record.name_now == ("hr", "jobs")
    asked = [created.place(), created.place(1)]
    assert created.destination.ddl_outcomes(TOPOLOGY, APPLY, asked) == {asked[0]: DdlOutcomeKind.APPLIED}
    assert created.destination.ddl_outcomes(TOPOLOGY, "another", asked) == {}
    assert created.destination.ddl_outcomes(TOPOLOGY, APPLY, []) == {}


def test_rolled_back_transaction_leaves_neither(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.session.begin()
    created.session.change_table(change, created.place())
    assert created.session.describe("hr", "jobs") is not None
    created.session.rollback()
    assert created.session.describe("hr", "jobs") is None
    assert not created.exists("jobs")
    assert created.records() == {}
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


def test_rows_behind_it_in_its_transaction_are_written(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.session.begin()
    created.session.change_table(change, created.place())
    table = created.session.describe("hr", "jobs")
    assert table is not None
    created.session.write([insert(table, [(int4(1), b"one")])])
    created.session.commit([], 0)
    assert created.admin.execute("SELECT * FROM hr.jobs").fetchall() == [(1, "one")]


def test_skipped_table_has_no_record(created: CreatedPair) -> None:
    created.admin.execute("CREATE VIEW hr.jobs AS SELECT 1")
    change = created.created("jobs", JOBS)
    hint = refused(created, change).hint
    created.admin.execute(hint.split("or leave it out: ")[1].encode())
    assert created.apply(change)[0].kind is DdlOutcomeKind.SKIPPED
    assert created.records() == {}
    place = created.place()
    assert created.destination.ddl_outcomes(TOPOLOGY, APPLY, [place]) == {place: DdlOutcomeKind.SKIPPED}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"why_not": "it is unlogged"}, "it is unlogged; the next headrace up copies it"),
        ({"topology": "another"}, "its rows are not in the log; the next headrace up copies it"),
        ({"version": 11}, "same major version"),
    ],
)
def test_table_without_its_rows_in_the_log_is_not_made(
    created: CreatedPair, attributes: dict[str, Any], said: str
) -> None:
    change = created.created("jobs", JOBS, **attributes)
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert said in outcome.reason
    assert not created.exists("jobs")
    assert created.records() == {}


def test_from_the_error_queue_it_is_to_be_copied(created: CreatedPair) -> None:
    (outcome,) = created.apply(created.created("jobs", JOBS), is_in_order=False)
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert "the table is copied" in outcome.reason
    (record,) = created.records().values()
    assert (record.state, record.scn, record.digest, record.problem) == ("COPYING", 1, "", "to be copied again")


def test_latest_outcome_of_a_change_counts(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.apply(change.not_made("another way"))
    created.apply(change)
    place = created.place()
    assert created.destination.ddl_outcomes(TOPOLOGY, APPLY, [place]) == {place: DdlOutcomeKind.APPLIED}


def test_built_in_function_that_reads_any_view_is_not_replicated(created: CreatedPair) -> None:
    created.user.execute("CREATE VIEW hr.v AS SELECT 1 AS x")
    check = "CHECK (table_to_xml('hr.v'::regclass, true, false, '') IS NOT NULL)"
    (outcome,) = created.apply(created.created("jobs", f"CREATE TABLE hr.jobs (id int PRIMARY KEY, {check})"))
    assert (outcome.kind, "calls a function" in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)


def test_name_of_its_sequence_that_is_taken_has_its_fix(created: CreatedPair) -> None:
    created.admin.execute("CREATE SEQUENCE hr.jobs_id_seq")
    error = refused(created, created.created("jobs", "CREATE TABLE hr.jobs (id serial PRIMARY KEY)"))
    assert (
        error.message.endswith('relation "jobs_id_seq" already exists'),
        error.hint.startswith("drop or rename"),
    ) == (True, True)


# --------------------------------------------------------------------------- records of others


def test_failed_record_without_a_table_becomes_one_to_be_copied(created: CreatedPair) -> None:
    """The creating transaction was in the error queue, and the copy found no table meanwhile."""
    change = created.created("jobs", JOBS)
    created.apply(change)
    created.admin.execute(
        "DROP TABLE hr.jobs; UPDATE headrace.instantiation SET state = 'FAILED', scn = 0, relation = NULL"
    )
    assert created.apply(change, is_in_order=False)[0].kind is DdlOutcomeKind.APPLIED
    (record,) = created.records().values()
    assert (record.state, record.scn) == ("COPYING", 1)


def test_record_of_an_earlier_table_of_the_name_goes(created: CreatedPair) -> None:
    created.apply(created.created("jobs", JOBS))
    created.admin.execute("DROP TABLE hr.jobs")
    created.user.execute("DROP TABLE hr.jobs")
    created.apply(created.created("jobs", JOBS))
    assert list(created.records()) == [f"1.2.{created.number('jobs')}.7"]


def test_record_of_an_earlier_table_that_was_renamed_here_stays(created: CreatedPair) -> None:
    created.apply(created.created("jobs", JOBS))
    created.both("ALTER TABLE hr.jobs RENAME TO old", "ALTER INDEX hr.jobs_pkey RENAME TO old_pkey")
    created.apply(created.created("jobs", JOBS))
    assert set(created.records()) == {f"1.2.{created.number(name)}.7" for name in ("jobs", "old")}


def test_table_that_is_recorded_already_stays_as_it_is(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.apply(change)
    created.admin.execute("INSERT INTO hr.jobs VALUES (1, 'one')")
    before = created.records()
    (outcome,) = created.apply(change, scn=500)
    assert outcome.kind is DdlOutcomeKind.PASSED_OVER
    assert created.records() == before


@pytest.mark.parametrize(
    ("topology", "apply", "source"), [("x", APPLY, "a"), (TOPOLOGY, "apply_from_c", "a"), (TOPOLOGY, APPLY, "c")]
)
def test_table_that_is_recorded_for_another_one_is_refused(
    created: CreatedPair, topology: str, apply: str, source: str
) -> None:
    change = created.created("jobs", JOBS)
    created.apply(change)
    created.admin.execute(
        "UPDATE headrace.instantiation SET topology = %s, apply = %s, source = %s", (topology, apply, source)
    )
    created.user.execute("DROP TABLE hr.jobs")
    error = refused(created, created.created("jobs", JOBS))
    assert f"apply process {apply} of topology {topology} (from {source})" in error.message


# --------------------------------------------------------------------------- a table that is there


def test_equal_empty_table_is_passed_over(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.admin.execute(JOBS + "; ALTER TABLE hr.jobs ADD mine text")
    (outcome,) = created.apply(change)
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.PASSED_OVER, ())
    (record,) = created.records().values()
    assert (record.state, record.scn, record.name_now) == ("DONE", 149, ("hr", "jobs"))


def test_equal_table_with_rows_is_refused(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.admin.execute(JOBS + "; INSERT INTO hr.jobs VALUES (1, 'mine')")
    error = refused(created, change)
    assert "with rows" in error.message
    assert 'TRUNCATE "hr"."jobs", or drop it' in error.hint
    created.admin.execute("TRUNCATE hr.jobs")
    assert created.apply(change)[0].kind is DdlOutcomeKind.PASSED_OVER


def test_table_that_others_write_is_not_taken(created: CreatedPair) -> None:
    change = created.created("jobs", JOBS)
    created.admin.execute(JOBS)
    with psycopg.connect(created.admin.info.dsn, password=created.admin.info.password) as other:
        other.execute("INSERT INTO hr.jobs VALUES (1, 'mine')")
        with pytest.raises(DatabaseUnavailable):
            created.apply(change)
        other.rollback()
    assert created.apply(change)[0].kind is DdlOutcomeKind.PASSED_OVER


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (
            "CREATE TABLE hr.jobs (id bigint PRIMARY KEY, title text)",
            'column "id" is bigint NOT NULL here, and integer',
        ),
        ("CREATE TABLE hr.jobs (id int PRIMARY KEY)", 'column "title" is missing here, and text at the source'),
        ("CREATE TABLE hr.jobs (id int NOT NULL, title text)", 'constraint "jobs_pkey" is missing'),
        ("CREATE UNLOGGED TABLE hr.jobs (id int PRIMARY KEY, title text)", "unlogged here"),
        ("CREATE TABLE hr.jobs (id int PRIMARY KEY, title text) PARTITION BY HASH (id)", "a partitioned table"),
        ("CREATE TABLE hr.jobs (id int PRIMARY KEY, title text); CREATE TABLE hr.b () INHERITS (hr.jobs)", "inherit"),
        ("CREATE VIEW hr.jobs AS SELECT 1 AS id", "has a view of that name"),
        ("CREATE MATERIALIZED VIEW hr.jobs AS SELECT 1 AS id", "has a materialized view of that name"),
        ("CREATE SEQUENCE hr.jobs", "has a sequence of that name"),
        ("CREATE TYPE hr.jobs AS (id int)", "has a type of that name"),
        ("CREATE TABLE hr.x (id int); CREATE INDEX jobs ON hr.x (id)", "has an index of that name"),
        ("CREATE TYPE hr.jobs AS ENUM ('a')", "already exists"),
        ("CREATE TABLE hr.x (id int); CREATE INDEX jobs_pkey ON hr.x (id)", "already exists"),
    ],
)
def test_something_else_of_that_name_is_refused(created: CreatedPair, here: str, said: str) -> None:
    change = created.created("jobs", JOBS)
    created.admin.execute(here.encode())
    error = refused(created, change)
    assert said in error.message
    assert error.message.startswith("CREATE TABLE of table hr.jobs: ")


# --------------------------------------------------------------------------- owner and rights

ROLE, OWNER = "headrace_test_creating", "headrace_test_owning"
SERVER_RIGHTS = (
    "SET ON PARAMETER session_replication_role",
    "EXECUTE ON FUNCTION pg_replication_origin_create(text), pg_replication_origin_session_setup(text),"
    " pg_replication_origin_xact_setup(pg_lsn, timestamptz)",
)


@pytest.fixture
def roles(created: CreatedPair) -> Iterator[str]:
    """Make an applying role without rights but on Headrace's schema, and an owner; return the applying role's dsn."""
    for role in (ROLE, OWNER):
        created.admin.execute(f"DROP ROLE IF EXISTS {role}")
    created.admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'; CREATE ROLE {OWNER}")
    created.admin.execute(f"GRANT USAGE ON SCHEMA headrace TO {ROLE}")
    created.admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headrace TO {ROLE}")
    created.admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA headrace TO {ROLE}")
    created.admin.execute(f"GRANT ALL ON SCHEMA hr TO {OWNER}, {ROLE}")
    for right in SERVER_RIGHTS:
        created.admin.execute(f"GRANT {right} TO {ROLE}".encode())
    created.user.execute(f"GRANT ALL ON SCHEMA hr TO {OWNER}")
    yield conninfo.make_conninfo(created.admin.info.dsn, user=ROLE, password="secret")
    created.session.close()
    for connection in (created.user, created.admin):
        connection.execute(f"DROP OWNED BY {OWNER}, {ROLE}")
    for right in SERVER_RIGHTS:
        created.admin.execute(f"REVOKE {right} FROM {ROLE}".encode())
    created.admin.execute(f"DROP ROLE {ROLE}, {OWNER}")


def owner_here(pair: CreatedPair) -> str:
    query = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'hr.jobs'::regclass"
    return str(row_of(pair.admin.execute(query))[0])


OWNED = (JOBS, f"ALTER TABLE hr.jobs OWNER TO {OWNER}")


def test_owner_is_the_sources(created: CreatedPair, roles: str) -> None:
    change = created.created("jobs", *OWNED)
    created.admin.execute(f"GRANT {OWNER} TO {ROLE}")
    with created.logged_on(roles):
        assert created.apply(change)[0].reason == ""
        assert owner_here(created) == OWNER


@pytest.mark.parametrize("how", ["no member", "does not inherit", "no such role"])
def test_owner_is_the_applying_role_and_is_named(created: CreatedPair, roles: str, how: str) -> None:
    change = created.created("jobs", *OWNED)
    why = f"{ROLE} may not act as {OWNER}, or lacks its rights"
    if how == "does not inherit":
        created.admin.execute(f"ALTER ROLE {ROLE} NOINHERIT; GRANT {OWNER} TO {ROLE}")
    elif how == "no such role":
        change = created.created("jobs", role="none")
        content = change.content.replace(f'"role": "{OWNER}"', '"role": "nobody_here"')
        assert content != change.content
        change = DdlChange(**{name: getattr(change, name) for name in change.__slots__} | {"content": content})
        why = "there is no role nobody_here"
    with created.logged_on(roles):
        (outcome,) = created.apply(change)
        assert outcome.reason == f"its owner here is {ROLE}: {why}"
        assert owner_here(created) == ROLE
        table = created.session.describe("hr", "jobs")
        assert table is not None
        created.session.begin()
        created.session.write([insert(table, [(int4(1), b"one")])])
        created.session.commit([], 0)


@pytest.mark.parametrize("of", ["the source's owner", "the applying role"])
def test_missing_right_on_the_schema_is_refused_with_its_fix(created: CreatedPair, roles: str, of: str) -> None:
    change = created.created("jobs", *OWNED)
    created.admin.execute(f"REVOKE ALL ON SCHEMA hr FROM {OWNER}, {ROLE}; GRANT USAGE ON SCHEMA hr TO {OWNER}")
    if of == "the source's owner":
        created.admin.execute(f"GRANT {OWNER} TO {ROLE}")
    grant = (
        f'GRANT CREATE ON SCHEMA "hr" TO "{OWNER}"'
        if of == "the source's owner"
        else f'GRANT USAGE, CREATE ON SCHEMA "hr" TO "{ROLE}"'
    )
    with created.logged_on(roles):
        error = refused(created, change)
        assert error.hint.startswith(f"{grant}; or leave it out")
        created.admin.execute(grant)
        assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


def test_missing_schema_and_type_are_refused_with_their_fix(created: CreatedPair) -> None:
    created.user.execute("CREATE TYPE hr.mood AS ENUM ('so', 'la')")
    change = created.created("jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY, mood hr.mood)")
    assert 'type "hr.mood" does not exist' in refused(created, change).message
    created.admin.execute("DROP SCHEMA hr")
    error = refused(created, change)
    assert 'there is no schema "hr" here' in error.message
    assert error.hint.startswith('CREATE SCHEMA "hr"; or leave it out')
    created.admin.execute("CREATE SCHEMA hr; CREATE TYPE hr.mood AS ENUM ('so', 'la')")
    created.apply(change)
    created.assert_equal("jobs")


def test_session_is_as_before_behind_a_creation(created: CreatedPair) -> None:
    query = (
        "SELECT current_user, current_setting('role'), current_setting('lock_timeout'), current_setting('search_path')"
    )
    assert isinstance(created.session, PostgresSession)
    connection = created.session._transaction.connection
    before = connection.execute(query).fetchone()
    created.apply(created.created("jobs", JOBS))
    assert connection.execute(query).fetchone() == before


# --------------------------------------------------------------------------- equal to the source's


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE hr.jobs ()"],
        ["CREATE TABLE hr.jobs (id serial PRIMARY KEY, b bigserial, s smallserial)"],
        ["CREATE TABLE hr.jobs (id bigint GENERATED BY DEFAULT AS IDENTITY (INCREMENT -1 START -1))"],
        [
            "CREATE SEQUENCE hr.s START 5",
            "CREATE TABLE hr.jobs (id int PRIMARY KEY DEFAULT nextval('hr.s'))",
            "ALTER SEQUENCE hr.s OWNED BY hr.jobs.id",
        ],
        [
            "CREATE TABLE hr.jobs (id bigint GENERATED ALWAYS AS IDENTITY (START 5 INCREMENT -2 MINVALUE -9 MAXVALUE 7 CACHE 3 CYCLE),"
            " k smallint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, t text COLLATE \"C\" DEFAULT 'ü')"
        ],
        [
            "CREATE TABLE hr.jobs (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED NOT NULL, CHECK (g > id))"
        ],
        [
            "CREATE TABLE hr.jobs (a int, b text, c int4range, PRIMARY KEY (b, a) INCLUDE (c), UNIQUE (c) DEFERRABLE,"
            ' EXCLUDE USING gist (c WITH &&) WHERE (a > 0), CONSTRAINT "K q" CHECK (a > 0) NO INHERIT)',
        ],
        [
            "CREATE TABLE hr.people (id int PRIMARY KEY)",
            "CREATE TABLE hr.jobs (id int PRIMARY KEY REFERENCES hr.people)",
        ],
        [
            "CREATE TABLE hr.old (id serial PRIMARY KEY, t text UNIQUE)",
            "CREATE TABLE hr.jobs (LIKE hr.old INCLUDING ALL)",
        ],
        [
            'CREATE TABLE hr.jobs ("a.b" int, "c""d" numeric(5,2)[], "E" interval day to second(3), "\'" "char", b bit(3))'
        ],
    ],
    ids=lambda statements: statements[-1][:60],
)
def test_new_table_is_equal_to_the_sources(created: CreatedPair, statements: list[str]) -> None:
    if "hr.old" in statements[0]:  # its sequence is the old table's, and a default uses it
        created.admin.execute(statements[0].encode())
    (outcome,) = created.apply(created.created("jobs", *statements))
    assert outcome.kind is DdlOutcomeKind.APPLIED, outcome.reason
    created.assert_equal("jobs")
    assert ("hr.people is not at the destination" in outcome.reason) == ("REFERENCES" in statements[-1])


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("new tables", test=1, soak=4))
def test_random_tables_are_equal_to_the_sources(created: CreatedPair, seed: int) -> None:
    created.both(*TYPES_TO_MAKE)
    rng, count = random.Random(seed), 0
    for number in range(scaled(test=60, soak=300)):
        name = f"{rng.choice(NAMES)}{number}"
        for statement in random_table(rng, name, created.version):
            with contextlib.suppress(psycopg.Error):
                created.user.execute(statement.encode())
        if not created.number(name):
            continue  # the source refuses it
        (outcome,) = created.apply(created.created(name), scn=number + 1)
        assert outcome.kind is DdlOutcomeKind.APPLIED, outcome.reason
        created.assert_equal(name)
        (outcome,) = created.apply(created.dropped(name), scn=number + 1)
        assert outcome.kind is DdlOutcomeKind.APPLIED, outcome.reason
        assert created.records() == {}
        count += 1
    assert count > scaled(test=20, soak=100)


def test_sequence_that_is_there_is_not_taken(created: CreatedPair) -> None:
    change = created.created("jobs", "CREATE TABLE hr.jobs (id serial PRIMARY KEY)")
    created.admin.execute("CREATE SEQUENCE hr.jobs_id_seq")
    assert "already exists" in refused(created, change).message
    assert not created.exists("jobs")


def test_others_go_on_while_a_table_is_made(created: CreatedPair) -> None:
    """A session that is open has prepared statements; the DDL leaves them to it."""
    created.both("CREATE TABLE hr.people (id int PRIMARY KEY)")
    table = created.session.describe("hr", "people")
    assert table is not None
    for number in range(3):
        created.session.begin()
        created.session.write([insert(table, [(int4(number),)])])
        created.session.change_table(
            created.created(f"t{number}", f"CREATE TABLE hr.t{number} (id int)"), created.place()
        )
        people = created.session.describe("hr", "people")
        assert people is not None
        created.session.write([insert(people, [(int4(100 + number),)])])
        created.session.commit([], 0)
    assert row_of(created.admin.execute("SELECT count(*) FROM hr.people")) == (6,)


def test_session_of_another_server_waits_for_nobody(created: CreatedPair) -> None:
    """Nothing is locked that a table of others needs."""
    change = created.created("jobs", JOBS)
    created.admin.execute("CREATE TABLE hr.mine (id int)")
    created.session.begin()
    created.session.change_table(change, created.place())
    with closing(psycopg.connect(created.admin.info.dsn, password=created.admin.info.password)) as other:
        other.execute("SET lock_timeout = '1s'")
        other.execute("INSERT INTO hr.mine VALUES (1)")
        other.execute("CREATE TABLE hr.other (id int)")
        other.commit()
    created.session.commit([], 0)
    created.assert_equal("jobs")
