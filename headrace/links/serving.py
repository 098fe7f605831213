"""What a host is given: the streams of its component, and what serves its queue or its redo to the streams of others.

Hosts are given `Links` or `RedoLinks` and know nothing of the wire. gRPC implements them in `protos.links.grpc_links`, the
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
    """Something that is served: its peers reach it."""

    endpoint: str

    def admit(self, callers: Mapping[str, Mapping[str, str]]) -> None:
        """Admit others from now on; streams that are open go on.

        Args:
            callers: who may come for what, each with its site (`protos.wire.admission`).
        """
        ...

    def wire_status(self) -> WireStatus | None:
        """Whom it refused, for the status of the component; None: it refuses nobody."""
        ...

    def stop(self) -> None:
        """End every stream; idempotent. A queue is closed then.

        Raises:
            OSError: the last positions of the queue could not be saved.
        """
        ...


class ServingQueue(Serving, Protocol):
    """A queue that is served to its publishers and subscribers. It is only touched behind the lock of this."""

    def holding(self) -> AbstractContextManager[None]:
        """Hold the lock while the caller reads from the queue, or changes what no stream waits for."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Hold the lock while the caller changes the queue; streams look at it again afterwards."""
        ...

    def housekeeping(self) -> float:
        """Do what time asks of the queue; answers the seconds until the next time."""
        ...

    def status(self) -> QueueStatus:
        """The queue's statistics, always at once."""
        ...


class ServingRedo(Serving, Protocol):
    """A redo log that is served to capture processes, and to redo receivers of other sites."""

    def attach(self, writer: RedoWriter, shipper: RedoShipper | None = None) -> None:
        """Serve another log writer from now on (the one before was closed).

        Args:
            writer: the log writer.
            shipper: its shipping; None where redo is not shipped.
        """
        ...

    def announce(self) -> None:
        """Redo may have become durable: wake who waits for it. Cheap, callable from any thread."""
        ...


class Links(Protocol):
    """Makes the streams of one component, and serves its queue to the streams of others.

    No stream is connected yet; the component is woken whenever one of them has something new.
    """

    def publisher(self, queue: str, source: str, compressor: PieceCompressor | None = None) -> Publisher:
        """A stream into a queue.

        Args:
            queue: its name.
            source: the site whose batches will be sent.
            compressor: of what is sent; None: nothing is compressed.

        Raises:
            PropagationError: it is not known now where the queue is.
        """
        ...

    def subscriber(self, queue: str) -> Subscriber:
        """A stream out of a queue.

        Raises:
            PropagationError: it is not known now where the queue is.
        """
        ...

    def redo(self, keeper: str, source: str) -> RedoWatch:
        """A stream from who writes redo.

        Args:
            keeper: full name of the component that writes it: "site:dbs1" or "redo:dbs1@dbs2".
            source: the site whose redo it is.

        Raises:
            PropagationError: it is not known now where it is.
        """
        ...

    def serve(self, core: QueuePort[Any, Any]) -> ServingQueue:
        """Serve the component's queue from now on.

        Args:
            core: the queue.
        """
        ...


class RedoLinks(Protocol):
    """Makes the streams of a component that writes redo, and serves the redo.

    Nothing is connected yet; the component is woken whenever a stream has something new.
    """

    def reception(self, source: str) -> RedoReception:
        """A stream on which a source ships its redo.

        Args:
            source: the site.

        Raises:
            PropagationError: it is not known now where it is.
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
            shipper: ships it to the redo receivers of other sites; None: nobody does.
            acknowledged: called when one of them has more durably; must not block.
        """
        ...
