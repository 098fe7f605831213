"""Transformations on real servers: rows that are copied, applied, compared, kept in the error queue and executed again
have the new shape.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.calling import loaded_function
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    RenameColumn,
    RenameTable,
    Transformation,
)
from headrace.rules.user_code.source import UserFunction
from headrace.testing import Table, row_lcr, transform, values_of
from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import MinedQueue, end_of_log, executed, wait_for
from tests.support.apply.driver_on_threads import WAIT_S, run_on_threads
from tests.support.apply.handlers import code_of
from tests.support.databases.statements import execute

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MASKED = Transformation(operations=(DeleteColumns(deleted=("ssn",)),))
RENAMED = Transformation(
    operations=(
        RenameColumn(before="name", after="full_name"),
        RenameColumn(before="id", after="number"),
        AddColumn(name="region", type_name="pg_catalog.text", value="it's \\ EMEA"),
        AddColumn(name="arrived", type_name=CURRENT_TIMESTAMP, is_now=True),
        RenameTable(owner="sales", name="staff"),
    )
)
# Their names are swapped: any code that looks values up by the wrong name would mix them up.
EXCHANGED = {
    name: Transformation(operations=(RenameTable(owner="public", name=other),))
    for name, other in (("a", "b"), ("b", "a"))
}
# Beyond the capture process no address may be visible: neither in a change nor in the copy.
CODE = code_of("""
import hashlib

def mask(lcr):
    for image in ("old", "new"):
        values = lcr.get_values(image, use_old=False)
        if "email" in values and not values["email"].is_null:
            lcr.set_value(image, "email", hashlib.md5(values["email"].decoded.encode()).hexdigest())
        if "pay" in values and not values["pay"].is_null:
            lcr.set_value(image, "pay", values["pay"].decoded * 2)
    return lcr
