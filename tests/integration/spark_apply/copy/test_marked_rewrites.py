"""Rewrites of a table with columns that were added with a default, without a change of values.

The server forgets the value of older rows and writes the attribute's row of each such column. Only an ALTER TABLE is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.copies.marked_tables import MarkedTables
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SHAPES = {  # what a text needs is a table for large values
    "with large values": "note text",
    "numbers alone": "note int",
}
MADE = ("{t}_plain", "{t}_parts")
UNSAID = (
    ["VACUUM FULL app.{t}"],
    ["CLUSTER app.{t} USING {t}_pkey"],
    ["VACUUM FULL app.{t}", "VACUUM FULL app.{t}"],
    ["ALTER TABLE app.{t} ALTER n SET STATISTICS 10", "VACUUM FULL app.{t}"],
    ["ALTER TABLE app.{t} ALTER m DROP DEFAULT", "VACUUM FULL app.{t}"],
)
SAID = (
    ["ALTER TABLE app.{t} ALTER n TYPE int USING n * 100"],
    ["ALTER TABLE app.{t} ALTER n SET STATISTICS 10", "ALTER TABLE app.{t} ALTER n TYPE int USING n * 100"],
    # This changes the column's default, which VACUUM FULL leaves alone.
    ["ALTER TABLE app.{t} ALTER m TYPE int USING m * 100", "VACUUM FULL app.{t}"],
)


@pytest.fixture
def tables(source_database: str, destination_database: str) -> Iterator[MarkedTables]:
    with closing(MarkedTables(source_database, destination_database)) as made:
        made.run("both", "CREATE SCHEMA app")
        yield made


def copied(tables: MarkedTables, count: int, shape: str) -> list[str]:
    """Create plain and partitioned tables with older rows, which have 5 in `n` and 6 in `m`; `m` still has its default."""
    names = [made.format(t=f"t{number}") for number in range(count) for made in MADE]
    for name in names:
        is_partitioned = name.endswith("_parts")
        tables.run(
            "both",
            f"CREATE TABLE app.{name} (id int PRIMARY KEY, {shape}) {'PARTITION BY RANGE (id)' * is_partitioned}",
            *[f"CREATE TABLE app.{name}_1 PARTITION OF app.{name} FOR VALUES FROM (0) TO (100)"] * is_partitioned,
        )
        tables.run("src", f"INSERT INTO app.{name} SELECT generate_series(1, 20)")
    tables.up()
    for name in names:
        tables.run(
            "both",
            f"ALTER TABLE app.{name} ADD n int NOT NULL DEFAULT 5, ADD m int DEFAULT 6",
            f"ALTER TABLE app.{name} ALTER n DROP DEFAULT",
        )
    assert tables.look() == {}
    return names


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rewrite_that_only_forgets_older_rows_values_is_not_reported(tables: MarkedTables, shape: str) -> None:
    names = copied(tables, len(UNSAID), shape)
    for number, statements in enumerate(UNSAID):
        for name in names[2 * number : 2 * number + 2]:
            tables.run("src", *(each.format(t=name) for each in statements))
    # For partitions without a table for large values, a rewrite and an altered definition look like one statement.
    assert set(tables.look()) == ({"t3_parts", "t4_parts"} if shape == SHAPES["numbers alone"] else set())
    assert set(tables.verify().values()) == {True}
    assert tables.look() == {}
    for name in names:  # the forgotten value hides nothing later
        tables.run("src", f"ALTER TABLE app.{name} ALTER n TYPE int USING n + 1")
    assert list(tables.look()) == sorted(names)


@pytest.mark.parametrize("shape", cases(SHAPES, core=["numbers alone"]))
def test_alter_that_rewrites_values_and_forgets_old_ones_is_reported(tables: MarkedTables, shape: str) -> None:
    names = copied(tables, len(SAID), shape)
    for number, statements in enumerate(SAID):
        for name in names[2 * number : 2 * number + 2]:
            tables.run("src", *(each.format(t=name) for each in statements))
    found = tables.look()
    assert list(found) == sorted(names)
    assert all("column n was rewritten" in found[name] for name in names[:4])
    assert all("column m was rewritten" in found[name] for name in names[4:])
    tables.copy_again(*names)
    assert tables.look() == {}
    assert set(tables.verify().values()) == {True}


def test_alter_followed_by_other_alters_of_the_table_is_reported(tables: MarkedTables) -> None:
    """In a table without a key and without large values nothing else has the number of its transaction."""
    tables.run("both", "CREATE TABLE app.keyless (id int)", "ALTER TABLE app.keyless REPLICA IDENTITY FULL")
    tables.run("src", "INSERT INTO app.keyless SELECT generate_series(1, 20)")
    tables.up()
    tables.run(
        "both",
        "ALTER TABLE app.keyless ADD n int NOT NULL DEFAULT 5",
        "ALTER TABLE app.keyless ALTER n DROP DEFAULT",
    )
    assert tables.look() == {}
    tables.run("src", "ALTER TABLE app.keyless ALTER n TYPE int USING n * 100", "GRANT SELECT ON app.keyless TO PUBLIC")
    assert "column n was rewritten" in tables.look()["keyless"]


def test_mark_keeps_an_older_value_forgotten_before_the_destination_has_it(tables: MarkedTables) -> None:
    names = ["right", "wrong"]
    for name in names:
        tables.run("both", f"CREATE TABLE app.{name} (id int PRIMARY KEY)")
        tables.run("src", f"INSERT INTO app.{name} VALUES (1)")
    tables.up()
    for name in names:
        tables.run("src", f"ALTER TABLE app.{name} ADD n int DEFAULT 5", f"ALTER TABLE app.{name} ALTER n DROP DEFAULT")
    assert tables.look() == {}
    for name in names:
        tables.run("src", f"VACUUM FULL app.{name}")
    assert tables.look() == {}
    tables.run("dst", "ALTER TABLE app.right ADD n int DEFAULT 5", "ALTER TABLE app.wrong ADD n int")
    assert list(tables.look()) == ["wrong"]


def test_formerly_unlogged_partition_is_reported_beside_other_rewrites(tables: MarkedTables) -> None:
    tables.run(
        "both",
        "CREATE TABLE app.ev (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE app.ev_1 PARTITION OF app.ev FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE app.ev_2 PARTITION OF app.ev FOR VALUES FROM (100) TO (200)",
    )
    tables.up()
    tables.run(
        "src",
        "ALTER TABLE app.ev_2 SET UNLOGGED",
        "INSERT INTO app.ev VALUES (100)",
        "ALTER TABLE app.ev_2 SET LOGGED",
        "VACUUM FULL app.ev_1",
        "ALTER TABLE app.ev ALTER note SET STATISTICS 10",
    )
    problem = tables.look()["ev"]
    assert "partition app.ev_2 was written anew by an ALTER TABLE that altered no column" in problem
    assert "was rewritten" not in problem
