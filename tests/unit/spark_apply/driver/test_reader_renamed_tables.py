"""What the apply reader passes on of tables that DDL renames: each row goes to the table that has its name by then."""

from __future__ import annotations

import pytest

from headrace.databases.ports import DdlOutcomeKind
from headrace.lcr.table_name import TableName
from tests.support.apply.ddl_reading import (
    NEW,
    NOT_APPLIED,
    Applying,
    T,
    creation,
    ddl,
    identity,
    listed,
    made,
    place,
    removal,
    renaming,
    rows,
)

U = 16385  # number of public.u


def test_rows_follow_a_renamed_table() -> None:
    reading = Applying()
    found = reading.read(
        rows("t", T, 15, last=False),
        ddl(renaming("t", "t_old", T), 15, first=1, last=False),
        rows("t_old", T, 15, 20, first=2),
    )
    assert made(found) == [(15, False, 1), (15, True, 1), (15, False, 1)]
    reading.rename("t", "t_old", T, 15, 1)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]
    assert reading.there.renamed == {identity(T): "t_old"}
    assert made(reading.read(rows("t_old", T, 30, previous=21))) == [(30, False, 1)]


def test_new_table_takes_the_name_of_a_renamed_one_in_its_transaction() -> None:
    reading = Applying()
    found = reading.read(
        ddl(renaming("t", "t_old", T), 15, last=False),
        ddl(creation("t", NEW), 15, first=1, last=False),
        rows("t", NEW, 15, first=2, last=False),
        rows("t_old", T, 15, 20, first=3),
    )
    assert made(found) == [(15, True, 1), (15, True, 1), (15, False, 1), (15, False, 1)]
    reading.rename("t", "t_old", T, 15)
    reading.make("t", NEW, 15, 1)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]
    assert (reading.there.renamed, reading.there.added, reading.there.removed) == (
        {identity(T): "t_old"},
        [identity(NEW)],
        [],
    )
    assert made(reading.read(rows("t", NEW, 30, previous=21), rows("t_old", T, 40, previous=31))) == [
        (30, False, 1),
        (40, False, 1),
    ]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_rebuilt_table_takes_the_name_of_the_old_one(is_dropped: bool) -> None:
    """CREATE t_new; INSERT; RENAME t TO t_old; RENAME t_new TO t; in one transaction, perhaps with DROP t_old."""
    reading = Applying()
    found = reading.read(
        ddl(creation("t_new", NEW), 15, last=False),
        rows("t_new", NEW, 15, first=1, last=False),
        ddl(renaming("t", "t_old", T), 15, first=2, last=False),
        ddl(renaming("t_new", "t", NEW), 15, first=3, last=False),
        *([ddl(removal("t_old", T), 15, first=4, last=False)] if is_dropped else []),
        rows("t", NEW, 15, 20, first=4 + is_dropped),
    )
    assert made(found) == [(15, True, 1), (15, False, 1), *[(15, True, 1)] * (2 + is_dropped), (15, False, 1)]
    reading.make("t_new", NEW, 15)
    reading.rename("t", "t_old", T, 15, 2)
    reading.rename("t_new", "t", NEW, 15, 3)
    if is_dropped:
        reading.drop("t_old", T, 15, 4)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]
    assert reading.there.added == [identity(NEW)]
    assert reading.there.removed == ([identity(T)] if is_dropped else [])
    assert reading.there.renamed == ({} if is_dropped else {identity(T): "t_old"})
    assert not reading.reader.strangers


def swap(*, first: int = 0) -> list:  # type: ignore[type-arg]
    moves = [("t", "x", T), ("u", "t", U), ("x", "u", T)]
    return [ddl(renaming(*move), 15, first=first + place, last=False) for place, move in enumerate(moves)]


def test_tables_exchange_their_names_in_one_transaction() -> None:
    reading = Applying(others=[listed("u", U)])
    reading.make("u", U, 0)
    found = reading.read(
        *swap(),
        rows("t", U, 15, first=3, last=False),
        rows("u", T, 15, 20, first=4),
        rows("t", U, 25, previous=21),
    )
    assert made(found) == [*[(15, True, 1)] * 3, (15, False, 1), (15, False, 1)]
    for position, move in enumerate([("t", "x", T), ("u", "t", U), ("x", "u", T)]):
        reading.rename(*move, 15, position)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1), (25, False, 1)]
    assert reading.there.renamed == {identity(T): "u", identity(U): "t"}


