"""Declarative transformations: row by row and batch results agree, and impossible transformations are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.base.clock import VirtualClock
from headrace.base.errors import BugError
from headrace.databases.connectors import value_types
from headrace.lcr.batch import (
    Column,
    Command,
    LcrBatch,
    OldImage,
    Partition,
    RowGroup,
    TableVersion,
    Truncate,
    content_version,
)
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.table_name import TableName
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.rules.conditions.condition import parse
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.reshaping import _may_name, transformed_version
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    KeepColumns,
    KnownColumns,
    RenameColumn,
    RenameSchema,
    RenameTable,
    Transformation,
    TransformationError,
    columns_at_the_end,
    in_order,
)
from headrace.rules.user_code.source import UserFunction
from tests.support.session.seeds import scaled
from tests.support.values.lcr_batches import column_values, lcr_batches, transactions

# of a `VirtualClock` that was never advanced: 2023-11-14 22:13:20
NOW = (1_700_000_000_000_000 - 946_684_800_000_000).to_bytes(8, "big")
NAMES = ("a", "b", "c", "d", "e")
_NAME = st.sampled_from(NAMES)
_SOME = st.lists(_NAME, min_size=1, max_size=3, unique=True).map(tuple)
OPERATIONS = st.one_of(
    st.builds(KeepColumns, kept=_SOME),
    st.builds(DeleteColumns, deleted=_SOME),
    st.builds(RenameColumn, before=_NAME, after=_NAME),
    st.builds(AddColumn, name=_NAME, type_name=st.just("pg_catalog.text"), value=st.none() | st.text("xy", max_size=3)),
    st.builds(AddColumn, name=_NAME, type_name=st.just(CURRENT_TIMESTAMP), is_now=st.just(True)),
    st.builds(RenameTable, owner=st.sampled_from("op"), name=st.sampled_from("tu")),
    st.builds(RenameSchema, owner=st.sampled_from("op")),
)
EMPLOYEES = TableVersion(
    object_number=7,
    version=7,
    owner="hr",
    name="employees",
    old_image=OldImage.FULL,
    columns=tuple(
        Column(name=name, type_name="pg_catalog.text", is_key=name == "id") for name in ("id", "name", "salary")
    ),
)

EMPLOYEES_NAME = TableName("hr", "employees")


def evaluation(*operations, **more) -> RuleEvaluation:
    rule = Rule(tags=ANY_TAG, transformation=Transformation(operations=operations), **more)
    return RuleEvaluation(RuleSet(include=(rule,)), types=value_types(), clock=VirtualClock())


# --------------------------------------------------------------------------- the reference


def images(batch: LcrBatch, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a row's old and new values, by column."""
    group, row = RowLcr(batch, number).place
    if group < 0:
        return {}, {}
    rows, columns = batch.groups[group], batch.tables[batch.groups[group].table].columns
    old, new = (
        {} if image is None else {c.name: v for k, c in enumerate(columns) if (v := image.value(k, row)) != ABSENT}
        for image in (rows.old, rows.new)
    )
    return old, new


def of_one_row(batch: LcrBatch, number: int, operations, columns: list[str]):
    """Return schema, name, command, old and new values of one transformed LCR."""
    lcr = RowLcr(batch, number)
    owner, name = lcr.object_owner, lcr.object_name
    (old, new), there = images(batch, number), list(columns)
    is_full = lcr.table.old_image is OldImage.FULL
    has_old, has_new = lcr.command_type in ("UPDATE", "DELETE"), lcr.command_type in ("INSERT", "UPDATE")
    for each in operations:
        if isinstance(each, KeepColumns):
            old, new = ({c: v for c, v in image.items() if c in each.kept} for image in (old, new))
            there = [c for c in there if c in each.kept]
        elif isinstance(each, DeleteColumns):
            old, new = ({c: v for c, v in image.items() if c not in each.deleted} for image in (old, new))
            there = [c for c in there if c not in each.deleted]
        elif isinstance(each, RenameColumn):
            old, new = ({each.after if c == each.before else c: v for c, v in image.items()} for image in (old, new))
            there = [each.after if c == each.before else c for c in there]
        elif isinstance(each, AddColumn):
            value = NOW if each.is_now else NULL if each.value is None else each.value.encode()
            new |= {each.name: value} if has_new else {}
            old |= {each.name: value} if has_old and is_full and not each.is_now else {}
            there.append(each.name)
        elif isinstance(each, RenameTable):
            owner, name = each.owner, each.name
        else:
            owner = each.owner
    return owner, name, lcr.command_type, old, new


