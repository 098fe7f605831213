"""Recorded progress of an apply server's session: its row in headrace.apply_progress.

The row moves by compare-and-set (epoch, sequence) in the transaction of the data. So of two sessions that both believe
to be the same server, at most one commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.base.errors import BugError
from headrace.databases.ports import ScnRange
from headrace.databases.postgres.connection import translated
from headrace.databases.postgres.destination.fencing import COMMIT_LAZILY, SessionIdentity, take_over
from headrace.databases.postgres.pipeline import Statement
from headrace.databases.progress import covers, merge_ranges, ranges_from_bounds, ranges_to_bounds
from headrace.lcr.scn import Scn

__all__ = ["ServerProgress", "int8"]

# Fails when the row is not as this session left it: a division by zero stops the transaction before its COMMIT, without
# a separate round trip.
_ADVANCE = """WITH moved AS (
    UPDATE headrace.apply_progress
    SET sequence = $5 + 1, low_watermark = $6, applied = $7, applied_at = pg_catalog.clock_timestamp()
    WHERE topology = $1 AND apply = $2 AND server = $3 AND epoch = $4 AND sequence = $5 RETURNING 1)
SELECT 1 / pg_catalog.count(*) FROM moved"""


@dataclass(frozen=True, slots=True)
class _Position:
    sequence: int
    low_watermark: int
    applied: tuple[ScnRange, ...]


class ServerProgress:
    """The progress of one server, taken over from its previous session.

    Args:
        connection: connection of the session.
        identity: identity of the session.
        may_stamp: the session's role may set the commit times of its transactions.
    """

    def __init__(self, connection: psycopg.Connection[Any], identity: SessionIdentity, *, may_stamp: bool) -> None:
        self._identity = identity
        self.stamp = identity.stamp if may_stamp else ""
        """SQL expression that sets the commit time of the open transaction; empty when the role may not set it."""
        with translated("taking over an apply server's progress"):
            sequence, low_watermark, applied = take_over(connection, identity)
        self._now = _Position(sequence, low_watermark, ranges_from_bounds(applied))
        self._next = self._now

    def advance(self, applied: Sequence[ScnRange], low_watermark: Scn, *, is_lazy: bool) -> Statement:
        """Return the statement that records progress; it divides by zero when another session has moved the row.

        Args:
            applied: SCN ranges that the open transaction applied.
            low_watermark: low watermark of the coordinator.
            is_lazy: the COMMIT does not wait for the disk.
        """
        now, identity = self._now, self._identity
        watermark = max(now.low_watermark, low_watermark)
        ranges = merge_ranges([*now.applied, *applied], watermark)
        self._next = _Position(now.sequence + 1, watermark, ranges)
        also = [*([self.stamp] if self.stamp else []), *([COMMIT_LAZILY] if is_lazy else [])]
        return Statement(
            sql=_ADVANCE.replace(" FROM moved", f"{''.join(f', {each}' for each in also)} FROM moved"),
            prepared=True,
            parameters=(
                identity.topology.encode(),
                identity.apply.encode(),
                _int4(identity.server),
                int8(identity.epoch),
                int8(now.sequence),
                int8(watermark),
                _int8_array(ranges_to_bounds(ranges)),
            ),
        )

    def advanced(self) -> None:
        """Take over the last `advance`, which was committed."""
        self._now = self._next

    def has_recorded(self, applied: Sequence[ScnRange]) -> bool:
        """Return whether all ranges are recorded, which proves that their commit was made.

        Args:
            applied: SCN ranges that the commit should have recorded; not empty.
        """
        if not applied:
            raise BugError("a commit that recorded nothing has no outcome to ask for")
        return all(covers(self._now.low_watermark, self._now.applied, wanted) for wanted in applied)


def int8(value: int) -> bytes:
    """Return a value as a binary parameter."""
    return value.to_bytes(8, "big", signed=True)


def _int4(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _int8_array(values: Sequence[int]) -> bytes:
    type_number = 20
    if not values:
        return _int4(0) + _int4(0) + _int4(type_number)
    header = _int4(1) + _int4(0) + _int4(type_number) + _int4(len(values)) + _int4(1)
    return header + b"".join(_int4(8) + int8(value) for value in values)
