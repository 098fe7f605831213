"""For substitute keys, duplicate rows and rows that do not fit, `headrace.testing` predicts the result of a real
server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.testing import Destination, Table, row_lcr
from tests.support.ways.postgres_network import PostgresNetwork, two_sites

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TABLE = Table(
    name="shop.customers",
    columns={"customer_number": "text", "name": "text"},
    key=("customer_number",),
    logs_old_rows=True,
)
THERE = Table(
    name="shop.customers",
    columns={"customer_number": "text", "name": "text", "branch": "text"},
    key=(),
    logs_old_rows=True,
)
FILE = """
topology: settings
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
replicate: [{tables: [shop.customers], from: dbs1, to: [dbs2]}]
key_columns: [{table: shop.customers, columns: [customer_number]}]
column_mismatch: error
allow_duplicate_rows: DUPLICATES
"""


@pytest.fixture(params=["true", "false"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / "settings.yaml"
    found.write_text(FILE.replace("DUPLICATES", request.param), encoding="utf-8")
    return found


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    file: Path,
) -> Iterator[PostgresNetwork]:
    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.customers (customer_number text, name text)")
        connection.execute("ALTER TABLE shop.customers REPLICA IDENTITY FULL")
        if site == "dbs2":
            connection.execute("ALTER TABLE shop.customers ADD branch text")

    with two_sites(file, (pg_source, pg_destination), fresh_database, tmp_path, tables) as made:
        yield made


def test_settings_give_the_same_result_offline_as_on_a_server(network: PostgresNetwork, file: Path) -> None:
    rng, rows = random.Random(1), dict[str, str]()
    user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
    offline = Destination.from_file(file, tables=[THERE])
    for number in range(40):
        key, name = f"k{rng.randrange(8)}", f"n{number}"
        if key not in rows:
            user.execute("INSERT INTO shop.customers VALUES (%s, %s)", (key, name))
            offline.apply(row_lcr(TABLE, "INSERT", new={"customer_number": key, "name": name}))
            rows[key] = name
        elif rng.random() < 0.3:
            user.execute("DELETE FROM shop.customers WHERE customer_number = %s", (key,))
            offline.apply(row_lcr(TABLE, "DELETE", old={"customer_number": key, "name": rows.pop(key)}))
        else:
            user.execute("UPDATE shop.customers SET name = %s WHERE customer_number = %s", (name, key))
            offline.apply(row_lcr(TABLE, "UPDATE", old={"name": rows[key]}, new={"customer_number": key, "name": name}))
            rows[key] = name
    network.settle()
    first = min(rows)
    twin = {"customer_number": first, "name": rows[first], "branch": "twin"}
    there.execute("INSERT INTO shop.customers VALUES (%s, %s, %s)", tuple(twin.values()))
    offline.insert("shop.customers", twin)
    user.execute("UPDATE shop.customers SET name = 'last' WHERE customer_number = %s", (first,))
    offline.apply(row_lcr(TABLE, "UPDATE", old={"name": rows[first]}, new={"customer_number": first, "name": "last"}))
    network.settle()
    user.execute("ALTER TABLE shop.customers ADD age int; INSERT INTO shop.customers VALUES ('new', 'n', 3)")
    wider = Table(name="shop.customers", columns={**TABLE.columns, "age": "int4"}, key=TABLE.key, logs_old_rows=True)
    offline.apply(row_lcr(wider, "INSERT", new={"customer_number": "new", "name": "n", "age": 3}))
    network.settle()
    found = there.execute("SELECT customer_number, name FROM shop.customers ORDER BY 1, 2").fetchall()
    assert sorted((row["customer_number"], row["name"]) for row in offline.rows("shop.customers")) == found
    assert len(network.sites["dbs2"].destination.errors(network.spec.name)) == len(offline.errors)
    assert len(offline.errors) == (1 if "allow_duplicate_rows: true" in file.read_text(encoding="utf-8") else 2)
