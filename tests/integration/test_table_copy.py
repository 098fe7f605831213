"""Copying and digesting tables in chunks, from one server to another."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from databases.postgres.connection import connect
from databases.postgres.destination.catalog import describe_table
from databases.postgres.destination.database import PostgresDestination
from databases.postgres.table_copy import (
    copied_columns,
    copy_format,
    copy_in,
    copy_out,
    digest,
    plan_chunks,
    use_snapshot,
)
from databases.table_digest import TableDigest
from streams.errors import DatabaseError, DataError

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

DDL = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id bigint PRIMARY KEY, v text, f float8, m mood[], twice bigint GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (500);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (500) TO (1000);
"""
FILL = """
INSERT INTO t SELECT k, repeat('x', k % 300), k * 0.1, ARRAY['sad', NULL, 'happy']::mood[] FROM generate_series(1, 20000) k;
INSERT INTO parts SELECT k, 'v' || k FROM generate_series(0, 999) k;
"""


@pytest.fixture
def source(source_database: str) -> Iterator[psycopg.Connection]:
    connection = connect(source_database, application_name="test source")
    connection.execute("SET search_path = public")
    connection.execute(DDL)
    connection.execute(FILL)
    connection.execute("SET search_path = ''")
    yield connection
    connection.close()


@pytest.fixture
def target(destination_database: str) -> Iterator[psycopg.Connection]:
    connection = connect(destination_database, application_name="test destination")
    connection.execute("CREATE TYPE public.shift AS ENUM ()")  # the types' numbers differ
    connection.execute("SET search_path = public")
    connection.execute(DDL)
    connection.execute("SET search_path = ''")
    yield connection
    connection.close()


def total(connection: psycopg.Connection, name: str, columns: tuple[str, ...], chunk_bytes: int) -> TableDigest:
    chunks = plan_chunks(connection, "public", name, chunk_bytes=chunk_bytes)
    return sum((digest(connection, chunk, columns) for chunk in chunks), TableDigest())


@pytest.mark.parametrize("form", ["binary", "text"])
@pytest.mark.parametrize(("name", "columns"), [("t", ("id", "v", "f", "m")), ("parts", ("v", "id"))])
def test_chunks_together_are_the_table(source, target, form, name, columns):
    chunks = plan_chunks(source, "public", name, chunk_bytes=64 << 10)
    assert len(chunks) > 1
    rows = sum(
        copy_in(target, "public", name, columns, copy_out(source, chunk, columns, copy_format=form), copy_format=form)
        for chunk in chunks
    )
    there = total(source, name, columns, 64 << 10)
    assert rows == there.row_count
    assert total(target, name, columns, 1 << 30) == there
    assert len(str(there)) == 32


def test_digest_tells_one_changed_value_and_one_missing_row(source):
    columns = ("id", "v", "f", "m")
    before = total(source, "t", columns, 1 << 30)
    source.execute("UPDATE public.t SET f = f + 1e-9 WHERE id = 77")
    changed = total(source, "t", columns, 1 << 30)
    source.execute("DELETE FROM public.t WHERE id = 78")
    shorter = total(source, "t", columns, 1 << 30)
    assert before.row_count == changed.row_count == shorter.row_count + 1
    assert len({before.sums, changed.sums, shorter.sums}) == 3


def test_digest_of_duplicates_does_not_cancel_out(source):
    source.execute("CREATE TABLE public.d (a int)")
    source.execute("INSERT INTO public.d VALUES (1), (1)")
    twins = total(source, "d", ("a",), 1 << 30)
    source.execute("UPDATE public.d SET a = 2")
    assert total(source, "d", ("a",), 1 << 30).sums != twins.sums


def test_copy_sees_the_snapshot_not_what_came_later(source, source_database, target):
    holder = connect(source_database, application_name="test holder")
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    (name,) = holder.execute("SELECT pg_export_snapshot()").fetchone()
    source.execute("DELETE FROM public.parts WHERE id < 100")
    source.execute("INSERT INTO public.parts SELECT k, 'late' FROM generate_series(0, 9) k")
    columns = ("id", "v")
    with use_snapshot(source, name):
        for chunk in plan_chunks(source, "public", "parts"):
            copy_in(target, "public", "parts", columns, copy_out(source, chunk, columns, copy_format="binary"), copy_format="binary")
        seen = total(source, "parts", columns, 1 << 30)
    assert seen.row_count == 1000
    assert total(target, "parts", columns, 1 << 30) == seen
    source.execute("SELECT pg_terminate_backend(%s, 5000)", (holder.info.backend_pid,))
    holder.close()
    with pytest.raises(DatabaseError), use_snapshot(source, name):
        pass


