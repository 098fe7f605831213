"""Mining, compared with the committed transactions that the source itself recorded.

Longer than 500 lines: all tests share the recorded source and the miners over it.
"""

from __future__ import annotations

import contextlib
import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.clock import VirtualClock
from headrace.base.errors import CaptureError, DatabaseUnavailable, LogGone, RedoError, TableLeftRules
from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import Column, LcrBatch, OldImage, Partition
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.links.ports import RedoPosition
from headrace.redo.mining.mined_tables import TAGS_KEPT
from headrace.redo.mining.miner import Miner
from headrace.redo.mining.names import NameOfNow
from headrace.redo.segments import list_segments
from headrace.rules.rule import ANY_TAG, Rule, RuleSet, TagCondition
from headrace.rules.transformations.transformation import (
    DeleteColumns,
    KnownColumns,
    Transformation,
    TransformationError,
)
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import (
    SOURCE,
    TAG,
    Names,
    committed,
    decoder,
    drain,
    log_writer,
    mine,
    miner,
    received,
    rows_of,
    write_redo,
)
from tests.support.session.seeds import scaled, seeds
from topology.edits.receivers import NotedTable, NotedWay, Receivers

ALL = RuleSet(include=(Rule(tags=ANY_TAG),))
NULL_TAGS_ONLY = RuleSet(include=(Rule(),))
SOME = RuleSet(include=(Rule(owner="hr"), Rule(owner="sales", tags=ANY_TAG)), exclude=(Rule(name="bag", tags=ANY_TAG),))
BY_TAG = RuleSet(
    include=(
        Rule(tags=TagCondition(listed=(b"\x00",), takes_listed=False)),
        Rule(owner="sales", tags=TagCondition(listed=(b"\x00",))),
    ),
    exclude=(Rule(owner="sales", tags=TagCondition(listed=(None, b"\x1d"))),),
)
RULES = (ALL, NULL_TAGS_ONLY, SOME, BY_TAG, RuleSet(include=()), RuleSet())

random_work = given(
    seed=st.integers(0, 10_000),
    rules=st.sampled_from(RULES),
    gulp=st.integers(20, 3000),
    segment=st.integers(500, 20_000),
    record=st.sampled_from([1, 300, 1 << 20]),
    rows_max=st.sampled_from([1, 3, 16, 4096]),
    bytes_max=st.sampled_from([1, 200, 1 << 20]),
)
few = settings(max_examples=scaled(5, 100), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    """Skip fsync: no test here loses power, and fsync takes most of the time."""
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def source_with(rows: int) -> MemorySource:
    source = MemorySource()
    source.create_table("hr.t", ["id", "a"], key=["id"])
    with source.transaction() as transaction:
        for number in range(rows):
            transaction.insert("hr.t", id=str(number), a=f"value {number}")
    return source


def busy_source(seed: int, gulp: int = 65536, transactions: int = 60) -> MemorySource:
    cuts = random.Random(seed)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, gulp))
    Workload(source, seed).run(transactions)
    return source


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_every_committed_transaction_is_mined_once_and_in_order(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder = tmp_path_factory.mktemp("redo")
    source = busy_source(seed, gulp)
    breaks = random.Random(seed)
    source.break_after(*(breaks.randint(1, 200) for _ in range(6)))
    writer = write_redo(folder, source, segment_bytes=segment, record_bytes=record)
    reader = miner(folder, rules=rules)
    batches = list(mine(reader, writer, rows_max=rows_max, bytes_max=bytes_max))
    assert received(batches) == committed(source, rules)
    assert all(batch.row_count <= rows_max for batch in batches)
    assert reader.captured_scn == source.current_scn()


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_restart_from_any_scn_yields_the_identical_suffix(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder = tmp_path_factory.mktemp("redo")
    source = busy_source(seed, gulp, transactions=30)
    breaks = random.Random(seed)
    source.break_after(*(breaks.randint(1, 100) for _ in range(3)))
    writer = write_redo(folder, source, segment_bytes=segment, record_bytes=record)
    starts = [transaction.commit_scn for transaction in source.log] + [source.current_scn()]
    for start in breaks.sample(starts, 8):
        batches = mine(miner(folder, start, rules), writer, rows_max=rows_max, bytes_max=bytes_max)
        assert received(batches, start) == committed(source, rules, start)


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_mining_growing_redo_yields_the_same_transactions(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder = tmp_path_factory.mktemp("redo")
    cuts = random.Random(seed)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, gulp))
    workload, clock = Workload(source, seed), VirtualClock()
    writer = log_writer(folder, source, segment_bytes=segment, record_bytes=record, clock=clock)
    reader = miner(folder, rules=rules, clock=clock)
    batches: list[LcrBatch] = []
    for turn in range(12):
        workload.run(5)
        source.break_after(cuts.randint(1, 60))
        if turn % 3 == 2:  # the log writer dies; its written redo stays
            writer.close()
            writer = log_writer(folder, source, segment_bytes=segment, record_bytes=record, clock=clock)
        drain(writer, source, clock)
        if turn % 5 == 4:  # the capture process dies
            reader = miner(folder, reader.sent_scn, rules, clock=clock)
            batches = batches if not batches or not batches[-1].is_open else _without_open(batches)
        batches += mine(reader, writer, rows_max=rows_max, bytes_max=bytes_max)
    assert received(batches) == committed(source, rules)


def _without_open(batches: list[LcrBatch]) -> list[LcrBatch]:
    """Return what a receiver keeps when the publisher restarts an open transaction."""
    while batches and batches[-1].is_open:
        batches = batches[:-1]
    return batches


def test_batch_ends_at_a_transaction_end_within_the_row_limit(tmp_path):
    source = MemorySource()
    source.create_table("hr.t", ["id"], key=["id"])
    for number in range(10):
        with source.transaction() as transaction:
            for row in range(30):
                transaction.insert("hr.t", id=f"{number}-{row}")
    writer = write_redo(tmp_path, source)
    batches = list(mine(miner(tmp_path), writer, rows_max=100))
    assert [batch.row_count for batch in batches] == [90, 90, 90, 30]
    assert not any(batch.is_open or batch.continues for batch in batches)


def test_large_transaction_is_sent_in_its_own_parts(tmp_path):
    source = source_with(0)
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="before")
    with source.transaction() as transaction:
        for number in range(250):
            transaction.insert("hr.t", id=str(number))
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="after")
    writer = write_redo(tmp_path, source)
    batches = [batch for batch in mine(miner(tmp_path), writer, rows_max=100) if not batch.is_progress_mark]
    assert [(b.row_count, b.continues, b.is_open, b.first_position) for b in batches] == [
        (1, False, False, 0),
        (100, False, True, 0),
        (100, True, True, 100),
        (50, True, False, 200),
        (1, False, False, 0),
    ]
    assert received(batches) == committed(source)
    open_parts = [batch for batch in batches if batch.is_open]
    assert {batch.through_scn for batch in open_parts} == {batches[0].through_scn}


