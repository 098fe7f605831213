"""Two queues and the propagation between them, published and dequeued by hand."""

from __future__ import annotations

from pathlib import Path

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.propagation import (
    PropagationCore,
    PropagationStatistics,
)
from actors.staging.queue import QueueCore
from headrace.base.clock import VirtualClock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import header_of
from headrace.rules.rule import RuleSet
from protos import codec
from tests.support.wire.staging import DirectDequeue, DirectEnqueue, one_way

__all__ = ["EVERYTHING", "TwoQueues"]

EVERYTHING = RuleSet()


class TwoQueues:
    """q_dbs1 -> to_dbs2 -> q_dbs2, published and dequeued by hand."""

    def __init__(self, folder: Path, rules: RuleSet = EVERYTHING, **bounds: int) -> None:
        self.folder, self.rules, self.clock = folder, rules, VirtualClock()
        self.topology = one_way(folder, subscribers=("to_dbs2",), **bounds)
        self.incarnation = 0
        self.statistics = PropagationStatistics()
        self.near: QueueCore | None = None
        self.far: QueueCore | None = None
        self.start_near()
        self.start_far()
        self.connect()

    def start_near(self) -> None:
        self.near = QueueCore(self.topology, "q_dbs1", self.folder / "near", self.clock)
        self.publisher = self.near.open_publisher("capture_dbs1", "1", "dbs1")
        self.near.resume(self.publisher)

    def start_far(self, needed: int = 0) -> None:
        self.far = QueueCore(self.topology, "q_dbs2", self.folder / "far", self.clock)
        self.subscriber = self.far.open_subscriber("apply_far", "1", {"dbs1": Scn(needed)}, 1 << 30)

    def connect(self) -> None:
        self.incarnation += 1
        name = f"{self.incarnation:03d}"
        self.core = PropagationCore(
            "dbs1",
            self.rules,
            DirectEnqueue(lambda: self.far, "to_dbs2", name, "dbs1"),
            lambda: DirectDequeue(lambda: self.near, "to_dbs2", name),
            statistics=self.statistics,
            clock=self.clock,
        )
        self.core.open()

    def publish(self, batch: LcrBatch) -> bytes:
        data = codec.encode(batch)
        assert self.near is not None
        self.near.enqueue(self.publisher, header_of(batch), data)
        return data

    def work(self) -> None:
        while self.core.step():
            pass

    def save(self) -> None:
        self.clock.advance(SAVE_PERIOD_S)
        for core in (self.near, self.far):
            assert core is not None
            if (positions := core.positions_to_save()) is not None:
                core.save_positions(positions)
                core.positions_saved(positions, None)

    def arrived(self) -> list[bytes]:
        assert self.far is not None
        found = []
        while (delivery := self.far.dequeue(self.subscriber)) is not None:
            found.append(delivery.data)
        return found
