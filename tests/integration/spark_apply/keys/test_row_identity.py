"""The columns that find a row, and their equality: from one real server's log to another real server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.session.matrices import values
from tests.support.session.seeds import seeds
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROWS = "SELECT * FROM p ORDER BY 1, 2, 3"


@pytest.fixture
def collating(
    source_database: str, pg_icu: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[Pair]:
    """Make a destination with a collation that ignores case, which needs a server with ICU."""
    made = Pair(source_database, prepared_database(pg_icu), tmp_path / "redo")
    made.there.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    yield made
    made.close()


TWO_OF_THREE = "CREATE TABLE p (a int NOT NULL, b int, v text, UNIQUE (a, b)); ALTER TABLE p REPLICA IDENTITY FULL"


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("rows with a null in their key", test=1, soak=40))
def test_rows_with_a_null_in_their_key_are_distinguished_by_all_values(pair: Pair, seed: int) -> None:
    """Several rows may have the key (1, NULL): a change of one must not reach another, and they must not be merged."""
    pair.create(TWO_OF_THREE, TWO_OF_THREE)
    rng = random.Random(seed)

    def b() -> str:
        return rng.choice(["NULL", "NULL", "1", "2"])

    for turn in range(120):
        one = f"(SELECT ctid FROM p WHERE a = {rng.randrange(3)} ORDER BY random() LIMIT 1)"
        a, choice = rng.randrange(3), rng.random()
        if choice < 0.45:
            pair.run(f"INSERT INTO p VALUES ({a}, {b()}, '{turn % 4}') ON CONFLICT DO NOTHING")
        elif choice < 0.65:
            pair.run(f"UPDATE p SET v = '{turn % 4}' WHERE ctid = {one}")
        elif choice < 0.8:
            pair.run(f"UPDATE p SET b = NULL WHERE ctid = {one}")
        else:
            pair.run(f"DELETE FROM p WHERE ctid = {one}")
    twins = "INSERT INTO p VALUES (9, NULL, 'twin'), (9, NULL, 'twin'), (9, NULL, 'other'), (9, 9, 'one')"
    pair.run(
        twins,
        "DELETE FROM p WHERE ctid = (SELECT min(ctid) FROM p WHERE v = 'twin')",
        "UPDATE p SET v = 'two' WHERE b = 9",
    )
    pair.apply(seed=seed)
    assert pair.errors() == ()
    pair.assert_same(ROWS)
    assert pair.there.execute("SELECT b, v FROM p WHERE a = 9 ORDER BY 1, 2").fetchall() == [
        (9, "two"),
        (None, "other"),
        (None, "twin"),
    ]
    assert pair.destination.describe("public", "p").key == (0, 1)


def test_differing_row_with_a_null_key_is_an_error_and_changes_no_other(pair: Pair) -> None:
    pair.create(TWO_OF_THREE, TWO_OF_THREE)
    pair.run("INSERT INTO p VALUES (1, NULL, 'x')")
    engine = pair.apply()
    pair.there.execute("UPDATE p SET v = 'changed here'")
    pair.run("UPDATE p SET v = 'y'")
    pair.redo.catch_up()
    engine.batches = list(pair.redo.mine(pair.redo.miner()))
    engine.subscribe()
    engine.run()
    (error,) = pair.errors()
    assert error.conflict_type == "update_missing"
    assert "its key has a NULL" in error.message
    assert pair.there.execute("SELECT v FROM p").fetchall() == [("changed here",)]


def test_incomplete_index_makes_no_key(pair: Pair) -> None:
    """One row of the set finds two rows, another one none: together they looked like two that find one each."""
    there = (
        "CREATE TABLE p (a int NOT NULL, v text) PARTITION BY RANGE (a); CREATE TABLE p_1 PARTITION OF p FOR VALUES"
        " FROM (0) TO (100);CREATE UNIQUE INDEX p_a ON ONLY p (a)"
    )
    pair.create("CREATE TABLE p (a int PRIMARY KEY, v text)", there)
    assert (pair.destination.describe("public", "p").key, pair.destination.describe("public", "p").serialise) == (
        (),
        True,
    )
    pair.run("INSERT INTO p VALUES (1, 'a'), (2, 'a')")
    engine = pair.apply()
    pair.there.execute("INSERT INTO p VALUES (1, 'own'); DELETE FROM p WHERE a = 2")
    pair.run("UPDATE p SET v = 'new'")
    pair.more(engine)
    assert len(pair.errors()) == 1
    assert pair.there.execute("SELECT * FROM p ORDER BY 1, 2").fetchall() == [(1, "a"), (1, "own")]
    pair.there.execute("DELETE FROM p; CREATE UNIQUE INDEX p_1_a ON p_1 (a); ALTER INDEX p_a ATTACH PARTITION p_1_a")
    assert (pair.destination.describe("public", "p").key, pair.destination.describe("public", "p").serialise) == (
        (0,),
        False,
    )


def test_row_is_found_by_the_best_key_whose_columns_all_arrive(pair: Pair) -> None:
    """The destination has its own primary key. Without another key every UPDATE would scan the table, and see differing
    columns.
    """
    pair.create(
        "CREATE TABLE p (a int PRIMARY KEY, v text, w text); ALTER TABLE p REPLICA IDENTITY FULL",
        "CREATE TABLE p (a int NOT NULL UNIQUE, v text, w text, own int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
    )
    pair.run("INSERT INTO p VALUES (1, 'x', 'y'), (2, 'x', 'y')")
    engine = pair.apply()
    pair.there.execute("UPDATE p SET w = 'changed here' WHERE a = 1")
    pair.run("UPDATE p SET v = 'z'", "DELETE FROM p WHERE a = 2")
    pair.redo.catch_up()
    engine.batches = list(pair.redo.mine(pair.redo.miner()))
    engine.subscribe()
    engine.run()
    assert pair.errors() == ()
    assert pair.there.execute("SELECT a, v, w FROM p").fetchall() == [(1, "z", "changed here")]


KEYS = {
    # Constraints -> the columns that find a row. a, b and e are NOT NULL. Neither the names of the indexes nor their
    # order show their size.
    ("UNIQUE (e)", "PRIMARY KEY (a, b, e)", "UNIQUE (a, b)"): "abe",
    ("UNIQUE (a, b, e)", "UNIQUE (e, b)", "UNIQUE (a, c)"): "eb",
    ("UNIQUE (a, b)", "UNIQUE (c)", "UNIQUE (e)"): "e",
    ("UNIQUE (a, b, e)", "UNIQUE (a, c)", "UNIQUE (d)"): "abe",
    ("UNIQUE (a, c, d)", "UNIQUE (d, e)", "UNIQUE (c)", "UNIQUE (c, d)"): "de",
    ("UNIQUE (c)", "UNIQUE (c, d)"): "",
    (): "",
}


def test_row_is_found_by_the_primary_key_else_by_the_smallest_unique_key(pair: Pair) -> None:
    """Unique keys without nullable columns come before those with at least one NOT NULL column.

    The destination changes all columns outside the key: a search by the key sees that the old values differ, a search
    by all columns misses the row.
    """
    columns = "a int NOT NULL, b int NOT NULL, c int, d int, e int NOT NULL, v text"
    pair.create(
        "".join(
            f"CREATE TABLE p{number} ({columns}); ALTER TABLE p{number} REPLICA IDENTITY FULL;"
            for number in range(len(KEYS))
        ),
        "".join(f"CREATE TABLE p{number} ({', '.join([columns, *keys])});" for number, keys in enumerate(KEYS)),
    )
    pair.run(*(f"INSERT INTO p{number} VALUES (1, 1, 1, 1, 1, 'x')" for number in range(len(KEYS))))
    engine = pair.apply()
    for number, key in enumerate(KEYS.values()):
        described = pair.destination.describe("public", f"p{number}")
        assert described is not None
        assert [described.columns[position].name for position in described.key] == list(key), f"p{number}"
        changed = ["v = 'changed here'", *(f"{name} = 2" for name in "abcde" if key and name not in key)]
        pair.there.execute(f"UPDATE p{number} SET {', '.join(changed)}")
    pair.run(*(f"UPDATE p{number} SET v = 'y'" for number in range(len(KEYS))))
    pair.more(engine)
    errors = sorted(pair.errors(), key=lambda error: error.commit_scn)
    assert [error.conflict_type for error in errors] == [
        "update_differs" if key else "update_missing" for key in KEYS.values()
    ]


def test_key_dropped_while_rows_arrive_finds_no_more_rows(pair: Pair) -> None:
    table = "CREATE TABLE p (a int PRIMARY KEY, v text)"
    pair.create(table, table)
    pair.run("INSERT INTO p VALUES (1, 'a'), (2, 'a')")
    engine = pair.apply()
    pair.there.execute(
        "ALTER TABLE p DROP CONSTRAINT p_pkey; INSERT INTO p VALUES (1, 'own'); DELETE FROM p WHERE a = 2"
    )
    pair.run("UPDATE p SET v = 'new'")
    pair.more(engine)
    assert [error.conflict_type for error in pair.errors()] == ["multiple_rows"]
    assert pair.there.execute("SELECT * FROM p ORDER BY 1, 2").fetchall() == [(1, "a"), (1, "own")]


def test_index_in_another_collation_than_a_case_blind_column_is_no_key(collating: Pair) -> None:
    """The index takes 'a' and 'A' for two keys; the `=` that finds rows does not."""
    collating.create(
        "CREATE TABLE p (id text PRIMARY KEY, v int)",
        'CREATE TABLE p (id text COLLATE nocase NOT NULL, v int); CREATE UNIQUE INDEX ON p (id COLLATE "C")',
    )
    collating.run("INSERT INTO p VALUES ('a', 1), ('A', 2)")
    engine = collating.apply()
    collating.run("UPDATE p SET v = v + 10")
    collating.more(engine)
    assert collating.errors() == ()
    collating.assert_same("SELECT * FROM p ORDER BY v")


@pytest.mark.parametrize("identity", values(["DEFAULT", "FULL"], "FULL"))
def test_rows_are_found_by_the_equality_of_the_destinations_collation(collating: Pair, identity: str) -> None:
    collating.create(
        f"CREATE TABLE p (id text PRIMARY KEY, v text, w int); ALTER TABLE p REPLICA IDENTITY {identity}",
        "CREATE TABLE p (id text COLLATE nocase PRIMARY KEY, v text COLLATE nocase, w int)",
    )
    collating.run("INSERT INTO p SELECT 'key ' || i, 'v', 0 FROM generate_series(1, 20) i")
    engine = collating.apply()
    collating.there.execute("UPDATE p SET id = upper(id)")
    collating.run(
        "UPDATE p SET w = 1 WHERE id <> 'key 3'",
        "UPDATE p SET id = 'Key 4' WHERE id = 'key 4'",
        "DELETE FROM p WHERE id = 'key 5'",
        "DELETE FROM p WHERE id = 'key 6'; INSERT INTO p VALUES ('KEY 6', 'new', 7)",
        "UPDATE p SET w = w + 1 WHERE id = 'Key 4'",
    )
    collating.redo.catch_up()
    engine.batches = list(collating.redo.mine(collating.redo.miner()))
    engine.subscribe()
    engine.run()
    assert collating.errors() == ()
    collating.assert_same("SELECT lower(id), v, w FROM p ORDER BY 1")
    assert collating.there.execute("SELECT count(*) FROM p").fetchone() == (19,)


def test_old_values_are_compared_by_their_bytes_with_any_collation(collating: Pair) -> None:
    collating.create(
        "CREATE TABLE p (id text PRIMARY KEY, v text); ALTER TABLE p REPLICA IDENTITY FULL",
        "CREATE TABLE p (id text COLLATE nocase PRIMARY KEY, v text COLLATE nocase)",
    )
    collating.run("INSERT INTO p VALUES ('k', 'old')")
    engine = collating.apply()
    collating.there.execute("UPDATE p SET v = 'OLD'")
    collating.run("UPDATE p SET v = 'new'")
    collating.redo.catch_up()
    engine.batches = list(collating.redo.mine(collating.redo.miner()))
    engine.subscribe()
    engine.run()
    assert [error.conflict_type for error in collating.errors()] == ["update_differs"]


@pytest.mark.parametrize(
    "columns",
    ["a int, b int, v text{0}", "a int NOT NULL, b int, v text{0}, UNIQUE (a, b)"],
    ids=["no key", "NULL in the key"],
)
def test_row_is_found_by_all_its_values_with_any_collation(collating: Pair, columns: str) -> None:
    collating.create(
        f"CREATE TABLE p ({columns.format('')}); ALTER TABLE p REPLICA IDENTITY FULL",
        f"CREATE TABLE p ({columns.format(' COLLATE nocase')})",
    )
    collating.run("INSERT INTO p VALUES (1, NULL, 'Ab'), (1, NULL, 'aB'), (2, NULL, 'cd')")
    collating.run("UPDATE p SET a = 3 WHERE v = 'aB'", "DELETE FROM p WHERE v = 'cd'")
    collating.apply()
    assert collating.errors() == ()
    assert collating.there.execute("SELECT * FROM p ORDER BY 1").fetchall() == [(1, None, "Ab"), (3, None, "aB")]


@pytest.mark.parametrize("identity", values(["DEFAULT", "FULL"], "DEFAULT"))
def test_rows_are_found_when_a_columns_collation_differs_from_its_domains(pair: Pair, identity: str) -> None:
    domain = 'CREATE DOMAIN d AS text COLLATE "C"'
    pair.create(
        f"{domain}; CREATE TABLE p (id d PRIMARY KEY, v d); ALTER TABLE p REPLICA IDENTITY {identity}",
        f'{domain}; CREATE TABLE p (id d COLLATE "POSIX" PRIMARY KEY, v d COLLATE "POSIX" UNIQUE)',
    )
    pair.run("INSERT INTO p SELECT 'key ' || i, 'v' || i FROM generate_series(1, 20) i")
    engine = pair.apply()
    pair.run(
        "UPDATE p SET v = v || 'x'", "UPDATE p SET id = 'Key 4' WHERE id = 'key 4'", "DELETE FROM p WHERE id = 'key 5'"
    )
    pair.more(engine)
    assert pair.errors() == ()
    pair.assert_same("SELECT id, v FROM p ORDER BY 1")
    pair.there.execute("DELETE FROM p WHERE id = 'key 6'; INSERT INTO p VALUES ('key 30', 'own')")
    pair.run("UPDATE p SET v = 'y' WHERE id = 'key 6'", "INSERT INTO p VALUES ('key 30', 'theirs')")
    pair.more(engine)
    assert sorted(error.conflict_type for error in pair.errors()) == ["insert_exists", "update_missing"]
