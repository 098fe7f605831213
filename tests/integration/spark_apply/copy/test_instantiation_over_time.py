"""Instantiation between two real databases, without Spark: which tables are copied, emptied, kept and refused over
time.

The copying itself is plain SQL here; the product makes all decisions about it, and the records.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.databases.connectors import DatabaseAccess
from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import Operation, RenameSchema, RenameTable, Transformation
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.comparison.jobs import tables_of_now
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.records.standing import rename_findings
from spark_apply.copy.records.tables import TableProgress, TableRecords
from tests.support.copies.marked_tables import NothingIsApplied
from tests.support.copies.table_copies import one_way
from tests.support.databases.captured_source import CapturedSource
from tests.support.databases.statements import execute
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY, APPLY = "topo", "apply_from_src"
Rows = list[tuple[Any, ...]]


class _Provable:
    """A reader's replacement: rows are small."""

    def prove_large(
        self, owner: str, name: str, columns: Mapping[str, str], *, snapshot: str = "", rows: str = ""
    ) -> None: ...


class _Copied(TableInstantiation):
    """Copies by itself and without a snapshot, as nobody writes meanwhile. Looks once at refused tables."""

    def _sleep(self, seconds: float) -> None:
        object.__setattr__(self, "should_end", lambda: True)

    def look_beside(self) -> None:
        """Run the copies beside the apply servers, until only tables that wait for an operator are left."""
        joins: Any = NothingIsApplied(self.destination)
        self._joins = joins
        looks = 0
        while self._look(joins) == 0.0:
            looks += 1
            assert looks < 10, self._records.progress

    def _copy(self, this: Any) -> None:
        for copy in this.copies.values():
            name = f'"{copy.key[0]}"."{copy.key[1]}"'
            rows = execute(self.config.source.dsn, f"SELECT * FROM {name}")
            with psycopg.connect(self.config.destination.dsn) as connection:
                connection.cursor().executemany(f"INSERT INTO {name} VALUES (%s, %s)", rows)
            state = "DONE" if self._joins is None else "COPIED"
            self._records.record(copy.table, copy.scn, state, rows=len(rows), digest="copied")


class Sites:
    """A source and a destination, and the tables that a topology replicates between them."""

    def __init__(self, source: str, destination: str) -> None:
        self.dsn = {"src": source, "dst": destination}
        self.source, self.destination = CapturedSource(source, site="src"), PostgresDestination(destination, site="dst")
        self.progress: dict[str, TableProgress] = {}
        self.destination.prepare(TOPOLOGY)

    def run(self, site: str, *statements: str) -> None:
        for statement in statements:
            execute(self.dsn[site], statement)

    def rows(self, site: str, table: str) -> Rows:
        return execute(self.dsn[site], f"SELECT * FROM {table} ORDER BY 1")

    def up(self, *rules: str) -> None:
        """Change the source's database as `up` does: from now on these tables are captured, and no others."""
        self.source.prepare(TOPOLOGY, [RuleSet(include=tuple(Rule(owner="public", name=name) for name in rules))])

    def tables(self, *, keep: Collection[str] = (), may_empty: bool = True) -> tuple[TableToInstantiate, ...]:
        return tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                keep_existing=table.name in keep,
                may_empty=may_empty,
            )
            for table in self.source.captured(TOPOLOGY)
        )

    def config(self, tables: tuple[TableToInstantiate, ...]) -> ApplyConfig:
        return ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=DatabaseAccess(site="src", kind="postgres", dsn=self.dsn["src"]),
            destination=DatabaseAccess(site="dst", kind="postgres", dsn=self.dsn["dst"]),
            queue="",
            tables=tables,
        )

    def instantiate(self, tables: tuple[TableToInstantiate, ...]) -> dict[str, Scn]:
        """Do a driver's work before it applies; return when only refused tables are left."""
        epoch = self.destination.raise_epoch(TOPOLOGY, APPLY).epoch
        self.progress.clear()
        nothing: Any = None
        self.is_held_up = False
        made = _Copied(
            config=self.config(tables),
            source=self.source,
            destination=self.destination,
            source_reader=_Provable(),
            destination_reader=nothing,
            workers=nothing,
            epoch=epoch,
            moved=self._moved,
            should_end=lambda: False,
            both_ways=one_way(self.config(tables)),
        )
        made.run_first()
        if not made.should_end():
            made.look_beside()
        found, _ = made.starts()
        self.is_held_up = made.should_end() or any(start.scn is None for start in found.values())
        return {name: start.scn for (_, name), start in found.items() if start.scn is not None}

    def _moved(self, progress: TableProgress) -> None:
        self.progress[progress.name] = progress

    def states(self) -> list[tuple[str, str]]:
        return [(table.name, table.state) for table in self.destination.instantiations(TOPOLOGY, APPLY)]


