"""Tables altered at the source while their changes are in flight: renamed columns."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.databases.memory.store import MemoryStore
from headrace.lcr.batch import Column, Command, OldImage
from spark_apply.keys.equality import Equality
from spark_apply.tables.fits import TableVersions
from tests.support.apply.apply_engine import Engine, arm
from tests.support.histories.apply_history import Change, Table, Transaction, cut_batches
from tests.support.histories.apply_world import PART_ROWS, MemoryPlace, World
from tests.support.session.seeds import scaled, seeds

KEYED = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
KEYLESS = Table(15, "history", ("a", "b"), OldImage.FULL, keyless=True)


def altered_world(seed: int, *, large: int = 0, conflicts: int = 0) -> tuple[World, dict[str, Table]]:
    """From some change on, possibly in the middle of a transaction, columns have other names."""
    world = World(seed, MemoryPlace(), count=24, conflicts=conflicts, tables=(KEYED, KEYLESS), large=large, changes=6)
    rng = random.Random(seed)
    names = {"id": rng.choice(["id", "number"]), "v": "value", "b": "c"}
    renamed = {
        table.name: replace(table, columns=tuple(names.get(column, column) for column in table.columns))
        for table in world.tables
    }
    at = rng.randrange(4, 20)
    place = rng.randrange(len(world.history[at].changes))
    for number, transaction in enumerate(world.history[at:], at):
        first = place if number == at else 0
        transaction.changes[first:] = [
            replace(change, table=renamed[change.table.name]) for change in transaction.changes[first:]
        ]
    world.batches = cut_batches(rng, world.history, PART_ROWS)
    return world, renamed


def rename(store: MemoryStore, table: Table) -> None:
    """Rename columns as ALTER TABLE ... RENAME COLUMN does: the rows keep every value."""
    rows = dict(store.tables["public", table.name].rows)
    table.create(store)
    for number, row in rows.items():
        store.tables["public", table.name].put(number, row)


def run(engine: Engine, world: World, renamed: dict[str, Table], *, early: bool) -> int:
    """Apply everything and run the ALTERs that apply waits for; return their number.

    `early`: alter before all earlier changes are applied.
    """
    assert isinstance(world.place, MemoryPlace)
    alters = 0
    left = dict(renamed)
    through = world.batches[-1].through_scn
    while engine.coordinator.watermarks.low < through or engine.coordinator.state == "APPLYING":
        assert engine.steps < 20_000, f"no end: {engine.coordinator.status()} {engine.state()}"
        engine.step()
        if engine.reader.unfit is not None and (engine.is_paused or early):
            name = str(engine.reader.unfit.context["table"]).removeprefix("public.")
            if name in left:
                rename(world.place.store, left.pop(name))
                alters += 1
    return alters


_SETTINGS = settings(max_examples=scaled(12, 200), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(
    seed=st.integers(0, 2**32),
    parallelism=st.integers(1, 4),
    early=st.booleans(),
    large=st.sampled_from([0, 4]),
    conflicts=st.sampled_from([0, 2]),
)
def test_columns_renamed_inside_a_transaction_lose_nothing(
    seed: int,
    parallelism: int,
    early: bool,
    large: int,
    conflicts: int,
) -> None:
    """The ALTER causes no error; errors with another cause hold their dependents under the new names, too."""
    world, renamed = altered_world(seed, large=0 if early else large, conflicts=conflicts)
    engine = world.engine(seed, parallelism=parallelism, group_transactions=3)
    run(engine, world, renamed, early=early)
    world.check()
    if not conflicts:
        assert world.errors() == ()


@pytest.mark.long
def test_alter_tests_include_groups_in_flight() -> None:
    """Rows from before the ALTER must meet the altered table, at server and reader, or the tests prove nothing."""
    alters = replays = 0
    for seed in range(30):
        world, renamed = altered_world(seed)
        engine = world.engine(seed, parallelism=3, group_transactions=1)
        alters += run(engine, world, renamed, early=True)
        replays += engine.coordinator.statistics.replays
    assert alters > 20
    assert replays > 0


def test_dependents_of_the_error_queue_are_found_under_a_renamed_key() -> None:
    key, free = (1000).to_bytes(4, "big"), (1001).to_bytes(4, "big")
    renamed = replace(KEYED, columns=("number", "v", "big"))
    world = World(1, MemoryPlace(), count=0, conflicts=0, tables=(KEYED,))
    history = [
        Transaction(1, [Change(KEYED, Command.UPDATE, old=(key, b"?", b"b"), new=(key, b"not there", b"b"))]),
        Transaction(2, [Change(renamed, Command.INSERT, new=(key, b"behind it", b"b"))]),
        Transaction(3, [Change(renamed, Command.INSERT, new=(free, b"free", b"b"))]),
    ]
    world.batches = cut_batches(random.Random(1), history, PART_ROWS)
    assert run(world.engine(1), world, {"plain": renamed}, early=False) == 1
    assert [(error.transaction_id, bool(error.depends_on)) for error in world.errors()] == [(1, False), (2, True)]


@pytest.mark.long
@pytest.mark.seeded
@_SETTINGS
@given(seed=st.integers(0, 2**32))
def test_server_deaths_during_a_column_rename_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, renamed = altered_world(seed)
    arm(monkeypatch, random.Random(seed), 0.02)
    engine = world.engine(seed, parallelism=2, group_transactions=2)
    run(engine, world, renamed, early=False)
    world.check()
    assert world.errors() == ()


def asked(engine: Engine, store: MemoryStore, forms: dict[str, Table], steps: int = 3000) -> list[str]:
    """Apply everything, giving the table the form whose column apply waits for; return these columns in order."""
    columns: list[str] = []
    for _ in range(steps):
        if engine.coordinator.watermarks.low >= engine.batches[-1].through_scn:
            return columns
        engine.step()
        if engine.is_paused and engine.reader.unfit is not None:
            column = next(name for name in forms if f"ADD COLUMN {name} " in engine.reader.unfit.hint)
            if columns[-1:] != [column]:
                columns.append(column)
                rename(store, forms[column])
    raise AssertionError(f"no end: {columns[:6]}")


def test_waiting_rows_take_the_names_of_the_latest_alter() -> None:
    """RENAME a TO b, ADD c, RENAME b TO y in one transaction: the first rows await each ALTER and must not keep b."""
    tables = [replace(KEYED, columns=columns) for columns in (("id", "a"), ("id", "b", "c"), ("id", "y", "c"))]
    place = MemoryPlace()
    world = World(1, place, count=0, conflicts=0, tables=())
    tables[0].create(place.store)
    rows = [(number.to_bytes(4, "big"), b"kept", b"c")[: len(tables[number].columns)] for number in range(3)]
    transaction = Transaction(
        1, [Change(table, Command.INSERT, new=row) for table, row in zip(tables, rows, strict=True)]
    )
    world.batches = cut_batches(random.Random(1), [transaction], PART_ROWS)
    assert asked(world.engine(1), place.store, {"b": tables[1], "y": tables[2]}) == ["b", "y"]
    assert place.rows(tables[2]) == [(*rows[0], None), rows[1], rows[2]]
    assert world.errors() == ()


@pytest.mark.parametrize(
    ("number", "columns", "expected"),
    [
        (11, ("id", "a_old", "a"), (b"kept", None)),
        (21, ("id", "x", "a_new"), (b"kept", None)),
    ],
    ids=["its name is given to a new column", "the next row is in another partition"],
)
def test_rows_before_a_rename_keep_their_values(
    number: int, columns: tuple[str, ...], expected: tuple[bytes | None, ...]
) -> None:
    """RENAME COLUMN a and ADD COLUMN in one transaction, with one row before and one after them."""
    old, new = replace(KEYED, columns=("id", "a")), replace(KEYED, number=number, columns=columns)
    place = MemoryPlace()
    world = World(1, place, count=0, conflicts=0, tables=())
    old.create(place.store)
    first, second = (1).to_bytes(4, "big"), (2).to_bytes(4, "big")
    world.batches = cut_batches(
        random.Random(1),
        [
            Transaction(
                1,
                [
                    Change(old, Command.INSERT, new=(first, b"kept")),
                    Change(new, Command.INSERT, new=(second, b"y", b"z")),
                ],
            )
        ],
        PART_ROWS,
    )
    assert asked(world.engine(1), place.store, {columns[1]: new}) == [columns[1]]
    assert place.rows(new) == [(first, *expected), (second, b"y", b"z")]
    assert world.errors() == ()


# --------------------------------------------------------------------------- keys that change their format


def retyped_world(seed: int, place: int) -> tuple[World, int]:
    """From some change on, the key is sent as text: its canonical form and its hashes differ from the earlier ones."""
    world = World(seed, MemoryPlace(), count=24, conflicts=0, tables=(KEYED,), changes=6)
    rng = random.Random(seed)
    at = rng.randrange(4, 20)
    first = min(place, len(world.history[at].changes) - 1)
    for number, transaction in enumerate(world.history[at:], at):
        start = first if number == at else 0
        transaction.changes[start:] = [replace(change, table=RETYPED) for change in transaction.changes[start:]]
    world.batches = cut_batches(rng, world.history, PART_ROWS)
    return world, at


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("keys of another form", test=5, soak=60))
def test_changes_before_a_key_format_change_are_applied_first(
    seed: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With groups of one transaction and several servers, changes without a known dependency run at once."""
    world, at = retyped_world(seed, place)
    engine = world.engine(seed, parallelism=4, group_transactions=1)
    # The values fit the destination unchanged: only the form from which hashes are computed differs.
    monkeypatch.setattr("headrace.databases.memory.rows.missing_alter", lambda *_: "")
    monkeypatch.setattr("spark_apply.tables.fits.equality_of", _other_form)
    idle: list[bool] = []
    original = engine.reader.retry_unfit

    def settle() -> bool:
        idle.append(engine.coordinator.is_idle)
        return original()

    monkeypatch.setattr(engine.reader, "retry_unfit", settle)
    engine.run()
    world.check()
    assert world.errors() == ()
    assert all(idle)
    assert len(idle) >= 1, f"no change waited for those before transaction {at}"


