"""Rows that a comparison looks up again by their keys, in real servers: at most one scan, whatever the key's types, and
a scan that is stopped from outside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import ApplyError, DatabaseUnavailable
from headrace.databases.ports.copying import KeyedRow
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from tests.support.copies.copied_pair import CopiedPair
from tests.support.redo.postgres_redo import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TYPES = """
CREATE TYPE mood AS ENUM ('glad', 'sad, or not'); CREATE DOMAIN small AS int CHECK (value < 100);
CREATE COLLATION nobody_s (provider = libc, locale = 'C');
CREATE TABLE p (i int, n numeric, t timestamptz, f float8, b bytea, c char(5), v varchar(9) COLLATE nobody_s, x text, a int[], u uuid);
INSERT INTO p SELECT n, n / 3.0, timestamptz '2026-01-01' + n * interval '1 s', n / 7.0, convert_to('b' || n, 'UTF8'), 'c' || n % 99,
    E'v\\\\%"' || n, E'it''s\\n' || n, ARRAY[n, NULL], gen_random_uuid() FROM generate_series(1, 700) n;
INSERT INTO p SELECT * FROM p WHERE i = 5; INSERT INTO p (i) VALUES (NULL), (1000);
CREATE TABLE of_users (m mood, d small, j json, p point); INSERT INTO of_users SELECT 'sad, or not', n, '{"k": 1}', '(1,2)' FROM generate_series(1, 60) n;
CREATE TABLE keyed (id bigint PRIMARY KEY, v text); INSERT INTO keyed SELECT n, 'v' || n FROM generate_series(1, 20000) n; ANALYZE keyed
"""


@pytest.fixture
def user(source_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(source_database, autocommit=True) as connection:
        connection.execute(TYPES)
        yield connection


@pytest.fixture
def reader(source_database: str, user: psycopg.Connection) -> Iterator[PostgresTableReader]:
    with contextlib.closing(PostgresTableReader(source_database, application_name="looks")) as made:
        yield made


def columns_of(user: psycopg.Connection, name: str) -> tuple[str, ...]:
    found = user.execute(f"SELECT * FROM {name} LIMIT 0".encode())
    return tuple(column.name for column in found.description or ())


def every(reader: PostgresTableReader, name: str, key: tuple[str, ...], columns: tuple[str, ...]) -> list[KeyedRow]:
    return list(reader.bucket_rows("public", name, key, columns, buckets=1, wanted=[0], rows_max=30_000))


@pytest.mark.parametrize("name", ["p", "of_users", "keyed"])
def test_each_row_of_a_table_is_found_by_all_its_values_with_its_version(
    user: psycopg.Connection, reader: PostgresTableReader, name: str
):
    columns = columns_of(user, name)
    rows = every(reader, name, columns, columns)
    keys = list(dict.fromkeys(row.key for row in rows))
    for some in (keys, [key for key in keys if None not in key], [(*keys[3][:-1], "no value of the type"), keys[4]]):
        found, asked = reader.keyed_rows("public", name, columns, columns, keys=some), set(some)
        assert sorted(found, key=repr) == sorted((row for row in rows if row.key in asked), key=repr)
        assert {row.version for row in found} <= {row.version for row in rows} - {""}


def test_rows_of_a_table_without_a_key_are_looked_up_in_one_scan(
    user: psycopg.Connection, source_database: str, reader: PostgresTableReader
):
    """It was one scan for each 500 rows."""
    user.execute(
        "CREATE TABLE log (at timestamptz NOT NULL, what text, n int); INSERT INTO log SELECT now(), 'w' || n, n FROM"
        " generate_series(1, 6000) n; ANALYZE log"
    )
    columns = columns_of(user, "log")
    keys = [row.key for row in every(reader, "log", columns, columns)]
    reader.close()  # its statistics become visible then

    def scans() -> int:
        return int(user.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'log'").fetchall()[0][0])

    wait_until(lambda: scans() > 0)
    before = scans()
    counted = [before]
    for asked in (keys, [*keys, ("2026-01-01 00:00:00+00", None, "1")]):
        with contextlib.closing(PostgresTableReader(source_database)) as looking:
            assert len(looking.keyed_rows("public", "log", columns, columns, keys=asked)) == 6000
        wait_until(lambda: scans() != counted[-1])
        counted.append(scans())
    assert counted == [before, before + 1, before + 2]


def test_few_rows_of_a_large_table_are_found_by_the_index_on_their_key(user: psycopg.Connection, source_database: str):
    def scans() -> tuple[int, int]:
        found = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'keyed'"
        return user.execute(found.encode()).fetchall()[0]

    wait_until(lambda: scans()[0] >= 1)
    before = scans()
    with contextlib.closing(PostgresTableReader(source_database)) as looking:
        keys = [(str(n),) for n in range(1, 51)]
        assert len(looking.keyed_rows("public", "keyed", ("id",), ("id", "v"), keys=keys)) == 50
    wait_until(lambda: scans()[1] > before[1])
    assert scans()[0] == before[0]


def test_scan_is_ended_from_another_thread_and_may_succeed_later(user: psycopg.Connection, reader: PostgresTableReader):
    failed: list[Exception] = []

    def scan() -> None:
        try:
            reader.bucket_digests("public", "keyed", ("id",), ("id",), buckets=1, rows="pg_sleep(600) IS NULL")
        except DatabaseUnavailable as error:
            failed.append(error)

    reader.interrupt()  # nothing is being read
    scanning = threading.Thread(target=scan)
    scanning.start()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'looks' AND wait_event = 'PgSleep'"
    wait_until(lambda: user.execute(sleeping).fetchall() == [(1,)])
    reader.interrupt()
    scanning.join(60.0)
    assert not scanning.is_alive()
    assert len(failed) == 1
    assert reader.keyed_rows("public", "keyed", ("id",), ("id",), keys=[("7",)])


# ------------------------------------------------------------------ stopped comparisons


@pytest.fixture
def differing(source_database: str, destination_database: str, tmp_path: Path) -> Iterator[CopiedPair]:
    pair = CopiedPair(source_database, destination_database, tmp_path / "redo")
    pair.create(*["CREATE TABLE p (id int PRIMARY KEY, v text); CREATE TABLE q (id int PRIMARY KEY, v text)"] * 2)
    pair.run("INSERT INTO p VALUES (1, 'a'), (2, 'b')", "INSERT INTO q VALUES (1, 'a')")
    pair.copy()
    pair.attach()
    pair.there.execute("UPDATE p SET v = 'by hand' WHERE id = 2")
    yield pair
    pair.close()


def compared_until(pair: CopiedPair, last: int) -> str:
    """Return the tables compared by a comparison that is stopped after `last` checks of whether it is active."""
    left = iter(range(last))
    try:
        found = pair.verify(rechecks=2, is_active=lambda: next(left, None) is not None)
    except ApplyError as error:
        return "stopped" if "was stopped" in error.message else error.message
    return ", ".join(sorted(found))


def test_stopped_comparison_reports_every_unfinished_table(differing: CopiedPair):
    """`verify` called the remaining tables identical."""
    asks = 0

    def counted() -> bool:
        nonlocal asks
        asks += 1
        return True

    # the thread that watches the scans checks at any time, and never less often
    whole = differing.verify(rechecks=2, is_active=counted)
    assert {name: found.is_equal for name, found in whole.items()} == {"p": False, "q": True}
    outcomes = [compared_until(differing, last) for last in range(asks)]
    assert outcomes.count("stopped") > 3
    assert {outcome for outcome in outcomes if outcome != "stopped"} <= {"p, q"}


BEGINS = "UPDATE headrace.instantiation SET state = 'COPYING' WHERE name = 'p'"
OF_A_PARTITION = (
    "INSERT INTO headrace.instantiation (topology, apply, source, identity, owner, name, scn, state, row_count, digest,"
    " problem) SELECT topology, apply, source, identity || '/7', owner, 'p_7', 0, 'COPYING', 0, '', '' FROM"
    " headrace.instantiation WHERE name = 'p'"
)


@pytest.mark.parametrize("copy", [BEGINS, OF_A_PARTITION], ids=["of the table", "of a partition"])
def test_table_whose_copy_begins_during_its_comparison_is_not_different(differing: CopiedPair, copy: str):
    statements = iter([copy])

    def begins() -> bool:
        if statement := next(statements, ""):
            differing.there.execute(statement.encode())
        return True

    found = differing.verify(rechecks=2, is_active=begins)
    assert found["p"].problem == "it was copied, or a partition of it, while it was compared"
    assert (found["p"].is_equal, found["p"].differences) == (False, ())
    assert (found["q"].is_equal, found["q"].problem) == (True, "")


def test_table_copied_during_its_comparison_is_compared_again(differing: CopiedPair):
    statements = iter(["UPDATE headrace.instantiation SET scn = scn + 1 WHERE name = 'p'"])

    def ends() -> bool:
        if statement := next(statements, ""):
            differing.there.execute(statement.encode())
        return True

    found = differing.verify(rechecks=2, is_active=ends)["p"]
    assert (found.problem, found.checks) == ("", 2)
    assert [each.key for each in found.differences] == [("2",)]