def test_memory_is_bounded_by_a_batch_and_a_record_for_any_transaction(tmp_path):
    source = source_with(30_000)
    writer = write_redo(tmp_path, source, segment_bytes=1 << 16)
    reader = miner(tmp_path)
    held = []
    while (batch := reader.next_batch(writer.position, rows_max=500)) is not None:
        assembly = reader._assembly
        held.append(assembly.row_count + batch.row_count)
        held_bytes = sum(piece.data.base.nbytes if piece.data.base is not None else 0 for piece in assembly._pieces)
        assert held_bytes <= 2 << 20
    assert len(held) > 50
    assert max(held) <= 1000


def test_break_in_a_partly_sent_transaction_resends_it_from_the_start(tmp_path):
    source = source_with(0)
    with source.transaction() as transaction:
        for number in range(100):
            transaction.insert("hr.t", id=str(number))
    source.gulp_bytes = lambda: 100
    source.break_after(60)
    writer = log_writer(tmp_path, source)
    writer.attach(source.open_stream("t", writer.start_scn))
    with contextlib.suppress(DatabaseUnavailable):
        while True:
            writer.step(0.0)
    reader = miner(tmp_path)
    before = list(mine(reader, writer, rows_max=10))
    assert before
    assert all(batch.is_open for batch in before)
    drain(writer, source, VirtualClock())
    after = list(mine(reader, writer, rows_max=10))
    assert not after[0].continues
    assert received(before + after) == committed(source)


def test_discarded_transactions_advance_the_position_with_a_progress_mark(tmp_path):
    source = source_with(5)
    writer = write_redo(tmp_path, source)
    batches = list(mine(miner(tmp_path, rules=RuleSet(include=(Rule(owner="crm"),))), writer))
    assert [batch.is_progress_mark for batch in batches] == [True]
    assert batches[0].through_scn == source.current_scn()


def test_progress_marks_are_sent_at_most_ten_times_a_second(tmp_path):
    source, clock, reader_clock = source_with(1), VirtualClock(), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock)
    reader = miner(tmp_path, clock=reader_clock)
    drain(writer, source, clock)
    list(mine(reader, writer))
    source.other_activity()
    drain(writer, source, clock)
    assert reader.next_batch(writer.position) is None
    due_at = reader.mark_due_at
    assert due_at is not None
    reader_clock.advance(due_at - reader_clock.monotonic())
    mark = reader.next_batch(writer.position)
    assert mark is not None
    assert mark.is_progress_mark
    assert mark.through_scn == source.current_scn()
    assert reader.mark_due_at is None


