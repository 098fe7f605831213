"""DDL in redo: each change is mined once, at its place among the rows, from any SCN on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.clock import VirtualClock
from headrace.base.errors import DatabaseUnavailable
from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN
from headrace.lcr.tags import Tag
from headrace.redo.mining.miner import Miner
from headrace.rules.conditions.condition import parse
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.histories.workloads import TAGS, Workload
from tests.support.redo.redo_logs import TAG, committed, drain, log_writer, mine, miner, received, write_redo
from tests.support.session.seeds import scaled
from tests.support.values.ddl_changes import structure

ALL = RuleSet(include=(Rule(tags=ANY_TAG, ddl=True),))
UNTAGGED = RuleSet(include=(Rule(ddl=True),))
ONLY_DDL = RuleSet(include=(Rule(dml=False, ddl=True, tags=ANY_TAG),))
ONLY_ROWS = RuleSet(include=(Rule(tags=ANY_TAG),))
SOME = RuleSet(
    include=(Rule(owner="hr", ddl=True), Rule(owner="sales", tags=ANY_TAG)),
    exclude=(Rule(name="bag", tags=ANY_TAG, ddl=True), Rule(name="full", dml=False, ddl=True)),
)
RULES = (ALL, UNTAGGED, ONLY_DDL, ONLY_ROWS, SOME, RuleSet())

random_work = given(
    seed=st.integers(0, 10_000),
    rules=st.sampled_from(RULES),
    gulp=st.integers(20, 3000),
    segment=st.integers(500, 20_000),
    record=st.sampled_from([1, 300, 1 << 20]),
    rows_max=st.sampled_from([1, 3, 16, 4096]),
    bytes_max=st.sampled_from([1, 200, 1 << 20]),
)
few = settings(max_examples=scaled(10, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no test here loses power, and fsync takes most of the time."""
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def new_source(**settings: Any) -> MemorySource:
    source = MemorySource(**settings)
    source.create_table("hr.t", ["id", "a"], key=["id"])
    return source


def insert(source: MemorySource, *identities: str, tag: Tag | None = None) -> None:
    with source.transaction(tag) as transaction:
        for identity in identities:
            transaction.insert("hr.t", id=identity)


def mined(folder: Path, source: MemorySource, rules: RuleSet = ALL, **bounds: int) -> list[LcrBatch]:
    """Return the batches of all that a source has, without marks; they have what it committed."""
    writer = write_redo(folder, source)
    batches = list(mine(miner(folder, rules=rules), writer, **bounds))
    assert received(batches) == committed(source, rules)
    return [batch for batch in batches if not batch.is_progress_mark]


def records(source: MemorySource) -> list[str]:
    """Return the records in a source's log of DDL."""
    rows = [change.new for each in source.log for change in each.changes if change.version.owner == "headrace_ddl"]
    return [(row[-1] or b"").decode() for row in rows if row is not None]


def shape(batch: LcrBatch) -> tuple[int, bool, bool, bool, int]:
    return batch.row_count, batch.ddl is not None, batch.continues, batch.is_open, batch.first_position


# --------------------------------------------------------------------------- random work


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_ddl_is_mined_once_and_in_order_among_rows(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder, cuts = tmp_path_factory.mktemp("redo"), random.Random(seed)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, gulp))
    Workload(source, seed, ddl=True).run(40)
    source.break_after(*(cuts.randint(1, 200) for _ in range(6)))
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
def test_restart_from_any_scn_yields_the_same_ddl(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder, cuts = tmp_path_factory.mktemp("redo"), random.Random(seed)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, gulp))
    Workload(source, seed, ddl=True).run(25)
    source.break_after(*(cuts.randint(1, 100) for _ in range(3)))
    writer = write_redo(folder, source, segment_bytes=segment, record_bytes=record)
    starts = [transaction.commit_scn for transaction in source.log] + [source.current_scn()]
    for start in cuts.sample(starts, 8):
        batches = mine(miner(folder, start, rules), writer, rows_max=rows_max, bytes_max=bytes_max)
        assert received(batches, start) == committed(source, rules, start)


