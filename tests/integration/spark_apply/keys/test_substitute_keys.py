"""Substitute keys and tables that do not fit, from one real server's log to another: the results of parallel apply
servers.
"""

from __future__ import annotations

import random

import pytest

from headrace.rules.table_settings import KeyColumns, TableSettings
from tests.support.apply.apply_engine import TOPOLOGY
from tests.support.session.seeds import seeds
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

BY_CODE = (KeyColumns(owner="public", name="p", columns=("code",)),)
HERE = "CREATE TABLE p (id int PRIMARY KEY, code text, v int); ALTER TABLE p REPLICA IDENTITY FULL"


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("substitute keys", test=1, soak=25))
@pytest.mark.parametrize(
    "there",
    [
        "CREATE TABLE p (own int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id int, code text, v int); CREATE INDEX ON p"
        " (code)",
        "CREATE TABLE p (id int, code text UNIQUE, v int)",
        "CREATE TABLE p (id int, code text, v int)",
    ],
    ids=["another primary key", "unique", "no key"],
)
def test_random_history_is_applied_by_the_substitute_key(pair: Pair, there: str, seed: int) -> None:
    """The history has NULLs in the key, changes of it, and rows that are inserted and deleted."""
    pair.create(HERE, there)
    pair.set(TableSettings(key_columns=BY_CODE))
    rng = random.Random(seed)
    for turn in range(150):
        one, choice = f"id = {rng.randrange(30)}", rng.random()
        if choice < 0.4:
            code = "NULL" if rng.random() < 0.1 else f"'c{turn}'"
            pair.run(f"INSERT INTO p VALUES ({rng.randrange(30)}, {code}, {turn}) ON CONFLICT DO NOTHING")
        elif choice < 0.7:
            pair.run(f"UPDATE p SET v = {turn} WHERE {one}")
        elif choice < 0.8:
            pair.run(f"UPDATE p SET code = 'k{turn}' WHERE {one}")
        else:
            pair.run(f"DELETE FROM p WHERE {one}")
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same("SELECT id, code, v FROM p ORDER BY 1")


def test_row_with_a_duplicate_substitute_key_is_an_error_and_blocks_none(pair: Pair) -> None:
    pair.create(HERE, "CREATE TABLE p (id int PRIMARY KEY, code text, v int)")
    pair.set(TableSettings(key_columns=BY_CODE))
    pair.run("INSERT INTO p VALUES (1, 'a', 0), (2, 'b', 0)")
    engine = pair.apply()
    pair.there.execute("INSERT INTO p VALUES (11, 'a', 0)")
    pair.run(
        "UPDATE p SET v = 1 WHERE code = 'a'",
        "UPDATE p SET v = 1 WHERE code = 'b'",
        "UPDATE p SET v = 2 WHERE code = 'a'",
    )
    pair.more(engine)
    assert [(error.conflict_type, error.depends_on > 0) for error in pair.errors()] == [
        ("multiple_rows", False),
        ("", True),
    ]
    assert "2 rows match" in pair.errors()[0].message
    (met,) = pair.destination.conflicts(TOPOLOGY, last=10)
    assert (met.kind, met.outcome, met.error_number) == ("multiple_rows", "ERROR QUEUE", pair.errors()[0].number)
    assert pair.there.execute("SELECT id, v FROM p ORDER BY 1").fetchall() == [(1, 0), (2, 1), (11, 0)]


def test_allow_duplicate_rows_changes_one_of_them(pair: Pair) -> None:
    pair.create(HERE, "CREATE TABLE p (id int PRIMARY KEY, code text, v int)")
    pair.set(TableSettings(key_columns=BY_CODE, allow_duplicate_rows=True))
    pair.run("INSERT INTO p VALUES (1, 'a', 0), (2, 'b', 0)")
    engine = pair.apply()
    pair.there.execute("INSERT INTO p VALUES (11, 'a', 0)")
    pair.run("UPDATE p SET v = 1", "DELETE FROM p WHERE code = 'b'")
    pair.more(engine)
    assert pair.errors() == ()
    assert sorted(v for (v,) in pair.there.execute("SELECT v FROM p")) == [0, 1]


