"""The plan of a PostgreSQL database is true: every object that it names is created, every lock that it names is taken."""

from __future__ import annotations

import re

import psycopg
import pytest

from headrace.databases.ports import PlannedApply, PlannedStatement
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.planning import plan_destination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.planning import plan_unseen_source
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.databases.statements import roll_back

pytestmark = pytest.mark.postgres

RULES = (RuleSet(include=(Rule(owner="public", name="t*"),)),)
APPLY = PlannedApply(name="apply_from_dbs1", source="dbs1", parallelism=2, tag=b"\x00")


def only_created(planned: tuple[PlannedStatement, ...]) -> list[PlannedStatement]:
    return [step for step in planned if step.statement.startswith(("CREATE ", "SELECT pg_replication_origin_create"))]


def test_destinations_plan_names_the_objects_that_prepare_creates(fresh_database, pg_destination):
    dsn = fresh_database(pg_destination)
    destination = PostgresDestination(dsn, site="dbs2")
    assert only_created(destination.plan("planned", (APPLY,))) == only_created(
        plan_destination(None, "planned", (APPLY,))
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = only_created(plan_destination(connection, "planned", (APPLY,)))
        assert before == only_created(plan_destination(None, "planned", (APPLY,)))
        assert not any(step.is_done for step in before)
        destination.prepare("planned")
        progress = destination.raise_epoch("planned", APPLY.name)
        for server in range(APPLY.parallelism):
            destination.open_session("planned", APPLY.name, server=server, epoch=progress.epoch, tag=APPLY.tag).close()
        after = only_created(plan_destination(connection, "planned", (APPLY,)))
        assert [step.statement for step in after] == [step.statement for step in before]
        assert all(step.is_done for step in after)
        named = {
            step.statement.split()[-1].removeprefix("headrace.")
            for step in before
            if step.statement.startswith("CREATE")
        }
        there = connection.execute(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'headrace'::regnamespace AND relkind IN ('r', 'v')"
        ).fetchall()
        assert {name for (name,) in there} <= named
        destination.remove("planned")
        assert connection.execute("SELECT pg_catalog.to_regnamespace('headrace') IS NULL").fetchone() == (True,)
        origins = "SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'headrace:planned/%'"
        assert connection.execute(origins).fetchone() == (0,)
        assert not any(step.is_done for step in only_created(plan_destination(connection, "planned", (APPLY,))))
    destination.close()


def test_removal_keeps_origins_of_unread_streams_and_users_objects(fresh_database, pg_source, monkeypatch):
    monkeypatch.setattr("headrace.databases.postgres.destination.records.removal._WAIT_S", 0.2)
    dsn = fresh_database(pg_source)
    destination, source = PostgresDestination(dsn, site="dbs2"), PostgresSource(dsn, site="dbs2")
    destination.prepare("planned")
    epoch = destination.raise_epoch("planned", APPLY.name).epoch
    destination.open_session("planned", APPLY.name, server=0, epoch=epoch, tag=APPLY.tag).close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t1 (id int PRIMARY KEY)")
        connection.execute("CREATE VIEW late_applies AS SELECT * FROM headrace.dba_apply_progress")
        source.prepare("another", RULES)
        connection.execute("INSERT INTO t1 VALUES (1)")
        told = "\n".join(destination.remove("planned"))
        assert "stays until headrace_another_dbs2" in told
        assert "the schema headrace stays: cannot drop" in told
        assert destination.progress("planned", APPLY.name) is None
        origins = "SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'headrace:planned/%'"
        assert connection.execute(origins).fetchone() == (1,)
        source.remove("another")
        connection.execute("DROP VIEW late_applies")
        monkeypatch.undo()
        assert "DROP SCHEMA headrace" in destination.remove("planned")
        assert connection.execute(origins).fetchone() == (0,)
    source.close()
    destination.close()


@pytest.fixture
def source(fresh_database, pg_source):
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t1 (id int PRIMARY KEY, a text); CREATE TABLE t2 (a text)")
        yield dsn, connection


def test_plan_of_a_source_that_does_not_exist_yet_equals_prepares_work(source):
    dsn, _ = source
    database = PostgresSource(dsn, site="dbs1")
    try:
        unseen = plan_unseen_source("planned", "dbs1", RULES, version=18)
        seen = database.plan("planned", RULES)
        assert [step.effect.replace("2 ", "") for step in seen] == [step.effect for step in unseen]
        assert [step.lock.replace("is running now", "is running then") for step in seen] == [
            step.lock for step in unseen
        ]
        for real, planned in zip(seen, unseen, strict=True):
            pattern = re.escape(planned.statement).replace(re.escape("<each table like public.t*>"), ".*")
            assert re.fullmatch(pattern, real.statement)
    finally:
        database.close()


def test_table_of_a_negative_rule_is_neither_published_nor_an_obstacle(source):
    dsn, connection = source
    without_t2 = (RuleSet(include=RULES[0].include, exclude=(Rule(owner="public", name="t2", tags=ANY_TAG),)),)
    database = PostgresSource(dsn, site="dbs1")
    try:
        assert any("t2" in finding.path for finding in database.preflight(RULES, streams=1) if finding.is_error)
        assert not any(finding.is_error for finding in database.preflight(without_t2, streams=1))
        database.prepare("planned", without_t2)
        published = connection.execute("SELECT tablename::text FROM pg_publication_tables").fetchall()
        assert published == [("t1",)]
        connection.execute("INSERT INTO t2 VALUES ('x'); DELETE FROM t2")
    finally:
        database.remove("planned")
        database.close()


def test_creating_the_publication_takes_only_the_lock_that_the_plan_names(source):
    dsn, connection = source
    database = PostgresSource(dsn, site="dbs1")
    try:
        statement = next(
            step for step in database.plan("planned", RULES) if step.statement.startswith("CREATE PUBLICATION")
        )
        assert statement.lock.startswith("SHARE UPDATE EXCLUSIVE on each table")
        with connection.transaction():
            connection.execute(statement.statement)
            modes = connection.execute(
                "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('t1'::regclass,"
                " 't2'::regclass)"
            ).fetchall()
            roll_back()
        assert modes == [("ShareUpdateExclusiveLock",)]
    finally:
        database.close()


def test_only_the_statements_that_the_plan_warns_of_fail(source):
    dsn, connection = source
    database = PostgresSource(dsn, site="dbs1")
    try:
        (publication,) = [step for step in database.plan("planned", RULES) if "PUBLICATION" in step.statement]
        assert [line.partition(":")[0] for line in publication.breaks] == ['UPDATE and DELETE on "public"."t2"'] or [
            line.partition(":")[0] for line in publication.breaks
        ] == ["UPDATE and DELETE on public.t2"]
        connection.execute(publication.statement)
        connection.execute(
            "INSERT INTO t1 VALUES (1); UPDATE t1 SET a = 'x'; DELETE FROM t1; INSERT INTO t2 VALUES ('x')"
        )
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            connection.execute("UPDATE t2 SET a = 'y'")
    finally:
        database.close()


def test_copy_of_a_table_takes_access_share_alone(source):
    _, connection = source
    with connection.transaction():
        with connection.cursor().copy(
            "COPY (SELECT * FROM t1 WHERE ctid >= '(0,1)') TO STDOUT (FORMAT binary)"
        ) as copy:
            list(copy)
        modes = connection.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 't1'::regclass"
        ).fetchall()
    assert modes == [("AccessShareLock",)]


@pytest.mark.parametrize(
    ("statement", "mode"),
    [
        ("COPY t1 FROM STDIN", "RowExclusiveLock"),
        ("INSERT INTO t1 VALUES (1)", "RowExclusiveLock"),
        ("UPDATE t1 SET a = 'x'", "RowExclusiveLock"),
        ("DELETE FROM t1", "RowExclusiveLock"),
        ("TRUNCATE t1", "AccessExclusiveLock"),
    ],
)
def test_applys_writes_take_the_lock_that_the_plan_names(source, statement, mode):
    _, connection = source
    with connection.transaction():
        if statement.startswith("COPY"):
            with connection.cursor().copy(statement):
                pass
        else:
            connection.execute(statement)
        modes = connection.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 't1'::regclass"
        ).fetchall()
    assert (mode,) in modes
