"""Columns that both sides compute, and whose expression the source has changed: in the whole table, in the table and no
partition, or in one partition.

The findings are followed as printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from tests.support.copies.marked_tables import MarkedTables

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOTAL = "total int GENERATED ALWAYS AS (qty * 2) STORED"


@pytest.fixture
def made(fresh_database, prepared_database, pg_source) -> Iterator[Callable[..., MarkedTables]]:
    """Return a function that makes a pair of databases whose source is a PostgreSQL 18."""
    with ExitStack() as opened:

        def make(destination) -> MarkedTables:
            pair = MarkedTables(fresh_database(pg_source), prepared_database(destination))
            opened.enter_context(closing(pair))
            pair.run("both", "CREATE SCHEMA app")
            return pair

        yield make


def table(name: str, total: str = TOTAL, key: str = "PRIMARY KEY (id)") -> str:
    return f"CREATE TABLE app.{name} (id int, qty int, {total}, {key})"


def partitioned(tables: MarkedTables, name: str, here: str = TOTAL) -> None:
    for site, total in (("src", TOTAL), ("dst", here)):
        tables.run(
            site,
            f"CREATE TABLE app.{name} (id int, day int, qty int, {total}, PRIMARY KEY (id, day)) PARTITION BY RANGE"
            " (day)",
            *(part(name, number) for number in (1, 2)),
        )


def part(name: str, number: int) -> str:
    return f"CREATE TABLE app.{name}_{number} PARTITION OF app.{name} FOR VALUES FROM ({number}) TO ({number} + 1)"


def fill(tables: MarkedTables, *names: str) -> None:
    """Fill the tables; partitioned ones get rows in both partitions."""
    for name in names:
        tables.run("src", f"INSERT INTO app.{name} (id, day, qty) SELECT g, 1 + g % 2, g FROM generate_series(1, 10) g")
    tables.up()
    assert tables.look() == {}


def altered(tables: MarkedTables, what: str, expression: str) -> None:
    tables.run("src", f"ALTER TABLE {what} ALTER COLUMN total SET EXPRESSION AS ({expression})")


def printed(problem: str) -> str:
    """Return the statements of a fix."""
    return problem.partition("; fix: ")[2].partition(" -- ")[0]


def checked(tables: MarkedTables) -> dict[str, tuple[str, str]]:
    """Return the findings of `check` about computed columns: problem and fix, by table."""
    rules = (RuleSet(include=(Rule(owner="app", name="*"),)),)
    names = [TableName.of(version) for version in tables.source.table_versions(tables.source.tables(rules))]
    found = tables.destination.preflight_domains(tables.source.domain_shapes(names))
    return {each.path.rpartition(".")[2]: (each.problem, each.fix) for each in found}


def assert_same(tables: MarkedTables, *names: str) -> None:
    for name in names:
        here, there = tables.both(f"SELECT id, qty, total FROM app.{name} ORDER BY id")
        assert here == there, name


def test_expression_of_the_whole_table_is_set_here_and_dependents_stay(made, pg_destination) -> None:
    tables = made(pg_destination)
    for name in ("t", "checked"):
        tables.run("src", table(name))
        tables.run("dst", table(name, "total int GENERATED ALWAYS AS (qty * 2) STORED UNIQUE"))
        tables.run("dst", f"CREATE VIEW app.{name}_seen AS SELECT total FROM app.{name}")
        tables.run("src", f"INSERT INTO app.{name} (id, qty) SELECT g, g FROM generate_series(1, 10) g")
    partitioned(tables, "ev")
    fill(tables, "ev")
    for name in ("t", "checked", "ev"):
        altered(tables, f"app.{name}", "qty * 20")
    found, by_check = tables.look(), checked(tables)
    assert list(found) == sorted(by_check) == ["checked", "ev", "t"]
    for name in found:
        statement = f'ALTER TABLE "app"."{name}" ALTER COLUMN "total" SET EXPRESSION AS ((qty * 20));'
        assert printed(found[name]) == statement
        assert by_check[name][1].startswith(statement)
        assert "on it hang" not in found[name].lower() + by_check[name][0].lower()
        tables.run("dst", by_check[name][1] if name == "checked" else statement)
    assert tables.look() == checked(tables) == {}
    assert_same(tables, "t", "checked", "ev")
    assert tables.run("dst", "SELECT count(*) FROM app.t_seen") == [(10,)]


def test_older_destination_recreates_the_column_or_names_its_dependents(made, pg_16) -> None:
    tables = made(pg_16)
    tables.run("src", table("t"), table("bare"), table("viewed"))
    tables.run(
        "dst",
        table(
            "t",
            "total int GENERATED ALWAYS AS (qty * 2) STORED NOT NULL CONSTRAINT positive CHECK (total > 0)",
            "CONSTRAINT t_key PRIMARY KEY (id, total)",
        ),
        "CREATE INDEX t_total ON app.t (total) WHERE total > 5",
        table("bare"),
        table("viewed"),
        "CREATE VIEW app.seen AS SELECT total FROM app.viewed",
    )
    for name in ("t", "bare", "viewed"):
        tables.run("src", f"INSERT INTO app.{name} (id, qty) SELECT g, g FROM generate_series(1, 10) g")
    tables.up()
    for name in ("t", "bare", "viewed"):
        altered(tables, f"app.{name}", "qty * 20")
    found, by_check = tables.look(), checked(tables)
    hanging = "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'app.t'::regclass"
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 't'"
    before = [sorted(tables.run("dst", query)) for query in (hanging, indexes)]
    for name in ("constraint t_key on table app.t", "constraint positive on table app.t", "index app.t_total"):
        assert name in found["t"].partition("; fix: ")[0]
        assert name in by_check["t"][0]
    assert "BEGIN; ALTER TABLE" in by_check["t"][1]
    tables.run("dst", printed(found["t"]), printed(found["bare"]))
    assert [sorted(tables.run("dst", query)) for query in (hanging, indexes)] == before
    assert_same(tables, "t", "bare")
    for said in (found["viewed"], by_check["viewed"][1]):
        assert "rule _RETURN on view app.seen" in found["viewed"]
        assert "an operator drops what depends on total, then runs ALTER TABLE" in said
    assert list(tables.look()) == ["viewed"]


def test_virtual_column_of_a_table_with_checks_is_recreated(made, pg_destination) -> None:
    tables = made(pg_destination)
    virtual = TOTAL.replace("STORED", "VIRTUAL")
    tables.run("both", table("t", virtual))
    tables.run("dst", "ALTER TABLE app.t ADD CHECK (qty > 0)")
    tables.run("src", "INSERT INTO app.t (id, qty) SELECT g, g FROM generate_series(1, 10) g")
    tables.up()
    virtual = virtual.replace("2", "20")
    tables.run("src", f"ALTER TABLE app.t DROP COLUMN total, ADD COLUMN {virtual}")  # it is in a publication
    said = tables.look()["t"]
    assert printed(said).startswith('ALTER TABLE "app"."t" DROP COLUMN "total", ADD COLUMN "total" integer')
    tables.run("dst", printed(said))
    assert tables.look() == {}
    assert_same(tables, "t")
    assert tables.run(
        "dst", "SELECT attgenerated::text FROM pg_attribute WHERE attrelid = 'app.t'::regclass AND attname = 'total'"
    ) == [("v",)]


def test_tables_own_expression_applies_to_new_partitions_alone(made, pg_destination) -> None:
    tables = made(pg_destination)
    partitioned(tables, "ev")
    fill(tables, "ev")
    altered(tables, "ONLY app.ev", "qty * 20")
    assert tables.look() == checked(tables) == {}
    assert_same(tables, "ev")
    tables.run("both", part("ev", 3))
    tables.run("both", "INSERT INTO app.ev (id, day, qty) VALUES (30, 3, 30)")
    said = tables.look()["ev"]
    assert printed(said) == 'ALTER TABLE "app"."ev_3" ALTER COLUMN "total" SET EXPRESSION AS ((qty * 20));'
    tables.run("dst", printed(said))
    assert tables.look() == {}
    assert_same(tables, "ev")


def test_expression_of_one_partition_is_reported_for_that_one(made, pg_destination) -> None:
    tables = made(pg_destination)
    partitioned(tables, "ev")
    fill(tables, "ev")
    altered(tables, "app.ev_1", "qty * 20")
    statement = 'ALTER TABLE "app"."ev_1" ALTER COLUMN "total" SET EXPRESSION AS ((qty * 20));'
    said = tables.look()["ev"]
    assert printed(said) == statement
    assert checked(tables)["ev"][1].startswith(statement)
    tables.run("dst", statement)
    assert tables.look() == checked(tables) == {}
    assert_same(tables, "ev")


def test_older_destination_takes_one_partitions_values_from_the_log(made, pg_16) -> None:
    tables = made(pg_16)
    partitioned(tables, "ev")
    fill(tables, "ev")
    altered(tables, "app.ev_1", "qty * 20")
    for said in (tables.look()["ev"], checked(tables)["ev"][1]):
        assert "no statement does it here" in said
        statement = said.partition("come from the log: ")[2].partition(" then copy the table again")[0]
    tables.run("dst", statement)
    tables.copy_again("ev")
    tables.look()
    assert tables.look() == checked(tables) == {}
    assert_same(tables, "ev")


def test_partition_with_a_changed_expression_is_reported_if_plain_here(made, pg_destination) -> None:
    tables = made(pg_destination)
    partitioned(tables, "ev", "total int")
    fill(tables, "ev")
    altered(tables, "app.ev_1", "qty * 20")
    assert "column total was rewritten in partition app.ev_1 (SET EXPRESSION)" in tables.look()["ev"]
    tables.copy_again("ev")
    tables.look()
    assert tables.look() == {}
    assert_same(tables, "ev")


def test_formerly_unlogged_partition_is_reported_after_equal_expressions(made, pg_destination) -> None:
    tables = made(pg_destination)
    partitioned(tables, "ev")
    fill(tables, "ev")
    altered(tables, "app.ev", "qty * 20")
    said = tables.look()["ev"]
    tables.run(
        "src",
        "ALTER TABLE app.ev_1 SET UNLOGGED",
        "INSERT INTO app.ev (id, day, qty) VALUES (11, 1, 11)",
        "ALTER TABLE app.ev_1 SET LOGGED",
    )
    tables.run("dst", printed(said))
    assert "partition app.ev_1 was written anew by an ALTER TABLE" in tables.look()["ev"]


def test_copy_keeps_expression_findings_and_accepts_initial_differences(made, pg_destination) -> None:
    tables = made(pg_destination)
    partitioned(tables, "ev")
    partitioned(tables, "purpose", "total int GENERATED ALWAYS AS (qty * 3) STORED")
    fill(tables, "ev", "purpose")
    altered(tables, "app.ev_1", "qty * 20")
    tables.run("both", part("purpose", 3))
    assert list(tables.look()) == ["ev"]
    tables.copy_again("ev", "purpose")
    tables.look()  # the copy
    said = tables.look()
    assert list(said) == ["ev"]
    tables.run("dst", printed(said["ev"]))
    assert tables.look() == {}
