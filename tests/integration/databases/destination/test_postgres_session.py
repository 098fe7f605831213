"""What only PostgreSQL has: identity and generated columns, partitions, record images, origins, plans, altered tables.

Longer than 500 lines: all of it shares the server and the helpers that build writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DataError, UnfitTableError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import DestinationTable, HandlerSql, RowQuestion, TruncatedTable, Write
from headrace.databases.postgres import pipeline as destination_pipeline
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session import write_plans
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.databases.postgres.destination.writing import writes
from headrace.databases.postgres.destination.writing.writes import WritePlan, plan_write
from headrace.databases.postgres.origins import tag_of_origin
from headrace.lcr.batch import TableVersion
from headrace.lcr.values import ABSENT
from tests.support.session.bounds import STALL_S
from tests.support.session.matrices import values
from tests.support.session.server_versions import DESTINATIONS, on_every_version
from tests.support.values.writes import delete, insert, int4, int8, key_only, update, version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Site:
    """A destination database, a session of apply server 0, and the view of a user."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.destination = PostgresDestination(dsn, site="b")
        self.destination.prepare("top")
        self.epoch = self.destination.raise_epoch("top", "a").epoch
        self.session = self.open()
        self.user = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)

    def open(self, server: int = 0, tag: bytes = b"\x1f") -> PostgresSession:
        return self.destination.open_session("top", "a", server=server, epoch=self.epoch, tag=tag)

    def table(self, ddl: str, name: str = "t") -> DestinationTable:
        self.user.execute(ddl)
        table = self.session.describe("public", name, fresh=True)
        assert table is not None
        return table

    def rows(self, query: str = "SELECT * FROM t ORDER BY 1") -> list[tuple]:
        return self.user.execute(query).fetchall()

    def commit(self, *found) -> tuple[int, ...]:
        self.session.begin()
        try:
            counts = self.session.write(found)
            self.session.commit([], 0)
        finally:
            self.session.rollback()
        return counts

    def binary(self, value: str) -> bytes:
        """The binary form of an SQL expression."""
        result = self.user.pgconn.exec_params(f"SELECT {value}".encode(), None, result_format=1)
        found = result.get_value(0, 0)
        assert found is not None, result.error_message
        return found

    def close(self) -> None:
        self.session.close()
        self.destination.close()
        self.user.close()


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_labels_never_make_the_data_fail(
    pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], encoding: str
) -> None:
    dsn = fresh_database(pg_destination)
    if encoding != "UTF8":
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(pg_destination.dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name}")
            admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    site = Site(dsn)
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    for number, label in enumerate(["order 7", "заказ 4711", "a\x00b", "it's \\x41"]):
        site.session.begin()
        site.session.write([insert(table, [(int4(number),)])])
        site.session.commit([], 0, [label])
        site.session.rollback()
    assert site.rows() == [(0,), (1,), (2,), (3,)]
    site.close()


@pytest.fixture(params=DESTINATIONS)
def site(request: pytest.FixtureRequest, prepared_database: Callable[[EmbeddedServer], str]) -> Iterator[Site]:
    made = Site(prepared_database(request.getfixturevalue(request.param)))
    yield made
    made.close()


@pytest.fixture
def site_18(destination_database: str) -> Iterator[Site]:
    made = Site(destination_database)
    yield made
    made.close()


TWO_COLUMNS = """id int, k text COLLATE "C" DEFAULT 'k', PRIMARY KEY (k, id)"""


# --------------------------------------------------------------------------- columns that cannot be set


@on_every_version("site")
def test_generated_columns_are_computed_not_written(site):
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
def test_extra_column_gets_its_default_and_keeps_the_value_it_has(site_18, count):
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


def test_identity_column_beside_the_key_is_moved_only_where_it_changed(site):
    """Without old values nobody can tell: rows that have the new value already are updated, the others moved."""
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


