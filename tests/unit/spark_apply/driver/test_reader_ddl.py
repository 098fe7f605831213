"""How the apply reader passes on transactions with DDL LCRs, and what waits behind them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.databases.ports import ApplyProgress, Instantiation
from headrace.lcr.batch import Command, LcrBatch, RowGroup, Truncate
from headrace.lcr.cutting import resume_after
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import TableToInstantiate
from spark_apply.driver.reading.pieces import LargeDropped, LargePart, Mark, Piece, Run
from spark_apply.keys.equality import touch_of
from spark_apply.tables.arriving import BEING_COPIED, OLDER_THAN_COPY, ArrivingTables, TableStart
from tests.support.apply.apply_reading import Reading, commits
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import column, ddl_batch, ddl_change, structure
from tests.support.values.lcr_batches import column_values, insert_batch, table_version, transactions

T, PARTITION, NEW = 16384, 16385, 16390  # numbers: of public.t, of a partition of it, of a table made later
ADDED = column(3, "c2", "integer")


def ddl(
    order: int = 15, *, name: str = "t", number: int = T, last: bool = True, first: int = 0, **fields: Any
) -> LcrBatch:
    """A DDL LCR of the transaction at `order`: a table of two columns gets a third."""
    before = [column(1, "c0"), column(2, "c1")]
    change = ddl_change(
        structure(*before, owner="public", name=name),
        structure(*before, ADDED, owner="public", name=name),
        relation=number,
    )
    fields = {"is_open": not last, "continues": first > 0, "first_position": first, **fields}
    return ddl_batch(change, commit=order + 1, **fields)


def rows(*commits: int, columns: int = 2, first: int = 0, last: bool = True, **fields: Any) -> LcrBatch:
    """An INSERT in each transaction; `first` > 0: the first transaction continues; not `last`: the last one is open."""
    batch = insert_batch(list(commits), is_open=not last, continues=first > 0, first_position=first, **fields)
    keys: list[bytes | int] = [number.to_bytes(4, "big") for number in range(len(commits))]
    return replace(
        batch,
        tables=(replace(table_version(columns=columns), version=columns, root_number=ObjectNumber(T)),),
        groups=(replace(batch.groups[0], new=column_values([keys] * columns)),),
    )


class Counting(Reading):
    """A reader that counts the descriptions that it asks the destination for."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.described = 0
        describe = self.fits._describe

        def counted(owner: str, name: str) -> Any:
            self.described += 1
            return describe(owner, name)

        self.fits._describe = counted


def known_tables(identity_of: Callable[[int], str | None] = lambda _: "", **starts: TableStart) -> ArrivingTables:
    """Tables public.t and public.u, as an apply process knows them."""
    tables = [
        TableToInstantiate(identity=f"id of {name}", source=known, destination=known, object_numbers=(number,))
        for name, number in (("t", T), ("u", T + 100))
        for known in [TableName("public", name)]
    ]
    found = {("public", name): TableStart(scn=Scn(0)) for name in ("t", "u")}
    found |= {("public", name): start for name, start in starts.items()}
    return ArrivingTables(found, tables, identity_of, apply="to_b")


def parts(pieces: list[Piece]) -> list[tuple[int, bool, bool, bool]]:
    return [
        (int(piece.order_scn), piece.batch.ddl is not None, piece.is_first, piece.is_last)
        for piece in pieces
        if isinstance(piece, LargePart)
    ]


def used(piece: Piece) -> list[int]:
    assert isinstance(piece, LargePart)
    return [int(each) for each in piece.hashes.of(0)]


EXCLUSIVE_T = touch_of("public\0t") | 2

# --------------------------------------------------------------------------- what is passed on


def test_transaction_of_one_ddl_lcr_is_passed_on_as_one_part() -> None:
    (found,) = Reading().read(ddl())
    assert isinstance(found, LargePart)
    assert (found.is_first, found.is_last, found.order_scn, found.data) == (True, True, 15, b"as it came")
    assert used(found) == [EXCLUSIVE_T]


