"""Keys whose values are not completely in the log, and transactions on parallel servers that reuse them: changes that
the source accepted never become errors.
"""

from __future__ import annotations

import pytest

from headrace.rules.table_settings import TableSettings
from tests.support.session.matrices import values
from tests.support.ways.postgres_pair import Pair

pytestmark = pytest.mark.postgres

# Seeds of orders in which a later transaction came first.
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 4, 5, 7)))


def _apply(pair: Pair, seed: int) -> None:
    pair.apply(seed=seed)
    assert pair.errors() == ()
    pair.assert_same()


@pytest.mark.parametrize("seed", SEEDS)
def test_key_with_a_large_value_that_an_update_leaves_unchanged_is_ordered(pair: Pair, seed: int) -> None:
    table = (
        "CREATE TABLE p (id int PRIMARY KEY, v int, big text, more text, UNIQUE (v, big)); ALTER TABLE p ALTER"
        " big SET STORAGE EXTERNAL"
    )
    pair.create(table, table)
    big = "x" * 2000  # a value is stored out of line when a row is longer than that
    pair.run(f"INSERT INTO p VALUES (1, 3, '{big}'), (2, 9, '{big}')", "INSERT INTO p VALUES (50, 50)")
    pair.run("UPDATE p SET v = 5 WHERE id = 1", "INSERT INTO p VALUES (51, 51)")
    pair.run("UPDATE p SET v = 7 WHERE id = 1", "INSERT INTO p VALUES (52, 52)")
    pair.run("UPDATE p SET v = 5 WHERE id = 2", "INSERT INTO p VALUES (53, 53)")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_key_that_the_destination_computes_is_ordered(pair: Pair, seed: int) -> None:
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, v text); CREATE UNIQUE INDEX ON p (lower(v))",
        "CREATE TABLE p (id int PRIMARY KEY, v text, small text GENERATED ALWAYS AS (lower(v)) STORED UNIQUE)",
    )
    pair.run("INSERT INTO p VALUES (50, 'v')", "INSERT INTO p VALUES (1, 'A')")
    pair.run("DELETE FROM p WHERE id = 1", "INSERT INTO p VALUES (51, 'w')")
    pair.run("INSERT INTO p VALUES (2, 'a')", "INSERT INTO p VALUES (52, 'x')")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "ends",
    values(["DELETE FROM o WHERE id = 1", "UPDATE o SET code = 7 WHERE id = 1"], "UPDATE o SET code = 7 WHERE id = 1"),
)
def test_deleted_referenced_value_outside_the_log_is_ordered(pair: Pair, ends: str, seed: int) -> None:
    pair.set(TableSettings(check_foreign_keys=True))
    tables = (
        "CREATE TABLE o (id int PRIMARY KEY, code int UNIQUE); CREATE TABLE p (id int PRIMARY KEY, v int"
        " REFERENCES o (code))"
    )
    pair.create(tables, tables)
    pair.run(
        "INSERT INTO o VALUES (50, 50)",
        "INSERT INTO o VALUES (1, 1)",
        "INSERT INTO o VALUES (51, 51)",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.run("DELETE FROM p WHERE id = 1", "INSERT INTO o VALUES (52, 52)", ends, "INSERT INTO o VALUES (53, 53)")
    _apply(pair, seed)
    pair.assert_same("SELECT * FROM o ORDER BY 1")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("identity", values(["FULL", "NOTHING"], "FULL"))
def test_large_key_value_is_ordered_across_a_replica_identity_change(pair: Pair, identity: str, seed: int) -> None:
    table = (
        "CREATE TABLE p (id int PRIMARY KEY, v int, big text, more text, UNIQUE (v, big)); ALTER TABLE p ALTER"
        " big SET STORAGE EXTERNAL"
    )
    pair.create(table, table)
    big = "x" * 2000
    pair.run(f"INSERT INTO p VALUES (1, 3, '{big}'), (2, 9, '{big}')", "INSERT INTO p VALUES (50, 50)")
    pair.run("UPDATE p SET v = 5 WHERE id = 1", "INSERT INTO p VALUES (51, 51)")
    pair.run(
        "UPDATE p SET v = 7 WHERE id = 1", f"ALTER TABLE p REPLICA IDENTITY {identity}", "INSERT INTO p VALUES (52, 52)"
    )
    pair.run(f"INSERT INTO p VALUES (3, 5, '{big}')", "INSERT INTO p VALUES (53, 53)")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_foreign_key_with_an_unchanged_large_value_is_ordered(pair: Pair, seed: int) -> None:
    pair.set(TableSettings(check_foreign_keys=True))
    tables = (
        "CREATE TABLE o (v int, big text, PRIMARY KEY (v, big)); ALTER TABLE o ALTER big SET STORAGE EXTERNAL;"
        "CREATE TABLE p (id int PRIMARY KEY, v int, big text, more text, FOREIGN KEY (v, big) REFERENCES o); ALTER"
        " TABLE p ALTER big SET STORAGE EXTERNAL"
    )
    pair.create(tables, tables)
    big = "x" * 2000
    pair.run(
        f"INSERT INTO o VALUES (3, '{big}'), (5, '{big}')",
        f"INSERT INTO p VALUES (1, 3, '{big}')",
        "INSERT INTO p VALUES (51)",
    )
    pair.run(
        "UPDATE p SET v = 5 WHERE id = 1",
        "INSERT INTO p VALUES (52)",
        "UPDATE p SET v = 3 WHERE id = 1",
        "INSERT INTO p VALUES (53)",
    )
    pair.run("DELETE FROM o WHERE v = 5", "INSERT INTO p VALUES (54)")
    _apply(pair, seed)
    pair.assert_same("SELECT v FROM o ORDER BY 1")


@pytest.mark.parametrize("seed", SEEDS)
def test_key_that_the_destination_computes_otherwise_is_ordered(pair: Pair, seed: int) -> None:
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, v text, small text GENERATED ALWAYS AS (v || '!') STORED); CREATE UNIQUE"
        " INDEX ON p (lower(v))",
        "CREATE TABLE p (id int PRIMARY KEY, v text, small text GENERATED ALWAYS AS (lower(v)) STORED UNIQUE)",
    )
    pair.run("INSERT INTO p VALUES (50, 'v')", "INSERT INTO p VALUES (1, 'A')")
    pair.run("DELETE FROM p WHERE id = 1", "INSERT INTO p VALUES (51, 'w')")
    pair.run("INSERT INTO p VALUES (2, 'a')", "INSERT INTO p VALUES (52, 'x')")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_key_that_a_trigger_of_the_destination_computes_is_ordered(pair: Pair, seed: int) -> None:
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, v text); CREATE UNIQUE INDEX ON p (lower(v))",
        "CREATE TABLE p (id int PRIMARY KEY, v text, small text UNIQUE);"
        "CREATE FUNCTION public.small() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.small := lower(NEW.v); RETURN"
        " NEW; END';CREATE TRIGGER small BEFORE INSERT OR UPDATE ON p FOR EACH ROW EXECUTE FUNCTION public.small();"
        "ALTER TABLE p ENABLE ALWAYS TRIGGER small",
    )
    pair.run("INSERT INTO p VALUES (50, 'v')", "INSERT INTO p VALUES (1, 'A')")
    pair.run("DELETE FROM p WHERE id = 1", "INSERT INTO p VALUES (51, 'w')")
    pair.run("INSERT INTO p VALUES (2, 'a')", "INSERT INTO p VALUES (52, 'x')")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_foreign_key_that_the_destination_computes_otherwise_is_ordered(pair: Pair, seed: int) -> None:
    pair.set(TableSettings(check_foreign_keys=True))
    pair.create(
        "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v +"
        " 100) STORED)",
        "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v)"
        " STORED REFERENCES o)",
    )
    pair.run(
        "INSERT INTO o VALUES (50)",
        "INSERT INTO o VALUES (1)",
        "INSERT INTO o VALUES (51)",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.run(
        "DELETE FROM p WHERE id = 1",
        "INSERT INTO o VALUES (52)",
        "DELETE FROM o WHERE id = 1",
        "INSERT INTO o VALUES (53)",
    )
    _apply(pair, seed)
    pair.assert_same("SELECT * FROM o ORDER BY 1")


@pytest.mark.parametrize("seed", SEEDS)
def test_key_whose_operator_class_equates_other_values_is_ordered(pair: Pair, seed: int) -> None:
    """'a' and 'a ' are equal as character(n)."""
    table = "CREATE TABLE p (id int PRIMARY KEY, v text); CREATE UNIQUE INDEX ON p (v bpchar_ops)"
    pair.create(table, table)
    pair.run("INSERT INTO p VALUES (50, 'v')", "INSERT INTO p VALUES (1, 'a')")
    pair.run("DELETE FROM p WHERE id = 1", "INSERT INTO p VALUES (51, 'w')")
    pair.run("INSERT INTO p VALUES (2, 'a ')", "INSERT INTO p VALUES (52, 'x')")
    _apply(pair, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_changed_replica_identity_is_ordered_with_transactions_in_progress(pair: Pair, seed: int) -> None:
    """The last DELETE is found by `b` alone; an earlier row had the same value, and its UPDATE has only the old `id`."""
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, b int NOT NULL UNIQUE, v int)",
        "CREATE TABLE p (id int PRIMARY KEY, b int, v int)",
    )
    pair.run(
        "INSERT INTO p VALUES (1, 7), (2, 8)",
        "INSERT INTO p VALUES (50, 50)",
        "UPDATE p SET b = 9 WHERE id = 2",
        "INSERT INTO p VALUES (51, 51)",
    )
    pair.run("UPDATE p SET b = 8 WHERE id = 1", "INSERT INTO p VALUES (52, 52)")
    pair.run(
        "ALTER TABLE p REPLICA IDENTITY USING INDEX p_b_key",
        "DELETE FROM p WHERE b = 8",
        "INSERT INTO p VALUES (53, 53)",
    )
    _apply(pair, seed)


