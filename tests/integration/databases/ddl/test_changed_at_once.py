"""New tables that the transaction that makes them changes, too: nobody can repair such a table, which nobody can see."""

from __future__ import annotations

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind
from headrace.databases.postgres.destination.records.ddl_history import skip_statement
from headrace.lcr.table_name import TableName
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.destination_contract import APPLY, TOPOLOGY

pytestmark = [pytest.mark.postgres]

JOBS = "CREATE TABLE hr.jobs (id int PRIMARY KEY, title text)"


@pytest.mark.parametrize(
    ("statement", "moved"),
    [("ALTER TABLE hr.jobs RENAME TO tasks", ("hr", "tasks")), ("ALTER TABLE hr.jobs SET SCHEMA s", ("s", "jobs"))],
)
def test_table_that_is_renamed_in_its_transaction_is_followed(
    created: CreatedPair, statement: str, moved: tuple[str, str]
) -> None:
    created.both("CREATE SCHEMA s")
    made, added = created.created("jobs", JOBS), created.altered("jobs", "ALTER TABLE hr.jobs ADD n int")
    renamed = created.altered("jobs", statement, now=TableName(*moved))
    assert {each.kind for each in created.apply(made, added, renamed)} == {DdlOutcomeKind.APPLIED}
    (record,) = created.records().values()
    assert (record.owner, record.name, record.name_now) == (*moved, moved)


def test_later_table_of_a_name_is_the_one_to_leave_out(created: CreatedPair) -> None:
    first, gone = created.created("jobs", JOBS), created.dropped("jobs")
    second = created.created("jobs", JOBS)
    renamed = created.altered("jobs", "ALTER TABLE hr.jobs RENAME TO tasks", now=TableName("hr", "tasks"))
    number = created.number("tasks")
    statement = "ALTER TABLE hr.tasks ADD u uuid DEFAULT gen_random_uuid()"
    changed = created.altered("tasks", statement, rewritten=2, relation=number)
    with pytest.raises(DataError, match="made and changed") as caught:
        created.apply(first, gone, second, renamed, changed)
    assert caught.value.hint.endswith(skip_statement(TOPOLOGY, APPLY, created.place(2)))


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("ADD u uuid DEFAULT gen_random_uuid()", 'column "u"'),
        ("ADD n serial", 'column "n"'),
        ("ALTER id TYPE bigint", 'column "id"'),
        ("DROP title, ALTER id TYPE bigint", 'column "title", column "id"'),
    ],
)
def test_change_without_which_its_rows_do_not_fit_is_refused(created: CreatedPair, statement: str, column: str) -> None:
    """Nobody could make it by hand: nobody sees the table."""
    made = created.created("jobs", JOBS)
    changed = created.altered("jobs", f"ALTER TABLE hr.jobs {statement}", rewritten=2)
    with pytest.raises(DataError, match="made and changed in one transaction") as caught:
        created.apply(made, changed)
    assert DDL_REFUSED in caught.value.context
    assert f"because of {column}: the source wrote the table's rows anew" in caught.value.message
    assert caught.value.hint.endswith(skip_statement(TOPOLOGY, APPLY, created.place(0)))
    assert created.records() == {}
    created.apply(made)
    assert created.apply(changed, scn=150)[0].kind is DdlOutcomeKind.NOT_APPLIED


def test_change_that_its_rows_do_not_need_is_not_refused(created: CreatedPair) -> None:
    made = created.created("jobs", JOBS)
    changes = [
        created.altered("jobs", f"ALTER TABLE hr.jobs {statement}")
        for statement in (
            "ADD boss int CONSTRAINT bosses REFERENCES hr.jobs",
            "ADD CHECK (title <> '')",
            "ALTER id ADD GENERATED ALWAYS AS IDENTITY",
            "DROP title",
            "SET UNLOGGED",
        )
    ]
    kinds = [each.kind for each in created.apply(made, *changes)]
    assert kinds == [
        *[DdlOutcomeKind.APPLIED] * 3,
        DdlOutcomeKind.NOT_APPLIED,
        DdlOutcomeKind.APPLIED,
        DdlOutcomeKind.NOT_APPLIED,
    ]
