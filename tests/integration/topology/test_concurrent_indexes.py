"""CREATE INDEX CONCURRENTLY from one real server to another, in one process: made beside the rows, whatever restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.lcr.scn import Scn
from tests.support.apply.apply_driver import end_of_log, wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.matrices import values
from tests.support.ways.ddl_way import DdlWay, opened
from tests.support.ways.one_way import ONE_WAY, WAIT_S, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

WITH_DDL = ONE_WAY.replace("to: [dbs2]}", "to: [dbs2], ddl: true}")
INDEX = "SELECT pg_get_indexdef(indexrelid), indisvalid FROM pg_index WHERE indexrelid = to_regclass('public.i')"


@pytest.fixture(params=values(["queued"], "queued"))
def way(
    request: pytest.FixtureRequest,
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DdlWay]:
    how = request.param
    with opened(DdlWay, how, tmp_path, source_database, destination_database, monkeypatch, WITH_DDL) as made:
        yield made


def applied(way: DdlWay) -> None:
    """Wait until all rows are applied, whether or not an index is still being made."""
    end = Scn(end_of_log(way.source_dsn))

    def is_applied() -> bool:
        way.tend()
        return way.driver.control.status().low_watermark_scn >= end

    try:
        wait_for("all rows", is_applied, WAIT_S)
    except AssertionError as error:
        raise AssertionError(str(way.driver.control.status())) from error


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
        applied(way)
        wait_for("an index that is being made", lambda: states(way) == [("i", "RUNNING")], WAIT_S)
        assert way.outcomes() == ["SCHEDULED"]
        way.driver.stop(0.0)
        assert way.driver.join(WAIT_S)
        way.driver = way._driver()
        way.driver.start()
        execute(way.source_dsn, "INSERT INTO log VALUES (2)")
        applied(way)
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
    applied(way)
    made(way)
    assert way.outcomes() == ["APPLIED", "APPLIED"]
