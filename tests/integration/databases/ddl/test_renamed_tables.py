"""Renamed tables at a destination: the recorded table gets the name, and its record with it, or nothing happens."""

from __future__ import annotations

import contextlib
import json

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.databases.postgres.connection import qualified
from headrace.lcr.ddl import DdlChange, ddl_of
from headrace.lcr.table_name import TableName
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.statements import row_of
from tests.support.values.writes import insert, int4

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, n serial, title text CHECK (title <> ''))"


def made(pair: CreatedPair, name: str = "jobs", statement: str = JOBS) -> None:
    """Make a table at both."""
    assert pair.apply(pair.created(name, statement))[0].kind is DdlOutcomeKind.APPLIED


def renamed(pair: CreatedPair, name: str = "jobs", later: str = "tasks") -> DdlChange:
    statement = f"ALTER TABLE {qualified('hr', name)} RENAME TO {qualified('', later).partition('.')[2]}"
    return pair.altered(name, statement, now=TableName("hr", later))


def recorded(pair: CreatedPair) -> list[tuple[str, str]]:
    """Return the names of all records."""
    return sorted((each.owner, each.name) for each in pair.records().values())


def refused(pair: CreatedPair, change: DdlChange) -> DataError:
    with pytest.raises(DataError) as caught:
        pair.apply(change, scn=150)
    assert DDL_REFUSED in caught.value.context
    return caught.value


def by_hand(pair: CreatedPair, error: DataError) -> None:
    """Run the statements of a hint, as printed in front of the skip."""
    pair.admin.execute(error.hint.partition("; or leave it out")[0].encode())


