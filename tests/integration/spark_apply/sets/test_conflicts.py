"""Conflicts on real servers: two sites that write the same rows, the types of resolution columns and sums, an upgraded
schema.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import RowQuestion
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.conflict_history import conflicts
from headrace.databases.postgres.destination.records.schema import VERSION, VERSIONS, prepare_schema, schema_version
from headrace.rules.conflict_handlers import ConflictRules
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows
from spark_apply.sets.resolution import Resolution, failed_conflict
from spark_apply.tables.fits import TableFits
from tests.support.histories.conflicts import Lcr, batch_of, handler
from tests.support.session.matrices import cases
from tests.support.session.seeds import is_soak, seeds
from tests.support.values.writes import int4, update, version_of
from tests.support.ways.postgres_network import PostgresNetwork, two_sites

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[4] / "examples" / "conflicts.yaml"
SITES = ("dbs1", "dbs2")
KEYS = 6

# ------------------------------------------------------------------ two sites


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[PostgresNetwork]:
    """Make the example's two sites on two servers; its tables have the same rows."""

    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.customers (id int PRIMARY KEY, name text, city text, changed_at"
            " bigint, last_seen text);CREATE TABLE shop.accounts (id int PRIMARY KEY, balance numeric(12, 2));"
            "ALTER TABLE shop.customers REPLICA IDENTITY FULL; ALTER TABLE shop.accounts REPLICA IDENTITY FULL"
        )
        connection.execute(
            "INSERT INTO shop.customers SELECT n, 'first', 'home', 0, %s FROM generate_series(1, %s) n", (site, KEYS)
        )
        connection.execute("INSERT INTO shop.accounts SELECT n, 100 FROM generate_series(1, %s) n", (KEYS,))

    with two_sites(EXAMPLE, (pg_source, pg_destination), fresh_database, tmp_path, tables) as made:
        yield made


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("two servers, same rows", test=1, soak=30))
def test_servers_that_change_the_same_rows_at_the_same_time_end_equal(network: PostgresNetwork, seed: int) -> None:
    """The example's handlers: the later change of a customer wins, an account gets the sum of both sites' additions."""
    rng = random.Random(seed)
    added: dict[int, int] = dict.fromkeys(range(1, KEYS + 1), 0)
    next_key, clock = KEYS + 1, 0
    for _ in range(6):
        for number, site in enumerate(SITES):
            user = network.sites[site].user
            for _ in range(rng.randrange(1, 6)):
                clock += 1
                key, moved = rng.randrange(1, KEYS + 1), clock * 2 + number
                kind = rng.random()
                if kind < 0.2:
                    amount = rng.randrange(-20, 50)
                    added[key] += amount
                    user.execute("UPDATE shop.accounts SET balance = balance + %s WHERE id = %s", (amount, key))
                elif kind < 0.3:  # also the same key at both sites
                    user.execute(
                        "INSERT INTO shop.customers VALUES (%s, %s, 'new', %s, 'x') ON CONFLICT DO NOTHING",
                        (next_key + rng.randrange(2), site, moved),
                    )
                elif kind < 0.4:
                    user.execute("UPDATE shop.customers SET last_seen = %s WHERE id = %s", (f"{site} {clock}", key))
                else:
                    user.execute(
                        "UPDATE shop.customers SET name = %s, changed_at = greatest(changed_at + 2, %s) / 2 * 2 + %s"
                        " WHERE id = %s",
                        (f"{site} {clock}", moved, number, key),
                    )
        next_key += 2
        held = [apply.name for apply in network.spec.applies if rng.random() < 0.5]
        network.settle(held=held)
    network.settle()
    network.settle()
    for apply in network.spec.applies:
        assert network.sites[apply.site].destination.errors(network.spec.name, apply.name) == ()
    customers, accounts = (
        [
            network.sites[site].user.execute(f"SELECT {columns} FROM shop.{table} ORDER BY 1").fetchall()
            for site in SITES
        ]
        for table, columns in (("customers", "id, name, city, changed_at"), ("accounts", "id, balance"))
    )
    assert customers[0] == customers[1]
    assert accounts[0] == accounts[1] == [(key, 100 + amount) for key, amount in added.items()]
    history = [network.sites[site].destination.conflicts(network.spec.name, last=1000) for site in SITES]
    assert is_soak() or {record.handler for found in history for record in found} >= {"maximum(changed_at)"}, (
        "known seeds meet it; a new one may not"
    )
    views = [
        network.sites[site].user.execute("SELECT count(*) FROM headrace.dba_apply_conflict_history").fetchone()
        for site in SITES
    ]
    assert [view[0] for view in views if view] == [len(found) for found in history]


