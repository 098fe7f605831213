"""From row LCRs back into a batch: the same batch if nothing was changed, otherwise a changed one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.lcr.batch import Column, Command, LcrBatch, RowGroup, content_version
from headrace.lcr.building import batch_of_lcrs
from headrace.lcr.cutting import without_unused
from headrace.lcr.lcr_value import LcrError, LcrValue
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from protos import codec
from tests.support.values.lcr_batches import (
    assert_same_batch,
    column_values,
    insert_batch,
    lcr_batches,
    table_version,
    transactions,
)


def views(batch: LcrBatch) -> list[RowLcr]:
    return [RowLcr(batch, row) for row in range(batch.row_count)]


def said(lcr: RowLcr) -> tuple[Any, ...]:
    """The content of an LCR, with UNCHANGED distinct from absent."""
    names = [column.name for column in lcr.table_version().columns]
    stored = [dict(zip(names, lcr.stored(kind), strict=True)) for kind in (ValueType.OLD, ValueType.NEW)]
    carried = [{name: value for name, value in image.items() if value != ABSENT} for image in stored]
    return lcr.command_type, f"{lcr.object_owner}.{lcr.object_name}", *carried


def updates(*rows: tuple[list[bytes | int], list[bytes | int]]) -> LcrBatch:
    """One transaction of UPDATEs of public.t, each given as (old values, new values)."""
    table = table_version(columns=len(rows[0][0]))
    table = replace(table, version=content_version(table))
    group = RowGroup(
        table=0,
        command=Command.UPDATE,
        row_numbers=np.arange(len(rows), dtype=np.int32),
        old=column_values([list(column) for column in zip(*(old for old, _ in rows), strict=True)]),
        new=column_values([list(column) for column in zip(*(new for _, new in rows), strict=True)]),
    )
    return LcrBatch(
        source="dbs1",
        previous_scn=0,
        through_scn=10,
        tables=(table,),
        groups=(group,),
        transactions=transactions([10], [len(rows)]),
    )


@pytest.mark.seeded
@given(lcr_batches())
def test_views_of_a_batch_make_the_identical_batch(batch: LcrBatch) -> None:
    assert_same_batch(batch_of_lcrs(batch, views(batch)), batch)


@pytest.mark.seeded
@given(st.data())
def test_touched_but_unchanged_rows_make_the_identical_batch(data: st.DataObject) -> None:
    batch = data.draw(lcr_batches())
    lcrs = views(batch)
    for lcr in lcrs:
        if data.draw(st.booleans()):
            lcr.object_owner, lcr.object_name = lcr.object_owner, lcr.object_name
    made = batch_of_lcrs(batch, lcrs)
    assert_same_batch(made, batch)
    assert_same_batch(codec.decode(codec.encode(made)), made)


@pytest.mark.seeded
@given(st.data())
def test_one_changed_value_changes_nothing_else(data: st.DataObject) -> None:
    batch = data.draw(lcr_batches())
    lcrs = views(batch)
    carried = [
        (row, kind, name)
        for row, lcr in enumerate(lcrs)
        for kind in ("old", "new")
        for name in lcr.get_values(kind, use_old=False)
    ]
    if not carried:
        return
    row, kind, name = data.draw(st.sampled_from(carried))
    old = lcrs[row].get_value(kind, name, use_old=False)
    assert old is not None
    raw = data.draw(st.one_of(st.none(), st.binary(max_size=12)))
    lcrs[row].set_value(kind, name, replace(old, raw=raw))
    made = batch_of_lcrs(batch, lcrs)
    assert made.tables == batch.tables
    for number, lcr in enumerate(views(made)):
        expected = said(RowLcr(batch, number))
        if number == row:
            image = expected[2] if kind == "old" else expected[3]
            image[name] = NULL if raw is None else raw
        assert said(lcr) == expected


def test_large_value_is_returned_whole() -> None:
    large = bytes(range(256)) * (20 << 10)  # 5 MiB
    batch = updates(([b"k", ABSENT], [b"k", UNCHANGED]), ([b"k2", NULL], [b"k2", large]))
    lcrs = views(batch)
    assert_same_batch(batch_of_lcrs(batch, lcrs), batch)
    lcrs[0].add_column("new", "c1", large[::-1])
    made = views(batch_of_lcrs(batch, lcrs))
    assert made[0].get_value("new", "c1").raw == large[::-1]
    assert made[1].get_value("new", "c1").raw == large


def test_unchanged_value_keeps_its_mark_under_a_new_name() -> None:
    batch = updates(([b"k", b"old"], [b"k", UNCHANGED]))
    lcr = RowLcr(batch, 0)
    lcr.rename_column("c1", "note")
    made = batch_of_lcrs(batch, [lcr])
    view = RowLcr(made, 0)
    assert [column.name for column in view.table.columns] == ["c0", "note"]
    assert view.is_unchanged("note")
    assert view.get_value("old", "note").raw == b"old"


def test_renamed_dropped_and_added_columns_make_a_new_version() -> None:
    batch = updates(([b"1", b"a", b"x"], [b"1", b"b", b"y"]), ([b"2", b"a", b"x"], [b"2", b"b", b"y"]))
    first, second = views(batch)
    first.rename_column("c1", "salary")
    first.delete_column("c2")
    first.add_column("new", "site", LcrValue(column=Column(name="any", type_name="pg_catalog.text"), raw=b"A"))
    first.object_owner, first.object_name = "hr", "staff"
    made = batch_of_lcrs(batch, [first, second])
    assert said(RowLcr(made, 0)) == (
        "UPDATE",
        "hr.staff",
        {"c0": b"1", "salary": b"a"},
        {"c0": b"1", "salary": b"b", "site": b"A"},
    )
    assert said(RowLcr(made, 1)) == said(second)
    version = RowLcr(made, 0).table
    assert [(c.name, c.type_name) for c in version.columns][1:] == [
        ("salary", "pg_catalog.int4"),
        ("site", "pg_catalog.text"),
    ]
    assert version.version == content_version(version) != batch.tables[0].version
    assert made.tables[0] == batch.tables[0]
    assert_same_batch(codec.decode(codec.encode(made)), made)


def test_column_renamed_in_one_image_becomes_two_columns() -> None:
    batch = updates(([b"1", b"a"], [b"1", b"b"]))
    lcr = RowLcr(batch, 0)
    lcr.rename_column("c1", "was", "old")
    assert said(RowLcr(batch_of_lcrs(batch, [lcr]), 0))[2:] == ({"c0": b"1", "was": b"a"}, {"c0": b"1", "c1": b"b"})


def test_value_of_another_type_changes_the_columns_type() -> None:
    batch = updates(([b"1", ABSENT], [b"1", b"b"]))
    lcr = RowLcr(batch, 0)
    lcr.set_value(
        "new", "c1", LcrValue(column=Column(name="c1", type_name="pg_catalog.text", is_binary=True), raw=b"B")
    )
    column = RowLcr(batch_of_lcrs(batch, [lcr]), 0).table.columns[1]
    assert (column.type_name, column.is_binary) == ("pg_catalog.text", True)
    lcr.add_column("old", "c1", LcrValue(column=Column(name="c1", type_name="pg_catalog.int8"), raw=b"8"))
    with pytest.raises(LcrError, match="different types"):
        batch_of_lcrs(batch, [lcr])


def test_another_command_needs_its_own_values() -> None:
    batch = updates(([b"1", b"a"], [b"1", b"b"]))
    lcr = RowLcr(batch, 0)
    lcr.command_type = "INSERT"
    with pytest.raises(LcrError, match="has no old values"):
        batch_of_lcrs(batch, [lcr])
    lcr.delete_column("c0", "old")
    lcr.delete_column("c1", "old")
    made = batch_of_lcrs(batch, [lcr])
    assert said(RowLcr(made, 0)) == ("INSERT", "public.t", {}, {"c0": b"1", "c1": b"b"})
    assert made.groups[0].old is None


def test_insert_cannot_be_made_of_a_value_that_is_not_in_the_log() -> None:
    batch = updates(([ABSENT, ABSENT], [b"1", UNCHANGED]))
    lcr = RowLcr(batch, 0)
    lcr.command_type = "INSERT"
    with pytest.raises(LcrError, match="not in the log"):
        batch_of_lcrs(batch, [lcr])
    lcr.delete_column("c1", "new")
    assert said(RowLcr(batch_of_lcrs(batch, [lcr]), 0))[3] == {"c0": b"1"}


def test_omitted_rows_are_discarded_and_repeated_views_become_rows() -> None:
    batch = insert_batch([10, 20], rows_each=2)
    one, _, three, four = views(batch)
    made = batch_of_lcrs(batch, [one, RowLcr(batch, 0), four, three])
    values = [RowLcr(made, row).get_value("new", "c0").raw for row in range(4)]
    assert [value[-1] for value in values if value is not None] == [0, 0, 3, 2]
    assert made.transactions.first_row.tolist() == [0, 2, 4]
    emptied = batch_of_lcrs(batch, [three])
    assert (len(emptied.transactions), len(without_unused(emptied).transactions)) == (2, 1)


def test_tag_comes_from_the_transaction() -> None:
    batch = replace(insert_batch([10, 20], rows_each=2), tags=(Tag(value=b"\1", apply="a"),))
    lcrs = views(batch)
    lcrs[0].tag = b"\2"
    with pytest.raises(LcrError, match="one tag"):
        batch_of_lcrs(batch, lcrs)
    lcrs[1].tag = b"\2"
    made = batch_of_lcrs(batch, lcrs)
    assert made.tags == (Tag(value=b"\1", apply="a"), Tag(value=b"\2"))
    assert made.transactions.tag.tolist() == [1, -1]


def test_lcrs_of_another_batch_or_out_of_order_are_refused() -> None:
    batch, other = insert_batch([10, 20]), insert_batch([10, 20])
    with pytest.raises(LcrError, match="another batch"):
        batch_of_lcrs(batch, [RowLcr(other, 0)])
    with pytest.raises(LcrError, match="order"):
        batch_of_lcrs(batch, views(batch)[::-1])
    lcrs = views(batch)
    lcrs[0].source_database_name = "dbs9"
    with pytest.raises(LcrError, match="one source"):
        batch_of_lcrs(batch, lcrs)
    lcrs[1].source_database_name = "dbs9"
    assert batch_of_lcrs(batch, lcrs).source == "dbs9"