def test_leaves_with_another_column_order_become_versions_of_one_table(tmp_path):
    source = MemorySource()
    source.create_table("s.e1", ["id", "a", "b"], key=["id"], root="s.e")
    source.create_table("s.e2", ["id", "b", "a"], key=["id"], root="s.e")
    with source.transaction() as transaction:
        transaction.insert("s.e1", id="1", a="A", b="B")
        transaction.insert("s.e2", id="2", a="A", b="B")
    writer = write_redo(tmp_path, source)
    (batch,) = mine(miner(tmp_path), writer)
    assert [table.qualified_name for table in batch.tables] == ["s.e", "s.e"]
    assert rows_of(batch) == [
        ("INSERT", "s.e", None, (b"1", b"A", b"B")),
        ("INSERT", "s.e", None, (b"2", b"B", b"A")),
    ]


def test_rows_of_every_partition_name_their_root_table(tmp_path):
    source = MemorySource()
    source.create_table("s.t", ["id"], key=["id"])
    source.create_table("s.e1", ["id"], key=["id"], root="s.e")
    with source.transaction() as transaction:
        transaction.insert("s.t", id="1")
        transaction.insert("s.e1", id="1")
    writer = write_redo(tmp_path, source)
    captured = {table.name: table.object_numbers for table in source.captured("t")}
    source.create_table("s.e2", ["id"], key=["id"], root="s.e")
    with source.transaction() as transaction:
        transaction.insert("s.e2", id="2")
    drain(writer, source)
    source.drop_table("s.e2")
    writer.close()
    restarted = write_redo(tmp_path, source)
    versions = {
        version.object_number: version for batch in mine(miner(tmp_path), restarted) for version in batch.tables
    }
    assert len(versions) == 3
    assert all(version.table_number in captured[version.name] for version in versions.values())


def test_truncate_of_one_partition_never_truncates_the_whole_table(tmp_path):
    source = MemorySource()
    source.create_table("s.e1", ["id"], key=["id"], root="s.e", holds="id = '1'")
    source.create_table("s.e2", ["id"], key=["id"], root="s.e", holds="id = '2'")
    with source.transaction() as transaction:
        transaction.truncate("s.e1")
        transaction.truncate("s.e1", "s.e2")
    writer = write_redo(tmp_path, source)
    (batch,) = mine(miner(tmp_path, rules=RuleSet(include=(Rule(owner="s", name="e"),))), writer)
    assert [row[2] for row in rows_of(batch)] == [("s.e",), ("s.e",)]
    assert [table.partition for table in batch.tables] == [Partition(owner="s", name="e1", rows="id = '1'"), None]


@pytest.mark.parametrize("away", ["since the log was read last", "while another stream began"])
def test_truncate_with_another_partition_detached_spares_the_whole_table(tmp_path, away):
    """The catalog may show the log writer a table with this partition alone, before or after the TRUNCATE."""
    source = MemorySource()
    for name in ("s.e1", "s.e2", "s.other"):
        source.create_table(name, ["id"], key=["id"], root="s.e" if name != "s.other" else "", holds=f"in {name}")
    with source.transaction() as transaction:
        transaction.insert("s.e1", id="1")
        transaction.insert("s.e2", id="2")
    writer = write_redo(tmp_path, source)
    if away == "since the log was read last":
        with source.transaction() as transaction:
            transaction.truncate("s.e1")
        source.detach("s.e2")
        drain(writer, source)
        source.attach("s.e2", "s.e")
    else:
        source.detach("s.e2")
        with source.transaction() as transaction:
            transaction.insert("s.other", id="1")
        writer.detach()
        drain(writer, source)
        source.attach("s.e2", "s.e")
        with source.transaction() as transaction:
            transaction.truncate("s.e1")
        drain(writer, source)
    partitions = [
        table.partition for batch in mine(miner(tmp_path), writer) for table in batch.tables if table.partition
    ]
    assert [partition.name for partition in partitions] == ["e1"]
    assert len([row for batch in mine(miner(tmp_path), writer) for row in rows_of(batch) if row[0] == "TRUNCATE"]) == 1


def test_truncate_with_an_attached_unchanged_partition_spares_the_table(tmp_path):
    """Its rows are not in the log: an operator copied them into the destination's partition."""
    source = MemorySource()
    source.create_table("s.e1", ["id"], key=["id"], root="s.e", holds="in e1")
    with source.transaction() as transaction:
        transaction.insert("s.e1", id="1")
    writer = write_redo(tmp_path, source)
    source.create_table("s.e2", ["id"], key=["id"], root="s.e", holds="in e2")
    with source.transaction() as transaction:
        transaction.truncate("s.e1")
    drain(writer, source)
    tables = [table for batch in mine(miner(tmp_path), writer) for table in batch.tables]
    assert [table.partition.name for table in tables if table.partition] == ["e1"]


