"""Joint execution of error transactions equals their one-by-one execution, once each.

This holds whichever process dies and whatever arrives meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.databases.ports import ErrorTransaction
from headrace.lcr.batch import Command, OldImage
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.server import error_execution
from tests.support.apply.apply_engine import APPLY, STEPS_MAX, TOPOLOGY, Engine, arm
from tests.support.histories.apply_history import TABLES, Change, Reference, Table, Transaction, batch_of
from tests.support.histories.apply_world import MemoryPlace, World, in_order
from tests.support.session.seeds import scaled

_SETTINGS = settings(max_examples=scaled(12, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
_SEEDS = st.integers(0, 2**32)
LOG = Table(21, "log", ("a", "b"), OldImage.FULL, keyless=True)
ONE = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(number: int) -> Change:
    return Change(LOG, Command.INSERT, new=(key(number), b"what happened"))


def engine_of(
    place: MemoryPlace,
    history: Sequence[list[Change]],
    *,
    seed: int = 3,
    parallelism: int = 2,
    group_transactions: int = 4,
) -> Engine:
    """An apply process that gets each of these transactions as one batch."""
    batches, previous = [], 0
    for number, changes in enumerate(history, 1):
        batches.append(batch_of([Transaction(number, changes)], previous))
        previous = batches[-1].through_scn
    return Engine(
        seed=seed,
        batches=batches,
        destination=place.destination,
        parallelism=parallelism,
        group_transactions=group_transactions,
        on_commit_lost=place.lose_commit,
    )


def errors_of(place: MemoryPlace) -> tuple[ErrorTransaction, ...]:
    return place.destination.errors(TOPOLOGY, APPLY)


def failed_inserts(place: MemoryPlace, count: int) -> Engine:
    """Put all of them in the error queue: the first transaction fails, and the later ones depend on it."""
    place.create(LOG)
    engine = engine_of(
        place,
        [[Change(LOG, Command.DELETE, old=(key(0), b"not here"))], *[[insert(number)] for number in range(1, count)]],
    )
    engine.run()
    assert len(errors_of(place)) == count
    return engine


# --------------------------------------------------------------------------- joint execution


def test_keyless_inserts_do_not_join_the_queue_behind_a_failed_one() -> None:
    place = MemoryPlace()
    for table in (LOG, ONE):
        place.create(table)
    place.insert(ONE, [(key(7), b"ours", b"")])
    customer = Change(ONE, Command.INSERT, new=(key(7), b"theirs", b""))
    engine = engine_of(place, [[customer, insert(0)], *[[insert(number)] for number in range(1, 40)]])
    engine.run()
    (error,) = errors_of(place)
    assert error.transaction_id == 1
    assert len(place.rows(LOG)) == 39
    place.store.tables["public", "plain"].put(1, None)
    assert engine.execute_errors([error.number]) == {error.number: ""}
    assert len(place.rows(LOG)) == 40


def test_hundred_errors_are_executed_in_one_destination_transaction() -> None:
    place = MemoryPlace()
    engine = failed_inserts(place, 100)
    place.insert(LOG, [(key(0), b"not here")])
    before = place.store.commit_count
    numbers = [error.number for error in errors_of(place)]
    assert engine.execute_errors(numbers) == dict.fromkeys(numbers, "")
    assert place.store.commit_count == before + 1
    assert in_order(place.rows(LOG)) == [(key(number), b"what happened") for number in range(1, 100)]
    assert errors_of(place) == ()


def test_many_large_errors_are_executed_in_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    engine = failed_inserts(place, 40)
    place.insert(LOG, [(key(0), b"not here")])
    size = max(len(data) for error in errors_of(place) for data in place.destination.error_batches(error.number))
    before = place.store.commit_count
    monkeypatch.setattr(error_execution, "_TOGETHER_BYTES_MAX", 8 * size)
    numbers = [error.number for error in errors_of(place)]
    assert engine.execute_errors(numbers) == dict.fromkeys(numbers, "")
    assert 5 <= place.store.commit_count - before <= 10
    monkeypatch.setattr(error_execution, "_TOGETHER_BYTES_MAX", size - 1)
    assert len(place.rows(LOG)) == 39


def test_too_large_or_streamed_error_is_executed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    place.create(LOG)
    histories = [
        Transaction(1, [Change(LOG, Command.DELETE, old=(key(0), b"not here"))]),
        Transaction(2, [insert(1)]),
        Transaction(3, [insert(number) for number in range(2, 20)]),
        Transaction(4, [insert(20)]),
    ]
    batches = [batch_of([histories[0]], 0), batch_of([histories[1]], histories[0].commit_scn)]
    for first, last in ((0, 6), (6, 12), (12, 18)):
        batches.append(batch_of([histories[2]], histories[1].commit_scn, first=first, last=last, is_open=last < 18))
    batches.append(batch_of([histories[3]], histories[2].commit_scn))
    engine = Engine(seed=5, batches=batches, destination=place.destination, parallelism=2)
    engine.run()
    place.insert(LOG, [(key(0), b"not here")])
    numbers = [error.number for error in errors_of(place)]
    assert len(numbers) == 4
    assert engine.execute_errors(numbers) == dict.fromkeys(numbers, "")
    assert in_order(place.rows(LOG)) == [(key(number), b"what happened") for number in range(1, 21)]


def test_error_with_a_table_copied_since_is_refused_and_others_run() -> None:
    place = MemoryPlace()
    place.create(ONE)
    place.create(LOG)
    engine = engine_of(
        place,
        [
            [Change(ONE, Command.UPDATE, old=(key(1), b"a", b""), new=(key(1), b"b", b"")), insert(1)],
            [Change(ONE, Command.DELETE, old=(key(2), b"", b""))],
            [Change(ONE, Command.DELETE, old=(key(3), b"", b"")), insert(3)],
        ],
    )
    engine.run()
    numbers = [error.number for error in errors_of(place)]
    assert len(numbers) == 3
    for server in engine.servers.values():  # as for a copy that contains the changes of the first two
        server._context.copied_scns = lambda: {("public", "plain"): errors_of(place)[-1].commit_scn - 1}
    place.insert(ONE, [(key(3), b"", b"")])
    outcomes = engine.execute_errors(numbers)
    assert (outcomes[numbers[0]], outcomes[numbers[2]]) == ("", "")
    assert "copied again" in outcomes[numbers[1]]
    assert in_order(place.rows(LOG)) == [(key(1), b"what happened"), (key(3), b"what happened")]


# --------------------------------------------------------------------------- equality with one-by-one execution


def mended(world: World) -> None:
    """Change the destination's rows so that some failed transactions can be applied and others cannot."""
    place = world.place
    assert isinstance(place, MemoryPlace)
    for table in world.tables:
        stored = place.store.tables["public", table.name]
        for number in [number for number in stored.rows if world.rng.random() < 0.2]:
            stored.put(number, None)
        for row in world.start[table.name]:
            taken = any(
                all(row[c] is not None and row[c] == other[c] for c in of)
                for of in table.keys
                for other in stored.rows.values()
            )
            if not taken and world.rng.random() < 0.6:
                place.insert(table, [row])


