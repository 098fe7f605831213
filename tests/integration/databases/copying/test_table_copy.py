"""Copying and digesting tables in pieces, from one server to another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from headrace.base.errors import DatabaseError, DatabaseUnavailable, DataError, Retry
from headrace.databases.ports.copying import NATIVE, PORTABLE, copied_columns
from headrace.databases.postgres.catalog.destination_tables import describe_table
from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.copying import row_text, table_copy
from headrace.databases.postgres.copying.table_copy import PostgresTableReader, copy_in
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.row_reader import PostgresRowReader
from headrace.databases.table_digest import TableDigest
from headrace.lcr.batch import Column
from tests.support.session.matrices import values

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


def copied(
    dsn: str, target: psycopg.Connection, name: str, columns: tuple[str, ...], form: str, piece_bytes: int = 64 << 10
) -> int:
    with contextlib.closing(PostgresTableReader(dsn)) as reader:
        rows = 0
        for piece in reader.plan("public", name, {}, piece_bytes=piece_bytes).pieces:
            with reader.open_piece(piece) as opened:
                rows += copy_in(target, "public", name, columns, opened.rows(columns, form=form), form=form)
    return rows


def total(dsn: str, name: str, columns: tuple[str, ...], piece_bytes: int = 1 << 30) -> TableDigest:
    with contextlib.closing(PostgresTableReader(dsn)) as reader:
        found = TableDigest()
        for piece in reader.plan("public", name, {}, piece_bytes=piece_bytes).pieces:
            with reader.open_piece(piece) as opened:
                found += opened.digest(columns)
    return found


@pytest.mark.parametrize("form", [NATIVE, PORTABLE])
@pytest.mark.parametrize(("name", "columns"), [("t", ("id", "v", "f", "m")), ("parts", ("v", "id"))])
def test_pieces_together_equal_the_table(source, source_database, target, destination_database, form, name, columns):
    rows = copied(source_database, target, name, columns, form)
    there = total(source_database, name, columns, 64 << 10)
    assert rows == there.row_count
    assert total(destination_database, name, columns) == there
    assert len(str(there)) == 32


def test_digest_detects_one_changed_value_and_one_missing_row(source, source_database):
    columns = ("id", "v", "f", "m")
    before = total(source_database, "t", columns)
    source.execute("UPDATE public.t SET f = f + 1e-9 WHERE id = 77")
    changed = total(source_database, "t", columns)
    source.execute("DELETE FROM public.t WHERE id = 78")
    shorter = total(source_database, "t", columns)
    assert before.row_count == changed.row_count == shorter.row_count + 1
    assert len({before.sums, changed.sums, shorter.sums}) == 3


LARGE = "CREATE TABLE public.large (id int, b bytea, t text, j jsonb, d public.long_text, n numeric)"


def test_rows_with_large_values_have_the_same_digest_in_any_storage(
    source, target, source_database, destination_database, monkeypatch: pytest.MonkeyPatch
):
    """As text, a `bytea` of half a gigabyte exceeds PostgreSQL's limit. Its copy could not be verified, and the table
    stayed empty.
    """
    monkeypatch.setattr(row_text, "LARGE_BYTES", 150_000)
    monkeypatch.setattr(row_text, "_STORED_BYTES", 100)
    columns = ("id", "b", "t", "j", "d", "n")
    for server in (source, target):
        server.execute("CREATE DOMAIN public.long_text AS text")
        server.execute(LARGE)
    for column in ("b", "t", "j", "d"):
        target.execute(f"ALTER TABLE public.large ALTER {column} SET STORAGE EXTERNAL")  # not compressed
    source.execute(
        "INSERT INTO public.large SELECT g, decode(repeat('41', 200000 * (g % 2)), 'hex'), repeat('a\"', 100000 * (g /"
        " 2 % 2)),"
        " jsonb_build_array(repeat('j', 200000 * (g / 4 % 2))), repeat('d', 200000 * (g / 8 % 2)), nullif(g, 7) FROM"
        " generate_series(0, 15) g"
    )
    copied(source_database, target, "large", columns, NATIVE, 1 << 30)
    expected = total(source_database, "large", columns)
    assert total(destination_database, "large", columns) == expected
    for change in (
        "b = overlay(b PLACING '\\x42'::bytea FROM 150000) WHERE id = 1",
        "t = reverse(t) WHERE id = 2",
        "j = j || 'null' WHERE id = 4",
        "d = d || 'd' WHERE id = 8",
        "n = 0 WHERE id = 7",
    ):
        target.execute(f"UPDATE public.large SET {change}".encode())
        changed = total(destination_database, "large", columns)
        assert changed.row_count == expected.row_count
        assert changed.sums != expected.sums, change
        expected = changed


def test_value_without_a_digest_is_reported_before_anything_is_removed(
    source, source_database, monkeypatch: pytest.MonkeyPatch
):
    """PostgreSQL's own limit is too slow to reach in a test, so the digest of a large row fails here."""
    monkeypatch.setattr(row_text, "LARGE_BYTES", 1000)
    columns = {"id": "pg_catalog.int8", "v": "pg_catalog.text"}
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        reader.prove_large("public", "t", columns)  # none of its rows is large
        source.execute("UPDATE public.t SET v = repeat('x', 2000) WHERE id = 7")
        reader.prove_large("public", "t", columns)
        monkeypatch.setattr(
            row_text,
            "_hashes",
            lambda _, value, kind: f"repeat({value}, 1000000000)" if kind.size == "text" else value,
        )
        with pytest.raises(
            DatabaseError, match=r"longer than 1 GB.* shorten that value, or leave its column out"
        ) as raised:
            reader.prove_large("public", "t", columns)
        assert raised.value.retry is not Retry.TIMED
        reader.prove_large("public", "t", columns, rows="id <> 7")