def test_change_carries_the_table_name_of_its_time(tmp_path):
    source = source_with(1)
    source.rename_table("hr.t", "u")
    with source.transaction() as transaction:
        transaction.insert("hr.u", id="x")
    writer = write_redo(tmp_path, source)
    found = received(mine(miner(tmp_path), writer))
    assert [transaction.rows[0][1] for transaction in found] == ["hr.t", "hr.u"]


def test_rows_before_and_after_alter_table_have_their_own_versions(tmp_path):
    source = source_with(1)
    source.add_column("hr.t", "more", "0")
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="x", more="1")
    writer = write_redo(tmp_path, source)
    (batch,) = mine(miner(tmp_path), writer)
    assert [len(table.columns) for table in batch.tables] == [2, 3]
    assert len({table.version for table in batch.tables}) == 2
    assert [[column.name for column in RowLcr(batch, row).table.columns] for row in range(2)] == [
        ["id", "a"],
        ["id", "a", "more"],
    ]


def deleting(column: str) -> RuleSet:
    known = KnownColumns(owner="hr", name="t", columns=("id", column), rule="captures.c.rules.include[0]")
    made = Transformation(operations=(DeleteColumns(deleted=(column,)),), known=(known,))
    return RuleSet(include=(Rule(owner="hr", name="t", transformation=made), Rule(owner="crm")))


@pytest.mark.parametrize("restarted", [False, True])
def test_lost_column_stops_capture_before_its_first_change_and_a_corrected_rule_continues(tmp_path, restarted):
    """Everything before it is given first: a corrected rule does not meet the old column again."""
    source = source_with(3)
    source.rename_column("hr.t", "a", "b")
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="x", b="secret")
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, rules=deleting("a"))
    given: list[LcrBatch] = []
    with pytest.raises(TransformationError, match=r"hr\.t has no column a any more, .* new columns: b"):
        given.extend(mine(reader, writer))
    assert [row[1] for transaction in received(given) for row in transaction.rows] == ["hr.t"] * 3
    start = reader.sent_scn
    if restarted:
        with pytest.raises(TransformationError):
            list(mine(miner(tmp_path, start, deleting("a")), writer))
    after = list(mine(miner(tmp_path, start, deleting("b")), writer))
    assert [RowLcr(batch, row).table.qualified_name for batch in after for row in range(batch.row_count)] == ["hr.t"]
    assert {column.name for batch in after for table in batch.tables for column in table.columns} == {"id"}


def test_column_format_follows_its_values(tmp_path):
    source = MemorySource()
    columns = [Column(name="id", type_name="pg_catalog.int4", is_binary=True), Column(name="a", type_name="x")]
    source.create_table("hr.t", columns, key=["id"], old_image=OldImage.FULL)
    with source.transaction() as transaction:
        transaction.insert("hr.t", id=b"\0\0\0\1", a="text")
    writer = write_redo(tmp_path, source)
    (batch,) = mine(miner(tmp_path), writer)
    assert [column.is_binary for column in batch.tables[0].columns] == [True, False]