@pytest.mark.long
@pytest.mark.seeded
@few
@random_work
def test_ddl_is_mined_once_across_restarts_in_growing_redo(
    tmp_path_factory, seed, rules, gulp, segment, record, rows_max, bytes_max
):
    folder, cuts = tmp_path_factory.mktemp("redo"), random.Random(seed)
    source, clock = MemorySource(gulp_bytes=lambda: cuts.randint(1, gulp)), VirtualClock()
    workload = Workload(source, seed, ddl=True)
    writer = log_writer(folder, source, segment_bytes=segment, record_bytes=record, clock=clock)
    reader = miner(folder, rules=rules, clock=clock)
    batches: list[LcrBatch] = []
    for turn in range(12):
        workload.run(4)
        source.break_after(cuts.randint(1, 60))
        if turn % 3 == 2:  # the log writer dies
            writer.close()
            writer = log_writer(folder, source, segment_bytes=segment, record_bytes=record, clock=clock)
        drain(writer, source, clock)
        if turn % 5 == 4:  # the capture process dies, perhaps between two parts of a transaction
            reader = miner(folder, reader.sent_scn, rules, clock=clock)
            while batches and batches[-1].is_open:
                batches.pop()
        more = mine(reader, writer, rows_max=rows_max, bytes_max=bytes_max)
        batches += itertools.islice(more, cuts.choice([1, 2, 1000]))
    batches += mine(reader, writer, rows_max=rows_max, bytes_max=bytes_max)
    assert received(batches) == committed(source, rules)


def test_random_work_has_ddl_of_every_kind() -> None:
    source = MemorySource()
    Workload(source, 1, ddl=True).run(300)
    rows = [row for transaction in committed(source) for row in transaction.rows if row[0] == "DDL"]
    texts = [json.loads(row[2][0])["query"] for row in rows if row[2] is not None]
    assert {words for text in texts for words in ("ADD", "RENAME", "DROP") if f" {words} COLUMN" in text} == {
        "ADD",
        "RENAME",
        "DROP",
    }


# --------------------------------------------------------------------------- where batches are cut


def test_transaction_is_cut_into_parts_around_its_ddl(tmp_path):
    source = new_source()
    insert(source, "before")
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="1")
        transaction.insert("hr.t", id="2")
        transaction.add_column("hr.t", "b", "x")
        transaction.add_column("hr.t", "c")
        transaction.insert("hr.t", id="3", c="new")
    insert(source, "after")
    batches = mined(tmp_path, source)
    assert [shape(batch) for batch in batches] == [
        (1, False, False, False, 0),
        (2, False, False, True, 0),
        (1, True, True, True, 2),
        (1, True, True, True, 3),
        (1, False, True, False, 4),
        (1, False, False, False, 0),
    ]
    first, second = source.log[0].commit_scn, source.log[1].commit_scn
    assert [batch.through_scn for batch in batches[:5]] == [first, first, first, first, second]
    assert [len(batch.tables[0].columns) for batch in batches if batch.tables] == [2, 2, 4, 4]


def test_transaction_with_nothing_but_a_ddl_is_whole(tmp_path):
    source = new_source()
    insert(source, "1", "2")
    insert(source, "3")
    source.add_column("hr.t", "b", ddl=True)
    rows, ddl = mined(tmp_path, source)
    assert shape(rows) == (3, False, False, False, 0)
    assert shape(ddl) == (1, True, False, False, 0)
    # What the first batch promises ends before the DDL, which was mined together with it.
    assert rows.through_scn == source.log[1].commit_scn
    assert ddl.through_scn == source.current_scn()
    assert ddl.ddl is not None
    assert (ddl.ddl.ddl_text, str(ddl.ddl.base_table)) == ('ALTER TABLE "hr"."t" ADD COLUMN "b" text', "hr.t")


