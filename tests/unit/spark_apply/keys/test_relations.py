"""Dependencies between tables: foreign keys of the destination, virtual dependency definitions, and commit order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.databases.connectors import DatabaseAccess
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import DestinationTable, ForeignKey
from headrace.lcr.batch import Command, OldImage
from headrace.rules.virtual_dependencies import ObjectDependency, ValueColumns, ValueDependency, VirtualDependencies
from spark_apply.apply_config import ApplyConfig
from spark_apply.dependencies.hashes import DependencyTracker, hash_batch, held_transactions, stored_hashes
from spark_apply.dependencies.holds import ErrorHolds, bounded_hashes
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_engine import Engine
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of

PARENT = Table(11, "orders", ("id", "number", "note"), OldImage.FULL, unique=True)
CHILD = Table(12, "lines", ("id", "order_number", "note"), OldImage.FULL)
THIN = Table(13, "thin", ("id", "order_number"), OldImage.KEY)
OTHER = Table(14, "other", ("id", "v"), OldImage.FULL)
TREE = Table(15, "tree", ("id", "name", "above"), OldImage.FULL, unique=True)
TO_PARENT = ForeignKey(columns=("order_number",), owner="public", name="orders", referred_columns=("number",))
TO_TREE = ForeignKey(columns=("above",), owner="public", name="tree", referred_columns=("name",))


def store_with_keys() -> MemoryStore:
    store = MemoryStore()
    for table in (PARENT, CHILD, THIN, OTHER, TREE):
        table.create(store)
    for table, reference in ((CHILD, TO_PARENT), (THIN, TO_PARENT), (TREE, TO_TREE)):
        found = store.tables[table.owner, table.name].table
        names = [found.columns[place].name for place in found.key]
        unique = [[found.columns[place].name for place in key] for key in found.unique_keys if key != found.key]
        store.create_table(table.owner, table.name, found.columns, key=names, unique=unique, references=[reference])
    return store


def depend(
    first: list[Change],
    second: list[Change],
    definitions: VirtualDependencies | None = None,
    store: MemoryStore | None = None,
) -> bool:
    """Return whether the second transaction waits for the first; groups, one group and the error queue must agree."""
    there = store or store_with_keys()
    fits = TableFits(
        lambda owner, name: there.tables[owner, name].table,
        lambda version: "",
        dependencies=definitions or VirtualDependencies(),
    )
    found = hash_batch(batch_of([Transaction(1, first), Transaction(2, second)], 0), fits.fit)
    tracker = DependencyTracker()
    assert tracker.add(1, found.of(0), []) == set()
    waits = tracker.add(2, found.of(1), [1]) == {1}
    assert (held_transactions(found, [0])[1] == 0) == waits
    holds = ErrorHolds([(7, stored_hashes(found.of(0)))])
    assert bool(holds.held(found.part(1, 2))) == waits
    return waits


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(table: Table, *row: bytes | None) -> Change:
    return Change(table, Command.INSERT, new=row)


def delete(table: Table, *row: bytes | None) -> Change:
    return Change(table, Command.DELETE, old=row)


def update(table: Table, old: tuple[bytes | None, ...], new: tuple[bytes | None, ...]) -> Change:
    return Change(table, Command.UPDATE, old=old, new=new)


ORDER = (key(1), b"A", b"x")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([insert(PARENT, *ORDER)], [insert(CHILD, key(9), b"A", b"")], True),
        ([insert(PARENT, *ORDER)], [insert(CHILD, key(9), b"B", b"")], False),
        ([insert(PARENT, *ORDER)], [insert(CHILD, key(9), None, b"")], False),
        ([insert(PARENT, *ORDER)], [insert(OTHER, key(9), b"A")], False),
        # Rows that reference the same row are independent; so is a change of that row that keeps the key.
        ([insert(CHILD, key(8), b"A", b"")], [insert(CHILD, key(9), b"A", b"")], False),
        ([insert(CHILD, key(8), b"A", b"")], [update(PARENT, ORDER, (key(1), b"A", b"y"))], False),
        ([delete(CHILD, key(8), b"A", b"")], [delete(PARENT, *ORDER)], True),
        ([update(CHILD, (key(8), b"A", b""), (key(8), b"B", b""))], [delete(PARENT, *ORDER)], True),
        ([update(PARENT, ORDER, (key(1), b"B", b"x"))], [insert(CHILD, key(9), b"B", b"")], True),
        (
            [update(CHILD, (key(8), b"A", b""), (key(8), None, b""))],
            [update(PARENT, ORDER, (key(1), b"B", b"x"))],
            True,
        ),
        ([insert(PARENT, *ORDER)], [insert(THIN, key(9), b"A")], True),
        # The log does not say what the row referred to, and nothing would fail: docs/how/order.md.
        ([delete(THIN, key(8), b"A")], [delete(PARENT, *ORDER)], False),
        ([Change(CHILD, Command.TRUNCATE)], [delete(PARENT, *ORDER)], True),
        ([Change(PARENT, Command.TRUNCATE)], [insert(CHILD, key(9), b"A", b"")], True),
        ([insert(TREE, key(1), b"root", None)], [insert(TREE, key(2), b"leaf", b"root")], True),
        ([insert(TREE, key(2), b"leaf", b"root")], [insert(TREE, key(3), b"twig", b"root")], False),
    ],
)
def test_row_depends_on_the_row_that_it_references(
    first: list[Change], second: list[Change], *, expected: bool
) -> None:
    assert depend(first, second) is expected


def test_incomparable_foreign_key_values_wait_for_the_whole_table() -> None:
    store = store_with_keys()
    columns = [
        destination_column("id", "pg_catalog.int4", equality="integer"),
        *(destination_column(name, "pg_catalog.citext", equality="none") for name in ("order_number", "note")),
    ]
    store.create_table("public", "lines", columns, key=["id"], references=[TO_PARENT])
    assert depend([insert(PARENT, *ORDER)], [insert(CHILD, key(9), b"B", b"")], store=store)
    assert not depend([insert(PARENT, *ORDER)], [insert(OTHER, key(9), b"B")], store=store)


def test_error_with_too_many_referenced_rows_holds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_apply.dependencies.holds.HASHES_PER_ERROR_MAX", 8)
    store = store_with_keys()
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda version: "")
    changes = [
        [insert(PARENT, key(k), b"%d" % k, b"") for k in range(5)],
        [insert(CHILD, key(9), b"3", b"")],
        [insert(CHILD, key(10), b"77", b"")],
    ]
    found = hash_batch(batch_of([Transaction(n + 1, each) for n, each in enumerate(changes)], 0), fits.fit)
    holds = ErrorHolds([(1, bounded_hashes(stored_hashes(found.of(0)))), (2, stored_hashes(found.of(1)))])
    assert [held.transaction for held in holds.held(found.part(1, 3))] == [0, 1]
    assert holds.blocker(2) == 1
    later = ErrorHolds([(1, stored_hashes(found.of(1))), (2, bounded_hashes(stored_hashes(found.of(0))))])
    assert later.blocker(2) == 1


BOTH = ValueDependency(
    name="order_number",
    tables=(
        ValueColumns(owner="public", name="other", columns=("v",)),
        ValueColumns(owner="public", name="thin", columns=("order_number",)),
    ),
)
VALUES = VirtualDependencies(values=(BOTH,))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([insert(OTHER, key(1), b"A")], [insert(THIN, key(2), b"A")], True),
        ([insert(THIN, key(2), b"A")], [insert(OTHER, key(1), b"A")], True),
        ([insert(OTHER, key(1), b"A")], [insert(OTHER, key(2), b"A")], True),
        ([insert(OTHER, key(1), b"A")], [insert(THIN, key(2), b"B")], False),
        ([insert(OTHER, key(1), None)], [insert(THIN, key(2), None)], False),
        ([update(OTHER, (key(1), b"A"), (key(1), b"B"))], [insert(THIN, key(2), b"A")], True),
        ([update(OTHER, (key(1), b"A"), (key(1), b"B"))], [insert(THIN, key(2), b"B")], True),
        # The log does not contain the row's value.
        ([delete(THIN, key(2), b"A")], [insert(OTHER, key(1), b"Z")], True),
        ([delete(THIN, key(2), b"A")], [insert(CHILD, key(1), b"Z", b"")], False),
        ([Change(THIN, Command.TRUNCATE)], [insert(OTHER, key(1), b"Z")], True),
    ],
)
def test_value_dependency_orders_rows_with_equal_values(
    first: list[Change],
    second: list[Change],
    *,
    expected: bool,
) -> None:
    assert depend(first, second, VALUES) is expected


def test_value_dependency_over_incomparable_types_orders_all_rows() -> None:
    store = store_with_keys()
    columns = [
        destination_column("id", "pg_catalog.int4", equality="integer"),
        destination_column("v", "pg_catalog.varchar", equality="bytes"),
    ]
    store.create_table("public", "other", columns, key=["id"])
    assert depend([insert(OTHER, key(1), b"A")], [insert(THIN, key(2), b"B")], VALUES, store)
    assert not depend([insert(OTHER, key(1), b"A")], [insert(PARENT, *ORDER)], VALUES, store)


def test_object_dependency_makes_a_table_wait_for_its_parent() -> None:
    definitions = VirtualDependencies(
        objects=(ObjectDependency(owner="public", name="other", parent_owner="public", parent_name="tree"),)
    )
    tree, other = insert(TREE, key(1), b"root", None), insert(OTHER, key(1), b"x")
    assert depend([tree], [other], definitions)
    assert not depend([other], [insert(OTHER, key(2), b"x")], definitions)
    assert not depend([tree], [insert(PARENT, *ORDER)], definitions)
    assert depend([Change(TREE, Command.TRUNCATE)], [other], definitions)


def test_configured_dependencies_are_part_of_an_applys_row_hashes() -> None:
    """Editing an error transaction uses the same hashes: later transactions wait for its new values."""
    store, site = store_with_keys(), DatabaseAccess(site="a", kind="memory", dsn="")
    config = ApplyConfig(topology="t", apply="x", source=site, destination=site, queue="q", dependencies=VALUES)
    batch = batch_of([Transaction(1, [insert(OTHER, key(1), b"A")]), Transaction(2, [insert(THIN, key(2), b"A")])], 0)
    describe = lambda owner, name: store.tables[owner, name].table  # noqa: E731
    assert held_transactions(hash_batch(batch, TableFits.of(config, describe, lambda version: "").fit), [0])[1] == 0
    assert (
        held_transactions(
            hash_batch(
                batch,
                TableFits.of(replace(config, dependencies=VirtualDependencies()), describe, lambda version: "").fit,
            ),
            [0],
        )[1]
        == -1
    )


def test_dependency_definitions_are_sent_to_the_servers() -> None:
    definitions = VirtualDependencies(
        values=(BOTH,),
        objects=(ObjectDependency(owner="a", name="b", parent_owner="c", parent_name="d"),),
    )
    assert VirtualDependencies.from_bytes(definitions.to_bytes()) == definitions
    assert VirtualDependencies.from_bytes(b"") == VirtualDependencies()


@pytest.mark.seeded
@given(st.integers(0, 2**32))
def test_tracking_of_use_and_exclusive_use_agrees_with_sets(seed: int) -> None:
    rng = random.Random(seed)
    tracker, unfinished = DependencyTracker(), list[int]()
    alone: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    for group in range(1, 120):
        hashes = {
            rng.randrange(1, 3000 if rng.random() < 0.3 else 40) << 2 | rng.choice([1, 1, 1, 3])
            for _ in range(rng.randrange(6))
        }
        expected: set[int] = set()
        used = set().union(*(users.get(found >> 2, set()) for found in hashes if found & 2))
        for found in hashes:
            expected |= {alone.get(found >> 2, 0)}
        expected |= used
        for found in hashes:
            if found & 2:
                alone[found >> 2], users[found >> 2] = group, set()
        for found in hashes:
            if not found & 2 and alone.get(found >> 2) != group:
                users.setdefault(found >> 2, set()).add(group)
        waits = tracker.add(group, np.array(sorted(hashes), np.uint64), list(unfinished))
        assert waits >= expected & set(unfinished)
        if group - min([*unfinished, *used], default=group) < 64:  # an older use has the bit of a later group
            assert waits == expected & set(unfinished)
        unfinished = [number for number in [*unfinished, group] if rng.random() < 0.85]


def test_uses_of_more_groups_than_bits_wait_longer_never_shorter() -> None:
    tracker = DependencyTracker()
    for group in range(1, 200):
        name = 5 if group in {1, 10} else 9
        assert tracker.add(group, np.array([name], np.uint64), list(range(1, group))) == set()
    assert tracker.add(200, np.array([7], np.uint64), list(range(1, 200))) == {1, 10}
    assert tracker.add(201, np.array([11], np.uint64), list(range(1, 201))) >= set(range(1, 200)) - {1, 10}


A = Table(21, "a", ("id", "name", "b_name"), OldImage.FULL, unique=True)
B = Table(22, "b", ("id", "name", "a_name"), OldImage.FULL, unique=True)


def circular(transactions: int, seed: int) -> tuple[list[Transaction], MemoryStore]:
    """A references B and B references A; each transaction adds a pair that reference each other or deletes a pair."""
    store, rng = MemoryStore(), random.Random(seed)
    for table in (A, B):
        table.create(store)
    for table, column, other in ((A, "b_name", "b"), (B, "a_name", "a")):
        found = store.tables["public", table.name].table
        reference = ForeignKey(columns=(column,), owner="public", name=other, referred_columns=("name",))
        store.create_table("public", table.name, found.columns, key=["id"], unique=[["name"]], references=[reference])
    history: list[Transaction] = []
    alive: list[tuple[tuple[bytes, ...], tuple[bytes, ...]]] = []
    for number in range(1, transactions + 1):
        if alive and rng.random() < 0.3:
            a, b = alive.pop(rng.randrange(len(alive)))
            changes = [delete(A, *a), delete(B, *b)]
        else:
            a, b = (key(number), b"a%d" % number, b"b%d" % number), (key(number), b"b%d" % number, b"a%d" % number)
            if alive and rng.random() < 0.5:
                a = (a[0], a[1], rng.choice(alive)[1][1])
            alive.append((a, b))
            changes = [insert(A, *a), insert(B, *b)]
        history.append(Transaction(number, changes))
    return history, store


@pytest.mark.long
@pytest.mark.parametrize("commits_in_order", [False, True])
def test_transactions_over_circular_foreign_keys_finish_with_four_servers(*, commits_in_order: bool) -> None:
    history, store = circular(1000, 5)
    batches = [batch_of(history[first : first + 7], first * 100 + 50) for first in range(0, 1000, 7)]
    engine = Engine(
        seed=3,
        batches=batches,
        destination=MemoryDestination(store=store),
        parallelism=4,
        crash=0.002,
        commits_in_order=commits_in_order,
    )
    ahead = []
    engine.beside = lambda running: ahead.append(
        bool(running.destination.progress(running.topology, running.apply).above)
    )
    engine.run()
    names = set(range(1, 1001))
    gone = {
        int.from_bytes(change.old[0], "big")
        for each in history
        for change in each.changes
        if change.command is Command.DELETE and change.old
    }
    added = {
        int.from_bytes(change.new[0], "big")
        for each in history
        for change in each.changes
        if change.command is Command.INSERT and change.new
    }
    assert {int.from_bytes(row[0] or b"", "big") for row in store.rows("public", "a")} == added - gone <= names
    assert {int.from_bytes(row[0] or b"", "big") for row in store.rows("public", "b")} == added - gone
    assert not store.errors
    assert engine.coordinator.statistics.wait_deps > 0 or engine.crashes
    if commits_in_order:
        assert not any(ahead), "a group was committed above an uncommitted one"
    else:
        assert any(ahead), "no group was committed before an earlier one: the ordered case proves nothing"


# --------------------------------------------------------------------------- tables altered while errors are queued


def held_after(alter: Callable[[MemoryStore], None], first: list[Change], second: list[Change]) -> bool:
    """Return whether the second transaction joins the first in the error queue after an ALTER of the destination."""
    store = store_with_keys()
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda version: "")
    stored = hash_batch(batch_of([Transaction(1, first)], 0), fits.fit).stored()
    alter(store)
    fits.forget()
    found = hash_batch(batch_of([Transaction(2, second)], 150), fits.fit)
    holds = ErrorHolds([(7, stored)])
    is_held = bool(holds.held(found))
    if is_held:
        holds.add(8, found.stored())
    assert holds.blocker(8 if is_held else 7) == (7 if is_held else 0)
    return is_held


def rename(old: str, new: str) -> Callable[[MemoryStore], None]:
    def run(store: MemoryStore) -> None:
        table = store.tables.pop(("public", old))
        table.table = replace(table.table, name=new)
        store.tables["public", new] = table
        for other in store.tables.values():
            references = tuple(
                replace(key, name=new if key.name == old else key.name) for key in other.table.references
            )
            other.table = replace(other.table, references=references)

    return run


def rekey(name: str, column: str) -> Callable[[MemoryStore], None]:
    def run(store: MemoryStore) -> None:
        found = store.tables["public", name].table
        store.create_table("public", name, found.columns, key=[column], references=found.references)

    return run


def remake(name: str) -> Callable[[MemoryStore], None]:
    """Drop and recreate the table with its columns in another order."""

    def run(store: MemoryStore) -> None:
        found = store.tables["public", name].table
        store.drop_table("public", name)
        store.create_table("public", name, found.columns[::-1], key=["id"])

    return run


RENAMED = replace(OTHER, name="renamed")
RENAMED_ORDERS = replace(PARENT, name="renamed")


@pytest.mark.parametrize(
    ("alter", "first", "second", "expected"),
    [
        (lambda store: None, [insert(OTHER, key(1), b"a")], [update(OTHER, (key(1), b"a"), (key(1), b"b"))], True),
        (lambda store: None, [insert(OTHER, key(1), b"a")], [insert(OTHER, key(2), b"a")], False),
        # The rows can no longer be compared: all changes of the table wait.
        (
            rename("other", "renamed"),
            [insert(OTHER, key(1), b"a")],
            [update(RENAMED, (key(1), b"a"), (key(1), b"b"))],
            True,
        ),
        (rename("other", "renamed"), [insert(OTHER, key(1), b"a")], [insert(RENAMED, key(2), b"a")], True),
        (rename("other", "renamed"), [insert(OTHER, key(1), b"a")], [insert(TREE, key(2), b"a", None)], False),
        (rename("other", "renamed"), [insert(OTHER, key(1), b"a")], [Change(RENAMED, Command.TRUNCATE)], True),
        (rename("other", "renamed"), [Change(OTHER, Command.TRUNCATE)], [insert(RENAMED, key(2), b"a")], True),
        (rekey("other", "v"), [insert(OTHER, key(1), b"a")], [update(OTHER, (key(1), b"a"), (key(1), b"b"))], True),
        (rekey("other", "v"), [delete(OTHER, key(1), b"a")], [insert(OTHER, key(1), b"b")], True),
        (remake("other"), [insert(OTHER, key(1), b"a")], [update(OTHER, (key(1), b"a"), (key(1), b"b"))], True),
        # A row's parent, under its current name.
        (rename("orders", "renamed"), [insert(PARENT, *ORDER)], [insert(CHILD, key(9), b"A", b"")], True),
        (rename("orders", "renamed"), [delete(CHILD, key(9), b"A", b"")], [delete(RENAMED_ORDERS, *ORDER)], True),
        (rename("orders", "renamed"), [insert(PARENT, *ORDER)], [insert(OTHER, key(9), b"A")], False),
    ],
)
def test_error_holds_its_dependents_after_a_rename_or_key_change(
    alter: Callable[[MemoryStore], None],
    first: list[Change],
    second: list[Change],
    *,
    expected: bool,
) -> None:
    assert held_after(alter, first, second) is expected


PAIRS, ITEMS = (
    Table(16, "pairs", ("id", "a", "b"), OldImage.FULL),
    Table(17, "items", ("id", "pair_a", "pair_b"), OldImage.FULL),
)
RENAMED_PAIRS = replace(PAIRS, columns=("id", "z", "b"))


def with_pairs(store: MemoryStore, first_column: str) -> None:
    """Items reference pairs by two columns."""
    for table, columns in ((PAIRS, ("id", first_column, "b")), (ITEMS, ITEMS.columns)):
        table.create(store)
        found = store.tables["public", table.name].table
        named = [replace(column, name=name) for column, name in zip(found.columns, columns, strict=True)]
        reference = ForeignKey(
            columns=("pair_a", "pair_b"), owner="public", name="pairs", referred_columns=(first_column, "b")
        )
        store.create_table(
            "public",
            table.name,
            named,
            key=["id"],
            unique=[[first_column, "b"]] if table is PAIRS else [],
            references=[reference] if table is ITEMS else [],
        )


def test_multicolumn_foreign_key_orders_rows_after_a_column_rename() -> None:
    store, renamed = MemoryStore(), MemoryStore()
    with_pairs(store, "a")
    with_pairs(renamed, "z")

    def fits_of(there: MemoryStore) -> TableFits:
        return TableFits(lambda owner, name: there.tables[owner, name].table, lambda version: "")

    before, after = fits_of(store), fits_of(renamed)
    item, pair = [delete(ITEMS, key(9), b"A", b"B")], [delete(RENAMED_PAIRS, key(1), b"A", b"B")]
    stored = hash_batch(batch_of([Transaction(1, item)], 0), before.fit).stored()
    holds = ErrorHolds([(7, stored)])
    assert holds.held(hash_batch(batch_of([Transaction(2, pair)], 150), after.fit))
    assert not holds.held(
        hash_batch(batch_of([Transaction(2, [delete(RENAMED_PAIRS, key(2), b"A", b"C")])], 150), after.fit)
    )


def test_error_with_too_many_rows_holds_its_renamed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_apply.dependencies.holds.HASHES_PER_ERROR_MAX", 8)
    store = store_with_keys()
    fits = TableFits(lambda owner, name: store.tables[owner, name].table, lambda version: "")
    stored = bounded_hashes(
        hash_batch(batch_of([Transaction(1, [insert(OTHER, key(k), b"a") for k in range(30)])], 0), fits.fit).stored()
    )
    assert stored.shape[0] < 30
    rename("other", "renamed")(store)
    fits.forget()
    assert ErrorHolds([(7, stored)]).held(
        hash_batch(batch_of([Transaction(2, [insert(RENAMED, key(99), b"a")])], 150), fits.fit)
    )


def test_later_unique_key_holds_only_rows_of_the_error_transaction() -> None:
    def add(store: MemoryStore) -> None:
        found = store.tables["public", "other"].table
        store.create_table("public", "other", found.columns, key=["id"], unique=[["v"]])

    assert not held_after(add, [insert(OTHER, key(1), b"a")], [insert(OTHER, key(2), b"b")])
    assert held_after(add, [insert(OTHER, key(1), b"a")], [update(OTHER, (key(1), b"a"), (key(1), b"b"))])


def test_definition_of_a_table_renamed_at_both_sites_is_named():
    store = store_with_keys()
    definitions = VirtualDependencies(
        values=(
            ValueDependency(
                name="n",
                tables=(
                    ValueColumns(owner="public", name="orders", columns=("number",)),
                    ValueColumns(owner="public", name="lines", columns=("order_number",)),
                ),
            ),
        ),
        objects=(ObjectDependency(owner="public", name="lines", parent_owner="public", parent_name="orders"),),
    )

    def described(owner: str, name: str) -> DestinationTable | None:
        found = store.tables.get((owner, name))
        return None if found is None else found.table

    fits = TableFits(described, lambda version: "", dependencies=definitions)
    (version,) = batch_of([Transaction(1, [Change(PARENT, None, (1, 1, "a"))])], 0).tables
    fits.fit(version)
    assert list(fits.missing_tables) == []
    store.tables["public", "bills"] = store.tables.pop(("public", "orders"))
    fits.fit(replace(version, name="bills", version=version.version + 1))
    assert fits.missing_tables == ("public.orders",)