def test_copy_asks_for_the_other_encoding_only_for_composed_values(source, source_database):
    with contextlib.closing(PostgresTableReader(source_database, other_dsn="host=127.0.0.1 port=1")) as reader:
        reader.prove_large("public", "t", {"id": "pg_catalog.int8", "v": "pg_catalog.text"})
        source.execute("ALTER TABLE public.t ADD parts jsonb")
        with pytest.raises(DatabaseUnavailable):
            reader.prove_large("public", "t", {"id": "pg_catalog.int8", "parts": "pg_catalog.jsonb"})


@pytest.mark.soak
def test_value_of_more_than_half_a_gigabyte_is_copied_and_verified(
    source, target, source_database, destination_database
):
    for server in (source, target):
        server.execute("CREATE TABLE public.doc (id int PRIMARY KEY, body bytea)")
    source.execute("INSERT INTO public.doc VALUES (1, convert_to(repeat('a', 560000000), 'SQL_ASCII'))")
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        reader.prove_large("public", "doc", {"id": "pg_catalog.int4", "body": "pg_catalog.bytea"})
    copied(source_database, target, "doc", ("id", "body"), NATIVE)
    assert total(source_database, "doc", ("id", "body")) == total(destination_database, "doc", ("id", "body"))


def test_digest_of_duplicates_does_not_cancel_out(source, source_database):
    source.execute("CREATE TABLE public.d (a int)")
    source.execute("INSERT INTO public.d VALUES (1), (1)")
    twins = total(source_database, "d", ("a",))
    source.execute("UPDATE public.d SET a = 2")
    assert total(source_database, "d", ("a",)).sums != twins.sums


REWRITES = {
    "vacuum full": "VACUUM FULL public.t",
    "cluster": "CLUSTER public.t USING t_pkey",
    "truncate": "TRUNCATE public.t",
    "alter type": "ALTER TABLE public.t ALTER v TYPE varchar(999)",
    "alter set default volatile": "ALTER TABLE public.t ADD COLUMN w float8 DEFAULT random()",
    "made again": "DROP TABLE public.t; CREATE TABLE public.t (id bigint, v text, f float8, m public.mood[])",
    "swapped": "ALTER TABLE public.t RENAME TO old; CREATE TABLE public.t (LIKE public.old)",
    "dropped": "DROP TABLE public.t",
}