# ------------------------------------------------------------------ types


class Site:
    """A destination with one table, and the row that an LCR meets."""

    def __init__(self, dsn: str) -> None:
        self.destination = PostgresDestination(dsn, site="b")
        self.destination.prepare("top")
        epoch = self.destination.raise_epoch("top", "a").epoch
        self.session = self.destination.open_session("top", "a", server=0, epoch=epoch, tag=b"\0")
        self.user = psycopg.connect(dsn, autocommit=True)

    def binary(self, value: str) -> bytes:
        found = self.user.pgconn.exec_params(f"SELECT {value}".encode(), None, result_format=1).get_value(0, 0)
        assert found is not None
        return found

    def text(self, value: str) -> bytes:
        found = self.user.pgconn.exec_params(f"SELECT {value}".encode(), None).get_value(0, 0)
        assert found is not None
        return found

    def close(self) -> None:
        self.session.close()
        self.destination.close()
        self.user.close()


@pytest.fixture
def site(destination_database: str) -> Iterator[Site]:
    made = Site(destination_database)
    yield made
    made.close()


TYPES = [
    ("int2", "5::int2", "-6::int2"),
    ("int8", "5000000000::int8", "-6::int8"),
    ("numeric", "10.50::numeric", "9.75::numeric"),
    ("numeric(8,2)", "10.5::numeric(8,2)", "9.75::numeric(8,2)"),
    ("float8", "1e10::float8", "-1::float8"),
    ("text", "'b'::text", "'a'::text"),
    ("varchar(9)", "'b'::varchar", "'a'::varchar"),
    ("date", "'2026-01-02'::date", "'2025-12-31'::date"),
    ("timestamptz", "'2026-01-02 03:04:05.000001+00'::timestamptz", "'2026-01-02 03:04:05+00'::timestamptz"),
    ("uuid", f"'{'b' * 32}'::uuid", f"'{'a' * 32}'::uuid"),
    ("mood", "'happy'::mood", "'sad'::mood"),
    ("positive", "7::positive", "3::positive"),
    ("interval", "'2 days'::interval", "'25 hours'::interval"),
    ("numeric", "'NaN'::numeric", "'Infinity'::numeric"),
    ("float8", "'NaN'::float8", "'Infinity'::float8"),
    ("timestamp", "'infinity'::timestamp", "'9999-12-31'::timestamp"),
    ("char(4)", "'b'::char(4)", "'a'::char(4)"),
    ("name", "'b'::name", "'a'::name"),
    ('text COLLATE "C"', "'a'::text", "'B'::text"),
    ("bytea", "'\\x0000'::bytea", "'\\x00'::bytea"),
    ("bool", "true", "false"),
]