@pytest.fixture
def sites(
    source_database: str,
    destination_database: str,
) -> Iterator[Sites]:
    made = Sites(source_database, destination_database)
    for site in ("src", "dst"):
        made.run(
            site, "CREATE TABLE a (id int PRIMARY KEY, body text)", "CREATE TABLE b (id int PRIMARY KEY, body text)"
        )
    made.run("src", "INSERT INTO a VALUES (1, 'first')", "INSERT INTO b VALUES (1, 'first')")
    made.up("*")
    made.instantiate(made.tables())
    with contextlib.closing(made.source), contextlib.closing(made.destination):
        yield made


def test_nothing_is_copied_twice(sites: Sites):
    before = sites.instantiate(sites.tables())
    assert sorted(before) == ["a", "b"]
    sites.run("src", "INSERT INTO a VALUES (2, 'comes with the changes')")
    assert sites.instantiate(sites.tables()) == before
    assert sites.rows("dst", "a") == [(1, "first")]


def test_table_that_was_not_captured_for_some_time_is_copied_again(sites: Sites):
    first = sites.instantiate(sites.tables())
    sites.up("a")
    sites.run(
        "src", "INSERT INTO b VALUES (2, 'while it is away')", "UPDATE b SET body = 'while it is away' WHERE id = 1"
    )
    assert sites.instantiate(sites.tables()) == {"a": first["a"]}
    sites.up("*")
    again = sites.instantiate(sites.tables())
    assert again["a"] == first["a"]
    assert again["b"] > first["b"]
    assert sites.rows("dst", "b") == sites.rows("src", "b")
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]


def test_replicated_tables_new_partition_is_not_shown_as_left(sites: Sites):
    """Its rows arrive through the partitioned table: dropping it would lose them."""
    for site in ("src", "dst"):
        sites.run(
            site,
            "CREATE TABLE c (id int, body text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (1) TO (10)",
        )
        sites.run(site, "CREATE TABLE c_2 (id int PRIMARY KEY, body text)")
    sites.run("src", "INSERT INTO c_2 VALUES (11, 'arrives through c')")
    sites.up("*")
    sites.instantiate(sites.tables())
    for site in ("src", "dst"):
        sites.run(site, "ALTER TABLE c ATTACH PARTITION c_2 FOR VALUES FROM (10) TO (20)")
    sites.up("*")
    assert [
        table.name
        for table in sites.destination.leave_out(TOPOLOGY, APPLY, kept=[table.identity for table in sites.tables()])
    ] == ["c_2"]

    def shown() -> dict[str, str]:
        sites.progress.clear()
        epoch = sites.destination.raise_epoch(TOPOLOGY, APPLY).epoch
        TableRecords(
            config=sites.config(sites.tables()), destination=sites.destination, epoch=epoch, moved=sites._moved
        ).standings()
        return {progress.name: progress.state for progress in sites.progress.values()}

    assert sites.rows("src", "c") == sites.rows("dst", "c")
    assert "LEFT OUT" not in shown().values()
    for site in ("src", "dst"):
        sites.run(site, "ALTER TABLE c DETACH PARTITION c_2")
    sites.up("a", "b", "c")
    assert shown()["c_2"] == "LEFT OUT"


def test_table_whose_changes_were_dropped_on_the_way_is_copied_again(sites: Sites):
    """It was captured all the time, but a propagation or the apply process had no rule for it."""
    first = sites.instantiate(sites.tables())
    (a,) = (table for table in sites.tables() if table.source.name == "a")
    assert [table.name for table in sites.destination.leave_out(TOPOLOGY, APPLY, kept=[a.identity])] == ["b"]
    sites.run("src", "INSERT INTO b VALUES (2, 'while it is away')")
    assert sites.instantiate((a,)) == {"a": first["a"]}
    assert sites.instantiate(sites.tables())["b"] > first["b"]
    assert sites.rows("dst", "b") == sites.rows("src", "b")


