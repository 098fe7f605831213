"""Example files on real servers.

Rows that pass conditions, subsets, transformations and functions arrive as `headrace.testing` predicts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.row_lcr import RowLcr
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES
from headrace.testing import Rules, Table, row_lcr, values_of
from tests.support.topologies.example_tables import EXAMPLES, TABLES, TIMES
from tests.support.ways.postgres_network import PostgresNetwork, two_sites
from topology.file.reading import read_topology
from topology.routing.ways import ways_to

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TRANSACTIONS = 120
KEYS = 12

# The destinations' tables, as the files' comments describe them.
THERE = {
    "rules": {
        "dbs2": [
            "hr.employees (id int PRIMARY KEY, department_id int)",
            "hr.departments (id int PRIMARY KEY, name text)",
        ],
        "dbs3": ["hr.orders (id int PRIMARY KEY, status text)", "hr.departments (id int PRIMARY KEY, name text)"],
    },
    "transformations": {
        "dbs2": [
            "sales.staff (employee_id int PRIMARY KEY, full_name text, department_id int, region text, arrived"
            " timestamptz)",
            "sales.departments (id int PRIMARY KEY, name text)",
        ],
        "dbs3": ["phonebook.people (employee_id int PRIMARY KEY, full_name text)"],
    },
    "functions": {
        "dbs2": [
            "shop.customers (id int PRIMARY KEY, name text, email text)",
            "shop.orders (id int PRIMARY KEY, kind text, note text)",
        ]
    },
}
VALUES: dict[str, list[Any]] = {
    "department_id": [40, 50, 60, None],
    "status": ["new", "shipped", "returned", None],
    "kind": ["retail", "internal", None],
    "email": ["ann@a.de", "Bob@b.de", None],
    "salary": [1, 2.5, None],
    "commission": [0, None],
}
# Changes that the examples exclude: dbs3 of the rules is not informed of keys that were given up, and an order keeps
# its kind.
KEPT = {"hr.departments": "id", "hr.orders": "id", "shop.orders": "kind"}
Row = dict[str, Any]
Rows = dict[str, dict[Any, Row]]


def create(site: str, connection: psycopg.Connection[Any], example: str) -> None:
    tables = THERE[example].get(site) or [
        f"{table.name} ({', '.join(f'{name} {kind}' for name, kind in table.columns.items())}, PRIMARY KEY"
        f" ({table.key[0]}))"
        for table in TABLES[example]
    ]
    for schema in sorted({table.partition(".")[0] for table in tables}):
        connection.execute(f"CREATE SCHEMA {schema}")
    for table in tables:
        connection.execute(f"CREATE TABLE {table}")
    for described in TABLES[example] if site == "dbs1" else ():
        connection.execute(
            f"ALTER TABLE {described.name} REPLICA IDENTITY {'FULL' if described.logs_old_rows else 'DEFAULT'}"
        )


def changed(rng: random.Random, user: psycopg.Connection[Any], table: Table, rows: dict[Any, Row]) -> RowLcr:
    """Make a change at the source; return its LCR as a user's test writes it."""
    (key,) = table.key
    number = rng.randrange(KEYS)
    row = {name: rng.choice(VALUES.get(name, ["a", "b", None])) for name in table.columns} | {key: number}
    old = rows.get(number)
    if old is None:
        user.execute(f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))
        rows[number] = row
        return row_lcr(table, "INSERT", new=row)
    if rng.random() < 0.25:
        user.execute(f"DELETE FROM {table.name} WHERE {key} = %s", [number])
        return row_lcr(table, "DELETE", old=rows.pop(number))
    if rng.random() < 0.15 and number + KEYS not in rows:
        row[key] = number + KEYS
    if table.name in KEPT:
        row[KEPT[table.name]] = old[KEPT[table.name]]
    user.execute(
        f"UPDATE {table.name} SET {', '.join(f'{name} = %s' for name in row)} WHERE {key} = %s", [*row.values(), number]
    )
    del rows[number]
    rows[row[key]] = row
    return row_lcr(table, "UPDATE", old=old, new=row)


def applied(lcr: RowLcr, rows: Rows) -> None:
    """Apply an LCR to the rows of a destination. Each table's key is its first column, or the source's first column."""
    there = rows.setdefault(f"{lcr.object_owner}.{lcr.object_name}", {})
    old, new = values_of(lcr, "old"), values_of(lcr, "new")
    (key,) = {"id", "employee_id"} & {*old, *new}
    before = there.pop(old.get(key, new.get(key)), None) if lcr.command_type != "INSERT" else None
    if lcr.command_type != "DELETE":
        there[new[key]] = {**(before or {}), **{name: value for name, value in new.items() if name not in TIMES}}