@pytest.mark.parametrize("rows_max", [1, 2, 3])
def test_full_open_transaction_is_cut_around_its_ddl(tmp_path, rows_max):
    source = new_source()
    with source.transaction() as transaction:
        transaction.add_column("hr.t", "b")
        for number in range(5):
            transaction.insert("hr.t", id=str(number))
        transaction.rename_column("hr.t", "b", "c")
    batches = mined(tmp_path, source, rows_max=rows_max)
    kinds = [(batch.ddl is not None, batch.is_open) for batch in batches]
    assert kinds[0] == (True, True)
    assert kinds[-1] == (True, False)
    assert all(kind == (False, True) for kind in kinds[1:-1])


def test_records_of_ddl_count_for_the_bytes_of_a_batch(tmp_path):
    """Few rows may have much to hold: a record has the whole structure twice, and the text of the statement."""
    source = new_source(gulp_bytes=lambda: 1)
    with source.transaction() as transaction:
        for number in range(200):
            transaction.insert("hr.t", id=str(number))
            transaction.add_column("hr.t", f"c{number}" + "x" * 50)
    writer = write_redo(tmp_path, source, record_bytes=1)
    reader = miner(tmp_path, rules=ALL)
    held = []
    while reader.next_batch(writer.position, bytes_max=100_000) is not None:
        pieces = reader._assembly._pieces
        held.append(sum(len(change.content) for piece in pieces for change in piece.ddls.values()))
    largest = max(len(content) for content in records(source))
    assert largest > 20_000
    assert max(held) <= 100_000 + largest


def test_rows_discarded_before_a_ddl_bring_no_mark_beyond_it(tmp_path):
    condition = parse("id = 'none'", "where")
    rules = RuleSet(include=(Rule(owner="hr", condition=condition), Rule(dml=False, ddl=True)))
    source = new_source()
    insert(source, "1")
    source.add_column("hr.t", "b", ddl=True)
    insert(source, "2")
    writer, clock = write_redo(tmp_path, source), VirtualClock()
    reader = miner(tmp_path, rules=rules, clock=clock)
    batches = list(mine(reader, writer))
    clock.advance(1.0)
    batches += mine(reader, writer)
    ddl_scn = source.log[1].commit_scn
    assert [(batch.ddl is not None, batch.previous_scn, batch.through_scn) for batch in batches] == [
        (True, FIRST_SCN, ddl_scn),
        (False, ddl_scn, source.current_scn()),
    ]


def test_positions_of_ddl_count_the_rows_that_the_rules_keep(tmp_path):
    condition = parse("id <> '2'", "where")
    rules = RuleSet(include=(Rule(owner="hr", condition=condition), Rule(dml=False, ddl=True)))
    source = new_source()
    with source.transaction() as transaction:
        for identity in ("1", "2", "3"):
            transaction.insert("hr.t", id=identity)
        transaction.add_column("hr.t", "b")
    batches = list(mine(miner(tmp_path, rules=rules), write_redo(tmp_path, source)))
    assert [shape(batch) for batch in batches] == [(2, False, False, True, 0), (1, True, True, False, 2)]


# --------------------------------------------------------------------------- breaks, and restarts after them


def test_ddl_in_a_transaction_that_breaks_off_is_sent_again_with_it(tmp_path):
    source = new_source()
    with source.transaction() as transaction:
        for number in range(30):
            transaction.insert("hr.t", id=f"before {number}")
        transaction.add_column("hr.t", "b")
        for number in range(30):
            transaction.insert("hr.t", id=f"after {number}")
    source.gulp_bytes = lambda: 100
    source.break_after(50)
    writer = log_writer(tmp_path, source)
    writer.attach(source.open_stream("t", writer.start_scn))
    with contextlib.suppress(DatabaseUnavailable):
        while True:
            writer.step(0.0)
    reader = miner(tmp_path, rules=ALL)
    before = list(mine(reader, writer, rows_max=10))
    assert any(batch.ddl is not None for batch in before)
    assert all(batch.is_open for batch in before)
    drain(writer, source, VirtualClock())
    after = list(mine(reader, writer, rows_max=10))
    assert received(before + after) == committed(source, ALL)
    assert not after[0].continues
    assert [batch.ddl is not None for batch in after].count(True) == 1