@pytest.mark.parametrize(
    "statements",
    cases(
        {
            "made again": (("DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY, body text)"),),
            "swapped in": (
                (
                    "CREATE TABLE a_new (id int PRIMARY KEY, body text)",
                    "ALTER TABLE a RENAME TO a_old",
                    "ALTER TABLE a_new RENAME TO a",
                    "DROP TABLE a_old",
                ),
            ),
        },
        core=["swapped in"],
    ),
)
def test_replaced_table_of_the_same_name_is_copied_again(sites: Sites, statements: tuple[str, ...]):
    sites.run("src", *statements, "INSERT INTO a VALUES (7, 'another table')")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert sites.rows("dst", "a") == [(7, "another table")]
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]


def test_outdated_rows_that_others_also_write_stay_for_the_operator(sites: Sites):
    sites.run(
        "src", "DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY, body text)", "INSERT INTO a VALUES (7, 'new')"
    )
    sites.up("*")
    for keep in ((), ("a",)):  # keeping rows that lack changes is no option
        sites.instantiate(sites.tables(keep=keep, may_empty=False))
        assert "out of date" in sites.progress["a"].problem
        assert "--keep-existing" not in sites.progress["a"].problem
        assert sites.rows("dst", "a") == [(1, "first")]
    printed = re.search(r"empty the destination table \((.*)\), and it is copied again$", sites.progress["a"].problem)
    assert printed, sites.progress["a"].problem
    sites.run("dst", printed[1])
    sites.instantiate(sites.tables(may_empty=False))
    assert sites.rows("dst", "a") == [(7, "new")]


def test_renamed_table_is_not_copied_and_its_record_follows_the_name(sites: Sites):
    first = sites.instantiate(sites.tables())
    sites.run("src", "ALTER TABLE a RENAME TO a2")
    sites.up("*")
    assert sites.instantiate(sites.tables()) == {**first, "a2": first["a"]}
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]
    sites.run("dst", "ALTER TABLE a RENAME TO a2")
    assert sites.instantiate(sites.tables()) == {"a2": first["a"], "b": first["b"]}
    assert sites.states() == [("a2", "DONE"), ("b", "DONE")]
    assert sites.rows("dst", "a2") == [(1, "first")]


@pytest.mark.parametrize("whole", [True, False])
def test_remedy_for_a_renamed_schema_moves_every_table(sites: Sites, whole: bool):
    for site in ("src", "dst"):
        sites.run(
            site,
            "CREATE SCHEMA c27",
            *(f"CREATE TABLE c27.{name} (id int PRIMARY KEY, body text)" for name in ("a", "b")),
        )
    if not whole:
        sites.run("dst", "CREATE TABLE c27.own (id int)")
    with psycopg.connect(sites.dsn["src"], autocommit=True) as connection:
        catalogs = [describe_table(connection, "c27", name) for name in ("a", "b")]
    old_names = {TableName("c27x", name): TableName("c27", name) for name in ("a", "b")}
    versions = [
        replace(table_version(catalog, is_binary=False), owner="c27x", version=1)
        for catalog in catalogs
        if catalog is not None
    ]
    fixes = [found.fix for found in rename_findings(sites.destination, versions, old_names, "dst").values()]
    assert fixes[0] == (
        'ALTER SCHEMA "c27" RENAME TO "c27x";'
        if whole
        else 'CREATE SCHEMA IF NOT EXISTS "c27x"; ALTER TABLE "c27"."a" SET SCHEMA "c27x";'
    )
    for fix in dict.fromkeys(fixes):
        sites.run("dst", fix)
    assert sites.destination.tables_in("c27x") == frozenset({"a", "b"})
    assert rename_findings(sites.destination, versions, old_names, "dst") == {}


def test_second_table_under_a_renamed_ones_new_name_is_not_taken_for_it(sites: Sites):
    sites.run("src", "ALTER TABLE a RENAME TO a2")
    sites.run("dst", "CREATE TABLE a2 (id int PRIMARY KEY, body text)")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert 'ALTER TABLE "public"."a" RENAME TO "a2"' in sites.progress["a2"].problem
    assert sites.is_held_up  # changes applied to the second table meanwhile would be lost with it
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]
    sites.run("dst", "DROP TABLE a2", "ALTER TABLE a RENAME TO a2")
    sites.instantiate(sites.tables())
    assert sites.states() == [("a2", "DONE"), ("b", "DONE")]


