"""DDL and rows from one real server to another, in one process: the real hosts, and a driver on threads.

Users change the structure of a table and its rows in the same transactions. At the end both sides have the same
structure and the same rows, and the destination has a record of each change.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spark_apply.driver.apply_driver import ApplyDriver
from tests.support.databases.statements import execute
from tests.support.session.seeds import scaled, seeds
from tests.support.ways.ddl_way import OF_TABLES_WITH_DDL, DdlWay, await_copies, structure, way_fixture
from tests.support.ways.one_way import CAPTURE, OneWay, create_tables, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

way = way_fixture(DdlWay, OF_TABLES_WITH_DDL)


def test_rows_around_changes_of_one_transaction_arrive_in_order(way: DdlWay) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("INSERT INTO first VALUES (1001, 'before')")
        user.execute("ALTER TABLE first ADD COLUMN w integer NOT NULL DEFAULT 7, DROP COLUMN v")
        user.execute("INSERT INTO first VALUES (1002, 1)")
        user.execute("ALTER TABLE first RENAME COLUMN w TO x")
        user.execute("UPDATE first SET x = x + 1 WHERE id IN (1, 1001, 1002)")
        user.execute("CREATE UNIQUE INDEX first_even ON first (id) WHERE id % 2 = 0")
        user.execute("INSERT INTO first VALUES (1003, 3)")
    way.assert_same()
    assert execute(way.destination_dsn, "SELECT id, x FROM first WHERE id > 1000 ORDER BY id") == [
        (1001, 8),
        (1002, 2),
        (1003, 3),
    ]
    assert way.outcomes() == ["APPLIED"] * 3


def test_what_is_rolled_back_never_arrives(way: DdlWay) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute("ALTER TABLE first ADD COLUMN gone integer")
        user.rollback()
        user.execute("ALTER TABLE first ADD COLUMN kept integer")
        user.execute("SAVEPOINT half")
        user.execute("ALTER TABLE first ADD COLUMN gone integer; INSERT INTO first VALUES (1001, 'gone', 1, 1)")
        user.execute("ROLLBACK TO half")
        user.execute("INSERT INTO first VALUES (1002, 'kept', 2)")
    way.assert_same()
    assert way.outcomes() == ["APPLIED"]


def test_change_that_an_operator_made_before_is_passed_over(way: DdlWay) -> None:
    execute(way.destination_dsn, "ALTER TABLE first ADD COLUMN w integer DEFAULT 7")
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer DEFAULT 7")
    execute(way.source_dsn, "INSERT INTO first VALUES (1001, 'behind', 8)")
    way.assert_same()
    assert way.outcomes() == ["PASSED OVER"]


class Early(DdlWay):
    """Users change the table when it is captured and not copied yet."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._is_early = True
        super().__init__(*arguments, **more)

    def _driver(self) -> ApplyDriver:
        if self._is_early:
            execute(self.source_dsn, "CREATE INDEX early ON first (v); ALTER TABLE first ALTER v SET DEFAULT 'd'")
        self._is_early = False
        return super()._driver()


def test_change_before_the_copy_is_recorded_because_no_copy_has_it(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source_database, destination_database)
    way = Early(tmp_path, source_database, destination_database, monkeypatch, text=OF_TABLES_WITH_DDL)
    try:
        await_copies(way)
        execute(way.source_dsn, "CREATE INDEX late ON first (v, id)")
        way.settle()
        found = execute(
            way.destination_dsn,
            "SELECT ddl_text LIKE '%early%', outcome, reason LIKE '%older than the table''s copy%'"
            " FROM headrace.dba_apply_ddl ORDER BY ddl_number",
        )
        assert found == [(True, "NOT APPLIED", True), (True, "NOT APPLIED", True), (False, "APPLIED", False)]
        here = structure(way.destination_dsn, "first")
        assert here is not None
        assert [each.name for each in here.indexes] == ["late"]
        assert way.driver.control.status().counters["ddl_not_applied"] == 2
    finally:
        way.close()


def test_change_that_rows_here_refuse_pauses_until_they_are_corrected(way: DdlWay) -> None:
    execute(way.destination_dsn, "UPDATE first SET v = NULL WHERE id = 5")
    with psycopg.connect(way.source_dsn) as user:
        user.execute("INSERT INTO log VALUES (1)")
        user.execute("ALTER TABLE first ALTER v SET NOT NULL")
        user.execute("INSERT INTO log VALUES (2)")
    way.paused_on("contains null values")
    assert execute(way.destination_dsn, "SELECT count(*) FROM log") == [(0,)], "nothing of the transaction is there"
    execute(way.destination_dsn, "UPDATE first SET v = 'v' WHERE id = 5")
    way.assert_same()
    assert way.outcomes() == ["APPLIED"]


def test_change_may_be_left_out_by_the_printed_statement(way: DdlWay) -> None:
    execute(way.destination_dsn, "ALTER TABLE first ADD COLUMN w text")
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer; INSERT INTO log VALUES (1)")
    said = way.paused_on("headrace.ddl_skip")
    execute(way.destination_dsn, said[said.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0])
    way.settle()
    assert way.outcomes() == ["SKIPPED"]
    assert execute(way.destination_dsn, "SELECT count(*) FROM log") == [(1,)]


UNKNOWN = "the table before the change is not known"


