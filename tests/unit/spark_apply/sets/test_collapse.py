"""Net changes as sets: the written and the skipped changes, and equality with row-by-row application."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import BugError, DataError
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore
from headrace.lcr.batch import Command, LcrBatch, OldImage
from headrace.lcr.values import ABSENT, NULL, ColumnValues
from spark_apply.sets.collapse import plan_resolvable, plan_rows, plan_sets
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows, execute_steps
from spark_apply.sets.resolution import DIFFERS, Resolution
from spark_apply.sets.steps import ExpectedWrite, TruncateTables
from spark_apply.tables.fits import TableFits
from tests.support.histories.apply_history import TABLES, Change, Reference, Source, Table, Transaction, batch_of
from tests.support.values.ddl_changes import ddl_batch

PLAIN = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
FULL = Table(12, "full", ("id", "v", "w"), OldImage.FULL)
TWICE = Table(13, "twice", ("id", "u", "v"), OldImage.FULL, unique=True)
KEYLESS = Table(15, "history", ("a", "b"), OldImage.FULL, keyless=True)


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


A, B = (k(1), b"a", b"a"), (k(1), b"b", b"b")


def without_handlers() -> Resolution:
    return Resolution(ConflictSettings(apply="a", source="dbs1"))


class Destination:
    """Tables in memory, with a session."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        for table in (*TABLES, PLAIN, FULL, TWICE, KEYLESS):
            table.create(self.store)
        self.database = MemoryDestination(store=self.store)
        epoch = self.database.raise_epoch("t", "a").epoch
        self.session = self.database.open_session("t", "a", server=0, epoch=epoch, tag=b"\0")
        self.fits = TableFits(self.session.describe, self.session.missing_alter)

    def plan(self, *changes: Change, cuts: tuple[int, ...] = ()) -> list[Any]:
        return plan_sets(self.batches(changes, cuts), self.fits.fit)

    @staticmethod
    def batches(changes: tuple[Change, ...] | list[Change], cuts: tuple[int, ...] = ()) -> list[LcrBatch]:
        ends = [*sorted(cuts), len(changes)]
        starts = [0, *sorted(cuts)]
        return [
            batch_of([Transaction(n + 1, list(changes[start:end]))], n * 100)
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]


def shown(steps: list[Any]) -> list[tuple[Any, ...]]:
    """Return steps as (table, command, expected, old rows, new rows, set columns, compare columns)."""
    found = []
    for step in steps:
        if isinstance(step, TruncateTables):
            found.append(("TRUNCATE", *(found.table.name for found in step.tables)))
            continue
        write = step.write
        found.append(
            (
                write.version.name,
                write.command.name,
                step.expected,
                rows(write.old),
                rows(write.new),
                write.set_columns,
                write.compare_columns,
            )
        )
    return found


def rows(values: ColumnValues | None) -> list[tuple[Any, ...]] | None:
    """Return rows without absent values."""
    if values is None:
        return None
    lines = ([values.value(c, r) for c in range(values.column_count)] for r in range(values.row_count))
    return [tuple(value for value in line if value != ABSENT) for line in lines]


def insert(table: Table, row: tuple[Any, ...]) -> Change:
    return Change(table, Command.INSERT, new=row)


def update(table: Table, old: tuple[Any, ...], new: tuple[Any, ...], *unchanged: int) -> Change:
    return Change(table, Command.UPDATE, old=old, new=new, unchanged=frozenset(unchanged))


def delete(table: Table, row: tuple[Any, ...]) -> Change:
    return Change(table, Command.DELETE, old=row)


def test_an_insert_and_its_updates_become_one_insert() -> None:
    found = Destination().plan(
        insert(PLAIN, A), update(PLAIN, A, (k(1), b"b", b"a"), 2), update(PLAIN, A, (k(1), None, b"a"), 2)
    )
    assert shown(found) == [("plain", "INSERT", 1, None, [(k(1), NULL, b"a")], (0, 1, 2), ())]


def test_row_inserted_and_deleted_leaves_a_guard_that_must_find_no_row() -> None:
    found = Destination().plan(insert(PLAIN, A), delete(PLAIN, A))
    assert shown(found) == [("plain", "DELETE", 0, [(k(1),)], None, (), ())]


