"""CREATE INDEX CONCURRENTLY at a destination: recorded with the data, and made by a job outside its transactions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.base.errors import DatabaseUnavailable, DataError, FencedError
from headrace.databases.ports import DDL_REFUSED, DdlJob, DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.ddl import DdlChange
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.destination_contract import APPLY, TOPOLOGY
from tests.support.values.hostile_names import HOSTILE

pytestmark = [pytest.mark.postgres]

WAIT_S = 30.0


@pytest.fixture
def pair(created: CreatedPair) -> CreatedPair:
    created.both("CREATE TABLE hr.jobs (id integer PRIMARY KEY, title text)", "INSERT INTO hr.jobs VALUES (1, 'one')")
    return created


def concurrently(pair: CreatedPair, statement: str = "CREATE INDEX CONCURRENTLY i ON hr.jobs (title)") -> DdlChange:
    return pair.altered("jobs", statement, tag="CREATE INDEX")


def scheduled(pair: CreatedPair, statement: str = "CREATE INDEX CONCURRENTLY i ON hr.jobs (title)") -> DdlJob:
    (outcome,) = pair.apply(concurrently(pair, statement))
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.SCHEDULED, ())
    return jobs(pair)[-1]


def jobs(pair: CreatedPair) -> tuple[DdlJob, ...]:
    return pair.destination.ddl_jobs(TOPOLOGY, APPLY)


def run(pair: CreatedPair, *, should_end: Callable[[], bool] = lambda: False, epoch: int = 0) -> tuple[DdlJob, ...]:
    """Make one attempt at each job; return what is left of them."""
    for job in jobs(pair):
        pair.destination.run_ddl_job(TOPOLOGY, APPLY, epoch or pair.epoch, job.number, should_end=should_end)
    return jobs(pair)


def history(pair: CreatedPair) -> list[tuple[Any, ...]]:
    rows = pair.admin.execute("SELECT outcome, statements, reason FROM headrace.dba_apply_ddl ORDER BY ddl_number")
    return [(outcome, *statements, *filter(None, [reason])) for outcome, statements, reason in rows]


def printed(job: DdlJob, words: str) -> str:
    """Return the statement in a job's fix that begins with these words."""
    assert words in job.fix, job.fix
    return words + job.fix.split(words, 1)[1].partition(";")[0]


@contextlib.contextmanager
def running(pair: CreatedPair, dsn: str) -> Iterator[Callable[[], None]]:
    """Keep the first job running: a transaction that writes the table holds it up. Yield what lets it end."""
    user = psycopg.connect(dsn)
    user.execute("INSERT INTO hr.jobs VALUES (100, 'held')")
    destination = PostgresDestination(dsn, site="b")
    number = jobs(pair)[0].number
    thread = threading.Thread(
        target=lambda: destination.run_ddl_job(TOPOLOGY, APPLY, pair.epoch, number, should_end=lambda: False)
    )
    thread.start()

    def go_on() -> None:
        user.rollback()
        thread.join(WAIT_S)
        assert not thread.is_alive()

    try:
        wait_for(
            "an index that is being made",
            lambda: pair.admin.execute("SELECT FROM pg_stat_progress_create_index").fetchone() is not None,
            WAIT_S,
        )
        yield go_on
    finally:
        go_on()
        user.close()
        destination.close()


@pytest.fixture
def dsn(pair: CreatedPair) -> str:
    return pair.destination_dsn


# ---------------------------------------------------------------------- made