def test_our_own_tables_are_never_captured(tmp_path):
    source = MemorySource()
    source.create_table("headrace.progress", ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("headrace.progress", id="1")
    writer = write_redo(tmp_path, source)
    assert received(mine(miner(tmp_path), writer)) == []


def test_tagged_transactions_pass_only_where_a_rule_takes_their_tag(tmp_path):
    source = source_with(1)
    with source.transaction(TAG) as transaction:
        transaction.insert("hr.t", id="tagged")
    writer = write_redo(tmp_path, source)
    assert [t.tag for t in received(mine(miner(tmp_path, rules=NULL_TAGS_ONLY), writer))] == [None]
    assert [t.tag for t in received(mine(miner(tmp_path, rules=ALL), writer))] == [None, TAG]


@pytest.mark.long
def test_unreferenced_tags_are_forgotten(tmp_path):
    source = MemorySource()
    source.create_table("hr.t", ["id"], key=["id"])
    writer = log_writer(tmp_path, source)
    writer.attach(source.open_stream("t", writer.start_scn))
    tags = [Tag(value=b"%d" % k) for k in range(3 * TAGS_KEPT)]
    for k, tag in enumerate(tags):
        with source.transaction(tag) as transaction:
            transaction.insert("hr.t", id=str(k))
    drain(writer, source, VirtualClock())
    mining = miner(tmp_path, rules=ALL)
    assert [t.tag for t in received(mine(mining, writer, rows_max=500))] == tags
    assert len(mining._tables.tags) <= 2 * TAGS_KEPT


def test_rule_with_tag_list_takes_transactions_whose_tag_appears_late(tmp_path):
    """The verdicts by tag grow when the log shows new tags."""
    null, one, two, three = (None, *(Tag(value=bytes([n]), topology="t", apply=f"a{n}") for n in (1, 2, 3)))
    listed = TagCondition(listed=(None, b"\x02")), TagCondition(listed=(b"\x02",), takes_listed=False)
    expected = [null, two, two, null], [null, one, three, three, one, null]
    source = source_with(0)
    writer = log_writer(tmp_path, source)
    readers = [miner(tmp_path, rules=RuleSet(include=(Rule(tags=tags),))) for tags in listed]
    found: tuple[list[LcrBatch], list[LcrBatch]] = [], []
    for number, tag in enumerate((null, one, two, three, three, two, one, null)):
        with source.transaction(tag) as transaction:
            transaction.insert("hr.t", id=f"row {number}")
        drain(writer, source)
        for reader, batches in zip(readers, found, strict=True):
            batches.extend(mine(reader, writer))
    assert tuple([t.tag for t in received(batches)] for batches in found) == expected


def test_tag_indexes_of_a_batch_point_into_its_own_tags(tmp_path):
    source = source_with(0)
    tags = [Tag(value=bytes([n])) for n in range(3)]
    for n in (0, 1, 2, 2, 1):
        with source.transaction(tags[n]) as transaction:
            transaction.insert("hr.t", id=str(len(source.log)))
    writer = write_redo(tmp_path, source)
    batches = list(mine(miner(tmp_path, rules=ALL), writer, rows_max=2))
    assert [t.tag for t in received(batches)] == [tags[n] for n in (0, 1, 2, 2, 1)]
    assert batches[-1].tags == (tags[1],)


@pytest.mark.parametrize("rows", [1, 40])
def test_tag_in_the_record_after_its_begin_is_kept(tmp_path, rows):
    source = MemorySource(gulp_bytes=lambda: 1)  # one message per gulp, one gulp per record
    source.create_table("hr.t", ["id"])
    with source.transaction(TAG) as transaction:
        for number in range(rows):
            transaction.insert("hr.t", id=str(number))
    writer = write_redo(tmp_path, source, record_bytes=1)
    assert [t.tag for t in received(mine(miner(tmp_path, rules=ALL), writer, rows_max=16))] == [TAG]
    assert received(mine(miner(tmp_path, rules=NULL_TAGS_ONLY), writer)) == []


def test_rules_that_match_no_table_are_reported(tmp_path):
    source = source_with(1)
    writer = write_redo(tmp_path, source)
    wrong = Rule(owner="hr", name="emplyees")
    reader = miner(tmp_path, rules=RuleSet(include=(Rule(owner="hr", name="t"), wrong)))
    list(mine(reader, writer))
    assert reader.unmatched_rules == (wrong,)


def test_rule_for_captured_table_without_changes_is_not_reported(tmp_path):
    class Source:
        answers = True

        def of_now(self):
            if not self.answers:
                raise DatabaseUnavailable("it is away")
            return {7: NameOfNow(identity="7", owner="hr", name="new", is_wanted=True)}

        def lost_by(self, object_number, owner, name):
            return ()

        def forget(self):
            pass

    writer = write_redo(tmp_path, source_with(1))
    new, wrong = Rule(owner="hr", name="new"), Rule(owner="hr", name="emplyees")
    source = Source()
    reader = miner(tmp_path, rules=RuleSet(include=(new, wrong)), names=source)
    list(mine(reader, writer))
    assert reader.unmatched_rules == (wrong,)
    reader = miner(tmp_path, rules=RuleSet(include=(new, wrong)), names=source)
    list(mine(reader, writer))
    source.answers = False
    assert reader.unmatched_rules == (new, wrong)


def test_statistics_count_lcrs_kept_and_discarded_by_prefiltering(tmp_path):
    source = source_with(7)
    source.create_table("hr.audit", ["id"])
    with source.transaction() as transaction:
        transaction.insert("hr.audit", id="1")
        transaction.insert("hr.audit", id="2")
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, rules=RuleSet(include=(Rule(name="t"),)))
    list(mine(reader, writer))
    statistics = reader.statistics()
    assert (statistics.rows_kept, statistics.rows_discarded, statistics.transactions) == (7, 2, 2)
    assert statistics.captured_scn == statistics.sent_scn == source.current_scn()
    assert statistics.redo_bytes > 100


def test_restart_reads_headers_only_up_to_the_restart_point(tmp_path):
    source = source_with(0)
    for number in range(400):
        with source.transaction() as transaction:
            transaction.insert("hr.t", id=str(number), a="x" * 200)
    source.gulp_bytes = lambda: 300
    writer = write_redo(tmp_path, source, record_bytes=600)
    start = source.log[-3].commit_scn
    reader = miner(tmp_path, start)
    list(mine(reader, writer))
    assert reader.statistics().redo_bytes < 3000
    assert reader.statistics().transactions == 2


