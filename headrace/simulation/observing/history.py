"""Random histories of a source: tables and valid transactions on few keys, so that they depend on each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import Column, Command, OldImage, TableVersion, content_version
from headrace.lcr.scn import ObjectNumber

__all__ = ["TABLES", "Change", "Row", "Source", "Table", "Transaction", "Value"]

Value = bytes | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table at both ends; column 0 is the key unless `keyless`, and column 1 is also unique if `unique`."""

    number: int
    name: str
    columns: tuple[str, ...]
    old_image: OldImage
    keyless: bool = False
    unique: bool = False
    key_type: str = "pg_catalog.int4"
    owner: str = "public"
    may_truncate: bool = True

    @property
    def qualified_name(self) -> str:
        """The schema and the name."""
        return f"{self.owner}.{self.name}"

    @property
    def place(self) -> str:
        """The key under which a history keeps the table's rows."""
        return self.name if self.owner == "public" else self.qualified_name

    @property
    def version(self) -> TableVersion:
        """The description that redo carries, with the current columns."""
        described = TableVersion(
            object_number=ObjectNumber(self.number),
            version=0,
            owner=self.owner,
            name=self.name,
            columns=tuple(
                replace(column, is_key=place == 0 and self.old_image is OldImage.KEY)
                for place, column in enumerate(self.described_columns)
            ),
            old_image=self.old_image,
        )
        return replace(described, version=content_version(described))

    @property
    def described_columns(self) -> tuple[Column, ...]:
        """The columns with their types, the key first."""
        return tuple(
            Column(name=name, type_name=self.key_type if place == 0 else "pg_catalog.text", is_binary=True)
            for place, name in enumerate(self.columns)
        )

    @property
    def keys(self) -> tuple[tuple[int, ...], ...]:
        """Column positions of each key: the primary key, then a unique key."""
        return () if self.keyless else ((0,), (1,)) if self.unique else ((0,),)

    def create(self, store: MemoryStore, name: str | None = None) -> None:
        """Create the table at a destination.

        Args:
            store: the destination.
            name: name of the table there; None: its own name.
        """
        columns = [
            destination_column(
                column,
                "pg_catalog.int4" if place == 0 else "pg_catalog.text",
                equality="integer" if place == 0 else "bytes",
            )
            for place, column in enumerate(self.columns)
        ]
        names = [[self.columns[place] for place in key] for key in self.keys]
        store.create_table(self.owner, name or self.name, columns, key=names[0] if names else (), unique=names[1:])


TABLES = (
    Table(11, "plain", ("id", "v", "big"), OldImage.KEY),
    Table(12, "full", ("id", "v", "w"), OldImage.FULL),
    Table(13, "twice", ("id", "u", "v"), OldImage.KEY, unique=True),
    Table(14, "twice_full", ("id", "u", "v"), OldImage.FULL, unique=True),
    Table(15, "history", ("a", "b"), OldImage.FULL, keyless=True),
)


@dataclass(frozen=True)
class Change:
    """One row LCR; `unchanged` holds the columns whose new value is not in the log."""

    table: Table
    command: Command
    old: Row | None = None
    new: Row | None = None
    unchanged: frozenset[int] = frozenset()

    @property
    def changed(self) -> set[int]:
        """The columns that an UPDATE writes."""
        assert self.old is not None
        assert self.new is not None
        if self.table.old_image is OldImage.FULL:
            return {c for c in range(len(self.new)) if self.old[c] != self.new[c]}
        return set(range(len(self.new))) - self.unchanged


@dataclass
class Transaction:
    """A transaction of the model.

    Args:
        number: from 1, in commit order.
        changes: row changes in order.
    """

    number: int
    changes: list[Change] = field(default_factory=list)

    @property
    def order_scn(self) -> int:
        """The transaction's position in commit order."""
        return self.number * 100 + 10

    @property
    def commit_scn(self) -> int:
        """Position of its commit in the log."""
        return self.number * 100 + 50


# --------------------------------------------------------------------------- the source


