"""How a session finds the rows of a write: by record images, by its own equality, in tables without a key, and never by
reading a whole table.
"""

from __future__ import annotations

import re
from dataclasses import replace

import psycopg
import pytest

from headrace.databases.ports import HandlerSql, RowQuestion
from headrace.databases.postgres.destination.writing.writes import plan_write
from tests.support.databases.destination_site import Site
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import values
from tests.support.session.server_versions import on_every_version
from tests.support.values.writes import delete, insert, int4, update

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


TWO_COLUMNS = """id int, k text COLLATE "C" DEFAULT 'k', PRIMARY KEY (k, id)"""
# From PostgreSQL 16 on, a filling extends the table in advance: a VACUUM would wait five seconds for the lock to cut that
# off, and give up.
VACUUM = "VACUUM (TRUNCATE off) t"


# --------------------------------------------------------------------------- comparison


@on_every_version("site")
@pytest.mark.parametrize(
    ("kind", "stored", "old"),
    [
        ("numeric", "1.00", "1.0"),
        ("float8", "0", "-0"),
        ("json", '{"a":1}', '{"a": 1}'),
        ("point", "(1,2)", "(1,2.000001)"),
        ("box", "(1,1),(0,0)", "(2,0.5),(0,0)"),
        ("bpchar", "a", "a "),
    ],
)
def test_old_values_are_compared_by_image_and_not_by_equality(site, kind, stored, old):
    table = site.table(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    image, other = site.binary(f"'{stored}'::{kind}"), site.binary(f"'{old}'::{kind}")
    site.commit(insert(table, [(int4(1), image)]))
    assert site.commit(update(table, [(int4(1), other)], [(int4(1), image)])) == (0,)
    assert site.commit(delete(table, [(int4(1), other)])) == (0,)
    assert site.commit(update(table, [(int4(1), image)], [(int4(1), other)])) == (1,)
    assert site.commit(delete(table, [(int4(1), other)])) == (1,)


ARRAY_THAT_HAD_A_NULL = (
    "INSERT INTO {0} VALUES (1, '{{1,2}}')",
    "UPDATE {0} SET v[1] = NULL",
    "UPDATE {0} SET v[1] = 5",
)


STORED_OTHERWISE = {
    "elements": ("int[]", ARRAY_THAT_HAD_A_NULL, "'{5,2}'::int[]", "'{5,3}'::int[]"),
    "of_domain": ("numbers", ARRAY_THAT_HAD_A_NULL, "'{5,2}'::int[]", "'{5,3}'::int[]"),
    "in_composite": (
        "pair",
        (
            "INSERT INTO {0} VALUES (1, ROW('{{1,2}}', NULL))",
            "UPDATE {0} SET v.a[1] = NULL",
            "UPDATE {0} SET v.a[1] = 5",
        ),
        "ROW('{5,2}', NULL)::pair",
        "ROW('{5,2}', '')::pair",
    ),
}


@on_every_version("site")
def test_value_that_is_stored_in_another_form_here_equals_the_sources(site):
    """Values that `verify` calls equal are no conflict: a received value lacks the bitmap of NULLs that it once had."""
    site.user.execute("CREATE DOMAIN numbers AS int[]; CREATE TYPE pair AS (a int[], b text)")
    for name, (kind, local, value, other) in STORED_OTHERWISE.items():
        table = site.table(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})", name)
        for statement in local:
            site.user.execute(statement.format(name))
        old, new = ((int4(1), site.binary(found)) for found in (value, other))
        images = (
            f"SELECT record_image_eq(ROW(v), ROW((SELECT n.v FROM {name} n WHERE id = 2))) FROM {name} WHERE id = 1"
        )
        site.commit(insert(table, [(int4(2), old[1])]))
        assert site.rows(images) == [(False,)], name
        for asked, differs in ((old, set()), (new, {1}), ((int4(1), None), {1})):
            site.session.begin()
            (row,) = site.session.find_rows(update(table, [asked], [new]), RowQuestion(by_key=True, compare=(1,)))
            assert row.differs == differs, name
            assert site.session.conflicting(update(table, [asked], [new])).tolist() == ([0] if differs else []), name
            site.session.rollback()
        assert site.commit(delete(table, [new])) == (0,), name
        assert site.commit(delete(table, [(int4(1), None)])) == (0,), name
        assert site.commit(update(table, [old], [new])) == (1,), name
        assert site.commit(delete(table, [new])) == (1,), name


