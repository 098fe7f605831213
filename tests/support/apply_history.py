"""Random histories of a source, the result of applying them serially, and the batches that carry them.

The serial reference is written row by row on plain tuples, apart from everything in `spark_apply`: dependencies
are sets of key values, conflicts are looked up, nothing is collapsed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from databases.memory_store import MemoryStore, destination_column
from streams.lcr_batch import (
    ABSENT,
    NULL,
    UNCHANGED,
    Column,
    Command,
    LcrBatch,
    OldImage,
    RowGroup,
    TableVersion,
    Truncate,
    content_version,
)
from tests.support.lcr_batches import column_values, transactions

Value = bytes | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table at both ends; column 0 is the key unless `keyless`, column 1 unique in addition if `unique`."""

    number: int
    name: str
    columns: tuple[str, ...]
    old_image: OldImage
    keyless: bool = False
    unique: bool = False
    key_type: str = "pg_catalog.int4"

    @property
    def version(self) -> TableVersion:
        columns = tuple(
            Column(
                name=name, type_name=self.key_type if place == 0 else "pg_catalog.text", is_binary=True,
                is_key=place == 0 and self.old_image is OldImage.KEY,
            )
            for place, name in enumerate(self.columns)
        )
        described = TableVersion(
            object_number=self.number, version=0, owner="public", name=self.name, columns=columns, old_image=self.old_image,
        )
        return replace(described, version=content_version(described))

    @property
    def keys(self) -> tuple[tuple[int, ...], ...]:
        return () if self.keyless else ((0,), (1,)) if self.unique else ((0,),)

    def create(self, store: MemoryStore, name: str | None = None) -> None:
        columns = [
            destination_column(
                column, "pg_catalog.int4" if place == 0 else "pg_catalog.text",
                equality="integer" if place == 0 else "bytes",
            )
            for place, column in enumerate(self.columns)
        ]
        names = [[self.columns[place] for place in key] for key in self.keys]
        store.create_table("public", name or self.name, columns, key=names[0] if names else (), unique=names[1:])


TABLES = (
    Table(11, "plain", ("id", "v", "big"), OldImage.KEY),
    Table(12, "full", ("id", "v", "w"), OldImage.FULL),
    Table(13, "twice", ("id", "u", "v"), OldImage.KEY, unique=True),
    Table(14, "twice_full", ("id", "u", "v"), OldImage.FULL, unique=True),
    Table(15, "history", ("a", "b"), OldImage.FULL, keyless=True),
)


@dataclass(frozen=True)
class Change:
    """One row LCR; `unchanged`: columns whose new value is not in the log."""

    table: Table
    command: Command
    old: Row | None = None
    new: Row | None = None
    unchanged: frozenset[int] = frozenset()

    @property
    def changed(self) -> set[int]:
        """Columns an UPDATE writes."""
        assert self.old is not None
        assert self.new is not None
        if self.table.old_image is OldImage.FULL:
            return {c for c in range(len(self.new)) if self.old[c] != self.new[c]}
        return set(range(len(self.new))) - self.unchanged

    @property
    def old_in_log(self) -> dict[int, Value]:
        """Old values the LCR carries."""
        if self.old is None:
            return {}
        if self.table.old_image is OldImage.FULL:
            return dict(enumerate(self.old))
        if self.command is Command.DELETE or self.new is None or self.new[0] != self.old[0]:
            return {0: self.old[0]}
        return {}

    @property
    def new_in_log(self) -> dict[int, Value]:
        if self.new is None:
            return {}
        return {c: v for c, v in enumerate(self.new) if c not in self.unchanged}


@dataclass
class Transaction:
    number: int
    changes: list[Change] = field(default_factory=list)

    @property
    def order_scn(self) -> int:
        return self.number * 100 + 10

    @property
    def commit_scn(self) -> int:
        return self.number * 100 + 50


# --------------------------------------------------------------------------- the source