@pytest.mark.parametrize("segment", [300, 1 << 20])
@pytest.mark.parametrize("record", [1, 1 << 20])
def test_log_described_before_the_restart_point_is_known(tmp_path, segment, record):
    """A stream describes the log once: a miner that begins later finds the description in redo, or in a head."""
    source = new_source(gulp_bytes=lambda: 1)
    for number in range(8):
        insert(source, f"{number}", tag=TAGS[number % len(TAGS)])
        source.add_column("hr.t", f"c{number}", ddl=True)
    writer = write_redo(tmp_path, source, segment_bytes=segment, record_bytes=record)
    for transaction in source.log:
        found = mine(miner(tmp_path, transaction.commit_scn, ALL), writer)
        expected = committed(source, ALL, transaction.commit_scn)
        assert received(found, transaction.commit_scn) == expected
    assert [row[0] for row in committed(source, ALL)[-1].rows] == ["DDL"]


# --------------------------------------------------------------------------- what becomes an LCR


def statistics_of(folder: Path, source: MemorySource, rules: RuleSet) -> tuple[list[LcrBatch], Miner]:
    reader = miner(folder, rules=rules)
    return list(mine(reader, write_redo(folder, source))), reader


def test_ddl_passes_by_the_name_of_its_table_and_the_tag(tmp_path):
    source = new_source()
    source.create_table("hr.u", ["id"], key=["id"])
    for table, tag in (("hr.t", None), ("hr.u", None), ("hr.t", TAG)):
        with source.transaction(tag) as transaction:
            transaction.add_column(table, f"c{len(source.log)}")
    rules = RuleSet(include=(Rule(owner="hr", name="t", ddl=True),))
    (batch,) = mined(tmp_path, source, rules)
    assert batch.ddl is not None
    assert '"c0"' in batch.ddl.ddl_text


def test_own_rows_of_the_log_become_no_row_lcrs(tmp_path):
    """Neither records that are no changes, nor the DELETEs that trim the log; whatever the rules say."""
    source = new_source()
    rules = RuleSet(include=(Rule(owner="headrace_ddl", tags=ANY_TAG), Rule(tags=ANY_TAG, ddl=True)))
    source.log_ddl(json.dumps({"format": 1, "base": True, "after": structure()}))
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="1")
        transaction.trim_ddl_log(1)
        transaction.insert("hr.t", id="2")
    batches, reader = statistics_of(tmp_path, source, rules)
    assert received(batches) == committed(source, rules)
    assert [batch.row_count for batch in batches if batch.row_count] == [2]
    statistics = reader.statistics()
    assert (statistics.rows_kept, statistics.rows_discarded, statistics.ddl_failed) == (2, 2, 0)
    assert reader.unmatched_rules == ()


def test_statement_that_was_not_recorded_is_counted_and_named(tmp_path):
    source = new_source()
    source.log_ddl(
        json.dumps({"format": 1, "failed": "42501", "tag": "ALTER TABLE", "query": "ALTER TABLE hr.t\n ADD z"})
    )
    batches, reader = statistics_of(tmp_path, source, ALL)
    assert received(batches) == []
    statistics = reader.statistics()
    assert statistics.ddl_failed == 1
    assert statistics.last_failed_ddl.startswith("ALTER TABLE hr.t ADD z: ")
    assert "42501" in statistics.last_failed_ddl


@pytest.mark.parametrize("content", ["", "no JSON", '{"format": 99}', '{"format": 1, "tag": "ALTER TABLE"}'])
def test_damaged_record_is_counted_and_stops_nothing(tmp_path, content):
    source = new_source()
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="1")
        transaction.log_ddl(content)
        transaction.insert("hr.t", id="2")
    batches, reader = statistics_of(tmp_path, source, ALL)
    assert received(batches) == committed(source, ALL)
    statistics = reader.statistics()
    assert (statistics.ddl_failed, statistics.rows_kept) == (1, 2)
    assert statistics.last_failed_ddl


