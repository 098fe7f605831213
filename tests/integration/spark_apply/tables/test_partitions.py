"""TRUNCATE of single partitions, from one real server's log to another real server, with parallel apply servers."""

from __future__ import annotations

import random

import psycopg
import pytest

from headrace.databases.postgres.catalog.partitions import partition_rows
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import TableToInstantiate
from spark_apply.tables.arriving import ArrivingTables, TableStart
from tests.support.session.matrices import cases
from tests.support.session.seeds import seeds
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# The names are the source's; most destinations cut their contents differently, or not at all.
BY_RANGE = """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
CREATE TABLE p_150 PARTITION OF p_high FOR VALUES FROM (100) TO (150);
CREATE TABLE p_200 PARTITION OF p_high FOR VALUES FROM (150) TO (200);
CREATE TABLE p_rest PARTITION OF p DEFAULT"""
CUT_DIFFERENTLY = """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (170);
CREATE TABLE p_rest PARTITION OF p DEFAULT"""
PLAIN = "CREATE TABLE p (id int PRIMARY KEY, v text)"
BY_HASH = """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE p_low PARTITION OF p FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE p_150 PARTITION OF p FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE p_rest PARTITION OF p FOR VALUES WITH (MODULUS 3, REMAINDER 2)"""
HASH_CUT_DIFFERENTLY = """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE p_low PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE p_rest PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1)"""


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("truncated partitions", test=1, soak=15))
@pytest.mark.parametrize(
    ("here", "there"),
    cases(
        {
            "alike": (BY_RANGE, BY_RANGE),
            "cut differently": (BY_RANGE, CUT_DIFFERENTLY),
            "plain": (BY_RANGE, PLAIN),
            "by hash": (BY_HASH, BY_HASH),
            "by hash, cut differently": (BY_HASH, HASH_CUT_DIFFERENTLY),
        },
        core=("cut differently", "by hash, cut differently"),
    ),
)
def test_truncated_partitions_are_in_order_with_their_tables_rows(pair: Pair, here: str, there: str, seed: int) -> None:
    pair.create(here, there)
    rng = random.Random(seed)
    for turn in range(60):
        choice = rng.random()
        if choice < 0.2:
            pair.run("TRUNCATE " + ", ".join(rng.sample(["p_low", "p_150", "p_rest"], rng.randint(1, 2))))
        elif choice < 0.25:
            pair.run("TRUNCATE p")
        elif choice < 0.7:
            low = rng.randrange(250)
            pair.run(
                f"INSERT INTO p SELECT i, '{turn}' FROM generate_series({low}, {low + 9}) i ON CONFLICT DO NOTHING"
            )
        else:
            low = rng.randrange(250)
            pair.run(f"UPDATE p SET v = v || '+' WHERE id BETWEEN {low} AND {low + 20}")
            pair.run(f"UPDATE p SET id = 1000 + id WHERE id = (SELECT min(id) FROM p WHERE id < 900 AND id > {low})")
            pair.run("DELETE FROM p WHERE id >= 1000")
    pair.run("INSERT INTO p SELECT i, 'last' FROM generate_series(0, 220) i ON CONFLICT DO NOTHING", "TRUNCATE p_low")
    pair.apply(seed=seed)
    assert pair.errors() == ()
    pair.assert_same()
    assert len(pair.here_and_there()[1]) > 50


def test_rule_for_the_table_takes_its_partitions_truncates(pair: Pair) -> None:
    pair.create(BY_RANGE, PLAIN)
    pair.run("INSERT INTO p VALUES (1, 'a'), (120, 'b')", "TRUNCATE p_150")
    pair.apply(rules=RuleSet(include=(Rule(owner="public", name="p"),)))
    assert pair.here_and_there() == ([(1, "a")], [(1, "a")])


def test_truncate_of_a_partition_before_its_tables_copy_is_not_applied(pair: Pair) -> None:
    pair.create(BY_RANGE, PLAIN)
    pair.run("INSERT INTO p VALUES (1, 'old')", "TRUNCATE p_low", "INSERT INTO p VALUES (2, 'copied')")
    copied = pair.redo.catch_up()
    pair.there.execute("INSERT INTO p VALUES (2, 'copied')")
    pair.run("INSERT INTO p VALUES (3, 'later')")
    pair.apply(instantiation={("public", "p"): copied})
    pair.assert_same()
    assert len(pair.here_and_there()[1]) == 2