def test_change_after_overlapping_ones_is_named_and_not_made(way: DdlWay) -> None:
    with psycopg.connect(way.source_dsn) as other:
        other.execute("CREATE INDEX i1 ON first (v)")
        execute(way.source_dsn, "CREATE INDEX i2 ON first (v, id)")
    execute(way.source_dsn, "DROP INDEX i1")
    way.settle()
    assert way.outcomes() == ["APPLIED", "APPLIED", "NOT APPLIED"]
    assert not_applied(way) == [("DROP INDEX", UNKNOWN)]
    execute(way.destination_dsn, "DROP INDEX i1")
    way.assert_same()


def test_change_that_was_missed_is_named_after_up(way: DdlWay) -> None:
    with psycopg.connect(way.source_dsn) as other:
        other.execute("LOCK TABLE headrace_ddl.log IN ACCESS EXCLUSIVE MODE")
        execute(way.source_dsn, "CREATE INDEX i1 ON first (v)")
    way._source.prepare(way.spec.name, way.spec.capture_rules("dbs1"))
    way.settle()
    assert not_applied(way) == [("ALTER TABLE", UNKNOWN)]
    execute(way.destination_dsn, "CREATE INDEX i1 ON first (v)")
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer")
    way.assert_same()
    assert way.outcomes() == ["NOT APPLIED", "APPLIED"]


def not_applied(way: DdlWay) -> list[tuple[object, ...]]:
    return execute(
        way.destination_dsn, "SELECT command_type, reason FROM headrace.dba_ddl_not_applied ORDER BY ddl_number"
    )


# Each change with its own number, so that a name is never used twice.
CHANGES: tuple[Callable[[int], str], ...] = (
    lambda number: f"ALTER TABLE first ADD COLUMN c{number} integer",
    lambda number: f"ALTER TABLE first ADD COLUMN c{number} text NOT NULL DEFAULT 'c{number}'",
    lambda number: f"ALTER TABLE first ADD COLUMN c{number} timestamptz DEFAULT now()",
    lambda number: f"CREATE INDEX i{number} ON first (v, id)",
    lambda number: f"CREATE UNIQUE INDEX i{number} ON first (id, v)",
    lambda number: f"ALTER TABLE first ADD CONSTRAINT k{number} CHECK (id > -{number})",
    lambda number: f"ALTER TABLE first ADD CONSTRAINT k{number} UNIQUE (id, v)",
    lambda number: f"ALTER TABLE first ALTER v SET DEFAULT 'd{number}'",
    lambda number: "ALTER TABLE first ALTER v DROP DEFAULT",
    lambda number: f"DO $$ BEGIN EXECUTE 'ALTER TABLE first ADD COLUMN c{number} numeric(9, 2)'; END $$",
)
_GONE = """SELECT format('ALTER TABLE first DROP COLUMN %I', attname) FROM pg_attribute
WHERE attrelid = 'first'::regclass AND attname ~ '^c' AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT format('DROP INDEX %I', indexrelid::regclass) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
WHERE indrelid = 'first'::regclass AND relname ~ '^i'
UNION ALL SELECT format('ALTER TABLE first DROP CONSTRAINT %I', conname) FROM pg_constraint
WHERE conrelid = 'first'::regclass AND conname ~ '^k'
UNION ALL SELECT format('ALTER TABLE first RENAME COLUMN %I TO %I', attname, attname || 'r') FROM pg_attribute
WHERE attrelid = 'first'::regclass AND attname ~ '^c' AND attnum > 0 AND NOT attisdropped
ORDER BY 1"""


def user_history(dsn: str, rng: random.Random, transactions: int, first: int) -> None:
    """Change structure and rows at random, some of it rolled back."""
    with psycopg.connect(dsn) as user:
        for number in range(first, first + transactions):
            for _ in range(rng.randint(1, 3)):
                user.execute(f"INSERT INTO first (id, v) VALUES ({100_000 + rng.getrandbits(28)}, 'h{number}')")
                user.execute(f"UPDATE first SET v = 'u{number}' WHERE id = {rng.randint(1, 500)}")
                gone = user.execute(_GONE).fetchall()
                if gone and rng.random() < 0.4:
                    user.execute(str(rng.choice(gone)[0]).encode())
                else:
                    change = rng.choice(CHANGES)(number * 10 + rng.randrange(10))
                    user.execute("SAVEPOINT one")
                    try:
                        user.execute(change.encode())
                    except psycopg.errors.DuplicateObject:
                        user.execute("ROLLBACK TO one")
                    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateColumn):
                        user.execute("ROLLBACK TO one")
                user.execute(f"INSERT INTO log VALUES ({-number})")
            if rng.random() < 0.2:
                user.rollback()
            else:
                user.commit()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("ddl_one_way", test=1, soak=3))
def test_random_changes_arrive_once_under_load_whatever_restarts(way: DdlWay, seed: int) -> None:
    rng = random.Random(seed)
    with load(way.source_dsn):
        for turn in range(scaled(3, 8)):
            user_history(way.source_dsn, rng, 6, first=1 + turn * 6)
            broken = rng.choice(["driver", "capture", "sessions"])
            if broken == "driver":
                way.kill_driver()
            elif broken == "capture":
                way.replace_capture()
            else:
                execute(
                    way.destination_dsn,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND"
                    " application_name ~ 'apply' AND pid <> pg_backend_pid()",
                )
    way.assert_same()
    assert set(way.outcomes()) <= {"APPLIED", "PASSED OVER"}


def test_nothing_of_it_is_installed_without_a_rule_that_asks(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source_database, destination_database)
    made = OneWay(tmp_path, source_database, destination_database, monkeypatch)
    try:
        assert execute(source_database, "SELECT count(*) FROM pg_event_trigger") == [(0,)]
        assert execute(source_database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace_ddl'") == [(0,)]
        assert CAPTURE in made.hosts
    finally:
        made.close()
