"""Reads redo records in order, and decodes DATA records in pieces.

At each record the scan has what it needs to read on: the decoder of the segment's stream, and the dictionary in force.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import CaptureError, ProtocolError, RedoError
from headrace.lcr.batch import TableVersion
from headrace.lcr.scn import Scn
from headrace.links.ports import RedoPosition
from headrace.redo.dictionary import Dictionary, read_dictionary_record
from headrace.redo.mining.build_search import BuildSearch
from headrace.redo.mining.restart_point import RestartPoint, find_restart_point
from headrace.redo.mining.undecodable import undecodable
from headrace.redo.records import (
    HEAD_RECORDS,
    AwaitedBuild,
    RecordHeader,
    RecordType,
    SegmentHead,
    decode_dictionary,
    decode_head,
)
from headrace.redo.segments import RedoReader, check_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import DecodedChunk, LogDecoder, StreamOptions

__all__ = ["RedoScan"]

_DECODING_ERRORS = (ProtocolError, ValueError, IndexError, KeyError, OverflowError, struct.error)


class RedoScan:
    """The scan of one miner.

    Args:
        folder: the segments' folder.
        source: source site of the log.
        decoder_factory: makes the decoder for a segment's stream options.

    Attributes:
        head: head of the current segment; None: reading has not begun.
        dictionary: dictionary in force at the current place.
    """

    def __init__(self, folder: Path, source: str, decoder_factory: Callable[[StreamOptions], LogDecoder]) -> None:
        self._folder, self._source, self._decoder_factory = folder, source, decoder_factory
        self._reader: RedoReader | None = None
        self._search = BuildSearch(folder)
        self._decoder: LogDecoder | None = None
        self._record: tuple[RecordHeader, NDArray[np.uint8]] | None = None  # DATA that is not decoded to its end
        self._offset = 0  # in that record: everything before is decoded
        self._begin_offset = 0  # in the restart record: everything before was mined before the restart
        self.head: SegmentHead | None = None
        self.dictionary = Dictionary()

    # ------------------------------------------------------------------ beginning

    @property
    def has_begun(self) -> bool:
        """Whether `begin` has found the beginning."""
        return self._reader is not None

    def restart_point(self, start_scn: Scn, durable: RedoPosition) -> RestartPoint | None:
        """Return where to begin; None: there is no readable redo yet.

        Args:
            start_scn: what is committed up to here is not needed; FIRST_SCN: begin with the oldest redo.
            durable: position up to which redo may be read.

        Raises:
            LogGone: the needed redo is gone.
            RedoError: redo is damaged.
        """
        return None if durable.segment == 0 else find_restart_point(self._folder, self._source, start_scn, durable)

    def begin(self, point: RestartPoint, durable: RedoPosition) -> bool:
        """Go to a restart point, reading the dictionary on the way; False: a required build is not written yet.

        Only headers are read, and the payloads that describe tables.

        Args:
            point: the restart point.
            durable: position up to which redo may be read.
        """
        reader, self._search = RedoReader(self._folder, point.first_segment), BuildSearch(self._folder)
        while (header := reader.next_header(durable)) is not None:
            is_restart = (reader.segment, reader.offset) == (point.segment, point.offset)
            if is_restart and not point.begin_offset:
                break
            if header.type is RecordType.SEGMENT:
                self._enter(decode_head(reader.payload(header)), reader.segment)
            elif header.type is RecordType.DICTIONARY or header.has_descriptions:
                payload = reader.payload(header)
                payload = payload[: point.begin_offset] if is_restart else payload
                self.dictionary = read_dictionary_record(self.dictionary, header, payload, self._describe)
            if is_restart:
                break
            reader.skip(header)
        if self.dictionary.awaited is not None:
            found = self._search.find(reader, durable)
            if found is None:
                return False
            self.dictionary.add_found(found)
        self._reader, self._begin_offset = reader, point.begin_offset
        return True

    def close(self) -> None:
        """Close the files; idempotent."""
        if self._reader is not None:
            self._reader.close()

    # ------------------------------------------------------------------ records

    def next_record(self, durable: RedoPosition) -> RecordHeader | None:
        """Read the next record and apply what it says about the following ones; None at the durable end.

        After a DATA record the caller decodes it.

        Args:
            durable: position up to which redo may be read.

        Raises:
            RedoError: redo is damaged.
            LogGone: redo was purged.
        """
        reader = self._reader
        assert reader is not None
        header = reader.next_header(durable)
        if header is None:
            return None
        if header.type is RecordType.DATA:
            self._record = (header, np.frombuffer(reader.payload(header), np.uint8))
            self._offset, self._begin_offset = self._begin_offset, 0
        elif header.type is RecordType.SEGMENT:
            self._enter(decode_head(reader.payload(header)), reader.segment)
        elif header.type is RecordType.DICTIONARY:
            # A head's own dictionary repeats what is known already.
            if header.number >= HEAD_RECORDS and not self._take_dictionary(reader, header, durable):
                return None
        elif header.type is RecordType.RESUME:
            assert self._decoder is not None
            self._decoder.reset()
        elif header.type is RecordType.PROGRESS:
            reader.payload(header)
        reader.skip(header)
        return header

    def _take_dictionary(self, reader: RedoReader, header: RecordHeader, durable: RedoPosition) -> bool:
        """Take in a build, also an awaited one; False: the awaited build is not written yet."""
        found = decode_dictionary(reader.payload(header))
        build = self._search.find(reader, durable) if isinstance(found, AwaitedBuild) else found
        if build is None:
            return False
        self.dictionary.add_found(build)
        return True

    def _enter(self, head: SegmentHead, number: int) -> None:
        """Begin a new segment; an open transaction continues in it.

        Args:
            head: the segment's head.
            number: number in the file name.
        """
        check_number(head, number)
        if head.source != self._source:
            raise RedoError(
                f"redo segment {head.number} is of site {head.source}, not of {self._source}",
                hint="give every site a folder of its own",
                segment=head.number,
            )
        if self.head is None or self.head.options != head.options:
            self._decoder = self._decoder_factory(head.options)
        self.head = head

    def _describe(self, payload: bytes) -> tuple[TableVersion, ...]:
        assert self._decoder is not None
        return self._decoder.describe(np.frombuffer(payload, np.uint8))

    # ------------------------------------------------------------------ decoding

    @property
    def record(self) -> tuple[RecordHeader, NDArray[np.uint8]] | None:
        """The DATA record that is not decoded to its end, and its bytes; None: another record is next."""
        return self._record

    def decode(self, rows_max: int) -> DecodedChunk:
        """Decode the next rows of the DATA record.

        Args:
            rows_max: bound of the number of rows.

        Raises:
            CaptureError: its bytes cannot be decoded; names the SCN.
        """
        decoder, record = self._decoder, self._record
        assert decoder is not None
        assert record is not None
        try:
            chunk = decoder.decode(record[1], self._offset, rows_max=rows_max)
        except _DECODING_ERRORS as error:
            raise self.undecodable(str(error) or type(error).__name__) from error
        if chunk.consumed == 0 and not chunk.versions and not chunk.command.shape[0]:
            raise self.undecodable("the decoder made no progress")
        self._offset += chunk.consumed
        return chunk

    def end_record(self) -> Scn | None:
        """Close the DATA record if all of it is decoded.

        Returns:
            The position up to which redo is read then; None: the record continues.
        """
        assert self._record is not None
        header, data = self._record
        if self._offset < data.shape[0]:
            return None
        self._record = None
        return header.end_scn

    def undecodable(self, what: str) -> CaptureError:
        """Return the error for undecodable DATA; `what` is the problem."""
        assert self._record is not None
        return undecodable(self._source, self._record[0], self._offset, what)
