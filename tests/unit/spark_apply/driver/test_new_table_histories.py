"""Random histories of tables that are made, written, renamed and dropped, through restarts, copies and the error queue.

Longer than 500 lines: the model of source and destination is one.

A model of the destination applies what the reader passes on. It asserts that a row comes only to a table that has a
record, from the record's SCN on; and in the end that each table with a record has all of its rows, each once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ApplyProgress, DdlOutcomeKind, DdlPlace, Instantiation
from headrace.lcr.batch import Command, LcrBatch, RowGroup
from headrace.lcr.cutting import resume_after
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from spark_apply.apply_config import TableToInstantiate
from spark_apply.copy.records.renames_in_flight import with_recorded_names
from spark_apply.copy.records.standing import standings, table_starts, unlisted
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.reading.pieces import LargeDropped, LargePart, Piece, Run
from spark_apply.tables.arriving import ArrivingTables
from spark_apply.tables.fits import TableFits
from spark_apply.tables.unsettled import DdlFates, TableChanges
from tests.support.apply.ddl_reading import identity, listed
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure
from tests.support.values.lcr_batches import column_values, table_version, transactions

TOPOLOGY = "t"
NAMES = ("a", "b")
FREE = ("c", "d")  # names that only a RENAME gives
Outcome = DdlOutcomeKind


def number_of(found: str) -> int:
    return int(found.split(".")[2])


@dataclass(frozen=True)
class Item:
    """An LCR: CREATE, DROP, RENAME or a row, of a table by name and number."""

    kind: str
    name: str
    number: int
    order: int
    position: int
    later: str = ""

    @property
    def change(self) -> DdlChange:
        shape = structure(column(1, "c0"), column(2, "c1"), owner="public", name=self.name)
        if self.kind == "drop":
            return ddl_change(shape, None, relation=self.number, tag="DROP TABLE")
        if self.kind == "rename":
            return ddl_change(shape, {**shape, "name": self.later}, relation=self.number)
        made = {"identities": {TOPOLOGY: identity(self.number)}, "why_not": "", "sequences": {}}
        return ddl_change(None, shape, relation=self.number, tag="CREATE TABLE", made=made)

    @property
    def place(self) -> DdlPlace:
        return DdlPlace(source="dbs1", transaction_id=self.order + 1001, order_scn=self.order, position=self.position)


def history(rng: random.Random, count: int, *, renames: bool = False) -> list[list[Item]]:
    """Return transactions; a name belongs to one table after another."""
    there: dict[str, int] = {}
    last, made = 99, []
    for number in range(count):
        items: list[Item] = []
        order = 10 * number + 15
        for position in range(rng.choice([1, 1, 2, 3, 5])):
            name = rng.choice([*NAMES, *(each for each in FREE if each in there)])
            free = [each for each in (*NAMES, *FREE) if each not in there]
            if renames and name in there and free and rng.random() < 0.4:
                later = rng.choice(free)
                there[later] = there.pop(name)
                items.append(Item("rename", name, there[later], order, position, later))
            elif name not in there:
                last += 1
                there[name] = last
                items.append(Item("create", name, last, order, position))
            elif rng.random() < 0.2:
                items.append(Item("drop", name, there.pop(name), order, position))
            else:
                items.append(Item("row", name, there[name], order, position))
        made.append(items)
    return made


def batches_of(made: list[list[Item]], rng: random.Random) -> list[LcrBatch]:
    """Cut transactions into batches: a DDL LCR is alone; rows behind one share a batch with what follows."""
    batches: list[LcrBatch] = []
    runs: list[list[Item]] = []

    def cut(*, is_open: bool = False) -> None:
        if runs:
            batches.append(_batch(runs, int(batches[-1].through_scn) if batches else 0, is_open=is_open))
            runs.clear()

    for items in made:
        if any(item.kind != "row" for item in items):
            cut()
        for item in items:
            if runs and runs[-1][-1].order == item.order and (item.kind != "row" or runs[-1][-1].kind != "row"):
                cut(is_open=True)
            if runs and runs[-1][-1].order == item.order:
                runs[-1].append(item)
            else:
                runs.append([item])
        if runs[-1][-1].kind != "row" or rng.random() < 0.5:
            cut()
    cut()
    return batches


def _batch(runs: list[list[Item]], previous: int, *, is_open: bool) -> LcrBatch:
    flat = [item for items in runs for item in items]
    through = previous if is_open else runs[-1][0].order + 1
    first = flat[0]
    if first.kind != "row":
        assert len(flat) == 1
        found = ddl_batch(
            first.change,
            commit=first.order + 1,
            previous=previous,
            is_open=is_open,
            continues=first.position > 0,
            first_position=first.position,
        )
        return replace(found, through_scn=Scn(through))
    shapes = sorted({(item.name, item.number) for item in flat})
    groups = []
    for table, shape in enumerate(shapes):
        mine = [row for row, item in enumerate(flat) if (item.name, item.number) == shape]
        keys: list[bytes | int] = [(flat[row].order * 10 + flat[row].position).to_bytes(4, "big") for row in mine]
        groups.append(
            RowGroup(
                table=table,
                command=Command.INSERT,
                row_numbers=np.array(mine, np.int32),
                old=None,
                new=column_values([keys, keys]),
            )
        )
    return LcrBatch(
        source="dbs1",
        previous_scn=Scn(previous),
        through_scn=Scn(through),
        continues=first.position > 0,
        first_position=first.position,
        tables=tuple(
            replace(table_version(name), object_number=ObjectNumber(number), root_number=ObjectNumber(number))
            for name, number in shapes
        ),
        transactions=transactions([items[0].order + 1 for items in runs], [len(i) for i in runs], is_open=is_open),
        groups=tuple(groups),
    )


def rows_in(batch: LcrBatch) -> list[tuple[int, str, int]]:
    """Return (number of the table, its name, key) of each row of a batch; the key says the transaction."""
    found = []
    for group in batch.groups:
        version = batch.tables[group.table]
        assert group.new is not None
        data = group.new.data.tobytes()
        keys = [int.from_bytes(data[4 * place : 4 * place + 4], "big") for place in range(len(group.row_numbers))]
        found += [(int(version.table_number), version.name, key) for key in keys]
    return found


@dataclass
class World:
    """Source, destination, and an apply process between them that dies and comes back."""

    rng: random.Random
    made: list[list[Item]]
    store: MemoryStore = field(default_factory=MemoryStore)
    records: dict[str, Instantiation] = field(default_factory=dict)
    outcomes: dict[DdlPlace, Outcome] = field(default_factory=dict)
    rows: Counter[tuple[int, int]] = field(default_factory=Counter)  # (number of the table, key)
    errors: dict[int, list[LcrBatch]] = field(default_factory=dict)  # error transactions by order SCN
    lost: set[tuple[int, int]] = field(default_factory=set)  # rows of deleted error transactions
    refused: set[int] = field(default_factory=set)  # numbers of tables that the destination does not make
    low: int = 0
    ahead: int = 0
    applied: int = 0  # the highest SCN up to which everything was applied
    tables: dict[str, TableToInstantiate] = field(default_factory=dict)
    open_parts: list[LcrBatch] = field(default_factory=list)
    steps: int = 0
    renames: bool = False

    def __post_init__(self) -> None:
        self.batches = batches_of(self.made, self.rng)
        self.end = int(self.batches[-1].through_scn)
        self.refused = {
            item.number
            for items in self.made
            for item in items
            if item.kind == "create" and not self.renames and self.rng.random() < 0.2
        }
        self.fails = {items[0].order for items in self.made if not self.renames and self.rng.random() < 0.1}
        self.offered_scn = 0
        self.start_driver()

    # ------------------------------------------------------------------ the source

    def there_at(self, scn: int) -> dict[int, str]:
        """Return the source's tables, number → name, when everything up to an SCN was committed."""
        found: dict[int, str] = {}
        for item in (item for items in self.made for item in items if item.order < scn):
            if item.kind == "create":
                found[item.number] = item.name
            elif item.kind == "drop":
                found.pop(item.number, None)
            elif item.kind == "rename":
                found[item.number] = item.later
        return found

    def now(self) -> int:
        """Return an SCN of the source: it is ahead of what was offered."""
        return self.rng.choice([items[0].order + 1 for items in self.made if items[0].order + 1 >= self.offered_scn])

    def rows_of(self, number: int, *, below: int) -> set[tuple[int, int]]:
        return {
            (number, item.order * 10 + item.position)
            for items in self.made
            for item in items
            if item.kind == "row" and item.number == number and item.order < below
        }

    # ------------------------------------------------------------------ the apply process

    def start_driver(self) -> None:
        """A new driver asks the source for its tables; rarely, the former one applies more before it is fenced."""
        now = self.now() if self.rng.random() < 0.8 else self.rng.choice([items[0].order + 1 for items in self.made])
        tables = [listed(name, number, as_of=now) for number, name in self.there_at(now).items()]
        tables = list(with_recorded_names(tables, self.records.values())[0])
        self.tables = {table.identity: table for table in tables}
        starts = table_starts(standings(tables, self.records.values()))
        self.arriving = ArrivingTables(
            starts,
            tables,
            lambda _: "",
            apply="to_b",
            topology=TOPOLOGY,
            unlisted=unlisted(tables, self.records.values()),
        )
        database = MemoryDestination(store=self.store)
        fits = TableFits(database.describe, lambda v: "".join(f.fix for f in database.preflight_tables([v])))
        self.reader = ApplyReader(
            source="dbs1",
            progress=self.progress,
            rules=RuleEvaluation(RuleSet()),
            fits=fits,
            tables=self.arriving,
            settling=self,
        )
        self.restarted()

    @property
    def progress(self) -> ApplyProgress:
        return ApplyProgress(epoch=1, low_watermark=Scn(self.low), above=(), ahead_scn=Scn(self.ahead))

    def restarted(self) -> None:
        self.open_parts.clear()
        self.offered = self._sent()

    def _sent(self) -> Iterator[LcrBatch]:
        is_first = True
        for batch in self.batches:
            resumed = resume_after(batch, Scn(int(self.reader.needed_scn))) if is_first else batch
            if resumed is not None:
                is_first = False
                yield resumed

    def fates(self, places: Collection[DdlPlace]) -> DdlFates:
        return DdlFates(
            outcomes={place: kind for place, kind in self.outcomes.items() if place in places},
            records=dict(self.records),
        )

    def take_up(self, changes: TableChanges, records: Mapping[str, Instantiation]) -> None:
        for table in changes.removed:
            self.tables.pop(table.identity, None)
        for table, _ in changes.renamed:
            self.tables[table.identity] = table
        for table, _ in changes.added:
            self.tables[table.identity] = table

    # ------------------------------------------------------------------ the destination

    def make(self, name: str, number: int, scn: int, state: str) -> None:
        self.store.create_table(
            "public",
            name,
            [destination_column(f"c{k}", "pg_catalog.int4", equality="integer") for k in range(2)],
            key=["c0"],
        )
        for other in [each for each in self.records.values() if each.name == name]:
            del self.records[other.identity]
        self.records[identity(number)] = Instantiation(
            source="dbs1",
            identity=identity(number),
            owner="public",
            name=name,
            scn=Scn(scn),
            state=state,
            name_now=("public", name),
        )

    def change(self, change: DdlChange, place: DdlPlace, *, is_in_order: bool) -> Outcome:
        """Make or drop a table, as `DestinationSession.change_table` does."""
        name, number = change.base_table_name, int(change.object_number)
        found = next((each for each in self.records.values() if each.name == name), None)
        if change.why_not_made:
            return Outcome.NOT_APPLIED
        later = change.name_after
        if later is not None and later != change.base_table:
            assert self.records[identity(number)].name == name
            self.store.tables["public", later.name] = table = self.store.tables.pop(("public", name))
            table.table = replace(table.table, name=later.name)
            self.records[identity(number)] = replace(self.records[identity(number)], name=later.name, name_now=later)
            return Outcome.APPLIED
        if change.drops:
            if found is not None and number_of(found.identity) == number:
                if found.state == "DONE":
                    self.assert_complete(number, below=place.order_scn + 1)
                del self.records[found.identity]
                self.store.drop_table("public", name)
                for key in [key for key in self.rows if key[0] == number]:
                    del self.rows[key]
                return Outcome.APPLIED
            return Outcome.NOT_APPLIED if ("public", name) in self.store.tables else Outcome.PASSED_OVER
        if number in self.refused or ("public", name) in self.store.tables:
            return Outcome.SKIPPED  # the operator does not wait
        self.make(name, number, place.order_scn if is_in_order else 1, "DONE" if is_in_order else "COPYING")
        return Outcome.APPLIED

    def assert_complete(self, number: int, *, below: int) -> None:
        """Check that a table has all of its rows, apart from those in the error queue."""
        there = {key for key in self.rows if key[0] == number}
        waiting = {(of, key) for parts in self.errors.values() for part in parts for of, _, key in rows_in(part)}
        expected = self.rows_of(number, below=below)
        assert expected - there <= self.lost | waiting, f"{number} lacks rows"
        assert there <= self.rows_of(number, below=1 << 40)

    def write(self, batch: LcrBatch, skipped: set[int]) -> None:
        for number, name, key in rows_in(batch):
            if number in skipped:
                continue
            record = self.records.get(identity(number))
            assert record is not None, f"a row of {name} ({number}) at {key} comes to nobody"
            assert record.name == name or not self.renames, f"a row of {name} comes to {record.name}"
            assert record.state == "DONE", f"a row of {name} ({number}) at {key} comes while it is copied"
            assert key // 10 >= record.scn, f"a row of {name} ({number}) at {key} is in the copy"
            self.rows[number, key] += 1
            assert self.rows[number, key] == 1, f"a row of {name} ({number}) at {key} comes twice"

    def apply(self, piece: Piece) -> None:
        if isinstance(piece, LargeDropped):
            self.open_parts.clear()
            return
        if isinstance(piece, LargePart):
            assert piece.is_first == (not self.open_parts)
            self.open_parts.append(piece.batch)
            if not piece.is_last:
                return
            if int(piece.order_scn) in self.fails:
                self.errors[int(piece.order_scn)] = list(self.open_parts)
            else:
                self.write_all(self.open_parts, is_in_order=True)
            self.open_parts.clear()
        elif isinstance(piece, Run):
            self.write(piece.batch, set())
        self.low = max(self.low, int(piece.through_scn))
        self.applied = max(self.applied, self.low)

    def write_all(self, parts: list[LcrBatch], *, is_in_order: bool) -> None:
        skipped: set[int] = set()
        for batch in parts:
            if batch.ddl is None:
                self.write(batch, skipped)
                continue
            place = DdlPlace.of(batch)
            self.outcomes[place] = kind = self.change(batch.ddl, place, is_in_order=is_in_order)
            if batch.ddl.creation is not None and kind in {Outcome.NOT_APPLIED, Outcome.SKIPPED}:
                skipped.add(int(batch.ddl.object_number))

    # ------------------------------------------------------------------ operators, copies, deaths

    def resolve_error(self) -> None:
        """Execute or delete an error transaction."""
        order = self.rng.choice(sorted(self.errors))
        parts = self.errors.pop(order)
        if self.rng.random() < 0.5:
            self.lost |= {(number, key) for batch in parts for number, _, key in rows_in(batch)}
            for batch in (batch for batch in parts if batch.ddl is not None):
                self.outcomes[DdlPlace.of(batch)] = Outcome.SKIPPED
            return
        skipped: set[int] = set()
        for batch in parts:
            if batch.ddl is not None:
                place, number = DdlPlace.of(batch), int(batch.ddl.object_number)
                record = self.records.get(identity(number))
                is_copied = record is not None and order < record.scn
                kind = Outcome.NOT_APPLIED if is_copied else self.change(batch.ddl, place, is_in_order=False)
                self.outcomes[place] = kind
                if batch.ddl.creation is not None and kind is not Outcome.APPLIED:
                    skipped.add(number)
                continue
            for number, _, key in rows_in(batch):
                record = self.records.get(identity(number))
                if number not in skipped and record is not None and record.state == "DONE" and order >= record.scn:
                    self.rows[number, key] += 1
                else:
                    self.lost.add((number, key))
        self.reader.restart(self.progress)  # as behind every executed DDL
        self.restarted()

    def copy(self, *, at_end: bool = False) -> bool:
        """Copy a table of the list that has no finished record, and let it join."""
        pending = [
            table
            for table in self.tables.values()
            if (record := self.records.get(table.identity)) is None or record.state != "DONE"
            if record is not None or table.as_of <= max(self.applied, self.ahead)
        ]
        now = self.end if at_end else self.now()
        there = self.there_at(now)
        pending = [table for table in pending if number_of(table.identity) in there]
        if not pending or now < self.low or self.low < self.ahead:
            return False
        table = self.rng.choice(pending)
        number, name = number_of(table.identity), table.destination.name
        holder = next((each for each in self.records.values() if each.name == name), None)
        if holder is not None and holder.identity != table.identity and holder.identity in self.tables:
            return False
        if there[number] != name:
            return False
        self.make(name, number, now, "DONE")
        for key in [key for key in self.rows if key[0] == number]:
            del self.rows[key]
        self.rows.update(self.rows_of(number, below=now))
        joining = replace(self.records[table.identity], state="COPIED")
        self.reader.all_joined()
        self.reader.change_tables(leave_out=(), join=[joining])
        self.ahead = self.low
        self.reader.restart(self.progress)
        self.restarted()
        return True

    def rewind(self) -> None:
        """Another table joins: it needs what was applied for all others."""
        if self.low < self.ahead:
            return  # one after another
        self.reader.all_joined()
        self.ahead = self.low
        ends = [int(batch.through_scn) for batch in self.batches if batch.through_scn <= self.low]
        self.low = self.rng.choice([0, *ends])
        self.reader.restart(self.progress)
        self.restarted()

    def run(self) -> None:
        rng = self.rng
        while self.low < self.end or not self.reader.has_passed_on:
            self.steps += 1
            assert self.steps < 5000, f"nothing moves: {self.reader.unfit}"
            chance = rng.random() if self.steps < 300 else 1.0
            is_idle = self.reader.has_passed_on and not self.open_parts
            if chance < 0.02:
                self.reader.restart(self.progress)
                self.restarted()
            elif chance < 0.04:
                self.start_driver()
            elif chance < 0.06 and is_idle:
                self.rewind()
            elif chance < 0.10 and is_idle:
                self.copy()
            elif chance < 0.12 and self.errors and is_idle:
                self.resolve_error()
            elif (piece := self.reader.take()) is not None:
                self.apply(piece)
            elif self.reader.must_settle:
                assert not self.open_parts
                self.reader.retry_unfit()
            elif self.reader.must_resubscribe:
                self.offered = self._sent()
                self.reader.resubscribed()
            elif self.reader.unfit is not None:
                if not self.reader.retry_unfit():
                    assert "error queue" in self.reader.unfit.message, self.reader.unfit
                    self.resolve_error()
            elif self.reader.wants:
                batch = next(self.offered)
                self.offered_scn = max(self.offered_scn, int(batch.through_scn))
                self.reader.offer(batch, None)

    def arriving_names(self) -> dict[int, TableName]:
        """Return what the reader calls the tables that it applies."""
        return {number: table.destination for number, table in self.arriving._by_number.items() if table is not None}

    def check(self) -> None:
        while self.errors:
            self.resolve_error()
        self.reader.retry_unfit()
        while self.copy(at_end=True):
            pass
        there = self.there_at(self.end)
        for record in self.records.values():
            number = number_of(record.identity)
            if number not in there:
                continue
            if record.state == "DONE":
                self.assert_complete(number, below=1 << 40)
        assert all(count == 1 for count in self.rows.values())
        if self.renames:
            assert {number_of(each.identity): each.name for each in self.records.values()} == there
            # A driver whose list is older than what the former one applied has dropped tables, too.
            names = self.arriving_names()
            assert {number: names[number].name for number in there} == there
        assert not {place for place in self.arriving.unsettled.places if place in self.outcomes}


@pytest.mark.seeded
@settings(max_examples=scaled(100, 3000))
@example(seed=179703, count=9)  # the list of a driver is older than what the former one applied
@given(seed=st.integers(0, 2**32), count=st.integers(2, 14))
def test_random_histories_with_creations(seed: int, count: int) -> None:
    rng = random.Random(seed)
    world = World(rng, history(rng, count))
    world.run()
    world.check()


@pytest.mark.seeded
@settings(max_examples=scaled(100, 3000))
@given(seed=st.integers(0, 2**32), count=st.integers(2, 14))
def test_random_histories_with_renames(seed: int, count: int) -> None:
    """No row comes under the name of another table, or to nobody."""
    rng = random.Random(seed)
    world = World(rng, history(rng, count, renames=True), renames=True)
    world.run()
    world.check()
