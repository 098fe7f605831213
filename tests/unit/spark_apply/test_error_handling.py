"""What an error transaction blocks, what an operator can change in it, and that no death loses or duplicates one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError
from headrace.databases.ports import ErrorEdit
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.row_lcr import RowLcr
from protos import codec
from spark_apply.conversation.groups import OnError
from spark_apply.dependencies.hashes import table_hashes
from spark_apply.driver.error_edits import EditedPart, EditRequest, ValueEdit, edited_part
from tests.support.apply.apply_engine import APPLY, STEPS_MAX, TOPOLOGY, Engine, arm
from tests.support.histories.apply_history import Change, Reference, Table, Transaction, batch_of
from tests.support.histories.apply_world import MemoryPlace, World, in_order
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import ddl_batch

_SETTINGS = settings(max_examples=scaled(5, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
_SEEDS = st.integers(0, 2**32)
ONE = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def one_by_one(world: World) -> Reference:
    """Return the destination's rows after each transaction was tried alone and failed ones were skipped."""
    reference = Reference({name: list(rows) for name, rows in world.rows_before.items()})
    for transaction in world.history:
        reference.apply(transaction)
        reference._uses.clear()
    return reference


def assert_rows(world: World, reference: Reference) -> None:
    for table in world.tables:
        assert in_order(world.place.rows(table)) == in_order(reference.rows[table.name]), table.name


# --------------------------------------------------------------------------- on_error


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), crash=st.sampled_from([0.0, 0.01]), large=st.sampled_from([0, 2]))
def test_on_error_continue_tries_every_transaction_independently(
    seed: int,
    parallelism: int,
    crash: float,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed, MemoryPlace(), count=20, conflicts=3, large=large)
    if crash:
        arm(monkeypatch, random.Random(seed), 0.02)
    engine = world.engine(seed, parallelism=parallelism, crash=crash, on_error=OnError.CONTINUE)
    engine.run()
    expected = one_by_one(world)
    assert_rows(world, expected)
    assert sorted(error.transaction_id for error in world.errors()) == expected.failed
    assert {error.depends_on for error in world.errors()} <= {0}