def test_change_by_another_replica_identity_waits_behind_its_tables_errors(pair: Pair) -> None:
    """The row with b = 8 differs between source and destination, where the first transaction waits in the error queue."""
    pair.create(
        "CREATE TABLE p (id int PRIMARY KEY, b int NOT NULL UNIQUE, v int)",
        "CREATE TABLE p (id int PRIMARY KEY, b int, v int CHECK (v < 100))",
    )
    pair.run(
        "INSERT INTO p VALUES (1, 7), (2, 8)",
        "BEGIN; UPDATE p SET b = 9 WHERE id = 2; UPDATE p SET b = 8, v = 100 WHERE id = 1; COMMIT",
    )
    pair.run("ALTER TABLE p REPLICA IDENTITY USING INDEX p_b_key", "DELETE FROM p WHERE b = 8")
    pair.apply()
    assert [error.depends_on for error in pair.errors()] == [0, 1]
    assert pair.there.execute("SELECT id, b FROM p ORDER BY 1").fetchall() == [(1, 7), (2, 8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_deleted_referenced_row_of_a_partition_is_ordered(pair: Pair, seed: int) -> None:
    pair.set(TableSettings(check_foreign_keys=True))
    pair.create(
        "CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY, v int REFERENCES o)",
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE o PARTITION OF q FOR VALUES FROM (0)"
        " TO (100);CREATE TABLE p (id int PRIMARY KEY, v int REFERENCES q)",
    )
    pair.run(
        "INSERT INTO o VALUES (50)",
        "INSERT INTO o VALUES (1)",
        "INSERT INTO o VALUES (51)",
        "INSERT INTO p VALUES (1, 1)",
    )
    pair.run(
        "DELETE FROM p WHERE id = 1",
        "INSERT INTO o VALUES (52)",
        "DELETE FROM o WHERE id = 1",
        "INSERT INTO o VALUES (53)",
    )
    _apply(pair, seed)
    pair.assert_same("SELECT * FROM o ORDER BY 1")
