"""Rules with conditions on batches: kept rows, migrated rows and undecidable rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import BugError
from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion, Truncate
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.nodes import ConditionError, Image, of_image
from headrace.rules.conditions.rowwise import truth_values
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.needs import refusals
from headrace.rules.rule import ANY_TAG, UNKNOWN_TAG, Rule, RuleSet, TruthValue
from tests.support.session.seeds import scaled
from tests.support.values.lcr_batches import assert_same_batch, column_values, insert_batch, transactions

TYPES = PostgresValueTypes()
EMPLOYEES = TableVersion(
    object_number=7,
    version=7,
    owner="hr",
    name="employees",
    old_image=OldImage.FULL,
    columns=(
        Column(name="id", type_name="pg_catalog.int4", is_key=True),
        Column(name="department_id", type_name="pg_catalog.int4"),
        Column(name="note", type_name="pg_catalog.text"),
    ),
)
FALSE, MAYBE, TRUE = TruthValue.FALSE, TruthValue.MAYBE, TruthValue.TRUE


def where(text: str, **more) -> Rule:
    return Rule(condition=parse(text, "where"), **more)


def subset(text: str, **more) -> Rule:
    return Rule(owner="hr", name="employees", subset=parse(text, "subset"), **more)


def evaluation(*include: Rule, exclude: tuple[Rule, ...] = ()) -> RuleEvaluation:
    return RuleEvaluation(RuleSet(include=include or None, exclude=exclude), types=TYPES)


def value(item: object) -> bytes | int:
    return item if isinstance(item, int) and item < 0 else NULL if item is None else str(item).encode()


def batch_of(*rows: tuple[Any, ...], tags: list[int] | None = None, table: TableVersion = EMPLOYEES) -> LcrBatch:
    """One transaction per row: ("INSERT", new), ("UPDATE", old, new), ("DELETE", old) or ("TRUNCATE",)."""
    groups, truncates = [], []
    for command in (Command.INSERT, Command.UPDATE, Command.DELETE):
        mine = [number for number, row in enumerate(rows) if row[0] == command.name]
        if mine:
            olds = [rows[number][1] for number in mine] if command is not Command.INSERT else None
            news = [rows[number][-1] for number in mine] if command is not Command.DELETE else None
            old, new = (
                None if image is None else column_values([[value(row[k]) for row in image] for k in range(3)])
                for image in (olds, news)
            )
            groups.append(RowGroup(table=0, command=command, row_numbers=np.array(mine, np.int32), old=old, new=new))
    for number, row in enumerate(rows):
        if row[0] == "TRUNCATE":
            truncates.append(Truncate(row_number=number, tables=(0,), cascade=False, restart_identity=False))
    commits = [10 * (number + 1) for number in range(len(rows))]
    return LcrBatch(
        source="dbs1",
        previous_scn=0,
        through_scn=commits[-1],
        tables=(table,),
        tags=(Tag(value=b"\x1d"),),
        transactions=transactions(commits, [1] * len(rows), tags=tags),
        groups=tuple(groups),
        truncates=tuple(truncates),
    )


def shown(batch: LcrBatch) -> list[tuple[Any, ...]]:
    """Return the remaining rows in the form of `batch_of`, with their transactions' commit SCNs."""
    found = []
    for number in range(batch.row_count):
        lcr = RowLcr(batch, number)
        images = []
        if lcr.command_type != "TRUNCATE":
            group, row = lcr.place
            rows = batch.groups[group]
            images = [
                tuple(image.value(k, row) for k in range(len(lcr.table.columns)))
                for image in (rows.old, rows.new)
                if image is not None
            ]
        found.append((int(lcr.commit_scn or 0), lcr.command_type, *images))
    return found


# --------------------------------------------------------------------------- prefiltering

DEPARTMENT, OTHER_TABLE, EVERY = (
    where("department_id = 50", tags=ANY_TAG),
    where("department_id = 50", name="other"),
    Rule(tags=ANY_TAG),
)


