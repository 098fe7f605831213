"""Old records of DDL are removed, and nothing that a later record is compared with."""

from __future__ import annotations

import psycopg
import pytest

from headrace.databases.postgres.source.ddl import trimming
from tests.support.databases.ddl_recording import DDL, Recording, columns, names
from tests.support.databases.postgres_site import Site, slot_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def trimmed(recording: Recording) -> int:
    """Let every record be old, and trim; return how many are left."""
    site = recording.site
    site.run("UPDATE headrace_ddl.log SET at = at - interval '8 days'")
    while site.source.trim_ddl_log():
        pass
    return kept(site)


def kept(site: Site) -> int:
    (count,) = site.run("SELECT count(*) FROM headrace_ddl.log").fetchone() or (0,)
    return int(str(count))


def test_last_record_of_each_table_is_kept(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "_BATCH_ROWS", 2)
    recording.run("CREATE TABLE u (id int)", "ALTER TABLE u ADD COLUMN a int", "CREATE TABLE gone (id int)")
    recording.run("ALTER TABLE gone ADD COLUMN a int", "DROP TABLE gone")
    recording.run("ALTER TABLE t ADD COLUMN c int", "CREATE INDEX i ON t (c)", "CREATE INDEX j ON t (b)")
    assert kept(recording.site) == 9
    assert trimmed(recording) == 2
    record = recording.one("DROP INDEX i")
    assert record["is_known"], "the index is found"
    assert columns(record["before"]).keys() == {"id", "a", "b", "c"}
    assert (names(record["before"], "indexes"), names(record["after"], "indexes")) == (["i", "j"], ["j"])
    assert recording.one("ALTER TABLE u ADD COLUMN b int")["is_known"]
    assert recording.site.prepare(DDL) == (), "u was published when it was made, and nothing is due"


def test_young_records_are_kept(recording: Recording) -> None:
    recording.run("ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN d int")
    recording.site.run("UPDATE headrace_ddl.log SET at = at - interval '6 days'")
    assert not recording.site.source.trim_ddl_log()
    assert kept(recording.site) == 3


def test_records_of_overlapping_transactions_are_kept_until_one_sees_them(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as one:
        one.execute("CREATE INDEX i1 ON t (a)")
        recording.site.run("CREATE INDEX i2 ON t (b)")
    recording.records()
    assert trimmed(recording) == 2
    record = recording.one("DROP INDEX i1")
    assert record["is_known"] is False
    assert trimmed(recording) == 1
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]


def test_records_behind_an_open_transaction_leave_one_that_answers_for_them(recording: Recording) -> None:
    with psycopg.connect(recording.site.dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT 1")
        recording.run(
            "ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN d int", "ALTER TABLE t ADD COLUMN e int"
        )
        assert trimmed(recording) == 1
        other.execute("CREATE INDEX i ON t (a)")
    recording.records()
    assert trimmed(recording) == 2
    assert recording.one("ALTER TABLE t RENAME COLUMN c TO f")["is_known"] is False, "else f is a new column"


def test_thousand_records_of_one_transaction_are_trimmed(recording: Recording) -> None:
    recording.run(
        "DO $$ BEGIN FOR i IN 1..600 LOOP EXECUTE format('ALTER TABLE t ADD COLUMN c%s int', i); EXECUTE format('ALTER"
        " TABLE t DROP COLUMN c%s', i); END LOOP; END $$"
    )
    assert trimmed(recording) == 1
    assert recording.one("ALTER TABLE t ADD COLUMN c int")["is_known"]


def test_change_that_was_not_published_is_found_behind_a_trim(recording: Recording) -> None:
    site = recording.site
    site.run(f"ALTER PUBLICATION {slot_of(site)} DROP TABLE headrace_ddl.log")
    recording.run("CREATE INDEX i ON t (a)", "ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN d int")
    # Another topology's `up` begins the table anew.
    site.run("REINDEX INDEX CONCURRENTLY i")
    site.source.prepare("other", DDL)
    assert [record.get("base") for record in recording.records()] == [True]
    assert trimmed(recording) == 2
    site.prepare(DDL)
    assert [record["is_known"] for record in recording.records()] == [False]
    site.source.remove("other")


def test_statement_that_could_not_be_recorded_is_kept_until_it_is_repaired(recording: Recording) -> None:
    site = recording.site
    site.source.prepare("other", DDL)
    site.run("ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other; ALTER TABLE t ADD COLUMN c int")
    site.run("ALTER FUNCTION headrace_ddl.other(oid) RENAME TO structure_of")
    assert trimmed(recording) == 2
    site.prepare(DDL)
    assert trimmed(recording) == 2, "the other topology has not looked yet, and the table's last record is another one"
    site.source.prepare("other", DDL)
    assert trimmed(recording) == 1
    site.source.remove("other")


def test_nobodys_ddl_waits_for_a_trim_nor_a_trim_for_a_lock(recording: Recording) -> None:
    site = recording.site
    recording.run("ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN d int")
    with psycopg.connect(site.dsn) as other:
        other.execute("DELETE FROM headrace_ddl.log WHERE number < 3")
        assert recording.one("ALTER TABLE t ADD COLUMN e int")["is_known"], "while records are being removed"
        other.rollback()
        other.execute("LOCK TABLE headrace_ddl.log IN ACCESS EXCLUSIVE MODE")
        assert not site.source.trim_ddl_log()
    assert trimmed(recording) == 1
