"""What users program, on Ray and Spark: handlers' code travels to the executors, a table arrives transformed, renamed by each client, and order is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from headrace.deployment import Deployment
from tests.support.system import System, running, system_folder, wait_until
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: programmed
state_dir: state
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
code: ./code
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: shop.orders}, {table: shop.customers, transform: [{rename_table: crm.people}]}]}}}
propagations: {p: {from: q1, to: q2, rules: {include: [{table: shop.orders}, {table: crm.people, transform: [{rename_schema: clients}]}]}}}
applies:
  a:
    site: dbs2
    source: dbs1
    queue: q2
    parallelism: 2
    commit_serialization: full
    value_dependencies: {number: [{table: shop.orders, columns: [id]}, {table: shop.clients, columns: [id]}]}
    rules:
      include:
        - {table: shop.orders}
        - {table: clients.people, transform: [{rename_table: shop.clients}, {rename_column: {from: name, to: full_name}}, {delete_columns: [secret]}]}
    dml_handlers:
      - {table: shop.orders, function: "orders:apply_order"}
"""
CODE = '''
import threading
import time


def apply_order(lcr, session):
    status = lcr.get_value("new", "status", use_old=False)
    if status is not None and status.decoded == "bad":
        raise ValueError("no such status")
    for _ in range(70 if status is not None and status.decoded == "threads" else 0):
        threading.Thread(target=time.sleep, args=(600,)).start()
    session.execute("INSERT INTO shop.seen (id, command) VALUES ($1, $2)", lcr.get_value("new", "id").decoded, lcr.command_type)
    lcr.execute(conflict_resolution=True)
'''


@pytest.fixture
def folder() -> Iterator[Path]:
    with system_folder("programmed") as made:
        yield made


def prepare(servers: dict[str, EmbeddedServer]) -> None:
    for site, server in servers.items():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA shop")
            connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, status text)")
            connection.execute("ALTER TABLE shop.orders REPLICA IDENTITY FULL")
            if site == "dbs1":
                connection.execute("CREATE TABLE shop.customers (id int PRIMARY KEY, name text, secret text)")
                connection.execute("INSERT INTO shop.customers VALUES (0, 'copied', 'x')")
            else:
                connection.execute("CREATE TABLE shop.clients (id int PRIMARY KEY, full_name text)")
                connection.execute("CREATE TABLE shop.seen (id int, command text)")


def test_handlers_transformations_and_order_work_on_the_executors(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "orders.py").write_text(CODE)
    file = folder / "programmed.yaml"
    file.write_text(FILE)
    with running(read_topology(file), folder, prepare) as system:
        for number in range(1, 21):
            system.execute("dbs1", f"INSERT INTO shop.customers VALUES ({number}, 'name {number}', 'secret')")
            system.execute("dbs1", f"INSERT INTO shop.orders VALUES ({number}, 'new')")
        system.execute("dbs1", "UPDATE shop.orders SET status = 'paid' WHERE id % 2 = 0")
        system.wait_caught_up()
        assert system.execute("dbs2", "SELECT count(*), count(full_name) FROM shop.clients") == [(21, 21)]
        assert system.execute("dbs2", "SELECT status, count(*) FROM shop.orders GROUP BY 1 ORDER BY 1") == [("new", 10), ("paid", 10)]
        assert system.execute("dbs2", "SELECT command, count(*) FROM shop.seen GROUP BY 1 ORDER BY 1") == [("INSERT", 20), ("UPDATE", 10)]
        _replaces_the_process(system)
        _fails_whole(system)
        _takes_changed_code(system, file)


def _replaces_the_process(system: System) -> None:
    """A handler that leaves threads running costs its executor's worker, and no row; `status` says which code in which file."""

    def workers() -> dict[int, int]:
        return {server["server"]: server["pid"] for server in system.status("apply:a")["servers"] if server["pid"] and server["state"] != "INITIALIZING"}

    before = wait_until("both servers run", lambda: len(found := workers()) == 2 and found)
    system.execute("dbs1", "INSERT INTO shop.orders VALUES (40, 'threads')")
    after = wait_until("another process has taken its place", lambda: len(found := workers()) == 2 and found != before and found)
    (gone,) = set(before.values()) - set(after.values())
    wait_until("the process has ended, its threads with it", lambda: not Path(f"/proc/{gone}").exists())
    status = system.status("apply:a")
    assert "orders:apply_order (" in status["detail"]
    assert "code/orders.py, line 6, in apply_order) has left 70 threads running" in status["detail"]
    assert "must end the threads" in status["hint"]
    system.execute("dbs1", "INSERT INTO shop.orders VALUES (41, 'new')")
    system.wait_caught_up()
    assert system.execute("dbs2", "SELECT id, count(*) FROM shop.seen WHERE id >= 40 GROUP BY 1 ORDER BY 1") == [(40, 1), (41, 1)]
    assert system.execute("dbs2", "SELECT count(*) FROM headrace.dba_apply_error") == [(0,)]


def _fails_whole(system: System) -> None:
    """A handler that raises puts its transaction into the error queue, whole, with file and line; others go on."""
    system.execute("dbs1", "BEGIN; INSERT INTO shop.customers VALUES (50, 'with it', ''); INSERT INTO shop.orders VALUES (50, 'bad'); COMMIT")
    system.execute("dbs1", "INSERT INTO shop.orders VALUES (51, 'fine')")
    wait_until("the next order is there", lambda: system.execute("dbs2", "SELECT count(*) FROM shop.orders WHERE id = 51") == [(1,)])
    ((message,),) = system.execute("dbs2", "SELECT error_message FROM headrace.dba_apply_error")
    assert "no such status" in message
    assert "orders.py" in message
    assert system.execute("dbs2", "SELECT count(*) FROM shop.clients WHERE id = 50") == [(0,)]
    assert system.execute("dbs2", "SELECT count(*) FROM shop.seen WHERE id = 50") == [(0,)]


def _takes_changed_code(system: System, file: Path) -> None:
    """A changed handler runs after another `up`, on executors that have loaded the one before; until then the one before runs."""
    code = file.parent / "code" / "orders.py"
    code.write_text(CODE.replace("lcr.command_type)", 'lcr.command_type + " again")'))
    system.execute("dbs1", "INSERT INTO shop.orders VALUES (60, 'new')")
    system.wait_caught_up()
    edited = replace(system, deployment=Deployment(read_topology(file), system.deployment.address))
    assert edited.deployment.up()["state"] == "RUNNING"
    system.execute("dbs1", "INSERT INTO shop.orders VALUES (61, 'new')")
    edited.wait_caught_up()
    assert system.execute("dbs2", "SELECT id, command FROM shop.seen WHERE id >= 60 ORDER BY 1") == [(60, "INSERT"), (61, "INSERT again")]
    version = edited.deployment.spec.apply("a").handlers.code.version_of("orders:apply_order")
    versions = "SELECT DISTINCT code_version FROM headrace.dba_apply_dml_handlers"
    wait_until("the view has the version that runs", lambda: system.execute("dbs2", versions) == [(version,)])
