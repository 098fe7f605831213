"""The same type in another schema at the destination: an extension in the operator's schema, an enum in a renamed
schema.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from headrace.base.errors import ConfigError
from headrace.databases.postgres.catalog.destination_tables import FIRST_USER_TYPE
from headrace.databases.postgres.destination.row_reader import PostgresRowReader
from headrace.lcr.batch import Column
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import RenameSchema, Transformation
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import Engine
from tests.support.copies.copied_pair import CopiedPair
from tests.support.session.matrices import values
from topology.routing.ways import transformed

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def pair(copied_pair: CopiedPair) -> CopiedPair:
    return copied_pair


def copied(pair: CopiedPair) -> None:
    states = pair.copy()
    assert {state for state, _ in states.values()} == {"DONE"}, states
    pair.attach()


def run_fixes(pair: CopiedPair) -> None:
    """Run all fixes that `check` prints, as printed and in its order."""
    for finding in pair.findings():
        pair.there.execute(finding.fix.encode())


def test_extension_in_another_schema_is_the_same_type(pair: CopiedPair):
    pair.create(
        "CREATE EXTENSION vector; CREATE TABLE p (id int PRIMARY KEY, v vector(2), w vector[])",
        "CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions; CREATE TABLE p (id int PRIMARY KEY, v"
        " extensions.vector(2), w extensions.vector[])",
    )
    pair.run("INSERT INTO p VALUES (1, '[1,2]', '{\"[3,4]\"}')")
    assert pair.findings() == []
    copied(pair)
    pair.run("INSERT INTO p VALUES (2, '[5,6]', NULL)", "UPDATE p SET v = '[7,8]' WHERE id = 1")
    pair.apply(instantiation=pair.starts())
    assert pair.errors() == ()
    pair.assert_same("SELECT id, v::text, w::text FROM p ORDER BY 1")
    assert pair.verify()["p"].is_equal


@pytest.mark.parametrize("column", values(["text", "bytea"], "bytea"))
def test_missing_extension_is_created_by_the_statements_in_printed_order(pair: CopiedPair, column: str):
    pair.create(
        "CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext; CREATE TABLE p (id int PRIMARY KEY, v ext.vector)",
        f"CREATE TABLE p (id int PRIMARY KEY, v {column})",
    )
    pair.run("INSERT INTO p VALUES (1, '[1,2]')")
    assert "no schema here has a type vector" in pair.findings()[0].problem
    run_fixes(pair)
    assert pair.findings() == []
    copied(pair)
    assert pair.verify()["p"].is_equal


def test_column_of_another_type_gets_the_extensions_type_where_it_is(pair: CopiedPair):
    pair.create(
        "CREATE EXTENSION vector; CREATE TABLE p (id int PRIMARY KEY, v vector)",
        "CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions; CREATE TABLE p (id int PRIMARY KEY, v"
        " text)",
    )
    pair.run("INSERT INTO p VALUES (1, '[1,2]')")
    (finding,) = pair.findings()
    assert 'TYPE "extensions"."vector"' in finding.fix
    run_fixes(pair)
    assert pair.findings() == []
    copied(pair)
    assert pair.verify()["p"].is_equal


def test_enum_follows_its_table_into_another_schema(pair: CopiedPair):
    pair.rules = RuleSet(include=(Rule(owner="tenant_1"),))
    pair.transformations = (Transformation(operations=(RenameSchema(owner="shop"),)),)
    ddl = (
        "CREATE SCHEMA {0}; CREATE TYPE {0}.mood AS ENUM ({1}); CREATE TABLE {0}.p (id int PRIMARY KEY, m {0}.mood,"
        " n {0}.mood[])"
    )
    pair.create(ddl.format("tenant_1", "'sad', 'ok'"), ddl.format("shop", "'sad'"))
    pair.run("INSERT INTO tenant_1.p VALUES (1, 'sad', '{sad,NULL}')")
    assert pair.errors_found() == []
    (finding,) = pair.shape_findings()
    assert finding.fix == "ALTER TYPE \"shop\".\"mood\" ADD VALUE 'ok' AFTER 'sad';"
    pair.there.execute(finding.fix.encode())
    assert pair.shape_findings() == []
    copied(pair)
    pair.run(
        "INSERT INTO tenant_1.p VALUES (2, 'ok', '{ok}')",
        "UPDATE tenant_1.p SET m = 'ok' WHERE id = 1",
        "DELETE FROM tenant_1.p WHERE id = 2",
    )
    pair.redo.catch_up()
    batches = [
        replace(batch, tables=tuple(transformed(table, pair.transformations[0]) for table in batch.tables))
        for batch in pair.redo.mine(pair.redo.miner(FIRST_SCN, pair.rules))
    ]
    Engine(
        seed=0,
        batches=batches,
        destination=pair.destination,
        parallelism=2,
        group_transactions=2,
        instantiation={name: TableStart(scn=Scn(scn)) for name, scn in pair.starts().items()},
    ).run()
    assert pair.errors() == ()
    here, there = (
        connection.execute(f"SELECT id, m::text, n::text FROM {schema}.p").fetchall()
        for connection, schema in ((pair.redo.user, "tenant_1"), (pair.there, "shop"))
    )
    assert here == there == [(1, "ok", "{sad,NULL}")]
    assert pair.verify()["p"].is_equal


def test_type_with_only_the_name_in_common_is_refused(pair: CopiedPair):
    pair.create(
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE p (id int PRIMARY KEY, m mood)",
        "CREATE SCHEMA other; CREATE TYPE other.mood AS (a int); CREATE TABLE p (id int PRIMARY KEY, m other.mood)",
    )
    (finding,) = pair.errors_found()
    assert (
        finding.problem
        == "m is of type other.mood, a composite type, and at the source of public.mood, an enum: they have only the"
        " name in common"
    )


def test_types_of_a_schema_with_a_dot_in_its_name_are_named_correctly(pair: CopiedPair):
    ddl = (
        'CREATE SCHEMA "a.b"; CREATE TYPE "a.b"."my.mood" AS ENUM (\'ok\'); CREATE TYPE "a.b".addr AS (street'
        ' text{}); CREATE TABLE p (id int PRIMARY KEY, home "a.b".addr{})'
    )
    pair.create(ddl.format(", zip int", ', m "a.b"."my.mood", n "a.b"."my.mood"[]'), ddl.format("", ""))
    pair.run("INSERT INTO p VALUES (1, ROW('Elm', 1000), 'ok', '{ok}')")
    assert pair.findings()[0].fix == 'ALTER TYPE "a.b"."addr" ADD ATTRIBUTE "zip" int4;'
    run_fixes(pair)
    assert pair.findings() == []
    copied(pair)
    pair.run("INSERT INTO p VALUES (2, ROW('Oak', 2000), 'ok', '{ok,NULL}')")
    pair.apply(instantiation=pair.starts())
    pair.assert_same("SELECT id, home::text, m::text, n::text FROM p ORDER BY 1")


@pytest.mark.parametrize("schema", ["my.types", "elsewhere", 'qu"o.te'])
def test_value_of_a_type_is_read_under_any_name_of_the_schema_here(destination_database: str, schema: str):
    """The log names it by its schema at the source."""
    quoted = '"' + schema.replace('"', '""') + '"'
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(
            f"CREATE SCHEMA {quoted}; CREATE TYPE {quoted}.temper AS ENUM ('sad', 'ok'); CREATE TABLE moody (m"
            f" {quoted}.temper)"
        )
    theirs = "shop" if schema == "elsewhere" else schema
    column = Column(name="m", type_name=f"{theirs}.temper", type_number=FIRST_USER_TYPE + 1, is_binary=True)
    with closing(PostgresRowReader(destination_database)) as reader:
        assert reader.value_of("public", "moody", column, "ok") == (b"ok", "ok")
        with pytest.raises(ConfigError, match="is not a value of type"):
            reader.value_of("public", "moody", column, "glad")