RETYPED = replace(KEYED, key_type="pg_catalog.text")


def _other_form(_: object, column: Column) -> Equality:
    return Equality.INTEGER_BINARY if column.type_name == "pg_catalog.int4" else Equality.BYTES


# --------------------------------------------------------------------------- names through versions


def versions(*columns: tuple[str, ...]) -> tuple[TableVersions, list[Table]]:
    tables = [Table(11, "plain", names, OldImage.KEY) for names in columns]
    found = TableVersions()
    found.note([table.version for table in tables])
    return found, tables


def names_of(seen: TableVersions, table: Table) -> list[tuple[str, ...]]:
    return [tuple(column.name for column in found.version.columns) for found in seen.renamed(table.version)]


def test_version_takes_names_of_newer_versions_newest_first() -> None:
    seen, (first, second, third) = versions(("id", "a", "b"), ("id", "x", "b"), ("id", "y", "b", "added"))
    assert names_of(seen, first) == [("id", "y", "b"), ("id", "x", "b")]
    assert names_of(seen, second) == [("id", "y", "b")]
    assert names_of(seen, third) == []


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (("id", "b"), []),
        (("id", "a", "b", "c"), []),
        (("id", "x"), [("id", "x", "b")]),
        (("id", "b", "a"), []),
        (("id", "b", "x"), []),
        (("id", "a", "x"), [("id", "a", "x")]),
        (("x", "a", "b"), []),
    ],
    ids=["dropped", "added", "renamed and dropped", "other order", "dropped and added", "renamed", "other type"],
)
def test_names_undetermined_by_column_order_stay(new: tuple[str, ...], expected: list[tuple[str, ...]]) -> None:
    seen, (first,) = versions(("id", "a", "b"))
    newer = Table(11, "plain", new, OldImage.KEY).version
    if new[0] != "id":
        newer = replace(newer, columns=(replace(newer.columns[0], type_name="pg_catalog.int8"), *newer.columns[1:]))
    seen.note([newer])
    assert names_of(seen, first) == expected