def test_table_without_columns_to_write_gets_rows_of_defaults(site):
    table = site.table("CREATE TABLE t (g int GENERATED ALWAYS AS (7) STORED)")
    assert site.commit(insert(table, [(int4(7),), (int4(7),)])) == (2,)
    assert site.rows() == [(7,), (7,)]


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
def test_old_values_are_compared_by_image_not_by_equality(site, kind, stored, old):
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
def test_a_value_that_is_stored_otherwise_here_is_the_one_that_the_source_had(site):
    """What `verify` calls equal is no conflict: a value that was received has no bitmap of NULLs that it had once."""
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


def test_a_value_that_is_stored_otherwise_is_found_in_tables_of_every_form(site_18):
    """A table without a key, of a substitute key that repeats, and one with more columns than a set can have."""
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


def test_collation_that_ignores_case_serialises_and_matches_by_its_own_equality(site):
    try:
        site.user.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server is built without ICU")
    table = site.table("CREATE TABLE t (id text COLLATE nocase PRIMARY KEY)")
    assert table.serialise


# --------------------------------------------------------------------------- tables without a key


def test_keyless_table_of_types_without_equality_pairs_rows(site):
    table = site.table("CREATE TABLE t (a json, b point, c int[])")
    row = (b'{"a":  1}', site.binary("'(1,2)'::point"), site.binary("'{1,NULL}'::int4[]"))
    nulls = (None, None, None)
    site.commit(insert(table, [row, row, nulls, nulls]))
    assert site.commit(delete(table, [row, nulls])) == (2,)
    assert site.commit(update(table, [row, nulls], [nulls, row])) == (2,)
    assert site.rows("SELECT count(*), count(a) FROM t") == [(2, 1)]
    assert site.commit(delete(table, [row, row])) == (1,)


def test_more_duplicates_than_rows_change_every_row_once(site):
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
def test_keyless_rows_in_partitions_are_paired_too(site):
    table = site.table(
        "CREATE TABLE t (a int, b int) PARTITION BY LIST (a);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)"
    )
    rows = [(int4(k), int4(0)) for k in (1, 1, 2, 2)]
    site.commit(insert(table, rows))
    # The first rows of both partitions have the same place.
    assert site.commit(update(table, [rows[0], rows[2]], [(int4(2), int4(5)), (int4(2), int4(6))])) == (2,)
    assert site.rows("SELECT * FROM t ORDER BY 1, 2") == [(1, 0), (2, 0), (2, 5), (2, 6)]


# --------------------------------------------------------------------------- TRUNCATE


def test_truncate_leaves_a_table_that_only_refers_to_it_here_and_names_it(site):
    parent = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE TABLE only_here (id int REFERENCES t)")
    site.user.execute("INSERT INTO t VALUES (1); INSERT INTO only_here VALUES (1)")
    site.session.begin()
    with pytest.raises(
        DataError, match=r'Table "only_here" references "t", and did not travel in the same TRUNCATE'
    ) as caught:
        site.session.truncate([TruncatedTable(table=parent)], restart_identity=False)
    site.session.rollback()
    assert "foreign key" in caught.value.hint
    assert site.rows("SELECT id FROM only_here") == site.rows("SELECT id FROM t") == [(1,)]


@on_every_version("site")
def test_tables_that_refer_to_each_other_are_truncated_in_one_statement(site):
    parent = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    child = site.table("CREATE TABLE child (id int REFERENCES t, number int GENERATED ALWAYS AS IDENTITY)", "child")
    site.user.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (1)")
    site.session.begin()
    site.session.truncate([TruncatedTable(table=parent), TruncatedTable(table=child)], restart_identity=True)
    site.session.commit([], 0)
    assert site.rows("SELECT id FROM child UNION ALL SELECT id FROM t") == []
    assert site.rows("INSERT INTO child VALUES (NULL) RETURNING number") == [(1,)]


# --------------------------------------------------------------------------- partitions, plans, chunks


@on_every_version("site")
def test_partitioned_table_is_one_table(site):
    table = site.table(
        "CREATE TABLE t (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (1000) TO (10000)"
    )
    rows = [(int4(k), b"x") for k in range(3000)]
    assert site.commit(insert(table, rows)) == (3000,)
    assert site.commit(update(table, rows[:10], [(int4(5000 + k), b"y") for k in range(10)])) == (10,)
    assert site.rows("SELECT count(*) FROM t1") == [(990,)]
    assert site.commit(delete(table, rows[10:])) == (2990,)


