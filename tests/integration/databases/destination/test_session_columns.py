"""Columns that only PostgreSQL has, or whose type differs from the source's: generated, identity, defaults, wider
types, functions that convert.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DestinationTable
from headrace.databases.postgres.destination.writing import writes
from headrace.lcr.batch import TableVersion
from headrace.lcr.values import ABSENT
from tests.support.session.server_versions import on_every_version
from tests.support.values.writes import delete, insert, int4, key_only, update, version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


# --------------------------------------------------------------------------- columns that cannot be set


@on_every_version("site")
def test_generated_columns_are_computed_and_not_written(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)")
    assert site.commit(insert(table, [(int4(1), int4(5), int4(999))])) == (1,)
    assert site.rows() == [(1, 5, 10)]
    assert site.commit(update(table, [(int4(1), int4(5), int4(999))], [(int4(1), int4(6), int4(999))])) == (1,)
    assert site.rows() == [(1, 6, 12)]


def test_update_of_a_generated_column_alone_counts_the_row(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)")
    site.commit(insert(table, [(int4(1), int4(5), int4(0))]))
    old = [(int4(1), int4(5), int4(10)), (int4(2), int4(5), int4(10))]
    assert site.commit(update(table, old, old, sets=[2])) == (1,)


def test_virtual_generated_column_of_18_is_not_written(site_18):
    table = site_18.table("CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    assert site_18.commit(insert(table, [(int4(1), int4(5), int4(0))])) == (1,)
    assert site_18.rows() == [(1, 5, 10)]


@on_every_version("site")
@pytest.mark.parametrize("count", [3, 2500], ids=["set", "copy"])
def test_identity_values_come_from_the_source(site, count):
    table = site.table("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int)")
    assert site.commit(insert(table, [(int4(k + 100), int4(0)) for k in range(count)])) == (count,)
    assert site.rows("SELECT min(id), max(id) FROM t") == [(100, 99 + count)]
    changed = update(table, key_only(table, [[int4(100)]]), [(int4(100), int4(7))], compare=[])
    assert site.commit(changed) == (1,)
    assert site.rows("SELECT a FROM t WHERE id = 100") == [(7,)]


@pytest.mark.parametrize("count", [3, writes.COPY_ROWS_MIN], ids=["set", "copy"])
def test_extra_column_gets_its_default_and_keeps_its_value(site_18, count):
    version = version_of(site_18.table("CREATE TABLE t (id int PRIMARY KEY, a int)"))
    table = site_18.table("ALTER TABLE t ADD COLUMN site text NOT NULL DEFAULT 'here', ADD COLUMN note text")
    rows = [(int4(k), int4(0)) for k in range(count)]
    assert site_18.commit(insert(table, rows, version)) == (count,)
    assert site_18.rows("SELECT site, note, count(*) FROM t GROUP BY site, note") == [("here", None, count)]
    site_18.user.execute("UPDATE t SET site = 'moved', note = 'mine' WHERE id = 1")
    assert site_18.commit(update(table, rows[:2], [(int4(k), int4(7)) for k in range(2)], version=version)) == (2,)
    assert site_18.rows("SELECT * FROM t WHERE a = 7 ORDER BY id") == [(0, 7, "here", None), (1, 7, "moved", "mine")]


@on_every_version("site")
def test_changed_identity_key_moves_the_row(site):
    table = site.table("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, b text DEFAULT 'x')")
    site.commit(insert(table, [(int4(1), int4(5), b"keep"), (int4(2), int4(5), b"two")]))
    changed = update(
        table,
        [(int4(1), int4(5), ABSENT), (int4(2), int4(5), ABSENT)],
        [(int4(9), int4(6), ABSENT), (int4(2), int4(8), ABSENT)],
        sets=[0, 1],
        compare=[1],
    )
    assert site.commit(changed) == (2,)
    assert site.rows() == [(2, 8, "two"), (9, 6, "keep")]


def test_identity_column_outside_the_key_is_moved_only_where_it_changed(site):
    """Without old values this is unknown: rows that already have the new value are updated, the others moved."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, a int)")
    site.commit(insert(table, [(int4(1), int4(11), int4(0)), (int4(2), int4(12), int4(0))]))
    place = site.rows("SELECT ctid FROM t WHERE id = 1")
    changed = update(
        table,
        key_only(table, [[int4(1)], [int4(2)]]),
        [(int4(1), int4(11), int4(5)), (int4(2), int4(99), int4(5))],
        compare=[],
    )
    assert site.commit(changed) == (2,)
    assert site.rows() == [(1, 11, 5), (2, 99, 5)]
    assert place != site.rows("SELECT ctid FROM t WHERE id = 1")


