"""The whole apply engine against a serial reference: rows, error queue and single application despite deaths."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.lcr.batch import Command, OldImage
from headrace.lcr.tracking import Label
from headrace.rules.rule import Rule, RuleSet
from spark_apply.tables.arriving import TableStart
from tests.support.apply.apply_engine import Engine, arm
from tests.support.histories.apply_history import Change, Reference, Table, Transaction, batch_of
from tests.support.histories.apply_world import MemoryPlace, World, in_order
from tests.support.session.matrices import values
from tests.support.session.seeds import scaled

_SETTINGS = settings(max_examples=scaled(7, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
_SEEDS = st.integers(0, 2**32)
_SERVERS = st.integers(1, 4)
_CONFLICTS = st.sampled_from([0, 0, 1, 4])


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=_SERVERS, transactions=st.integers(1, 7), conflicts=_CONFLICTS)
def test_parallel_groups_equal_one_by_one_application(
    seed: int, parallelism: int, transactions: int, conflicts: int
) -> None:
    world = World(seed, MemoryPlace(), count=30, conflicts=conflicts)
    engine = world.engine(seed, parallelism=parallelism, group_transactions=transactions)
    engine.run()
    world.check()
    assert engine.coordinator.statistics.applied + engine.coordinator.statistics.errors == len(world.history)


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=_SERVERS, conflicts=_CONFLICTS)
def test_large_transactions_are_applied_or_queued_whole(seed: int, parallelism: int, conflicts: int) -> None:
    world = World(seed, MemoryPlace(), count=20, conflicts=conflicts, large=5)
    world.engine(seed, parallelism=parallelism).run()
    world.check()


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=_SERVERS, conflicts=_CONFLICTS, large=st.sampled_from([0, 3]))
def test_crashes_between_and_inside_steps_lose_and_duplicate_nothing(
    seed: int,
    parallelism: int,
    conflicts: int,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed, MemoryPlace(), count=20, conflicts=conflicts, large=large)
    arm(monkeypatch, random.Random(seed), 0.03)
    world.engine(seed, parallelism=parallelism, crash=0.01).run()
    world.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", values(range(4), 0))
def test_crash_tests_include_the_death_of_every_process(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that never fires proves nothing."""
    fired: set[str] = set()
    for number in range(seed * 10, seed * 10 + 10):
        world = World(number, MemoryPlace(), count=20, conflicts=2, large=2)
        arm(monkeypatch, random.Random(number), 0.02)
        engine = world.engine(number, parallelism=2, crash=0.008)
        engine.run()
        world.check()
        fired |= set(engine.crashes)
    assert fired == {"server", "driver", "lost commit", "inside"}


def test_independent_groups_overlap_and_wait_only_for_dependencies() -> None:
    waits = commits = 0
    for seed in range(10):
        world = World(seed, MemoryPlace(), count=30, conflicts=0)
        engine = world.engine(seed, parallelism=3, group_transactions=2)
        engine.run()
        waits += engine.coordinator.statistics.wait_deps
        commits += engine.coordinator.statistics.commits
    assert 0 < waits < commits


ONE = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)


def stuck_world(seed: int) -> World:
    """The destination lacks rows, so that transactions fail and hold later ones."""
    for attempt in range(seed, seed + 100_000, 1000):
        world = World(attempt, MemoryPlace(), count=25, conflicts=3, tables=(ONE,), changes=2)
        if world.reference.failed and len(world.reference.held) > 2:
            return world
    raise AssertionError