def until_disabled(engine: Engine) -> bool:
    """Step until everything is applied or an error has disabled it with nothing in flight; return if disabled."""
    through = engine.batches[-1].through_scn
    for _ in range(STEPS_MAX):
        coordinator = engine.coordinator
        if coordinator.errors.disables:
            if not coordinator._groups and not coordinator._replay.is_wanted:
                return True
        elif coordinator.watermarks.low >= through and coordinator.state != "APPLYING":
            return False
        engine.step()
    raise AssertionError(f"no end: {engine.state()}")


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS, parallelism=st.integers(1, 3), crash=st.sampled_from([0.0, 0.01]), large=st.sampled_from([0, 2]))
def test_on_error_disable_applies_nothing_until_the_error_queue_is_empty(
    seed: int,
    parallelism: int,
    crash: float,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(seed, MemoryPlace(), count=20, conflicts=3, large=large)
    if crash:
        arm(monkeypatch, random.Random(seed), 0.02)
    engine = world.engine(seed, parallelism=parallelism, crash=crash, on_error=OnError.DISABLE)
    failed = []
    while until_disabled(engine):
        errors = world.errors()
        assert errors
        before = {table.name: world.place.rows(table) for table in world.tables}
        for _ in range(100):
            engine.step()
        assert {table.name: world.place.rows(table) for table in world.tables} == before
        assert world.errors() == errors
        for error in errors:
            failed.append(error.transaction_id)
            assert world.place.destination.delete_errors(TOPOLOGY, [error.number])
            engine.coordinator.errors.deleted(error.number)
    expected = one_by_one(world)
    assert_rows(world, expected)
    assert sorted(failed) == expected.failed


def test_disabled_apply_process_executes_errors_and_resumes_by_itself() -> None:
    place = MemoryPlace()
    engine = apply_of(
        place,
        [
            [Change(ONE, Command.INSERT, new=(key(7), b"theirs", b""))],
            [Change(ONE, Command.INSERT, new=(key(8), b"next", b""))],
            [Change(ONE, Command.UPDATE, old=(key(7), b"theirs", b""), new=(key(7), b"behind", b""))],
        ],
        rows=[(key(7), b"ours", b"")],
        on_error=OnError.DISABLE,
    )
    assert until_disabled(engine)
    (error,) = place.destination.errors(TOPOLOGY)
    assert "insert_exists" in error.conflict_type
    assert engine.execute_errors([error.number])[error.number] != ""
    assert until_disabled(engine)
    # its dependent is not in the queue: it was not applied yet
    assert len(place.destination.errors(TOPOLOGY)) == 1
    place.store.tables["public", "plain"].put(1, None)
    assert engine.execute_errors([error.number]) == {error.number: ""}
    assert not until_disabled(engine)
    assert in_order(place.rows(ONE)) == [(key(7), b"behind", b""), (key(8), b"next", b"")]


# --------------------------------------------------------------------------- editing


def apply_of(
    place: MemoryPlace,
    history: list[list[Change]],
    rows: list[tuple[bytes, ...]],
    *,
    on_error: OnError = OnError.HOLD_DEPENDENTS,
) -> Engine:
    place.create(ONE)
    place.insert(ONE, rows)
    batches, previous = [], 0
    for number, changes in enumerate(history, 1):
        batches.append(batch_of([Transaction(number, changes)], previous))
        previous = batches[-1].through_scn
    return Engine(seed=3, batches=batches, destination=place.destination, parallelism=2, on_error=on_error)


def edit_of(engine: Engine, number: int, *values: ValueEdit, position: int = 0, edit: int = 1) -> EditedPart:
    request = EditRequest(number=number, edit=edit, position=position, values=values, edited_by="ada@desk")
    return edited_part(request, APPLY, engine.destination.error_batches(number), engine.fits.fit)


def store(engine: Engine, made: EditedPart) -> bool:
    done: bool = engine.destination.edit_error(
        TOPOLOGY, made.edit, part=made.part, batch=made.batch, key_hashes=made.key_hashes
    )
    if done:
        engine.coordinator.errors.edited(made.edit.number, made.key_hashes)
    return done


def new(column: str, raw: bytes | None, after: str = "?") -> ValueEdit:
    return ValueEdit(kind="new", column=column, raw=raw, before="?", after=after)


def conflicting() -> tuple[MemoryPlace, Engine, int]:
    """An INSERT of an existing row, and a later transaction that depends on it."""
    place = MemoryPlace()
    engine = apply_of(
        place,
        [
            [
                Change(ONE, Command.INSERT, new=(key(7), b"theirs", b"")),
                Change(ONE, Command.INSERT, new=(key(8), b"with it", b"")),
            ],
            [Change(ONE, Command.UPDATE, old=(key(8), b"with it", b""), new=(key(8), b"later", b""))],
        ],
        rows=[(key(7), b"ours", b"")],
    )
    engine.run()
    first, second = place.destination.errors(TOPOLOGY)
    assert second.depends_on == first.number
    return place, engine, first.number


def test_edited_transaction_is_applied_and_its_original_kept_until_then() -> None:
    place, engine, number = conflicting()
    original = list(place.destination.error_batches(number))
    assert store(engine, edit_of(engine, number, new("id", key(9), "9"), new("v", b"edited")))
    (data,) = place.destination.error_batches(number)
    assert [RowLcr(codec.decode(data), row).get_value("new", "v").raw for row in range(2)] == [b"edited", b"with it"]
    assert list(place.destination.error_batches(number, original=True)) == original
    assert place.destination.errors(TOPOLOGY)[0].edits == 1
    assert engine.execute_errors([number, number + 1]) == {number: "", number + 1: ""}
    assert in_order(place.rows(ONE)) == [(key(7), b"ours", b""), (key(8), b"later", b""), (key(9), b"edited", b"")]
    (kept,) = place.destination.error_edits(TOPOLOGY)
    assert (kept.outcome, kept.edited_by, kept.changes) == ("EXECUTED", "ada@desk", ("new.id: ? -> 9", "new.v: ? -> ?"))


@pytest.mark.parametrize("restart", [False, True])
def test_later_transactions_wait_for_a_key_set_by_an_edit(restart: bool) -> None:
    place, engine, number = conflicting()
    assert store(engine, edit_of(engine, number, new("id", key(9))))
    last = engine.batches[-1].through_scn
    engine.batches.append(batch_of([Transaction(3, [Change(ONE, Command.INSERT, new=(key(9), b"third", b""))])], last))
    if restart:
        engine.start_driver()
    engine.run()
    third = place.destination.errors(TOPOLOGY)[-1]
    assert (third.transaction_id, third.depends_on) == (3, number)


def test_edit_overtaken_by_another_edit_is_refused() -> None:
    place, engine, number = conflicting()
    mine, theirs = edit_of(engine, number, new("v", b"mine")), edit_of(engine, number, new("v", b"theirs"))
    assert store(engine, theirs)
    before = list(place.destination.error_batches(number))
    assert not store(engine, mine)
    assert list(place.destination.error_batches(number)) == before
    assert store(engine, edit_of(engine, number, new("v", b"mine"), edit=2))
    assert [edit.edit for edit in place.destination.error_edits(TOPOLOGY, number)] == [1, 2]


def test_edit_of_an_executed_or_deleted_transaction_is_refused() -> None:
    place, engine, number = conflicting()
    made = edit_of(engine, number, new("v", b"late"))
    place.store.tables["public", "plain"].put(1, None)
    assert engine.execute_errors([number]) == {number: ""}
    assert not store(engine, made)
    assert not store(engine, replace(made, edit=replace(made.edit, number=number + 1, edit=7)))
    assert place.destination.error_edits(TOPOLOGY) == ()


def test_edit_of_a_missing_row_column_or_value_is_refused() -> None:
    _, engine, number = conflicting()
    with pytest.raises(ConfigError, match="has no row 2"):
        edit_of(engine, number, new("v", b"x"), position=2)
    with pytest.raises(ConfigError, match="has no column nothing"):
        edit_of(engine, number, new("nothing", b"x"))
    with pytest.raises(LcrError, match="no old values"):
        edit_of(engine, number, ValueEdit(kind="old", column="v", raw=b"x", before="", after=""))


@pytest.mark.seeded
@_SETTINGS
@given(seed=_SEEDS)
def test_edited_transaction_is_applied_once_when_servers_die(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place, engine, number = conflicting()
    assert store(engine, edit_of(engine, number, new("id", key(9))))
    engine.rng, engine.crash = random.Random(seed), 0.02
    arm(monkeypatch, random.Random(seed), 0.3)
    asked = 0
    while place.destination.errors(TOPOLOGY):
        asked += 1
        assert asked < 100, engine.state()
        waiting = [error.number for error in place.destination.errors(TOPOLOGY)]
        driver = engine.coordinator
        engine.coordinator.errors.executions.add(waiting)
        for _ in range(500):
            engine.step()
            if engine.coordinator is not driver:
                break  # the operator sees that the apply process ended, and asks again
    assert in_order(place.rows(ONE)) == [(key(7), b"ours", b""), (key(8), b"later", b""), (key(9), b"theirs", b"")]
    assert [edit.outcome for edit in place.destination.error_edits(TOPOLOGY)] == ["EXECUTED"]


def test_edit_behind_a_ddl_keeps_its_table_exclusive() -> None:
    """Nothing at the destination is as the edited row needs it: the DDL is in the error queue with the row."""

    def not_described(version: object) -> Any:
        raise AssertionError(f"{version} is described")

    rows = batch_of([Transaction(1, [Change(ONE, Command.INSERT, new=(key(7), b"v", b""))])], 0)
    rows = replace(rows, continues=True, first_position=1)
    parts = [codec.encode(ddl_batch(is_open=True)), codec.encode(rows)]
    request = EditRequest(number=3, edit=1, position=1, values=(new("id", key(8)),), edited_by="ada@desk")
    made = edited_part(request, APPLY, parts, not_described)
    assert (made.part, made.edit.command) == (1, "INSERT")
    assert made.key_hashes.tolist() == table_hashes(rows).stored().tolist()
    with pytest.raises(ConfigError, match=r"row 0 is a DDL LCR of hr\.jobs"):
        edited_part(replace(request, position=0), APPLY, parts, not_described)


# --------------------------------------------------------------------------- as another role


def test_error_is_executed_as_a_role_or_stays_if_the_role_is_refused() -> None:
    place, engine, number = conflicting()
    place.store.tables["public", "plain"].put(1, None)
    problem = engine.execute_errors([number], role="nobody")[number]
    assert "as role nobody" in problem
    assert [error.number for error in place.destination.errors(TOPOLOGY)] == [number, number + 1]
    place.store.roles.add("clerk")
    assert engine.execute_errors([number], role="clerk") == {number: ""}
    assert engine.execute_errors([number + 1]) == {number + 1: ""}


def test_edit_records_author_time_and_changes() -> None:
    place, engine, number = conflicting()
    made = edit_of(engine, number, new("v", None, "NULL"))
    assert made.edit == ErrorEdit(
        number=number,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="plain",
        command="INSERT",
        changes=("new.v: ? -> NULL",),
        edited_by="ada@desk",
    )
    assert store(engine, made)
    (kept,) = place.destination.error_edits(TOPOLOGY, number)
    assert kept.edited_us > 0


def test_change_waits_for_the_error_of_its_row_after_a_table_rename() -> None:
    place = MemoryPlace()
    renamed = replace(ONE, name="renamed")
    engine = apply_of(
        place, [[Change(ONE, Command.INSERT, new=(key(7), b"theirs", b""))]], rows=[(key(7), b"ours", b"")]
    )
    engine.run()
    table = place.store.tables.pop(("public", "plain"))
    table.table = replace(table.table, name="renamed")
    place.store.tables["public", "renamed"] = table
    behind = Change(renamed, Command.UPDATE, old=(key(7), b"theirs", b""), new=(key(7), b"behind", b""))
    engine.batches.append(batch_of([Transaction(2, [behind])], engine.batches[-1].through_scn))
    engine.start_driver()
    engine.run()
    assert [(error.transaction_id, bool(error.depends_on)) for error in place.destination.errors(TOPOLOGY)] == [
        (1, False),
        (2, True),
    ]
    assert in_order(place.rows(renamed)) == [(key(7), b"ours", b"")]
