"""Awaited dictionary builds: the log writer reads the catalog after the log.

Rows wait for the build that shows the transaction which described their table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.clock import VirtualClock
from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.records import RecordType
from headrace.redo.segments import RedoReader
from headrace.redo.writing.awaited_builds import BUILD_LATE_S
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import Rule, RuleSet
from tests.support.redo.redo_logs import Names, committed, drain, log_writer, mine, miner, received, write_redo

ROOT_ONLY = RuleSet(include=(Rule(owner="s", name="hot"),))


def source_of(*partitions: str, root: str = "s.hot") -> MemorySource:
    source = MemorySource()
    for name in partitions:
        source.create_table(name, ["id"], key=["id"], root=root)
    return source


def insert(source: MemorySource, table: str, key: str) -> int:
    """Insert a row; return the transaction's number."""
    with source.transaction() as transaction:
        transaction.insert(table, id=key)
    return source.log[-1].transaction_id


def hides_new_tables(source: MemorySource) -> int:
    """Create a partition with a row in a transaction that a synchronous standby keeps invisible."""
    before = source.dictionary_build()
    source.create_table("s.p2", ["id"], key=["id"], root="s.hot")
    number = insert(source, "s.p2", "2")
    source.invisible.add(number)
    real = source.dictionary_build

    def build(topology: str = "", *, seeing=()):
        found = real(topology, seeing=seeing)
        return before if source.invisible and found is not None else found

    source.dictionary_build = build  # type: ignore[method-assign]
    return number


def tables_of(found) -> list[str]:
    return [row[1] for transaction in found for row in transaction.rows]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 600], ids=["one segment", "a segment for each record"])
@pytest.mark.parametrize("restarts", [False, True])
def test_partition_rows_wait_until_the_catalog_shows_the_partition(tmp_path, segment_bytes, restarts):
    source, clock = source_of("s.p1"), VirtualClock()
    insert(source, "s.p1", "1")
    hidden = hides_new_tables(source)
    insert(source, "s.p1", "3")
    names = Names(source, ROOT_ONLY)
    names.is_captured = False  # the source hides it from the capture process too
    writer = write_redo(tmp_path, source, clock=clock, segment_bytes=segment_bytes)
    assert source.confirmed_scn == source.current_scn(), "the source does not wait for the catalog"
    reader = miner(tmp_path, FIRST_SCN, ROOT_ONLY, names=names)
    batches = list(mine(reader, writer))
    start = reader.sent_scn
    assert len(tables_of(received(batches))) <= 1
    if restarts:
        writer.close()
        writer = log_writer(tmp_path, source, clock=clock, segment_bytes=segment_bytes)
        reader = miner(tmp_path, start, ROOT_ONLY, names=names)
        drain(writer, source, clock)
    for number in range(4, 8):
        insert(source, "s.p2" if number % 2 else "s.p1", str(number))
        drain(writer, source, clock)
        batches += mine(reader, writer)
        assert len(tables_of(received(batches))) <= 1
    clock.advance(BUILD_LATE_S)
    assert "capture waits until transaction" in (problem := writer.statistics().problem)
    assert str(hidden) in problem
    source.invisible.clear()
    drain(writer, source, clock)
    assert writer.statistics().problem == ""
    batches += mine(reader, writer)
    assert received(batches) == committed(source, ROOT_ONLY)
    for scn in [FIRST_SCN, *(transaction.commit_scn for transaction in source.log)]:
        again = received(mine(miner(tmp_path, scn, ROOT_ONLY, names=names), writer), scn)
        assert again == committed(source, ROOT_ONLY, scn)


def test_partition_moved_to_another_table_is_captured_under_that_table(tmp_path):
    source, clock = source_of("s.p1"), VirtualClock()
    source.create_table("s.a1", ["id"], key=["id"], root="s.arch")
    writer = write_redo(tmp_path, source, clock=clock)
    source.detach("s.p1")
    source.attach("s.p1", "s.arch")
    insert(source, "s.p1", "1")
    drain(writer, source, clock)
    assert tables_of(received(mine(miner(tmp_path), writer))) == ["s.arch"]