def test_truncate_of_a_partition_waits_behind_the_errors_of_its_table(pair: Pair) -> None:
    pair.create(BY_RANGE, CUT_DIFFERENTLY)
    pair.there.execute("INSERT INTO p VALUES (1, 'in the way')")
    pair.run(
        "INSERT INTO p VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO p VALUES (160, 'c')",
        "TRUNCATE p_low",
        "INSERT INTO p VALUES (3, 'd')",
    )
    engine = pair.apply(seed=5)
    first, truncated, behind = pair.errors()
    assert (first.conflict_type, first.depends_on) == ("insert_exists", 0)
    assert (truncated.depends_on, behind.depends_on) == (first.number, truncated.number)
    assert pair.here_and_there()[1] == [(1, "in the way"), (160, "c")]
    pair.there.execute("DELETE FROM p WHERE id = 1")
    assert set(engine.execute_errors([error.number for error in pair.errors()]).values()) == {""}
    pair.assert_same()


def test_partition_that_cannot_be_located_here_is_named_in_an_error(pair: Pair) -> None:
    pair.create(BY_HASH, PLAIN)
    pair.run("INSERT INTO p SELECT i FROM generate_series(1, 9) i", "TRUNCATE p_low", "INSERT INTO p VALUES (100)")
    pair.apply()
    truncated, behind = pair.errors()
    assert "TRUNCATE of partition public.p_low alone" in truncated.message
    assert (
        "`headrace copy FILE TABLE` with that table, which deletes the error transactions that it makes obsolete"
        in truncated.message
    )
    assert behind.depends_on == truncated.number
    assert len(pair.here_and_there()[1]) == 9


def test_rows_of_a_dropped_partition_still_belong_to_its_renamed_table(pair: Pair) -> None:
    """A driver that starts now cannot learn from the source where they belong."""
    pair.create(BY_RANGE, PLAIN)
    pair.run(
        "CREATE TABLE p_400 PARTITION OF p FOR VALUES FROM (300) TO (400)", "INSERT INTO p VALUES (1, 'a'), (301, 'b')"
    )
    pair.redo.catch_up()
    pair.run("DROP TABLE p_400", "ALTER TABLE p RENAME TO q")
    pair.redo.catch_up()
    (captured,) = pair.redo.source.captured("topo")
    table = TableToInstantiate(
        identity=captured.identity,
        source=TableName.of(captured),
        destination=TableName.of(captured),
        object_numbers=tuple(int(number) for number in captured.object_numbers),
    )
    tables = ArrivingTables(
        {table.destination: TableStart(scn=Scn(5))}, [table], lambda number: pytest.fail(f"asked for {number}")
    )
    versions = [version for batch in pair.redo.mine(pair.redo.miner()) for version in batch.tables]
    assert {version.object_number in captured.object_numbers for version in versions} == {True, False}
    for version in versions:
        assert not tables.is_unknown(version)
        assert tables.first_scn(version, 0) == 5


NEW_PARTITION = "CREATE TABLE p_400 PARTITION OF p FOR VALUES FROM (300) TO (400)"


def test_default_partitions_content_is_that_of_the_moment_of_its_truncate(pair: Pair) -> None:
    """A new partition restricts what the default one may hold; the default one is described again afterwards."""
    pair.create(BY_RANGE, PLAIN)
    pair.run("INSERT INTO p VALUES (300, 'rest')", "TRUNCATE p_rest")
    pair.redo.catch_up()
    pair.run(NEW_PARTITION, "INSERT INTO p VALUES (301, 'new')")
    pair.redo.catch_up()
    pair.run("INSERT INTO p VALUES (500, 'rest')", "TRUNCATE p_rest")
    pair.apply()
    assert pair.errors() == ()
    assert pair.here_and_there() == ([(301, "new")], [(301, "new")])


def test_truncated_partition_with_possibly_changed_bounds_is_an_error(pair: Pair) -> None:
    pair.create(BY_RANGE, PLAIN)
    pair.run("INSERT INTO p VALUES (300, 'rest')")
    pair.redo.catch_up()
    pair.run(
        "INSERT INTO p VALUES (302, 'rest')", "TRUNCATE p_rest", NEW_PARTITION, "INSERT INTO p VALUES (301, 'new')"
    )
    pair.apply()
    assert "its bounds were changed before the log was read" in pair.errors()[0].message
    assert pair.here_and_there()[1] == [(300, "rest"), (302, "rest")]


def test_partition_that_leaves_while_the_catalog_is_read_is_not_listed(source_database: str) -> None:
    """The server computes a condition from the present state, whatever the snapshot shows."""
    with psycopg.connect(source_database, autocommit=True) as other, psycopg.connect(source_database) as connection:
        other.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
        for name, low in (("stays", 0), ("detached", 10), ("dropped", 20)):
            other.execute(f"CREATE TABLE {name} PARTITION OF p FOR VALUES FROM ({low}) TO ({low + 10})")
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        numbers = [
            number
            for (number,) in connection.execute("SELECT oid::int8 FROM pg_class WHERE relispartition ORDER BY oid")
        ]
        other.execute("ALTER TABLE p DETACH PARTITION detached")
        other.execute("DROP TABLE dropped")
        assert list(partition_rows(connection, numbers)) == numbers[:1]
