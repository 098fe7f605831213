"""The codec: a batch survives encoding and decoding, and damaged bytes are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ProtocolError
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import NO_OBJECT, ObjectNumber
from headrace.links.ports import header_of
from protos import codec, lcr_pb2
from tests.support.values.ddl_changes import ddl_batch, ddl_batches
from tests.support.values.lcr_batches import assert_same_batch, insert_batch, lcr_batches


@pytest.mark.seeded
@given(lcr_batches() | ddl_batches())
def test_decoded_batch_equals_the_encoded_one(batch: LcrBatch) -> None:
    assert_same_batch(codec.decode(codec.encode(batch)), batch)


@pytest.mark.seeded
@given(lcr_batches() | ddl_batches())
def test_header_read_from_the_bytes_equals_the_header_of_the_batch(batch: LcrBatch) -> None:
    assert codec.read_header(codec.encode(batch)) == header_of(batch)


@pytest.mark.seeded
@given(lcr_batches() | ddl_batches())
def test_encoded_bytes_are_those_of_the_protobuf_library(batch: LcrBatch) -> None:
    serialized = codec.encode(batch)
    assert lcr_pb2.LcrBatch.FromString(serialized).SerializeToString(deterministic=True) == serialized


def test_batch_of_an_earlier_version_has_no_table_identities() -> None:
    batch = insert_batch([10])
    written = replace(batch, tables=(replace(batch.tables[0], root_number=ObjectNumber(777)),))
    message = lcr_pb2.LcrBatch.FromString(codec.encode(written))
    message.tables[0].ClearField("root_number")
    (version,) = codec.decode(message.SerializeToString()).tables
    assert (version.root_number, version.table_number) == (NO_OBJECT, batch.tables[0].object_number)


def test_columns_of_an_earlier_versions_batch_count_as_computed() -> None:
    batch = insert_batch([10])
    computed = replace(batch.tables[0].columns[0], is_computed=True)
    written = replace(batch, tables=(replace(batch.tables[0], columns=(computed, *batch.tables[0].columns[1:])),))
    assert [column.is_computed for column in codec.decode(codec.encode(written)).tables[0].columns] == [True, False]
    message = lcr_pb2.LcrBatch.FromString(codec.encode(written))
    for column in message.tables[0].columns:
        column.ClearField("is_computed")
    assert [column.is_computed for column in codec.decode(message.SerializeToString()).tables[0].columns] == [
        True,
        True,
    ]


def test_header_is_read_when_another_writer_put_it_last() -> None:
    batch = insert_batch([10, 20])
    message = lcr_pb2.LcrBatch.FromString(codec.encode(batch))
    header = lcr_pb2.LcrBatch(header=message.header).SerializeToString()
    message.ClearField("header")
    assert codec.read_header(message.SerializeToString() + header) == header_of(batch)


def test_header_is_read_without_the_rest_of_the_batch() -> None:
    batch = insert_batch([10, 20], rows_each=1000)
    assert codec.read_header(codec.encode(batch)[:64]) == header_of(batch)


def test_header_of_an_open_part_has_no_commit_time() -> None:
    assert header_of(insert_batch([10], is_open=True)).last_commit_time_us == 0
    assert header_of(insert_batch([10, 20])).last_commit_time_us == 20_000


def test_arrays_of_a_decoded_batch_have_the_kind_that_kernels_expect() -> None:
    batch = codec.decode(codec.encode(insert_batch([10], rows_each=3)))
    values = batch.groups[0].new
    assert values is not None
    for array in (
        values.lengths,
        values.data,
        values.starts,
        batch.groups[0].row_numbers,
        batch.transactions.first_row,
    ):
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.dtype.isnative


def test_values_outside_of_a_views_columns_are_not_sent() -> None:
    batch = insert_batch([10], rows_each=2)
    values = batch.groups[0].new
    assert values is not None
    padded = np.concatenate([np.zeros(5, np.uint8), values.data, np.zeros(7, np.uint8)])
    view = type(values)(lengths=values.lengths, data=padded, starts=values.starts + 5)
    group = type(batch.groups[0])(
        table=0, command=batch.groups[0].command, row_numbers=batch.groups[0].row_numbers, old=None, new=view
    )
    moved = LcrBatch(**{**batch.__dict__, "groups": (group,)})
    assert codec.encode(moved) == codec.encode(batch)


@pytest.mark.seeded
@given(st.binary(max_size=200))
def test_random_bytes_are_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(data)
    with pytest.raises(ProtocolError):
        codec.read_header(data)


@pytest.mark.seeded
@given(lcr_batches() | ddl_batches(), st.data())
def test_damaged_bytes_raise_only_protocol_errors(batch: LcrBatch, data: st.DataObject) -> None:
    serialized = bytearray(codec.encode(batch))
    place = data.draw(st.integers(0, len(serialized) - 1))
    serialized[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = codec.decode(bytes(serialized))
    except ProtocolError:
        return
    # A decoded batch is consistent: every row has its place, every value its bytes.
    if decoded.ddl is not None:
        assert (decoded.row_count, decoded.groups, decoded.truncates, decoded.tables) == (1, (), (), ())
    group, _ = decoded.row_places
    assert (group < len(decoded.groups)).all()
    for rows in decoded.groups:
        for values in (rows.old, rows.new):
            if values is not None:
                assert int(values.starts[-1]) == values.data.shape[0]


def _ints(values: list[int], dtype: type = np.int32) -> bytes:
    return np.array(values, dtype).tobytes()


DAMAGES = {
    "lengths beyond the data": lambda m: setattr(m.groups[0].new, "lengths", _ints([4, 4, 4, 900])),
    "negative length that means nothing": lambda m: setattr(m.groups[0].new, "lengths", _ints([4, 4, 4, -9])),
    "data cut off": lambda m: setattr(m.groups[0].new, "data", m.groups[0].new.data[:-1]),
    "half an element": lambda m: setattr(m.groups[0].new, "lengths", m.groups[0].new.lengths[:-1]),
    "fewer lengths than values": lambda m: setattr(m.groups[0].new, "lengths", _ints([4, 4, 8])),
    "another number of columns": lambda m: setattr(m.groups[0].new, "column_count", 1),
    "table that is not there": lambda m: setattr(m.groups[0], "table", 3),
    "unknown command": lambda m: setattr(m.groups[0], "command", 9),
    "TRUNCATE as a row group": lambda m: setattr(m.groups[0], "command", 4),
    "INSERT with old values": lambda m: m.groups[0].old.CopyFrom(m.groups[0].new),
    "UPDATE without old values": lambda m: setattr(m.groups[0], "command", 2),
    "row outside of the batch": lambda m: setattr(m.groups[0], "row_numbers", _ints([0, 7])),
    "row below the batch": lambda m: setattr(m.groups[0], "row_numbers", _ints([-1, 0])),
    "two rows in one place": lambda m: setattr(m.groups[0], "row_numbers", _ints([1, 1])),
    "row without a place": lambda m: m.groups.pop(),
    "TRUNCATE of a table that is not there": lambda m: m.truncates.add(row_number=1, tables=[8]),
    "transactions of different lengths": lambda m: setattr(m.transactions, "tag", _ints([-1], np.int16)),
    "tag that is not there": lambda m: setattr(m.transactions, "tag", _ints([-1, 0], np.int16)),
    "tag below NULL": lambda m: setattr(m.transactions, "tag", _ints([-1, -2], np.int16)),
    "first row that is not 0": lambda m: setattr(m.transactions, "first_row", _ints([1, 1, 2])),
    "rows going backwards": lambda m: setattr(m.transactions, "first_row", _ints([0, 3, 2])),
    "transactions out of order": lambda m: setattr(m.transactions, "order_scn", _ints([19, 9], np.int64)),
    "open transaction in the middle": lambda m: setattr(m.transactions, "commit_scn", _ints([0, 20], np.int64)),
    "open transaction the header hides": lambda m: setattr(m.transactions, "commit_scn", _ints([10, 0], np.int64)),
    "commit beyond the position": lambda m: setattr(m.transactions, "commit_scn", _ints([10, 21], np.int64)),
    "header counts other transactions": lambda m: setattr(m.header, "transaction_count", 3),
    "header counts other rows": lambda m: setattr(m.header, "row_count", 3),
    "no source": lambda m: setattr(m.header, "source", ""),
    "position going backwards": lambda m: setattr(m.header, "previous_scn", 99),
    "negative position": lambda m: setattr(m.header, "previous_scn", -1),
    "open part that moves the position": lambda m: setattr(m.header, "is_open", True),
    "part with other transactions": lambda m: setattr(m.header, "continues", True),
    "position in a transaction that does not continue": lambda m: setattr(m, "first_position", 4),
    "unknown old image": lambda m: setattr(m.tables[0], "old_image", 7),
    "tag that is too long": lambda m: m.tags.add(value=bytes(2001)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_batch_is_refused(damage: str) -> None:
    message = lcr_pb2.LcrBatch.FromString(codec.encode(insert_batch([10, 20])))
    DAMAGES[damage](message)
    with pytest.raises(ProtocolError, match=r"damaged|too long"):
        codec.decode(message.SerializeToString())


def _with_second_transaction(message: lcr_pb2.LcrBatch) -> None:
    message.header.transaction_count, message.header.through_scn = 2, 20
    for name, array in (
        ("transaction_id", _ints([1, 2], np.int64)),
        ("order_scn", _ints([9, 19], np.int64)),
        ("commit_scn", _ints([10, 20], np.int64)),
        ("commit_time_us", _ints([0, 0], np.int64)),
        ("tag", _ints([-1, -1], np.int16)),
        ("first_row", _ints([0, 0, 1])),
    ):
        setattr(message.transactions, name, array)


def _with_rows(message: lcr_pb2.LcrBatch, count: int) -> None:
    message.header.row_count, message.transactions.first_row = count, _ints([0, count])


_ROWS = lcr_pb2.LcrBatch.FromString(codec.encode(insert_batch([10])))

DDL_DAMAGES = {
    # what a version sees that does not know DDL LCRs: it stops, it does not go on without the change
    "LCR that is not there": lambda m: m.ClearField("ddl"),
    "row beside it": lambda m: m.MergeFrom(lcr_pb2.LcrBatch(tables=_ROWS.tables, groups=_ROWS.groups)),
    "table beside it": lambda m: m.MergeFrom(lcr_pb2.LcrBatch(tables=_ROWS.tables)),
    "TRUNCATE beside it": lambda m: m.truncates.add(row_number=0, tables=[0]),
    "another transaction beside it": _with_second_transaction,
    "no row": lambda m: _with_rows(m, 0),
    "two rows": lambda m: _with_rows(m, 2),
    "no table": lambda m: setattr(m.ddl, "base_table_name", ""),
    "no schema": lambda m: setattr(m.ddl, "base_table_owner", ""),
    "no command": lambda m: setattr(m.ddl, "command_type", ""),
    "no number": lambda m: setattr(m.ddl, "object_number", 0),
}


@pytest.mark.parametrize("damage", DDL_DAMAGES)
def test_damaged_batch_with_a_ddl_lcr_is_refused(damage: str) -> None:
    message = lcr_pb2.LcrBatch.FromString(codec.encode(ddl_batch()))
    codec.decode(message.SerializeToString())
    DDL_DAMAGES[damage](message)
    with pytest.raises(ProtocolError, match=r"damaged|names no"):
        codec.decode(message.SerializeToString())


def test_batch_without_a_ddl_lcr_has_no_field_of_it() -> None:
    serialized = codec.encode(insert_batch([10]))
    assert not lcr_pb2.LcrBatch.FromString(serialized).HasField("ddl")
    assert codec.decode(serialized).ddl is None