def test_missing_row_is_not_counted_by_a_move(site):
    table = site.table("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int)")
    assert site.commit(update(table, [(int4(1), int4(5))], [(int4(2), int4(5))])) == (0,)
    assert site.rows() == []


def test_identity_of_a_table_without_key_is_moved(site):
    table = site.table("CREATE TABLE t (n int GENERATED ALWAYS AS IDENTITY, a int)")
    site.commit(insert(table, [(int4(1), int4(0)), (int4(1), int4(0))]))
    assert site.commit(update(table, [(int4(1), int4(0))], [(int4(2), int4(3))])) == (1,)
    assert site.rows() == [(1, 0), (2, 3)]


def test_table_without_writable_columns_gets_rows_of_defaults(site):
    table = site.table("CREATE TABLE t (g int GENERATED ALWAYS AS (7) STORED)")
    assert site.commit(insert(table, [(int4(7),), (int4(7),)])) == (2,)
    assert site.rows() == [(7,), (7,)]


# --------------------------------------------------------------------------- columns of another type


def _of_another(table: DestinationTable, other: DestinationTable, *, is_binary: bool) -> TableVersion:
    """Return a source's description of `table` with the columns of `other`."""
    return replace(version_of(other, is_binary=is_binary), name=table.name)


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
@pytest.mark.parametrize("count", [3, writes.COPY_ROWS_MIN], ids=["few", "many"])
def test_wider_columns_take_the_values_as_they_are(site, is_binary, count):
    narrow = site.table("CREATE TABLE s (id smallint PRIMARY KEY, a int, b varchar(9), c text)", "s")
    wide = site.table("CREATE TABLE t (id bigint PRIMARY KEY, a bigint, b text, c varchar)")
    version = _of_another(wide, narrow, is_binary=is_binary)
    assert site.session.missing_alter(version) == ""

    def row(number: int, text: bytes) -> tuple[object, ...]:
        if is_binary:
            return number.to_bytes(2, "big", signed=True), int4(-number), text, None
        return str(number).encode(), str(-number).encode(), text, None

    rows = [row(number, b"x ") for number in range(1, count + 1)]
    changed = [row(number, b"y") for number in range(1, count + 1)]
    assert site.commit(insert(wide, rows, version)) == (count,)
    assert site.rows()[:2] == [(1, -1, "x ", None), (2, -2, "x ", None)]
    assert site.commit(update(wide, rows, changed, version=version)) == (count,)
    assert site.commit(delete(wide, changed[1:], version=version)) == (count - 1,)
    assert site.rows() == [(1, -1, "y", None)]


def test_wider_columns_find_rows_of_a_table_without_a_key(site):
    narrow = site.table("CREATE TABLE s (a int, b varchar)", "s")
    wide = site.table("CREATE TABLE t (a bigint, b text)")
    version = _of_another(wide, narrow, is_binary=True)
    row = (int4(7), b"twice")
    assert site.commit(insert(wide, [row, row, row], version)) == (3,)
    assert site.commit(delete(wide, [row, row], version=version)) == (2,)
    assert site.rows() == [(7, "twice")]


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "text"])
def test_functions_convert_arrays_keys_and_user_defined_types(site, is_binary):
    site.user.execute("CREATE TYPE mood AS ENUM ('low', 'high')")
    old = site.table("CREATE TABLE s (id text PRIMARY KEY, a int[], m text)", "s")
    new = site.table("CREATE TABLE t (id uuid PRIMARY KEY, a bigint[], m mood)")
    version = _of_another(new, old, is_binary=is_binary)
    assert len(site.session.missing_alter(version).splitlines()) == 3
    site.user.execute(
        'CREATE FUNCTION headrace."public.t.id"(text) RETURNS uuid IMMUTABLE RETURN md5($1)::uuid;'
        'CREATE FUNCTION headrace."public.t.a"(int[]) RETURNS bigint[] IMMUTABLE RETURN $1::bigint[];'
        """CREATE FUNCTION headrace."public.t.m"(text) RETURNS mood IMMUTABLE RETURN lower($1)::mood;"""
    )
    new = site.session.describe("public", "t", fresh=True)
    assert [column.converted for column in new.columns] == [
        ("pg_catalog.text",),
        ("pg_catalog._int4",),
        ("pg_catalog.text",),
    ]
    assert site.session.missing_alter(version) == ""
    array = site.binary("'{1,NULL}'::int[]") if is_binary else b"{1,NULL}"
    row, other = (b"one", array, b"LOW"), (b"one", array, b"HIGH")
    assert site.commit(insert(new, [row, (b"two", array, None)], version)) == (2,)
    assert site.commit(update(new, [row], [other], version=version)) == (1,)
    assert site.commit(delete(new, [(b"two", array, None)], version=version)) == (1,)
    assert site.rows("SELECT id = md5('one')::uuid, a, m FROM t") == [(True, [1, None], "high")]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["with a key", "without"])
