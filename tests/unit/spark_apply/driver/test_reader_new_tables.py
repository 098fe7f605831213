"""What the apply reader passes on of tables that DDL makes and drops, before and after it is known what became of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.ports import DdlOutcomeKind
from headrace.lcr.batch import LcrBatch, Truncate
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.driver.reading.pieces import LargeDropped, LargePart
from spark_apply.tables.arriving import BEING_COPIED
from tests.support.apply.ddl_reading import (
    APPLIED,
    NEW,
    NEWER,
    NOT_APPLIED,
    Applying,
    T,
    alteration,
    creation,
    ddl,
    identity,
    listed,
    made,
    place,
    record,
    removal,
    renaming,
    rows,
)

# --------------------------------------------------------------------------- a table that is made


def test_rows_of_a_new_table_pass_from_its_creation_on() -> None:
    reading = Applying()
    found = reading.read(ddl(creation("new", NEW), 15, last=False), rows("new", NEW, 15, 20, 25, previous=0, first=1))
    assert made(found) == [(15, True, 1), (15, False, 1)]
    assert reading.reader.must_settle
    reading.make("new", NEW, 15)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1), (25, False, 1)]
    assert reading.there.added == [identity(NEW)]
    assert made(reading.read(rows("new", NEW, 30, previous=26))) == [(30, False, 1)]
    assert not reading.reader.strangers


def test_new_table_that_is_truncated_behind_its_creation_is_truncated_here() -> None:
    reading = Applying()
    batch = rows("new", NEW, 15, first=1)
    truncate = Truncate(row_number=0, tables=(0,), cascade=False, restart_identity=False)
    found = reading.read(ddl(creation("new", NEW), 15, last=False), replace(batch, groups=(), truncates=(truncate,)))
    assert made(found) == [(15, True, 1), (15, False, 1)]


def test_creation_below_what_is_applied_is_dropped() -> None:
    reading = Applying()
    reading.restart(low=10, ahead=30)
    assert made(reading.read(ddl(creation("new", NEW), 15, previous=10))) == []
    assert not reading.tables.unsettled
    reading.restart(low=20)
    assert made(reading.read(ddl(creation("new", NEW), 15, previous=20))) == []


@pytest.mark.parametrize("kind", [NOT_APPLIED, DdlOutcomeKind.SKIPPED])
def test_rows_of_a_table_that_was_not_made_are_a_strangers(kind: DdlOutcomeKind) -> None:
    """Also rows that were selected while it was expected to be made: they were in the batch of its last part."""
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15, last=False), rows("new", NEW, 15, 20, first=1))
    reading.there.outcomes[place(15)] = kind
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert made(reading.read(rows("new", NEW, 30, previous=21))) == []
    assert reading.reader.strangers == {TableName("public", "new")}
    assert reading.there.added == []
    assert made(reading.read(ddl(alteration("new", NEW), 35, previous=31))) == []
    assert reading.reader.wants


def test_table_that_is_not_in_the_log_is_passed_on_to_be_recorded() -> None:
    reading = Applying()
    assert made(reading.read(ddl(creation("new", NEW, why_not="it is unlogged"), 15))) == [(15, True, 1)]
    assert not reading.tables.unsettled
    assert reading.reader.retry_unfit()
    assert made(reading.read(ddl(alteration("new", NEW), 25, previous=16))) == []
    reading.restart(low=10, ahead=30)
    assert made(reading.read(ddl(creation("new", NEW, why_not="it is unlogged"), 15, previous=10))) == []


def test_rows_of_a_creation_that_the_rules_discard_are_a_strangers() -> None:
    reading = Applying(rules=RuleSet(include=(Rule(owner="*", name="*"),)))
    assert made(reading.read(ddl(creation("new", NEW), 15))) == []
    assert not reading.tables.unsettled
    assert made(reading.read(rows("new", NEW, 20, previous=16))) == []
    assert reading.reader.strangers == {TableName("public", "new")}
    assert reading.reader.wants


# --------------------------------------------------------------------------- a table of the list


def test_awaited_table_is_applied_from_its_creation_on() -> None:
    """The driver started when the source had it already, and its CREATE TABLE was on its way."""
    reading = Applying(awaited=[listed("new", NEW, as_of=100)])
    found = reading.read(ddl(creation("new", NEW), 15, last=False), rows("new", NEW, 15, 20, first=1))
    assert made(found) == [(15, True, 1), (15, False, 1)]
    reading.make("new", NEW, 15)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]


def test_awaited_table_that_is_not_made_is_skipped_until_its_copy_joins() -> None:
    reading = Applying(awaited=[listed("new", NEW, as_of=100)])
    reading.read(ddl(creation("new", NEW), 15))
    reading.there.outcomes[place(15)] = NOT_APPLIED
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("new", NEW, 20, previous=16))) == []
    assert not reading.reader.strangers
    reading.make("new", NEW, 15)
    reading.reader.change_tables(leave_out=(), join=[record("new", NEW, 120, "COPIED")])
    reading.restart(low=130, ahead=130)
    reading.reader.all_joined()
    assert made(reading.read(rows("new", NEW, 140, previous=130))) == [(140, False, 1)]


def test_creation_of_a_table_that_is_copied_is_only_recorded() -> None:
    reading = Applying(awaited=[listed("new", NEW)])
    reading.tables.leave_out([("public", "new")])
    (found,) = reading.read(ddl(creation("new", NEW), 15))
    assert isinstance(found, LargePart)
    assert found.batch.ddl is not None
    assert found.batch.ddl.why_not_made == BEING_COPIED
    assert not reading.tables.unsettled


def test_table_that_was_put_back_into_the_log_is_copied_and_not_made() -> None:
    """Its identity is another one than in the record of its creation: rows in between are missing."""
    again = replace(listed("new", NEW, as_of=100), identity="7.1.16390.1")
    reading = Applying(awaited=[again])
    (found,) = reading.read(ddl(creation("new", NEW), 15))
    assert isinstance(found, LargePart)
    assert found.batch.ddl is not None
    assert found.batch.ddl.why_not_made == BEING_COPIED


# --------------------------------------------------------------------------- restarts


def test_creation_that_was_not_applied_is_forgotten_at_a_restart() -> None:
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15))
    reading.restart(low=0)
    assert reading.reader.wants
    assert made(reading.read(ddl(creation("new", NEW), 15))) == [(15, True, 1)]
    reading.make("new", NEW, 15)
    assert reading.reader.retry_unfit()
    assert reading.there.added == [identity(NEW)]


@pytest.mark.parametrize("progress", [{"low": 16}, {"low": 5, "ahead": 16}])
def test_applied_creation_stays_unsettled_over_a_restart(progress: dict[str, int]) -> None:
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15))
    reading.make("new", NEW, 15)
    reading.restart(**progress)
    assert reading.reader.must_settle
    assert not reading.reader.wants
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("new", NEW, 20, previous=progress["low"]))) == [(20, False, 1)]


def test_destination_that_does_not_answer_changes_nothing() -> None:
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15, last=False), rows("new", NEW, 15, 20, first=1))
    reading.make("new", NEW, 15)
    reading.there.is_down = True
    with pytest.raises(DatabaseUnavailable):
        reading.reader.retry_unfit()
    assert reading.reader.must_settle
    assert not reading.reader.wants
    reading.there.is_down = False
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]


# --------------------------------------------------------------------------- DROP TABLE


def test_dropped_table_leaves_when_its_drop_is_applied() -> None:
    reading = Applying()
    assert made(reading.read(ddl(removal("t", T), 15))) == [(15, True, 1)]
    reading.drop("t", T, 15)
    assert reading.reader.retry_unfit()
    assert reading.there.removed == [identity(T)]


def test_new_table_of_a_renamed_tables_name_waits_for_a_restart() -> None:
    """The old table is replicated on: with its name gone to the new one, its later changes would be a stranger's."""
    reading = Applying()
    found = reading.read(ddl(renaming("t", "t_old", T), 15), ddl(creation("t", NEW), 20, previous=16))
    assert made(found) == [(15, True, 1)]
    reading.there.outcomes[place(15)] = NOT_APPLIED
    reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert reading.reader.unfit is not None
    assert "public.t_old" in reading.reader.unfit.message
    assert "headrace stop FILE apply:to_b" in reading.reader.unfit.hint
    assert (reading.there.added, reading.there.removed) == ([], [])


