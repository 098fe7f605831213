"""The apply engine on PostgreSQL: the random histories of the memory database, and effects of a real server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.batch import Command, LcrBatch, OldImage, TableVersion, content_version
from spark_apply.server.apply_server import ApplyServer
from tests.support.apply.apply_engine import APPLY, TOPOLOGY, Engine, arm
from tests.support.databases.postgres_place import PostgresPlace
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.histories.apply_world import World
from tests.support.session.seeds import seeds

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(
    pg_destination: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str]
) -> Iterator[PostgresPlace]:
    made = PostgresPlace(prepared_database(pg_destination))
    yield made
    made.close()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("parallel groups", test=2, soak=100))
def test_parallel_groups_on_a_real_server_leave_the_sequential_result(place: PostgresPlace, seed: int) -> None:
    world = World(seed, place, count=40, conflicts=seed % 3 * 2, large=seed % 2 * 3)
    engine = world.engine(seed, parallelism=seed % 3 + 1)
    engine.run()
    world.check()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("crashes", test=1, soak=60))
def test_crashes_on_a_real_server_lose_and_duplicate_nothing(
    place: PostgresPlace, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, place, count=25, conflicts=seed % 2 * 2, large=2)
    place.break_commits(monkeypatch)
    arm(monkeypatch, random.Random(seed), 0.02)
    engine = world.engine(seed, parallelism=2, crash=0.008)
    # The system closes a killed process's connection.
    engine.bury = ApplyServer.close
    engine.run()
    world.check()


def test_errors_executed_after_their_correction_are_applied_in_order(place: PostgresPlace) -> None:
    table = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
    world = next(found for found in (_stuck(place, seed, table) for seed in range(1000)) if found is not None)
    engine = world.engine(1, parallelism=2)
    engine.run()
    world.check()
    numbers = [error.number for error in world.errors()]
    assert len(numbers) > 1
    first = world.errors()[0]
    assert first.conflict_type in {"update_missing", "delete_missing"}
    change = world.history[first.transaction_id - 1].changes[first.failed_position]
    assert change.old is not None
    place.insert(table, [change.old])
    outcomes = engine.execute_errors(numbers)
    assert outcomes[numbers[0]] == ""
    assert {number for number, problem in outcomes.items() if problem} == {error.number for error in world.errors()}


def _stuck(place: PostgresPlace, seed: int, table: Table) -> World | None:
    place.admin.execute("DROP TABLE IF EXISTS plain")
    world = World(seed, place, count=20, conflicts=2, tables=(table,), changes=2)
    return world if world.reference.failed and world.reference.held and _misses_a_row(world) else None


@dataclass(frozen=True)
class _Typed(Table):
    """A table with another type in its last column."""

    last_type: str = "pg_catalog.text"

    @property
    def version(self) -> TableVersion:
        found = super().version
        columns = (*found.columns[:-1], replace(found.columns[-1], type_name=self.last_type))
        changed = replace(found, columns=columns)
        return replace(changed, version=content_version(changed))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_from_before_their_transactions_alter_are_converted(place: PostgresPlace, parallelism: int) -> None:
    """PostgreSQL would write them without the function, by statements prepared before the ALTER: int is accepted as
    text.
    """
    old, new = (
        _Typed(11, "t", ("id", "a"), OldImage.KEY, last_type="pg_catalog.int4"),
        Table(11, "t", ("id", "a"), OldImage.KEY),
    )
    place.admin.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")

    def number(value: int) -> bytes:
        return value.to_bytes(4, "big")

    before = [Change(old, Command.INSERT, new=(number(n), number(n))) for n in range(8)]
    behind = [Change(new, Command.INSERT, new=(number(n), b"no. %d" % n)) for n in range(8, 12)]
    first, large = Transaction(1, before[:1]), Transaction(2, [*before[1:], *behind])
    batches = [batch_of([first], 0)]
    for start, end in ((0, 4), (4, 7), (7, 9), (9, 11)):
        batches.append(batch_of([large], first.commit_scn, first=start, last=end, is_open=end < 11))
    engine = Engine(seed=1, batches=batches, destination=place.destination, parallelism=parallelism)
    given: list[str] = []
    while engine.coordinator.watermarks.low < large.commit_scn:
        engine.step()
        if engine.is_paused and engine.reader.unfit is not None and engine.reader.unfit.hint not in given:
            given.append(engine.reader.unfit.hint)
            alter, _, function = given[-1].partition("; or, if these rows are older than the column is here: ")
            is_function = "(int4) RETURNS" in function
            place.admin.execute(
                function.replace(" ...;", " IMMUTABLE RETURN 'no. ' || $1")
                if is_function
                else alter.replace(";", " USING 'no. ' || a")
            )
    assert len(given) == 2
    assert place.admin.execute("SELECT id, a FROM t ORDER BY id").fetchall() == [(n, f"no. {n}") for n in range(12)]
    assert place.destination.errors(TOPOLOGY, APPLY) == ()
    for server in engine.servers.values():
        server.close()


def test_truncate_cascade_spares_a_destination_only_table_and_is_an_error(place: PostgresPlace) -> None:
    """Rows of the truncated table wait behind the error; the destination-only table keeps its rows."""
    table = Table(11, "plain", ("id", "v"), OldImage.KEY)
    place.create(table)
    place.admin.execute("CREATE TABLE only_here (id int REFERENCES plain)")
    one, two = (b"\0\0\0\x01", b"one"), (b"\0\0\0\x02", b"two")
    history = [
        Transaction(1, [Change(table, Command.INSERT, new=one)]),
        Transaction(2, [Change(table, Command.TRUNCATE)]),
        Transaction(3, [Change(table, Command.INSERT, new=two)]),
    ]
    engine = Engine(seed=3, batches=[_cascading(batch_of(history[:1], 0))], destination=place.destination)
    engine.run()
    place.admin.execute("INSERT INTO only_here VALUES (1)")
    engine.batches.append(_cascading(batch_of(history[1:], history[0].commit_scn)))
    engine.run()
    assert place.admin.execute("SELECT id FROM only_here").fetchall() == [(1,)]
    errors = place.destination.errors(TOPOLOGY, APPLY)
    assert [error.transaction_id for error in errors] == [2, 3]
    assert "only_here" in errors[0].message
    assert errors[1].depends_on == errors[0].number
    place.admin.execute("DROP TABLE only_here")
    assert set(engine.execute_errors([error.number for error in errors]).values()) == {""}
    assert place.rows(table) == [two]


def _cascading(batch: LcrBatch) -> LcrBatch:
    return replace(batch, truncates=tuple(replace(found, cascade=True) for found in batch.truncates))


def _misses_a_row(world: World) -> bool:
    """The first failing transaction fails at a change of a row that only the destination lacks."""
    from tests.support.histories.apply_history import Conflict, Reference

    reference = Reference({name: list(rows) for name, rows in world.rows_before.items()})
    for transaction in world.history:
        for change in transaction.changes:
            try:
                reference._change(change)
            except Conflict:
                there = {row[0] for row in reference.rows["plain"]}
                return change.old is not None and change.old[0] not in there
    return False
