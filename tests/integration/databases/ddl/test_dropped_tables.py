"""Dropped tables at a destination: only the table that was copied or made goes, and nothing that others need."""

from __future__ import annotations

import itertools
import json
from contextlib import closing

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable, DataError, UnfitTableError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.lcr.ddl import ddl_of
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.destination_contract import APPLY, TOPOLOGY
from tests.support.values.writes import insert, int4

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text)"
PEOPLE = "CREATE TABLE hr.people (id int PRIMARY KEY, job int CONSTRAINT works REFERENCES hr.jobs)"
NOT_COPIED = "the destination's table of that name is not the one that was copied"


def made(pair: CreatedPair, name: str, statement: str) -> None:
    """Make a table at both."""
    assert pair.apply(pair.created(name, statement))[0].kind is DdlOutcomeKind.APPLIED


def test_table_and_its_records_go_together(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute("INSERT INTO hr.jobs VALUES (1, 'one')")
    created.admin.execute(
        "INSERT INTO headrace.row_mark (topology, apply, source, identity, mark)"
        " SELECT topology, apply, source, identity, '{}' FROM headrace.instantiation"
    )
    change = created.dropped("jobs")
    created.session.begin()
    created.session.change_table(change, created.place())
    created.session.rollback()
    assert created.exists("jobs")
    assert len(created.records()) == 1
    (outcome,) = created.apply(change)
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.APPLIED, ('DROP TABLE "hr"."jobs"',))
    assert not created.exists("jobs")
    assert created.records() == {}
    assert created.admin.execute("SELECT FROM headrace.row_mark").fetchall() == []


def test_what_was_before_need_not_be_known_or_equal(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute("ALTER TABLE hr.jobs ADD mine text, DROP title")
    (outcome,) = created.apply(created.dropped("jobs", is_known=False))
    assert outcome.kind is DdlOutcomeKind.APPLIED


@pytest.mark.parametrize("state", ["COPIED", "KEPT", "FAILED", "COPYING"])
def test_copied_table_is_dropped_like_one_that_was_made(created: CreatedPair, state: str) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute("UPDATE headrace.instantiation SET state = %s, digest = ''", (state,))
    assert created.apply(created.dropped("jobs"))[0].kind is DdlOutcomeKind.APPLIED
    assert created.records() == {}


def test_record_with_names_alone_is_enough(created: CreatedPair) -> None:
    """As of a transaction that is SERIALIZABLE."""
    made(created, "jobs", JOBS)
    full = created.dropped("jobs", is_known=False)
    record = json.loads(full.content)
    record["before"] |= {"role": "", "columns": [], "constraints": [], "indexes": []}
    change = ddl_of(json.dumps(record).encode())
    assert change is not None
    assert change.drops
    assert created.apply(change)[0].statements == ('DROP TABLE "hr"."jobs"',)
    assert created.records() == {}


def test_table_that_is_missing_is_passed_over_and_its_record_goes(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    made(created, "people", PEOPLE)
    created.admin.execute("DROP TABLE hr.jobs CASCADE")
    (outcome,) = created.apply(created.dropped("jobs", "DROP TABLE hr.jobs CASCADE"))
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.PASSED_OVER, ())
    assert [each.name for each in created.records().values()] == ["people"]


def test_table_that_has_another_name_here_stays(created: CreatedPair) -> None:
    """The source's RENAME was not replicated."""
    made(created, "jobs", JOBS)
    created.user.execute("ALTER TABLE hr.jobs RENAME TO tasks")
    (outcome,) = created.apply(created.dropped("tasks"))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert outcome.reason == "the table is called hr.jobs here: drop it by hand if nobody needs it"
    assert created.exists("jobs")
    assert len(created.records()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM headrace.instantiation",
        "UPDATE headrace.instantiation SET apply = 'apply_from_c'",
        "UPDATE headrace.instantiation SET topology = 'x'",
        "UPDATE headrace.instantiation SET source = 'c'",
        "UPDATE headrace.instantiation SET state = 'LEFT'",
        "UPDATE headrace.instantiation SET recorded_in = 1",
        "UPDATE headrace.instantiation SET identity = '1.2.3.7'",
        "DROP TABLE hr.jobs; CREATE TABLE hr.jobs (id int)",
        "DROP TABLE hr.jobs; CREATE VIEW hr.jobs AS SELECT 1 AS id",
        "ALTER TABLE hr.jobs RENAME TO other; CREATE TABLE hr.jobs (id int)",
    ],
)
def test_another_table_of_that_name_stays(created: CreatedPair, statement: str) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute(statement.encode())
    before = created.records()
    (outcome,) = created.apply(created.dropped("jobs"))
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, NOT_COPIED)
    assert created.exists("jobs")
    assert created.records() == before


def test_old_drop_never_drops_a_later_table_of_that_name(created: CreatedPair) -> None:
    """As when an operator executes an old error transaction."""
    made(created, "jobs", JOBS)
    old = created.dropped("jobs")
    created.admin.execute("DROP TABLE hr.jobs")
    made(created, "jobs", JOBS)
    assert created.apply(old, is_in_order=False)[0].reason == NOT_COPIED
    assert created.exists("jobs")


