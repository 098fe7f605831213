"""Redo records: the unit that is checksummed, fsynced and skipped.

A record is a fixed header followed by its payload. The header has its own checksum and carries the payload's. So a
reader may read headers only and still detect every flipped bit in what it used. These two checksums find damage in the
middle of a finished segment; the footer's checksum does not, for the reason given at `SegmentFooter`. All integers are
little-endian.

    magic 4 | type 1 | flags 1 | zero 2 | payload_bytes 4 | payload_crc 4 | commit_end 4 | number 4
    | end_scn 8 | last_commit_scn 8 | commit_scn 8 | written_us 8 | durable_offset 8 | transaction 4 | header_crc 4

Record types
    SEGMENT     first in every segment: format, source, and how to read the bytes (`SegmentHead`).
    DICTIONARY  a dictionary build; in a segment's head also every table version known there. Or the announcement of an
                awaited build: later descriptions in the log apply with the next build (`AwaitedBuild`, decision 41).
    DATA        unchanged bytes of the log stream: whole messages, not whole transactions.
    PROGRESS    a position without data (a keepalive).
    RESUME      a new stream begins: the open transaction is sent again as a whole.
    FOOTER      last in a closed segment, which is then complete: number of records, last SCN, header checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import google_crc32c

from headrace.databases.ports import DictionaryBuild, DictionaryTable, StreamOptions
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.scn import NO_OBJECT, ObjectNumber, Scn

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "HEAD_RECORDS",
    "MAGIC",
    "PAYLOAD_BYTES_MAX",
    "AwaitedBuild",
    "DictionarySnapshot",
    "RecordHeader",
    "RecordType",
    "SegmentFooter",
    "SegmentHead",
    "UnchangedBuild",
    "checksum",
    "decode_dictionary",
    "decode_footer",
    "decode_head",
    "encode_dictionary",
    "encode_footer",
    "encode_head",
    "fingerprint",
]

HEAD_RECORDS = 2  # of a segment: SEGMENT and DICTIONARY, created together; a file without them is no segment
FORMAT_VERSION = 2  # of segments; a reader refuses any other
MAGIC = b"HRec"
PAYLOAD_BYTES_MAX = (1 << 31) - 1  # a source value has at most 1 GB; a larger length is corrupt

_HEADER = struct.Struct("<4sBBHIIIIqqqqQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size

_OPEN_AT_START = 1
_OPEN_AT_END = 2
_HAS_DESCRIPTIONS = 4


class RecordType(IntEnum):
    """Content of a record, as listed in the module docstring."""

    SEGMENT = 1
    DICTIONARY = 2
    DATA = 3
    PROGRESS = 4
    RESUME = 5
    FOOTER = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """A record's header.

    Args:
        type: kind of the payload.
        payload_bytes: length of the payload.
        payload_crc: its CRC-32C.
        number: number of the record within its segment, from 0.
        end_scn: progress after the record: every transaction committed up to here is in redo.
        last_commit_scn: commit SCN of the last transaction that ends before the record.
        commit_scn: the last transaction that ends at or before the record's end (equal when none ends in it).
        commit_end: bytes of the payload up to the end of that last transaction; 0: none ends, or not known.
        open_at_start: a transaction is open at the beginning of the record.
        open_at_end: a transaction is open at the end of the record.
        has_descriptions: the payload contains table descriptions.
        written_us: time of writing, microseconds since the epoch.
        durable_offset: bytes of the segment that were known to be durable when the record was written. A bad record
            below the durable offset of a later one is damage; above it, it is only a torn write.
        transaction: number of the last transaction that ends at or before the record's end; 0: not known, as in redo of
            earlier versions.
    """

    type: RecordType
    payload_bytes: int
    payload_crc: int
    number: int
    end_scn: Scn
    last_commit_scn: Scn
    commit_scn: Scn
    commit_end: int = 0
    open_at_start: bool = False
    open_at_end: bool = False
    has_descriptions: bool = False
    written_us: int = 0
    durable_offset: int = 0
    transaction: int = 0

    @property
    def record_bytes(self) -> int:
        """Length of header and payload."""
        return HEADER_BYTES + self.payload_bytes

    def pack(self) -> bytes:
        """Return the header's `HEADER_BYTES` bytes."""
        flags = (
            _OPEN_AT_START * self.open_at_start
            | _OPEN_AT_END * self.open_at_end
            | _HAS_DESCRIPTIONS * self.has_descriptions
        )
        front = _HEADER.pack(
            MAGIC,
            self.type,
            flags,
            0,
            self.payload_bytes,
            self.payload_crc,
            self.commit_end,
            self.number,
            self.end_scn,
            self.last_commit_scn,
            self.commit_scn,
            self.written_us,
            self.durable_offset,
            self.transaction,
        )
        return front + _CRC.pack(checksum(front))

    @classmethod
    def unpack(cls, data: bytes) -> RecordHeader | None:
        """Read a header; None: these bytes are not an undamaged header."""
        if len(data) < HEADER_BYTES or data[:4] != MAGIC:
            return None
        front = data[: _HEADER.size]
        if _CRC.unpack_from(data, _HEADER.size)[0] != checksum(front):
            return None
        (
            _,
            kind,
            flags,
            _,
            payload_bytes,
            payload_crc,
            commit_end,
            number,
            end_scn,
            last_commit_scn,
            commit_scn,
            written_us,
            durable_offset,
            transaction,
        ) = _HEADER.unpack(front)
        if kind not in _KINDS or payload_bytes > PAYLOAD_BYTES_MAX:
            return None
        return cls(
            type=_KINDS[kind],
            payload_bytes=payload_bytes,
            payload_crc=payload_crc,
            number=number,
            end_scn=Scn(end_scn),
            last_commit_scn=Scn(last_commit_scn),
            commit_scn=Scn(commit_scn),
            commit_end=commit_end,
            open_at_start=bool(flags & _OPEN_AT_START),
            open_at_end=bool(flags & _OPEN_AT_END),
            has_descriptions=bool(flags & _HAS_DESCRIPTIONS),
            written_us=written_us,
            durable_offset=durable_offset,
            transaction=transaction,
        )


