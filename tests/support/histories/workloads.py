"""Random work for a memory source: every kind of change, tables with and without keys, schema changes, tags."""

from __future__ import annotations

import random

from headrace.databases.memory.source import MemorySource, MemoryTransaction
from headrace.lcr.batch import OldImage
from headrace.lcr.tags import Tag

TAGS = (None, None, Tag(value=b"\x00", topology="other", apply="a"), Tag(value=b"\x1d", topology="", apply=""))


class Workload:
    """Does random transactions on a fixed set of tables.

    Args:
        source: its database.
        seed: same seed, same work.
        rows_max: most changes of a transaction.
        ddl: some of the changes are DDL, in the source's log of DDL.
    """

    def __init__(self, source: MemorySource, seed: int, *, rows_max: int = 12, ddl: bool = False) -> None:
        self.source, self.ddl = source, ddl
        self.random = random.Random(seed)
        self.rows_max = rows_max
        self._number = self._columns = 0
        source.create_table("hr.keyed", ["id", "a", "b"], key=["id"])
        source.create_table("hr.full", ["id", "a", "b"], key=["id"], old_image=OldImage.FULL)
        source.create_table("hr.bag", ["a", "b"])
        source.create_table("sales.events_1", ["id", "at", "x"], key=["id"], root="sales.events")
        source.create_table("sales.events_2", ["id", "x", "at"], key=["id"], root="sales.events")
        source.create_table("hr.log", ["line"], old_image=OldImage.NONE)
        source.create_table("headrace.progress", ["id", "scn"], key=["id"])
        self.keyed = ["hr.keyed", "hr.full", "sales.events_1", "sales.events_2"]

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            kind = self.random.random()
            if kind < 0.04:
                self._alter()
            elif kind < 0.08:
                self.source.other_activity()
            elif kind < 0.12:
                self.source.write_marker(b"m")
            else:
                with self.source.transaction(self.random.choice(TAGS)) as transaction:
                    for _ in range(self.random.randint(0, self.rows_max)):
                        self.change(transaction)

    def change(self, transaction: MemoryTransaction) -> None:
        if self.ddl and self.random.random() < 0.2:
            self._change_structure(transaction)
            return
        kind = self.random.random()
        if kind < 0.03:
            transaction.truncate(
                *self.random.sample(["hr.keyed", "hr.bag"], self.random.randint(1, 2)), cascade=kind < 0.01
            )
        elif kind < 0.04:
            transaction.truncate("sales.events_1", "sales.events_2", restart_identity=True)
        elif kind < 0.12:
            transaction.insert("hr.log", line=self._text())
        elif kind < 0.18:
            self._number += 1
            transaction.insert("headrace.progress", id=str(self._number), scn="7")
        elif kind < 0.3:
            self._change_bag(transaction)
        else:
            self._change_keyed(transaction, self.random.choice(self.keyed))

    def _change_bag(self, transaction: MemoryTransaction) -> None:
        rows = self.source.rows("hr.bag")
        if not rows or self.random.random() < 0.5:
            transaction.insert("hr.bag", a=self.random.choice(["1", "2", None]), b=self.random.choice(["x", ""]))
            return
        names = [column.name for column in self.source.table("hr.bag").version.columns]
        key = dict(zip(names, self.random.choice(rows), strict=True))
        if self.random.random() < 0.5:
            transaction.update("hr.bag", key, b=self._text())
        else:
            transaction.delete("hr.bag", key)

    def _change_keyed(self, transaction: MemoryTransaction, table: str) -> None:
        names = [column.name for column in self.source.table(table).version.columns]
        rows = self.source.rows(table)
        kind = self.random.random()
        if not rows or kind < 0.45:
            self._number += 1
            values = {name: self._text() for name in names[1:] if self.random.random() < 0.8}
            transaction.insert(table, **{"id": str(self._number), **values})
            return
        row = dict(zip(names, self.random.choice(rows), strict=True))
        key = {"id": row["id"]}
        if kind < 0.6:
            transaction.delete(table, key)
        elif kind < 0.7:
            self._number += 1
            transaction.update(table, key, id=str(self._number))
        else:
            name = self.random.choice(names[1:])
            others = [other for other in names[1:] if other != name and row[other] is not None]
            unchanged = [other for other in others if self.random.random() < 0.3]
            transaction.update(table, key, unchanged=unchanged, **{name: self._text()})

    def _change_structure(self, transaction: MemoryTransaction) -> None:
        table = self.random.choice(["hr.keyed", "hr.full", "hr.bag"])
        names = [column.name for column in self.source.table(table).version.columns]
        others = [name for name in names if name not in {"id", "a", "b"}]
        kind = self.random.random()
        self._columns += 1
        if kind < 0.1:
            transaction.log_ddl(self.random.choice(['{"format": 1, "base": true, "after": {}}', "damaged"]))
        elif kind < 0.2:
            transaction.trim_ddl_log(1)
        elif kind < 0.3:
            with transaction.rolled_back():
                transaction.add_column(table, f"d{self._columns}", "undone")
                transaction.insert("hr.log", line="undone")
        elif kind < 0.7 or not others:
            transaction.add_column(table, f"d{self._columns}", self.random.choice([None, "0"]))
        elif kind < 0.85:
            transaction.rename_column(table, self.random.choice(others), f"d{self._columns}")
        else:
            transaction.drop_column(table, self.random.choice(others))

    def _alter(self) -> None:
        self._columns += 1
        self.source.add_column(
            self.random.choice(["hr.keyed", "hr.full"]), f"c{self._columns}", self.random.choice([None, "0"])
        )

    def _text(self) -> str | None:
        length = self.random.choice([0, 1, 3, 17, 40, 300, -1])
        return None if length < 0 else "".join(self.random.choices("abcdefghij", k=length))