@pytest.mark.parametrize("example", TABLES)
def test_rows_of_an_example_arrive_as_the_offline_test_predicts(
    example: str,
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> None:
    rng, file = random.Random(3), EXAMPLES / f"{example}.yaml"
    spec = read_topology(file)
    dsns = {site.name: prepared_database(pg_source if site.name == "dbs1" else pg_destination) for site in spec.sites}
    network = PostgresNetwork(spec, dsns, tmp_path, lambda site, connection: create(site, connection, example))
    clients = {
        apply.site: Rules.from_file(file, *(client.name for way in ways_to(spec, apply) for client in way.clients))
        for apply in spec.applies
    }
    expected: dict[str, Rows] = {site: {} for site in clients}
    rows: Rows = {table.name: {} for table in TABLES[example]}
    try:
        user = network.sites["dbs1"].user
        for _ in range(TRANSACTIONS):
            with user.transaction():
                for table in rng.choices(TABLES[example], k=rng.randint(1, 3)):
                    lcr = changed(rng, user, table, rows[table.name])
                    for site, rules in clients.items():
                        for arriving in rules.evaluate(lcr):
                            applied(arriving, expected[site])
        network.settle()
        for site, tables in expected.items():
            at = network.sites[site]
            assert [error.message for error in at.destination.errors(spec.name)] == [], site
            assert {f"{name.partition(' ')[0]}" for name in THERE[example][site]} == set(tables), site
            for name, there in tables.items():
                assert len(there) > 1, name
                columns = list(next(iter(there.values())))
                found = at.user.execute(f"SELECT {', '.join(columns)} FROM {name}".encode()).fetchall()
                assert sorted(map(repr, found)) == sorted(
                    repr(tuple(row[column] for column in columns)) for row in there.values()
                ), name
    finally:
        network.close()


def test_keys_example_finds_rows_by_its_keys_and_makes_misfits_errors(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> None:
    def tables(site: str, connection: psycopg.Connection[Any]) -> None:
        own = "" if site == "dbs1" else "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        refers = "" if site == "dbs1" else " REFERENCES shop.customers (customer_number)"
        connection.execute(
            (
                f"CREATE SCHEMA shop; CREATE TABLE shop.customers ({own}customer_number text UNIQUE NOT NULL, name"
                " text);"
                f"CREATE TABLE shop.visits (customer_number text{refers}, page text, visited_at timestamptz, seconds"
                " int)"
            ).encode()
        )
        if site == "dbs1":
            connection.execute(
                "ALTER TABLE shop.customers REPLICA IDENTITY FULL; ALTER TABLE shop.visits REPLICA IDENTITY FULL"
            )

    with two_sites(EXAMPLES / "keys.yaml", (pg_source, pg_destination), prepared_database, tmp_path, tables) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user

        def kinds() -> list[str]:
            network.settle()
            return [error.conflict_type for error in network.sites["dbs2"].destination.errors(network.spec.name)]

        for number in range(1, 6):
            user.execute("INSERT INTO shop.customers VALUES (%s, 'new')", [f"c{number}"])
            user.execute(
                "INSERT INTO shop.visits VALUES (%s, '/', now(), %s), (%s, '/about', now(), 1)",
                [f"c{number}", number, f"c{number}"],
            )
        with user.transaction():
            user.execute(
                "UPDATE shop.customers SET customer_number = 'c9', name = 'moved' WHERE customer_number = 'c5'"
            )
            user.execute(
                "UPDATE shop.visits SET customer_number = 'c9' WHERE customer_number = 'c5'; DELETE FROM shop.visits"
                " WHERE page = '/about'"
            )
        assert kinds() == []
        for query in (
            "SELECT customer_number, name FROM shop.customers ORDER BY 1",
            "SELECT * FROM shop.visits ORDER BY 1, 2",
        ):
            assert there.execute(query.encode()).fetchall() == user.execute(query.encode()).fetchall()
        user.execute("ALTER TABLE shop.customers ADD age int; INSERT INTO shop.customers VALUES ('c10', 'older', 50)")
        assert kinds() == [""]
        (error,) = network.sites["dbs2"].destination.errors(network.spec.name)
        assert "ALTER TABLE" in error.message
        there.execute("ALTER TABLE shop.customers ADD age int")
        (engine,) = network.engines.values()
        assert engine.execute_errors([error.number]) == {error.number: ""}
        there.execute("INSERT INTO shop.visits SELECT * FROM shop.visits WHERE customer_number = 'c1'")
        user.execute("UPDATE shop.visits SET seconds = 99 WHERE customer_number = 'c1'")
        user.execute("INSERT INTO shop.visits VALUES ('c77', '/', now(), 1)")
        user.execute("UPDATE shop.visits SET seconds = 7 WHERE customer_number = 'c2'")
        assert kinds() == ["multiple_rows", "foreign_key"]
        assert there.execute(
            "SELECT seconds FROM shop.visits WHERE customer_number IN ('c1', 'c2') ORDER BY 1"
        ).fetchall() == [(1,), (1,), (7,)]
        assert there.execute("SELECT name, age FROM shop.customers WHERE customer_number = 'c10'").fetchall() == [
            ("older", 50)
        ]


def _order_tables(site: str, connection: psycopg.Connection[Any]) -> None:
    """Create the tables of `order.yaml`; a row says which transaction wrote it last.

    A destination records the order in which rows are written.
    """
    connection.execute(
        "CREATE SCHEMA shop; CREATE TABLE shop.customers (id int PRIMARY KEY, step int); CREATE TABLE shop.orders"
        " (number int PRIMARY KEY, step int);"
        "CREATE TABLE shop.payments (id int PRIMARY KEY, order_number int, step int); ALTER TABLE shop.payments REPLICA"
        " IDENTITY FULL"
    )
    if site == "dbs1":
        return
    connection.execute(
        "CREATE TABLE public.seen (place bigserial, name text, step int, number int);"
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.seen (name, step, number) VALUES (TG_TABLE_NAME, NEW.step,"
        " coalesce(to_jsonb(NEW)->>'number', to_jsonb(NEW)->>'order_number')::int); RETURN NULL; END $$"
    )
    for table in ("customers", "orders", "payments"):
        connection.execute(
            (
                f"CREATE TRIGGER note AFTER INSERT OR UPDATE ON shop.{table} FOR EACH ROW EXECUTE FUNCTION"
                f" public.note();ALTER TABLE shop.{table} ENABLE ALWAYS TRIGGER note"
            ).encode()
        )


def _written(network: PostgresNetwork) -> dict[str, list[tuple[str, int, int | None]]]:
    """Return each destination's rows in the order in which they were written: table, transaction, order number."""
    rng, user = random.Random(5), network.sites["dbs1"].user
    for step in range(TRANSACTIONS):
        table = rng.choice(("orders", "orders", "payments", "payments", "customers"))
        if table == "payments":
            user.execute("INSERT INTO shop.payments VALUES (%s, %s, %s)", [step, rng.randrange(KEYS), step])
        else:
            key = "number" if table == "orders" else "id"
            user.execute(
                f"INSERT INTO shop.{table} VALUES (%s, %s) ON CONFLICT ({key}) DO UPDATE SET step ="
                " excluded.step".encode(),
                [rng.randrange(KEYS), step],
            )
    network.settle()
    found = {}
    for site in ("dbs2", "audit"):
        assert not network.sites[site].destination.errors(network.spec.name)
        found[site] = (
            network.sites[site].user.execute("SELECT name, step, number FROM public.seen ORDER BY place").fetchall()
        )
        assert len(found[site]) == TRANSACTIONS
    return found


def _in_order_of_source(rows: list[tuple[str, int, int | None]]) -> bool:
    steps = [step for _, step, _ in rows]
    return steps == sorted(steps)


@pytest.mark.parametrize("is_declared", [True, False])
def test_order_example_keeps_dependent_writes_in_order_by_its_definitions(
    is_declared: bool,
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> None:
    spec = read_topology(EXAMPLES / "order.yaml", {})
    if not is_declared:
        spec = replace(
            spec,
            applies=tuple(
                replace(each, dependencies=NO_VIRTUAL_DEPENDENCIES, commits_in_order=False) for each in spec.applies
            ),
        )
    dsns = {site.name: prepared_database(pg_source if site.name == "dbs1" else pg_destination) for site in spec.sites}
    network = PostgresNetwork(spec, dsns, tmp_path, _order_tables, is_parallel=True)
    try:
        written = _written(network)
    finally:
        network.close()
    there = written["dbs2"]
    by_number = all(_in_order_of_source([row for row in there if row[2] == number]) for number in range(KEYS))
    # Payments are in order with customers, but not with each other.
    by_parent = all(
        (first < second) == (there.index(("customers", first, None)) < there.index(row))
        for first in (step for name, step, _ in there if name == "customers")
        for row in there
        if row[0] == "payments"
        for second in (row[1],)
    )
    assert (by_number, by_parent, _in_order_of_source(written["audit"])) == (is_declared,) * 3
    assert not _in_order_of_source(there)  # independent rows are written in parallel