def test_dropped_column_is_not_mapped_to_a_column_added_later() -> None:
    seen, (first, _, _) = versions(("id", "a"), ("id",), ("id", "x"))
    assert names_of(seen, first) == []


def test_dropped_columns_name_is_not_mapped_twice() -> None:
    seen, (first, second, _) = versions(("id", "a", "b"), ("id", "b"), ("id", "a"))
    assert names_of(seen, first) == []
    assert names_of(seen, second) == [("id", "a")]


def test_name_now_used_by_another_column_is_ambiguous() -> None:
    seen, (first, second) = versions(("id", "a", "b"), ("id", "x", "b", "a"))
    (found,) = seen.renamed(first.version)
    assert [column.name for column in found.version.columns] == ["id", "x", "b"]
    assert (found.newer, found.is_ambiguous) == (second.version, True)


def test_partitions_share_the_rename_of_one_column() -> None:
    """Two renames could be confused when partitions have different column orders."""
    seen, (first,) = versions(("id", "a", "b"))
    partition = Table(21, "plain", ("id", "x", "b"), OldImage.KEY)
    seen.note([partition.version])
    assert names_of(seen, first) == [("id", "x", "b")]
    seen.note([replace(partition, columns=("id", "x", "y")).version])
    assert names_of(seen, first) == [("id", "x", "b")]
    seen.note([replace(first, columns=("id", "x", "y")).version])
    assert names_of(seen, first) == [("id", "x", "y"), ("id", "x", "b")]


def test_partitions_share_dropped_columns() -> None:
    seen, (first,) = versions(("id", "a"))
    seen.note([Table(21, "plain", columns, OldImage.KEY).version for columns in (("id",), ("id", "x"))])
    assert names_of(seen, first) == []


def test_remembered_versions_of_a_table_are_bounded() -> None:
    seen, tables = versions(*[("id", f"c{number}") for number in range(40)])
    assert names_of(seen, tables[-2]) == [("id", "c39")]
    assert len(seen._seen[11]) == len(seen._forms["public", "plain"]) == 16
