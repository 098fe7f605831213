"""Cutting batches: exactly the wanted transactions and rows, unchanged, with matching positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import resume_after, select_rows, select_values, slice_transactions, without_unused
from headrace.lcr.row_lcr import RowLcr
from protos import codec
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import ddl_batch
from tests.support.values.lcr_batches import assert_same_batch, column_values, insert_batch, lcr_batches


def contents(batch: LcrBatch, first: int = 0) -> list[Any]:
    """The content of the rows from `first` on, without their places."""
    said: list[Any] = []
    for row in range(first, batch.row_count):
        lcr = RowLcr(batch, row)
        said.append(
            (
                lcr.command_type,
                lcr.table,
                lcr.truncated_tables,
                lcr.scn,
                lcr.commit_scn,
                lcr.tag,
                lcr.position,
                lcr.get_values("old"),
                lcr.get_values("new", use_old=False),
            )
        )
    return said


@pytest.mark.seeded
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


def test_batch_that_begins_at_the_receivers_position_is_unchanged() -> None:
    batch = insert_batch([10, 20], previous=5)
    rest = resume_after(batch, 5)
    assert rest is not None
    assert_same_batch(rest, batch)


def test_receiver_that_has_all_transactions_gets_only_the_position() -> None:
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


@pytest.mark.seeded
@given(
    st.lists(
        st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([-1, -2, -3])), min_size=6, max_size=6), max_size=4
    ),
    st.lists(st.integers(0, 5)),
)
def test_selected_rows_keep_every_value(columns, chosen):
    values = column_values(columns) if columns else column_values([[b""] * 6])
    rows = np.array(chosen, np.int32)
    selected = select_values(values, rows)
    assert selected is not None
    assert selected.row_count == len(rows)
    for column in range(values.column_count):
        for place, row in enumerate(rows):
            assert selected.value(column, place) == values.value(column, int(row))


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(24, 500))
@given(st.data())
def test_slices_of_a_batch_hold_its_transactions_in_a_chain(data: st.DataObject) -> None:
    batch = data.draw(lcr_batches().filter(lambda found: len(found.transactions) > 1))
    cut = data.draw(st.integers(1, len(batch.transactions) - 1))
    first, second = slice_transactions(batch, 0, cut), slice_transactions(batch, cut, len(batch.transactions))
    assert (first.previous_scn, first.through_scn) == (batch.previous_scn, second.previous_scn)
    assert second.through_scn == batch.through_scn
    assert contents(first) + contents(second) == contents(batch)
    for part in (first, second):
        assert_same_batch(codec.decode(codec.encode(part)), part)


@pytest.mark.seeded
@given(st.data())
def test_selected_rows_stay_in_their_transactions(data: st.DataObject) -> None:
    batch = data.draw(lcr_batches())
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=batch.row_count, max_size=batch.row_count)), np.bool_)
    part = select_rows(batch, kept)
    # without the position, which counts the discarded rows
    said = [each[:-3] + each[-2:] for each in contents(batch)]
    assert [each[:-3] + each[-2:] for each in contents(part)] == [said[row] for row in np.flatnonzero(kept)]
    assert len(part.transactions) == len(batch.transactions)
    assert_same_batch(codec.decode(codec.encode(part)), part)


@pytest.mark.seeded
@given(st.data())
def test_unreferenced_values_are_dropped(data: st.DataObject) -> None:
    batch = data.draw(lcr_batches())
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=batch.row_count, max_size=batch.row_count)), np.bool_)
    part = select_rows(batch, kept)
    left = without_unused(part)
    assert contents(left) == contents(part)
    assert (left.previous_scn, left.through_scn, left.is_open) == (part.previous_scn, part.through_scn, part.is_open)
    used = {group.table for group in left.groups} | {table for truncate in left.truncates for table in truncate.tables}
    assert used == set(range(len(left.tables)))
    assert {int(tag) for tag in left.transactions.tag} - {-1} == set(range(len(left.tags)))
    assert left.is_open or left.continues or all(np.diff(left.transactions.first_row) > 0)


@pytest.mark.parametrize(
    "take_all", [select_rows, lambda batch, kept: slice_transactions(batch, 0, len(batch.transactions))]
)
def test_cut_that_takes_everything_copies_nothing(take_all) -> None:
    batch = insert_batch([10, 20])
    assert take_all(batch, np.ones(2, np.bool_)) is batch


def test_batch_with_a_ddl_lcr_is_never_cut() -> None:
    batch = ddl_batch(commit=100, previous=10)
    assert slice_transactions(batch, 0, 1) is batch
    assert select_rows(batch, np.ones(1, np.bool_)) is batch
    assert without_unused(batch).ddl is batch.ddl
    rest = resume_after(batch, 40)
    assert rest is not None
    assert (rest.previous_scn, rest.through_scn, rest.ddl) == (40, 100, batch.ddl)


def test_receiver_that_has_the_ddl_lcr_gets_none() -> None:
    batch = replace(ddl_batch(commit=100, previous=10), through_scn=120)
    rest = resume_after(batch, 100)
    assert rest is not None
    assert (rest.is_progress_mark, rest.through_scn, rest.ddl) == (True, 120, None)
    assert resume_after(batch, 120) is None


@pytest.mark.parametrize(("is_open", "continues"), [(False, False), (True, False), (True, True), (False, True)])
def test_discarded_ddl_lcr_leaves_its_transaction_and_positions(is_open: bool, continues: bool) -> None:
    batch = ddl_batch(commit=100, previous=10, is_open=is_open, continues=continues)
    emptied = select_rows(batch, np.zeros(1, np.bool_))
    assert (emptied.row_count, emptied.ddl, len(emptied.transactions)) == (0, None, 1)
    left = without_unused(emptied)
    assert left.is_progress_mark == (not is_open and not continues)
    assert (left.previous_scn, left.through_scn) == (batch.previous_scn, batch.through_scn)
    assert_same_batch(codec.decode(codec.encode(left)), left)
