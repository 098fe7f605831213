"""Random histories through several subsets in a row, with transformations after them: the destination has the rows that
the source selects.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.base.clock import SystemClock
from headrace.databases.connectors import value_types
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.batch import LcrBatch
from headrace.rules.conditions.condition import Condition, parse
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import (
    AddColumn,
    DeleteColumns,
    Operation,
    RenameColumn,
    RenameTable,
    Transformation,
)
from protos import codec
from tests.support.apply.apply_engine import TOPOLOGY, Engine
from tests.support.redo.postgres_redo import RedoSite
from tests.support.session.seeds import is_soak, seeds

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SUBSETS = [
    "dept = 2",
    "dept <> 2",
    "not (dept = 2)",
    "dept in (1, null)",
    "dept not in (1, 2)",
    "note is null",
    "note like 'x%'",
    "flag",
    "flag is not true",
    "grade > 3.5 or grade is null",
    "ts < '2026-06-01 00:00:00+00'",
    "c = 'ab'",
    "id between 10 and 60",
    "k2 = 'n' or dept is distinct from 1",
    "grade >= 2 and not flag is unknown",
    "note is not null and dept >= 2",
    "k2 < 'm' COLLATE \"C\"",
    "(dept = 1) is unknown or flag",
]
TYPES = {
    "id": "int",
    "k2": "text",
    "dept": "int",
    "grade": "numeric",
    "note": "text",
    "flag": "bool",
    "ts": "timestamptz",
    "c": "char(4)",
}
KEYS = {"a": ["id"], "b": [], "p": ["id", "dept"]}  # b: duplicate rows are allowed; p is partitioned by dept
CLIENTS = 3  # capture process, propagation, apply process
TRANSACTIONS = 80
IDS = 60


class Way:
    """One table's path, with its expected and found content."""

    def __init__(self, table: str, rng: random.Random) -> None:
        self.name, self.subsets = (
            table,
            [parse(rng.choice(SUBSETS), "subset") if rng.random() < chance else None for chance in (0.7, 0.5, 0.4)],
        )
        self.columns: dict[str, str] = {name: name for name in TYPES}
        self.added = ""
        asked = {value.column for each in self.subsets if each for value in each.columns}
        free = [name for name in ("grade", "note", "flag", "ts", "c") if name not in asked]
        rng.shuffle(free)
        operations: list[Operation] = []
        if free and rng.random() < 0.5:
            del self.columns[free[0]]
            operations.append(DeleteColumns(deleted=(free.pop(0),)))
        if free and rng.random() < 0.5:
            self.columns[free[0]] = "other"
            operations.append(RenameColumn(before=free[0], after="other"))
        if rng.random() < 0.5:
            self.added = ", 'v'"
            operations.append(AddColumn(name="added", type_name="pg_catalog.text", value="v"))
        where, self.arrives_as = rng.randrange(CLIENTS), table
        if rng.random() < 0.5:
            self.arrives_as = f"{table}_there"
            operations.append(RenameTable(owner="public", name=self.arrives_as))
        self.rules = [
            Rule(
                owner="public",
                name=table if client <= where else self.arrives_as,
                subset=self.subsets[client],
                transformation=Transformation(operations=tuple(operations)) if client == where and operations else None,
            )
            for client in range(CLIENTS)
        ]

    def create(self) -> str:
        columns = [
            *(f"{name} {TYPES[origin]}" for origin, name in self.columns.items()),
            *(["added text"] if self.added else []),
        ]
        key = [f"PRIMARY KEY ({', '.join(KEYS[self.name])})"] if KEYS[self.name] else []
        return f"CREATE TABLE {self.arrives_as} ({', '.join([*columns, *key])})"

    def wanted(self) -> str:
        asked: list[Condition] = [each for each in self.subsets if each]
        return (
            f"SELECT ROW({', '.join(self.columns)}{self.added})::text FROM {self.name} WHERE"
            f" {' AND '.join(f'({each.text})' for each in asked) or 'true'} ORDER BY 1"
        )

    def found(self) -> str:
        return (
            f"SELECT ROW({', '.join(self.columns.values())}{', added' if self.added else ''})::text FROM"
            f" {self.arrives_as} ORDER BY 1"
        )


def values(rng: random.Random, table: str) -> dict[str, Any]:
    return {
        "k2": rng.choice(["n", "m", "z", "A", None]),
        "dept": rng.choice([1, 2, 3, *([] if table == "p" else [None])]),
        "grade": rng.choice([None, "0", "2", "3.50", "7", "NaN"]),
        "note": rng.choice([None, "x", "n", "x" * 9000, "y" * 9000]),
        "flag": rng.choice([True, False, None]),
        "ts": rng.choice(["2026-01-01 00:00+00", "2026-12-01 00:00+00", "infinity", None]),
        "c": rng.choice(["ab", "ab  ", "b", None]),
    }


