"""Transactions with DDL LCRs from the queue to the destination, and deaths of driver and servers around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.memory.store import destination_column
from headrace.databases.ports import DdlOutcomeKind
from headrace.lcr.batch import Command, LcrBatch
from headrace.simulation.observing.history import TABLES, Change, Table, Transaction
from tests.support.apply.hosted_driver import Driver
from tests.support.histories.apply_history import batch_of
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure

PLAIN = TABLES[0]
WIDE = Table(PLAIN.number, PLAIN.name, (*PLAIN.columns, "more"), PLAIN.old_image)
WIDER = replace(WIDE, columns=(*WIDE.columns, "most"))
COLUMNS = [column(place + 1, name, "integer" if place == 0 else "text") for place, name in enumerate(WIDER.columns)]


def inserted(table: Table, number: int) -> Change:
    return Change(table, Command.INSERT, new=(number.to_bytes(4, "big"), *[b"x"] * (len(table.columns) - 1)))


def with_ddl(number: int, before: Table, after: Table) -> list[LcrBatch]:
    """A transaction in its parts: a row of the table as it was, the DDL LCR, a row of the table as it is."""
    rows = Transaction(number, [inserted(before, 3 * number), inserted(before, 0), inserted(after, 3 * number + 1)])
    previous = (number - 1) * 100 + 50
    change = ddl_change(
        structure(*COLUMNS[: len(before.columns)], owner="public", name=before.name),
        structure(*COLUMNS[: len(after.columns)], owner="public", name=after.name),
        relation=before.number,
    )
    ddl = ddl_batch(change, commit=rows.commit_scn, previous=previous, is_open=True, continues=True, first_position=1)
    ddl.transactions.order_scn[:] = [rows.order_scn]
    ddl.transactions.transaction_id[:] = [number]
    return [batch_of([rows], previous, last=1, is_open=True), ddl, batch_of([rows], previous, first=2)]


def changing(driver: Driver) -> list[int]:
    """Put two transactions with DDL at the end of the queue, and one behind each; return the keys of their rows."""
    last = len(driver.history)
    for number, before, after in ((last + 1, PLAIN, WIDE), (last + 3, WIDE, WIDER)):
        driver.batches += with_ddl(number, before, after)
        behind = Transaction(number + 1, [inserted(after, 3 * number + 3)])
        driver.batches.append(batch_of([behind], number * 100 + 50))
    driver.start_driver()  # subscribed when the queue has them
    return [3 * number + place for number in (last + 1, last + 3) for place in (0, 1, 3)]


def columns_of(driver: Driver) -> list[str]:
    return [each.name for each in driver.store.tables["public", PLAIN.name].table.columns]


def turn(driver: Driver, turns: int) -> None:
    for _ in range(turns):
        driver.host.turn(0.0)
        driver.step_task(0)


def assert_changed(driver: Driver, keys: list[int]) -> None:
    assert not driver.store.errors
    assert columns_of(driver) == list(WIDER.columns)
    ours = sorted(int.from_bytes(row[0] or b"", "big") for row in driver.store.rows("public", PLAIN.name))
    assert [key for key in ours if key in keys] == keys
    assert [each.outcome.kind for each in driver.store.ddl_history] == [DdlOutcomeKind.APPLIED] * 2


def test_rows_and_ddl_are_applied_in_the_order_of_the_source(driver: Driver) -> None:
    keys = changing(driver)
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert_changed(driver, keys)
    assert driver.coordinator.status()["ddl_applied"] == 2


@pytest.mark.parametrize("turns", range(30))
def test_driver_that_dies_around_a_ddl_applies_it_once(driver: Driver, turns: int) -> None:
    keys = changing(driver)
    driver.start_task(0)
    turn(driver, turns)
    driver.start_driver()
    driver.start_task(0)
    driver.run()
    assert_changed(driver, keys)


@pytest.mark.parametrize("turns", range(30))
def test_server_that_dies_around_a_ddl_applies_it_once(driver: Driver, turns: int) -> None:
    keys = changing(driver)
    driver.start_task(0)
    turn(driver, turns)
    driver.start_task(0)  # another process of the same number: the first one's session is ended
    driver.run()
    assert_changed(driver, keys)


def test_refused_ddl_is_tried_until_the_table_takes_it(driver: Driver) -> None:
    """Nothing of its transaction is written, nothing behind it is applied, and nothing joins the error queue."""
    keys = changing(driver)
    columns = driver.store.tables["public", PLAIN.name].table.columns
    theirs = destination_column("more", "pg_catalog.int4")
    driver.store.create_table("public", PLAIN.name, [*columns, theirs], key=["id"])
    driver.start_task(0)
    with pytest.raises(AssertionError, match="no end"):
        driver.run(100)
    assert not driver.store.errors
    assert driver.coordinator.watermarks.low == len(driver.history) * 100 + 50
    _, server = driver.tasks[0]
    assert server.state == "PAUSED: WAITING FOR ALTER"
    written = [int.from_bytes(row[0] or b"", "big") for row in driver.store.rows("public", PLAIN.name)]
    assert not set(written) & set(keys)
    driver.store.create_table("public", PLAIN.name, columns, key=["id"])
    driver.clock.advance(10.0)
    driver.run()
    assert_changed(driver, keys)


def test_ddl_in_the_error_queue_with_a_failed_row_is_executed_with_it(driver: Driver) -> None:
    """Until then what follows waits: it does not fit the table as it is."""
    keys = changing(driver)
    taken = inserted(PLAIN, keys[1])
    assert taken.new is not None
    driver.store.insert("public", PLAIN.name, [taken.new])
    for number in range(2):
        driver.start_task(number)
    with pytest.raises(AssertionError, match="no end"):
        driver.run(100)
    (stored,) = driver.store.errors.values()
    assert (stored.transaction.row_count, len(stored.parts)) == (3, 3)
    assert driver.store.ddl_history == []
    assert driver.host._reader.state == "PAUSED: WAITING FOR ALTER"
    found = driver.store.tables["public", PLAIN.name]
    (place,) = [place for place, row in found.rows.items() if row == taken.new]
    found.put(place, None)
    driver.coordinator.errors.executions.add([stored.transaction.number])
    driver.run()
    assert_changed(driver, keys)
    assert driver.coordinator.status()["ddl_applied"] == 2


def test_ddl_in_a_deleted_error_transaction_is_recorded_as_skipped(driver: Driver) -> None:
    keys = changing(driver)
    taken = inserted(PLAIN, keys[1])
    assert taken.new is not None
    driver.store.insert("public", PLAIN.name, [taken.new])
    for number in range(2):
        driver.start_task(number)
    with pytest.raises(AssertionError, match="no end"):
        driver.run(100)
    (number,) = driver.store.errors
    assert driver.host.errors.delete([number]) == {number: ""}
    (made,) = driver.store.ddl_history
    assert (made.outcome.kind, made.table.name, made.place.position) == (DdlOutcomeKind.SKIPPED, PLAIN.name, 1)
    assert made.outcome.reason == f"error transaction {number} was deleted from the error queue"


def test_tables_are_released_while_the_queue_is_away(driver: Driver) -> None:
    """The rest of a transaction with DDL may come hours later. Until then nobody could even read its tables."""
    keys = changing(driver)
    kept = driver.batches[:]
    del driver.batches[-6:]  # from the last part of the first one on
    driver.start_driver()
    driver.start_task(0)
    turn(driver, 60)
    assert driver.tasks[0][1].state == "WAIT FOR NEXT CHUNK"
    assert columns_of(driver) == list(WIDE.columns)
    driver.batches.clear()
    driver.break_stream()
    turn(driver, 3)
    assert driver.tasks[0][1].state == "IDLE"
    assert columns_of(driver) == list(PLAIN.columns)
    driver.batches += kept
    driver.break_stream()
    driver.run()
    assert_changed(driver, keys)
