"""The values that a column of another type accepts unchanged: each line of the tables in docs/reference/keys.md, on PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headrace.databases.postgres.catalog.destination_tables import describe_table, table_version
from headrace.databases.postgres.destination.database import PostgresDestination
from tests.support.values.writes import insert

pytestmark = pytest.mark.postgres

DOCUMENT = (
    (Path(__file__).parents[4] / "docs" / "reference" / "keys.md")
    .read_text(encoding="utf-8")
    .split("\n## Triggers\n")[0]
)
TAKEN = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", DOCUMENT, re.MULTILINE)
REFUSED = [pair for *pair, _ in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| ([^`|]+) \|$", DOCUMENT, re.MULTILINE)]


@pytest.fixture
def admin(destination_database: str):
    with psycopg.connect(destination_database, autocommit=True) as found:
        yield found


@pytest.fixture
def destination(destination_database: str):
    found = PostgresDestination(destination_database, site="b")
    yield found
    found.close()


def of_source(admin: psycopg.Connection, source: str, here: str):
    """Return the destination's table t, and its description by a source with another type."""
    admin.execute(f"CREATE TABLE s (id int PRIMARY KEY, v {source}); CREATE TABLE t (id int PRIMARY KEY, v {here})")
    catalog = describe_table(admin, "public", "s")
    assert catalog is not None
    return replace(table_version(catalog, is_binary=False), version=1, name="t")


def test_the_document_has_lines():
    assert len(TAKEN) == 12
    assert len(REFUSED) == 8


@pytest.mark.parametrize(("source", "here", "value"), TAKEN)
def test_wider_column_takes_the_value_unchanged(admin, destination, source, here, value):
    version = of_source(admin, source, here)
    assert not [finding for finding in destination.preflight_tables([version]) if finding.is_error]
    destination.prepare("top")
    session = destination.open_session("top", "a", server=0, epoch=destination.raise_epoch("top", "a").epoch, tag=b"")
    table = session.describe("public", "t")
    session.begin()
    assert session.write([insert(table, [(b"1", value.encode())], version)]) == (1,)
    session.commit([], 0)
    session.close()
    assert admin.execute("SELECT v::text FROM t").fetchone() == (value,)


@pytest.mark.parametrize(("source", "here"), REFUSED)
def test_another_type_does_not_fit(admin, destination, source, here):
    (finding,) = destination.preflight_tables([of_source(admin, source, here)])
    assert finding.is_error
    assert "ALTER COLUMN" in finding.fix


@pytest.mark.parametrize(
    ("source", "below", "fits"),
    [
        ("numeric(5,2)", "numeric(5,2)", True),
        ("numeric(5,2)", "numeric(7,2)", True),
        ("numeric", "numeric", True),
        ("int", "int CHECK (value > 0)", True),
        ("numeric", "numeric(5,2)", False),
        ("numeric(5,2)", "numeric(9,4)", False),
        ("varchar(9)", "varchar(5)", False),
        ("varchar", "varchar(5)", False),
        ("char(5)", "char(3)", False),
        ("timestamp", "timestamp(0)", False),
        ("bit(5)", "bit(3)", False),
        ("interval", "interval(0)", False),
        ("numeric[]", "numeric(5,2)[]", False),
        ("numeric(5,2)[]", "numeric(5,2)[]", True),
    ],
)
def test_domain_that_would_round_or_cut_the_value_does_not_fit(admin, destination, source, below, fits):
    admin.execute(f"CREATE DOMAIN d AS {below}; CREATE DOMAIN d2 AS d")
    admin.execute(
        f"CREATE TABLE s (id int PRIMARY KEY, v {source}); CREATE TABLE t (id int PRIMARY KEY, v d); CREATE TABLE t2"
        " (id int PRIMARY KEY, v d2)"
    )
    catalog = describe_table(admin, "public", "s")
    assert catalog is not None
    for name in ("t", "t2"):
        found = destination.preflight_tables([replace(table_version(catalog, is_binary=False), version=1, name=name)])
        assert [finding.is_error for finding in found] == ([] if fits else [True])


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        (
            "CREATE TABLE t (id int PRIMARY KEY, v int, own int DEFAULT 0, UNIQUE (v, own))",
            "the unique key (v, own) has columns that the source does not have (own)",
        ),
        (
            "CREATE TABLE q (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, v int, own int REFERENCES q)",
            "has columns that the source does not have (own)",
        ),
    ],
)
def test_extra_columns_inside_a_unique_or_foreign_key_are_an_error(admin, destination, ddl, problem):
    admin.execute("CREATE TABLE s (id int PRIMARY KEY, v int);" + ddl)
    catalog = describe_table(admin, "public", "s")
    assert catalog is not None
    found = destination.preflight_tables([replace(table_version(catalog, is_binary=False), version=1, name="t")])
    assert any(problem in finding.problem and finding.is_error for finding in found)
