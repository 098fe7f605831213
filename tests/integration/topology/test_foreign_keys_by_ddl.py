"""Foreign keys that users make and drop while dependent rows arrive through several apply servers, in one process.

Rows of both tables depend on each other through the key: after DDL that makes one, a reader of the destination never sees
a row without the row that it refers to, and no transaction fails, also where apply checks foreign keys.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from headrace.rules.table_settings import TableSettings
from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.background import in_background
from tests.support.session.seeds import scaled, seeds
from tests.support.ways.ddl_way import OF_SCHEMA_WITH_DDL, WAYS, DdlWay, opened, structure
from tests.support.ways.one_way import WAIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
# In one snapshot: rows that refer to nothing, and whether there is a key that forbids them.
ORPHANS = """SELECT (SELECT count(*) FROM child c WHERE c.parent IS NOT NULL AND NOT EXISTS (SELECT FROM parent p WHERE p.id = c.parent)),
(SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = 'child'::regclass)"""
PARENT = "CREATE TABLE parent (id integer PRIMARY KEY, v text)"
CHILD = "CREATE TABLE child (id integer PRIMARY KEY, parent integer); ALTER TABLE child REPLICA IDENTITY FULL"
STATEMENTS = (
    "ADD CONSTRAINT k FOREIGN KEY (parent) REFERENCES parent",
    "DROP CONSTRAINT k",
    "ADD CONSTRAINT k FOREIGN KEY (parent) REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE NOT VALID",
    "VALIDATE CONSTRAINT k",
    "RENAME CONSTRAINT k TO l",
    "ALTER CONSTRAINT l DEFERRABLE INITIALLY DEFERRED",
)


class Way(DdlWay):
    """The topology with four apply servers, and what tests ask of it."""

    parallelism = 4
    settled_states = frozenset({"DONE", "GONE"})

    def assert_same(self) -> None:
        """Wait until everything is applied, and compare all tables with their foreign keys."""
        self.settle()
        names = execute(self.source_dsn, TABLES)
        assert execute(self.destination_dsn, TABLES) == names
        for (name,) in names:
            assert digest(self.destination_dsn, name) == digest(self.source_dsn, name), name
            there, here = structure(self.source_dsn, name), structure(self.destination_dsn, name)
            assert here.constraints == there.constraints, name
        assert execute(self.destination_dsn, "SELECT * FROM headrace.apply_error") == []


class Checking(Way):
    """Apply checks foreign keys itself."""

    table_settings = TableSettings(check_foreign_keys=True)


@pytest.fixture(params=[Way, Checking])
def way(
    request: pytest.FixtureRequest,
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Way]:
    how, kind = WAYS[0], request.param
    with opened(kind, how, tmp_path, source_database, destination_database, monkeypatch, OF_SCHEMA_WITH_DDL) as made:
        yield made


def write(dsn: str, session: int, stop: threading.Event) -> None:
    """Write rows that depend on each other, each in a transaction of its own."""
    rng, first = random.Random(session), 1_000_000 * session
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(first, first + 1_000_000):
            if stop.wait(0.002):
                return
            connection.execute("INSERT INTO parent VALUES (%s, 'v')", (number,))
            connection.execute("INSERT INTO child VALUES (%s, %s)", (number, number))
            other = rng.randint(first, number)
            if rng.random() < 0.3:
                with connection.transaction():  # the row that it refers to may be gone
                    connection.execute(
                        "UPDATE child SET parent = (SELECT id FROM parent WHERE id = %s) WHERE id = %s", (other, number)
                    )
            if rng.random() < 0.3:
                connection.execute("DELETE FROM child WHERE parent = %s", (other,))
                connection.execute("DELETE FROM parent WHERE id = %s", (other,))


def watch(dsn: str, seen: list[tuple[int, int]], stop: threading.Event) -> None:
    """Note what a reader of the destination sees: rows that refer to nothing while a key forbids them."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        while not stop.wait(0.01):
            with connection.transaction():
                row = connection.execute(ORPHANS.encode()).fetchone()
            assert row is not None
            if row[1]:
                seen.append(row)