def plan_of(site: Site, write) -> str:
    catalog = site.session._tables.catalog("public", "t")
    plan = plan_write(write, catalog, generation=0, moves=False)
    connection = site.session._transaction.connection
    with connection.transaction():
        if plan.paired:
            connection.execute("SET LOCAL enable_nestloop = off")
        # As PREPARE plans it for any parameters; EXPLAIN (GENERIC_PLAN) came with 16 only.
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.pgconn.exec_(f"PREPARE explained AS {plan.statements[0].sql}".encode())
        nulls = ", ".join("NULL" for _ in set(re.findall(r"unnest\(\$\d+", plan.statements[0].sql)))
        result = connection.pgconn.exec_(f"EXPLAIN (COSTS OFF) EXECUTE explained ({nulls})".encode())
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        return b"\n".join(result.get_value(k, 0) for k in range(result.ntuples)).decode()


@on_every_version("site")
@pytest.mark.parametrize("filled", [False, True], ids=["never analyzed", "analyzed"])
@pytest.mark.parametrize("make", [update, delete])
def test_rows_are_found_by_index_whatever_the_statistics_say(site, filled, make):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v text)")
    if filled:
        site.user.execute("INSERT INTO t SELECT k, 'x' FROM generate_series(1, 2000) k")
        site.user.execute("ANALYZE t")
    row = [(int4(1), b"x")]
    plan = plan_of(site, make(table, row) if make is delete else make(table, row, row))
    assert "Index Scan using t_pkey" in plan
    assert "Seq Scan" not in plan


def test_rows_without_key_are_found_by_hash_not_by_nested_loops(site):
    table = site.table("CREATE TABLE t (id int, v text)")
    plan = plan_of(site, delete(table, [(int4(1), b"x")]))
    assert plan.count("Seq Scan on t") == 1
    assert "Hash Semi Join" in plan or "Hash Right Semi Join" in plan
    # What was found is then changed by its place in the table.
    assert plan.count("Nested Loop") == plan.count("Tid Scan on t") <= 1


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_large_sets_are_written_in_chunks_with_one_count(site, monkeypatch, key):
    monkeypatch.setattr(writes, "CHUNK_BYTES", 1000)
    table = site.table(f"CREATE TABLE t (id int {key}, v text)")
    rows = [(int4(k), b"x" * (k % 300)) for k in range(150)]
    changed = [(k, b"y") for k, _ in rows]
    assert site.commit(insert(table, rows), update(table, rows, changed), delete(table, changed[:100])) == (
        150,
        150,
        100,
    )
    assert site.rows("SELECT count(*), min(v), max(v) FROM t") == [(50, "y", "y")]


