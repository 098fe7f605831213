"""Tables in which rows with different values collide: temporal keys (WITHOUT OVERLAPS) and exclusion constraints."""

from __future__ import annotations

import psycopg
import pytest

from headrace.databases.postgres.catalog.destination_tables import CatalogTable, describe_table
from tests.support.redo.postgres_redo import RULES
from tests.support.ways.postgres_pair import Pair

pytestmark = pytest.mark.postgres

# btree_gist, which the servers of tests lack, would allow types other than ranges in such a key.
TEMPORAL = "CREATE TABLE p (id int4range, valid int4range, v text, PRIMARY KEY (id, valid WITHOUT OVERLAPS))"
MULTIRANGES = "CREATE TABLE p (id int4range, valid int4multirange, v text, PRIMARY KEY (id, valid WITHOUT OVERLAPS))"
EXCLUDING = "CREATE TABLE p (n int PRIMARY KEY, id int4range, valid int4range, v text, EXCLUDE USING gist (id WITH =, valid WITH &&))"
KEYS = 5
ALL = "SELECT * FROM p ORDER BY id, valid"
# Seeds of orders in which a later transaction came first.
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3, 4)))


def _described(connection: psycopg.Connection) -> CatalogTable:
    found = describe_table(connection, "public", "p")
    assert found is not None
    return found


def _filled(pair: Pair, table: str) -> None:
    """Give each key the periods [10, 20), [20, 30), [30, 40), [40, 50)."""
    pair.create(table, table)
    columns = "n, id, valid, v" if "n int" in table else "id, valid, v"
    number = "k * 100 + i, " if "n int" in table else ""
    kind = "int4multirange" if "multirange" in table else ""
    pair.run(
        f"INSERT INTO p ({columns}) SELECT {number}int4range(i, i + 1), {kind}(int4range(k * 10, k * 10 + 10)), 'v'"
        f" FROM generate_series(1, {KEYS}) i, generate_series(1, 4) k"
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX p_pkey"])
@pytest.mark.parametrize("table", [TEMPORAL, pytest.param(EXCLUDING, id="EXCLUDE")])
def test_periods_that_take_each_others_place_are_applied_in_source_order(
    pair: Pair, table: str, identity: str, seed: int
) -> None:
    """Each transaction needs the room that the one before freed. In another order, or at the same time, rows collide."""
    _filled(pair, table)
    pair.run(f"ALTER TABLE p REPLICA IDENTITY {identity}")
    more = "n, " if table == EXCLUDING else ""
    for at in (10, 20, 30):
        pair.run(
            f"UPDATE p SET valid = int4range({at}, {at + 5}) WHERE lower(valid) = {at}",
            f"INSERT INTO p ({more}id, valid, v) SELECT {f'{at} * 100 + i, ' if more else ''}int4range(i, i + 1),"
            f" int4range({at + 5}, {at + 8}), 'w' FROM generate_series(1, {KEYS}) i",
            f"DELETE FROM p WHERE lower(valid) = {at + 5} AND id <> int4range(3, 4)",
            f"UPDATE p SET valid = int4range({at + 9}, {at + 10}) WHERE lower(valid) = {at + 5}",
            f"UPDATE p SET valid = int4range({at}, {at + 7}), v = v || 'x' WHERE lower(valid) = {at}",
        )
    pair.apply(seed=seed)
    assert pair.errors() == ()
    pair.assert_same(ALL)


@pytest.mark.parametrize("order", ["upwards", "downwards"])
@pytest.mark.parametrize("table", [TEMPORAL, pytest.param(EXCLUDING, id="EXCLUDE")])
def test_periods_moved_in_turn_in_one_transaction_do_not_collide(pair: Pair, table: str, order: str) -> None:
    """As one statement, the destination would change them in its own order."""
    _filled(pair, table)
    steps = (
        [(at, at - 5) for at in (10, 20, 30, 40)] if order == "upwards" else [(at, at + 5) for at in (40, 30, 20, 10)]
    )
    with pair.redo.user.transaction():
        for at, to in steps:
            pair.run(f"UPDATE p SET valid = int4range({to}, {to + 10}) WHERE lower(valid) = {at}")
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same(ALL)


@pytest.mark.parametrize("table", [TEMPORAL, MULTIRANGES], ids=["range", "multirange"])
def test_temporal_key_finds_rows_by_its_index_and_names_a_differing_row(pair: Pair, table: str) -> None:
    _filled(pair, table)
    found = _described(pair.there)
    assert (found.table.key, found.table.unique_keys, found.looked_up) == ((0, 1), ((0, 1),), ((0, 1),))
    assert (found.table.serialise, found.table.ordered) == (True, True)  # rows with different values collide in it
    pair.run("ALTER TABLE p REPLICA IDENTITY FULL")
    engine = pair.apply()
    pair.there.execute("UPDATE p SET v = 'another' WHERE id = '[3,4)'")
    pair.run("UPDATE p SET v = 'new' WHERE id = '[3,4)'")
    pair.more(engine)
    assert {error.conflict_type for error in pair.errors()} == {"update_differs"}


@pytest.mark.parametrize(
    "constraint",
    [
        "UNIQUE (id, valid WITHOUT OVERLAPS)",  # NULLs
        "PRIMARY KEY (id, valid WITHOUT OVERLAPS) DEFERRABLE",
        "EXCLUDE USING gist (id WITH =, valid WITH &&)",  # empty ranges overlap nothing
    ],
)
def test_constraints_that_allow_equal_rows_make_no_key(pair: Pair, constraint: str) -> None:
    pair.there.execute(f"CREATE TABLE p (id int4range, valid int4range, v text, {constraint})")
    table = _described(pair.there).table
    assert (table.key, table.serialise, table.ordered) == ((), True, True)


def test_unique_key_of_periods_without_nulls_is_a_replica_identity(pair: Pair) -> None:
    table = (
        "CREATE TABLE p (id int4range NOT NULL, valid int4range NOT NULL, v text, UNIQUE (id, valid WITHOUT OVERLAPS))"
    )
    pair.create(table, table)
    pair.run(
        "ALTER TABLE p REPLICA IDENTITY USING INDEX p_id_valid_key",
        "INSERT INTO p SELECT int4range(i, i + 1), int4range(1, 9), 'v' FROM generate_series(1, 5) i",
        "UPDATE p SET valid = int4range(1, 5) WHERE id = '[2,3)'",
        "INSERT INTO p VALUES ('[2,3)', '[5,9)', 'w')",
        "DELETE FROM p WHERE id = '[4,5)'",
    )
    assert _described(pair.there).table.key == (0, 1)
    pair.apply()
    assert pair.errors() == ()
    pair.assert_same(ALL)
    assert not [each for each in pair.redo.source.preflight((RULES,), streams=1) if "table" in each.path]


def test_row_that_overlaps_a_local_row_goes_into_the_error_queue(pair: Pair) -> None:
    _filled(pair, TEMPORAL)
    pair.there.execute("INSERT INTO p VALUES ('[2,3)', '[15,25)', 'mine')")
    pair.apply()
    assert {error.conflict_type for error in pair.errors()} == {"insert_exists"}
