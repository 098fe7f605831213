"""A process of an apply process dies while it runs a handler, resolves a conflict or edits an error.

Real processes and a real PostgreSQL destination, without Ray and Spark.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import psycopg
import pytest

from headrace.databases.ports import ErrorEdit
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules
from headrace.rules.user_code.handlers import HandlerRules
from protos import codec
from spark_apply.handlers.crashes import CRASHES_MAX
from spark_apply.sets.conflict_settings import ConflictSettings
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.handlers import Handled, inserts, rules_of, updates
from tests.support.clusters.system import wait_until
from tests.support.histories.conflicts import COLUMNS, Lcr, handler
from tests.support.session.matrices import values
from tests.support.values.writes import version_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXIT = 7
"""Exit code of a process that the handler ends, so that no other end is taken for the fault."""

LIFE_S = 180.0
"""Bound of one process: it starts, imports and applies three rows in a few seconds, even on a busy machine."""

WAITING = "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"

ENDS = f"""
import os
def run(lcr, session):
    key = lcr.get_value("new", "id").decoded
    session.execute("INSERT INTO public.log (id, a) VALUES ($1, $2)", key, "x")
    lcr.execute(True)
    if key == 2:
        os._exit({EXIT})
"""


PATIENCE_S = 300.0
"""Time limit of a handler in these tests: its lock is held until its process was killed."""

LOGGED = """
def run(lcr, session):
    session.execute("INSERT INTO public.log (id, a) VALUES ($1, $2)", lcr.get_value("new", "id").decoded, "x")
    lcr.execute(True)
"""

KEPT = """
def run(lcr, error, session):
    session.execute("INSERT INTO public.log (id, a) VALUES ($1, $2)", lcr.get_value("new", "id").decoded, error.kind)
"""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An apply process with users' rules whose process is killed.

    Args:
        rules: its handlers.
        conflicts: its conflict handlers.
        held: the table that another session has locked, for which the process waits at that moment.
        rows: of `c` at the destination beforehand, as (id, a, t).
        transactions: applied as one group.
        committed: how many of them are committed when the process is killed: an error handler's transaction commits
            separately.
        after: `c` in the end, as (id, a).
        logged: the handlers' own table in the end.
        resolved: number of conflicts in the history in the end.
    """

    rules: HandlerRules
    conflicts: tuple[ConflictHandler, ...] = ()
    held: str = "public.log"
    rows: tuple[tuple[int, str, int], ...] = ()
    transactions: tuple[list[tuple[str, Lcr]], ...] = ()
    committed: int = 0
    after: list[tuple[int, str]]
    logged: list[tuple[int, str]] = field(default_factory=list)
    resolved: int = 0


INSERTED = (inserts(1), inserts(2), inserts(3))
SCENARIOS = {
    "a procedure DML handler": Scenario(
        rules=rules_of(LOGGED, dml=["run"], timeout_s=PATIENCE_S),
        transactions=INSERTED,
        after=[(1, "a"), (2, "a"), (3, "a")],
        logged=[(1, "x"), (2, "x"), (3, "x")],
    ),
    "an error handler": Scenario(
        rules=rules_of(KEPT, errors=["run"], timeout_s=PATIENCE_S),
        rows=((2, "mine", 10),),
        transactions=INSERTED,
        committed=1,
        after=[(1, "a"), (2, "mine"), (3, "a")],
        logged=[(2, "insert_exists")],
        resolved=1,
    ),
    "a prebuilt conflict handler": Scenario(
        rules=rules_of(),
        conflicts=(handler("maximum", "a", "t", by="t"),),
        held="headrace.conflict_history",
        rows=((1, "a", 10), (2, "mine", 15), (3, "a", 10)),
        transactions=tuple(updates(key, "a", "b", times=(10, 20)) for key in (1, 2, 3)),
        after=[(1, "b"), (2, "b"), (3, "b")],
        resolved=1,
    ),
}


class Placed(Handled):
    """`Handled` at a PostgreSQL destination."""

    def __init__(
        self, dsn: str, epoch: int, incarnation: int, rules: HandlerRules, conflicts: tuple[ConflictHandler, ...] = ()
    ) -> None:
        self.database: Any = PostgresDestination(dsn, site="b")
        self.epoch, self.incarnation, self.rules = epoch, incarnation, rules
        self.settings = ConflictSettings(apply=APPLY, source=SOURCE, site="b", rules=ConflictRules(handlers=conflicts))
        self.server = self.new_server()
        table = self.database.describe("public", "c")
        assert table is not None
        self.versions = {"c": version_of(table), "d": version_of(table)}
        self.scn, self.now = 100, 0.0


