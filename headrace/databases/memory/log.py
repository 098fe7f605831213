"""The log of the in-memory database: its own byte format, written and read.

The log is a sequence of frames: length of the body (4 bytes), kind (1 byte), body; integers little-endian.

    B begin     order_scn 8, commit time 8, transaction id 8
    O tag       JSON; follows the begin of a tagged transaction, as a separate frame like PostgreSQL's origin
    R table     description as JSON
    I U D       object number 8, old image 1, then the old tuple (if the image is not NONE) and the new one (not for D):
                columns 2, per value its kind (n NULL, u UNCHANGED, t text, b binary) and for t and b length 4, bytes
    T truncate  JSON
    M message   JSON
    C commit    commit_scn 8
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ProtocolError
from headrace.databases.ports import DecodedChunk, StreamOptions
from headrace.lcr.batch import Column, Command, OldImage, TableVersion
from headrace.lcr.tags import Tag
from headrace.lcr.tracking import TRACK_PREFIX
from headrace.lcr.values import NULL, UNCHANGED

__all__ = ["Change", "Committed", "MemoryLogDecoder", "Row", "frames_of", "is_truncate"]

Row = tuple[bytes | None, ...]

_FRAME = struct.Struct("<IB")
_BEGIN = struct.Struct("<qqq")
_CHANGE = struct.Struct("<qB")
_COUNT = struct.Struct("<H")
_LENGTH = struct.Struct("<i")
_SCN = struct.Struct("<q")

_COMMANDS = {ord("I"): Command.INSERT, ord("U"): Command.UPDATE, ord("D"): Command.DELETE}
_KINDS = {command: kind for kind, command in _COMMANDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row change, or a TRUNCATE."""

    command: Command
    version: TableVersion
    old: Row | None = None
    new: Row | None = None
    unchanged: frozenset[int] = frozenset()
    truncated: tuple[TableVersion, ...] = ()
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A transaction in the log."""

    order_scn: int
    commit_scn: int
    commit_time_us: int
    transaction_id: int
    tag: Tag | None
    changes: tuple[Change, ...]
    message: tuple[str, bytes] | None = None
    labels: tuple[str, ...] = ()  # of a tracked transaction


# --------------------------------------------------------------------------- writing


def frames_of(transaction: Committed, described: dict[int, TableVersion]) -> Iterator[tuple[bytes, int, int]]:
    """Encode a transaction as frames.

    Args:
        transaction: the transaction.
        described: tables that the stream has described, by object number; new ones are added.

    Returns:
        (bytes, object it describes or 0, commit SCN or 0) of each frame.
    """
    tag = transaction.tag
    yield _frame("B", _BEGIN.pack(transaction.order_scn, transaction.commit_time_us, transaction.transaction_id)), 0, 0
    if tag is not None:
        yield _frame("O", json.dumps([tag.value.hex(), tag.topology, tag.apply]).encode()), 0, 0
    for label in transaction.labels:
        yield _message_frame(TRACK_PREFIX, label.encode()), 0, 0
    for change in transaction.changes:
        for version in change.truncated or (change.version,):
            if described.get(version.object_number) != version:
                described[version.object_number] = version
                yield _frame("R", _describe(version)), version.object_number, 0
        yield _encode_change(change), 0, 0
    if transaction.message is not None:
        yield _message_frame(*transaction.message), 0, 0
    yield _frame("C", _SCN.pack(transaction.commit_scn)), 0, transaction.commit_scn


def is_truncate(frame: bytes) -> bool:
    """Whether a frame of `frames_of` is a TRUNCATE."""
    return bool(_FRAME.unpack_from(frame)[1] == ord("T"))


def _message_frame(prefix: str, content: bytes) -> bytes:
    return _frame("M", json.dumps([prefix, base64.b64encode(content).decode()]).encode())


def _frame(kind: str, body: bytes) -> bytes:
    return _FRAME.pack(len(body), ord(kind)) + body


def _describe(version: TableVersion) -> bytes:
    columns = [[c.name, c.type_name, c.type_number, c.type_modifier, c.is_key, c.is_binary] for c in version.columns]
    return json.dumps([version.object_number, version.owner, version.name, int(version.old_image), columns]).encode()


def _encode_change(change: Change) -> bytes:
    if change.command is Command.TRUNCATE:
        numbers = [version.object_number for version in change.truncated]
        return _frame("T", json.dumps([numbers, change.cascade, change.restart_identity]).encode())
    columns, old, image = change.version.columns, change.old, OldImage.NONE
    if old is not None:
        image = change.version.old_image
        is_same_key = change.new is not None and all(
            before == after for before, after, c in zip(old, change.new, columns, strict=True) if c.is_key
        )
        if image is OldImage.KEY and is_same_key:
            image = OldImage.NONE
        if image is OldImage.KEY:
            old = tuple(value if column.is_key else None for value, column in zip(old, columns, strict=True))
    body = _CHANGE.pack(change.version.object_number, image)
    if image is not OldImage.NONE and old is not None:
        body += _encode_tuple(old, columns, frozenset())
    if change.new is not None:
        body += _encode_tuple(change.new, columns, change.unchanged)
    return _frame(chr(_KINDS[change.command]), body)


def _encode_tuple(row: Row, columns: tuple[Column, ...], unchanged: frozenset[int]) -> bytes:
    parts = [_COUNT.pack(len(row))]
    for place, (value, column) in enumerate(zip(row, columns, strict=True)):
        if place in unchanged:
            parts.append(b"u")
        elif value is None:
            parts.append(b"n")
        else:
            parts += [b"b" if column.is_binary else b"t", _LENGTH.pack(len(value)), value]
    return b"".join(parts)


# --------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Open:
    transaction_id: int
    order_scn: int
    commit_time_us: int
    tag: Tag | None = None


class _Chunk:
    """Collects the results of one `decode` call."""

    def __init__(self) -> None:
        self.versions: list[TableVersion] = []
        self.rows: list[tuple[int, int, int, int, int]] = []  # command, object, image, old_first, new_first
        self.values: list[tuple[int, int, bool]] = []  # offset, length, binary
        self.truncates: dict[int, tuple[tuple[int, ...], bool, bool]] = {}
        self.transactions: list[list[int]] = []  # id, order_scn, commit_scn, time, tag, first_row
        self.tags: list[Tag] = []
        self.messages: list[tuple[int, str, bytes]] = []

    def begin(self, transaction: _Open) -> None:
        self.transactions.append(
            [transaction.transaction_id, transaction.order_scn, 0, transaction.commit_time_us, -1, len(self.rows)]
        )
        if transaction.tag is not None:
            self.set_tag(transaction.tag)

    def set_tag(self, tag: Tag) -> None:
        if tag not in self.tags:
            self.tags.append(tag)
        self.transactions[-1][4] = self.tags.index(tag)

    def finish(self, consumed: int, *, continues: bool) -> DecodedChunk:
        rows = np.array(self.rows, np.int64).reshape(-1, 5)
        values = np.array([value[:2] for value in self.values], np.int64).reshape(-1, 2)
        transactions = np.array(self.transactions, np.int64).reshape(-1, 6)
        return DecodedChunk(
            consumed=consumed,
            versions=tuple(self.versions),
            command=rows[:, 0].astype(np.uint8),
            object_number=rows[:, 1].copy(),
            old_image=rows[:, 2].astype(np.uint8),
            old_first=rows[:, 3].copy(),
            new_first=rows[:, 4].copy(),
            value_offset=values[:, 0].copy(),
            value_length=values[:, 1].astype(np.int32),
            value_binary=np.array([value[2] for value in self.values], np.bool_),
            truncates=self.truncates,
            transaction_id=transactions[:, 0].copy(),
            order_scn=transactions[:, 1].copy(),
            commit_scn=transactions[:, 2].copy(),
            commit_time_us=transactions[:, 3].copy(),
            tag=transactions[:, 4].astype(np.int16),
            first_row=np.append(transactions[:, 5], len(self.rows)).astype(np.int32),
            tags=tuple(self.tags),
            continues=continues,
            messages=tuple(self.messages),
        )


class MemoryLogDecoder:
    """An in-memory database's `headrace.databases.ports.LogDecoder`."""

    def __init__(self, options: StreamOptions | None = None) -> None:
        self._options = options
        self._open: _Open | None = None

    def reset(self) -> None:
        """See `LogDecoder.reset`."""
        self._open = None

    def describe(self, data: NDArray[np.uint8]) -> tuple[TableVersion, ...]:
        """See `LogDecoder.describe`."""
        raw = data.tobytes()
        return tuple(_parse_description(raw[a:b]) for kind, a, b in _frames(raw, 0) if kind == ord("R"))

    def decode(self, data: NDArray[np.uint8], start: int, *, rows_max: int) -> DecodedChunk:
        """See `LogDecoder.decode`."""
        raw, chunk, continues, consumed = data.tobytes(), _Chunk(), self._open is not None, start
        if self._open is not None:
            chunk.begin(self._open)
        for kind, body, end in _frames(raw, start):
            is_row = kind in _COMMANDS or kind == ord("T")
            if (is_row and len(chunk.rows) >= rows_max) or (kind == ord("R") and chunk.rows):
                break
            if kind == ord("R"):
                chunk.versions.append(_parse_description(raw[body:end]))
            elif kind == ord("B"):
                self._begin(raw[body:end], chunk)
            elif self._open is None:
                raise ProtocolError(f"a record of kind {kind} outside a transaction", offset=body)
            elif kind == ord("O"):
                value, topology, apply = json.loads(raw[body:end])
                self._open.tag = Tag(value=bytes.fromhex(value), topology=topology, apply=apply)
                chunk.set_tag(self._open.tag)
            elif kind == ord("C"):
                chunk.transactions[-1][2] = _SCN.unpack_from(raw, body)[0]
                self._open = None
            elif kind == ord("M"):
                prefix, content = json.loads(raw[body:end])
                chunk.messages.append((self._open.order_scn, prefix, base64.b64decode(content)))
            elif is_row:
                _parse_change(raw, kind, body, end, chunk)
            else:
                raise ProtocolError(f"a record of unknown kind {kind}", offset=body)
            consumed = end
        return chunk.finish(consumed - start, continues=continues)

    def _begin(self, body: bytes, chunk: _Chunk) -> None:
        if self._open is not None:
            raise ProtocolError("a transaction begins within another one", scn=self._open.order_scn)
        order_scn, time_us, transaction_id = _BEGIN.unpack_from(body)
        self._open = _Open(transaction_id, order_scn, time_us)
        chunk.begin(self._open)


