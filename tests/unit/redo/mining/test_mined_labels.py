"""Labels in redo: which batches carry them, and the row counts of their transactions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.tracking import LABELS_PER_BATCH_MAX
from headrace.redo.mining.mined_labels import MinedLabel
from headrace.rules.rule import Rule, RuleSet
from tests.support.redo.redo_logs import mine, miner, write_redo

ONLY_T = RuleSet(include=(Rule(owner="hr", name="t"),))


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def two_tables() -> MemorySource:
    source = MemorySource()
    source.create_table("hr.t", ["id"], key=["id"])
    source.create_table("hr.other", ["id"], key=["id"])
    return source


def commit(source: MemorySource, *labels: str, t: range = range(0), other: range = range(0)) -> int:
    with source.transaction() as transaction:
        transaction.labels += labels
        for number in t:
            transaction.insert("hr.t", id=str(number))
        for number in other:
            transaction.insert("hr.other", id=str(number))
    return source.log[-1].commit_scn


def mined(
    source: MemorySource, folder: Path, rules: RuleSet = ONLY_T, **bounds: int
) -> tuple[list[LcrBatch], list[MinedLabel]]:
    writer = write_redo(folder, source, segment_bytes=2000, record_bytes=bounds.pop("record_bytes", 500))
    reader = miner(folder, rules=rules)
    batches, finished = [], list[Any]()
    for batch in mine(reader, writer, **bounds):
        batches.append(batch)
        finished += reader.take_labelled()
    return batches, finished


def test_label_is_only_on_the_batch_with_its_transaction(tmp_path: Path) -> None:
    source = two_tables()
    commit(source, t=range(3))
    scn = commit(source, "order 7", t=range(3, 5))
    batches, finished = mined(source, tmp_path, rows_max=3)
    assert [[label.commit_scn for label in batch.labels] for batch in batches if batch.row_count] == [[], [scn]]
    ((label, found),) = [(each.label, each.rows_found) for each in finished]
    assert (label.text, label.rows, found) == ("order 7", 2, 2)


def test_labels_count_discarded_rows_even_when_no_row_is_left(tmp_path: Path) -> None:
    source = two_tables()
    commit(source, "partly", t=range(2), other=range(3))
    commit(source, "wholly", other=range(3, 4))
    commit(source, "nothing")
    commit(source, t=range(2, 3))
    batches, finished = mined(source, tmp_path)
    assert [label.text for batch in batches for label in batch.labels] == ["partly"]
    assert {(each.label.text, each.label.rows, each.rows_discarded) for each in finished} == {
        ("partly", 2, 3),
        ("wholly", 0, 1),
        ("nothing", 0, 0),
    }


def test_label_of_transaction_in_parts_is_finished_at_the_last_part(tmp_path: Path) -> None:
    source = two_tables()
    with source.transaction() as transaction:
        transaction.labels.append("large")
        for number in range(40):
            transaction.insert("hr.t", id=str(number))
    scn = source.log[-1].commit_scn
    batches, finished = mined(source, tmp_path, rows_max=10, record_bytes=1 << 20)
    assert [label.commit_scn for batch in batches for label in batch.labels] == [0, 0, 0, scn]
    (each,) = finished
    assert (each.rows_found, each.label.rows) == (40, 40)


def test_labels_over_the_header_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    source = two_tables()
    for number in range(LABELS_PER_BATCH_MAX + 5):
        commit(source, f"order {number}", t=range(number, number + 1))
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, rules=ONLY_T)
    (batch,) = mine(reader, writer)
    assert len(batch.labels) == LABELS_PER_BATCH_MAX
    assert reader.statistics().labels_left_out == 5


def test_transaction_mined_before_is_not_noted_again(tmp_path: Path) -> None:
    source = two_tables()
    first = commit(source, "order 7", t=range(1))
    commit(source, "order 8", t=range(1, 2))
    writer = write_redo(tmp_path, source)
    reader = miner(tmp_path, first, ONLY_T)
    assert [label.text for batch in mine(reader, writer) for label in batch.labels] == ["order 8"]
