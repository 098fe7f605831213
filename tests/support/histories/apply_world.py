"""A source's history, a destination that may differ from the source, and the expected result."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.databases.ports import ErrorTransaction
from headrace.lcr.batch import OldImage
from protos import codec
from tests.support.apply.apply_engine import APPLY, TOPOLOGY, Engine
from tests.support.histories.apply_history import TABLES, Reference, Row, Source, Table, Transaction, cut_batches

PART_ROWS = 10  # most rows of one transaction in a batch


class Place(Protocol):
    """Location of the destination's tables."""

    destination: Any

    def create(self, table: Table) -> None: ...
    def insert(self, table: Table, rows: Sequence[Row]) -> None: ...
    def rows(self, table: Table) -> list[Row]: ...
    def lose_commit(self, rng: random.Random) -> None: ...


class MemoryPlace:
    """Tables in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.destination = MemoryDestination(store=self.store)

    def create(self, table: Table) -> None:
        table.create(self.store)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self.store.insert("public", table.name, rows)

    def rows(self, table: Table) -> list[Row]:
        return self.store.rows("public", table.name)

    def lose_commit(self, rng: random.Random) -> None:
        self.store.lose_next_commit_answer(committed=rng.random() < 0.5)


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, value or b"") for value in row])


class World:
    """A random case; the seed determines everything.

    Args:
        place: of the destination.
        count: transactions.
        conflicts: changes that only the destination has.
        changes: most changes in a transaction.
        large: approximate number of transactions with more changes than a batch holds.
        ordered: as for `Reference`.
    """

    def __init__(
        self,
        seed: int,
        place: Place,
        *,
        count: int,
        conflicts: int,
        changes: int = 4,
        large: int = 0,
        tables: Sequence[Table] = TABLES,
        ordered: Collection[str] = (),
    ) -> None:
        self.rng, self.place, self.tables = random.Random(seed), place, tables
        source = Source(self.rng, tables)
        source.fill(6)
        self.start = {name: list(found) for name, found in source.rows.items()}
        # If the log lacks old values of a unique column, which transaction meets a value that only the destination has
        # depends on the order of two independent transactions.
        other = Source(self.rng, [t for t in tables if not (t.unique and t.old_image is OldImage.KEY)])
        other.rows = {name: list(found) for name, found in source.rows.items()}
        for _ in range(conflicts):
            other._change()
        for table in tables:
            place.create(table)
            place.insert(table, other.rows[table.name])
        self.rows_before = {name: list(found) for name, found in other.rows.items()}
        self.reference = Reference({name: list(found) for name, found in other.rows.items()}, frozenset(ordered))
        self.history: list[Transaction] = []
        for number in range(1, count + 1):
            is_large = self.rng.random() * count < large
            size = self.rng.randrange(15, 40) if is_large else self.rng.randrange(1, changes + 1)
            self.history.append(source.transaction(number, size))
        self.source_rows = source.rows
        for transaction in self.history:
            self.reference.apply(transaction)
        self.batches = cut_batches(self.rng, self.history, PART_ROWS)

    def engine(self, seed: int, **settings: Any) -> Engine:
        return Engine(
            seed=seed,
            batches=self.batches,
            destination=self.place.destination,
            on_commit_lost=self.place.lose_commit,
            **settings,
        )

    def errors(self) -> tuple[ErrorTransaction, ...]:
        return tuple(self.place.destination.errors(TOPOLOGY, APPLY))

    def check(self) -> None:
        """Assert that the destination equals the result of serial transactions, error queue included."""
        for table in self.tables:
            assert in_order(self.place.rows(table)) == in_order(self.reference.rows[table.name]), table.name
        errors = self.errors()
        # A streamed transaction may fail before the part arrives by which it depends on an error transaction.
        streamed = {t.number for t in self.history if len(t.changes) > PART_ROWS}
        failed = {error.transaction_id for error in errors if error.depends_on == 0}
        assert sorted(error.transaction_id for error in errors) == sorted(self.reference.failed + self.reference.held)
        assert failed - streamed == set(self.reference.failed) - streamed
        self._check_order(errors)
        for error in errors:
            parts = [codec.decode(data) for data in self.place.destination.error_batches(error.number)]
            assert sum(part.row_count for part in parts) == len(self.history[error.transaction_id - 1].changes)

    def _check_order(self, errors: Sequence[ErrorTransaction]) -> None:
        by_number = {error.number: error for error in errors}
        for error in errors:
            mine = self.reference.keys_of(self.history[error.transaction_id - 1])[0]
            for other in errors:
                needs = self.reference.keys_of(self.history[other.transaction_id - 1])[1]
                if error.transaction_id < other.transaction_id and mine & needs:
                    assert error.number < other.number
            if error.depends_on:
                assert by_number[error.depends_on].transaction_id < error.transaction_id