@on_every_version("site")
def test_error_in_a_copy_of_many_blocks_is_the_servers_own(site):
    """The first row is refused while most of the data is still to be sent."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v bytea)")
    site.commit(insert(table, [(int4(0), b"")]))
    with pytest.raises(DataError) as caught:
        site.commit(insert(table, [(int4(k), b"x" * 8000) for k in range(5000)]))
    assert caught.value.context["sqlstate"] == "23505"
    assert site.commit(insert(table, [(int4(1), b"")])) == (1,)


@on_every_version("site")
def test_prepared_statements_are_bounded(site, monkeypatch):
    monkeypatch.setattr(destination_pipeline, "PREPARED_MAX", 3)
    for number in range(6):
        table = site.table(f"CREATE TABLE t{number} (id int PRIMARY KEY)", f"t{number}")
        site.commit(insert(table, [(int4(1),)]), delete(table, [(int4(1),)]))
    own = [
        row[0]
        for row in site.session._transaction.connection.execute(
            "SELECT name FROM pg_prepared_statements WHERE name LIKE 'headrace%'"
        )
    ]
    assert len(own) == 3


def test_plans_are_bounded_and_those_in_use_are_kept(site_18, monkeypatch):
    """Every set of columns that changed together has a plan of its own."""
    table = site_18.table("CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int)")
    row = [int4(1)] * 4
    site_18.commit(insert(table, [row]))
    planned: list[tuple[int, ...]] = []

    def plan(write: Write, *arguments: Any, **options: Any) -> WritePlan:
        planned.append(write.set_columns)
        return plan_write(write, *arguments, **options)

    monkeypatch.setattr("headrace.databases.postgres.destination.server_session.write_plans.PLANS_MAX", 3)
    monkeypatch.setattr("headrace.databases.postgres.destination.server_session.write_plans.plan_write", plan)
    kept, others = (1,), [(2,), (3,), (1, 2), (1, 3), (2, 3)]
    for sets in others:
        assert site_18.commit(update(table, [row], [row], sets=kept), update(table, [row], [row], sets=sets)) == (1, 1)
    assert planned == [kept, *others]
    site_18.commit(update(table, [row], [row], sets=others[0]))
    assert planned == [kept, *others, others[0]]


def test_statement_that_failed_to_prepare_is_prepared_again(site):
    """The failing one and those behind it in the same round trip."""
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0))")
    for _ in range(2):
        with pytest.raises(DataError):
            site.commit(insert(table, [(int4(1), int4(0))]), delete(table, [(int4(1), int4(1))]))
    assert site.commit(insert(table, [(int4(1), int4(1))]), delete(table, [(int4(1), int4(1))])) == (1, 1)


# --------------------------------------------------------------------------- what the session must not do


@on_every_version("site")
def test_foreign_keys_and_ordinary_triggers_do_not_run(site):
    site.user.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    table = site.table(
        "CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES parent);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    assert not table.ordered
    assert site.commit(insert(table, [(int4(1), int4(77))])) == (1,)
    site.user.execute("ALTER TABLE t ENABLE REPLICA TRIGGER refuse")
    assert site.session.describe("public", "t", fresh=True).ordered


@on_every_version("site")
def test_changes_are_marked_with_the_origin_that_carries_the_tag(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE PUBLICATION p FOR TABLE t")
    site.user.execute("SELECT pg_create_logical_replication_slot('origins', 'pgoutput')")
    site.commit(insert(table, [(int4(1),)]))
    site.user.execute("INSERT INTO t VALUES (2)")
    messages = [
        bytes(row[0])
        for row in site.user.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('origins', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'p')"
        )
    ]
    assert sum(b"headrace:top/a/0:1f\0" in message for message in messages if message[:1] == b"O") == 1
    assert sum(message[:1] == b"O" for message in messages) == 1


def test_changes_of_an_apply_process_without_a_tag_have_a_null_tag(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute("CREATE PUBLICATION p FOR TABLE t")
    site.user.execute("SELECT pg_create_logical_replication_slot('origins', 'pgoutput')")
    untagged = site.open(server=1, tag=b"")
    untagged.begin()
    untagged.write([insert(table, [(int4(1),)])])
    untagged.commit([], 0)
    untagged.close()
    (origin,) = [
        bytes(row[0])
        for row in site.user.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('origins', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'p')"
        )
        if bytes(row[0])[:1] == b"O"
    ]
    assert tag_of_origin(origin[9:-1].decode()) is None


@on_every_version("site")
def test_every_server_and_tag_has_its_own_origin(site):
    others = [site.open(server=1), site.open(server=2, tag=b"\xab\xcd")]
    names = {
        row[0]
        for row in site.user.execute("SELECT roname FROM pg_replication_origin WHERE roname LIKE 'headrace:top/%'")
    }
    assert {"headrace:top/a/0:1f", "headrace:top/a/1:1f", "headrace:top/a/2:abcd"} <= names
    for session in others:
        session.close()


# --------------------------------------------------------------------------- tables altered meanwhile


@on_every_version("site")
def test_table_altered_behind_the_session_pauses_and_goes_on(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    row = (int4(1), int4(2), int4(3))
    site.commit(insert(table, [row]))
    site.user.execute("ALTER TABLE t DROP COLUMN b")
    with pytest.raises(UnfitTableError):
        site.commit(update(table, [row], [row]))
    assert site.session.missing_alter(version_of(table)).startswith('ALTER TABLE "public"."t" ADD COLUMN "b" int4;')
    with pytest.raises(UnfitTableError) as caught:
        site.commit(update(table, [row], [row]))
    assert "ADD COLUMN" in caught.value.hint
    site.user.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 3")
    fresh = site.session.describe("public", "t", fresh=True)
    assert site.commit(update(fresh, [row], [row], version=version_of(table))) == (1,)


def test_type_altered_behind_the_session_names_the_alter_and_the_function_that_does_without_it(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    row = (int4(1), int4(2))
    site.commit(insert(table, [row]), update(table, [row], [row]))
    site.user.execute("ALTER TABLE t ALTER COLUMN a TYPE text USING 'no. ' || a")
    with pytest.raises(UnfitTableError):
        site.commit(update(table, [row], [row]))
    alter, _, function = site.session.missing_alter(version_of(table)).partition("; or, if these rows are older")
    assert alter.startswith(
        'ALTER TABLE "public"."t" ALTER COLUMN "a" TYPE int4; -- then headrace verify FILE public.t and the fix that it'
        " prints:"
    )
    start = function[function.index("CREATE FUNCTION") :].replace(" ...;", "")
    assert start == 'CREATE FUNCTION headrace."public.t.a"(int4) RETURNS "pg_catalog"."text"'
    site.user.execute(f"{start} LANGUAGE sql IMMUTABLE AS $$ SELECT 'no. ' || $1 $$")
    now = site.session.describe("public", "t", fresh=True)
    changed = (int4(1), int4(3))
    assert site.commit(update(now, [row], [changed], version=version_of(table))) == (1,)
    assert site.rows() == [(1, "no. 3")]
    assert site.commit(delete(now, [row], version=version_of(table))) == (0,)
    assert site.commit(delete(now, [changed], version=version_of(table))) == (1,)


# --------------------------------------------------------------------------- columns of another type


def _of_another(table: DestinationTable, other: DestinationTable, *, is_binary: bool) -> TableVersion:
    """What a source says of `table` that has the columns of `other`."""
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
def test_functions_convert_arrays_keys_and_types_of_ones_own(site, is_binary):
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
def test_rows_are_found_by_what_the_column_made_of_the_function_s_value(site, key):
    """1.5 is kept as 1.50 in a numeric(8,2), blanks are added in a character(5), a key loses its milliseconds."""
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


def test_a_function_s_value_that_is_too_long_is_refused_not_cut(site):
    old = site.table("CREATE TABLE s (id int PRIMARY KEY, a int)", "s")
    site.table("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    site.user.execute("""CREATE FUNCTION headrace."public.t.a"(int) RETURNS varchar IMMUTABLE RETURN 'no. ' || $1""")
    table = site.session.describe("public", "t", fresh=True)
    with pytest.raises(DataError):
        site.commit(insert(table, [(int4(1), int4(1))], _of_another(table, old, is_binary=True)))


def test_a_domain_with_a_length_is_not_wider_than_text(site):
    """A cast to it cuts what is too long."""
    site.user.execute("CREATE DOMAIN short AS varchar(5); CREATE DOMAIN any_text AS text; CREATE DOMAIN big AS bigint")
    old = site.table("CREATE TABLE s (a int, b varchar, c text)", "s")
    new = site.table("CREATE TABLE t (a big, b any_text, c short)")
    missing = site.session.missing_alter(_of_another(new, old, is_binary=True))
    assert missing.startswith('ALTER TABLE "public"."t" ALTER COLUMN "c" TYPE text;')
    assert len(missing.splitlines()) == 1


def test_columns_of_a_table_with_long_names_have_functions_of_their_own(site):
    """PostgreSQL cuts names after 63 bytes, before the column's in this case."""
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


