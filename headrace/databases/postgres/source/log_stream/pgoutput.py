"""The log decoder of PostgreSQL: framed pgoutput messages (protocol version 1) to arrays.

`pgoutput_kernels.decode` does the work. This module handles the rare messages: table descriptions ('R'), names of
user-defined types ('Y', right before the description that needs them), new origins ('O'), TRUNCATE ('T') and messages
('M').
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import ProtocolError
from headrace.databases.ports import DecodedChunk, StreamOptions
from headrace.databases.postgres.origins import TAG_PREFIX, tag_of_message, tag_of_origin
from headrace.databases.postgres.source.log_stream import pgoutput_kernels as kernels
from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.lcr.batch import Column, OldImage, TableVersion, content_version
from headrace.lcr.scn import ObjectNumber

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.lcr.tags import Tag

__all__ = ["PostgresLogDecoder"]

# One scratch array for values, reused; no row can have more values (1600 columns, old and new).
_VALUES_MAX = 1 << 20
# Users' tags of single transactions are dropped at this number; it is far more than a topology has.
_TAGS_KEPT = 1 << 10
_TAGS_MAX = 1 << 14  # per chunk, whose transactions refer to them by 16 bits; a chunk ends early at more
_ROWS_MIN = 1 << 10  # minimum length of scratch arrays


class PostgresLogDecoder:
    """PostgreSQL's `headrace.databases.ports.LogDecoder`.

    Between calls it keeps the transaction in progress, the names of user-defined types, and all tables described and
    origins seen so far. `reset` drops only the transaction.

    Args:
        options: of the stream that the bytes came from.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._binary = options.binary
        self._encoding = "utf-8"  # of names: the session's client_encoding, not the database's
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._changed_before = False  # the open transaction has rows in an earlier chunk
        self._type_names: dict[int, str] = {}
        self._tables: dict[int, TableVersion] = {}
        self._origins: list[tuple[bytes, int]] = []
        self._tags: list[Tag] = []
        self._tag_numbers: dict[Tag, int] = {}
        self._versions: dict[int, TableVersion] = {}
        self._truncates: dict[int, tuple[tuple[int, ...], bool, bool]] = {}
        self._messages: list[tuple[int, str, bytes]] = []
        self._scratch = _Scratch(_ROWS_MIN)
        # Numbers of the described tables; start of each one's columns in the third array (and the end of the last);
        # their forms.
        self._table_index = (np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.uint8))
        self._index_origins()

    def reset(self) -> None:
        """See `LogDecoder.reset`."""
        self._state[:] = 0
        self._changed_before = False

    def decode(self, data: NDArray[np.uint8], start: int, *, rows_max: int) -> DecodedChunk:
        """See `LogDecoder.decode`. May stop early: repeat until `consumed` covers the data.

        Raises:
            ProtocolError: the bytes are not whole pgoutput messages.
        """
        state = self._state
        if len(self._tags) > _TAGS_KEPT:
            self._forget_tags()
        scratch = self._scratch = self._scratch.at_least(rows_max)
        # The compiled kernels need one array type, whatever the bytes come from.
        data = data.view()
        data.flags.writeable = False
        state[kernels.STATE_POSITION] = start
        state[kernels.STATE_ROWS] = state[kernels.STATE_VALUES] = state[kernels.STATE_TRANSACTIONS] = 0
        continues = bool(state[kernels.STATE_OPEN]) and start < data.shape[0]
        if continues:
            scratch.continue_transaction(state)
        else:
            self._changed_before = False
        # A form corrected when the last call stopped belongs to this call's rows.
        versions, self._versions = self._versions, {}
        self._truncates, self._messages = {}, []
        while True:
            why = kernels.decode(
                data, state, rows_max, *scratch.arrays, *self._table_index, *self._origin_index, self._origin_tags
            )
            if why in {kernels.AT_END, kernels.FULL} or not self._handle(why, data, versions):
                break
        consumed = int(state[kernels.STATE_POSITION]) - start
        self._changed_before = bool(state[kernels.STATE_OPEN]) and self._has_changed()
        if why == kernels.AT_END and start + consumed != data.shape[0]:
            raise ProtocolError("a redo record ends inside a message", position=start + consumed)
        return scratch.chunk(
            state,
            consumed=consumed,
            continues=continues,
            versions=tuple(versions.values()),
            truncates=self._truncates,
            tags=tuple(self._tags),
            messages=tuple(self._messages),
        )

    def describe(self, data: NDArray[np.uint8]) -> tuple[TableVersion, ...]:
        """See `LogDecoder.describe`."""
        data = data.view()
        data.flags.writeable = False
        size = 64
        while True:
            starts, ends = np.empty(size, np.int64), np.empty(size, np.int64)
            found, end = kernels.find_descriptions(data, starts, ends)
            if end < 0:
                raise ProtocolError("bytes of the redo log are not pgoutput messages")
            if found <= size:
                break
            size = found
        names: dict[int, str] = {}
        versions = []
        for start, stop in zip(starts[:found].tolist(), ends[:found].tolist(), strict=True):
            message = _Message(data[start:stop].tobytes(), self._encoding)
            if data[start] == ord("Y"):
                number, name = message.type_name()
                names[number] = name
            else:
                versions.append(self._describe(message, names))
        return tuple(versions)

    # ------------------------------------------------------------------ messages that the kernel leaves to Python

    def _handle(self, why: int, data: NDArray[np.uint8], versions: dict[int, TableVersion]) -> bool:
        """Handle the message at which the kernel stopped; False: the chunk ends before it."""
        state = self._state
        has_rows = bool(state[kernels.STATE_ROWS])
        if has_rows and why in {kernels.RELATION, kernels.TYPE}:
            return False
        start, end = int(state[kernels.STATE_PAYLOAD]), int(state[kernels.STATE_FRAME_END])
        if why == kernels.BROKEN:
            raise ProtocolError("bytes of the redo log are not pgoutput messages", position=int(state[0]))
        if why == kernels.WRONG_FORM:
            object_number = int.from_bytes(data[start + 1 : start + 5].tobytes(), "big")
            version = self._correct_form(object_number, int(state[kernels.STATE_COLUMN]))
            (self._versions if has_rows else versions)[object_number] = version
            return not has_rows
        message = _Message(data[start:end].tobytes(), self._encoding)
        if why == kernels.RELATION:
            version = self._relation(message)
            # Moved to the end: a later description replaces an earlier one.
            versions.pop(version.object_number, None)
            versions[version.object_number] = version
        elif why == kernels.TYPE:
            number, name = message.type_name()
            self._type_names[number] = name
        elif why == kernels.ORIGIN:
            message.integer(8)
            self._add_origin(message.raw_text())
            return True
        elif why == kernels.TRUNCATE:
            count, flags = message.integer(4), message.integer(1)
            numbers = tuple(message.integer(4) for _ in range(count))
            self._truncates[int(state[kernels.STATE_ROWS]) - 1] = (numbers, bool(flags & 1), bool(flags & 2))
            return True
        elif why == kernels.MESSAGE:
            if len(self._tags) >= _TAGS_MAX:
                return False
            self._message(message)
        state[kernels.STATE_POSITION] = end
        return True

    def _relation(self, message: _Message) -> TableVersion:
        version = self._describe(message, self._type_names)
        known = self._tables.get(version.object_number)
        if known is not None:
            version = _with_forms(version, known)
        self._tables[version.object_number] = version
        self._index_table(version)
        return version

    def _describe(self, message: _Message, type_names: dict[int, str]) -> TableVersion:
        number, owner, name = message.integer(4), message.text() or "pg_catalog", message.text()
        identity = chr(message.integer(1))
        columns = tuple(self._column(message, type_names) for _ in range(message.integer(2)))
        if identity == "f":  # noqa: SIM108
            old_image = OldImage.FULL
        else:
            old_image = OldImage.KEY if any(column.is_key for column in columns) else OldImage.NONE
        version = TableVersion(
            object_number=ObjectNumber(number), version=0, owner=owner, name=name, columns=columns, old_image=old_image
        )
        return replace(version, version=content_version(version))

    def _column(self, message: _Message, type_names: dict[int, str]) -> Column:
        flags, name, number, modifier = message.integer(1), message.text(), message.integer(4), message.signed(4)
        builtin = BUILTIN_TYPES.get(number)
        if builtin is not None:
            type_name, has_binary = f"pg_catalog.{builtin[0]}", builtin[1]
        else:
            type_name, has_binary = type_names.get(number, f"pg_catalog.oid{number}"), True
        return Column(
            name=name,
            type_name=type_name,
            type_number=number,
            type_modifier=modifier,
            is_key=bool(flags & 1),
            is_binary=self._binary and has_binary,
        )

    def _correct_form(self, object_number: int, position: int) -> TableVersion:
        """Return the description with one type's form flipped, as its values show: the form depends on the type."""
        known = self._tables[object_number]
        number, form = known.columns[position].type_number, not known.columns[position].is_binary
        columns = tuple(replace(c, is_binary=form) if c.type_number == number else c for c in known.columns)
        version = replace(known, columns=columns)
        version = replace(version, version=content_version(version))
        self._tables[object_number] = version
        self._index_table(version)
        return version

    def _add_origin(self, name: bytes) -> None:
        tag = tag_of_origin(name.decode(self._encoding, "replace"))
        self._origins.append((name, -1 if tag is None else self._tag_number(tag)))
        self._index_origins()

    def _message(self, message: _Message) -> None:
        is_transactional, position, prefix = message.integer(1) & 1, message.integer(8), message.text()
        content = message.take(message.integer(4))
        if is_transactional and prefix == TAG_PREFIX:
            self._set_tag(tag_of_message(content))
            return
        order_scn = int(self._state[kernels.STATE_ORDER_SCN]) if is_transactional else position
        self._messages.append((order_scn, prefix, content))

    def _has_changed(self) -> bool:
        """Whether the open transaction has changed a row, in this chunk or in an earlier one."""
        transaction = int(self._state[kernels.STATE_TRANSACTIONS]) - 1
        is_continued = transaction == 0 and self._changed_before
        return is_continued or int(self._state[kernels.STATE_ROWS]) > int(self._scratch.first_row[transaction])

    def _set_tag(self, tag: Tag) -> None:
        """Tag the open transaction, as its user requests.

        A transaction has one tag. So a message after its first change has no effect: that change may already have been
        passed on without it. A transaction of an apply process keeps the apply process's tag, which prevents it from
        returning to its source.
        """
        known = int(self._state[kernels.STATE_TAG])
        if self._has_changed() or (known >= 0 and (self._tags[known].topology or self._tags[known].apply)):
            return
        number = self._state[kernels.STATE_TAG] = self._tag_number(tag)
        self._scratch.tag[int(self._state[kernels.STATE_TRANSACTIONS]) - 1] = number

    def _tag_number(self, tag: Tag) -> int:
        number = self._tag_numbers.setdefault(tag, len(self._tags))
        if number == len(self._tags):
            self._tags.append(tag)
        return number

    def _forget_tags(self) -> None:
        """Keep only the tags of origins and of the open transaction; chunks have their own copies."""
        tags, self._tags, self._tag_numbers = self._tags, [], {}
        self._origins = [
            (name, number if number < 0 else self._tag_number(tags[number])) for name, number in self._origins
        ]
        self._index_origins()
        known = int(self._state[kernels.STATE_TAG])
        if self._state[kernels.STATE_OPEN] and known >= 0:
            self._state[kernels.STATE_TAG] = self._tag_number(tags[known])

    def _index_table(self, version: TableVersion) -> None:
        """Insert a table into the index: thousands are described one by one when a stream begins."""
        objects, first, forms = self._table_index
        own = np.array([column.is_binary for column in version.columns], np.uint8)
        place = int(np.searchsorted(objects, version.object_number))
        begin = end = int(first[place])
        if place < objects.shape[0] and objects[place] == version.object_number:
            end = int(first[place + 1])
        else:
            objects, first = np.insert(objects, place, version.object_number), np.insert(first, place, begin)
        grown = own.shape[0] - (end - begin)
        first = np.concatenate([first[: place + 1], first[place + 1 :] + grown])
        self._table_index = (objects, first, np.concatenate([forms[:begin], own, forms[end:]]))

    def _index_origins(self) -> None:
        names = [name for name, _ in self._origins]
        self._origin_index = (
            np.concatenate([np.zeros(1, np.int64), np.cumsum([len(name) for name in names], dtype=np.int64)]),
            np.array(list(b"".join(names)), np.uint8),
        )
        self._origin_tags = np.array([number for _, number in self._origins], np.int16)


