"""Hosts a buffered queue (`actors.staging.queue`): its core, its gRPC service, its housekeeping."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from actors.hosting.host import Host
from actors.security.wire import callers_of, links_of
from actors.staging.spill import SPILL_FOLDER, remove_left_over
from actors.state_folder import site_folder
from headrace.base.errors import PropagationError, QueueError
from headrace.lcr.scn import Scn
from headrace.status.component import ComponentStatus

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from actors.security.wire import MakeLinks
    from actors.staging.queue import QueueCore
    from headrace.base.clock import Clock
    from headrace.links.serving import ServingQueue
    from topology.spec import QueueSpec, TopologySpec

__all__ = ["QueueHost", "build", "delete_spilled", "forget_queues"]


class QueueHost(Host):
    """One queue of a site.

    Args:
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
        make_links: serves the queue.
        clock: clock of periods and statistics.
    """

    kind: ClassVar[str] = "queue"
    adopts_open: ClassVar[bool] = True

    def __init__(
        self,
        spec: TopologySpec,
        name: str,
        fingerprint: str,
        make_links: MakeLinks = links_of,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"queue:{name}", spec.state_dir, clock=clock)
        self._make_links = make_links
        self._spec = spec
        self._queue = spec.queue(name)
        self._fingerprint = fingerprint
        self._serving: ServingQueue | None = None
        self._core: QueueCore | None = None

    def open(self) -> None:
        """Start with an empty queue at the saved positions, and request the rest from the publishers."""
        from actors.staging.queue import QueueCore

        folder = _folder(self._spec, self._queue)
        folder.mkdir(parents=True, exist_ok=True)
        self._core = QueueCore(self._spec, self._queue.name, folder, self._clock, tracks=self.tracks)
        self._serving = self._make_links(self._spec, self._queue.site, self.name, self.wake).serve(self._core)

    def step(self) -> float:
        """Do housekeeping; the service's threads handle batches."""
        assert self._serving is not None
        return self._serving.housekeeping()

    def close(self) -> None:
        """End every stream; subscribers and publishers reconnect later."""
        serving, self._serving = self._serving, None
        self._core = None
        if serving is not None:
            with contextlib.suppress(OSError):  # positions that could not be saved are only a lower bound
                serving.stop()

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Continue with changed subscribers and sources, without disturbing the streams of unchanged ones.

        See `Host.adopt` for the arguments.
        """
        from actors.staging.subscribers import forget_former_subscribers

        if self._serving is not None and self._core is not None:
            with self._serving.changing():
                self._core.adopt(spec)
            self._serving.admit(callers_of(spec, self.name))
        else:
            forget_former_subscribers(spec, self._queue.name, _folder(self._spec, self._queue))
        self._spec, self._queue, self._fingerprint = spec, spec.queue(self._queue.name), fingerprint

    def detail_state(self) -> str:
        """Return INITIALIZING until the queue is open; then its statistics contain the state."""
        return "INITIALIZING"

    def details(self) -> ComponentStatus:
        """Return the queue's statistics while it is open."""
        serving = self._serving
        if serving is None:
            return ComponentStatus(name=self.name, site=self._queue.site, fingerprint=self._fingerprint)
        return replace(serving.status(), fingerprint=self._fingerprint, wire=serving.wire_status())

    def capture_again(self, publisher: str, scn: int) -> None:
        """Have a capture process send everything after an SCN again.

        Args:
            publisher: name of the capture process.
            scn: the SCN.

        Raises:
            QueueError: the capture process does not publish here now.
        """
        serving, core = self._serving, self._core  # the queue may close at any time
        if serving is None or core is None:
            raise QueueError(f"{self.name} does not serve now", hint="ask again when it runs; see `headrace status`")
        with serving.changing():
            core.capture_again(publisher, Scn(scn))

    def endpoint(self) -> str:
        """Return the endpoint for publishers and subscribers."""
        serving = self._serving  # the queue may close at any time
        if serving is None:
            raise PropagationError(f"{self.name} does not serve now")
        return serving.endpoint


def build(spec: TopologySpec, name: str, fingerprint: str) -> QueueHost:
    """Build the host of a queue (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the queue.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return QueueHost(spec, name, fingerprint)


def forget_queues(spec: TopologySpec, site: str, components: Collection[str]) -> None:
    """Delete the positions of a site's queues that are among these components; none of them may run.

    Args:
        spec: the topology.
        site: name of the site.
        components: full names of components.
    """
    for queue in spec.queues:
        folder = _folder(spec, queue)
        if queue.site == site and f"queue:{queue.name}" in components and folder.exists():
            shutil.rmtree(folder)


def delete_spilled(spec: TopologySpec, site: str, components: Collection[str]) -> None:
    """Delete the spill files of a site's queues that are among these components; none of them may run.

    A killed queue could not delete them itself.

    Args:
        spec: the topology; it may no longer have the queues.
        site: name of the site.
        components: full names of components, also of other sites.
    """
    for component in components:
        kind, _, name = component.partition(":")
        if kind == "queue":
            remove_left_over(site_folder(spec, site) / "queues" / name / SPILL_FOLDER)


def _folder(spec: TopologySpec, queue: QueueSpec) -> Path:
    return site_folder(spec, queue.site) / "queues" / queue.name
