"""Conditions of users mean here what they mean to the server, whatever their precedence, spelling and session settings,
or they are refused.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import psycopg
import pytest

from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import Column, Command, OldImage, TableVersion
from headrace.lcr.values import NULL as NULL_LENGTH
from headrace.rules.conditions.compiled import CompiledCondition, Rows, check_types
from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.logic import FALSE, NULL, TRUE
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.conditions.spelling import spelled_tree
from tests.support.session.seeds import scaled, seed_of
from tests.support.values.lcr_batches import column_values
from tests.support.values.written_conditions import COLUMNS, VALUES, Writer

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TYPES = PostgresValueTypes()
ROWS = 30
CONDITIONS = scaled(400, 15_000)  # 300 a second; more than half of them are valid
NUMBERS = np.arange(ROWS)


@pytest.fixture
def server(fresh_database: Any, pg_source: Any) -> Any:
    with psycopg.connect(fresh_database(pg_source), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t ("
            + ", ".join(f"{name} {'char(4)' if kind == 'bpchar' else kind}" for name, kind in COLUMNS.items())
            + ")"
        )
        yield connection


def rows_of(server: Any, *, is_binary: bool) -> Rows:
    """Return the table's rows as the log has them."""
    result = server.pgconn.exec_params(b"SELECT * FROM t ORDER BY id", [], result_format=int(is_binary))
    columns = tuple(
        Column(name=name, type_name=f"pg_catalog.{kind}", is_binary=is_binary) for name, kind in COLUMNS.items()
    )
    table = TableVersion(object_number=1, version=1, owner="public", name="t", columns=columns, old_image=OldImage.FULL)
    values = [[result.get_value(row, place) for row in range(ROWS)] for place in range(len(columns))]
    image = column_values([[NULL_LENGTH if value is None else value for value in each] for each in values])
    return Rows(
        table=table,
        command=Command.INSERT,
        count=ROWS,
        old=None,
        new=image,
        source="dbs1",
        tags=(),
        tag=np.full(ROWS, -1),
        transaction_id=NUMBERS,
        scn=NUMBERS,
        source_time_us=NUMBERS,
    )


@pytest.mark.seeded
def test_conditions_are_read_as_the_server_reads_them(server: Any) -> None:
    rng = random.Random(seed_of("written conditions"))
    for number in range(ROWS):
        row: dict[str, Any] = {name: number if name == "id" else rng.choice([*VALUES[name], None]) for name in COLUMNS}
        row["c"] = row["c"] and row["c"][:4]
        server.execute(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))
    server.execute("SET timezone = 'UTC'")
    forms = [rows_of(server, is_binary=is_binary) for is_binary in (True, False)]
    # settings of some user's session
    server.execute("SET timezone = 'Asia/Kolkata'; SET datestyle = 'SQL, DMY'; SET extra_float_digits = 0")
    writer, seen = Writer(rng), Counter[str]()
    for _ in range(CONDITIONS):
        text = writer.condition()
        try:
            condition = parse(text, "where")
            check_types(condition.tree, forms[0].table, TYPES)
        except ConditionError:
            seen["refused"] += 1
            continue
        try:
            answers = [row[0] for row in server.execute(f"SELECT ({text}\n) FROM t ORDER BY id".encode()).fetchall()]
        except psycopg.errors.SyntaxError:
            seen["of no meaning"] += 1
            continue
        expected = [{True: TRUE, False: FALSE, None: NULL}[answer] for answer in answers]
        for rows in forms:
            assert CompiledCondition(condition.tree, rows.table, TYPES).outcomes(rows).tolist() == expected, text
        assert [
            row[0]
            for row in server.execute(f"SELECT {spelled_tree(condition.tree)} FROM t ORDER BY id".encode()).fetchall()
        ] == answers, text
        seen["compared"] += 1
    assert seen["compared"] > CONDITIONS / 3, seen
