"""What publishers, queues and subscribers say to each other, apart from how it travels.

A queue is one object behind one lock. Publishers and subscribers hold a session each; what a queue has to tell one of
them is asked for (`publisher_news`, `dequeue`), so that many changes between two answers become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from streams.errors import StreamsError
from streams.links import BatchHeader, Delivery
from streams.scn import Scn

__all__ = ["DequeuePort", "PublisherNews", "QueuePort", "SessionPort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherNews:
    """What changed for a publisher; None: nothing.

    Args:
        through_scn: the queue's position in the publisher's source.
        accepted_bytes: bytes of this session's batches the queue has taken since the session began.
        credit_bytes: how many bytes may be on their way at once; 0: paused for flow control.
        durable_scn: committed at every subscriber up to here, and remembered by the queue across restarts.
        rewind_scn: the queue no longer has what a subscriber needs: send everything after this again.
    """

    through_scn: Scn
    accepted_bytes: int
    credit_bytes: int
    durable_scn: Scn | None = None
    rewind_scn: Scn | None = None


class SessionPort(Protocol):
    """A publisher's or a subscriber's session."""

    @property
    def ended(self) -> StreamsError | None:
        """Why the queue ended it; None while it goes on."""
        ...


_Publisher = TypeVar("_Publisher", bound=SessionPort)
_Subscriber = TypeVar("_Subscriber", bound=SessionPort)


class DequeuePort(Protocol[_Subscriber]):
    """What subscribers dequeue from, as its server sees it. Not thread-safe: the server holds a lock around every call."""

    @property
    def topology_name(self) -> str:
        """The topology it belongs to."""
        ...

    @property
    def name(self) -> str:
        """The queue's name there."""
        ...

    def open_subscriber(
        self, component: str, incarnation: str, needed: Mapping[str, Scn], credit_bytes: int
    ) -> _Subscriber:
        """Begin a subscriber's session; an older incarnation's ends.

        Args:
            component: name of the propagation or apply process.
            incarnation: orders the sessions of one component; greater is newer.
            needed: per source, the SCN after which the subscriber needs everything; FIRST_SCN: it never had anything.
            credit_bytes: how many bytes it can take before the first `grant`.

        Raises:
            QueueError: it is no subscriber of this queue for these sources, or a newer incarnation is connected.
            LogGone: what it needs is known to be gone.
        """
        ...

    def grant(self, session: _Subscriber, credit_bytes: int) -> None:
        """The subscriber can take so much in addition.

        Args:
            session: of the subscriber.
            credit_bytes: what is added to its credit; a batch may exceed what is left, the next one then waits.
        """
        ...

    def acknowledge(self, session: _Subscriber, source: str, scn: Scn) -> None:
        """The subscriber's destinations have committed everything up to `scn`.

        Args:
            session: of the subscriber; once it has ended and a newer one began, nothing is noted.
            source: one of those it subscribed to.
            scn: of that source; one that is not above the last is ignored.

        Raises:
            ProtocolError: the session did not subscribe to the source.
        """
        ...

    def dequeue(self, session: _Subscriber) -> Delivery | None:
        """The next batch for the subscriber; None when there is none or no credit."""
        ...

    def close_subscriber(self, session: _Subscriber) -> None:
        """The stream is gone; idempotent."""
        ...


class QueuePort(DequeuePort[_Subscriber], Protocol[_Publisher, _Subscriber]):
    """A queue, with its publishers and what time asks of it."""

    def open_publisher(self, component: str, incarnation: str, source: str) -> _Publisher:
        """Begin a publisher's session; an older incarnation's ends.

        Args:
            component: name of the capture process or propagation.
            incarnation: orders the sessions of one component; greater is newer.
            source: the site whose LCRs it sends.

        Raises:
            QueueError: the queue takes no LCRs of this source, or a newer incarnation or another publisher is
                connected.
        """
        ...

    def resume(self, session: _Publisher) -> tuple[Scn, int]:
        """Where the publisher must begin (everything after this SCN), and its first credit in bytes."""
        ...

    def enqueue(self, session: _Publisher, header: BatchHeader, data: bytes) -> None:
        """Take a batch. One the queue has already counts as taken.

        Args:
            session: of the publisher.
            header: of the batch.
            data: the encoded batch, header included.

        Raises:
            ProtocolError: it does not follow the batch before; the session must end.
        """
        ...

    def gone(self, session: _Publisher, first_scn: Scn) -> None:
        """Note that the publisher has nothing up to `first_scn` any more, though it was asked for less.

        Args:
            session: of the publisher, which sends nothing until it is asked again.
            first_scn: it can send everything after this. Subscribers that need more are refused, the others go on.
        """
        ...

    def publisher_news(self, session: _Publisher) -> PublisherNews | None:
        """What changed for the publisher since it was last asked."""
        ...

    def close_publisher(self, session: _Publisher) -> None:
        """The stream is gone; idempotent."""
        ...

    def housekeeping(self) -> float:
        """Do what time asks for; answers in how many seconds to be called again."""
        ...

    def positions_to_save(self) -> Mapping[str, Mapping[str, Scn]] | None:
        """Acknowledged positions that changed since they were saved, or None. (source -> subscriber -> SCN)."""
        ...

    def save_positions(self, positions: Mapping[str, Mapping[str, Scn]]) -> None:
        """Make positions durable. The only method that may be called without the lock: it writes a file.

        Does nothing if they are outdated.

        Args:
            positions: what `positions_to_save` answered, the same object.

        Raises:
            OSError: they could not be written.
        """
        ...

    def positions_saved(self, positions: Mapping[str, Mapping[str, Scn]], problem: OSError | None) -> None:
        """Tell the outcome of `save_positions`.

        Args:
            positions: those that `save_positions` got.
            problem: why they are not on disk; None: they are.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Statistics, JSON-able."""
        ...

    def close(self) -> None:
        """Save what is left to save and let go of the files; idempotent.

        Raises:
            OSError: the positions could not be saved.
        """
        ...
