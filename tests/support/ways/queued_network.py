"""A topology on real PostgreSQL databases with its queues and propagations on gRPC, in the form that the topology gives
it: with them all, or dequeuing directly.

As `PostgresNetwork`, of which it has the databases, redo logs, miners and apply engines. Capture processes that are
combined with an apply process are not made.
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
from tests.support.clusters.system import wait_until
from tests.support.ways.postgres_network import PASSES_MAX, NetworkSite, PostgresNetwork
from tests.support.wire.links import adopted, begun, loopback, without_tls
from topology.edits.changes import components_of, interests_of
from topology.routing.combined import dequeued
from topology.spec import CaptureSpec, TopologySpec

ARRIVES_S = 60.0  # what is in a queue arrives at once; a busy machine takes its time
CREDIT_BYTES = 1 << 24


class QueuedNetwork(PostgresNetwork):
    """See the module.

    Args:
        spec: routed; no capture process is combined.
        dsns: of the databases, by site.
        folder: for redo logs and queues.
        prepare: makes the tables of a site.
        detours: by queue, where propagations connect instead.
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
        self._hosts: dict[str, Host] = {}  # of queues and propagations that run, by full name
        self._publishers: dict[str, EnqueueClient] = {}
        self._clients: dict[str, DequeueClient] = {}
        self._sent: dict[str, Scn] = {}  # by source
        self._detours = detours or {}
        self.run_by(spec)

    # ------------------------------------------------------------------ what runs

    def run_by(self, spec: TopologySpec) -> None:
        """Begin with a topology, or go on by an edited one: queues that stay adopt it, the others begin or end.

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
        """Those that run, by name."""
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

    # ------------------------------------------------------------------ what moves

    def capture(self) -> int:
        """Everything that is committed at the sources into their queues; rows."""
        return sum(self._capture(site, capture) for site in self.sites.values() for capture in self._caught_up(site))

    def apply(self, name: str) -> None:
        """Everything that was captured before this call, at one apply process.

        Args:
            name: of the apply process.
        """
        self._apply(name)

    def settle(self, *, held: Sequence[str] = ()) -> None:
        """Until nothing moves any more; see `PostgresNetwork.settle`."""
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
            except HeadraceError:  # it dequeues from another queue now
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

    # ------------------------------------------------------------------ what is seen

    def sent(self, source: str) -> Scn:
        """How far a source's changes were sent to its queue."""
        return self._sent.get(source, FIRST_SCN)

    def status(self, queue: str) -> QueueStatus:
        """How a queue stands."""
        return self.queues[queue].status()

    def readers(self, queue: str) -> set[str]:
        """Who takes what from a queue that runs."""
        return set(interests_of(self.spec, queue)) if queue in self.queues else set()

    def wait_acknowledged(self, *applies: str) -> None:
        """The queues of the sources know what apply processes have acknowledged, who may be behind other queues."""

        def knows(name: str) -> bool:
            engine = self.engines[name]
            queues = [self.status(each.queue) for each in self.spec.captures if each.source == engine.source]
            return all(
                max(each.acknowledged_scn for each in status.subscribers) >= engine.coordinator.watermarks.durable
                for status in queues
            )

        wait_until("the sources know it", lambda: all(map(knows, applies)), ARRIVES_S)

    def wait_forgotten(self) -> None:
        """Everybody has acknowledged every change, so no queue holds one.

        Marks behind the last change become durable with the next one.
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