@pytest.mark.seeded
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    max_examples=scaled(36, 1000),
    deadline=None,
)
@given(batch=lcr_batches(), operations=st.lists(OPERATIONS, min_size=1, max_size=5), data=st.data())
def test_batch_transformation_equals_row_by_row_transformation(batch, operations, data):
    named = [
        replace(
            table,
            columns=tuple(
                replace(column, name=name)
                for column, name in zip(table.columns, data.draw(st.permutations(NAMES)), strict=False)
            ),
        )
        for table in batch.tables
    ]
    tables = tuple(replace(table, version=content_version(table) ^ place) for place, table in enumerate(named))
    batch = replace(batch, tables=tables)
    try:
        after = evaluation(*operations).filter(batch)
    except TransformationError:
        assume(False)
    assert (after.previous_scn, after.through_scn, after.row_count) == (
        batch.previous_scn,
        batch.through_scn,
        batch.row_count,
    )
    kinds = [(group.table, group.command) for group in after.groups]
    assert len(set(kinds)) == len(kinds)
    for number in range(batch.row_count):
        wanted = of_one_row(batch, number, operations, [column.name for column in RowLcr(batch, number).table.columns])
        lcr = RowLcr(after, number)
        assert (lcr.object_owner, lcr.object_name, lcr.command_type, *images(after, number)) == wanted
        assert (lcr.tag, lcr.scn, lcr.transaction_id) == (
            RowLcr(batch, number).tag,
            RowLcr(batch, number).scn,
            RowLcr(batch, number).transaction_id,
        )
        if lcr.command_type != "TRUNCATE":
            lengths = {len(lcr.table.columns)} | {
                image.column_count
                for image in (after.groups[lcr.place[0]].old, after.groups[lcr.place[0]].new)
                if image is not None
            }
            assert len(lengths) == 1


# --------------------------------------------------------------------------- order


def test_operations_are_ordered_by_step_then_by_the_manuals_order():
    keep, delete, rename = KeepColumns(kept=("a",)), DeleteColumns(deleted=("b",)), RenameColumn(before="a", after="b")
    add, table, schema = (
        AddColumn(name="c", type_name="pg_catalog.text"),
        RenameTable(owner="o", name="t"),
        RenameSchema(owner="p"),
    )
    assert in_order([(0, schema), (0, table), (0, add), (0, rename), (0, delete), (0, keep)]) == (
        keep,
        delete,
        rename,
        add,
        table,
        schema,
    )
    assert in_order([(2, keep), (1, schema), (1, table), (0, add)]) == (add, table, schema, keep)


def test_schema_rename_follows_table_rename_unless_steps_differ():
    table, schema = RenameTable(owner="o", name="t"), RenameSchema(owner="p")
    assert Transformation(operations=in_order([(0, schema), (0, table)])).named(TableName("hr", "x")) == ("p", "t")
    assert Transformation(operations=in_order([(0, schema), (1, table)])).named(TableName("hr", "x")) == ("o", "t")


# --------------------------------------------------------------------------- refused and ignored operations


def batch_of(table: TableVersion, old: list[bytes | int], new: list[bytes | int]) -> LcrBatch:
    group = RowGroup(
        table=0,
        command=Command.UPDATE,
        row_numbers=np.array([0], np.int32),
        old=column_values([[value] for value in old]),
        new=column_values([[value] for value in new]),
    )
    return LcrBatch(
        source="dbs1",
        previous_scn=0,
        through_scn=10,
        tables=(table,),
        transactions=transactions([10], [1]),
        groups=(group,),
    )


ROW = batch_of(EMPLOYEES, [b"1", b"x", b"5"], [b"1", UNCHANGED, b"6"])


@pytest.mark.parametrize(
    ("operations", "word"),
    [
        ((RenameColumn(before="salary", after="name"),), "name"),
        ((AddColumn(name="name", type_name="pg_catalog.text", value="x"),), "name"),
        ((DeleteColumns(deleted=("id", "name", "salary")),), "no column"),
    ],
)
def test_transformation_with_duplicate_or_no_columns_stops_the_client(operations, word):
    with pytest.raises(TransformationError, match=word):
        evaluation(*operations).filter(ROW)


def test_operations_on_missing_columns_are_ignored():
    found = evaluation(DeleteColumns(deleted=("missing",)), RenameColumn(before="missing", after="there")).filter(ROW)
    assert found is ROW