def test_exchange_that_was_not_made_stops_the_rows() -> None:
    """Else they would be in the other table."""
    reading = Applying(others=[listed("u", U)])
    reading.make("u", U, 0)
    reading.read(*swap(), rows("u", T, 15, 20, first=3))
    reading.there.outcomes |= {place(15, position): NOT_APPLIED for position in range(3)}
    assert not reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert reading.reader.unfit is not None
    assert "give the tables their new names at the destination, too" in reading.reader.unfit.hint


@pytest.mark.parametrize("outcome", [NOT_APPLIED, DdlOutcomeKind.SKIPPED])
def test_rename_that_was_not_made_leaves_the_name(outcome: DdlOutcomeKind) -> None:
    reading = Applying()
    reading.read(ddl(renaming("t", "t_old", T), 15))
    reading.there.outcomes[place(15)] = outcome
    assert reading.reader.retry_unfit()
    assert not reading.tables.unsettled
    assert reading.there.renamed == {}
    assert made(reading.read(rows("t_old", T, 20, previous=16))) == []
    assert reading.reader.unfit is not None
    reading.rename("t", "t_old", T, 90)  # by hand
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]


def test_rows_wait_for_a_rename_in_the_error_queue() -> None:
    reading = Applying()
    reading.read(ddl(renaming("t", "t_old", T), 15), rows("t_old", T, 20, previous=16))
    assert not reading.reader.retry_unfit()
    assert reading.take() == []
    assert reading.reader.unfit is not None
    assert "wait for the RENAME of public.t, whose transaction is in the error queue" in reading.reader.unfit.message
    reading.rename("t", "t_old", T, 15)  # executed
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]


def test_other_tables_rows_do_not_take_a_name_that_the_error_queue_would_free() -> None:
    reading = Applying(others=[listed("u", U)])
    reading.make("u", U, 0)
    reading.read(ddl(renaming("t", "t_old", T), 15), rows("t", U, 20, previous=16))
    assert not reading.reader.retry_unfit()
    assert made(reading.take()) == []


@pytest.mark.parametrize("how", ["reader restarts", "queue sends it again"])
def test_rows_before_a_rename_pass_again(how: str) -> None:
    reading = Applying()
    batches = [rows("t", T, 15, last=False), ddl(renaming("t", "t_old", T), 15, first=1, last=False)]
    reading.read(*batches)
    if how == "reader restarts":
        reading.restart(low=0)
    reading.read(*batches, rows("t_old", T, 15, first=2))
    assert reading.reader.unfit is None
    assert reading.reader.must_settle


def test_applied_rename_stays_unsettled_over_a_restart() -> None:
    reading = Applying()
    reading.read(ddl(renaming("t", "t_old", T), 15))
    reading.rename("t", "t_old", T, 15)
    reading.restart(low=16)
    assert reading.reader.must_settle
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("t_old", T, 20, previous=16))) == [(20, False, 1)]


def test_later_tables_take_the_names_of_renamed_ones() -> None:
    """As the source's tables are called when the driver starts is not how they were called when they were made."""
    reading = Applying(awaited=[listed("later", NEW, as_of=100)])
    reading.read(ddl(creation("new", NEW), 15))
    reading.make("new", NEW, 15)
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("new", NEW, 20, previous=16))) == [(20, False, 1)]
    reading.read(ddl(renaming("t", "later", T), 25, previous=21))
    reading.rename("t", "later", T, 25)
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("later", T, 30, previous=26), rows("new", NEW, 35, previous=31))) == [
        (30, False, 1),
        (35, False, 1),
    ]


def test_former_holder_of_a_new_tables_name_that_was_renamed_by_hand_is_not_forgotten() -> None:
    reading = Applying()
    reading.read(ddl(renaming("t", "t_old", T), 15, last=False), ddl(creation("t", NEW), 15, first=1))
    reading.store.tables["public", "z"] = reading.store.tables.pop(("public", "t"))
    reading.there.outcomes[place(15)] = DdlOutcomeKind.SKIPPED
    reading.make("t", NEW, 15, 1)
    from dataclasses import replace

    from tests.support.apply.ddl_reading import record

    reading.there.records[identity(T)] = replace(record("t", T, 0), name_now=("public", "z"))
    assert reading.reader.retry_unfit()
    assert reading.there.renamed == {identity(T): "z"}
    assert reading.there.removed == []
    assert made(reading.read(rows("t_old", T, 20, previous=16))) == []
    assert reading.reader.unfit is not None
    assert TableName("public", "t_old") not in reading.reader.strangers
