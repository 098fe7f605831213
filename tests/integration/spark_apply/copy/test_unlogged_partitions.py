"""Partitions of a source's table that are temporarily UNLOGGED, or rewritten by an ALTER TABLE: this is reported, or
their rows arrive automatically; nothing else is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.copies.marked_tables import MarkedTables
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

COLUMNS = {
    "wide": "id int, day int, v text, PRIMARY KEY (id, day)",
    "narrow": "id int, day int, v int, PRIMARY KEY (id, day)",  # it has no table for large values
}
MAY_HAVE_BEEN = "{0}_1 was written anew by an ALTER TABLE that altered no column: it may have been UNLOGGED for a while"


@pytest.fixture(params=values(["pg_source", "pg_16", "pg_15"], "pg_source"))
def tables(request, fresh_database, destination_database: str) -> Iterator[MarkedTables]:
    source = fresh_database(request.getfixturevalue(request.param))
    with closing(MarkedTables(source, destination_database)) as made:
        made.run("both", "CREATE SCHEMA app")
        yield made


def partitioned(tables: MarkedTables, names: dict[str, str]) -> None:
    """Create copied tables with these columns, with the partitions _1 and _2, and ten rows in each."""
    for name, kind in names.items():
        tables.run("both", f"CREATE TABLE app.{name} ({COLUMNS[kind]}) PARTITION BY RANGE (day)")
        for number in (1, 2):
            tables.run("both", part(name, number))
            tables.run("src", rows(name, number, 1, 10))
    tables.up()
    assert tables.look() == {}


def part(name: str, number: int, how: str = "TABLE") -> str:
    return f"CREATE {how} app.{name}_{number} PARTITION OF app.{name} FOR VALUES FROM ({number}) TO ({number} + 1)"


def rows(name: str, number: int, first: int, last: int) -> str:
    return f"INSERT INTO app.{name} SELECT g, {number}, g FROM generate_series({first}, {last}) g"


def assert_same(tables: MarkedTables, *names: str) -> None:
    for name in names:
        here, there = tables.both(f"SELECT * FROM app.{name} ORDER BY id, day")
        assert here == there, name


def test_partition_unlogged_between_looks_is_reported_till_copied_or_equal(tables: MarkedTables) -> None:
    partitioned(tables, {"copied": "wide", "compared": "wide", "narrow": "narrow"})
    for name in ("copied", "compared", "narrow"):
        tables.run(
            "src",
            f"ALTER TABLE app.{name}_1 SET UNLOGGED",
            rows(name, 1, 11, 20),
            f"ALTER TABLE app.{name}_1 SET LOGGED",
            rows(name, 1, 21, 30),
        )
    for _ in range(2):  # it persists across restarts
        found = tables.look()
        assert list(found) == ["compared", "copied", "narrow"]
        for name, said in found.items():
            assert MAY_HAVE_BEEN.format(f"app.{name}") in said
            assert f"headrace copy FILE app.{name}" in said
        tables.up()
    assert set(tables.verify().values()) == {False}
    tables.copy_again("copied", "narrow")
    tables.look()  # the copies
    tables.run("dst", rows("compared", 1, 11, 30))
    assert tables.verify()["compared"]
    assert tables.look() == {}
    assert_same(tables, "copied", "compared", "narrow")


def test_partition_seen_unlogged_is_reported_even_after_it_is_logged_again(tables: MarkedTables) -> None:
    partitioned(tables, {"ev": "narrow"})
    tables.run("src", "ALTER TABLE app.ev_1 SET UNLOGGED")
    said = tables.look()["ev"]
    assert "partition app.ev_1 is UNLOGGED at the source: changes of its rows are in no log" in said
    assert 'first, at the source: ALTER TABLE "app"."ev_1" SET LOGGED; then ' in said
    assert tables.verify() == {"ev": True}
    tables.copy_again("ev")
    tables.look()  # the copy
    assert "is UNLOGGED" in tables.look()["ev"]  # the log has no changes after the copy
    tables.run("src", rows("ev", 1, 11, 20), "ALTER TABLE app.ev_1 SET LOGGED", "VACUUM FULL app.ev_1")
    for _ in range(2):
        assert "partition app.ev_1 was UNLOGGED at the source" in tables.look()["ev"]
        tables.up()
    tables.copy_again("ev")
    tables.look()
    assert tables.look() == {}
    assert_same(tables, "ev")


def test_partition_created_unlogged_is_reported_and_copied_when_logged(tables: MarkedTables) -> None:
    partitioned(tables, {"seen": "wide", "unseen": "wide", "narrow": "narrow", "elsewhere": "wide"})
    names = ("seen", "unseen", "narrow")
    for name in (*names, "elsewhere"):
        tables.run("src", part(name, 3, "UNLOGGED TABLE"), rows(name, 3, 1, 10))
        if name != "seen":
            tables.run("src", f"ALTER TABLE app.{name}_3 SET LOGGED")
    for name in names:
        tables.run("dst", part(name, 3))
    found = tables.look()
    assert list(found) == ["elsewhere", "seen"]
    assert "partition app.seen_3 is UNLOGGED at the source" in found["seen"]
    assert "partition app.elsewhere_3 has rows that are not in the log" in found["elsewhere"]
    assert_same(tables, "unseen", "narrow")
    tables.run("src", "ALTER TABLE app.seen_3 SET LOGGED")
    tables.run("dst", part("elsewhere", 3))
    assert tables.look() == {}
    assert_same(tables, *names, "elsewhere")


def test_partition_rewritten_right_after_creation_is_copied_or_reported(tables: MarkedTables) -> None:
    for name in ("here", "lacking"):
        tables.run("both", f"CREATE TABLE app.{name} ({COLUMNS['narrow']}) PARTITION BY RANGE (day)")
    tables.up()
    assert tables.look() == {}
    tables.run("dst", part("here", 1))
    for name in ("here", "lacking"):
        tables.run(
            "src",
            part(name, 1),
            rows(name, 1, 1, 10),
            f"ALTER TABLE app.{name} ALTER v TYPE int USING v * 100",
        )
    found = tables.look()
    assert list(found) == ["lacking"]
    assert "partition app.lacking_1 has rows that are not in the log" in found["lacking"]
    tables.run("dst", part("lacking", 1))
    assert tables.look() == {}
    assert_same(tables, "here", "lacking")


def test_rewrites_of_a_partition_with_the_same_rows_are_not_reported(tables: MarkedTables) -> None:
    statements = {
        "vacuumed": ["VACUUM FULL app.{0}_1"],
        "clustered": ["CLUSTER app.{0}_1 USING {0}_1_pkey"],
        "truncated": ["TRUNCATE app.{0}_1"],
        "filled": ["BEGIN; TRUNCATE app.{0}_1; INSERT INTO app.{0} VALUES (1, 1, 1); COMMIT"],
        "rewritten": ["ALTER TABLE app.{0} ADD COLUMN late int DEFAULT 1", "VACUUM FULL app.{0}_1"],
        "altered": ["ALTER TABLE app.{0} ALTER v SET STATISTICS 7", "VACUUM FULL app.{0}_1"],
    }
    names = {f"{name}_{kind}": kind for name in statements for kind in COLUMNS}
    partitioned(tables, names)
    for name in names:
        tables.run("src", *(each.format(name) for each in statements[name.partition("_")[0]]))
    assert tables.look() == {}