def live(dsn: str, epoch: int, incarnation: int, first: int) -> None:
    """Run an apply server: apply the transactions from this one on, carefully after the first death."""
    at = Placed(dsn, epoch, incarnation, rules_of(ENDS, dml=["run"]))
    at.scn = 100 + 10 * (first - 1)
    at.apply(*[inserts(key) for key in range(first, 4)], is_careful=incarnation > 1)


def live_through(dsn: str, epoch: int, incarnation: int, name: str) -> None:
    """Run an apply server: apply the rest of a scenario's transactions, carefully after the first death."""
    scenario, is_careful = SCENARIOS[name], incarnation > 1
    at = Placed(dsn, epoch, incarnation, scenario.rules, scenario.conflicts)
    done = scenario.committed if is_careful else 0
    at.scn += 10 * done
    at.apply(*scenario.transactions[done:], is_careful=is_careful)


@pytest.mark.parametrize("name", values(SCENARIOS, "a procedure DML handler"))
def test_next_process_repeats_a_killed_ones_work_exactly_once(destination_database: str, name: str) -> None:
    """The process stays inside the handler, or the resolution, while another session holds what it wants to write."""
    scenario = SCENARIOS[name]
    database, epoch = prepared(destination_database)
    with (
        psycopg.connect(destination_database, autocommit=True) as admin,
        psycopg.connect(destination_database) as holder,
    ):
        admin.cursor().executemany("INSERT INTO public.c (id, a, t) VALUES (%s, %s, %s)", scenario.rows)
        holder.execute(f"LOCK TABLE {scenario.held} IN SHARE ROW EXCLUSIVE MODE")
        killed = spawned(live_through, destination_database, epoch, 1, name)
        wait_until(f"it waits for {scenario.held}", lambda: admin.execute(WAITING, (scenario.held,)).fetchone() == (1,))
        killed.kill()
        killed.join(LIFE_S)
        assert killed.exitcode == -signal.SIGKILL
        rows = {key: value for key, value, _ in scenario.rows} | dict(scenario.after[: scenario.committed])
        assert contents(admin) == {"c": sorted(rows.items()), "log": []}
        holder.rollback()
        successor = spawned(live_through, destination_database, epoch, 2, name)
        successor.join(LIFE_S)
        assert successor.exitcode == 0
        assert contents(admin) == {"c": scenario.after, "log": scenario.logged}
        assert admin.execute("SELECT count(*) FROM headrace.conflict_history").fetchone() == (scenario.resolved,)
    assert database.errors(TOPOLOGY, APPLY) == ()