@pytest.mark.parametrize(
    ("negative", "positive", "expected"),
    [
        # The manuals' table: a rule with a condition on a column is MAYBE before the row is read.
        (OTHER_TABLE, DEPARTMENT, MAYBE),
        (DEPARTMENT, DEPARTMENT, MAYBE),
        (DEPARTMENT, EVERY, MAYBE),
        (EVERY, DEPARTMENT, FALSE),
        (DEPARTMENT, OTHER_TABLE, FALSE),
        (OTHER_TABLE, OTHER_TABLE, FALSE),
        (OTHER_TABLE, EVERY, TRUE),
        (EVERY, EVERY, FALSE),
        (EVERY, OTHER_TABLE, FALSE),
    ],
)
def test_prefilter_of_conditions_follows_the_manuals_table(negative, positive, expected):
    rules = RuleSet(include=(positive,), exclude=(negative,))
    for tag in (None, b"\x11", UNKNOWN_TAG):
        assert rules.prefilter("hr", "employees", tag=tag) is expected


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        # condition -> outcome for hr.employees with a NULL tag, with an unknown tag
        ("object_owner = 'hr'", TRUE, TRUE),
        ("object_owner = 'sales'", FALSE, FALSE),
        ("tag is null", TRUE, MAYBE),
        ("object_name like 'emp%' and tag = '1d'", FALSE, MAYBE),
        ("object_name = 'jobs' and tag = '1d'", FALSE, FALSE),
        ("command_type in ('INSERT', 'UPDATE')", MAYBE, MAYBE),
        ("object_owner = 'sales' or new.a = 1", MAYBE, MAYBE),
        ("object_owner = 'hr' or new.a = 1", TRUE, TRUE),
        ("source_database_name = 'dbs1'", MAYBE, MAYBE),
        ("scn is null", FALSE, FALSE),
        ("(tag = '1d') is unknown", TRUE, MAYBE),
        ("not (tag = '1d')", FALSE, MAYBE),
    ],
)
def test_known_attributes_of_an_lcr_decide_its_condition_early(text, known, unknown):
    rules = RuleSet(include=(Rule(condition=parse(text, "condition"), tags=ANY_TAG),))
    assert rules.prefilter("hr", "employees", tag=None) is known
    assert rules.prefilter("hr", "employees") is unknown


# --------------------------------------------------------------------------- filtering

ROWS = batch_of(
    ("INSERT", (1, 50, "a")),
    ("INSERT", (2, None, "b")),
    ("UPDATE", (1, 50, "a"), (1, 60, "a")),
    ("UPDATE", (3, 60, "c"), (3, 50, "c")),
    ("DELETE", (1, 60, "a")),
    ("DELETE", (4, 50, "d")),
    ("TRUNCATE",),
    tags=[-1, -1, -1, 0, -1, -1, -1],
)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([where("new.department_id = 50", tags=ANY_TAG)], [10, 40]),
        ([where("department_id = 50", tags=ANY_TAG)], [10, 40, 60]),
        ([where("old.department_id = 50", tags=ANY_TAG)], [30, 60]),
        ([where("new.department_id is null", tags=ANY_TAG)], [20, 50, 60, 70]),
        ([where("department_id = 50")], [10, 60]),  # untagged changes
        ([Rule(condition=parse("command_type in ('INSERT', 'TRUNCATE')", "condition"), tags=ANY_TAG)], [10, 20, 70]),
        ([Rule(condition=parse("tag is not null", "condition"), tags=ANY_TAG)], [40]),
        ([where("department_id = 50"), where("department_id = 60", tags=ANY_TAG)], [10, 30, 50, 60]),
    ],
)
def test_rows_are_kept_when_any_condition_is_true(rules, expected):
    assert [row[0] for row in shown(evaluation(*rules).filter(ROWS))] == expected


def test_negative_condition_discards_only_rows_for_which_it_is_true():
    kept = evaluation(Rule(tags=ANY_TAG), exclude=(where("department_id = 50", tags=ANY_TAG),)).filter(ROWS)
    assert [row[0] for row in shown(kept)] == [20, 30, 50, 70]


def test_batch_with_every_row_kept_stays_the_same_object():
    assert evaluation(where("id > 0 or lcr.command_type = 'TRUNCATE'", tags=ANY_TAG)).filter(ROWS) is ROWS


def test_batch_with_no_row_kept_becomes_a_progress_mark():
    assert evaluation(where("id < 0", tags=ANY_TAG)).filter(ROWS).is_progress_mark


def test_batch_of_tables_without_conditions_stays_the_same_object():
    batch = insert_batch([10, 20])
    assert evaluation(Rule(owner="public"), where("department_id = 50", owner="hr")).filter(batch) is batch


@pytest.mark.parametrize("gap", [ABSENT, UNCHANGED])
def test_missing_value_stops_the_client_and_names_the_columns(gap):
    batch = batch_of(("UPDATE", (ABSENT, ABSENT, ABSENT), (1, 50, gap)))
    with pytest.raises(
        ConditionError, match=r"hr.employees \(department_id, note\) that the log of dbs1 does not have"
    ) as refused:
        evaluation(where("department_id = 50 and new.note = 'x'", tags=ANY_TAG)).filter(batch)
    assert "headrace plan" in refused.value.hint