def test_nothing_behind_a_ddl_is_described_until_it_is_applied() -> None:
    reading = Counting()
    reading.read(rows(16, last=False))
    asked = reading.described
    reading.read(ddl(first=1, last=False))
    found = reading.read(rows(16, 20, columns=3, first=2))
    assert parts(found) == [(15, False, False, True)], "the transaction at 20 waits"
    assert used(found[0]) == [EXCLUSIVE_T]
    assert reading.described == asked
    assert reading.reader.must_settle
    assert not reading.reader.wants
    reading.create(3)  # it is applied
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [20]
    assert reading.described > asked
    assert reading.reader.wants


def test_ddl_waits_behind_an_unapplied_ddl() -> None:
    reading = Reading()
    reading.read(ddl(15))
    assert not reading.reader.wants
    assert reading.reader.retry_unfit()
    assert parts(reading.read(ddl(25, previous=16))) == [(25, True, True, True)]
    assert reading.reader.must_settle


def test_rows_before_a_ddl_are_hashed_by_key() -> None:
    (before, change, behind) = Reading().read(
        rows(16, last=False), ddl(first=1, last=False), rows(16, columns=3, first=2)
    )
    assert len(used(before)) > 1
    assert used(change) == used(behind) == [EXCLUSIVE_T]


def test_truncate_behind_a_ddl_is_passed_on_unchecked() -> None:
    batch = replace(
        rows(16, columns=9, first=1),
        groups=(),
        truncates=(Truncate(row_number=0, tables=(0,), cascade=False, restart_identity=False),),
    )
    found = Reading().read(ddl(last=False), batch)
    assert [used(each) for each in found] == [[EXCLUSIVE_T]] * 2


def test_large_transaction_without_ddl_does_not_settle() -> None:
    reading = Reading()
    reading.read(rows(16, last=False), rows(16, first=1))
    assert not reading.reader.must_settle
    assert reading.reader.wants


def test_resent_transaction_is_hashed_by_key_up_to_its_ddl() -> None:
    reading = Reading()
    reading.read(ddl(last=False))
    found = reading.read(rows(16, last=False))  # the source was restarted: it sends another transaction first
    assert [type(piece) for piece in found] == [LargeDropped, LargePart]
    assert len(used(found[1])) > 1
    assert reading.reader.wants


def test_restarted_reader_waits_for_no_ddl() -> None:
    """The DDL is applied, or comes again: what the reader knew about it is of its memory only."""
    reading = Reading()
    reading.read(ddl(last=False), rows(16, 20, columns=3, first=1))
    reading.reader.restart(ApplyProgress(epoch=2, low_watermark=Scn(0), above=()))
    assert reading.reader.wants
    assert parts(reading.read(ddl(last=False))) == [(15, True, True, False)]


def test_open_transaction_with_ddl_is_given_up_when_the_queue_is_lost() -> None:
    reading = Reading()
    reading.read(rows(16, last=False))
    reading.reader.queue_lost()
    assert reading.take() == [], "without DDL it keeps nobody from reading"
    reading.read(ddl(first=1, last=False))
    reading.reader.queue_lost()
    assert reading.take() == [LargeDropped(order_scn=Scn(15))]
    assert reading.reader.needed_scn == 0
    assert [type(piece) for piece in reading.read(rows(16, last=False))] == [LargePart]


# --------------------------------------------------------------------------- what is not passed on


@pytest.mark.parametrize("progress", [{"low_watermark": 20}, {"low_watermark": 5, "above": ((10, 30),)}])
def test_applied_ddl_is_dropped(progress: dict[str, Any]) -> None:
    reading = Reading(**progress)
    previous = progress["low_watermark"]
    assert reading.read(ddl(15, previous=previous)) == [Mark(through_scn=Scn(16))]
    assert reading.reader.wants
    assert reading.reader.statistics.rows_applied_before == 1


def why_not_made(pieces: list[Piece]) -> list[str]:
    return [
        piece.batch.ddl.why_not_made for piece in pieces if isinstance(piece, LargePart) and piece.batch.ddl is not None
    ]


