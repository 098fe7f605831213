"""One source's batches in a queue: a chain without gaps from `first_scn` to `position`.

Entries are numbered in order of arrival. Complete ones form units: a unit is one batch, or all parts of one large
transaction. The parts of an incomplete transaction stand at the end and do not move the position. Methods that drop
entries return them with their numbers, so that the owner can free their space.
Progress marks are not stored: they only move the position, and a subscriber's mark is made when it is due. So an idle
source costs nothing, however long a subscriber is disconnected.
An initial mark from FIRST_SCN states where the publisher's chain begins: nothing below it is here.
The first parts of a transaction that is larger than the queue may be given up. A subscriber that begins before it gets
everything up to it; then the transaction is requested again.
"""

from __future__ import annotations

from bisect import bisect_right

from actors.staging.spill import SpillPlace
from headrace.base.errors import ProtocolError
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import resume_after
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import BatchHeader, Delivery, header_of
from protos import codec

__all__ = ["Entry", "SourceLog", "fitted", "mark"]


class Entry:
    """One batch in a queue, in memory (`data`) or on disk (`place`)."""

    __slots__ = ("data", "enqueued_s", "enqueued_us", "header", "place", "rows_before", "size")

    def __init__(self, header: BatchHeader, data: bytes, *, rows_before: int, now_s: float, now_us: int) -> None:
        self.header = header
        self.data: bytes | None = data
        self.place: SpillPlace | None = None
        self.size = len(data)
        self.rows_before = rows_before  # row LCRs before this entry
        self.enqueued_s, self.enqueued_us = now_s, now_us


