"""The benchmark's workloads write what they describe, at a hundredth of their size: on one server, without measuring."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks.servers import wait_slot_free
from benchmarks.workloads import Bulk, Latency, Oltp, OneTransaction, Workload, has_mark, make_mark_table, write_mark
from tests.support.databases.statements import row_of

pytestmark = pytest.mark.postgres


def written(dsn: str, workload: Workload) -> psycopg.Connection:
    workload.make_tables(dsn)
    workload.fill(dsn)
    workload.write_backlog(dsn)
    return psycopg.connect(dsn, autocommit=True)


def test_bulk_writes_inserts_updates_and_deletes_of_a_hundred_rows_each(fresh_database, pg_source):
    workload = Bulk.of(0.01)
    with written(fresh_database(pg_source), workload) as connection:
        rows, transactions = row_of(connection.execute("SELECT count(*), count(DISTINCT xmin::text) FROM bench_rows"))
        changed = connection.execute("SELECT count(*) FROM bench_rows WHERE note LIKE 'changed%'").fetchone()
    # 20 × 100 inserted, the first 10 × 100 of them updated, 5 × 100 of those deleted.
    assert (rows, transactions, changed) == (1500, 15, (500,))
    assert (workload.transactions, workload.row_changes) == (20 + 10 + 5, 3500)


def test_single_transaction_workload_writes_one_transaction(fresh_database, pg_source):
    with written(fresh_database(pg_source), OneTransaction.of(0.01)) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT xmin::text) FROM bench_rows").fetchone()
    assert found == (5000, 1)


def test_oltp_is_pgbench_and_its_content_holds_the_balances(fresh_database, pg_source):
    workload = Oltp(scale=1, transactions=40, row_changes=160)
    with written(fresh_database(pg_source), workload) as connection:
        arrived = workload.arrived(connection)
        assert arrived is not None
        assert arrived[0] == 40
        content = workload.content(connection)
        assert content["balances"] == []
        connection.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 7")
        after = workload.content(connection)
    assert after["pgbench_accounts"] != content["pgbench_accounts"]
    assert len(after["balances"]) == 1


def test_contents_with_one_other_value_differ_and_the_mark_is_the_last_row(fresh_database, pg_source):
    dsn, workload = fresh_database(pg_source), OneTransaction.of(0.001)
    make_mark_table(dsn)
    with written(dsn, workload) as connection:
        before, arrived = workload.content(connection), workload.arrived(connection)
        connection.execute("UPDATE bench_rows SET note = 'v' || note WHERE id = 5")
        assert workload.arrived(connection) == arrived
        assert workload.content(connection) != before
        assert not has_mark(connection, 0)
        assert has_mark(connection, write_mark(dsn))
        assert write_mark(dsn) == 1


def test_latency_counts_every_written_row(fresh_database, pg_source):
    dsn, latency = fresh_database(pg_source), Latency(duration_s=0.3)
    latency.make_tables(dsn)
    for _ in range(2):
        result = latency.run(dsn, dsn, timeout_s=60.0)
        assert result.count == 30
        assert result.p50_ms <= result.p99_ms <= result.max_ms


def test_free_slot_is_distinguished_from_a_missing_one(fresh_database, pg_source):
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('bench_free', 'pgoutput')")
        try:
            wait_slot_free(connection, "bench_free")
            with pytest.raises(TimeoutError):
                wait_slot_free(connection, "bench_other", timeout_s=0.05)
        finally:
            connection.execute("SELECT pg_drop_replication_slot('bench_free')")