def test_ddl_older_than_the_copy_is_passed_on_to_be_recorded_only() -> None:
    """The copy has the rows, but no index and no default. Without a record nobody would know that they are missing."""
    reading = Reading(instantiated=20)
    (found,) = reading.read(ddl(15))
    assert isinstance(found, LargePart)
    assert found.data is None, "it is not as it came"
    assert found.batch.ddl is not None
    assert (found.batch.ddl.why_not_made, found.batch.ddl.ddl_text) == (OLDER_THAN_COPY, ddl_change().ddl_text)
    assert reading.reader.retry_unfit()
    later = reading.read(ddl(25, previous=16))
    assert parts(later) == [(25, True, True, True)]
    assert why_not_made(later) == [""]


def test_ddl_of_a_table_being_copied_is_made_when_it_joins() -> None:
    reading = Reading(tables=known_tables(t=TableStart(scn=None)))
    for order, previous in ((15, 0), (25, 16)):
        assert why_not_made(reading.read(ddl(order, previous=previous))) == [BEING_COPIED]
        assert reading.reader.retry_unfit()
    copied = Instantiation(source="dbs1", identity="id of t", owner="public", name="t", scn=Scn(20), state="COPIED")
    reading.reader.change_tables(leave_out=(), join=[copied])
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(16), above=(), ahead_scn=Scn(26)))
    found = reading.read(ddl(25, previous=16))
    assert parts(found) == [(25, True, True, True)]
    assert why_not_made(found) == [""]


def test_ddl_recorded_while_its_table_was_copied_does_not_come_again() -> None:
    """It is older than this table's copy, and another table joins from further back."""
    reading = Reading(tables=known_tables(t=TableStart(scn=Scn(20), is_joining=True)))
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(10), above=(), ahead_scn=Scn(30)))
    assert reading.read(ddl(15, previous=10)) == [Mark(through_scn=Scn(16))]


def test_ddl_that_nobody_saw_yet_is_recorded_although_its_table_joins() -> None:
    """The copy is ahead of all that is applied."""
    reading = Reading(tables=known_tables(t=TableStart(scn=Scn(20), is_joining=True)))
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(10), above=(), ahead_scn=Scn(12)))
    assert why_not_made(reading.read(ddl(15, previous=10))) == [OLDER_THAN_COPY]


def test_ddl_of_a_skipped_table_does_not_come_again_while_another_joins() -> None:
    tables = known_tables(t=TableStart(scn=None), u=TableStart(scn=Scn(10), is_joining=True))
    reading = Reading(tables=tables)
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(10), above=(), ahead_scn=Scn(30)))
    assert reading.read(ddl(15, previous=10)) == [Mark(through_scn=Scn(16))]
    assert why_not_made(reading.read(ddl(35, previous=16))) == [BEING_COPIED]


def test_ddl_that_is_recorded_only_waits_for_no_name() -> None:
    """Its table has another one's name by now, which is a matter of the table's next copy."""
    reading = Reading(tables=known_tables(t=TableStart(scn=None)))
    found = reading.read(ddl(15, name="u"))
    assert why_not_made(found) == [BEING_COPIED]
    assert reading.reader.unfit is None


def test_ddl_of_other_tables_does_not_come_again_while_one_joins() -> None:
    reading = Reading(tables=known_tables(u=TableStart(scn=Scn(10), is_joining=True)))
    reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(10), above=(), ahead_scn=Scn(100)))
    assert parts(reading.read(ddl(15, previous=10))) == []
    assert parts(reading.read(ddl(25, previous=16, name="u", number=T + 100))) == [(25, True, True, True)]


def test_ddl_of_a_table_that_was_never_copied_is_dropped_unasked() -> None:
    """The next `up` copies a new table as it is then. Nobody has to be told that its rows are missing: none came."""

    def not_asked(number: int) -> str | None:
        raise AssertionError(f"the source may be down, and is asked for {number}")

    reading = Reading(tables=known_tables(not_asked))
    assert reading.read(ddl(name="new", number=NEW)) == [Mark(through_scn=Scn(16))]
    assert reading.reader.strangers == frozenset()
    assert reading.reader.wants


def test_ddl_that_the_rules_discard_changes_nothing_behind_it() -> None:
    reading = Counting(rules=RuleSet(include=(Rule(owner="*", name="*"),)))
    (found,) = reading.read(ddl(last=False), rows(16, first=1))
    assert isinstance(found, LargePart)
    assert len(used(found)) > 1
    assert reading.described > 0
    assert reading.reader.wants


# --------------------------------------------------------------------------- names


