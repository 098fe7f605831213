"""Cutting a batch where a receiver stands: exactly the transactions it lacks, unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protos import codec
from streams.lcr import RowLcr
from streams.lcr_batch import LcrBatch
from streams.resumption import resume_after
from tests.support.lcr_batches import assert_same_batch, insert_batch, lcr_batches


def contents(batch: LcrBatch, first: int = 0) -> list[object]:
    """What the rows from `first` on say, without where they stand."""
    said = []
    for row in range(first, batch.row_count):
        lcr = RowLcr(batch, row)
        said.append((
            lcr.command_type, lcr.table, lcr.truncated_tables, lcr.scn, lcr.commit_scn, lcr.tag, lcr.position,
            lcr.get_values("old"), lcr.get_values("new", use_old=False),
        ))
    return said


@given(lcr_batches(), st.integers(-1, 60))
def test_rest_of_a_batch_holds_every_later_transaction_unchanged(batch: LcrBatch, distance: int) -> None:
    scn = batch.previous_scn + max(distance, 0)
    rest = resume_after(batch, scn)
    kept = [int(order) for order in batch.transactions.order_scn if order >= scn]
    if not kept and batch.through_scn <= scn:
        assert rest is None
        return
    assert rest is not None
    assert rest.previous_scn == scn
    assert rest.through_scn == (scn if batch.is_open else batch.through_scn)
    assert [int(order) for order in rest.transactions.order_scn] == kept
    first = len(batch.transactions) - len(kept)
    assert contents(rest) == contents(batch, int(batch.transactions.first_row[first]) if kept else batch.row_count)
    assert_same_batch(codec.decode(codec.encode(rest)), rest)


def test_batch_that_begins_where_the_receiver_stands_stays_as_it_is() -> None:
    batch = insert_batch([10, 20], previous=5)
    rest = resume_after(batch, 5)
    assert rest is not None
    assert_same_batch(rest, batch)


def test_receiver_that_has_all_transactions_gets_the_position_alone() -> None:
    rest = resume_after(insert_batch([10, 20], through=30), 25)
    assert rest is not None
    assert rest.is_progress_mark
    assert (rest.previous_scn, rest.through_scn) == (25, 30)
    assert resume_after(insert_batch([10, 20], through=30), 30) is None


def test_parts_of_a_large_transaction_keep_their_places_in_it() -> None:
    part = insert_batch([100], previous=10, is_open=True, continues=True, first_position=7)
    moved = resume_after(part, 40)
    assert moved is not None
    assert (moved.previous_scn, moved.through_scn, moved.continues, moved.first_position) == (40, 40, True, 7)
    assert resume_after(part, 120) is None