def test_capture_without_ddl_rules_neither_sends_nor_counts_ddl(tmp_path):
    source = new_source()
    with source.transaction() as transaction:
        transaction.insert("hr.t", id="1")
        transaction.add_column("hr.t", "b")
        transaction.log_ddl("damaged")
        transaction.insert("hr.t", id="2")
    batches, reader = statistics_of(tmp_path, source, ONLY_ROWS)
    assert received(batches) == committed(source, ONLY_ROWS)
    assert [batch.row_count for batch in batches if batch.row_count] == [2]
    assert reader.statistics().ddl_failed == 0


def test_table_that_is_only_called_log_is_a_plain_table(tmp_path):
    source = new_source()
    source.create_table("hr.log", ["number", "content"], key=["number"])
    source.create_table("headrace_ddl.other", ["number", "content"], key=["number"])
    with source.transaction() as transaction:
        transaction.add_column("hr.t", "b")
    (record,) = records(source)
    with source.transaction() as transaction:
        transaction.insert("hr.log", number="1", content=record)
        transaction.insert("headrace_ddl.other", number="1", content=record)
    ddl, row = mined_batches(tmp_path, source)
    assert ddl.ddl is not None
    assert [table.qualified_name for table in row.tables] == ["hr.log"]


def mined_batches(folder: Path, source: MemorySource) -> list[LcrBatch]:
    return [batch for batch in mine(miner(folder, rules=ALL), write_redo(folder, source)) if batch.row_count]


def test_label_of_a_transaction_with_ddl_is_finished_at_its_last_part(tmp_path):
    source = new_source()
    with source.transaction() as transaction:
        transaction.labels.append("order 7")
        transaction.insert("hr.t", id="1")
        transaction.add_column("hr.t", "b")
        transaction.insert("hr.t", id="2")
    scn = source.log[-1].commit_scn
    reader = miner(tmp_path, rules=ALL)
    batches = list(mine(reader, write_redo(tmp_path, source)))
    assert [label.commit_scn for batch in batches for label in batch.labels] == [0, 0, scn]
    (found,) = reader.take_labelled()
    assert (found.label.rows, found.rows_found) == (3, 3)


# --------------------------------------------------------------------------- RENAME and the rules


@pytest.mark.parametrize(
    ("rules", "reason", "leaves"),
    [
        (ALL, "", False),
        (RuleSet(include=(Rule(owner="hr", name="t", ddl=True),)), "the rules do not take hr.u, its new name", True),
        (
            RuleSet(include=(Rule(owner="hr", name="t", ddl=True), Rule(owner="hr", name="u"))),
            "the rules do not take the DDL of hr.u",
            False,
        ),
    ],
)
def test_rename_out_of_the_rules_is_only_recorded(tmp_path: Path, rules: RuleSet, reason: str, leaves: bool) -> None:
    source = new_source()
    source.rename_table("hr.t", "u", ddl=True)
    writer = write_redo(tmp_path, source)
    (change,) = [batch.ddl for batch in mine(miner(tmp_path, rules=rules), writer) if batch.ddl is not None]
    assert change.why_not_made.startswith(reason)
    assert bool(change.why_not_made) is bool(reason)
    assert change.leaves_rules is leaves
    assert change.base_table == ("hr", "t")


def test_rename_into_the_rules_is_not_mined(tmp_path: Path) -> None:
    """The table has rows that were not in the log: the next `up` copies it."""
    source = new_source()
    source.rename_table("hr.t", "u", ddl=True)
    writer = write_redo(tmp_path, source)
    rules = RuleSet(include=(Rule(owner="hr", name="u", ddl=True),))
    assert [batch for batch in mine(miner(tmp_path, rules=rules), writer) if batch.ddl is not None] == []