def change(rng: random.Random, user: psycopg.Connection[Any]) -> None:
    table, kind, first = rng.choice(list(KEYS)), rng.random(), rng.randrange(IDS)
    row, where = values(rng, table), f"id BETWEEN {first} AND {first + rng.choice([0, 0, 0, 4])}"
    if kind < 0.4:
        user.execute(f"INSERT INTO {table} VALUES (%s{', %s' * len(row)})", [first, *row.values()])
    elif kind < 0.8:
        some = rng.sample(list(row), rng.randint(1, 3))  # a large note outside of the sample stays unchanged
        user.execute(
            f"UPDATE {table} SET {', '.join(f'{name} = %s' for name in some)} WHERE {where}",
            [row[name] for name in some],
        )
    elif kind < 0.88:
        user.execute(f"UPDATE {table} SET id = id + {rng.choice([100, -100, 1])} WHERE id = {first}")
    elif kind < 0.99:
        user.execute(f"DELETE FROM {table} WHERE {where}")
    else:
        user.execute(f"TRUNCATE {rng.choice([table, 'p2', 'a, b, p'])}")


def write(rng: random.Random, user: psycopg.Connection[Any]) -> None:
    for _ in range(TRANSACTIONS):
        with contextlib.suppress(psycopg.Rollback), user.transaction():
            for _ in range(rng.randint(1, 8)):
                with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.Rollback), user.transaction():
                    change(rng, user)
                    if rng.random() < 0.1:
                        raise psycopg.Rollback
            if rng.random() < 0.1:
                raise psycopg.Rollback


def arriving(site: RedoSite, ways: list[Way]) -> Iterator[LcrBatch]:
    """Yield the batches that reach the apply process."""
    mined, *others = (RuleSet(include=tuple(way.rules[client] for way in ways)) for client in range(CLIENTS))
    clients = [RuleEvaluation(each, types=value_types(), clock=SystemClock()) for each in others]
    for batch in site.mine(site.miner(rules=mined)):
        for client in clients:
            batch = client.filter(codec.decode(codec.encode(batch)))  # noqa: PLW2901 - the same changes, at the next client
        yield batch


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("subsets", test=1, soak=50))
def test_destination_has_the_rows_that_the_source_selects(
    seed: int, source_database: str, destination_database: str, tmp_path: Path
) -> None:
    rng, source, there = random.Random(seed), source_database, destination_database
    ways = [Way(table, rng) for table in KEYS]
    site, destination = RedoSite(source, tmp_path / "redo"), PostgresDestination(there, site="dbs2")
    with psycopg.connect(there, autocommit=True) as admin:
        try:
            for way in ways:
                of = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
                key = f", PRIMARY KEY ({', '.join(KEYS[way.name])})" if KEYS[way.name] else ""
                site.user.execute(
                    f"CREATE TABLE {way.name} ({of}{key}){' PARTITION BY LIST (dept)' if way.name == 'p' else ''}"
                )
                site.user.execute(f"ALTER TABLE {way.name} ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
                admin.execute(way.create())
            for part in (1, 2, 3):
                site.user.execute(
                    f"CREATE TABLE p{part} PARTITION OF p FOR VALUES IN ({part}); ALTER TABLE p{part} REPLICA IDENTITY"
                    " FULL"
                )
            site.source.prepare("topo", [RuleSet(include=(Rule(owner="public"),))])
            site.attach()
            for way in ways:
                for number in range(IDS):
                    row = values(rng, way.name)
                    site.user.execute(f"INSERT INTO {way.name} VALUES (%s{', %s' * len(row)})", [number, *row.values()])
            write(rng, site.user)
            site.catch_up()
            destination.prepare(TOPOLOGY)
            Engine(seed=seed, batches=list(arriving(site, ways)), destination=destination, parallelism=2).run()
            assert admin.execute("SELECT count(*) FROM headrace.apply_error").fetchone() == (0,)
            wanted = {way.name: site.user.execute(way.wanted()).fetchall() for way in ways}
            assert {way.name: admin.execute(way.found()).fetchall() for way in ways} == wanted
            assert is_soak() or sum(map(len, wanted.values())) > 5, "a new seed may truncate the tables at the end"
        finally:
            destination.close()
            site.close()