def test_missing_value_is_ignored_when_the_rest_of_the_condition_decides():
    batch = batch_of(("UPDATE", (ABSENT, ABSENT, ABSENT), (1, 60, UNCHANGED)))
    assert evaluation(where("department_id = 50 and note = 'x'")).filter(batch).is_progress_mark
    assert shown(evaluation(where("department_id = 60 or note = 'x'")).filter(batch)) == shown(batch)
    both = evaluation(Rule(), exclude=(where("department_id = 50 and note = 'x'"),))
    assert shown(both.filter(batch)) == shown(batch)


def test_unchanged_large_value_is_read_from_the_old_image():
    batch = batch_of(("UPDATE", (1, 50, "long"), (1, 60, UNCHANGED)))
    assert shown(evaluation(where("new.note = 'long'")).filter(batch)) == shown(batch)


def test_unchanged_key_is_read_from_the_new_image():
    batch = batch_of(
        ("UPDATE", (ABSENT, ABSENT, ABSENT), (1, 60, "x")), table=replace(EMPLOYEES, old_image=OldImage.KEY)
    )
    assert shown(evaluation(where("old.id = 1")).filter(batch)) == shown(batch)


@pytest.mark.parametrize("text", ["salary = 5", "department_id = 'x'", "note = 5", "note < 'x'", "note = id"])
def test_condition_unsuited_to_the_table_stops_the_client(text):
    with pytest.raises(ConditionError):
        evaluation(where(text)).filter(batch_of(("INSERT", (1, 50, "a"))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # decided by table and command: the rule needs no column of the table
        ("object_name = 'jobs' and new.min_salary = 5", 1),
        ("new.min_salary = 5 and object_name = 'jobs'", 1),
        ("command_type = 'INSERT' and old.min_salary = 5", 1),
        ("command_type = 'DELETE' or object_name = 'employees' or new.min_salary = 5", 3),
        ("command_type = 'UPDATE' and object_name <> 'employees' and old.note > 5", 1),
    ],
)
def test_rule_decided_by_table_and_command_needs_no_columns(text, expected):
    decided = Rule(owner="hr", condition=parse(text, "condition"))
    assert refusals(decided, EMPLOYEES, TYPES) == []
    batch = batch_of(("INSERT", (1, 50, "a")), ("UPDATE", (2, 60, "b"), (2, 60, "c")), ("DELETE", (3, 60, "d")))
    for rules in (
        (decided, where("department_id = 50", owner="hr")),
        (where("department_id = 50", owner="hr"), decided),
    ):
        assert len(shown(evaluation(*rules).filter(batch))) == expected
    if expected == 1:
        assert shown(evaluation(Rule(), exclude=(decided, where("department_id = 70"))).filter(batch)) == shown(batch)


def test_conditions_require_column_types():
    with pytest.raises(BugError):
        RuleEvaluation(RuleSet(include=(DEPARTMENT,)))


# --------------------------------------------------------------------------- subsets

FIFTY = evaluation(subset("department_id = 50", tags=ANY_TAG))
MIGRATIONS = {
    # a change -> the result of a subset rule
    ("INSERT", (1, 50, "a")): ("INSERT", (1, 50, "a")),
    ("INSERT", (1, 60, "a")): None,
    ("INSERT", (1, None, "a")): None,
    ("DELETE", (1, 50, "a")): ("DELETE", (1, 50, "a")),
    ("DELETE", (1, 60, "a")): None,
    ("DELETE", (1, None, "a")): None,
    ("UPDATE", (1, 50, "a"), (1, 50, "b")): ("UPDATE", (1, 50, "a"), (1, 50, "b")),
    ("UPDATE", (1, 60, "a"), (1, 70, "b")): None,
    ("UPDATE", (1, 50, "a"), (1, 60, "b")): ("DELETE", (1, 50, "a")),
    ("UPDATE", (1, 50, "a"), (1, None, "b")): ("DELETE", (1, 50, "a")),
    ("UPDATE", (1, 60, "a"), (2, 50, "b")): ("INSERT", (2, 50, "b")),
    ("UPDATE", (1, None, "a"), (1, 50, "b")): ("INSERT", (1, 50, "b")),
    ("UPDATE", (1, 60, "long"), (1, 50, UNCHANGED)): ("INSERT", (1, 50, "long")),
    ("UPDATE", (1, 50, "long"), (1, 50, UNCHANGED)): ("UPDATE", (1, 50, "long"), (1, 50, UNCHANGED)),
}


@pytest.mark.parametrize(("change", "expected"), MIGRATIONS.items(), ids=str)
def test_row_migration_follows_the_manuals(change, expected):
    found = FIFTY.filter(batch_of(change))
    assert shown(found) == ([] if expected is None else shown(batch_of(expected)))


def test_migrated_rows_keep_their_order_among_other_rows():
    changes = [*MIGRATIONS, *MIGRATIONS]
    found = FIFTY.filter(batch_of(*changes))
    expected = [
        (10 * (number + 1), *shown(batch_of(made))[0][1:])
        for number, change in enumerate(changes)
        if (made := MIGRATIONS[change])
    ]
    assert shown(found) == expected
    assert len({(group.table, group.command) for group in found.groups}) == len(found.groups)