def test_rows_show_that_a_table_was_renamed_without_a_record() -> None:
    reading = Applying()
    reading.make("t_old", T, 0)  # the destination's table has been renamed
    assert made(reading.read(rows("t_old", T, 15))) == [(15, False, 1)]
    assert made(reading.read(ddl(creation("t", NEW), 20, previous=16))) == []
    assert reading.reader.unfit is not None


def test_new_table_has_the_name_of_one_that_was_renamed_before_the_driver_started() -> None:
    reading = Applying(awaited=[listed("new", NEW, as_of=100)])
    found = reading.read(ddl(renaming("new", "t", T), 15), ddl(creation("new", NEW), 20, previous=16))
    assert made(found) == [(15, True, 1)]
    reading.there.outcomes[place(15)] = NOT_APPLIED
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, True, 1)]


def test_table_whose_drop_is_not_applied_stays() -> None:
    reading = Applying()
    reading.read(ddl(removal("t", T), 15))
    reading.there.outcomes[place(15)] = NOT_APPLIED
    assert reading.reader.retry_unfit()
    assert reading.there.removed == []
    assert not reading.tables.unsettled


def replacing() -> tuple[LcrBatch, ...]:
    """A transaction: a row of the old public.t, DROP, CREATE of the same name, a row of the new one."""
    return (
        rows("t", T, 15, last=False),
        ddl(removal("t", T), 15, first=1, last=False),
        ddl(creation("t", NEW), 15, first=2, last=False),
        rows("t", NEW, 15, 20, first=3),
    )


def test_name_passes_on_to_the_table_that_is_made_anew() -> None:
    reading = Applying()
    found = reading.read(*replacing())
    assert made(found) == [(15, False, 1), (15, True, 1), (15, True, 1), (15, False, 1)]
    reading.drop("t", T, 15, 1)
    reading.make("t", NEW, 15, 2)
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == [(20, False, 1)]
    assert (reading.there.removed, reading.there.added) == ([identity(T)], [identity(NEW)])


