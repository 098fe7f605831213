"""Random histories of rows and DDL, applied while anything dies: every LCR once, and the table as the source's.

The model keeps rows as dictionaries by column name, independently of all that is tested.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.lcr.batch import Command, LcrBatch, OldImage
from headrace.lcr.ddl import DdlChange
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY, Engine, arm
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.histories.apply_world import MemoryPlace
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure

OTHER = Table(12, "other", ("id", "v"), OldImage.KEY)
NAMES = ("a", "b", "c", "d")
Piece = list[Change] | DdlChange


def k(number: int) -> bytes:
    return number.to_bytes(4, "big")


@dataclass
class Model:
    """The source: its table, whose columns change, and another one; `numbers` are those of the columns."""

    rng: random.Random
    columns: list[str] = field(default_factory=lambda: ["a", "b"])
    numbers: dict[str, int] = field(default_factory=lambda: {"id": 1, "a": 2, "b": 3})
    rows: dict[int, dict[str, bytes | None]] = field(default_factory=dict)
    others: dict[int, bytes] = field(default_factory=dict)
    changes: int = 0  # DDL so far

    @property
    def table(self) -> Table:
        return Table(11, "plain", ("id", *self.columns), OldImage.KEY)

    def structure(self) -> dict[str, Any]:
        columns = [
            column(self.numbers[name], name, "text" if place else "int4", not_null=not place)
            for place, name in enumerate(("id", *self.columns))
        ]
        return structure(*columns, owner="public", name="plain")

    # ------------------------------------------------------------------ what a transaction does

    def row(self) -> Change:
        rng = self.rng
        if rng.random() < 0.4:
            key, value = rng.randrange(8), rng.choice([b"x", b"y"])
            is_there, before = key in self.others, self.others.get(key)
            self.others[key] = value
            if not is_there:
                return Change(OTHER, Command.INSERT, new=(k(key), value))
            return Change(OTHER, Command.UPDATE, old=(k(key), before), new=(k(key), value))
        key = rng.randrange(8)
        old_row = self.rows.get(key)
        new = {name: rng.choice([None, b"x", b"y"]) for name in self.columns}
        image = (k(key), *(new[name] for name in self.columns))
        if old_row is None:
            self.rows[key] = new
            return Change(self.table, Command.INSERT, new=image)
        old = (k(key), *(old_row[name] for name in self.columns))
        if rng.random() < 0.3:
            del self.rows[key]
            return Change(self.table, Command.DELETE, old=old)
        self.rows[key] = new
        return Change(self.table, Command.UPDATE, old=old, new=image)

    def ddl(self) -> DdlChange:
        rng, before, kind = self.rng, self.structure(), self.rng.random()
        older: dict[str, str | None] = {}
        free = [name for name in NAMES if name not in self.columns]
        self.changes += 1
        if free and (kind < 0.4 or not self.columns):
            name, value = rng.choice(free), rng.choice([None, "old"])
            self.columns.append(name)
            self.numbers[name] = max(self.numbers.values()) + 1
            older[name] = value
            for row in self.rows.values():
                row[name] = None if value is None else value.encode()
        elif free and kind < 0.7:
            name, new = rng.choice(self.columns), rng.choice(free)
            self.columns[self.columns.index(name)] = new
            self.numbers[new] = self.numbers.pop(name)
            for row in self.rows.values():
                row[new] = row.pop(name)
        else:
            name = rng.choice(self.columns)
            self.columns.remove(name)
            for row in self.rows.values():
                del row[name]
        return ddl_change(before, self.structure(), relation=11, older=older)

    def transaction(self) -> list[Piece]:
        """Return pieces of one transaction: runs of rows, and DDL."""
        pieces: list[Piece] = []
        for _ in range(self.rng.randrange(1, 6)):
            if self.rng.random() < 0.25:
                pieces.append(self.ddl())
            elif pieces and isinstance(pieces[-1], list):
                pieces[-1].append(self.row())
            else:
                pieces.append([self.row()])
        return pieces


def batches_of(number: int, pieces: list[Piece], previous: int) -> list[LcrBatch]:
    """Return the batches of one transaction: a DDL LCR is alone in its batch."""
    transaction = Transaction(number)
    found, position = [], 0
    for place, piece in enumerate(pieces):
        is_open = place < len(pieces) - 1
        if isinstance(piece, DdlChange):
            batch = ddl_batch(
                piece,
                commit=transaction.commit_scn,
                source=SOURCE,
                previous=previous,
                is_open=is_open,
                continues=place > 0,
                first_position=position,
            )
            batch.transactions.order_scn[:] = transaction.order_scn
            batch.transactions.transaction_id[:] = number
        else:
            before: Any = [None] * position
            made = Transaction(number, [*before, *piece])
            batch = batch_of([made], previous, first=position, last=len(made.changes), is_open=is_open)
        found.append(batch)
        position += batch.row_count
    return found


def crashing(rng: random.Random, place: MemoryPlace) -> Callable[[Engine], None]:
    """Return what crashes the destination now and then: it loses what is not on disk."""

    def beside(engine: Engine) -> None:
        if rng.random() < 0.002 and engine.may_die:
            place.store.crash()

    return beside


@pytest.mark.seeded
@settings(max_examples=scaled(25, 400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), crash=st.sampled_from([0.0, 0.01, 0.03]), parallelism=st.integers(1, 3))
def test_rows_and_ddl_are_applied_once_whatever_dies(
    monkeypatch: pytest.MonkeyPatch, seed: int, crash: float, parallelism: int
) -> None:
    rng = random.Random(seed)
    model, place = Model(rng), MemoryPlace()
    place.create(model.table)
    place.create(OTHER)
    batches: list[LcrBatch] = []
    for number in range(1, rng.randrange(4, 14)):
        batches += batches_of(number, model.transaction(), batches[-1].through_scn if batches else 0)
    engine = Engine(
        seed=seed,
        batches=batches,
        destination=place.destination,
        parallelism=parallelism,
        crash=crash,
        on_commit_lost=place.lose_commit,
    )
    if crash:
        engine.beside = crashing(random.Random(seed + 1), place)
        arm(monkeypatch, random.Random(seed + 2), 0.05)
    engine.run()
    assert not place.destination.errors(TOPOLOGY, APPLY)
    stored = place.store.tables["public", "plain"]
    names = [each.name for each in stored.table.columns]
    assert sorted(names) == sorted(["id", *model.columns])
    rows = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in stored.rows.values()}
    assert rows == {k(key): row for key, row in model.rows.items()}
    assert dict(place.rows(OTHER)) == {k(key): value for key, value in model.others.items()}
    places = [(each.place.order_scn, each.place.position) for each in place.store.ddl_history]
    assert len(places) == model.changes
    assert places == sorted(set(places))
    assert {each.outcome.kind.value for each in place.store.ddl_history} <= {"APPLIED"}