def test_value_in_another_stored_form_is_found_in_tables_of_every_form(site_18):
    """Covers a table without a key, one with a non-unique substitute key, and one with more columns than a set can
    have.
    """
    site = site_18
    many = ", ".join(f"c{k} int8" for k in range(801))
    for name, ddl, width in (
        ("keyless", "id int, v int[]", 2),
        ("first", "id int, v int[], w int[] UNIQUE", 3),
        ("wide", f"id int PRIMARY KEY, v int[], {many}", 803),
    ):
        table = site.table(f"CREATE TABLE {name} ({ddl})", name)
        for statement in ARRAY_THAT_HAD_A_NULL:
            site.user.execute(statement.format(name))
        if name == "first":
            table = replace(table, key=(0,))
        old, new = (
            (int4(1), site.binary(value), *[None] * (width - 2)) for value in ("'{5,2}'::int[]", "'{5,3}'::int[]")
        )
        assert site.commit(update(table, [old], [new])) == (1,), name
        assert site.commit(delete(table, [old])) == (0,), name
        assert site.commit(delete(table, [new])) == (1,), name


@pytest.mark.parametrize(
    ("kind", "stored", "sent"),
    [
        ("numeric", "1.00", "1.0"),
        ("character(3)", "a", "a"),
        ("float8", "0", "-0"),
    ],
)
def test_rows_are_found_by_the_key_types_own_equality(site, kind, stored, sent):
    table = site.table(f"CREATE TABLE t (id {kind} PRIMARY KEY, v int)")
    site.user.execute(f"INSERT INTO t VALUES ('{stored}', 1)")
    key = site.binary(f"'{sent}'::{kind.partition('(')[0].replace('character', 'bpchar')}")
    assert site.commit(delete(table, [(key, int4(1))])) == (1,)


def test_case_insensitive_collation_serialises_and_matches_by_its_equality(site):
    try:
        site.user.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server is built without ICU")
    table = site.table("CREATE TABLE t (id text COLLATE nocase PRIMARY KEY)")
    assert table.serialise


# --------------------------------------------------------------------------- tables without a key


def test_keyless_tables_of_types_without_equality_pair_rows(site):
    table = site.table("CREATE TABLE t (a json, b point, c int[])")
    row = (b'{"a":  1}', site.binary("'(1,2)'::point"), site.binary("'{1,NULL}'::int4[]"))
    nulls = (None, None, None)
    site.commit(insert(table, [row, row, nulls, nulls]))
    assert site.commit(delete(table, [row, nulls])) == (2,)
    assert site.commit(update(table, [row, nulls], [nulls, row])) == (2,)
    assert site.rows("SELECT count(*), count(a) FROM t") == [(2, 1)]
    assert site.commit(delete(table, [row, row])) == (1,)


def test_surplus_duplicates_change_every_row_once(site):
    table = site.table("CREATE TABLE t (a int)")
    site.commit(insert(table, [(int4(1),)] * 3))
    assert site.commit(delete(table, [(int4(1),)] * 5)) == (3,)


def test_unique_key_with_nulls_is_no_key(site):
    table = site.table("CREATE TABLE t (a int UNIQUE, b int)")
    assert table.key == ()
    twins = [(None, int4(1)), (None, int4(1))]
    site.commit(insert(table, twins))
    assert site.commit(delete(table, twins[:1])) == (1,)