@pytest.mark.parametrize("count", [1, writes.COPY_ROWS_MIN], ids=["set", "copy"])
@pytest.mark.parametrize(
    ("kind", "value", "alter"),
    [
        ("int", "5", "ALTER a TYPE text USING 'no. ' || a"),
        ("float8", "2.6", "ALTER a TYPE bigint"),
        ("bigint", "5", "ALTER a TYPE float8"),
        ("timestamp", "'2026-01-02 03:04'", "ALTER a TYPE date"),
        ("numeric(8,2)", "1.25", "ALTER a TYPE numeric(8,1)"),
        ("text", "'old'", "RENAME a TO a_old; ALTER TABLE t ADD a text"),
    ],
)
def test_statements_made_for_another_form_write_nothing(site, kind, value, alter, count):
    """Many would work: through an assignment cast, because values have one length, or because the name is there."""
    table = site.table(f"CREATE TABLE t (id int PRIMARY KEY, a {kind})")
    found = site.binary(f"{value}::{kind}")
    site.commit(insert(table, [(int4(k), found) for k in range(count)]))
    site.user.execute(f"TRUNCATE t; ALTER TABLE t {alter}")
    # Where the server refuses the bytes, rows are taken for what is wrong, until the table is described anew for one
    # alone.
    with pytest.raises((UnfitTableError, DataError)):
        site.commit(insert(table, [(int4(-k), found) for k in range(1, count + 1)]))
    assert site.rows() == []


