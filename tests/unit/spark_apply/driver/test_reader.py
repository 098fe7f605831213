"""What the apply reader passes on, drops, and waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import DatabaseUnavailable, ProtocolError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import ApplyProgress
from headrace.lcr.batch import LcrBatch, Partition, TableVersion, Truncate
from headrace.lcr.tags import Tag
from headrace.rules.rule import Rule, RuleSet
from spark_apply.driver.reading.pieces import LargeDropped, LargePart, Mark, Run
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_reading import Reading, commits
from tests.support.values.lcr_batches import column_values, insert_batch, transactions


def part(order: int, *, previous: int = 0, first: int = 0, last: bool = False, commit: int = 0) -> LcrBatch:
    """A part with two rows of the transaction at `order`."""
    batch = insert_batch(
        [order + 1],
        previous=previous,
        rows_each=2,
        is_open=not last,
        continues=first > 0,
        first_position=first,
        through=commit if last else None,
    )
    return replace(batch, through_scn=commit) if last else batch


def test_a_batch_as_it_came_is_passed_on_with_its_bytes() -> None:
    (run,) = Reading().read(insert_batch([10, 20], previous=0))
    assert isinstance(run, Run)
    assert (run.data, run.through_scn, run.batch.row_count) == (b"as it came", 20, 2)


def test_state_is_the_manuals_word_for_what_the_reader_does() -> None:
    reading = Reading()
    assert reading.reader.state == "INITIALIZING"
    reading.reader.offer(insert_batch([10]), b"")
    assert reading.reader.state == "SCHEDULE MESSAGES"
    reading.take()
    assert reading.reader.state == "IDLE"
    reading.read(part(15, previous=10))
    assert reading.reader.state == "DEQUEUE MESSAGES"
    reading.read(part(15, previous=10, first=2, last=True, commit=16))
    assert reading.reader.state == "IDLE"


def test_table_that_is_altered_between_its_description_and_its_check_is_described_again() -> None:
    """The driver reads the catalog for both: what it knew of the table from before the ALTER was taken for what fits."""
    reading = Reading(columns=1)
    database = MemoryDestination(store=reading.store)

    def checked(version: TableVersion) -> str:
        if len(reading.store.tables["public", "t"].table.columns) == 1:
            reading.create(2)  # an operator's ALTER
        return "".join(finding.fix for finding in database.preflight_tables([version]))

    fits = TableFits(database.describe, checked)
    batch = insert_batch([10])
    fit = fits.fit(batch.tables[0])
    assert [column.name for column in fit.table.columns] == ["c0", "c1"]
    assert fit.hashed_keys


def test_a_missing_batch_is_noticed() -> None:
    reading = Reading()
    reading.read(insert_batch([10], previous=0))
    with pytest.raises(ProtocolError, match="missing"):
        reading.read(insert_batch([30], previous=20))


def test_batches_of_another_source_are_refused() -> None:
    with pytest.raises(ProtocolError, match="dbs9"):
        Reading().read(insert_batch([10], source="dbs9"))


def test_transactions_that_are_applied_already_are_dropped() -> None:
    reading = Reading(low_watermark=20, above=((30, 40),))
    found = reading.read(insert_batch([25, 35, 40, 45], previous=20))
    assert commits(found) == [25, 45]
    assert reading.reader.statistics.rows_applied_before == 2
    (run,) = found
    assert isinstance(run, Run)
    assert run.data is None


def test_a_transaction_ending_exactly_at_the_low_watermark_is_dropped_and_one_beginning_there_is_not() -> None:
    batch = insert_batch([20, 21], previous=10)
    batch.transactions.order_scn[:] = [19, 20]
    reading = Reading(low_watermark=20)
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=20, above=()))
    assert commits(reading.read(replace(batch, previous_scn=20))) == [21]


def test_rows_that_the_instantiation_copied_are_dropped() -> None:
    reading = Reading(instantiated=20)
    assert commits(reading.read(insert_batch([10, 20, 30]))) == [30]
    assert reading.reader.statistics.rows_instantiated == 2


def test_an_open_transaction_is_dropped_by_its_order_scn_when_the_instantiation_copied_it() -> None:
    reading = Reading(instantiated=20)
    assert reading.read(part(15), part(15, first=2, last=True, commit=16)) == [Mark(through_scn=16)]


def test_rows_that_the_rules_discard_leave_only_the_position() -> None:
    reading = Reading(rules=RuleSet(include=(Rule(owner="other"),)))
    assert reading.read(insert_batch([10, 20])) == [Mark(through_scn=20)]
    assert reading.reader.statistics.rows_discarded == 2


def test_changes_that_come_home_are_counted() -> None:
    batch = insert_batch([10, 20, 30])
    tags = (Tag(value=b"\0", topology="t", apply="apply_home"), Tag(value=b"\0", topology="t", apply="apply_other"))
    batch = replace(batch, tags=tags, transactions=transactions([10, 20, 30], [1, 1, 1], tags=[0, 1, -1]))
    reading = Reading(returned_from=("apply_home",))
    reading.read(batch)
    assert reading.reader.statistics.returned_changes == 1


def test_parts_of_a_large_transaction_are_passed_on_one_by_one() -> None:
    found = Reading().read(part(15), part(15, first=2), part(15, first=4, last=True, commit=16))
    assert [(p.is_first, p.is_last, p.order_scn) for p in found if isinstance(p, LargePart)] == [
        (True, False, 15),
        (False, False, 15),
        (False, True, 15),
    ]


def test_an_open_transaction_that_is_sent_again_replaces_the_open_one() -> None:
    found = Reading().read(part(15), part(15, first=2), part(15), part(15, first=2, last=True, commit=16))
    assert [type(piece) for piece in found] == [LargePart, LargePart, LargeDropped, LargePart, LargePart]
    assert isinstance(found[3], LargePart)
    assert found[3].is_first


def test_a_part_without_its_beginning_is_refused() -> None:
    with pytest.raises(ProtocolError, match="without its beginning"):
        Reading().read(part(15, first=2))


def test_a_table_that_does_not_fit_pauses_before_its_first_transaction_and_goes_on_after_the_alter() -> None:
    reading = Reading(columns=1)
    assert reading.read(insert_batch([10, 20])) == []
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"
    assert not reading.reader.wants
    assert reading.reader.unfit is not None
    assert "ADD COLUMN c1" in reading.reader.unfit.hint
    assert not reading.reader.retry_unfit()
    reading.create(2)
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [10, 20]
    assert reading.reader.wants


def test_everything_before_the_transaction_that_does_not_fit_goes_on() -> None:
    reading = Reading()
    reading.read(insert_batch([10]))
    wide = insert_batch([20, 30], previous=10)
    table = wide.tables[0]
    added = replace(table, version=2, columns=(*table.columns[:1], replace(table.columns[1], name="added")))
    first, second = (replace(wide.groups[0], row_numbers=np.array([n], np.int32), new=_row(wide, n)) for n in (0, 1))
    mixed = replace(wide, tables=(table, added), groups=(first, replace(second, table=1)))
    assert commits(reading.read(mixed)) == [20]
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"


def _row(batch: LcrBatch, number: int) -> object:
    from headrace.lcr.cells import Cells

    assert batch.groups[0].new is not None
    return Cells.of(batch.groups[0].new).gathered(np.array([number], np.int32))


@pytest.mark.parametrize("serialised", [False, True])
def test_rows_of_a_table_under_its_new_name_wait_for_those_under_the_old_one(*, serialised: bool) -> None:
    """Both have been renamed, at the source and here: the hashes of their rows have the names in them, and show
    nothing.
    """
    reading = Reading()
    assert commits(reading.read(insert_batch([10]))) == [10]
    reading.store.tables["public", "renamed"] = reading.store.tables.pop(("public", "t"))
    there = reading.store.tables["public", "renamed"]
    there.table = replace(there.table, name="renamed", serialise=serialised)
    later = insert_batch([20, 30], previous=10)
    assert reading.read(replace(later, tables=(replace(later.tables[0], name="renamed", version=2),))) == []
    assert reading.reader.must_settle
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [20, 30]
    assert commits(
        reading.read(
            replace(insert_batch([40], previous=30), tables=(replace(later.tables[0], name="renamed", version=2),))
        )
    ) == [40]


def test_rows_of_a_table_that_got_a_key_wait_for_those_that_were_inserted_before_it_had_one() -> None:
    """Those have no hashes of a key, and use the table as others do: nothing else would show that a later UPDATE finds
    one of them.
    """
    reading = Reading()
    keyed = reading.store.tables["public", "t"].table
    reading.store.tables["public", "t"].table = replace(keyed, key=(), unique_keys=(), serialise=True)
    without_key = replace(
        insert_batch([10]).tables[0],
        columns=tuple(replace(c, is_key=False) for c in insert_batch([10]).tables[0].columns),
    )
    assert commits(reading.read(replace(insert_batch([10, 20]), tables=(without_key,)))) == [10, 20]
    reading.store.tables["public", "t"].table = keyed
    reading.fits.forget()
    assert reading.read(insert_batch([30], previous=20)) == []
    assert reading.reader.must_settle
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [30]


def test_an_open_transaction_is_given_back_while_its_next_part_waits_for_an_alter() -> None:
    """What it has written holds locks that the ALTER needs."""
    reading = Reading()
    assert [type(piece) for piece in reading.read(part(15))] == [LargePart]
    later = part(15, first=2)
    added = replace(
        later.tables[0],
        version=2,
        columns=(
            later.tables[0].columns[0],
            replace(later.tables[0].columns[1], name="c2"),
        ),
    )
    assert [type(piece) for piece in reading.read(replace(later, tables=(added,)))] == [LargeDropped]
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"
    reading.create(3)
    assert reading.reader.retry_unfit()
    assert reading.reader.must_resubscribe
    assert not reading.reader.wants
    reading.reader.resubscribed()
    assert [type(piece) for piece in reading.read(part(15))] == [LargePart]


def test_a_transaction_comes_again_whole_also_when_its_last_part_waited_for_the_alter() -> None:
    reading = Reading()
    reading.read(part(15))
    last = part(15, first=2, last=True, commit=20)
    added = replace(
        last.tables[0],
        version=2,
        columns=(
            last.tables[0].columns[0],
            replace(last.tables[0].columns[1], name="c2"),
        ),
    )
    reading.read(replace(last, tables=(added,)))
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"
    reading.create(3)
    assert reading.reader.retry_unfit()
    assert reading.reader.must_resubscribe
    assert reading.reader.needed_scn == last.previous_scn


def test_what_waits_for_an_alter_is_kept_when_the_destination_cannot_be_asked() -> None:
    reading = Reading(columns=1)
    reading.read(insert_batch([10, 20]))
    reading.store.is_reachable = False
    with pytest.raises(DatabaseUnavailable):
        reading.reader.retry_unfit()
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"
    assert not reading.reader.wants
    reading.store.is_reachable = True
    reading.create(2)
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [10, 20]


def truncating(rows_before: int, *, partition: Partition | None = None) -> LcrBatch:
    """One transaction, with order SCN 19, that truncates public.t after so many INSERTs, with one more behind it."""
    found = insert_batch([20], rows_each=rows_before + 2)
    numbers = np.array([number for number in range(rows_before + 2) if number != rows_before], np.int32)
    truncated = replace(found.tables[0], partition=partition)
    return replace(
        found,
        tables=(*found.tables, truncated),
        groups=(
            replace(
                found.groups[0],
                row_numbers=numbers,
                new=column_values([[number.to_bytes(4, "big") for number in range(len(numbers))]] * 2),
            ),
        ),
        truncates=(Truncate(row_number=rows_before, tables=(1,), cascade=False, restart_identity=False),),
    )


_DISCARDED = RuleSet(include=(Rule(owner="public", name="another"),))
_PARTITION = Partition(owner="public", name="t_1", rows="c0 > 0")


@pytest.mark.parametrize(
    ("batch", "rules", "scn", "emptied"),
    [
        pytest.param(truncating(0), None, None, 19, id="left out"),
        pytest.param(
            truncating(1), None, None, None, id="rows of its before: who starts here would look for what they change"
        ),
        pytest.param(truncating(0, partition=_PARTITION), None, None, None, id="a partition of several"),
        pytest.param(truncating(0), _DISCARDED, None, None, id="discarded by the rules"),
        pytest.param(truncating(0), None, 5, None, id="replicated"),
    ],
)
def test_reader_notes_where_the_source_empties_a_table_that_is_left_out(
    batch: LcrBatch, rules: RuleSet | None, scn: int | None, emptied: int | None
) -> None:
    reading = Reading(rules=rules, tables=ArrivingTables({("public", "t"): TableStart(scn=scn)}))
    reading.read(batch)
    assert reading.reader.emptied_scn(("public", "t")) == emptied