def _frames(raw: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, start of the body, end of the body) of every frame."""
    place = start
    while place < len(raw):
        if place + _FRAME.size > len(raw):
            raise ProtocolError("the log ends within a message", offset=place)
        length, kind = _FRAME.unpack_from(raw, place)
        body = place + _FRAME.size
        if body + length > len(raw):
            raise ProtocolError("the log ends within a message", offset=place)
        yield kind, body, body + length
        place = body + length


def _parse_description(body: bytes) -> TableVersion:
    number, owner, name, old_image, columns = json.loads(body)
    return TableVersion(
        object_number=number,
        version=0,
        owner=owner,
        name=name,
        old_image=OldImage(old_image),
        columns=tuple(
            Column(name=c[0], type_name=c[1], type_number=c[2], type_modifier=c[3], is_key=c[4], is_binary=c[5])
            for c in columns
        ),
    )


def _parse_change(raw: bytes, kind: int, body: int, end: int, chunk: _Chunk) -> None:
    if kind == ord("T"):
        numbers, cascade, restart_identity = json.loads(raw[body:end])
        chunk.truncates[len(chunk.rows)] = (tuple(numbers), cascade, restart_identity)
        chunk.rows.append((Command.TRUNCATE, numbers[0], OldImage.NONE, -1, -1))
        return
    number, image = _CHANGE.unpack_from(raw, body)
    place, old_first, new_first = body + _CHANGE.size, -1, -1
    if image != OldImage.NONE:
        old_first = len(chunk.values)
        place = _parse_tuple(raw, place, chunk.values)
    if _COMMANDS[kind] is not Command.DELETE:
        new_first = len(chunk.values)
        place = _parse_tuple(raw, place, chunk.values)
    if place != end:
        raise ProtocolError("a row change does not fill its message", offset=body)
    chunk.rows.append((_COMMANDS[kind], number, image, old_first, new_first))


def _parse_tuple(raw: bytes, place: int, values: list[tuple[int, int, bool]]) -> int:
    (count,) = _COUNT.unpack_from(raw, place)
    place += _COUNT.size
    for _ in range(count):
        kind = raw[place]
        place += 1
        if kind in b"tb":
            (length,) = _LENGTH.unpack_from(raw, place)
            place += _LENGTH.size
            values.append((place, length, kind == ord("b")))
            place += length
        else:
            values.append((0, NULL if kind == ord("n") else UNCHANGED, False))
    return place
