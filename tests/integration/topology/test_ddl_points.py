"""What becomes of a topology with `ddl: true` in cases that its users meet: points of docs/reference/ddl-points.md.

Two real servers in one process: the real hosts, and a driver on threads.
"""

from __future__ import annotations

import psycopg
import pytest

from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import digest, execute
from tests.support.ways.ddl_way import OF_SCHEMA_WITH_DDL, DdlWay, way_fixture
from tests.support.ways.one_way import WAIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Way(DdlWay):
    """The topology, and what tests ask of it."""

    settled_states = frozenset({"DONE"})

    def assert_same_rows(self, *tables: str) -> None:
        """Compare rows behind everything that was written."""
        self.settle()
        for name in tables:
            assert digest(self.destination_dsn, name) == digest(self.source_dsn, name), name
        assert execute(self.destination_dsn, "SELECT * FROM headrace.apply_error") == []

    def reasons(self) -> list[tuple[object, ...]]:
        return execute(
            self.destination_dsn, "SELECT command_type, reason FROM headrace.dba_ddl_not_applied ORDER BY ddl_number"
        )


way = way_fixture(Way, OF_SCHEMA_WITH_DDL)


def test_default_of_a_new_column_that_comes_late_overwrites_no_newer_value(way: Way) -> None:
    with psycopg.connect(way.destination_dsn) as blocker:
        blocker.execute("LOCK TABLE first IN ACCESS SHARE MODE")
        execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer DEFAULT 7")
        execute(way.source_dsn, "UPDATE first SET w = 8 WHERE id = 1; INSERT INTO first VALUES (1001, 'n', 9)")
        execute(way.source_dsn, "ALTER TABLE first ADD COLUMN x integer DEFAULT 1; UPDATE first SET x = 2 WHERE id = 2")
        waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'first'::regclass"
        wait_for("the DDL at the lock", lambda: execute(way.destination_dsn, waiting)[0][0], WAIT_S)
    way.assert_same_rows("first")
    changed = "SELECT id, w, x FROM first WHERE id IN (1, 2, 3, 1001) ORDER BY id"
    assert execute(way.destination_dsn, changed) == [(1, 8, 1), (2, 7, 2), (3, 7, 1), (1001, 9, 1)]


def test_column_made_early_by_hand_takes_the_sources_newer_values(way: Way) -> None:
    execute(way.destination_dsn, "ALTER TABLE first ADD COLUMN w integer DEFAULT 7")
    execute(way.source_dsn, "INSERT INTO first VALUES (1001, 'before')")
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer DEFAULT 7; UPDATE first SET w = 8 WHERE id = 1001")
    way.assert_same_rows("first")
    assert way.outcomes() == ["PASSED OVER"]


def execute_errors(way: Way) -> None:
    way.driver.control.begin_execution("again", pb.ErrorsRequest(all=True))
    wait_for("the execution", lambda: way.driver.control.execution_outcomes("again", 1.0).is_over, WAIT_S)


def test_row_with_a_label_that_the_destination_lacks_is_an_error_until_it_has_it(way: Way) -> None:
    for dsn in (way.destination_dsn, way.source_dsn):
        execute(dsn, "CREATE TYPE mood AS ENUM ('so')")
    execute(way.source_dsn, "CREATE TABLE moods (id integer PRIMARY KEY, m mood); INSERT INTO moods VALUES (1, 'so')")
    execute(way.source_dsn, "ALTER TYPE mood ADD VALUE 'la'")
    execute(way.source_dsn, "INSERT INTO moods VALUES (2, 'la')")
    wait_for("the error", lambda: execute(way.destination_dsn, "SELECT number FROM headrace.apply_error"), WAIT_S)
    assert way.outcomes() == ["APPLIED"]
    execute(way.destination_dsn, "ALTER TYPE mood ADD VALUE 'la'")
    execute_errors(way)
    way.assert_same_rows("moods")


def test_rows_follow_tables_that_exchange_names(way: Way) -> None:
    execute(way.source_dsn, "CREATE TABLE a (id integer PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'a')")
    execute(way.source_dsn, "CREATE TABLE b (id integer PRIMARY KEY, v text); INSERT INTO b VALUES (1, 'b')")
    way.assert_same_rows("a", "b")
    execute(
        way.source_dsn, "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT"
    )
    execute(way.source_dsn, "INSERT INTO a VALUES (2, 'of b'); INSERT INTO b VALUES (2, 'of a')")
    way.assert_same_rows("a", "b")
    assert way.reasons() == []