@pytest.mark.parametrize("seed", range(6))
def test_executing_repaired_errors_in_order_converges_the_destination(seed: int) -> None:
    world = stuck_world(seed)
    engine = world.engine(seed, parallelism=2)
    engine.run()
    world.check()
    numbers = [error.number for error in world.errors()]
    # The repair: the destination gets the source's rows from before the first error.
    place = world.place
    assert isinstance(place, MemoryPlace)
    stored = place.store.tables["public", "plain"]
    for number in list(stored.rows):
        stored.put(number, None)
    first = world.errors()[0].transaction_id
    assert all(error.transaction_id >= first for error in world.errors())
    clean = Reference({"plain": list(world.start["plain"])})
    queued = {error.transaction_id for error in world.errors()}
    for transaction in world.history:
        if transaction.number not in queued:
            clean.apply(transaction)
    place.insert(ONE, clean.rows["plain"])
    assert not clean.failed
    outcomes = engine.execute_errors(numbers)
    assert outcomes == dict.fromkeys(numbers, "")
    assert world.errors() == ()
    assert in_order(place.rows(ONE)) == in_order(world.source_rows["plain"])


def test_error_depending_on_one_that_fails_again_is_refused() -> None:
    world = stuck_world(77)
    engine = world.engine(77)
    engine.run()
    held = next(error for error in world.errors() if error.depends_on)
    outcomes = engine.execute_errors([held.number])
    assert "depends on error transaction" in outcomes[held.number]


def test_apply_rules_and_instantiation_discard_the_right_changes() -> None:
    world = World(3, MemoryPlace(), count=20, conflicts=0)
    before = {table.name: world.place.rows(table) for table in world.tables}
    engine = world.engine(
        3,
        rules=RuleSet(include=(Rule(name="plain"), Rule(name="full"))),
        instantiation={("public", "plain"): TableStart(scn=10**6)},
    )
    engine.run()
    for table in world.tables:
        expected = world.reference.rows["full"] if table.name == "full" else before[table.name]
        assert sorted(map(repr, world.place.rows(table))) == sorted(map(repr, expected)), table.name
    assert engine.reader.statistics.rows_instantiated > 0
    assert engine.reader.statistics.rows_discarded > 0


def test_apply_pauses_at_the_first_unfit_lcr_until_the_alter() -> None:
    world = World(5, MemoryPlace(), count=6, conflicts=0, tables=(ONE,))
    wide = Table(11, "plain", ("id", "v", "big", "added"), OldImage.KEY)
    key = (99).to_bytes(4, "big")
    last = world.batches[-1].through_scn
    later = batch_of([Transaction(7, [Change(wide, Command.INSERT, new=(key, b"v", b"b", b"new"))])], last)
    version = replace(later.tables[0], version=4711)
    engine = Engine(
        seed=1, batches=[*world.batches, replace(later, tables=(version,))], destination=world.place.destination
    )
    for _ in range(3000):
        engine.step()
    assert engine.reader.state == "PAUSED: WAITING FOR ALTER"
    assert engine.coordinator.watermarks.low == last
    world.check()
    assert isinstance(world.place, MemoryPlace)
    wide.create(world.place.store)
    engine.run()
    assert (key, b"v", b"b", b"new") in world.place.rows(wide)
    assert world.errors() == ()


@pytest.mark.parametrize("large", [0, 4])
def test_labelled_transactions_are_noted_with_outcome_and_server(large: int) -> None:
    world = World(12, MemoryPlace(), count=30, conflicts=4, large=large)
    world.batches = [
        replace(
            batch,
            labels=tuple(
                Label(text="all", transaction_id=int(each), order_scn=int(order), commit_scn=int(commit), rows=1)
                for each, order, commit in zip(
                    batch.transactions.transaction_id,
                    batch.transactions.order_scn,
                    batch.transactions.commit_scn,
                    strict=True,
                )
            ),
        )
        for batch in world.batches
    ]
    engine = world.engine(12, parallelism=2)
    engine.run()
    world.check()
    notes = engine.tracks.answer("all")["notes"]
    outcome = {note["transaction_id"]: note["action"] for note in notes if note["action"] in {"APPLIED", "ERROR QUEUE"}}
    in_queue = {error.transaction_id for error in world.errors()}
    assert in_queue
    assert outcome == {each.number: "ERROR QUEUE" if each.number in in_queue else "APPLIED" for each in world.history}
    assert all(note["peer"].startswith("apply server ") for note in notes if note["action"] == "APPLIED")