# IntEnum's own lookup costs more than the rest of unpacking.
_KINDS = {int(kind): kind for kind in RecordType}


def checksum(data: bytes, start: int = 0) -> int:
    """Return the CRC-32C of bytes, or of bytes that continue others.

    Args:
        data: the bytes.
        start: the checksum of the preceding bytes; 0: there are none.
    """
    return int(google_crc32c.extend(start, data))


def fingerprint(header: RecordHeader, before: int = 0) -> int:
    """Return a fingerprint that differs between redo logs with different records.

    It is the CRC-32C over their headers without each header's own checksum at the end. With that checksum the CRC would
    be the same for all headers, as with every CRC.

    Args:
        header: header of the next record.
        before: the fingerprint of the preceding records; 0: it is the first.
    """
    return checksum(header.pack()[: _HEADER.size], before)


# --------------------------------------------------------------------------- payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHead:
    """Payload of a SEGMENT record: everything that is needed to read the segment without its predecessors.

    Args:
        number: the segment's number.
        source: source site of the log.
        options: how to read the DATA records.
        first_scn: progress at the segment's start.
        last_commit_scn: commit SCN of the last transaction that ends before the segment.
        is_open: a transaction is open at the segment's start.
        restart_segment: segment where mining must begin to see the whole open transaction; the segment itself if none
            is open.
        created_us: microseconds since the epoch.
        last_transaction: number of the last transaction that ends before the segment; 0: not known, as in redo of
            earlier versions.
    """

    number: int
    source: str
    options: StreamOptions
    first_scn: Scn
    last_commit_scn: Scn
    is_open: bool
    restart_segment: int
    created_us: int
    last_transaction: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """Payload of a FOOTER record, which proves that nothing before it is missing.

    `header_crc` is the CRC-32C over the headers of all records before it, each with its own checksum at its end. A CRC
    over data that ends with its own CRC is a constant, so this one proves the number of headers and nothing about their
    content. A flipped bit is found by the checksums of its record. The header's is checked wherever a header is read,
    the payload's wherever a payload is read. `headrace.redo.segments.scan_segment` and the writers of copies
    (`headrace.redo.standby`) check both.
    """

    record_count: int
    last_scn: Scn
    header_crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionarySnapshot:
    """Payload of a DICTIONARY record. All fields but `build` are used only at a segment's head.

    Args:
        build: the source's objects.
        dropped: objects of older builds that the latest no longer has; redo may still hold changes of them.
        detached: partitions that are now separate tables, or another table's: owner, name and number (NO_OBJECT: not
            known) of their former table, object number.
        bounds: partitions that held other rows before: object number, SCN of the build that showed it.
        versions: table versions in force, each with the stored table's owner and name, the SCN from which it is in
            force, and the rows that a partition holds.
        awaited: the build that is awaited at the segment's beginning; None: none is.
        unresolved: object numbers of the versions in force that wait for it.
    """

    build: DictionaryBuild
    dropped: tuple[DictionaryTable, ...] = ()
    detached: tuple[tuple[str, str, ObjectNumber, ObjectNumber], ...] = ()
    bounds: tuple[tuple[ObjectNumber, Scn], ...] = ()
    versions: tuple[tuple[TableVersion, str, str, Scn, str], ...] = ()
    awaited: AwaitedBuild | None = None
    unresolved: tuple[ObjectNumber, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedBuild:
    """Payload of a DICTIONARY record that announces a build.

    The descriptions that follow it come from transactions that the next build reflects, and no earlier build.

    Args:
        describers: numbers of these transactions (`headrace.databases.ports.LogChunk.describers`).
    """

    describers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedBuild:
    """Payload of a DICTIONARY record: a build with the tables of the one before it. `scn`: SCN of the build."""

    scn: Scn


def encode_head(head: SegmentHead) -> bytes:
    """Return the payload of a SEGMENT record."""
    return _to_json(asdict(head))


def decode_head(payload: bytes) -> SegmentHead:
    """Read the payload of a SEGMENT record."""
    fields = json.loads(payload)
    options = fields["options"]
    switches = tuple((int(timeline), Scn(scn)) for timeline, scn in options.get("switches", ()))
    fields["options"] = StreamOptions(**{**options, "switches": switches})
    return SegmentHead(**fields)


def encode_footer(footer: SegmentFooter) -> bytes:
    """Return the payload of a FOOTER record."""
    return _to_json(asdict(footer))


def decode_footer(payload: bytes) -> SegmentFooter:
    """Read the payload of a FOOTER record."""
    return SegmentFooter(**json.loads(payload))


def encode_dictionary(snapshot: DictionarySnapshot | AwaitedBuild | UnchangedBuild) -> bytes:
    """Return the payload of a DICTIONARY record. Compressed: names repeat, and every segment has one."""
    if isinstance(snapshot, UnchangedBuild):
        return zlib.compress(_to_json({"unchanged": snapshot.scn}), level=1)
    if isinstance(snapshot, AwaitedBuild):
        return zlib.compress(_to_json({"awaited": snapshot.describers}), level=1)
    build = snapshot.build
    fields = {
        "scn": build.scn,
        "tables": [_table_fields(table) for table in build.tables],
        "dropped": [_table_fields(table) for table in snapshot.dropped],
        "detached": [(owner, name, number) for owner, name, _, number in snapshot.detached],
        "bounds": snapshot.bounds,
        "versions": [
            [
                v.object_number,
                v.version,
                v.owner,
                v.name,
                int(v.old_image),
                [[c.name, c.type_name, c.type_number, c.type_modifier, c.is_key, c.is_binary] for c in v.columns],
                stored_owner,
                stored_name,
                scn,
                rows,
            ]
            for v, stored_owner, stored_name, scn, rows in snapshot.versions
        ],
        # In addition to the lists of earlier versions, which can read what this version writes.
        "roots": {
            "tables": [table.root_number for table in build.tables],
            "dropped": [table.root_number for table in snapshot.dropped],
            "detached": [root for _, _, root, _ in snapshot.detached],
            "versions": [version.root_number for version, *_ in snapshot.versions],
        },
        # Computed columns at the source, by object number: of the builds' tables, and of the versions in force.
        "computed": [
            [
                [table.object_number, table.computed]
                for table in (*build.tables, *snapshot.dropped)
                if table.computed != ()
            ],
            [
                [v.object_number, names]
                for v, *_ in snapshot.versions
                if (names := [c.name for c in v.columns if c.is_computed])
            ],
        ],
        "open": None if snapshot.awaited is None else [snapshot.awaited.describers, snapshot.unresolved],
    }
    return zlib.compress(_to_json(fields), level=1)


def decode_dictionary(payload: bytes) -> DictionarySnapshot | AwaitedBuild | UnchangedBuild:
    """Read the payload of a DICTIONARY record."""
    fields = json.loads(zlib.decompress(payload))
    if "awaited" in fields:
        return AwaitedBuild(describers=tuple(fields["awaited"]))
    if "unchanged" in fields:
        return UnchangedBuild(scn=Scn(fields["unchanged"]))
    # missing in redo of earlier versions
    of_tables, of_versions = map(dict, fields["computed"]) if "computed" in fields else (None, None)
    tables = tuple(_table(*found, of_tables) for found in _with_roots(fields, "tables"))
    dropped = tuple(_table(*found, of_tables) for found in _with_roots(fields, "dropped"))
    versions = tuple(_version(*found, of_versions) for found in _with_roots(fields, "versions"))
    bounds = tuple((ObjectNumber(number), Scn(scn)) for number, scn in fields["bounds"])
    detached = tuple(
        (owner, name, root, ObjectNumber(number)) for (owner, name, number), root in _with_roots(fields, "detached")
    )
    build = DictionaryBuild(scn=Scn(fields["scn"]), tables=tables)
    describers, unresolved = fields.get("open") or (None, ())  # missing in redo of earlier versions
    return DictionarySnapshot(
        build=build,
        dropped=dropped,
        detached=detached,
        bounds=bounds,
        versions=versions,
        awaited=None if describers is None else AwaitedBuild(describers=tuple(describers)),
        unresolved=tuple(map(ObjectNumber, unresolved)),
    )


def _table_fields(table: DictionaryTable) -> list[Any]:
    return [table.object_number, table.owner, table.name, table.stored_owner, table.stored_name, table.rows]


def _with_roots(fields: dict[str, Any], what: str) -> list[tuple[list[Any], ObjectNumber]]:
    """Return the entries of a list, each with its root's number; NO_OBJECT in redo of earlier versions."""
    entries = fields[what]
    roots = fields["roots"][what] if "roots" in fields else [NO_OBJECT] * len(entries)
    return list(zip(entries, map(ObjectNumber, roots), strict=True))


def _table(
    fields: list[Any], root_number: ObjectNumber, computed: dict[int, list[str] | None] | None
) -> DictionaryTable:
    number, owner, name, stored_owner, stored_name, rows = fields
    names = None if computed is None else computed.get(number, ())
    return DictionaryTable(
        object_number=number,
        owner=owner,
        name=name,
        stored_owner=stored_owner,
        stored_name=stored_name,
        rows=rows,
        root_number=root_number,
        computed=None if names is None else tuple(names),
    )


def _version(
    fields: list[Any], root_number: ObjectNumber, computed: dict[int, list[str]] | None
) -> tuple[TableVersion, str, str, Scn, str]:
    number, version, owner, name, old_image, columns, stored_owner, stored_name, scn, rows = fields
    table = TableVersion(
        object_number=ObjectNumber(number),
        version=version,
        owner=owner,
        name=name,
        columns=tuple(_column(c, None if computed is None else computed.get(number, ())) for c in columns),
        old_image=OldImage(old_image),
        root_number=root_number,
    )
    return table, stored_owner, stored_name, Scn(scn), rows


def _column(fields: list[Any], computed: Sequence[str] | None) -> Column:
    name, type_name, type_number, type_modifier, is_key, is_binary = fields
    return Column(
        name=name,
        type_name=type_name,
        type_number=type_number,
        type_modifier=type_modifier,
        is_key=is_key,
        is_binary=is_binary,
        is_computed=computed is None or name in computed,
    )


def _to_json(fields: dict[str, Any]) -> bytes:
    # Names come from a database in any encoding: surrogates must survive.
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode("ascii")