class _Scratch:
    """Output arrays of the kernel, reused from call to call."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        transactions = rows + 1
        self.command = np.empty(rows, np.uint8)
        self.object_number = np.empty(rows, np.int64)
        self.old_image = np.empty(rows, np.uint8)
        self.old_first = np.empty(rows, np.int64)
        self.new_first = np.empty(rows, np.int64)
        self.value_offset = np.empty(_VALUES_MAX, np.int64)
        self.value_length = np.empty(_VALUES_MAX, np.int32)
        self.value_binary = np.empty(_VALUES_MAX, np.bool_)
        self.transaction_id = np.empty(transactions, np.int64)
        self.order_scn = np.empty(transactions, np.int64)
        self.commit_scn = np.empty(transactions, np.int64)
        self.commit_time = np.empty(transactions, np.int64)
        self.tag = np.empty(transactions, np.int16)
        self.first_row = np.empty(transactions + 1, np.int32)
        self.arrays = (
            self.command,
            self.object_number,
            self.old_image,
            self.old_first,
            self.new_first,
            self.value_offset,
            self.value_length,
            self.value_binary,
            self.transaction_id,
            self.order_scn,
            self.commit_scn,
            self.commit_time,
            self.tag,
            self.first_row,
        )

    def at_least(self, rows: int) -> _Scratch:
        return self if rows <= self.rows else _Scratch(rows)

    def continue_transaction(self, state: NDArray[np.int64]) -> None:
        """Begin with the transaction that was open."""
        self.transaction_id[0] = state[kernels.STATE_TRANSACTION_ID]
        self.order_scn[0] = state[kernels.STATE_ORDER_SCN]
        self.commit_scn[0] = 0
        self.commit_time[0] = state[kernels.STATE_COMMIT_TIME]
        self.tag[0] = state[kernels.STATE_TAG]
        self.first_row[0] = 0
        state[kernels.STATE_TRANSACTIONS] = 1

    def chunk(
        self,
        state: NDArray[np.int64],
        *,
        consumed: int,
        continues: bool,
        versions: tuple[TableVersion, ...],
        truncates: dict[int, tuple[tuple[int, ...], bool, bool]],
        tags: tuple[Tag, ...],
        messages: tuple[tuple[int, str, bytes], ...],
    ) -> DecodedChunk:
        rows, values = int(state[kernels.STATE_ROWS]), int(state[kernels.STATE_VALUES])
        transactions = int(state[kernels.STATE_TRANSACTIONS])
        self.first_row[transactions] = rows
        return DecodedChunk(
            consumed=consumed,
            versions=versions,
            command=self.command[:rows].copy(),
            object_number=self.object_number[:rows].copy(),
            old_image=self.old_image[:rows].copy(),
            old_first=self.old_first[:rows].copy(),
            new_first=self.new_first[:rows].copy(),
            value_offset=self.value_offset[:values].copy(),
            value_length=self.value_length[:values].copy(),
            value_binary=self.value_binary[:values].copy(),
            truncates=truncates,
            transaction_id=self.transaction_id[:transactions].copy(),
            order_scn=self.order_scn[:transactions].copy(),
            commit_scn=self.commit_scn[:transactions].copy(),
            commit_time_us=self.commit_time[:transactions].copy(),
            tag=self.tag[:transactions].copy(),
            first_row=self.first_row[: transactions + 1].copy(),
            tags=tags,
            continues=continues,
            messages=messages,
        )


class _Message:
    """Reads one pgoutput message's fields, in order, after its kind byte."""

    def __init__(self, data: bytes, encoding: str) -> None:
        self._data, self._at, self._encoding = data, 1, encoding

    def take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise ProtocolError("a pgoutput message is shorter than it says", kind=chr(self._data[0]))
        self._at += length
        return taken

    def integer(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def signed(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big", signed=True)

    def raw_text(self) -> bytes:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a name in a pgoutput message does not end", kind=chr(self._data[0]))
        taken = self._data[self._at : end]
        self._at = end + 1
        return taken

    def type_name(self) -> tuple[int, str]:
        """Read a whole 'Y' message: the type's number and qualified name; for a domain the name is the base type's."""
        number, owner, name = self.integer(4), self.text(), self.text()
        return number, f"{owner or 'pg_catalog'}.{name}"

    def text(self) -> str:
        return self.raw_text().decode(self._encoding, "replace")


def _with_forms(version: TableVersion, known: TableVersion) -> TableVersion:
    """Keep what values have shown: user-defined types without a binary form stay in text form."""
    in_text = {c.type_number for c in known.columns if not c.is_binary and c.type_number not in BUILTIN_TYPES}
    if not in_text:
        return version
    columns = tuple(replace(c, is_binary=False) if c.type_number in in_text else c for c in version.columns)
    version = replace(version, columns=columns)
    return replace(version, version=content_version(version))