def test_capture_that_needs_purged_redo_fails_with_log_gone(tmp_path):
    source = busy_source(1, gulp=200)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=500)
    needed = source.log[3].commit_scn
    assert writer.purge(source.current_scn()) > 0
    with pytest.raises(LogGone) as raised:
        miner(tmp_path, needed).next_batch(writer.position)
    assert raised.value.context["needed_scn"] == needed


def test_miner_waits_while_the_log_position_predates_a_purge(tmp_path):
    """After a short disconnection the capture process still has the older log position; its redo was purged up to the
    captured SCN.
    """
    source = busy_source(1, gulp=200)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=500)
    left = Scn(source.log[-1].commit_scn)
    assert writer.purge(left) > 0
    oldest = list_segments(tmp_path)[0].number
    reader = miner(tmp_path, left, rules=ALL)
    assert reader.next_batch(RedoPosition(oldest - 1, 2000, left)) is None
    assert received(list(mine(reader, writer)), left) == committed(source, ALL, left)


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_new_capture_begins_at_the_oldest_redo_and_reports_its_scn(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder = tmp_path_factory.mktemp("redo")
    source = busy_source(seed, gulp)
    first = source.confirmed_scn = Scn(
        source.log[0].order_scn
    )  # as of a slot that was created when the log had content
    cuts = random.Random(seed)
    source.break_after(*(cuts.randint(1, 200) for _ in range(6)))
    writer = write_redo(folder, source, segment_bytes=segment, record_bytes=record)
    required = cuts.choice(source.log).commit_scn
    writer.purge(required)
    batches = list(mine(miner(folder, rules=rules), writer, rows_max=rows_max, bytes_max=bytes_max))
    assert batches[0].is_progress_mark
    begin = batches[0].through_scn
    assert first <= begin <= required
    assert received(batches) == committed(source, rules, begin)


def test_all_remaining_redo_is_mined_after_a_purge(tmp_path):
    source = busy_source(1, gulp=200)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=500)
    needed = source.log[40].commit_scn
    assert writer.purge(needed) > 0
    (mark, *batches) = mine(miner(tmp_path, rules=ALL), writer)
    assert 0 < mark.through_scn <= needed
    assert received(batches, mark.through_scn) == committed(source, ALL, mark.through_scn)


@pytest.mark.long
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("redo that is gone", test=2, soak=40))
def test_log_gone_names_a_higher_first_scn_that_can_be_mined(tmp_path, seed):
    """Otherwise the queue refuses nobody and asks for the same redo again and again."""
    source = busy_source(seed, gulp=200)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=500)
    assert writer.purge(source.log[40].commit_scn) > 0
    for needed in (Scn(1), *(each.commit_scn for each in source.log)):
        try:
            miner(tmp_path, needed).next_batch(writer.position)
        except LogGone as error:
            first, asked = Scn(int(error.context["first_scn"])), error.context["needed_scn"]
            assert first > needed == asked
            assert received(list(mine(miner(tmp_path, first, rules=ALL), writer)), first) == committed(
                source, ALL, first
            )


def test_missing_segment_raises_an_error_that_names_it(tmp_path):
    source = busy_source(2, gulp=200)
    writer = write_redo(tmp_path, source, segment_bytes=2000, record_bytes=500)
    list_segments(tmp_path)[2].path.unlink()
    with pytest.raises(RedoError) as raised:
        list(mine(miner(tmp_path), writer))
    assert raised.value.context["segment"] == 3


def test_undecodable_log_bytes_raise_an_error_with_the_scn(tmp_path):
    source = source_with(3)
    writer = write_redo(tmp_path, source)

    class Broken:
        def __init__(self, options):
            self.describe = decoder(options).describe

        def decode(self, data, start, *, rows_max):
            raise ValueError("no such message")

    reader = Miner(tmp_path, SOURCE, Scn(0), RuleSet(), Broken)
    with pytest.raises(CaptureError, match="no such message") as raised:
        reader.next_batch(writer.position)
    assert "scn" in raised.value.context


def test_row_with_too_few_columns_raises_an_error(tmp_path):
    source = source_with(3)
    writer = write_redo(tmp_path, source)

    class Short:
        def __init__(self, options):
            self._decoder = decoder(options)
            self.describe = self._decoder.describe

        def decode(self, data, start, *, rows_max):
            chunk = self._decoder.decode(data, start, rows_max=rows_max)
            object.__setattr__(chunk, "new_first", np.array([0, 1, 3], np.int64))
            return chunk

    with pytest.raises(CaptureError, match="columns"):
        Miner(tmp_path, SOURCE, Scn(0), RuleSet(), Short).next_batch(writer.position)


def test_empty_folder_is_mined_when_redo_arrives(tmp_path):
    reader = miner(tmp_path)
    assert reader.next_batch(RedoPosition(0, 0, Scn(0))) is None
    source = source_with(2)
    writer = write_redo(tmp_path, source)
    assert received(mine(reader, writer)) == committed(source)


# --------------------------------------------------------------------------- renamed tables

