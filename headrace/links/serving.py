"""What a host gets: its component's streams, and a server of its queue or redo for the streams of others.

Hosts get `Links` or `RedoLinks` and do not depend on the wire. gRPC implements them in `protos.links.grpc_links`, the
simulation in `headrace.simulation.network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.status.component import WireStatus
from headrace.status.queues import QueueStatus

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from headrace.links.ports import PieceCompressor, Publisher, RedoWatch, Subscriber
    from headrace.links.staging import QueuePort
    from headrace.links.standby import RedoReception, RedoShipper, RedoWriter

__all__ = ["Links", "RedoLinks", "Serving", "ServingQueue", "ServingRedo"]


class Serving(Protocol):
    """A served queue or redo log, reachable for its peers."""

    endpoint: str

    def admit(self, callers: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the admitted callers; open streams continue.

        Args:
            callers: admitted callers by role, each with its site (`protos.wire.admission`).
        """
        ...

    def wire_status(self) -> WireStatus | None:
        """Refused callers, for the component's status; None: it refuses none."""
        ...

    def stop(self) -> None:
        """End every stream and close a queue; idempotent.

        Raises:
            OSError: the last positions of the queue could not be saved.
        """
        ...


class ServingQueue(Serving, Protocol):
    """A queue that is served to its publishers and subscribers. Its lock guards every access."""

    def holding(self) -> AbstractContextManager[None]:
        """Hold the lock while the caller reads from the queue, or changes what no stream waits for."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Hold the lock while the caller changes the queue; streams look at it again afterwards."""
        ...

    def housekeeping(self) -> float:
        """Run the queue's timed work; return the seconds until the next run."""
        ...

    def status(self) -> QueueStatus:
        """Return the queue's statistics without delay."""
        ...


class ServingRedo(Serving, Protocol):
    """A redo log that is served to capture processes and to redo receivers of other sites."""

    def attach(self, writer: RedoWriter, shipper: RedoShipper | None = None) -> None:
        """Serve another log writer from now on; the previous one was closed.

        Args:
            writer: the log writer.
            shipper: its shipping; None: redo is not shipped.
        """
        ...

    def announce(self) -> None:
        """Wake the waiting streams: redo may have become durable. Cheap; any thread may call it."""
        ...


class Links(Protocol):
    """Makes the streams of one component, and serves its queue to the streams of others.

    New streams are not connected yet. The component is woken whenever one of them has something new.
    """

    def publisher(self, queue: str, source: str, compressor: PieceCompressor | None = None) -> Publisher:
        """Make a stream into a queue.

        Args:
            queue: its name.
            source: the site whose batches will be sent.
            compressor: compressor of the sent data; None: no compression.

        Raises:
            PropagationError: the queue's place is not known now.
        """
        ...

    def subscriber(self, queue: str) -> Subscriber:
        """Make a stream out of a queue.

        Raises:
            PropagationError: the queue's place is not known now.
        """
        ...

    def redo(self, keeper: str, source: str) -> RedoWatch:
        """Make a stream from the component that writes redo.

        Args:
            keeper: full name of that component: "site:dbs1" or "redo:dbs1@dbs2".
            source: the site whose redo it is.

        Raises:
            PropagationError: the keeper's place is not known now.
        """
        ...

    def serve(self, core: QueuePort[Any, Any]) -> ServingQueue:
        """Serve the component's queue from now on."""
        ...


class RedoLinks(Protocol):
    """Makes the streams of a component that writes redo, and serves the redo.

    New streams are not connected yet. The component is woken whenever one of them has something new.
    """

    def reception(self, source: str) -> RedoReception:
        """Make a stream on which a source ships its redo.

        Raises:
            PropagationError: the source's place is not known now.
        """
        ...

    def serve_redo(
        self,
        source: str,
        writer: RedoWriter,
        shipper: RedoShipper | None = None,
        acknowledged: Callable[[], None] | None = None,
    ) -> ServingRedo:
        """Serve the redo that the component writes from now on.

        Args:
            source: the site whose redo it is.
            writer: its log writer, or a standby redo log.
            shipper: ships it to the redo receivers of other sites; None: redo is not shipped.
            acknowledged: called when a receiver has more durably; must not block.
        """
        ...
