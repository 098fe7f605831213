"""When the last record of a table is the table before a statement, and when it is not."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.databases.ddl_recording import Recording, columns, names

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_serializable_transactions_are_not_aborted_for_our_reads(recording: Recording) -> None:
    """Both would read what the other one writes, on one page of an index."""
    site = recording.site
    recording.run("CREATE TABLE u (id int)")
    with psycopg.connect(site.dsn) as one, psycopg.connect(site.dsn) as two:
        for session in (one, two):
            session.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            session.execute("SELECT 1")
        one.execute("ALTER TABLE t ADD COLUMN c int")
        two.execute("ALTER TABLE u ADD COLUMN c int")
        one.execute("ALTER TABLE t ADD COLUMN d int")
        two.execute("ALTER TABLE u ADD COLUMN d int")
    made = recording.records()
    assert [(each["before"], each["is_known"]) for each in made] == [(None, False)] * 4
    assert columns(recording.one("ALTER TABLE t ADD COLUMN e int")["before"]).keys() == {"id", "a", "b", "c", "d"}
    recording.run("CREATE INDEX i ON t (a)")
    (record,) = recording.run("BEGIN ISOLATION LEVEL SERIALIZABLE; DROP INDEX i; COMMIT")
    assert record["failed"] == "0A000", "only a record that it may not read has the index's table"


def test_repeatable_read_records_what_it_sees(recording: Recording) -> None:
    site = recording.site
    with psycopg.connect(site.dsn) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT 1")
        recording.run("ALTER TABLE t ADD COLUMN c int")
        session.execute("ALTER TABLE t ADD COLUMN d int")
    record = recording.one()
    assert columns(record["before"]).keys() == {"id", "a", "b"}
    assert columns(record["after"]).keys() == {"id", "a", "b", "d"}
    record = recording.one("ALTER TABLE t ADD COLUMN e int")
    assert columns(record["before"]).keys() == {"id", "a", "b", "d"}
    assert columns(record["after"]).keys() == {"id", "a", "b", "c", "d", "e"}
    assert record["is_known"] is False, "c was there before"
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(site.dsn) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT 1")
        recording.run("DROP INDEX i")
        session.execute("ALTER TABLE t ADD COLUMN f int")
    (record,) = recording.records()
    assert record.get("failed") == "55000", "the index still has its row, and no definition"


def test_last_record_of_overlapping_transactions_is_not_the_table_before(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as one:
        one.execute("CREATE INDEX i1 ON t (a)")
        recording.site.run("CREATE INDEX i2 ON t (b)")
    first, second = recording.records()
    assert (first["is_known"], second["is_known"]) == (True, True)
    assert (names(first["after"], "indexes"), names(second["after"], "indexes")) == (["i1"], ["i2"])
    record = recording.one("DROP INDEX i1")
    assert record["is_known"] is False
    assert record["before"] == record["after"], "the last record has the table without i1, too"
    assert record["gone"] == [{"kind": "index", "name": "i1"}]
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]


def test_record_that_lacks_its_own_transaction_is_not_the_table_before(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as one, psycopg.connect(recording.site.dsn) as two:
        two.execute("CREATE INDEX i2 ON t (b)")
        one.execute("CREATE INDEX i1 ON t (a)")
        two.commit()
        one.execute("CREATE INDEX i3 ON t (a, b)")
    assert [each["is_known"] for each in recording.records()] == [True, True, False]
    assert recording.one("DROP INDEX i3")["is_known"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_last_record_with_an_old_snapshot_is_not_the_table_before(recording: Recording, level: str) -> None:
    with psycopg.connect(recording.site.dsn) as other:
        other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}; SELECT".encode())
        recording.run("ALTER TABLE t ADD COLUMN c int")
        other.execute("CREATE INDEX i ON t (a)")
    (record,) = recording.records()
    assert "c" not in columns(record["after"])
    record = recording.one("ALTER TABLE t RENAME COLUMN c TO d")
    assert record["is_known"] is False, "else d is a new column"
    assert recording.one("ALTER TABLE t RENAME COLUMN d TO e")["is_known"]


def test_table_that_was_written_anew_without_a_record_is_not_known(recording: Recording) -> None:
    site = recording.site
    site.run("INSERT INTO t VALUES (1, 'x', 1)")
    without = "ALTER EVENT TRIGGER {0} DISABLE; {1}; ALTER EVENT TRIGGER {0} ENABLE ALWAYS"
    site.run(without.format("headrace_ddl_end", "ALTER TABLE t ADD COLUMN w float8 DEFAULT random()"))
    record = recording.one("ALTER TABLE t ADD COLUMN c int")
    assert (record["rewritten"], record["is_known"]) == (0, False), "nobody knows the values of w"
    site.run(without.format("headrace_ddl_end", "ALTER TABLE t ALTER b TYPE bigint USING b + 1"))
    assert recording.one("ALTER TABLE t RENAME COLUMN c TO d")["is_known"] is False
    site.run("VACUUM FULL t")
    assert recording.one("CREATE INDEX i ON t (a)")["is_known"], "no values are in question"
    site.run("VACUUM FULL t")
    assert recording.one("ALTER TABLE t ADD COLUMN e int")["is_known"] is False
    assert recording.one("ALTER TABLE t ADD COLUMN f int")["is_known"]
    record = recording.one("BEGIN; TRUNCATE t; ALTER TABLE t ADD COLUMN g int; INSERT INTO t VALUES (1); COMMIT")
    assert record["is_known"], "without rows there are no values"
    assert recording.one("ALTER TABLE t ADD COLUMN h int")["is_known"]
    assert recording.one("ALTER TABLE t ALTER b TYPE int, ADD COLUMN k int")["rewritten"]
    assert recording.one("ALTER TABLE t ADD COLUMN l int")["is_known"]
