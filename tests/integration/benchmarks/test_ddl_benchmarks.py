"""The benchmark of DDL does what it describes, with a few statements on one server. Its times are of no interest."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks.ddl import (
    PER_ROUND,
    TIMED,
    DdlLoad,
    differences,
    load_result,
    make_many,
    times_of,
    with_and_without,
)
from benchmarks.workloads import LatencyResult, WorkloadError
from headrace.load.latency import Crossings
from tests.support.databases.statements import execute, row_of

pytestmark = pytest.mark.postgres

TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"


def test_load_runs_whole_rounds_and_leaves_its_tables_as_they_were(fresh_database, pg_source):
    dsn, load = fresh_database(pg_source), DdlLoad(per_minute=6000.0, duration_s=0.3)
    load.make_tables(dsn)
    load.fill(dsn)
    before = execute(dsn, TABLES)
    assert load.count == 5 * PER_ROUND
    crossings, took_s = load.run(dsn, dsn, timeout_s=60.0)
    assert took_s > 0.0
    assert len(times_of(crossings)) == load.count
    assert execute(dsn, "SELECT count(*), max(id) FROM bench_ddl") == [(30, 30)]
    assert execute(dsn, TABLES) == before
    assert execute(dsn, "SELECT count(*) FROM bench_filled0") == [(10_000,)]


def test_load_that_the_source_refuses_is_noticed(fresh_database, pg_source):
    dsn, load = fresh_database(pg_source), DdlLoad(per_minute=6000.0, duration_s=0.1)
    load.make_tables(dsn)
    execute(dsn, "DROP TABLE bench_filled0")
    with pytest.raises(WorkloadError, match='relation "bench_filled0" does not exist'):
        load.run(dsn, dsn, timeout_s=60.0)


def test_differences_of_both_sides_are_named(fresh_database, prepared_database, pg_source):
    source, destination = fresh_database(pg_source), prepared_database(pg_source)
    for dsn in (source, destination):
        execute(dsn, "CREATE TABLE a (id integer PRIMARY KEY)")
    assert differences(source, destination) == []
    execute(source, "ALTER TABLE a ADD COLUMN b integer")
    (found,) = differences(source, destination)
    assert "'b', 'integer'" in found


def test_statements_are_timed_with_and_without_our_event_triggers(fresh_database, pg_source):
    dsn = fresh_database(pg_source)
    make_many(dsn, 1, 7)
    found = with_and_without(dsn, 5)
    assert found.keys() == {"without", "with"}
    assert all(times.keys() == TIMED.keys() and min(times.values()) > 0.0 for times in found.values())
    with psycopg.connect(dsn) as connection:
        assert row_of(connection.execute(TABLES)) == (7,)
        assert row_of(connection.execute("SELECT count(*) FROM pg_event_trigger")) == (0,)


ROWS = LatencyResult(p50_ms=1.0, p99_ms=2.0, max_ms=3.0, count=10)


def result_of(delays_s: list[float], took_s: float):
    crossings, load = Crossings(), DdlLoad(per_minute=600.0, duration_s=6.0)
    for number, delay_s in enumerate(delays_s, 1):
        crossings.commit(number, number * 0.1)
        crossings.see([number], number * 0.1 + delay_s)
    return load_result(load, crossings, took_s, [ROWS, ROWS])


def test_figures_of_a_load_say_whether_apply_keeps_up():
    steady, behind = [0.05] * 60, [0.2 * number for number in range(60)]
    found = result_of(steady, 6.0)
    assert (found.per_minute, found.ddl.p50_ms, found.last_p50_ms, found.drained_s) == (600.0, 50.0, 50.0, 0.05)
    assert found.keeps_up
    assert not result_of(behind, 6.0).keeps_up, "the delay grows"
    assert not result_of(steady, 7.0).keeps_up, "the source did not reach the rate"