@on_every_version("site")
def test_keyless_rows_in_partitions_are_also_paired(site):
    table = site.table(
        "CREATE TABLE t (a int, b int) PARTITION BY LIST (a);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)"
    )
    rows = [(int4(k), int4(0)) for k in (1, 1, 2, 2)]
    site.commit(insert(table, rows))
    # The first rows of both partitions have the same ctid.
    assert site.commit(update(table, [rows[0], rows[2]], [(int4(2), int4(5)), (int4(2), int4(6))])) == (2,)
    assert site.rows("SELECT * FROM t ORDER BY 1, 2") == [(1, 0), (2, 0), (2, 5), (2, 6)]


def plan_of(site: Site, write) -> str:
    catalog = site.session._tables.catalog("public", "t")
    plan = plan_write(write, catalog, generation=0, moves=False)
    connection = site.session._transaction.connection
    with connection.transaction():
        if plan.paired:
            connection.execute("SET LOCAL enable_nestloop = off")
        # Plan as PREPARE does for any parameters; EXPLAIN (GENERIC_PLAN) exists only from 16 on.
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.pgconn.exec_(f"PREPARE explained AS {plan.statements[0].sql}".encode())
        nulls = ", ".join("NULL" for _ in set(re.findall(r"unnest\(\$\d+", plan.statements[0].sql)))
        result = connection.pgconn.exec_(f"EXPLAIN (COSTS OFF) EXECUTE explained ({nulls})".encode())
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        return b"\n".join(result.get_value(k, 0) or b"" for k in range(result.ntuples)).decode()


@on_every_version("site")
@pytest.mark.parametrize("filled", [False, True], ids=["never analyzed", "analyzed"])
@pytest.mark.parametrize("make", [update, delete])
def test_rows_are_found_by_index_with_any_statistics(site, filled, make):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v text)")
    if filled:
        site.user.execute("INSERT INTO t SELECT k, 'x' FROM generate_series(1, 2000) k")
        site.user.execute("ANALYZE t")
    row = [(int4(1), b"x")]
    plan = plan_of(site, make(table, row) if make is delete else make(table, row, row))
    assert "Index Scan using t_pkey" in plan
    assert "Seq Scan" not in plan


def test_rows_without_key_are_found_by_hash_and_not_by_nested_loops(site):
    table = site.table("CREATE TABLE t (id int, v text)")
    plan = plan_of(site, delete(table, [(int4(1), b"x")]))
    assert plan.count("Seq Scan on t") == 1
    assert "Hash Semi Join" in plan or "Hash Right Semi Join" in plan
    # The found rows are then changed by their place in the table.
    assert plan.count("Nested Loop") == plan.count("Tid Scan on t") <= 1


@pytest.mark.parametrize("key", values(["id int PRIMARY KEY", TWO_COLUMNS], TWO_COLUMNS))
def test_rows_are_found_by_index_after_a_vacuum_during_the_filling(site, key):
    """PostgreSQL then takes the table for empty, as nothing in it is committed, and would read it whole for each set."""
    table = site.table(f"CREATE TABLE t ({key}, v int)")
    names = [column.name for column in table.columns]

    def row(number: int, value: int) -> list[bytes]:
        cells = {"id": int4(number), "k": b"k", "v": int4(value)}
        return [cells[name] for name in names]

    site.session.begin()
    site.session.write([insert(table, [row(number, 0) for number in range(3000)])])
    site.user.execute(VACUUM)
    assert site.rows("SELECT reltuples, relpages > 0 FROM pg_class WHERE oid = 't'::regclass") == [(0, True)]
    site.session.write([update(table, [row(number, 0) for number in (1, 2)], [row(number, 1) for number in (1, 2)])])
    site.session.write([delete(table, [row(3, 0)])])
    fetched = (
        "SELECT pg_catalog.pg_stat_get_xact_tuples_fetched(indexrelid) FROM pg_catalog.pg_index WHERE indrelid"
        " = 'public.t'::pg_catalog.regclass"
    )
    (found,) = site.session.run_sql([HandlerSql(sql=fetched)], timeout_s=STALL_S)
    site.session.commit([], 0)
    assert found.rows == ((3,),)
    assert site.rows("SELECT count(*), sum(v) FROM t") == [(2999, 2)]


