"""Which rows of two tables differ: found by digests of buckets, named by their keys, bounded."""

from __future__ import annotations

import random

import pytest

from databases.copying import SeenTable
from databases.memory.copying import MemoryTableReader, StoreTables
from databases.memory.store import MemoryStore, destination_column
from rules.transformation import AddColumn, DeleteColumns, Operation, RenameColumn, Transformation
from spark_apply.copy import comparison
from spark_apply.copy.comparison import ComparedColumns, _Side, compared_columns, differing_rows
from spark_apply.driver.config import TableToInstantiate
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


def compared(there: SeenTable | None, here: SeenTable | None, *operations: Operation, made: tuple[str, ...] | None = None) -> ComparedColumns | str:
    transformations = (Transformation(operations=operations),) if operations else ()
    name = TableName("public", "t")
    table = TableToInstantiate(identity="1", source=name, destination=name, object_numbers=(), transformations=transformations)
    return compared_columns(table, there, here, made)


def seen(*columns: str, computed: tuple[str, ...] = ()) -> SeenTable:
    return SeenTable(columns=columns, computed=frozenset(computed))


def test_every_column_of_both_sides_is_compared_whoever_computes_it():
    found = compared(seen("id", "a", "b", computed=("b",)), seen("id", "b", "a", computed=("a",)))
    assert (found.source, found.destination, found.left_out, found.computed) == (("id", "a", "b"), ("id", "a", "b"), (), ("a",))


def test_columns_of_one_side_are_left_out_with_the_reason_or_keep_the_table_from_being_compared():
    found = compared(seen("id", "sum", computed=("sum",)), seen("id", "own"))
    assert found.left_out == ("sum (the source computes it, and the destination has no such column)", "own (only at the destination)")
    assert compared(seen("id", "a"), seen("id")) == "the destination table lacks columns of the source's: a"
    assert compared(None, seen("id")) == "the source has no such table"


def test_transformed_columns_are_compared_under_their_names_at_either_side():
    found = compared(
        seen("id", "name", "pay"), seen("number", "name", "region"), RenameColumn(before="id", after="number"), DeleteColumns(deleted=("pay",)),
        AddColumn(name="region", type_name="pg_catalog.text", value="x"),
    )
    assert (found.source, found.destination) == (("id", "name"), ("number", "name"))
    assert found.left_out == ("region (a transformation adds it)", "pay (a transformation leaves it out)")


def test_column_that_is_in_nobodys_log_may_have_the_name_of_one_that_is_added():
    found = compared(seen("id", "sum", computed=("sum",)), seen("id", "sum"), AddColumn(name="sum", type_name="pg_catalog.text", value="x"))
    assert (found.destination, found.left_out) == (("id",), ("sum (a transformation adds it)", "sum (a transformation leaves it out)"))


def test_rows_that_a_function_makes_have_the_columns_of_the_log_alone():
    found = compared(seen("id", "a", "sum", computed=("sum",)), seen("id", "a", "sum", computed=("sum",)), made=("id", "a"))
    assert found.destination == ("id", "a")
    assert found.left_out == ("sum (no function sees it: its values are not in the log)", "sum (only at the destination)")
