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
    """See the module.

    Every stream asks anew where the other end serves, because a restarted component has another port.

    Args:
        topology: its name.
        component: name of the component that connects, as its peers know it.
        resolve: answers where a component serves ("queue:q_dbs1"), and whose certificate it must show; raises a
            PropagationError where it does not.
        wake: called on a thread of gRPC whenever a stream has something new; must not block.
        incarnation: of all its streams, so that the time of day does not order them; empty: from
            `transport.new_incarnation`.
        host: answers the address to serve on.
        admission: answers who may come to what is served; None: everybody who says the right hello, without TLS.
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
        """See `Links.publisher`."""
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
        """See `Links.subscriber`."""
        return DequeueClient(
            lambda: self._resolve(f"queue:{queue}"),
            topology=self._topology,
            component=self._component,
            queue=queue,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def redo(self, keeper: str, source: str) -> RedoWatchClient:
        """See `Links.redo`."""
        return RedoWatchClient(
            self._resolve(keeper),
            topology=self._topology,
            capture=self._component,
            source=source,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def reception(self, source: str) -> RedoShippingClient:
        """See `RedoLinks.reception`."""
        return RedoShippingClient(
            self._resolve(f"site:{source}"),
            topology=self._topology,
            receiver=self._component,
            source=source,
            incarnation=self._incarnation,
            wake=self._wake,
        )

    def serve(self, core: QueuePort[Any, Any]) -> QueueServer[Any, Any]:
        """See `Links.serve`."""
        return QueueServer(core, host=self._host(), admission=self._admission())

    def serve_redo(
        self,
        source: str,
        writer: RedoWriter,
        shipper: RedoShipper | None = None,
        acknowledged: Callable[[], None] | None = None,
    ) -> RedoServer:
        """See `RedoLinks.serve_redo`."""
        return RedoServer(
            self._topology,
            source,
            writer,
            shipper=shipper,
            acknowledged=acknowledged,
            host=self._host(),
            admission=self._admission(),
        )