def test_refused_row_leaves_nothing_of_its_chunk(source, target):
    target.execute("INSERT INTO public.parts VALUES (700, 'there')")
    columns = ("id", "v")
    first, second = plan_chunks(source, "public", "parts")
    copy_in(target, "public", "parts", columns, copy_out(source, first, columns, copy_format="binary"), copy_format="binary")
    blocks = copy_out(source, second, columns, copy_format="binary")
    with pytest.raises(DataError) as caught:
        copy_in(target, "public", "parts", columns, blocks, copy_format="binary")
    assert caught.value.context["sqlstate"] == "23505"
    assert target.execute("SELECT count(*) FROM public.parts_2").fetchone() == (1,)
    assert target.execute("SELECT count(*) FROM public.parts_1").fetchone() == (500,)


def test_source_that_breaks_in_the_middle_leaves_nothing(source, target, source_database):
    columns = ("id", "v", "f", "m")
    (chunk,) = plan_chunks(source, "public", "t", chunk_bytes=1 << 30)

    def broken():
        blocks = copy_out(source, chunk, columns, copy_format="binary")
        yield next(blocks)
        blocks.close()
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        copy_in(target, "public", "t", columns, broken(), copy_format="binary")
    assert target.execute("SELECT count(*) FROM public.t").fetchone() == (0,)
    assert source.closed


@pytest.mark.parametrize(("kind", "form"), [
    ("int", "binary"), ("mood[]", "binary"), ("regclass", "text"), ("regtype[]", "text"), ("aclitem", "text"),
    ("holder", "text"), ("holder_range", "binary"), ("acls", "text"),
])
def test_types_without_binary_form_go_as_text(source, kind, form):
    source.execute("SET search_path = public")
    source.execute("CREATE TYPE holder AS (a int, b regclass[]); CREATE DOMAIN acls AS aclitem[];"
                   "CREATE TYPE holder_range AS RANGE (subtype = int)")
    source.execute(f"CREATE TABLE k (id int, v {kind})")
    table = describe_table(source, "public", "k")
    assert table is not None
    types = {column.name: column.type_name for column in table.table.columns}
    assert copy_format(source, "public", "k", types) == form
    assert copy_format(source, "public", "k", {"id": types["id"]}) == "binary"


def test_rows_for_wider_columns_go_as_text_and_have_the_same_digest(source, target):
    source.execute("CREATE TABLE public.k (id int, v varchar(9)); INSERT INTO public.k VALUES (1, 'a '), (-2, NULL)")
    target.execute("CREATE TABLE public.k (id bigint, v text)")
    columns = {"id": "pg_catalog.int8", "v": "pg_catalog.text"}
    form = copy_format(source, "public", "k", columns)
    assert form == "text"
    (chunk,) = plan_chunks(source, "public", "k")
    blocks = copy_out(source, chunk, tuple(columns), copy_format=form)
    assert copy_in(target, "public", "k", tuple(columns), blocks, copy_format=form) == 2
    assert total(source, "k", tuple(columns), 64 << 10) == total(target, "k", tuple(columns), 64 << 10)


def test_empty_table_has_one_chunk_and_an_empty_digest(target):
    chunks = plan_chunks(target, "public", "t")
    assert len(chunks) == 1
    assert digest(target, chunks[0], ("id",)) == TableDigest()


def test_generated_columns_are_not_copied_and_copies_are_tagged(source, destination_database, target):
    destination = PostgresDestination(destination_database, site="b")
    destination.prepare("top")
    epoch = destination.raise_epoch("top", "a").epoch
    session = destination.open_session("top", "a", server=100, epoch=epoch, tag=b"\x00")
    columns = copied_columns(session.describe("public", "t"))
    assert columns == ("id", "v", "f", "m")
    target.execute("CREATE PUBLICATION p FOR TABLE public.t")
    target.execute("SELECT pg_create_logical_replication_slot('copied', 'pgoutput')")
    (chunk,) = plan_chunks(source, "public", "t", chunk_bytes=1 << 30)
    copy_in(session.connection, "public", "t", columns, copy_out(source, chunk, columns, copy_format="binary"), copy_format="binary")
    changes = target.execute(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes('copied', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'p', 'origin', 'none') WHERE get_byte(data, 0) = ascii('I')"
    ).fetchone()
    assert changes == (0,)
    assert target.execute("SELECT count(*) FROM public.t").fetchone() == (20000,)
    session.close()
    destination.close()