@pytest.mark.parametrize("count", [1, writes.COPY_ROWS_MIN], ids=["set", "copy"])
@pytest.mark.parametrize(
    "away",
    [
        "ALTER TABLE t RENAME TO t_old",
        "CREATE SCHEMA old; ALTER TABLE t SET SCHEMA old",
        "ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public",
    ],
)
def test_statements_made_for_a_table_write_nothing_into_another_one_that_has_its_name_now(site, away, count):
    """An operator who builds a table anew (pg_repack, a partitioned one in its place) exchanges the two in one
    transaction.
    """
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a numeric(8,2))")
    found = site.binary("1.25::numeric(8,2)")
    site.commit(insert(table, [(int4(k), found) for k in range(count)]))
    site.user.execute(f"BEGIN; {away}; CREATE TABLE public.t (id int PRIMARY KEY, a numeric(8,1)); COMMIT")
    with pytest.raises((UnfitTableError, DataError)):
        site.commit(insert(table, [(int4(-k), found) for k in range(1, count + 1)]))
    assert site.rows("SELECT * FROM public.t") == []


def test_form_is_looked_at_once_in_a_transaction_and_again_after_a_savepoint(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.session.begin()
    site.session.write([insert(table, [(int4(1), int4(1))])])
    site.user.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        site.user.execute("ALTER TABLE t ALTER a TYPE text")
    site.session.commit([], 0)
    site.session.begin()
    site.session.savepoint()
    site.session.write([insert(table, [(int4(2), int4(2))])])
    site.session.rollback_to_savepoint()
    site.session._transaction.send_pending()
    site.user.execute("ALTER TABLE t ALTER a TYPE text")  # the lock went with the savepoint
    with pytest.raises(UnfitTableError):
        site.session.write([insert(table, [(int4(2), int4(2))])])
    site.session.rollback()
    assert site.rows() == [(1, "1")]


def test_name_that_a_trigger_does_not_find_refuses_the_rows_and_says_in_which_function(site):
    """Apply's sessions have an empty search_path."""
    site.user.execute("CREATE TABLE seen (id int); CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.user.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN"
        " NEW; END'"
    )
    site.user.execute("CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note()")
    table = site.table("ALTER TABLE t ENABLE ALWAYS TRIGGER note")
    row = [(int4(1), int4(2))]
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"INSERT of public\.t: .* in PL/pgSQL function public\.note\(\).*search_path"
        ) as caught:
            site.commit(insert(table, row))
        assert caught.value.context["sqlstate"] == "42P01"
    site.user.execute(
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES"
        " (NEW.id); RETURN NEW; END'"
    )
    assert site.commit(insert(table, row)) == (1,)
    assert site.rows("SELECT * FROM seen") == [(1,)]


def test_deferred_trigger_that_does_not_find_a_name_refuses_the_transaction(site):
    site.user.execute("CREATE TABLE seen (id int); CREATE TABLE t (id int PRIMARY KEY)")
    site.user.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN"
        " NEW; END'"
    )
    site.user.execute(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION"
        " note()"
    )
    table = site.table("ALTER TABLE t ENABLE ALWAYS TRIGGER note")
    with pytest.raises(DataError, match=r"in PL/pgSQL function public\.note\(\).*search_path"):
        site.commit(insert(table, [(int4(1),)]))


