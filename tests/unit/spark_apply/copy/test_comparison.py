"""The columns of two tables that are compared."""

from __future__ import annotations

from headrace.databases.ports.copying import SeenTable
from headrace.lcr.table_name import TableName
from headrace.rules.transformations.transformation import (
    AddColumn,
    DeleteColumns,
    Operation,
    RenameColumn,
    Transformation,
)
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.comparison.jobs import ComparedColumns, compared_columns


def compared(
    there: SeenTable | None, here: SeenTable | None, *operations: Operation, made: tuple[str, ...] | None = None
) -> ComparedColumns | str:
    transformations = (Transformation(operations=operations),) if operations else ()
    name = TableName("public", "t")
    table = TableToInstantiate(
        identity="1", source=name, destination=name, object_numbers=(), transformations=transformations
    )
    return compared_columns(table, there, here, made)


def seen(*columns: str, computed: tuple[str, ...] = ()) -> SeenTable:
    return SeenTable(columns=columns, computed=frozenset(computed))


def test_every_column_of_both_sides_is_compared_even_if_computed():
    found = compared(seen("id", "a", "b", computed=("b",)), seen("id", "b", "a", computed=("a",)))
    assert (found.source, found.destination, found.left_out, found.computed) == (
        ("id", "a", "b"),
        ("id", "a", "b"),
        (),
        ("a",),
    )


def test_columns_of_one_side_are_excluded_or_prevent_the_comparison():
    found = compared(seen("id", "sum", computed=("sum",)), seen("id", "own"))
    assert found.left_out == (
        "sum (the source computes it, and the destination has no such column)",
        "own (only at the destination)",
    )
    assert compared(seen("id", "a"), seen("id")) == "the destination table lacks columns of the source's: a"
    assert compared(None, seen("id")) == "the source has no such table"


def test_transformed_columns_are_compared_under_each_sides_names():
    found = compared(
        seen("id", "name", "pay"),
        seen("number", "name", "region"),
        RenameColumn(before="id", after="number"),
        DeleteColumns(deleted=("pay",)),
        AddColumn(name="region", type_name="pg_catalog.text", value="x"),
    )
    assert (found.source, found.destination) == (("id", "name"), ("number", "name"))
    assert found.left_out == ("region (a transformation adds it)", "pay (a transformation leaves it out)")


def test_computed_column_may_share_the_name_of_an_added_column():
    found = compared(
        seen("id", "sum", computed=("sum",)),
        seen("id", "sum"),
        AddColumn(name="sum", type_name="pg_catalog.text", value="x"),
    )
    assert (found.destination, found.left_out) == (
        ("id",),
        ("sum (a transformation adds it)", "sum (a transformation leaves it out)"),
    )


def test_rows_made_by_a_function_have_only_the_columns_of_the_log():
    found = compared(
        seen("id", "a", "sum", computed=("sum",)), seen("id", "a", "sum", computed=("sum",)), made=("id", "a")
    )
    assert found.destination == ("id", "a")
    assert found.left_out == (
        "sum (no function sees it: its values are not in the log)",
        "sum (only at the destination)",
    )