class Source:
    """A database that makes valid random transactions: few keys, so that they conflict."""

    def __init__(self, rng: random.Random, tables: Sequence[Table] = TABLES, keys: int = 8) -> None:
        self.rng, self.tables, self.keys = rng, tables, keys
        self.rows: dict[str, list[Row]] = {table.name: [] for table in tables}
        self._text = 0

    def fill(self, rows: int) -> None:
        for table in self.tables:
            for _ in range(rows):
                self._insert(table)

    def transaction(self, number: int, changes: int) -> Transaction:
        made = Transaction(number)
        while len(made.changes) < changes:
            made.changes += self._change()
        return made

    def _change(self) -> list[Change]:
        rng, table = self.rng, self.rng.choice(self.tables)
        kind = rng.random()
        if kind < 0.02:
            self.rows[table.name].clear()
            return [Change(table, Command.TRUNCATE)]
        if kind < 0.35 or not self.rows[table.name]:
            return self._insert(table)
        if kind < 0.55:
            return self._delete(table)
        if kind < 0.62:
            return self._delete(table) + self._insert(table)
        if kind < 0.70 and table.unique:
            return self._swap(table)
        return self._update(table)

    def _value(self) -> bytes | None:
        return self.rng.choice([None, b"x", b"y", b"a longer text", f"text {self.rng.randrange(4)}".encode()])

    def _key(self) -> bytes:
        return self.rng.randrange(self.keys).to_bytes(4, "big")

    def _row(self, table: Table) -> Row:
        row: list[Value] = [self._value() for _ in table.columns]
        if table.keyless:
            row[0] = self._key()
        else:
            row[0] = self._key()
            if table.unique:
                row[1] = self.rng.choice([None, f"u{self.rng.randrange(self.keys)}".encode()])
        return tuple(row)

    def _fits(self, table: Table, row: Row, but: Row | None = None) -> bool:
        others = list(self.rows[table.name])
        if but is not None:
            others.remove(but)
        return not any(
            all(row[c] is not None and row[c] == other[c] for c in key) for key in table.keys for other in others
        )

    def _insert(self, table: Table) -> list[Change]:
        row = self._row(table)
        if not self._fits(table, row):
            return []
        self.rows[table.name].append(row)
        return [Change(table, Command.INSERT, new=row)]

    def _delete(self, table: Table) -> list[Change]:
        if not self.rows[table.name]:
            return []
        row = self.rng.choice(self.rows[table.name])
        self.rows[table.name].remove(row)
        return [Change(table, Command.DELETE, old=row)]

    def _update(self, table: Table) -> list[Change]:
        old = self.rng.choice(self.rows[table.name])
        new = list(old)
        for column in range(1, len(new)):
            if self.rng.random() < 0.5:
                new[column] = self._row(table)[column]
        if self.rng.random() < 0.15:
            new[0] = self._key()
        return self._replace(table, old, tuple(new))

    def _swap(self, table: Table) -> list[Change]:
        """Two rows exchange their unique values through a third value."""
        if len(self.rows[table.name]) < 2:
            return []
        first, second = self.rng.sample(self.rows[table.name], 2)
        if first[1] is None or second[1] is None:
            return []
        self._text += 1
        parked = (first[0], f"parked {self._text}".encode(), *first[2:])
        return [
            *self._replace(table, first, parked),
            *self._replace(table, second, (second[0], first[1], *second[2:])),
            *self._replace(table, parked, (first[0], second[1], *first[2:])),
        ]

    def _replace(self, table: Table, old: Row, new: Row) -> list[Change]:
        if not self._fits(table, new, but=old):
            return []
        self.rows[table.name].remove(old)
        self.rows[table.name].append(new)
        unchanged: frozenset[int] = frozenset()
        if self.rng.random() < 0.3:
            unchanged = frozenset(c for c in range(2, len(new)) if old[c] == new[c] and new[c] is not None)
        return [Change(table, Command.UPDATE, old=old, new=new, unchanged=unchanged)]


# --------------------------------------------------------------------------- the serial reference


class Conflict(Exception):  # noqa: N818 - an outcome
    """A row that cannot be applied."""


@dataclass
class Reference:
    """A destination that applies transactions serially."""

    rows: dict[str, list[Row]]
    failed: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    _uses: set[object] = field(default_factory=set)

    def apply(self, transaction: Transaction) -> None:
        uses, needs = self.keys_of(transaction)
        if needs & self._uses:
            self.held.append(transaction.number)
            self._uses |= uses
            return
        before = {name: list(rows) for name, rows in self.rows.items()}
        try:
            for change in transaction.changes:
                self._change(change)
        except Conflict:
            self.rows = before
            self.failed.append(transaction.number)
            self._uses |= uses

    @staticmethod
    def keys_of(transaction: Transaction) -> tuple[set[object], set[object]]:
        """The keys that the transaction holds once it is in the error queue, and the keys that it must not find held."""
        uses: set[object] = set()
        needs: set[object] = set()
        for change in transaction.changes:
            name = change.table.name
            uses.add(("use", name))
            needs.add(("alone", name))
            if change.table.keyless or change.command is Command.TRUNCATE:
                uses.add(("alone", name))
                needs.add(("use", name))
                continue
            old, new = change.old_in_log, change.new_in_log
            if change.command is Command.UPDATE:
                new = {**new, **{c: old[c] for c in change.unchanged if c in old}}
            for image in (old, new):
                for key in change.table.keys:
                    values = tuple(image.get(c) for c in key)
                    if None not in values:
                        uses.add((name, key, values))
                        needs.add((name, key, values))
        return uses, needs

    def _change(self, change: Change) -> None:
        table, rows = change.table, self.rows[change.table.name]
        if change.command is Command.TRUNCATE:
            rows.clear()
            return
        if change.command is Command.INSERT:
            assert change.new is not None
            self._put(table, change.new)
            return
        assert change.old is not None
        found = self._find(change)
        rows.remove(found)
        if change.command is Command.UPDATE:
            assert change.new is not None
            row = list(found)
            for column in change.changed:
                row[column] = change.new[column]
            self._put(table, tuple(row))

    def _find(self, change: Change) -> Row:
        assert change.old is not None
        table, rows = change.table, self.rows[change.table.name]
        if table.keyless:
            if change.old not in rows:
                raise Conflict
            return change.old
        matches = [row for row in rows if row[0] == change.old[0]]
        if not matches:
            raise Conflict
        (found,) = matches
        if table.old_image is OldImage.FULL:
            compared = change.changed if change.command is Command.UPDATE else set(range(len(found)))
            if any(found[c] != change.old[c] for c in compared):
                raise Conflict
        return found

    def _put(self, table: Table, row: Row) -> None:
        for key in table.keys:
            for other in self.rows[table.name]:
                if all(row[c] is not None and row[c] == other[c] for c in key):
                    raise Conflict
        self.rows[table.name].append(row)


