"""The restart point of mining: the last place in redo with no wanted transaction beginning before it.

Only headers are read. The segment's head says which commits precede it and in which segment its open transactions
began; each record's header says which commits end in it.

Source: Oracle Streams Concepts and Administration 11.2, "Capture Process Checkpoints" and "Required Checkpoint SCN".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import INSTANTIATE_AGAIN, LogGone, RedoError
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.links.ports import RedoPosition
from headrace.redo.records import HEAD_RECORDS, SegmentHead, decode_head
from headrace.redo.segments import RESTORE_SEGMENT, RedoReader, check_number, list_segments

__all__ = ["RestartPoint", "find_restart_point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPoint:
    """A place in redo where mining begins.

    Args:
        start_scn: what is committed up to here is not mined.
        first_segment: number of the segment whose head has the initial dictionary; at `segment` or before it.
        segment: number of the segment.
        offset: offset of the record in the segment, bytes.
        begin_offset: offset in the record's payload, bytes; 0: at the beginning of the record.
    """

    start_scn: Scn
    first_segment: int
    segment: int
    offset: int
    begin_offset: int


def find_restart_point(folder: Path, source: str, start_scn: Scn, durable: RedoPosition) -> RestartPoint | None:
    """Find the last place where no transaction is open, and before which no transaction ends after the start SCN.

    Args:
        folder: the segments' folder.
        source: source site of the log, for messages.
        start_scn: what is committed up to here was captured before. FIRST_SCN: nothing was; mining begins with the
            oldest segment, or the first whose transactions are all available.
        durable: position up to which redo may be read.

    Returns:
        The place; right behind the head of the first segment if there is none later. None: the readable redo was purged
        meanwhile, because every capture process has captured it; try again with a later `durable`.

    Raises:
        LogGone: the needed redo was purged.
        RedoError: redo is damaged.
    """
    left = [file.number for file in list_segments(folder)]
    numbers = [number for number in left if number <= durable.segment]
    if left and not numbers:
        return None
    if not numbers:
        raise RedoError(
            f"redo segment {durable.segment} is missing",
            hint=RESTORE_SEGMENT,
            segment=durable.segment,
            offset=0,
        )
    if start_scn == FIRST_SCN:
        head = _first_whole(folder, numbers, durable)
        start_scn = head.last_commit_scn
    else:
        for number in reversed(numbers):
            head = _read_head(folder, number, durable)
            if head.last_commit_scn <= start_scn:
                break
    if head.last_commit_scn > start_scn or head.restart_segment < numbers[0]:
        first_scn = _first_whole(folder, numbers, durable).last_commit_scn
        raise LogGone(
            f"the redo of site {source} can be mined from SCN {scn_text(first_scn)} on; it is needed from SCN "
            f"{scn_text(start_scn)} on",
            hint=INSTANTIATE_AGAIN,
            source=source,
            needed_scn=start_scn,
            first_scn=first_scn,
        )
    return _last_place(folder, head.restart_segment, start_scn, durable)


def _first_whole(folder: Path, numbers: list[int], durable: RedoPosition) -> SegmentHead:
    """Return the head of the first segment whose initially open transactions were not purged."""
    for number in numbers:
        head = _read_head(folder, number, durable)
        if head.restart_segment >= numbers[0]:
            break
    return head


def _read_head(folder: Path, number: int, durable: RedoPosition) -> SegmentHead:
    reader = RedoReader(folder, number)
    try:
        header = reader.next_header(durable)
        assert header is not None
        head = decode_head(reader.payload(header))
    finally:
        reader.close()
    # Check before concluding that redo is gone.
    check_number(head, number)
    return head


def _last_place(folder: Path, first: int, start_scn: Scn, durable: RedoPosition) -> RestartPoint:
    reader = RedoReader(folder, first)
    place = (first, reader.offset, 0)
    try:
        while (header := reader.next_header(durable)) is not None:
            if header.number < HEAD_RECORDS:
                reader.skip(header)
                if reader.segment == first:
                    place = (first, reader.offset, 0)
                continue
            if header.last_commit_scn > start_scn:
                break
            if not header.open_at_start:
                place = (reader.segment, reader.offset, 0)
            if header.commit_end and header.commit_scn <= start_scn:
                place = (reader.segment, reader.offset, header.commit_end)
            reader.skip(header)
    finally:
        reader.close()
    segment, offset, begin_offset = place
    return RestartPoint(
        start_scn=start_scn, first_segment=first, segment=segment, offset=offset, begin_offset=begin_offset
    )