def expected_of(world: World) -> Reference:
    """Return the result of executing each error transaction alone, in the order of the queue."""
    reference = Reference({table.name: list(world.place.rows(table)) for table in world.tables})
    for error in world.errors():
        reference.apply(world.history[error.transaction_id - 1])
    return reference


def assert_as_expected(world: World, expected: Reference) -> None:
    for table in world.tables:
        assert in_order(world.place.rows(table)) == in_order(expected.rows[table.name]), table.name
    assert sorted(error.transaction_id for error in world.errors()) == sorted(expected.failed + expected.held)


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), large=st.sampled_from([0, 3]))
def test_joint_execution_equals_one_by_one_execution(seed: int, parallelism: int, large: int) -> None:
    world = World(seed, MemoryPlace(), count=40, conflicts=6, large=large)
    engine = world.engine(seed, parallelism=parallelism)
    engine.run()
    mended(world)
    expected, numbers = expected_of(world), [error.number for error in world.errors()]
    outcomes = engine.execute_errors(numbers)
    assert_as_expected(world, expected)
    assert {number for number, problem in outcomes.items() if problem} == {error.number for error in world.errors()}


# For other tables the log lacks old values of a unique column: a failed transaction may succeed when it is retried
# after others.
_KNOWN = tuple(table for table in TABLES if not (table.unique and table.old_image is OldImage.KEY))


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), large=st.sampled_from([0, 3]))
def test_each_error_is_applied_once_or_stays_when_processes_die(
    seed: int, parallelism: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, MemoryPlace(), count=30, conflicts=6, large=large, tables=_KNOWN)
    engine = world.engine(seed, parallelism=parallelism)
    engine.run()
    mended(world)
    expected = expected_of(world)
    with monkeypatch.context() as patched:
        arm(patched, random.Random(seed), 0.05)
        engine.crash = 0.01
        tried: set[int] = set()
        for _ in range(STEPS_MAX):
            # A driver that dies forgets its execution requests.
            wanted = [
                number
                for number in engine.coordinator.errors.numbers
                if number not in tried and number not in engine.coordinator.errors.executions
            ]
            if wanted:
                engine.coordinator.errors.executions.add(wanted)
            elif all(number in tried for number in engine.coordinator.errors.numbers) and engine.coordinator.is_idle:
                break
            engine.step()
            tried |= {
                outcome.number
                for outcome in engine.coordinator.errors.executions.take_outcomes()
                if outcome.failure is not None
            }
        else:
            raise AssertionError(engine.state())
    engine.crash = 0.0
    for _ in range(2000):  # settles a dead server's groups and rolls back its sessions
        engine.step()
    assert_as_expected(world, expected)