@contextmanager
def under_load(way: Way) -> Iterator[list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    with ExitStack() as stack:
        for session in (1, 2, 3):
            stack.enter_context(in_background(partial(write, way.source_dsn, session)))
        stack.enter_context(in_background(partial(watch, way.destination_dsn, seen)))
        yield seen


def alter(way: Way, statement: str) -> None:
    """Alter a table that users write; a deadlock with one of them undoes the statement, which is repeated."""
    for _ in range(20):
        with suppress(psycopg.errors.DeadlockDetected):
            execute(way.source_dsn, f"ALTER TABLE child {statement}")
            return
    raise AssertionError(statement)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("foreign keys under load", test=1, soak=4))
def test_dependent_rows_keep_their_order_whenever_a_key_comes_or_goes(way: Way, seed: int) -> None:
    rng = random.Random(seed)
    execute(way.source_dsn, PARENT)
    execute(way.source_dsn, CHILD)
    way.assert_same()
    with under_load(way) as seen:
        for turn in range(scaled(2, 6)):
            if turn:
                alter(way, "DROP CONSTRAINT l")
            for statement in STATEMENTS:
                alter(way, statement)
                if rng.random() < 0.5:
                    threading.Event().wait(0.3)  # rows between the statements
            way.kill_driver()
    way.assert_same()
    assert {orphans for orphans, _ in seen} == {0}
    assert set(way.outcomes()) == {"APPLIED"}
    not_made = "SELECT reason FROM headrace.dba_apply_ddl WHERE reason LIKE '%constraint%'"
    assert execute(way.destination_dsn, not_made) == []


def test_tables_of_one_transaction_refer_to_each_other_and_go(way: Way) -> None:
    with psycopg.connect(way.source_dsn) as user:
        user.execute(PARENT)
        user.execute("INSERT INTO parent VALUES (1, 'one')")
        user.execute("CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent DEFERRABLE)")
        user.execute("INSERT INTO child VALUES (1, 1)")
        user.execute("ALTER TABLE parent ADD child integer REFERENCES child, ADD up integer REFERENCES parent")
        user.execute("UPDATE parent SET child = 1, up = 1")
    execute(
        way.source_dsn, "ALTER TABLE first ADD parent integer REFERENCES parent; INSERT INTO first VALUES (0, 'f', 1)"
    )
    way.assert_same()
    execute(way.source_dsn, "ALTER TABLE parent RENAME id TO number; ALTER TABLE child RENAME parent TO p")
    execute(way.source_dsn, "ALTER TABLE child ALTER CONSTRAINT child_parent_fkey NOT DEFERRABLE")
    way.assert_same()
    execute(way.source_dsn, "TRUNCATE parent, child, first")
    execute(way.source_dsn, "ALTER TABLE parent DROP CONSTRAINT parent_pkey CASCADE")
    way.assert_same()
    execute(way.source_dsn, "DROP TABLE child CASCADE")
    way.assert_same()
    assert set(way.outcomes()) <= {"APPLIED", "PASSED OVER"}


def test_copies_of_either_table_leave_the_other_one_and_the_key(way: Way) -> None:
    execute(way.source_dsn, PARENT)
    execute(way.source_dsn, f"{CHILD}; ALTER TABLE child {STATEMENTS[2].removesuffix(' NOT VALID')}")
    way.assert_same()
    with ExitStack() as stack:
        for session in (1, 2):
            stack.enter_context(in_background(partial(write, way.source_dsn, session)))
        for name in ("parent", "child"):
            before = instantiation_scn(way, name)
            wait_for("rows", lambda: execute(way.source_dsn, "SELECT count(*) > 50 FROM child") == [(True,)], WAIT_S)
            table = pb.TableName(owner="public", name=name)
            way.driver.control.copy_again(pb.CopyAgainRequest(tables=[table]))
            wait_for("the copy", lambda before=before, name=name: instantiation_scn(way, name) > before, WAIT_S)
    way.assert_same()
    assert set(way.outcomes()) == {"APPLIED"}


def instantiation_scn(way: Way, name: str) -> int:
    """Return from which SCN a table's changes are applied; 0: it is being copied."""
    way.tend()
    query = "SELECT scn FROM headrace.instantiation WHERE name = %s AND state = 'DONE'"
    with psycopg.connect(way.destination_dsn) as connection:
        row = connection.execute(query, (name,)).fetchone()
    return 0 if row is None else int(row[0])