def test_index_is_made_outside_the_transaction_and_recorded(pair: CreatedPair) -> None:
    job = scheduled(pair)
    assert (job.owner, job.name, job.index, job.state, job.problem) == ("hr", "jobs", "i", "WAITING", "")
    assert not pair.exists("i")
    assert history(pair)[0][0] == "SCHEDULED"
    assert run(pair) == ()
    pair.assert_equal("jobs")
    statement = "CREATE INDEX CONCURRENTLY i ON hr.jobs USING btree (title)"
    assert history(pair) == [("APPLIED", statement)]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_made(created: CreatedPair, name: str) -> None:
    quoted = quote(name)
    created.both(f"CREATE TABLE hr.{quoted} ({quoted} text)")
    index = quote(f"{name[:20]}i")
    change = created.altered(name, f"CREATE INDEX CONCURRENTLY {index} ON hr.{quoted} ({quoted})", tag="CREATE INDEX")
    assert created.apply(change)[0].kind is DdlOutcomeKind.SCHEDULED
    assert run(created) == ()
    created.assert_equal(name)


def test_rows_go_on_while_it_is_made_and_so_do_further_indexes(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    with running(pair, dsn):
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("SET lock_timeout = '2s'")
            other.execute("INSERT INTO hr.jobs VALUES (2, 'two'); UPDATE hr.jobs SET title = 'x' WHERE id = 1")
        assert [job.state for job in jobs(pair)] == ["RUNNING"]
        scheduled(pair, "CREATE INDEX CONCURRENTLY j ON hr.jobs (title, id)")
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_unique_index_is_made_at_its_place(pair: CreatedPair) -> None:
    (outcome,) = pair.apply(concurrently(pair, "CREATE UNIQUE INDEX CONCURRENTLY i ON hr.jobs (title)"))
    assert (outcome.kind, jobs(pair)) == (DdlOutcomeKind.APPLIED, ())
    pair.assert_equal("jobs")


def test_index_is_dropped_in_the_transaction(pair: CreatedPair) -> None:
    pair.both("CREATE INDEX i ON hr.jobs (title)")
    (outcome,) = pair.apply(pair.altered("jobs", "DROP INDEX CONCURRENTLY hr.i", tag="DROP INDEX"))
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.APPLIED, ('DROP INDEX "hr"."i"',))
    pair.assert_equal("jobs")


def test_index_that_an_operator_made_is_passed_over(pair: CreatedPair) -> None:
    pair.admin.execute("CREATE INDEX i ON hr.jobs (title)")
    assert pair.apply(concurrently(pair))[0].kind is DdlOutcomeKind.PASSED_OVER
    scheduled(pair, "CREATE INDEX CONCURRENTLY j ON hr.jobs (title)")
    pair.admin.execute("CREATE INDEX j ON hr.jobs (title)")
    assert run(pair) == ()
    assert [each[0] for each in history(pair)] == ["PASSED OVER", "PASSED OVER"]


def test_name_of_another_object_refuses_the_change(pair: CreatedPair) -> None:
    pair.admin.execute("CREATE VIEW hr.i AS SELECT 1 AS one")
    change = concurrently(pair)
    with pytest.raises(DataError, match="exists already") as caught:
        pair.apply(change)
    assert DDL_REFUSED in caught.value.context
    assert jobs(pair) == ()
    pair.admin.execute("DROP VIEW hr.i")
    assert pair.apply(change)[0].kind is DdlOutcomeKind.SCHEDULED


def test_transaction_that_is_rolled_back_schedules_nothing(pair: CreatedPair) -> None:
    change = concurrently(pair)
    pair.session.begin()
    pair.session.change_table(change, pair.place())
    pair.session.rollback()
    assert jobs(pair) == ()
    assert pair.apply(change)[0].kind is DdlOutcomeKind.SCHEDULED


# ---------------------------------------------------------------------- killed