def test_ddl_under_another_tables_name_is_not_applied_to_that_table() -> None:
    """The source swapped the names of two tables. The destination did not."""
    reading = Reading(tables=known_tables())
    assert reading.read(ddl(name="u", number=T)) == []
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"
    assert reading.reader.unfit is not None
    assert "public.t now public.u" in reading.reader.unfit.message


def test_rows_behind_a_ddl_are_not_written_under_another_tables_name() -> None:
    reading = Reading(tables=known_tables())
    behind = rows(16, columns=3, first=1)
    found = reading.read(ddl(last=False), replace(behind, tables=(replace(behind.tables[0], name="u", version=9),)))
    assert [type(piece) for piece in found] == [LargePart, LargeDropped]
    assert reading.reader.state == "PAUSED: WAITING FOR ALTER"


def test_rows_behind_a_ddl_that_had_to_wait_are_read_again_with_it() -> None:
    """They fit no table: the DDL that makes it fit was rolled back when they had to wait."""
    answers: dict[int, str | None] = {PARTITION: None}  # the source does not answer
    reading = Reading(tables=known_tables(answers.__getitem__))
    behind = rows(16, 20, columns=3, first=1)
    version = replace(behind.tables[0], object_number=ObjectNumber(PARTITION), root_number=ObjectNumber(0))
    found = reading.read(ddl(last=False), replace(behind, tables=(version,)))
    assert [type(piece) for piece in found] == [LargePart, LargeDropped]
    assert not reading.reader.retry_unfit()
    answers[PARTITION] = "id of t"
    assert reading.reader.retry_unfit()
    assert reading.reader.must_resubscribe
    assert reading.reader.needed_scn == 0
    assert reading.take() == []
    reading.reader.resubscribed()
    found = reading.read(ddl(last=False), replace(behind, tables=(version,)))
    assert parts(found) == [(15, True, True, False), (15, False, False, True)]
    reading.create(3)
    assert reading.reader.retry_unfit()
    assert commits(reading.take()) == [20]


def test_transactions_behind_one_that_is_read_again_are_not_applied_twice() -> None:
    """They were in the batch of its last part, and come again with it."""
    reading = Reading()
    reading.read(rows(16, last=False))
    batch = rows(16, 20, columns=3, first=1)
    assert [type(piece) for piece in reading.read(batch)] == [LargeDropped]
    reading.create(3)
    assert reading.reader.retry_unfit()
    assert reading.reader.must_resubscribe
    assert reading.take() == []
    reading.reader.resubscribed()
    assert commits(reading.read(rows(16, last=False), batch)) == [20]


# --------------------------------------------------------------------------- histories


@dataclass(frozen=True)
class Item:
    """An LCR: its transaction, its position there, and how many columns the table has then."""

    order: int
    position: int
    is_ddl: bool
    columns: int


def history(kinds: list[list[bool]]) -> list[list[Item]]:
    """Return transactions of DDL LCRs (True) and rows; each DDL LCR adds a column."""
    columns, made = 2, []
    for number, each in enumerate(kinds):
        items = []
        for position, is_ddl in enumerate(each):
            columns += is_ddl
            items.append(Item(10 * number + 15, position, is_ddl, columns))
        made.append(items)
    return made


def batches_of(made: list[list[Item]], joins: list[bool]) -> list[LcrBatch]:
    """Return a source's batches: parts of a transaction with DDL LCRs, and other transactions, several if they `join`."""
    batches: list[LcrBatch] = []
    runs: list[list[Item]] = []

    def cut(*, is_open: bool = False) -> None:
        if runs:
            batches.append(_batch(runs, int(batches[-1].through_scn) if batches else 0, is_open=is_open))
            runs.clear()

    for items, does_join in zip(made, joins, strict=True):
        if not any(item.is_ddl for item in items):
            runs.append(items)
            if not does_join:
                cut()
            continue
        cut()
        for item in items:
            if runs and (item.is_ddl or runs[-1][-1].is_ddl):
                cut(is_open=True)
            runs[:] = [[*itertools.chain(*runs), item]]
        cut()
    cut()
    return batches