# --------------------------------------------------------------------------- batches


def batch_of(made: Sequence[Transaction], previous: int, **fields: object) -> LcrBatch:
    """Whole transactions as one batch; `first`/`last`/`is_open`: a part of a single large one."""
    first, last = int(fields.get("first", 0)), fields.get("last")  # type: ignore[call-overload]
    is_open = bool(fields.get("is_open", False))
    changes = [transaction.changes[first:last] for transaction in made]  # type: ignore[misc]
    flat = [change for part in changes for change in part]
    tables = list(dict.fromkeys(change.table for change in flat))
    grouped: dict[tuple[int, Command], list[int]] = {}
    truncates = []
    for number, change in enumerate(flat):
        if change.command is Command.TRUNCATE:
            truncates.append(Truncate(
                row_number=number, tables=(tables.index(change.table),), cascade=False, restart_identity=False,
            ))
        else:
            grouped.setdefault((tables.index(change.table), change.command), []).append(number)
    groups = tuple(
        RowGroup(
            table=table, command=command, row_numbers=np.array(numbers, np.int32),
            old=None if command is Command.INSERT else _image([flat[n] for n in numbers], is_new=False),
            new=None if command is Command.DELETE else _image([flat[n] for n in numbers], is_new=True),
        )
        for (table, command), numbers in grouped.items()
    )
    found = transactions([t.commit_scn for t in made], [len(part) for part in changes])
    found.order_scn[:] = [t.order_scn for t in made]
    found.transaction_id[:] = [t.number for t in made]
    if is_open:
        found.commit_scn[-1] = 0
    return LcrBatch(
        source="dbs1", previous_scn=previous, through_scn=previous if is_open else made[-1].commit_scn,
        continues=first > 0, first_position=first, tables=tuple(table.version for table in tables),
        transactions=found, groups=groups, truncates=tuple(truncates),
    )


def _image(changes: Sequence[Change], *, is_new: bool) -> object:
    columns: list[list[bytes | int]] = []
    for column in range(len(changes[0].table.columns)):
        values: list[bytes | int] = []
        for change in changes:
            image = change.new_in_log if is_new else change.old_in_log
            if is_new and column in change.unchanged:
                values.append(UNCHANGED)
            elif column in image:
                value = image[column]
                values.append(NULL if value is None else value)
            else:
                values.append(ABSENT)
        columns.append(values)
    return column_values(columns)


def cut_batches(rng: random.Random, made: Sequence[Transaction], part_rows: int = 10) -> list[LcrBatch]:
    """Cut a history into batches at random; a transaction with more than `part_rows` rows into parts."""
    batches: list[LcrBatch] = []
    previous, place = 0, 0
    while place < len(made):
        if rng.random() < 0.1:
            through = made[place].order_scn - rng.randrange(1, 5)
            if through > previous:
                batches.append(LcrBatch(source="dbs1", previous_scn=previous, through_scn=through))
                previous = through
        if len(made[place].changes) > part_rows:
            previous = _cut_large(rng, made[place], previous, part_rows, batches)
            place += 1
            continue
        count = 1
        wanted = rng.randrange(1, 7)
        while count < wanted and place + count < len(made) and len(made[place + count].changes) <= part_rows:
            count += 1
        batches.append(batch_of(made[place : place + count], previous))
        previous = made[place + count - 1].commit_scn
        place += count
    return batches


def _cut_large(
    rng: random.Random, transaction: Transaction, previous: int, part_rows: int, batches: list[LcrBatch],
) -> int:
    first = 0
    while first < len(transaction.changes):
        last = first + rng.randrange(1, part_rows)
        is_open = last < len(transaction.changes)
        batches.append(batch_of([transaction], previous, first=first, last=last, is_open=is_open))
        first = last
    return transaction.commit_scn