def test_plain_table_turned_partition_is_captured_under_its_root_table(tmp_path):
    source, clock = source_of("s.p1"), VirtualClock()
    source.create_table("s.plain", ["id"], key=["id"])
    writer = write_redo(tmp_path, source, clock=clock)
    source.attach("s.plain", "s.hot")
    insert(source, "s.plain", "1")
    drain(writer, source, clock)
    assert tables_of(received(mine(miner(tmp_path), writer))) == ["s.hot"]


def test_catalog_is_read_only_after_its_redo_is_confirmed(tmp_path):
    """A user's COMMIT may wait for the confirmation; until then it holds locks and its changes are invisible."""
    source, clock, confirmed = source_of("s.p1"), VirtualClock(), []
    writer = write_redo(tmp_path, source, clock=clock)
    build = writer._builds.read

    def observed(*, seeing=()):
        confirmed.append((source.confirmed_scn, tuple(seeing)))
        return build(seeing=seeing)

    writer._builds.read = observed
    number = insert(source, "s.p1", "1")
    with source.transaction() as transaction:
        transaction.truncate("s.p1")
    drain(writer, source, clock)
    assert confirmed == [(source.current_scn(), (number, source.log[-1].transaction_id))]


def test_full_redo_log_still_takes_the_build_that_captures_await(tmp_path):
    source, clock = source_of("s.p1"), VirtualClock()
    writer = log_writer(tmp_path, source, clock=clock, segment_bytes=600, redo_bytes_max=4000)
    writer.required_checkpoints.register("c")
    hides_new_tables(source)
    for number in range(3, 60):
        insert(source, "s.p1", str(number))
    drain(writer, source, clock)
    assert writer.state == "PAUSED: REDO IS FULL"
    source.invisible.clear()
    start, batches = FIRST_SCN, list[LcrBatch]()
    for _ in range(60):
        drain(writer, source, clock)
        reader = miner(tmp_path, start, ROOT_ONLY)
        batches += mine(reader, writer)
        start = reader.sent_scn
        writer.required_checkpoints.record("c", start)
    assert received(batches) == committed(source, ROOT_ONLY)


def test_build_identical_to_the_previous_one_is_small(tmp_path):
    source, clock = source_of(*(f"s.p{number}" for number in range(200))), VirtualClock()
    writer = write_redo(tmp_path, source, clock=clock)
    for number in range(20):
        insert(source, f"s.p{number}", str(number))
        drain(writer, source, clock)
    sizes = [size for kind, size in records(tmp_path, writer) if kind is RecordType.DICTIONARY]
    assert len(sizes) == 41  # the head's, and per insert one that is awaited and one that arrived
    assert max(sizes[1:]) < sizes[0] / 10
    assert received(mine(miner(tmp_path), writer)) == committed(source)


def records(folder: Path, writer: LogWriter) -> list[tuple[RecordType, int]]:
    reader, found = RedoReader(folder, 1), []
    while (header := reader.next_header(writer.position)) is not None:
        found.append((header.type, header.payload_bytes))
        reader.skip(header)
    return found


def test_stream_break_while_a_build_is_awaited_loses_nothing(tmp_path):
    source, clock = source_of("s.p1"), VirtualClock()
    insert(source, "s.p1", "1")
    hides_new_tables(source)
    writer = write_redo(tmp_path, source, clock=clock)
    writer.detach()
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path, FIRST_SCN, ROOT_ONLY), writer)) == []
    writer.detach()
    source.invisible.clear()
    drain(writer, source, clock)
    assert received(mine(miner(tmp_path, FIRST_SCN, ROOT_ONLY), writer)) == committed(source, ROOT_ONLY)
    assert Scn(writer.position.scn) == source.current_scn()
