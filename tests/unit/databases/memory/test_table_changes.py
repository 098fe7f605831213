"""DDL changes of the memory database against a model of rows as dictionaries, with rollbacks anywhere."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import DataError
from headrace.databases.ports import DestinationSession, DestinationTable
from tests.support.databases.destination_contract import APPLY, TAG, TOPOLOGY, MemoryHarness
from tests.support.databases.table_changes import (
    add_column,
    drop_column,
    place,
    recorded,
    rename_column,
    unique,
)
from tests.support.values.writes import delete, insert, int4, update

Rows = dict[int, dict[str, bytes | None]]


class Model:
    """The table as it should be: its columns behind the key, its rows by key, and the columns that are unique."""

    def __init__(self) -> None:
        self.columns: list[str] = ["a", "b"]
        self.rows: Rows = {}
        self.unique: set[str] = set()

    def is_valid(self) -> bool:
        return all(
            len(values) == len(set(values))
            for name in self.unique
            for values in [[row[name] for row in self.rows.values() if row[name] is not None]]
        )


class Run:
    """One random transaction after another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harness = MemoryHarness()
        database = self.harness.destination()
        database.prepare(TOPOLOGY)
        epoch = database.raise_epoch(TOPOLOGY, APPLY).epoch
        self.session: DestinationSession = database.open_session(TOPOLOGY, APPLY, server=0, epoch=epoch, tag=TAG)
        self.harness.create_table("t", [("id", "int4"), ("a", "text"), ("b", "text")], key=["id"])
        self.model, self.names = Model(), 0

    def transaction(self) -> None:
        before, stored = copy.deepcopy(self.model), self.stored()
        self.session.begin()
        try:
            for _ in range(self.rng.randrange(1, 8)):
                self.step()
        except DataError:
            is_kept = False
        else:
            is_kept = self.rng.random() < 0.6
        if is_kept:
            self.session.commit([], 0)
        else:
            self.session.rollback()
            self.model = before
            assert self.stored() == stored
        self.check()

    def step(self) -> None:
        if self.rng.random() < 0.2:
            before, stored = copy.deepcopy(self.model), self.stored()
            mark = self.session.mark()
            try:
                self.change_or_write()
            except DataError:
                is_kept = False
            else:
                is_kept = self.rng.random() < 0.5
            if is_kept:
                self.session.drop_mark(mark)
            else:
                self.session.undo_to_mark(mark)
                self.model = before
                assert self.stored() == stored
            return
        self.change_or_write()

    def change_or_write(self) -> None:
        if self.rng.random() < 0.5:
            self.write()
        else:
            self.change()
        if not self.model.is_valid():
            raise AssertionError("the database took what a unique key forbids")

    def change(self) -> None:
        model, kind = self.model, self.rng.random()
        self.names += 1
        new = f"c{self.names}"
        if kind < 0.35 or not model.columns:
            older = self.rng.choice([None, "old"])
            action = add_column(new, older=older)
            model.columns.append(new)
            for row in model.rows.values():
                row[new] = None if older is None else older.encode()
        elif kind < 0.6:
            name = self.rng.choice(model.columns)
            action = drop_column(name)
            model.columns.remove(name)
            model.unique.discard(name)
            for row in model.rows.values():
                del row[name]
        elif kind < 0.85:
            name = self.rng.choice(model.columns)
            action = rename_column(name, new)
            model.columns[model.columns.index(name)] = new
            model.unique = {new if each == name else each for each in model.unique}
            for row in model.rows.values():
                row[new] = row.pop(name)
        else:
            name = self.rng.choice(model.columns)
            action = unique(new, name)
            model.unique.add(name)
        self.session.change_table(recorded(self.harness, action), place())

    def write(self) -> None:
        table, model = self.described(), self.model
        key = self.rng.randrange(6)
        values = [self.rng.choice([None, b"x", b"y", b"z"]) for _ in model.columns]
        made = (int4(key), *values)
        if key not in model.rows:
            model.rows[key] = dict(zip(model.columns, values, strict=True))
            self.session.write([insert(table, [made])])
            return
        old = (int4(key), *(model.rows[key][name] for name in model.columns))
        if self.rng.random() < 0.5:
            del model.rows[key]
            assert self.session.write([delete(table, [old])]) == (1,)
        else:
            model.rows[key] = dict(zip(model.columns, values, strict=True))
            assert self.session.write([update(table, [old], [made])]) == (1,)

    def described(self) -> DestinationTable:
        table = self.session.describe("public", "t")
        assert table is not None
        assert [column.name for column in table.columns] == ["id", *self.model.columns]
        return table

    def stored(self) -> Any:
        found = self.harness._store.tables["public", "t"]
        return copy.deepcopy((found.table, found.rows, found.unique))

    def check(self) -> None:
        expected = sorted(
            ((int4(key), *(row[name] for name in self.model.columns)) for key, row in self.model.rows.items()),
            key=lambda row: row[0] or b"",
        )
        assert self.harness.rows("t") == expected
        table = self.described()
        names = [column.name for column in table.columns]
        assert {tuple(names[each] for each in key) for key in table.unique_keys} == {
            ("id",),
            *((name,) for name in self.model.unique),
        }


@pytest.mark.seeded
@given(st.integers(0, 2**32))
def test_rows_and_changes_are_as_a_model_says_behind_commit_and_rollback(seed: int) -> None:
    run = Run(seed)
    for _ in range(12):
        run.transaction()


@pytest.mark.parametrize("kind", ["int8", "bigint", "pg_catalog.int8"])
def test_type_may_have_its_printed_name_or_the_catalogs(kind: str) -> None:
    run = Run(1)
    run.session.begin()
    run.session.change_table(recorded(run.harness, add_column("n", kind)), place())
    table = run.session.describe("public", "t")
    assert table is not None
    assert table.columns[-1].type_name == "pg_catalog.int8"