class Source:
    """A database that makes valid random transactions on few keys, so that they depend on each other.

    Args:
        rng: random source.
        tables: the tables that it writes; if empty, every transaction is empty.
        keys: number of different values of a key.
        first_key: the smallest key; histories with separate key ranges never write each other's rows.
    """

    truncate_share = 0.02
    """Share of TRUNCATE among the changes of tables that may be truncated."""

    def __init__(self, rng: random.Random, tables: Sequence[Table] = TABLES, keys: int = 8, first_key: int = 0) -> None:
        self.rng, self.tables, self.keys, self.first_key = rng, tables, keys, first_key
        self.rows: dict[str, list[Row]] = {table.place: [] for table in tables}
        self._text = 0

    def fill(self, rows: int) -> None:
        """Insert rows into every table, before the capture begins."""
        for table in self.tables:
            for _ in range(rows):
                self._insert(table)

    def transaction(self, number: int, changes: int) -> Transaction:
        """Make the next transaction.

        Args:
            number: its number.
            changes: minimum number of changes.
        """
        made = Transaction(number)
        while self.tables and len(made.changes) < changes:
            made.changes += self._change()
        return made

    def _change(self) -> list[Change]:
        rng, table = self.rng, self.rng.choice(self.tables)
        kind = rng.random()
        if kind < self.truncate_share and table.may_truncate:
            self.rows[table.place].clear()
            return [Change(table, Command.TRUNCATE)]
        if kind < 0.35 or not self.rows[table.place]:
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
        return (self.first_key + self.rng.randrange(self.keys)).to_bytes(4, "big")

    def _row(self, table: Table) -> Row:
        row: list[Value] = [self._value() for _ in table.columns]
        if table.keyless:
            row[0] = self._key()
        else:
            row[0] = self._key()
            if table.unique:
                row[1] = self.rng.choice([None, f"u{self.first_key + self.rng.randrange(self.keys)}".encode()])
        return tuple(row)

    def _fits(self, table: Table, row: Row, but: Row | None = None) -> bool:
        others = list(self.rows[table.place])
        if but is not None:
            others.remove(but)
        return not any(
            all(row[c] is not None and row[c] == other[c] for c in key) for key in table.keys for other in others
        )

    def _insert(self, table: Table) -> list[Change]:
        row = self._row(table)
        if not self._fits(table, row):
            return []
        self.rows[table.place].append(row)
        return [Change(table, Command.INSERT, new=row)]

    def _delete(self, table: Table) -> list[Change]:
        if not self.rows[table.place]:
            return []
        row = self.rng.choice(self.rows[table.place])
        self.rows[table.place].remove(row)
        return [Change(table, Command.DELETE, old=row)]

    def _update(self, table: Table) -> list[Change]:
        old = self.rng.choice(self.rows[table.place])
        new = list(old)
        for column in range(1, len(new)):
            if self.rng.random() < 0.5:
                new[column] = self._row(table)[column]
        if self.rng.random() < 0.15:
            new[0] = self._key()
        return self._replace(table, old, tuple(new))

    def _swap(self, table: Table) -> list[Change]:
        """Exchange the unique values of two rows through a third value."""
        if len(self.rows[table.place]) < 2:
            return []
        first, second = self.rng.sample(self.rows[table.place], 2)
        if first[1] is None or second[1] is None:
            return []
        self._text += 1
        parked = (first[0], f"parked {self.first_key} {self._text}".encode(), *first[2:])
        return [
            *self._replace(table, first, parked),
            *self._replace(table, second, (second[0], first[1], *second[2:])),
            *self._replace(table, parked, (first[0], second[1], *first[2:])),
        ]

    def _replace(self, table: Table, old: Row, new: Row) -> list[Change]:
        if not self._fits(table, new, but=old):
            return []
        self.rows[table.place].remove(old)
        self.rows[table.place].append(new)
        unchanged: frozenset[int] = frozenset()
        if self.rng.random() < 0.3:
            unchanged = frozenset(c for c in range(2, len(new)) if old[c] == new[c] and new[c] is not None)
        return [Change(table, Command.UPDATE, old=old, new=new, unchanged=unchanged)]