def test_execution_tests_include_the_death_of_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that never fires proves nothing."""
    fired: set[str] = set()
    for seed in range(30):
        place = MemoryPlace()
        engine = failed_inserts(place, 12)
        place.insert(LOG, [(key(0), b"not here")])
        with monkeypatch.context() as patched:
            arm(patched, random.Random(seed), 0.2)
            engine.rng, engine.crash = random.Random(seed), 0.03
            for _ in range(STEPS_MAX):
                numbers = [
                    number
                    for number in engine.coordinator.errors.numbers
                    if number not in engine.coordinator.errors.executions
                ]
                if numbers:
                    engine.coordinator.errors.executions.add(numbers)
                engine.step()
                assert not any(outcome.failure for outcome in engine.coordinator.errors.executions.take_outcomes())
                if not errors_of(place):
                    break
        assert in_order(place.rows(LOG)) == [(key(number), b"what happened") for number in range(1, 12)]
        fired |= set(engine.crashes)
    assert fired == {"server", "driver", "lost commit", "inside"}


# --------------------------------------------------------------------------- arrivals during execution


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), transactions=st.integers(1, 5), queued=st.integers(1, 20))
def test_one_execution_empties_the_queue_while_dependents_arrive(
    seed: int,
    parallelism: int,
    transactions: int,
    queued: int,
) -> None:
    """The queue used to grow during its execution: arriving transactions depended on the remaining errors."""
    place = MemoryPlace()
    place.create(LOG)
    history = [[Change(LOG, Command.DELETE, old=(key(0), b"not here"))], *[[insert(number)] for number in range(1, 40)]]
    engine = engine_of(place, history, seed=seed, parallelism=parallelism, group_transactions=transactions)
    while len(engine.coordinator.errors.numbers) < queued:
        engine.step()
    place.insert(LOG, [(key(0), b"not here")])
    numbers = engine.coordinator.errors.numbers
    assert engine.execute_errors(numbers) == dict.fromkeys(numbers, "")
    engine.run()
    # Only transactions that a server had begun to queue before the execution request are left in it.
    late = [error.number for error in errors_of(place)]
    assert len(late) <= 2 * parallelism * transactions
    assert engine.execute_errors(late) == dict.fromkeys(late, "")
    assert errors_of(place) == ()
    assert in_order(place.rows(LOG)) == [(key(number), b"what happened") for number in range(1, 40)]


def test_independent_transactions_are_applied_between_executions() -> None:
    place = MemoryPlace()
    place.create(ONE)
    place.create(LOG)
    queue = [[Change(ONE, Command.DELETE, old=(key(number), b"", b""))] for number in range(1, 9)]
    engine = engine_of(place, [*queue, *[[insert(number)] for number in range(1, 30)]])
    while len(engine.coordinator.errors.numbers) < len(queue):
        engine.step()
    place.insert(ONE, [(key(number), b"", b"") for number in range(1, 9)])
    for number in engine.coordinator.errors.numbers:  # each alone, as from many commands
        engine.coordinator.errors.executions.add([number], ExecutionRequest())
    between = 0
    while engine.coordinator.errors.numbers:
        engine.step()
        between = max(between, len(place.rows(LOG)) if engine.coordinator.errors.numbers else 0)
    engine.run()
    assert 0 < between <= 29
    assert len(place.rows(LOG)) == 29
