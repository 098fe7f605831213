"""Columns that a source computes: copied, applied and compared where their values travel, refused by name where they
cannot; two databases, no Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.rules.transformations.transformation import DeleteColumns, Transformation
from tests.support.copies.copied_pair import CopiedPair
from tests.support.session.matrices import cases, values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

COMPUTED = "total int GENERATED ALWAYS AS (qty * price) STORED"
LINE = "CREATE TABLE line (id int PRIMARY KEY, qty int, price int, {})"
ROWS = "INSERT INTO line (id, qty, price) SELECT g, g, 10 FROM generate_series(1, 100) g"
CHANGES = (
    "INSERT INTO line (id, qty, price) VALUES (200, 2, 3)",
    "UPDATE line SET qty = qty + 1 WHERE id <= 5",
    "DELETE FROM line WHERE id = 6",
)
ALL = "SELECT * FROM line ORDER BY id"
PROGRESS_STEPS = 300  # of an engine: far more than the few rows here need


@pytest.fixture
def made(
    tmp_path: Path, fresh_database: Callable[[EmbeddedServer], str], prepared_database: Callable[[EmbeddedServer], str]
) -> Iterator[Any]:
    """Return a function that makes a pair of databases on two servers."""
    pairs: list[CopiedPair] = []

    def make(source: EmbeddedServer, destination: EmbeddedServer) -> CopiedPair:
        pairs.append(CopiedPair(fresh_database(source), prepared_database(destination), tmp_path / "redo"))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


@pytest.fixture
def newest(made: Callable[..., CopiedPair], pg_source: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    return made(pg_source, pg_destination)


@pytest.fixture
def older(made: Callable[..., CopiedPair], pg_16: EmbeddedServer, pg_destination: EmbeddedServer) -> CopiedPair:
    """Make a pair whose source never logs the values of generated columns."""
    return made(pg_16, pg_destination)


def copied(pair: CopiedPair) -> None:
    states = pair.copy()
    assert {state for state, _ in states.values()} == {"DONE"}, states
    pair.attach()


def run_fix(pair: CopiedPair, finding: Any) -> None:
    """Run the SQL of a fix as printed."""
    pair.there.execute(finding.fix.encode())


@pytest.mark.parametrize(
    ("key", "identity"),
    cases(
        {"key": (" PRIMARY KEY", ""), "key, FULL": (" PRIMARY KEY", "FULL"), "no key": ("", "FULL")},
        core=["key", "no key"],
    ),
)
def test_stored_column_of_18_is_copied_applied_and_compared_where_plain(newest: CopiedPair, key: str, identity: str):
    here, there = (LINE.format(column).replace(" PRIMARY KEY", key) for column in (COMPUTED, "total int"))
    newest.create(here + (f"; ALTER TABLE line REPLICA IDENTITY {identity}" if identity else ""), there)
    newest.run(ROWS)
    assert newest.errors_found() == []
    copied(newest)
    newest.assert_same(ALL)
    newest.run(*CHANGES)
    newest.apply(instantiation=newest.starts())
    assert newest.errors() == ()
    newest.assert_same(ALL)
    found = newest.verify()["line"]
    assert (found.is_equal, found.left_out, found.source.rows) == (True, (), 100)
    newest.there.execute("UPDATE line SET total = NULL WHERE id = 7")
    assert [each.what for each in newest.verify()["line"].differences][:1] != []


@pytest.mark.parametrize("kind", ["STORED of 16", "VIRTUAL of 18"])
@pytest.mark.parametrize("plain", values(["total int", "total int NOT NULL DEFAULT 0"], "total int"))
def test_column_without_logged_values_is_refused_if_plain_and_fix_works(request, kind: str, plain: str):
    pair: CopiedPair = request.getfixturevalue("older" if "16" in kind else "newest")
    pair.create(LINE.format(COMPUTED.replace("STORED", kind.split(maxsplit=1)[0])), LINE.format(plain))
    pair.run(ROWS)
    (finding,) = pair.errors_found()
    assert "total is generated at the source, and its values are not in the log" in finding.problem
    assert "the source computes total" in pair.copy()["line"][1]
    run_fix(pair, finding)
    assert pair.findings() == []
    copied(pair)
    pair.run(*CHANGES)
    pair.apply(instantiation=pair.starts())
    pair.assert_same(ALL)
    assert pair.verify()["line"].is_equal
    assert "total" in pair.runner.compared[0]


def test_column_that_a_transformation_omits_belongs_to_the_destination(older: CopiedPair):
    older.create(LINE.format(COMPUTED), LINE.format("total int DEFAULT 7"))
    older.run(ROWS)
    (finding,) = older.errors_found()
    assert "transform: [{delete_columns: [total]}]" in finding.fix
    older.transformations = (Transformation(operations=(DeleteColumns(deleted=("total",)),)),)
    assert older.findings() == []
    copied(older)
    found = older.verify()["line"]
    assert (found.is_equal, found.left_out) == (
        True,
        ("total (a transformation leaves it out)", "total (only at the destination)"),
    )
    assert older.there.execute("SELECT DISTINCT total FROM line").fetchall() == [(7,)]


def test_comparison_sees_wrong_values_that_nobody_copies(older: CopiedPair):
    """The operator altered the destination after `check`."""
    older.create(LINE.format(COMPUTED), LINE.format(COMPUTED))
    older.run(ROWS)
    copied(older)
    older.there.execute("ALTER TABLE line ALTER total DROP EXPRESSION; UPDATE line SET total = NULL WHERE id = 3")
    found = older.verify()["line"]
    assert [(each.key, each.what) for each in found.differences] == [(("3",), "differs")]


@pytest.mark.parametrize("version", values(["newest", "older"], "newest"))
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_plain_column_is_refused_where_computed_here_and_the_fix_works(request, version: str, kind: str):
    pair: CopiedPair = request.getfixturevalue(version)
    pair.create(LINE.format("total int"), LINE.format(COMPUTED.replace("STORED", kind)))
    pair.run("INSERT INTO line SELECT g, g, 10, g * 3 FROM generate_series(1, 10) g")
    (finding,) = pair.errors_found()
    assert '"total"' in finding.fix
    assert "the destination computes total, and the source does not" in pair.copy()["line"][1]
    run_fix(pair, finding)
    assert pair.findings() == []
    copied(pair)
    pair.assert_same(ALL)
    assert pair.verify()["line"].is_equal


@pytest.mark.parametrize("version", values(["newest", "older"], "newest"))
def test_expression_dropped_at_the_source_makes_apply_wait_for_the_same(request, version: str):
    pair: CopiedPair = request.getfixturevalue(version)
    pair.create(LINE.format(COMPUTED), LINE.format(COMPUTED))
    pair.run(ROWS)
    assert pair.findings() == []
    copied(pair)
    pair.run(*CHANGES)
    engine = pair.apply(instantiation=pair.starts())
    pair.assert_same(ALL)
    pair.run(
        "ALTER TABLE line ALTER total DROP EXPRESSION",
        "UPDATE line SET total = 7 WHERE id = 1",
        "UPDATE line SET qty = 0 WHERE id = 2",
    )
    pair.redo.catch_up()
    engine.batches = list(pair.redo.mine(pair.redo.miner()))
    engine.subscribe()
    for _ in range(PROGRESS_STEPS):
        engine.step()
    assert engine.is_paused
    hint = engine.reader.unfit.hint
    assert hint.startswith('ALTER TABLE "public"."line" ALTER COLUMN "total" DROP EXPRESSION;')
    assert pair.there.execute("SELECT total FROM line WHERE id = 1").fetchone() == (20,)
    pair.there.execute(hint.encode())
    engine.run()
    assert pair.errors() == ()
    pair.assert_same(ALL)
    assert pair.verify()["line"].is_equal


def test_differing_expressions_are_warned_of_and_compared(newest: CopiedPair):
    newest.create(LINE.format(COMPUTED), LINE.format("total int GENERATED ALWAYS AS (qty * 2) STORED"))
    newest.run(ROWS)
    (finding,) = newest.findings()
    assert not finding.is_error
    assert "generated here as integer AS (qty * 2), and at the source as integer AS (qty * price)" in finding.problem
    copied(newest)
    found = newest.verify()["line"]
    assert (found.is_equal, found.computed) == (False, ("total",))
    run_fix(newest, finding)
    assert newest.findings() == []
    assert newest.verify()["line"].is_equal


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("key", values(["y", "x, y"], "x, y"))
def test_generated_column_in_the_key_finds_rows(newest: CopiedPair, key: str, identity: str):
    table = f"CREATE TABLE line (id int, x int, y int GENERATED ALWAYS AS (id * 2) STORED, v text, PRIMARY KEY ({key}))"
    newest.create(f"{table}; ALTER TABLE line REPLICA IDENTITY {identity}", table)
    newest.run("INSERT INTO line (id, x, v) SELECT g, 1, 'a' FROM generate_series(1, 20) g")
    assert newest.errors_found() == []
    copied(newest)
    newest.run(
        "UPDATE line SET v = 'b' WHERE id < 4",
        "UPDATE line SET id = id + 100 WHERE id = 5",
        "DELETE FROM line WHERE id = 6",
        "UPDATE line SET x = x WHERE id > 18",
        "INSERT INTO line (id, x, v) VALUES (50, 1, 'c')",
    )
    newest.apply(instantiation=newest.starts())
    assert newest.errors() == ()
    newest.assert_same(ALL)


def test_generated_column_in_an_old_sources_key_is_refused_and_fix_works(older: CopiedPair):
    table = "CREATE TABLE line (id int, y int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY, v text)"
    older.create(table, table)
    older.run("INSERT INTO line (id, v) SELECT g, 'a' FROM generate_series(1, 20) g")
    (finding,) = older.source_findings()
    assert "y" in finding.problem
    older.run(finding.fix)
    assert older.source_findings() == []
    copied(older)
    older.run(
        "UPDATE line SET v = 'b' WHERE id < 4", "DELETE FROM line WHERE id = 6", "UPDATE line SET id = 77 WHERE id = 7"
    )
    older.apply(instantiation=older.starts())
    assert older.errors() == ()
    older.assert_same(ALL)


def test_comparison_lists_foreign_partitions_without_reading_them(newest: CopiedPair):
    parts = (
        "CREATE TABLE line (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE near PARTITION OF"
        " line FOR VALUES FROM (0) TO (100)"
    )
    far = "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing"
    newest.create(parts, parts)
    newest.run("INSERT INTO line VALUES (1, 'a')")
    copied(newest)
    newest.there.execute(
        f"{far}; ALTER TABLE line DROP CONSTRAINT line_pkey; CREATE FOREIGN TABLE far PARTITION OF line FOR VALUES FROM"
        " (100) TO (200) SERVER nowhere".encode()
    )
    found = newest.verify()["line"]
    assert (found.is_equal, found.problem, found.left_out) == (
        True,
        "",
        ("the rows of public.far, a foreign table, at the destination",),
    )


def test_comparison_lists_the_columns_that_it_omits(newest: CopiedPair):
    newest.create(
        "CREATE TABLE line (id int PRIMARY KEY, qty int, seen int GENERATED ALWAYS AS (qty * 2) VIRTUAL)",
        "CREATE TABLE line (id int PRIMARY KEY, qty int, own text); CREATE TABLE child (note text) INHERITS (line);"
        " INSERT INTO child (id) VALUES (1)",
    )
    newest.run("INSERT INTO line VALUES (1, 2)")
    copied(newest)
    found = newest.verify()["line"]
    assert found.is_equal
    assert found.left_out == (
        "seen (the source computes it, and the destination has no such column)",
        "own (only at the destination)",
        "the rows of public.child, a table of its own, which inherits from it, at the destination",
    )