@pytest.mark.parametrize("is_done_here", [False, True])
def test_tables_that_swap_names_are_copied_again(sites: Sites, is_done_here: bool):
    """Nothing at the destination shows whether they were also swapped there."""
    swap = ("ALTER TABLE a RENAME TO t", "ALTER TABLE b RENAME TO a", "ALTER TABLE t RENAME TO b")
    for site in ("src", "dst"):
        sites.run(site, "INSERT INTO b VALUES (2, 'of b')")
    sites.run("src", *swap)
    sites.run("dst", *swap * is_done_here)
    sites.up("*")
    sites.instantiate(sites.tables(may_empty=False))
    assert "out of date" in sites.progress["a"].problem
    sites.instantiate(sites.tables())
    assert (sites.rows("dst", "a"), sites.rows("dst", "b")) == (sites.rows("src", "a"), sites.rows("src", "b"))
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]


def test_table_with_anothers_name_waits_until_both_are_renamed_there(sites: Sites):
    """An online schema change between two replicated tables: no remedy may drop the first one's rows."""
    sites.run("src", "ALTER TABLE a RENAME TO a_old", "ALTER TABLE b RENAME TO a")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert "drop" not in sites.progress["a"].problem
    assert (
        'ALTER TABLE "public"."a" RENAME TO "a_old"; then ALTER TABLE "public"."b" RENAME TO "a"'
        in sites.progress["a"].problem
    )
    assert sites.is_held_up
    sites.run("dst", "CREATE TABLE a_old (id int PRIMARY KEY, body text)")
    sites.instantiate(sites.tables())
    assert sites.is_held_up
    assert sites.states() == [("a", "DONE"), ("b", "DONE")]
    sites.run("dst", "DROP TABLE a_old", "ALTER TABLE a RENAME TO a_old", "ALTER TABLE b RENAME TO a")
    sites.instantiate(sites.tables())
    assert sites.states() == [("a", "DONE"), ("a_old", "DONE")], "the table was not copied again"
    sites.instantiate(sites.tables())
    assert not sites.is_held_up


def test_pending_changes_under_a_new_tables_name_are_not_lost(sites: Sites):
    """They are older than the new table's copy, so the reader drops them under that name: the renamed table is copied
    again.
    """
    sites.run(
        "src",
        "UPDATE a SET body = 'not applied yet'",
        "ALTER TABLE a RENAME TO a_old",
        "CREATE TABLE a (id int PRIMARY KEY, body text)",
    )
    sites.up("*")
    sites.run("dst", "ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (id int PRIMARY KEY, body text)")
    sites.instantiate(sites.tables(may_empty=False))
    assert "out of date" in sites.progress["a_old"].problem
    sites.instantiate(sites.tables())
    assert sites.rows("dst", "a_old") == [(1, "not applied yet")]
    assert sites.states() == [("a", "DONE"), ("a_old", "DONE"), ("b", "DONE")]


def test_pending_changes_under_a_replicated_tables_name_are_not_lost(sites: Sites):
    sites.run("src", "UPDATE a SET body = 'not applied yet'", "INSERT INTO b VALUES (2, 'not applied yet')")
    sites.run("src", "ALTER TABLE a RENAME TO a_old", "ALTER TABLE b RENAME TO a")
    sites.up("*")
    sites.run("dst", "ALTER TABLE a RENAME TO a_old")
    sites.instantiate(sites.tables())
    assert dict(sites.states())["b"] == "LEFT", (
        "a driver that resumes here does not know that the table is to be copied again"
    )
    sites.run("dst", "ALTER TABLE b RENAME TO a")
    sites.instantiate(sites.tables())
    assert (sites.rows("dst", "a"), sites.rows("dst", "a_old")) == (sites.rows("src", "a"), sites.rows("src", "a_old"))
    assert sites.states() == [("a", "DONE"), ("a_old", "DONE")]


def test_new_table_is_not_copied_over_the_rows_of_a_renamed_one(sites: Sites):
    """An online schema change that keeps the old table, under a rule that takes both."""
    sites.run("src", "ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (id int PRIMARY KEY, body text)")
    sites.run("src", "INSERT INTO a VALUES (7, 'another table')")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert 'ALTER TABLE "public"."a" RENAME TO "a_old"' in sites.progress["a"].problem
    assert sites.rows("dst", "a") == [(1, "first")]
    sites.run("dst", "ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (id int PRIMARY KEY, body text)")
    sites.instantiate(sites.tables())
    assert (sites.rows("dst", "a"), sites.rows("dst", "a_old")) == ([(7, "another table")], [(1, "first")])
    assert sites.states() == [("a", "DONE"), ("a_old", "DONE"), ("b", "DONE")]


