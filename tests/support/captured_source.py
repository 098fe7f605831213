"""A source whose log writer keeps up, without one."""

from __future__ import annotations

import time
from contextlib import closing

from headrace.databases.postgres.source.database import PostgresSnapshot, PostgresSource
from headrace.lcr.scn import FIRST_SCN
from tests.support.log_reading import Reading

CAPTURED_S = 240.0  # far more than it takes: machines that run other things as well


class CapturedSource(PostgresSource):
    """Confirms everything up to each snapshot before it gives it out; nothing else may read the slot at that moment."""

    def open_snapshot(self, topology: str) -> PostgresSnapshot:
        snapshot = super().open_snapshot(topology)
        with closing(self.open_stream(topology, FIRST_SCN)) as stream:
            reading = Reading(stream).through(snapshot.scn)
            deadline = time.monotonic() + CAPTURED_S
            while not snapshot.is_captured():
                stream.confirm(snapshot.scn)
                reading.one(0.05)  # as a log writer: what comes is taken, and a stream that broke says so
                assert time.monotonic() < deadline, "the slot does not follow"
        return snapshot