def test_row_migrating_in_with_missing_values_stops_the_client():
    batch = batch_of(("UPDATE", (1, 60, ABSENT), (1, 50, UNCHANGED)))
    with pytest.raises(
        ConditionError, match="moved into the subset, and the log of dbs1 does not have its value of note"
    ):
        FIFTY.filter(batch)


def test_row_with_unknown_subset_membership_stops_the_client():
    with pytest.raises(ConditionError, match="department_id"):
        FIFTY.filter(batch_of(("UPDATE", (ABSENT, ABSENT, ABSENT), (1, 50, "a"))))
    with pytest.raises(ConditionError, match="department_id"):
        FIFTY.filter(batch_of(("DELETE", (1, ABSENT, ABSENT))))


def test_truncate_empties_only_the_subset():
    found = FIFTY.filter(batch_of(("TRUNCATE",)))
    (truncate,) = found.truncates
    table = found.tables[truncate.tables[0]]
    assert (table.owner, table.name) == ("hr", "employees")
    assert table.partition.rows == '(("department_id" = 50)) IS TRUE'
    assert found.tables == (table,)  # the whole table is no longer part of the batch


def test_subset_rule_passes_migrated_rows_unchanged():
    changes = [*MIGRATIONS, ("TRUNCATE",)]
    once = FIFTY.filter(batch_of(*changes))
    assert_same_batch(FIFTY.filter(once), once)


def test_another_rule_that_takes_a_row_prevents_its_migration():
    move = ("UPDATE", (1, 50, "a"), (1, 60, "b"))
    for rules in ((subset("department_id = 50"), Rule()), (Rule(), subset("department_id = 50"))):
        assert shown(evaluation(*rules).filter(batch_of(move))) == shown(batch_of(move))


@pytest.mark.seeded
@settings(max_examples=scaled(60, 2000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
            st.integers(1, 3),
            st.sampled_from([50, 60, None]),
            st.integers(1, 3),
            st.sampled_from([50, 60, None]),
            st.sampled_from(["a", UNCHANGED]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_subset_of_the_changes_produces_the_subset_of_the_rows(drawn):
    """The subset of the whole table and the result of the migrated changes are the same rows."""
    whole: dict[int, tuple[Any, ...]] = {}
    changes: list[tuple[Any, ...]] = []
    for command, key, department, new_key, new_department, note in drawn:
        if command == "INSERT" and key not in whole:
            whole[key] = (key, department, f"note {len(changes)}")
            changes.append(("INSERT", whole[key]))
        elif command == "DELETE" and key in whole:
            changes.append(("DELETE", whole.pop(key)))
        elif command == "UPDATE" and key in whole and (new_key == key or new_key not in whole):
            old = whole.pop(key)
            row = (new_key, new_department, note)
            whole[new_key] = (new_key, new_department, old[2] if note == UNCHANGED else note)
            changes.append(("UPDATE", old, row))
    if not changes:
        return
    replica: dict[bytes, tuple[Any, ...]] = {}
    for _, command, *images in shown(FIFTY.filter(batch_of(*changes))):
        if command in ("UPDATE", "DELETE"):
            old = replica.pop(images[0][0])
        if command in ("INSERT", "UPDATE"):
            new = images[-1]
            row = tuple(old[k] if each == UNCHANGED else each for k, each in enumerate(new))
            assert new[0] not in replica
            replica[new[0]] = row
    expected = {row for row in whole.values() if row[1] == 50}
    assert set(replica.values()) == {tuple(value(each) for each in row) for row in expected}


@pytest.mark.seeded
@settings(max_examples=scaled(42, 1000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(list(MIGRATIONS)), min_size=1, max_size=5),
    st.sampled_from(["department_id = 50", "note <> 'a' or id = 2"]),
)
def test_migration_of_columns_agrees_with_single_rows(changes, text):
    batch = batch_of(*changes)
    tree = parse(text, "subset").tree
    expected = []
    for number in range(batch.row_count):
        lcr = RowLcr(batch, number)
        was, now = (truth_values(of_image(tree, image), lcr, TYPES) == {True} for image in (Image.OLD, Image.NEW))
        was, now = was and lcr.command_type != "INSERT", now and lcr.command_type != "DELETE"
        if was or now:
            expected.append(
                (
                    lcr.commit_scn,
                    lcr.command_type
                    if lcr.command_type != "UPDATE" or (was and now)
                    else "DELETE"
                    if was
                    else "INSERT",
                )
            )
    assert [row[:2] for row in shown(evaluation(subset(text)).filter(batch))] == expected
