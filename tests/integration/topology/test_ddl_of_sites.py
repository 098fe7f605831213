"""DDL with rows between the sites of a running topology: on under load, through killed processes, and off again."""

from __future__ import annotations

import threading

import psycopg
import pytest

from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.ddl.structure_query import read_structure
from headrace.lcr.structure import Structure
from headrace.lcr.table_name import TableName
from tests.support.clusters.faults import apply_name
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until
from tests.support.session.background import in_background

pytestmark = [pytest.mark.unit("sites", order=6), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

SCHEMA = "changing"
ORDERS = TableName(SCHEMA, "orders")
NEW = (TableName(SCHEMA, "new0"), TableName(SCHEMA, "new1"))
_TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, note text); ALTER TABLE orders REPLICA IDENTITY FULL"
_WITHOUT = f"replicate: [{{tables: [{SCHEMA}.*], from: a, to: [b]}}]"
_WITH = _WITHOUT.replace("to: [b]", "to: [b], ddl: true")
_TRIGGERS = "SELECT count(*) FROM pg_event_trigger WHERE evtname ~ 'headrace'"


def _structure(sites: Sites, site: str, table: TableName) -> Structure:
    connection = connect(sites.servers[site].dsn(), application_name="test")
    try:
        found = read_structure(connection, table)
    finally:
        connection.close()
    assert found is not None
    return found


def _assert_same(sites: Sites, *tables: TableName) -> None:
    sites.assert_converged([str(table) for table in tables])
    for table in tables:
        there, here = (_structure(sites, site, table) for site in ("a", "b"))
        assert (there.columns, there.constraints, there.indexes) == (here.columns, here.constraints, here.indexes)


@pytest.mark.fault("SIGKILL of an actor")
def test_ddl_arrives_with_its_rows_through_kills_until_its_rule_ends(sites: Sites):
    sites.free(SCHEMA)
    sites.remake(SCHEMA, _TABLE)
    sites.by(_WITHOUT).up()
    assert sites.execute("a", _TRIGGERS) == [(0,)]
    system = sites.by(_WITH)
    written = [0]

    def write(stop: threading.Event) -> None:
        with system.connection("a") as user:
            while not stop.wait(0.02):
                user.execute("INSERT INTO changing.orders (id) VALUES (%s)", (written[0] + 1,))
                written[0] += 1

    with in_background(write):
        system.up()
        wait_until("somebody writes", lambda: written[0] > 10)
        for number, victim in enumerate(("capture:capture_a", apply_name(system))):
            with psycopg.connect(system.servers["a"].dsn()) as user:
                first = 1_000_000 + 10 * number
                user.execute("INSERT INTO changing.orders VALUES (%s, 'before')", (first,))
                user.execute(f"ALTER TABLE changing.orders ADD COLUMN c{number} integer NOT NULL DEFAULT 7")
                user.execute(f"UPDATE changing.orders SET c{number} = 8 WHERE id = %s", (first,))
                user.execute(f"CREATE INDEX orders_{number} ON changing.orders (c{number}, id)")
                user.execute(f"CREATE TABLE changing.new{number} (id serial PRIMARY KEY, note text)")
                user.execute(f"INSERT INTO changing.new{number} (note) VALUES ('first')")
            system.wait_restarted(victim, system.kill(victim))
            system.execute("a", f"INSERT INTO changing.new{number} (note) VALUES ('next')")
    _assert_same(system, ORDERS, *NEW)
    assert system.execute("b", "SELECT note FROM changing.new0 ORDER BY id") == [("first",), ("next",)]
    states = "SELECT name, state FROM headrace.instantiation WHERE owner = 'changing' AND name LIKE 'new%' ORDER BY 1"
    assert system.execute("b", states) == [("new0", "DONE"), ("new1", "DONE")]
    assert [table for table in system.status("site:a")["uncaptured_tables"] if SCHEMA in table] == []
    assert system.execute("b", "SELECT id, c0, c1 FROM changing.orders WHERE note = 'before' ORDER BY 1") == [
        (1_000_000, 8, 7),
        (1_000_010, 7, 8),
    ]
    assert system.execute("b", "SELECT outcome FROM headrace.dba_apply_ddl ORDER BY ddl_number") == [("APPLIED",)] * 6

    system.execute("a", "DROP TABLE changing.new0")
    wait_until("it is dropped", lambda: system.execute("b", "SELECT to_regclass('changing.new0')") == [(None,)])
    system.up()  # nothing is to do for new tables
    _assert_same(system, ORDERS, NEW[1])

    sites.by(_WITHOUT).up()
    assert sites.execute("a", _TRIGGERS) == [(0,)]
    assert sites.execute("a", "SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace_ddl'") == [(0,)]