def prepared(dsn: str) -> tuple[PostgresDestination, int]:
    """Return a destination with the tables `c` and `log`, and the epoch of its apply process."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    database = PostgresDestination(dsn, site="b")
    database.prepare(TOPOLOGY)
    with psycopg.connect(dsn, autocommit=True) as admin:
        for name in ("c", "log"):
            admin.execute(f"CREATE TABLE public.{name} ({columns}, PRIMARY KEY (id))")
    return database, database.raise_epoch(TOPOLOGY, APPLY).epoch


def spawned(life: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a process, forked from one that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=life, args=arguments, daemon=True)
    process.start()
    return process


def contents(admin: psycopg.Connection[Any]) -> dict[str, list[Any]]:
    return {name: admin.execute(f"SELECT id, a FROM public.{name} ORDER BY id").fetchall() for name in ("c", "log")}


def test_handler_that_always_ends_its_process_is_reported_without_loss(
    destination_database: str,
) -> None:
    database, epoch = prepared(destination_database)
    ends: list[int | None] = []
    with psycopg.connect(destination_database, autocommit=True) as admin:
        while EXIT in ends[-1:] or not ends:
            assert len(ends) <= CRASHES_MAX + 1, "it is called for ever"
            done = admin.execute("SELECT count(*) FROM public.c").fetchone()
            assert done is not None
            process = spawned(live, destination_database, epoch, len(ends) + 1, done[0] + 1)
            process.join(LIFE_S)
            if process.exitcode is None:
                process.kill()
                process.join()
            ends.append(process.exitcode)
        assert ends == [EXIT] * (1 + CRASHES_MAX) + [0]
        assert contents(admin) == {"c": [(1, "a"), (3, "a")], "log": [(1, "x"), (3, "x")]}
    (error,) = database.errors(TOPOLOGY, APPLY)
    assert error.message.startswith("own:run (")
    assert f"is not called again: {CRASHES_MAX} processes ended while it ran for this transaction" in error.message


QUITS = {
    "its own session": "SELECT pg_terminate_backend(pg_backend_pid())",
    "its session by any error": "SELECT 1 / (length(set_config('exit_on_error', 'on', true)) - 2)",
}


@pytest.mark.parametrize("how", values(QUITS, "its own session"))
def test_handler_that_always_ends_its_session_is_reported_without_loss(destination_database: str, how: str) -> None:
    """No other cause ends the session: the server is up, and its process lives."""
    database, epoch = prepared(destination_database)
    text = LOGGED.replace(
        "    lcr.execute",
        f"    if lcr.get_value('new', 'id').decoded == 2:\n        session.execute({QUITS[how]!r})\n    lcr.execute",
    )
    at = Placed(destination_database, epoch, 1, rules_of(text, dml=["run"]))
    at.apply(*INSERTED)
    with psycopg.connect(destination_database, autocommit=True) as admin:
        assert contents(admin) == {"c": [(1, "a"), (3, "a")], "log": [(1, "x"), (3, "x")]}
    (error,) = database.errors(TOPOLOGY, APPLY)
    assert error.message.startswith("own:run (")
    assert (
        f"is not called again: its session at the destination ended {1 + CRASHES_MAX} times while it ran for this"
        " transaction" in error.message
    )
    at.server.close()
    database.close()


def edit(dsn: str, number: int, batch: bytes) -> None:
    """Run an apply process that edits the rows of an error transaction."""
    database = PostgresDestination(dsn, site="b")
    made = ErrorEdit(
        number=number,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="c",
        command="INSERT",
        changes=("new.id: 2 -> 4",),
        edited_by="ada",
    )
    done = database.edit_error(TOPOLOGY, made, part=0, batch=batch, key_hashes=np.array([4], np.uint64))
    raise SystemExit(0 if done else EXIT)


@pytest.mark.parametrize(
    "held", values(["headrace.apply_error_part", "headrace.apply_error_edit"], "headrace.apply_error_edit")
)
def test_edit_killed_halfway_changes_nothing_and_the_next_is_made_once(destination_database: str, held: str) -> None:
    """The edit waits between two statements while another session holds the second one's table."""
    database, epoch = prepared(destination_database)
    with (
        psycopg.connect(destination_database, autocommit=True) as admin,
        psycopg.connect(destination_database) as holder,
    ):
        admin.execute("INSERT INTO public.c (id, a, t) VALUES (2, 'mine', 10)")
        at = Placed(destination_database, epoch, 1, rules_of())
        at.apply(*INSERTED)
        at.server.close()
        (error,) = database.errors(TOPOLOGY, APPLY)
        before, edited = list(database.error_batches(error.number)), codec.encode(at.transactions_of(inserts(4)))
        keys = {number: hashes.tolist() for number, hashes in database.error_key_hashes(TOPOLOGY, APPLY)}
        holder.execute(f"LOCK TABLE {held} IN SHARE MODE")
        killed = spawned(edit, destination_database, error.number, edited)
        wait_until(f"it waits for {held}", lambda: admin.execute(WAITING, (held,)).fetchone() == (1,))
        killed.kill()
        killed.join(LIFE_S)
        assert killed.exitcode == -signal.SIGKILL
        holder.rollback()
        # The edit has left nothing; an execution would apply the original rows.
        wait_until("its session has ended", lambda: admin.execute(WAITING, (held,)).fetchone() == (0,))
        assert (list(database.error_batches(error.number)), database.error_edits(TOPOLOGY)) == (before, ())
        assert {number: hashes.tolist() for number, hashes in database.error_key_hashes(TOPOLOGY, APPLY)} == keys
        # The second edit is by an operator who does not know that the first one succeeded.
        ends = []
        for _ in range(2):
            successor = spawned(edit, destination_database, error.number, edited)
            successor.join(LIFE_S)
            ends.append(successor.exitcode)
        assert ends == [0, EXIT]
        assert list(database.error_batches(error.number)) == [edited]
        assert list(database.error_batches(error.number, original=True)) == before
        assert [made.edit for made in database.error_edits(TOPOLOGY)] == [1]
    database.close()