""")
HASHED = Transformation(
    custom=CustomTransformation(
        function=UserFunction(name="own:mask", version=CODE.version_of("own:mask")),
        code=CODE,
        columns=("email", "pay"),
        is_at_capture=True,
    )
)
TABLES = {
    "people": (HASHED,),
    "employees": (MASKED, RENAMED),
    "a": (EXCHANGED["a"],),
    "b": (EXCHANGED["b"],),
    # Whole old rows are logged, so the key need not travel: no row arrives with one.
    "keyless": (Transformation(operations=(DeleteColumns(deleted=("id",)),)),),
}
SHOWN = {
    "people": (
        "SELECT id, md5(email), pay * 2, flag, code, note FROM people",
        "SELECT id, email, pay, flag, code, note FROM people",
    ),
    "employees": ("SELECT id, name, pay, note FROM employees", "SELECT number, full_name, pay, note FROM sales.staff"),
    "a": ("SELECT id, v FROM a", "SELECT id, v FROM b"),
    "b": ("SELECT id, v FROM b", "SELECT id, v FROM a"),
    "keyless": ("SELECT v, note FROM keyless", "SELECT v, note FROM keyless"),
}


def prepare(source: str, destination: str) -> None:
    execute(source, "CREATE TABLE employees (id int PRIMARY KEY, ssn text, name text, pay numeric(9,2), note text)")
    execute(source, "ALTER TABLE employees ALTER note SET STORAGE EXTERNAL")
    for dsn in (source, destination):
        execute(
            dsn,
            "CREATE TABLE people (id int PRIMARY KEY, email text, pay numeric(9,2), flag bool, code char(5), note"
            " text)",
        )
    execute(
        source,
        "INSERT INTO people SELECT i, 'p' || i || '@a.de', i / 7.0, i % 2 = 0, 'c' || i % 9,"
        " E'tab\\tline\\nback\\\\slash' FROM generate_series(1, 2300) i",
    )
    execute(source, "INSERT INTO people VALUES (0)")
    execute(
        source, "CREATE TABLE keyless (id int PRIMARY KEY, v int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL"
    )
    execute(destination, "CREATE SCHEMA sales")
    execute(
        destination,
        "CREATE TABLE sales.staff (full_name text, number int PRIMARY KEY, region text NOT NULL, pay numeric(9,2), note"
        " text, arrived timestamptz NOT NULL)",
    )
    execute(destination, "CREATE TABLE keyless (v int, note text)")
    for dsn in (source, destination):
        execute(dsn, "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text)")
    execute(
        source,
        "INSERT INTO employees SELECT i, 'secret ' || i, 'n' || i, i, repeat(md5(i::text), 200) FROM generate_series(1,"
        " 300) i",
    )
    execute(source, "INSERT INTO keyless SELECT i, i % 5, 'x' FROM generate_series(1, 100) i")
    execute(
        source,
        "INSERT INTO a SELECT i, 'a' FROM generate_series(1, 100) i; INSERT INTO b SELECT i, 'b' FROM"
        " generate_series(1, 90) i",
    )


def write(dsn: str, rng: random.Random, first: int) -> None:
    with psycopg.connect(dsn) as connection:
        for number in range(first, first + 120):
            key, kind = rng.randrange(1, 320), rng.random()
            if kind < 0.25:
                connection.execute(
                    "INSERT INTO employees VALUES (%s, 'secret', %s, %s, repeat('y', %s))",
                    (1000 + number, f"m{number}", number, rng.choice([1, 9000])),
                )
            elif kind < 0.5:
                # The large note stays unchanged: the log does not have it.
                connection.execute(
                    "UPDATE employees SET pay = pay + 1, ssn = ssn || '!' WHERE id BETWEEN %s AND %s", (key, key + 5)
                )
            elif kind < 0.6:
                connection.execute("UPDATE employees SET id = %s, name = NULL WHERE id = %s", (5000 + number, key))
            elif kind < 0.7:
                connection.execute("DELETE FROM employees WHERE id = %s", (key,))
            elif kind < 0.85:
                table = rng.choice("ab")
                connection.execute(
                    f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v || 'u'",
                    (key, table),
                )
            elif kind < 0.95:
                connection.execute(
                    "UPDATE keyless SET v = v + 1, note = 'u' WHERE id BETWEEN %s AND %s", (key, key + 3)
                )
            else:
                connection.execute("DELETE FROM keyless WHERE id = %s", (key,))
            connection.execute(
                "UPDATE people SET email = email || '!', pay = pay + 1, flag = NOT flag WHERE id BETWEEN %s AND %s",
                (key, key + 2),
            )
            connection.execute("INSERT INTO people VALUES (%s, 'new@a.de', 7)", (10_000 + number,))
            if rng.random() < 0.4:
                connection.commit()


def both(source: str, destination: str, table: str) -> tuple[list[Any], list[Any]]:
    here, there = (
        sorted(map(repr, execute(dsn, query))) for dsn, query in zip((source, destination), SHOWN[table], strict=True)
    )
    return here, there


def test_transformed_tables_are_copied_replicated_and_compared(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One transformation is at the capture process, others at the apply process; the driver is replaced while users
    write.
    """
    run_on_threads(monkeypatch)
    rng = random.Random(11)
    prepare(source_database, destination_database)
    mined = RuleSet(
        include=(
            Rule(owner="public", name="employees", transformation=MASKED),
            Rule(owner="public", name="people", transformation=HASHED),
            *(Rule(owner="public", name=name) for name in ("a", "b", "keyless")),
        )
    )
    applied = RuleSet(
        include=tuple(
            Rule(owner="public", name=name, transformation=None if found[-1] is HASHED else found[-1])
            for name, found in TABLES.items()
        )
    )
    queue = MinedQueue(tmp_path, source_database, destination_database, topology="transformed", mined=mined)

    def destination(table: TableName) -> TableName:
        for each in TABLES[table.name]:
            table = each.named(table)
        return table

    tables = (
        replace(table, destination=destination(table.source), transformations=TABLES[table.source.name])
        for table in queue.tables(TABLES)
    )
    config = queue.config(tables, rules=(mined.without_conditions(), applied))
    driver = queue.start_driver(config)
    try:

        def are_copied() -> bool:
            driver.outcome()
            return {t.state for t in driver.control.status().instantiation} == {"DONE"}

        wait_for("the copies", are_copied, WAIT_S)
        assert execute(
            destination_database,
            "SELECT count(*), count(DISTINCT arrived) FROM sales.staff WHERE region = %s",
            "it's \\ EMEA",
        ) == [(300, 1)]
        assert execute(destination_database, "SELECT count(*) FROM people WHERE email LIKE '%%@%%'") == [(0,)]
        write(source_database, rng, 0)
        driver.stop(5.0)
        driver.join(60.0)
        write(source_database, rng, 1000)
        # A new column comes after the source's own columns, not all of which reach the destination.
        execute(source_database, "ALTER TABLE employees ADD extra text")
        execute(destination_database, "ALTER TABLE sales.staff ADD extra text")
        driver = queue.start_driver(config)
        execute(source_database, "TRUNCATE b")
        execute(
            source_database,
            "INSERT INTO b VALUES (7, 'after'); INSERT INTO employees (id, name, extra) VALUES (9999, 'last', 'e')",
        )
        write(source_database, rng, 2000)
        end = end_of_log(source_database)

        def has_everything() -> bool:
            driver.outcome()
            return driver.control.status().caught_up_scn >= end

        wait_for("everything", has_everything, WAIT_S)
        assert execute(destination_database, "SELECT * FROM headrace.apply_error") == []
        for table in TABLES:
            here, there = both(source_database, destination_database, table)
            assert here == there, table
            assert len(here) > 5
        assert execute(destination_database, "SELECT count(*) FROM people WHERE email LIKE '%%@%%'") == [(0,)]
        check_offline(source_database, destination_database)
        assert execute(destination_database, "SELECT extra FROM sales.staff WHERE number = 9999") == [("e",)]
        assert execute(
            destination_database,
            "SELECT count(*) FROM sales.staff WHERE region <> %s OR region IS NULL",
            "it's \\ EMEA",
        ) == [(0,)]
        assert execute(destination_database, "SELECT count(DISTINCT arrived) > 1 FROM sales.staff") == [(True,)]
        found = {each.name: each for each in driver.control.compare(pb.CompareRequest(rechecks=0))}
        assert {name: (each.equal, each.problem) for name, each in found.items()} == dict.fromkeys(TABLES, (True, ""))
        assert (found["employees"].destination_owner, found["employees"].destination_name) == ("sales", "staff")
        check_differences_and_errors(source_database, destination_database, driver)
    finally:
        driver.stop(5.0)
        driver.join(60.0)
        queue.close()
    driver.outcome()