def test_table_that_is_written_anew_sends_no_rows_and_goes_on(way: Way) -> None:
    execute(way.source_dsn, "INSERT INTO first VALUES (1001, 'before')")
    execute(way.source_dsn, "VACUUM FULL first")
    execute(way.source_dsn, "CLUSTER first USING first_pkey")
    execute(way.source_dsn, "REINDEX TABLE CONCURRENTLY first")
    execute(way.source_dsn, "UPDATE first SET v = 'behind' WHERE id = 1001; CREATE INDEX i ON first (v)")
    way.assert_same_rows("first")
    assert way.outcomes() == ["APPLIED"]


def test_truncated_log_costs_the_next_change_and_no_row(way: Way) -> None:
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN w integer; INSERT INTO first VALUES (1001, 'n', 1)")
    execute(way.source_dsn, "INSERT INTO log VALUES (1)")
    execute(way.source_dsn, "TRUNCATE headrace_ddl.log, log; INSERT INTO log VALUES (2)")
    execute(way.source_dsn, "CREATE INDEX i ON first (v); INSERT INTO first VALUES (1002, 'n', 2)")
    way.assert_same_rows("first", "log")
    assert way.reasons() == [("CREATE INDEX", "the table before the change is not known")]
    execute(way.source_dsn, "ALTER TABLE first ADD COLUMN x integer; INSERT INTO first VALUES (1003, 'n', 3, 3)")
    way.assert_same_rows("first")
    assert way.outcomes() == ["APPLIED", "NOT APPLIED", "APPLIED"]


def test_deadlock_with_a_writer_of_the_destination_ends_and_loses_nothing(way: Way) -> None:
    execute(way.source_dsn, "INSERT INTO log VALUES (1)")
    way.assert_same_rows("log")
    with psycopg.connect(way.destination_dsn) as writer:
        writer.execute("LOCK TABLE first IN ROW EXCLUSIVE MODE")
        with psycopg.connect(way.source_dsn) as user:
            user.execute("UPDATE log SET number = 2")
            user.execute("ALTER TABLE first ADD COLUMN w integer")
            user.execute("INSERT INTO first VALUES (1001, 'n', 1)")
        waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'first'::regclass"
        wait_for("the DDL at the lock", lambda: execute(way.destination_dsn, waiting)[0][0], WAIT_S)
        try:
            writer.execute("UPDATE log SET number = number")  # the apply server has this row
            writer.rollback()
        except psycopg.errors.DeadlockDetected:
            writer.rollback()
    way.assert_same_rows("first", "log")
    assert way.outcomes() == ["APPLIED"]


def test_prepared_transaction_arrives_when_it_is_committed(way: Way) -> None:
    name = psycopg.conninfo.conninfo_to_dict(way.source_dsn)["dbname"]
    execute(way.source_dsn, f"BEGIN; ALTER TABLE first ADD COLUMN gone int; PREPARE TRANSACTION '{name}'")
    execute(way.source_dsn, f"ROLLBACK PREPARED '{name}'")
    execute(
        way.source_dsn,
        "BEGIN; INSERT INTO first VALUES (1001, 'x'); ALTER TABLE first ADD COLUMN w int; INSERT INTO first VALUES (1002,"
        f" 'x', 1); CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1); PREPARE TRANSACTION '{name}'",
    )
    execute(way.source_dsn, "INSERT INTO log VALUES (1)")
    way.assert_same_rows("log")
    assert way.outcomes() == []
    execute(way.source_dsn, f"COMMIT PREPARED '{name}'")
    way.assert_same_rows("first", "made")
    assert way.outcomes() == ["APPLIED"] * 2


def test_string_of_several_statements_arrives_once(way: Way) -> None:
    execute(
        way.source_dsn,
        "ALTER TABLE first ADD COLUMN w int; INSERT INTO first VALUES (1001, 'x', 1); CREATE TABLE made (id int PRIMARY"
        " KEY); INSERT INTO made VALUES (1); ALTER TABLE first DROP COLUMN v; UPDATE first SET w = 2 WHERE id = 1001",
    )
    way.assert_same_rows("first", "made")
    assert way.outcomes() == ["APPLIED"] * 3
