"""CREATE TABLE and DROP TABLE from the queue to the destination, and deaths of driver and servers around them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import DdlOutcomeKind
from headrace.lcr.batch import Command, LcrBatch, OldImage
from headrace.lcr.ddl import DdlChange
from headrace.lcr.table_name import TableName
from headrace.simulation.observing.history import TABLES, Change, Table, Transaction
from tests.support.apply.hosted_driver import Driver
from tests.support.histories.apply_history import batch_of
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure

OLD_TABLE = TABLES[0]
FIRST = Table(777, "made", ("id", "v"), OldImage.KEY)
SECOND = Table(778, "made", ("id", "v"), OldImage.KEY)

Piece = list[Change] | DdlChange


def identity(table: Table) -> str:
    return f"7.1.{table.number}.{table.number + 100}"


def inserted(table: Table, number: int) -> Change:
    return Change(table, Command.INSERT, new=(number.to_bytes(4, "big"), *[b"x"] * (len(table.columns) - 1)))


def shape(table: Table) -> dict[str, Any]:
    columns = [
        column(place + 1, name, "text" if place else "integer", not_null=not place)
        for place, name in enumerate(table.columns)
    ]
    key = {"number": 9, "name": f"{table.name}_pkey", "type": "p", "definition": "PRIMARY KEY (id)", "calls": False}
    return structure(*columns, owner="public", name=table.name, constraints=[key])


def creation(driver: Driver, table: Table) -> DdlChange:
    made = {"identities": {driver.config.topology: identity(table)}, "why_not": "", "sequences": {}}
    return ddl_change(None, shape(table), relation=table.number, tag="CREATE TABLE", made=made)


def removal(table: Table) -> DdlChange:
    return ddl_change(shape(table), None, relation=table.number, tag="DROP TABLE")


def parts_of(number: int, *pieces: Piece) -> list[LcrBatch]:
    """Return the batches of one transaction."""
    known, previous, position = Transaction(number), (number - 1) * 100 + 50, 0
    found = []
    for place, piece in enumerate(pieces):
        is_open = place < len(pieces) - 1
        if isinstance(piece, list):
            before: Any = [None] * position
            made = Transaction(number, [*before, *piece])
            batch = batch_of([made], previous, first=position, last=len(made.changes), is_open=is_open)
        else:
            batch = ddl_batch(
                piece,
                commit=known.commit_scn,
                previous=previous,
                is_open=is_open,
                continues=place > 0,
                first_position=position,
            )
            batch.transactions.order_scn[:] = known.order_scn
            batch.transactions.transaction_id[:] = number
        found.append(batch)
        position += batch.row_count
    return found


def replacing(driver: Driver) -> None:
    """Add transactions: CREATE with a row; a row; DROP, CREATE of the same name and a row; a row of the new table."""
    last = len(driver.history)
    driver.batches += parts_of(last + 1, creation(driver, FIRST), [inserted(FIRST, 1)])
    driver.batches += parts_of(last + 2, [inserted(FIRST, 2), inserted(OLD_TABLE, 1000)])
    driver.batches += parts_of(
        last + 3, [inserted(FIRST, 3)], removal(FIRST), creation(driver, SECOND), [inserted(SECOND, 4)]
    )
    driver.batches += parts_of(last + 4, [inserted(SECOND, 5), inserted(OLD_TABLE, 1001)])
    driver.start_driver()


def keys(driver: Driver) -> list[int]:
    return sorted(int.from_bytes(row[0] or b"", "big") for row in driver.store.rows("public", "made"))


def turn(driver: Driver, turns: int) -> None:
    for _ in range(turns):
        driver.host.turn(0.0)
        driver.step_task(0)


def assert_replaced(driver: Driver) -> None:
    assert not driver.store.errors
    assert keys(driver) == [4, 5]
    assert [each.outcome.kind for each in driver.store.ddl_history] == [DdlOutcomeKind.APPLIED] * 3
    assert not driver.host._reader._tables.unsettled


def test_tables_are_made_and_dropped_in_the_order_of_the_source(driver: Driver) -> None:
    replacing(driver)
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert_replaced(driver)
    assert [each.identity for each in driver.config.tables] == [identity(SECOND)]


@pytest.mark.parametrize("turns", range(0, 60, 2))
def test_driver_that_dies_around_them_applies_each_once(driver: Driver, turns: int) -> None:
    replacing(driver)
    driver.start_task(0)
    turn(driver, turns)
    driver.start_driver()
    driver.start_task(0)
    driver.run()
    assert_replaced(driver)


@pytest.mark.parametrize("turns", range(0, 60, 2))
def test_server_that_dies_around_them_applies_each_once(driver: Driver, turns: int) -> None:
    replacing(driver)
    driver.start_task(0)
    turn(driver, turns)
    driver.start_task(0)
    driver.run()
    assert_replaced(driver)


@pytest.mark.parametrize("turns", range(20, 60, 2))
def test_queue_that_breaks_around_them_changes_nothing(driver: Driver, turns: int) -> None:
    replacing(driver)
    driver.start_task(0)
    turn(driver, turns)
    driver.break_stream()
    driver.run()
    assert_replaced(driver)


def with_failing_row(driver: Driver) -> int:
    """The transaction of a CREATE TABLE is in the error queue, and a row of the table waits; return its number."""
    last = len(driver.history)
    taken = inserted(OLD_TABLE, 2000)
    assert taken.new is not None
    driver.store.insert("public", OLD_TABLE.name, [taken.new])
    driver.batches += parts_of(last + 1, creation(driver, FIRST), [inserted(FIRST, 1), taken])
    driver.batches += parts_of(last + 2, [inserted(FIRST, 2), inserted(OLD_TABLE, 2001)])
    driver.start_driver()
    for number in range(2):
        driver.start_task(number)
    with pytest.raises(AssertionError, match="no end"):
        driver.run(100)
    (number,) = driver.store.errors
    reader = driver.host._reader
    assert reader.state == "PAUSED: WAITING FOR ALTER"
    assert reader.unfit is not None
    assert "error queue" in reader.unfit.message
    found = driver.store.tables["public", OLD_TABLE.name]
    (place,) = [place for place, row in found.rows.items() if row == taken.new]
    found.put(place, None)
    return number


def test_creation_that_is_executed_from_the_error_queue_is_to_be_copied(driver: Driver) -> None:
    number = with_failing_row(driver)
    driver.coordinator.errors.executions.add([number])
    driver.run()
    (record,) = MemoryDestination(store=driver.store).instantiations(driver.config.topology, driver.config.apply)
    assert (record.state, record.identity) == ("COPYING", identity(FIRST))
    assert ("public", "made") in driver.store.tables
    assert [each.destination for each in driver.config.tables] == [TableName("public", "made")]
    assert 2 not in keys(driver), "the copy brings it"
    assert driver.host._reader.strangers == frozenset()


def test_creation_that_is_deleted_from_the_error_queue_makes_a_stranger(driver: Driver) -> None:
    number = with_failing_row(driver)
    assert driver.host.errors.delete([number]) == {number: ""}
    driver.clock.advance(10.0)
    driver.run()
    assert ("public", "made") not in driver.store.tables
    assert driver.host._reader.strangers == {TableName("public", "made")}
    assert not driver.config.tables