@pytest.mark.parametrize(("topology", "apply", "source"), [("x", APPLY, "a"), (TOPOLOGY, APPLY, "c")])
def test_table_with_rows_of_another_source_stays(created: CreatedPair, topology: str, apply: str, source: str) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute("CREATE TEMPORARY TABLE copied AS SELECT * FROM headrace.instantiation")
    created.admin.execute("UPDATE copied SET topology = %s, apply = %s, source = %s", (topology, apply, source))
    created.admin.execute("INSERT INTO headrace.instantiation SELECT * FROM copied")
    (outcome,) = created.apply(created.dropped("jobs"))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert f"apply process {apply} of topology {topology}" in outcome.reason
    assert created.exists("jobs")


def test_partitioned_tables_and_parents_are_not_dropped(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute("CREATE TABLE hr.child () INHERITS (hr.jobs)")
    (outcome,) = created.apply(created.dropped("jobs"))
    assert (outcome.kind, "at the destination" in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)
    created.user.execute("CREATE TABLE hr.parted (id int) PARTITION BY HASH (id)")
    (outcome,) = created.apply(created.dropped("parted"))
    assert (outcome.kind, "partitioned" in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)


# --------------------------------------------------------------------------- what depends on it


def test_foreign_keys_of_tables_of_the_same_source_go_along(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    made(created, "people", PEOPLE)
    created.admin.execute("ALTER TABLE hr.jobs ADD boss int REFERENCES hr.jobs")
    (outcome,) = created.apply(created.dropped("jobs", "DROP TABLE hr.jobs CASCADE"))
    assert outcome.statements == (
        'ALTER TABLE ONLY "hr"."people" DROP CONSTRAINT "works"',
        'DROP TABLE "hr"."jobs"',
    )
    created.assert_equal("people")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE VIEW hr.v AS SELECT id FROM hr.jobs", "view hr.v depends on table hr.jobs"),
        ("CREATE TABLE hr.mine (job int REFERENCES hr.jobs)", "constraint mine_job_fkey on table hr.mine depends"),
    ],
)
def test_what_only_the_destination_has_refuses(created: CreatedPair, statement: str, named: str) -> None:
    made(created, "jobs", JOBS)
    created.admin.execute(statement.encode())
    change = created.dropped("jobs")
    with pytest.raises(DataError) as caught:
        created.apply(change)
    assert caught.value.context.get(DDL_REFUSED) == 1
    assert caught.value.message.startswith(f"DROP TABLE of table hr.jobs: it is needed here: {named}")
    assert "drop what depends on it" in caught.value.hint
    assert created.exists("jobs")
    created.admin.execute("DROP VIEW IF EXISTS hr.v; DROP TABLE IF EXISTS hr.mine")
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


@pytest.mark.parametrize("order", list(itertools.permutations(["jobs", "people"])))
def test_dropped_schema_takes_its_tables_in_any_order(created: CreatedPair, order: tuple[str, ...]) -> None:
    made(created, "jobs", JOBS)
    made(created, "people", PEOPLE)
    changes = {name: created.dropped(name, "SELECT 1", tag="DROP SCHEMA") for name in order}
    created.user.execute("DROP SCHEMA hr CASCADE")
    outcomes = created.apply(*(changes[name] for name in order))
    assert [each.kind for each in outcomes] == [DdlOutcomeKind.APPLIED] * 2
    assert not created.exists("jobs")
    assert not created.exists("people")
    assert created.records() == {}


SERIAL = "CREATE TABLE hr.jobs (id serial PRIMARY KEY)"
LIKE_IT = "CREATE TABLE hr.people (LIKE hr.jobs INCLUDING ALL)"
LIKE_THEM = "CREATE TABLE hr.third (LIKE hr.jobs INCLUDING ALL)"
PASSED_ON = 'ALTER SEQUENCE "hr"."jobs_id_seq" OWNED BY "hr"."{}"."id"'


def sequences(pair: CreatedPair) -> list[tuple[str]]:
    """Return the destination's sequences of hr."""
    return pair.admin.execute("SELECT sequencename::text FROM pg_sequences WHERE schemaname = 'hr'").fetchall()


@pytest.mark.parametrize("order", list(itertools.permutations(["jobs", "people", "third"])))
def test_tables_that_share_a_sequence_go_in_any_order(created: CreatedPair, order: tuple[str, ...]) -> None:
    for name, statement in (("jobs", SERIAL), ("people", LIKE_IT), ("third", LIKE_THEM)):
        made(created, name, statement)
    changes = {name: created.dropped(name, "SELECT 1") for name in order}
    created.user.execute("DROP TABLE hr.jobs, hr.people, hr.third")
    outcomes = created.apply(*(changes[name] for name in order))
    assert [each.kind for each in outcomes] == [DdlOutcomeKind.APPLIED] * 3
    assert not any(created.exists(name) for name in order)
    assert sequences(created) == []
    assert created.records() == {}


