"""The memory source keeps the promises of a log stream on which capture relies."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ConfigError, DatabaseUnavailable, LogGone, ProtocolError
from headrace.databases.memory.log import MemoryLogDecoder
from headrace.databases.memory.source import MemorySource
from headrace.databases.ports import DecodedChunk
from headrace.lcr.ddl import DDL_LOG, DdlChange, ddl_of
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.scn import FIRST_SCN, Scn
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import committed


def busy(seed: int = 1, transactions: int = 40) -> MemorySource:
    cuts = random.Random(seed)
    source = MemorySource(gulp_bytes=lambda: cuts.randint(1, 300))
    Workload(source, seed).run(transactions)
    return source


def decode(data: bytes, decoder: MemoryLogDecoder, rows_max: int = 1000) -> list[DecodedChunk]:
    array, start, chunks = np.frombuffer(data, np.uint8), 0, []
    while start < len(data):
        chunks.append(decoder.decode(array, start, rows_max=rows_max))
        assert chunks[-1].consumed > 0
        assert chunks[-1].command.shape[0] <= rows_max
        start += chunks[-1].consumed
    return chunks


def test_stream_delivers_every_transaction_from_its_start_on():
    source = busy()
    for start in [FIRST_SCN, *(t.commit_scn for t in source.log[::5])]:
        stream, decoder, found = source.open_stream("t", Scn(start)), MemoryLogDecoder(), []
        while (chunk := stream.read(0.0)) is not None:
            for decoded in decode(chunk.data, decoder):
                found += decoded.commit_scn[decoded.commit_scn > 0].tolist()
        assert found == [t.commit_scn for t in source.log if t.order_scn >= start]
        assert stream.start_scn == start


def test_chunks_show_where_transactions_end_and_which_tables_they_describe():
    source = busy(2)
    stream = source.open_stream("t", FIRST_SCN)
    told = FIRST_SCN
    while (chunk := stream.read(0.0)) is not None:
        decoder = MemoryLogDecoder()
        if chunk.commit_end:
            with_rest = chunk.data[chunk.commit_end :]
            decode(with_rest, decoder)  # what follows the last commit stands alone
            assert (decoder._open is not None) == chunk.is_open
        described = MemoryLogDecoder().describe(np.frombuffer(chunk.data, np.uint8))
        assert tuple(version.object_number for version in described) == chunk.objects
        assert chunk.end_scn == 0 or chunk.end_scn >= told
        told = max(told, chunk.end_scn)
    assert told == source.current_scn()


def test_broken_stream_stays_broken_and_the_next_resends_the_transaction():
    source = MemorySource()
    source.create_table("s.t", ["id"], key=["id"])
    with source.transaction() as transaction:
        for number in range(10):
            transaction.insert("s.t", id=str(number))
    source.break_after(5)
    stream = source.open_stream("t", FIRST_SCN)
    assert stream.read(0.0).is_open
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            stream.read(0.0)
    (chunk,) = decode(source.open_stream("t", FIRST_SCN).read(0.0).data, MemoryLogDecoder())
    assert chunk.command.shape[0] == 10
    assert not chunk.continues


def test_confirmed_log_is_gone():
    source = busy()
    stream = source.open_stream("t", FIRST_SCN)
    stream.confirm(source.log[10].commit_scn)
    with pytest.raises(LogGone):
        source.open_stream("t", Scn(source.log[5].commit_scn))
    assert source.open_stream("t", FIRST_SCN).start_scn == source.log[10].commit_scn


@pytest.mark.parametrize("ddl", [False, True])
def test_rollback_leaves_tables_and_log_unchanged(ddl):
    source = busy(3)
    before, length = source.open_snapshot("t").rows, len(source.log)
    workload = Workload.__new__(Workload)
    workload.__dict__.update(source=source, random=random.Random(9), keyed=["hr.keyed", "hr.full"])
    workload.__dict__.update(ddl=ddl, _number=10_000, _columns=10_000)

    def fail() -> None:
        with source.transaction() as transaction:
            for _ in range(50):
                workload.change(transaction)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert source.open_snapshot("t").rows == before
    assert len(source.log) == length


def test_replayed_log_reproduces_the_tables():
    source = busy(4, transactions=100)
    rows: list[Any] = []
    for transaction in committed(source):
        for command, table, old, new in transaction.rows:
            if table != "hr.bag" and not (command == "TRUNCATE" and old is not None and "hr.bag" in old):
                continue
            if command == "TRUNCATE":
                rows.clear()
            if command in {"UPDATE", "DELETE"}:
                rows.remove(old)
            if command in {"UPDATE", "INSERT"}:
                rows.append(new)
    expected = [tuple("NULL" if value is None else value for value in row) for row in source.rows("hr.bag")]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)


def test_decoder_stops_before_a_description_that_follows_rows():
    source = MemorySource()
    source.create_table("s.t", ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("s.t", id="1")
    source.add_column("s.t", "more")
    with source.transaction() as transaction:
        transaction.insert("s.t", id="2", more="x")
    chunks = decode(source.open_stream("t", FIRST_SCN).read(0.0).data, MemoryLogDecoder())
    assert [len(chunk.versions[0].columns) for chunk in chunks] == [1, 2]
    assert chunks[1].continues


def test_marker_is_in_the_log_with_its_scn():
    source = MemorySource()
    scn = source.write_marker(b"content")
    (chunk,) = decode(source.open_stream("t", FIRST_SCN).read(0.0).data, MemoryLogDecoder())
    assert [message[2] for message in chunk.messages] == [b"content"]
    assert chunk.commit_scn.tolist() == [scn]


@pytest.mark.parametrize("damage", [b"\x05\0\0\0", b"\0\0\0\0?", b"\x01\0\0\0C\0"])
def test_bytes_that_are_no_log_are_refused(damage):
    with pytest.raises(ProtocolError):
        decode(damage, MemoryLogDecoder())


def test_keys_are_unique_and_rows_must_exist():
    source = MemorySource()
    source.create_table("s.t", ["id"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("s.t", id="1")
        transaction.insert("s.t", id="2")
        for wrong in (
            lambda: transaction.insert("s.t", id="1"),
            lambda: transaction.delete("s.t", {"id": "9"}),
            lambda: transaction.update("s.t", {"id": "1"}, id="2"),
            lambda: transaction.insert("s.t", idd="1"),
        ):
            with pytest.raises(ConfigError):
                wrong()
    assert source.rows("s.t") == ((b"1",), (b"2",))


# --------------------------------------------------------------------------- DDL


def keyed() -> MemorySource:
    source = MemorySource()
    source.create_table("s.t", ["id", "a"], key=["id"])
    with source.transaction() as transaction:
        transaction.insert("s.t", id="1", a="x")
    return source


def recorded(source: MemorySource) -> list[DdlChange]:
    """Return the records of DDL in the log."""
    rows = [change.new for each in source.log for change in each.changes if change.version.owner == DDL_LOG.owner]
    found = [ddl_of(row[-1]) for row in rows if row is not None]
    return [change for change in found if change is not None]


def test_columns_are_added_renamed_and_dropped_with_their_values():
    source = keyed()
    source.add_column("s.t", "b", "old")
    source.rename_column("s.t", "b", "c")
    assert source.rows("s.t") == ((b"1", b"x", b"old"),)
    source.drop_column("s.t", "a")
    assert source.rows("s.t") == ((b"1", b"old"),)
    assert [column.name for column in source.table("s.t").version.columns] == ["id", "c"]
    assert recorded(source) == []
    assert source.dictionary_build().tables[-1].owner == "s"


def test_record_of_ddl_has_the_structures_and_what_is_gone():
    source = keyed()
    source.add_column("s.t", "b", "old", ddl=True)
    source.rename_column("s.t", "a", "c", ddl=True)
    source.drop_column("s.t", "b", ddl=True)
    source.add_column("s.t", "b", ddl=True)
    records = [DdlRecord.of(change.content) for change in recorded(source)]
    assert [record.delta.added[0].name for record in records if record.delta.added] == ["b", "b"]
    assert [pair.after.name for record in records for pair in record.delta.renamed] == ["c"]
    assert [part.name for record in records for part in (*record.delta.dropped, *record.gone)] == ["b", "b"]
    assert [dict(record.older) for record in records] == [{"b": "old"}, {}, {}, {"b": None}]
    assert [part.number for record in records for part in record.delta.added] == [3, 4]
    assert {(record.relation, record.is_known, record.version) for record in records} == {(16384, True, 1)}
    assert source.dictionary_build().tables[-1].stored_name == DDL_LOG.name


@pytest.mark.parametrize("is_whole", [True, False])
def test_ddl_is_undone_with_its_transaction_or_to_a_savepoint(is_whole):
    source = keyed()
    with contextlib.suppress(ZeroDivisionError), source.transaction() as transaction:
        transaction.insert("s.t", id="2")
        with contextlib.nullcontext() if is_whole else transaction.rolled_back():
            transaction.add_column("s.t", "b", "old")
            transaction.insert("s.t", id="3", b="new")
            transaction.drop_column("s.t", "a")
            transaction.delete("s.t", {"id": "1"})
        transaction.insert("s.t", id="4")
        if is_whole:
            raise ZeroDivisionError
    assert source.rows("s.t") == ((b"1", b"x"), *(() if is_whole else ((b"2", None), (b"4", None))))
    assert recorded(source) == []
    source.add_column("s.t", "b", ddl=True)
    assert [part.number for part in DdlRecord.of(recorded(source)[0].content).delta.added] == [3]


@pytest.mark.parametrize(
    ("method", "columns"), [("drop_column", ["id"]), ("drop_column", ["z"]), ("rename_column", ["a", "id"])]
)
def test_impossible_change_of_columns_is_refused_and_changes_nothing(method, columns):
    source = keyed()
    with pytest.raises(ConfigError), source.transaction() as transaction:
        getattr(transaction, method)("s.t", *columns)
    assert source.rows("s.t") == ((b"1", b"x"),)
    assert recorded(source) == []
