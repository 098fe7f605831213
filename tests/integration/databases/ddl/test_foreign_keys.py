"""Foreign keys at a destination: made where both tables are level, compared and proved, else left out with the reason."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import quote
from headrace.lcr.ddl import DdlChange
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.statements import row_of
from tests.support.values.hostile_names import HOSTILE
from tests.support.values.writes import delete, insert, int4

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, code text UNIQUE)"
PEOPLE = "CREATE TABLE hr.people (id int PRIMARY KEY, job int)"
WORKS = "ALTER TABLE hr.people ADD CONSTRAINT works FOREIGN KEY (job) REFERENCES hr.jobs"
APPLIED, PASSED_OVER = DdlOutcomeKind.APPLIED, DdlOutcomeKind.PASSED_OVER


def made(pair: CreatedPair, name: str, *statements: str) -> DdlOutcome:
    """Make a table at both."""
    (outcome,) = pair.apply(pair.created(name, *statements))
    assert outcome.kind is APPLIED, outcome.reason
    return outcome


@pytest.fixture
def pair(created: CreatedPair) -> CreatedPair:
    """Both have jobs and people, and the apply process has recorded them."""
    made(created, "jobs", JOBS)
    made(created, "people", PEOPLE)
    created.both("INSERT INTO hr.jobs VALUES (1, 'a'), (2, 'b')", "INSERT INTO hr.people VALUES (1, 1), (2, NULL)")
    return created


def carried(pair: CreatedPair, statement: str, name: str = "people") -> DdlOutcome:
    """Carry an ALTER TABLE; both tables are equal afterwards, with their foreign keys."""
    (outcome,) = pair.apply(pair.altered(name, statement))
    assert outcome.kind is APPLIED, outcome.reason
    assert outcome.reason == ""
    assert_keys(pair, name)
    pair.assert_equal(name)
    return outcome


def assert_keys(pair: CreatedPair, *names: str) -> None:
    for name in names:
        there, here = pair.foreign_keys(name)
        assert here == there


def refused(pair: CreatedPair, change: DdlChange) -> DataError:
    with pytest.raises(DataError) as caught:
        pair.apply(change)
    assert caught.value.context[DDL_REFUSED] == 1
    return caught.value


def left_out(pair: CreatedPair, change: DdlChange, *, is_in_order: bool = True) -> str:
    (outcome,) = pair.apply(change, is_in_order=is_in_order)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert pair.foreign_keys("people")[1] == {}
    return outcome.reason


@pytest.mark.parametrize(
    "statements",
    [
        [WORKS, "ALTER TABLE hr.people DROP CONSTRAINT works"],
        [f"{WORKS} NOT VALID", "ALTER TABLE hr.people VALIDATE CONSTRAINT works"],
        [WORKS, 'ALTER TABLE hr.people RENAME CONSTRAINT works TO "W ""x"', "ALTER TABLE hr.people RENAME job TO j"],
        [
            f"{WORKS} MATCH FULL ON UPDATE CASCADE ON DELETE SET NULL (job)",
            "ALTER TABLE hr.people ALTER CONSTRAINT works DEFERRABLE",
            "ALTER TABLE hr.people ALTER CONSTRAINT works DEFERRABLE INITIALLY DEFERRED",
            "ALTER TABLE hr.people ALTER CONSTRAINT works NOT DEFERRABLE",
        ],
        [f"{WORKS} ON DELETE CASCADE", "ALTER TABLE hr.people DROP job"],
        [
            WORKS,
            "ALTER TABLE hr.people DROP CONSTRAINT works,"
            " ADD CONSTRAINT works FOREIGN KEY (job) REFERENCES hr.jobs ON DELETE CASCADE",
        ],
        ["ALTER TABLE hr.people ADD boss int REFERENCES hr.people, ADD code text REFERENCES hr.jobs (code)"],
        [
            "ALTER TABLE hr.people ADD boss int, ADD n int UNIQUE, ADD FOREIGN KEY (boss) REFERENCES hr.people (n)",
            "ALTER TABLE hr.people RENAME n TO number",
            "ALTER TABLE hr.people DROP number CASCADE",
        ],
    ],
    ids=lambda statements: statements[-1],
)
def test_foreign_key_is_carried(pair: CreatedPair, statements: list[str]) -> None:
    if pair.version < 15 and "SET NULL (" in statements[0]:
        pytest.skip("older than its columns")
    for statement in statements:
        carried(pair, statement)


def test_foreign_key_that_is_not_enforced_is_carried(pair: CreatedPair) -> None:
    if pair.version < 18:
        pytest.skip("older than NOT ENFORCED")
    carried(pair, f"{WORKS} NOT ENFORCED")
    carried(pair, "ALTER TABLE hr.people ALTER CONSTRAINT works ENFORCED")


def test_new_table_has_its_foreign_keys(created: CreatedPair) -> None:
    made(created, "jobs", JOBS)
    outcome = made(
        created, "people", PEOPLE.replace("job int", "job int REFERENCES hr.jobs, boss int REFERENCES hr.people")
    )
    assert outcome.reason == ""
    assert_keys(created, "people")


def test_tables_of_one_transaction_refer_to_each_other(created: CreatedPair) -> None:
    jobs = created.created("jobs", JOBS)
    people = created.created("people", PEOPLE.replace("job int", "job int REFERENCES hr.jobs"))
    back = created.altered("jobs", "ALTER TABLE hr.jobs ADD boss int REFERENCES hr.people")
    outcomes = created.apply(jobs, people, back)
    assert [(each.kind, each.reason) for each in outcomes] == [(APPLIED, "")] * 3
    assert_keys(created, "jobs", "people")


def test_table_that_is_made_later_is_referred_to_by_an_older_one(created: CreatedPair) -> None:
    made(created, "people", PEOPLE)
    made(created, "jobs", JOBS)
    carried(created, WORKS)


def test_foreign_key_that_is_here_already_is_passed_over(pair: CreatedPair) -> None:
    pair.admin.execute(WORKS.encode())
    (outcome,) = pair.apply(pair.altered("people", WORKS))
    assert outcome.kind is PASSED_OVER
    pair.admin.execute("DROP TABLE hr.people")
    pair.admin.execute("DELETE FROM headrace.instantiation WHERE name = 'people'")
    pair.admin.execute(PEOPLE.replace("job int", "job int CONSTRAINT works REFERENCES hr.jobs").encode())
    (outcome,) = pair.apply(pair.created("people"))
    assert (outcome.kind, outcome.reason) == (PASSED_OVER, "")


def test_foreign_key_of_another_form_pauses(pair: CreatedPair) -> None:
    pair.admin.execute(f"{WORKS} ON DELETE CASCADE".encode())
    change = pair.altered("people", WORKS)
    assert 'constraint "works" is neither as before' in refused(pair, change).message
    pair.admin.execute("ALTER TABLE hr.people DROP CONSTRAINT works")
    assert pair.apply(change)[0].kind is APPLIED
    assert_keys(pair, "people")


def test_table_that_lacks_the_foreign_key_does_not_become_the_new_one(pair: CreatedPair) -> None:
    change = pair.created(
        "staff", PEOPLE.replace("hr.people", "hr.staff").replace("job int", "job int REFERENCES hr.jobs")
    )
    pair.admin.execute(PEOPLE.replace("hr.people", "hr.staff").encode())
    assert 'constraint "staff_job_fkey" is missing here' in refused(pair, change).message
    pair.admin.execute("ALTER TABLE hr.staff ADD FOREIGN KEY (job) REFERENCES hr.jobs")
    assert pair.apply(change)[0].kind is PASSED_OVER


def test_rows_of_the_destination_alone_refuse_it_and_the_ways_out_work(pair: CreatedPair) -> None:
    pair.admin.execute("INSERT INTO hr.people VALUES (9, 9)")
    change = pair.altered("people", WORKS)
    error = refused(pair, change)
    assert error.context["sqlstate"] == "23503"
    pair.admin.execute("DELETE FROM hr.people WHERE id = 9")
    assert pair.apply(change)[0].kind is APPLIED
    pair.admin.execute("ALTER TABLE hr.people DROP CONSTRAINT works; INSERT INTO hr.people VALUES (9, 9)")
    pair.admin.execute(refused(pair, change).hint.split("or leave it out: ")[1].encode())
    assert pair.apply(change)[0].kind is DdlOutcomeKind.SKIPPED


# --------------------------------------------------------------------------- where it is left out


@pytest.mark.parametrize("state", ["COPYING", "COPIED", "JOINING", "FAILED"])
@pytest.mark.parametrize("name", ["jobs", "people"])
def test_table_that_is_not_level_has_no_foreign_key(pair: CreatedPair, name: str, state: str) -> None:
    pair.admin.execute("UPDATE headrace.instantiation SET state = %s WHERE name = %s", (state, name))
    change = pair.altered("people", WORKS)
    assert left_out(pair, change) == (
        f'constraint "works": hr.{name} is not level with the other tables here: its copy is {state}'
    )
    pair.admin.execute("UPDATE headrace.instantiation SET state = 'KEPT'")
    assert pair.apply(change)[0].kind is APPLIED


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM headrace.instantiation WHERE name = 'jobs'",
        "UPDATE headrace.instantiation SET apply = 'apply_from_c' WHERE name = 'jobs'",
        "UPDATE headrace.instantiation SET topology = 'x' WHERE name = 'jobs'",
        "UPDATE headrace.instantiation SET source = 'c' WHERE name = 'jobs'",
        "UPDATE headrace.instantiation SET state = 'LEFT' WHERE name = 'jobs'",
        "UPDATE headrace.instantiation SET identity = '1.2.3.7' WHERE name = 'jobs'",
        "DROP TABLE hr.jobs; CREATE TABLE hr.jobs (id int PRIMARY KEY)",
        "ALTER TABLE hr.jobs RENAME TO tasks; CREATE TABLE hr.jobs (id int PRIMARY KEY)",
    ],
)
def test_table_that_is_not_the_sources_is_not_referred_to(pair: CreatedPair, statement: str) -> None:
    pair.admin.execute(statement.encode())
    reason = left_out(pair, pair.altered("people", WORKS))
    assert reason == 'constraint "works": hr.jobs here is not known as the source\'s table of that name'


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE hr.jobs", "hr.jobs is not at the destination"),
        (
            "DROP TABLE hr.jobs; CREATE TABLE hr.jobs (id int PRIMARY KEY) PARTITION BY HASH (id)",
            "hr.jobs is a partitioned table or a partition at the destination, or no table",
        ),
        ("DROP TABLE hr.jobs; CREATE VIEW hr.jobs AS SELECT 1 AS id", "or no table"),
    ],
)
def test_something_else_is_not_referred_to(pair: CreatedPair, statement: str, said: str) -> None:
    pair.admin.execute(statement.encode())
    assert said in left_out(pair, pair.altered("people", WORKS))


def test_table_whose_rename_was_not_replicated_is_not_referred_to(pair: CreatedPair) -> None:
    """Another one has its name at the source, which the destination does not have."""
    pair.user.execute(
        "ALTER TABLE hr.jobs RENAME TO tasks; CREATE TABLE hr.jobs (id int PRIMARY KEY); INSERT INTO hr.jobs VALUES (1)"
    )
    assert "not known as the source's table" in left_out(pair, pair.altered("people", WORKS))


def test_from_the_error_queue_it_is_left_out(pair: CreatedPair) -> None:
    assert "error queue" in left_out(pair, pair.altered("people", WORKS), is_in_order=False)


def test_record_of_older_event_triggers_says_no_table(pair: CreatedPair) -> None:
    assert "headrace up FILE" in left_out(pair, pair.altered("people", WORKS, references={}))


def test_the_rest_of_the_statement_is_made(pair: CreatedPair) -> None:
    pair.admin.execute("UPDATE headrace.instantiation SET state = 'COPYING' WHERE name = 'jobs'")
    (outcome,) = pair.apply(pair.altered("people", "ALTER TABLE hr.people ADD code text REFERENCES hr.jobs (code)"))
    assert outcome.kind is APPLIED
    assert "not level" in outcome.reason
    pair.assert_equal("people")
    outcome = made(
        pair, "staff", PEOPLE.replace("hr.people", "hr.staff").replace("job int", "job int REFERENCES hr.jobs")
    )
    assert "not level" in outcome.reason
    pair.assert_equal("staff")
    for name in ("people", "staff"):
        (outcome,) = pair.apply(
            pair.altered(
                name, f"ALTER TABLE hr.{name} DROP CONSTRAINT {name}_{'code' if name == 'people' else 'job'}_fkey"
            )
        )
        assert outcome.kind is PASSED_OVER


# --------------------------------------------------------------------------- rights


@pytest.fixture
def owner(created: CreatedPair) -> Iterator[str]:
    """A role, without the right to refer to tables of others."""
    name = f'fk "{secrets.token_hex(4)}'
    created.admin.execute(f"CREATE ROLE {quote(name)}".encode())
    created.both(f"GRANT USAGE, CREATE ON SCHEMA hr TO {quote(name)}")
    yield name
    for connection in (created.user, created.admin):
        connection.execute(f"DROP OWNED BY {quote(name)}".encode())
    created.session.close()
    created.admin.execute(f"DROP ROLE {quote(name)}".encode())


@pytest.mark.parametrize("is_new", [True, False])
def test_missing_right_is_refused_with_the_grant(created: CreatedPair, owner: str, is_new: bool) -> None:
    created.both("CREATE SCHEMA shop")
    made(created, "jobs", JOBS)
    created.both("ALTER TABLE hr.jobs SET SCHEMA shop")
    owned = f"ALTER TABLE hr.people OWNER TO {quote(owner)}"
    if is_new:
        change = created.created("people", f"{PEOPLE.replace('job int', 'job int REFERENCES shop.jobs')}; {owned}")
    else:
        made(created, "people", f"{PEOPLE}; {owned}")
        change = created.altered("people", WORKS.replace("hr.jobs", "shop.jobs"))
    error = refused(created, change)
    grants, skip = error.hint.split("; or leave it out: ")
    assert grants == (
        f'GRANT USAGE ON SCHEMA "shop" TO {quote(owner)}; GRANT REFERENCES ON TABLE "shop"."jobs" TO {quote(owner)}'
    )
    assert skip.startswith("INSERT INTO headrace.ddl_skip")
    created.admin.execute(grants.encode())
    assert created.apply(change)[0].kind is APPLIED
    assert_keys(created, "people")


def test_right_to_the_columns_is_enough(created: CreatedPair, owner: str) -> None:
    made(created, "jobs", JOBS)
    made(created, "people", f"{PEOPLE}; ALTER TABLE hr.people OWNER TO {quote(owner)}")
    created.admin.execute(f"GRANT REFERENCES (id) ON hr.jobs TO {quote(owner)}".encode())
    carried(created, WORKS)


# --------------------------------------------------------------------------- names, drops, rows


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_quoted(created: CreatedPair, name: str) -> None:
    of = quote(name)
    made(created, name, f"CREATE TABLE hr.{of} ({of} int PRIMARY KEY)")
    made(created, "people", PEOPLE)
    carried(
        created, f"ALTER TABLE hr.people ADD CONSTRAINT {of} FOREIGN KEY (job) REFERENCES hr.{of} ON DELETE SET NULL"
    )
    carried(created, f"ALTER TABLE hr.people ALTER CONSTRAINT {of} DEFERRABLE")
    carried(created, f"ALTER TABLE hr.people RENAME CONSTRAINT {of} TO x")


def test_column_of_the_other_table_is_renamed_in_between(pair: CreatedPair) -> None:
    """No record of the referring table tells of that, so its next one has a name from before."""
    carried(pair, f"{WORKS} NOT VALID")
    older = pair.altered("jobs", "ALTER TABLE hr.jobs RENAME id TO number")
    before = pair.foreign_keys("people")[1]
    assert pair.apply(older)[0].kind is APPLIED
    assert_keys(pair, "people")
    assert pair.foreign_keys("people")[1] != before
    change = pair.altered("people", "ALTER TABLE hr.people VALIDATE CONSTRAINT works")
    stale = DdlChange(
        **{each: getattr(change, each) for each in change.__slots__}
        | {"content": change.content.replace("hr.jobs(number) NOT VALID", "hr.jobs(id) NOT VALID")}
    )
    assert stale.content != change.content
    assert pair.apply(stale)[0].statements == ('ALTER TABLE ONLY "hr"."people" VALIDATE CONSTRAINT "works"',)
    assert_keys(pair, "people")


def test_dropped_table_takes_the_keys_along(pair: CreatedPair) -> None:
    carried(pair, WORKS)
    (outcome,) = pair.apply(pair.dropped("jobs", "DROP TABLE hr.jobs CASCADE"))
    assert outcome.kind is APPLIED
    assert_keys(pair, "people")


def test_applied_rows_bring_the_effects_of_a_key_alone(pair: CreatedPair) -> None:
    """ON DELETE CASCADE is not executed here: the deleted rows are in the source's log."""
    carried(pair, f"{WORKS} ON DELETE CASCADE ON UPDATE CASCADE")
    jobs, people = pair.session.describe("hr", "jobs"), pair.session.describe("hr", "people")
    assert jobs is not None
    assert people is not None
    pair.session.begin()
    pair.session.write([insert(people, [(int4(7), int4(8))])])  # in front of the row that it refers to
    pair.session.write([insert(jobs, [(int4(8), b"h")])])
    pair.session.write([delete(jobs, [(int4(1), b"a")])])
    pair.session.commit([], 0)
    assert pair.admin.execute("SELECT id, job FROM hr.people ORDER BY 1").fetchall() == [(1, 1), (2, None), (7, 8)]


def test_copy_of_either_table_empties_that_one_alone(pair: CreatedPair) -> None:
    carried(pair, f"{WORKS} ON DELETE CASCADE")
    counts = "SELECT (SELECT count(*) FROM hr.jobs), (SELECT count(*) FROM hr.people)"
    for name, left in (("jobs", (0, 2)), ("people", (0, 0))):
        table = pair.session.describe("hr", name)
        assert table is not None
        pair.session.empty_marked(table)
        assert row_of(pair.admin.execute(counts)) == left
