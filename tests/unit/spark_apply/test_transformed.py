"""The whole apply engine with transformations: rows and error queue equal those of the untransformed history, whichever
process dies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.databases.memory.store import destination_column
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.transformations.transformation import AddColumn, RenameColumn, RenameTable, Transformation
from protos import codec
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import arm
from tests.support.histories.apply_history import TABLES, Reference, Row, Table
from tests.support.histories.apply_world import MemoryPlace, World, in_order
from tests.support.session.seeds import scaled

# Table and column names are swapped: an untransformed lookup by name finds another table or column.
NAMES = {
    "plain": ("public", "full"),
    "full": ("public", "plain"),
    "twice": ("other", "twice"),
    "twice_full": ("public", "twice"),
    "history": ("public", "h"),
}
REGION = b"EMEA"


def transformation(table: Table) -> Transformation:
    first, second = table.columns[:2]
    owner, name = NAMES[table.name]
    return Transformation(
        operations=(
            RenameColumn(before=first, after="between"),
            RenameColumn(before=second, after=first),
            RenameColumn(before="between", after=second),
            AddColumn(name="region", type_name="pg_catalog.text", value=REGION.decode()),
            RenameTable(owner=owner, name=name),
        )
    )


RULES = RuleSet(
    include=tuple(Rule(owner=t.owner, name=t.name, tags=ANY_TAG, transformation=transformation(t)) for t in TABLES)
)


class TransformedPlace(MemoryPlace):
    """Tables in memory in their arriving form; rows are shown in the source's form."""

    def create(self, table: Table) -> None:
        columns = list(transformation(table).shape(table.columns, table=table.name).columns)
        self._shuffled(table, columns)
        types = {
            origin: "pg_catalog.int4" if place == 0 else "pg_catalog.text" for place, origin in enumerate(table.columns)
        }
        made = [
            destination_column(
                name,
                types[origin] if isinstance(origin, str) else "pg_catalog.text",
                equality="integer" if origin == table.columns[0] else "bytes",
                not_null=name == "region",
            )
            for name, origin in columns
        ]
        after = {origin: name for name, origin in columns}
        keys = [[after[table.columns[place]] for place in key] for key in table.keys]
        self.store.create_table(*NAMES[table.name], made, key=keys[0] if keys else (), unique=keys[1:])

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        stored = []
        for row in rows:
            values = dict(zip(table.columns, row, strict=True))
            stored.append(
                tuple(values[origin] if isinstance(origin, str) else REGION for _, origin in self._origins(table))
            )
        self.store.insert(*NAMES[table.name], stored)

    def rows(self, table: Table) -> list[Row]:
        origins = self._origins(table)
        found = []
        for row in self.store.rows(*NAMES[table.name]):
            values = {origin: value for (_, origin), value in zip(origins, row, strict=True)}
            assert [value for origin, value in values.items() if isinstance(origin, AddColumn)] == [REGION]
            found.append(tuple(values[column] for column in table.columns))
        return found

    def _shuffled(self, table: Table, columns: list[Any]) -> None:
        random.Random(table.number).shuffle(columns)

    def _origins(self, table: Table) -> list[Any]:
        columns = list(transformation(table).shape(table.columns, table=table.name).columns)
        self._shuffled(table, columns)
        return columns


_SETTINGS = settings(
    max_examples=scaled(7, 200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
_SEEDS = st.integers(0, 2**32)


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 4), conflicts=st.sampled_from([0, 1, 4]), large=st.sampled_from([0, 3]))
def test_transformed_history_equals_the_untransformed_history(
    seed: int,
    parallelism: int,
    conflicts: int,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed, TransformedPlace(), count=20, conflicts=conflicts, large=large)
    arm(monkeypatch, random.Random(seed), 0.02)
    world.engine(seed, parallelism=parallelism, crash=0.01, rules=RULES).run()
    world.check()


def test_errors_are_stored_and_executed_in_transformed_form() -> None:
    """Execution must not transform again: with swapped names a second transformation would find another table."""
    plain = TABLES[0]
    seed = next(
        seed
        for seed in range(0, 100_000, 1000)
        if World(seed, TransformedPlace(), count=25, conflicts=3, tables=(plain,)).reference.failed
    )
    place = TransformedPlace()
    world = World(seed, place, count=25, conflicts=3, tables=(plain,))
    engine = world.engine(seed, parallelism=2, rules=RULES)
    engine.run()
    world.check()
    numbers = [error.number for error in world.errors()]
    kept = [
        table
        for number in numbers
        for data in place.destination.error_batches(number)
        for table in codec.decode(data).tables
    ]
    assert {(table.owner, table.name) for table in kept} == {NAMES["plain"]}
    assert {table.columns[0].name for table in kept} == {"region"}
    clean, queued = Reference({"plain": list(world.start["plain"])}), {error.transaction_id for error in world.errors()}
    for transaction in world.history:
        if transaction.number not in queued:
            clean.apply(transaction)
    assert not clean.failed
    stored = place.store.tables[NAMES["plain"]]
    for number in list(stored.rows):
        stored.put(number, None)
    place.insert(plain, clean.rows["plain"])
    assert engine.execute_errors(numbers) == dict.fromkeys(numbers, "")
    assert in_order(place.rows(plain)) == in_order(world.source_rows["plain"])


def test_start_of_a_copy_is_looked_up_by_the_destination_name() -> None:
    world = World(5, TransformedPlace(), count=20, conflicts=0)
    starts = {("public", "full"): TableStart(scn=1 << 40)}  # rows arriving as public.plain are always in the copy
    engine = world.engine(5, rules=RULES, instantiation=starts)
    engine.run()
    plain, full = TABLES[0], TABLES[1]
    assert sorted(map(repr, world.place.rows(plain))) == sorted(map(repr, world.start["plain"]))
    assert sorted(map(repr, world.place.rows(full))) == sorted(map(repr, world.source_rows["full"]))
