"""A redo log whose only capture process has captured everything: the redo kept is retained redo."""

from __future__ import annotations

from pathlib import Path

from headrace.base.clock import VirtualClock
from headrace.databases.memory.source import MemorySource
from headrace.redo.segments import list_segments
from headrace.redo.writing.log_writer import LogWriter
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import drain, write_redo

__all__ = ["Source"]


class Source:
    """A memory source with a redo log of small segments and one capture process, which has captured everything."""

    def __init__(
        self, folder: Path, *, redo_bytes_max: int = 1 << 30, retention_s: float = 0.0, transactions: int = 40
    ) -> None:
        self.folder, self.clock, self.source = folder, VirtualClock(), MemorySource(gulp_bytes=lambda: 200)
        self.workload, self.retention_s = Workload(self.source, 1), retention_s
        self.workload.run(transactions)
        self.writer: LogWriter = write_redo(
            folder, self.source, clock=self.clock, segment_bytes=1500, redo_bytes_max=redo_bytes_max, record_bytes=300
        )
        self.writer.required_checkpoints.register("c", retention_s=retention_s)
        self.turn()

    def turn(self) -> None:
        """Let the log writer take what exists, and purge."""
        drain(self.writer, self.source, self.clock)

    def applied(self) -> None:
        """Let every destination have everything."""
        self.writer.required_checkpoints.record("c", self.writer.position.scn)

    def segments(self) -> list[int]:
        return [file.number for file in list_segments(self.folder)]