def test_guard_detects_a_row_that_the_insert_would_conflict_with() -> None:
    there = Destination()
    there.store.insert("public", "plain", [B])
    there.session.begin()
    assert execute_steps(there.session, there.plan(insert(PLAIN, A), delete(PLAIN, A))) is None


def test_updates_keep_the_first_old_and_the_last_new_values() -> None:
    changes = [update(FULL, A, (k(1), b"b", b"a")), update(FULL, (k(1), b"b", b"a"), (k(1), b"c", b"a"))]
    assert shown(Destination().plan(*changes)) == [
        ("full", "UPDATE", 1, [(k(1), b"a")], [(b"c",)], (1,), (1,)),
    ]


def test_values_missing_from_the_log_are_not_written() -> None:
    changes = [update(PLAIN, A, (k(1), b"b", b"a"), 2), update(PLAIN, (k(2), b"a", b"a"), (k(2), b"b", b"z"))]
    found = shown(Destination().plan(*changes))
    assert sorted(step[5] for step in found) == [(1,), (1, 2)]


def test_unchanged_value_keeps_the_value_of_an_earlier_change() -> None:
    changes = [update(PLAIN, A, (k(1), b"b", b"z")), update(PLAIN, (k(1), b"b", b"z"), (k(1), b"c", b"z"), 2)]
    assert shown(Destination().plan(*changes)) == [("plain", "UPDATE", 1, [(k(1),)], [(b"c", b"z")], (1, 2), ())]


def test_a_deleted_and_inserted_row_is_deleted_before_it_is_inserted() -> None:
    assert [step[:3] for step in shown(Destination().plan(delete(FULL, A), insert(FULL, B)))] == [
        ("full", "DELETE", 1),
        ("full", "INSERT", 1),
    ]


def test_an_updated_and_deleted_row_is_found_by_its_first_values() -> None:
    assert shown(Destination().plan(update(FULL, A, B), delete(FULL, B))) == [
        ("full", "DELETE", 1, [A], None, (), (1, 2))
    ]


def test_rows_of_a_set_compare_and_set_all_columns_changed_by_any_row() -> None:
    changes = [update(FULL, A, (k(1), b"b", b"a")), update(FULL, (k(2), b"a", b"a"), (k(2), b"a", b"b"))]
    assert shown(Destination().plan(*changes)) == [
        ("full", "UPDATE", 2, [(k(1), b"a", b"a"), (k(2), b"a", b"a")], [(b"b", b"a"), (b"a", b"b")], (1, 2), (1, 2)),
    ]


def test_many_rows_that_changed_the_same_columns_are_a_separate_set() -> None:
    old = [(k(n), b"a", b"a") for n in range(600)]
    changes = [update(FULL, row, (row[0], b"b", b"a") if n % 2 else (row[0], b"a", b"b")) for n, row in enumerate(old)]
    assert [(step[2], step[5]) for step in shown(Destination().plan(*changes))] in (
        [(300, (1,)), (300, (2,))],
        [(300, (2,)), (300, (1,))],
    )


def test_an_update_that_changes_nothing_still_has_to_find_its_row() -> None:
    (step,) = Destination().plan(update(FULL, A, A))
    assert (step.expected, step.write.set_columns, step.write.compare_columns) == (1, (), ())
    (step,) = Destination().plan(update(TWICE, A, A))
    assert (step.expected, step.write.set_columns, step.write.compare_columns) == (1, (0,), ())


def test_changes_of_the_key_are_written_in_source_order() -> None:
    moved = (k(2), b"a", b"a")
    found = shown(Destination().plan(update(PLAIN, A, moved), insert(PLAIN, A), delete(PLAIN, moved)))
    assert [(step[1], step[2]) for step in found] == [("UPDATE", 1), ("INSERT", 1), ("DELETE", 1)]


