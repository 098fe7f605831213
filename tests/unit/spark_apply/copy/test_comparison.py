"""Which rows of two tables differ: found by digests of buckets, named by their keys, bounded."""

from __future__ import annotations

import random

import pytest

from databases.memory.copying import MemoryTableReader, StoreTables
from databases.memory.store import MemoryStore, destination_column
from spark_apply.copy import comparison
from spark_apply.copy.comparison import _Side, differing_rows
from streams.table_name import TableName

COLUMNS = ("id", "v")


def side(rows, key=("id",), columns=COLUMNS) -> _Side:
    store = MemoryStore()
    store.create_table("public", "t", [destination_column(column) for column in columns])
    store.insert("public", "t", rows)
    return _Side(MemoryTableReader(StoreTables(store), {}, ()), TableName("public", "t"), key, columns)


def row(number: int, value: str = "same") -> tuple[bytes, bytes]:
    return str(number).encode(), value.encode()


@pytest.mark.parametrize("buckets", [1, 16, 1000])
def test_rows_that_differ_are_named_with_what_is_wrong(buckets: int):
    there = [row(number) for number in range(500)]
    here = [row(number) for number in range(1, 500) if number != 7] + [row(7, "changed"), row(9999)]
    random.Random(1).shuffle(here)
    found, has_more = differing_rows([side(there), side(here)], buckets)
    assert {(each.key, each.what) for each in found} == {
        (("7",), "differs"), (("0",), "missing at the destination"), (("9999",), "only at the destination"),
    }
    assert not has_more


def test_rows_are_named_as_the_destination_calls_their_columns():
    there = side([row(1), row(2)])
    found, _ = differing_rows([there, side([row(1), row(2, "changed")], ("number",), ("number", "w"))], 4)
    assert [(each.columns, each.key, each.what) for each in found] == [(("number",), ("2",), "differs")]


def test_equal_tables_have_no_row_to_name():
    rows = [row(number) for number in range(50)]
    assert differing_rows([side(rows), side(reversed(rows))], 8) == ((), False)


def test_without_a_key_duplicates_are_counted():
    found, _ = differing_rows([side([row(1), row(1), row(2)], COLUMNS), side([row(1), row(2)], COLUMNS)], 4)
    assert [(each.key, each.what) for each in found] == [(("1", "same"), "missing at the destination")]


def test_what_is_read_and_named_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "_ROWS_READ_MAX", 100)
    there, here = side([row(number) for number in range(5000)]), side([])
    read = []
    original = there.reader.bucket_rows

    def counted(*arguments, **named):
        answer = original(*arguments, **named)
        read.append(len(answer))
        return answer

    monkeypatch.setattr(there.reader, "bucket_rows", counted)
    found, has_more = differing_rows([there, here], 50)
    assert len(found) == comparison.DIFFERENCES_MAX
    assert has_more
    assert read[0] <= 200
