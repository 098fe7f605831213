"""A buffered queue for tests, driven by hand."""

from __future__ import annotations

from pathlib import Path

from actors.staging.positions import SAVE_PERIOD_S
from actors.staging.queue import QueueCore
from actors.staging.queue_sessions import PublisherSession, SubscriberSession
from headrace.base.clock import VirtualClock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import Delivery, header_of
from protos import codec
from tests.support.wire.staging import one_way

__all__ = ["CREDIT", "Queue"]

CREDIT = 1 << 30


class Queue:
    """A queue with its clock, and frequent operations of tests."""

    def __init__(self, folder: Path, *, subscribers: tuple[str, ...] = ("apply_a",), **bounds: int) -> None:
        self.folder, self.clock = folder, VirtualClock()
        self.topology = one_way(folder, subscribers=subscribers, **bounds)
        self.incarnations = 0
        self.restart()

    def restart(self, *subscribers: str) -> None:
        """Restart the queue, with these subscribers if any are named."""
        if subscribers:
            self.topology = one_way(self.folder, subscribers=subscribers)
        self.core = QueueCore(self.topology, "q_dbs1", self.folder / "q", self.clock)

    def adopt(self, *subscribers: str) -> None:
        """Continue with these subscribers."""
        self.topology = one_way(self.folder, subscribers=subscribers)
        self.core.adopt(self.topology)

    def publisher(self) -> PublisherSession:
        self.incarnations += 1
        session = self.core.open_publisher("capture_dbs1", f"{self.incarnations:03d}", "dbs1")
        self.core.resume(session)
        session.granted_bytes = 1 << 60  # tests may send any amount; test_queue_subscribers.py tests the bound
        return session

    def subscriber(self, name: str = "apply_a", *, needed: int = 0, credit: int = CREDIT) -> SubscriberSession:
        self.incarnations += 1
        return self.core.open_subscriber(name, f"{self.incarnations:03d}", {"dbs1": Scn(needed)}, credit)

    def send(self, session: PublisherSession, batch: LcrBatch) -> int:
        data = codec.encode(batch)
        self.core.enqueue(session, header_of(batch), data)
        return len(data)

    def taken(self, session: SubscriberSession) -> list[Delivery]:
        found = []
        while (delivery := self.core.dequeue(session)) is not None:
            found.append(delivery)
        return found

    def save(self) -> None:
        self.clock.advance(SAVE_PERIOD_S)
        positions = self.core.positions_to_save()
        if positions is not None:
            self.core.save_positions(positions)
            self.core.positions_saved(positions, None)

    def spans(self, session: SubscriberSession) -> list[tuple[int, int]]:
        return [(each.header.previous_scn, each.header.through_scn) for each in self.taken(session)]