def test_table_with_two_unique_keys_is_written_in_runs_without_repeats() -> None:
    changes = [insert(TWICE, (k(n), f"u{n}".encode(), b"v")) for n in range(5)]
    changes += [
        update(TWICE, changes[0].new, (k(0), b"free", b"v")),
        update(TWICE, changes[1].new, (k(1), b"u0", b"v")),
    ]
    found = shown(Destination().plan(*changes))
    assert [(step[1], step[2]) for step in found] == [("INSERT", 5), ("UPDATE", 1), ("UPDATE", 1)]


def test_equal_rows_of_a_table_without_a_key_are_deleted_together() -> None:
    found = shown(Destination().plan(*[delete(KEYLESS, (b"a", b"b"))] * 3, *[insert(KEYLESS, (b"a", b"b"))] * 2))
    assert [(step[1], step[2]) for step in found] == [("DELETE", 3), ("INSERT", 2)]


def test_an_impossible_history_is_written_in_source_order() -> None:
    found = shown(Destination().plan(insert(PLAIN, A), update(PLAIN, A, B), insert(PLAIN, A)))
    assert [step[1] for step in found] == ["INSERT", "UPDATE", "INSERT"]


def test_truncate_separates_changes_before_and_after_it() -> None:
    found = shown(Destination().plan(insert(PLAIN, A), Change(PLAIN, Command.TRUNCATE), insert(PLAIN, B)))
    assert [step[:2] for step in found] == [("plain", "INSERT"), ("TRUNCATE", "plain"), ("plain", "INSERT")]


def test_inserts_of_one_batch_are_written_without_copying_them() -> None:
    there = Destination()
    batches = there.batches([insert(PLAIN, (k(n), b"a", b"a")) for n in range(3)])
    (step,) = plan_sets(batches, there.fits.fit)
    assert isinstance(step, ExpectedWrite)
    assert step.write.new is batches[0].groups[0].new


def test_partitions_with_another_column_order_are_written_in_source_order() -> None:
    """A row that moves between them is deleted in one and inserted in the other."""
    there = Destination()
    other = Table(99, "plain", ("id", "big", "v"), OldImage.KEY)
    changes = [insert(PLAIN, A), delete(PLAIN, A), insert(other, A), delete(other, A), insert(PLAIN, B)]
    steps = there.plan(*changes)
    assert [step[1] for step in shown(steps)] == ["INSERT", "DELETE", "INSERT", "DELETE", "INSERT"]
    there.session.begin()
    assert execute_steps(there.session, steps) == 5
    assert there.store.rows("public", "plain") == [B]


@pytest.mark.parametrize("columns", [63, 64, 65, 130])
def test_tables_of_any_width_write_only_changed_columns(columns: int) -> None:
    wide = Table(77, "wide", tuple(f"c{n}" for n in range(columns)), OldImage.FULL)
    there = Destination()
    wide.create(there.store)
    old = (k(1), *[b"x"] * (columns - 1))
    (step,) = there.plan(update(wide, old, (*old[:-2], b"y", b"z")))
    assert step.write.set_columns == (columns - 2, columns - 1)


