"""A source that behaves as if its log writer kept up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import closing

from headrace.databases.postgres.source.database import PostgresSnapshot, PostgresSource
from headrace.lcr.scn import FIRST_SCN
from tests.support.databases.log_reading import Reading

CAPTURED_S = 240.0  # generous: machines may run other work as well
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by connection string


class CapturedSource(PostgresSource):
    """Confirms everything up to each snapshot before it returns the snapshot.

    Several of one database take turns; nothing else may read the slot meanwhile.
    """

    def open_snapshot(self, topology: str) -> PostgresSnapshot:
        snapshot = super().open_snapshot(topology)
        with _TURNS[self._dsn]:
            self._confirm(topology, snapshot)
        return snapshot

    def _confirm(self, topology: str, snapshot: PostgresSnapshot) -> None:
        with closing(self.open_stream(topology, FIRST_SCN)) as stream:
            reading = Reading(stream).through(snapshot.scn)
            deadline = time.monotonic() + CAPTURED_S
            while not snapshot.is_captured():
                stream.confirm(snapshot.scn)
                reading.one(0.05)  # as a log writer: it takes what comes, and a broken stream raises
                assert time.monotonic() < deadline, "the slot does not follow"
        # the server's process releases the slot a moment after the connection has ended
        query = "SELECT FROM pg_replication_slots WHERE active AND slot_name = %s"
        while self._session().execute(query, (self._name(topology),)).fetchone() is not None:
            assert time.monotonic() < deadline, "the slot stays in use"
            time.sleep(0.01)
