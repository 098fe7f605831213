"""The whole apply engine with handlers against the serial reference.

The handlers' executions and log rows exist exactly once, whichever process dies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.databases.memory.destination import MemorySession
from headrace.databases.memory.store import destination_column
from headrace.lcr.batch import Command
from headrace.rules.user_code.binds import read_statement
from headrace.rules.user_code.handlers import DmlHandler, HandlerRules
from headrace.rules.user_code.source import UserFunction
from tests.support.apply.apply_engine import arm
from tests.support.apply.handlers import code_of
from tests.support.histories.apply_history import TABLES, Table
from tests.support.histories.apply_world import MemoryPlace, World
from tests.support.session.seeds import scaled

_SETTINGS = settings(
    max_examples=scaled(7, 120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LOG = "INSERT INTO public.log (number, position, name) VALUES ($1, $2, $3)"
CODE = code_of(
    "def run(lcr, session):\n"
    "    if lcr.position % 2:\n        lcr.execute(False)\n"
    f"    session.execute('{LOG}', int(lcr.transaction_id), lcr.position, lcr.object_name)\n"
    "    if not lcr.position % 2:\n        lcr.execute(True)\n"
)


def rules_of(tables: Sequence[Table], seed: int) -> HandlerRules:
    """Some tables and operations have a procedure, some have statements, and the others are applied directly."""
    rng, found = random.Random(seed), []
    for table in tables:
        operations = tuple(each for each in ("insert", "update", "delete") if rng.random() < 0.6)
        if not operations:
            continue
        others = tuple(("public", each.name) for each in tables if rng.random() < 0.2)
        if rng.random() < 0.7:
            function = UserFunction(name="own:run", version=CODE.version_of("own:run"))
            found.append(
                DmlHandler(owner="public", name=table.name, operations=operations, function=function, tables=others)
            )
        else:
            statements = tuple(
                map(read_statement, ("INSERT INTO public.marks (scn) VALUES (:scn)", "lcr.execute true"))
            )
            found.append(
                DmlHandler(owner="public", name=table.name, operations=operations, statements=statements, tables=others)
            )
    return HandlerRules(code=CODE, dml=tuple(found))


def logged(world: World, rules: HandlerRules) -> tuple[list[tuple[int, str]], int]:
    """Return what handlers must have logged: transaction and table of procedures, number of rows of statements."""
    failed, rows, marks = {*world.reference.failed, *world.reference.held}, [], 0
    for transaction in world.history:
        for change in transaction.changes if transaction.number not in failed else ():
            if change.command is Command.TRUNCATE:
                continue
            for handler in rules.dml_of("public", change.table.name, change.command.name.lower()):
                if handler.function is None:
                    marks += 1
                else:
                    rows.append((transaction.number, change.table.name))
    return rows, marks


def run(seed: int, parallelism: int, conflicts: int, large: int, crash: float, **bounds: int) -> None:
    rules = rules_of(TABLES, seed)
    ordered = {table.name for table in TABLES if rules.dml_of("public", table.name, "insert")}
    world = World(seed, MemoryPlace(), count=20, conflicts=conflicts, large=large, ordered=ordered)
    assert isinstance(world.place, MemoryPlace)
    store = world.place.store
    number = destination_column("scn", "pg_catalog.int8")
    store.create_table(
        "public",
        "log",
        [number, destination_column("position", "pg_catalog.int8"), destination_column("name", "pg_catalog.text")],
    )
    store.create_table("public", "marks", [number])

    def log(session: MemorySession, values: tuple[Any, ...]) -> tuple[()]:
        session.put_row("public", "log", tuple(str(value).encode() for value in values))
        return ()

    def mark(session: MemorySession, values: tuple[Any, ...]) -> tuple[()]:
        session.put_row("public", "marks", (str(values[0]).encode(),))
        return ()

    store.sql[LOG] = log
    store.sql["INSERT INTO public.marks (scn) VALUES ($1)"] = mark
    engine = world.engine(seed, parallelism=parallelism, crash=crash, handlers=rules, **bounds)
    engine.run()
    world.check()
    rows, marks = logged(world, rules)
    found = [(int(row[0] or b""), (row[2] or b"").decode()) for row in store.rows("public", "log")]
    assert sorted(found) == sorted(rows)
    assert len(set(store.rows("public", "log"))) == len(store.rows("public", "log"))
    assert len(store.rows("public", "marks")) == marks
    # Handled rows are executed in source order.
    if not world.errors():
        written = [int(row[0]) for row in store.tables["public", "log"].rows.values() if row[0] is not None]
        assert written == sorted(written)


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(
    seed=st.integers(0, 2**32),
    parallelism=st.integers(1, 4),
    conflicts=st.sampled_from([0, 0, 1, 4]),
    transactions=st.integers(1, 7),
)
def test_groups_with_handlers_equal_one_by_one_application(
    seed: int, parallelism: int, conflicts: int, transactions: int
) -> None:
    run(seed, parallelism, conflicts, 0, 0.0, group_transactions=transactions)


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(
    seed=st.integers(0, 2**32),
    parallelism=st.integers(1, 4),
    conflicts=st.sampled_from([0, 1, 4]),
    large=st.sampled_from([0, 3]),
)
# an INSERT into a table without a key that has a handler, after a failed one
@example(seed=551714342, parallelism=1, conflicts=4, large=3)
def test_crashes_lose_and_duplicate_no_handler_effects(
    seed: int,
    parallelism: int,
    conflicts: int,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm(monkeypatch, random.Random(seed), 0.03)
    run(seed, parallelism, conflicts, large, 0.01)