def test_key_column_deletion_requires_a_logged_old_row():
    delete = DeleteColumns(deleted=("id",))
    assert [column.name for column in evaluation(delete).filter(ROW).tables[0].columns] == ["name", "salary"]
    with pytest.raises(TransformationError, match="id"):
        evaluation(delete).filter(replace(ROW, tables=(replace(EMPLOYEES, old_image=OldImage.KEY),)))
    renamed = evaluation(RenameColumn(before="id", after="number")).filter(
        replace(ROW, tables=(replace(EMPLOYEES, old_image=OldImage.KEY),))
    )
    assert next((column.name, column.is_key) for column in renamed.tables[0].columns) == ("number", True)


def test_update_without_old_values_gets_none():
    keyed = replace(EMPLOYEES, old_image=OldImage.KEY)
    add = AddColumn(name="region", type_name="pg_catalog.text", value="EMEA")
    found = evaluation(add).filter(batch_of(keyed, [ABSENT] * 3, [b"1", b"y", b"6"]))
    assert images(found, 0) == ({}, {"region": b"EMEA", "id": b"1", "name": b"y", "salary": b"6"})
    assert images(evaluation(add).filter(ROW), 0)[0] == {"region": b"EMEA", "id": b"1", "name": b"x", "salary": b"5"}


def test_added_columns_precede_the_source_columns():
    """The apply reader recognises renamed columns by their order: a new column of the source must stay last."""
    found = evaluation(AddColumn(name="region", type_name="pg_catalog.text")).filter(ROW)
    assert [column.name for column in found.tables[0].columns] == ["region", "id", "name", "salary"]


def test_overlapping_rules_with_different_transformations_stop_the_client():
    rules = RuleSet(
        include=(
            Rule(owner="hr"),
            Rule(
                owner="hr",
                name="employees",
                transformation=Transformation(operations=(DeleteColumns(deleted=("salary",)),)),
            ),
        )
    )
    with pytest.raises(TransformationError, match=r"hr\.\* and hr\.employees"):
        RuleEvaluation(rules).filter(ROW)
    apart = RuleSet(
        include=(
            Rule(condition=parse("object_owner = 'hr' and object_name <> 'employees'", "condition")),
            Rule(
                owner="hr",
                name="employees",
                transformation=Transformation(operations=(DeleteColumns(deleted=("salary",)),)),
            ),
        )
    )
    assert images(RuleEvaluation(apart, types=value_types()).filter(ROW), 0)[1] == {"id": b"1", "name": UNCHANGED}


def test_only_the_last_of_several_clients_can_transform():
    transforming = RuleSet(include=(Rule(transformation=Transformation(operations=(RenameSchema(owner="x"),))),))
    with pytest.raises(BugError):
        RuleEvaluation(transforming, RuleSet())


# --------------------------------------------------------------------------- versions, partitions, TRUNCATE


def test_versions_with_equal_results_become_one():
    wide = replace(EMPLOYEES, version=8, columns=(*EMPLOYEES.columns, Column(name="note", type_name="pg_catalog.text")))
    rows = transactions([10, 20], [1, 1])
    groups = tuple(
        RowGroup(
            table=place,
            command=Command.INSERT,
            row_numbers=np.array([place], np.int32),
            old=None,
            new=column_values([[str(k + place).encode()] for k in range(len(table.columns))]),
        )
        for place, table in enumerate((EMPLOYEES, wide))
    )
    batch = LcrBatch(
        source="dbs1", previous_scn=0, through_scn=20, tables=(EMPLOYEES, wide), transactions=rows, groups=groups
    )
    found = evaluation(KeepColumns(kept=("id", "name"))).filter(batch)
    assert (len(found.tables), len(found.groups)) == (1, 1)
    assert [images(found, number)[1] for number in (0, 1)] == [{"id": b"0", "name": b"1"}, {"id": b"1", "name": b"2"}]


def test_truncate_names_the_renamed_table():
    batch = LcrBatch(
        source="dbs1",
        previous_scn=0,
        through_scn=10,
        tables=(EMPLOYEES,),
        transactions=transactions([10], [1]),
        truncates=(Truncate(row_number=0, tables=(0,), cascade=True, restart_identity=False),),
    )
    (table,) = evaluation(RenameTable(owner="sales", name="staff")).filter(batch).tables
    assert (table.qualified_name, table.object_number) == ("sales.staff", 7)


@pytest.mark.parametrize(
    ("operation", "rows"),
    [
        (DeleteColumns(deleted=("name",)), "(salary > 5)"),
        (DeleteColumns(deleted=("salary",)), ""),
        (RenameColumn(before="salary", after="pay"), ""),
        (RenameTable(owner="sales", name="staff"), "(salary > 5)"),
    ],
)
def test_partition_bounds_are_kept_only_over_arriving_columns(operation, rows):
    table = replace(EMPLOYEES, partition=Partition(owner="hr", name="rich", rows="(salary > 5)"))
    assert evaluation(operation).reshaped(table).partition.rows == rows


