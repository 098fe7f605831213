"""A source whose log writer keeps up, without one."""

from __future__ import annotations

import time

from headrace.databases.postgres.source.database import PostgresSnapshot, PostgresSource
from headrace.lcr.scn import FIRST_SCN
from tests.support.log_reading import Reading

CAPTURED_S = 240.0  # far more than it takes: machines that run other things as well


class CapturedSource(PostgresSource):
    """Confirms everything up to each snapshot before it gives it out; nothing else may read the slot at that moment."""

    def open_snapshot(self, topology: str) -> PostgresSnapshot:
        snapshot = super().open_snapshot(topology)
        reading = Reading(self.open_stream(topology, FIRST_SCN)).through(snapshot.scn)
        deadline = time.monotonic() + CAPTURED_S
        while not snapshot.is_captured():
            reading.stream.confirm(snapshot.scn)
            assert time.monotonic() < deadline, "the slot does not follow"
            time.sleep(0.01)
        reading.stream.close()
        return snapshot
