"""A source whose log writer keeps up, without one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import closing

from headrace.databases.postgres.source.database import PostgresSnapshot, PostgresSource
from headrace.lcr.scn import FIRST_SCN
from tests.support.databases.log_reading import Reading

CAPTURED_S = 240.0  # far more than it takes: machines that run other things as well
_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by connection string


class CapturedSource(PostgresSource):
    """Confirms everything up to each snapshot before it gives it out.

    Several of one database take turns; nothing else may read the slot at that moment.
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
                reading.one(0.05)  # as a log writer: what comes is taken, and a stream that broke says so
                assert time.monotonic() < deadline, "the slot does not follow"
        # its process lets go of the slot a moment after the connection has ended
        query = "SELECT FROM pg_replication_slots WHERE active AND slot_name = %s"
        while self._session().execute(query, (self._name(topology),)).fetchone() is not None:
            assert time.monotonic() < deadline, "the slot stays in use"
            time.sleep(0.01)