def check_offline(source: str, destination: str) -> None:
    """The rows that `headrace.testing` makes of a function arrived, of copied and of changed rows."""
    people = Table(
        name="public.people",
        columns={"id": "int4", "email": "text", "pay": "numeric", "flag": "bool", "code": "bpchar", "note": "text"},
        logs_old_rows=True,
    )
    assert HASHED.custom is not None
    function = loaded_function(HASHED.custom)
    query = "SELECT id, email, pay, flag, code, note FROM people WHERE id % 7 = 0 ORDER BY id"
    here, there = (execute(dsn, query) for dsn in (source, destination))
    assert len(here) > 100
    for row, arrived in zip(here, there, strict=True):
        lcr = row_lcr(people, "INSERT", new=dict(zip(people.columns, row, strict=True)))
        (offline,) = transform(function, lcr, columns=HASHED.custom.columns, at_capture=True)
        assert values_of(offline, "new") == dict(zip(people.columns, arrived, strict=True))


def check_differences_and_errors(source: str, destination: str, driver: Any) -> None:
    """A differing row is named by the destination's key. A failed transaction is stored and executed in the form in
    which it was applied.
    """
    execute(destination, "UPDATE sales.staff SET pay = -1 WHERE number = 9999")
    (difference,) = next(
        each for each in driver.control.compare(pb.CompareRequest(rechecks=0)) if each.name == "employees"
    ).differences
    assert (tuple(difference.columns), tuple(difference.values), difference.what) == (("number",), ("9999",), "differs")
    execute(destination, "DELETE FROM sales.staff WHERE number = 9999")
    execute(source, "UPDATE employees SET pay = 5 WHERE id = 9999")
    wait_for(
        "the error", lambda: driver.outcome() or execute(destination, "SELECT number FROM headrace.apply_error"), WAIT_S
    )
    ((number,),) = execute(destination, "SELECT number FROM headrace.apply_error")
    execute(
        destination,
        "INSERT INTO sales.staff (number, region, arrived, full_name) VALUES (9999, 'before', now(), 'last')",
    )
    (outcome,) = executed(
        lambda method, *arguments: getattr(driver.control, method)(*arguments), pb.ErrorsRequest(numbers=[number])
    )
    assert outcome.done, outcome.problem
    assert execute(destination, "SELECT full_name, pay, region FROM sales.staff WHERE number = 9999") == [
        ("last", 5, "it's \\ EMEA")
    ]
