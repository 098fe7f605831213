"""`headrace.links.serving.Links` and `RedoLinks` over gRPC: one component's clients of queues and redo logs, and its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from protos.links.redo_link import RedoServer, RedoWatchClient
from protos.links.redo_transport import RedoShippingClient
from protos.wire.admission import Admission
from protos.wire.identity import Peer
from protos.wire.transport import new_incarnation

if TYPE_CHECKING:
    from headrace.links.ports import PieceCompressor
    from headrace.links.staging import QueuePort
    from headrace.links.standby import RedoShipper, RedoWriter

__all__ = ["GrpcLinks"]


class GrpcLinks:
    """The gRPC streams of one component, and its server.

    Every stream resolves the other end's endpoint anew, because a restarted component has another port.

    Args:
        component: name of the connecting component, as its peers know it.
        resolve: returns a component's endpoint ("queue:q_dbs1") with the site whose certificate it must present; raises
            a PropagationError if the component does not serve.
        wake: called on a gRPC thread whenever a stream has news; must not block.
        incarnation: incarnation of all its streams, so that the time of day does not order them; empty: from
            `transport.new_incarnation`.
        host: returns the address to serve on.
        admission: returns the admission of callers; None: any caller with a valid handshake, without TLS.
    """

    def __init__(
        self,
        topology: str,
        component: str,
        resolve: Callable[[str], Peer | str],
        *,
        wake: Callable[[], None] | None = None,
        incarnation: str = "",
        host: Callable[[], str] = lambda: "127.0.0.1",
        admission: Callable[[], Admission | None] = lambda: None,
    ) -> None:
        self._topology, self._component, self._resolve = topology, component, resolve
        self._wake, self._incarnation = wake, incarnation or new_incarnation()
        self._host, self._admission = host, admission

    def publisher(self, queue: str, source: str, compressor: PieceCompressor | None = None) -> EnqueueClient:
        """Make a publisher's stream into a queue.

        See `Links.publisher` for the arguments.
        """
        return EnqueueClient(
            self._resolve(f"queue:{queue}"),
            topology=self._topology,
            component=self._component,
            queue=queue,
            incarnation=self._incarnation,
            source=source,
            wake=self._wake,
            compressor=compressor,
        )

    def subscriber(self, queue: str) -> DequeueClient:
        """Make a subscriber's stream out of a queue."""
        return DequeueClient(
            lambda: self._resolve(f"queue:{queue}"),
            topology=self._topology,
            component=self._component,
            queue=queue,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def redo(self, keeper: str, source: str) -> RedoWatchClient:
        """Make a capture process's connection to the keeper of its redo.

        See `Links.redo` for the arguments.
        """
        return RedoWatchClient(
            self._resolve(keeper),
            topology=self._topology,
            capture=self._component,
            source=source,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def reception(self, source: str) -> RedoShippingClient:
        """Make a redo receiver's stream from its source."""
        return RedoShippingClient(
            self._resolve(f"site:{source}"),
            topology=self._topology,
            receiver=self._component,
            source=source,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def serve(self, core: QueuePort[Any, Any]) -> QueueServer[Any, Any]:
        """Serve a queue."""
        return QueueServer(core, host=self._host(), admission=self._admission())

    def serve_redo(
        self,
        source: str,
        writer: RedoWriter,
        shipper: RedoShipper | None = None,
        acknowledged: Callable[[], None] | None = None,
    ) -> RedoServer:
        """Serve a redo log.

        See `RedoLinks.serve_redo` for the arguments.
        """
        return RedoServer(
            self._topology,
            source,
            writer,
            shipper=shipper,
            acknowledged=acknowledged,
            host=self._host(),
            admission=self._admission(),
        )
