"""Hosts a propagation: for each of its sources one stream out of the source queue and one into the destination queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from actors.host import Host
from streams.errors import WouldBlock
from streams.failpoints import failpoint
from streams.scn import FIRST_SCN, Scn

if TYPE_CHECKING:
    from protos.queue_link import DequeueClient, EnqueueClient
    from protos.staging import Delivery
    from topology.spec import TopologySpec

__all__ = ["PropagationHost", "build"]

IDLE_PAUSE_S = 1.0
CREDIT_BYTES = 8 << 20


@dataclass(slots=True)
class _Link:
    source: str
    publisher: EnqueueClient
    subscriber: DequeueClient
    waiting: Delivery | None = None
    durable: Scn = FIRST_SCN


class PropagationHost(Host):
    """One propagation."""

    kind: ClassVar[str] = "propagation"

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str) -> None:
        super().__init__(f"propagation:{name}", spec.state_dir)
        self._spec = spec
        self._propagation = spec.propagation(name)
        self._fingerprint = fingerprint
        self._links: list[_Link] = []
        self._bytes = self._rows = 0

    def open(self) -> None:
        from actors.runtime import resolver
        from protos.queue_link import DequeueClient, EnqueueClient
        from protos.transport import new_incarnation

        resolve, p = resolver(), self._propagation
        for source in p.sources:
            incarnation = new_incarnation()
            publisher = EnqueueClient(
                resolve(f"queue:{p.to_queue}"), topology=self._spec.name, component=p.name, queue=p.to_queue,
                incarnation=incarnation, source=source, wake=self.wake,
            )
            needed = publisher.connect().needed_scn
            subscriber = DequeueClient(
                resolve(f"queue:{p.from_queue}"), topology=self._spec.name, component=p.name, queue=p.from_queue,
                incarnation=incarnation, wake=self.wake,
            )
            link = _Link(source, publisher, subscriber)
            self._links.append(link)
            subscriber.subscribe({source: needed}, CREDIT_BYTES)

    def step(self) -> float:
        busy = False
        for link in self._links:
            progress = link.publisher.poll()
            if progress.rewind_scn is not None:
                from streams.errors import PropagationError

                raise PropagationError("rewind")
            if progress.durable_scn > link.durable:
                link.durable = progress.durable_scn
                link.subscriber.acknowledge(link.source, link.durable)
            link.waiting = link.waiting or link.subscriber.poll()
            if link.waiting is None:
                continue
            try:
                link.publisher.send_nowait(link.waiting.header, link.waiting.data)
            except WouldBlock:
                continue
            failpoint("propagation.after_send")
            link.subscriber.grant(len(link.waiting.data))
            self._bytes += len(link.waiting.data)
            self._rows += link.waiting.header.row_count
            link.waiting = None
            busy = True
        return 0.0 if busy else IDLE_PAUSE_S

    def close(self) -> None:
        links, self._links = self._links, []
        for link in links:
            link.publisher.close()
            link.subscriber.close()

    def details(self) -> dict[str, Any]:
        return {"fingerprint": self._fingerprint, "rows_total": self._rows, "bytes_total": self._bytes}


def build(spec: TopologySpec, name: str, fingerprint: str) -> PropagationHost:
    """Factory of the actor."""
    return PropagationHost(spec, name, fingerprint)
