"""Random histories of a source, the result of applying them serially, and the batches that carry them.

The serial reference is written row by row on plain tuples, independently of `spark_apply`: dependencies are sets of key
values, conflicts are looked up, nothing is collapsed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.lcr.batch import Command, LcrBatch, OldImage, RowGroup, Truncate
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.simulation.observing.history import TABLES, Change, Row, Source, Table, Transaction, Value
from tests.support.values.lcr_batches import column_values, transactions

__all__ = [
    "TABLES",
    "Change",
    "Conflict",
    "Reference",
    "Row",
    "Source",
    "Table",
    "Transaction",
    "Value",
    "batch_of",
    "cut_batches",
]


# --------------------------------------------------------------------------- the serial reference


class Conflict(Exception):  # noqa: N818 - an outcome
    """A row that cannot be applied."""


@dataclass
class Reference:
    """A destination that applies transactions serially.

    Args:
        rows: of each table, before the first one.
        ordered: names of keyless tables whose INSERTs go to a handler: they are held as an UPDATE would be.
    """

    rows: dict[str, list[Row]]
    ordered: frozenset[str] = frozenset()
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

    def keys_of(self, transaction: Transaction) -> tuple[set[object], set[object]]:
        """Return the keys that the transaction holds in the error queue, and the keys that it must not find held."""
        uses: set[object] = set()
        needs: set[object] = set()
        for change in transaction.changes:
            name = change.table.name
            uses.add(("use", name))
            needs.add(("alone", name))
            if change.table.keyless and change.command is Command.INSERT and name not in self.ordered:
                continue
            if change.table.keyless or change.command is Command.TRUNCATE:
                uses.add(("alone", name))
                needs.add(("use", name))
                continue
            old, new = old_in_log(change), new_in_log(change)
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


def batch_of(made: Sequence[Transaction], previous: int, **fields: Any) -> LcrBatch:
    """Return whole transactions as one batch; `first`/`last`/`is_open`: a part of a single large one."""
    first, last = int(fields.get("first", 0)), fields.get("last")
    is_open = bool(fields.get("is_open", False))
    changes = [transaction.changes[first:last] for transaction in made]
    flat = [change for part in changes for change in part]
    tables = list(dict.fromkeys(change.table for change in flat))
    grouped: dict[tuple[int, Command], list[int]] = {}
    truncates = []
    for number, change in enumerate(flat):
        if change.command is Command.TRUNCATE:
            truncates.append(
                Truncate(
                    row_number=number,
                    tables=(tables.index(change.table),),
                    cascade=False,
                    restart_identity=False,
                )
            )
        else:
            grouped.setdefault((tables.index(change.table), change.command), []).append(number)
    groups = tuple(
        RowGroup(
            table=table,
            command=command,
            row_numbers=np.array(numbers, np.int32),
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
        source="dbs1",
        previous_scn=previous,
        through_scn=previous if is_open else made[-1].commit_scn,
        continues=first > 0,
        first_position=first,
        tables=tuple(table.version for table in tables),
        transactions=found,
        groups=groups,
        truncates=tuple(truncates),
    )


def old_in_log(change: Change) -> dict[int, Value]:
    """Return the old values that the LCR carries."""
    if change.old is None:
        return {}
    if change.table.old_image is OldImage.FULL:
        return dict(enumerate(change.old))
    if change.command is Command.DELETE or change.new is None or change.new[0] != change.old[0]:
        return {0: change.old[0]}
    return {}


def new_in_log(change: Change) -> dict[int, Value]:
    """Return the new values in the log: those that an UPDATE left unchanged are absent."""
    return {} if change.new is None else {c: v for c, v in enumerate(change.new) if c not in change.unchanged}


def _image(changes: Sequence[Change], *, is_new: bool) -> object:
    columns: list[list[bytes | int]] = []
    for column in range(len(changes[0].table.columns)):
        values: list[bytes | int] = []
        for change in changes:
            image = new_in_log(change) if is_new else old_in_log(change)
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
    """Cut a history into batches at random, and transactions with more than `part_rows` rows into parts."""
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
    rng: random.Random,
    transaction: Transaction,
    previous: int,
    part_rows: int,
    batches: list[LcrBatch],
) -> int:
    first = 0
    while first < len(transaction.changes):
        last = first + rng.randrange(1, part_rows)
        is_open = last < len(transaction.changes)
        batches.append(batch_of([transaction], previous, first=first, last=last, is_open=is_open))
        first = last
    return transaction.commit_scn
