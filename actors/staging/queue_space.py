"""The space that a queue has for batches: memory, then spill files, then none.

Owned by one queue, whose sources add and remove entries (`actors.staging.staged_source`). The batch that will be read
last is spilled first, so a slow subscriber does not slow the others before memory and disk are full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from actors.staging.queue_log import Entry
from actors.staging.spill import SpillFiles
from headrace.base.clock import Clock
from headrace.base.errors import QueueError
from topology.spec import QueueSpec

__all__ = ["ENTRY_BYTES", "QueueSpace", "QueueTotals"]

# Memory of one entry's Python objects, even when its bytes are on disk: measured, rounded up.
ENTRY_BYTES = 800
# Spilling frees this fraction (one eighth) of the memory at once, so that it happens rarely.
SPILL_SHARE = 8
SPILL_RETRY_S = 1.0  # after a failed write: a full disk is rarely freed faster


@dataclass(slots=True)
class QueueTotals:
    """Totals of a queue since it opened; row LCRs unless a comment says otherwise."""

    enqueued: int = 0
    spilled: int = 0
    given_up: int = 0  # of transactions that are larger than the queue
    rewinds: int = 0  # number of times that a publisher was asked to begin again
    enqueued_us: int = 0  # time of the last batch


class QueueSpace:
    """Memory and spill files of one queue.

    Args:
        bounds: bounds of the queue.
        spill: its spill files.
        totals: its totals.
        next_numbers: by source, the numbers of the entries that connected subscribers read next.
        clock: clock for ages, and for retries of spilling.

    Attributes:
        bounds: as given.
        entries: number of entries, in memory and on disk.
        memory_bytes: memory of all entries' objects, and of the batches in memory.
        spilled_rows: row LCRs on disk now.
        spill_problem: why batches cannot be spilled; empty: they can.
        read_problem: why a batch could not be read back, most recently; empty: never.
    """

    def __init__(
        self,
        bounds: QueueSpec,
        spill: SpillFiles,
        totals: QueueTotals,
        next_numbers: Callable[[str], Iterable[int]],
        clock: Clock,
    ) -> None:
        self.bounds = bounds
        self._spill, self._totals, self._next_numbers, self._clock = spill, totals, next_numbers, clock
        self._in_memory: dict[str, dict[int, Entry]] = {}
        self.entries = self.memory_bytes = self.spilled_rows = 0
        self.spill_problem = self.read_problem = ""
        self._retry_at = 0.0
        self._enqueued_s = 0.0  # sum over all entries of their arrival times

    @property
    def free_bytes(self) -> int:
        """Space for further batches; below 1: none."""
        memory_bytes_max = self.bounds.memory_bytes_max
        free = memory_bytes_max - self.memory_bytes
        if not self.spill_problem:  # space that cannot be written does not count
            free += self._spill.free_bytes
        # Entries on disk need some memory, too.
        return min(free, memory_bytes_max - self.entries * ENTRY_BYTES)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the batches in memory."""
        return self.memory_bytes - ENTRY_BYTES * self.entries

    @property
    def average_age_s(self) -> float:
        """Average age of the entries, in seconds."""
        return self._clock.monotonic() - self._enqueued_s / self.entries if self.entries else 0.0

    def add(self, source: str, number: int, entry: Entry) -> None:
        """Count an entry that arrived.

        Args:
            source: source of the batch.
            number: number of the entry in the source's log.
            entry: the entry.
        """
        self._in_memory.setdefault(source, {})[number] = entry
        self.entries += 1
        self.memory_bytes += entry.size + ENTRY_BYTES
        self._enqueued_s += entry.enqueued_s
        self._totals.enqueued += entry.header.row_count
        self._totals.enqueued_us = entry.enqueued_us

    def remove(self, source: str, entries: Iterable[tuple[int, Entry]]) -> None:
        """Free the space of entries that left the log of a source.

        Args:
            source: name of the source.
            entries: the entries, each with its number.
        """
        for number, entry in entries:
            self.entries -= 1
            self.memory_bytes -= ENTRY_BYTES
            self._enqueued_s -= entry.enqueued_s
            if entry.place is not None:
                self._spill.release(entry.place)
                self.spilled_rows -= entry.header.row_count
            else:
                self.memory_bytes -= entry.size
                del self._in_memory[source][number]

    def bytes_of(self, entry: Entry) -> bytes | None:
        """Return the bytes of an entry; None: they are damaged on disk (`read_problem` says how)."""
        if entry.place is None:
            return entry.data
        try:
            return self._spill.read(entry.place)
        except QueueError as error:
            self.read_problem = error.message
            return None

    def make_room(self) -> None:
        """Spill if the batches in memory exceed the bound."""
        memory_bytes_max = self.bounds.memory_bytes_max
        if self.memory_bytes > memory_bytes_max and self.bounds.spill_bytes_max:
            self._spill_out(memory_bytes_max - memory_bytes_max // SPILL_SHARE)
        else:
            self.spill_problem = ""

    def retry(self) -> float | None:
        """Retry failed spilling, if that is due.

        Returns:
            Seconds until the next call; None: there is no problem.
        """
        now = self._clock.monotonic()
        if not self.spill_problem:
            return None
        if now >= self._retry_at:
            self.make_room()
        return self._retry_at - now

    def _spill_out(self, target_bytes: int) -> None:
        """Write batches to disk until no more than `target_bytes` are in memory."""
        now = self._clock.monotonic()
        if self.spill_problem and now < self._retry_at:
            return
        try:
            for source, number, entry in self._by_distance():
                if self.memory_bytes <= target_bytes or entry.size > self._spill.free_bytes:
                    break
                assert entry.data is not None
                entry.place = self._spill.append(entry.data)
                entry.data = None
                del self._in_memory[source][number]
                self.memory_bytes -= entry.size
                self.spilled_rows += entry.header.row_count
                self._totals.spilled += entry.header.row_count
        except OSError as error:
            self.spill_problem = f"batches cannot be spilled: {error.strerror}"
            self._retry_at = now + SPILL_RETRY_S
        else:
            self.spill_problem = ""

    def _by_distance(self) -> list[tuple[str, int, Entry]]:
        """Return the entries in memory; those that will be read last come first.

        The distance of an entry is the number of bytes that the nearest subscriber behind it reads before it; without
        such a subscriber it is infinite.
        """
        found: list[tuple[float, str, int, Entry]] = []
        for source, entries in self._in_memory.items():
            if not entries:
                continue
            readers = sorted(set(self._next_numbers(source)), reverse=True)
            distance = math.inf
            for number, entry in entries.items():
                while readers and readers[-1] <= number:
                    readers.pop()
                    distance = 0.0
                found.append((-distance, source, number, entry))
                distance += entry.size
        found.sort(key=lambda each: each[:3])
        return [(source, number, entry) for _, source, number, entry in found]
