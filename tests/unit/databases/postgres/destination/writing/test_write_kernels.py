"""The binary forms, compared with forms that are built value by value."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import BugError
from headrace.databases.ports import DestinationTable, Write
from headrace.databases.postgres.destination.row_times.recent_changes import Horizon
from headrace.databases.postgres.destination.writing.writes import (
    SetStatement,
    WritePlan,
    _Values,
    copy_blocks,
    parameters,
    row_chunks,
)
from headrace.lcr.batch import Command, OldImage, TableVersion
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from tests.support.session.seeds import scaled
from tests.support.values.lcr_batches import column_values

TABLE = DestinationTable(owner="s", name="t", columns=(), key=(), unique_keys=(), serialise=False, ordered=False)
VERSION = TableVersion(object_number=1, version=1, owner="s", name="t", columns=(), old_image=OldImage.FULL)

VALUES = st.one_of(st.just(NULL), st.binary(max_size=5), st.binary(min_size=60, max_size=70))


@st.composite
def tables(draw: st.DrawFn):
    columns, rows = draw(st.integers(1, 4)), draw(st.integers(0, 12))
    return [draw(st.lists(VALUES, min_size=rows, max_size=rows)) for _ in range(columns)]


def statement(columns, elements, wrapped):
    return SetStatement(
        sql="",
        old=None,
        new=_Values(
            columns=np.array(columns, np.int64),
            elements=np.array(elements, np.int64),
            wrapped=np.array(wrapped, np.int64),
        ),
    )


def insert_of(columns):
    return Write(
        table=TABLE,
        version=VERSION,
        command=Command.INSERT,
        old=None,
        new=column_values(columns),
        match_columns=(),
        compare_columns=(),
        set_columns=(),
    )


def expected_array(values, element, wrapped):
    has_null = int(NULL in values)
    found = struct.pack(">iiIii", 1, has_null, element, len(values), 1)
    for value in values:
        if value == NULL:
            found += struct.pack(">i", -1)
        elif wrapped:
            found += struct.pack(">iiIi", len(value) + 12, 1, wrapped, len(value)) + value
        else:
            found += struct.pack(">i", len(value)) + value
    return found


@pytest.mark.seeded
@given(tables(), st.data())
@settings(max_examples=scaled(36, 1000))
def test_array_parameters_are_in_the_form_of_array_recv(columns, data):
    rows = len(columns[0])
    first = data.draw(st.integers(0, rows))
    last = data.draw(st.integers(first, rows))
    order = data.draw(st.permutations(range(len(columns))))
    wrapped = [data.draw(st.sampled_from([0, 4_000_000_000])) for _ in order]
    found = parameters(statement(order, [23 + k for k in order], wrapped), insert_of(columns), first, last, Horizon())
    assert [p.tobytes() for p in found] == [
        expected_array(columns[k][first:last], 23 + k, w) for k, w in zip(order, wrapped, strict=True)
    ]


@pytest.mark.seeded
@given(tables(), st.data())
@settings(max_examples=scaled(36, 1000))
def test_copy_blocks_are_in_the_form_of_copy(columns, data):
    rows = len(columns[0])
    cut = data.draw(st.integers(0, rows))
    order = data.draw(st.permutations(range(len(columns))))
    plan = WritePlan(statements=(), copy="COPY", copy_columns=np.array(order, np.int64))
    chunks = [(0, cut), (cut, rows)]
    found = b"".join(block.tobytes() for block in copy_blocks(plan, insert_of(columns), chunks))
    expected = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    for row in range(rows):
        expected += struct.pack(">h", len(order))
        for k in order:
            value = columns[k][row]
            expected += struct.pack(">i", -1) if value == NULL else struct.pack(">i", len(value)) + value
    assert found == expected + b"\xff\xff"


@pytest.mark.parametrize("missing", [UNCHANGED, ABSENT])
def test_value_that_is_not_in_the_lcr_is_refused(missing):
    write = insert_of([[b"a", missing]])
    with pytest.raises(BugError):
        parameters(statement([0], [25], [0]), write, 0, 2, Horizon())
    with pytest.raises(BugError):
        list(copy_blocks(WritePlan(statements=(), copy="C", copy_columns=np.zeros(1, np.int64)), write, [(0, 2)]))


def test_rows_are_cut_before_a_statement_becomes_too_large(monkeypatch):
    monkeypatch.setattr("headrace.databases.postgres.destination.writing.writes.CHUNK_BYTES", 100)
    sizes = [10, 40, 40, 20, 300, 5, 5]
    write = insert_of([[b"x" * size for size in sizes], [b""] * 7])
    assert list(row_chunks(statement([0, 1], [25, 25], [0, 0]), write)) == [(0, 3), (3, 4), (4, 5), (5, 7)]


def test_small_writes_are_not_cut():
    write = insert_of([[b"x"] * 50])
    assert list(row_chunks(statement([0], [25], [0]), write)) == [(0, 50)]