def test_transaction_that_does_not_fit_is_an_error_and_others_continue(pair: Pair) -> None:
    pair.create(
        f"{HERE}; CREATE TABLE q (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY, code text, v int); CREATE TABLE q (id int PRIMARY KEY)",
    )
    pair.set(TableSettings(column_mismatch="error"))
    pair.run("INSERT INTO p VALUES (1, 'a', 0)")
    engine = pair.apply()
    pair.run(
        "ALTER TABLE p ADD COLUMN more text",
        "BEGIN; INSERT INTO q VALUES (1); INSERT INTO p VALUES (2, 'b', 0, 'x'); COMMIT",
        "INSERT INTO p VALUES (3, 'c', 0, 'x')",
        "INSERT INTO q VALUES (2)",
    )
    pair.more(engine)
    assert [error.depends_on > 0 for error in pair.errors()] == [False, True]
    assert "column_mismatch: error" in pair.errors()[0].message
    assert 'ADD COLUMN "more"' in pair.errors()[0].message
    assert pair.there.execute("SELECT id FROM q").fetchall() == [(2,)]
    assert pair.there.execute("SELECT id FROM p").fetchall() == [(1,)]


def test_misfit_is_executed_after_the_alter_and_later_changes_wait(pair: Pair) -> None:
    pair.create("CREATE TABLE p (id int PRIMARY KEY, v int)", "CREATE TABLE p (id int PRIMARY KEY, v int)")
    pair.set(TableSettings(column_mismatch="error"))
    pair.run("INSERT INTO p VALUES (1, 0)")
    engine = pair.apply()
    pair.run(
        "ALTER TABLE p ADD COLUMN more text", "INSERT INTO p VALUES (2, 0, 'x')", "UPDATE p SET v = 1 WHERE id = 1"
    )
    pair.more(engine)
    first = pair.errors()[0].number
    assert "ADD COLUMN" in engine.execute_errors([first])[first]
    pair.there.execute("ALTER TABLE p ADD COLUMN more text")
    pair.run("INSERT INTO p VALUES (3, 0, 'y')", "UPDATE p SET v = 5 WHERE id = 1")
    pair.more(engine)
    assert [error.depends_on > 0 for error in pair.errors()] == [False, True, True, True]
    assert set(engine.execute_errors([error.number for error in pair.errors()]).values()) == {""}
    assert pair.errors() == ()
    pair.assert_same("SELECT * FROM p ORDER BY 1")


def test_truncate_of_a_missing_table_is_an_error_and_others_continue(pair: Pair) -> None:
    """It must not end the apply process, as a statement with a missing name does."""
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE q (id int PRIMARY KEY)",
        "CREATE TABLE q (id int PRIMARY KEY)",
    )
    pair.set(TableSettings(column_mismatch="error"))
    pair.run("TRUNCATE p", "INSERT INTO q VALUES (1)", "INSERT INTO p VALUES (1, 1)")
    engine = pair.apply()
    assert pair.there.execute("SELECT id FROM q").fetchall() == [(1,)]
    assert [error.depends_on > 0 for error in pair.errors()] == [False, True]
    assert "public.p" in pair.errors()[0].message
    pair.there.execute("CREATE TABLE p (id int PRIMARY KEY, v int)")
    assert set(engine.execute_errors([error.number for error in pair.errors()]).values()) == {""}
    pair.assert_same()


@pytest.mark.parametrize(
    ("alter", "here", "name"),
    [
        ("ALTER TABLE p ALTER v SET NOT NULL, DROP CONSTRAINT p_pkey, ADD UNIQUE (v, id)", "", "p"),
        ("ALTER TABLE p RENAME TO p2", "ALTER TABLE p RENAME TO p2", "p2"),
    ],
    ids=["another key", "another name"],
)
def test_changes_wait_behind_an_error_transaction_of_a_table_altered_since(
    pair: Pair, alter: str, here: str, name: str
) -> None:
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE q (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY, v int); CREATE TABLE q (id int PRIMARY KEY)",
    )
    pair.run("INSERT INTO p VALUES (1, 0), (2, 0)")
    engine = pair.apply()
    pair.there.execute("DELETE FROM p WHERE id = 1")
    pair.run("UPDATE p SET v = 1 WHERE id = 1")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["update_missing"]
    pair.there.execute(f"INSERT INTO p VALUES (1, 0); {alter}")
    pair.run(
        here or "SELECT",
        f"UPDATE {name} SET v = 2 WHERE id = 1",
        f"UPDATE {name} SET v = 2 WHERE id = 2",
        "INSERT INTO q VALUES (1)",
    )
    pair.redo.catch_up()
    engine.batches = list(pair.redo.mine(pair.redo.miner()))
    engine.start_driver()
    engine.run()
    assert [error.depends_on > 0 for error in pair.errors()] == [False, True, True]
    pair.assert_same("SELECT id FROM q")
    first = pair.errors()[0].number
    if here:
        assert engine.execute_errors([first])[first]  # it names a missing table: delete it
        assert pair.destination.delete_errors(TOPOLOGY, [first])
        engine.coordinator.errors.deleted(first)
    assert set(engine.execute_errors([error.number for error in pair.errors()]).values()) == {""}
    pair.assert_same(f"SELECT * FROM {name} ORDER BY 1")