def test_row_migrates_before_its_columns_change():
    subset = parse("name = 'x'", "subset")
    rule = Rule(
        owner="hr",
        name="employees",
        tags=ANY_TAG,
        subset=subset,
        transformation=Transformation(operations=(DeleteColumns(deleted=("name",)),)),
    )
    found = RuleEvaluation(RuleSet(include=(rule,)), types=value_types()).filter(
        batch_of(EMPLOYEES, [b"1", b"x", b"5"], [b"1", b"z", b"6"])
    )
    assert (RowLcr(found, 0).command_type, images(found, 0)) == ("DELETE", ({"id": b"1", "salary": b"5"}, {}))


def test_rows_outside_the_transformations_rule_are_discarded():
    assert evaluation(RenameTable(owner="a", name="b"), owner="other").filter(ROW) is not ROW  # no rule takes it
    assert not evaluation(RenameTable(owner="a", name="b"), owner="other").filter(ROW).row_count


# --------------------------------------------------------------------------- column names


@pytest.mark.seeded
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=5))
def test_column_names_before_and_after_a_client_agree_with_its_shape(operations):
    transformation = Transformation(operations=tuple(operations))
    try:
        shape = transformation.shape(["a", "b", "c"], table="t")
    except TransformationError:
        return
    origins = {name: origin for name, origin in shape.columns if isinstance(origin, str)}
    for name in ("a", "b", "c"):
        after = transformation.after(name)
        assert {after} - {None} == {there for there, origin in origins.items() if origin == name}
    if transformation.unmet(["a", "b", "c"]):
        return
    for name, origin in origins.items():
        assert transformation.origin(name) == origin
    for added in set(shape.names) - origins.keys():
        assert transformation.origin(added) is None


def test_tables_without_rows_in_a_batch_are_not_transformed():
    """Rows of an older table version were filtered out: an impossible transformation of that version is harmless."""
    taken = replace(EMPLOYEES, object_number=8, name="others")
    group = RowGroup(
        table=1,
        command=Command.INSERT,
        row_numbers=np.zeros(1, np.int32),
        old=None,
        new=column_values([[b"1"], [b"n"], [b"s"]]),
    )
    batch = LcrBatch(
        source="a",
        previous_scn=0,
        through_scn=5,
        tables=(EMPLOYEES, taken),
        transactions=transactions([5], [1]),
        groups=(group,),
    )
    rule = Rule(
        owner="hr",
        name="employees",
        tags=ANY_TAG,
        transformation=Transformation(operations=(AddColumn(name="salary", type_name="pg_catalog.text", value=None),)),
    )
    rules = RuleEvaluation(
        RuleSet(include=(rule, Rule(tags=ANY_TAG, owner="hr", name="others"))),
        types=value_types(),
        clock=VirtualClock(),
    )
    assert rules.filter(batch).row_count == 1
    with pytest.raises(TransformationError):
        rules.filter(replace(batch, groups=(replace(group, table=0),)))


@pytest.mark.parametrize(
    ("rows", "names_it"),
    [
        ("name = 'salary'", False),
        ("salary = 'x'", True),
        ("name = 'it''s salary'", False),
        (r"name = E'\'salary'", True),
        ("a = 'x' and salary > 1", True),
    ],
)
def test_word_in_a_text_literal_of_a_partition_condition_is_no_column(rows: str, *, names_it: bool):
    assert _may_name(rows, frozenset({"salary"})) is names_it


# --------------------------------------------------------------------------- renamed columns


def knowing(*operations, columns=("id", "name", "salary"), function=()) -> Transformation:
    known = KnownColumns(owner="hr", name="employees", columns=columns, rule="captures.cap.rules.include[0]")
    custom = CustomTransformation(function=UserFunction(name="masks:mask", version=""), columns=function)
    return Transformation(operations=operations, custom=custom if function else None, known=(known,))


def version(*names: str, table: str = "employees") -> TableVersion:
    columns = tuple(Column(name=name, type_name="pg_catalog.text", is_key=name == "id") for name in names)
    return replace(EMPLOYEES, name=table, columns=columns)