def sent_from(batches: list[LcrBatch], low: int) -> Iterator[LcrBatch]:
    """Yield what a queue sends to a reader at `low`."""
    is_first = True
    for batch in batches:
        resumed = resume_after(batch, Scn(low))
        if resumed is not None:
            yield resumed if is_first else batch
            is_first = False


def _batch(runs: list[list[Item]], previous: int, *, is_open: bool) -> LcrBatch:
    flat = [item for items in runs for item in items]
    through = previous if is_open else runs[-1][0].order + 1
    if flat[0].is_ddl:
        (item,) = flat
        assert previous < item.order
        return replace(
            ddl(item.order, previous=previous, first=item.position, last=not is_open), through_scn=Scn(through)
        )
    shapes = sorted({item.columns for item in flat})
    groups = []
    for table, columns in enumerate(shapes):
        mine = [row for row, item in enumerate(flat) if item.columns == columns]
        keys: list[bytes | int] = [flat[row].position.to_bytes(4, "big") for row in mine]
        groups.append(
            RowGroup(
                table=table,
                command=Command.INSERT,
                row_numbers=np.array(mine, np.int32),
                old=None,
                new=column_values([keys] * columns),
            )
        )
    return LcrBatch(
        source="dbs1",
        previous_scn=Scn(previous),
        through_scn=Scn(through),
        continues=flat[0].position > 0,
        first_position=flat[0].position,
        tables=tuple(replace(table_version(columns=columns), version=columns) for columns in shapes),
        transactions=transactions([items[0].order + 1 for items in runs], [len(i) for i in runs], is_open=is_open),
        groups=tuple(groups),
    )


def items_of(batch: LcrBatch, columns: int) -> list[tuple[int, int, bool, int]]:
    """Return the LCRs of a batch as in `Item`, with the columns that the destination has."""
    found = []
    first = batch.transactions.first_row.tolist()
    for transaction, order in enumerate(batch.transactions.order_scn.tolist()):
        for row in range(first[transaction], first[transaction + 1]):
            position = row - first[transaction] + (batch.first_position if transaction == 0 else 0)
            found.append((order, position, batch.ddl is not None, columns))
    return found


@pytest.mark.seeded
@given(st.data())
def test_every_lcr_is_applied_once_and_behind_the_ddl_before_it(data: st.DataObject) -> None:
    """A destination applies pieces, dies at any place and is asked for its progress. Its table has a column more for
    each applied DDL LCR, and a row that comes too early does not fit.
    """
    kinds = data.draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=scaled(6, 12)))
    joins = data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    made = history(kinds)
    batches = batches_of(made, joins)
    reading, low, columns = Reading(), 0, 2
    applied: list[tuple[int, int, bool, int]] = []
    open_items: list[tuple[int, int, bool, int]] = []
    deaths = data.draw(st.lists(st.integers(1, 12), max_size=3))

    def apply(piece: Piece) -> None:
        nonlocal low, columns, open_items
        if isinstance(piece, LargeDropped):
            open_items = []
        elif isinstance(piece, Run):
            applied.extend(items_of(piece.batch, columns))
            low = int(piece.through_scn)
        elif isinstance(piece, LargePart):
            assert piece.is_first == (not open_items)
            made_here = sum(is_ddl for _, _, is_ddl, _ in open_items) + (piece.batch.ddl is not None)
            open_items += items_of(piece.batch, columns + made_here)
            if piece.is_last:
                columns += made_here
                applied.extend(open_items)
                open_items, low = [], int(piece.through_scn)
                reading.create(columns)
        else:
            low = int(piece.through_scn)

    steps, offered = 0, iter(batches)
    while low < batches[-1].through_scn:
        steps += 1
        assert steps < 500, "nothing moves"
        if deaths and steps % deaths[-1] == 0:
            deaths.pop()
            open_items = []
            reading.reader.restart(ApplyProgress(epoch=1, low_watermark=Scn(low), above=()))
            offered = sent_from(batches, low)
        piece = reading.reader.take()
        if piece is not None:
            apply(piece)
        elif reading.reader.must_settle:
            assert reading.reader.retry_unfit()
        elif reading.reader.wants:
            reading.reader.offer(next(offered), None)
        assert reading.reader.unfit is None
    assert applied == [(item.order, item.position, item.is_ddl, item.columns) for items in made for item in items]