@pytest.mark.parametrize("is_planned", values([True, False], True))
@pytest.mark.parametrize("statement", list(REWRITES.values()), ids=list(REWRITES))
def test_table_rewritten_during_or_before_its_copy_is_not_read_further(source, source_database, statement, is_planned):
    """VACUUM FULL moves rows to blocks that were already read. After other rewrites an older snapshot sees no row at
    all.
    """
    source.execute("DELETE FROM public.t WHERE id < 15000")
    with contextlib.closing(PostgresTableReader(source_database)) as reader, reader.export_snapshot() as snapshot:

        def plan():
            return reader.plan("public", "t", {}, snapshot=snapshot, piece_bytes=64 << 10).pieces

        pieces = plan() if is_planned else ()
        for piece in pieces[:1]:
            with reader.open_piece(piece, snapshot=snapshot) as opened:
                opened.digest(("id",))
        for part in statement.split("; "):
            source.execute(part)
        with (
            pytest.raises(DatabaseError) as caught,
            reader.open_piece((pieces or plan())[-1], snapshot=snapshot) as opened,
        ):
            opened.digest(("id",))
        if statement != REWRITES["dropped"]:
            assert "was rewritten" in caught.value.message


def test_vacuum_that_moves_nothing_does_not_disturb_a_copy(source, source_database):
    columns = ("id", "v")
    with contextlib.closing(PostgresTableReader(source_database)) as reader, reader.export_snapshot() as snapshot:
        pieces = reader.plan("public", "t", {}, snapshot=snapshot, piece_bytes=64 << 10).pieces
        source.execute("DELETE FROM public.t WHERE id > 10000")
        source.execute("VACUUM public.t")
        found = TableDigest()
        for piece in pieces:
            with reader.open_piece(piece, snapshot=snapshot) as opened:
                found += opened.digest(columns)
    assert found.row_count == 20000


def test_locked_table_is_given_up_for_now(source, source_database, monkeypatch):
    monkeypatch.setattr(table_copy, "_LOCK_TIMEOUT", "100ms")
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        (piece,) = reader.plan("public", "t", {}).pieces
        source.execute("BEGIN")
        source.execute("LOCK TABLE public.t")
        with pytest.raises(DatabaseUnavailable, match="waiting to read"), reader.open_piece(piece):
            pass
        source.execute("ROLLBACK")


def test_source_that_breaks_halfway_leaves_no_rows(source, target, source_database):
    columns = ("id", "v", "f", "m")

    def broken(opened):
        blocks = opened.rows(columns, form=NATIVE)
        yield next(blocks)
        blocks.close()
        raise RuntimeError("the source broke")

    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        (piece,) = reader.plan("public", "t", {}, piece_bytes=1 << 30).pieces
        with pytest.raises(RuntimeError), reader.open_piece(piece) as opened:
            copy_in(target, "public", "t", columns, broken(opened), form=NATIVE)
        assert reader._connection.closed
    assert target.execute("SELECT count(*) FROM public.t").fetchone() == (0,)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("int", NATIVE),
        ("mood[]", NATIVE),
        ("regclass", PORTABLE),
        ("regtype[]", PORTABLE),
        ("aclitem", PORTABLE),
        ("holder", PORTABLE),
        ("holder_range", NATIVE),
        ("acls", PORTABLE),
    ],
)
def test_types_without_binary_form_go_as_text(source, source_database, kind, form):
    source.execute("SET search_path = public")
    source.execute(
        "CREATE TYPE holder AS (a int, b regclass[]); CREATE DOMAIN acls AS aclitem[];"
        "CREATE TYPE holder_range AS RANGE (subtype = int)"
    )
    source.execute(f"CREATE TABLE k (id int, v {kind})")
    table = describe_table(source, "public", "k")
    assert table is not None
    types = {column.name: column.type_name for column in table.table.columns}
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        assert reader.plan("public", "k", types).form == form
        assert reader.plan("public", "k", {"id": types["id"]}).form == NATIVE


def test_rows_for_wider_columns_go_as_text_and_have_the_same_digest(
    source, source_database, target, destination_database
):
    source.execute("CREATE TABLE public.k (id int, v varchar(9)); INSERT INTO public.k VALUES (1, 'a '), (-2, NULL)")
    target.execute("CREATE TABLE public.k (id bigint, v text)")
    columns = {"id": "pg_catalog.int8", "v": "pg_catalog.text"}
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        assert reader.plan("public", "k", columns).form == PORTABLE
    assert copied(source_database, target, "k", tuple(columns), PORTABLE) == 2
    assert total(source_database, "k", tuple(columns)) == total(destination_database, "k", tuple(columns))


