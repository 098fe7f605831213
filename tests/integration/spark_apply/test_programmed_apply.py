"""Users' programs on Ray and Spark: handlers' code travels to the executors, a table arrives transformed and renamed by
each client, and order is kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clusters.faults import delete_errors
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until

pytestmark = [pytest.mark.unit("sites", order=4), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

CODE_FOLDER = "code: ./code\n"
FILE = """
captures: {capture_a: {site: a, source: a, queue: q_a, rules: {include: [{table: shop.orders}, {table: shop.customers, transform: [{rename_table: crm.people}]}]}}}
queues: {q_a: {site: a}, q_b_in: {site: b}}
propagations: {a_to_b: {from: q_a, to: q_b_in, rules: {include: [{table: shop.orders}, {table: crm.people, transform: [{rename_schema: clients}]}]}}}
applies:
  apply_from_a_at_b:
    site: b
    source: a
    queue: q_b_in
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
APPLY = "apply:apply_from_a_at_b"
CODE = """
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
"""


TABLES = "CREATE TABLE orders (id int PRIMARY KEY, status text); ALTER TABLE orders REPLICA IDENTITY FULL;"
SOURCE = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text, secret text); INSERT INTO customers VALUES (0,"
    " 'copied', 'x')"
)
DESTINATION = "CREATE TABLE clients (id int PRIMARY KEY, full_name text); CREATE TABLE seen (id int, command text)"


def test_handlers_transformations_and_order_work_on_the_executors(sites: Sites) -> None:
    sites.free("shop")
    sites.remake("shop", TABLES + SOURCE, sites=["a"])
    sites.remake("shop", TABLES + DESTINATION, sites=["b"])
    code = sites.folder / "code" / "orders.py"
    code.parent.mkdir()
    code.write_text(CODE)
    system = sites.by(FILE, more=CODE_FOLDER)
    system.up()
    for number in range(1, 21):
        system.execute("a", f"INSERT INTO shop.customers VALUES ({number}, 'name {number}', 'secret')")
        system.execute("a", f"INSERT INTO shop.orders VALUES ({number}, 'new')")
    system.execute("a", "UPDATE shop.orders SET status = 'paid' WHERE id % 2 = 0")
    system.wait_caught_up()
    assert system.execute("b", "SELECT count(*), count(full_name) FROM shop.clients") == [(21, 21)]
    assert system.execute("b", "SELECT status, count(*) FROM shop.orders GROUP BY 1 ORDER BY 1") == [
        ("new", 10),
        ("paid", 10),
    ]
    assert system.execute("b", "SELECT command, count(*) FROM shop.seen GROUP BY 1 ORDER BY 1") == [
        ("INSERT", 20),
        ("UPDATE", 10),
    ]
    _replaces_the_process(system)
    _fails_whole(system)
    _takes_changed_code(system, code)


def _replaces_the_process(system: Sites) -> None:
    """A handler that leaves threads running costs its executor's worker, but no row; `status` names the code and its
    file.
    """

    def workers() -> dict[int, int]:
        return {
            server["server"]: server["pid"]
            for server in system.status(APPLY)["servers"]
            if server["pid"] and server["state"] != "INITIALIZING"
        }

    before = wait_until("both servers run", lambda: len(found := workers()) == 2 and found)
    system.execute("a", "INSERT INTO shop.orders VALUES (40, 'threads')")
    after = wait_until(
        "another process has taken its place", lambda: len(found := workers()) == 2 and found != before and found
    )
    (gone,) = set(before.values()) - set(after.values())
    wait_until("the process has ended, its threads with it", lambda: not Path(f"/proc/{gone}").exists())
    status = system.status(APPLY)
    assert "orders:apply_order (" in status["detail"]
    assert "code/orders.py, line 6, in apply_order) has left 70 threads running" in status["detail"]
    assert "must end the threads" in status["hint"]
    system.execute("a", "INSERT INTO shop.orders VALUES (41, 'new')")
    system.wait_caught_up()
    assert system.execute("b", "SELECT id, count(*) FROM shop.seen WHERE id >= 40 GROUP BY 1 ORDER BY 1") == [
        (40, 1),
        (41, 1),
    ]
    assert system.execute("b", "SELECT count(*) FROM headrace.dba_apply_error") == [(0,)]


def _fails_whole(system: Sites) -> None:
    """A handler that raises puts its whole transaction into the error queue, with file and line; others continue."""
    system.execute(
        "a",
        "BEGIN; INSERT INTO shop.customers VALUES (50, 'with it', ''); INSERT INTO shop.orders VALUES (50, 'bad');"
        " COMMIT",
    )
    system.execute("a", "INSERT INTO shop.orders VALUES (51, 'fine')")
    wait_until(
        "the next order is there",
        lambda: system.execute("b", "SELECT count(*) FROM shop.orders WHERE id = 51") == [(1,)],
    )
    ((message,),) = system.execute("b", "SELECT error_message FROM headrace.dba_apply_error")
    assert "no such status" in message
    assert "orders.py" in message
    assert system.execute("b", "SELECT count(*) FROM shop.clients WHERE id = 50") == [(0,)]
    assert system.execute("b", "SELECT count(*) FROM shop.seen WHERE id = 50") == [(0,)]


def _takes_changed_code(system: Sites, code: Path) -> None:
    """A changed handler runs after another `up`, on executors that have loaded the former one, which runs until then."""
    code.write_text(CODE.replace("lcr.command_type)", 'lcr.command_type + " again")'))
    system.execute("a", "INSERT INTO shop.orders VALUES (60, 'new')")
    system.wait_caught_up()
    edited = system.by(FILE, more=CODE_FOLDER)
    edited.up()
    system.execute("a", "INSERT INTO shop.orders VALUES (61, 'new')")
    edited.wait_caught_up()
    assert system.execute("b", "SELECT id, command FROM shop.seen WHERE id >= 60 ORDER BY 1") == [
        (60, "INSERT"),
        (61, "INSERT again"),
    ]
    version = edited.deployment.spec.apply("apply_from_a_at_b").handlers.code.version_of("orders:apply_order")
    versions = "SELECT DISTINCT code_version FROM headrace.dba_apply_dml_handlers"
    wait_until("the view has the version that runs", lambda: system.execute("b", versions) == [(version,)])
    delete_errors(system)
