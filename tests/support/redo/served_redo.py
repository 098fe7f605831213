"""A log writer served over gRPC on loopback, and a workload."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from headrace.base.clock import VirtualClock
from headrace.databases.memory.source import MemorySource
from headrace.redo.writing.log_writer import LogWriter
from headrace.status.redo import ShippedRedo
from protos.links.redo_link import RedoServer
from protos.links.redo_transport import RedoShippingClient
from protos.wire import transport
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import SOURCE, drain, log_writer
from tests.support.redo.standby_redo import RECEIVER

__all__ = ["Source"]


class Source:
    """A served log writer, and a workload."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "redo"
        self.source, self.clock = MemorySource(gulp_bytes=lambda: 2000), VirtualClock(time.time_ns() // 1000)
        self.workload = Workload(self.source, 7)
        self.acknowledged = threading.Event()
        self.writer = self.write()
        self.server = RedoServer(
            "t", SOURCE, self.writer, shipper=self.writer.shipping, acknowledged=self.acknowledged.set
        )

    def write(self) -> LogWriter:
        writer = log_writer(self.folder, self.source, clock=self.clock, segment_bytes=20_000, record_bytes=4000)
        writer.shipping.register({RECEIVER: False})
        writer.required_checkpoints.register("keeps_all")  # a stuck capture process at the source
        return writer

    def commit(self, transactions: int) -> None:
        self.workload.run(transactions)
        drain(self.writer, self.source, self.clock)
        self.server.announce()

    def client(self, address: str = "", incarnation: str = "", target: str = SOURCE) -> RedoShippingClient:
        return RedoShippingClient(
            address or self.server.endpoint,
            topology="t",
            receiver=RECEIVER,
            source=target,
            incarnation=incarnation or transport.new_incarnation(),
        )

    def shipped(self) -> ShippedRedo:
        (found,) = self.writer.shipping.status()
        return found