def test_attempt_that_was_broken_off_is_cleared_away_and_repeated(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    with psycopg.connect(dsn) as user:
        user.execute("INSERT INTO hr.jobs VALUES (100, 'held')")
        run(pair, should_end=lambda: pair.exists("i"))
        assert [(job.state, job.attempts) for job in jobs(pair)] == [("RUNNING", 1)]
        user.rollback()
    assert pair.at_destination("jobs") is not None
    assert pair.exists("i"), "invalid"
    assert run(pair) == ()
    pair.assert_equal("jobs")
    assert history(pair)[0][:2] == ("APPLIED", 'DROP INDEX CONCURRENTLY "hr"."i"')


def test_next_driver_ends_the_attempt_of_the_one_before(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    epoch = pair.epoch
    with running(pair, dsn):
        pair.session.close()
        pair.epoch = pair.destination.raise_epoch(TOPOLOGY, APPLY).epoch
        pair.session = pair.open()
        assert pair.admin.execute("SELECT FROM pg_stat_progress_create_index").fetchone() is None
    assert [(job.state, job.problem) for job in jobs(pair)] == [("RUNNING", "")], "the older driver wrote nothing"
    with pytest.raises(FencedError):
        run(pair, epoch=epoch)
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_index_that_was_made_and_not_recorded_counts_as_made(pair: CreatedPair) -> None:
    job = scheduled(pair)
    pair.admin.execute("UPDATE headrace.ddl_job SET state = 'RUNNING', attempts = 1 WHERE number = %s", (job.number,))
    pair.admin.execute("CREATE INDEX i ON hr.jobs (title)")
    assert run(pair) == ()
    assert history(pair) == [("APPLIED", "CREATE INDEX CONCURRENTLY i ON hr.jobs USING btree (title)")]


# ---------------------------------------------------------------------- failed


def test_failed_index_leaves_nothing_and_is_made_when_the_cause_is_repaired(pair: CreatedPair) -> None:
    pair.both("ALTER TABLE hr.jobs ADD n integer NOT NULL DEFAULT 1")
    pair.admin.execute("UPDATE hr.jobs SET n = 0")
    scheduled(pair, "CREATE INDEX CONCURRENTLY i ON hr.jobs ((1 / n))")
    (job,) = run(pair)
    assert (job.state, job.attempts) == ("FAILED", 1)
    assert "division by zero" in job.problem
    assert not pair.exists("i")
    pair.admin.execute("UPDATE hr.jobs SET n = 1")
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_index_is_left_out_by_the_printed_statement(pair: CreatedPair) -> None:
    scheduled(pair)
    pair.admin.execute("CREATE INDEX i ON hr.jobs (id)")
    (job,) = run(pair)
    assert "another one here" in job.problem
    pair.admin.execute(printed(job, "INSERT INTO headrace.ddl_skip").encode())
    assert run(pair) == ()
    assert history(pair) == [("SKIPPED", "headrace.ddl_skip named it")]
    assert pair.admin.execute("SELECT FROM headrace.ddl_skip").fetchall() == []
    assert pair.exists("i")


@pytest.mark.parametrize("invalid", [False, True])
def test_other_index_of_the_name_is_dropped_by_the_printed_statement(pair: CreatedPair, *, invalid: bool) -> None:
    scheduled(pair)
    pair.admin.execute("CREATE INDEX i ON hr.jobs (id)")
    if invalid:
        pair.admin.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'hr.i'::regclass")
    (job,) = run(pair)
    pair.admin.execute(printed(job, "DROP INDEX").encode())
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_invalid_index_that_another_session_is_making_is_not_dropped(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    with psycopg.connect(dsn) as user:
        user.execute("INSERT INTO hr.jobs VALUES (100, 'held')")
        with psycopg.connect(dsn, autocommit=True) as operator:
            thread = threading.Thread(target=lambda: operator.execute("CREATE INDEX CONCURRENTLY i ON hr.jobs (title)"))
            thread.start()
            wait_for("the operator's index", lambda: pair.exists("i"), WAIT_S)
            (job,) = run(pair)
            assert "works on table hr.jobs" in job.problem
            user.rollback()
            thread.join(WAIT_S)
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_table_that_is_gone_is_named(pair: CreatedPair) -> None:
    scheduled(pair)
    pair.admin.execute("ALTER TABLE hr.jobs RENAME TO other")
    (job,) = run(pair)
    assert "no table hr.jobs" in job.problem
    assert job.fix.startswith("give the original table its name hr.jobs again; or leave it out: ")
    pair.admin.execute("ALTER TABLE hr.other RENAME TO jobs")
    assert run(pair) == ()


ROLE, OWNER = "headrace_test_indexing", "headrace_test_indexed"


@pytest.fixture
def roles(pair: CreatedPair) -> Iterator[str]:
    """Make an applying role, and an owner of the table; return the applying role's dsn."""
    right = "SET ON PARAMETER session_replication_role"
    for statement in (
        f"DROP ROLE IF EXISTS {ROLE}",
        f"DROP ROLE IF EXISTS {OWNER}",
        f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'",
        f"CREATE ROLE {OWNER}",
        f"GRANT USAGE ON SCHEMA headrace, hr TO {ROLE}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headrace TO {ROLE}",
        f"GRANT {right} TO {ROLE}",
        f"ALTER TABLE hr.jobs OWNER TO {OWNER}",
        f"GRANT SELECT ON hr.jobs TO {ROLE}",
    ):
        pair.admin.execute(statement.encode())
    yield conninfo.make_conninfo(pair.destination_dsn, user=ROLE, password="secret")
    pair.admin.execute(f"REVOKE {right} FROM {ROLE}".encode())
    pair.admin.execute(f"DROP OWNED BY {OWNER}, {ROLE}; DROP ROLE {ROLE}, {OWNER}".encode())


def test_owner_makes_it_and_what_is_lacking_is_printed(pair: CreatedPair, roles: str) -> None:
    change = concurrently(pair)
    pair.admin.execute(f"GRANT ALL ON SCHEMA hr TO {OWNER}")
    assert pair.apply(change)[0].kind is DdlOutcomeKind.SCHEDULED
    pair.admin.execute(f"REVOKE ALL ON SCHEMA hr FROM {OWNER}")
    pair.session.close()
    pair.destination.close()
    pair.destination = PostgresDestination(roles, site="b")
    pair.epoch = pair.destination.raise_epoch(TOPOLOGY, APPLY).epoch
    (job,) = run(pair)
    assert f"cannot take the role '{OWNER}'" in job.problem
    pair.admin.execute(printed(job, "GRANT").encode())
    (job,) = run(pair)
    assert "permission denied for schema hr" in job.problem
    pair.admin.execute(f"GRANT ALL ON SCHEMA hr TO {OWNER}")
    assert run(pair) == ()
    pair.assert_equal("jobs")


# ---------------------------------------------------------------------- later changes of the table


def test_later_change_waits_while_it_is_made(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    change = pair.altered("jobs", "ALTER TABLE hr.jobs RENAME title TO name")
    with running(pair, dsn), pytest.raises(DatabaseUnavailable, match='waits until index "i"'):
        pair.apply(change, scn=150)
    assert jobs(pair) == ()
    assert pair.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED
    pair.assert_equal("jobs")


@pytest.mark.parametrize(
    ("statement", "tag", "outcome"),
    [
        ("ALTER TABLE hr.jobs RENAME title TO name", "ALTER TABLE", DdlOutcomeKind.APPLIED),
        ("ALTER TABLE hr.jobs ALTER title TYPE varchar", "ALTER TABLE", DdlOutcomeKind.APPLIED),
        ("ALTER TABLE hr.jobs ADD more integer", "ALTER TABLE", DdlOutcomeKind.APPLIED),
        ("ALTER INDEX hr.i RENAME TO j", "ALTER INDEX", DdlOutcomeKind.PASSED_OVER),
        ("ALTER INDEX hr.i SET (fillfactor = 50)", "ALTER INDEX", DdlOutcomeKind.PASSED_OVER),
        ("ALTER TABLE hr.jobs DROP title", "ALTER TABLE", DdlOutcomeKind.APPLIED),
        ("DROP INDEX hr.i", "DROP INDEX", DdlOutcomeKind.PASSED_OVER),
        ("DROP INDEX CONCURRENTLY hr.i", "DROP INDEX", DdlOutcomeKind.PASSED_OVER),
    ],
)
def test_job_follows_a_later_change(pair: CreatedPair, statement: str, tag: str, outcome: DdlOutcomeKind) -> None:
    scheduled(pair)
    (found,) = pair.apply(pair.altered("jobs", statement, tag=tag), scn=150)
    assert found.kind is outcome, found
    assert run(pair) == ()
    pair.assert_equal("jobs")
    is_dropped = "DROP" in statement
    assert history(pair)[0][0] == ("NOT APPLIED" if is_dropped else "APPLIED")


def test_unique_constraint_over_an_index_replaces_its_job(pair: CreatedPair) -> None:
    """The usual way to get a constraint without a long lock."""
    pair.both("ALTER TABLE hr.jobs ALTER title SET NOT NULL")
    assert pair.apply(concurrently(pair, "CREATE UNIQUE INDEX CONCURRENTLY i ON hr.jobs (title)"))
    change = pair.altered("jobs", "ALTER TABLE hr.jobs ADD CONSTRAINT i UNIQUE USING INDEX i")
    assert pair.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED
    pair.assert_equal("jobs")


def test_what_a_killed_attempt_left_goes_with_the_dropped_index(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    with psycopg.connect(dsn) as user:
        user.execute("INSERT INTO hr.jobs VALUES (100, 'held')")
        run(pair, should_end=lambda: pair.exists("i"))
        user.rollback()
    assert pair.exists("i")
    assert pair.apply(pair.altered("jobs", "DROP INDEX hr.i", tag="DROP INDEX"), scn=150)
    assert run(pair) == ()
    assert not pair.exists("i")
    outcomes: list[DdlOutcome] = pair.apply(concurrently(pair), scn=151)
    assert [each.kind for each in outcomes] == [DdlOutcomeKind.SCHEDULED]


def broken_off(pair: CreatedPair, dsn: str) -> None:
    """Break an attempt off; it leaves an invalid index."""
    with psycopg.connect(dsn) as user:
        user.execute("INSERT INTO hr.jobs VALUES (100, 'held')")
        run(pair, should_end=lambda: pair.exists("i"))
        user.rollback()
    assert pair.exists("i")


def indexes(pair: CreatedPair) -> list[tuple[str, bool]]:
    """Return the names of the table's indexes here, and whether they are valid."""
    query = """SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = 'hr.jobs'::regclass ORDER BY 1"""
    return pair.admin.execute(query).fetchall()


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("ALTER INDEX hr.i RENAME TO j", ["j", "jobs_pkey"]),
        ("DROP INDEX hr.i; CREATE INDEX i ON hr.jobs (title, id)", ["i", "jobs_pkey"]),
        ("DROP INDEX hr.i; CREATE UNIQUE INDEX i ON hr.jobs (title)", ["i", "jobs_pkey"]),
        ("ALTER INDEX hr.i SET (fillfactor = 50)", ["i", "jobs_pkey"]),
        ("ALTER TABLE hr.jobs RENAME title TO name", ["i", "jobs_pkey"]),
        ("ALTER TABLE hr.jobs ALTER title TYPE varchar", ["i", "jobs_pkey"]),
        ("ALTER TABLE hr.jobs DROP title", ["jobs_pkey"]),
    ],
)
def test_what_a_killed_attempt_left_goes_with_a_change_of_its_index(
    pair: CreatedPair, dsn: str, statement: str, names: list[str]
) -> None:
    scheduled(pair)
    broken_off(pair, dsn)
    tag = "ALTER TABLE" if "TABLE" in statement else "ALTER INDEX"
    pair.apply(pair.altered("jobs", statement, tag="CREATE INDEX" if "CREATE" in statement else tag), scn=150)
    assert run(pair) == ()
    assert indexes(pair) == [(name, True) for name in names]
    pair.assert_equal("jobs")


def test_name_of_a_dropped_index_is_free_at_once(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    broken_off(pair, dsn)
    dropped = pair.altered("jobs", "DROP INDEX hr.i", tag="DROP INDEX")
    created = pair.altered("jobs", "CREATE INDEX i ON hr.jobs (id, title)", tag="CREATE INDEX")
    assert [each.kind for each in pair.apply(dropped, created, scn=150)][1:] == [DdlOutcomeKind.APPLIED]
    assert run(pair) == ()
    pair.assert_equal("jobs")


@pytest.mark.parametrize("how", ["valid", "another", "not begun"])
def test_index_that_is_not_ours_stays_when_its_job_gets_another_name(pair: CreatedPair, dsn: str, how: str) -> None:
    scheduled(pair)
    if how != "not begun":
        broken_off(pair, dsn)
        pair.admin.execute("DROP INDEX hr.i")
    pair.admin.execute(f"CREATE INDEX i ON hr.jobs ({'id' if how == 'another' else 'title'})".encode())
    if how != "valid":
        pair.admin.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'hr.i'::regclass")
    pair.apply(pair.altered("jobs", "ALTER INDEX hr.i RENAME TO j", tag="ALTER INDEX"), scn=150)
    assert run(pair) == ()
    assert pair.exists("i") == (how != "valid")  # a valid one of that definition is renamed, as any that was made early
    assert pair.exists("j")


@pytest.mark.usefixtures("roles")
def test_what_a_killed_attempt_left_goes_as_its_owner(pair: CreatedPair, dsn: str) -> None:
    pair.admin.execute(f"GRANT ALL ON SCHEMA hr TO {OWNER}".encode())
    scheduled(pair)
    broken_off(pair, dsn)
    change = pair.altered("jobs", "ALTER INDEX hr.i RENAME TO j", tag="ALTER INDEX")
    pair.admin.execute(f"REVOKE ALL ON hr.jobs FROM {OWNER}".encode())
    with pytest.raises(DataError, match="permission denied for table jobs"):
        pair.apply(change, scn=150)
    pair.admin.execute(f"GRANT ALL ON hr.jobs TO {OWNER}".encode())
    pair.apply(change, scn=150)
    assert not pair.exists("i")
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_unique_index_that_comes_along_is_made_at_its_place(pair: CreatedPair) -> None:
    """It failed at the source, and REINDEX repaired it, which nobody recorded."""
    pair.admin.execute("CREATE INDEX i ON hr.jobs (title)")
    statements = "CREATE UNIQUE INDEX u ON hr.jobs (title); CREATE INDEX i ON hr.jobs (title)"
    query = "CREATE INDEX CONCURRENTLY i ON hr.jobs (title)"
    (outcome,) = pair.apply(pair.altered("jobs", statements, tag="CREATE INDEX", query=query))
    assert (outcome.kind, jobs(pair)) == (DdlOutcomeKind.APPLIED, ())
    pair.assert_equal("jobs")


def test_change_that_comes_along_with_an_index_waits_and_is_followed(pair: CreatedPair, dsn: str) -> None:
    scheduled(pair)
    statements = "ALTER TABLE hr.jobs RENAME title TO name; CREATE INDEX j ON hr.jobs (name, id)"
    query = "CREATE INDEX CONCURRENTLY j ON hr.jobs (name, id)"
    change = pair.altered("jobs", statements, tag="CREATE INDEX", query=query)
    with running(pair, dsn), pytest.raises(DatabaseUnavailable, match='waits until index "i"'):
        pair.apply(change, scn=150)
    assert pair.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED
    assert run(pair) == ()
    pair.assert_equal("jobs")


def test_dropped_table_takes_its_jobs_along(created: CreatedPair) -> None:
    assert created.apply(created.created("jobs", "CREATE TABLE hr.jobs (id integer PRIMARY KEY, title text)"))
    change = created.altered("jobs", "CREATE INDEX CONCURRENTLY i ON hr.jobs (title)", tag="CREATE INDEX")
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.SCHEDULED
    assert created.apply(created.dropped("jobs"), scn=151)[0].kind is DdlOutcomeKind.APPLIED
    assert run(created) == ()
    assert history(created)[1][0] == "NOT APPLIED"
