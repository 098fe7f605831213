"""CREATE INDEX CONCURRENTLY from one real server to another, in one process: made beside the rows, whatever restarts."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.matrices import values
from tests.support.ways.ddl_way import OF_TABLES_WITH_DDL, DdlWay, way_fixture
from tests.support.ways.one_way import WAIT_S, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

INDEX = "SELECT pg_get_indexdef(indexrelid), indisvalid FROM pg_index WHERE indexrelid = to_regclass('public.i')"


way = way_fixture(DdlWay, OF_TABLES_WITH_DDL, values(["queued"], "queued"))


def made(way: DdlWay) -> None:
    """Wait until no index is being made."""
    wait_for("the index", lambda: execute(way.destination_dsn, "SELECT number FROM headrace.ddl_job") == [], WAIT_S)
    assert execute(way.destination_dsn, INDEX) == execute(way.source_dsn, INDEX)
    for table in ("first", "log"):
        assert digest(way.source_dsn, table) == digest(way.destination_dsn, table), table
    assert execute(way.destination_dsn, "SELECT * FROM headrace.apply_error") == []


def states(way: DdlWay) -> list[tuple[str, str]]:
    return [(job.index, job.state) for job in way.driver.control.status().ddl_jobs]


def test_rows_are_applied_while_an_index_is_made_and_the_next_driver_goes_on(way: DdlWay) -> None:
    with psycopg.connect(way.destination_dsn) as user:
        user.execute("LOCK TABLE first IN ROW EXCLUSIVE MODE")
        with load(way.source_dsn):
            execute(way.source_dsn, "CREATE INDEX CONCURRENTLY i ON first (v)")
        execute(way.source_dsn, "INSERT INTO log VALUES (1)")
        way.settle()
        wait_for("an index that is being made", lambda: states(way) == [("i", "RUNNING")], WAIT_S)
        assert way.outcomes() == ["SCHEDULED"]
        way.kill_driver()
        execute(way.source_dsn, "INSERT INTO log VALUES (2)")
        way.settle()
        wait_for("an index that is being made again", lambda: states(way) == [("i", "RUNNING")], WAIT_S)
        user.rollback()
    made(way)
    assert way.outcomes() == ["APPLIED"]
    wait_for("nothing left", lambda: states(way) == [], WAIT_S)


def test_change_of_the_table_waits_for_its_index_and_says_so(way: DdlWay) -> None:
    with psycopg.connect(way.destination_dsn) as user:
        user.execute("LOCK TABLE first IN ROW EXCLUSIVE MODE")
        execute(way.source_dsn, "CREATE INDEX CONCURRENTLY i ON first (v)")
        wait_for("an index that is being made", lambda: states(way) == [("i", "RUNNING")], WAIT_S)
        execute(way.source_dsn, "ALTER TABLE first RENAME v TO w; INSERT INTO first VALUES (1001, 'behind')")
        way.paused_on('waits until index "i"')
        user.rollback()
    way.settle()
    made(way)
    assert way.outcomes() == ["APPLIED", "APPLIED"]
