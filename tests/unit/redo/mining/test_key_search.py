"""Key search in redo: the changes of one row, for any division into pieces, segments and transaction parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import LogGone
from headrace.databases.memory.source import MemorySource
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.redo.mining.key_search import CHANGES_MAX, FoundChange, KeyPart, KeySearch
from headrace.redo.mining.miner import BYTES_MAX_DEFAULT, ROWS_MAX_DEFAULT
from headrace.redo.writing.log_writer import LogWriter
from tests.support.redo.redo_logs import SOURCE, decoder, write_redo


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


@pytest.fixture
def source() -> MemorySource:
    source = MemorySource()
    source.create_table("hr.t", ["id", "line", "a"], key=["id", "line"])
    source.create_table("hr.other", ["id", "line"], key=["id", "line"])
    return source


def search(folder: Path, *key: tuple[str, str]) -> KeySearch:
    parts = tuple(KeyPart(column=column, text=text, binary=b"") for column, text in key)
    return KeySearch(folder=folder, source=SOURCE, decoder_factory=decoder, owner="hr", name="t", key=parts)


def everything(searching: KeySearch, writer: LogWriter, bytes_max: int) -> tuple[list[FoundChange], int]:
    """Return all changes and the number of pieces that the search took."""
    found: list[FoundChange] = []
    start, pieces = FIRST_SCN, 0
    while True:
        piece = searching.run(writer.position, Scn(start), bytes_max=bytes_max)
        pieces += 1
        found += piece.changes
        if piece.is_done:
            return found, pieces
        assert piece.through_scn > start
        start = Scn(piece.through_scn)


def row(source: MemorySource, key: str, *, tag: Tag | None = None) -> int:
    with source.transaction(tag) as transaction:
        transaction.insert("hr.t", id=key, line="1", a="x")
        transaction.insert("hr.t", id=key, line="2", a="x")
        transaction.insert("hr.other", id=key, line="1")
    return source.log[-1].commit_scn


def test_key_search_finds_only_changes_of_its_row_in_order_with_tags(source: MemorySource, tmp_path: Path) -> None:
    tag = Tag(value=b"\x0b", topology="t", apply="apply_x")
    scns = [row(source, "7"), row(source, "77")]
    with source.transaction(tag) as transaction:
        transaction.update("hr.t", {"id": "7", "line": "1"}, a="new")
    scns.append(source.log[-1].commit_scn)
    with source.transaction() as transaction:
        transaction.delete("hr.t", {"id": "7", "line": "1"})
    scns.append(source.log[-1].commit_scn)
    with source.transaction() as transaction:
        transaction.truncate("hr.t")
    scns.append(source.log[-1].commit_scn)
    writer = write_redo(tmp_path, source, segment_bytes=700, record_bytes=200)
    found, _ = everything(search(tmp_path, ("id", "7"), ("line", "1")), writer, 1 << 20)
    assert [(each.command, each.commit_scn) for each in found] == [
        ("INSERT", scns[0]),
        ("UPDATE", scns[2]),
        ("DELETE", scns[3]),
        ("TRUNCATE", scns[4]),
    ]
    assert [(each.tag, each.tagged_by) for each in found[:2]] == [(None, ""), (b"\x0b", "t/apply_x")]


@pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
def test_pieced_search_finds_the_same_changes_as_one_search(
    source: MemorySource, tmp_path: Path, bytes_max: int
) -> None:
    expected = []
    for number in range(30):
        scn = row(source, str(number % 5) + "x" * (number // 5))
        if number % 5 == 3 and number < 5:
            expected.append(scn)
        source.other_activity()
        with source.transaction() as transaction:
            transaction.update("hr.t", {"id": "0", "line": "2"}, a=str(number))
    with source.transaction() as transaction:
        transaction.update("hr.t", {"id": "3", "line": "2"}, a="last")
    expected.append(source.log[-1].commit_scn)
    writer = write_redo(tmp_path, source, segment_bytes=900, record_bytes=300)
    found, pieces = everything(search(tmp_path, ("id", "3"), ("line", "2")), writer, bytes_max)
    assert [each.commit_scn for each in found] == expected
    assert (pieces > 1) is (bytes_max < 1 << 20)


def test_change_in_transaction_larger_than_batch_has_its_commit_scn(source: MemorySource, tmp_path: Path) -> None:
    with source.transaction() as transaction:
        for number in range(ROWS_MAX_DEFAULT + 50):
            transaction.insert("hr.t", id=str(number), line="1", a="x")
    scn = source.log[-1].commit_scn
    writer = write_redo(tmp_path, source, segment_bytes=BYTES_MAX_DEFAULT)
    found, _ = everything(search(tmp_path, ("id", "17"), ("line", "1")), writer, 1)
    assert [(each.command, each.commit_scn) for each in found] == [("INSERT", scn)]


def test_search_keeps_the_newest_changes_and_counts_the_others(source: MemorySource, tmp_path: Path) -> None:
    row(source, "7")
    for number in range(CHANGES_MAX + 4):
        with source.transaction() as transaction:
            transaction.update("hr.t", {"id": "7", "line": "1"}, a=str(number))
    writer = write_redo(tmp_path, source)
    piece = search(tmp_path, ("id", "7"), ("line", "1")).run(writer.position, FIRST_SCN)
    assert (len(piece.changes), piece.left_out) == (CHANGES_MAX, 5)
    assert piece.changes[-1].commit_scn == source.log[-1].commit_scn


def test_search_reports_the_first_available_scn_and_refuses_purged_redo(source: MemorySource, tmp_path: Path) -> None:
    source.gulp_bytes = lambda: 200
    early = row(source, "7")
    for number in range(40):
        row(source, f"n{number}")
    writer = write_redo(tmp_path, source, segment_bytes=700, record_bytes=200)
    middle = source.log[20].commit_scn
    assert writer.purge(Scn(middle)) > 0
    searching = search(tmp_path, ("id", "7"), ("line", "1"))
    piece = searching.run(writer.position, FIRST_SCN)
    assert early < piece.first_scn <= middle
    assert piece.changes == ()
    with pytest.raises(LogGone):
        searching.run(writer.position, Scn(early))


def test_search_by_column_not_yet_in_the_table_matches_nothing(source: MemorySource, tmp_path: Path) -> None:
    row(source, "7")
    writer = write_redo(tmp_path, source)
    assert everything(search(tmp_path, ("added_later", "7")), writer, 1 << 20)[0] == []