def test_table_and_its_record_are_renamed_together(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("INSERT INTO hr.jobs VALUES (1, 1, 'one')")
    change = renamed(created)
    created.session.begin()
    created.session.change_table(change, created.place())
    created.session.rollback()
    assert (created.exists("jobs"), recorded(created)) == (True, [("hr", "jobs")])
    (outcome,) = created.apply(change, scn=150)
    assert outcome.kind is DdlOutcomeKind.APPLIED
    assert outcome.statements == ('ALTER TABLE "hr"."jobs" RENAME TO "tasks"',)
    assert (created.exists("jobs"), recorded(created)) == (False, [("hr", "tasks")])
    created.assert_equal("tasks")
    (found,) = created.records().values()
    assert (found.name_now, found.is_remade, found.state) == (("hr", "tasks"), False, "DONE")


@pytest.mark.parametrize("later", ['Quo"ted', "ünï", "select", "a b"])
def test_names_are_quoted(created: CreatedPair, later: str) -> None:
    made(created)
    assert created.apply(renamed(created, later=later), scn=150)[0].kind is DdlOutcomeKind.APPLIED
    assert recorded(created) == [("hr", later)]
    assert created.apply(renamed(created, later, "jobs"), scn=151)[0].kind is DdlOutcomeKind.APPLIED
    created.assert_equal("jobs")


def test_schema_takes_indexes_and_sequences_along(created: CreatedPair) -> None:
    made(created)
    created.both("CREATE INDEX by_title ON hr.jobs (title)", "CREATE SCHEMA s")
    moved = created.altered("jobs", "ALTER TABLE hr.jobs SET SCHEMA s", now=TableName("s", "jobs"))
    (outcome,) = created.apply(moved, scn=150)
    assert outcome.statements == ('ALTER TABLE "hr"."jobs" SET SCHEMA "s"',)
    assert recorded(created) == [("s", "jobs")]
    default = "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 's.jobs'::regclass"
    assert row_of(created.admin.execute(default)) == row_of(created.user.execute(default))
    assert row_of(created.admin.execute("SELECT to_regclass('s.by_title')"))[0] is not None


def test_schema_and_name_at_once(created: CreatedPair) -> None:
    """What moved the schema was not recorded, as by ALTER SCHEMA."""
    made(created)
    created.both("CREATE SCHEMA s")
    both = "ALTER TABLE hr.jobs SET SCHEMA s; ALTER TABLE s.jobs RENAME TO tasks"
    (outcome,) = created.apply(created.altered("jobs", both, now=TableName("s", "tasks")), scn=150)
    assert outcome.statements == (
        'ALTER TABLE "hr"."jobs" SET SCHEMA "s"',
        'ALTER TABLE "s"."jobs" RENAME TO "tasks"',
    )
    assert recorded(created) == [("s", "tasks")]


def test_table_that_has_the_name_already_is_passed_over(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("ALTER TABLE hr.jobs RENAME TO tasks")
    (outcome,) = created.apply(renamed(created), scn=150)
    assert (outcome.kind, outcome.statements) == (DdlOutcomeKind.PASSED_OVER, ())
    assert recorded(created) == [("hr", "tasks")]


def test_table_with_a_third_name_is_refused_until_it_is_renamed_as_printed(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("ALTER TABLE hr.jobs RENAME TO mine")
    change = renamed(created)
    error = refused(created, change)
    assert "the destination's table is called hr.mine, not hr.jobs" in error.message
    by_hand(created, error)
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.PASSED_OVER
    assert recorded(created) == [("hr", "tasks")]


def test_name_that_is_taken_is_refused_until_it_is_free(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("CREATE VIEW hr.tasks AS SELECT 1 AS id")
    change = renamed(created)
    error = refused(created, change)
    assert error.hint.startswith("drop or rename what has this name")
    assert (created.exists("jobs"), recorded(created)) == (True, [("hr", "jobs")])
    created.admin.execute("DROP VIEW hr.tasks")
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED


def test_refused_rename_can_be_left_out_as_printed(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("CREATE VIEW hr.tasks AS SELECT 1 AS id")
    change = renamed(created)
    asked = refused(created, change).hint
    created.admin.execute(asked[asked.index("INSERT INTO headrace.ddl_skip") :].encode())
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.SKIPPED
    assert recorded(created) == [("hr", "jobs")]


def test_missing_schema_is_refused_until_it_is_made_as_printed(created: CreatedPair) -> None:
    made(created)
    created.user.execute('CREATE SCHEMA "Ä b"')
    change = created.altered("jobs", 'ALTER TABLE hr.jobs SET SCHEMA "Ä b"', now=TableName("Ä b", "jobs"))
    error = refused(created, change)
    assert error.hint.startswith('CREATE SCHEMA "Ä b"; or leave it out')
    by_hand(created, error)
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED


def test_names_are_exchanged_in_one_transaction(created: CreatedPair) -> None:
    made(created, "a", "CREATE TABLE hr.a (id int PRIMARY KEY)")
    made(created, "b", "CREATE TABLE hr.b (id int PRIMARY KEY)")
    identities = {each.name: identity for identity, each in created.records().items()}
    changes = [renamed(created, "a", "x"), renamed(created, "b", "a"), renamed(created, "x", "b")]
    assert {each.kind for each in created.apply(*changes, scn=150)} == {DdlOutcomeKind.APPLIED}
    found = created.records()
    assert (found[identities["a"]].name, found[identities["b"]].name) == ("b", "a")
    assert [each.is_remade for each in found.values()] == [False, False]


def test_new_table_takes_the_name_of_a_renamed_one(created: CreatedPair) -> None:
    made(created)
    changes = [renamed(created, later="old"), created.altered("old", "ALTER INDEX hr.jobs_pkey RENAME TO old_pkey")]
    changes += [created.altered("old", "ALTER SEQUENCE hr.jobs_n_seq RENAME TO old_n_seq")]
    created.admin.execute("ALTER SEQUENCE hr.jobs_n_seq RENAME TO old_n_seq")
    changes = [*changes[:2], created.created("jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY)")]
    assert {each.kind for each in created.apply(*changes, scn=150)} == {DdlOutcomeKind.APPLIED}
    assert recorded(created) == [("hr", "jobs"), ("hr", "old")]
    created.assert_equal("jobs")


def test_table_is_made_renamed_and_altered_in_one_transaction(created: CreatedPair) -> None:
    changes = [created.created("jobs", JOBS), renamed(created)]
    changes.append(created.altered("tasks", "ALTER TABLE hr.tasks ADD c int"))
    assert {each.kind for each in created.apply(*changes)} == {DdlOutcomeKind.APPLIED}
    assert recorded(created) == [("hr", "tasks")]
    created.assert_equal("tasks")


def test_change_of_a_table_that_was_made_and_renamed_leaves_out_the_creation(created: CreatedPair) -> None:
    changes = [created.created("jobs", JOBS), renamed(created)]
    changes.append(created.altered("tasks", "ALTER TABLE hr.tasks ADD u uuid DEFAULT gen_random_uuid()", rewritten=2))
    with pytest.raises(DataError, match="made and changed in one transaction") as caught:
        created.apply(*changes)
    asked = caught.value.hint
    created.admin.execute(asked[asked.index("INSERT INTO headrace.ddl_skip") :].encode())
    assert created.apply(*changes)[0].kind is DdlOutcomeKind.SKIPPED


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM headrace.instantiation",
        "UPDATE headrace.instantiation SET state = 'LEFT'",
        "UPDATE headrace.instantiation SET source = 'c'",
        "UPDATE headrace.instantiation SET recorded_in = 1",
        "UPDATE headrace.instantiation SET state = 'COPYING', scn = 99",
        "DROP TABLE hr.jobs; CREATE TABLE hr.jobs (id int)",
    ],
)
def test_table_that_is_not_the_recorded_one_keeps_its_name(created: CreatedPair, statement: str) -> None:
    made(created)
    created.admin.execute(statement.encode())
    before = recorded(created)
    (outcome,) = created.apply(renamed(created), scn=150)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED, outcome
    assert (created.exists("jobs"), created.exists("tasks"), recorded(created)) == (True, False, before)


def test_table_with_rows_of_others_keeps_its_name(created: CreatedPair) -> None:
    made(created)
    created.admin.execute(
        'INSERT INTO headrace.instantiation SELECT (jsonb_populate_record(i, \'{"apply": "other"}\')).*'
        " FROM headrace.instantiation i"
    )
    (outcome,) = created.apply(renamed(created), scn=150)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "it has rows of apply process other" in outcome.reason


def test_record_of_an_earlier_table_of_the_new_name_goes(created: CreatedPair) -> None:
    made(created)
    made(created, "tasks", "CREATE TABLE hr.tasks (id int PRIMARY KEY)")
    created.both("DROP TABLE hr.tasks")
    assert created.apply(renamed(created), scn=150)[0].kind is DdlOutcomeKind.APPLIED
    assert recorded(created) == [("hr", "tasks")]


def test_change_that_does_more_than_a_rename_is_recorded_only(created: CreatedPair) -> None:
    made(created)
    change = renamed(created)
    record = json.loads(change.content)
    record["after"]["columns"] = record["after"]["columns"][:-1]
    record["after"]["constraints"] = []
    found = ddl_of(json.dumps(record).encode())
    assert found is not None
    (outcome,) = created.apply(found, scn=150)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "it also changes" in outcome.reason
    assert created.exists("jobs")


def test_rows_are_written_under_both_names_in_one_transaction(created: CreatedPair) -> None:
    made(created, "jobs", "CREATE TABLE hr.jobs (id int PRIMARY KEY)")
    session = created.session
    table = session.describe("hr", "jobs")
    assert table is not None
    session.begin()
    session.write([insert(table, [(int4(1),)])])
    session.change_table(renamed(created), created.place(1, scn=150))
    after = session.describe("hr", "tasks")
    assert after is not None
    session.write([insert(after, [(int4(2),)])])
    session.commit([], 0)
    assert created.admin.execute("SELECT id FROM hr.tasks ORDER BY 1").fetchall() == [(1,), (2,)]


def test_table_that_leaves_the_rules_is_recorded_as_left(created: CreatedPair) -> None:
    made(created)
    change = renamed(created).not_made("the rules do not take it", leaves=True)
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.NOT_APPLIED
    assert [each.state for each in created.records().values()] == ["LEFT"]
    assert created.exists("jobs")


def test_rename_runs_with_the_owners_rights(created: CreatedPair) -> None:
    """A trigger of the server's would run as a superuser otherwise; the owner needs CREATE on the schema."""
    made(created)
    created.admin.execute("CREATE ROLE plain_owner; CREATE SCHEMA s; GRANT USAGE, CREATE ON SCHEMA hr TO plain_owner")
    try:
        created.admin.execute("ALTER TABLE hr.jobs OWNER TO plain_owner")
        created.user.execute("CREATE SCHEMA s")
        change = created.altered("jobs", "ALTER TABLE hr.jobs SET SCHEMA s", now=TableName("s", "jobs"))
        error = refused(created, change)
        assert 'GRANT USAGE, CREATE ON SCHEMA "s" TO "plain_owner"' in error.hint
        by_hand(created, error)
        assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.APPLIED
    finally:
        with contextlib.suppress(psycopg.Error):
            created.admin.execute("DROP OWNED BY plain_owner CASCADE; DROP ROLE plain_owner")


def test_executed_from_the_error_queue_it_is_made(created: CreatedPair) -> None:
    made(created)
    assert created.apply(renamed(created), scn=120, is_in_order=False)[0].kind is DdlOutcomeKind.APPLIED
    assert recorded(created) == [("hr", "tasks")]


def left_out(created: CreatedPair) -> DdlChange:
    """Leave a RENAME out, as printed: the destination has a table of its own with the new name."""
    made(created)
    created.admin.execute("CREATE TABLE hr.tasks (id int PRIMARY KEY, n int, title text)")
    created.admin.execute("INSERT INTO hr.tasks VALUES (1, 1, 'of the destination alone')")
    change = renamed(created)
    asked = refused(created, change).hint
    created.admin.execute(asked[asked.index("INSERT INTO headrace.ddl_skip") :].encode())
    return change


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("what", ["DROP COLUMN title", "ADD COLUMN c int", "ADD CONSTRAINT k CHECK (id > 0)"])
def test_change_behind_a_rename_that_was_left_out_reaches_no_other_table(
    created: CreatedPair, what: str, is_at_once: bool
) -> None:
    change = left_out(created)
    was = created.at_destination("tasks")
    later = created.altered("tasks", f"ALTER TABLE hr.tasks {what}")
    changes = [change, later] if is_at_once else [later]
    if not is_at_once:
        created.apply(change, scn=150)
    with pytest.raises(DataError, match=r"is called hr\.jobs, not hr\.tasks, which is another table here") as caught:
        created.apply(*changes, scn=150 if is_at_once else 151)
    assert created.at_destination("tasks") == was
    if is_at_once:
        return
    created.admin.execute("ALTER TABLE hr.tasks RENAME TO own")
    by_hand(created, caught.value)
    assert created.apply(later, scn=151)[0].kind is DdlOutcomeKind.APPLIED
    created.assert_equal("tasks")


def test_change_of_a_table_that_is_gone_reaches_no_other_table(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("DROP TABLE hr.jobs; CREATE TABLE hr.jobs (id int PRIMARY KEY, n int, title text)")
    (outcome,) = created.apply(created.altered("jobs", "ALTER TABLE hr.jobs DROP COLUMN title"))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "is gone" in outcome.reason


def test_index_job_keeps_its_table_when_a_rename_is_not_made(created: CreatedPair) -> None:
    made(created)
    created.admin.execute("CREATE TABLE hr.tasks (id int PRIMARY KEY, n int, title text)")
    job = created.altered("jobs", "CREATE INDEX CONCURRENTLY by_title ON hr.jobs (title)", tag="CREATE INDEX")
    assert created.apply(job, scn=150)[0].kind is DdlOutcomeKind.SCHEDULED
    created.admin.execute(
        'INSERT INTO headrace.instantiation SELECT (jsonb_populate_record(i, \'{"apply": "other"}\')).*'
        " FROM headrace.instantiation i"
    )
    (outcome,) = created.apply(renamed(created), scn=151)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert row_of(created.admin.execute("SELECT object_name FROM headrace.dba_ddl_jobs")) == ("jobs",)
