"""A table that is added later is copied while the others are applied, and joins them; a table that cannot be copied
delays no other one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.fix_apply_driver import TABLES
from tests.support.apply.apply_driver import STARTED_S, ApplyDrivers, Driver, end_of_log, wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.background import in_background

pytestmark = [pytest.mark.unit("drivers"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

LATE = "CREATE TABLE late (id integer PRIMARY KEY, note integer NOT NULL)"
ROWS = 150_000
BUSY = (
    "CREATE TABLE busy (id integer PRIMARY KEY, note text) PARTITION BY RANGE (id); CREATE TABLE busy_1 PARTITION"
    " OF busy FOR VALUES FROM (0) TO (1000000)"
)


@pytest.fixture(scope="module")
def drivers(make_drivers: Callable[[str], ApplyDrivers]) -> ApplyDrivers:
    made = make_drivers("beside_test")
    source = made.queue.source_dsn
    execute(source, LATE)
    execute(source, f"INSERT INTO late SELECT i, 0 FROM generate_series(1, {ROWS}) i")
    for dsn in (source, made.queue.destination_dsn):
        execute(dsn, "CREATE TABLE nothing ()")
        execute(dsn, BUSY)
    made.queue.source.prepare(made.queue.spec.name, made.queue.spec.capture_rules("dbs1"))
    return made


def states(driver: Driver) -> dict[str, str]:
    return {table.name: table.state for table in driver.status().instantiation}


@contextlib.contextmanager
def writing(dsn: str) -> Iterator[dict[str, Any]]:
    """Write transactions that each change the late table and a table that is already replicated."""
    counts = {"transactions": 0}

    def write(stop: threading.Event) -> None:
        with psycopg.connect(dsn) as connection:
            while not stop.is_set():
                counts["transactions"] = number = counts["transactions"] + 1
                connection.execute("UPDATE late SET note = note + 1 WHERE id = %s", (number * 7919 % ROWS + 1,))
                connection.execute("INSERT INTO late VALUES (%s, -1)", (ROWS + number,))
                connection.execute("INSERT INTO notes VALUES (%s, 'beside')", (1_000_000 + number,))
                connection.commit()
                time.sleep(0.002)

    with in_background(write):
        yield counts


def is_applied(drivers: ApplyDrivers, table: str, number: int) -> bool:
    return execute(drivers.queue.destination_dsn, f"SELECT 1 FROM {table} WHERE id = %s", number) != []


def test_other_tables_are_applied_while_one_is_missing_or_copied(drivers: ApplyDrivers):
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    tables = drivers.queue.tables((*TABLES, "late", "nothing"))
    driver = drivers.start(tables=tables)
    with writing(source) as counts:
        wait_for("the first copy", lambda: {states(driver).get(name) for name in TABLES} == {"DONE"}, STARTED_S)
        # It is later than every copy, so it arrives as a change.
        wait_for(
            "the others to be applied",
            lambda n=counts["transactions"] + 1: is_applied(drivers, "notes", 1_000_000 + n),
            STARTED_S,
        )
        found = states(driver)
        assert (found["late"], found["nothing"]) == ("FAILED", "FAILED")
        assert driver.status().caught_up_scn == 0
        driver.kill()
        # A broken table and a missing one do not delay the next driver either.
        driver = drivers.start(tables=tables)
        wait_for(
            "the others to be applied again",
            lambda n=counts["transactions"]: is_applied(drivers, "notes", 1_000_000 + n),
            STARTED_S,
        )
        execute(destination, LATE)
        wait_for("the copy to begin", lambda: states(driver).get("late") not in {"FAILED", None}, STARTED_S)
        driver.kill()
        driver = drivers.start(tables=tables)
        wait_for("the late table to join", lambda: states(driver).get("late") in {"DONE", "JOINING"}, STARTED_S)
        wait_for(
            "a row of it that was written later",
            lambda n=counts["transactions"]: is_applied(drivers, "late", ROWS + n),
            STARTED_S,
        )
    driver.wait_applied(end_of_log(source))
    for table in (*TABLES, "late"):
        assert digest(source, table) == digest(destination, table), table
    assert execute(destination, "SELECT * FROM headrace.apply_error") == []
    assert states(driver)["nothing"] == "FAILED"
    scn, done = execute(
        destination, "SELECT scn, state IN ('DONE', 'JOINING') FROM headrace.instantiation WHERE name = 'late'"
    )[0]
    assert done
    assert scn > 0


@contextlib.contextmanager
def refilling(dsn: str) -> Iterator[dict[str, int]]:
    """Truncate the busy table and refill it, several times while any copy of it begins."""
    counts = {"times": 0}

    def refill(stop: threading.Event) -> None:
        with psycopg.connect(dsn) as connection:
            while not stop.is_set():
                counts["times"] += 1
                connection.execute("TRUNCATE busy_1")
                connection.execute(
                    "INSERT INTO busy SELECT g, %s FROM generate_series(1, 500) g", (f"filled {counts['times']} times",)
                )
                connection.execute("UPDATE busy SET note = note || ', changed' WHERE id % 7 = 0")
                connection.commit()
                time.sleep(0.1)

    with in_background(refill):
        yield counts


def test_table_that_is_endlessly_truncated_and_refilled_is_still_copied(drivers: ApplyDrivers):
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    driver = drivers.start(tables=drivers.queue.tables((*TABLES, "busy")))
    with refilling(source) as counts:
        wait_for("the busy table to join", lambda: states(driver).get("busy") in {"DONE", "JOINING"}, 2 * STARTED_S)
        then = counts["times"]
        wait_for("it to be filled again", lambda: counts["times"] > then + 2, STARTED_S)
    driver.wait_applied(end_of_log(source))
    assert digest(source, "busy") == digest(destination, "busy")
    assert execute(destination, "SELECT count(*) FROM busy") == [(500,)]
    assert execute(destination, "SELECT * FROM headrace.apply_error") == []
