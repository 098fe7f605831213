"""Columns that a source's users convert, from one real server to another, with the rows around each statement.

What a statement wrote anew at the source is written anew at the destination, in order, and no check of rows takes that
for values that changed without events. Values that only the source has are still found.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import execute
from tests.support.session.seeds import scaled, seeds
from tests.support.ways.ddl_way import OF_TABLES_WITH_DDL, DdlWay, way_fixture
from tests.support.ways.one_way import WAIT_S, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

way = way_fixture(DdlWay, OF_TABLES_WITH_DDL)


def findings(way: DdlWay) -> list[str]:
    """Return what a look at the rows finds now."""
    wait_for("a look", way.driver.control.look_at_tables, WAIT_S)
    return [each.problem for each in way.driver.control.status().instantiation if each.problem]


def test_key_is_widened_among_the_rows_of_its_transaction(way: DdlWay) -> None:
    """Neither that nor a second conversion is taken for rows that changed without events."""
    assert findings(way) == []
    with psycopg.connect(way.source_dsn) as user:
        user.execute("INSERT INTO first VALUES (1001, 'before')")
        user.execute("ALTER TABLE first ALTER COLUMN id TYPE bigint")
        user.execute("INSERT INTO first VALUES (3000000000, 'behind')")
        user.execute("UPDATE first SET id = id + 3000000001 WHERE id = 5")
        user.execute("ALTER TABLE first ADD n integer GENERATED ALWAYS AS (length(v)) STORED")
        user.execute("INSERT INTO first VALUES (3000000007, 'computed')")
        user.execute("ALTER TABLE log ALTER number TYPE numeric(12, 2)")
        user.execute("INSERT INTO log VALUES (1.25)")
    way.assert_same()
    assert way.outcomes() == ["APPLIED"] * 3
    assert findings(way) == []
    execute(way.source_dsn, "ALTER TABLE log ALTER number TYPE integer")
    execute(way.source_dsn, "INSERT INTO log VALUES (2)")
    way.assert_same()
    assert way.outcomes() == ["APPLIED"] * 4
    assert findings(way) == []
    execute(way.source_dsn, "VACUUM FULL first")
    assert findings(way) == []


UNCERTAIN = (
    "ALTER TABLE first ALTER v TYPE text USING v || '!'",
    "DO $$ BEGIN ALTER TABLE first ALTER v TYPE char(40); END $$",
    "SELECT migrate()",
    "ALTER TABLE first ALTER v TYPE varchar(41) USING v::varchar(41); SELECT 1",
)


def test_values_that_only_the_source_has_are_found_behind_a_conversion_too(way: DdlWay) -> None:
    execute(way.source_dsn, "ALTER TABLE first ALTER v TYPE text USING upper(v)")
    execute(way.source_dsn, "ALTER TABLE first ALTER id TYPE bigint")
    way.settle()
    assert way.outcomes() == ["NOT APPLIED", "APPLIED"]
    (found,) = findings(way)
    assert "rows changed without events, and may differ here: column" in found
    assert "headrace copy" in found


def test_uncertain_conversions_are_recorded_only(way: DdlWay) -> None:
    execute(
        way.source_dsn,
        "CREATE FUNCTION migrate() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE first ALTER v TYPE text; END $$",
    )
    for number, statement in enumerate(UNCERTAIN):
        with psycopg.connect(way.source_dsn) as user:
            user.execute(statement.encode())
        way.settle()
        assert way.outcomes() == ["NOT APPLIED"] * (number + 1), statement


@pytest.mark.parametrize("kind", ["uuid DEFAULT gen_random_uuid()", "serial", "integer GENERATED ALWAYS AS IDENTITY"])
def test_printed_way_out_of_a_default_of_each_row_works(way: DdlWay, kind: str) -> None:
    """Apply pauses at the first row behind it; the printed ALTER lets it go on, and the finding says what else to do."""
    execute(way.source_dsn, f"ALTER TABLE first ADD COLUMN n {kind}")
    execute(way.source_dsn, "INSERT INTO first (id, v) VALUES (1001, 'behind')")
    said = way.paused_on("ALTER TABLE")
    assert way.outcomes() == ["NOT APPLIED"]
    printed = said[said.index("ALTER TABLE") :].partition(";")[0]
    execute(way.destination_dsn, printed)
    way.settle()
    (found,) = findings(way)
    assert "column n was added with a default that is not" in found
    assert "headrace copy" in found


def user_history(dsn: str, rng: random.Random, transactions: int, first: int) -> None:
    """Convert two columns back and forth among rows, some of it rolled back."""
    with psycopg.connect(dsn) as user:
        for number in range(first, first + transactions):
            for _ in range(rng.randint(1, 2)):
                user.execute(f"UPDATE first SET a = {rng.randint(-99, 99)} WHERE id = {rng.randint(1, 500)}")
                kind = rng.choice(["smallint", "integer", "bigint", "numeric(9,1)", "numeric(12,3)"])
                user.execute(f"ALTER TABLE first ALTER {rng.choice(['a', 'b'])} TYPE {kind}".encode())
                user.execute(
                    f"INSERT INTO first (id, v, a, b) VALUES ({100_000 + rng.getrandbits(28)}, 'h', 3, {number})"
                )
            if rng.random() < 0.2:
                user.rollback()
            else:
                user.commit()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("ddl_conversions", test=1, soak=3))
def test_random_conversions_arrive_once_under_load_whatever_restarts(way: DdlWay, seed: int) -> None:
    rng = random.Random(seed)
    execute(way.source_dsn, "ALTER TABLE first ADD a integer DEFAULT 1, ADD b numeric(9,1) DEFAULT 2.5")
    with load(way.source_dsn):
        for turn in range(scaled(2, 8)):
            user_history(way.source_dsn, rng, 4, first=1 + turn * 4)
            if rng.random() < 0.5:
                way.kill_driver()
            else:
                execute(
                    way.destination_dsn,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND"
                    " application_name ~ 'apply' AND pid <> pg_backend_pid()",
                )
    way.assert_same()
    assert set(way.outcomes()) <= {"APPLIED", "PASSED OVER"}