@pytest.mark.parametrize("is_binary", cases({"binary": True, "text": False}, {"text"}))
@pytest.mark.parametrize(("kind", "higher", "lower"), TYPES, ids=[f"{kind} {higher}" for kind, higher, _ in TYPES])
def test_server_orders_values_by_their_type(site: Site, kind: str, higher: str, lower: str, is_binary: bool) -> None:
    site.user.execute("CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (value > 0)")
    site.user.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, tags text[]); INSERT INTO t VALUES (1, {lower}, ARRAY['x']),"
        f" (2, {higher}, NULL)"
    )
    table = site.session.describe("public", "t")
    assert table is not None
    assert table.columns[1].is_ordered
    form = site.binary if is_binary else site.text
    for key, given, expected in ((1, higher, 1), (2, lower, -1), (1, lower, 0), (2, higher, 0)):
        number = int4(key) if is_binary else str(key).encode()
        write = update(
            table,
            [(number, form(lower), form("ARRAY['x']"))],
            [(number, form(given), form("ARRAY['y']"))],
            version=version_of(table, is_binary=is_binary),
        )
        site.session.begin()
        (row,) = site.session.find_rows(write, RowQuestion(by_key=True, compare=(1, 2), order=(1,)))
        site.session.rollback()
        assert row.order == {1: expected}
        assert row.differs == (frozenset() if key == 1 else frozenset({1, 2}))
        assert row.values["tags"] == ("{x}" if key == 1 else None)


def test_order_of_texts_under_language_rules_is_one_of_several(site: Site) -> None:
    site.user.execute("CREATE COLLATION own (provider = libc, locale = 'C'); CREATE DOMAIN words AS text COLLATE own")
    site.user.execute(
        'CREATE TABLE t (id int PRIMARY KEY, a text COLLATE own, b words, c text COLLATE "C", d text COLLATE pg_c_utf8,'
        " e timestamptz, f numeric, g varchar(9) COLLATE own, h char(4) COLLATE own, i name, j name COLLATE own)"
    )
    table = site.session.describe("public", "t")
    assert table is not None
    assert [column.name for column in table.columns if not column.has_one_order] == ["a", "b", "g", "h", "j"]


SUMS = [  # type, new, old, present value, result
    ("int2", "5::int2", "7::int2", "20::int2", "18"),
    ("int4", "7", "19", "20", "8"),
    ("int8", "5::int8", "7::int8", "20::int8", "18"),
    ("positive", "5::positive", "7::positive", "20::positive", "18"),
    ("numeric", "5.5::numeric", "7.25::numeric", "20.00::numeric", "18.25"),
    ("numeric(8,2)", "5.50::numeric(8,2)", "7.25::numeric(8,2)", "20.00::numeric(8,2)", "18.25"),
    ("int2", "30000::int2", "30001::int2", "30000::int2", "29999"),
    ("int4", "2000000000", "1999999999", "2000000001", "2000000002"),
    (
        "int8",
        "9223372036854775806::int8",
        "9223372036854775807::int8",
        "9223372036854775807::int8",
        "9223372036854775806",
    ),
]


@pytest.mark.parametrize("is_binary", cases({"binary": True, "text": False}, {"binary"}))
@pytest.mark.parametrize(
    ("kind", "new", "old", "here", "total"), SUMS, ids=[f"{found[0]} {found[1]}" for found in SUMS]
)
def test_sums_have_the_form_of_the_lcr(
    site: Site, kind: str, new: str, old: str, here: str, total: str, is_binary: bool
) -> None:
    """The present value, plus the new value, minus the old one."""
    site.user.execute("CREATE DOMAIN positive AS int CHECK (value > 0)")
    site.user.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}); INSERT INTO t VALUES (1, {here})")
    table = site.session.describe("public", "t")
    assert table is not None
    assert table.columns[1].is_number
    form = site.binary if is_binary else site.text
    number = int4(1) if is_binary else b"1"
    write = update(table, [(number, form(old))], [(number, form(new))], version=version_of(table, is_binary=is_binary))
    site.session.begin()
    (row,) = site.session.find_rows(write, RowQuestion(by_key=True, sums=(1,)))
    assert row.sums == {1: form(f"{total}::{kind}")}
    changed = replace(
        update(table, [(number, form(old))], [(number, row.sums[1])], version=write.version), compare_columns=()
    )
    assert site.session.write([changed]) == (1,)
    site.session.rollback()


