"""Foreign keys checked at the destination: each line of the table in docs/keys.md, from one real server's log to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databases.embedded import EmbeddedServer
from databases.postgres.destination import foreign_keys
from rules.table_settings import TableSettings
from tests.support.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CHECKED = TableSettings(check_foreign_keys=True)
PARENT = "CREATE TABLE o (id int PRIMARY KEY, v int)"
CHILD = "CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES o ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED)"
TABLES = f"{PARENT}; {CHILD}"


@pytest.fixture
def pair(
    pg_source: EmbeddedServer, pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[Pair]:
    made = Pair(fresh_database(pg_source), fresh_database(pg_destination), tmp_path / "redo")
    made.set(CHECKED)
    yield made
    made.close()


HOLD = {
    "parents first": ["INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1), (2, 2), (3, NULL)"],
    "children first in one transaction": ["BEGIN; INSERT INTO p VALUES (1, 1); INSERT INTO o VALUES (1); COMMIT"],
    "a child gets another parent, and its first one goes": ["INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1)", "UPDATE p SET o = 2", "DELETE FROM o WHERE id = 1"],
    "ON DELETE CASCADE at the source": ["INSERT INTO o VALUES (1), (2)", "INSERT INTO p VALUES (1, 1), (2, 2)", "DELETE FROM o WHERE id = 1"],
    "ON UPDATE CASCADE at the source": ["INSERT INTO o VALUES (1)", "INSERT INTO p VALUES (1, 1), (2, 1)", "UPDATE o SET id = 5"],
    "a parent that goes and comes in one transaction": [
        "INSERT INTO o VALUES (1)", "INSERT INTO p VALUES (1, 1)", "BEGIN; UPDATE p SET o = NULL; DELETE FROM o; INSERT INTO o VALUES (1); UPDATE p SET o = 1; COMMIT",
    ],
    "TRUNCATE of both": ["INSERT INTO o VALUES (1)", "INSERT INTO p VALUES (1, 1)", "TRUNCATE o, p", "INSERT INTO o VALUES (2)", "INSERT INTO p VALUES (1, 2)"],
}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("statements", HOLD.values(), ids=HOLD.keys())
def test_what_the_source_has_checked_holds_here(pair: Pair, statements: list[str], identity: str) -> None:
    pair.create(f"{TABLES}; ALTER TABLE o REPLICA IDENTITY {identity}; ALTER TABLE p REPLICA IDENTITY {identity}", TABLES)
    pair.run(*statements)
    pair.apply()
    assert pair.errors() == ()
    for table in ("o", "p"):
        pair.assert_same(f"SELECT * FROM {table} ORDER BY 1")


def test_tables_that_refer_to_each_other_and_to_themselves(pair: Pair) -> None:
    circle = (
        "CREATE TABLE o (id int PRIMARY KEY, p int, o int REFERENCES o DEFERRABLE INITIALLY DEFERRED); CREATE TABLE p (id int PRIMARY KEY, o int REFERENCES"
        " o DEFERRABLE INITIALLY DEFERRED); ALTER TABLE o ADD FOREIGN KEY (p) REFERENCES p DEFERRABLE INITIALLY DEFERRED"
    )
    pair.create(circle, circle)
    pair.run(*(f"BEGIN; INSERT INTO o VALUES ({n}, {n}, {max(n - 1, 1)}); INSERT INTO p VALUES ({n}, {n}); COMMIT" for n in range(1, 30)))
    pair.run("BEGIN; UPDATE o SET o = NULL, p = NULL; DELETE FROM p WHERE id > 20; DELETE FROM o WHERE id > 20; COMMIT")
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same("SELECT id, o FROM p ORDER BY 1")


def test_several_columns_of_which_one_is_changed_or_null(pair: Pair) -> None:
    tables = "CREATE TABLE o (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE p (id int PRIMARY KEY, a int, b int, FOREIGN KEY (a, b) REFERENCES o)"
    pair.create(tables, tables)
    pair.run("INSERT INTO o VALUES (1, 1), (1, 2)", "INSERT INTO p VALUES (1, 1, 1), (2, 9, NULL)", "UPDATE p SET b = 2 WHERE id = 1")
    engine = pair.apply()
    assert pair.errors() == ()
    pair.there.execute("SET session_replication_role = replica; DELETE FROM o WHERE b = 1; SET session_replication_role = origin")
    pair.run("UPDATE p SET b = 1 WHERE id = 1")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]


BROKEN = {
    "a row that refers to nothing": ("DELETE FROM o WHERE id = 2", ["INSERT INTO p VALUES (7, 2)"]),
    "a row that refers to nothing from now on": ("DELETE FROM o WHERE id = 2", ["UPDATE p SET o = 2"]),
    "a parent that has a child here": ("INSERT INTO p VALUES (99, 2)", ["DELETE FROM o WHERE id = 2"]),
    "a parent whose key changes that has a child here": ("INSERT INTO p VALUES (99, 2)", ["UPDATE o SET id = 5 WHERE id = 2"]),
}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize(("here", "statements"), BROKEN.values(), ids=BROKEN.keys())
def test_a_violation_goes_into_the_error_queue_and_nothing_else_waits(pair: Pair, here: str, statements: list[str], identity: str) -> None:
    pair.create(f"{TABLES}; ALTER TABLE o REPLICA IDENTITY {identity}; ALTER TABLE p REPLICA IDENTITY {identity}", TABLES)
    pair.run("INSERT INTO o VALUES (1, 0), (2, 0), (3, 0)", "INSERT INTO p VALUES (1, 1)")
    engine = pair.apply()
    pair.there.execute(here)
    pair.run(*statements, "UPDATE o SET v = 7 WHERE id = 3", "INSERT INTO p VALUES (50, 3)")
    pair.more(engine)
    (error,) = pair.errors()
    assert (error.conflict_type, error.sqlstate) == ("foreign_key", "23503")
    assert "public.o" in error.message
    assert pair.there.execute("SELECT count(*) FROM p WHERE id = 50").fetchone() == (1,)
    assert pair.there.execute("SELECT count(*) FROM p WHERE o IS NOT NULL AND NOT EXISTS (SELECT FROM o WHERE o.id = p.o)").fetchone() == (0,)


def test_only_the_tables_that_are_listed_are_checked(pair: Pair) -> None:
    pair.set(TableSettings(check_foreign_keys=True, foreign_keys_of=(("public", "q"),)))
    tables = f"{TABLES}; CREATE TABLE q (id int PRIMARY KEY, o int REFERENCES o)"
    pair.create(tables, tables)
    pair.run("INSERT INTO o VALUES (1)")
    engine = pair.apply()
    pair.there.execute("DELETE FROM o")
    pair.run("INSERT INTO p VALUES (1, 1)", "INSERT INTO q VALUES (1, 1)")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute("SELECT count(*) FROM p").fetchone() == (1,)


def test_more_values_than_are_held_are_looked_up_in_the_table(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_keys, "ROWS_MAX", 3)
    pair.create(TABLES, TABLES)
    pair.run("INSERT INTO o SELECT i, 0 FROM generate_series(1, 9) i")
    engine = pair.apply()
    pair.there.execute("DELETE FROM o WHERE id = 9")
    pair.run("INSERT INTO p SELECT i, i FROM generate_series(1, 8) i", "INSERT INTO p SELECT i, 9 FROM generate_series(11, 20) i")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["foreign_key"]
    assert pair.there.execute("SELECT count(*) FROM p").fetchone() == (8,)