def test_rows_are_found_by_the_stored_form_of_the_functions_value(site, key):
    """A numeric(8,2) stores 1.5 as 1.50, a character(5) adds blanks, and a key loses its milliseconds."""
    old = site.table(f"CREATE TABLE s (id text {key}, a text, b text)", "s")
    site.table(f"CREATE TABLE t (id timestamp(0) {key}, a numeric(8,2), b character(5))")
    site.user.execute(
        'CREATE FUNCTION headrace."public.t.id"(text) RETURNS timestamp STABLE RETURN $1::timestamp;'
        'CREATE FUNCTION headrace."public.t.a"(text) RETURNS numeric IMMUTABLE RETURN $1::numeric;'
        'CREATE FUNCTION headrace."public.t.b"(text) RETURNS bpchar IMMUTABLE RETURN $1::bpchar;'
    )
    table = site.session.describe("public", "t", fresh=True)
    version = _of_another(table, old, is_binary=True)
    row, changed = (b"2026-01-01 00:00:00.25", b"1.5", b"x"), (b"2026-01-01 00:00:00.25", b"2.5", b"y")
    assert site.commit(insert(table, [row], version)) == (1,)
    assert site.commit(update(table, [row], [changed], version=version)) == (1,)
    assert site.rows("SELECT id::text, a::text, b || '.' FROM t") == [("2026-01-01 00:00:00", "2.50", "y.")]
    assert site.commit(delete(table, [changed], version=version)) == (1,)


def test_functions_value_that_is_too_long_is_refused_and_not_cut(site):
    old = site.table("CREATE TABLE s (id int PRIMARY KEY, a int)", "s")
    site.table("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    site.user.execute("""CREATE FUNCTION headrace."public.t.a"(int) RETURNS varchar IMMUTABLE RETURN 'no. ' || $1""")
    table = site.session.describe("public", "t", fresh=True)
    with pytest.raises(DataError):
        site.commit(insert(table, [(int4(1), int4(1))], _of_another(table, old, is_binary=True)))


def test_domain_with_a_length_is_not_wider_than_text(site):
    """A cast to it cuts longer values."""
    site.user.execute("CREATE DOMAIN short AS varchar(5); CREATE DOMAIN any_text AS text; CREATE DOMAIN big AS bigint")
    old = site.table("CREATE TABLE s (a int, b varchar, c text)", "s")
    new = site.table("CREATE TABLE t (a big, b any_text, c short)")
    missing = site.session.missing_alter(_of_another(new, old, is_binary=True))
    assert missing.startswith('ALTER TABLE "public"."t" ALTER COLUMN "c" TYPE text;')
    assert len(missing.splitlines()) == 1


def test_columns_of_a_table_with_long_names_have_distinct_functions(site):
    """PostgreSQL cuts names after 63 bytes, which here falls before the column's name."""
    owner, name = "a_schema_with_quite_a_long_name_of_its_own", "and_a_table_with_another_ü"
    site.user.execute(f'CREATE SCHEMA {owner}; CREATE TABLE {owner}."{name}" (id int PRIMARY KEY, a int, b int)')
    old = site.table("CREATE TABLE s (id int PRIMARY KEY, a text, b text)", "s")
    version = replace(version_of(old), owner=owner, name=name)
    site.session.describe(owner, name, fresh=True)
    first, second = site.session.missing_alter(version).splitlines()
    function = first[first.index("CREATE FUNCTION") :].replace(" ...;", " IMMUTABLE RETURN length($1)")
    site.user.execute(function)
    site.session.describe(owner, name, fresh=True)
    assert site.session.missing_alter(version) == second
