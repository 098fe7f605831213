"""latest_timestamp on real servers, by kinds of tables and of transactions: partitions, keys with their own collation,
large transactions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from tests.support.session.matrices import cases, values
from tests.support.session.seeds import is_soak, seeds
from tests.support.ways.postgres_network import PostgresNetwork
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[4] / "examples" / "latest_timestamp.yaml"
SITES = ("dbs1", "dbs2", "dbs3")
COLUMNS = "name text, guests int, note text"
PLAIN = f"CREATE TABLE shop.rooms (id int PRIMARY KEY, {COLUMNS})"
BY_RANGE = f"""CREATE TABLE shop.rooms (id int PRIMARY KEY, {COLUMNS}) PARTITION BY RANGE (id);
CREATE TABLE shop.rooms_low PARTITION OF shop.rooms FOR VALUES FROM (0) TO (3);
CREATE TABLE shop.rooms_rest PARTITION OF shop.rooms DEFAULT"""
BY_HASH = f"""CREATE TABLE shop.rooms (id int PRIMARY KEY, {COLUMNS}) PARTITION BY HASH (id);
CREATE TABLE shop.rooms_even PARTITION OF shop.rooms FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE shop.rooms_odd PARTITION OF shop.rooms FOR VALUES WITH (MODULUS 2, REMAINDER 1) PARTITION BY RANGE (id);
CREATE TABLE shop.rooms_odd_all PARTITION OF shop.rooms_odd DEFAULT"""

Maker = Callable[..., PostgresNetwork]


@pytest.fixture
def network_of(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    pg_16: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Maker]:
    """Return a function that makes the example's three sites, on one server or on three, with tables of these
    definitions and rows with these keys.
    """
    made: list[PostgresNetwork] = []

    def make(*definitions: str, keys: list[object], server: EmbeddedServer | None = None) -> PostgresNetwork:
        servers = (pg_source, pg_destination, pg_16) if server is None else [server] * len(SITES)

        def tables(site: str, connection: psycopg.Connection) -> None:
            connection.execute("CREATE SCHEMA shop")
            connection.execute(definitions[SITES.index(site)].encode())
            names = connection.execute(
                "SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'shop'::regnamespace AND relkind IN"
                " ('r', 'p')"
            )
            for (name,) in names.fetchall():
                connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
            for key in keys:
                connection.execute("INSERT INTO shop.rooms VALUES (%s, 'first', 0, 'as copied')", (key,))

        dsns = {site: prepared_database(server) for site, server in zip(SITES, servers, strict=True)}
        network = PostgresNetwork(read_topology(EXAMPLE, {}), dsns, tmp_path, tables)
        made.append(network)
        for site in network.sites.values():
            assert site.destination.preflight_times([("shop", "rooms")], has_tombstones=True) == ()
            assert len(site.destination.keep_tombstones([("shop", "rooms")])) == 1
        return network

    yield make
    for network in made:
        network.close()


def run(network: PostgresNetwork, site: str, sql: str, *values: object) -> None:
    network.sites[site].user.execute(sql.encode(), values)


def rows_of(network: PostgresNetwork) -> list[list[tuple[Any, ...]]]:
    for apply in network.spec.applies:
        assert network.sites[apply.site].destination.errors(network.spec.name, apply.name) == ()
    return [network.sites[site].user.execute("SELECT * FROM shop.rooms ORDER BY id").fetchall() for site in SITES]


def settled(network: PostgresNetwork) -> list[tuple[Any, ...]]:
    """Return the rows that every site has in the end."""
    network.settle()
    network.settle()
    first, *others = rows_of(network)
    assert [first] * len(others) == others
    return first


def applies_from(network: PostgresNetwork, source: str) -> list[str]:
    return [apply.name for apply in network.spec.applies if apply.source == source]


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("partitions cut differently", test=1, soak=24))
def test_sites_with_differently_cut_partitions_end_equal(network_of: Maker, seed: int) -> None:
    keys = list(range(1, 6))
    network = network_of(BY_RANGE, BY_HASH, PLAIN, keys=[*keys])
    rng = random.Random(seed)
    for number in range(12):
        for site in SITES:
            key, other = rng.randrange(1, 8), rng.randrange(1, 8)
            match rng.randrange(5):
                case 0 | 1:
                    run(network, site, "UPDATE shop.rooms SET name = %s WHERE id = %s", f"{site} {number}", key)
                case 2:
                    run(
                        network,
                        site,
                        "INSERT INTO shop.rooms VALUES (%s, %s, 1, 'new') ON CONFLICT DO NOTHING",
                        key,
                        f"{site} {number}",
                    )
                case 3:
                    run(network, site, "DELETE FROM shop.rooms WHERE id = %s", key)
                case _:  # into another partition, where there are several
                    run(
                        network,
                        site,
                        "UPDATE shop.rooms SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM shop.rooms WHERE id ="
                        " %s)",
                        other,
                        key,
                        other,
                    )
        network.settle(held=[apply.name for apply in network.spec.applies if rng.random() < 0.5])
    settled(network)
    outcomes = {
        record.outcome
        for site in SITES
        for record in network.sites[site].destination.conflicts(network.spec.name, last=1000)
    }
    assert is_soak() or outcomes >= {"LCR APPLIED", "LCR DISCARDED"}, (
        "known seeds meet both; a new one may meet no conflict"
    )


def test_delete_in_a_partition_and_a_move_out_of_it_are_recorded(network_of: Maker) -> None:
    network = network_of(BY_RANGE, BY_RANGE, BY_RANGE, keys=[1, 2, 5])
    run(network, "dbs2", "UPDATE shop.rooms SET name = 'older' WHERE id IN (1, 2)")
    run(network, "dbs1", "DELETE FROM shop.rooms_low WHERE id = 1")  # not through its table
    run(network, "dbs1", "UPDATE shop.rooms SET id = 9 WHERE id = 2")
    assert [row[0] for row in settled(network)] == [5, 9]


NUMBERED = f"CREATE TABLE shop.rooms (id numeric PRIMARY KEY, {COLUMNS})"


@pytest.mark.soak
def test_change_between_two_forms_of_one_key_changes_one_row(network_of: Maker) -> None:
    network = network_of(NUMBERED, NUMBERED, NUMBERED, keys=["1.0", "2.0", "3.0"])
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'older'")
    run(network, "dbs2", "UPDATE shop.rooms SET id = 1.00, name = 'newer' WHERE id = 1")
    run(network, "dbs2", "UPDATE shop.rooms SET id = 2.00 WHERE id = 2")
    run(network, "dbs2", "DELETE FROM shop.rooms WHERE id = 3.00")
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'last' WHERE id = 2")
    rows = settled(network)
    assert [row[:2] for row in rows] == [(1, "newer"), (2, "last")]
    assert str(rows[0][0]) == "1.00"


def test_key_in_two_forms_converges_to_one_form_everywhere(network_of: Maker) -> None:
    """The whole row comes from the last change, including its key."""
    network = network_of(NUMBERED, NUMBERED, NUMBERED, keys=["1.0", "2.0", "3.0", "4.0"])
    run(network, "dbs1", "INSERT INTO shop.rooms VALUES (7.0, 'older')")
    run(network, "dbs2", "INSERT INTO shop.rooms VALUES (7.00, 'newer')")
    run(network, "dbs1", "UPDATE shop.rooms SET id = 1.00, name = 'older' WHERE id = 1")
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'newer' WHERE id = 1")
    run(network, "dbs1", "UPDATE shop.rooms SET id = id * 1.0 WHERE id IN (2, 3)")  # 2.00
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'newer' WHERE id = 2")
    run(network, "dbs3", "DELETE FROM shop.rooms WHERE id = 3")
    network.settle()
    network.settle()
    run(network, "dbs2", "UPDATE shop.rooms SET name = 'last' WHERE id IN (2, 7)")
    run(network, "dbs1", "DELETE FROM shop.rooms WHERE id = 4")
    network.settle()
    network.settle()
    assert len(rows_of(network)) == len(SITES)  # and no errors
    texts = [
        network.sites[site].user.execute("SELECT id::text, name FROM shop.rooms ORDER BY id").fetchall()
        for site in SITES
    ]
    assert texts == [[("1.0", "newer"), ("2.0", "last"), ("7.00", "last")]] * len(SITES)


ANY_CASE = f"""CREATE COLLATION shop.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE shop.rooms (id text COLLATE shop.any_case PRIMARY KEY, {COLUMNS})"""


def test_delete_is_recorded_under_a_key_whose_collation_ignores_case(network_of: Maker, pg_icu: EmbeddedServer) -> None:
    network = network_of(ANY_CASE, ANY_CASE, ANY_CASE, keys=["Bob", "Eve"], server=pg_icu)
    run(network, "dbs2", "UPDATE shop.rooms SET name = 'older' WHERE id = 'Bob'")
    run(network, "dbs1", "DELETE FROM shop.rooms WHERE id = 'Bob'")
    assert [row[0] for row in settled(network)] == ["Eve"]
    # An older insert of the same key in other letters is also older than the delete.
    run(network, "dbs2", "INSERT INTO shop.rooms VALUES ('bob', 'older', 1, '')")
    run(network, "dbs1", "INSERT INTO shop.rooms VALUES ('BOB', 'newer', 1, '')")
    run(network, "dbs1", "DELETE FROM shop.rooms WHERE id = 'BOB'")
    assert [row[0] for row in settled(network)] == ["Eve"]
    # An applied row is recorded by the same hash: its delete by a session meets it.
    run(network, "dbs3", "INSERT INTO shop.rooms VALUES ('Ann', 'dbs3', 1, '')")
    network.settle()
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'older' WHERE id = 'Ann'")
    run(network, "dbs2", "UPDATE shop.rooms SET id = 'ann', name = 'newer' WHERE id = 'Ann'")
    assert [row[:2] for row in settled(network)] == [("ann", "newer"), ("Eve", "first")]


def test_rows_of_a_transaction_that_arrives_in_parts_have_its_commit_time(network_of: Maker) -> None:
    """A part is applied before the others have arrived; the time of the commit is in each of them."""
    keys = list(range(1, 61))
    network = network_of(PLAIN, PLAIN, PLAIN, keys=[*keys])
    network.rows_max = 8
    large = "UPDATE shop.rooms SET name = %s, note = %s"
    with network.sites["dbs1"].user.transaction():
        run(network, "dbs1", large + " WHERE id <= 40", "large", "l")
        run(network, "dbs1", "DELETE FROM shop.rooms WHERE id = 7")
        # It is still open: it ends later than these changes, so it wins.
        run(network, "dbs2", "UPDATE shop.rooms SET name = 'before' WHERE id IN (1, 7, 39)")
        run(network, "dbs1", large + " WHERE id > 40", "large", "l")
        run(network, "dbs1", "UPDATE shop.rooms SET name = 'twice' WHERE id = 2")
        run(network, "dbs1", "INSERT INTO shop.rooms VALUES (100, 'large', 1, '')")
    run(network, "dbs3", "UPDATE shop.rooms SET name = 'after' WHERE id IN (3, 60)")
    run(network, "dbs3", "DELETE FROM shop.rooms WHERE id = 4")
    run(network, "dbs3", "INSERT INTO shop.rooms VALUES (100, 'after', 1, '')")
    names = {row[0]: row[1] for row in settled(network)}
    assert names == {key: "large" for key in keys if key not in (4, 7)} | {
        2: "twice",
        3: "after",
        60: "after",
        100: "after",
    }
    assert any(batch.continues for apply in applies_from(network, "dbs1") for batch in network.engines[apply].batches)


@pytest.mark.parametrize(
    ("kind", "unhashed"),
    [
        ("bit(8)", "tu"),
        ("varbit", "tu"),
        ("money", "tu"),
        ("bit(8)[]", "tu"),
        ("numeric", ""),
        ("text[]", ""),
        ("int4range", "u"),  # the server hashes a range, but no domain over it
    ],
)
def test_check_names_keys_whose_type_has_no_hash(destination_database: str, kind: str, unhashed: str) -> None:
    """Notes are found by hashes of the key. The trigger of such a table would make users' deletes fail, and every
    change would be applied.
    """
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(
            f"CREATE DOMAIN d AS {kind}; CREATE TABLE t (n int, k {kind}, PRIMARY KEY (n, k)); CREATE TABLE u (k d"
            " PRIMARY KEY)".encode()
        )
        database = PostgresDestination(destination_database, site="b")
        for has_tombstones in (True, False):
            findings = database.preflight_times([("public", "t"), ("public", "u")], has_tombstones=has_tombstones)
            assert [finding.path for finding in findings] == [f"sites.b table public.{name}" for name in unhashed]
        assert all("hash" in finding.problem for finding in findings)
        database.prepare("top")
        database.keep_tombstones([("public", "t"), ("public", "u")])
        for name, columns in (("t", "(n, k) VALUES (1, NULL)"), ("u", "VALUES (NULL)")):
            user.execute(f"ALTER TABLE {name} DROP CONSTRAINT {name}_pkey, ALTER k DROP NOT NULL".encode())
            user.execute(f"INSERT INTO {name} {columns}".encode())
            if name in unhashed:
                with pytest.raises(psycopg.errors.UndefinedFunction):
                    user.execute(f"DELETE FROM {name}".encode())
            else:
                user.execute(f"DELETE FROM {name}".encode())
        database.close()


@pytest.mark.parametrize(
    ("constraint", "unhashed"), [("NOT NULL", ""), ("CHECK (VALUE IS NOT NULL)", ""), ("NOT NULL", "bit(8)")]
)
def test_key_of_a_domain_that_takes_no_null_is_checked_as_any_other(
    destination_database: str, constraint: str, unhashed: str
) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(
            f"CREATE DOMAIN d AS {unhashed or 'text'} {constraint}; CREATE DOMAIN e AS d {constraint}".encode()
        )
        user.execute('CREATE TABLE "T t" ("K k" e PRIMARY KEY)')
        database = PostgresDestination(destination_database, site="b")
        findings = database.preflight_times([("public", "T t")], has_tombstones=True)
        assert [finding.path for finding in findings] == (["sites.b table public.T t"] if unhashed else [])
        database.close()


def test_check_examines_the_key_that_finds_rows_without_a_primary_key(destination_database: str) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE t (id int, k money NOT NULL UNIQUE)")
        database = PostgresDestination(destination_database, site="b")
        (finding,) = database.preflight_times([("public", "t")], has_tombstones=False)
        assert "cannot hash k money" in finding.problem
        database.close()


PLAIN_NUMBERS = "CREATE TABLE shop.rooms (id int PRIMARY KEY)"
NUMBERS = "CREATE TABLE shop.rooms (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"
DOUBLED = NUMBERS.replace(")", ", twice int GENERATED ALWAYS AS (id * 2) STORED)")


@pytest.mark.parametrize(
    ("source", "others", "assigned"),
    cases(
        {"computed": (DOUBLED, DOUBLED, "twice = DEFAULT"), "identities alone": (PLAIN_NUMBERS, NUMBERS, "id = id")},
        core=["identities alone"],
    ),
)
def test_update_that_sets_no_column_here_is_still_its_rows_last_change(
    network_of: Maker, source: str, others: str, assigned: str
) -> None:
    """It is later than a delete at a third site, which arrives after it."""
    network = network_of(source, others, others, keys=[])
    run(network, "dbs1", "INSERT INTO shop.rooms (id) OVERRIDING SYSTEM VALUE VALUES (1), (2)")
    network.settle()
    run(network, "dbs2", "DELETE FROM shop.rooms WHERE id = 1")
    run(network, "dbs1", f"UPDATE shop.rooms SET {assigned} WHERE id = 1")
    network.settle(held=applies_from(network, "dbs2"))
    settled(network)
    assert [[row[0] for row in rows] for rows in rows_of(network)] == [[1, 2]] * 3


@pytest.mark.parametrize(
    "change",
    values(
        ["UPDATE shop.rooms SET name = 'taken' WHERE id = 1", "INSERT INTO shop.rooms VALUES (5, 'taken', 1, 'new')"],
        "INSERT INTO shop.rooms VALUES (5, 'taken', 1, 'new')",
    ),
)
def test_error_transaction_is_executed_by_a_role_that_only_reads_the_notes(network_of: Maker, change: str) -> None:
    network = network_of(
        PLAIN, f"{PLAIN}; CREATE UNIQUE INDEX ON shop.rooms (name) WHERE name = 'taken'", PLAIN, keys=[1, 2]
    )
    apply = next(apply.name for apply in network.spec.applies if (apply.source, apply.site) == ("dbs1", "dbs2"))
    run(network, "dbs2", "UPDATE shop.rooms SET name = 'taken' WHERE id = 2")
    run(network, "dbs1", change)
    network.settle()
    (error,) = network.sites["dbs2"].destination.errors(network.spec.name, apply)
    role = f"headrace_clerk_{error.number}"
    run(
        network,
        "dbs2",
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON shop.rooms"
        f" TO {role}",
    )
    run(
        network,
        "dbs2",
        f"GRANT USAGE ON SCHEMA headrace TO {role}; GRANT SELECT ON headrace.row_change, headrace.row_change_set,"
        f" headrace.row_change_set_time TO {role}",
    )
    try:
        run(network, "dbs2", "DELETE FROM shop.rooms WHERE id = 2")
        assert network.engines[apply].execute_errors([error.number], role=role) == {error.number: ""}
    finally:
        run(network, "dbs2", f"DROP OWNED BY {role}; DROP ROLE {role}")
    settled(network)