RA_ONLY = RuleSet(include=(Rule(owner="hr", name="ra"), Rule(owner="hr", name="other")))
RA2_ONLY = RuleSet(include=(Rule(owner="hr", name="ra2"), Rule(owner="hr", name="other")))


def renamed_source(*, back: bool = False) -> tuple[MemorySource, Scn]:
    """Rename hr.ra to hr.ra2 between two of its rows; also return the SCN of the last transaction before the rename."""
    source = MemorySource()
    for name in ("hr.ra", "hr.other"):
        source.create_table(name, ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("hr.ra", id="1")
    with source.transaction() as transaction:
        transaction.insert("hr.other", id="1")
    before = source.current_scn()
    source.rename_table("hr.ra", "ra2")
    with source.transaction() as transaction:
        transaction.insert("hr.other", id="2")
        transaction.insert("hr.ra2", id="2")
    if back:
        source.rename_table("hr.ra2", "ra")
    with source.transaction() as transaction:
        transaction.insert("hr.other", id="3")
    return source, before


def test_renamed_table_outside_the_rules_blocks_only_later_changes(tmp_path):
    source, before = renamed_source()
    writer = write_redo(tmp_path, source)
    start = FIRST_SCN
    for _ in range(2):  # the second run meets the same change, from where the first one stopped
        reader = miner(tmp_path, start, RA_ONLY, names=Names(source, RA_ONLY))
        given: list[LcrBatch] = []
        with pytest.raises(TableLeftRules, match=r"called hr\.ra2 now") as caught:
            given.extend(mine(reader, writer))
        assert "headrace up" in caught.value.hint
        assert reader.sent_scn <= reader.captured_scn <= before
        with pytest.raises(TableLeftRules):
            reader.next_batch(writer.position)
        start = reader.sent_scn
    assert start >= source.log[1].commit_scn


@pytest.mark.parametrize("last", ["row", "truncate", "nothing"])
def test_unchanged_table_outside_the_rules_blocks_no_other_after_restart(tmp_path, last):
    """Only its own next change blocks, and that may never come."""
    source, _ = renamed_source(back=True)
    writer = write_redo(tmp_path, source)
    before = source.current_scn()
    source.rename_table("hr.ra", "ra2")
    for number in ("4", "5"):
        with source.transaction() as transaction:
            transaction.insert("hr.other", id=number)
    if last != "nothing":
        with source.transaction() as transaction:
            transaction.insert("hr.ra2", id="4") if last == "row" else transaction.truncate("hr.ra2")
        with source.transaction() as transaction:
            transaction.insert("hr.other", id="6")
    writer.detach()
    drain(writer, source)
    reader = miner(tmp_path, before, RA_ONLY, names=Names(source, RA_ONLY))
    given: list[LcrBatch] = []
    if last == "nothing":
        given.extend(mine(reader, writer))
    else:
        with pytest.raises(TableLeftRules):
            given.extend(mine(reader, writer, rows_max=1))
    assert [row[3] for transaction in received(given, before) for row in transaction.rows] == [(b"4",), (b"5",)]


@pytest.mark.parametrize("change", ["row", "truncate"])
def test_blocked_change_at_the_end_of_a_record_is_not_skipped(tmp_path, change):
    """The table was described before this run; since then a rename took it out of the rules."""
    source = MemorySource()
    source.create_table("hr.ra", ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("hr.ra", id="1")
    writer = write_redo(tmp_path, source)
    start = source.current_scn()
    with source.transaction() as transaction:
        transaction.insert("hr.ra", id="2") if change == "row" else transaction.truncate("hr.ra")
    drain(writer, source)
    source.rename_table("hr.ra", "ra2")
    rules = RuleSet(include=(Rule(owner="hr", name="other"),))
    for _ in range(2):  # the second run begins at the first one's sent SCN
        reader = miner(tmp_path, start, rules, names=Names(source, rules))
        with pytest.raises(TableLeftRules):
            list(mine(reader, writer))
        assert reader.sent_scn <= reader.captured_scn < source.log[-1].commit_scn
        start = reader.sent_scn


def test_renamed_table_is_captured_whole_when_rules_take_its_new_name(tmp_path):
    """The current rules take nothing by the old name: changes not captured before the rename get the new name."""
    source, _ = renamed_source()
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, FIRST_SCN, RA2_ONLY, names=Names(source, RA2_ONLY))
    found = received(mine(reader, writer))
    assert [sorted(row[1] for row in transaction.rows) for transaction in found] == [
        ["hr.ra2"],
        ["hr.other"],
        ["hr.other", "hr.ra2"],
        ["hr.other"],
    ]


def test_table_renamed_and_renamed_back_loses_no_change(tmp_path):
    source, _ = renamed_source(back=True)
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, FIRST_SCN, RA_ONLY, names=Names(source, RA_ONLY))
    found = received(mine(reader, writer))
    assert [sorted(row[1] for row in transaction.rows) for transaction in found] == [
        ["hr.ra"],
        ["hr.other"],
        ["hr.other", "hr.ra"],
        ["hr.other"],
    ]