def test_statement_of_apply_s_own_that_is_wrong_names_its_table_and_is_called_a_defect(site, monkeypatch):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY, a int)")
    site.commit(insert(table, [(int4(1), int4(2))]))
    plan = write_plans.plan_write

    def planned(*arguments, **named):
        made = plan(*arguments, **named)
        return replace(
            made,
            statements=tuple(replace(each, sql=each.sql.replace("WHERE", "WHERE ) AND")) for each in made.statements),
        )

    monkeypatch.setattr(write_plans, "plan_write", planned)
    with pytest.raises(
        DataError, match=r"UPDATE of public\.t: writing: syntax error .*a defect of Headrace: report it"
    ) as caught:
        site.commit(update(table, [(int4(1), int4(2))], [(int4(1), int4(3))]))
    assert caught.value.context["table"] == "public.t"


def test_dropped_and_recreated_table_is_found_again(site):
    table = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    site.commit(insert(table, [(int4(1),)]))
    site.user.execute("DROP TABLE t")
    with pytest.raises(UnfitTableError):
        site.commit(insert(table, [(int4(2),)]))
    again = site.table("CREATE TABLE t (id int PRIMARY KEY)")
    assert site.commit(insert(again, [(int4(3),)])) == (1,)


# --------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("ddl", "serialise", "ordered", "key", "unique"),
    [
        ("CREATE TABLE t (a int PRIMARY KEY, b int)", False, False, (0,), {(0,)}),
        ("CREATE TABLE t (a int, b int NOT NULL UNIQUE)", False, False, (1,), {(1,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE)", False, True, (0,), {(0,), (1,)}),
        (
            "CREATE TABLE t (a int, b int, PRIMARY KEY (b, a)); CREATE UNIQUE INDEX ON t (b, a)",
            False,
            False,
            (1, 0),
            {(1, 0)},
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t (b) WHERE b > 0",
            True,
            True,
            (0,),
            {(0,)},
        ),
        ("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t ((b + 1))", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int NOT NULL, b int, UNIQUE (a, b))", False, False, (0, 1), {(0, 1)}),
        ("CREATE TABLE t (a int, b int UNIQUE)", True, False, (), {(1,)}),
        (
            "CREATE TABLE t (a int NOT NULL, b int, c int NOT NULL, d int NOT NULL, UNIQUE (a, b), UNIQUE (a, c, d))",
            False,
            True,
            (0, 2, 3),
            {(0, 1), (0, 2, 3)},
        ),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE NULLS NOT DISTINCT)", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE DEFERRABLE)", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a int PRIMARY KEY, b int4range, EXCLUDE USING gist (b WITH &&))", True, True, (0,), {(0,)}),
        ("CREATE TABLE t (a interval PRIMARY KEY, b int)", True, False, (0,), {(0,)}),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE UNIQUE INDEX ON t (a) INCLUDE (b)",
            False,
            False,
            (0,),
            {(0,)},
        ),
        (
            "CREATE TABLE t (a int, b int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
            "ALTER TABLE t ADD PRIMARY KEY (a)",
            False,
            False,
            (0,),
            {(0,)},
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES"
            " IN (1);CREATE UNIQUE INDEX ON t1 (b)",
            True,
            True,
            (0,),
            {(0,)},
        ),
    ],
)
def test_uniqueness_is_described(site_18, ddl, serialise, ordered, key, unique):
    table = site_18.table(ddl)
    assert (table.serialise, table.ordered, table.key, set(table.unique_keys)) == (serialise, ordered, key, unique)


