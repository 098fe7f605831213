"""The whole apply engine against a serial reference: rows, error queue, nothing twice, whatever dies."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databases.memory_destination import MemoryDestination
from databases.memory_store import MemoryStore
from protos import codec
from tests.support.apply_engine import APPLY, TOPOLOGY, Engine, arm
from tests.support.apply_history import TABLES, Reference, Source, Table, Transaction, cut_batches

PART_ROWS = 10  # what the batches of these tests hold of one transaction

_SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class World:
    """A source, a destination that may differ from it, and the reference."""

    def __init__(
        self, seed: int, *, count: int, conflicts: int, changes: int = 4, large: int = 0,
        tables: tuple[Table, ...] = TABLES,
    ) -> None:
        self.rng = random.Random(seed)
        source = Source(self.rng, tables)
        source.fill(6)
        self.store = MemoryStore()
        for table in tables:
            table.create(self.store)
        rows = {name: list(found) for name, found in source.rows.items()}
        other = Source(self.rng, tables)
        other.rows = rows
        for _ in range(conflicts):
            other._change()
        for name, found in rows.items():
            self.store.insert("public", name, found)
        self.reference = Reference({name: list(found) for name, found in rows.items()})
        self.history: list[Transaction] = []
        for number in range(1, count + 1):
            size = self.rng.randrange(15, 40) if self.rng.random() * count < large else self.rng.randrange(1, changes + 1)
            self.history.append(source.transaction(number, size))
        for transaction in self.history:
            self.reference.apply(transaction)
        self.destination = MemoryDestination(store=self.store)
        self.batches = cut_batches(self.rng, self.history, PART_ROWS)

    def engine(self, seed: int, **settings_: object) -> Engine:
        lose = lambda rng: self.store.lose_next_commit_answer(committed=rng.random() < 0.5)  # noqa: E731
        return Engine(
            seed=seed, batches=self.batches, destination=self.destination, on_commit_lost=lose, **settings_,  # type: ignore[arg-type]
        )

    def check(self) -> None:
        for table in TABLES:
            if ("public", table.name) in self.store.tables:
                expected = sorted(self.reference.rows[table.name], key=lambda row: [(v is not None, v or b"") for v in row])
                assert self.store.rows("public", table.name) == expected, table.name
        errors = self.destination.errors(TOPOLOGY, APPLY)
        # A streamed transaction may fail before the part comes by which it depends on an error transaction.
        streamed = {t.number for t in self.history if len(t.changes) > PART_ROWS}
        failed = {error.transaction_id for error in errors if error.depends_on == 0}
        assert sorted(error.transaction_id for error in errors) == sorted(self.reference.failed + self.reference.held)
        assert failed - streamed == set(self.reference.failed) - streamed
        self._check_order(errors)
        for error in errors:
            stored = sum(codec.decode(data).row_count for data in self.destination.error_batches(error.number))
            assert stored == len(self.history[error.transaction_id - 1].changes)

    def _check_order(self, errors: tuple) -> None:
        by_number = {error.number: error for error in errors}
        for error in errors:
            mine = Reference.keys_of(self.history[error.transaction_id - 1])[0]
            for other in errors:
                needs = Reference.keys_of(self.history[other.transaction_id - 1])[1]
                if error.transaction_id < other.transaction_id and mine & needs:
                    assert error.number < other.number
            if error.depends_on:
                assert by_number[error.depends_on].transaction_id < error.transaction_id


@_SETTINGS
@given(seed=st.integers(0, 2**32), parallelism=st.integers(1, 4), transactions=st.integers(1, 7), conflicts=st.sampled_from([0, 0, 1, 4]))
def test_parallel_groups_leave_what_one_by_one_would(seed: int, parallelism: int, transactions: int, conflicts: int) -> None:
    world = World(seed, count=30, conflicts=conflicts)
    engine = world.engine(seed, parallelism=parallelism, group_transactions=transactions)
    engine.run()
    world.check()
    assert engine.coordinator.statistics.applied + engine.coordinator.statistics.errors == len(world.history)


@_SETTINGS
@given(seed=st.integers(0, 2**32), parallelism=st.integers(1, 4), conflicts=st.sampled_from([0, 1, 4]))
def test_large_transactions_are_applied_whole_or_join_the_error_queue(seed: int, parallelism: int, conflicts: int) -> None:
    world = World(seed, count=20, conflicts=conflicts, large=5)
    world.engine(seed, parallelism=parallelism).run()
    world.check()


@_SETTINGS
@given(seed=st.integers(0, 2**32), parallelism=st.integers(1, 4), conflicts=st.sampled_from([0, 1, 4]), large=st.sampled_from([0, 3]))
def test_crashes_between_and_inside_steps_lose_nothing_and_double_nothing(
    seed: int, parallelism: int, conflicts: int, large: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed, count=20, conflicts=conflicts, large=large)
    arm(monkeypatch, random.Random(seed), 0.03)
    engine = world.engine(seed, parallelism=parallelism, crash=0.01)
    engine.run()
    world.check()