@pytest.mark.parametrize("names", ["not captured any more", "another capture process takes it"])
def test_renamed_table_no_longer_captured_here_is_skipped(tmp_path, names):
    source, _ = renamed_source()
    writer = write_redo(tmp_path, source)
    everybodys = RuleSet(include=(Rule(owner="hr"),))
    asked = Names(source, everybodys)
    asked.is_captured = names != "not captured any more"
    found = received(mine(miner(tmp_path, FIRST_SCN, RA_ONLY, names=asked), writer))
    assert [sorted(row[1] for row in transaction.rows) for transaction in found] == [
        ["hr.ra"],
        ["hr.other"],
        ["hr.other"],
        ["hr.other"],
    ]


def noted(source: MemorySource, **applies: RuleSet) -> Receivers:
    """Return the current receivers of each table: capture takes everything, and one propagation per apply has rules."""
    return Receivers(
        ways=tuple(NotedWay(apply=apply, rules=(RuleSet(), rules)) for apply, rules in applies.items()),
        tables=tuple(
            NotedTable(identity=t.identity, owner=t.owner, name=t.name, object_numbers=t.object_numbers)
            for t in source.captured("t")
        ),
    )


def test_rename_that_a_propagation_would_drop_blocks_later_changes(tmp_path):
    """The capture process's own rules keep the new name: without this error nothing would report the skipped rows."""
    source, before = renamed_source()
    source.rename_table("hr.ra2", "ra")
    receivers = noted(source, narrow=RA_ONLY, all_of_it=RuleSet())
    source.rename_table("hr.ra", "ra2")
    writer = write_redo(tmp_path, source)
    given: list[LcrBatch] = []
    for names in (Names(source, RuleSet(), receivers), Names(source, RuleSet(), receivers)):
        reader = miner(tmp_path, FIRST_SCN, names=names)
        given.clear()
        with pytest.raises(TableLeftRules, match=r"called hr\.ra2 now, which the rules on the way to narrow leave out"):
            given.extend(mine(reader, writer))
        assert reader.sent_scn <= before
        assert sorted(row[1] for transaction in received(given) for row in transaction.rows) == ["hr.other", "hr.ra"]
    # as after `up` with the same rules: the table is skipped
    names.receivers = noted(source, narrow=RA_ONLY, all_of_it=RuleSet())
    found = received(mine(miner(tmp_path, FIRST_SCN, names=names), writer))
    assert [len(transaction.rows) for transaction in found] == [1, 1, 2, 1]


def test_new_partition_maps_to_its_table_without_asking_the_source(tmp_path):
    source = MemorySource()
    source.create_table("hr.p1", ["id"], key=["id"], root="hr.p")
    source.create_table("hr.other", ["id"], key=["id"])
    of_p, of_other = (RuleSet(include=(Rule(owner="hr", name=name),)) for name in ("p", "other"))
    names = Names(source, RuleSet(), noted(source, of_p=of_p, of_other=of_other))
    source.create_table("hr.p2", ["id"], key=["id"], root="hr.p")
    with source.transaction() as transaction:
        transaction.insert("hr.p2", id="1")
    writer = write_redo(tmp_path, source)
    assert [row[1] for found in received(mine(miner(tmp_path, names=names), writer)) for row in found.rows] == ["hr.p"]
    assert names.questions == 0


def test_old_rows_of_renamed_table_pass_under_its_current_name(tmp_path):
    """After `up` with the new name in the rules, rows from before the rename must not be skipped by their old name."""
    source, _ = renamed_source()
    names = Names(source, RuleSet(), noted(source, narrow=RA2_ONLY))
    found = received(mine(miner(tmp_path, FIRST_SCN, names=names), write_redo(tmp_path, source)))
    assert [sorted(row[1] for row in transaction.rows) for transaction in found] == [
        ["hr.ra2"],
        ["hr.other"],
        ["hr.other", "hr.ra2"],
        ["hr.other"],
    ]


def test_tables_outside_all_rules_are_queried_once_when_mining_begins(tmp_path):
    source = MemorySource()
    for number in range(20):
        source.create_table(f"sales.t{number}", ["id"], key=["id"])
        with source.transaction() as transaction:
            transaction.insert(f"sales.t{number}", id="1")
    before = source.current_scn()
    writer = write_redo(tmp_path, source)
    with source.transaction() as transaction:
        transaction.insert("sales.t0", id="2")
    drain(writer, source)
    names = Names(source, RuleSet(include=(Rule(owner="sales"),)))
    list(mine(miner(tmp_path, before, RA_ONLY, names=names), writer))
    assert names.questions == 1