def test_foreign_keys_are_described_from_both_ends_with_those_of_partitions(site_18):
    site = site_18
    site.user.execute("""
        CREATE TABLE orders (id bigint, part int, number int UNIQUE, PRIMARY KEY (id, part));
        CREATE TABLE split (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE split_1 PARTITION OF split FOR VALUES IN (1);
        CREATE TABLE lines (id int PRIMARY KEY, order_part int, order_id int, above int REFERENCES lines, split int REFERENCES split, leaf int REFERENCES split_1,
            FOREIGN KEY (order_part, order_id) REFERENCES orders (part, id));
        CREATE TABLE payments (id int, number int REFERENCES orders (number)) PARTITION BY LIST (id);
        CREATE TABLE payments_1 PARTITION OF payments FOR VALUES IN (1);
        ALTER TABLE payments_1 ADD FOREIGN KEY (id) REFERENCES lines;
    """)
    found = {
        name: site.session.describe("public", name, fresh=True) for name in ("orders", "split", "lines", "payments")
    }
    references = {
        name: {(key.columns, key.name, key.referred_columns) for key in table.references}
        for name, table in found.items()
    }
    assert references == {
        "orders": set(),
        "split": set(),
        "lines": {
            (("order_part", "order_id"), "orders", ("part", "id")),
            (("above",), "lines", ("id",)),
            (("split",), "split", ("id",)),
            (("leaf",), "split", ("id",)),
        },
        "payments": {(("number",), "orders", ("number",)), (("id",), "lines", ("id",))},
    }
    assert {name: set(table.referred) for name, table in found.items()} == {
        "orders": {("id", "part"), ("number",)},
        "split": {("id",)},
        "lines": {("id",)},
        "payments": set(),
    }


def test_views_are_no_tables(site):
    site.user.execute("CREATE VIEW t AS SELECT 1 AS a")
    assert site.session.describe("public", "t", fresh=True) is None


def test_strange_names_are_quoted(site):
    site.user.execute('CREATE SCHEMA "My ""S"""')
    site.user.execute('CREATE TABLE "My ""S"""."a.b %s" ("Id" int PRIMARY KEY, "%x; --" text, "sel""ect" date[])')
    table = site.session.describe('My "S"', "a.b %s")
    rows = [(int4(1), b"x", site.binary("'{}'::date[]"))]
    assert site.commit(insert(table, rows), update(table, rows, rows), delete(table, rows)) == (1, 1, 1)


def test_wide_tables_pass(site):
    columns = ", ".join(f"c{k} int8" for k in range(800))
    table = site.table(f"CREATE TABLE t (id int8 PRIMARY KEY, {columns})")
    rows = [[int8(k)] * 801 for k in range(50)]
    assert site.commit(insert(table, rows), update(table, rows, rows)) == (50, 50)


@pytest.mark.parametrize("key", values(["id int PRIMARY KEY", TWO_COLUMNS], TWO_COLUMNS))
def test_rows_are_found_by_index_also_in_a_table_that_was_vacuumed_while_a_transaction_filled_it(site, key):
    """PostgreSQL takes it for empty then, as nothing in it is committed, and would read it whole for each set."""
    table = site.table(f"CREATE TABLE t ({key}, v int)")
    names = [column.name for column in table.columns]

    def row(number: int, value: int) -> list[bytes]:
        cells = {"id": int4(number), "k": b"k", "v": int4(value)}
        return [cells[name] for name in names]

    site.session.begin()
    site.session.write([insert(table, [row(number, 0) for number in range(3000)])])
    site.user.execute("VACUUM t")
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
def test_set_never_looks_for_each_of_its_rows_into_an_index_that_finds_many(site, further):
    """Of a table that the server takes for empty each index costs the same.

    Where there is another one the table is read once for a set, as it always was, and not once for each row.
    """
    table = site.table(f"CREATE TABLE t (k int, id int, v int, PRIMARY KEY (k, id)); {further}")
    rows = [(int4(7), int4(number), int4(0)) for number in range(2000)]
    site.session.begin()
    site.session.write([insert(table, rows)])
    site.user.execute("VACUUM t")
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
def test_rows_are_looked_up_one_by_one_where_the_server_has_the_unique_index_for_it_alone(site_18, ddl, is_looked_up):
    """Where that index has another collation than the column, no index is used at all; partitions are found by `=`
    alone, where several columns have one hash.
    """
    table = site_18.table(ddl)
    write = delete(table, [(b"a", int4(1))])
    catalog = site_18.session._tables.catalog("public", "t")
    (statement,) = plan_write(write, catalog, generation=0, moves=False).statements
    assert (" ANY (ARRAY[u.o" in statement.sql) is is_looked_up