def test_table_dropped_while_its_copy_waits_is_refused_and_not_confused(sites: Sites):
    sites.run("src", "CREATE TABLE c (id int PRIMARY KEY, body text)")
    sites.run("dst", "CREATE TABLE c (id int PRIMARY KEY, body text)")
    sites.up("*")
    tables = sites.tables()
    sites.run(
        "src",
        "DROP TABLE c",
        "CREATE TABLE c (id int PRIMARY KEY, body text)",
        "INSERT INTO c VALUES (1, 'no change of it comes')",
    )
    sites.instantiate(tables)
    assert "headrace up" in sites.progress["c"].problem
    assert sites.rows("dst", "c") == []


def test_table_renamed_while_its_copy_waits_names_the_remedy(sites: Sites):
    """`up` has nothing to do: the rules take both names."""
    for site in ("src", "dst"):
        sites.run(site, "CREATE TABLE c (id int PRIMARY KEY, body text)")
    sites.up("*")
    tables = sites.tables()
    sites.run("src", "ALTER TABLE c RENAME TO c2")
    sites.instantiate(tables)
    assert "the source calls it public.c2" in sites.progress["c"].problem
    assert f"headrace start FILE apply:{APPLY}" in sites.progress["c"].problem
    sites.run("dst", "ALTER TABLE c RENAME TO c2")
    sites.instantiate(sites.tables())
    assert ("c2", "DONE") in sites.states()


def test_kept_rows_are_never_removed(sites: Sites):
    for site in ("src", "dst"):
        sites.run(site, "CREATE TABLE c (id int PRIMARY KEY, body text)", "INSERT INTO c VALUES (1, 'restored')")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert "not empty" in sites.progress["c"].problem
    sites.instantiate(sites.tables(keep=["c"]))
    assert sites.states() == [("a", "DONE"), ("b", "DONE"), ("c", "KEPT")]
    sites.up("a")
    sites.up("*")
    sites.instantiate(sites.tables())
    assert "not empty" in sites.progress["c"].problem
    assert sites.rows("dst", "c") == [(1, "restored")]


def test_comparison_follows_renames_and_drops_and_names_recreated_tables(sites: Sites):
    config = sites.config(sites.tables())

    def of_now() -> tuple[list[tuple[str, str]], dict[str, str]]:
        found, problems = tables_of_now(sites.source, config)
        assert all(table.source == table.destination for table in found)
        return [(table.identity, table.source.name) for table in found], {
            name.name: problems[name] for name in problems
        }

    a, b = (table.identity for table in sites.tables())
    assert of_now() == ([(a, "a"), (b, "b")], {})
    sites.run("src", "ALTER TABLE a RENAME TO a2", "DROP TABLE b")
    assert of_now() == ([(a, "a2")], {})
    sites.run(
        "src",
        "CREATE TABLE b (id int PRIMARY KEY, body text)",
        "ALTER TABLE b RENAME TO c",
        "ALTER TABLE a2 RENAME TO b",
    )
    assert of_now() == ([(a, "b")], {})
    sites.run("src", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b")
    found, problems = of_now()
    assert found == [(a, "a")]
    assert "headrace up" in problems["b"]


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        (RenameSchema(owner="sales"), ("sales", "a"), ("sales", "a2")),
        (RenameTable(owner="sales", name="u"), ("sales", "u"), ("sales", "u")),
    ],
)
def test_comparison_looks_for_a_renamed_table_where_its_changes_arrive(
    sites: Sites, operation: Operation, before: tuple[str, str], after: tuple[str, str]
):
    a = replace(
        sites.tables()[0], destination=TableName(*before), transformations=(Transformation(operations=(operation,)),)
    )
    config = sites.config([a])
    assert [table.destination for table in tables_of_now(sites.source, config)[0]] == [before]
    sites.run("src", "ALTER TABLE a RENAME TO a2")
    assert [(table.source.name, table.destination) for table in tables_of_now(sites.source, config)[0]] == [
        ("a2", after)
    ]