def test_values_that_a_function_lengthens_have_the_wider_columns_digest(
    source, source_database, target, destination_database
):
    source.execute(
        "CREATE TABLE public.k (id int, v varchar(9), a varchar(2)[], b varbit(3), n numeric(6,2)); INSERT INTO"
        " public.k VALUES (1, 'a')"
    )
    target.execute("CREATE TABLE public.k (id int, v varchar(64), a varchar(9)[], b varbit(9), n numeric(6,2))")
    columns, rows = (
        ("id", "v", "a", "b", "n"),
        [(b"1", b"x" * 64, b"{abc,NULL}", b"10101", b"1.5"), (b"2", None, None, None, None)],
    )
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        (piece,) = reader.plan("public", "k", {}).pieces
        with reader.open_piece(piece) as opened:
            assert copy_in(target, "public", "k", columns, [opened.packed(rows)], form=PORTABLE) == 2
            assert opened.digest_values(columns, [rows]) == total(destination_database, "k", columns)


OWNERS_CAST = """
CREATE TYPE "100%s" AS ENUM ('low', 'high');
CREATE FUNCTION told() RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE 'ran as %', current_user; END$$;
CREATE FUNCTION as_text("100%s") RETURNS text LANGUAGE sql AS 'SELECT public.told()';
CREATE FUNCTION of_text(text) RETURNS "100%s" LANGUAGE plpgsql AS $$BEGIN PERFORM public.told(); END$$;
CREATE CAST ("100%s" AS text) WITH FUNCTION as_text("100%s");
CREATE TABLE levels (level "100%s" PRIMARY KEY, v text);
INSERT INTO levels VALUES ('low', 'a'), ('high', NULL);
"""


def test_comparison_runs_no_cast_of_a_types_owner(source, source_database, monkeypatch):
    source.execute("SET search_path = public")
    source.execute(OWNERS_CAST.encode())
    columns = ("level", "v")
    monkeypatch.setattr(row_text, "LARGE_BYTES", 2)  # treat texts as large values, which are hashed one by one
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        # The function raises an error if a cast runs it.
        digests = reader.bucket_digests("public", "levels", ("level",), columns, buckets=1)
        rows = reader.bucket_rows("public", "levels", ("level",), columns, buckets=1, wanted=[0], rows_max=9)
        assert (sum(each.row_count for each in digests), sorted(row.key for row in rows)) == (2, [("high",), ("low",)])
        (piece,) = reader.plan("public", "levels", {}).pieces
        with reader.open_piece(piece) as opened:
            assert opened.digest(columns) == opened.digest_values(columns, [[(b"low", b"a"), (b"high", None)]])
        source.execute('CREATE CAST (text AS "100%s") WITH FUNCTION of_text(text)')
        with contextlib.closing(PostgresRowReader(source_database)) as edited:
            assert edited.value_of("public", "levels", Column(name="level", type_name="public.100%s"), "low") == (
                b"low",
                "low",
            )
        with (
            reader.open_piece(piece) as opened,
            pytest.raises(DatabaseError, match="column level is a function of its owner's"),
        ):
            opened.digest_values(columns, [[(b"low", b"a")]])


def test_empty_table_has_one_piece_and_an_empty_digest(target, destination_database):
    with contextlib.closing(PostgresTableReader(destination_database)) as reader:
        assert len(reader.plan("public", "t", {}).pieces) == 1
    assert total(destination_database, "t", ("id",)) == TableDigest()


def test_generated_columns_are_not_copied_and_copies_are_tagged(source, source_database, destination_database, target):
    destination = PostgresDestination(destination_database, site="b")
    destination.prepare("top")
    epoch = destination.raise_epoch("top", "a").epoch
    session = destination.open_session("top", "a", server=100, epoch=epoch, tag=b"\x00")
    columns = copied_columns(session.describe("public", "t"))
    assert columns == ("id", "v", "f", "m")
    target.execute("CREATE PUBLICATION p FOR TABLE public.t")
    target.execute("SELECT pg_create_logical_replication_slot('copied', 'pgoutput')")
    with contextlib.closing(PostgresTableReader(source_database)) as reader:
        (piece,) = reader.plan("public", "t", {}, piece_bytes=1 << 30).pieces
        with reader.open_piece(piece) as opened:
            session.copy_rows("public", "t", columns, opened.rows(columns, form=NATIVE), form=NATIVE)
    changes = target.execute(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes('copied', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'p', 'origin', 'none') WHERE get_byte(data, 0) = ascii('I')"
    ).fetchone()
    assert changes == (0,)
    assert target.execute("SELECT count(*) FROM public.t").fetchone() == (20000,)
    session.close()
    destination.close()


