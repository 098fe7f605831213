"""Encoding of LCR batches, and their headers, which queues read.

Longer than 500 lines: encoding and decoding must be seen side by side.

`encode` and `decode` are inverse for every batch that keeps the promises of `headrace.lcr.batch`. Data from the wire is
checked before it is used: every index in range, every length fitting its data, every row in exactly one place. The checks
are vectorised and cost a few microseconds per array, so they are always on.

Arrays of a decoded batch are aligned and writable, like those of a newly made batch. Numba compiles separate machine code
for each kind of array, and a read-only array would be another kind.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from headrace.base.errors import ProtocolError
from headrace.lcr.batch import (
    Column,
    Command,
    LcrBatch,
    OldImage,
    Partition,
    RowGroup,
    TableVersion,
    Transactions,
    Truncate,
)
from headrace.lcr.ddl import DdlChange
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, ColumnValues
from headrace.links.ports import BatchHeader, header_of
from protos import lcr_pb2
from protos.labels import labels_from_messages, labels_to_messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Buffer = bytes | memoryview

__all__ = ["decode", "encode", "header_from_message", "header_to_message", "read_header", "scn_from_message"]

_HEADER_TAG = 0x0A  # field 1, length-delimited: the first byte of every batch that `encode` wrote
_VARINT_BYTES_MAX = 10  # 64 bits, seven per byte
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_LITTLE_ENDIAN = {kind: np.dtype(kind).newbyteorder("<") for kind in (np.uint8, np.int16, np.int32, np.int64)}
# A version takes 3 KB with ten columns, 15 KB with fifty. A table has a new version with each ALTER, and a version that
# was dropped from the cache is read again.
_TABLES_KEPT = 1024

_Message = TypeVar("_Message", bound=Message)


def header_to_message(header: BatchHeader) -> lcr_pb2.BatchHeader:
    """Turn a header into its message (`lcr_pb2.BatchHeader`)."""
    message = lcr_pb2.BatchHeader(
        source=header.source,
        previous_scn=header.previous_scn,
        through_scn=header.through_scn,
        continues=header.continues,
        is_open=header.is_open,
        transaction_count=header.transaction_count,
        row_count=header.row_count,
        last_commit_time_us=header.last_commit_time_us,
    )
    if header.labels:
        message.labels.extend(labels_to_messages(header.labels))
    return message


def header_from_message(message: lcr_pb2.BatchHeader) -> BatchHeader:
    """Turn the message (`lcr_pb2.BatchHeader`) into a header.

    Raises:
        ProtocolError: the message contradicts itself.
    """
    header = BatchHeader(
        source=message.source,
        previous_scn=Scn(message.previous_scn),
        through_scn=Scn(message.through_scn),
        continues=message.continues,
        is_open=message.is_open,
        transaction_count=message.transaction_count,
        row_count=message.row_count,
        last_commit_time_us=message.last_commit_time_us,
        labels=labels_from_messages(message.labels) if message.labels else (),
    )
    _check_header(header)
    return header


def scn_from_message(scn: int) -> Scn:
    """Check a position from the wire.

    Raises:
        ProtocolError: the position is negative.
    """
    if scn < 0:
        raise ProtocolError("a position from the wire is negative", scn=scn)
    return Scn(scn)


def read_header(data: bytes) -> BatchHeader:
    """Read the header of a serialized batch without touching the rest.

    Raises:
        ProtocolError: the bytes are no batch.
    """
    try:
        if data[:1] != bytes([_HEADER_TAG]):
            # Another writer may order the fields differently: protobuf allows it.
            return header_from_message(lcr_pb2.LcrBatch.FromString(bytes(data)).header)
        length, start = _varint(data, 1)
        if start + length > len(data):
            _refuse("the header is cut off", length=length)
        return header_from_message(lcr_pb2.BatchHeader.FromString(bytes(data[start : start + length])))
    except DecodeError as error:
        raise ProtocolError("an LCR batch has no readable header", size=len(data)) from error


def encode(batch: LcrBatch) -> bytes:
    """Serialize a batch.

    The values are copied once, into the result. One large nested message would copy them on every level of nesting:
    measured 20 times slower on a batch of 1 MiB.

    Args:
        batch: keeps the promises of `headrace.lcr.batch`, which `decode` checks, not this function.
    """
    outline = lcr_pb2.LcrBatch(
        header=header_to_message(header_of(batch)),
        first_position=batch.first_position,
        tables=[_table_message(table) for table in batch.tables],
        tags=[lcr_pb2.Tag(value=tag.value, topology=tag.topology, apply=tag.apply) for tag in batch.tags],
        transactions=_transactions_message(batch.transactions),
    )
    pieces: list[Buffer] = [outline.SerializeToString()]
    for group in batch.groups:
        _append_group(pieces, group)
    rest = lcr_pb2.LcrBatch(
        truncates=[
            lcr_pb2.Truncate(
                row_number=truncate.row_number,
                tables=truncate.tables,
                cascade=truncate.cascade,
                restart_identity=truncate.restart_identity,
            )
            for truncate in batch.truncates
        ],
        ddl=None if batch.ddl is None else _ddl_message(batch.ddl),
    )
    pieces.append(rest.SerializeToString())
    return b"".join(pieces)


def decode(data: bytes) -> LcrBatch:
    """Read a serialized batch and check that it is consistent.

    The values are copied once, into the batch's own memory. Protobuf messages would copy them on every level of nesting,
    which takes five times as long for a batch of 1 MiB.

    Raises:
        ProtocolError: the bytes are no batch, or a batch that contradicts itself.
    """
    outline, fields = _split(
        memoryview(data), (lcr_pb2.LcrBatch.TABLES_FIELD_NUMBER, lcr_pb2.LcrBatch.GROUPS_FIELD_NUMBER)
    )
    message = _parsed(lcr_pb2.LcrBatch, outline)
    header = header_from_message(message.header)
    tables = tuple(_table(bytes(field)) for number, field in fields if number == lcr_pb2.LcrBatch.TABLES_FIELD_NUMBER)
    tags = tuple(_tag(tag) for tag in message.tags)
    transactions = _transactions(message.transactions)
    _check_transactions(transactions, header, len(tags))
    groups = tuple(_group(field, tables) for number, field in fields if number == lcr_pb2.LcrBatch.GROUPS_FIELD_NUMBER)
    truncates = tuple(
        Truncate(
            row_number=truncate.row_number,
            tables=tuple(truncate.tables),
            cascade=truncate.cascade,
            restart_identity=truncate.restart_identity,
        )
        for truncate in message.truncates
    )
    ddl = _ddl(message.ddl) if message.HasField("ddl") else None
    if ddl is None:
        _check_places(groups, truncates, header.row_count, len(tables))
    elif groups or truncates or tables or header.row_count != 1 or header.transaction_count != 1:
        _refuse("a DDL LCR is not alone in its batch", rows=header.row_count, transactions=header.transaction_count)
    if message.first_position and not header.continues:
        _refuse("a transaction that does not continue begins at a position above 0")
    return LcrBatch(
        source=header.source,
        previous_scn=header.previous_scn,
        through_scn=header.through_scn,
        continues=header.continues,
        first_position=message.first_position,
        tables=tables,
        tags=tags,
        transactions=transactions,
        groups=groups,
        truncates=truncates,
        labels=header.labels,
        ddl=ddl,
    )


# --------------------------------------------------------------------------- to messages


def _table_message(table: TableVersion) -> lcr_pb2.TableVersion:
    return lcr_pb2.TableVersion(
        object_number=table.object_number,
        version=table.version,
        owner=table.owner,
        name=table.name,
        old_image=int(table.old_image),
        columns=[
            lcr_pb2.Column(
                name=column.name,
                type_name=column.type_name,
                type_number=column.type_number,
                type_modifier=column.type_modifier,
                is_key=column.is_key,
                is_binary=column.is_binary,
                is_computed=column.is_computed,
            )
            for column in table.columns
        ],
        partition=None
        if table.partition is None
        else lcr_pb2.Partition(
            owner=table.partition.owner,
            name=table.partition.name,
            rows=table.partition.rows,
        ),
        root_number=table.root_number,
    )


def _transactions_message(transactions: Transactions) -> lcr_pb2.Transactions:
    return lcr_pb2.Transactions(
        transaction_id=_bytes(transactions.transaction_id, "<i8"),
        order_scn=_bytes(transactions.order_scn, "<i8"),
        commit_scn=_bytes(transactions.commit_scn, "<i8"),
        commit_time_us=_bytes(transactions.commit_time_us, "<i8"),
        tag=_bytes(transactions.tag, "<i2"),
        first_row=_bytes(transactions.first_row, "<i4"),
    )


def _ddl_message(change: DdlChange) -> lcr_pb2.DdlLcr:
    return lcr_pb2.DdlLcr(
        command_type=change.command_type,
        object_type=change.object_type,
        object_owner=change.object_owner,
        object_name=change.object_name,
        base_table_owner=change.base_table_owner,
        base_table_name=change.base_table_name,
        object_number=change.object_number,
        ddl_text=change.ddl_text,
        logon_user=change.logon_user,
        current_schema=change.current_schema,
        content=change.content,
    )


def _append_group(pieces: list[Buffer], group: RowGroup) -> None:
    outline = lcr_pb2.RowGroup(
        table=group.table,
        command=int(group.command),
        row_numbers=_bytes(group.row_numbers, "<i4"),
    )
    inner: list[Buffer] = [outline.SerializeToString()]
    if group.old is not None:
        _append_values(inner, lcr_pb2.RowGroup.OLD_FIELD_NUMBER, group.old)
    if group.new is not None:
        _append_values(inner, lcr_pb2.RowGroup.NEW_FIELD_NUMBER, group.new)
    _append_field(pieces, lcr_pb2.LcrBatch.GROUPS_FIELD_NUMBER, inner)


def _append_values(pieces: list[Buffer], number: int, values: ColumnValues) -> None:
    shape = lcr_pb2.ColumnValues(column_count=values.column_count, row_count=values.row_count)
    inner: list[Buffer] = [shape.SerializeToString()]
    lengths = np.ascontiguousarray(values.lengths, "<i4").reshape(-1).view(np.uint8)
    # A view may begin in the middle of a larger array; bytes outside its columns are not sent.
    data = np.ascontiguousarray(values.data[int(values.starts[0]) : int(values.starts[-1])], np.uint8)
    for field, array in (
        (lcr_pb2.ColumnValues.LENGTHS_FIELD_NUMBER, lengths),
        (lcr_pb2.ColumnValues.DATA_FIELD_NUMBER, data),
    ):
        if array.nbytes:  # like protobuf's own writer, which omits empty fields
            _append_field(inner, field, [array.data])
    _append_field(pieces, number, inner)


def _append_field(pieces: list[Buffer], number: int, inner: list[Buffer]) -> None:
    """Append a length-delimited field (wire type 2) that holds the pieces of `inner`."""
    pieces.append(_varint_bytes(number << 3 | 2) + _varint_bytes(sum(len(piece) for piece in inner)))
    pieces.extend(inner)


def _varint_bytes(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _bytes(array: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


# --------------------------------------------------------------------------- from messages


@lru_cache(_TABLES_KEPT)
def _table(data: bytes) -> TableVersion:
    """Decode a table version; all batches with it share one object, so that a lookup compares no columns."""
    message = _parsed(lcr_pb2.TableVersion, data)
    if message.old_image > max(OldImage):
        _refuse("a table version has an unknown kind of old image", old_image=message.old_image)
    return TableVersion(
        object_number=ObjectNumber(message.object_number),
        version=message.version,
        owner=message.owner,
        name=message.name,
        old_image=OldImage(message.old_image),
        columns=tuple(
            Column(
                name=column.name,
                type_name=column.type_name,
                type_number=column.type_number,
                type_modifier=column.type_modifier,
                is_key=column.is_key,
                is_binary=column.is_binary,
                # Unknown for an earlier version, to which a missing value was never an error: counts as computed.
                is_computed=column.is_computed or not column.HasField("is_computed"),
            )
            for column in message.columns
        ),
        partition=Partition(
            owner=message.partition.owner,
            name=message.partition.name,
            rows=message.partition.rows,
        )
        if message.HasField("partition")
        else None,
        root_number=ObjectNumber(message.root_number),
    )


def _tag(message: lcr_pb2.Tag) -> Tag:
    try:
        return Tag(value=message.value, topology=message.topology, apply=message.apply)
    except ValueError as error:
        raise ProtocolError("an LCR batch has a tag that is too long", length=len(message.value)) from error


def _ddl(message: lcr_pb2.DdlLcr) -> DdlChange:
    try:
        return DdlChange(
            command_type=message.command_type,
            object_type=message.object_type,
            object_owner=message.object_owner,
            object_name=message.object_name,
            base_table_owner=message.base_table_owner,
            base_table_name=message.base_table_name,
            object_number=ObjectNumber(message.object_number),
            ddl_text=message.ddl_text,
            logon_user=message.logon_user,
            current_schema=message.current_schema,
            content=message.content,
        )
    except ValueError as error:
        raise ProtocolError("an LCR batch has a DDL LCR that names no command or no table") from error


def _transactions(message: lcr_pb2.Transactions) -> Transactions:
    return Transactions(
        transaction_id=_array(message.transaction_id, np.int64),
        order_scn=_array(message.order_scn, np.int64),
        commit_scn=_array(message.commit_scn, np.int64),
        commit_time_us=_array(message.commit_time_us, np.int64),
        tag=_array(message.tag, np.int16),
        first_row=_array(message.first_row, np.int32),
    )


def _group(data: memoryview, tables: tuple[TableVersion, ...]) -> RowGroup:
    outline, value_fields = _split(data, (lcr_pb2.RowGroup.OLD_FIELD_NUMBER, lcr_pb2.RowGroup.NEW_FIELD_NUMBER))
    message = _parsed(lcr_pb2.RowGroup, outline)
    images = _unrepeated(value_fields)
    old, new = images.get(lcr_pb2.RowGroup.OLD_FIELD_NUMBER), images.get(lcr_pb2.RowGroup.NEW_FIELD_NUMBER)
    if message.table >= len(tables):
        _refuse("a row group references a missing table version", table=message.table)
    if message.command not in (Command.INSERT, Command.UPDATE, Command.DELETE):
        _refuse("a row group has an unknown command type", command_type=message.command)
    command = Command(message.command)
    if (old is None) != (command is Command.INSERT):
        _refuse("a row group's old values do not match its command type", command_type=command.name)
    if (new is None) != (command is Command.DELETE):
        _refuse("a row group's new values do not match its command type", command_type=command.name)
    row_numbers = _array(message.row_numbers, np.int32)
    shape = (len(tables[message.table].columns), int(row_numbers.shape[0]))
    return RowGroup(
        table=message.table,
        command=command,
        row_numbers=row_numbers,
        old=None if old is None else _values(old, shape),
        new=None if new is None else _values(new, shape),
    )


def _values(field: memoryview, shape: tuple[int, int]) -> ColumnValues:
    outline, array_fields = _split(
        field, (lcr_pb2.ColumnValues.LENGTHS_FIELD_NUMBER, lcr_pb2.ColumnValues.DATA_FIELD_NUMBER)
    )
    message = _parsed(lcr_pb2.ColumnValues, outline)
    if (message.column_count, message.row_count) != shape:
        _refuse("a row group's values have another shape than its rows and columns")
    arrays = _unrepeated(array_fields)
    lengths = _array(arrays.get(lcr_pb2.ColumnValues.LENGTHS_FIELD_NUMBER, b""), np.int32)
    if lengths.shape[0] != shape[0] * shape[1]:
        _refuse("a row group's lengths have another shape than its rows and columns")
    if lengths.size and int(lengths.min()) < ABSENT:
        _refuse("a value has an impossible length", length=int(lengths.min()))
    lengths = lengths.reshape(shape)
    data = _array(arrays.get(lcr_pb2.ColumnValues.DATA_FIELD_NUMBER, b""), np.uint8)
    starts = np.zeros(shape[0] + 1, np.int64)
    np.maximum(lengths, 0).sum(axis=1, dtype=np.int64).cumsum(out=starts[1:])
    if int(starts[-1]) != data.shape[0]:
        _refuse("a row group's lengths do not add up to its data", expected=int(starts[-1]), found=data.shape[0])
    return ColumnValues(lengths=lengths, data=data, starts=starts)


def _array(data: Buffer, dtype: type[np.uint8 | np.int16 | np.int32 | np.int64]) -> NDArray[Any]:
    kind = _LITTLE_ENDIAN[dtype]
    if len(data) % kind.itemsize:
        _refuse("an array ends in the middle of an element", size=len(data), element=kind.itemsize)
    # The bytearray makes the array writable (the module says why).
    return np.frombuffer(bytearray(data), dtype=kind)


# --------------------------------------------------------------------------- checks


def _check_header(header: BatchHeader) -> None:
    if not header.source:
        _refuse("an LCR batch names no source")
    if not 0 <= header.previous_scn <= header.through_scn:
        _refuse(
            "an LCR batch goes backwards",
            previous_scn=header.previous_scn,
            through_scn=header.through_scn,
        )
    if header.is_open and header.through_scn != header.previous_scn:
        _refuse("an open transaction moves the position", through_scn=header.through_scn)
    if (header.is_open or header.continues) and header.transaction_count != 1:
        _refuse("a part of a large transaction holds other transactions", transactions=header.transaction_count)
    if header.row_count and not header.transaction_count:
        _refuse("an LCR batch has rows without a transaction", rows=header.row_count)


def _check_transactions(transactions: Transactions, header: BatchHeader, tag_count: int) -> None:
    count = len(transactions)
    arrays = (transactions.order_scn, transactions.commit_scn, transactions.commit_time_us, transactions.tag)
    if any(array.shape[0] != count for array in arrays) or transactions.first_row.shape[0] != count + 1:
        _refuse("the arrays of the transactions have different lengths")
    if count != header.transaction_count:
        _refuse("header and transactions differ in number", header=header.transaction_count, found=count)
    first_row = transactions.first_row
    if int(first_row[0]) != 0 or int(first_row[-1]) != header.row_count or bool((first_row[1:] < first_row[:-1]).any()):
        _refuse("the transactions do not share the rows among them", rows=header.row_count)
    if not count:
        return
    if int(transactions.tag.min()) < -1 or int(transactions.tag.max()) >= tag_count:
        _refuse("a transaction references a missing tag", tags=tag_count)
    _check_scns(transactions, header)


def _check_scns(transactions: Transactions, header: BatchHeader) -> None:
    order, commit = transactions.order_scn, transactions.commit_scn
    if bool((order[1:] <= order[:-1]).any()):
        _refuse("the transactions are not in commit order")
    if header.is_open != (int(commit[-1]) == 0):
        _refuse("header and transactions differ on whether the last one is open")
    committed = len(transactions) - header.is_open
    if bool((commit[:committed] <= order[:committed]).any()):
        _refuse("a transaction commits before it began to commit")
    if committed and int(commit[committed - 1]) > header.through_scn:
        _refuse(
            "a transaction commits after the position of its batch",
            commit_scn=int(commit[committed - 1]),
            through_scn=header.through_scn,
        )


def _check_places(
    groups: tuple[RowGroup, ...], truncates: tuple[Truncate, ...], row_count: int, table_count: int
) -> None:
    """Check that every row of the batch has exactly one place, and that the rows of a group are in source order."""
    placed = len(truncates) + sum(group.row_count for group in groups)
    if placed != row_count:
        _refuse("the number of rows differs from the number of places", rows=row_count, places=placed)
    taken = np.zeros(row_count, np.bool_)
    for group in groups:
        numbers = group.row_numbers
        if not numbers.size:
            continue
        if int(numbers[0]) < 0 or int(numbers[-1]) >= row_count or bool((numbers[1:] <= numbers[:-1]).any()):
            _refuse("a row group's rows are not in order or not in the batch", rows=row_count)
        taken[numbers] = True
    for truncate in truncates:
        if truncate.row_number >= row_count or not truncate.tables or max(truncate.tables) >= table_count:
            _refuse("a TRUNCATE has no place or no table in the batch", row_number=truncate.row_number)
        taken[truncate.row_number] = True
    if not bool(taken.all()):
        _refuse("two row LCRs have the same place", rows=row_count)


# --------------------------------------------------------------------------- the wire format below messages


def _split(data: memoryview, numbers: tuple[int, ...]) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """Separate the length-delimited fields with these numbers from a serialized message, without copying them.

    Returns:
        The rest of the message, and (number, content) of each separated field, in order.
    """
    left: list[memoryview] = []
    taken: list[tuple[int, memoryview]] = []
    place, end = 0, len(data)
    while place < end:
        key, content = _varint(data, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 2:
            length, content = _varint(data, content)
            after = content + length
        elif wire_type == 0:
            _, after = _varint(data, content)
        elif wire_type in _FIXED_BYTES:
            after = content + _FIXED_BYTES[wire_type]
        else:
            _refuse("a field has an unknown wire type", wire_type=wire_type)
        if after > end:
            _refuse("a field is cut off", field=number)
        if wire_type == 2 and number in numbers:
            taken.append((number, data[content:after]))
        else:
            left.append(data[place:after])
        place = after
    return b"".join(left), taken


def _unrepeated(fields: list[tuple[int, memoryview]]) -> dict[int, memoryview]:
    if len({number for number, _ in fields}) != len(fields):
        _refuse("a field that may occur only once is repeated")
    return dict(fields)


def _parsed(kind: type[_Message], data: bytes) -> _Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError("the bytes are no LCR batch", size=len(data)) from error


def _varint(data: Buffer, start: int) -> tuple[int, int]:
    if start < len(data) and data[start] < 0x80:  # the usual case
        return data[start], start + 1
    value = shift = 0
    for place in range(start, min(len(data), start + _VARINT_BYTES_MAX)):
        value |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return value, place + 1
        shift += 7
    return _refuse("a number is cut off", size=len(data))


def _refuse(problem: str, **context: str | int) -> NoReturn:
    raise ProtocolError(f"an LCR batch from the wire is damaged: {problem}", hint="", **context)