def test_sum_that_is_not_a_number_is_no_sum(site: Site) -> None:
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric); INSERT INTO t VALUES (1, 'Infinity')")
    table = site.session.describe("public", "t")
    assert table is not None
    write = update(table, [(int4(1), site.binary("'Infinity'::numeric"))], [(int4(1), site.binary("5::numeric"))])
    site.session.begin()
    (row,) = site.session.find_rows(write, RowQuestion(by_key=True, sums=(1,)))
    site.session.rollback()
    assert row.sums == {1: None}


def test_examined_row_is_locked_until_the_transaction_ends(site: Site) -> None:
    site.user.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    table = site.session.describe("public", "t")
    assert table is not None
    site.session.begin()
    site.session.find_rows(update(table, [(int4(1), int4(1))], [(int4(1), int4(2))]), RowQuestion(by_key=True))
    site.user.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        site.user.execute("UPDATE t SET v = 3")
    site.session.rollback()
    site.user.execute("UPDATE t SET v = 3")


def test_rows_of_partitions_and_identity_columns_are_found_and_removed(site: Site) -> None:
    site.user.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, part int, v text, PRIMARY KEY (id, part)) PARTITION BY"
        " LIST (part);CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN"
        " (2);INSERT INTO t (part, v) VALUES (1, 'a'), (2, 'b')"
    )
    table = site.session.describe("public", "t")
    assert table is not None
    site.session.begin()
    write = update(table, [(int4(2), int4(2), b"b")], [(int4(2), int4(2), b"c")])
    (row,) = site.session.find_rows(write, RowQuestion(by_key=True, compare=(2,)))
    assert row.differs == frozenset()
    site.session.remove_row(table, row.number)
    site.session.commit((), 0)
    assert site.user.execute("SELECT part FROM t").fetchall() == [(1,)]


def test_foreign_key_that_a_destination_trigger_checks_is_its_own_conflict(site: Site) -> None:
    """Apply's sessions check no foreign keys; a trigger that fires for them may. No handler resolves such a conflict."""
    site.user.execute(
        "CREATE TABLE c (id int PRIMARY KEY, a text, b text, t int, n int, u text);"
        "CREATE FUNCTION check_parent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE foreign_key_violation USING"
        " MESSAGE = 'no parent'; END $$;CREATE TRIGGER parents BEFORE INSERT ON c FOR EACH ROW EXECUTE FUNCTION"
        " check_parent();ALTER TABLE c ENABLE ALWAYS TRIGGER parents"
    )
    table = site.session.describe("public", "c")
    assert table is not None
    settings = ConflictSettings(
        apply="a", source="dbs1", rules=ConflictRules(handlers=(handler("overwrite", on="insert_exists"),))
    )
    fits = TableFits(site.session.describe, site.session.missing_alter, settings.rules)
    batch = batch_of(version_of(table), [Lcr(new=(1, "a", "b", 1, 1, "u"))])
    site.session.begin()
    failure = apply_rows(site.session, batch, fits.fit, Resolution(settings))
    site.session.rollback()
    assert failure is not None
    assert (failure.conflict_type, failure.sqlstate) == ("foreign_key", "23503")
    record = failed_conflict(settings, failure, batch, 7)
    assert record is not None
    assert (record.kind, record.outcome, record.error_number) == ("foreign_key", "ERROR QUEUE", 7)


# ------------------------------------------------------------------ the schema


def test_schema_of_the_previous_version_has_no_history_until_its_upgrade(unprepared_database: str) -> None:
    before = 7
    with psycopg.connect(unprepared_database, autocommit=True) as admin:
        for version in VERSIONS[:before]:
            for statement in version:
                admin.execute(statement.encode())
        admin.execute(f"UPDATE headrace.schema_version SET version = {before}".encode())
        destination = PostgresDestination(unprepared_database)
        assert destination.conflicts("top", last=10) == ()
        assert len(prepare_schema(admin)) == sum(len(statements) + 1 for statements in VERSIONS[before:])
        assert schema_version(admin) == VERSION
        assert conflicts(admin, "top", None, 10) == ()
        destination.remove("top")
        destination.close()
        assert schema_version(admin) == 0