@on_every_version("site")
@pytest.mark.parametrize(
    "further",
    values(
        [
            "CREATE INDEX ON t (k)",
            "CREATE INDEX ON t (v, k)",
            "CREATE INDEX ON t (k, v)",
            "CREATE UNIQUE INDEX ON t (k, v, id)",
            "CREATE INDEX ON t USING hash (k)",
        ],
        "CREATE INDEX ON t (k)",
    ),
)
def test_set_never_looks_up_each_row_in_an_index_with_many_matches(site, further):
    """In a table that the server takes for empty, each index costs the same.

    If another index exists, the table is read once for a set, as before, and not once for each row.
    """
    table = site.table(f"CREATE TABLE t (k int, id int, v int, PRIMARY KEY (k, id)); {further}")
    rows = [(int4(7), int4(number), int4(0)) for number in range(2000)]
    site.session.begin()
    site.session.write([insert(table, rows)])
    site.user.execute(VACUUM)
    assert site.rows("SELECT reltuples FROM pg_class WHERE oid = 't'::regclass") == [(0,)]
    changed = rows[:50]
    assert site.session.write([update(table, changed, [(k, number, int4(1)) for k, number, _ in changed])]) == (50,)
    fetched = (
        "SELECT pg_catalog.sum(pg_catalog.pg_stat_get_xact_tuples_fetched(indexrelid))::int8 FROM"
        " pg_catalog.pg_index WHERE indrelid = 'public.t'::pg_catalog.regclass"
    )
    (found,) = site.session.run_sql([HandlerSql(sql=fetched)], timeout_s=STALL_S)
    site.session.commit([], 0)
    assert found.rows[0][0] <= 2000


@pytest.mark.parametrize(
    ("ddl", "is_looked_up"),
    [
        ("CREATE TABLE t (id text PRIMARY KEY, v int)", True),
        (
            "CREATE TABLE t (id text PRIMARY KEY, v int); CREATE INDEX ON t (id, v); CREATE INDEX ON t (v); CREATE"
            " INDEX ON t (upper(id))",
            True,
        ),
        ("CREATE TABLE t (id text PRIMARY KEY, v int); CREATE INDEX ON t (v, id)", False),
        ('CREATE TABLE t (id text NOT NULL, v int); CREATE UNIQUE INDEX ON t (id COLLATE "C")', False),
        (
            "CREATE TABLE t (id text, v int, PRIMARY KEY (id, v)) PARTITION BY HASH (id); CREATE TABLE p PARTITION OF t"
            " FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            True,
        ),
        (
            "CREATE TABLE t (id text, v int, PRIMARY KEY (id, v)) PARTITION BY HASH (id, v); CREATE TABLE p PARTITION"
            " OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            False,
        ),
        (
            "CREATE TABLE t (id text, v int, PRIMARY KEY (id, v)) PARTITION BY HASH (id); CREATE TABLE p PARTITION OF t"
            " FOR VALUES WITH (MODULUS 1, REMAINDER 0); CREATE INDEX ON p (v)",
            False,
        ),
    ],
    ids=[
        "key",
        "indexes of the key",
        "another index",
        "another collation",
        "partitions",
        "partitions by both",
        "an index of a partition",
    ],
)
def test_rows_are_looked_up_one_by_one_only_in_a_matching_unique_index(site_18, ddl, is_looked_up):
    """If that index has another collation than the column, no index is used at all. Partitions are found by `=` alone
    where several columns share one hash.
    """
    table = site_18.table(ddl)
    write = delete(table, [(b"a", int4(1))])
    catalog = site_18.session._tables.catalog("public", "t")
    (statement,) = plan_write(write, catalog, generation=0, moves=False).statements
    assert (" ANY (ARRAY[u.o" in statement.sql) is is_looked_up
