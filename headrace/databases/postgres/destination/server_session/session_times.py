"""Times that an apply server's session remembers and notes, only for tables with latest_timestamp.

`recent_changes`, `row_changes` and `noted_sets` define the comparison of times and the notes. This module has the state
that one session keeps for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.databases.ports import Write
from headrace.databases.postgres.destination.row_times.noted_sets import blur_sets, note_sets
from headrace.databases.postgres.destination.row_times.recent_changes import MOMENT, MOMENTS, Horizon, note_origin
from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
from headrace.databases.postgres.destination.server_session.server_progress import ServerProgress
from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
from headrace.databases.postgres.destination.writing.row_changes import wait_for_clock
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.batch import Command

if TYPE_CHECKING:
    from psycopg import pq

    from headrace.databases.postgres.destination.fencing import SessionIdentity

__all__ = ["SessionTimes"]

# A session that wrote no such table for this time reads the transaction numbers again: the server would treat a number
# that is 2^31 behind as one of the future.
_HORIZON_LASTS_S = 600.0
_HORIZON = Statement(sql=MOMENT, prepared=True)  # sent after a COMMIT, whose transaction has then ended


class SessionTimes:
    """Times of one session, over the session's objects.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
        tables: tables of the session.
        progress: progress of the session, which knows whether its commits may be stamped.
    """

    def __init__(
        self,
        identity: SessionIdentity,
        transaction: SessionTransaction,
        tables: DescribedTables,
        progress: ServerProgress,
    ) -> None:
        self._identity, self._transaction = identity, transaction
        self._tables, self._progress = tables, progress
        self.horizon = Horizon()
        self._horizon_until = 0.0  # monotonic time at which the server is queried again
        self._sets = 0  # sets noted in this transaction
        self._latest_us = 0  # latest time that this transaction has written, microseconds since the epoch
        self._source = ""  # source of the changes that this transaction has written with times
        self._noted_source = ""  # source that is noted for the origin

    def begin(self) -> None:
        """Reset the state of the transaction."""
        self._sets, self._latest_us, self._source = 0, 0, self._noted_source

    # ------------------------------------------------------------------ writes

    def timed(self, write: Write) -> Write:
        """Return a write with the kind of notes that this session can make; refresh the horizon if needed.

        Args:
            write: the write, with or without times.
        """
        if write.times is None:
            return write
        if time.monotonic() >= self._horizon_until:
            self._note_moments(self._transaction.run_own(Statement(sql=MOMENTS), "asking how far transactions are"))
        # Without the right to stamp, all transactions of the session have the same commit time, so rows need notes.
        if self._progress.stamp:
            return write
        return replace(write, times=replace(write.times, has_one_source=False, keys=None))

    def note(self, write: Write) -> None:
        """Remember the latest time and the source of a write of this transaction; the COMMIT waits for that time."""
        if write.times is not None:
            self._latest_us = max(self._latest_us, int(write.times.times_us.max()), int(write.times.last_us.max()))
            self._source = write.times.source

    def set_notes(self, write: Write) -> list[Statement]:
        """Return the statements that note a write of this transaction as a set (`note_sets`)."""
        times = write.times
        if times is None or times.keys is None or times.has_one_source or write.command is Command.DELETE:
            return []
        notes = note_sets(write, self._tables.fitting(write), origin=self._identity.origin, part=self._sets)
        self._sets += len(notes)
        return notes

    # ------------------------------------------------------------------ commit

    def notes_before_commit(self, *, ran_users_sql: bool) -> list[Statement]:
        """Return the statements that note the transaction as a whole.

        Args:
            ran_users_sql: users' SQL ran, and may have written rows of tables with latest_timestamp.
        """
        if ran_users_sql:
            self._source = self._source or self._identity.source
        notes = self._origin_notes() if self._source != self._noted_source else []
        if ran_users_sql and self._sets:
            notes.append(blur_sets(self._identity.origin))
        return notes

    def _origin_notes(self) -> list[Statement]:
        """Return `note_origin`, outside all savepoints: inside one, the row would not have the transaction's own number."""
        return [
            *self._transaction.savepoints.release_all(),
            note_origin(self._identity.origin, self._source, has_times=bool(self._progress.stamp)),
        ]

    def waits(self) -> list[Statement]:
        """Return the statements by which the COMMIT waits until this server's clock has passed the written times."""
        return [wait_for_clock(self._latest_us)] if self._latest_us else []

    def after_commit(self) -> list[Statement]:
        """Return the query for the horizon, to be sent after the COMMIT; `committed` takes its result."""
        return [_HORIZON] if self._latest_us else []

    def committed(self, after: Sequence[pq.abc.PGresult]) -> None:
        """Take over the state of a committed transaction."""
        self._noted_source = self._source
        for result in after:
            self._note_moments(result)
        self.begin()

    def _note_moments(self, result: pq.abc.PGresult) -> None:
        for row in range(result.ntuples):
            self.horizon.note(int(result.get_value(row, 0) or 0), int(result.get_value(row, 1) or 0))
        self._horizon_until = time.monotonic() + _HORIZON_LASTS_S