@pytest.mark.seeded
@given(st.integers(0, 2**32))
def test_sets_equal_row_by_row_application_or_fail(seed: int) -> None:
    """Compared with the serial reference, on a destination that may differ from the source."""
    rng = random.Random(seed)
    source = Source(rng)
    source.fill(4)
    there = Destination()
    other = Source(rng)
    other.rows = {name: list(found) for name, found in source.rows.items()}
    for _ in range(rng.choice([0, 0, 2])):
        other._change()
    for name, found in other.rows.items():
        there.store.insert("public", name, found)
    made = source.transaction(1, rng.randrange(1, 40))
    reference = Reference({name: list(found) for name, found in other.rows.items()})
    reference.apply(made)
    cuts = tuple(sorted(rng.sample(range(1, len(made.changes)), min(2, len(made.changes) - 1))))
    before = {table.name: there.store.rows("public", table.name) for table in TABLES}
    there.session.begin()
    try:
        written = execute_steps(there.session, there.plan(*made.changes, cuts=cuts))
    except DataError:
        written = None
    if written is None:
        there.session.rollback()
        assert before == {table.name: there.store.rows("public", table.name) for table in TABLES}
        there.session.begin()
        # Sets may fail where rows do not: a set compares columns that only some of its rows changed.
        assert (apply_rows(there.session, batch_of([made], 0), there.fits.fit, without_handlers()) is not None) == bool(
            reference.failed
        )
    if reference.failed:
        assert written is None
        return
    for table in TABLES:
        expected = sorted(reference.rows[table.name], key=lambda row: [(v is not None, v or b"") for v in row])
        assert there.store.rows("public", table.name) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(TWICE, Command.INSERT, new=(k(1), b"new", b"v")), "insert_exists"),
        (Change(TWICE, Command.INSERT, new=(k(9), b"u2", b"v")), "insert_exists"),
        (Change(TWICE, Command.UPDATE, old=(k(1), b"u1", b"v"), new=(k(1), b"u2", b"v")), "update_exists"),
        (Change(TWICE, Command.UPDATE, old=(k(9), b"u9", b"v"), new=(k(9), b"u9", b"w")), "update_missing"),
        (Change(TWICE, Command.UPDATE, old=(k(1), b"u1", b"other"), new=(k(1), b"u1", b"w")), "update_differs"),
        # The row differs, and a row with its new key values already exists.
        (Change(TWICE, Command.UPDATE, old=(k(1), b"u1", b"other"), new=(k(2), b"u1", b"w")), "update_differs"),
        (Change(TWICE, Command.UPDATE, old=(k(1), b"u1", b"other"), new=(k(1), b"u2", b"w")), "update_differs"),
        (Change(TWICE, Command.DELETE, old=(k(9), b"u9", b"v")), "delete_missing"),
        (Change(TWICE, Command.DELETE, old=(k(1), b"u1", b"other")), "delete_differs"),
        (Change(TWICE, Command.UPDATE, old=(k(1), b"u1", b"v"), new=(k(1), b"u1", b"w")), ""),
    ],
)
def test_conflict_type_follows_from_old_values_and_keys(change: Change, expected: str) -> None:
    there = Destination()
    there.store.insert("public", "twice", [(k(1), b"u1", b"v"), (k(2), b"u2", b"v")])
    there.session.begin()
    failure = apply_rows(there.session, batch_of([Transaction(1, [change])], 0), there.fits.fit, without_handlers())
    assert (failure.conflict_type if failure else "") == expected


@pytest.mark.seeded
@given(st.integers(0, 2**32))
def test_row_by_row_application_equals_the_reference_and_fails_alike(seed: int) -> None:
    rng = random.Random(seed)
    source = Source(rng)
    source.fill(4)
    there = Destination()
    other = Source(rng)
    other.rows = {name: list(found) for name, found in source.rows.items()}
    for _ in range(2):
        other._change()
    for name, found in other.rows.items():
        there.store.insert("public", name, found)
    made = source.transaction(1, rng.randrange(1, 30))
    position = -1
    reference = Reference({name: list(found) for name, found in other.rows.items()})
    for number, change in enumerate(made.changes):
        reference.apply(Transaction(number, [change]))
        if reference.failed:
            position = number
            break
    there.session.begin()
    failure = apply_rows(there.session, batch_of([made], 0), there.fits.fit, without_handlers())
    assert (failure.position if failure else -1) == position
    if failure is not None:
        assert failure.conflict_type in {
            "insert_exists",
            "update_exists",
            "update_missing",
            "update_differs",
            "delete_missing",
            "delete_differs",
        }
        assert failure.readable
        assert np.all([b"=" in text.encode() or text.startswith(DIFFERS) for text in failure.readable])


def test_ddl_lcr_is_never_planned_as_rows() -> None:
    """It has no rows in any group: each plan would pass over it without an error."""
    found = Destination()
    batch, fit_of = ddl_batch(), found.fits.fit
    for plan in (
        lambda: plan_sets([batch], fit_of),
        lambda: plan_resolvable([batch], fit_of),
        lambda: list(plan_rows(batch, fit_of)),
        lambda: apply_rows(found.session, batch, fit_of, without_handlers(), numbers=[]),
    ):
        with pytest.raises(BugError, match="DDL LCR"):
            plan()
