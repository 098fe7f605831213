"""Changes of a table that are carried, and those that are not: points of docs/reference/ddl-points.md."""

from __future__ import annotations

import psycopg
import pytest

from headrace.base.errors import DataError
from tests.support.databases.ddl_pair import DdlPair, carried

pytestmark = [pytest.mark.postgres]


def test_dropped_column_that_comes_again_with_another_type_is_a_new_one(pair: DdlPair) -> None:
    carried(pair, "ALTER TABLE hr.jobs ADD a int DEFAULT 5")
    ran = carried(pair, "ALTER TABLE hr.jobs DROP a, ADD a text DEFAULT 'new'")
    assert not any("TYPE" in each for each in ran)
    carried(pair, "ALTER TABLE hr.jobs DROP a", "ALTER TABLE hr.jobs ADD a date DEFAULT '2026-01-01'")


def test_columns_in_another_order_are_the_same_table(pair: DdlPair) -> None:
    pair.here.execute("DROP TABLE hr.jobs")
    pair.here.execute("CREATE TABLE hr.jobs (title varchar(20), mine int, id integer PRIMARY KEY)")
    planned, ran = pair.apply(pair.change("ALTER TABLE hr.jobs ADD n int DEFAULT 7, ALTER title SET NOT NULL"))
    assert not planned.refusal
    assert ran
    here = pair.at_destination()
    assert here is not None
    assert [column.name for column in here.columns] == ["title", "mine", "id", "n"]


def test_name_that_another_table_has_here_refuses_the_change(pair: DdlPair) -> None:
    """The server made the name up; the destination's index has to have it, too."""
    pair.here.execute("CREATE TABLE hr.others (id int); CREATE INDEX jobs_title_key ON hr.others (id)")
    before = pair.at_destination()
    change = pair.change("ALTER TABLE hr.jobs ADD UNIQUE (title)")
    with pytest.raises(psycopg.errors.DuplicateTable, match="jobs_title_key"):
        pair.apply(change)
    assert pair.at_destination() == before
    pair.here.execute("DROP INDEX hr.jobs_title_key")
    pair.apply(change)
    pair.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        ["ADD CONSTRAINT c EXCLUDE USING btree (title WITH =) DEFERRABLE INITIALLY DEFERRED"],
        ["ADD CONSTRAINT c UNIQUE (title) DEFERRABLE", "RENAME CONSTRAINT c TO d", "DROP CONSTRAINT d"],
        ["ADD CONSTRAINT c CHECK (id > 5) NOT VALID", "DROP CONSTRAINT c"],
    ],
    ids=lambda statements: statements[0],
)
def test_constraints_of_every_kind_are_carried(pair: DdlPair, statements: list[str]) -> None:
    for statement in statements:
        assert carried(pair, f"ALTER TABLE hr.jobs {statement}")


@pytest.mark.parametrize(
    "statement",
    [
        "ADD CONSTRAINT c CHECK (id > 5) NOT ENFORCED",
        "ADD g int GENERATED ALWAYS AS (id + 1) VIRTUAL",
        "ADD a int4range, ADD span int4range, ADD CONSTRAINT c UNIQUE (a, span WITHOUT OVERLAPS)",
    ],
)
def test_constraints_and_columns_of_version_18_are_carried(pair: DdlPair, statement: str) -> None:
    if pair.version < 18:
        pytest.skip("new in PostgreSQL 18")
    assert carried(pair, f"ALTER TABLE hr.jobs {statement}")


def test_type_whose_rows_stay_only_in_one_time_zone_is_carried_with_its_values(pair: DdlPair) -> None:
    """With TimeZone = UTC the server changes timestamptz to timestamp and writes no row anew."""
    value = "'2026-01-01 12:00:00+05'"
    carried(pair, f"ALTER TABLE hr.jobs ADD at timestamptz DEFAULT {value}")
    pair.both(f"UPDATE hr.jobs SET at = {value} WHERE id = 1")
    carried(pair, "SET TimeZone = 'UTC'", "ALTER TABLE hr.jobs ALTER at DROP DEFAULT")
    assert carried(pair, "ALTER TABLE hr.jobs ALTER at TYPE timestamp")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("INHERIT hr.parent", "inherits"),
        ("ADD CONSTRAINT n NOT NULL title NOT VALID", "not valid yet"),
        ("ADD n int DEFAULT nextval('hr.s')", "anew"),
        ("ADD at timestamptz DEFAULT clock_timestamp()", "anew"),
        ("ALTER id TYPE bigint", "anew"),
        ("ALTER title TYPE text USING upper(title)", "anew"),
    ],
)
def test_change_that_is_not_replicated_says_why(pair: DdlPair, statement: str, reason: str) -> None:
    if pair.version < 18 and "NOT NULL title" in statement:
        pytest.skip("new in PostgreSQL 18")
    pair.both("CREATE TABLE hr.parent (id int NOT NULL, title varchar(20))", "CREATE SEQUENCE hr.s")
    before = pair.at_destination()
    planned, ran = pair.apply(pair.change(f"ALTER TABLE hr.jobs {statement}"))
    assert reason in planned.refusal
    assert not ran
    assert pair.at_destination() == before


def test_column_that_is_of_another_type_here_is_refused_with_three_definitions(pair: DdlPair) -> None:
    pair.here.execute("ALTER TABLE hr.jobs ADD n text")
    with pytest.raises(DataError, match=r"integer.*text|text.*integer"):
        pair.apply(pair.change("ALTER TABLE hr.jobs ADD n int"))