def test_tables_that_use_each_others_sequences_go(created: CreatedPair) -> None:
    made(created, "jobs", SERIAL)
    made(created, "people", "CREATE TABLE hr.people (id serial PRIMARY KEY)")
    created.both(
        "ALTER TABLE hr.jobs ALTER id SET DEFAULT nextval('hr.people_id_seq')",
        "ALTER TABLE hr.people ALTER id SET DEFAULT nextval('hr.jobs_id_seq')",
    )
    changes = [created.dropped(name, "SELECT 1") for name in ("jobs", "people")]
    assert [each.kind for each in created.apply(*changes)] == [DdlOutcomeKind.APPLIED] * 2
    assert sequences(created) == []


def test_sequence_that_the_source_gave_to_another_table_stays_with_it(created: CreatedPair) -> None:
    made(created, "jobs", SERIAL)
    made(created, "people", LIKE_IT)
    created.user.execute("ALTER SEQUENCE hr.jobs_id_seq OWNED BY hr.people.id")
    (outcome,) = created.apply(created.dropped("jobs"))
    assert outcome.statements == (PASSED_ON.format("people"), 'DROP TABLE "hr"."jobs"')
    created.assert_equal("people")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE hr.mine (id int DEFAULT nextval('hr.jobs_id_seq'))",  # the destination's own
        "ALTER TABLE hr.people OWNER TO pg_monitor",
        "ALTER TABLE hr.people SET SCHEMA public",
    ],
)
def test_sequence_that_cannot_pass_on_refuses_and_has_a_way_out(created: CreatedPair, statement: str) -> None:
    made(created, "jobs", SERIAL)
    if "people" in statement:
        made(created, "people", LIKE_IT)
    created.admin.execute(statement.encode())
    change = created.dropped("jobs", "DROP TABLE hr.jobs CASCADE")
    with pytest.raises(DataError, match=r"depends on sequence hr\.jobs_id_seq") as caught:
        created.apply(change)
    assert "ALTER SEQUENCE ... OWNED BY NONE" in caught.value.hint
    created.admin.execute("ALTER SEQUENCE hr.jobs_id_seq OWNED BY NONE")
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED
    assert sequences(created) == [("jobs_id_seq",)]


# --------------------------------------------------------------------------- around it


def test_made_written_and_dropped_in_one_transaction(created: CreatedPair) -> None:
    first = created.created("jobs", JOBS)
    gone = created.dropped("jobs")
    second = created.created("jobs", "CREATE TABLE hr.jobs (id bigint PRIMARY KEY)")
    created.session.begin()
    created.session.change_table(first, created.place(0))
    table = created.session.describe("hr", "jobs")
    assert table is not None
    created.session.write([insert(table, [(int4(1), b"one")])])
    created.session.change_table(gone, created.place(2))
    assert created.session.describe("hr", "jobs") is None
    created.session.change_table(second, created.place(3))
    table = created.session.describe("hr", "jobs")
    assert table is not None
    created.session.write([insert(table, [((5).to_bytes(8, "big"),)])])
    created.session.commit([], 0)
    created.assert_equal("jobs")
    assert created.admin.execute("SELECT * FROM hr.jobs").fetchall() == [(5,)]
    assert list(created.records()) == [f"1.2.{created.number('jobs')}.7"]


def test_session_of_another_server_describes_the_later_table_of_that_name(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    with closing(created.open(server=1)) as other:
        table = other.describe("hr", "jobs")
        assert table is not None
        rows = [insert(table, [(int4(1), b"one")])]
        other.begin()
        other.write(rows)
        other.commit([], 0)
        gone = created.dropped("jobs")
        made_again = created.created("jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text, n int)")
        created.apply(gone, made_again)
        other.begin()
        with pytest.raises(UnfitTableError):
            other.write(rows)
        other.rollback()
        table = other.describe("hr", "jobs")
        assert table is not None
        other.begin()
        other.write([insert(table, [(int4(1), b"one", int4(5))])])
        other.commit([], 0)
    assert created.admin.execute("SELECT * FROM hr.jobs").fetchall() == [(1, "one", 5)]


def test_waiting_for_a_lock_is_tried_again(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    change = created.dropped("jobs")
    with psycopg.connect(created.admin.info.dsn, password=created.admin.info.password) as other:
        other.execute("LOCK TABLE hr.jobs IN ACCESS SHARE MODE")
        with pytest.raises(DatabaseUnavailable):
            created.apply(change)
        other.rollback()
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


def test_others_prepared_statements_outlive_it(created: CreatedPair) -> None:
    created.both("CREATE TABLE hr.people (id int PRIMARY KEY)")
    table = created.session.describe("hr", "people")
    assert table is not None
    for number in range(3):
        made(created, "jobs", JOBS)
        change = created.dropped("jobs")
        created.session.begin()
        created.session.write([insert(table, [(int4(number),)])])
        created.session.change_table(change, created.place())
        people = created.session.describe("hr", "people")
        assert people is not None
        created.session.write([insert(people, [(int4(100 + number),)])])
        created.session.commit([], 0)
    assert created.admin.execute("SELECT count(*) FROM hr.people").fetchone() == (6,)
