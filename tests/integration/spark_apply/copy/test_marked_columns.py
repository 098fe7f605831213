"""Columns whose values differ at the destination though names and types are the same: each is reported, and the printed
remedy makes both sides equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

import psycopg
import pytest

from headrace.rules.rule import Rule, RuleSet
from tests.support.copies.marked_tables import MarkedTables
from tests.support.session.matrices import cases, values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROWS = "INSERT INTO app.{t} (id, n, at, a) SELECT g, 1.1234, '2025-07-01 12:00+00', g FROM generate_series(1, 3) g"


@pytest.fixture
def tables(source_database: str, destination_database: str) -> Iterator[MarkedTables]:
    with closing(MarkedTables(source_database, destination_database)) as made:
        made.run("both", "CREATE SCHEMA app")
        yield made


def copied(tables: MarkedTables, count: int = 1, *, here: str = "", partitioned: Collection[str] = ()) -> list[str]:
    """Create tables with the same rows at both sites; with `here`, the destination has additional columns.

    At the sites of `partitioned` they have nested partitions, one of them without rows.
    """
    names = [f"t{number}" for number in range(count)]
    for name in names:
        for site in ("src", "dst"):
            is_partitioned = site in partitioned
            parts = (
                f"CREATE TABLE app.{name}_1 PARTITION OF app.{name} FOR VALUES IN (1)",
                f"CREATE TABLE app.{name}_2 PARTITION OF app.{name} FOR VALUES IN (2, 3) PARTITION BY LIST (id)",
                f"CREATE TABLE app.{name}_3 PARTITION OF app.{name}_2 FOR VALUES IN (2, 3)",
                f"CREATE TABLE app.{name}_4 PARTITION OF app.{name} FOR VALUES IN (4)",
            )
            tables.run(
                site,
                f"CREATE TABLE app.{name} (id int PRIMARY KEY, n numeric(10,4), at timestamptz, a int, twice int"
                f" GENERATED ALWAYS AS (id * 2) STORED){' PARTITION BY LIST (id)' if is_partitioned else ''}",
                *(parts if is_partitioned else ()),
            )
        tables.run("src", ROWS.format(t=name))
        if here:
            tables.run("dst", f"ALTER TABLE app.{name} {here}")
    tables.up()
    assert tables.look() == {}
    return names


def asked_for(tables: MarkedTables, name: str) -> str:
    """Return the fix that `check` and apply print for a table that does not fit."""
    (now,) = tables.source.table_versions(tables.source.tables([RuleSet(include=(Rule(owner="app", name=name),))]))
    return "\n".join(found.fix for found in tables.destination.preflight_tables((now,), now=(now,)) if found.is_error)


def assert_same(tables: MarkedTables, name: str) -> None:
    columns = ", ".join(
        column
        for (column,) in tables.run(
            "src",
            f"SELECT attname FROM pg_attribute WHERE attrelid = 'app.{name}'::regclass AND attnum > 0 AND NOT"
            " attisdropped",
        )
    )
    here, there = tables.both(f"SELECT {columns} FROM app.{name} ORDER BY id")
    assert here == there, name


def assert_said_until_copied(tables: MarkedTables, said: dict[str, str]) -> None:
    for _ in range(2):  # it persists across restarts
        found = tables.look()
        assert list(found) == sorted(said), found
        for name, words in said.items():
            assert words in found[name]
            assert f"headrace copy FILE app.{name}" in found[name]
        tables.up()
    tables.copy_again(*said)
    assert tables.look() == {}
    for name in said:
        assert_same(tables, name)


PARTITIONED = pytest.mark.parametrize(
    "partitioned",
    cases(
        {"plain": ((),), "source": (("src",),), "destination": (("dst",),), "both": (("src", "dst"),)},
        core=["both"],
    ),
)


@PARTITIONED
def test_new_column_that_the_destination_already_has_otherwise_is_reported(
    tables: MarkedTables, partitioned: tuple[str, ...]
) -> None:
    matrix = [  # at the destination before, at the source, at the destination afterwards, the finding
        ("ADD x int", "ADD x int DEFAULT 5", "", "column x"),
        ("ADD x int DEFAULT 4", "ADD x int", "", "column x"),
        ("ADD x int DEFAULT 4", "ADD x int DEFAULT 5", "", "column x"),
        ("", "ADD x int DEFAULT 5", "ADD x int", "column x"),
        ("ADD x int DEFAULT 5", "ADD x int DEFAULT 5", "", ""),
        ("ADD x int", "ADD x int", "", ""),
        ("ADD x int DEFAULT 5", "ADD x int DEFAULT 5; ALTER TABLE app.{t} ALTER x DROP DEFAULT", "", ""),
        ("", "ADD x int DEFAULT 5", "ADD x int DEFAULT '5'", ""),
        ("", "ADD x timestamptz; ALTER TABLE app.{t} ALTER x SET DEFAULT now()", "ADD x timestamptz", ""),
        ("ADD x timestamptz DEFAULT now()", "ADD x timestamptz DEFAULT now()", "", "column x"),
    ]
    names = copied(tables, len(matrix), partitioned=partitioned)
    for name, (before, there, after, _) in zip(names, matrix, strict=True):
        tables.run("dst", *[f"ALTER TABLE app.{name} {before}"] * bool(before))
        tables.run("src", f"ALTER TABLE app.{name} {there.format(t=name)}")
        if after:
            assert name not in tables.look()
            tables.run("dst", f"ALTER TABLE app.{name} {after}")
    assert_said_until_copied(tables, {name: said for name, (*_, said) in zip(names, matrix, strict=True) if said})


@PARTITIONED
@pytest.mark.parametrize("is_dropped", [False, True], ids=["default kept", "default dropped"])
def test_column_that_apply_asks_for_has_the_sources_value_in_older_rows(
    tables: MarkedTables, partitioned: tuple[str, ...], *, is_dropped: bool
) -> None:
    (name,) = copied(tables, partitioned=partitioned)
    tables.run(
        "src",
        f"ALTER TABLE app.{name} ADD x int NOT NULL DEFAULT 5",
        *[f"ALTER TABLE app.{name} ALTER x DROP DEFAULT"] * is_dropped,
    )
    if "src" in partitioned:
        # Neither a partition younger than the column nor a rewritten one has the value.
        tables.run(
            "src",
            f"CREATE TABLE app.{name}_5 PARTITION OF app.{name} FOR VALUES IN (5)",
            f"VACUUM FULL app.{name}_1",
        )
    tables.run("dst", asked_for(tables, name))
    assert tables.look() == {}
    assert_same(tables, name)


@PARTITIONED
def test_column_added_without_the_sources_default_is_reported(
    tables: MarkedTables, partitioned: tuple[str, ...]
) -> None:
    (name,) = copied(tables, partitioned=partitioned)
    tables.run("src", f"ALTER TABLE app.{name} ADD x int DEFAULT 5")
    tables.run("dst", f"ALTER TABLE app.{name} ADD x int")
    assert_said_until_copied(tables, {name: "column x was added, and here older rows have another value"})


def test_attached_partitions_values_are_no_evidence_for_existing_rows(tables: MarkedTables) -> None:
    names = copied(tables, 4, partitioned=("src", "dst"))
    for name, added in zip(names, ("int", "int DEFAULT 5", "int", "int DEFAULT 5"), strict=True):
        tables.run("src", f"ALTER TABLE app.{name} ADD x {added}")
    for name in names:
        by = " PARTITION BY LIST (id)" if name == "t2" else ""
        tables.run(
            "src",
            f"CREATE TABLE app.{name}_5 (id int PRIMARY KEY, n numeric(10,4), at timestamptz, a int, twice int"
            f" GENERATED ALWAYS AS (id * 2) STORED){by}",
            *[f"CREATE TABLE app.{name}_6 PARTITION OF app.{name}_5 FOR VALUES IN (5)"] * bool(by),
            f"INSERT INTO app.{name}_5 (id) VALUES (5)",
            f"ALTER TABLE app.{name}_5 ADD x int DEFAULT 6",
            f"ALTER TABLE app.{name} ATTACH PARTITION app.{name}_5 FOR VALUES IN (5)",
        )
    tables.run(
        "src", "ALTER TABLE app.t3 ALTER x SET STATISTICS 10"
    )  # which partition brought its own is no longer known
    assert "then headrace verify FILE app.t3" in asked_for(tables, "t3")
    for name in names:
        tables.run("dst", asked_for(tables, name))
        here, there = tables.both(f"SELECT id, x FROM app.{name} WHERE id < 5 ORDER BY id")
        assert here == there or name == "t3", name
    said = [name for name, problem in tables.look().items() if "older rows have another value" in problem]
    assert said == ["t3"]


@pytest.mark.parametrize("statement", values(["ADD x int DEFAULT 5", "ADD x int", "RENAME a TO x"], "RENAME a TO x"))
def test_column_that_the_source_adds_after_the_destination_is_reported(tables: MarkedTables, statement: str) -> None:
    (name,) = copied(tables, here="ADD x int DEFAULT 7")
    tables.run("src", f"ALTER TABLE app.{name} {statement}")
    assert_said_until_copied(tables, {name: "column x"})


def test_column_renamed_or_recreated_at_one_side_alone_is_reported(tables: MarkedTables) -> None:
    names = copied(tables, 3)
    tables.run("dst", "ALTER TABLE app.t0 ADD x int", "ALTER TABLE app.t1 DROP a, ADD a int")
    tables.run("src", "ALTER TABLE app.t0 RENAME a TO x")
    tables.run("src", f"ALTER TABLE app.{names[2]} RENAME a TO x")
    assert list(tables.look()) == ["t0", "t1"]
    tables.run("dst", "ALTER TABLE app.t2 RENAME a TO x")
    assert_said_until_copied(tables, {"t0": "column x was called a before", "t1": "column a"})
    assert_same(tables, "t2")


def test_column_with_a_volatile_default_may_be_renamed(tables: MarkedTables) -> None:
    (name,) = copied(tables)
    tables.run("src", f"ALTER TABLE app.{name} ADD x timestamptz DEFAULT now()")
    assert list(tables.look()) == [name]
    tables.run("dst", asked_for(tables, name))
    tables.copy_again(name)
    assert tables.look() == {}
    tables.run("both", f"ALTER TABLE app.{name} RENAME x TO y")
    assert tables.look() == {}


def test_constant_column_after_a_full_rewrite_is_not_called_volatile(tables: MarkedTables) -> None:
    (name,) = copied(tables)
    tables.run("src", f"ALTER TABLE app.{name} ADD x int DEFAULT 5, ADD y float8 DEFAULT random()")
    problem = tables.look()[name]
    assert "column y was added with a default that is not the same for all rows" in problem
    assert "column x" not in problem
    tables.run("dst", asked_for(tables, name))
    assert_said_until_copied(tables, {name: "column y"})


@pytest.mark.parametrize("is_reverse", values([False, True], False))
def test_time_that_the_sessions_zone_converts_is_reported_for_a_copy(tables: MarkedTables, *, is_reverse: bool) -> None:
    (name,) = copied(tables)
    wanted = "timestamp" if not is_reverse else "timestamptz"
    if is_reverse:
        tables.run("both", f"SET TimeZone = 'UTC'; ALTER TABLE app.{name} ALTER at TYPE timestamp")
        tables.verify()
    tables.run(
        "dst",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''America/New_York''', current_database()); END $$",
    )
    assert tables.look() == {}
    tables.run("src", f"SET TimeZone = 'UTC'; ALTER TABLE app.{name} ALTER at TYPE {wanted}")
    statement, _, remark = asked_for(tables, name).partition(" -- ")
    assert f"then headrace verify FILE app.{name} and the fix that it prints: " in remark
    assert " if the source's" not in remark
    tables.run("dst", statement)
    assert tables.both("SELECT at::text FROM app.t0")[0] != tables.both("SELECT at::text FROM app.t0")[1]
    assert_said_until_copied(tables, {name: "column at"})


def test_column_that_was_temporarily_narrower_here_is_to_be_copied(tables: MarkedTables) -> None:
    (name,) = copied(tables)
    tables.run("dst", f"ALTER TABLE app.{name} ALTER n TYPE numeric(10,2)")
    statement, _, remark = asked_for(tables, name).partition(" -- ")
    assert f"then headrace verify FILE app.{name} and the fix that it prints: " in remark
    assert " if the source's" not in remark
    tables.run("dst", statement)
    tables.copy_again(name)
    assert tables.look() == {}
    assert_same(tables, name)


COMPUTED = {
    "set": "ALTER twice SET EXPRESSION AS (id * 3)",
    "made anew": "DROP twice, ADD twice int GENERATED ALWAYS AS (id * 3) STORED",
    "another type": "DROP twice, ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED",
    "new": "ADD thrice int GENERATED ALWAYS AS (id * 3) STORED",
}


@pytest.mark.parametrize("how", values(COMPUTED, "set", "another type"))
def test_outdated_computed_column_is_reported_with_its_alter_after_a_copy(tables: MarkedTables, how: str) -> None:
    (name,) = copied(tables, here="ADD thrice int GENERATED ALWAYS AS (id) STORED" if how == "new" else "")
    tables.run("src", f"ALTER TABLE app.{name} {COMPUTED[how]}")
    problem = tables.look()[name]
    assert "headrace copy" not in problem
    tables.copy_again(name)
    tables.up()
    assert tables.look()[name] == problem
    fix = problem.split("; fix: ")[1].partition("; -- ")[0]
    # In one statement where the type is unchanged: keys and indexes of the column stay.
    made = "DROP COLUMN" if how == "another type" else "ALTER COLUMN"
    assert fix.startswith(f'ALTER TABLE "app"."{name}" {made}'), fix
    tables.run("dst", fix)
    assert tables.look() == {}
    assert_same(tables, name)
    assert (
        tables.both(f"SELECT pg_typeof(twice)::text FROM app.{name}")[0]
        == tables.both(f"SELECT pg_typeof(twice)::text FROM app.{name}")[1]
    )


def test_initially_different_expressions_are_no_finding_and_hide_no_other(tables: MarkedTables) -> None:
    (name,) = copied(tables, here="DROP twice, ADD twice int GENERATED ALWAYS AS (id * 5) STORED")
    tables.run("src", f"ALTER TABLE app.{name} ALTER a TYPE int USING a * 100")
    assert "twice" not in tables.look()[name]
    tables.run("src", f"ALTER TABLE app.{name} ALTER twice SET EXPRESSION AS (id * 3)")
    problem = tables.look()[name]
    assert "column a was rewritten" in problem
    first = problem.split("first, at the destination: ")[1].partition(";)")[0]
    tables.run("dst", first)
    tables.copy_again(name)
    assert tables.look() == {}
    assert_same(tables, name)


def test_tables_that_swap_names_are_reported_before_one_of_them_changes(tables: MarkedTables) -> None:
    copied(tables, 2)
    tables.run("src", "ALTER TABLE app.t0 RENAME TO x; ALTER TABLE app.t1 RENAME TO t0; ALTER TABLE app.x RENAME TO t1")
    found = tables.look()
    assert list(found) == ["t0", "t1"]
    assert "the source calls app.t0 now app.t1, which is another table's name" in found["t0"]
    assert "headrace stop FILE apply:apply_from_src" in found["t0"]
    tables.run("src", "ALTER TABLE app.t0 RENAME TO x; ALTER TABLE app.t1 RENAME TO t0; ALTER TABLE app.x RENAME TO t1")
    assert tables.look() == {}


@pytest.mark.parametrize("site", ["src", "dst"])
def test_look_waits_for_no_session_that_locks_a_table(tables: MarkedTables, site: str) -> None:
    (name,) = copied(tables)
    tables.run("src", f"ALTER TABLE app.{name} ALTER a TYPE int USING a + 1")
    problem = tables.look()[name]
    with psycopg.connect(tables.dsn[site]) as user:
        user.execute(f"LOCK app.{name} IN ACCESS EXCLUSIVE MODE")
        assert tables.look() == {name: problem}
