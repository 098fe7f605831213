"""What the apply reader forwards, drops and waits for."""

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


def test_unchanged_batch_is_forwarded_with_its_bytes() -> None:
    (run,) = Reading().read(insert_batch([10, 20], previous=0))
    assert isinstance(run, Run)
    assert (run.data, run.through_scn, run.batch.row_count) == (b"as it came", 20, 2)


def test_reader_state_uses_the_manuals_words() -> None:
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


def test_table_altered_between_description_and_check_is_described_again() -> None:
    """The driver reads the catalog for both: the description from before the ALTER counted as the checked one."""
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


def test_missing_batch_is_detected() -> None:
    reading = Reading()
    reading.read(insert_batch([10], previous=0))
    with pytest.raises(ProtocolError, match="missing"):
        reading.read(insert_batch([30], previous=20))


def test_batches_of_another_source_are_refused() -> None:
    with pytest.raises(ProtocolError, match="dbs9"):
        Reading().read(insert_batch([10], source="dbs9"))


def test_transactions_already_applied_are_dropped() -> None:
    reading = Reading(low_watermark=20, above=((30, 40),))
    found = reading.read(insert_batch([25, 35, 40, 45], previous=20))
    assert commits(found) == [25, 45]
    assert reading.reader.statistics.rows_applied_before == 2
    (run,) = found
    assert isinstance(run, Run)
    assert run.data is None


def test_only_transactions_ending_at_the_low_watermark_are_dropped() -> None:
    batch = insert_batch([20, 21], previous=10)
    batch.transactions.order_scn[:] = [19, 20]
    reading = Reading(low_watermark=20)
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=20, above=()))
    assert commits(reading.read(replace(batch, previous_scn=20))) == [21]


def test_rows_that_the_instantiation_copied_are_dropped() -> None:
    reading = Reading(instantiated=20)
    assert commits(reading.read(insert_batch([10, 20, 30]))) == [30]
    assert reading.reader.statistics.rows_instantiated == 2


def test_open_transaction_in_the_copy_is_dropped_by_its_order_scn() -> None:
    reading = Reading(instantiated=20)
    assert reading.read(part(15), part(15, first=2, last=True, commit=16)) == [Mark(through_scn=16)]


def test_rows_that_the_rules_discard_leave_only_the_position() -> None:
    reading = Reading(rules=RuleSet(include=(Rule(owner="other"),)))
    assert reading.read(insert_batch([10, 20])) == [Mark(through_scn=20)]
    assert reading.reader.statistics.rows_discarded == 2


def test_returning_changes_are_counted() -> None:
    batch = insert_batch([10, 20, 30])
    tags = (Tag(value=b"\0", topology="t", apply="apply_home"), Tag(value=b"\0", topology="t", apply="apply_other"))
    batch = replace(batch, tags=tags, transactions=transactions([10, 20, 30], [1, 1, 1], tags=[0, 1, -1]))
    reading = Reading(returned_from=("apply_home",))
    reading.read(batch)
    assert reading.reader.statistics.returned_changes == 1


def test_parts_of_a_large_transaction_are_forwarded_one_by_one() -> None:
    found = Reading().read(part(15), part(15, first=2), part(15, first=4, last=True, commit=16))
    assert [(p.is_first, p.is_last, p.order_scn) for p in found if isinstance(p, LargePart)] == [
        (True, False, 15),
        (False, False, 15),
        (False, True, 15),
    ]


def test_resent_open_transaction_replaces_the_open_one() -> None:
    found = Reading().read(part(15), part(15, first=2), part(15), part(15, first=2, last=True, commit=16))
    assert [type(piece) for piece in found] == [LargePart, LargePart, LargeDropped, LargePart, LargePart]
    assert isinstance(found[3], LargePart)
    assert found[3].is_first


def test_a_part_without_its_beginning_is_refused() -> None:
    with pytest.raises(ProtocolError, match="without its beginning"):
        Reading().read(part(15, first=2))


def test_unfit_table_pauses_before_its_first_transaction_until_the_alter() -> None:
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


def test_transactions_before_the_unfit_one_continue() -> None:
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
def test_rows_of_a_renamed_table_wait_for_rows_under_its_old_name(*, serialised: bool) -> None:
    """The table was renamed at the source and here. Its row hashes contain the names, so they show no dependency."""
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


def test_rows_of_a_newly_keyed_table_wait_for_earlier_inserts() -> None:
    """The earlier inserts have no key hashes and no exclusive use of the table: nothing else shows that a later UPDATE
    finds one of their rows.
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


def test_open_transaction_is_abandoned_while_its_next_part_awaits_an_alter() -> None:
    """Its written rows hold locks that the ALTER needs."""
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


def test_transaction_whose_last_part_awaited_an_alter_is_replayed_whole() -> None:
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


def test_changes_awaiting_an_alter_are_kept_while_the_destination_is_away() -> None:
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
    """One transaction with order SCN 19 that truncates public.t after `rows_before` INSERTs and before one more."""
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
def test_reader_notes_a_truncate_of_an_excluded_table(
    batch: LcrBatch, rules: RuleSet | None, scn: int | None, emptied: int | None
) -> None:
    reading = Reading(rules=rules, tables=ArrivingTables({("public", "t"): TableStart(scn=scn)}))
    reading.read(batch)
    assert reading.reader.emptied_scn(("public", "t")) == emptied
