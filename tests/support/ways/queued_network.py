"""A topology on real PostgreSQL databases with its queues and propagations on gRPC.

It runs in the form that the topology gives it: with all of them, or with direct dequeuing. Databases, redo logs, miners
and apply engines are those of `PostgresNetwork`. There are no capture processes that are combined with an apply
process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psycopg

from actors.hosting.host import Host
from actors.staging.propagation_host import PropagationHost
from actors.staging.queue_host import QueueHost, forget_queues
from headrace.base.errors import HeadraceError, PropagationError
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import header_of
from headrace.status.queues import QueueStatus
from protos import codec
from protos.links.queue_link import DequeueClient, EnqueueClient
from protos.wire import transport
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.ways.postgres_network import PASSES_MAX, NetworkSite, PostgresNetwork
from tests.support.wire.links import adopted, begun, loopback, without_tls
from topology.edits.changes import components_of, interests_of
from topology.routing.combined import dequeued
from topology.spec import CaptureSpec, TopologySpec

ARRIVES_S = 60.0  # generous: batches in a queue arrive at once, except on a busy machine
CREDIT_BYTES = 1 << 24


class QueuedNetwork(PostgresNetwork):
    """A topology with its queues and propagations.

    Args:
        spec: routed; no capture process is combined.
        dsns: of the databases, by site.
        folder: for redo logs and queues.
        prepare: creates the tables of a site.
        detours: by queue, the address that propagations connect to instead.
    """

    def __init__(
        self,
        spec: TopologySpec,
        dsns: Mapping[str, str],
        folder: Path,
        prepare: Callable[[str, psycopg.Connection], None],
        detours: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(spec, dsns, folder, prepare)
        self.folder = folder
        self._hosts: dict[str, Host] = {}  # running queues and propagations, by full name
        self._publishers: dict[str, EnqueueClient] = {}
        self._clients: dict[str, DequeueClient] = {}
        self._sent: dict[str, Scn] = {}  # by source
        self._detours = detours or {}
        self.run_by(spec)

    # ------------------------------------------------------------------ what runs

    def run_by(self, spec: TopologySpec) -> None:
        """Start with a topology, or continue with an edited one: queues that stay adopt it, the others start or end.

        Apply processes notice when their stream ends.
        """
        self.spec = spec
        running = {each.name for each in components_of(spec) if each.kind in {"queue", "propagation"}}
        for name in sorted(self._hosts.keys() - running):  # propagations first
            assert self._hosts.pop(name).end()
        stays, topology = set(self.queues), without_tls(spec, self.folder)
        for name in sorted(running - self._hosts.keys(), key=lambda name: not name.startswith("queue:")):
            kind, _, short = name.partition(":")
            self._hosts[name] = self._queue(topology, short) if kind == "queue" else self._propagation(topology, short)
        for name in stays:
            adopted(self.queues[name], topology)

    @property
    def queues(self) -> dict[str, QueueHost]:
        """Return the running queues by name."""
        return {each.name.partition(":")[2]: each for each in self._hosts.values() if isinstance(each, QueueHost)}

    def _queue(self, spec: TopologySpec, name: str) -> Host:
        forget_queues(spec, spec.queue(name).site, (f"queue:{name}",))
        return begun(QueueHost(spec, name, "", loopback()))

    def _propagation(self, spec: TopologySpec, name: str) -> Host:
        def resolve(queue: str) -> str:
            short = queue.partition(":")[2]
            found = self.queues.get(short)
            if found is None:
                raise PropagationError(f"{queue} does not run")
            return self._detours.get(short, found.endpoint())

        host = PropagationHost(spec, name, "", loopback(resolve))
        host.start()
        return host

    # ------------------------------------------------------------------ movement

    def capture(self) -> int:
        """Capture everything committed at the sources into their queues; return the number of rows."""
        return sum(self._capture(site, capture) for site in self.sites.values() for capture in self._caught_up(site))

    def apply(self, name: str) -> None:
        """Apply everything that was captured before this call, at one apply process.

        Args:
            name: of the apply process.
        """
        self._apply(name)

    def settle(self, *, held: Sequence[str] = ()) -> None:
        """Run until nothing moves any more, as `PostgresNetwork.settle`."""
        for _ in range(PASSES_MAX):
            rows = self.capture()
            for name in self.engines.keys() - set(held):
                self._apply(name)
            if not rows:
                return
        raise AssertionError("changes go in circles")

    def _capture(self, site: NetworkSite, capture: CaptureSpec) -> int:
        publisher = self._publishers.get(capture.name)
        if publisher is None:
            publisher = self._publishers[capture.name] = EnqueueClient(
                self.queues[capture.queue].endpoint(),
                topology=self.spec.name,
                component=capture.name,
                queue=capture.queue,
                incarnation=transport.new_incarnation(),
                source=capture.source,
            )
            assert publisher.connect().needed_scn == FIRST_SCN
        rows = 0
        while (batch := site.miners[capture.name].next_batch(site.writer.position, rows_max=self.rows_max)) is not None:
            publisher.send(header_of(batch), codec.encode(batch), timeout_s=ARRIVES_S)
            self._sent[capture.source], rows = batch.through_scn, rows + batch.row_count
        return rows

    def _apply(self, name: str) -> None:
        """Take everything that was sent, apply it, and acknowledge it."""
        engine, wanted = self.engines[name], self._sent.get(self.engines[name].source, FIRST_SCN)
        while engine.reader.needed_scn < wanted:
            client = self._clients.get(name) or self._subscribed(name)
            try:
                delivery = client.poll(ARRIVES_S)
            except HeadraceError:  # it now dequeues from another queue
                client.close()
                del self._clients[name]
                continue
            assert delivery is not None, f"{name} has {engine.reader.needed_scn}, and {wanted} was sent"
            client.grant(len(delivery.data))
            engine.batches.append(codec.decode(delivery.data))
            engine.run()
            client.acknowledge(engine.source, engine.coordinator.watermarks.durable)

    def _subscribed(self, name: str) -> DequeueClient:
        queue = dequeued(self.spec, self.spec.apply(name))
        client = self._clients[name] = DequeueClient(
            self.queues[queue].endpoint(),
            topology=self.spec.name,
            component=name,
            queue=queue,
            incarnation=transport.new_incarnation(),
        )
        engine = self.engines[name]
        client.subscribe({engine.source: engine.reader.needed_scn}, CREDIT_BYTES)
        return client

    # ------------------------------------------------------------------ observations

    def sent(self, source: str) -> Scn:
        """Return the SCN up to which a source's changes were sent to its queue."""
        return self._sent.get(source, FIRST_SCN)

    def status(self, queue: str) -> QueueStatus:
        """Return a queue's status."""
        return status_of(self.queues[queue], QueueStatus)

    def readers(self, queue: str) -> set[str]:
        """Return the clients that dequeue from a running queue."""
        return set(interests_of(self.spec, queue)) if queue in self.queues else set()

    def wait_acknowledged(self, *applies: str) -> None:
        """Wait until the sources' queues know what these apply processes acknowledged, also over other queues."""

        def knows(name: str) -> bool:
            engine = self.engines[name]
            queues = [self.status(each.queue) for each in self.spec.captures if each.source == engine.source]
            return all(
                max(each.acknowledged_scn for each in status.subscribers) >= engine.coordinator.watermarks.durable
                for status in queues
            )

        wait_until("the sources know it", lambda: all(map(knows, applies)), ARRIVES_S)

    def wait_forgotten(self) -> None:
        """Wait until every change is acknowledged and no queue holds one.

        Marks after the last change become durable with the next one.
        """
        wait_until(
            "no queue holds anything", lambda: not any(self.status(name).batches for name in self.queues), ARRIVES_S
        )

    def close(self) -> None:
        for client in (*self._clients.values(), *self._publishers.values()):
            client.close()
        for name in sorted(self._hosts):  # propagations first
            assert self._hosts[name].end()
        super().close()