@pytest.mark.parametrize("how", ["reader restarts", "queue sends it again"])
def test_rows_before_drop_and_create_of_one_name_pass_again(how: str) -> None:
    """Until the transaction is applied, the name is the old table's."""
    reading = Applying()
    reading.read(*replacing()[:3])
    if how == "reader restarts":
        reading.restart(low=0)
    assert made([piece for piece in reading.read(*replacing()) if not isinstance(piece, LargeDropped)]) == [
        (15, False, 1),
        (15, True, 1),
        (15, True, 1),
        (15, False, 1),
    ]
    assert reading.reader.unfit is None


def test_rows_of_the_old_table_in_an_earlier_transaction_pass_again() -> None:
    reading = Applying()
    reading.read(rows("t", T, 5))
    reading.read(ddl(creation("t", NEW), 15, previous=6))
    reading.restart(low=0)
    assert made(reading.read(rows("t", T, 5))) == [(5, False, 1)]
    assert reading.reader.unfit is None


def test_drop_of_a_table_that_the_source_has_not_any_more_passes() -> None:
    """The driver started behind it: the list has only the table that was made anew, under the same name."""
    reading = Applying(awaited=[listed("old", NEWER, as_of=100)])
    assert made(reading.read(rows("old", NEW, 12))) == []
    assert made(reading.read(ddl(removal("old", NEW), 15, previous=13))) == [(15, True, 1)]
    reading.there.outcomes[place(15)] = APPLIED
    assert reading.reader.retry_unfit()
    assert made(reading.read(ddl(creation("old", NEWER), 25, previous=16))) == [(25, True, 1)]
    reading.make("old", NEWER, 25)
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("old", NEWER, 30, previous=26))) == [(30, False, 1)]


def test_drop_of_an_unknown_table_never_reaches_the_table_of_its_name() -> None:
    reading = Applying()
    assert made(reading.read(ddl(removal("t", NEW), 15))) == []
    assert reading.reader.wants


def test_table_that_is_made_and_dropped_in_one_transaction_is_nobodys() -> None:
    reading = Applying()
    reading.read(
        ddl(creation("new", NEW), 15, last=False),
        rows("new", NEW, 15, first=1, last=False),
        ddl(removal("new", NEW), 15, first=2),
    )
    reading.there.outcomes |= {place(15): APPLIED, place(15, 2): APPLIED}
    assert reading.reader.retry_unfit()
    assert not reading.tables.unsettled
    assert not reading.reader.strangers
    assert (reading.there.added, reading.there.removed) == ([], [])


# --------------------------------------------------------------------------- the error queue


def in_error_queue() -> Applying:
    """The creating transaction is in the error queue, and a later one has a row of the table."""
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15, last=False), rows("new", NEW, 15, 20, first=1))
    assert not reading.reader.retry_unfit()
    assert reading.take() == []
    assert reading.reader.unfit is not None
    assert "error queue" in reading.reader.unfit.message
    assert "headrace errors FILE" in reading.reader.unfit.hint
    return reading


def test_rows_of_a_table_whose_creation_is_in_the_error_queue_wait() -> None:
    reading = in_error_queue()
    # A table of that name, made by hand, is none of whose rows are ours.
    reading.make("new", NEW, 15)
    del reading.there.records[identity(NEW)]
    del reading.there.outcomes[place(15)]
    assert not reading.reader.retry_unfit()
    assert reading.take() == []


def test_deleted_creation_makes_its_rows_a_strangers() -> None:
    reading = in_error_queue()
    reading.there.outcomes[place(15)] = DdlOutcomeKind.SKIPPED
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert reading.reader.strangers == {TableName("public", "new")}


def test_executed_creation_is_copied_and_its_rows_are_skipped() -> None:
    reading = in_error_queue()
    reading.make("new", NEW, 15, state="COPYING")
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert reading.there.added == [identity(NEW)]
    assert not reading.reader.strangers
    (found,) = reading.read(ddl(alteration("new", NEW), 25, previous=21))
    assert isinstance(found, LargePart)
    assert found.batch.ddl is not None
    assert found.batch.ddl.why_not_made == BEING_COPIED


def test_later_ddl_of_a_table_whose_creation_is_in_the_error_queue_waits() -> None:
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15))
    assert reading.reader.retry_unfit()
    assert reading.read(ddl(alteration("new", NEW), 25, previous=16)) == []
    assert reading.reader.unfit is not None
    reading.there.outcomes[place(15)] = DdlOutcomeKind.SKIPPED
    assert reading.reader.retry_unfit()
    assert made(reading.take()) == []
    assert reading.reader.unfit is None


def test_other_tables_go_on_while_a_creation_is_in_the_error_queue() -> None:
    reading = Applying()
    reading.read(ddl(creation("new", NEW), 15))
    assert reading.reader.retry_unfit()
    assert made(reading.read(rows("t", T, 20, previous=16))) == [(20, False, 1)]
