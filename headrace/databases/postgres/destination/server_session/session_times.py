"""The times of an apply server's session: what it knows of when transactions ended, and what it notes with its own.

Only of tables with latest_timestamp. How times are compared, and what is noted for that, is in `recent_changes`,
`row_changes` and `noted_sets`; here is what one session must remember for it.
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

# A session that writes no such table for so long asks again how far transactions are: a number that is 2^31 behind
# would be taken for one to come.
_HORIZON_LASTS_S = 600.0
_HORIZON = Statement(sql=MOMENT, prepared=True)  # behind a COMMIT, whose transaction has ended then


class SessionTimes:
    """See the module.

    Args:
        identity: of the session.
        transaction: of the session.
        tables: of the session.
        progress: of the session, which may stamp its commits or not.
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
        self._horizon_until = 0.0  # by the monotonic clock: then the server is asked again
        self._sets = 0  # that are noted of this transaction
        self._latest_us = 0  # of the times that this transaction has written, microseconds since the epoch
        self._source = ""  # whose changes this transaction has written with their times
        self._noted_source = ""  # for which the origin is noted

    def begin(self) -> None:
        """Another transaction, or none."""
        self._sets, self._latest_us, self._source = 0, 0, self._noted_source

    # ------------------------------------------------------------------ writes

    def timed(self, write: Write) -> Write:
        """A write as this session can tell which changes are later.

        Args:
            write: with or without times.
        """
        if write.times is None:
            return write
        if time.monotonic() >= self._horizon_until:
            self._note_moments(self._transaction.run_own(Statement(sql=MOMENTS), "asking how far transactions are"))
        # Without the right to stamp, the server has one commit time for all transactions of the session: rows need
        # notes.
        if self._progress.stamp:
            return write
        return replace(write, times=replace(write.times, has_one_source=False, keys=None))

    def note(self, write: Write) -> None:
        """Remember of a write with times what the COMMIT must wait for, and whose changes it has.

        Args:
            write: of this transaction.
        """
        if write.times is not None:
            self._latest_us = max(self._latest_us, int(write.times.times_us.max()), int(write.times.last_us.max()))
            self._source = write.times.source

    def set_notes(self, write: Write) -> list[Statement]:
        """What is noted of a write as a whole; see `note_sets`.

        Args:
            write: of this transaction.
        """
        times = write.times
        if times is None or times.keys is None or times.has_one_source or write.command is Command.DELETE:
            return []
        notes = note_sets(write, self._tables.fitting(write), origin=self._identity.origin, part=self._sets)
        self._sets += len(notes)
        return notes

    # ------------------------------------------------------------------ commit

    def notes_before_commit(self, *, ran_users_sql: bool) -> list[Statement]:
        """What is noted of the transaction as a whole.

        Args:
            ran_users_sql: what that wrote may be rows of tables with latest_timestamp.
        """
        if ran_users_sql:
            self._source = self._source or self._identity.source
        notes = self._origin_notes() if self._source != self._noted_source else []
        if ran_users_sql and self._sets:
            notes.append(blur_sets(self._identity.origin))
        return notes

    def _origin_notes(self) -> list[Statement]:
        """See `note_origin`; outside of all savepoints, within which a row would not have the transaction's own number."""
        return [
            *self._transaction.savepoints.release_all(),
            note_origin(self._identity.origin, self._source, has_times=bool(self._progress.stamp)),
        ]

    def waits(self) -> list[Statement]:
        """The COMMIT waits until this server's clock has passed the times that are written."""
        return [wait_for_clock(self._latest_us)] if self._latest_us else []

    def after_commit(self) -> list[Statement]:
        """Asks, behind a COMMIT, how far transactions are; `committed` takes the answer."""
        return [_HORIZON] if self._latest_us else []

    def committed(self, after: Sequence[pq.abc.PGresult]) -> None:
        """The transaction was committed.

        Args:
            after: results of `after_commit`.
        """
        self._noted_source = self._source
        for result in after:
            self._note_moments(result)
        self.begin()

    def _note_moments(self, result: pq.abc.PGresult) -> None:
        for row in range(result.ntuples):
            self.horizon.note(int(result.get_value(row, 0) or 0), int(result.get_value(row, 1) or 0))
        self._horizon_until = time.monotonic() + _HORIZON_LASTS_S
