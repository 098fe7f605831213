"""A source with a redo log and a receiver at another site that copies it, in one process."""

from __future__ import annotations

import itertools
import random
from typing import Any

from headrace.base.clock import VirtualClock
from headrace.databases.memory.source import MemorySource
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import drain, log_writer, mine, miner, received
from tests.support.redo.standby_redo import RECEIVER, Stream, receive

__all__ = ["Site"]


class Site:
    """A source with a workload, its redo log, and the folder of a receiver."""

    def __init__(self, tmp_path, seed: int = 1, *, keeps: bool = True, **settings) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.source = MemorySource(gulp_bytes=lambda: self.random.randrange(40, 4000))
        self.workload = Workload(self.source, seed)
        self.clock = VirtualClock()
        self.settings = {"segment_bytes": 6000, "record_bytes": 1000, **settings}
        self.redo, self.folder = tmp_path / "redo", tmp_path / "standby"
        self.writer = log_writer(self.redo, self.source, clock=self.clock, **self.settings)
        self.writer.shipping.register({RECEIVER: False})
        if keeps:
            self.writer.required_checkpoints.register("keeps_all")  # a stuck capture process at the source
        self.incarnations = itertools.count(1)

    def commit(self, transactions: int) -> None:
        self.workload.run(transactions)
        drain(self.writer, self.source, self.clock)

    def restart(self) -> None:
        """Kill the source's site and start it again."""
        self.writer = log_writer(self.redo, self.source, clock=self.clock, **self.settings)
        self.writer.shipping.register({RECEIVER: False})

    def stream(self, standby) -> Stream:
        return Stream(self.writer, standby, f"{next(self.incarnations):08d}")

    def receive(self, standby, size=lambda: 1 << 20) -> Stream:
        return receive(self.writer, standby, f"{next(self.incarnations):08d}", size)

    def mined_at(self, standby) -> list[Any]:
        reader = miner(self.folder)
        try:
            return received(mine(reader, standby))
        finally:
            reader.close()