def test_trigger_in_another_state_refuses_the_piece_with_bounded_retries(
    source, source_database, destination_database, target
):
    destination = PostgresDestination(destination_database, site="b")
    destination.prepare("top")
    epoch = destination.raise_epoch("top", "a").epoch
    target.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now' USING ERRCODE ="
        " '55000'; END$$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.refuse(); ALTER TABLE"
        " public.t ENABLE ALWAYS TRIGGER refuse",
    )
    columns = ("id", "v", "f", "m")
    with (
        contextlib.closing(destination),
        contextlib.closing(destination.open_session("top", "a", server=100, epoch=epoch, tag=b"\x00")) as session,
        contextlib.closing(PostgresTableReader(source_database)) as reader,
    ):
        (piece,) = reader.plan("public", "t", {}, piece_bytes=1 << 30).pieces
        with reader.open_piece(piece) as opened, pytest.raises(DataError, match="not now"):
            session.copy_rows("public", "t", columns, opened.rows(columns, form=NATIVE), form=NATIVE)


def test_rows_are_read_by_keys_beyond_the_range_of_the_local_type(
    source: psycopg.Connection, source_database: str
) -> None:
    """A key of the other side's wider type is no error: no local row has it.

    Keys of users' types are looked up by their texts.
    """
    source.execute("CREATE TABLE public.narrow (id smallint, m public.mood, d date, PRIMARY KEY (id, m, d))")
    source.execute("INSERT INTO public.narrow SELECT k, 'sad', DATE '2026-01-01' + k FROM generate_series(1, 1200) k")
    source.execute("CREATE DOMAIN public.code AS text")
    source.execute("CREATE TABLE public.coded (c public.code PRIMARY KEY, f float8[])")
    source.execute("INSERT INTO public.coded VALUES ('it''s \\ %', ARRAY[0.1, NULL])")
    source.execute("CREATE TABLE public.unequal (id int, j json, p point, k regclass)")
    source.execute("INSERT INTO public.unequal VALUES (1, '{\"a\": 1}', '(1,2)', 'pg_class')")
    with contextlib.closing(PostgresTableReader(source_database)) as reader:

        def found(name: str, key: tuple[str, ...], keys: list[tuple[str | None, ...]]) -> set[tuple[str | None, ...]]:
            return {row.key for row in reader.keyed_rows("public", name, key, key, keys=keys)}

        assert found("narrow", ("id",), [("7",), ("99999",), ("1201",)]) == {("7",)}
        assert found("narrow", ("id", "d"), [("7", "2026-01-08"), ("8", "2026-01-08")]) == {("7", "2026-01-08")}
        assert found("narrow", ("id", "m", "d"), [("7", "sad", "2026-01-08"), ("8", "glad", "2026-01-09")]) == {
            ("7", "sad", "2026-01-08")
        }
        assert len(found("narrow", ("id",), [(str(number),) for number in range(2000)])) == 1200
        assert found("coded", ("c",), [("it's \\ %",), ("none",)]) == {("it's \\ %",)}
        assert found("coded", ("c", "f"), [("it's \\ %", "{0.1,NULL}")]) == {("it's \\ %", "{0.1,NULL}")}
        assert found("parts", ("id",), [("499",), ("500",)]) == {("499",), ("500",)}
        # Without a key, all of the table's columns form it, including types without `=` and names that do not exist
        # here.
        row = ("1", '{"a": 1}', "(1,2)", "pg_class")
        assert found("unequal", ("id", "j", "p", "k"), [row, ("2", *row[1:])]) == {row}
        assert found("unequal", ("id", "k"), [("1", "pg_class"), ("1", "no_such_table")]) == {("1", "pg_class")}
        every = {
            row.key: row
            for row in reader.bucket_rows(
                "public", "narrow", ("id",), ("id", "m", "d"), buckets=1, wanted=[0], rows_max=5000
            )
        }
        assert all(
            every[row.key] == row
            for row in reader.keyed_rows("public", "narrow", ("id",), ("id", "m", "d"), keys=list(every))
        )
        assert [
            row.key
            for row in reader.keyed_rows("public", "narrow", ("id",), ("id",), keys=list(every), rows="id > 1198")
        ] == [("1199",), ("1200",)]