@pytest.mark.parametrize(
    "made",
    [
        knowing(DeleteColumns(deleted=("salary",))),
        knowing(KeepColumns(kept=("id", "salary"))),
        knowing(RenameColumn(before="salary", after="wage"), function=("wage",)),
        knowing(function=("salary",)),
    ],
)
def test_renamed_column_stops_the_client_and_the_copy(made):
    """Its values would pass as they are, under another name."""
    before, renamed = version("id", "name", "salary"), version("id", "name", "pay")
    transformed_version(before, made)
    with pytest.raises(
        TransformationError,
        match=r"hr\.employees has no column salary any more, which captures\.cap\.rules\.include\[0\] names or drops"
        r" \(.*\); new columns: pay",
    ) as caught:
        transformed_version(renamed, made)
    assert "run `headrace up FILE`" in caught.value.hint
    with pytest.raises(TransformationError, match="new columns: pay"):
        columns_at_the_end(["id", "name", "pay"], [made], table=EMPLOYEES_NAME)


def test_columns_that_are_not_named_come_and_go():
    made = knowing(DeleteColumns(deleted=("salary",)))
    transformed_version(version("id", "salary"), made)
    transformed_version(version("id", "name", "salary", "more"), made)
    transformed_version(version("id", "pay", table="others"), made)


MASKS = [knowing(DeleteColumns(deleted=("salary",))), knowing(function=("salary",))]


@pytest.mark.parametrize("made", [*MASKS, knowing(KeepColumns(kept=("id", "name")))])
def test_masked_column_takes_the_name_of_a_dropped_one(made):
    """Nothing tells it from a mere DROP COLUMN, so that stops the client, too."""
    transformed_version(version("id", "name", "salary"), made)
    with pytest.raises(TransformationError, match=r"no column salary any more.* new columns: none"):
        transformed_version(version("id", "name"), made)


@pytest.mark.parametrize("made", MASKS)
def test_masked_column_exchanges_its_name(made):
    exchanged = version("id", "salary", "name")
    with pytest.raises(TransformationError, match="no longer in the order that they had") as caught:
        transformed_version(exchanged, made)
    assert "take hr.employees out of the rules" in caught.value.hint
    transformed_version(replace(exchanged, object_number=70, root_number=7), made)  # a partition has its own order


def test_masked_column_takes_a_name_that_is_kept_and_was_never_there():
    made = knowing(KeepColumns(kept=("id", "salary", "phone")), function=("salary",))
    with pytest.raises(TransformationError):
        transformed_version(version("id", "name", "phone"), made)


def test_renamed_table_keeps_what_is_known_of_it():
    known = [
        KnownColumns(owner="hr", name=name, columns=columns, rule="r", number=number)
        for name, columns, number in (("staff", ("id", "pay"), 9), ("employees", ("id", "name", "salary"), 7))
    ]
    made = Transformation(operations=(DeleteColumns(deleted=("salary",)),), known=tuple(known))
    renamed = replace(version("id", "name", "pay", table="staff"), object_number=7)
    with pytest.raises(TransformationError, match=r"hr\.staff has no column salary"):
        transformed_version(renamed, made)
    transformed_version(replace(version("id", "pay", table="staff"), object_number=9), made)
    other_source = (*known, KnownColumns(owner="hr", name="others", columns=("id", "pay"), rule="r", number=7))
    transformed_version(
        replace(version("id", "pay", table="others"), object_number=7), replace(made, known=other_source)
    )


def test_column_that_a_table_of_a_pattern_never_had_is_no_loss():
    made = knowing(DeleteColumns(deleted=("salary", "secret")))
    transformed_version(version("id", "name", "salary", "more"), made)
    with pytest.raises(TransformationError, match="no column salary any more"):
        transformed_version(version("id", "name", "more"), made)


def test_rows_from_before_a_rename_do_not_pass_the_corrected_rule():
    """Their values are under the column's former name, which the rule does not name any more."""
    corrected = knowing(function=("pay",), columns=("id", "name", "pay"))
    with pytest.raises(TransformationError, match=r"no column pay any more.* new columns: salary"):
        transformed_version(version("id", "name", "salary"), corrected)


def test_known_columns_are_no_part_of_the_identity():
    made = knowing(DeleteColumns(deleted=("salary",)))
    assert made == replace(made, known=())
    assert (hash(made), repr(made)) == (hash(replace(made, known=())), repr(replace(made, known=())))


def test_later_clients_know_columns_under_the_tables_new_name():
    first = Transformation(operations=(RenameTable(owner="crm", name="staff"),))
    known = KnownColumns(owner="crm", name="staff", columns=("id", "salary"), rule="r")
    second = Transformation(operations=(DeleteColumns(deleted=("salary",)),), known=(known,))
    with pytest.raises(TransformationError, match=r"crm\.staff has no column salary any more"):
        columns_at_the_end(["id", "pay"], [first, second], table=EMPLOYEES_NAME)