class SourceLog:
    """The chain of one source. Owned by one queue.

    Args:
        position: where the chain begins.
    """

    def __init__(self, source: str, position: Scn) -> None:
        self.source = source
        self.position = position
        # The queue can serve a subscriber that has everything up to here.
        self.first_scn = position
        self.base = 0  # number of the first entry
        self.end = 0  # number of the next entry
        self.open_from: int | None = None  # number of the open transaction's first entry
        self.rows_total = 0
        self._entries: dict[int, Entry] = {}
        # Units in order: the position after each, and the number of the entry after it.
        self._unit_scns: list[Scn] = []
        self._unit_ends: list[int] = []
        # Large transactions whose first parts were given up, complete or not: number of the first part -> number of the
        #   first remaining part.
        # They cannot be delivered again, and are the only gaps in the numbers between `base` and `end`.
        self._beheaded: dict[int, int] = {}
        self._given_up: dict[int, int] = {}  # row LCRs in the given-up parts, by number of the first part

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, number: int) -> Entry | None:
        """Return the entry with this number; None: it was given up (`behead`)."""
        return self._entries.get(number)

    @property
    def first_entry(self) -> Entry | None:
        """The first remaining entry."""
        return self._entries.get(self._left_from(self.base))

    def admit(self, header: BatchHeader, data: bytes) -> Delivery | None:
        """Check that an arriving batch continues the chain.

        Args:
            header: header of the batch.
            data: the encoded batch, header included.

        Returns:
            The new part of the batch, which continues the chain; None: nothing of it is new.

        Raises:
            ProtocolError: the batch does not continue the chain: something is missing in between.
        """
        if header.previous_scn > self.position:
            raise ProtocolError(
                f"a batch of {self.source} does not follow the one before: LCRs are missing in between",
                hint="the publisher reconnects and sends them again",
                expected_scn=self.position,
                previous_scn=header.previous_scn,
            )
        if header.previous_scn < self.position:
            if not header.is_open and header.through_scn <= self.position:
                return None
            if header.is_progress_mark and header.previous_scn == FIRST_SCN:
                raise ProtocolError(
                    f"the publisher of {self.source} begins above what the queue has: LCRs are missing in between",
                    hint="the publisher reconnects, and the queue requests them",
                    expected_scn=self.position,
                    found_scn=header.through_scn,
                )
            rest = resume_after(codec.decode(data), self.position)
            if rest is None:
                return None
            header, data = header_of(rest), codec.encode(rest)
        if header.continues and self.open_from is None:
            raise ProtocolError(
                f"a batch of {self.source} continues a transaction the queue does not have",
                hint="the publisher reconnects and sends it again",
                position_scn=self.position,
            )
        return Delivery(header=header, data=data)

    def append(self, delivery: Delivery, *, now_s: float, now_us: int) -> Entry | None:
        """Add an admitted batch; return None for a progress mark.

        The caller drops an open transaction that the batch replaces before this call.

        Args:
            delivery: the batch as returned by `admit`.
            now_s: monotonic time in seconds.
            now_us: time in microseconds since the epoch.
        """
        header = delivery.header
        entry = None
        if not header.is_progress_mark:
            entry = Entry(header, delivery.data, rows_before=self.rows_total, now_s=now_s, now_us=now_us)
            self._entries[self.end] = entry
            self.rows_total += header.row_count
            if header.is_open and self.open_from is None:
                self.open_from = self.end
            self.end += 1
            if not header.is_open:
                self.open_from = None
                self._unit_scns.append(header.through_scn)
                self._unit_ends.append(self.end)
        elif self.position == FIRST_SCN:
            self.first_scn = header.through_scn
        self.position = header.through_scn
        return entry

    def drop_open(self) -> list[tuple[int, Entry]]:
        """Drop the parts of the open transaction, which is sent again from its beginning. Their numbers are reused."""
        if self.open_from is None:
            return []
        first = self.open_from
        dropped = self._popped(self._left_from(first), self.end)
        if dropped:
            self.rows_total = dropped[0][1].rows_before
        self.rows_total -= self._given_up.pop(first, 0)
        self._beheaded.pop(first, None)
        self.end = first
        self.open_from = None
        return dropped

    def start_for(self, needed: Scn) -> int | None:
        """Return the number of the first entry that a receiver at `needed` lacks; None: it lacks entries that are gone."""
        if needed < self.first_scn:
            return None
        unit = bisect_right(self._unit_scns, needed)
        start = self._unit_ends[unit - 1] if unit else self.base
        return None if start in self._beheaded else start

    def is_inside(self, number: int) -> bool:
        """Return whether a receiver at this entry is inside a transaction of which parts were given up."""
        for start in self._beheaded:
            unit = bisect_right(self._unit_ends, start)
            end = self._unit_ends[unit] if unit < len(self._unit_ends) else self.end + 1  # the transaction is open
            if start < number < end:
                return True
        return False

    def first_after(self, scn: Scn) -> tuple[Scn, Entry] | None:
        """Return the first complete unit here that a receiver at `scn` lacks: the position after it, and its first entry."""
        unit = bisect_right(self._unit_scns, scn)
        if unit == len(self._unit_scns):
            return None
        return self._unit_scns[unit], self._entries[self._left_from(self._unit_ends[unit - 1] if unit else self.base)]

    def release(self, floor: Scn) -> list[tuple[int, Entry]]:
        """Drop the units that every subscriber has durably, up to `floor`."""
        units = bisect_right(self._unit_scns, floor)
        if units == 0:
            return []
        self.first_scn = self._unit_scns[units - 1]
        dropped = self._drop_until(self._unit_ends[units - 1])
        del self._unit_scns[:units], self._unit_ends[:units]
        return dropped

    def pass_on(self, scn: Scn, number: int) -> list[tuple[int, Entry]]:
        """Drop what the only receiver was sent; it gets none of it again from here.

        Args:
            scn: the receiver was sent everything up to here.
            number: number of its next entry; entries below it are sent parts of its current transaction.
        """
        dropped = self.release(scn)
        if self.open_from is not None and number > self.open_from:
            return dropped + self.behead(number)
        return dropped + self._drop_until(number) if number > self.base else dropped

    def behead(self, number: int) -> list[tuple[int, Entry]]:
        """Drop parts of the open transaction below `number`.

        This is for a transaction that is larger than the queue: its parts cannot become durable anywhere before its
        commit. If a subscriber needs them again, the queue requests them from the publisher.
        """
        if self.open_from is None or number <= self._left_from(self.open_from):
            return []
        dropped = self._popped(self._left_from(self.open_from), number)
        self._beheaded[self.open_from] = number
        rows = sum(entry.header.row_count for _, entry in dropped)
        self._given_up[self.open_from] = self._given_up.get(self.open_from, 0) + rows
        return dropped

    def clear(self, position: Scn) -> list[tuple[int, Entry]]:
        """Drop everything and restart at `position`."""
        dropped = self._drop_until(self.end)
        self._unit_scns.clear()
        self._unit_ends.clear()
        self.open_from = None
        self.position = self.first_scn = position
        return dropped

    def rows_from(self, number: int) -> int:
        """Return the number of row LCRs from the entry with this number on."""
        number = self._left_from(max(number, self.base))
        given_up = sum(rows for start, rows in self._given_up.items() if start >= number)
        return self.rows_total - self._entries[number].rows_before - given_up if number < self.end else 0

    def _left_from(self, number: int) -> int:
        """Return the first number, from this one on, that was not given up."""
        for start, left in self._beheaded.items():
            if start <= number < left:
                return left
        return number

    def _drop_until(self, number: int) -> list[tuple[int, Entry]]:
        dropped = self._popped(self.base, number)
        self.base = number
        for start in [start for start in self._beheaded if start < number]:
            del self._beheaded[start], self._given_up[start]
        return dropped

    def _popped(self, first: int, end: int) -> list[tuple[int, Entry]]:
        found = ((number, self._entries.pop(number, None)) for number in range(first, end))
        return [(number, entry) for number, entry in found if entry is not None]


def fitted(delivery: Delivery, position: Scn) -> Delivery | None:
    """Cut a batch for a receiver whose position is inside or above it.

    Args:
        delivery: the whole batch.
        position: everything up to this SCN of the batch's source is there already.

    Returns:
        The part that the receiver lacks, as a batch that follows `position`; None: it lacks nothing.
    """
    header = delivery.header
    if not header.is_open and not header.continues and header.through_scn <= position:
        return None
    rest = resume_after(codec.decode(delivery.data), position)
    return None if rest is None else Delivery(header=header_of(rest), data=codec.encode(rest))


def mark(source: str, previous: Scn, through: Scn) -> Delivery:
    """Make a progress mark: a batch without rows that moves a position.

    Args:
        source: name of the source site.
        previous: the receiver's position.
        through: the new position; the rules let nothing pass in between.
    """
    header = BatchHeader(source=source, previous_scn=previous, through_scn=through)
    return Delivery(
        header=header,
        data=codec.encode(
            LcrBatch(
                source=source,
                previous_scn=previous,
                through_scn=through,
            )
        ),
    )
